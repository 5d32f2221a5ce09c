/* The arithmetic of a step against torch.optim.AdamW, and the edge cases of a step: steps without finite
 * gradients, loss scaling, other cuts, evaluation, bad batches, another engine, stalls. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

/* ---- a model, a device and an engine for one test ---- */

struct bench {
    struct ot_model *model;
    struct ot_device *device;
    struct ot_engine *engine;
    struct ot_plan plan;
    const struct ot_chain *chain;
};

static float first_loss_scale; /* for the engines that open_bench opens; 0: the default */
static void open_bench(struct bench *b, const struct ot_model_config *config, enum ot_dtype dtype,
                       const struct ot_optimizer_config *optimizer, int64_t sequence, int max_micro,
                       bool keep_grads) {
    memset(b, 0, sizeof *b);
    check_ok(ot_model_open(config, dtype, config->max_position, &b->model));
    b->chain = ot_model_chain(b->model);
    struct ot_plan_request request = {.chain = b->chain,
                                      .budget_bytes = {(size_t)1 << 28, (size_t)1 << 28},
                                      .sequence_tokens = sequence,
                                      .step_sequences = max_micro,
                                      .micro_sequences = 1,
                                      .train = true,
                                      .clip = optimizer->clip > 0,
                                      .weights = OT_HOME_HOST,
                                      .state = OT_HOME_HOST,
                                      .activations = OT_HOME_AUTO,
                                      .keep = OT_KEEP_CHOSEN,
                                      .cache_rows = sequence};
    check_ok(ot_plan_make(&request, &b->plan));
    b->plan.keep_grads = keep_grads;
    check_ok(ot_plan_finish(b->chain, &b->plan));
    tiny_open_device((size_t)1 << 28, 1, 0, &b->device);
    struct ot_engine_config engine = {.chain = b->chain,
                                      .device = b->device,
                                      .plan = &b->plan,
                                      .optimizer = *optimizer,
                                      .loss_scale = first_loss_scale,
                                      .optimizer_threads = 1};
    check_ok(ot_engine_open(&engine, &b->engine));
}

static void close_bench(struct bench *b) {
    ot_engine_close(b->engine);
    ot_device_close(b->device);
    ot_plan_free(&b->plan);
    ot_model_close(b->model);
}

static void random_weights(struct bench *b) {
    for (int s = 0; s < b->chain->n_slabs; s++) {
        int64_t n = b->chain->slabs[s].n_params;
        float *values = malloc((size_t)n * sizeof *values);
        assert_non_null(values);
        ot_model_init_values(b->model, 3, s, 0, n, values);
        check_ok(ot_engine_set(b->engine, OT_SLAB_MASTER, s, 0, n, values));
        free(values);
    }
}

static const struct ot_optimizer_config adamw = {0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 0};

/* ---- the golden runs (scripts/golden/train.py) ---- */

static const char *key(const char *run, const char *name) {
    static char text[2][192];
    static int next;
    char *at = text[next++ & 1];
    snprintf(at, sizeof text[0], "%s.%s", run, name);
    return at;
}

static struct ot_model_config golden_config(const struct ot_golden *g, const char *run) {
    struct ot_model_config config = tiny_golden_config(golden_i64(g, key(run, "config"), NULL),
                                                       golden_f64(g, key(run, "config_real"), NULL));
    config.tied = strcmp(run, "tied") == 0;
    return config;
}

static void set_golden_weights(struct bench *b, const struct ot_golden *g, const char *run) {
    for (int s = 0; s < b->chain->n_slabs; s++) { /* padding */
        float zero = 0;
        for (int64_t i = 0; i < b->chain->slabs[s].n_params; i++)
            check_ok(ot_engine_set(b->engine, OT_SLAB_MASTER, s, i, 1, &zero));
    }
    for (int64_t t = 0; t < ot_model_tensor_count(b->model); t++) {
        const struct ot_tensor *tensor = ot_model_tensor(b->model, t);
        char name[128];
        snprintf(name, sizeof name, "init.%s", tensor->name);
        check_ok(ot_engine_set(b->engine, OT_SLAB_MASTER, tensor->slab, tensor->first,
                               tensor->rows * tensor->cols, golden_f32(g, key(run, name), NULL)));
    }
}

static void golden_run(const char *run) {
    struct ot_golden *g = golden_open("train_llama.bin");
    struct ot_model_config config = golden_config(g, run);
    const double *o = golden_f64(g, key(run, "optimizer"), NULL),
                 *losses = golden_f64(g, key(run, "loss"), NULL);
    const double *norms = golden_f64(g, key(run, "grad_norm"), NULL);
    const float *lr = golden_f32(g, key(run, "lr"), NULL);
    const int64_t *trained = golden_i64(g, key(run, "trained"), NULL);
    int64_t steps, at = 0;
    const int64_t *micro_tokens = golden_i64(g, key(run, "micro_tokens"), NULL);
    steps = golden_dim(g, key(run, "micro_tokens"), 0);
    const int32_t *arrays[4] = {
        golden_i32(g, key(run, "tokens"), NULL), golden_i32(g, key(run, "targets"), NULL),
        golden_i32(g, key(run, "position"), NULL), golden_i32(g, key(run, "row_start"), NULL)};
    struct ot_optimizer_config adam = {(float)o[0], (float)o[1], (float)o[2], (float)o[3], (float)o[4], 0};
    struct bench b;
    int clipped = 0;
    open_bench(&b, &config, OT_F32, &adam, 4 * config.max_position, 3, false);
    set_golden_weights(&b, g, run);
    assert_int_equal(steps, 20);
    for (int64_t s = 0; s < steps; s++) {
        struct ot_micro_batch micro[3];
        for (int m = 0; m < 3; at += micro_tokens[s * 3 + m], m++)
            micro[m] = tiny_micro(micro_tokens[s * 3 + m], arrays[0] + at, arrays[1] + at, arrays[2] + at,
                                  arrays[3] + at);
        struct ot_step_input input = {3, micro, trained[s], lr[s]};
        struct ot_step_result r;
        check_ok(ot_engine_submit(b.engine, &input));
        check_ok(ot_engine_result(b.engine, &r));
        if (!(fabs(r.loss - losses[s]) <
              1e-5)) /* the project's bound; fp32 rounding alone moves torch's loss by 2e-6 */
            fail_msg("%s step %lld: loss %.8f, torch has %.8f", run, (long long)s + 1, r.loss, losses[s]);
        assert_true(fabs(r.grad_norm - norms[s]) < 1e-4 * norms[s]);
        clipped += r.clipped_norm < r.grad_norm;
    }
    assert_true(clipped > 0 && clipped < 20);
    close_bench(&b);
    golden_close(g);
}

static void golden_untied(void **state) {
    (void)state;
    golden_run("untied");
}

static void golden_tied(void **state) {
    (void)state;
    golden_run("tied");
}

/* ---- edges of a step ---- */

static float *read_master(struct bench *b, int slab) {
    float *values = malloc((size_t)b->chain->slabs[slab].n_params * sizeof *values);
    assert_non_null(values);
    check_ok(ot_engine_drain(b->engine));
    check_ok(ot_engine_get(b->engine, OT_SLAB_MASTER, slab, 0, b->chain->slabs[slab].n_params, values));
    return values;
}

/* A gradient norm that is not finite skips the whole step: no weight, no state and no step count changes. */
static void non_finite_steps_change_nothing(void **state) {
    (void)state;
    for (int dtype = 0; dtype < 2; dtype++) {
        struct ot_model_config config = tiny_config(2, false);
        struct bench b;
        struct tiny_batch batch;
        struct ot_step_result r;
        open_bench(&b, &config, dtype ? OT_BF16 : OT_F32, &adamw, 64, 3, false);
        random_weights(&b);
        tiny_fill_batch(&batch, config.vocab, 0, 3, 1);
        check_ok(ot_engine_submit(b.engine, &batch.input));
        check_ok(ot_engine_result(b.engine, &r));
        assert_false(r.skipped);
        int last = b.chain->n_slabs - 1;
        float *before = read_master(&b, 1), *huge = read_master(&b, last), *kept = read_master(&b, last);
        for (int i = 0; i < 32; i++)
            huge[i] = 3e38f; /* weights of the final norm that make the logits overflow */
        check_ok(ot_engine_set(b.engine, OT_SLAB_MASTER, last, 0, b.chain->slabs[last].n_params, huge));
        check_ok(ot_engine_submit(b.engine, &batch.input));
        check_ok(ot_engine_result(b.engine, &r));
        assert_true(r.skipped);
        assert_false(isfinite(r.grad_norm));
        float *after = read_master(&b, 1);
        assert_memory_equal(before, after, (size_t)b.chain->slabs[1].n_params * sizeof(float));
        assert_int_equal(tiny_adam_step(b.engine), 1);
        check_ok(ot_engine_set(b.engine, OT_SLAB_MASTER, last, 0, b.chain->slabs[last].n_params, kept));
        check_ok(ot_engine_submit(b.engine, &batch.input));
        check_ok(ot_engine_result(b.engine, &r));
        assert_false(r.skipped);
        assert_int_equal(tiny_adam_step(b.engine), 2);
        free(before), free(huge), free(kept), free(after);
        close_bench(&b);
    }
}

static void masters_are_exact(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ot_model_config config = tiny_config(1, true);
        struct bench b;
        open_bench(&b, &config, (enum ot_dtype)dtype, &adamw, 24, 1, false);
        int64_t n = b.chain->slabs[1].n_params;
        float *values = malloc((size_t)n * sizeof *values);
        assert_non_null(values);
        for (int64_t i = 0; i < n; i++)
            values[i] = sinf((float)i) * powf(10, (float)(i % 30) - 15);
        for (int kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++) {
            check_ok(ot_engine_set(b.engine, (enum ot_slab_kind)kind, 1, 0, n, values));
            float *back = malloc((size_t)n * sizeof *back);
            assert_non_null(back);
            check_ok(ot_engine_get(b.engine, (enum ot_slab_kind)kind, 1, 0, n, back));
            assert_memory_equal(values, back, (size_t)n * sizeof *back);
            free(back);
        }
        free(values);
        close_bench(&b);
    }
}

/* ---- fp16 ---- */

static struct ot_step_result one_step(struct bench *b, const struct tiny_batch *batch) {
    struct ot_step_result r;
    check_ok(ot_engine_submit(b->engine, &batch->input));
    check_ok(ot_engine_result(b->engine, &r));
    check_ok(ot_engine_drain(b->engine));
    return r;
}

static float *all_masters(struct bench *b) {
    int64_t n = 0;
    for (int s = 0; s < b->chain->n_slabs; s++)
        n += b->chain->slabs[s].n_params;
    float *values = malloc((size_t)n * sizeof *values), *at = values;
    assert_non_null(values);
    for (int s = 0; s < b->chain->n_slabs; at += b->chain->slabs[s++].n_params)
        check_ok(ot_engine_get(b->engine, OT_SLAB_MASTER, s, 0, b->chain->slabs[s].n_params, at));
    return values;
}

static size_t masters_bytes(const struct bench *b) {
    size_t bytes = 0;
    for (int s = 0; s < b->chain->n_slabs; s++)
        bytes += (size_t)b->chain->slabs[s].n_params * sizeof(float);
    return bytes;
}

/* Steps whose gradients overflow change only the scale. The first step without overflow equals the step of an
 * engine that began with that scale. */
static void the_loss_scale_comes_down(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(2, true);
    struct bench b, again;
    struct tiny_batch batch;
    struct ot_step_result r;
    int skipped = 0;
    first_loss_scale = 0x1p24f;
    open_bench(&b, &config, OT_F16, &adamw, TINY_SEQUENCE, 3, false);
    random_weights(&b);
    tiny_fill_batch(&batch, config.vocab, 1, 3, 1);
    float *before = all_masters(&b);
    for (r = one_step(&b, &batch); r.skipped; r = one_step(&b, &batch), skipped++) {
        float *after = all_masters(&b);
        assert_memory_equal(before, after, masters_bytes(&b));
        assert_true(r.loss_scale == ldexpf(0x1p24f, -skipped));
        free(after);
    }
    assert_true(skipped >= 2 && skipped < 20 && isfinite(r.grad_norm));
    assert_true(r.loss_scale == ldexpf(0x1p24f, -skipped));
    assert_int_equal(tiny_adam_step(b.engine), 1);
    float *scaled = all_masters(&b);
    first_loss_scale = r.loss_scale;
    open_bench(&again, &config, OT_F16, &adamw, TINY_SEQUENCE, 3, false);
    random_weights(&again);
    struct ot_step_result same = one_step(&again, &batch);
    float *direct = all_masters(&again);
    assert_true(!same.skipped && same.loss == r.loss && same.grad_norm == r.grad_norm);
    assert_memory_equal(scaled, direct, masters_bytes(&b));
    assert_memory_not_equal(before, scaled, masters_bytes(&b));
    first_loss_scale = 0;
    free(before), free(scaled), free(direct);
    close_bench(&b), close_bench(&again);
}

/* Takes 2001 steps. The host decides about the scale, so every device shows the same. */
static void the_loss_scale_goes_up_again(void **state) {
    (void)state;
    if (tests_are_brief())
        skip();
    struct ot_model_config config = tiny_config(1, true);
    struct bench b;
    struct tiny_batch batch;
    first_loss_scale = 4;
    open_bench(&b, &config, OT_F16, &adamw, TINY_SEQUENCE, 1, false);
    random_weights(&b);
    tiny_fill_batch(&batch, config.vocab, 1, 1, 1);
    for (int step = 1; step <= 2001; step++) {
        struct ot_step_result r = one_step(&b, &batch);
        assert_true(!r.skipped && r.loss_scale == (step <= 2000 ? 4 : 8));
    }
    first_loss_scale = 0;
    close_bench(&b);
}

static void fp16_needs_clipping(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    tiny_defaults(&run, 1, true, OT_F16);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    check_ok(ot_model_open(&run.config, OT_F16, TINY_SEQUENCE, &model));
    run.plan.clip = false;
    check_fails(ot_plan_finish(ot_model_chain(model), &run.plan), OT_E_USAGE, "fp16 needs clipping");
    ot_plan_free(&run.plan);
    ot_model_close(model);
}

/* The loss of a step is the mean of the evaluation's token losses over the trained tokens. */
static void eval_agrees_with_training(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(2, true);
    struct bench b;
    struct tiny_batch batch;
    struct ot_step_result r;
    double sum = 0;
    open_bench(&b, &config, OT_F32, &adamw, TINY_SEQUENCE, 3, false);
    random_weights(&b);
    tiny_fill_batch(&batch, config.vocab, 1, 3, 1);
    for (int m = 0; m < batch.input.n_micro; m++) {
        float losses[TINY_SEQUENCE];
        check_ok(ot_engine_eval(b.engine, &batch.micro[m], losses));
        for (int64_t i = 0; i < batch.micro[m].n_tokens; i++) {
            assert_true(batch.micro[m].targets[i] >= 0 || losses[i] == 0);
            sum += losses[i];
        }
    }
    check_ok(ot_engine_submit(b.engine, &batch.input));
    check_ok(ot_engine_result(b.engine, &r));
    assert_true(fabs(r.loss - sum / (double)batch.input.n_losses) < 1e-6); /* fp32 losses, summed in double */
    close_bench(&b);
}

/* Gradients do not depend on how a step is cut into micro-batches, except for fp32 rounding of sums of some
 * hundred terms. */
static void cuts_agree(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(2, true);
    float *grads[2];
    int64_t n = 0;
    for (int cut = 0; cut < 2; cut++) {
        struct bench b;
        struct tiny_batch batch;
        struct ot_step_result r;
        open_bench(&b, &config, OT_F32, &adamw, cut ? 4 * TINY_SEQUENCE : TINY_SEQUENCE, cut ? 1 : 4, true);
        random_weights(&b);
        tiny_fill_batch(&batch, config.vocab, 2, 4, 1);
        struct ot_micro_batch whole = batch.micro[0];
        whole.n_tokens = 4 * TINY_SEQUENCE;
        for (int i = TINY_SEQUENCE; cut && i < 4 * TINY_SEQUENCE; i++)
            batch.row_start[i] +=
                i / TINY_SEQUENCE * TINY_SEQUENCE; /* counted from the start of the only micro-batch */
        if (cut)
            batch.input = (struct ot_step_input){1, &whole, batch.input.n_losses, batch.input.lr};
        check_ok(ot_engine_submit(b.engine, &batch.input));
        check_ok(ot_engine_result(b.engine, &r));
        check_ok(ot_engine_drain(b.engine));
        n = b.chain->slabs[0].n_params;
        grads[cut] = malloc((size_t)n * sizeof *grads[cut]);
        assert_non_null(grads[cut]);
        check_ok(ot_engine_get_grad(b.engine, 0, 0, n, grads[cut]));
        close_bench(&b);
    }
    assert_true(relative_error(grads[0], grads[1], n) < 1e-6);
    free(grads[0]), free(grads[1]);
}

static void decode_agrees_with_eval(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(2, false);
    struct bench b;
    struct tiny_batch batch;
    float losses[TINY_SEQUENCE], *logits = malloc((size_t)config.vocab * sizeof *logits);
    assert_non_null(logits);
    open_bench(&b, &config, OT_F32, &adamw, TINY_SEQUENCE, 1, false);
    random_weights(&b);
    tiny_fill_batch(&batch, config.vocab, 3, 1, 1);
    for (int i = 0; i < TINY_SEQUENCE; i++) {
        batch.targets[i] = i + 1 < TINY_SEQUENCE ? batch.tokens[i + 1] : 0;
        batch.position[i] = i;
        batch.row_start[i] = 0;
    }
    check_ok(ot_engine_eval(b.engine, &batch.micro[0], losses));
    check_ok(ot_engine_decode_begin(b.engine, TINY_SEQUENCE));
    for (int i = 0; i < TINY_SEQUENCE; i += i == 0 ? 5 : 1) {
        double sum = 0;
        int n = i == 0 ? 5 : 1, last = i + n - 1;
        check_ok(ot_engine_decode(b.engine, batch.tokens + i, n, logits));
        for (int64_t v = 0; v < config.vocab; v++)
            sum += exp((double)logits[v]);
        /* Logits of magnitude 1 in fp32 through two layers: 1e-5 allows some hundred roundings. */
        assert_true(fabs(log(sum) - (double)logits[batch.targets[last]] - (double)losses[last]) < 1e-5);
    }
    check_fails(ot_engine_decode(b.engine, batch.tokens, 1, logits), OT_E_INPUT, "cache");
    check_fails(ot_engine_decode_begin(b.engine, 1000), OT_E_INPUT, "positions");
    free(logits);
    close_bench(&b);
}

static void bad_batches_are_refused(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(1, true);
    struct bench b;
    struct tiny_batch batch;
    open_bench(&b, &config, OT_F32, &adamw, TINY_SEQUENCE, 2, false);
    random_weights(&b);
    tiny_fill_batch(&batch, config.vocab, 0, 2, 1);
#define REFUSED(place, value, words)                                                                         \
    do {                                                                                                     \
        int32_t kept = (place);                                                                              \
        (place) = (value);                                                                                   \
        check_fails(ot_engine_submit(b.engine, &batch.input), OT_E_INPUT, words);                            \
        (place) = kept;                                                                                      \
    } while (0)
    REFUSED(batch.tokens[3], 67, "id 67 is not in the embedding of 67 rows");
    REFUSED(batch.tokens[3], -1, "id -1");
    REFUSED(batch.targets[5], 67, "target 67");
    REFUSED(batch.position[7], 64, "position 64");
    REFUSED(batch.row_start[7], 8, "row");
    REFUSED(batch.input.n_micro, 3, "3 micro-batches");
#undef REFUSED
    batch.input.n_losses = 0;
    check_fails(ot_engine_submit(b.engine, &batch.input), OT_E_INPUT, "with 0 losses");
    close_bench(&b);
}

/* ---- a run that goes on in another engine (offload/README.md, rule 2) ---- */

static void run_steps(struct ot_engine *engine, int64_t vocab, int first, int end) {
    struct tiny_batch batch;
    struct ot_step_result result;
    for (int step = first; step < end; step++) {
        tiny_fill_batch(&batch, vocab, step, 2, 1);
        batch.input.lr = 1e-2f;
        check_ok(ot_engine_submit(engine, &batch.input));
        check_ok(ot_engine_result(engine, &result));
        assert_int_equal(result.step, step + 1);
    }
    check_ok(ot_engine_drain(engine));
}

/* Copies all parameters and state. With `compare`, copies nothing and fails the test if they differ. */
static void carry_over(struct bench *from, struct bench *to, bool compare) {
    for (int s = 0; s < from->chain->n_slabs; s++)
        for (enum ot_slab_kind kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++) {
            int64_t n = from->chain->slabs[s].n_params;
            float *values = malloc(2 * (size_t)n * sizeof *values);
            assert_non_null(values);
            check_ok(ot_engine_get(from->engine, kind, s, 0, n, values));
            if (compare)
                check_ok(ot_engine_get(to->engine, kind, s, 0, n, values + n));
            else
                check_ok(ot_engine_set(to->engine, kind, s, 0, n, values));
            if (compare)
                assert_memory_equal(values, values + n, (size_t)n * sizeof *values);
            free(values);
        }
}

static void a_run_goes_on_in_another_engine(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(3, false);
    struct bench whole, first, second;
    open_bench(&whole, &config, OT_BF16, &adamw, TINY_SEQUENCE, 2, false);
    open_bench(&first, &config, OT_BF16, &adamw, TINY_SEQUENCE, 2, false);
    open_bench(&second, &config, OT_BF16, &adamw, TINY_SEQUENCE, 2, false);
    random_weights(&whole);
    random_weights(&first);
    run_steps(whole.engine, config.vocab, 0, 5);
    run_steps(first.engine, config.vocab, 0, 3);
    carry_over(&first, &second, false);
    tiny_hand_over(first.engine, second.engine);
    run_steps(second.engine, config.vocab, 3, 5);
    carry_over(&whole, &second, true);
    assert_int_equal(tiny_adam_step(second.engine), 5);
    close_bench(&whole);
    close_bench(&first);
    close_bench(&second);
}

/* ---- the watchdog ---- */

static struct ot_chain slow_chain; /* a copy of the model's chain with a slow first layer */
static void (*quick_forward)(const void *context, int block, const struct ot_block_run *run);

static void slow_forward(const void *context, int block, const struct ot_block_run *run) {
    if (block == 1)
        usleep(2500 * 1000);
    quick_forward(context, block, run);
}

static void a_stuck_lane_is_named(void **state) {
    (void)state;
    struct ot_model_config config = tiny_config(2, false);
    struct bench b;
    struct tiny_batch batch;
    float losses[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    char text[2048] = "";
    open_bench(&b, &config, OT_F32, &adamw, TINY_SEQUENCE, 2, false);
    ot_engine_close(b.engine);
    slow_chain = *b.chain;
    quick_forward = slow_chain.forward;
    slow_chain.forward = slow_forward;
    struct ot_engine_config engine = {.chain = &slow_chain,
                                      .device = b.device,
                                      .plan = &b.plan,
                                      .optimizer = adamw,
                                      .optimizer_threads = 1,
                                      .stall_seconds = 1};
    check_ok(ot_engine_open(&engine, &b.engine));
    random_weights(&b);
    tiny_fill_batch(&batch, config.vocab, 0, 1, 1);
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    int rc = ot_engine_eval(b.engine, &batch.micro[0], losses);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    check_ok(rc);
    rewind(file);
    size_t bytes = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    assert_true(bytes > 0);
    assert_non_null(strstr(text, "no progress for"));
    assert_non_null(strstr(text, "lane compute is running forward layer.0"));
    close_bench(&b);
}

static void break_lane(struct ot_lane *lane, const void *args) {
    (void)args;
    ot_cpu_lane_fail(lane, ot_fail(OT_E_DEVICE, "the device broke"));
}

static void broken_forward(const void *context, int block, const struct ot_block_run *run) {
    (void)context, (void)block;
    ot_cpu_lane_push(run->lane, break_lane, NULL, 0);
}

/* A device fails during a step: the step's result returns the error, nothing hangs, and closing works. */
static void device_failures_reach_the_driver(void **state) {
    (void)state;
    tiny_needs_cpu(); /* tests/cuda/test_cuda_train.c does the same for the cuda device */
    struct ot_model_config config = tiny_config(2, false);
    struct bench b;
    struct tiny_batch batch;
    struct ot_step_result r;
    open_bench(&b, &config, OT_F32, &adamw, TINY_SEQUENCE, 3, false);
    struct ot_chain broken = *b.chain;
    broken.forward = broken_forward;
    ot_engine_close(b.engine);
    struct ot_engine_config engine = {
        .chain = &broken, .device = b.device, .plan = &b.plan, .optimizer = adamw, .optimizer_threads = 1};
    check_ok(ot_engine_open(&engine, &b.engine));
    tiny_fill_batch(&batch, config.vocab, 0, 3, 1);
    check_ok(ot_engine_submit(b.engine, &batch.input));
    check_fails(ot_engine_result(b.engine, &r), OT_E_DEVICE, "the device broke");
    check_fails(ot_engine_drain(b.engine), OT_E_DEVICE, "the device broke");
    close_bench(&b);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_untied),
        cmocka_unit_test(golden_tied),
        cmocka_unit_test(masters_are_exact),
        cmocka_unit_test(the_loss_scale_comes_down),
        cmocka_unit_test(the_loss_scale_goes_up_again),
        cmocka_unit_test(fp16_needs_clipping),
        cmocka_unit_test(non_finite_steps_change_nothing),
        cmocka_unit_test(cuts_agree),
        cmocka_unit_test(eval_agrees_with_training),
        cmocka_unit_test(decode_agrees_with_eval),
        cmocka_unit_test(bad_batches_are_refused),
        cmocka_unit_test(device_failures_reach_the_driver),
        cmocka_unit_test(a_run_goes_on_in_another_engine),
        cmocka_unit_test(a_stuck_lane_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

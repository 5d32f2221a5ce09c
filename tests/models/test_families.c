/* Each family row against transformers, each form of adapters against PEFT, and the regularisers, in fp32 and
 * bf16: losses, logits and the gradient of every trained parameter. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "tests/models/golden_case.h"
#include "tests/support/check.h"

/* The project's bound for whole tensors. The golden files' own fp32 rounding takes up to 2e-6 of it. */
static const double GRADIENT_BOUND = 2e-5;
/* Logits of magnitude 1 from sums of some thirty products, two of them in each of two or three layers: about
 * 1e-6. */
static const double VALUE_BOUND = 1e-5;

/* The first row of each case has 11 tokens. */
enum { CHUNK = 8 };

static double vector_norm(const float *values, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)values[i] * values[i];
    return sqrt(sum);
}

/* Each tensor's gradient must be within `bound`. Returns the error of all gradients as one vector. */
static double check_gradients(const struct golden_case *c, struct runner *runner, const char *name,
                              double bound) {
    const struct ot_model *model = runner_model(runner);
    double squared_difference = 0, squared_norm = 0;
    float *slab_grad = NULL;
    int slab = -1;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        int64_t n = t->rows * t->cols;
        if (!t->trained)
            continue;
        const float *want = golden_case_tensor(c, "grad", t);
        if (t->slab != slab) {
            free(slab_grad);
            slab_grad = runner_slab_grad(runner, slab = t->slab);
        }
        double error = relative_error(slab_grad + t->first, want, n);
        if (!(error < bound))
            fail_msg("%s: gradient of %s is off by %.2e, bound %.2e", name, t->name, error, bound);
        double norm = vector_norm(want, n);
        squared_difference += error * norm * error * norm;
        squared_norm += norm * norm;
    }
    free(slab_grad);
    return sqrt(squared_difference / squared_norm);
}

static double mean_loss(const struct golden_case *c, const float *token_loss) {
    double sum = 0;
    for (int64_t i = 0; i < c->batch.n; i++)
        sum += token_loss[i];
    return sum * c->batch.grad_scale;
}

/* chunk: the tokens of a layer's chunks; 0: all at once. */
static void check_training(const struct golden_case *c, const char *name, enum ot_keep_level level,
                           int64_t chunk) {
    struct runner *runner = golden_case_runner(c, OT_F32, 1);
    if (chunk > 0)
        runner_set_chunk(runner, chunk);
    float *token_loss = calloc((size_t)c->batch.n, sizeof *token_loss);
    float *eval_loss = calloc((size_t)c->batch.n, sizeof *eval_loss);
    assert_true(token_loss && eval_loss);
    runner_begin_grads(runner); /* as the first micro-batch of a step: what it does not write stays NaN */
    runner_train(runner, &c->batch, level, token_loss);
    check_close(name, token_loss, c->token_loss, c->batch.n, VALUE_BOUND, VALUE_BOUND);
    assert_true(fabs(mean_loss(c, token_loss) - golden_f64(c->golden, golden_case_key(c, "loss"), NULL)[0]) <
                VALUE_BOUND);
    check_gradients(c, runner, name, GRADIENT_BOUND);
    runner_eval(runner, &c->batch, eval_loss);
    if (c->has_regular)
        check_close(name, eval_loss, golden_f32(c->base, "token_loss", NULL), c->batch.n, VALUE_BOUND,
                    VALUE_BOUND);
    else if (c->lora.dropout == 0)
        assert_memory_equal(eval_loss, token_loss, (size_t)c->batch.n * sizeof *eval_loss);
    free(eval_loss);
    free(token_loss);
    runner_close(runner);
}

/* Calls check for every case of the lists. */
static void for_each_case(void (*check)(const struct golden_case *c, const char *name)) {
    const char *const *const lists[] = {golden_case_names, golden_lora_names, golden_pair_names,
                                        golden_regular_names};
    for (int list = 0; list < 4; list++)
        for (int i = 0; lists[list][i]; i++) {
            struct golden_case c;
            golden_case_open(lists[list][i], &c);
            check(&c, lists[list][i]);
            golden_case_close(&c);
        }
}

static void check_levels(const struct golden_case *c, const char *name) {
    check_training(c, name, OT_KEEP_PRODUCTS, 0);
    check_training(c, name, OT_KEEP_NONE, 0);
    check_training(c, name, OT_KEEP_NONE, CHUNK);
}

static void test_losses_and_gradients(void **state) {
    (void)state;
    for_each_case(check_levels);
}

/* The losses of training in sections, and the gradients of all slabs, one after the other. */
struct sections_result {
    float *losses, *evaluated;
    int64_t n_grads;
    float *grads;
};

static struct runner *train_sections(const struct golden_case *c, enum ot_keep_level level, int64_t section,
                                     int64_t chunk, int groups, struct sections_result *out) {
    struct runner *runner = golden_case_runner(c, OT_F32, 1);
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    size_t n = (size_t)c->batch.n;
    *out = (struct sections_result){calloc(n, sizeof *out->losses), calloc(n, sizeof *out->losses), 0, NULL};
    assert_true(out->losses && out->evaluated);
    runner_set_chunk(runner, chunk);
    runner_begin_grads(runner);
    runner_train_sections(runner, &c->batch, level, section, groups, out->losses);
    runner_eval_sections(runner, &c->batch, section, groups, out->evaluated);
    for (int s = 0; s < chain->n_slabs; s++) {
        int64_t params = chain->slabs[s].n_params;
        if (chain->slabs[s].frozen)
            continue;
        float *grad = runner_slab_grad(runner, s);
        out->grads = realloc(out->grads, (size_t)(out->n_grads + params) * sizeof *out->grads);
        assert_non_null(out->grads);
        memcpy(out->grads + out->n_grads, grad, (size_t)params * sizeof *grad);
        out->n_grads += params;
        free(grad);
    }
    return runner;
}

static void free_sections(struct sections_result *result) {
    free(result->losses);
    free(result->evaluated);
    free(result->grads);
}

/* With a key group for each head: the bits of one group. */
static void check_groups(const struct golden_case *c, const char *name, enum ot_keep_level level,
                         int64_t section, int64_t chunk, const struct sections_result *want, int64_t heads) {
    struct sections_result got;
    size_t losses = (size_t)c->batch.n * sizeof(float), grads = (size_t)want->n_grads * sizeof(float);
    runner_close(train_sections(c, level, section, chunk, (int)heads, &got));
    if (memcmp(got.losses, want->losses, losses) != 0 ||
        memcmp(got.evaluated, want->evaluated, losses) != 0 || memcmp(got.grads, want->grads, grads) != 0)
        fail_msg("%s: other bits with %d groups of keys at level %s", name, (int)heads,
                 ot_keep_level_name(level));
    free_sections(&got);
}

/* In sections, of which each is in chunks. */
static void check_sections(const struct golden_case *c, const char *name, enum ot_keep_level level) {
    enum { SECTION = 512, CHUNKS = 128 };
    struct sections_result result;
    struct runner *runner = train_sections(c, level, SECTION, CHUNKS, 1, &result);
    check_close(name, result.losses, c->token_loss, c->batch.n, VALUE_BOUND, VALUE_BOUND);
    check_gradients(c, runner, name, GRADIENT_BOUND);
    assert_memory_equal(result.losses, result.evaluated, (size_t)c->batch.n * sizeof(float));
    if (level == OT_KEEP_NONE) /* other levels leave out phases; short rows show them all */
        check_groups(c, name, level, SECTION, CHUNKS, &result,
                     ot_model_chain(runner_model(runner))->key_heads);
    free_sections(&result);
    runner_close(runner);
}

/* All forms of layers, adapters and regularisers in key groups, each at one of two levels. */
static void check_groups_of_case(const struct golden_case *c, const char *name) {
    enum { SECTION = 7 };
    struct runner *runner = golden_case_runner(c, OT_F32, 1);
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    int64_t heads = chain->section_align > 0 ? chain->key_heads : 0;
    runner_close(runner);
    if (heads < 2)
        return;
    enum ot_keep_level level = strlen(name) % 2 ? OT_KEEP_NONE : OT_KEEP_ALL;
    struct sections_result one;
    runner_close(train_sections(c, level, SECTION, CHUNK, 1, &one));
    check_groups(c, name, level, SECTION, CHUNK, &one, heads);
    free_sections(&one);
}

static void test_key_groups(void **state) {
    (void)state;
    for_each_case(check_groups_of_case);
}

/* A row of 3,000 tokens and one behind it, in chunks across which windows, caps, ALiBi and sinks see. */
static void test_long_rows(void **state) {
    (void)state;
    for (int i = 0; golden_long_names[i]; i++) {
        struct golden_case c;
        golden_case_open(golden_long_names[i], &c);
        check_training(&c, golden_long_names[i], OT_KEEP_NONE, 128);
        check_sections(&c, golden_long_names[i], i % 2 ? OT_KEEP_NONE : OT_KEEP_ALL);
        golden_case_close(&c);
    }
}

/* bf16 against the fp32 golden values: no larger error than torch's own bf16 run of the same model, for
 * all gradients as one vector and for all losses as one vector. The bound is half more, because the errors
 * of 20 losses are 20 draws, and the norms of two such vectors differ by a fifth (one standard deviation).
 * A single tensor may have a gradient whose terms nearly cancel (a key's bias), so rounding leaves less of
 * it: 10 %, or half more than the worst of torch where a file says it. */
static void check_bf16(const struct golden_case *c, const char *name) {
    const double *torch_error = golden_f64(c->golden, golden_case_key(c, "bf16_error"), NULL);
    struct runner *runner = golden_case_runner(c, OT_BF16, 1);
    float *token_loss = calloc((size_t)c->batch.n, sizeof *token_loss);
    assert_non_null(token_loss);
    runner_train(runner, &c->batch, OT_KEEP_ALL, token_loss);
    double loss_error = relative_error(token_loss, c->token_loss, c->batch.n);
    const char *worst = golden_case_key(c, "bf16_worst");
    double most = golden_has(c->golden, worst) ? 1.5 * golden_f64(c->golden, worst, NULL)[0] : 0;
    double grad_error = check_gradients(c, runner, name, fmax(0.1, most));
    if (!(loss_error < 1.5 * torch_error[1]) || !(grad_error < 1.5 * torch_error[0]))
        fail_msg("%s: bf16 is off by %.2e in losses, %.2e in gradients; torch by %.2e, %.2e", name,
                 loss_error, grad_error, torch_error[1], torch_error[0]);
    free(token_loss);
    runner_close(runner);
}

static void test_bf16(void **state) {
    (void)state;
    for_each_case(check_bf16);
}

/* Sends a row through the cache, in calls of `piece` tokens. The logits after each call must be those of the
 * whole row. */
static void check_decode(const struct golden_case *c, struct runner *runner, const char *name,
                         int64_t piece) {
    int64_t vocab = c->config.vocab;
    float *logits = calloc((size_t)vocab, sizeof *logits);
    assert_non_null(logits);
    for (int64_t first = 0, end; first < c->batch.n; first = end) {
        for (end = first + 1; end < c->batch.n && c->batch.row_start[end] == first; end++)
            ;
        runner_decode_begin(runner, end - first);
        for (int64_t at = first; at < end; at += piece) {
            int64_t n = end - at < piece ? end - at : piece;
            runner_decode(runner, c->batch.tokens + at, n, logits);
            check_close(name, logits, c->logits + (at + n - 1) * vocab, vocab, VALUE_BOUND, VALUE_BOUND);
        }
        runner_decode_end(runner);
    }
    free(logits);
}

/* The same for pairs: the inputs with the start token and the next targets, then the others in pieces. */
static void check_decode_pair(const struct golden_case *c, struct runner *runner, const char *name,
                              int64_t first, int64_t end, int64_t piece) {
    const struct runner_batch *b = &c->batch;
    int64_t vocab = c->config.vocab, n_inputs = b->input_end[first] - b->input_first[first];
    int32_t tokens[64];
    float *logits = calloc((size_t)vocab, sizeof *logits);
    assert_non_null(logits);
    memcpy(tokens, b->tokens + b->input_first[first], (size_t)n_inputs * sizeof *tokens);
    memcpy(tokens + n_inputs, b->tokens + first, (size_t)(end - first) * sizeof *tokens);
    runner_decode_begin_pair(runner, n_inputs, n_inputs + end - first);
    for (int64_t at = 0, n; at < n_inputs + end - first; at += n) {
        int64_t left = n_inputs + end - first - at;
        n = at > 0 ? piece : piece == 1 ? n_inputs : n_inputs + piece;
        n = n < left ? n : left;
        runner_decode(runner, tokens + at, n, logits);
        if (at + n > n_inputs)
            check_close(name, logits, c->logits + (first + at + n - n_inputs - 1) * vocab, vocab, VALUE_BOUND,
                        VALUE_BOUND);
    }
    runner_decode_end(runner);
    free(logits);
}

static void check_pairs(const struct golden_case *c, const char *name) {
    static const int64_t pieces[] = {1, 3, 11};
    struct runner *runner = golden_case_runner(c, OT_F32, 1);
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++)
        for (int64_t first = c->batch.n_inputs, end; first < c->batch.n; first = end) {
            runner_keep(runner, p == 1 ? OT_KEEP_PRODUCTS : OT_KEEP_NONE);
            for (end = first + 1; end < c->batch.n && c->batch.row_start[end] == first; end++)
                ;
            check_decode_pair(c, runner, name, first, end, pieces[p]);
        }
    runner_close(runner);
}

static void check_pieces(const struct golden_case *c, const char *name) {
    static const int64_t pieces[] = {1, 3, 11};
    if (ot_model_has_pairs(&c->config)) {
        check_pairs(c, name);
        return;
    }
    struct runner *runner = golden_case_runner(c, OT_F32, 1);
    for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++)
        check_decode(c, runner, name, pieces[p]);
    runner_set_chunk(runner, CHUNK);
    runner_keep(runner, OT_KEEP_ALL);
    check_decode(c, runner, name, 11);
    runner_close(runner);
}

static void test_logits_with_a_cache(void **state) {
    (void)state;
    for_each_case(check_pieces);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_and_gradients), cmocka_unit_test(test_long_rows),
        cmocka_unit_test(test_key_groups),           cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_logits_with_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

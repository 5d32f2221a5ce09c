/* Frozen slabs (offload/block.h), plain and encoded: the same bits in every placement, the gradients of a run
 * that trains everything, and no byte of them ever changes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/schedule/schedule.h"
#include "src/base/random.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* ---- what is trained ---- */

static bool trains_layers(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "layers") != NULL;
}

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "norm") != NULL;
}

/* A unit of which some tensors are frozen: q, k and v. Backward ends at layer 1. */
static bool trains_values(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "layers.1.") &&
           (strstr(tensor->name, "v_proj") || strstr(tensor->name, "down_proj"));
}

static bool trains_head(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "lm_head") || strcmp(tensor->name, "model.norm.weight") == 0;
}

static bool trains_embedding(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "embed_tokens") != NULL;
}

static bool trains_nothing(const void *context, const struct ot_tensor *tensor) {
    (void)context, (void)tensor->name;
    return false;
}

typedef bool (*trains_fn)(const void *context, const struct ot_tensor *tensor);
static const trains_fn choices[] = {trains_layers, trains_norms, trains_values, trains_head,
                                    trains_embedding};
enum { CHOICES = sizeof choices / sizeof *choices };

static void defaults(struct tiny_run *run, int choice, enum ot_dtype dtype, bool tied, bool encodes) {
    tiny_defaults(run, 3, tied, dtype);
    run->trains = choices[choice];
    run->encodes = encodes;
}

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && result->norm[i] > 0);
}

/* ---- placement ---- */

static void check_random_plan(struct tiny_run *run, uint64_t seed, const struct tiny_result *want) {
    struct tiny_result other;
    char what[64];
    tiny_plan(run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_randomise(run, seed);
    snprintf(what, sizeof what, "random plan %d", (int)seed);
    tiny_train(run, &other);
    tiny_same(want, &other, what);
    tiny_result_free(&other);
    ot_plan_free(&run->plan);
}

/* Every choice, plain and encoded, in random plans with homes on all tiers. */
static void random_plans(void **state) {
    (void)state;
    int count = getenv("OT_TEST_SLOW") ? 24 : tests_are_few() ? 2 : 5;
    for (int choice = 0; choice < CHOICES; choice++)
        for (int encodes = 0; encodes < 2; encodes++) {
            struct tiny_run run;
            struct tiny_result resident;
            int variant = choice + 3 * encodes;
            defaults(&run, choice, (enum ot_dtype)(variant % 3), variant & 1, encodes);
            run.clip = variant % 3 != OT_F16 && variant % 4 == 3 ? 0 : 1.0f;
            run.state = (enum ot_state_format)(variant % OT_STATE_FORMATS);
            train_resident(&run, &resident);
            for (int i = 0; i < count; i++)
                check_random_plan(&run, (uint64_t)(100 * variant + i + 1), &resident);
            tiny_result_free(&resident);
        }
}

/* Plans of the search, with every forced home of the weights. */
static void homes(void **state) {
    (void)state;
    for (int encodes = 0; encodes < 2; encodes++) {
        struct tiny_run run;
        struct tiny_result resident, other;
        defaults(&run, 0, OT_BF16, true, encodes);
        train_resident(&run, &resident);
        for (int home = OT_HOME_HOST; home <= OT_HOME_NVME; home++)
            for (int slots = 1; slots <= 3; slots++) {
                tiny_plan(&run, (enum ot_home)home, OT_HOME_HOST, OT_HOME_GPU, slots);
                tiny_train(&run, &other);
                tiny_same(&resident, &other, "a forced home of the weights");
                tiny_result_free(&other);
                ot_plan_free(&run.plan);
            }
        tiny_result_free(&resident);
    }
}

/* An encoding that loses nothing changes no bit. */
static void encoding_changes_nothing(void **state) {
    (void)state;
    for (int dtype = OT_BF16; dtype <= OT_F16; dtype++) {
        struct tiny_run run;
        struct tiny_result plain, encoded;
        defaults(&run, 1, (enum ot_dtype)dtype, false, false);
        train_resident(&run, &plain);
        run.encodes = true;
        train_resident(&run, &encoded);
        for (int i = 0; i < TINY_STEPS; i++) {
            assert_true(plain.loss[i] == encoded.loss[i]);
            assert_true(plain.norm[i] == encoded.norm[i]);
        }
        tiny_result_free(&plain);
        tiny_result_free(&encoded);
    }
}

static void several_ranks(void **state) {
    (void)state;
    for (int mode = OT_SHARD_NONE; mode <= OT_SHARD_STAGES; mode++)
        for (int variant = 0; variant < (tests_are_few() ? 1 : 4); variant++) {
            struct tiny_run run;
            struct tiny_result whole, other;
            bool encodes = (variant + mode) % 2, stages = mode == OT_SHARD_STAGES;
            defaults(&run, (variant + (stages ? 2 : mode)) % CHOICES, variant & 1 ? OT_F32 : OT_BF16,
                     variant & 2, encodes);
            run.micro_sequences = 1;
            run.evals = true;
            int ranks = 2 + variant % 2;
            struct tiny_world w = {.ranks = stages ? 1 : ranks, .slots = 2};
            tiny_train_ranks(&run, &w, &whole);
            enum ot_home weights = mode == OT_SHARD_STATE ? OT_HOME_GPU : (enum ot_home)(variant % 3);
            w = (struct tiny_world){.ranks = ranks,
                                    .mode = (enum ot_shard_mode)mode,
                                    .one_copy = mode == OT_SHARD_FULL && weights == OT_HOME_HOST,
                                    .weights = weights,
                                    .state = OT_HOME_HOST,
                                    .activations = stages ? (enum ot_home)(2 - variant % 3) : OT_HOME_GPU,
                                    .turn_blocks = stages && variant % 2 == 0,
                                    .slots = 1 + variant % 3,
                                    .delay_seed = (uint64_t)variant};
            tiny_train_ranks(&run, &w, &other);
            tiny_same(&whole, &other, "several ranks");
            tiny_result_free(&whole);
            tiny_result_free(&other);
        }
}

/* ---- gradients ---- */

/* A gradient of the first step, of the tensor with this name. To be freed with free. */
static float *first_gradient(const struct tiny_engine *tiny, const char *name, int64_t *n) {
    for (int64_t i = 0; i < ot_model_tensor_count(tiny->model); i++) {
        const struct ot_tensor *t = ot_model_tensor(tiny->model, i);
        if (strcmp(t->name, name) != 0)
            continue;
        *n = t->rows * t->cols;
        float *values = malloc((size_t)*n * sizeof *values);
        assert_non_null(values);
        check_ok(ot_engine_get_grad(tiny->engine, t->slab, t->first, *n, values));
        return values;
    }
    fail_msg("no tensor %s", name);
    return NULL;
}

static void open_for_gradients(struct tiny_run *run, struct tiny_engine *tiny) {
    struct tiny_result result = {0};
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    run->plan.keep_grads = true;
    tiny_finish(run);
    tiny_open(run, tiny);
    tiny_steps(run, tiny->engine, 0, 1, &result);
    check_ok(ot_engine_drain(tiny->engine));
}

static void close_for_gradients(struct tiny_run *run, struct tiny_engine *tiny) {
    tiny_close(tiny);
    ot_plan_free(&run->plan);
}

/* The gradients of what is trained are those of a run that trains everything, bit for bit. */
static void gradients_are_those_of_full_training(void **state) {
    (void)state;
    for (int choice = 0; choice < CHOICES; choice++) {
        struct tiny_run all, some;
        struct tiny_engine full, partial;
        int compared = 0;
        defaults(&some, choice, choice % 2 ? OT_BF16 : OT_F32, false, false);
        all = some;
        all.trains = NULL;
        open_for_gradients(&all, &full);
        open_for_gradients(&some, &partial);
        for (int64_t i = 0; i < ot_model_tensor_count(partial.model); i++) {
            const struct ot_tensor *t = ot_model_tensor(partial.model, i);
            int64_t n, n_full;
            if (!choices[choice](NULL, t))
                continue;
            float *got = first_gradient(&partial, t->name, &n);
            float *want = first_gradient(&full, t->name, &n_full);
            assert_int_equal(n, n_full);
            assert_memory_equal(got, want, (size_t)n * sizeof *got);
            compared++;
            free(got);
            free(want);
        }
        assert_true(compared > 0);
        close_for_gradients(&all, &full);
        close_for_gradients(&some, &partial);
    }
}

/* ---- what frozen slabs cost, and refusals ---- */

/* A frozen slab has its bytes at home, and nothing else. Backward ends at the first trained block. */
static void frozen_slabs_cost_their_weights(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    struct ot_layout layout;
    struct ot_schedule schedule;
    defaults(&run, 2, OT_BF16, false, true);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_open_model(&run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_layout_make(chain, &run.plan, &layout));
    check_ok(ot_schedule_make_train(chain, &run.plan, &layout, &schedule));
    int frozen = 0, first = chain->n_blocks;
    for (int s = 0; s < chain->n_slabs; s++) {
        const struct ot_slab_buffers *b = &layout.slabs[s];
        if (!chain->slabs[s].frozen)
            continue;
        frozen++;
        assert_int_equal(layout.buffers[b->weights_gpu].bytes, chain->slabs[s].encoded_bytes);
        assert_true(b->weights_host == OT_NO_BUFFER && b->weights_nvme == OT_NO_BUFFER);
        assert_true(b->state_gpu == OT_NO_BUFFER && b->state_host == OT_NO_BUFFER);
        assert_true(b->grad_gpu == OT_NO_BUFFER && b->grad_host == OT_NO_BUFFER);
    }
    for (int i = 0; i < schedule.n_tasks; i++) {
        const struct ot_task *task = &schedule.tasks[i];
        first = task->kind == OT_TASK_BACKWARD && task->block < first ? task->block : first;
        assert_false(task->kind == OT_TASK_GRAD_FINISH && chain->slabs[task->slab].frozen);
    }
    assert_int_equal(frozen, chain->n_blocks);
    assert_int_equal(first, 2); /* layer 1 */
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    ot_model_close(model);
    ot_plan_free(&run.plan);
}

static void nothing_to_train(void **state) {
    (void)state;
    struct ot_model *model;
    struct tiny_run run;
    tiny_defaults(&run, 1, false, OT_F32);
    run.trains = trains_nothing;
    tiny_open_model(&run, &model);
    struct ot_plan_request request = {.chain = ot_model_chain(model),
                                      .budget_bytes = {(size_t)1 << 30, (size_t)1 << 30, 0},
                                      .sequence_tokens = TINY_SEQUENCE,
                                      .step_sequences = 1,
                                      .train = true,
                                      .clip = true,
                                      .weights = OT_HOME_AUTO,
                                      .state = OT_HOME_AUTO};
    struct ot_plan plan;
    check_fails(ot_plan_make(&request, &plan), OT_E_USAGE, "there is nothing to train");
    request.train = false;
    check_ok(ot_plan_make(&request, &plan));
    ot_plan_free(&plan);
    ot_model_close(model);
}

static void wrong_calls(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    float value = 0;
    char bytes[OT_ENCODED_UNIT] = {0};
    defaults(&run, 0, OT_BF16, false, true);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_open(&run, &tiny);
    assert_true(tiny.chain.slabs[0].frozen && !tiny.chain.slabs[1].frozen);
    check_fails(ot_engine_set(tiny.engine, OT_SLAB_MASTER, 0, 0, 1, &value), OT_E_INTERNAL, "are encoded");
    check_fails(ot_engine_set_encoded(tiny.engine, 1, 0, 1, bytes), OT_E_INTERNAL, "is not encoded");
    check_fails(
        ot_engine_get_encoded(tiny.engine, 0, tiny.chain.slabs[0].encoded_bytes / OT_ENCODED_UNIT, 1, bytes),
        OT_E_INTERNAL, "does not hold");
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    run.encodes = false;
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_open(&run, &tiny);
    check_fails(ot_engine_get(tiny.engine, OT_SLAB_M, 0, 0, 1, &value), OT_E_INTERNAL, "is not trained");
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(encoding_changes_nothing),
        cmocka_unit_test(several_ranks),
        cmocka_unit_test(gradients_are_those_of_full_training),
        cmocka_unit_test(frozen_slabs_cost_their_weights),
        cmocka_unit_test(nothing_to_train),
        cmocka_unit_test(wrong_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

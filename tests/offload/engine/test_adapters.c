/* Adapters (models/lora.h) as trained slabs over frozen ones, plain and encoded: the same bits in every
 * placement, and a first loss that has the bits of the base's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/offload/tiny_ranks.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* ---- which adapters ---- */

static bool ends(const char *text, const char *end) {
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

/* Ranks and scales differ within a unit; k, o and gate have none; layer 0 has none. */
static struct ot_lora_rank some_maps(const void *context, const char *module) {
    (void)context;
    if (strstr(module, "layers.0."))
        return (struct ot_lora_rank){0};
    if (ends(module, "q_proj") || ends(module, "up_proj"))
        return (struct ot_lora_rank){2, 5};
    if (ends(module, "v_proj") || ends(module, "down_proj"))
        return (struct ot_lora_rank){3, 4};
    return (struct ot_lora_rank){0};
}

static struct ot_lora_rank head_and_outputs(const void *with_embedding, const char *module) {
    if (with_embedding && ends(module, "embed_tokens"))
        return (struct ot_lora_rank){2, 3};
    bool has = ends(module, "lm_head") || ends(module, "o_proj");
    return (struct ot_lora_rank){has ? 4 : 0, 3};
}

static const struct ot_lora choices[] = {
    {.all = {3, 6}, .lr_ratio = 7},
    {.choose = some_maps, .dropout = 0.25f},
    {.choose = head_and_outputs, .context = "", .rslora = true, .dropout = 0.1f},
    {.all = {3, 6}, .dora = true},
    {.choose = some_maps, .dora = true, .lr_ratio = 4},
    {.choose = head_and_outputs, .rslora = true, .dora = true},
    {.all = {3, 6}, .dora = true, .dropout = 0.2f},
    {.choose = some_maps, .dora = true, .dropout = 0.25f},
    {.choose = head_and_outputs, .rslora = true, .dora = true, .dropout = 0.1f}};
enum { CHOICES = 3, VARIANTS = 18, OF_A_KIND = 6 };

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "norm") != NULL;
}

/* variant: of the choice, of the dtype, of a tied head, and of norms that are trained too. The second third
 * of the variants has DoRA, the last DoRA with dropout. */
static void defaults(struct tiny_run *run, int variant, bool encodes) {
    tiny_defaults(run, 3, variant & 1, (enum ot_dtype)(variant / 2 % 3));
    run->lora = &choices[variant % CHOICES + variant / OF_A_KIND * CHOICES];
    run->trains = variant % 4 == 2 ? trains_norms : NULL;
    run->encodes = encodes;
}

/* ---- bits ---- */

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && result->norm[i] > 0);
}

static void any_plan_has_the_bits_of_the_resident_run(void **state) {
    (void)state;
    int count = getenv("OT_TEST_SLOW") ? 24 : tests_are_few() ? 1 : 2, step = tests_are_few() ? 2 : 1;
    for (int variant = 0; variant < VARIANTS; variant += step)
        for (int encodes = 0; encodes < 2; encodes++) {
            struct tiny_run run;
            struct tiny_result resident, other;
            char what[64];
            defaults(&run, variant, encodes);
            train_resident(&run, &resident);
            for (int i = 0; i < count; i++) {
                int seed = 1000 * variant + 2 * i + encodes + 1;
                tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
                tiny_randomise(&run, (uint64_t)seed);
                snprintf(what, sizeof what, "random plan %d", seed);
                tiny_train(&run, &other);
                tiny_same(&resident, &other, what);
                tiny_result_free(&other);
                ot_plan_free(&run.plan);
            }
            tiny_result_free(&resident);
        }
}

static void several_ranks_with_adapters(void **state) {
    (void)state;
    for (int mode = OT_SHARD_NONE; mode <= OT_SHARD_STAGES; mode++) {
        struct tiny_run run;
        struct tiny_result whole, other;
        bool stages = mode == OT_SHARD_STAGES;
        defaults(&run, (mode + 1 + mode * OF_A_KIND) % VARIANTS, mode % 2);
        run.micro_sequences = 1;
        struct tiny_world w = {.ranks = stages ? 1 : 2, .slots = 2};
        tiny_train_ranks(&run, &w, &whole);
        w.ranks = 2;
        w.turn_blocks = stages;
        w.mode = (enum ot_shard_mode)mode;
        w.weights = mode == OT_SHARD_STATE ? OT_HOME_GPU : OT_HOME_HOST;
        w.state = OT_HOME_HOST;
        tiny_train_ranks(&run, &w, &other);
        tiny_same(&whole, &other, "several ranks");
        tiny_result_free(&whole);
        tiny_result_free(&other);
    }
}

/* Dropout knows a micro-batch by its number in the step of all ranks. */
static void check_dropout_of_ranks(int variant) {
    struct tiny_run run;
    struct tiny_result plain, one, other;
    defaults(&run, variant, true);
    assert_true(run.lora->dropout > 0 && run.dtype == OT_F32);
    run.micro_sequences = 1;
    train_resident(&run, &plain);
    struct tiny_world w = {.ranks = 1, .world = true, .slots = 2};
    tiny_train_ranks(&run, &w, &one);
    for (int i = 0; i < TINY_STEPS; i++) /* sums in another order, but of the same elements */
        assert_true(fabs(one.loss[i] - plain.loss[i]) < 1e-6 * plain.loss[i]);
    tiny_result_free(&plain);
    for (w.ranks = 2; w.ranks <= 4; w.ranks *= 2) {
        w.mode = OT_SHARD_FULL;
        w.weights = w.state = OT_HOME_HOST;
        tiny_train_ranks(&run, &w, &other);
        tiny_same(&one, &other, "another number of ranks");
        tiny_result_free(&other);
    }
    tiny_result_free(&one);
}

static void dropout_does_not_depend_on_the_ranks(void **state) {
    (void)state;
    check_dropout_of_ranks(1);
    check_dropout_of_ranks(2 * OF_A_KIND + 1);
}

/* Copies what is trained. Both engines begin with the same frozen weights. */
static void carry_adapters(const struct tiny_engine *from, const struct tiny_engine *to) {
    for (int s = 0; s < from->chain.n_slabs; s++)
        for (int kind = OT_SLAB_MASTER; !from->chain.slabs[s].frozen && kind <= OT_SLAB_V; kind++) {
            int64_t n = from->chain.slabs[s].n_params;
            float *values = malloc((size_t)n * sizeof *values);
            assert_non_null(values);
            check_ok(ot_engine_get(from->engine, (enum ot_slab_kind)kind, s, 0, n, values));
            check_ok(ot_engine_set(to->engine, (enum ot_slab_kind)kind, s, 0, n, values));
            free(values);
        }
}

/* Dropout knows a step by its number in the run: a run that goes on elsewhere drops the same elements. */
static void check_going_on(int variant) {
    struct tiny_run run, other;
    struct tiny_engine whole, second;
    struct tiny_result want = {0}, got = {0};
    defaults(&run, variant, false);
    assert_true(run.lora->dropout > 0);
    other = run;
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_plan(&other, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_open(&run, &whole);
    tiny_open(&other, &second);
    tiny_steps(&run, whole.engine, 0, 2, &want);
    check_ok(ot_engine_drain(whole.engine));
    carry_adapters(&whole, &second);
    tiny_hand_over(whole.engine, second.engine);
    tiny_steps(&run, whole.engine, 2, TINY_STEPS, &want);
    tiny_steps(&other, second.engine, 2, TINY_STEPS, &got);
    for (int i = 2; i < TINY_STEPS; i++)
        assert_true(want.loss[i] == got.loss[i] && want.norm[i] == got.norm[i]);
    tiny_close(&whole);
    tiny_close(&second);
    ot_plan_free(&run.plan);
    ot_plan_free(&other.plan);
}

static void a_run_goes_on_with_the_same_dropout(void **state) {
    (void)state;
    check_going_on(2);
    check_going_on(2 * OF_A_KIND + 2);
}

/* B is zero at the beginning, and a sum with zeros has the bits of the other addend. With DoRA, the factor of
 * u is exactly 1; that u is rounded before bias and residual are added changes no bit in fp32. With dropout
 * too, the product of the base comes last, and rounds as without adapters. */
static void first_loss_is_that_of_the_base(void **state) {
    (void)state;
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct tiny_run run;
        struct tiny_result base, adapted;
        defaults(&run, variant, false);
        if (run.lora->dora && run.lora->dropout == 0 && run.dtype != OT_F32)
            continue;
        train_resident(&run, &adapted);
        run.lora = NULL;
        run.trains = NULL;
        train_resident(&run, &base);
        assert_true(base.loss[0] == adapted.loss[0]);
        int last = TINY_STEPS - 1; /* in fp16, both may skip the first step */
        assert_true(base.loss[last] != adapted.loss[last]);
        tiny_result_free(&base);
        tiny_result_free(&adapted);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_has_the_bits_of_the_resident_run),
        cmocka_unit_test(several_ranks_with_adapters),
        cmocka_unit_test(dropout_does_not_depend_on_the_ranks),
        cmocka_unit_test(a_run_goes_on_with_the_same_dropout),
        cmocka_unit_test(first_loss_is_that_of_the_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Runs over a base in a storage type (models/encoded.h), under adapters or under norms that are trained:
 * the bits of the resident run in every placement and on several ranks, and those of a plain run whose
 * frozen weights are the decoded values. tiny_run.c checks that no encoded byte changes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/offload/tiny_ranks.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static bool trains_norms(const void *context, const struct ot_tensor *tensor) {
    (void)context;
    return strstr(tensor->name, "norm") != NULL;
}

static const struct ot_lora lora = {.all = {3, 6}, .dropout = 0.1f};

/* Every type in every dtype of the device, with adapters, with norms, or with both. */
enum { TYPES = OT_BASE_MXFP4, VARIANTS = 3 * TYPES };
static bool defaults(struct tiny_run *run, int variant) {
    enum ot_dtype dtype = (enum ot_dtype)(variant / TYPES);
    tiny_defaults(run, 3, variant & 1, dtype);
    run->base = (enum ot_base_type)(1 + variant % TYPES);
    run->lora = variant % 3 == 2 ? NULL : &lora;
    run->trains = variant % 3 == 0 ? NULL : trains_norms;
    bool same =
        (run->base == OT_BASE_BF16 && dtype == OT_BF16) || (run->base == OT_BASE_F16 && dtype == OT_F16);
    return !same; /* the base would be plain */
}

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && result->norm[i] > 0);
}

static void check_random_plans(struct tiny_run *run, int variant, int count, const struct tiny_result *want) {
    for (int i = 0; i < count; i++) {
        struct tiny_result other;
        char what[64];
        int seed = 100 * variant + i + 1;
        tiny_plan(run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
        tiny_randomise(run, (uint64_t)seed);
        snprintf(what, sizeof what, "base type %d, random plan %d", (int)run->base, seed);
        tiny_train(run, &other);
        tiny_same(want, &other, what);
        tiny_result_free(&other);
        ot_plan_free(&run->plan);
    }
}

static void any_plan_has_the_bits_of_the_resident_base(void **state) {
    (void)state;
    int count = getenv("OT_TEST_SLOW") ? 12 : tests_are_few() ? 1 : 3;
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct tiny_run run;
        struct tiny_result resident;
        if (!defaults(&run, variant))
            continue;
        train_resident(&run, &resident);
        check_random_plans(&run, variant, count, &resident);
        tiny_result_free(&resident);
    }
}

/* Plans of the search: every home of the base, and every number of slots. */
static void every_home_of_the_base(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result resident, other;
    assert_true(defaults(&run, TYPES + OT_BASE_NF4 - 1));
    assert_true(run.dtype == OT_BF16 && run.base == OT_BASE_NF4);
    train_resident(&run, &resident);
    for (int home = OT_HOME_GPU; home <= OT_HOME_NVME; home++)
        for (int slots = 1; slots <= 3; slots++) {
            tiny_plan(&run, (enum ot_home)home, OT_HOME_HOST, OT_HOME_GPU, slots);
            tiny_train(&run, &other);
            tiny_same(&resident, &other, "a home of the base");
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
    tiny_result_free(&resident);
}

/* The arithmetic sees decoded weights and nothing else. */
static void a_base_is_its_decoded_weights(void **state) {
    (void)state;
    for (int variant = 0; variant < VARIANTS; variant++) {
        struct tiny_run run;
        struct tiny_result encoded, plain, exact;
        if (!defaults(&run, variant))
            continue;
        train_resident(&run, &encoded);
        run.decoded = run.base;
        run.base = OT_BASE_AUTO;
        train_resident(&run, &plain);
        run.decoded = OT_BASE_AUTO;
        train_resident(&run, &exact);
        for (int i = 0; i < TINY_STEPS; i++) {
            assert_true(encoded.loss[i] == plain.loss[i]);
            assert_true(encoded.norm[i] == plain.norm[i]);
        }
        assert_true(encoded.loss[0] != exact.loss[0]); /* a type that changes no weight would prove nothing */
        tiny_result_free(&encoded);
        tiny_result_free(&plain);
        tiny_result_free(&exact);
    }
}

static void several_ranks_over_a_base(void **state) {
    (void)state;
    tiny_needs_cpu(); /* tiny plans have no room to exchange through the host */
    for (int mode = OT_SHARD_NONE; mode <= OT_SHARD_STAGES; mode++)
        for (int variant = 0; variant < (tests_are_few() ? 1 : 3); variant++) {
            struct tiny_run run;
            struct tiny_result whole, other;
            enum ot_home weights = mode == OT_SHARD_STATE ? OT_HOME_GPU : (enum ot_home)(variant % 3);
            int type = mode == OT_SHARD_STAGES ? OT_BASE_NF4 : OT_BASE_INT8;
            assert_true(defaults(&run, (variant % 2 ? 0 : TYPES) + type - 1 + variant));
            run.micro_sequences = 1;
            run.evals = true;
            struct tiny_world w = {.ranks = mode == OT_SHARD_STAGES ? 1 : 2, .slots = 2};
            tiny_train_ranks(&run, &w, &whole);
            w = (struct tiny_world){.ranks = 2,
                                    .mode = (enum ot_shard_mode)mode,
                                    .one_copy = mode == OT_SHARD_FULL && weights == OT_HOME_HOST,
                                    .weights = weights,
                                    .state = OT_HOME_HOST,
                                    .slots = 1 + variant,
                                    .delay_seed = (uint64_t)variant};
            tiny_train_ranks(&run, &w, &other);
            tiny_same(&whole, &other, "several ranks");
            tiny_result_free(&whole);
            tiny_result_free(&other);
        }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_plan_has_the_bits_of_the_resident_base),
        cmocka_unit_test(every_home_of_the_base),
        cmocka_unit_test(a_base_is_its_decoded_weights),
        cmocka_unit_test(several_ranks_over_a_base),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

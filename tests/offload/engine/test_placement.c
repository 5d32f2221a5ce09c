/* The program's first promise: the same bits in every placement (offload/README.md, rules 1 and 3). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static const enum ot_home homes[2] = {OT_HOME_GPU, OT_HOME_HOST};

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && result->norm[i] > 0);
    assert_true(result->loss[TINY_STEPS - 1] != result->loss[0]);
}

/* Every mix of homes. If tests are brief: one number of slots for each, and only the second variant of each
 * pair. Slow tests try every number of slots, others the odd and the even numbers in turns from call to
 * call. */
static void all_homes(enum ot_dtype dtype, enum ot_state_format format, enum ot_masters masters, bool tied,
                      float clip) {
    static int calls;
    struct tiny_run run;
    struct tiny_result resident, other;
    char what[160];
    int step = tests_are_brief() ? 4 : getenv("OT_TEST_SLOW") ? 1 : 2;
    calls++;
    tiny_defaults(&run, 3, tied, dtype);
    run.state = format;
    run.masters = masters;
    run.clip = clip;
    train_resident(&run, &resident);
    for (int mix = 0; mix < 8; mix++)
        for (int slots = 1 + (mix + (step == 2 ? calls : 0)) % step; slots <= 4; slots += step) {
            tiny_plan(&run, homes[mix & 1], homes[mix >> 1 & 1], homes[mix >> 2], slots);
            snprintf(what, sizeof what,
                     "%s, %s state, %s masters, tied=%d clip=%g weights=%s state=%s activations=%s slots=%d",
                     ot_dtype_name(dtype), ot_state_format_name(format), ot_masters_name(masters), tied,
                     (double)clip, ot_tier_name((enum ot_tier)homes[mix & 1]),
                     ot_tier_name((enum ot_tier)homes[mix >> 1 & 1]),
                     ot_tier_name((enum ot_tier)homes[mix >> 2]), slots);
            run.optimizer_threads = 1 + slots % 3;
            tiny_train(&run, &other);
            tiny_same(&resident, &other, what);
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
    tiny_result_free(&resident);
}

static void homes_fp32(void **state) {
    (void)state;
    if (tests_are_for_races()) /* homes_bf16 has its threads */
        return;
    if (!tests_are_brief())
        all_homes(OT_F32, OT_STATE_F32, OT_MASTERS_F32, true, 1.0f);
    all_homes(OT_F32, OT_STATE_F32, OT_MASTERS_F32, false, 1.0f);
}

static void homes_bf16(void **state) {
    (void)state;
    if (!tests_are_brief())
        all_homes(OT_BF16, OT_STATE_F32, OT_MASTERS_F32, false, 1.0f);
    all_homes(OT_BF16, OT_STATE_F32, OT_MASTERS_F32, true, 1.0f);
}

static void homes_fp16(void **state) {
    (void)state;
    all_homes(OT_F16, OT_STATE_F32, OT_MASTERS_F32, true, 1.0f);
    if (!tests_are_few())
        all_homes(OT_F16, OT_STATE_F32, OT_MASTERS_F32, false, 1.0f);
}

static void homes_without_clipping(void **state) {
    (void)state;
    if (!tests_are_brief())
        all_homes(OT_F32, OT_STATE_F32, OT_MASTERS_F32, true, 0);
    all_homes(OT_BF16, OT_STATE_F32, OT_MASTERS_F32, false, 0);
}

/* The same with compact moments. They are not those of fp32, so the format reaches the updates. */
static void homes_of_compact_state(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result results[OT_STATE_FORMATS];
    tiny_defaults(&run, 2, true, OT_BF16);
    for (int format = 0; format < OT_STATE_FORMATS; format++) {
        run.state = (enum ot_state_format)format;
        train_resident(&run, &results[format]);
    }
    size_t bytes = (size_t)results[0].n_values * sizeof(float);
    for (int format = OT_STATE_16BIT + tests_are_for_races(); format < OT_STATE_FORMATS; format++) {
        assert_memory_not_equal(results[format].values, results[format - 1].values, bytes);
        all_homes(OT_BF16, (enum ot_state_format)format, OT_MASTERS_F32, true, 1.0f);
        if (!tests_are_brief())
            all_homes(OT_F32, (enum ot_state_format)format, OT_MASTERS_F32, false, 0);
        if (!tests_are_few())
            all_homes(OT_F16, (enum ot_state_format)format, OT_MASTERS_F32, false, 1.0f);
    }
    for (int format = 0; format < OT_STATE_FORMATS; format++)
        tiny_result_free(&results[format]);
}

/* bf16 weights without masters, with each format. The results are not those with masters. */
static void homes_without_masters(void **state) {
    (void)state;
    if (tests_are_for_races())
        return;
    struct tiny_run run;
    struct tiny_result with, without;
    tiny_defaults(&run, 2, true, OT_BF16);
    train_resident(&run, &with);
    run.masters = OT_MASTERS_NONE;
    train_resident(&run, &without);
    assert_memory_not_equal(with.values, without.values, (size_t)with.n_values * sizeof(float));
    for (int format = tests_are_few() ? OT_STATE_8BIT : OT_STATE_F32; format < OT_STATE_FORMATS; format++)
        all_homes(OT_BF16, (enum ot_state_format)format, OT_MASTERS_NONE, true, format ? 1.0f : 0);
    tiny_result_free(&with);
    tiny_result_free(&without);
}

/* Rule 3: a step in rounds of one micro-batch (micro-batch-major) gives the same bits as a step of one round
 * (layer-major). */
static void orders(void **state) {
    (void)state;
    for (int variant = tests_are_brief() ? 6 : 0; variant < 8; variant++) {
        struct tiny_run run;
        struct tiny_result layer, micro;
        tiny_defaults(&run, 3, variant & 1, variant & 2 ? OT_BF16 : OT_F32);
        train_resident(&run, &layer);
        tiny_plan(&run, variant & 4 ? OT_HOME_HOST : OT_HOME_GPU, OT_HOME_HOST, OT_HOME_HOST, 2);
        ot_plan_set_rounds(&run.plan, run.plan.max_micro);
        tiny_finish(&run);
        tiny_train(&run, &micro);
        tiny_same(&layer, &micro, "micro-batch-major against layer-major");
        tiny_result_free(&layer);
        tiny_result_free(&micro);
        ot_plan_free(&run.plan);
    }
}

/* Chooses at random everything that a plan may choose, for each slab and not only for each kind. */
static void randomise(struct tiny_run *run, uint64_t seed) {
    uint64_t i = 0;
#define PICK(bound) ((int)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, 0, 99), i++, (bound)))
    for (int s = 0; s < run->plan.n_slabs; s++) {
        run->plan.slabs[s].weights = homes[PICK(2)];
    }
    run->plan.activations = homes[PICK(2)];
    run->plan.activation_slots = 1 + PICK(4);
    tiny_random_kept(run, seed, OT_TIER_HOST);
    tiny_random_rounds(run, seed);
    run->plan.state_slots = 1 + PICK(4);
    for (enum ot_slot_kind k = 0; k < OT_SLOT_KINDS; k++) {
        bool edge = ot_slot_kind_is_edge(k);
        run->plan.weight_slots[k] = (edge ? 2 : 1) + PICK(3);
        run->plan.grad_slots[k] = (edge ? 2 : 1) + PICK(2);
        run->plan.grad_out_slots[k] = 1 + PICK(3);
    }
    run->optimizer_threads = 1 + PICK(3);
    run->device_threads = 1 + PICK(2);
    run->delay_seed = PICK(3) == 0 ? seed : 0;
    run->tune = seed % 2;
    int64_t tile = OT_SLAB_ALIGN_PARAMS * (1 + PICK(4));
    tiny_deal(run, tile, 1 + (unsigned)PICK(7), seed);
    tiny_random_shadows(run, seed);
#undef PICK
}

static void random_plans(void **state) {
    (void)state;
    int count = getenv("OT_TEST_PLANS") ? atoi(getenv("OT_TEST_PLANS")) : 200;
    for (int variant = 0; variant < 8 && variant < count; variant++) {
        struct tiny_run run;
        struct tiny_result resident, other;
        char what[64];
        tiny_defaults(&run, 1 + variant % 3, variant & 1, variant & 2 ? OT_BF16 : OT_F32);
        run.clip = variant & 4 ? 0 : 1.0f;
        run.state = (enum ot_state_format)(variant % OT_STATE_FORMATS);
        run.masters = variant % 4 == 3 ? OT_MASTERS_NONE : OT_MASTERS_F32;
        run.objective = tiny_objective((enum ot_objective_kind)(variant % OT_OBJECTIVES));
        train_resident(&run, &resident);
        for (int i = variant; i < count; i += 8) {
            tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
            randomise(&run, (uint64_t)i + 1);
            snprintf(what, sizeof what, "random plan %d", i + 1);
            tiny_train(&run, &other);
            tiny_same(&resident, &other, what);
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&resident);
    }
}

/* Tuning the device, in memory that the plan uses afterwards, changes no bit. */
static void tuning(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result resident, other;
    for (int dtype = OT_F32; dtype <= (tests_are_for_races() ? OT_F32 : OT_F16); dtype++) {
        tiny_defaults(&run, 2, true, (enum ot_dtype)dtype);
        train_resident(&run, &resident);
        run.tune = true;
        for (int mix = 0; mix < 8; mix += 7) {
            tiny_plan(&run, homes[mix & 1], homes[mix >> 1 & 1], homes[mix >> 2], 2);
            tiny_train(&run, &other);
            tiny_same(&resident, &other, "tuned after two steps");
            tiny_check_tuning(&other.tuning);
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&resident);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes_fp32),
        cmocka_unit_test(homes_bf16),
        cmocka_unit_test(homes_fp16),
        cmocka_unit_test(homes_without_clipping),
        cmocka_unit_test(homes_of_compact_state),
        cmocka_unit_test(homes_without_masters),
        cmocka_unit_test(orders),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(tuning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Several ranks train one model (plan/plan.h): the bits depend on the number of ranks alone, and with
 * `world` not even on that. If tests are few, each number of ranks trains in fewer dtypes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/support/check.h"

static void defaults(struct tiny_run *run, enum ot_dtype dtype, bool tied, float clip) {
    tiny_defaults(run, 2, tied, dtype);
    run->micro_sequences = 1; /* six micro-batches; two in the short step */
    run->clip = clip;
}

static void describe(const struct tiny_run *run, const struct tiny_world *w, char text[160]) {
    snprintf(text, 160, "%d ranks %s %s tied=%d clip=%g weights=%s state=%s activations=%s slots=%d%s%s%s",
             w->ranks, ot_shard_mode_name(w->mode), ot_dtype_name(run->dtype), run->config.tied,
             (double)run->clip, ot_tier_name((enum ot_tier)w->weights), ot_tier_name((enum ot_tier)w->state),
             ot_tier_name((enum ot_tier)w->activations), w->slots, w->world ? " world" : "",
             w->narrow ? " narrow" : "", w->one_copy ? " one copy" : "");
}

static struct tiny_world resident(int ranks) {
    return (struct tiny_world){.ranks = ranks,
                               .mode = OT_SHARD_NONE,
                               .weights = OT_HOME_GPU,
                               .state = OT_HOME_GPU,
                               .activations = OT_HOME_GPU,
                               .slots = 2};
}

static void check_same(const struct tiny_run *run, const struct tiny_world *world,
                       const struct tiny_result *want) {
    struct tiny_result result;
    char what[160];
    describe(run, world, what);
    tiny_train_ranks(run, world, &result);
    tiny_same(want, &result, what);
    tiny_result_free(&result);
}

/* All modes and homes on all ranks, against ranks that hold everything on the device. */
static void all_mixes(int ranks, enum ot_dtype dtype, bool tied, float clip) {
    struct tiny_run run;
    struct tiny_result whole;
    defaults(&run, dtype, tied, clip);
    struct tiny_world w = resident(ranks);
    tiny_train_ranks(&run, &w, &whole);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(whole.loss[i]) && whole.norm[i] > 0);
    for (int mode = 0; mode < OT_SHARD_MODES; mode++)
        for (int mix = 0; mix < 12; mix++) {
            w = (struct tiny_world){.ranks = ranks,
                                    .mode = (enum ot_shard_mode)mode,
                                    .weights = (enum ot_home)(mix % 3),
                                    .state = (enum ot_home)((mix + mode) / 2 % 3),
                                    .activations = (enum ot_home)((mix + ranks) % 3),
                                    .slots = 1 + (mix + mode) % 3,
                                    .delay_seed = (uint64_t)mix};
            if (mode == OT_SHARD_STATE)
                w.weights = OT_HOME_GPU;
            int nth = getenv("OT_TEST_SLOW") ? 1 : 12;
            if ((mix + mode) % nth == 0)
                check_same(&run, &w, &whole);
        }
    tiny_result_free(&whole);
}

static void two_ranks(void **state) {
    (void)state;
    all_mixes(2, OT_BF16, true, 1);
    if (tests_are_few())
        return;
    all_mixes(2, OT_F32, false, 1);
    all_mixes(2, OT_F16, false, 1);
}

static void two_ranks_without_clipping(void **state) {
    (void)state;
    all_mixes(2, OT_F32, true, 0);
    if (!tests_are_few())
        all_mixes(2, OT_BF16, false, 0);
}

static void three_ranks(void **state) {
    (void)state;
    if (!tests_are_for_races())
        all_mixes(3, OT_BF16, false, 0);
    if (!tests_are_few())
        all_mixes(3, OT_F32, true, 1);
}

static void four_ranks(void **state) {
    (void)state;
    all_mixes(4, OT_F16, true, 1);
    if (!tests_are_few())
        all_mixes(4, OT_BF16, true, 1);
}

/* In the short step, some of the ranks have no micro-batch. */
static void eight_ranks(void **state) {
    (void)state;
    if (!tests_are_few()) /* any_number_of_ranks has them too */
        all_mixes(8, OT_BF16, true, 1);
}

/* ---- different plans on different ranks ---- */

/* Chooses a plan for a rank at random, but for what the order of the operations follows from. */
static void randomise(struct tiny_run *run, int rank, void *context) {
    const uint64_t *seed = context;
    struct ot_plan kept = run->plan;
    tiny_randomise(run, *seed * 64 + (uint64_t)rank + 1);
    run->delay_seed = *seed;
    tiny_random_rounds(run, *seed);
    tiny_random_grads(run, *seed * 64 + (uint64_t)rank + 1);
    memcpy(run->plan.weight_slots, kept.weight_slots, sizeof kept.weight_slots);
    memcpy(run->plan.encoded_slots, kept.encoded_slots, sizeof kept.encoded_slots);
    memcpy(run->plan.grad_slots, kept.grad_slots, sizeof kept.grad_slots);
    tiny_finish(run);
}

static void random_plans(void **state) {
    (void)state;
    int count = getenv("OT_TEST_SLOW") ? 24 : 3;
    for (int dtype = tests_are_few() ? OT_BF16 : OT_F32; dtype <= OT_BF16; dtype++)
        for (int ranks = 2; ranks <= 4; ranks++) {
            struct tiny_run run;
            struct tiny_result whole;
            defaults(&run, (enum ot_dtype)dtype, ranks == 3, ranks == 4 ? 0 : 1);
            run.state = (enum ot_state_format)(ranks % OT_STATE_FORMATS);
            run.masters = dtype == OT_BF16 && ranks != 3 ? OT_MASTERS_NONE : OT_MASTERS_F32;
            if (ranks > 2)
                run.objective = tiny_objective(ranks == 3 ? OT_OBJECTIVE_DPO : OT_OBJECTIVE_KTO);
            struct tiny_world w = resident(ranks);
            tiny_train_ranks(&run, &w, &whole);
            for (int i = ranks; i < count; i += 6) {
                uint64_t seed = (uint64_t)(i + 1);
                w.mode = (enum ot_shard_mode)((i / 6 + dtype) % OT_SHARD_MODES);
                w.weights = w.mode == OT_SHARD_STATE ? OT_HOME_GPU : OT_HOME_HOST;
                w.state = w.activations = OT_HOME_HOST;
                w.slots = 2 + i % 2;
                w.delay_seed = seed;
                w.change = randomise;
                w.context = &seed;
                check_same(&run, &w, &whole);
            }
            tiny_result_free(&whole);
        }
}

/* ---- one copy of the weights on the host ---- */

/* Chooses like `randomise`, but which weights are on the host, so that they are one copy, is the same on all
 * ranks: most are. */
static void randomise_one_copy(struct tiny_run *run, int rank, void *context) {
    const uint64_t *seed = context;
    randomise(run, rank, context);
    for (int s = 0; s < run->plan.n_slabs; s++) {
        uint64_t pick = ot_random_below(*seed, ot_random_stream(OT_RANDOM_TEST, 3, 3), (uint64_t)s, 4);
        bool moves = rank % 2 && *seed % 2; /* others may have their own homes */
        run->plan.slabs[s].weights = pick > 0 ? OT_HOME_HOST : moves ? OT_HOME_NVME : OT_HOME_GPU;
    }
    tiny_random_shadows(run, *seed); /* other tiles may have one now */
}

/* Random tiles, engines, homes and rounds, all of which differ between the ranks; an evaluation between
 * steps. */
static void one_copy(enum ot_dtype dtype, int ranks, bool tied, float clip, bool world) {
    struct tiny_run run;
    struct tiny_result whole;
    int count = tests_are_brief() ? 1 : getenv("OT_TEST_SLOW") ? 24 : ranks == 2 ? 2 : 1;
    defaults(&run, dtype, tied, clip);
    run.evals = true;
    struct tiny_world w = resident(ranks);
    w.world = world;
    tiny_train_ranks(&run, &w, &whole);
    w.mode = OT_SHARD_FULL;
    w.one_copy = true;
    w.weights = w.state = OT_HOME_HOST;
    check_same(&run, &w, &whole);
    w.change = randomise_one_copy;
    for (int i = 0; i < count; i++) {
        uint64_t seed = (uint64_t)(i + 100 * ranks);
        w.slots = 1 + i % 3;
        w.delay_seed = seed;
        w.context = &seed;
        check_same(&run, &w, &whole);
    }
    tiny_result_free(&whole);
}

static void one_copy_of_two_ranks(void **state) {
    (void)state;
    one_copy(OT_BF16, 2, false, 1, false);
    if (!tests_are_few())
        one_copy(OT_F32, 2, true, 0, true);
}

static void one_copy_of_three_ranks(void **state) {
    (void)state;
    if (!tests_are_few())
        one_copy(OT_BF16, 3, true, 0, false);
}

static void one_copy_of_four_ranks(void **state) {
    (void)state;
    one_copy(OT_BF16, 4, true, 1, true);
    if (!tests_are_few())
        one_copy(OT_F16, 4, false, 1, false);
}

/* Whichever operation of a rank fails, every rank ends with an error, and none hangs. */
static void failing_operations(void **state) {
    (void)state;
    struct tiny_run run;
    defaults(&run, OT_BF16, false, 1);
    static const int numbers[] = {1, 2, 7, 12, 19, 33};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        struct tiny_world w = resident(3);
        w.mode = i % 2 ? OT_SHARD_FULL : OT_SHARD_STATE;
        w.state = OT_HOME_HOST;
        int steps = tiny_fail_ranks(&run, &w, (int)i % 3, numbers[i]);
        assert_true(numbers[i] > 2 || steps == 0);
    }
}

/* Ranks 1 and 2 have one more slot for weights than ranks 0 and 3, so they gather the weights of a block
 * earlier: the same operations with the same sizes in another order. */
static void change_order(struct tiny_run *run, int rank, void *context) {
    (void)context;
    for (int k = 0; k < OT_SLOT_KINDS; k++)
        run->plan.weight_slots[k] += rank == 1 || rank == 2;
    tiny_finish(run);
}

/* One slab of rank 2 is not in the one copy. */
static void change_home(struct tiny_run *run, int rank, void *context) {
    (void)context;
    if (rank == 2)
        run->plan.slabs[1].weights = OT_HOME_GPU;
    tiny_finish(run);
}

static void change_micro(struct tiny_run *run, int rank, void *context) {
    (void)context;
    run->plan.max_micro += rank == 3;
    tiny_finish(run);
}

/* Ranks with other operations would wait for each other for ever, so no engine opens. */
static void operations_that_differ(void **state) {
    (void)state;
    struct tiny_run run;
    defaults(&run, OT_BF16, false, 1);
    run.config = tiny_config(5, false); /* more blocks than slots */
    struct tiny_world w = resident(4);
    w.mode = OT_SHARD_FULL;
    w.weights = w.state = OT_HOME_HOST;
    w.change = change_order;
    tiny_refuse_ranks(&run, &w, "the plan differs: ranks 0 and 3 have ");
    tiny_refuse_ranks(&run, &w, ", ranks 1 and 2 have ");
    w.change = change_micro;
    tiny_refuse_ranks(&run, &w, "the plan differs: ranks 0, 1 and 2 have ");
    w.one_copy = true;
    w.change = change_home;
    tiny_refuse_ranks(&run, &w, "the plan differs: ranks 0, 1 and 3 have ");
}

/* Rounded gradients change the bits, but not much: the norm keeps about as many digits as bf16 has. */
static void narrow_exchange(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result wide, narrow;
    defaults(&run, OT_BF16, true, 1);
    for (int mode = 0; mode < OT_SHARD_MODES; mode++) {
        struct tiny_world w = resident(2);
        w.mode = (enum ot_shard_mode)mode;
        tiny_train_ranks(&run, &w, &wide);
        w.narrow = true;
        tiny_train_ranks(&run, &w, &narrow);
        assert_true(wide.loss[0] == narrow.loss[0] && wide.norm[0] != narrow.norm[0]);
        assert_true(fabs(wide.norm[0] - narrow.norm[0]) < wide.norm[0] / 256);
        tiny_result_free(&wide);
        tiny_result_free(&narrow);
    }
}

/* With `world` every number of ranks gives the same bits as one. `variant`: each number of ranks runs with
 * one shard mode, and over three variants with all. Slow tests run with all modes each time. */
static void any_number_of_ranks(enum ot_dtype dtype, bool tied, float clip, int variant) {
    bool slow = getenv("OT_TEST_SLOW") != NULL;
    struct tiny_run run;
    struct tiny_result one;
    defaults(&run, dtype, tied, clip);
    run.state = dtype == OT_BF16 ? OT_STATE_8BIT : OT_STATE_F32;
    run.masters = dtype == OT_BF16 && !tied ? OT_MASTERS_NONE : OT_MASTERS_F32;
    struct tiny_world w = resident(1);
    w.world = true;
    tiny_train_ranks(&run, &w, &one);
    for (w.ranks = 1; w.ranks <= OT_SHARD_WORLD_GROUPS; w.ranks *= 2)
        for (int mode = 0; mode < OT_SHARD_MODES; mode++) {
            if (!slow && (mode + w.ranks + variant) % OT_SHARD_MODES != 0)
                continue;
            w.mode = (enum ot_shard_mode)mode;
            w.weights = mode == OT_SHARD_STATE ? OT_HOME_GPU : (enum ot_home)((mode + w.ranks) % 3);
            w.state = (enum ot_home)((mode + w.ranks / 2) % 3);
            w.activations = (enum ot_home)(mode % 3);
            w.slots = 1 + (mode + w.ranks) % 3;
            check_same(&run, &w, &one);
        }
    /* Each rank with a plan of its own, and a number of rounds that all share. */
    uint64_t seed = 0;
    w.weights = w.state = w.activations = OT_HOME_HOST;
    w.slots = 3;
    w.mode = OT_SHARD_FULL;
    w.change = randomise;
    w.context = &seed;
    for (w.ranks = 1; w.ranks <= OT_SHARD_WORLD_GROUPS; w.ranks *= 2, seed++)
        if (slow || w.ranks == 2 << variant % 3)
            check_same(&run, &w, &one);
    tiny_result_free(&one);
}

static void any_number_of_ranks_fp32(void **state) {
    (void)state;
    if (!tests_are_for_races())
        any_number_of_ranks(OT_F32, true, 1, 0);
    if (!tests_are_few())
        any_number_of_ranks(OT_F32, false, 0, 1);
}

static void any_number_of_ranks_bf16(void **state) {
    (void)state;
    any_number_of_ranks(OT_BF16, false, 1, 2);
    if (!tests_are_few())
        any_number_of_ranks(OT_BF16, true, 0, 0);
}

static void any_number_of_ranks_fp16(void **state) {
    (void)state;
    if (!tests_are_few())
        any_number_of_ranks(OT_F16, true, 1, 1);
}

/* The result of a step of twelve micro-batches, by one rank. world: in eight groups, so each group has places
 * for two. */
static struct ot_step_result many_micro_batches(bool world) {
    enum { MANY = 12 };
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_batch *batch = malloc(sizeof *batch);
    struct ot_micro_batch micro[MANY];
    struct ot_step_result result;
    assert_non_null(batch);
    defaults(&run, OT_F32, false, 1);
    run.shard = (struct ot_shard){.ranks = 1, .world = world};
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    run.plan.max_micro = 16;
    ot_plan_set_rounds(&run.plan, 1);
    tiny_finish(&run);
    tiny_open(&run, &tiny);
    tiny_fill_batch(batch, run.config.vocab, 0, TINY_STEP_SEQUENCES, 1);
    for (int i = 0; i < MANY; i++)
        micro[i] = batch->micro[i % TINY_STEP_SEQUENCES];
    batch->input.micro = micro;
    batch->input.n_micro = MANY;
    batch->input.n_losses *= MANY / TINY_STEP_SEQUENCES;
    check_ok(ot_engine_submit(tiny.engine, &batch->input));
    check_ok(ot_engine_result(tiny.engine, &result));
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    free(batch);
    return result;
}

/* Groups change the order in which gradients are added, and not that of losses. */
static void more_micro_batches_than_groups(void **state) {
    (void)state;
    struct ot_step_result plain = many_micro_batches(false), grouped = many_micro_batches(true);
    assert_true(plain.loss == grouped.loss);
    assert_true(fabs(plain.grad_norm / grouped.grad_norm - 1) < 1e-5);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_ranks),
        cmocka_unit_test(two_ranks_without_clipping),
        cmocka_unit_test(three_ranks),
        cmocka_unit_test(four_ranks),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(one_copy_of_two_ranks),
        cmocka_unit_test(one_copy_of_three_ranks),
        cmocka_unit_test(one_copy_of_four_ranks),
        cmocka_unit_test(failing_operations),
        cmocka_unit_test(operations_that_differ),
        cmocka_unit_test(narrow_exchange),
        cmocka_unit_test(eight_ranks),
        cmocka_unit_test(any_number_of_ranks_fp32),
        cmocka_unit_test(any_number_of_ranks_bf16),
        cmocka_unit_test(any_number_of_ranks_fp16),
        cmocka_unit_test(more_micro_batches_than_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

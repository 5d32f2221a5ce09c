/* Stages (plan/stages.h): any number of ranks, and any division of the blocks, give the bits of one rank. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/stages.h"
#include "src/base/random.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/support/check.h"

enum { LAYERS = 5 };

static void defaults(struct tiny_run *run, enum ot_dtype dtype, bool tied, float clip) {
    tiny_defaults(run, LAYERS, tied, dtype);
    run->micro_sequences = 1; /* six micro-batches; two in the short step */
    run->clip = clip;
    run->evals = true;
}

static void train_alone(const struct tiny_run *run, struct tiny_result *result) {
    struct tiny_run alone = *run;
    tiny_plan(&alone, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 2);
    tiny_train(&alone, result);
    ot_plan_free(&alone.plan);
    for (int i = 0; i < TINY_STEPS; i++)
        assert_true(isfinite(result->loss[i]) && result->norm[i] > 0);
}

static void check_same(const struct tiny_run *run, const struct tiny_world *w,
                       const struct tiny_result *want) {
    struct tiny_result result;
    char what[160];
    snprintf(what, sizeof what, "%d stages %s tied=%d clip=%g weights=%s state=%s activations=%s", w->ranks,
             ot_dtype_name(run->dtype), run->config.tied, (double)run->clip,
             ot_tier_name((enum ot_tier)w->weights), ot_tier_name((enum ot_tier)w->state),
             ot_tier_name((enum ot_tier)w->activations));
    tiny_train_ranks(run, w, &result);
    tiny_same(want, &result, what);
    tiny_result_free(&result);
}

static void homes(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_BF16; dtype++)
        for (int tied = 0; tied < 2; tied++) {
            struct tiny_run run;
            struct tiny_result want;
            defaults(&run, (enum ot_dtype)dtype, tied, tied || dtype == OT_F16 ? 1 : 0);
            train_alone(&run, &want);
            for (int ranks = 2; ranks <= LAYERS; ranks++) {
                int mix = ranks + dtype + tied;
                struct tiny_world w = {.ranks = ranks,
                                       .mode = OT_SHARD_STAGES,
                                       .turn_blocks = ranks == 2 ? mix % 3 : mix % 2,
                                       .weights = (enum ot_home)(mix % 3),
                                       .state = (enum ot_home)(mix / 2 % 3),
                                       .activations = (enum ot_home)((mix + ranks) % 3),
                                       .slots = 1 + mix % 3,
                                       .delay_seed = (uint64_t)mix};
                check_same(&run, &w, &want);
            }
            tiny_result_free(&want);
        }
}

/* Cuts the step into a number of rounds. */
static void cut(struct tiny_run *run, int rank, void *context) {
    (void)rank;
    ot_plan_set_rounds(&run->plan, *(int *)context);
    tiny_finish(run);
}

/* Rounds that flow through the pipeline one behind the other. */
static void rounds_in_flight(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result want;
    defaults(&run, OT_BF16, true, 1);
    train_alone(&run, &want);
    for (int rounds = 2; rounds <= 6; rounds += 2)
        for (int turn = 0; turn < 2; turn++) {
            int mix = rounds / 2 + turn;
            struct tiny_world w = {.ranks = 2 + mix % 3,
                                   .mode = OT_SHARD_STAGES,
                                   .turn_blocks = turn,
                                   .in_flight = 2 + mix % 2,
                                   .weights = (enum ot_home)(mix % 3),
                                   .state = (enum ot_home)(mix % 2),
                                   .activations = (enum ot_home)((mix + 1) % 3),
                                   .slots = 2,
                                   .delay_seed = (uint64_t)mix,
                                   .change = cut,
                                   .context = &rounds};
            check_same(&run, &w, &want);
        }
    tiny_result_free(&want);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(homes), cmocka_unit_test(rounds_in_flight)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

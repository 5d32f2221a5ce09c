/* Times and plans of stages: the simulation of all ranks in one time, and the choice among divisions. */
#include <math.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "offload/predict/planner_ranks.h"
#include "offload/predict/simulate_ranks.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { RANKS = 4, MICRO = 16 };

static struct ot_plan_request request_of(const struct fake *f) {
    struct ot_plan_request rq = fake_request(f);
    rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_STAGES, .turn_blocks = 1};
    rq.micro_sequences = 1;
    rq.step_sequences = MICRO;
    return rq;
}

static void open_costs(const struct fake *f, double comm_bytes, struct ot_costs *out) {
    struct ot_rates own = fake_rates;
    own.comm_bytes = comm_bytes;
    check_ok(ot_costs_estimate(&f->chain, &own, 512, 512, out));
}

/* ---- one time ---- */

static void make_plans(struct ot_plan_request rq, struct ot_plan plans[RANKS]) {
    for (rq.shard.rank = 0; rq.shard.rank < RANKS; rq.shard.rank++)
        check_ok(ot_plan_make(&rq, &plans[rq.shard.rank]));
}

/* No rank is faster than its own work, nor than alone, and all have one step. Returns its time, and in
 * *most the longest computing. */
static double check_times(const struct fake *f, const struct ot_plan plans[RANKS],
                          const struct ot_costs *costs, double *most) {
    struct ot_prediction all[RANKS], alone;
    check_ok(ot_simulate_ranks(&f->chain, plans, RANKS, costs, all));
    *most = 0;
    for (int r = 0; r < RANKS; r++) {
        check_ok(ot_simulate_plan(&f->chain, &plans[r], costs, &alone));
        assert_true(all[r].step_seconds >= alone.step_seconds * (1 - 1e-9));
        assert_true(fabs(all[r].step_seconds / all[0].step_seconds - 1) < 0.01);
        assert_true(fabs(all[r].bytes[OT_LANE_COMM] - alone.bytes[OT_LANE_COMM]) < 1);
        *most = fmax(*most, all[r].busy[OT_LANE_COMPUTE]);
    }
    assert_true(all[0].step_seconds >= *most);
    return all[0].step_seconds;
}

static void ranks_wait_for_each_other(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e12, &costs);
    double looped = 0, contiguous = 0, flowing = 0, most;
    for (int way = 0; way < 3; way++) {
        struct ot_plan_request rq = request_of(&f);
        struct ot_plan plans[RANKS];
        rq.shard.turn_blocks = way == 0;
        rq.shard.in_flight = way == 2 ? 2 * RANKS : 0;
        rq.rounds = way == 2 ? MICRO : 0;
        make_plans(rq, plans);
        *(way == 0 ? &looped : way == 1 ? &contiguous : &flowing) = check_times(&f, plans, &costs, &most);
        for (int r = 0; r < RANKS; r++)
            ot_plan_free(&plans[r]);
    }
    /* In one round, a contiguous stage waits for the last block of the stage before. */
    assert_true(looped < 0.8 * contiguous && flowing < 0.8 * contiguous);
    ot_costs_free(&costs);
}

/* ---- the choice ---- */

static void a_slow_network_crosses_less(void **state) {
    (void)state;
    struct fake f;
    struct ot_planner_result fast, slow, again, full;
    struct ot_costs costs;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = request_of(&f);
    open_costs(&f, 1e12, &costs);
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &fast));
    ot_costs_free(&costs);
    open_costs(&f, 2e8, &costs);
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &slow));
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &again));
    assert_int_equal(slow.plan.shard.turn_blocks, 0);
    assert_true(slow.plan.shard.in_flight >= RANKS && ot_plan_rounds(&slow.plan) > 1);
    assert_true(slow.prediction.step_seconds == again.prediction.step_seconds);
    assert_true(slow.prediction.bytes[OT_LANE_COMM] <= fast.prediction.bytes[OT_LANE_COMM]);
    rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_FULL};
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &full));
    assert_true(slow.prediction.step_seconds < 0.5 * full.prediction.step_seconds);
    ot_costs_free(&costs);
    ot_plan_free(&fast.plan);
    ot_plan_free(&slow.plan);
    ot_plan_free(&again.plan);
    ot_plan_free(&full.plan);
}

/* The choices of the user stay: rounds, and the micro-batch. A rank of any number has its own plan. */
static void what_is_forced_stays(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result chosen;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 2e8, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.rounds = 4;
    rq.shard.rank = 2;
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen));
    assert_int_equal(ot_plan_rounds(&chosen.plan), 4);
    assert_int_equal(chosen.plan.max_micro, MICRO);
    assert_int_equal(chosen.plan.shard.rank, 2);
    assert_true(chosen.plan.slabs[0].owner == 0 && !ot_slab_is_own(&chosen.plan, 0));
    ot_plan_free(&chosen.plan);
    ot_costs_free(&costs);
}

static void refusals(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result chosen;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e10, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.shard.ranks = f.chain.n_blocks;
    check_fails(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen), OT_E_USAGE,
                "too few for a stage");
    rq = request_of(&f);
    rq.budget_bytes[OT_TIER_GPU] = rq.budget_bytes[OT_TIER_HOST] = 1 << 20;
    check_fails(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen), OT_E_BUDGET,
                "needs");
    assert_true(chosen.plan.shortage.together[OT_TIER_GPU] + chosen.plan.shortage.alone[OT_TIER_GPU] >
                1 << 20);
    ot_costs_free(&costs);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_wait_for_each_other),
                                       cmocka_unit_test(a_slow_network_crosses_less),
                                       cmocka_unit_test(what_is_forced_stays), cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

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
    assert_int_equal(ot_simulate_ranks(&f->chain, plans, RANKS, costs, NULL, INFINITY, all), 1);
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

/* Activations that are sent one after the other are on their way together: in one round, a step has as many
 * delays as there are borders, out and back, and that of the results. */
static void activations_are_on_their_way_together(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_plan plans[RANKS];
    double most, step, later;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e12, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.shard.turn_blocks = 0;
    make_plans(rq, plans);
    costs.rates.inside = (struct ot_transfer_rate){1e12, 0};
    step = check_times(&f, plans, &costs, &most);
    double delay = costs.rates.inside.seconds = step / 10;
    later = check_times(&f, plans, &costs, &most) - step;
    assert_true(later > 0.9 * 2 * (RANKS - 1) * delay && later < 1.1 * 2 * (RANKS - 1) * delay);
    costs.rates.comm_seconds += delay;
    assert_true(check_times(&f, plans, &costs, &most) - step < later + 1.1 * delay);
    for (int r = 0; r < RANKS; r++)
        ot_plan_free(&plans[r]);
    ot_costs_free(&costs);
}

/* A simulation gives up a plan that takes `limit` or longer. */
static void slow_plans_are_given_up(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_plan plans[RANKS];
    struct ot_prediction all[RANKS], again[RANKS];
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e9, &costs);
    make_plans(request_of(&f), plans);
    assert_int_equal(ot_simulate_ranks(&f.chain, plans, RANKS, &costs, NULL, INFINITY, all), 1);
    double step = all[0].step_seconds, busy = all[0].busy[OT_LANE_COMPUTE];
    const struct {
        double limit;
        int rc;
    } cases[] = {{step * 1.001, 1}, {step * 0.999, 0}, {busy, 0}, {busy / 2, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        again[0].step_seconds = again[RANKS - 1].step_seconds = -1;
        assert_int_equal(ot_simulate_ranks(&f.chain, plans, RANKS, &costs, NULL, cases[i].limit, again),
                         cases[i].rc);
        assert_true(again[0].step_seconds == (cases[i].rc ? step : -1));
        assert_true(again[RANKS - 1].step_seconds == (cases[i].rc ? all[RANKS - 1].step_seconds : -1));
    }
    for (int r = 0; r < RANKS; r++)
        ot_plan_free(&plans[r]);
    ot_costs_free(&costs);
}

/* All ranks wait for the slowest one at the end of a step: here one that computes everything again. */
static void a_slow_rank_is_waited_for(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_plan plans[RANKS];
    struct ot_prediction all[RANKS];
    double fast = 0;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e12, &costs);
    for (int slow = -1; slow < RANKS; slow++) {
        struct ot_plan_request rq = request_of(&f);
        double most = 0;
        for (int r = 0; r < RANKS; r++) {
            rq.shard.rank = r;
            rq.keep = r == slow ? OT_KEEP_NONE : OT_KEEP_ALL;
            check_ok(ot_plan_make(&rq, &plans[r]));
        }
        assert_int_equal(ot_simulate_ranks(&f.chain, plans, RANKS, &costs, NULL, INFINITY, all), 1);
        for (int r = 0; r < RANKS; r++) {
            most = fmax(most, all[r].busy[OT_LANE_COMPUTE]);
            assert_true(fabs(all[r].step_seconds / all[0].step_seconds - 1) < 1e-6);
            ot_plan_free(&plans[r]);
        }
        assert_true(all[0].step_seconds >= most);
        fast = slow < 0 ? all[0].step_seconds : fast;
        assert_true(slow < 0 || all[0].step_seconds > 1.05 * fast);
    }
    ot_costs_free(&costs);
}

/* ---- the choice ---- */

/* Chooses the plan of each rank by itself, as the ranks of a run do: the division, the micro-batch and the
 * rounds are those of rank 0. Together the plans take the step that each of them predicts. */
static void check_all_ranks(const struct fake *f, struct ot_plan_request rq, const struct ot_costs *costs,
                            struct ot_plan plans[RANKS]) {
    struct ot_planner_result chosen[RANKS];
    struct ot_prediction all[RANKS];
    check_ok(ot_planner_choose_shard(&rq, costs, (struct ot_shard_open){0}, &chosen[0], NULL));
    rq.shard = chosen[0].plan.shard;
    rq.micro_sequences = chosen[0].forced.micro_sequences;
    rq.rounds = ot_plan_rounds(&chosen[0].plan);
    for (int r = 0; r < RANKS; r++) {
        struct ot_planner_result again;
        rq.shard.rank = r;
        check_ok(ot_planner_choose(&rq, costs, &again));
        assert_true(again.forced.memo == NULL && again.forced.shard.rank == r && again.tried > 0);
        assert_int_equal(again.plan.shard.rank, r);
        if (r > 0)
            chosen[r] = again;
        else
            ot_plan_free(&again.plan);
        plans[r] = chosen[r].plan;
        assert_int_equal(ot_plan_rounds(&plans[r]), rq.rounds);
        check_fits(&chosen[r].forced, &plans[r]);
    }
    assert_int_equal(ot_simulate_ranks(&f->chain, plans, RANKS, costs, NULL, INFINITY, all), 1);
    for (int r = 1; r < RANKS; r++) {
        assert_true(chosen[r].prediction.step_seconds < 1.02 * all[r].step_seconds);
        assert_true(chosen[r].prediction.bytes[OT_LANE_COMM] == all[r].bytes[OT_LANE_COMM]);
    }
}

/* Ranks with equally many layers and the same edges have the same choices. Little device memory leaves
 * choices to make, and another one for the ranks with an edge. */
static void ranks_of_one_shape_have_one_plan(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_plan plans[RANKS];
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e9, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.step_sequences = MICRO / 2;
    rq.budget_bytes[OT_TIER_GPU] = (size_t)40 << 20;
    check_all_ranks(&f, rq, &costs, plans);
    int layers[RANKS], n_alike = 0;
    for (int r = 0; r < RANKS; r++) {
        layers[r] = ot_plan_middle_blocks(&f.chain, &plans[r], 1);
        for (int q = 1; q < r && r < RANKS - 1; q++) {
            if (layers[q] != layers[r])
                continue;
            n_alike++;
            for (int e = 0; e < OT_TILE_ENGINES; e++)
                assert_int_equal(ot_plan_count_tiles(&plans[q], (enum ot_tile_engine)e),
                                 ot_plan_count_tiles(&plans[r], (enum ot_tile_engine)e));
            for (int t = 0; t < OT_TIER_COUNT; t++)
                assert_int_equal(plans[q].kept[t].blocks, plans[r].kept[t].blocks);
            assert_int_equal(count_resident(&plans[q]), count_resident(&plans[r]));
        }
    }
    assert_true(n_alike > 0);
    for (int r = 0; r < RANKS; r++)
        ot_plan_free(&plans[r]);
    ot_costs_free(&costs);
}

/* The most rounds that a rank needs, with a micro-batch of one sequence; 0: a rank has no plan. */
static int most_rounds(struct ot_plan_request rq) {
    int most = 0;
    rq.micro_sequences = 1;
    for (rq.shard.rank = 0; rq.shard.rank < RANKS; rq.shard.rank++) {
        struct ot_plan plan;
        if (ot_plan_make(&rq, &plan) < 0)
            return 0;
        most = ot_plan_rounds(&plan) > most ? ot_plan_rounds(&plan) : most;
        ot_plan_free(&plan);
    }
    return most;
}

/* If memory is so short that some ranks need several rounds, all ranks take them. */
static void all_ranks_take_the_rounds_of_one(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    int tight = 0;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e9, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.sequence_tokens = 2048;
    rq.micro_sequences = 0;
    rq.activations = OT_HOME_GPU;
    rq.shard.head_layers = 3;
    rq.shard.rank = RANKS - 1; /* it has few layers, and would take fewer rounds by itself */
    for (size_t gpu = (size_t)400 << 20; gpu > (size_t)40 << 20 && tight < 2; gpu -= gpu / 16) {
        struct ot_planner_result chosen;
        struct ot_prediction alone;
        rq.budget_bytes[OT_TIER_GPU] = gpu;
        int rounds = most_rounds(rq);
        if (rounds < 2)
            continue;
        tight++;
        check_ok(ot_planner_choose(&rq, &costs, &chosen));
        assert_true(ot_plan_rounds(&chosen.plan) >= rounds);
        /* It was planned with the others, for which it waits. */
        check_ok(ot_simulate_plan(&f.chain, &chosen.plan, &costs, &alone));
        assert_true(chosen.prediction.step_seconds > 1.001 * alone.step_seconds);
        ot_plan_free(&chosen.plan);
    }
    assert_int_equal(tight, 2);
    ot_costs_free(&costs);
}

/* A step of few micro-batches does not fill the pipeline, so they are halved for a clear gain. A long
 * step, or a choice of the user, keeps them. */
static void few_micro_batches_are_halved(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result free_choice, whole;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e10, &costs);
    for (int n = 4; n <= 16; n *= 4) {
        struct ot_plan_request rq = request_of(&f), one;
        struct ot_plan largest;
        rq.micro_sequences = 0;
        rq.sequence_tokens = 2048;
        rq.step_sequences = n;
        one = rq;
        one.shard = (struct ot_shard){0};
        check_ok(ot_plan_make(&one, &largest));
        check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &free_choice, NULL));
        rq.micro_sequences = largest.micro_tokens / rq.sequence_tokens;
        check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &whole, NULL));
        bool halved = free_choice.plan.micro_tokens < largest.micro_tokens;
        assert_int_equal(whole.plan.micro_tokens, largest.micro_tokens);
        assert_true(free_choice.prediction.step_seconds <=
                    whole.prediction.step_seconds * (halved ? 1 - OT_PLANNER_MARGIN : 1));
        assert_int_equal(halved, n == 4);
        ot_plan_free(&largest);
        ot_plan_free(&free_choice.plan);
        ot_plan_free(&whole.plan);
    }
    ot_costs_free(&costs);
}

static void a_slow_network_crosses_less(void **state) {
    (void)state;
    struct fake f;
    struct ot_planner_result fast, slow, again, full;
    struct ot_costs costs;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = request_of(&f);
    open_costs(&f, 1e12, &costs);
    assert_int_equal(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &fast, NULL), 0);
    assert_true(fast.tried > 0);
    rq.rounds = 1; /* then turns of one layer wait least */
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &again, NULL));
    assert_int_equal(again.plan.shard.turn_blocks, 1);
    ot_plan_free(&again.plan);
    rq.rounds = 0;
    ot_costs_free(&costs);
    open_costs(&f, 2e8, &costs);
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &slow, NULL));
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &again, NULL));
    assert_int_equal(slow.plan.shard.turn_blocks, 0);
    assert_true(slow.plan.shard.in_flight >= RANKS && ot_plan_rounds(&slow.plan) > 1);
    assert_true(slow.prediction.step_seconds == again.prediction.step_seconds);
    assert_true(slow.prediction.bytes[OT_LANE_COMM] <= fast.prediction.bytes[OT_LANE_COMM]);
    rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_FULL};
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &full, NULL));
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
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen, NULL));
    assert_int_equal(ot_plan_rounds(&chosen.plan), 4);
    assert_int_equal(chosen.plan.max_micro, MICRO);
    assert_int_equal(chosen.plan.shard.rank, 2);
    assert_true(chosen.plan.slabs[0].owner == 0 && !ot_slab_is_own(&chosen.plan, 0));
    ot_plan_free(&chosen.plan);
    ot_costs_free(&costs);
}

/* A rank whose layers are larger has a plan of its own, which fits, and so has one whose layers are smaller:
 * here the third rank, which has as many layers as the second. */
static void unequal_layers_have_other_plans(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    fake_open_small(&f, OT_BF16, false);
    f.slabs[6].n_params *= 16; /* on the second rank, in turns or not */
    open_costs(&f, 1e10, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.budget_bytes[OT_TIER_GPU] = (size_t)200 << 20;
    for (rq.shard.rank = 1; rq.shard.rank < 3; rq.shard.rank++) {
        struct ot_planner_result chosen;
        int64_t tiles[OT_TILE_ENGINES] = {0};
        check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen, NULL));
        assert_int_equal(ot_block_is_own(&f.chain, &chosen.plan, 6), rq.shard.rank == 1);
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            tiles[e] = ot_plan_count_tiles(&chosen.plan, (enum ot_tile_engine)e);
        assert_true(rq.shard.rank == 2 || tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU] > 0);
        assert_true(ot_ledger_total(&chosen.plan.ledger, OT_TIER_GPU) <= rq.budget_bytes[OT_TIER_GPU]);
        ot_plan_free(&chosen.plan);
    }
    ot_costs_free(&costs);
}

/* Stages change the bits: like another micro-batch they must save a share of the step, which is less if all
 * modes have the same bits. */
static void stages_are_chosen_for_a_clear_gain(void **state) {
    (void)state;
    static const struct {
        double comm_bytes;
        bool world;
    } cases[] = {{1e9, false}, {2.35e9, false}, {2.25e9, true}}; /* the last two are near the limits */
    int n = sizeof cases / sizeof *cases, chosen = 0;
    struct fake f;
    fake_open_small(&f, OT_BF16, false);
    for (int i = 0; i < n; i++) {
        struct ot_plan_request rq = request_of(&f);
        struct ot_shard_choice all;
        struct ot_planner_result best;
        struct ot_costs costs;
        rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_FULL, .world = cases[i].world};
        open_costs(&f, cases[i].comm_bytes, &costs);
        const struct ot_shard_open open = {.mode = true, .stages = true};
        check_ok(ot_planner_choose_shard(&rq, &costs, open, &best, &all));
        double shares = INFINITY, stages = all.step_seconds[OT_SHARD_STAGES];
        double gain = cases[i].world ? OT_PLANNER_RESOLUTION : OT_PLANNER_MARGIN;
        for (int mode = 0; mode < OT_SHARD_STAGES; mode++)
            if (all.step_seconds[mode] > 0)
                shares = fmin(shares, all.step_seconds[mode]);
        bool wins = ot_plan_has_stages(&best.plan);
        int other = ot_shard_runner_up(&all, best.plan.shard.mode);
        assert_true(all.step_seconds[OT_SHARD_FULL] > 0 && stages > 0 && *all.no_stages == '\0');
        assert_true(best.tried > 0);
        assert_true(best.prediction.step_seconds == all.step_seconds[best.plan.shard.mode]);
        /* A mode of the same bits may be better by less than the resolution. */
        assert_true(wins ? stages * (1 - OT_PLANNER_RESOLUTION) < (1 - gain) * shares
                         : stages >= (1 - gain) * shares);
        assert_true(other >= 0 && other != (int)best.plan.shard.mode);
        assert_true(!wins || all.step_seconds[other] == shares);
        chosen += wins;
        ot_plan_free(&best.plan);
        ot_costs_free(&costs);
    }
    assert_true(chosen > 0 && chosen < n);
}

static void the_runner_up_is_the_next_mode(void **state) {
    (void)state;
    struct ot_shard_choice c = {{2, 0, 3, 1}, ""}; /* state has no plan */
    assert_int_equal(ot_shard_runner_up(&c, OT_SHARD_STAGES), OT_SHARD_NONE);
    assert_int_equal(ot_shard_runner_up(&c, OT_SHARD_NONE), OT_SHARD_STAGES);
    c.step_seconds[OT_SHARD_NONE] = 0;
    assert_int_equal(ot_shard_runner_up(&c, OT_SHARD_STAGES), OT_SHARD_FULL);
    c.step_seconds[OT_SHARD_FULL] = 0;
    assert_int_equal(ot_shard_runner_up(&c, OT_SHARD_STAGES), -1);
}

/* The least host memory for a plan of the request. */
static size_t least_host(struct ot_plan_request rq) {
    size_t least = 0, most = (size_t)1 << 36;
    while (most - least > most / 64) {
        struct ot_plan plan;
        rq.budget_bytes[OT_TIER_HOST] = least + (most - least) / 2;
        int rc = ot_plan_make(&rq, &plan);
        *(rc < 0 ? &least : &most) = rq.budget_bytes[OT_TIER_HOST];
        ot_plan_free(&plan);
    }
    return most;
}

/* A rank has all of the head, but only a share of it with --shard full. */
static void stages_may_need_more_memory(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result best;
    struct ot_shard_choice all;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e9, &costs);
    struct ot_plan_request rq = request_of(&f);
    struct ot_plan_request leader = rq;
    rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_FULL};
    rq.budget_bytes[OT_TIER_GPU] = (size_t)48 << 20;
    rq.budget_bytes[OT_TIER_HOST] = least_host(rq) * 17 / 16;
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){.mode = true, .stages = true}, &best,
                                     &all));
    assert_string_equal(all.no_stages, "they need more memory");
    ot_plan_free(&best.plan);
    /* The rank that is planned first has room, and another one has not. */
    leader.budget_bytes[OT_TIER_GPU] = (size_t)48 << 20;
    leader.shard.rank = RANKS - 1;
    leader.shard.head_layers = 2;
    leader.budget_bytes[OT_TIER_HOST] = least_host(leader);
    leader.shard.rank = 0;
    check_fails(ot_planner_choose_shard(&leader, &costs, (struct ot_shard_open){0}, &best, NULL), OT_E_BUDGET,
                "needs");
    assert_true(best.plan.shortage.together[OT_TIER_HOST] + best.plan.shortage.alone[OT_TIER_HOST] > 0);
    ot_costs_free(&costs);
}

/* With 3 ranks only stages have the same bits for any number of ranks. */
static void stages_may_be_all_that_is_left(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result best;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 1e10, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.shard = (struct ot_shard){.ranks = 3, .mode = OT_SHARD_FULL, .world = true};
    const struct ot_shard_open open = {.mode = true, .stages = true};
    check_ok(ot_planner_choose_shard(&rq, &costs, open, &best, NULL));
    assert_true(ot_plan_has_stages(&best.plan));
    ot_plan_free(&best.plan);
    ot_costs_free(&costs);
}

/* A model that cannot be divided, or has no room as stages, goes on with shares, and says so. */
static void without_stages_shares_are_left(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result best;
    struct ot_shard_choice all;
    fake_open_small(&f, OT_BF16, false);
    open_costs(&f, 2e8, &costs);
    struct ot_plan_request rq = request_of(&f);
    rq.shard = (struct ot_shard){.ranks = (f.chain.n_blocks - 1) | 1, .mode = OT_SHARD_FULL}; /* odd */
    const struct ot_shard_open open = {.mode = true, .stages = true};
    check_ok(ot_planner_choose_shard(&rq, &costs, open, &best, &all));
    assert_false(ot_plan_has_stages(&best.plan));
    assert_non_null(strstr(all.no_stages, "too few for a stage"));
    assert_true(all.step_seconds[OT_SHARD_STAGES] == 0);
    ot_plan_free(&best.plan);
    rq.shard.ranks = 2;
    rq.budget_bytes[OT_TIER_GPU] = rq.budget_bytes[OT_TIER_HOST] = 1 << 20;
    check_fails(ot_planner_choose_shard(&rq, &costs, open, &best, &all), OT_E_BUDGET, "needs");
    assert_string_equal(all.no_stages, "they need more memory");
    assert_int_equal(ot_shard_runner_up(&all, OT_SHARD_FULL), -1);
    ot_costs_free(&costs);
}

/* The step of replicas, and of the modes that the planner compares, between two hosts with two ranks each. */
static void replicas_keep_gradients_inside_hosts(void **state) {
    (void)state;
    const struct ot_shard_open open = {.mode = true, .stages = true};
    double steps[2], explicit[2];
    for (int known = 0; known < 2; known++) {
        struct fake f;
        struct ot_costs costs;
        struct ot_planner_result best;
        fake_open_small(&f, OT_BF16, false);
        open_costs(&f, 5e8, &costs);
        costs.rates.host_ranks = known ? 2 : 0;
        costs.rates.host_comm_bytes = known ? 1e12 : 0;
        struct ot_plan_request rq = request_of(&f);
        rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_STAGES, .stages = 2};
        check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &best, NULL));
        assert_int_equal(ot_shard_holders(&best.plan.shard), 2);
        explicit[known] = best.prediction.step_seconds;
        assert_true(best.prediction.exchanged > 0);
        ot_plan_free(&best.plan);
        rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_FULL};
        check_ok(ot_planner_choose_shard(&rq, &costs, open, &best, NULL));
        steps[known] = best.prediction.step_seconds;
        assert_true(!known || ot_shard_holders(&best.plan.shard) == 2);
        ot_plan_free(&best.plan);
        /* The ranks that stand behind the first replica get plans of their own shares. */
        rq.shard = (struct ot_shard){.rank = RANKS - 1, .ranks = RANKS, .mode = OT_SHARD_STAGES, .stages = 2};
        check_ok(ot_planner_choose(&rq, &costs, &best));
        assert_int_equal(best.plan.shard.rank, RANKS - 1);
        assert_int_equal(best.forced.shard.rank, RANKS - 1);
        ot_plan_free(&best.plan);
        ot_costs_free(&costs);
    }
    assert_true(explicit[1] < 0.9 * explicit[0]);
    assert_true(steps[1] < 0.9 * steps[0]);
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
    check_fails(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen, NULL), OT_E_USAGE,
                "too few for a stage");
    rq = request_of(&f);
    rq.budget_bytes[OT_TIER_GPU] = rq.budget_bytes[OT_TIER_HOST] = 1 << 20;
    check_fails(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen, NULL), OT_E_BUDGET,
                "needs");
    assert_true(chosen.plan.shortage.together[OT_TIER_GPU] + chosen.plan.shortage.alone[OT_TIER_GPU] >
                1 << 20);
    ot_costs_free(&costs);
}

int main(void) {
    /* Sanitizers skip the longer ones, which run the same code. */
    const struct CMUnitTest tests[] = {cmocka_unit_test(ranks_wait_for_each_other),
                                       cmocka_unit_test(activations_are_on_their_way_together),
                                       cmocka_unit_test(slow_plans_are_given_up),
                                       cmocka_unit_test(a_slow_rank_is_waited_for),
                                       cmocka_unit_test(ranks_of_one_shape_have_one_plan),
                                       cmocka_unit_test(what_is_forced_stays),
                                       cmocka_unit_test(the_runner_up_is_the_next_mode),
                                       cmocka_unit_test(without_stages_shares_are_left),
                                       cmocka_unit_test(replicas_keep_gradients_inside_hosts),
                                       cmocka_unit_test(stages_may_need_more_memory),
                                       cmocka_unit_test(stages_may_be_all_that_is_left),
                                       cmocka_unit_test(refusals)};
    const struct CMUnitTest longer[] = {
        cmocka_unit_test(all_ranks_take_the_rounds_of_one), cmocka_unit_test(few_micro_batches_are_halved),
        cmocka_unit_test(a_slow_network_crosses_less), cmocka_unit_test(unequal_layers_have_other_plans),
        cmocka_unit_test(stages_are_chosen_for_a_clear_gain)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return tests_are_few() ? failed : failed + cmocka_run_group_tests(longer, NULL, NULL);
}

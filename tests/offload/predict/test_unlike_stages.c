/* Stages of ranks that are unlike: another card, or less memory (plan/stages.h, planner_machines.c). */
#include <math.h>
#include <string.h>

#include "offload/plan/stages.h"
#include "offload/predict/planner_ranks.h"
#include "offload/predict/simulate_ranks.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { RANKS = 3 };

static struct ot_plan_request request_of(const struct fake *f) {
    struct ot_plan_request rq = fake_request(f);
    rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_STAGES};
    rq.micro_sequences = 1;
    rq.step_sequences = 12;
    return rq;
}

static void set_machines(const struct ot_plan_request *rq, struct ot_rank_machine machines[RANKS]) {
    for (int r = 0; r < RANKS; r++) {
        machines[r].slowness = 1;
        memcpy(machines[r].budget_bytes, rq->budget_bytes, sizeof machines[r].budget_bytes);
    }
}

/* ---- alike or not ---- */

static void machines_that_are_alike_become_equal(void **state) {
    (void)state;
    struct ot_rank_machine m[4] = {
        {{100, 1000, 0}, 1.0}, {{95, 1050, 0}, 1.05}, {{100, 1000, 0}, 1.2}, {{101, 990, 0}, 1.25}};
    assert_false(ot_machines_sort(m, 2));
    assert_memory_equal(&m[0], &m[1], sizeof *m);
    assert_true(m[0].slowness == 1.05 && m[0].budget_bytes[OT_TIER_GPU] == 95);
    assert_int_equal(m[0].budget_bytes[OT_TIER_HOST], 1000);
    assert_true(ot_machines_sort(m, 4));
    assert_memory_equal(&m[2], &m[3], sizeof *m);
    assert_true(m[3].slowness == 1.25 && m[3].budget_bytes[OT_TIER_HOST] == 990);
    assert_true(m[0].slowness == 1.05);
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        struct ot_rank_machine two[2] = {{{100, 100, 100}, 1}, {{100, 100, 100}, 1}};
        assert_false(ot_machines_sort(two, 2));
        two[1].budget_bytes[t] = 89;
        assert_true(ot_machines_sort(two, 2));
        assert_int_equal(two[0].budget_bytes[t], 100);
    }
}

/* ---- the division ---- */

/* The layers of each stage, a digit each; "": no division. */
static void check_deal(int layers, int head, int late, const int *speeds, const int *most, int stages,
                       const char *want) {
    struct fake f = {.layers = layers, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    char got[8] = {0};
    fake_open(&f);
    struct ot_shard shard = {.ranks = stages,
                             .mode = OT_SHARD_STAGES,
                             .head_layers = head,
                             .late_layers = late,
                             .late_percent = 200};
    if (ot_stages_deal(&f.chain, &shard, speeds, most))
        for (; shard.rank < stages; shard.rank++) {
            got[shard.rank] = (char)('0' + ot_shard_layers(&f.chain, &shard));
            assert_int_equal(shard.layers[shard.rank], ot_shard_layers(&f.chain, &shard));
        }
    assert_string_equal(got, want);
    assert_true(*want || shard.layers[0] == 0);
}

static void layers_are_dealt_by_speed_and_room(void **state) {
    (void)state;
    const int alike[] = {100, 100, 100}, slow_first[] = {50, 100, 100}, slow_last[] = {100, 100, 20};
    const int room[] = {9, 9, 9}, little[] = {9, 2, 9}, least[] = {3, 2, 4}, none[] = {9, 0, 9};
    check_deal(9, 0, 0, alike, room, 3, "333");
    check_deal(9, 0, 0, slow_first, room, 3, "243");
    check_deal(9, 0, 0, slow_last, room, 3, "531"); /* its layer takes as long as five */
    check_deal(9, 0, 0, alike, little, 3, "423");
    check_deal(9, 0, 0, alike, least, 3, "324");
    check_deal(9, 3, 0, alike, room, 3, "441");      /* the head is 3 layers */
    check_deal(9, 0, 4, slow_first, room, 3, "342"); /* 3 at half the speed, 2 + 2 x 2, 2 x 2 */
    check_deal(9, 0, 0, alike, none, 3, "");
    check_deal(9, 0, 0, alike, (int[]){3, 2, 3}, 3, "");
    check_deal(2, 0, 0, alike, room, 3, "");
}

static void counts_must_be_those_of_the_layers(void **state) {
    (void)state;
    struct fake f = {.layers = 9, .hidden = 64, .layer_params = 1 << 16, .edge_params = 1 << 16};
    struct ot_shard shard = {.ranks = 2, .mode = OT_SHARD_STAGES, .layers = {4, 4}};
    fake_open(&f);
    check_fails(ot_stages_check(&f.chain, &shard), OT_E_INTERNAL, "the stages have 8 of the 9 layers");
    shard.layers[1] = 5;
    check_ok(ot_stages_check(&f.chain, &shard));
}

/* ---- plans ---- */

/* The plans of all ranks, each chosen by its own rank as rank 0 has divided the layers. Checks that each
 * keeps its own budgets. layers: [RANKS]. Returns the step. */
static double choose_all(struct ot_plan_request rq, const struct ot_costs *costs, int layers[RANKS]) {
    struct ot_planner_result first;
    struct ot_plan plans[RANKS];
    check_ok(ot_planner_choose_shard(&rq, costs, (struct ot_shard_open){0}, &first, NULL));
    rq.shard = first.forced.shard;
    rq.rounds = ot_plan_rounds(&first.plan);
    double step = first.prediction.step_seconds;
    for (int r = 0; r < RANKS; r++) {
        struct ot_planner_result own;
        struct ot_plan_request of_rank = rq;
        of_rank.shard.rank = r;
        if (rq.machines)
            memcpy(of_rank.budget_bytes, rq.machines[r].budget_bytes, sizeof of_rank.budget_bytes);
        struct ot_costs slow = ot_costs_slowed(costs, rq.machines ? rq.machines[r].slowness : 1);
        check_ok(ot_planner_choose(&of_rank, &slow, &own));
        plans[r] = own.plan;
        check_fits(&of_rank, &plans[r]);
        layers[r] = ot_plan_middle_blocks(of_rank.chain, &plans[r], 1);
        /* every rank predicts the same step */
        assert_true(fabs(own.prediction.step_seconds / step - 1) < 0.01);
    }
    for (int r = 0; r < RANKS; r++)
        ot_plan_free(&plans[r]);
    ot_plan_free(&first.plan);
    return step;
}

/* The step of these stages, on machines of which some are slower. */
static double step_of(struct ot_plan_request rq, const struct ot_costs *costs, const double slowness[RANKS]) {
    struct ot_prediction all[RANKS];
    struct ot_plan plans[RANKS];
    for (rq.shard.rank = 0; rq.shard.rank < RANKS; rq.shard.rank++)
        check_ok(ot_plan_make(&rq, &plans[rq.shard.rank]));
    assert_int_equal(ot_simulate_ranks(rq.chain, plans, RANKS, costs, slowness, INFINITY, all), 1);
    for (int r = 0; r < RANKS; r++)
        ot_plan_free(&plans[r]);
    return all[0].step_seconds;
}

static void a_slower_rank_gets_fewer_layers(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_rank_machine machines[RANKS];
    const double slowness[RANKS] = {1, 3, 1};
    int alike[RANKS], layers[RANKS];
    fake_open_small(&f, OT_BF16, false);
    check_ok(ot_costs_estimate(&f.chain, &fake_rates, 512, 512, &costs));
    struct ot_plan_request rq = request_of(&f);
    set_machines(&rq, machines);
    choose_all(rq, &costs, alike);
    rq.machines = machines;
    machines[1].slowness = slowness[1];
    double step = choose_all(rq, &costs, layers);
    assert_true(alike[1] == 4 || alike[1] == 5);
    assert_in_range(layers[1], 1, 2);
    assert_int_equal(layers[0] + layers[1] + layers[2], 12);
    /* Equally many layers, in turns or not, wait for the slow rank. */
    for (rq.shard.turn_blocks = 0; rq.shard.turn_blocks < 2; rq.shard.turn_blocks++)
        assert_true(step < 0.75 * step_of(rq, &costs, slowness));
    assert_true(step_of(rq, &costs, slowness) > 1.5 * step_of(rq, &costs, NULL));
    ot_costs_free(&costs);
}

static void a_rank_with_little_memory_gets_fewer_layers(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_rank_machine machines[RANKS];
    int layers[RANKS];
    fake_open_small(&f, OT_BF16, false);
    check_ok(ot_costs_estimate(&f.chain, &fake_rates, 512, 512, &costs));
    struct ot_plan_request rq = request_of(&f), small = rq;
    set_machines(&rq, machines);
    machines[1].budget_bytes[OT_TIER_GPU] = (size_t)40 << 20;
    machines[1].budget_bytes[OT_TIER_HOST] = (size_t)30 << 20; /* for 2 layers of 14 bytes a parameter */
    memcpy(small.budget_bytes, machines[1].budget_bytes, sizeof small.budget_bytes);
    small.shard.rank = 1;
    struct ot_plan plan;
    check_fails(ot_plan_make(&small, &plan), OT_E_BUDGET, "needs"); /* 4 layers */
    rq.machines = machines;
    choose_all(rq, &costs, layers);
    assert_in_range(layers[1], 1, 3);
    assert_int_equal(layers[0] + layers[1] + layers[2], 12);
    /* Before speeds are known the same is found, once. */
    struct ot_shard before = rq.shard;
    ot_stages_find_room(&rq);
    assert_in_range(rq.shard.layers[1], 1, 3);
    small.shard = rq.shard;
    small.shard.rank = 1;
    check_ok(ot_plan_make(&small, &plan));
    check_fits(&small, &plan);
    ot_plan_free(&plan);
    /* Room for all: nothing changes. No room at all: neither. */
    for (int i = 0; i < 2; i++) {
        machines[1].budget_bytes[OT_TIER_HOST] = i == 0 ? (size_t)1 << 34 : 1 << 20;
        machines[1].budget_bytes[OT_TIER_GPU] = i == 0 ? (size_t)1 << 34 : 1 << 20;
        rq.shard = before;
        ot_stages_find_room(&rq);
        assert_memory_equal(&rq.shard, &before, sizeof before);
    }
    check_fails(
        ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &(struct ot_planner_result){0}, NULL),
        OT_E_BUDGET, "needs");
    ot_costs_free(&costs);
}

/* The holders of a stage are as weak as the weakest. */
static void holders_count_as_the_weakest(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_rank_machine machines[4];
    struct ot_planner_result chosen;
    fake_open_small(&f, OT_BF16, false);
    check_ok(ot_costs_estimate(&f.chain, &fake_rates, 512, 512, &costs));
    struct ot_plan_request rq = request_of(&f);
    rq.shard.ranks = 4;
    rq.shard.stages = 2;
    rq.machines = machines;
    for (int slow = 0; slow < 4; slow++) {
        for (int r = 0; r < 4; r++) {
            machines[r].slowness = r == slow ? 3 : 1;
            memcpy(machines[r].budget_bytes, rq.budget_bytes, sizeof machines[r].budget_bytes);
        }
        check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &chosen, NULL));
        const uint8_t *layers = chosen.forced.shard.layers;
        assert_int_equal(layers[0] + layers[1], 12);
        assert_true(slow < 2 ? layers[0] <= 4 : layers[1] <= 4);
        ot_plan_free(&chosen.plan);
    }
    ot_costs_free(&costs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machines_that_are_alike_become_equal),
        cmocka_unit_test(layers_are_dealt_by_speed_and_room),
        cmocka_unit_test(counts_must_be_those_of_the_layers),
        cmocka_unit_test(a_slower_rank_gets_fewer_layers),
        cmocka_unit_test(a_rank_with_little_memory_gets_fewer_layers),
        cmocka_unit_test(holders_count_as_the_weakest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

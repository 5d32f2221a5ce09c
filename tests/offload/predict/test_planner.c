/* The planner over chains that consist of sizes only, on machines of random rates. It never exceeds a budget,
 * is never slower than the rule's plan (measured with the simulator), respects every choice of the user, and
 * is deterministic. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/predict/planner_ranks.h"
#include "src/base/clock.h"
#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

#define GB 1e9

/* ---- machines ---- */

static double draw(uint64_t seed, uint64_t which) {
    return ot_random_unit(seed, 1, which);
}

/* Log-uniform, because machines differ by factors. */
static double between(uint64_t seed, uint64_t which, double low, double high) {
    return low * pow(high / low, draw(seed, which));
}

static struct ot_rates random_rates(uint64_t seed) {
    struct ot_rates r = {.product_flops = between(seed, 0, 5e12, 5e14),
                         .h2d_bytes = between(seed, 1, 3 * GB, 50 * GB),
                         .triad_bytes = between(seed, 2, 20 * GB, 200 * GB),
                         .nvme_read_bytes = between(seed, 3, 1 * GB, 10 * GB),
                         .cores = 8,
                         .crc_bytes = 10 * GB,
                         .task_seconds = 1e-5};
    r.attention[OT_HEAD_128] = (struct ot_attention_rates){r.product_flops / 2, r.product_flops / 3};
    r.device_bytes = 500 * GB;
    r.d2h_bytes = r.h2d_bytes;
    r.both_bytes = 1.6 * r.h2d_bytes;
    for (int format = 0; format < OT_STATE_FORMATS; format++)
        r.adamw_bytes[format] = 0.9 * r.triad_bytes;
    r.nvme_write_bytes = r.nvme_read_bytes / 2;
    r.nvme_mixed_bytes = 0.7 * r.nvme_read_bytes;
    return r;
}

static void open_costs(const struct fake *f, const struct ot_rates *rates, struct ot_costs *out) {
    check_ok(ot_costs_estimate(&f->chain, rates, 512, 4096, out));
}

/* Budgets from everything on the device down to a sixth of the model there and the rest on the host or on
 * nvme. */
static struct ot_plan_request random_request(const struct fake *f, uint64_t seed) {
    struct ot_plan_request rq = fake_request(f);
    rq.budget_bytes[OT_TIER_GPU] = (size_t)(between(seed, 10, 90, 1200) * MIB);
    rq.budget_bytes[OT_TIER_HOST] = (size_t)(between(seed, 11, 30, 500) * MIB);
    rq.budget_bytes[OT_TIER_NVME] = draw(seed, 12) < 0.5 ? 0 : (size_t)4 << 30;
    rq.step_sequences = 1 + (int64_t)(draw(seed, 13) * 24);
    rq.clip = draw(seed, 14) < 0.7;
    rq.shadows = draw(seed, 15) < 0.5 ? OT_SHADOWS_CHOSEN : draw(seed, 16);
    return rq;
}

static void check_within(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    check_fits(rq, plan);
    assert_true(ot_ledger_total(&plan->ledger, OT_TIER_NVME) <= rq->budget_bytes[OT_TIER_NVME]);
}

static bool same_plans(const struct ot_plan *a, const struct ot_plan *b) {
    bool same = a->n_slabs == b->n_slabs && a->micro_tokens == b->micro_tokens &&
                a->activations == b->activations && memcmp(a->kept, b->kept, sizeof a->kept) == 0 &&
                a->ledger.n == b->ledger.n;
    for (int s = 0; same && s < a->n_slabs; s++)
        same = a->slabs[s].weights == b->slabs[s].weights && a->slabs[s].state == b->slabs[s].state &&
               memcmp(a->slabs[s].tiles, b->slabs[s].tiles, sizeof a->slabs[s].tiles) == 0;
    for (int i = 0; same && i < a->ledger.n; i++)
        same = a->ledger.entries[i].bytes == b->ledger.entries[i].bytes;
    return same;
}

/* ---- properties of every choice ---- */

static bool is_slow(void) {
    return getenv("OT_TEST_SLOW") != NULL;
}

struct trial {
    struct fake fake;
    struct ot_plan_request request;
    struct ot_costs costs;
};

static void open_trial(struct trial *t, uint64_t seed) {
    struct ot_rates rates = random_rates(seed);
    fake_open_small(&t->fake, OT_BF16, seed & 1);
    t->request = random_request(&t->fake, seed);
    open_costs(&t->fake, &rates, &t->costs);
}

static void never_slower_than_the_rule_and_within_every_budget(void **state) {
    (void)state;
    const int trials = tests_are_brief() ? 8 : is_slow() ? 240 : 20;
    int made = 0, gained = 0, with_disk = 0;
    for (uint64_t seed = 0; seed < (uint64_t)trials; seed++) {
        struct trial t;
        struct ot_planner_result chosen, again;
        struct ot_plan rule;
        struct ot_prediction by_rule;
        open_trial(&t, seed);
        if (ot_plan_make(&t.request, &rule) == 0) {
            check_ok(ot_simulate_plan(&t.fake.chain, &rule, &t.costs, &by_rule));
            check_ok(ot_planner_choose(&t.request, &t.costs, &chosen));
            check_within(&t.request, &chosen.plan);
            assert_true(chosen.prediction.step_seconds > 0 && chosen.tried >= 1 && chosen.tried <= 1024);
            double mine = chosen.prediction.step_seconds, rules = by_rule.step_seconds;
            assert_true(mine <= rules);
            if (chosen.plan.micro_tokens != rule.micro_tokens)
                assert_true(mine < rules * (1 - OT_PLANNER_MARGIN));
            if (seed % 4 == 0) {
                check_ok(ot_planner_choose(&t.request, &t.costs, &again));
                assert_true(same_plans(&chosen.plan, &again.plan) && chosen.tried == again.tried);
                ot_plan_free(&again.plan);
            }
            made++;
            gained += mine < 0.95 * rules;
            with_disk += ot_ledger_total(&chosen.plan.ledger, OT_TIER_NVME) > 0;
            ot_plan_free(&chosen.plan);
            ot_plan_free(&rule);
        } else {
            assert_int_equal(ot_planner_choose(&t.request, &t.costs, &chosen), -OT_E_BUDGET);
            assert_null(chosen.plan.slabs);
        }
        ot_costs_free(&t.costs);
    }
    print_message("%d plans, %d of them at least 5 %% faster than the rule's, %d use the disk\n", made,
                  gained, with_disk);
    assert_true(made > trials / 2 && gained > trials / 8 && (with_disk > 0 || tests_are_brief()));
}

/* ---- the user's choices ---- */

static void check_forced(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    int64_t all = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        all += ot_plan_count_tiles(plan, (enum ot_tile_engine)e);
    for (int s = 0; s < plan->n_slabs; s++) {
        const struct ot_slab_plan *slab = &plan->slabs[s];
        int elsewhere = slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU];
        if (rq->weights != OT_HOME_AUTO)
            assert_int_equal(slab->weights, rq->weights);
        if (rq->state == OT_HOME_GPU)
            assert_int_equal(elsewhere, 0);
        if (rq->state == OT_HOME_HOST || rq->state == OT_HOME_NVME) {
            assert_int_equal(slab->tiles[OT_TILE_GPU], 0);
            assert_int_equal(slab->state, rq->state);
        }
    }
    if (rq->activations != OT_HOME_AUTO)
        assert_int_equal(plan->activations, rq->activations);
    if (rq->slots)
        assert_true(plan->weight_slots[OT_SLOT_LAYER] == 0 || plan->weight_slots[OT_SLOT_LAYER] == rq->slots);
    if (rq->keep >= 0)
        assert_int_equal(ot_plan_kept_blocks(plan, OT_TIER_COUNT), rq->keep ? plan->n_slabs - 2 : 0);
    if (rq->micro_sequences)
        assert_int_equal(plan->micro_tokens, rq->micro_sequences * rq->sequence_tokens);
    if (rq->fractions[OT_TILE_CPU] + rq->fractions[OT_TILE_STREAM] + rq->fractions[OT_TILE_GPU] > 0)
        for (int e = 0; e < OT_TILE_ENGINES; e++) {
            double tiles = (double)ot_plan_count_tiles(plan, (enum ot_tile_engine)e);
            assert_true(fabs(tiles - rq->fractions[e] * (double)all) <= 1);
        }
}

static void forced_fields_are_honoured(void **state) {
    (void)state;
    const int trials = tests_are_brief() ? 1 : is_slow() ? 25 : 2; /* for each field */
    int made[8] = {0};
    for (uint64_t seed = 0; seed < 8 * (uint64_t)trials; seed++) {
        struct trial t;
        struct ot_planner_result chosen;
        open_trial(&t, seed);
        struct ot_plan_request *rq = &t.request;
        int field = (int)(seed % 8);
        fake_open_small(&t.fake, OT_BF16, false);
        rq->budget_bytes[OT_TIER_GPU] = (size_t)(300 + 40 * (seed / 8)) * MIB;
        rq->budget_bytes[OT_TIER_NVME] = (size_t)4 << 30;
        rq->step_sequences = 16;
        if (field == 0)
            rq->weights = (enum ot_home)(seed / 8 % 3);
        if (field == 1)
            rq->state = (enum ot_home)(seed / 8 % 3);
        if (field == 2)
            rq->activations = (enum ot_home)(seed / 8 % 3);
        if (field == 3)
            rq->slots = 1 + (int)(seed / 8 % OT_PLAN_MAX_SLOTS);
        if (field == 4)
            rq->keep = (int)(seed / 8 % OT_KEEP_LEVELS);
        if (field == 5)
            rq->micro_sequences = 1 + (int64_t)(seed / 8 % 16);
        if (field == 6)
            memcpy(rq->fractions, (double[]){0, 0.5, 0.5}, sizeof rq->fractions);
        if (field == 7)
            rq->weights = rq->state = rq->activations = OT_HOME_HOST;
        if (field == 7)
            rq->budget_bytes[OT_TIER_HOST] = (size_t)1 << 30;
        int rc = ot_planner_choose(rq, &t.costs, &chosen);
        assert_true(rc == 0 || rc == -OT_E_BUDGET);
        if (rc == 0) {
            check_within(rq, &chosen.plan);
            check_forced(rq, &chosen.plan);
            made[field]++;
            ot_plan_free(&chosen.plan);
        }
        ot_costs_free(&t.costs);
    }
    for (int field = 0; field < 8; field++)
        assert_true(made[field] >= trials / 3);
}

/* ---- more memory or speed is not worse ---- */

/* The search is local, and another micro-batch must be faster by a margin to be chosen. So more of a resource
 * may make a step slower: by as much as the other micro-batch would save, and what the search misses. */
#define GRAIN (OT_PLANNER_MARGIN / (1 - OT_PLANNER_MARGIN) + 0.005)

static double choose_time(const struct ot_plan_request *rq, const struct ot_costs *costs) {
    struct ot_planner_result chosen;
    check_ok(ot_planner_choose(rq, costs, &chosen));
    ot_plan_free(&chosen.plan);
    return chosen.prediction.step_seconds;
}

static void more_of_anything_is_not_slower_beyond_the_grain(void **state) {
    (void)state;
    const int trials = tests_are_brief() ? 1 : is_slow() ? 40 : 4;
    double worst = 0;
    int asked = 0;
    for (uint64_t seed = 100; seed < 100 + (uint64_t)trials; seed++) {
        struct trial t;
        struct ot_plan plan;
        open_trial(&t, seed);
        t.request.sums = OT_HOME_GPU; /* the planner does not search their home: with more rounds they take
                                         room that something else had */
        if (ot_plan_make(&t.request, &plan) == 0) {
            ot_plan_free(&plan);
            double now = choose_time(&t.request, &t.costs);
            for (int what = 0; what < 6; what++) {
                struct ot_plan_request rq = t.request;
                struct ot_costs costs = t.costs;
                if (what < OT_TIER_COUNT)
                    rq.budget_bytes[what] += rq.budget_bytes[what] / 4;
                if (what == 3)
                    costs.rates.h2d_bytes *= 2, costs.rates.d2h_bytes *= 2, costs.rates.both_bytes *= 2;
                if (what == 4)
                    ot_rates_scale_memory(&costs.rates, 2);
                if (what == 5)
                    costs.rates.nvme_read_bytes *= 2, costs.rates.nvme_write_bytes *= 2,
                        costs.rates.nvme_mixed_bytes *= 2;
                double slower = choose_time(&rq, &costs) / now - 1;
                worst = slower > worst ? slower : worst;
                asked++;
            }
        }
        ot_costs_free(&t.costs);
    }
    print_message("%d machines with more of something: %.1f %% slower at worst\n", asked, 100 * worst);
    assert_true(asked > 3 * trials);
    assert_true(worst <= GRAIN);
}

/* ---- ranks ---- */

/* With communication that costs nothing, W ranks are at least as fast as one of them would be alone: with the
 * same device and share of the host, and with 1/W of the step. It needs no room for what ranks exchange. Real
 * communication may cost more than ranks gain: for few tokens a step, the exchange of gradients takes longer
 * than the computing. */
static void ranks_are_as_fast_as_each_of_them_alone(void **state) {
    (void)state;
    const int trials = tests_are_brief() ? 1 : is_slow() ? 200 : 4;
    double worst = 0;
    int compared = 0;
    for (uint64_t seed = 300; seed < 300 + (uint64_t)trials; seed++) {
        struct trial t;
        struct ot_planner_result ranks, alone;
        open_trial(&t, seed);
        t.costs.rates.comm_bytes = 1e18;
        t.request.shard.ranks = 2 << seed % 3;
        t.request.step_sequences *= t.request.shard.ranks;
        const struct ot_shard_open open = {.mode = true, .one_copy = true};
        int rc = ot_planner_choose_shard(&t.request, &t.costs, open, &ranks, NULL);
        struct ot_plan_request one = rank_alone(&t.request, &ranks.plan);
        int rc_alone = ot_planner_choose(&one, &t.costs, &alone);
        assert_true(rc == 0 || (rc == -OT_E_BUDGET && rc_alone == rc));
        if (rc_alone == 0) {
            double slower = ranks.prediction.step_seconds / alone.prediction.step_seconds - 1;
            if (slower > GRAIN)
                fail_msg("seed %d: %d ranks are %.1f %% slower than each alone", (int)seed,
                         t.request.shard.ranks, 100 * slower);
            worst = fmax(worst, slower);
            compared++;
            ot_plan_free(&alone.plan);
        }
        if (rc == 0)
            ot_plan_free(&ranks.plan);
        ot_costs_free(&t.costs);
    }
    print_message("%d runs of ranks, slower than each alone by %.1f %% at most\n", compared, 100 * worst);
    assert_true(compared > trials / 3);
}

/* Behind a slow communicator, ranks hold whole weights if these fit; the user's mode stays. */
static void ranks_choose_their_mode(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result chosen, full;
    struct ot_rates rates = random_rates(7);
    rates.comm_bytes = 1 * GB;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = fake_request(&f);
    rq.shard = (struct ot_shard){.ranks = 2, .mode = OT_SHARD_FULL};
    open_costs(&f, &rates, &costs);
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){0}, &full, NULL));
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){.mode = true}, &chosen, NULL));
    assert_int_equal(full.plan.shard.mode, OT_SHARD_FULL);
    assert_int_not_equal(chosen.plan.shard.mode, OT_SHARD_FULL);
    assert_true(chosen.prediction.step_seconds < full.prediction.step_seconds);
    assert_true(chosen.tried > full.tried); /* plans of all modes */
    ot_plan_free(&chosen.plan);
    ot_plan_free(&full.plan);
    ot_costs_free(&costs);
}

/* ---- explanations ---- */

static void explanations_never_promise_less(void **state) {
    (void)state;
    for (uint64_t seed = 200; seed < (tests_are_brief() ? 201 : is_slow() ? 240 : 202); seed++) {
        struct trial t;
        struct ot_planner_result chosen;
        struct ot_explanation e;
        open_trial(&t, seed);
        if (ot_planner_choose(&t.request, &t.costs, &chosen) == 0) {
            check_ok(ot_planner_explain(&t.request, &t.costs, &chosen, &e));
            double now = (double)(t.request.step_sequences * t.request.sequence_tokens) /
                         chosen.prediction.step_seconds;
            int all = t.request.budget_bytes[OT_TIER_NVME] > 0 ? 7 : 5;
            assert_true(e.n_ifs == all || e.n_ifs == all - 1); /* twice the tokens may not fit */
            assert_true(e.bound_share > 0 && e.bound_share <= 1 + 1e-9);
            for (int i = 0; i < e.n_ifs; i++) {
                bool longer = strstr(e.ifs[i].what, "tokens") != NULL;
                assert_true(e.ifs[i].step_seconds > 0);
                assert_true(longer || e.ifs[i].tokens_per_second >= now * (1 - 1e-12));
            }
            ot_plan_free(&chosen.plan);
        }
        ot_costs_free(&t.costs);
    }
}

static bool is_near(double a, double b) {
    return fabs(a - b) <= 1e-9 * fabs(b);
}

static struct ot_explanation bound_of(double compute, double in, double out, double seconds) {
    struct ot_prediction p = {.step_seconds = seconds,
                              .busy = {[OT_LANE_COMPUTE] = compute, [OT_LANE_H2D] = 9, [OT_LANE_CPU] = 9},
                              .exposed = {[OT_LANE_H2D] = in, [OT_LANE_D2H] = out}};
    struct ot_explanation e = {0};
    ot_planner_find_bound(&p, &e);
    return e;
}

static void the_bound_is_computing_or_the_longest_wait(void **state) {
    (void)state;
    struct ot_explanation e = bound_of(6, 3, 1, 10);
    assert_true(e.bound == OT_LANE_COMPUTE && e.second == OT_LANE_H2D);
    assert_true(is_near(e.bound_share, 0.6) && is_near(e.second_share, 0.3));
    e = bound_of(2, 1, 7, 10);
    assert_true(e.bound == OT_LANE_D2H && e.second == OT_LANE_COMPUTE);
    assert_true(is_near(e.bound_share, 0.7) && is_near(e.second_share, 0.2));
    e = bound_of(1, 5, 4, 10);
    assert_true(e.bound == OT_LANE_H2D && e.second == OT_LANE_D2H);
    e = bound_of(5, 0, 0, 10); /* no other lane bounds it */
    assert_true(e.bound == OT_LANE_COMPUTE && e.second == OT_LANE_COMPUTE);
    assert_true(is_near(e.bound_share, 0.5) && e.second_share == 0);
    e = bound_of(5, 2, 2, 10); /* of equals, the first */
    assert_true(e.second == OT_LANE_H2D);
    e = bound_of(0, 0, 0, 0);
    assert_true(e.bound_share == 0 && e.second_share == 0);
}

/* Everything on the device: computing is the bound. A slow pool that updates everything: the pool. A slow
 * disk: its writes. */
static void the_bound_is_what_it_waits_for(void **state) {
    (void)state;
    static const enum ot_lane_id want[] = {OT_LANE_COMPUTE, OT_LANE_CPU, OT_LANE_NVME_WRITE};
    for (int i = 0; i < 3; i++) {
        struct fake f;
        struct ot_costs costs;
        struct ot_planner_result chosen;
        struct ot_explanation e;
        struct ot_rates rates = random_rates(7);
        fake_open_small(&f, OT_BF16, false);
        struct ot_plan_request rq = fake_request(&f);
        rq.step_sequences = 4;
        if (i == 1) {
            rq.state = OT_HOME_HOST;
            memcpy(rq.fractions, (double[]){0, 0, 1}, sizeof rq.fractions);
            rates.adamw_bytes[OT_STATE_F32] = rates.triad_bytes = 0.1 * GB;
        }
        if (i == 2) {
            rq.state = OT_HOME_NVME;
            rq.budget_bytes[OT_TIER_NVME] = (size_t)8 << 30;
            rates.nvme_read_bytes = 20 * GB;
            rates.nvme_write_bytes = rates.nvme_mixed_bytes = 0.05 * GB;
        }
        open_costs(&f, &rates, &costs);
        check_ok(ot_planner_choose(&rq, &costs, &chosen));
        check_ok(ot_planner_explain(&rq, &costs, &chosen, &e));
        assert_int_equal(e.bound, want[i]);
        assert_true(e.bound_share > 0.5);
        ot_plan_free(&chosen.plan);
        ot_costs_free(&costs);
    }
}

/* ---- large models ---- */

static void seventy_billion_take_few_tries(void **state) {
    (void)state;
    struct fake f = {.layers = 80,
                     .hidden = 8192,
                     .layer_params = 855654400,
                     .edge_params = 1050673152,
                     .vocab = 128256,
                     .dtype = OT_BF16};
    struct ot_costs costs;
    struct ot_planner_result chosen;
    struct ot_rates rates = random_rates(3);
    fake_open(&f);
    struct ot_plan_request rq = fake_request(&f);
    rq.sequence_tokens = 2048;
    rq.step_sequences = 8;
    rq.budget_bytes[OT_TIER_GPU] = (size_t)140 << 30;
    rq.budget_bytes[OT_TIER_HOST] = (size_t)1100 << 30;
    rates.adamw_bytes[OT_STATE_F32] = rates.triad_bytes =
        20 * GB; /* so that the planner has something to search for */
    open_costs(&f, &rates, &costs);
    double since = ot_clock_seconds();
    check_ok(ot_planner_choose(&rq, &costs, &chosen));
    print_message("70B: %d plans in %.2f s\n", chosen.tried, ot_clock_seconds() - since);
    assert_true(chosen.tried >= 6 && chosen.tried <= 512);
    ot_plan_free(&chosen.plan);
    ot_costs_free(&costs);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    struct trial t;
    struct ot_planner_result chosen;
    open_trial(&t, 1);
    t.request.budget_bytes[OT_TIER_GPU] = MIB;
    check_fails(ot_planner_choose(&t.request, &t.costs, &chosen), OT_E_BUDGET, "gpu");
    t.request.budget_bytes[OT_TIER_GPU] = (size_t)1 << 34;
    t.request.step_sequences = 0;
    check_fails(ot_planner_choose(&t.request, &t.costs, &chosen), OT_E_USAGE, "is empty");
    ot_costs_free(&t.costs);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(never_slower_than_the_rule_and_within_every_budget),
        cmocka_unit_test(forced_fields_are_honoured),
        cmocka_unit_test(more_of_anything_is_not_slower_beyond_the_grain),
        cmocka_unit_test(ranks_are_as_fast_as_each_of_them_alone),
        cmocka_unit_test(ranks_choose_their_mode),
        cmocka_unit_test(explanations_never_promise_less),
        cmocka_unit_test(the_bound_is_computing_or_the_longest_wait),
        cmocka_unit_test(the_bound_is_what_it_waits_for),
        cmocka_unit_test(seventy_billion_take_few_tries),
        cmocka_unit_test(what_cannot_be_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

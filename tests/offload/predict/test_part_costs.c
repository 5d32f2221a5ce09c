/* Predictions of fetches by used parts (offload/plan/used_parts.h): the runs that are copied, their expected
 * bytes, the halves of a forward, and when a plan chooses them. */
#include <math.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "offload/plan/used_parts.h"
#include "offload/predict/planner.h"
#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { PARTS = 16, EACH_0 = 40001, EACH_1 = 20003 };

static double expected; /* parts that any number of tokens choose */

static double used_parts(const void *context, int block, int64_t n_tokens) {
    (void)context, (void)block;
    return n_tokens == 1 ? 1 : expected;
}

/* Most of each layer are parts. */
static void open_fake(struct fake *f) {
    fake_open_small(f, OT_BF16, false);
    for (int s = 1; s <= f->layers; s++) {
        f->slabs[s].n_parts = PARTS;
        f->slabs[s].n_pieces = 2;
        f->slabs[s].pieces[0] = (struct ot_piece_array){1001, EACH_0};
        f->slabs[s].pieces[1] = (struct ot_piece_array){5003 + PARTS * EACH_0, EACH_1};
    }
    f->chain.used_parts = used_parts;
}

/* ---- runs ---- */

static bool wants(const struct ot_slab_spec *slab, enum ot_fetched fetched, const int32_t *used,
                  int64_t param) {
    for (int a = 0; a < slab->n_pieces; a++) {
        int64_t at = param - slab->pieces[a].first;
        if (at >= 0 && at < slab->n_parts * slab->pieces[a].each)
            return fetched == OT_FETCH_ALL ||
                   (ot_fetched_has_used(fetched) && used[at / slab->pieces[a].each]);
    }
    return ot_fetched_has_dense(fetched);
}

/* Small slabs of random shapes, also with pieces at both ends and side by side: the runs are those that each
 * parameter by itself says, and no run touches the next one inside of dense parameters or of an array. */
static void runs(void **state) {
    (void)state;
    enum { SLABS = 2000, MOST = 7 };
    for (int i = 0; i < SLABS; i++) {
        uint64_t n_drawn = 0;
#define PICK(bound) ((int)ot_random_below(90, (uint64_t)i, n_drawn++, (uint64_t)(bound)))
        struct ot_slab_spec slab = {.n_parts = 1 + PICK(MOST), .n_pieces = 1 + PICK(OT_MAX_PIECES)};
        int32_t used[MOST];
        for (int p = 0; p < slab.n_parts; p++)
            used[p] = PICK(2);
        for (int a = 0; a < slab.n_pieces; a++) {
            slab.pieces[a] = (struct ot_piece_array){slab.n_params + PICK(3), 1 + PICK(3)};
            slab.n_params = slab.pieces[a].first + slab.n_parts * slab.pieces[a].each;
        }
        slab.n_params += PICK(3);
        for (int fetched = OT_FETCH_ALL; fetched <= OT_FETCH_DENSE_AND_USED; fetched++) {
            struct ot_run_walk walk = ot_run_walk(&slab, (enum ot_fetched)fetched, used);
            int64_t at = 0;
            for (int64_t first, n; ot_run_next(&walk, &first, &n); at = first + n) {
                assert_true(n > 0 && first >= at && first + n <= slab.n_params);
                for (int64_t param = at; param < first + n; param++)
                    assert_int_equal(wants(&slab, (enum ot_fetched)fetched, used, param), param >= first);
            }
            for (; at < slab.n_params; at++)
                assert_false(wants(&slab, (enum ot_fetched)fetched, used, at));
        }
#undef PICK
    }
}

/* ---- costs ---- */

static const struct ot_rates RATES = {.product_flops = 2e14,
                                      .attention = {[OT_HEAD_128] = {1e14, 1e14}},
                                      .device_bytes = 1e12,
                                      .h2d_bytes = 1e9,
                                      .d2h_bytes = 1e9,
                                      .both_bytes = 2e9,
                                      .triad_bytes = 1e11,
                                      .adamw_bytes = {9e10, 9e10, 9e10},
                                      .cores = 8,
                                      .task_seconds = 1e-5};

static struct ot_plan_request request_of(const struct fake *f) {
    struct ot_plan_request rq = fake_request(f);
    rq.weights = OT_HOME_HOST;
    rq.state = OT_HOME_HOST;
    rq.fractions[OT_TILE_CPU] = 1;
    rq.slots = 2;
    return rq;
}

static void check_near(double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%.15g, not %.15g", got, want);
}

/* What a task brings of a slab of `whole` units or parameters, each part of which has `part`. */
static double brought(enum ot_fetched fetched, double whole, double part) {
    return (ot_fetched_has_dense(fetched) ? whole - PARTS * part : 0) +
           (ot_fetched_has_used(fetched) ? expected * part : 0);
}

/* An encoded slab is fetched and decoded by its parts: two bytes a unit cross, and decoding reads them and
 * writes two bytes a parameter. */
static void encoded_tasks(void **state) {
    (void)state;
    enum { UNITS_0 = 10100, UNITS_1 = 5300, UNITS = 400 * OT_SLAB_ALIGN_PARAMS };
    struct fake f;
    struct ot_costs costs;
    struct ot_plan plan;
    struct ot_layout layout;
    struct ot_schedule schedule;
    expected = 3;
    open_fake(&f);
    for (int s = 1; s <= f.layers; s++) {
        f.slabs[s].frozen = true;
        f.slabs[s].n_groups = 0;
        f.slabs[s].encoded_bytes = (int64_t)UNITS * OT_ENCODED_UNIT;
        f.slabs[s].encoded[0] = (struct ot_piece_array){501, UNITS_0};
        f.slabs[s].encoded[1] = (struct ot_piece_array){2503 + PARTS * UNITS_0, UNITS_1};
    }
    check_ok(ot_chain_check_parts(&f.chain));
    struct ot_plan_request rq = request_of(&f);
    rq.fetch = OT_FETCH_USED_PARTS;
    check_ok(ot_costs_estimate(&f.chain, &RATES, 512, 4096, &costs));
    check_ok(ot_plan_make(&rq, &plan));
    check_ok(ot_layout_make(&f.chain, &plan, &layout));
    check_ok(ot_schedule_make_train(&f.chain, &plan, &layout, &schedule));
    int fetches[OT_FETCH_DENSE_AND_USED + 1] = {0}, decodings[OT_FETCH_DENSE_AND_USED + 1] = {0};
    for (int t = 0; t < schedule.n_tasks; t++) {
        const struct ot_task *task = &schedule.tasks[t];
        double bytes = ot_costs_of_task(&costs, &f.chain, &plan, &layout, task).bytes;
        bool fetch = task->kind == OT_TASK_FETCH && task->fetched != OT_FETCH_ALL;
        double stored = 2 * brought(task->fetched, UNITS, UNITS_0 + UNITS_1);
        if (fetch)
            check_near(bytes, stored);
        else if (task->kind == OT_TASK_DECODE)
            check_near(bytes, stored + 2 * brought(task->fetched, (double)f.layer_params, EACH_0 + EACH_1));
        fetches[task->fetched] += fetch;
        decodings[task->fetched] += task->kind == OT_TASK_DECODE;
    }
    assert_int_equal(decodings[OT_FETCH_ALL], 0);
    for (int fetched = OT_FETCH_DENSE; fetched <= OT_FETCH_USED; fetched++)
        assert_true(fetches[fetched] == f.layers && decodings[fetched] == f.layers);
    assert_true(decodings[OT_FETCH_DENSE_AND_USED] > 0 && fetches[OT_FETCH_DENSE_AND_USED] > 0);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    ot_plan_free(&plan);
    ot_costs_free(&costs);
}

/* The two halves take the time of the whole. Forward fetches the dense rest, then the parts that are
 * expected; backward both. */
static void tasks(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_plan plan;
    struct ot_layout layout;
    struct ot_schedule schedule;
    expected = 3;
    open_fake(&f);
    struct ot_plan_request rq = request_of(&f);
    rq.fetch = OT_FETCH_USED_PARTS;
    rq.rounds = 2;
    check_ok(ot_costs_estimate(&f.chain, &RATES, 512, 4096, &costs));
    check_ok(ot_plan_make(&rq, &plan));
    assert_true(plan.fetch_used);
    check_ok(ot_layout_make(&f.chain, &plan, &layout));
    check_ok(ot_schedule_make_train(&f.chain, &plan, &layout, &schedule));
    const double part = EACH_0 + EACH_1, dense = (double)f.layer_params - PARTS * part;
    const double bytes[] = {[OT_FETCH_DENSE] = 2 * dense,
                            [OT_FETCH_USED] = 2 * 3 * part,
                            [OT_FETCH_DENSE_AND_USED] = 2 * (dense + 3 * part)};
    double halves = 0, flops = 0;
    int seen[OT_FETCH_DENSE_AND_USED + 1] = {0};
    for (int t = 0; t < schedule.n_tasks; t++) {
        const struct ot_task *task = &schedule.tasks[t];
        struct ot_task_cost cost = ot_costs_of_task(&costs, &f.chain, &plan, &layout, task);
        if (task->kind == OT_TASK_FETCH && task->fetched != OT_FETCH_ALL) {
            seen[task->fetched]++;
            check_near(cost.bytes, bytes[task->fetched]);
        } else if (task->kind == OT_TASK_FORWARD && task->half != OT_HALF_BOTH && task->block == 1 &&
                   task->micro == 0) {
            halves += cost.seconds - RATES.task_seconds;
            flops += cost.flops;
            /* a token multiplies with the dense parameters and those of one part */
            check_near(cost.flops, 2 * (double)plan.micro_tokens * (double)f.layer_params *
                                       (task->half == OT_HALF_REST ? part : dense) / (dense + part));
        }
    }
    check_near(flops, 2 * (double)plan.micro_tokens * (double)f.layer_params);
    check_near(halves, flops / RATES.product_flops);
    for (int fetched = OT_FETCH_DENSE; fetched <= OT_FETCH_DENSE_AND_USED; fetched++)
        assert_true(seen[fetched] > f.layers);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    ot_plan_free(&plan);
    ot_costs_free(&costs);
}

static void work_of_experts(const void *context, int block, enum ot_work_kind kind, enum ot_keep_level level,
                            int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out) {
    (void)context, (void)block, (void)kind, (void)level, (void)row_tokens;
    *out = (struct ot_block_work){.product_flops = 1e9 * (double)n_tokens,
                                  .group_flops = 4e8 * (double)n_tokens};
}

/* Products by groups take the time of their own rate, or of other products where it is unknown. */
static void groups_have_their_own_rate(void **state) {
    (void)state;
    struct fake f;
    struct ot_rates rates = RATES;
    open_fake(&f);
    f.chain.work = work_of_experts;
    for (int known = 0; known < 2; known++) {
        struct ot_costs costs;
        rates.group_flops = known ? 5e13 : 0;
        check_ok(ot_costs_estimate(&f.chain, &rates, 512, 4096, &costs));
        check_near(ot_line_at(costs.blocks[1].forward, 1), known ? 6e8 / 2e14 + 4e8 / 5e13 : 1e9 / 2e14);
        ot_costs_free(&costs);
    }
}

/* ---- choices ---- */

static bool plan_takes_used(const struct fake *f, struct ot_plan_request rq, const struct ot_rates *rates,
                            double parts) {
    struct ot_costs costs;
    struct ot_planner_result result;
    expected = parts;
    check_ok(ot_costs_estimate(&f->chain, rates, 512, 4096, &costs));
    check_ok(ot_planner_choose(&rq, &costs, &result));
    bool used = ot_block_chooses(&f->chain, &result.plan, 1);
    assert_int_equal(used, result.plan.fetch_used);
    ot_plan_free(&result.plan);
    ot_costs_free(&costs);
    return used;
}

static bool planner_fetches_used(const struct fake *f, enum ot_fetch_choice fetch, double parts) {
    struct ot_plan_request rq = request_of(f);
    rq.fetch = fetch;
    return plan_takes_used(f, rq, &RATES, parts);
}

/* In training the faster one, on a slow bus: few parts are worth waiting for, all parts are not. What the
 * user says counts. */
static void training(void **state) {
    (void)state;
    struct fake f;
    open_fake(&f);
    assert_true(planner_fetches_used(&f, OT_FETCH_CHOSEN, 2));
    assert_false(planner_fetches_used(&f, OT_FETCH_CHOSEN, PARTS));
    assert_false(planner_fetches_used(&f, OT_FETCH_ALL_PARTS, 2));
    assert_true(planner_fetches_used(&f, OT_FETCH_USED_PARTS, PARTS));
    /* Then no plan is chosen that fetches whole slabs, though it is faster to keep all activations on the
     * host, on a fast bus. */
    struct ot_rates fast = RATES;
    struct ot_plan_request rq = request_of(&f);
    fast.h2d_bytes = fast.d2h_bytes = fast.both_bytes = 1e12;
    fast.product_flops = 1e13;
    rq.budget_bytes[OT_TIER_GPU] = (size_t)100 << 20;
    rq.micro_sequences = 1;
    rq.keep = OT_KEEP_CHOSEN;
    rq.kept = OT_HOME_HOST;
    rq.fetch = OT_FETCH_USED_PARTS;
    assert_true(plan_takes_used(&f, rq, &fast, PARTS));
}

static bool pass_fetches_used(const struct fake *f, enum ot_fetch_choice fetch, double parts,
                              int64_t pass_tokens) {
    struct ot_plan_request rq = fake_request(f);
    struct ot_plan plan;
    rq.train = false;
    rq.micro_sequences = rq.step_sequences = 1;
    rq.weights = OT_HOME_HOST;
    rq.fetch = fetch;
    rq.pass_tokens = pass_tokens;
    expected = parts;
    check_ok(ot_plan_make(&rq, &plan));
    bool used = plan.fetch_used;
    ot_plan_free(&plan);
    return used;
}

static void passes(void **state) {
    (void)state;
    struct fake f;
    open_fake(&f);
    assert_true(pass_fetches_used(&f, OT_FETCH_CHOSEN, PARTS, 1)); /* one token: one part */
    assert_false(pass_fetches_used(&f, OT_FETCH_CHOSEN, PARTS, 0));
    assert_true(pass_fetches_used(&f, OT_FETCH_CHOSEN, PARTS / 2.0, 0));
    assert_false(pass_fetches_used(&f, OT_FETCH_CHOSEN, PARTS / 2.0 + 0.1, 0));
    assert_false(pass_fetches_used(&f, OT_FETCH_ALL_PARTS, 1, 1));
    assert_true(pass_fetches_used(&f, OT_FETCH_USED_PARTS, PARTS, 0));
}

/* Why parts come as a whole: each cause. */
static void causes(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    open_fake(&f);
    struct ot_plan_request rq = request_of(&f);
    rq.fetch = OT_FETCH_USED_PARTS;
    rq.micro_sequences = 1;
    rq.keep = OT_KEEP_PRODUCTS;
    rq.kept = OT_HOME_HOST;
    check_ok(ot_plan_make(&rq, &plan));
    assert_true(plan.max_micro > 1 && ot_plan_kept_blocks(&plan, OT_TIER_HOST) == f.layers);
    plan.kept_slots = 1;
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 0), OT_WHOLE_NO_PARTS);
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_KEPT);
    plan.kept_slots = plan.max_micro;
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_NOT);
    plan.slabs[1].tiles[OT_TILE_STREAM] = 1;
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_STREAMED);
    plan.slabs[1].tiles[OT_TILE_STREAM] = 0;
    plan.shard = (struct ot_shard){.ranks = 2, .mode = OT_SHARD_FULL};
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_GATHERED);
    plan.shard.one_copy = true;
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_NOT);
    plan.slabs[1].weights = OT_HOME_NVME; /* which ranks do not share */
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_GATHERED);
    plan.shard = (struct ot_shard){.ranks = 2, .mode = OT_SHARD_NONE};
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_NOT);
    plan.fetch_used = false;
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_ASKED);
    plan.slabs[1].weights = OT_HOME_GPU;
    assert_int_equal(ot_slab_whole_cause(&f.chain, &plan, 1), OT_WHOLE_AT_HOME);
    ot_plan_free(&plan);
}

/* A plan has no cause if the used parts of any slab come alone. */
static void causes_of_plans(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    open_fake(&f);
    struct ot_plan_request rq = request_of(&f);
    rq.fetch = OT_FETCH_USED_PARTS;
    check_ok(ot_plan_make(&rq, &plan));
    struct ot_chain without = f.chain;
    without.n_slabs = 1;                                 /* the embedding alone, which has no parts */
    for (int layers = 0; layers <= f.layers; layers++) { /* those whose updates stream */
        bool all = layers == f.layers;
        assert_int_equal(ot_plan_whole_cause(&f.chain, &plan), all ? OT_WHOLE_STREAMED : OT_WHOLE_NOT);
        assert_int_equal(ot_plan_whole_cause(&without, &plan), OT_WHOLE_NOT);
        if (!all)
            plan.slabs[1 + layers].tiles[OT_TILE_STREAM] = 1;
    }
    ot_plan_free(&plan);
}

/* ---- what a model may say ---- */

static void wrong_parts(void **state) {
    (void)state;
    struct fake f;
    open_fake(&f);
    check_ok(ot_chain_check_parts(&f.chain));
    struct ot_slab_spec *slab = &f.slabs[2], good = *slab;
    slab->pieces[1].first = slab->pieces[0].first + PARTS * EACH_0;
    check_ok(ot_chain_check_parts(&f.chain));
    slab->pieces[1].first--;
    check_fails(ot_chain_check_parts(&f.chain), OT_E_INTERNAL, "parts");
    *slab = good;
    slab->pieces[1].each = f.layer_params;
    check_fails(ot_chain_check_parts(&f.chain), OT_E_INTERNAL, "parts");
    *slab = good;
    slab->n_pieces = 0;
    check_fails(ot_chain_check_parts(&f.chain), OT_E_INTERNAL, "parts");
    *slab = good;
    slab->encoded_bytes = OT_ENCODED_ALIGN; /* without pieces there */
    check_fails(ot_chain_check_parts(&f.chain), OT_E_INTERNAL, "parts");
    *slab = good;
    f.slabs[0].n_parts = PARTS; /* the embedding */
    f.slabs[0].n_pieces = 1;
    f.slabs[0].pieces[0] = (struct ot_piece_array){0, 1};
    check_fails(ot_chain_check_parts(&f.chain), OT_E_INTERNAL, "parts");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(runs),          cmocka_unit_test(tasks),
        cmocka_unit_test(encoded_tasks), cmocka_unit_test(groups_have_their_own_rate),
        cmocka_unit_test(training),      cmocka_unit_test(passes),
        cmocka_unit_test(causes),        cmocka_unit_test(causes_of_plans),
        cmocka_unit_test(wrong_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

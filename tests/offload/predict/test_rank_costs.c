/* What several ranks add to a step: the bytes that every rank receives, against the formulas of the shard
 * modes, and the predicted time of plans of all modes. */
#include <math.h>
#include <string.h>

#include "offload/predict/simulate.h"
#include "src/base/random.h"
#include "tests/offload/fake_chain.h"
#include "tests/support/check.h"

enum { LAYERS = 12, SLOTS = 2 };

static void check_near(const char *what, double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%s: %.15g, not %.15g", what, got, want);
}

static struct ot_plan_request request_of(const struct fake *f, struct ot_shard shard) {
    struct ot_plan_request rq = fake_request(f);
    rq.shard = shard;
    rq.slots = SLOTS;
    rq.micro_sequences = 1;
    rq.step_sequences = 16;
    return rq;
}

/* ---- bytes ---- */

/* The comm tasks of a step by kind, and the bytes of its fetches of whole slabs. */
struct traffic {
    double bytes[OT_TASK_KINDS], seconds, fetched;
    int n;
};

static void sum_traffic(const struct fake *f, const struct ot_plan *plan, struct traffic *t) {
    struct ot_layout layout;
    struct ot_schedule schedule;
    struct ot_costs costs;
    memset(t, 0, sizeof *t);
    check_ok(ot_layout_make(&f->chain, plan, &layout));
    check_ok(ot_schedule_make_train(&f->chain, plan, &layout, &schedule));
    check_ok(ot_costs_estimate(&f->chain, &fake_rates, 512, plan->micro_tokens, &costs));
    for (int i = 0; i < schedule.n_tasks; i++) {
        struct ot_task_cost cost = ot_costs_of_task(&costs, &f->chain, plan, &layout, &schedule.tasks[i]);
        const struct ot_task *task = &schedule.tasks[i];
        if (task->kind == OT_TASK_FETCH && task->span.n == f->chain.slabs[task->slab].n_params)
            t->fetched += cost.bytes;
        if (task->lane != OT_LANE_COMM)
            continue;
        t->bytes[schedule.tasks[i].kind] += cost.bytes;
        t->seconds += cost.seconds;
        t->n++;
    }
    ot_costs_free(&costs);
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
}

/* Mode full gathers every slab for forward. For backward it gathers the layers again that the turn-around did
 * not leave in slots; the embedding has no use in backward, and the head's two passes are one visit. Mode
 * state gathers every slab once. Mode none gathers the joined gradients instead. */
static void bytes_are_those_of_the_formula(void **state) {
    (void)state;
    for (int mode = 0; mode < OT_SHARD_MODES; mode++)
        for (int ranks = 2; ranks <= 8; ranks *= 2)
            for (int narrow = 0; narrow < 2; narrow++) {
                struct fake f;
                struct ot_plan plan;
                struct traffic t;
                struct ot_shard shard = {.ranks = ranks, .mode = (enum ot_shard_mode)mode, .narrow = narrow};
                fake_open_small(&f, OT_BF16, false);
                struct ot_plan_request rq = request_of(&f, shard);
                if (mode == OT_SHARD_FULL)
                    rq.weights = OT_HOME_HOST;
                check_ok(ot_plan_make(&rq, &plan));
                sum_traffic(&f, &plan, &t);
                double layers = (double)(LAYERS * f.layer_params),
                       params = layers + 2 * (double)f.edge_params;
                double others = (double)(ranks - 1) / ranks;
                double twice = (double)((LAYERS - SLOTS) * f.layer_params);
                double gathered = mode == OT_SHARD_NONE    ? 0
                                  : mode == OT_SHARD_STATE ? params
                                                           : params + twice;
                check_near("gathered", t.bytes[OT_TASK_GATHER], others * 2 * gathered);
                check_near("exchanged", t.bytes[OT_TASK_EXCHANGE], others * (narrow ? 2 : 4) * params);
                check_near("gradients", t.bytes[OT_TASK_GRAD_GATHER],
                           mode == OT_SHARD_NONE ? others * 4 * params : 0);
                assert_true(t.bytes[OT_TASK_RESULT_GATHER] < 1e-3 * params);
                double all = 0;
                for (int k = 0; k < OT_TASK_KINDS; k++)
                    all += t.bytes[k];
                check_near("seconds", t.seconds, all / fake_rates.comm_bytes + t.n * fake_rates.comm_seconds);
                ot_plan_free(&plan);
            }
}

/* The transfers of a rank, added up. */
static struct ot_task_cost sum_transfers(const struct fake *f, const struct ot_plan *plan,
                                         const struct ot_costs *costs) {
    struct ot_task_cost sum = {0};
    struct ot_layout layout;
    struct ot_schedule schedule;
    check_ok(ot_layout_make(&f->chain, plan, &layout));
    check_ok(ot_schedule_make_draft(&f->chain, plan, &layout, NULL, &schedule));
    for (int i = 0; i < schedule.n_tasks; i++) {
        const struct ot_task *task = &schedule.tasks[i];
        if (task->kind != OT_TASK_TRANSFER)
            continue;
        struct ot_task_cost cost = ot_costs_of_transfer(costs, &f->chain, plan, &layout, &schedule, task);
        sum.seconds += cost.seconds - costs->rates.task_seconds;
        sum.bytes += cost.bytes;
    }
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    return sum;
}

/* Two hosts with two ranks each, and one turn a rank: ranks 1 and 2 are neighbours over the network. What is
 * inside a host goes at another rate. Two replicas share the network, with the halves of the model on a
 * host each. */
static void transfers_have_the_rates_of_their_links(void **state) {
    enum { RANKS = 4, MICRO = 16 };
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_plan plans[RANKS];
    const double inside = 1e10, between = 1e9;
    struct ot_rates rates = fake_rates;
    rates.comm_bytes = 1; /* transfers do not take the rate of other operations */
    fake_open_small(&f, OT_BF16, false);
    check_ok(ot_costs_estimate(&f.chain, &rates, 512, 512, &costs));
    struct ot_plan_request rq = request_of(&f, (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_STAGES});
    rq.step_sequences = MICRO;
    for (int replicas = 1; replicas <= 2; replicas++) {
        rq.shard.stages = RANKS / replicas;
        for (rq.shard.rank = 0; rq.shard.rank < RANKS; rq.shard.rank++)
            check_ok(ot_plan_make(&rq, &plans[rq.shard.rank]));
        double boundary = (double)ot_chain_boundary_bytes(&f.chain, 512) * MICRO / replicas;
        costs.rates.host_ranks = 2;
        costs.rates.inside = (struct ot_transfer_rate){inside, 0};
        costs.rates.between = (struct ot_transfer_rate){between, 0};
        double bytes = sum_transfers(&f, &plans[0], &costs).bytes;
        assert_true(fabs(bytes - 2 * boundary) < 1); /* out and back */
        double rate = replicas == 1 ? inside : between / 2;
        assert_true(fabs(sum_transfers(&f, &plans[0], &costs).seconds * rate / bytes - 1) < 1e-9);
        if (replicas == 1) { /* it has both kinds of neighbours */
            double seconds = sum_transfers(&f, &plans[1], &costs).seconds;
            assert_true(seconds >= 2 * boundary / between * (1 - 1e-9));
            assert_true(seconds <= 2 * boundary * (1 / between + 1 / inside) * (1 + 1e-9));
            costs.rates.host_ranks = 0; /* not known: as inside */
            assert_true(sum_transfers(&f, &plans[1], &costs).seconds < 0.5 * seconds);
        }
        for (int r = 0; r < RANKS; r++)
            ot_plan_free(&plans[r]);
    }
    ot_costs_free(&costs);
}

/* With one copy of the weights nothing is gathered: a rank fetches whole slabs, as often as it would gather
 * them, and meets the others once for each slab. */
static void one_copy_is_fetched_whole(void **state) {
    (void)state;
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        struct fake f;
        struct ot_plan plan;
        struct traffic t;
        fake_open_small(&f, OT_BF16, false);
        struct ot_plan_request rq =
            request_of(&f, (struct ot_shard){.ranks = ranks, .mode = OT_SHARD_FULL, .one_copy = true});
        rq.weights = OT_HOME_HOST;
        check_ok(ot_plan_make(&rq, &plan));
        sum_traffic(&f, &plan, &t);
        double layers = (double)((2 * LAYERS - SLOTS) * f.layer_params), edges = 2 * (double)f.edge_params;
        check_near("fetched", t.fetched, 2 * (layers + edges));
        check_near("meetings", t.bytes[OT_TASK_MEET],
                   (double)((LAYERS + 2) * (ranks - 1) * OT_MEETING_BYTES));
        check_near("gathered", t.bytes[OT_TASK_GATHER], 0);
        ot_plan_free(&plan);
    }
}

/* Weights, state and gradients of a rank are 1/W of the model's; every mode holds what it says. */
static void holds_its_share(bool one_copy) {
    for (int ranks = 2; ranks <= 8; ranks *= 2) {
        struct fake f;
        struct ot_plan one, plan;
        fake_open_small(&f, OT_BF16, false);
        struct ot_plan_request rq = request_of(&f, (struct ot_shard){.ranks = 1});
        rq.weights = rq.state = OT_HOME_HOST;
        check_ok(ot_plan_make(&rq, &one));
        rq.shard = (struct ot_shard){.ranks = ranks, .mode = OT_SHARD_FULL, .one_copy = one_copy};
        check_ok(ot_plan_make(&rq, &plan));
        static const char *const kinds[] = {"weights", "optimizer state", "gradients"};
        for (int k = 0; k < 3; k++) {
            double whole = 0, share = 0;
            for (int i = 0; i < one.ledger.n; i++)
                whole +=
                    strcmp(one.ledger.entries[i].name, kinds[k]) ? 0 : (double)one.ledger.entries[i].bytes;
            for (int i = 0; i < plan.ledger.n; i++)
                share +=
                    strcmp(plan.ledger.entries[i].name, kinds[k]) ? 0 : (double)plan.ledger.entries[i].bytes;
            if (!(whole > 0 && fabs(share * ranks / whole - 1) < 0.02))
                fail_msg("%s: %.0f bytes on each of %d ranks, %.0f on one", kinds[k], share, ranks, whole);
        }
        ot_plan_free(&one);
        ot_plan_free(&plan);
    }
}

static void a_rank_holds_its_share(void **state) {
    (void)state;
    holds_its_share(false);
    holds_its_share(true);
}

/* ---- time ---- */

static struct ot_prediction predict(const struct fake *f, const struct ot_plan *plan,
                                    const struct ot_rates *r) {
    struct ot_costs costs;
    struct ot_prediction p;
    check_ok(ot_costs_estimate(&f->chain, r, 512, plan->micro_tokens, &costs));
    check_ok(ot_simulate_plan(&f->chain, plan, &costs, &p));
    ot_costs_free(&costs);
    return p;
}

/* Random plans of 2, 3, 4 and 8 ranks: the parts of a step add up, a step is not shorter than its exchange,
 * and a faster communicator does not make it longer. */
static void any_plan_of_ranks(void **state) {
    (void)state;
    static const int counts[] = {2, 3, 4, 8};
    int made = 0;
    for (uint64_t seed = 0; seed < 72; seed++) {
        struct fake f;
        struct ot_plan plan;
        struct ot_shard shard = {.ranks = counts[seed % 4], .mode = (enum ot_shard_mode)(seed / 4 % 3)};
        shard.rank = (int)ot_random_below(seed, 2, 0, (uint64_t)shard.ranks);
        shard.world = shard.ranks != 3 && seed / 12 % 2;
        shard.narrow = seed % 5 == 0;
        fake_open_small(&f, seed % 5 ? (enum ot_dtype)(seed % 3) : OT_BF16, seed & 1);
        struct ot_plan_request rq = request_of(&f, shard);
        rq.clip = f.dtype == OT_F16 || (seed & 2);
        rq.budget_bytes[OT_TIER_GPU] = (size_t)(128 + ot_random_below(seed, 2, 1, 400)) * MIB;
        rq.slots = (int)ot_random_below(seed, 2, 2, 4);
        if (ot_plan_make(&rq, &plan) < 0)
            continue;
        made++;
        struct ot_rates fast = fake_rates, local = fake_rates;
        struct ot_prediction p = predict(&f, &plan, &fake_rates), again = predict(&f, &plan, &fake_rates);
        double sum = p.busy[OT_LANE_COMPUTE] + p.exposed_host;
        for (int l = 0; l < OT_LANE_COUNT; l++)
            sum += p.exposed[l];
        check_near("busy and exposed", sum, p.step_seconds);
        assert_memory_equal(&p, &again, sizeof p);
        assert_true(p.bytes[OT_LANE_COMM] > 0);
        assert_true(p.bytes[OT_LANE_COMM] / fake_rates.comm_bytes <= p.step_seconds);
        fast.comm_bytes *= 2;
        local.comm_link = local.comm_memory = 0;
        /* A list schedule may be a little worse on a faster machine. */
        assert_true(predict(&f, &plan, &fast).step_seconds <= 1.02 * p.step_seconds);
        assert_true(predict(&f, &plan, &local).step_seconds <= 1.02 * p.step_seconds);
        ot_plan_free(&plan);
    }
    assert_true(made > 40);
}

/* Without a communicator's rate a step of several ranks has no predicted time. */
static void an_unknown_communicator_is_refused(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan plan;
    struct ot_costs costs;
    struct ot_prediction p;
    struct ot_rates none = fake_rates;
    none.comm_bytes = 0;
    fake_open_small(&f, OT_BF16, false);
    struct ot_plan_request rq = request_of(&f, (struct ot_shard){.ranks = 2, .mode = OT_SHARD_FULL});
    check_ok(ot_plan_make(&rq, &plan));
    check_ok(ot_costs_estimate(&f.chain, &none, 512, plan.micro_tokens, &costs));
    check_fails(ot_simulate_plan(&f.chain, &plan, &costs, &p), OT_E_USAGE, "lane comm");
    ot_costs_free(&costs);
    ot_plan_free(&plan);
}

static void ranks_divide_their_host(void **state) {
    (void)state;
    struct ot_rates r = fake_rates;
    r.nvme_read_bytes = r.nvme_write_bytes = r.nvme_mixed_bytes = 6e9;
    ot_rates_divide(&r, 4);
    check_near("memory", r.triad_bytes, 25e9);
    check_near("optimizer", r.adamw_bytes[OT_STATE_F32], 20e9);
    check_near("optimizer, 8 bits", r.adamw_bytes[OT_STATE_8BIT], 10e9);
    check_near("reads", r.nvme_read_bytes, 1.5e9);
    check_near("writes", r.nvme_write_bytes, 1.5e9);
    check_near("both", r.nvme_mixed_bytes, 1.5e9);
    check_near("link", r.both_bytes, fake_rates.both_bytes); /* each GPU has its own */
    assert_int_equal(r.cores, 2);
    ot_rates_divide(&r, 4);
    assert_int_equal(r.cores, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_those_of_the_formula),
        cmocka_unit_test(a_rank_holds_its_share),
        cmocka_unit_test(transfers_have_the_rates_of_their_links),
        cmocka_unit_test(one_copy_is_fetched_whole),
        cmocka_unit_test(any_plan_of_ranks),
        cmocka_unit_test(an_unknown_communicator_is_refused),
        cmocka_unit_test(ranks_divide_their_host),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Key groups (offload/plan/slabs.h): when a plan has them, and what their tasks cost. */
#include <math.h>
#include <string.h>

#include "offload/plan/build.h"
#include "offload/predict/bound.h"
#include "offload/predict/planner.h"
#include "offload/predict/simulate.h"
#include "tests/offload/fake_chain.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { ROW = 1 << 17, ALIGN = 256, HEADS = 16 };

static struct ot_plan_request request_of(struct fake *f) {
    fake_open_small(f, OT_BF16, false);
    f->chain.section_align = ALIGN;
    f->chain.key_heads = HEADS;
    struct ot_plan_request rq = fake_request(f);
    rq.sequence_tokens = ROW;
    rq.step_sequences = 2;
    return rq;
}

/* ---- what a plan chooses ---- */

static void is_refused(struct ot_plan_request rq, int sections, int groups) {
    struct ot_plan plan;
    rq.sections = sections;
    rq.key_groups = groups;
    check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "gpu");
}

/* The bytes of a row's keys, values and sums in the ledger. Whole rows have none. */
static void check_keys(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    int sections = ot_plan_sections(plan), groups = ot_plan_key_groups(plan);
    size_t row = 2 * (size_t)(ot_plan_pass_tokens(plan) * rq->chain->kv_elems) * (2 + sizeof(float));
    size_t bytes[OT_TIER_COUNT] = {0};
    for (int i = 0; i < plan->ledger.n; i++)
        if (strcmp(plan->ledger.entries[i].name, "keys and values") == 0)
            bytes[plan->ledger.entries[i].tier] += plan->ledger.entries[i].bytes;
    assert_int_equal(bytes[OT_TIER_HOST], groups > 1 ? row : 0);
    assert_int_equal(bytes[OT_TIER_GPU], sections == 1 ? 0
                                         : groups == 1 ? row
                                                       : row * OT_KEY_SLOTS / (size_t)groups);
}

/* The plan keeps its budgets. It has groups only if no number of sections is enough: in the fewest sections,
 * and then the fewest groups, that fit. */
static void check_choice(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    int sections = ot_plan_sections(plan), groups = ot_plan_key_groups(plan);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        assert_true(ot_ledger_total(&plan->ledger, (enum ot_tier)t) <= rq->budget_bytes[t]);
    check_keys(rq, plan);
    if (groups == 1)
        return;
    assert_true(groups > OT_KEY_SLOTS && HEADS % groups == 0);
    is_refused(*rq, 32, 1);
    if (groups > 4)
        is_refused(*rq, sections, groups / 2);
    if (sections > 2)
        is_refused(*rq, sections / 2, HEADS);
}

/* As the device shrinks, keys stay there in more and more sections, then they come in groups; then the row is
 * refused, and the refusal's cure is enough. */
static void groups_come_when_sections_do_not_fit(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan_request rq = request_of(&f);
    struct ot_plan plan;
    int rc, seen = 0;
    check_ok(ot_plan_make(&rq, &plan));
    rq.budget_bytes[OT_TIER_GPU] = ot_ledger_total(&plan.ledger, OT_TIER_GPU);
    ot_plan_free(&plan);
    const size_t less = (tests_are_few() ? 72 : 24) * (size_t)MIB;
    for (bool grouped = false; (rc = ot_plan_make(&rq, &plan)) == 0; rq.budget_bytes[OT_TIER_GPU] -= less) {
        check_choice(&rq, &plan);
        assert_true(!grouped || ot_plan_key_groups(&plan) > 1);
        grouped = ot_plan_key_groups(&plan) > 1;
        seen |= ot_plan_key_groups(&plan);
        ot_plan_free(&plan);
    }
    assert_int_equal(rc, -OT_E_BUDGET);
    assert_true(seen & 1 && seen & 16); /* HEADS groups of one head */
    rq.budget_bytes[OT_TIER_GPU] = plan.shortage.alone[OT_TIER_GPU];
    assert_true(rq.budget_bytes[OT_TIER_GPU] > 0);
    check_ok(ot_plan_make(&rq, &plan));
    check_choice(&rq, &plan);
    ot_plan_free(&plan);
}

/* A budget that only a plan in groups keeps. */
static struct ot_plan_request tight_request(struct fake *f) {
    struct ot_plan_request rq = request_of(f);
    rq.budget_bytes[OT_TIER_GPU] = 500 * (size_t)MIB;
    return rq;
}

static void who_has_no_groups_is_refused(void **state) {
    (void)state;
    struct fake f;
    struct ot_plan_request rq = tight_request(&f), other = rq;
    struct ot_plan plan;
    check_ok(ot_plan_make(&rq, &plan));
    assert_true(ot_plan_key_groups(&plan) > 1);
    ot_plan_free(&plan);
    other.key_groups = 1; /* keys stay on the device */
    check_fails(ot_plan_make(&other, &plan), OT_E_BUDGET, "gpu");
    other = rq;
    other.sections = 1;
    check_fails(ot_plan_make(&other, &plan), OT_E_BUDGET, "gpu");
    other.sections = 32;
    check_ok(ot_plan_make(&other, &plan));
    assert_true(ot_plan_key_groups(&plan) > 1);
    ot_plan_free(&plan);
    f.chain.key_heads = OT_KEY_SLOTS;
    check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "gpu");
    f.chain.key_heads = HEADS;
    rq.budget_bytes[OT_TIER_HOST] /= 64; /* the host is short: no groups help */
    check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "host");
}

/* The tasks of groups are many, so few micro-batches have many groups. */
static void schedules_have_room(void **state) {
    (void)state;
    struct fake f;
    request_of(&f);
    assert_true(ot_chain_most_key_groups(&f.chain, 1) > 100);
    assert_true(ot_chain_most_key_groups(&f.chain, 64) < ot_chain_most_key_groups(&f.chain, 32));
    assert_true(ot_chain_most_key_groups(&f.chain, ot_chain_most_micro(&f.chain)) < 2);
}

/* The planner's search keeps the sections and groups of the first plan that fits. */
static void the_search_keeps_groups(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    struct ot_planner_result result;
    struct ot_plan_request rq = tight_request(&f);
    check_ok(ot_costs_estimate(&f.chain, &fake_rates, ROW, ROW, &costs));
    check_ok(ot_planner_choose(&rq, &costs, &result));
    check_choice(&rq, &result.plan);
    assert_int_equal(result.forced.key_groups, ot_plan_key_groups(&result.plan));
    assert_true(result.forced.key_groups > 1);
    double least = ot_plan_least_seconds(&f.chain, &result.plan, &costs);
    assert_true(least <= result.prediction.step_seconds && least > 0.3 * result.prediction.step_seconds);
    ot_plan_free(&result.plan);
    ot_costs_free(&costs);
}

/* ---- costs ---- */

enum { SECTIONS = 8, TOKENS = 1 << 14 };

/* Costs of the step's tasks of each kind in one layer. */
struct sums {
    struct ot_task_cost of[OT_TASK_KINDS], attention;
    struct ot_plan plan;
};

static void sum_up(const struct ot_chain *chain, const struct ot_costs *costs, int groups,
                   enum ot_keep_level keep, struct sums *out) {
    struct ot_plan_request rq = {.chain = chain,
                                 .budget_bytes = {(size_t)1 << 40, (size_t)1 << 40, 0},
                                 .sequence_tokens = TOKENS,
                                 .step_sequences = 1,
                                 .sections = SECTIONS,
                                 .key_groups = groups,
                                 .keep = keep,
                                 .kept = OT_HOME_GPU,
                                 .train = true,
                                 .clip = true};
    struct ot_layout layout;
    struct ot_schedule schedule;
    memset(out, 0, sizeof *out);
    check_ok(ot_plan_make(&rq, &out->plan));
    assert_int_equal(ot_plan_key_groups(&out->plan), groups);
    check_ok(ot_layout_make(chain, &out->plan, &layout));
    check_ok(ot_schedule_make_train(chain, &out->plan, &layout, &schedule));
    for (int i = 0; i < schedule.n_tasks; i++) {
        const struct ot_task *task = &schedule.tasks[i];
        struct ot_task_cost cost = ot_costs_of_task(costs, chain, &out->plan, &layout, task), *to[2];
        bool attends = task->phase == OT_PHASE_ATTEND || task->phase == OT_PHASE_ATTEND_BACK;
        if (task->block != 2)
            continue;
        to[0] = &out->of[task->kind];
        to[1] = &out->attention;
        for (int t = 0; t < 1 + attends; t++) {
            to[t]->seconds += cost.seconds;
            to[t]->bytes += cost.bytes;
            to[t]->flops += cost.flops;
        }
    }
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
}

static void check_near(double got, double want) {
    if (!(fabs(got - want) <= 1e-9 * fabs(want)))
        fail_msg("%.15g, not %.15g", got, want);
}

/* All phases of all groups take what the whole calls take; copies move the rows that slabs.h tells. */
static void phases_share_the_work_of_a_section(void **state) {
    (void)state;
    struct ot_rates rates = fake_rates;
    struct ot_model_config config = tiny_config(3, false);
    struct ot_model *model;
    struct ot_costs costs;
    rates.task_seconds = 0;
    config.n_heads = config.n_kv_heads = 4;
    check_ok(ot_model_open(&config, OT_BF16, TOKENS, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_costs_estimate(chain, &rates, TOKENS, TOKENS, &costs));
    for (int keep = OT_KEEP_NONE; keep < OT_KEEP_LEVELS; keep++) {
        struct sums one, four;
        bool again = keep < OT_KEEP_ATTENTION;
        sum_up(chain, &costs, 1, (enum ot_keep_level)keep, &one);
        sum_up(chain, &costs, 4, (enum ot_keep_level)keep, &four);
        const enum ot_task_kind kinds[] = {OT_TASK_FORWARD, OT_TASK_KEYS, OT_TASK_BACKWARD};
        for (int k = 0; k < 3; k++) {
            check_near(four.of[kinds[k]].flops, one.of[kinds[k]].flops);
            check_near(four.of[kinds[k]].seconds, one.of[kinds[k]].seconds);
            assert_true(four.of[kinds[k]].flops > 0);
        }
        struct ot_block_work
            whole; /* attention of the whole row: forward's, backward's, and forward's again */
        double attention = 0;
        const enum ot_work_kind works[] = {OT_WORK_FORWARD, OT_WORK_BACKWARD, OT_WORK_RECOMPUTE};
        for (int w = 0; w < 3; w++) {
            whole = (struct ot_block_work){0};
            chain->work(chain->context, 2, works[w], (enum ot_keep_level)keep, TOKENS, TOKENS, &whole);
            attention += whole.attention_flops;
        }
        check_near(four.attention.flops, attention);
        double section = 2.0 * TOKENS / SECTIONS * (double)chain->kv_elems, keys = 2 * section,
               sums = 4 * section;
        double earlier = SECTIONS * (SECTIONS - 1) / 2;
        check_near(four.of[OT_TASK_KEYS_IN].bytes, earlier * ((2 + again) * keys + sums));
        check_near(four.of[OT_TASK_KEYS_OUT].bytes, 2 * (SECTIONS - 1) * keys + earlier * sums);
        assert_true(one.of[OT_TASK_KEYS_IN].bytes == 0);
        ot_plan_free(&one.plan);
        ot_plan_free(&four.plan);
    }
    ot_costs_free(&costs);
    ot_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(groups_come_when_sections_do_not_fit),
        cmocka_unit_test(who_has_no_groups_is_refused),
        cmocka_unit_test(schedules_have_room),
        cmocka_unit_test(the_search_keeps_groups),
        cmocka_unit_test(phases_share_the_work_of_a_section),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

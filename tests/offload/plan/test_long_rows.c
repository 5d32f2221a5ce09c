/* Long rows in sections (offload/plan/slabs.h): which sections there may be, when a plan has them, and what
 * their tasks cost. */
#include <math.h>
#include <string.h>

#include "offload/plan/build.h"
#include "offload/predict/planner_ranks.h"
#include "tests/offload/fake_chain.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { ROW = 1 << 16, ALIGN = 256 };

static void open_chain(struct fake *f) {
    fake_open_small(f, OT_BF16, false);
    f->chain.section_align = ALIGN;
}

static struct ot_plan_request request_of(const struct fake *f, int64_t row, int64_t sequences) {
    struct ot_plan_request rq = fake_request(f);
    rq.sequence_tokens = row;
    rq.step_sequences = sequences;
    rq.micro_sequences = 0;
    return rq;
}

/* ---- sizes ---- */

/* Sections are the shortest that are aligned, so that all of them have tokens. */
static void sections_cover_a_sequence(void **state) {
    (void)state;
    struct fake f;
    open_chain(&f);
    for (int64_t row = 1; row < 3000; row += 32) /* also a token more than whole sections */
        for (int sections = 1; sections < 16; sections++) {
            struct ot_plan_request rq = request_of(&f, row, 1), again = rq;
            int64_t tokens = ot_plan_section_tokens(&rq, sections);
            assert_true(tokens % ALIGN == 0 && tokens * sections >= row);
            assert_true((tokens - ALIGN) * sections < row);
            assert_int_equal(ot_plan_may_cut(&rq, sections), sections == 1 || tokens * (sections - 1) < row);
            if (!ot_plan_may_cut(&rq, sections) || sections == 1)
                continue;
            ot_plan_force_micro(&again, tokens);
            assert_int_equal(again.micro_sequences, 1);
            assert_int_equal(again.sections, sections);
        }
    struct ot_plan_request rq = request_of(&f, 100, 8);
    ot_plan_force_micro(&rq, 300);
    assert_int_equal(rq.micro_sequences, 3);
    assert_int_equal(rq.sections, 1);
    rq.sequence_tokens = 2 * OT_SECTION_LEAST_TOKENS;
    rq.micro_sequences = 0;
    assert_true(ot_plan_may_choose_sections(&rq, 2));
    assert_false(ot_plan_may_choose_sections(&rq, 4)); /* too few tokens each */
    rq.step_sequences = ot_chain_most_micro(&f.chain);
    assert_false(ot_plan_may_choose_sections(&rq, 2)); /* more micro-batches than a schedule has room for */
    rq.step_sequences /= 2;
    assert_true(ot_plan_may_choose_sections(&rq, 2));
    rq.micro_sequences = 2;
    assert_false(ot_plan_may_cut(&rq, 2)); /* a micro-batch is a section */
    rq.micro_sequences = 1;
    assert_true(ot_plan_may_cut(&rq, 2));
    f.chain.compares = true;
    assert_false(ot_plan_may_cut(&rq, 2));
    f.chain.compares = false;
    f.chain.section_align = 0;
    assert_false(ot_plan_may_cut(&rq, 2));
    assert_true(ot_plan_may_cut(&rq, 1));
}

/* ---- what a plan chooses ---- */

static int sections_of(const struct ot_plan_request *rq, size_t *gpu) {
    struct ot_plan plan;
    check_ok(ot_plan_make(rq, &plan));
    int sections = ot_plan_sections(&plan);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        assert_true(ot_ledger_total(&plan.ledger, (enum ot_tier)t) <= rq->budget_bytes[t]);
    assert_int_equal(plan.max_micro, rq->step_sequences * sections);
    assert_true(ot_plan_pass_tokens(&plan) >= rq->sequence_tokens);
    assert_int_equal(ot_plan_micro_sequences(&plan, rq->sequence_tokens), 1);
    for (int r = 0; r < ot_plan_rounds(&plan); r++) {
        struct ot_round round = ot_plan_round(&plan, r);
        assert_true(round.first % sections == 0 && round.n % sections == 0);
    }
    *gpu = ot_ledger_total(&plan.ledger, OT_TIER_GPU);
    ot_plan_free(&plan);
    return sections;
}

/* As the device shrinks, a row is whole, then in 2, 4, 8 .. sections, then refused. The refusal's cure is
 * enough. */
static void the_fewest_that_fit_are_chosen(void **state) {
    (void)state;
    struct fake f;
    open_chain(&f);
    struct ot_plan_request rq = request_of(&f, ROW, 3);
    struct ot_plan plan;
    int seen = 0, before = 1, rc = 0;
    size_t gpu;
    assert_int_equal(sections_of(&rq, &gpu), 1);
    for (rq.budget_bytes[OT_TIER_GPU] = gpu; rc == 0; rq.budget_bytes[OT_TIER_GPU] -= 4 * MIB) {
        rc = ot_plan_make(&rq, &plan);
        if (rc < 0)
            break;
        ot_plan_free(&plan);
        int sections = sections_of(&rq, &gpu);
        assert_true(sections >= before && (sections & (sections - 1)) == 0);
        if (sections > 1) { /* half as many do not fit */
            struct ot_plan_request fewer = rq;
            fewer.sections = sections / 2;
            check_fails(ot_plan_make(&fewer, &plan), OT_E_BUDGET, "gpu");
        }
        seen |= sections;
        before = sections;
    }
    assert_int_equal(rc, -OT_E_BUDGET);
    assert_true(seen & 2 && seen & 8); /* 16 sections are of the least size */
    rq.budget_bytes[OT_TIER_GPU] = plan.shortage.alone[OT_TIER_GPU];
    assert_true(rq.budget_bytes[OT_TIER_GPU] > 0);
    assert_true(sections_of(&rq, &gpu) > 1);
    rq.sections = 1;
    check_fails(ot_plan_make(&rq, &plan), OT_E_BUDGET, "gpu");
}

static void forced_sections_stay(void **state) {
    (void)state;
    struct fake f;
    struct ot_costs costs;
    open_chain(&f);
    check_ok(ot_costs_estimate(&f.chain, &fake_rates, ROW, ROW, &costs));
    for (int sections = 1; sections <= 5; sections++) {
        struct ot_plan_request rq = request_of(&f, ROW, 2);
        struct ot_planner_result result;
        rq.sections = sections;
        check_ok(ot_planner_choose(&rq, &costs, &result));
        assert_int_equal(ot_plan_sections(&result.plan), sections);
        assert_int_equal(result.forced.sections, sections);
        ot_plan_free(&result.plan);
    }
    ot_costs_free(&costs);
}

/* One row for four stages: sections fill the pipeline. Then the step takes little more than a quarter of the
 * computing of one rank. */
static void stages_cut_the_rows_that_they_have(void **state) {
    (void)state;
    enum { RANKS = 4 };
    struct fake f;
    struct ot_costs costs;
    open_chain(&f);
    check_ok(ot_costs_estimate(&f.chain, &fake_rates, ROW, ROW, &costs));
    struct ot_plan_request rq = request_of(&f, ROW, 1);
    struct ot_planner_result cut, whole, any;
    rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_FULL};
    check_ok(ot_planner_choose_shard(&rq, &costs, (struct ot_shard_open){.mode = true, .stages = true}, &any,
                                     NULL));
    rq.shard = (struct ot_shard){.ranks = RANKS, .mode = OT_SHARD_STAGES, .turn_blocks = 1};
    check_ok(ot_planner_choose(&rq, &costs, &cut));
    rq.sections = 1;
    check_ok(ot_planner_choose(&rq, &costs, &whole));
    assert_int_equal(ot_plan_sections(&whole.plan), 1);
    assert_true(ot_plan_sections(&cut.plan) >= RANKS);
    assert_true(cut.prediction.step_seconds < 0.5 * whole.prediction.step_seconds);
    /* Other divisions come first, and are faster than whole rows in these stages. */
    assert_int_equal(any.forced.shard.mode, OT_SHARD_STAGES);
    assert_int_equal(ot_shard_stages(&any.forced.shard), RANKS);
    assert_true(any.prediction.step_seconds < 1.02 * cut.prediction.step_seconds);
    ot_plan_free(&any.plan);
    ot_plan_free(&cut.plan);
    ot_plan_free(&whole.plan);
    ot_costs_free(&costs);
}

/* ---- costs ---- */

/* Seconds and FLOPs of the step's tasks of a kind in one layer, and of its first and last section. */
struct sum {
    struct ot_task_cost all, first, last;
};

static struct sum sum_of(const struct ot_chain *chain, const struct ot_costs *costs, int sections,
                         enum ot_task_kind kind) {
    struct ot_plan_request rq = {.chain = chain,
                                 .budget_bytes = {(size_t)1 << 40, (size_t)1 << 40, 0},
                                 .sequence_tokens = ROW,
                                 .step_sequences = 1,
                                 .sections = sections,
                                 .train = true,
                                 .clip = true};
    struct ot_plan plan;
    struct ot_layout layout;
    struct ot_schedule schedule;
    struct sum sum = {0};
    check_ok(ot_plan_make(&rq, &plan));
    check_ok(ot_layout_make(chain, &plan, &layout));
    check_ok(ot_schedule_make_train(chain, &plan, &layout, &schedule));
    for (int i = 0; i < schedule.n_tasks; i++) {
        const struct ot_task *task = &schedule.tasks[i];
        if (task->kind != kind || task->block != 2)
            continue;
        struct ot_task_cost cost = ot_costs_of_task(costs, chain, &plan, &layout, task);
        sum.all.seconds += cost.seconds;
        sum.all.flops += cost.flops;
        sum.first = task->micro == 0 ? cost : sum.first;
        sum.last = task->micro == sections - 1 ? cost : sum.last;
    }
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    ot_plan_free(&plan);
    return sum;
}

/* All sections together compute what the whole row does, and each its own share: of the squares of their
 * numbers. */
static void sections_share_the_work_of_a_row(void **state) {
    (void)state;
    enum { SECTIONS = 8 };
    struct ot_rates rates = fake_rates;
    struct ot_model_config config = tiny_config(3, false);
    struct ot_model *model;
    struct ot_costs costs;
    rates.task_seconds = 0;
    check_ok(ot_model_open(&config, OT_BF16, ROW, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_costs_estimate(chain, &rates, ROW, ROW, &costs));
    const enum ot_task_kind kinds[] = {OT_TASK_FORWARD, OT_TASK_BACKWARD};
    for (int i = 0; i < 2; i++) {
        struct sum whole = sum_of(chain, &costs, 1, kinds[i]),
                   cut = sum_of(chain, &costs, SECTIONS, kinds[i]);
        assert_true(fabs(cut.all.flops / whole.all.flops - 1) < 1e-3);     /* keys count from 1 in each row */
        assert_true(fabs(cut.all.seconds / whole.all.seconds - 1) < 1e-2); /* `first` is clearing */
        double per_pair = (cut.last.flops - cut.first.flops) / (2 * SECTIONS - 2);
        double products = cut.first.flops - per_pair; /* attention of section s: (2 s + 1) of these */
        assert_true(products > 0 && products < 0.1 * cut.first.flops);
        assert_true(cut.last.seconds > 5 * cut.first.seconds);
    }
    struct sum keys = sum_of(chain, &costs, SECTIONS, OT_TASK_KEYS),
               none = sum_of(chain, &costs, 1, OT_TASK_KEYS);
    int64_t qkv = (config.n_heads + 2 * config.n_kv_heads) * config.head_dim;
    assert_true(none.all.seconds == 0);
    assert_true(
        fabs(keys.all.flops / (2.0 * (double)(config.hidden * qkv) * ROW * (SECTIONS - 1) / SECTIONS) - 1) <
        1e-9);
    assert_true(keys.all.seconds > 0);
    ot_costs_free(&costs);
    ot_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sections_cover_a_sequence),
        cmocka_unit_test(the_fewest_that_fit_are_chosen),
        cmocka_unit_test(forced_sections_stay),
        cmocka_unit_test(stages_cut_the_rows_that_they_have),
        cmocka_unit_test(sections_share_the_work_of_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

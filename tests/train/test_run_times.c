/* When a run evaluates and saves, how often, and how long the answers take. */
#include "tests/support/check.h"

#include "src/train/run_shape.h"

static struct ot_run_shape shape_of(int64_t steps) {
    return (struct ot_run_shape){
        .sequences = 7, .step_sequences = 1, .steps_per_epoch = 7, .lr.steps = steps};
}

/* The counts are those of a loop that asks after each step. */
static void counts_are_those_of_the_loop(void **state) {
    (void)state;
    static const int64_t everies[] = {0, 1, 2, 3, 7, 10, 50}; /* 0: once an epoch */
    for (size_t e = 0; e < sizeof everies / sizeof *everies; e++)
        for (int64_t steps = 1; steps < 30; steps++)
            for (int64_t first = 0; first <= steps; first++) {
                const struct ot_options options = {.eval_every.steps = everies[e],
                                                   .eval_every.epoch = everies[e] == 0,
                                                   .save_every.steps = everies[e],
                                                   .save_every.epoch = everies[e] == 0};
                const struct ot_run_shape shape = shape_of(steps);
                const struct ot_run_calendar calendar = {&options, &shape, true, true};
                struct ot_run_counts counts = ot_calendar_count(&calendar, first, 1);
                int64_t evals = first == 0, saves = 0, every = everies[e] ? everies[e] : 7;
                int64_t at = ot_calendar_next_eval(&calendar, (first > 0 ? first : 1) - 1);
                for (int64_t step = first > 0 ? first : 1; step <= steps; step++) {
                    if (step == at) {
                        evals++;
                        at = ot_calendar_next_eval(&calendar, step);
                    }
                    saves += step % every == 0;
                }
                assert_int_equal(counts.evals, evals);
                assert_int_equal(counts.saves, saves);
            }
}

static void the_clock_counts_steps_alone(void **state) {
    (void)state;
    const struct ot_options options = {.eval_every.seconds = 60, .save_every.seconds = 1800};
    const struct ot_run_shape shape = shape_of(1000);
    struct ot_run_calendar calendar = {&options, &shape, true, true};
    struct ot_run_counts counts = ot_calendar_count(&calendar, 0, 6); /* 6,000 s */
    assert_int_equal(counts.evals, 1 + 100 + 1);                      /* before, every minute, at the end */
    assert_int_equal(counts.saves, 3);
    counts = ot_calendar_count(&calendar, 991, 6);
    assert_int_equal(counts.evals, 2);
    assert_int_equal(counts.saves, 0);
    assert_int_equal(ot_calendar_next_eval(&calendar, 5), 1000);
    calendar.evaluates = calendar.saves = false;
    counts = ot_calendar_count(&calendar, 0, 6);
    assert_int_equal(counts.evals + counts.saves, 0);
}

static void nothing_is_saved_if_nobody_asks(void **state) {
    (void)state;
    const struct ot_options options = {.eval_every.steps = 5};
    const struct ot_run_shape shape = shape_of(10);
    const struct ot_run_calendar calendar = {&options, &shape, true, true};
    assert_int_equal(ot_calendar_count(&calendar, 0, 1).saves, 0);
    const struct ot_run_times times = {.counts = {3, 2}, .eval = 10, .save = 5, .sample = 1, .result = 2};
    assert_true(ot_run_times_sum(&times) == 43);
}

/* The token of an answer reads the keys and values of all tokens before. On the host they cross the bus. */
static void a_cache_elsewhere_takes_time(void **state) {
    (void)state;
    enum { ROWS = 100, TOKENS = 64 };
    const struct ot_rates rates = {.product_flops = 1e12,
                                   .attention = {[OT_HEAD_128] = {1e12, 1e12}},
                                   .device_bytes = 1e12,
                                   .h2d_bytes = 1e6,
                                   .d2h_bytes = 1e6};
    struct ot_model *model;
    struct ot_costs costs;
    double pass[2], token[2];
    check_ok(ot_model_open(&ot_preset_find("tiny-test")->config, OT_F32, TOKENS, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    check_ok(ot_costs_estimate(chain, &rates, TOKENS, TOKENS, &costs));
    for (int away = 0; away < 2; away++) {
        struct ot_plan_request request = {.chain = chain,
                                          .budget_bytes = {(size_t)1 << 30, (size_t)1 << 30},
                                          .sequence_tokens = TOKENS,
                                          .step_sequences = 1,
                                          .cache_rows = ROWS,
                                          .cache = away ? OT_HOME_HOST : OT_HOME_GPU};
        struct ot_plan plan;
        check_ok(ot_plan_make(&request, &plan));
        check_ok(ot_forecast_passes(chain, &plan, &costs, &pass[away], &token[away]));
        ot_plan_free(&plan);
    }
    double bytes = 2.0 * (double)((chain->n_blocks - 2) * ROWS * chain->kv_elems) * sizeof(float);
    assert_true(pass[0] > 0 && pass[0] == pass[1]);
    assert_true(token[1] >= bytes / rates.h2d_bytes && token[1] < 1.1 * bytes / rates.h2d_bytes);
    assert_true(token[0] < token[1] / 10);
    ot_costs_free(&costs);
    ot_model_close(model);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_are_those_of_the_loop),
        cmocka_unit_test(the_clock_counts_steps_alone),
        cmocka_unit_test(nothing_is_saved_if_nobody_asks),
        cmocka_unit_test(a_cache_elsewhere_takes_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

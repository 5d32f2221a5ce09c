/* Which steps the second forecast of a run measures. (The forecast itself: test_measured.c; a run with one:
 * test_program.py.) */
#include "src/session/forecast.h"
#include "tests/support/check.h"

/* A session with a forecast and an empty trace, as if the trace had been full. */
struct fake {
    struct ot_options options;
    struct ot_chain chain;
    struct ot_session session;
};

static void open_fake(struct fake *f) {
    *f = (struct fake){.session = {.options = &f->options, .plan.forecast = {.costs = {.n_blocks = 1}}}};
    check_ok(ot_trace_open(&f->chain, 1, &f->session.trace));
}

/* Makes steps, one character each: '.' is a typical step, 'x' is not. Returns the last measured step; 0: none
 * was found. */
static int64_t measured_of(const char *steps, int64_t begun) {
    struct fake f;
    struct ot_forecast_again again;
    open_fake(&f);
    ot_forecast_again_open(&f.session, begun, &again);
    for (int64_t step = begun + 1; *steps; steps++, step++) {
        ot_forecast_again_submit(&again, step);
        ot_forecast_again_finish(&again, step, *steps == '.');
    }
    ot_trace_close(f.session.trace);
    return again.measured;
}

static void two_typical_steps_in_a_row_are_measured(void **state) {
    (void)state;
    static const struct {
        const char *steps;
        int64_t measured;
    } cases[] = {{"....", 4},      {"......", 4},      {"...", 0},        {"xx..", 4},
                 {"..x..", 5},     {".....x", 4},      {"...x.", 0},      {"", 0},
                 {"...x.x.x.", 0}, {"...x.x.x..", 10}, {"..xxxxxx..", 10}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(measured_of(cases[i].steps, 0), cases[i].measured);
        assert_int_equal(measured_of(cases[i].steps, 100), cases[i].measured ? 100 + cases[i].measured : 0);
    }
}

/* The last measured step is in the trace once its place is taken by another. If it is not, the trace was
 * full, and the first forecast stays. */
static void a_full_trace_leaves_the_first_forecast(void **state) {
    (void)state;
    struct fake f;
    struct ot_forecast_again again;
    open_fake(&f);
    ot_forecast_again_open(&f.session, 0, &again);
    assert_false(again.is_over);
    for (int64_t step = 1; step <= 9; step++) {
        ot_forecast_again_submit(&again, step);
        assert_int_equal(ot_forecast_again_make(&again, step), 0);
        assert_int_equal(again.is_over, step >= 7); /* steps 4 and 5: the third is skipped */
        ot_forecast_again_finish(&again, step, step != 3);
    }
    assert_true(f.session.plan.forecast.again.step_seconds == 0);
    ot_trace_close(f.session.trace);
}

static void without_a_forecast_there_is_no_second(void **state) {
    (void)state;
    struct fake f;
    struct ot_forecast_again again;
    open_fake(&f);
    f.session.plan.forecast.costs.n_blocks = 0;
    ot_forecast_again_open(&f.session, 0, &again);
    assert_true(again.is_over);
    ot_trace_close(f.session.trace);
    f.session.trace = NULL;
    check_ok(ot_forecast_again_trace(&f.session)); /* opens none */
    assert_null(f.session.trace);
    ot_forecast_again_submit(&again, 1); /* must do without a trace */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(two_typical_steps_in_a_row_are_measured),
        cmocka_unit_test(a_full_trace_leaves_the_first_forecast),
        cmocka_unit_test(without_a_forecast_there_is_no_second),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

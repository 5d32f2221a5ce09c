/* Times of calls on a disturbed machine, in virtual time. The test knows the true times of the calls, and
 * when other programs take the machine away. The older method of the probe runs beside it for comparison:
 * three repeats of a call in a row, of which the middle one counts. */
#include "offload/predict/rates.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/random.h"
#include "tests/support/check.h"

enum { CALLS = 6, SEEDS = 200 };
static const double TRUE_SECONDS[CALLS] = {1e-3, 2e-3, 0.5e-3, 1e-3, 4e-3, 0.2e-3};
static const double ROW_SECONDS = 0.05;

struct machine {
    double now; /* seconds */
    /* Calls take `slower` times as long while now is in the first `busy` of every `period` seconds. */
    double period, busy, slower;
    uint64_t seed, drawn;
    int percent; /* this percentage of the repeats takes between one and four times as long, at random */
    int fail_at, timed;
    double spent[CALLS];
};

static int run_calls(void *context, int call, int count, double *seconds) {
    struct machine *m = context;
    double since = m->now, factor = 1;
    if (++m->timed == m->fail_at)
        return ot_fail(OT_E_DEVICE, "it broke");
    if (m->percent > 0 && (int)ot_random_below(m->seed, OT_RANDOM_TEST, m->drawn++, 100) < m->percent)
        factor = 1 + 3 * ot_random_unit(m->seed, OT_RANDOM_TEST, m->drawn++);
    for (int i = 0; i < count; i++) {
        bool is_busy = m->period > 0 && fmod(m->now, m->period) < m->busy;
        m->now += TRUE_SECONDS[call] * factor * (is_busy ? m->slower : 1);
    }
    m->spent[call] += m->now - since;
    *seconds = (m->now - since) / count;
    return 0;
}

static void take(struct machine *m, struct ot_repeats times[CALLS]) {
    check_ok(ot_repeats_take(&(struct ot_timed_calls){CALLS, run_calls, m, ROW_SECONDS}, times));
}

static double middle(const double x[3]) {
    return fmax(fmin(x[0], x[1]), fmin(fmax(x[0], x[1]), x[2]));
}

/* The older method of the probe. */
static void take_in_a_row(struct machine *m, double times[CALLS]) {
    for (int call = 0; call < CALLS; call++) {
        double once, runs[3];
        check_ok(run_calls(m, call, 1, &once));
        check_ok(run_calls(m, call, 1, &once));
        int count = (int)fmax(1, ROW_SECONDS / 3 / once);
        for (int i = 0; i < 3; i++)
            check_ok(run_calls(m, call, count, &runs[i]));
        times[call] = middle(runs);
    }
}

static double error_of(double seconds, int call) {
    return fabs(seconds / TRUE_SECONDS[call] - 1);
}

/* ---- the figures ---- */

static void medians_and_spreads_are_those_of_the_repeats(void **state) {
    (void)state;
    struct ot_repeats r = {0};
    assert_true(ot_repeats_median(&r) == 0 && ot_repeats_spread(&r) == 0);
    ot_repeats_add(&r, 4);
    assert_true(ot_repeats_median(&r) == 4 && ot_repeats_spread(&r) == 0);
    ot_repeats_add(&r, 2);
    assert_true(ot_repeats_median(&r) == 3);
    ot_repeats_add(&r, 100);
    ot_repeats_add(&r, 3);
    ot_repeats_add(&r, 5); /* 2 3 4 5 100: the quartiles are 3 and 5 */
    assert_true(ot_repeats_median(&r) == 4 && ot_repeats_spread(&r) == 0.25);
    for (int i = 0; i < 2 * OT_REPEATS_MOST; i++)
        ot_repeats_add(&r, 4);
    assert_int_equal(r.n, OT_REPEATS_MOST);
    assert_true(ot_repeats_median(&r) == 4 && ot_repeats_spread(&r) == 0);
}

/* ---- a quiet machine ---- */

static void a_quiet_machine_costs_no_more_than_the_time_given(void **state) {
    (void)state;
    struct machine m = {0};
    struct ot_repeats times[CALLS];
    take(&m, times);
    for (int i = 0; i < CALLS; i++) {
        assert_int_equal(times[i].n, OT_REPEATS);
        /* Rounding errors of the virtual clock. */
        assert_true(error_of(ot_repeats_median(&times[i]), i) < 1e-9);
        assert_true(ot_repeats_spread(&times[i]) < 1e-9);
        assert_true(m.spent[i] <= ROW_SECONDS + 2 * TRUE_SECONDS[i] + 1e-9); /* plus two calls to warm up */
    }
}

/* ---- a busy one ---- */

/* Another program runs for 60 ms of every 250 ms: longer than all repeats of a call in a row. */
static void a_disturbance_meets_one_repeat_of_each(void **state) {
    (void)state;
    double worst = 0, worst_before = 0;
    for (double start = 0; start < 0.25; start += 0.01) {
        struct machine m = {.now = start, .period = 0.25, .busy = 0.06, .slower = 3}, before = m;
        struct ot_repeats times[CALLS];
        double old_times[CALLS];
        take(&m, times);
        take_in_a_row(&before, old_times);
        for (int i = 0; i < CALLS; i++) {
            worst = fmax(worst, error_of(ot_repeats_median(&times[i]), i));
            worst_before = fmax(worst_before, error_of(old_times[i], i));
        }
    }
    /* The disturbance may end during the middle repeat, which is then partly slow. */
    assert_true(worst < 0.05);
    assert_true(worst_before > 1.0);
}

/* All repeats of the first pass are spread over 0.3 s. If most of them are slow, the repeats differ, and more
 * are taken. */
static void repeats_that_lie_apart_are_taken_again(void **state) {
    (void)state;
    int off = 0, off_before = 0, more = 0, n = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct machine m = {.seed = seed, .percent = 25}, before = m;
        struct ot_repeats times[CALLS];
        double old_times[CALLS];
        take(&m, times);
        take_in_a_row(&before, old_times);
        for (int i = 0; i < CALLS; i++, n++) {
            off += error_of(ot_repeats_median(&times[i]), i) > 0.05;
            off_before += error_of(old_times[i], i) > 0.05;
            more += times[i].n > OT_REPEATS;
            /* Three times the time given, then two repeats of a fifth of it that take four times as long; two
             * calls to warm up. */
            assert_true(m.spent[i] <= (3 + 2 * 0.2 * 4) * ROW_SECONDS + 8 * TRUE_SECONDS[i]);
            assert_true(times[i].n >= 3 && times[i].n <= OT_REPEATS_MOST);
        }
    }
    assert_true(more > n / 10);
    /* By the binomial distribution at 25 %: two or more of three are slow in 16 % of the cases, five or more
     * of nine in 5 %. Some slow repeats are slower by less than this test counts. */
    assert_true(off_before > n / 10);
    assert_true(off < off_before / 3);
}

/* If the noise does not end, the result says so: its spread is above the limit. */
static void noise_that_does_not_end_is_told(void **state) {
    (void)state;
    int told = 0, n = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        struct machine m = {.seed = seed, .percent = 90};
        struct ot_repeats times[CALLS];
        take(&m, times);
        for (int i = 0; i < CALLS; i++, n++)
            told += ot_repeats_spread(&times[i]) > OT_REPEATS_NOISY;
    }
    assert_true(told > n * 3 / 4); /* the first few repeats are sometimes equal by chance */
}

/* ---- long calls, and failing ones ---- */

static void long_calls_are_repeated_less(void **state) {
    (void)state;
    struct machine m = {0};
    struct ot_repeats times[CALLS];
    check_ok(ot_repeats_take(&(struct ot_timed_calls){CALLS, run_calls, &m, 1e-3}, times));
    assert_int_equal(times[4].n, 3); /* 4 ms each; the time given is 1 ms */
    assert_int_equal(times[5].n, OT_REPEATS);
    assert_true(error_of(ot_repeats_median(&times[4]), 4) < 1e-9);
}

static void an_error_ends_it(void **state) {
    (void)state;
    for (int at = 1; at <= 20; at += 19) { /* a failure while warming up, and a failure while repeating */
        struct machine m = {.fail_at = at};
        struct ot_repeats times[CALLS];
        check_fails(ot_repeats_take(&(struct ot_timed_calls){CALLS, run_calls, &m, ROW_SECONDS}, times),
                    OT_E_DEVICE, "it broke");
        assert_int_equal(m.timed, at);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(medians_and_spreads_are_those_of_the_repeats),
        cmocka_unit_test(a_quiet_machine_costs_no_more_than_the_time_given),
        cmocka_unit_test(a_disturbance_meets_one_repeat_of_each),
        cmocka_unit_test(repeats_that_lie_apart_are_taken_again),
        cmocka_unit_test(noise_that_does_not_end_is_told),
        cmocka_unit_test(long_calls_are_repeated_less),
        cmocka_unit_test(an_error_ends_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

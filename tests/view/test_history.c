/* Reading a run back from its log, and curves in bounded memory. */
#include "src/view/history.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/random.h"
#include "src/view/facts.h"
#include "tests/support/check.h"

/* ---- curves ---- */

static void a_curve_keeps_every_step_while_it_has_room(void **state) {
    (void)state;
    struct ot_curve *c = calloc(1, sizeof *c);
    double x[OT_CURVE_POINTS], y[OT_CURVE_POINTS];
    for (int i = 1; i <= OT_CURVE_POINTS; i++)
        ot_curve_add(c, i, 2.0 * i);
    assert_int_equal(ot_curve_line(c, x, y), OT_CURVE_POINTS);
    for (int i = 0; i < OT_CURVE_POINTS; i++)
        assert_true(x[i] == i + 1 && y[i] == 2.0 * (i + 1) && c->points[i].n == 1);
    /* Values that are no numbers, and negative steps, change nothing. */
    ot_curve_add(c, OT_CURVE_POINTS + 1, NAN);
    ot_curve_add(c, OT_CURVE_POINTS + 2, INFINITY);
    ot_curve_add(c, -1, 1);
    assert_true(c->n == OT_CURVE_POINTS && c->step == OT_CURVE_POINTS && c->last == 2.0 * OT_CURVE_POINTS);
    ot_curve_add(c, OT_CURVE_POINTS + 1, 7);
    assert_int_equal(c->n, OT_CURVE_POINTS / 2 + 1); /* [1], [2, 3], ..., [1000, 1001] */
    assert_true(c->points[0].n == 1 && c->points[1].n == 2 && c->points[1].first == 2);
    assert_true(ot_curve_mean(&c->points[1]) == 5 && ot_curve_middle(&c->points[1]) == 2.5);
    for (int i = OT_CURVE_POINTS + 2; i < 2 * OT_CURVE_POINTS; i++)
        ot_curve_add(c, i, 7);
    assert_true(c->n == OT_CURVE_POINTS && c->stride == 2 && c->points[OT_CURVE_POINTS - 1].n == 2);
    assert_true(c->points[1].low == 4 && c->points[1].high == 6);
    free(c);
}

static void a_long_curve_keeps_its_sum_and_its_ends(void **state) {
    (void)state;
    struct ot_curve *c = calloc(1, sizeof *c);
    enum { STEPS = 123457 };
    double sum = 0, all = 0;
    for (int i = 1; i <= STEPS; i++) {
        double value = ot_random_unit(1, 2, (uint64_t)i);
        all += value;
        ot_curve_add(c, i, value);
    }
    int64_t n = 0;
    for (int i = 0; i < c->n; i++) {
        assert_true(i == 0 || c->points[i].first == c->points[i - 1].first + c->points[i - 1].n);
        assert_true(c->points[i].low <= ot_curve_mean(&c->points[i]) &&
                    ot_curve_mean(&c->points[i]) <= c->points[i].high);
        sum += c->points[i].sum;
        n += c->points[i].n;
    }
    assert_true(n == STEPS && fabs(sum - all) < 1e-6);
    assert_in_range(c->n, OT_CURVE_POINTS / 2, OT_CURVE_POINTS);
    assert_int_equal(c->stride, 128);
    /* Steps at any distance end in the same bounds. */
    for (int i = 0; i < 63; i++)
        ot_curve_add(c, INT64_MAX >> (62 - i), 1);
    assert_in_range(c->n, 1, OT_CURVE_POINTS);
    free(c);
}

static void a_step_that_is_made_again_replaces_the_later_ones(void **state) {
    (void)state;
    struct ot_curve *c = calloc(1, sizeof *c);
    for (int i = 1; i <= 10; i++)
        ot_curve_add(c, i, 1);
    ot_curve_add(c, 8, 5);
    assert_true(c->n == 8 && c->step == 8 && c->last == 5 && c->points[7].sum == 5 && c->points[6].sum == 1);
    ot_curve_add(c, 8, 6);
    assert_true(c->n == 8 && c->points[7].sum == 6 && c->points[7].n == 1);
    ot_curve_add(c, 9, 7);
    assert_true(c->n == 9 && c->points[8].first == 9);
    ot_curve_add(c, 0, 1);
    assert_true(c->n == 1 && c->points[0].first == 0);
    free(c);
}

static void a_smoothed_line_follows_with_less_noise(void **state) {
    (void)state;
    double level[50], noise[400];
    for (int i = 0; i < 50; i++)
        level[i] = 3;
    ot_curve_smooth(level, 50, 10);
    for (int i = 0; i < 50; i++)
        assert_true(fabs(level[i] - 3) < 1e-12);
    for (int i = 0; i < 400; i++)
        noise[i] = (i % 2 ? 1 : -1) + (i < 200 ? 0 : 4);
    ot_curve_smooth(noise, 400, 20);
    assert_true(fabs(noise[199]) < 0.06 && fabs(noise[399] - 4) < 0.06);
    double same[3] = {1, 5, 2};
    ot_curve_smooth(same, 3, 1);
    assert_true(same[0] == 1 && same[1] == 5 && same[2] == 2);
}

/* ---- logs ---- */

struct run {
    char *dir, path[600];
    struct ot_history *history;
};

static int open_run(void **state) {
    struct run *r = calloc(1, sizeof *r);
    r->dir = make_folder();
    snprintf(r->path, sizeof r->path, "%s/log.jsonl", r->dir);
    check_ok(ot_history_open(r->dir, false, &r->history));
    *state = r;
    return 0;
}

static int close_run(void **state) {
    struct run *r = *state;
    ot_history_close(r->history);
    remove_folder(r->dir);
    free(r);
    return 0;
}

/* mode: "w" or "a". */
static void put(const struct run *r, const char *mode, const char *text) {
    FILE *file = fopen(r->path, mode);
    assert_non_null(file);
    assert_int_equal(fwrite(text, 1, strlen(text), file), strlen(text));
    fclose(file);
}

static void read_all(const struct run *r) {
    int rc;
    while ((rc = ot_history_read(r->history, INT64_MAX)) > 0)
        ;
    check_ok(rc);
}

#define RUN                                                                                                  \
    "{\"event\": \"run\", \"time\": \"2026-01-31T00:00:00.500Z\", \"plan\": {\"steps\": 12}, \"options\": "  \
    "{\"lr\": 1}, \"sources\": {\"lr\": \"default\"}}\n"
#define STEP(n, loss)                                                                                        \
    "{\"event\": \"step\", \"time\": \"2026-01-31T00:00:" n "Z\", \"step\": " n ", \"loss\": " loss          \
    ", \"seconds\": 2, \"tokens_per_s\": 8}\n"
#define EVAL(n, loss) "{\"event\": \"eval\", \"step\": " n ", \"loss\": " loss ", \"rows\": 3}\n"

static void events_become_a_history(void **state) {
    struct run *r = *state;
    struct ot_history *h = r->history;
    read_all(r);
    assert_int_equal(ot_history_state(h), OT_RUN_WAITS);
    put(r, "w",
        RUN EVAL("0", "4") STEP("10", "3") STEP("11", "2") EVAL("11", "2.5") "{\"event\":\"new kind\"}\n");
    read_all(r);
    assert_true(h->step.step == 11 && h->step.loss == 2 && isnan(h->step.roof_share));
    assert_true(h->loss.n == 2 && h->rate.n == 2 && h->eval_loss.n == 2 && h->n_evals == 2 && h->lr.n == 0);
    assert_true(h->evals[1].step == 11 && h->evals[1].rows == 3 && isnan(h->evals[1].accuracy));
    assert_ptr_equal(ot_history_best(h), &h->evals[1]);
    assert_int_equal(ot_history_steps(h), 12);
    assert_true(h->began == 1769817600.5 && h->last_step_time == 1769817611);
    /* The run has one step left. Steps took 4 s of 10.5 s, so the step counts 10.5 / 4 times its 2 s. */
    assert_true(fabs(ot_history_left(h, h->last_step_time) - 5.25) < 1e-9);
    assert_true(fabs(ot_history_left(h, h->last_step_time + 5) - 0.25) < 1e-9);
    assert_true(ot_history_left(h, h->last_step_time + 50) == 0);
    assert_int_equal(ot_json_int(ot_json_get(ot_history_options(h), "lr"), 0), 1);
    assert_string_equal(ot_history_source(h, "lr"), "default");
    assert_null(ot_history_source(h, "clip"));
    assert_true(ot_history_number(h, OT_HISTORY_RUN, "plan.steps") == 12);
    assert_true(isnan(ot_history_number(h, OT_HISTORY_RUN, "plan.steps.more")));
    assert_true(isnan(ot_history_number(h, OT_HISTORY_DONE, "steps")));
    assert_int_equal(ot_history_state(h), OT_RUN_RUNS); /* it has just changed */
    put(r, "a", "{\"event\": \"step\", \"step\": 12, \"loss\": 2, \"seconds\": 5}\n");
    read_all(r);
    assert_true(fabs(h->mean_seconds - 3) < 1e-12 && h->step_seconds == 9 &&
                ot_fact_step_seconds(h) == h->mean_seconds);
    put(r, "a", "{\"event\":\"done\",\"measured_step_seconds\":2.5}\n");
    read_all(r);
    assert_true(ot_fact_step_seconds(h) == 2.5);
    put(r, "a", "{\"event\":\"done\",\"seconds\":1e15,\"tokens\":-1e16}\n");
    read_all(r);
    assert_true(ot_history_number(h, OT_HISTORY_DONE, "seconds") == 1e15);
    assert_true(isnan(ot_history_number(h, OT_HISTORY_DONE, "tokens")));
    assert_int_equal(h->left_out, 0);
}

static void a_line_is_read_when_it_is_whole(void **state) {
    struct run *r = *state;
    static const char line[] = STEP("12", "1.5");
    put(r, "w", RUN STEP("10", "3"));
    read_all(r);
    for (size_t i = 0; i < sizeof line - 1; i++) { /* byte by byte */
        char one[2] = {line[i]};
        assert_int_equal(r->history->step.step, 10);
        put(r, "a", one);
        read_all(r);
    }
    assert_true(r->history->step.step == 12 && r->history->step.loss == 1.5 && r->history->left_out == 0);
}

static void damaged_lines_are_left_out_and_counted(void **state) {
    struct run *r = *state;
    char *big = malloc(OT_HISTORY_LINE_BYTES + 100);
    put(r, "w",
        RUN "x\n{\"event\": 1}\n[1]\n\n\"event\"\n{\"event\": \"step\"\n" STEP("10", "null") STEP("11", "1"));
    memset(big, ' ', OT_HISTORY_LINE_BYTES + 99);
    big[OT_HISTORY_LINE_BYTES + 98] = '\n';
    big[OT_HISTORY_LINE_BYTES + 99] = '\0';
    put(r, "a", big);
    put(r, "a", STEP("12", "2"));
    read_all(r);
    assert_int_equal(r->history->left_out, 6);
    assert_true(r->history->step.step == 12 && r->history->not_finite == 1 && r->history->loss.n == 2);
    free(big);
}

static void steps_and_evaluations_that_come_again_replace_the_earlier_ones(void **state) {
    struct run *r = *state;
    struct ot_history *h = r->history;
    put(r, "w", RUN STEP("10", "3") EVAL("10", "9") STEP("11", "2") EVAL("11", "1") STEP("12", "2"));
    put(r, "a", "{\"event\": \"done\", \"interrupted\": true}\n");
    read_all(r);
    assert_int_equal(ot_history_state(h), OT_RUN_STOPPED);
    put(r, "a", RUN "{\"event\": \"resume\", \"step\": 10}\n" STEP("11", "7"));
    read_all(r);
    assert_int_equal(ot_history_state(h), OT_RUN_RUNS);
    assert_true(h->step.step == 11 && h->loss.n == 2 && h->loss.last == 7 && h->n_evals == 1 &&
                h->evals[0].loss == 9);
    assert_non_null(h->last[OT_HISTORY_RESUME]);
    put(r, "a", EVAL("11", "8") EVAL("11", "8.5") "{\"event\": \"done\", \"interrupted\": false}\n");
    read_all(r);
    assert_true(h->n_evals == 2 && h->evals[1].loss == 8.5);
    assert_int_equal(ot_history_state(h), OT_RUN_DONE);
    put(r, "a", "{\"event\": \"failed\", \"error\": \"e\"}\n");
    read_all(r);
    assert_int_equal(ot_history_state(h), OT_RUN_FAILED);
}

/* A log that is cut, also if it is as long again by the next look, and one that is another file. */
static void another_log_is_read_from_its_beginning(void **state) {
    struct run *r = *state;
    struct ot_history *h = r->history;
    put(r, "w", RUN STEP("10", "3") STEP("11", "4") STEP("12", "5"));
    read_all(r);
    put(r, "w", RUN STEP("10", "6"));
    read_all(r);
    assert_true(h->step.step == 10 && h->loss.n == 1 && h->loss.last == 6);
    put(r, "w", RUN STEP("10", "6") STEP("11", "4") STEP("12", "5"));
    read_all(r);
    assert_true(h->step.step == 12 && h->loss.n == 3);
    put(r, "w",
        RUN STEP("10", "7") STEP("11", "8") STEP("11", "9") STEP("11", "9") "{\"event\": \"done\"}\n");
    read_all(r);
    assert_true(h->step.step == 11 && h->loss.n == 2 && h->left_out == 0 && h->last[OT_HISTORY_DONE]);
    assert_true(h->loss.points[0].sum == 7);
    assert_int_equal(unlink(r->path), 0);
    read_all(r);
    assert_true(h->step.step == 0 && ot_history_state(h) == OT_RUN_WAITS && !h->last[OT_HISTORY_RUN]);
    put(r, "w", RUN STEP("11", "1"));
    read_all(r);
    assert_true(h->step.step == 11 && h->loss.n == 1);
}

static void memory_is_bounded(void **state) {
    struct run *r = *state;
    struct ot_history *h = r->history;
    FILE *file = fopen(r->path, "w");
    for (int i = 0; i < 1500; i++)
        fprintf(file,
                "{\"event\": \"eval\", \"step\": %d, \"loss\": 1}\n{\"event\": \"sample\", \"step\": %d}\n",
                i, i);
    fclose(file);
    for (int calls = 0; ot_history_read(h, 1 << 16) > 0; calls++)
        assert_true(calls < 10);
    assert_true(h->n_evals == OT_HISTORY_EVALS && h->evals[h->n_evals - 1].step == 1499 &&
                h->evals[0].step == 0);
    assert_int_equal(h->n_samples, OT_HISTORY_SAMPLES);
    assert_int_equal(ot_json_int(ot_json_get(h->samples[0], "step"), 0), 1500 - OT_HISTORY_SAMPLES);
    assert_int_equal(h->eval_loss.n, 750);
}

static void the_lock_tells_a_run_from_a_lost_one(void **state) {
    struct run *r = *state;
    struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
    put(r, "w", RUN STEP("10", "3"));
    FILE *file = fopen(r->path, "a");
    assert_int_equal(flock(fileno(file), LOCK_EX), 0);
    assert_int_equal(futimens(fileno(file), old), 0);
    read_all(r);
    assert_int_equal(ot_history_state(r->history), OT_RUN_RUNS);
    fclose(file);
    assert_int_equal(ot_history_state(r->history), OT_RUN_GONE);
    char text[OT_FACT_BYTES];
    assert_string_equal(ot_fact_state(r->history, OT_RUN_GONE, text),
                        "not running: its log ends after step 10 of 12");
    /* The reader gives the lock back. */
    file = fopen(r->path, "a");
    assert_int_equal(flock(fileno(file), LOCK_EX | LOCK_NB), 0);
    fclose(file);
}

static void memory_of_a_tier_is_the_sum_of_its_ledger(void **state) {
    struct run *r = *state;
    put(r, "w",
        "{\"event\": \"run\", \"plan\": {\"steps\": 9, \"gpu_budget_bytes\": 100, \"ledger\": "
        "[{\"tier\": \"gpu\", \"bytes\": 30}, {\"tier\": \"host\", \"bytes\": 5}, "
        "{\"tier\": \"gpu\", \"bytes\": 40}, 7]}}\n");
    read_all(r);
    struct ot_fact_memory gpu = ot_fact_memory(r->history, OT_TIER_GPU);
    assert_true(gpu.planned == 70 && gpu.budget == 100 && isnan(gpu.used));
    struct ot_fact_memory nvme = ot_fact_memory(r->history, OT_TIER_NVME);
    assert_true(isnan(nvme.planned) && isnan(nvme.budget) && isnan(nvme.used));
    assert_true(isnan(ot_history_left(r->history, 5)));
    put(r, "a", "{\"event\": \"step\", \"step\": 5, \"seconds\": 2, \"gpu_bytes\": 60, ");
    put(r, "a", "\"host_bytes\": 4}\n");
    read_all(r);
    assert_true(ot_fact_memory(r->history, OT_TIER_GPU).used == 60);
    assert_true(ot_fact_memory(r->history, OT_TIER_HOST).used == 4);
    assert_true(ot_history_left(r->history, 5) == 8); /* a log without times */
    put(r, "a", "{\"event\": \"done\", \"gpu_used_bytes\": 65, \"nvme_used_bytes\": 1}\n");
    read_all(r);
    assert_true(ot_fact_memory(r->history, OT_TIER_GPU).used == 65);
    assert_true(ot_fact_memory(r->history, OT_TIER_NVME).used == 1);
}

static void texts_of_a_log_are_cut_at_characters(void **state) {
    (void)state;
    struct ot_json *value;
    char text[8], all[OT_FACT_BYTES];
    const char *const json = "[\"ab\\u00e9\\u00e9\\u00e9\", [\"x\", 1.5, true, null, [2]], \"a\\nb\"]";
    check_ok(ot_json_parse(json, strlen(json), "test", &value));
    assert_string_equal(ot_fact_text(ot_json_at(value, 0), text, 7), "abéé");
    assert_string_equal(ot_fact_text(ot_json_at(value, 0), text, 6), "abé");
    assert_string_equal(ot_fact_text(ot_json_at(value, 0), text, 3), "ab");
    assert_string_equal(ot_fact_text(NULL, text, 3), "");
    assert_string_equal(ot_fact_value(ot_json_at(value, 1), all), "x, 1.5, yes, ");
    assert_string_equal(ot_fact_value(ot_json_at(value, 2), all), "a b");
    ot_json_free(value);
}

static void a_history_needs_a_directory(void **state) {
    struct run *r = *state;
    struct ot_history *h;
    char path[700];
    snprintf(path, sizeof path, "%s/none", r->dir);
    check_fails(ot_history_open(path, false, &h), OT_E_IO, "none: cannot read the run");
    ot_history_close(h);
    check_ok(ot_history_open(path, true, &h));
    assert_int_equal(ot_history_read(h, INT64_MAX), 0);
    assert_int_equal(ot_history_state(h), OT_RUN_WAITS);
    ot_history_close(h);
    put(r, "w", RUN);
    check_fails(ot_history_open(r->path, true, &h), OT_E_IO, "is a file; give the run's directory");
    ot_history_close(h);
}

#define LOG_TEST(name) cmocka_unit_test_setup_teardown(name, open_run, close_run)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_curve_keeps_every_step_while_it_has_room),
        cmocka_unit_test(a_long_curve_keeps_its_sum_and_its_ends),
        cmocka_unit_test(a_step_that_is_made_again_replaces_the_later_ones),
        cmocka_unit_test(a_smoothed_line_follows_with_less_noise),
        LOG_TEST(events_become_a_history),
        LOG_TEST(a_line_is_read_when_it_is_whole),
        LOG_TEST(damaged_lines_are_left_out_and_counted),
        LOG_TEST(steps_and_evaluations_that_come_again_replace_the_earlier_ones),
        LOG_TEST(another_log_is_read_from_its_beginning),
        LOG_TEST(memory_is_bounded),
        LOG_TEST(the_lock_tells_a_run_from_a_lost_one),
        LOG_TEST(memory_of_a_tier_is_the_sum_of_its_ledger),
        cmocka_unit_test(texts_of_a_log_are_cut_at_characters),
        LOG_TEST(a_history_needs_a_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

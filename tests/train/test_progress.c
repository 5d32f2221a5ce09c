/* Progress: the time left and tokens a second count all time, also that of evaluations and checkpoints. */
#include "tests/support/check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/train/progress.h"

static struct ot_step_report point_at(int64_t step) {
    return (struct ot_step_report){.step = step,
                                   .loss = 0.538,
                                   .grad_norm = 1.3,
                                   .lr = 9.5e-6,
                                   .tokens = 3000,
                                   .gpu_bytes = 64 << 20,
                                   .host_bytes = 3 << 20};
}

static const struct ot_run_counts none = {0, 0};

static void lines_have_the_time_left_first(void **state) {
    (void)state;
    struct ot_progress p;
    char line[OT_PROGRESS_LINE_BYTES];
    ot_progress_open(&p, 264, (struct ot_every){.steps = 10}, false, NULL);
    ot_progress_start(&p, 3);
    struct ot_step_report point = point_at(44);
    ot_progress_add(&p, &point, 5);
    assert_true(ot_progress_seconds_left(&p, 44, none) == 440);
    ot_progress_line(&p, &point, none, line);
    assert_string_equal(line,
                        "step  44/264 ETA 7m20s loss 0.5380 |g| 1.3 lr 9.50e-06 1,500 tok/s gpu 64.0 MiB "
                        "host 3.0 MiB");
    ot_progress_bar(&p, &point, none, line);
    assert_string_equal(
        line, "[###.................] 44/264 ETA 7m20s loss 0.5380 1,500 tok/s |g| 1.3 lr 9.50e-06");
    /* Memory that the last line had is not told again. */
    p.told_gpu_bytes = point.gpu_bytes;
    p.told_host_bytes = point.host_bytes;
    ot_progress_line(&p, &point, none, line);
    assert_string_equal(line, "step  44/264 ETA 7m20s loss 0.5380 |g| 1.3 lr 9.50e-06 1,500 tok/s");
    point.host_bytes++;
    ot_progress_line(&p, &point, none, line);
    assert_non_null(strstr(line, " tok/s gpu 64.0 MiB host 3.0 MiB"));
    point.roof_share = 0.6249;
    ot_progress_line(&p, &point, none, line);
    assert_non_null(strstr(line, " tok/s roof 62 % gpu 64.0 MiB"));
    ot_progress_bar(&p, &point, none, line);
    assert_non_null(strstr(line, " tok/s roof 62 % |g| 1.3"));
    point.skipped = OT_SKIP_OVERFLOW;
    ot_progress_line(&p, &point, none, line);
    assert_memory_equal(line, "step  44/264 ETA 7m20s skipped: gradient too large for fp16", 59);
    point = point_at(264);
    ot_progress_line(&p, &point, none, line);
    assert_null(strstr(line, "ETA"));
    ot_progress_bar(&p, &point, none, line);
    assert_memory_equal(line, "[####################]", 22);
    /* One slow step moves the estimate by a twentieth of the difference. */
    ot_progress_add(&p, &point, 27);
    assert_true(fabs(ot_progress_seconds_left(&p, 263, none) - 3) < 1e-9);
}

/* Ten steps of 0.5 s, with an evaluation of 2 s before the first and after each. */
static void evaluations_count(void **state) {
    (void)state;
    const struct ot_run_times expected = {.eval = 1, .save = 3, .sample = 0.25, .result = 0.5};
    struct ot_progress p;
    char line[OT_PROGRESS_LINE_BYTES];
    double now = 100;
    ot_progress_open(&p, 10, (struct ot_every){.steps = 1}, false, &expected);
    ot_progress_pause(&p, OT_PAUSE_EVAL, 2); /* before step 1: known, and no part of the first step */
    ot_progress_start(&p, now);
    for (int64_t step = 1; step <= 10; step++) {
        struct ot_step_report point = point_at(step);
        now += 0.5;
        ot_progress_add(&p, &point, now);
        struct ot_run_counts left = {11 - step, 0};
        double want = (double)(10 - step) * 0.5 + (double)(11 - step) * 2 + 0.75;
        assert_true(fabs(ot_progress_seconds_left(&p, step, left) - want) < 1e-9);
        /* A checkpoint counts as predicted until the run has made one. */
        left.saves = 2;
        assert_true(fabs(ot_progress_seconds_left(&p, step, left) - want - 6) < 1e-9);
        now += 2;
        ot_progress_pause(&p, OT_PAUSE_EVAL, 2);
    }
    /* 3,000 tokens take 2.5 s, not 0.5 s; the first of them waited for no evaluation. */
    struct ot_step_report last = point_at(10);
    ot_progress_line(&p, &last, none, line);
    double rate;
    assert_int_equal(sscanf(strstr(line, "lr "), "lr %*s 1,%lf tok/s", &rate), 1);
    assert_true(rate > 200 && rate < 400);
    assert_true(fabs(ot_progress_paused(&p) - 22) < 1e-9);
}

static int count_lines(struct ot_progress *p, int64_t steps, struct ot_every every, bool terminal,
                       double from) {
    int lines = 0;
    ot_progress_open(p, steps, every, terminal, NULL);
    ot_progress_start(p, from);
    for (int64_t step = 1; step <= steps; step++) {
        struct ot_step_report point = point_at(step);
        lines += ot_progress_add(p, &point, from + (double)step);
    }
    return lines;
}

static void lines_come_at_intervals(void **state) {
    (void)state;
    struct ot_progress p;
    assert_int_equal(count_lines(&p, 25, (struct ot_every){.steps = 10}, false, 0), 4); /* 1, 10, 20, 25 */
    assert_int_equal(count_lines(&p, 100, (struct ot_every){.seconds = 10}, false, 1000),
                     11); /* 1, 11, ..., 91, 100 */
    /* The bar of a terminal is not a line of the history. */
    assert_int_equal(count_lines(&p, 25, (struct ot_every){.steps = 10}, true, 0), 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lines_have_the_time_left_first),
        cmocka_unit_test(evaluations_count),
        cmocka_unit_test(lines_come_at_intervals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Output for people and programs: numbers, forecasts and summaries in words, the log, sampled tokens. */
#include "tests/support/check.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "src/base/units.h"
#include "src/report/forecast.h"
#include "src/report/report.h"
#include "src/train/answers.h"
#include "src/train/generator.h"
#include "src/train/run_log.h"

static void numbers_as_people_read_them(void **state) {
    (void)state;
    char t[OT_TEXT_BYTES];
    assert_string_equal(ot_text_count(0, t), "0");
    assert_string_equal(ot_text_count(999, t), "999");
    assert_string_equal(ot_text_count(78577, t), "78,577");
    assert_string_equal(ot_text_count(-1234567, t), "-1,234,567");
    assert_string_equal(ot_text_count(INT64_MIN, t), "-9,223,372,036,854,775,808");
    assert_string_equal(ot_text_short(656, t), "656");
    assert_string_equal(ot_text_short(656128, t), "656 K");
    assert_string_equal(ot_text_short(6738415616, t), "6.74 B");
    assert_string_equal(ot_text_short(13015864320, t), "13.0 B");
    assert_string_equal(ot_text_short(999999, t), "1.00 M");
    assert_string_equal(ot_text_bytes(512, t), "512 B");
    assert_string_equal(ot_text_bytes(64 << 20, t), "64.0 MiB");
    assert_string_equal(ot_text_bytes((int64_t)1 << 30, t), "1.0 GiB");
    assert_string_equal(ot_text_bytes(INT64_MAX, t), "8192.0 PiB");
    assert_string_equal(ot_text_duration(0.42, t), "0.4s");
    assert_string_equal(ot_text_duration(42, t), "42s");
    assert_string_equal(ot_text_duration(59.7, t), "1m00s");
    assert_string_equal(ot_text_duration(189, t), "3m09s");
    assert_string_equal(ot_text_duration(11580, t), "3h13m");
    assert_string_equal(ot_text_duration(187200, t), "2d04h");
    assert_string_equal(ot_text_duration(NAN, t), "?");
    assert_string_equal(ot_text_duration(-1, t), "?");
}

static void seconds_have_three_digits(void **state) {
    (void)state;
    static const struct {
        double seconds;
        const char *text;
    } cases[] = {{0, "0.00 us"},
                 {83.44e-6, "83.4 us"},
                 {999.4e-6, "999 us"},
                 {999.6e-6, "1.00 ms"},
                 {0.012345, "12.3 ms"},
                 {0.9994, "999 ms"},
                 {1.2449, "1.24 s"},
                 {9.996, "10.0 s"},
                 {128.4, "128 s"},
                 {86400, "86400 s"},
                 {-1, "?"},
                 {NAN, "?"}};
    char text[OT_TEXT_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_string_equal(ot_text_seconds(cases[i].seconds, text), cases[i].text);
}

static void a_forecast_is_told(void **state) {
    (void)state;
    char line[OT_FORECAST_LINE_BYTES], lines[OT_LANE_TABLE_LINES][OT_FORECAST_LINE_BYTES];
    struct ot_prediction p = {.step_seconds = 2, .tokens = 65536, .exposed_host = 0.1};
    p.busy[OT_LANE_COMPUTE] = 1.5;
    p.busy[OT_LANE_H2D] = p.exposed[OT_LANE_H2D] = 0.4;
    const struct ot_run_times nothing = {0};
    assert_string_equal(ot_report_prediction(&p, 0, 300, &nothing, line),
                        "2.00 s a step, 32,768 tok/s · 300 steps in 10m00s");
    assert_string_equal(ot_report_prediction(&p, 0, 1, &nothing, line),
                        "2.00 s a step, 32,768 tok/s · 1 step in 2.0s");
    assert_string_equal(ot_report_prediction(&p, 270, 300, &nothing, line),
                        "2.00 s a step, 32,768 tok/s · remaining 30 steps in 1m00s · all 300 steps in "
                        "10m00s");
    struct ot_lane_times times[] = {{"predicted", 2, p.busy, p.exposed, p.exposed_host},
                                    {"measured", 4, p.busy, p.exposed, p.exposed_host}};
    assert_int_equal(ot_report_lanes(times, 2, lines), 5);
    assert_null(strstr(lines[0], "nvme")); /* nothing ran on that lane */
    assert_string_equal(lines[1], "busy       predicted     20.0 %     75.0 %");
    assert_string_equal(lines[2], "busy       measured      10.0 %     37.5 %");
    assert_string_equal(lines[3], "stalled on predicted     20.0 %      0.0 %      5.0 %");
    assert_string_equal(lines[4], "stalled on measured      10.0 %      0.0 %      2.5 %");
    assert_int_equal(strlen(lines[0]), strlen(lines[3]));
}

/* 10 steps in 4.6 s that take half a minute, because an evaluation follows each. */
static void what_comes_besides_steps_is_told(void **state) {
    (void)state;
    char line[OT_FORECAST_LINE_BYTES], spent[OT_TABLE_LINE_BYTES];
    struct ot_prediction p = {.step_seconds = 0.46, .tokens = 1024};
    struct ot_run_times times = {.counts = {11, 0}, .eval = 2.3, .sample = 0.5, .result = 0.01};
    assert_string_equal(
        ot_report_prediction(&p, 0, 10, &times, line),
        "460 ms a step, 2,226 tok/s · 10 steps in 4.6s · in all 30s, 336 tok/s: 11 evaluations of "
        "2.3s, sample 0.5s");
    times = (struct ot_run_times){.counts = {1, 4}, .eval = 0.001, .save = 2, .result = 1};
    assert_string_equal(ot_report_prediction(&p, 0, 10, &times, line),
                        "460 ms a step, 2,226 tok/s · 10 steps in 4.6s · in all 14s, 752 tok/s: saving 9.0s");
    assert_string_equal(
        ot_report_prediction(&p, 5, 10, &times, line),
        "460 ms a step, 2,226 tok/s · remaining 5 steps in 2.3s · all 10 steps in 4.6s · in all "
        "11s, 453 tok/s: saving 9.0s");
    times.save = times.result = 0; /* a thousandth of a run is no news */
    assert_null(strstr(ot_report_prediction(&p, 0, 10, &times, line), "in all"));
    struct ot_outcome outcome = {.steps = 10,
                                 .evals = 11,
                                 .step_seconds = 4.6,
                                 .eval_seconds = 25.3,
                                 .save_seconds = 1,
                                 .result_seconds = 0.5,
                                 .sample_seconds = 0.4,
                                 .whole_seconds = 32.1};
    assert_string_equal(
        ot_report_spent(&outcome, spent),
        "32s = 10 steps 4.6s + 11 evaluations 25s + saving 1.5s + sample 0.4s + other work 0.3s");
    outcome = (struct ot_outcome){.steps = 8, .first_step = 7, .step_seconds = 2, .whole_seconds = 2.01};
    assert_string_equal(ot_report_spent(&outcome, spent), "2.0s = 1 step 2.0s");
}

static void a_second_prediction_is_told_if_it_differs(void **state) {
    (void)state;
    char line[OT_FORECAST_LINE_BYTES];
    struct ot_prediction first = {.step_seconds = 2}, second = first;
    first.busy[OT_LANE_COMPUTE] = second.busy[OT_LANE_COMPUTE] = 1.5;
    first.busy[OT_LANE_NVME_READ] = second.busy[OT_LANE_NVME_READ] = 1;
    second.step_seconds = 2.19; /* within a tenth */
    assert_false(ot_report_again(&first, &second, 3, 4, line));
    assert_string_equal(line, "");
    second.step_seconds = 1.81;
    assert_false(ot_report_again(&first, &second, 3, 4, line));
    second.step_seconds = 3;
    assert_true(ot_report_again(&first, &second, 3, 4, line));
    assert_string_equal(line, "3.00 s a step, not 2.00 s: predicted again from steps 3 and 4");
    second.busy[OT_LANE_COMPUTE] = 1.55; /* too little to matter */
    second.busy[OT_LANE_NVME_READ] = 2.5;
    assert_true(ot_report_again(&first, &second, 13, 14, line));
    assert_string_equal(line,
                        "3.00 s a step, not 2.00 s: predicted again from steps 13 and 14 (nvme_read takes "
                        "2.5x of the predicted time)");
    second.step_seconds = 1.5;
    second.busy[OT_LANE_COMPUTE] = 0.75;
    assert_true(ot_report_again(&first, &second, 3, 4, line));
    assert_string_equal(line,
                        "1.50 s a step, not 2.00 s: predicted again from steps 3 and 4 (compute takes 0.5x, "
                        "nvme_read 2.5x of the predicted time)");
    for (int l = 0; l < OT_LANE_COUNT; l++) { /* the longest line is not cut */
        first.busy[l] = 1e-30;
        second.busy[l] = 1e30;
    }
    assert_true(ot_report_again(&first, &second, INT64_MAX - 1, INT64_MAX, line));
    assert_non_null(strstr(line, "nvme_write 9999.0x of the predicted time)"));
}

static void an_explanation_is_told(void **state) {
    (void)state;
    char lines[OT_EXPLANATION_LINES][OT_FORECAST_LINE_BYTES];
    struct ot_explanation e = {.bound = OT_LANE_COMPUTE,
                               .bound_share = 0.9,
                               .second = OT_LANE_COMPUTE,
                               .ifs = {{"1 GiB more gpu memory", 1.6, 625, 0.25, false},
                                       {"twice the tokens, half the steps", 4, 500, 0, true}},
                               .n_ifs = 2};
    assert_int_equal(ot_report_explanation(&e, 3051, 1526, lines), 3);
    assert_string_equal(lines[0], "computing, 90.0 % of the step");
    assert_string_equal(lines[1],
                        "1 GiB more gpu memory                1.60 s a step          625 tok/s    +25 %");
    assert_string_equal(lines[2],
                        "twice the tokens, half the steps     4.00 s a step          500 tok/s  no gain"
                        " · 1,526 steps instead of 3,051");
    ot_report_explanation(&e, 0, 0, lines); /* the run's length is not known */
    assert_string_equal(lines[2],
                        "twice the tokens, half the steps     4.00 s a step          500 tok/s  no gain");
    e.second = OT_LANE_H2D; /* the second limit is named */
    e.second_share = 0.07;
    ot_report_explanation(&e, 3051, 1526, lines);
    assert_string_equal(lines[0], "computing, 90.0 % of the step; next h2d, compute stalls on it for 7.0 %");
    e.bound = e.second = OT_LANE_NVME_READ;
    e.n_ifs = 0;
    assert_int_equal(ot_report_explanation(&e, 3051, 1526, lines), 1);
    assert_string_equal(lines[0], "nvme_read, compute stalls on it for 90.0 % of the step");
}

static void the_choice_of_a_step_is_told(void **state) {
    (void)state;
    char line[OT_FORECAST_LINE_BYTES];
    struct ot_step_choice c = {.n = 3,
                               .chosen = 1,
                               .candidates = {{4, 8192, 12204, 5.7, 1428.9},
                                              {16, 32768, 3051, 11.2, 2913.2},
                                              {64, 131072, 763, 44.4, 2950.4}}};
    assert_string_equal(
        ot_report_choice(&c, line),
        "32,768 a step, chosen from 8,192 to 131,072: 2,913 tok/s predicted, 1,428 with 8,192, "
        "2,950 with 131,072 · 3,051 steps instead of 12,204");
    c.candidates[2].tokens_per_second = 0;
    c.chosen = 0;
    assert_string_equal(
        ot_report_choice(&c, line),
        "8,192 a step, chosen from 8,192 to 131,072: 1,428 tok/s predicted, 131,072 does not fit");
    c.n = 1;
    assert_string_equal(ot_report_choice(&c, line),
                        "8,192 a step, chosen from 8,192 to 8,192: 1,428 tok/s predicted");
}

static struct ot_json *read_line(FILE *file) {
    char line[2048];
    struct ot_json *json = NULL;
    assert_non_null(fgets(line, sizeof line, file));
    check_ok(ot_json_parse(line, strlen(line), "log", &json));
    return json;
}

static void the_log_has_its_fields(void **state) {
    (void)state;
    char *folder = make_folder(), path[600];
    struct ot_run_log *log;
    check_ok(ot_run_log_open(false, &log));
    ot_json_put_int(ot_run_log_begin(log, "run"), "answer", 42);
    check_ok(ot_run_log_end(log));
    check_ok(ot_run_log_start_file(log, folder, 0));
    struct ot_step_report step = {.step = 3,
                                  .tokens = 100,
                                  .trained_tokens = 40,
                                  .epoch = 0.5,
                                  .loss = 1.25,
                                  .grad_norm = 2,
                                  .clipped_norm = 1,
                                  .lr = 1e-5,
                                  .seconds = 0.5,
                                  .gpu_bytes = 7,
                                  .host_bytes = 8};
    check_ok(ot_run_log_step(log, &step));
    step.loss = NAN;
    step.skipped = OT_SKIP_GRADIENT;
    check_ok(ot_run_log_step(log, &step));
    struct ot_eval_report eval = {.step = 3, .loss = 0, .trained_tokens = 9, .rows = 2, .seconds = 1};
    check_ok(ot_run_log_eval(log, &eval));
    const struct ot_answer_score answers = {
        .rows = 4, .exact = 1, .normalised = 2, .executes = true, .unjudged = 1, .kinds = {{3, 3, 2}}};
    eval.answers = &answers;
    check_ok(ot_run_log_eval(log, &eval));
    ot_run_log_close(log);
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    struct ot_json *json = read_line(file);
    assert_string_equal(ot_json_string(ot_json_get(json, "event"), NULL), "run");
    assert_int_equal(ot_json_int(ot_json_get(json, "answer"), 0), 42);
    ot_json_free(json);
    json = read_line(file);
    static const char *const fields[] = {
        "event",  "step",           "epoch",        "loss",    "grad_norm", "clipped_norm", "lr",
        "tokens", "trained_tokens", "tokens_per_s", "seconds", "gpu_bytes", "host_bytes"};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!ot_json_get(json, fields[i]))
            fail_msg("a step's record has no %s", fields[i]);
    assert_true(ot_json_real(ot_json_get(json, "tokens_per_s"), 0) == 200);
    assert_null(ot_json_get(json, "skipped"));
    ot_json_free(json);
    json = read_line(file);
    assert_int_equal(ot_json_type(ot_json_get(json, "loss")), OT_JSON_NULL); /* JSON has no NaN */
    assert_string_equal(ot_json_string(ot_json_get(json, "skipped"), NULL), "gradient");
    ot_json_free(json);
    json = read_line(file);
    assert_true(ot_json_real(ot_json_get(json, "perplexity"), 0) == 1);
    assert_int_equal(ot_json_int(ot_json_get(json, "rows"), 0), 2);
    assert_null(ot_json_get(json, "answered"));
    ot_json_free(json);
    json = read_line(file);
    assert_true(ot_json_int(ot_json_get(json, "answered"), 0) == 4);
    assert_true(ot_json_real(ot_json_get(json, "exact_match"), 0) == 0.25);
    assert_true(ot_json_real(ot_json_get(json, "normalised_match"), 0) == 0.5);
    assert_true(fabs(ot_json_real(ot_json_get(json, "equal_results"), 0) - 2.0 / 3) < 1e-6);
    assert_true(ot_json_real(ot_json_get(json, "valid_sql"), 0) == 1);
    assert_int_equal(ot_json_int(ot_json_get(json, "not_judged"), 0), 1);
    ot_json_free(json);
    fclose(file);
    remove_folder(folder);
}

static void remove_times(char *text) {
    static const char key[] = ", \"time\": \"", example[] = ", \"time\": \"2026-01-31T23:59:59.125Z\"";
    for (char *at; (at = strstr(text, key));)
        memmove(at, at + sizeof example - 1, strlen(at + sizeof example - 1) + 1);
}

/* Opens the log in the folder again, as a run that resumes after step 2, and compares the file's content. */
static void expect_log(const char *folder, int64_t keep_bytes, const char *expected) {
    struct ot_run_log *log;
    char path[600], text[600];
    check_ok(ot_run_log_open(false, &log));
    ot_run_log_begin(log, "run");
    check_ok(ot_run_log_end(log));
    check_ok(ot_run_log_start_file(log, folder, keep_bytes));
    check_ok(ot_run_log_resume(log, 2, "c", 512, 0.25, NULL));
    int64_t bytes = ot_run_log_bytes(log);
    ot_run_log_close(log);
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_int_equal(bytes, strlen(text));
    remove_times(text);
    assert_string_equal(text, expected);
}

#define ONE   "{\"step\": 1}\n"
#define TWO   "{\"step\": 2}\n"
#define THREE "{\"step\": 3}\n"
#define AGAIN                                                                                                \
    "{\"event\": \"run\"}\n"                                                                                 \
    "{\"event\": \"resume\", \"step\": 2, \"checkpoint\": \"c\", \"read_bytes\": 512, \"read_seconds\": "    \
    "0.25}\n"

static void a_resumed_run_goes_on_with_its_log(void **state) {
    (void)state;
    static const char log[] = ONE TWO THREE "{\"st";
    const int64_t line = sizeof ONE - 1;
    char *folder = make_folder();
    const struct {
        int64_t keep;
        const char *expected;
    } cases[] = {
        {2 * line, ONE TWO AGAIN},
        {0, AGAIN},
        {line - 1, AGAIN},             /* no complete line */
        {2 * line + 5, ONE TWO AGAIN}, /* in the middle of a line */
        /* The file is shorter: it lost its end. */
        {1000, ONE TWO THREE AGAIN},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_file(folder, "log.jsonl", log, sizeof log - 1);
        expect_log(folder, cases[i].keep, cases[i].expected);
    }
    char *long_line = malloc(10000);
    assert_non_null(long_line);
    memset(long_line, 'x', 10000);
    long_line[9] = '\n'; /* the file's only line end; the search for it takes several pieces */
    write_file(folder, "log.jsonl", long_line, 10000);
    expect_log(folder, 10000, "xxxxxxxxx\n" AGAIN);
    free(long_line);
    remove_folder(folder);
    folder = make_folder();
    expect_log(folder, 100, AGAIN); /* the file does not exist */
    remove_folder(folder);
}

static void a_log_that_cannot_be_written_says_so(void **state) {
    (void)state;
    struct ot_run_log *log;
    check_ok(ot_run_log_open(false, &log));
    check_fails(ot_run_log_start_file(log, "/nowhere/at/all", 0), OT_E_IO, "/nowhere/at/all/log.jsonl");
    ot_run_log_close(log);
    char *folder = make_folder(), path[600];
    check_ok(ot_run_log_open(false, &log));
    check_ok(ot_run_log_start_file(log, folder, 0));
    struct ot_step_report step = {.step = 1};
    struct rlimit limit, none;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
    none = (struct rlimit){0, limit.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &none), 0);
    int rc = ot_run_log_step(log, &step);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    signal(SIGXFSZ, SIG_DFL);
    check_fails(rc, OT_E_IO, "log.jsonl: cannot write the log");
    ot_run_log_close(log);

    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(symlink("/dev/null", path), 0); /* a link out of the output */
    check_ok(ot_run_log_open(false, &log));
    check_fails(ot_run_log_start_file(log, folder, 0), OT_E_INPUT, "log.jsonl is a symbolic link");
    ot_run_log_close(log);
    remove_folder(folder);
}

static void the_sampler_is_exact(void **state) {
    (void)state;
    struct ot_sampler *sampler;
    int32_t id;
    const float logits[5] = {1, 3, 3, -2, 0};
    check_ok(ot_sampler_open(5, &sampler));
    check_ok(ot_sampler_pick(sampler, logits, 0, 1, 0.99, &id));
    assert_int_equal(id, 1); /* the first of two equal ones */
    /* Weights 1, 1, e^-2, e^-3, e^-5: the borders of the cumulative sums, beginning with the likeliest. */
    double sum = 2 + exp(-2) + exp(-3) + exp(-5);
    const struct {
        double unit, top_p;
        int32_t id;
    } draws[] = {{0, 1, 1},
                 {1 / sum - 1e-9, 1, 1},
                 {1 / sum + 1e-9, 1, 2},
                 {2 / sum + 1e-9, 1, 0},
                 {(2 + exp(-2)) / sum + 1e-9, 1, 4},
                 {1 - 1e-12, 1, 3},
                 {1 - 1e-12, 1e-6, 1},            /* at least one token */
                 {1 - 1e-12, 2 / sum - 1e-6, 2}}; /* two tokens reach the sum */
    for (size_t i = 0; i < sizeof draws / sizeof *draws; i++) {
        check_ok(ot_sampler_pick(sampler, logits, 1, draws[i].top_p, draws[i].unit, &id));
        assert_int_equal(id, draws[i].id);
    }
    /* A low temperature leaves only the two likeliest. */
    check_ok(ot_sampler_pick(sampler, logits, 0.01, 1, 0.499, &id));
    assert_int_equal(id, 1);
    const float broken[5] = {0, NAN, 0, 0, 0};
    check_fails(ot_sampler_pick(sampler, broken, 0, 1, 0, &id), OT_E_NUMERIC, "not a number");
    ot_sampler_close(sampler);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_as_people_read_them),
        cmocka_unit_test(seconds_have_three_digits),
        cmocka_unit_test(a_forecast_is_told),
        cmocka_unit_test(what_comes_besides_steps_is_told),
        cmocka_unit_test(a_second_prediction_is_told_if_it_differs),
        cmocka_unit_test(an_explanation_is_told),
        cmocka_unit_test(the_choice_of_a_step_is_told),
        cmocka_unit_test(the_log_has_its_fields),
        cmocka_unit_test(a_resumed_run_goes_on_with_its_log),
        cmocka_unit_test(a_log_that_cannot_be_written_says_so),
        cmocka_unit_test(the_sampler_is_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

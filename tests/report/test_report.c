/* Output for people and programs: numbers, progress, the memory table and its sums, the log, sampled
 * tokens. */
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
#include "src/run/run_log.h"
#include "src/run/sampler.h"
#include "src/train/progress.h"

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

static struct ot_step_record point_at(int64_t step) {
    return (struct ot_step_record){.step = step,
                                   .loss = 0.538,
                                   .grad_norm = 1.3,
                                   .lr = 9.5e-6,
                                   .seconds = 2,
                                   .tokens = 3000,
                                   .gpu_bytes = 64 << 20,
                                   .host_bytes = 3 << 20};
}

static void progress_estimates_and_formats(void **state) {
    (void)state;
    struct ot_progress p;
    char line[OT_PROGRESS_LINE_BYTES];
    ot_progress_open(&p, 264, (struct ot_every){.steps = 10}, false);
    struct ot_step_record point = point_at(44);
    ot_progress_add(&p, &point, 5);
    assert_true(ot_progress_seconds_left(&p, 44) == 440);
    ot_progress_line(&p, &point, line);
    assert_string_equal(
        line, "step  44/264 loss 0.5380 |g| 1.3 lr 9.50e-06 1,500 tok/s gpu 64.0 MiB host 3.0 MiB ETA "
              "7m20s");
    ot_progress_bar(&p, &point, line);
    assert_memory_equal(line, "[###.................] 44/264 ETA 7m20s loss 0.5380 1,500 tok/s", 62);
    point.skipped = OT_SKIP_OVERFLOW;
    ot_progress_line(&p, &point, line);
    assert_non_null(strstr(line, "skipped: gradient too large for fp16"));
    point = point_at(264);
    ot_progress_line(&p, &point, line);
    assert_null(strstr(line, "ETA"));
    ot_progress_bar(&p, &point, line);
    assert_memory_equal(line, "[####################]", 22);
    /* One slow step moves the estimate by a twentieth of the difference. */
    point.seconds = 22;
    ot_progress_add(&p, &point, 6);
    assert_true(fabs(ot_progress_seconds_left(&p, 263) - 3) < 1e-9);
}

static void lines_come_at_intervals(void **state) {
    (void)state;
    struct ot_progress p;
    int lines = 0;
    ot_progress_open(&p, 25, (struct ot_every){.steps = 10}, false);
    for (int64_t step = 1; step <= 25; step++) {
        struct ot_step_record point = point_at(step);
        lines += ot_progress_add(&p, &point, (double)step);
    }
    assert_int_equal(lines, 4); /* at steps 1, 10, 20, 25 */
    ot_progress_open(&p, 100, (struct ot_every){.seconds = 10}, false);
    lines = 0;
    for (int64_t step = 1; step <= 100; step++) {
        struct ot_step_record point = point_at(step);
        lines += ot_progress_add(&p, &point, 1000 + (double)step);
    }
    assert_int_equal(lines, 11); /* at steps 1, 11, ..., 91, 100 */
    /* The bar of a terminal is not a line of the history. */
    ot_progress_open(&p, 25, (struct ot_every){.steps = 10}, true);
    lines = 0;
    for (int64_t step = 1; step <= 25; step++) {
        struct ot_step_record point = point_at(step);
        lines += ot_progress_add(&p, &point, (double)step);
    }
    assert_int_equal(lines, 4);
}

/* Reads the number of a column. The cells are 12 wide, with a space between them. */
static double number_in(const char *line, int column, int columns) {
    char cell[13] = "";
    memcpy(cell, line + strlen(line) - (size_t)(13 * (columns - column) - 1), 12);
    return strtod(cell, NULL);
}

static void check_table(const struct ot_ledger *ledger, const size_t budget[OT_TIER_COUNT], int columns,
                        double unit, char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES]) {
    int n = ot_report_table(ledger, budget, true, lines);
    assert_int_equal(n, 8); /* header, five names, total, budget */
    for (int column = 0; column < columns; column++) {
        double sum = 0, exact = (double)ot_ledger_total(ledger, (enum ot_tier)column) / unit;
        for (int i = 1; i < n - 2; i++)
            sum += number_in(lines[i], column, columns);
        assert_true(fabs(sum - number_in(lines[n - 2], column, columns)) < 0.01);
        assert_true(fabs(number_in(lines[n - 2], column, columns) - exact) <= 0.0501);
        assert_true(fabs(number_in(lines[n - 1], column, columns) - (double)budget[column] / unit) <= 0.0501);
    }
    for (int i = 1; i < n; i++)
        assert_int_equal(strlen(lines[i]), strlen(lines[0]));
}

static void the_table_adds_up(void **state) {
    (void)state;
    struct ot_ledger two = {0}, three = {0};
    static const char *const names[] = {"weights",     "gradients", "weights", "state",
                                        "activations", "staging",   "nothing"};
    for (int i = 0; i < 7; i++) {
        size_t bytes = i == 6 ? 0 : 1234567u * (unsigned)(i + 1);
        two.entries[two.n++] = (struct ot_ledger_entry){i % 2 ? OT_TIER_HOST : OT_TIER_GPU, names[i], bytes};
        three.entries[three.n++] = (struct ot_ledger_entry){(enum ot_tier)(i % 3), names[i], 1000 * bytes};
    }
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES];
    check_table(&two, (const size_t[]){64 << 20, 128 << 20, 0}, 2, 0x1p20, lines);
    assert_null(strstr(lines[0], "nvme"));
    assert_non_null(strstr(lines[0], "MiB"));
    assert_non_null(strstr(lines[7], "128.0"));
    assert_non_null(strstr(lines[1], "weights"));
    check_table(&two, (const size_t[]){64 << 20, 128 << 20, 256 << 20}, 3, 0x1p20, lines);
    assert_non_null(strstr(lines[0], "nvme")); /* a tier with a budget is shown, even if it is not used */
    /* Only the tier on disk needs the larger unit. */
    three.entries[5].bytes = (size_t)20 << 30;
    check_table(&three, (const size_t[]){16ull << 30, 32ull << 30, 512ull << 30}, 3, 0x1p30, lines);
    assert_non_null(strstr(lines[0], "GiB"));
}

/* Without --explain the table has five rows, for any names of the ledger. They add up to the same total. */
static void the_short_table_has_five_rows(void **state) {
    (void)state;
    static const struct {
        const char *name, *row;
    } entries[] = {{"workspace", "other"},
                   {"weights", "weights"},
                   {"weight slots", "weights"},
                   {"optimizer state slots", "optimizer"},
                   {"gradient slots", "gradients"},
                   {"activation gradients", "activations"},
                   {"rows", "other"},
                   {"kept activations", "activations"}};
    static const char *const rows[] = {"weights", "optimizer", "gradients", "activations", "other"};
    struct ot_ledger ledger = {0};
    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES], full[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES];
    const size_t budget[OT_TIER_COUNT] = {64 << 20, 64 << 20, 0};
    double want[5] = {0};
    for (int i = 0; i < 8; i++) {
        ledger.entries[ledger.n++] =
            (struct ot_ledger_entry){OT_TIER_GPU, entries[i].name, (size_t)(i + 1) << 20};
        for (int r = 0; r < 5; r++)
            want[r] += strcmp(rows[r], entries[i].row) == 0 ? i + 1 : 0;
    }
    assert_int_equal(ot_report_table(&ledger, budget, false, lines), 8);
    for (int r = 0; r < 5; r++) {
        assert_non_null(strstr(lines[r + 1], rows[r]));
        assert_true(number_in(lines[r + 1], 0, 2) == want[r]);
    }
    assert_int_equal(ot_report_table(&ledger, budget, true, full), 11);
    assert_string_equal(lines[6], full[9]); /* the totals */
}

static void a_plan_is_told_in_two_lines(void **state) {
    (void)state;
    char line[OT_TABLE_LINE_BYTES];
    struct ot_slab_plan slabs[] = {
        {.weights = OT_HOME_GPU, .tiles = {[OT_TILE_GPU] = 2}, .state = OT_HOME_HOST},
        {.weights = OT_HOME_NVME, .tiles = {[OT_TILE_GPU] = 1, [OT_TILE_CPU] = 3}, .state = OT_HOME_NVME},
        {.weights = OT_HOME_NVME, .tiles = {[OT_TILE_STREAM] = 2}, .state = OT_HOME_HOST},
    };
    struct ot_plan plan = {.slabs = slabs, .n_slabs = 3, .activations = OT_HOME_HOST};
    assert_string_equal(
        ot_report_homes(&plan, line),
        "weights: 1 of 3 slabs on gpu, 2 on nvme · optimizer state: 3 of 8 tiles on gpu, 2 on "
        "host, 3 on nvme · activations: on host");
    slabs[1].grads = OT_HOME_NVME;
    assert_non_null(strstr(ot_report_homes(&plan, line),
                           " · activations: on host · gradients: of 5 of 8 tiles on gpu, 3 on nvme"));
    assert_string_equal(ot_report_engines(&plan, line), "3 of 8 tiles by gpu (37.5 %), 2 by stream "
                                                        "(25.0 %), 3 by cpu (37.5 %)");
    plan.shadow_frames = 2;
    assert_non_null(strstr(ot_report_engines(&plan, line), "3 by cpu (37.5 %) · 2 ahead of the norm"));
    plan.shadow_frames = 0;
    memset(slabs, 0, sizeof slabs); /* evaluation has no tiles */
    assert_string_equal(ot_report_homes(&plan, line), "weights: all 3 slabs on gpu · activations: on host");
    assert_string_equal(ot_report_engines(&plan, line), "");
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
    assert_string_equal(ot_report_prediction(&p, 0, 300, line),
                        "2.00 s a step, 32,768 tok/s · 300 steps in 10m00s");
    assert_string_equal(ot_report_prediction(&p, 270, 300, line),
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
    struct ot_step_record step = {.step = 3,
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
    struct ot_eval_record eval = {.step = 3, .loss = 0, .trained_tokens = 9, .rows = 2, .seconds = 1};
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
    ot_json_free(json);
    fclose(file);
    remove_folder(folder);
}

/* Opens the log in the folder again, as a run that resumes after step 2, and compares the file's content. */
static void expect_log(const char *folder, int64_t keep_bytes, const char *expected) {
    struct ot_run_log *log;
    char path[600], text[600];
    check_ok(ot_run_log_open(false, &log));
    ot_run_log_begin(log, "run");
    check_ok(ot_run_log_end(log));
    check_ok(ot_run_log_start_file(log, folder, keep_bytes));
    check_ok(ot_run_log_resume(log, 2, "c", 512, 0.25));
    assert_int_equal(ot_run_log_bytes(log), strlen(expected));
    ot_run_log_close(log);
    snprintf(path, sizeof path, "%s/log.jsonl", folder);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
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
    struct ot_step_record step = {.step = 1};
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
        cmocka_unit_test(progress_estimates_and_formats),
        cmocka_unit_test(lines_come_at_intervals),
        cmocka_unit_test(the_table_adds_up),
        cmocka_unit_test(the_short_table_has_five_rows),
        cmocka_unit_test(a_plan_is_told_in_two_lines),
        cmocka_unit_test(seconds_have_three_digits),
        cmocka_unit_test(a_forecast_is_told),
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

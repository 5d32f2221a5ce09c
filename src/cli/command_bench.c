/* offload-train bench: measures each point of a grid and writes the files with the results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/signals.h"
#include "src/base/units.h"
#include "src/base/utf8.h"
#include "src/cli/command.h"
#include "src/plan/bench_export.h"
#include "src/plan/bench_page.h"
#include "src/plan/bench_run.h"
#include "src/plan/bench_setup.h"

struct bench_command {
    struct ot_settings settings;
    const struct ot_options *options; /* in effect */
    struct ot_bench bench;
    struct ot_bench_files files;
    struct ot_bench_setup setup;
    double began;
    int looked_at; /* points done or skipped so far */
};

/* ---- files ---- */

static int append_csv(struct bench_command *c, int index) {
    struct ot_string_builder text = {0};
    if (index < 0)
        ot_bench_put_csv_header(&text);
    else
        ot_bench_put_csv(&c->bench, index, &text);
    int rc = text.failed ? ot_fail(OT_E_BUDGET, "no memory for a line of bench.csv")
                         : ot_bench_files_append_csv(&c->files, text.text, text.bytes);
    free(text.text);
    return rc;
}

static int write_json(struct bench_command *c) {
    struct ot_json_writer w = {.indent = 0};
    char *text;
    size_t bytes;
    ot_bench_put_json(&c->bench, c->options, &w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = ot_bench_files_replace(&c->files, "bench.json", text, bytes);
    free(text);
    return rc;
}

static int write_page(struct bench_command *c) {
    struct ot_string_builder page = {0};
    ot_bench_put_page(&c->bench, &page);
    int rc = page.failed ? ot_fail(OT_E_BUDGET, "no memory for bench.html")
                         : ot_bench_files_replace(&c->files, "bench.html", page.text, page.bytes);
    free(page.text);
    return rc;
}

static int write_files(struct bench_command *c) {
    c->bench.seconds = ot_clock_seconds() - c->began;
    OT_TRY(write_json(c));
    return write_page(c);
}

/* ---- time ---- */

/* Each point should take its share of the time that is left, and at most MOST_POINT_SECONDS. A point with
 * long steps may take up to MOST_SHARES shares. The guess for a step comes from earlier points, in proportion
 * to its tokens. */
static struct ot_bench_pace find_pace(const struct bench_command *c, int index) {
    enum { MOST_POINT_SECONDS = 10, MOST_SHARES = 4 };
    const struct ot_bench_result *results = c->bench.results;
    double given = c->options->time_per_point;
    double left = c->options->minutes * 60 - (ot_clock_seconds() - c->began);
    double share = left / (c->bench.n - index);
    struct ot_bench_pace pace = {.most_seconds = fmin(left, given > 0 ? given : MOST_SHARES * share),
                                 .target_seconds = fmin(share, given > 0 ? given : MOST_POINT_SECONDS),
                                 .measured_over_predicted = 1};
    for (int i = 0; i < index; i++)
        if (results[i].status == OT_BENCH_DONE) {
            double ratio = (double)results[index].point.step_tokens / (double)results[i].point.step_tokens;
            pace.guess_seconds = results[i].step_seconds * ratio;
            if (results[i].predicted_seconds > 0)
                pace.measured_over_predicted = results[i].step_seconds / results[i].predicted_seconds;
        }
    return pace;
}

/* ---- lines on stderr ---- */

static void print_head(const struct bench_command *c) {
    const struct ot_bench *bench = &c->bench;
    char memory[OT_TEXT_BYTES], params[OT_BENCH_PARAMS_BYTES], each[OT_TEXT_BYTES], limit[OT_TEXT_BYTES];
    ot_log(OT_LOG_INFO, "machine %s · %d cores · RAM %s", bench->device, bench->cores,
           ot_text_bytes(bench->ram_bytes, memory));
    ot_log(OT_LOG_INFO, "model   %s · %s, random · %s · sequences of %lld tokens", bench->model,
           ot_bench_text_params(bench, params), bench->dtype, (long long)c->options->seq_len);
    if (c->setup.costs.under_load > 1)
        ot_log(OT_LOG_INFO, "load    without pauses the blocks take %.2f times as long; predictions count it",
               c->setup.costs.under_load);
    ot_log(OT_LOG_INFO, "bench   %d points, about %s each, together up to %s · %s", bench->n,
           ot_text_duration(find_pace(c, 0).target_seconds, each),
           ot_text_duration(c->options->minutes * 60, limit), c->options->out);
}

/* The time for the points that are left, estimated from the time of the points so far. */
static double seconds_left(const struct bench_command *c) {
    double passed = ot_clock_seconds() - c->began, limit = c->options->minutes * 60 - passed;
    double left = passed / c->looked_at * (c->bench.n - c->looked_at);
    return left < limit ? left : ot_max(limit, 0);
}

static void print_point(const struct bench_command *c, int index) {
    const struct ot_bench_result *r = &c->bench.results[index];
    char label[OT_BENCH_LABEL_BYTES], time[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], gpu[OT_TEXT_BYTES];
    char left[48] = "", predicted[48] = "";
    if (c->looked_at < c->bench.n)
        snprintf(left, sizeof left, " · ETA %s", ot_text_duration(seconds_left(c), time));
    if (r->predicted_seconds > 0)
        snprintf(predicted, sizeof predicted, " (%s predicted)",
                 ot_bench_seconds(r->predicted_seconds, time));
    ot_bench_label(&r->point, label);
    if (r->status == OT_BENCH_DONE)
        ot_log(OT_LOG_INFO, "%2d/%d   %s: %s a step%s · %s tok/s · gpu %s%s", index + 1, c->bench.n, label,
               ot_bench_seconds(r->step_seconds, time), predicted,
               ot_text_count((int64_t)r->tokens_per_second, rate), ot_text_bytes(r->device_bytes, gpu), left);
    else
        ot_log(OT_LOG_INFO, "%2d/%d   %s: skipped%s: %s%s", index + 1, c->bench.n, label, predicted,
               r->reason, left);
}

/* ---- the run ---- */

static int run_point(struct bench_command *c, int index) {
    struct ot_bench_result *r = &c->bench.results[index];
    struct ot_bench_pace pace = find_pace(c, index);
    double since = ot_clock_seconds();
    if (pace.most_seconds <= 0) {
        r->status = OT_BENCH_NO_TIME;
        snprintf(r->reason, OT_BENCH_REASON_BYTES, "there was no time left; raise --minutes");
    } else {
        OT_TRY(ot_bench_measure(c->options, &c->setup.costs, &pace, c->bench.results, index, r));
    }
    r->seconds = ot_clock_seconds() - since;
    ot_utf8_keep_line(r->reason);
    return 0;
}

static int run_points(struct bench_command *c) {
    for (int i = 0; i < c->bench.n && !ot_stop_requested(); i++) {
        OT_TRY(run_point(c, i));
        c->bench.interrupted = c->bench.results[i].status == OT_BENCH_WAITING;
        c->looked_at = i + !c->bench.interrupted;
        if (c->bench.interrupted)
            break;
        print_point(c, i);
        OT_TRY(append_csv(c, i));
        OT_TRY(write_files(c));
    }
    c->bench.interrupted = c->looked_at < c->bench.n;
    for (int i = c->looked_at; i < c->bench.n; i++) {
        snprintf(c->bench.results[i].reason, OT_BENCH_REASON_BYTES,
                 "the bench was stopped before this point");
        OT_TRY(append_csv(c, i));
    }
    return write_files(c);
}

static int count_status(const struct ot_bench *bench, enum ot_bench_status status) {
    int n = 0;
    for (int i = 0; i < bench->n; i++)
        n += bench->results[i].status == status;
    return n;
}

/* Prints the result. Points that do not fit are not an error; points that failed are. */
static int finish(struct bench_command *c) {
    const struct ot_bench *bench = &c->bench;
    int done = count_status(bench, OT_BENCH_DONE), failed = count_status(bench, OT_BENCH_FAILED);
    char time[OT_TEXT_BYTES];
    ot_log(OT_LOG_INFO, "done    %d of %d points measured in %s%s · %s/bench.html, bench.csv, bench.json",
           done, bench->n, ot_text_duration(bench->seconds, time),
           bench->interrupted ? ", stopped by a signal" : "", c->options->out);
    if (c->options->json) {
        struct ot_json_writer w = {.indent = -1};
        ot_bench_put_json(bench, c->options, &w);
        OT_TRY(ot_json_print(&w));
    }
    for (int i = 0; i < bench->n && failed > 0; i++)
        if (bench->results[i].status == OT_BENCH_FAILED)
            return ot_fail(OT_E_DEVICE, "%d of %d points failed; the first error: %s", failed, bench->n,
                           bench->results[i].reason);
    if (done == 0 && !bench->interrupted)
        return ot_fail(OT_E_BUDGET, "no point was measured; the first was skipped because: %s",
                       bench->results[0].reason);
    return bench->interrupted ? -OT_E_STOPPED : 0;
}

int ot_command_bench(const struct ot_options *options) {
    struct bench_command *c = calloc(1, sizeof *c);
    int rc;
    if (!c)
        return ot_fail(OT_E_BUDGET, "no memory");
    c->options = &c->settings.in_effect;
    c->files.csv = -1;
    c->began = ot_clock_seconds();
    OT_TRY_GOTO(ot_bench_setup_make(options, &c->settings, &c->bench, &c->setup), rc, out);
    OT_TRY_GOTO(ot_bench_files_open(c->options->out, &c->files), rc, out);
    OT_TRY_GOTO(append_csv(c, -1), rc, out);
    print_head(c);
    OT_TRY_GOTO(ot_stop_install(
                    "Stopping: finishing the step and writing what was measured. Press Ctrl-C again to quit "
                    "at once.\n"),
                rc, out);
    OT_TRY_GOTO(run_points(c), rc, out);
    ot_stop_ignore();
    rc = finish(c);
out:
    ot_bench_files_close(&c->files);
    ot_bench_setup_free(&c->setup);
    free(c);
    return rc;
}

#include "src/plan/bench_page.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/units.h"
#include "src/page/page.h"
#include "src/page/plot.h"
#include "src/plan/bench_export.h"
#include "src/plan/bench_plot.h"

static void put(struct ot_string_builder *out, const char *html) {
    ot_string_append_text(out, html);
}

static int count_done(const struct ot_bench *bench) {
    int n = 0;
    for (int i = 0; i < bench->n; i++)
        n += bench->results[i].status == OT_BENCH_DONE;
    return n;
}

/* The step sizes, in the order of the points. */
static int list_steps(const struct ot_bench *bench, int64_t steps[OT_BENCH_MAX_POINTS]) {
    int n = 0;
    for (int i = 0; i < bench->n; i++) {
        bool seen = bench->results[i].status != OT_BENCH_DONE;
        for (int j = 0; j < n; j++)
            seen = seen || steps[j] == bench->results[i].point.step_tokens;
        if (!seen)
            steps[n++] = bench->results[i].point.step_tokens;
    }
    return n;
}

/* ---- the head ---- */

static void put_head(const struct ot_bench *bench, struct ot_string_builder *out) {
    char text[512], params[OT_BENCH_PARAMS_BYTES], a[OT_TEXT_BYTES], b[OT_TEXT_BYTES],
        date[OT_BENCH_DATE_BYTES];
    snprintf(text, sizeof text, "Memory and time of training %s", bench->model);
    ot_page_begin(out, bench->model, "bench", text);
    ot_plot_fill_patterns(out);
    ot_page_begin_facts(out);
    ot_bench_text_params(bench, params);
    snprintf(text, sizeof text, "%s, AdamW, %s", params, bench->dtype);
    ot_page_fact(out, "Model", text);
    snprintf(text, sizeof text, "%s, %d cores, RAM %s", bench->device, bench->cores,
             ot_text_bytes(bench->ram_bytes, a));
    ot_page_fact(out, "Machine", text);
    ot_page_fact(out, "Date", ot_bench_date(bench, date));
    snprintf(text, sizeof text, "%d of %d points measured in %s%s", count_done(bench), bench->n,
             ot_text_duration(bench->seconds, b), bench->interrupted ? ", stopped before the end" : "");
    ot_page_fact(out, "Bench", text);
    ot_page_end_facts(out);
}

/* Writes the fastest plan of a step size, and the plan with the least memory. */
static void put_summary(const struct ot_bench *bench, int64_t step_tokens, struct ot_string_builder *out) {
    const struct ot_bench_result *fast = NULL, *small = NULL;
    char text[512], tokens[OT_TEXT_BYTES], rate[OT_TEXT_BYTES], time[OT_TEXT_BYTES], a[OT_TEXT_BYTES],
        b[OT_TEXT_BYTES];
    for (int i = 0; i < bench->n; i++) {
        const struct ot_bench_result *r = &bench->results[i];
        if (!ot_bench_is_on_front(bench, i) || r->point.step_tokens != step_tokens)
            continue;
        fast = !fast || r->step_seconds < fast->step_seconds ? r : fast;
        small = !small || r->device_bytes < small->device_bytes ? r : small;
    }
    int n =
        snprintf(text, sizeof text,
                 "%s tokens a step: fastest is %s, %s a step (%s tokens/s), with %s of device memory.",
                 ot_text_count(step_tokens, tokens), ot_bench_mix_at(fast->point.mix)->name,
                 ot_bench_seconds(fast->step_seconds, time),
                 ot_text_count((int64_t)fast->tokens_per_second, rate), ot_text_bytes(fast->device_bytes, a));
    if (small != fast)
        snprintf(text + n, sizeof text - (size_t)n, " With only %s it takes %.2f times as long (%s).",
                 ot_text_bytes(small->device_bytes, b), small->step_seconds / fast->step_seconds,
                 ot_bench_mix_at(small->point.mix)->name);
    ot_page_put(out, "p", text);
}

/* ---- the plots ---- */

static void put_mix_legend(const struct ot_bench *bench, struct ot_string_builder *out) {
    put(out, "<ul class=\"legend\">\n");
    for (int mix = 0; ot_bench_mix_at(mix); mix++) {
        bool shown = false;
        for (int i = 0; i < bench->n; i++)
            shown =
                shown || (bench->results[i].status == OT_BENCH_DONE && bench->results[i].point.mix == mix);
        if (!shown)
            continue;
        put(out, "<li>");
        ot_plot_marker_key(out, mix);
        ot_page_escape(out, ot_bench_mix_at(mix)->name);
        put(out, "</li>\n");
    }
    put(out, "</ul>\n");
}

static void put_time_legend(const struct ot_bench *bench, struct ot_string_builder *out) {
    put(out, "<ul class=\"legend\">\n");
    for (int time = 0; time < OT_BENCH_TIMES; time++) {
        double seconds = 0;
        for (int i = 0; i < bench->n; i++)
            seconds += ot_bench_time(&bench->results[i].lanes, time) +
                       ot_bench_time(&bench->results[i].predicted_lanes, time);
        if (seconds == 0)
            continue;
        put(out, "<li>");
        ot_plot_fill_key(out, time);
        ot_page_escape(out, ot_bench_time_name(time));
        put(out, "</li>\n");
    }
    put(out, "</ul>\n");
}

typedef void plot_fn(const struct ot_bench *bench, int64_t step_tokens, int n, struct ot_string_builder *out);

/* One plot for each step size, side by side if the screen is wide enough. */
static void put_plots(const struct ot_bench *bench, plot_fn *plot, struct ot_string_builder *out) {
    int64_t steps[OT_BENCH_MAX_POINTS];
    char tokens[OT_TEXT_BYTES];
    int n = list_steps(bench, steps);
    put(out, "<div class=\"plots\">\n");
    for (int i = 0; i < n; i++) {
        ot_string_append_format(out, "<figure>\n<h3>%s tokens a step</h3>\n",
                                ot_text_count(steps[i], tokens));
        plot(bench, steps[i], i, out);
        put(out, "</figure>\n");
    }
    put(out, "</div>\n");
}

static void put_prediction(const struct ot_bench *bench, struct ot_string_builder *out) {
    struct ot_bench_errors errors = ot_bench_prediction_errors(bench);
    if (!errors.n)
        return;
    put(out, "<h2>Predicted against measured</h2>\n");
    ot_string_append_format(
        out,
        "<p>The predicted time of a step is off by at most %.0f %% of the measured time in half of the "
        "%d points, and by at most %.0f %% in all. The lines to the sides of a mark reach from the fastest "
        "to the slowest measured step.</p>\n",
        ceil(100 * errors.median - 1e-6), errors.n, ceil(100 * errors.worst - 1e-6));
    put_mix_legend(bench, out);
    put(out, "<div class=\"plots\"><figure>\n");
    ot_bench_plot_prediction(bench, out);
    put(out, "</figure></div>\n");
}

/* ---- the table ---- */

enum column {
    MIX,
    TOKENS,
    MICRO,
    BUDGET,
    PEAK,
    PINNED,
    RESIDENT,
    HELD,
    MOVED,
    TIME,
    SPREAD,
    PREDICTED,
    RATE,
    COLUMNS
};
static const char *const columns[COLUMNS] = {
    [MIX] = "homes",
    [TOKENS] = "tokens\na step",
    [MICRO] = "micro-\nbatches",
    [BUDGET] = "gpu\nbudget",
    [PEAK] = "gpu\npeak",
    [PINNED] = "pinned\nhost",
    [RESIDENT] = "process\npeak",
    [HELD] = "nvme\nheld",
    [MOVED] = "nvme moved\na step",
    [TIME] = "time of\na step",
    [SPREAD] = "fastest to slowest\n(of steps)",
    [PREDICTED] = "predicted",
    [RATE] = "tokens\na second",
};

static void put_cell(struct ot_string_builder *out, enum column column, const char *text) {
    ot_page_cell(out, columns[column], text);
}

static void put_bytes(struct ot_string_builder *out, enum column column, int64_t bytes) {
    char text[OT_TEXT_BYTES];
    put_cell(out, column, bytes > 0 ? ot_text_bytes(bytes, text) : "-");
}

static bool uses_nvme(const struct ot_bench *bench) {
    bool used = false;
    for (int i = 0; i < bench->n; i++)
        used = used ||
               (bench->results[i].status == OT_BENCH_DONE && bench->results[i].planned_bytes[OT_TIER_NVME]);
    return used;
}

/* "1.20 s to 1.31 s (8)": the fastest and the slowest of 8 steps; "- (1)": one step has no spread. */
enum { SPREAD_BYTES = 2 * OT_TEXT_BYTES + 24 };
static const char *text_spread(const struct ot_bench_result *r, char text[SPREAD_BYTES]) {
    char fast[OT_TEXT_BYTES], slow[OT_TEXT_BYTES];
    if (r->steps <= 1)
        return "- (1)";
    snprintf(text, SPREAD_BYTES, "%s to %s (%lld)", ot_bench_seconds(r->fastest_seconds, fast),
             ot_bench_seconds(r->slowest_seconds, slow), (long long)r->steps);
    return text;
}

static void put_row(const struct ot_bench *bench, int index, bool nvme, struct ot_string_builder *out) {
    const struct ot_bench_result *r = &bench->results[index];
    char text[SPREAD_BYTES], count[OT_TEXT_BYTES];
    bool front = ot_bench_is_on_front(bench, index);
    snprintf(text, sizeof text, "%s%s", front ? "★ " : "", ot_bench_mix_at(r->point.mix)->name);
    ot_page_begin_row(out, front ? "front" : NULL, text);
    put_cell(out, TOKENS, ot_text_count(r->point.step_tokens, count));
    snprintf(text, sizeof text, "%lld x %lld", (long long)r->micro_batches,
             (long long)(r->micro_sequences * r->point.sequence_tokens));
    put_cell(out, MICRO, text);
    put_bytes(out, BUDGET, r->point.gpu_bytes);
    put_bytes(out, PEAK, r->device_bytes);
    put_bytes(out, PINNED, r->pinned_bytes);
    put_bytes(out, RESIDENT, r->resident_bytes);
    if (nvme) {
        put_bytes(out, HELD, r->planned_bytes[OT_TIER_NVME]);
        put_bytes(out, MOVED, r->nvme_read_bytes + r->nvme_write_bytes);
    }
    put_cell(out, TIME, ot_bench_seconds(r->step_seconds, text));
    put_cell(out, SPREAD, text_spread(r, text));
    put_cell(out, PREDICTED, r->predicted_seconds > 0 ? ot_bench_seconds(r->predicted_seconds, text) : "-");
    put_cell(out, RATE, ot_text_count((int64_t)r->tokens_per_second, count));
    ot_page_end_row(out);
}

static void put_table(const struct ot_bench *bench, struct ot_string_builder *out) {
    bool nvme = uses_nvme(bench);
    put(out,
        "<h2>All points</h2>\n<p>★: the plan is on the Pareto front of its step size: no other plan takes "
        "less device memory and less time. The time of a step is the median of the measured steps. A "
        "micro-batch is computed at once; the table shows the number of micro-batches and the tokens of "
        "each.</p>\n");
    const char *shown[COLUMNS];
    for (int c = 0; c < COLUMNS; c++)
        shown[c] = nvme || (c != HELD && c != MOVED) ? columns[c] : NULL;
    ot_page_begin_table(out, shown, COLUMNS);
    for (int i = 0; i < bench->n; i++)
        if (bench->results[i].status == OT_BENCH_DONE)
            put_row(bench, i, nvme, out);
    ot_page_end_table(out);
}

static const char *why_left_out(const struct ot_bench_result *r) {
    return r->status == OT_BENCH_DONE ? NULL : *r->reason ? r->reason : "not measured yet";
}

/* True if both points were skipped for the same reason. A measured point has no such reason. */
static bool have_one_reason(const struct ot_bench_result *a, const struct ot_bench_result *b) {
    const char *reason = why_left_out(a), *other = why_left_out(b);
    return reason && other && strcmp(reason, other) == 0;
}

/* Writes each reason, and then the points that it applies to. */
static void put_left_out(const struct ot_bench *bench, struct ot_string_builder *out) {
    const struct ot_bench_result *results = bench->results;
    char label[OT_BENCH_LABEL_BYTES];
    if (count_done(bench) == bench->n)
        return;
    put(out, "<h2>Skipped points</h2>\n<ul>\n");
    for (int i = 0; i < bench->n; i++) {
        bool first = why_left_out(&results[i]) != NULL;
        for (int j = 0; j < i; j++)
            first = first && !have_one_reason(&results[j], &results[i]);
        if (!first)
            continue;
        put(out, "<li>");
        ot_page_escape(out, why_left_out(&results[i]));
        put(out, "<ul>\n");
        for (int j = i; j < bench->n; j++)
            if (have_one_reason(&results[i], &results[j])) {
                ot_page_put(out, "li", ot_bench_label(&results[j].point, label));
            }
        put(out, "</ul></li>\n");
    }
    put(out, "</ul>\n");
}

void ot_bench_put_page(const struct ot_bench *bench, struct ot_string_builder *out) {
    int64_t steps[OT_BENCH_MAX_POINTS];
    int n = list_steps(bench, steps);
    put_head(bench, out);
    for (int i = 0; i < n; i++)
        put_summary(bench, steps[i], out);
    if (n > 0) {
        put(out,
            "<h2>Memory against time</h2>\n<p>The names say where weights and optimizer state live. With "
            "<em>planned</em> the program chooses that, within smaller budgets of device memory. The grey "
            "staircase is the shortest time for each amount of memory. A thin line goes from the fastest to "
            "the slowest measured step.</p>\n");
        put_mix_legend(bench, out);
        put_plots(bench, ot_bench_plot_memory, out);
        put(out,
            "<h2>Where the time goes</h2>\n<p>How long the compute lane works in a step, and how long it "
            "waits for copies to and from the device, updates on the CPU, the disks, or the program itself "
            "(host). Mean over the measured steps; the thin bar is the prediction.</p>\n");
        put_time_legend(bench, out);
        put_plots(bench, ot_bench_plot_lanes, out);
        put_prediction(bench, out);
        put_table(bench, out);
    }
    put_left_out(bench, out);
    ot_page_end(out, "Written by offload-train " OT_VERSION
                     " with the numbers of bench.csv and bench.json beside it.");
}

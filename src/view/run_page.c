#include "src/view/run_page.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/units.h"
#include "src/page/page.h"
#include "src/page/plot.h"
#include "src/view/facts.h"

/* A curve of more steps is drawn faint, with a smoothed line over it. */
enum { SMOOTH_FROM = 40 };

struct page {
    struct ot_history *const *runs;
    int n;
    struct ot_string_builder *out;
};

static void put(const struct page *p, const char *html) {
    ot_string_append_text(p->out, html);
}

/* ---- numbers as text; "-" for an unknown one ---- */

/* False for NaN, and for quotients of numbers that no run has. */
static bool is_number(double value) {
    return fabs(value) <= OT_HISTORY_MOST;
}

static const char *bytes(double value, char text[OT_TEXT_BYTES]) {
    return is_number(value) ? ot_text_bytes((int64_t)value, text) : "-";
}

static const char *seconds(double value, char text[OT_TEXT_BYTES]) {
    return is_number(value) ? ot_text_seconds(value, text) : "-";
}

static const char *duration(double value, char text[OT_TEXT_BYTES]) {
    return is_number(value) ? ot_text_duration(value, text) : "-";
}

static const char *rate(double value, char text[OT_TEXT_BYTES]) {
    return is_number(value) ? ot_text_rate(value, text) : "-";
}

static const char *real(double value, const char *format, char text[OT_TEXT_BYTES]) {
    if (!is_number(value))
        return "-";
    snprintf(text, OT_TEXT_BYTES, format, value);
    return text;
}

static const char *share(double value, char text[OT_TEXT_BYTES]) {
    return real(100 * value, "%.1f %%", text);
}

/* ---- plots ---- */

typedef const struct ot_curve *curve_fn(const struct ot_history *h);

static const struct ot_curve *loss_of(const struct ot_history *h) {
    return &h->loss;
}

static const struct ot_curve *eval_of(const struct ot_history *h) {
    return &h->eval_loss;
}

static const struct ot_curve *rate_of(const struct ot_history *h) {
    return &h->rate;
}

static const struct ot_curve *lr_of(const struct ot_history *h) {
    return &h->lr;
}

static const struct ot_curve *norm_of(const struct ot_history *h) {
    return &h->norm;
}

struct plot {
    const char *id, *heading, *y_name, *description;
    curve_fn *line, *markers; /* NULL: none */
    bool smooths;
};

enum { SERIES = 3 }; /* of a run: the line, its smoothed line, the markers */

static int add_series(const struct plot *plot, const struct ot_history *h, int run, double *room,
                      struct ot_plot_series series[SERIES]) {
    double *x = room, *y = x + OT_CURVE_POINTS, *smooth = y + OT_CURVE_POINTS, *ex = smooth + OT_CURVE_POINTS,
           *ey = ex + OT_CURVE_POINTS;
    int n = plot->line ? ot_curve_line(plot->line(h), x, y) : 0, made = 0;
    bool smooths = plot->smooths && n >= SMOOTH_FROM;
    if (n > 0)
        series[made++] = (struct ot_plot_series){.index = run, .n = n, .x = x, .y = y, .is_faint = smooths};
    if (smooths) {
        memcpy(smooth, y, (size_t)n * sizeof *y);
        ot_curve_smooth(smooth, n, n / 25.0);
        series[made++] = (struct ot_plot_series){.index = run, .n = n, .x = x, .y = smooth};
    }
    n = plot->markers ? ot_curve_line(plot->markers(h), ex, ey) : 0;
    if (n > 0)
        series[made++] = (struct ot_plot_series){.index = run, .n = n, .x = ex, .y = ey, .has_markers = true};
    return made;
}

/* Draws nothing if no run has a value. */
static void put_plot(const struct page *p, const struct plot *plot) {
    enum { ROOM = 5 * OT_CURVE_POINTS };
    double *room = malloc((size_t)p->n * ROOM * sizeof *room);
    struct ot_plot_series *series = malloc((size_t)p->n * SERIES * sizeof *series);
    int made = 0;
    p->out->failed = p->out->failed || !room || !series;
    for (int i = 0; i < p->n && !p->out->failed; i++)
        made += add_series(plot, p->runs[i], i, room + i * ROOM, series + made);
    struct ot_plot_lines lines = {plot->id, plot->heading, plot->description, "step", plot->y_name,
                                  made,     series};
    if (made > 0) {
        put(p, "<figure>\n");
        ot_page_put(p->out, "h3", plot->heading);
        ot_plot_put_lines(p->out, &lines);
        put(p, "</figure>\n");
    }
    free(series);
    free(room);
}

static void put_legend(const struct page *p) {
    put(p, "<ul class=\"legend\">\n");
    for (int i = 0; i < p->n; i++) {
        put(p, "<li>");
        ot_plot_line_key(p->out, i);
        ot_page_escape(p->out, p->runs[i]->name);
        put(p, "</li>\n");
    }
    put(p, "</ul>\n");
}

static void put_curves(const struct page *p) {
    static const struct plot plots[] = {
        {"loss", "Training loss", "loss, nats",
         "The mean loss of the trained tokens of each step. A long run is drawn faint, with a smoothed line.",
         loss_of, NULL, true},
        {"eval", "Evaluations", "loss, nats", "The loss on held-out rows, one marker for each evaluation.",
         NULL, eval_of, false},
        {"rate", "Speed", "tokens/s", "Tokens a second in each step.", rate_of, NULL, true},
        {"norm", "Gradient norm", "norm", "The norm of the gradient before clipping.", norm_of, NULL, true},
        {"lr", "Learning rate", "learning rate", "The learning rate of each step.", lr_of, NULL, false},
    };
    bool has_any = false;
    for (int i = 0; i < p->n; i++)
        has_any = has_any || p->runs[i]->rate.n > 0 || p->runs[i]->n_evals > 0;
    if (!has_any)
        return;
    put(p, "<h2>Curves</h2>\n");
    if (p->n > 1)
        put_legend(p);
    put(p, "<div class=\"plots\">\n");
    for (size_t i = 0; i < sizeof plots / sizeof *plots; i++)
        put_plot(p, &plots[i]);
    put(p, "</div>\n");
}

/* ---- the runs beside each other ---- */

/* Tokens divided by the time of all steps, or of the whole run. */
static double whole_rate(const struct ot_history *h) {
    double tokens = ot_history_number(h, OT_HISTORY_DONE, "tokens");
    double time = ot_history_number(h, OT_HISTORY_DONE, "seconds");
    return time > 0 ? tokens / time : h->step.step ? h->step.tokens_per_s : NAN;
}

static void put_run_row(const struct page *p, const struct ot_history *h, const char *const columns[]) {
    char text[OT_FACT_BYTES];
    const struct ot_history_eval *best = ot_history_best(h);
    ot_page_begin_row(p->out, NULL, h->name);
    ot_page_cell(p->out, columns[1], ot_fact_state_name(ot_history_state(h)));
    ot_page_cell(p->out, columns[2], ot_text_count(h->step.step, text));
    ot_page_cell(p->out, columns[3], real(h->step.step ? h->step.loss : NAN, "%.4f", text));
    ot_page_cell(p->out, columns[4], real(best ? best->loss : NAN, "%.4f", text));
    ot_page_cell(p->out, columns[5], seconds(ot_fact_step_seconds(h), text));
    ot_page_cell(p->out, columns[6], rate(whole_rate(h), text));
    ot_page_cell(p->out, columns[7], bytes(ot_fact_memory(h, OT_TIER_GPU).used, text));
    ot_page_cell(p->out, columns[8], duration(ot_history_number(h, OT_HISTORY_DONE, "seconds"), text));
    ot_page_end_row(p->out);
}

static void put_runs(const struct page *p) {
    static const char *const columns[] = {"run",
                                          "state",
                                          "steps",
                                          "last loss",
                                          "lowest\neval loss",
                                          "time of\na step",
                                          "tokens\na second",
                                          "gpu\nmemory",
                                          "time"};
    ot_page_begin_table(p->out, columns, sizeof columns / sizeof *columns);
    for (int i = 0; i < p->n; i++)
        put_run_row(p, p->runs[i], columns);
    ot_page_end_table(p->out);
}

/* ---- options ---- */

/* True if the page shows the option: the values of the runs differ; with one run: it is not a default. */
static bool is_shown(const struct page *p, const char *key) {
    const char *source = ot_history_source(p->runs[0], key);
    if (strcmp(key, "sources") == 0 || strcmp(key, "ranks") == 0 || strcmp(key, "out") == 0)
        return false;
    if (p->n == 1)
        return !source || strcmp(source, "default") != 0;
    const struct ot_json *first = ot_json_get(ot_history_options(p->runs[0]), key);
    for (int i = 1; i < p->n; i++)
        if (!ot_json_equal(first, ot_json_get(ot_history_options(p->runs[i]), key)))
            return true;
    return false;
}

/* True if an earlier run has the option too, so that it has been shown. */
static bool is_known(const struct page *p, int run, const char *key) {
    for (int i = 0; i < run; i++)
        if (ot_json_has(ot_history_options(p->runs[i]), key))
            return true;
    return false;
}

/* One row for each option, one column for each run; with one run also the source of the value. */
static void put_options(const struct page *p) {
    const char *columns[OT_PLOT_MARKERS * 3 + 2] = {"option"}, *key;
    int n = 1;
    char text[OT_FACT_BYTES];
    struct ot_json *value;
    bool has_any = false;
    for (int i = 0; i < p->n; i++)
        columns[n++] = p->n > 1 ? p->runs[i]->name : "value";
    if (p->n == 1)
        columns[n++] = "given by";
    for (int i = 0; i < p->n; i++)
        for (void *cursor = NULL; ot_json_next(ot_history_options(p->runs[i]), &cursor, &key, &value);) {
            if (!is_shown(p, key) || is_known(p, i, key))
                continue;
            if (!has_any) {
                put(p, p->n > 1 ? "<h2>Options that differ</h2>\n" : "<h2>Options given or chosen</h2>\n");
                ot_page_begin_table(p->out, columns, n);
            }
            has_any = true;
            snprintf(text, sizeof text, "--%s", key);
            ot_page_begin_row(p->out, NULL, text);
            for (int r = 0; r < p->n; r++) {
                ot_fact_value(ot_json_get(ot_history_options(p->runs[r]), key), text);
                ot_page_cell(p->out, columns[1 + r], *text ? text : "-");
            }
            const char *source = ot_history_source(p->runs[0], key);
            if (p->n == 1)
                ot_page_cell(p->out, columns[2], source ? source : "-");
            ot_page_end_row(p->out);
        }
    if (has_any)
        ot_page_end_table(p->out);
}

/* ---- one run ---- */

static void put_fact(const struct page *p, const char *name, const char *text) {
    if (*text)
        ot_page_fact(p->out, name, text);
}

static void put_facts(const struct page *p, const struct ot_history *h) {
    char text[OT_FACT_BYTES], when[64] = "";
    struct tm utc;
    time_t began = (time_t)h->began;
    ot_page_begin_facts(p->out);
    put_fact(p, "State", ot_fact_state(h, ot_history_state(h), text));
    put_fact(p, "Model", ot_fact_model(h, text));
    put_fact(p, "Machine", ot_fact_machine(h, text));
    put_fact(p, "Data", ot_fact_data(h, text));
    put_fact(p, "Plan", ot_fact_plan(h, text));
    if (began > 0 && gmtime_r(&began, &utc))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", &utc);
    put_fact(p, "Began", when);
    put_fact(p, "Guard", ot_fact_guard(h, text));
    snprintf(text, sizeof text, "%lld line%s of it could not be read", (long long)h->left_out,
             ot_plural(h->left_out));
    if (h->left_out > 0)
        put_fact(p, "Log", text);
    ot_page_end_facts(p->out);
}

static const char *const compared[] = {"", "predicted", "measured", "predicted is off by"};

static void put_compared(const struct page *p, const char *name, double predicted, double measured,
                         const char *format(double value, char text[OT_TEXT_BYTES])) {
    char text[OT_TEXT_BYTES];
    if (isnan(predicted) && isnan(measured))
        return;
    ot_page_begin_row(p->out, NULL, name);
    ot_page_cell(p->out, compared[1], format(predicted, text));
    ot_page_cell(p->out, compared[2], format(measured, text));
    ot_page_cell(p->out, compared[3],
                 measured > 0 ? real(100 * (predicted / measured - 1), "%+.1f %%", text) : "-");
    ot_page_end_row(p->out);
}

static void put_prediction(const struct page *p, const struct ot_history *h) {
    double step = ot_history_number(h, OT_HISTORY_RUN, "prediction.step_seconds");
    double again = ot_history_number(h, OT_HISTORY_AGAIN, "step_seconds"), measured = ot_fact_step_seconds(h);
    bool is_done = h->last[OT_HISTORY_DONE] && !h->last[OT_HISTORY_RESUME];
    if (isnan(step))
        return;
    put(p, "<h3>Predicted and measured</h3>\n");
    ot_page_begin_table(p->out, compared, sizeof compared / sizeof *compared);
    put_compared(p, "a step", step, measured, seconds);
    if (!isnan(again))
        put_compared(p, "a step, predicted again from its first steps", again, measured, seconds);
    put_compared(p, "the whole run", ot_history_number(h, OT_HISTORY_RUN, "prediction.whole_seconds"),
                 is_done ? ot_history_number(h, OT_HISTORY_DONE, "seconds") : NAN, seconds);
    ot_page_end_table(p->out);
}

static void put_memory(const struct page *p, const struct ot_history *h) {
    static const char *const columns[] = {"tier", "used", "planned", "budget"};
    char text[OT_TEXT_BYTES];
    double peak = ot_history_number(h, OT_HISTORY_DONE, "process_peak_bytes");
    bool has_any = false;
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        struct ot_fact_memory m = ot_fact_memory(h, t);
        if (!(m.planned > 0) && !(m.used > 0))
            continue;
        if (!has_any) {
            put(p, "<h3>Memory</h3>\n");
            ot_page_begin_table(p->out, columns, 4);
        }
        has_any = true;
        ot_page_begin_row(p->out, NULL, ot_tier_name((enum ot_tier)t));
        ot_page_cell(p->out, columns[1], bytes(m.used, text));
        ot_page_cell(p->out, columns[2], bytes(m.planned, text));
        ot_page_cell(p->out, columns[3], bytes(m.budget, text));
        ot_page_end_row(p->out);
    }
    if (!has_any)
        return;
    ot_page_end_table(p->out);
    if (!isnan(peak)) {
        char line[OT_FACT_BYTES];
        snprintf(line, sizeof line, "Peak of the process: %s.", bytes(peak, text));
        ot_page_put(p->out, "p", line);
    }
}

static void put_lane_row(const struct page *p, const struct ot_fact_lanes *lanes,
                         const char *const *columns) {
    char text[OT_TEXT_BYTES];
    if (lanes->seconds <= 0)
        return;
    ot_page_begin_row(p->out, NULL, lanes->name);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (columns[1 + l])
            ot_page_cell(p->out, columns[1 + l], share(lanes->busy[l] / lanes->seconds, text));
    ot_page_end_row(p->out);
}

/* The share of a step in which each lane works. Lanes without work have no column. */
static void put_lanes(const struct page *p, const struct ot_history *h) {
    const char *columns[1 + OT_LANE_COUNT] = {"lanes busy"};
    struct ot_fact_lanes lanes[OT_FACT_LANES];
    bool has_any = false;
    for (int i = 0; i < OT_FACT_LANES; i++) {
        lanes[i] = ot_fact_lanes(h, i);
        has_any = has_any || lanes[i].seconds > 0;
        for (int l = 0; l < OT_LANE_COUNT; l++)
            if (lanes[i].seconds > 0 && lanes[i].busy[l] >= 0.0005 * lanes[i].seconds)
                columns[1 + l] = ot_lane_name((enum ot_lane_id)l);
    }
    if (!has_any)
        return;
    put(p, "<h3>Lanes</h3>\n");
    ot_page_begin_table(p->out, columns, 1 + OT_LANE_COUNT);
    for (int i = 0; i < OT_FACT_LANES; i++)
        put_lane_row(p, &lanes[i], columns);
    ot_page_end_table(p->out);
}

static void put_evals(const struct page *p, const struct ot_history *h) {
    const char *columns[] = {"after step", "loss", "perplexity", "accuracy", NULL,
                             NULL,         NULL,   "rows",       "time"};
    enum { COLUMNS = sizeof columns / sizeof *columns };
    const struct ot_history_eval *best = ot_history_best(h);
    char text[OT_TEXT_BYTES], name[48];
    int first = h->n_evals > OT_RUN_PAGE_EVALS ? h->n_evals - OT_RUN_PAGE_EVALS : 0;
    if (h->n_evals == 0)
        return;
    for (int i = 0; i < h->n_evals; i++) {
        columns[4] = isnan(h->evals[i].margin) ? columns[4] : "margin";
        columns[5] = isnan(h->evals[i].exact_match) ? columns[5] : "exact match";
        columns[6] = isnan(h->evals[i].equal_results) ? columns[6] : "equal results";
    }
    columns[2] = columns[4] ? NULL : columns[2];
    put(p, "<h3>Evaluations</h3>\n");
    if (first > 0)
        ot_string_append_format(p->out, "<p>The best one, and the last %d of %d.</p>\n", OT_RUN_PAGE_EVALS,
                                h->n_evals);
    ot_page_begin_table(p->out, columns, COLUMNS);
    for (int i = 0; i < h->n_evals; i++) {
        const struct ot_history_eval *e = &h->evals[i];
        const double values[] = {e->accuracy, e->margin, e->exact_match, e->equal_results};
        if (i < first && e != best)
            continue;
        snprintf(name, sizeof name, "%s%lld", e == best ? "★ " : "", (long long)e->step);
        ot_page_begin_row(p->out, e == best ? "front" : NULL, name);
        ot_page_cell(p->out, columns[1], real(e->loss, "%.4f", text));
        if (columns[2])
            ot_page_cell(p->out, columns[2], real(exp(e->loss), "%.4g", text));
        for (int c = 3; c < 7; c++)
            if (columns[c])
                ot_page_cell(p->out, columns[c],
                             c == 4 ? real(e->margin, "%.3f", text) : share(values[c - 3], text));
        ot_page_cell(p->out, columns[7], ot_text_count(e->rows, text));
        ot_page_cell(p->out, columns[8], seconds(e->seconds, text));
        ot_page_end_row(p->out);
    }
    ot_page_end_table(p->out);
}

static void put_text(const struct page *p, const char *heading, const struct ot_json *value) {
    const char *text = ot_json_string(value, NULL);
    char *cut = text ? strndup(text, OT_RUN_PAGE_SAMPLE_BYTES) : NULL;
    if (!text)
        return;
    size_t n = cut ? strlen(cut) : 0;
    while (n > 0 && text[n] && (text[n] & 0xc0) == 0x80) /* do not cut inside a character */
        n--;
    ot_page_put(p->out, "p", heading);
    put(p, "<pre>");
    if (cut)
        cut[n] = '\0';
    ot_page_escape(p->out, cut ? cut : "");
    put(p, cut && text[n] ? " ...</pre>\n" : "</pre>\n");
    free(cut);
}

static void put_samples(const struct page *p, const struct ot_history *h) {
    char text[64];
    if (h->n_samples > 0)
        put(p, "<h3>Samples</h3>\n");
    for (int i = 0; i < h->n_samples; i++) {
        snprintf(text, sizeof text,
                 "Prompt, after step %lld:", (long long)ot_json_int(ot_json_get(h->samples[i], "step"), 0));
        put_text(p, text, ot_json_get(h->samples[i], "prompt"));
        put_text(p, "Answer:", ot_json_get(h->samples[i], "text"));
    }
}

void ot_run_page_put(struct ot_history *const *runs, int n, struct ot_string_builder *out) {
    const struct page p = {runs, n, out};
    char text[OT_FACT_BYTES];
    if (n == 1)
        snprintf(text, sizeof text, "Run %s", runs[0]->name);
    else
        snprintf(text, sizeof text, "%d runs", n);
    ot_page_begin(out, n == 1 ? runs[0]->name : text, "report", text);
    if (n == 1)
        put_facts(&p, runs[0]);
    put_runs(&p);
    put_curves(&p);
    put_options(&p);
    for (int i = 0; i < n; i++) {
        if (n > 1) {
            ot_page_put(out, "h2", runs[i]->name);
            put_facts(&p, runs[i]);
        } else {
            put(&p, "<h2>Step, memory and lanes</h2>\n");
        }
        put_prediction(&p, runs[i]);
        put_memory(&p, runs[i]);
        put_lanes(&p, runs[i]);
        put_evals(&p, runs[i]);
        put_samples(&p, runs[i]);
    }
    ot_page_end(out, "Written by offload-train " OT_VERSION " report, from the log.jsonl of each run.");
}

#include "src/plan/bench_plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "src/page/plot.h"

const char *ot_bench_time_name(int time) {
    static const char *const names[OT_BENCH_TIMES] = {"compute",   "h2d",        "d2h", "cpu",
                                                      "nvme read", "nvme write", "host"};
    return names[time];
}

/* As in the summary of the trace: time in which compute waits for its own lane counts as time of the host. */
double ot_bench_time(const struct ot_bench_lanes *lanes, int time) {
    static const enum ot_lane_id of[OT_BENCH_TIMES] = {OT_LANE_COMPUTE, OT_LANE_H2D,       OT_LANE_D2H,
                                                       OT_LANE_CPU,     OT_LANE_NVME_READ, OT_LANE_NVME_WRITE,
                                                       OT_LANE_COMPUTE};
    if (time == 0)
        return lanes->busy[OT_LANE_COMPUTE];
    return lanes->exposed[of[time]] + (time == OT_BENCH_TIMES - 1 ? lanes->exposed_host : 0);
}

static double sum_parts(const struct ot_bench_lanes *lanes) {
    double sum = 0;
    for (int time = 0; time < OT_BENCH_TIMES; time++)
        sum += ot_bench_time(lanes, time);
    return sum;
}

static bool is_shown(const struct ot_bench *bench, int index, int64_t step_tokens) {
    const struct ot_bench_result *r = &bench->results[index];
    return r->status == OT_BENCH_DONE && (!step_tokens || r->point.step_tokens == step_tokens);
}

/* ---- seconds on an axis ---- */

struct unit {
    const char *name;
    double seconds;
};

static struct unit unit_for(double most_seconds) {
    return most_seconds < 1 ? (struct unit){"ms", 1e-3} : (struct unit){"s", 1};
}

static void describe_point(const struct ot_bench_result *r, char *text, size_t bytes) {
    char label[OT_BENCH_LABEL_BYTES], peak[OT_TEXT_BYTES], time[OT_TEXT_BYTES], fast[OT_TEXT_BYTES],
        slow[OT_TEXT_BYTES];
    snprintf(text, bytes, "%s: %s a step (%s to %s), peak %s", ot_bench_label(&r->point, label),
             ot_bench_seconds(r->step_seconds, time), ot_bench_seconds(r->fastest_seconds, fast),
             ot_bench_seconds(r->slowest_seconds, slow), ot_text_bytes(r->device_bytes, peak));
}

/* ---- memory against time ---- */

/* Labels of memory are powers of two: "512M", "8G". */
static void draw_bytes(struct ot_string_builder *out, const struct ot_plot_axis *x) {
    int low = (int)lround(log2(x->low)), high = (int)lround(log2(x->high)), stride = (high - low + 5) / 6;
    for (int power = low; power <= high; power += stride) {
        char text[32];
        double at = ot_plot_at(x, exp2(power));
        snprintf(text, sizeof text, "%d%c", 1 << (power % 10), "BKMGTP"[power / 10]);
        ot_plot_line(out, "grid", at, OT_PLOT_TOP, at, OT_PLOT_BOTTOM);
        ot_plot_text(out, at, OT_PLOT_BOTTOM + 18, "middle", text);
    }
}

/* Draws the shortest time for each amount of memory: a staircase that goes down to the right. */
static void draw_front(const struct ot_bench *bench, int64_t step_tokens, const struct ot_plot_axis *x,
                       const struct ot_plot_axis *y, double unit, struct ot_string_builder *out) {
    int order[OT_BENCH_MAX_POINTS], n = 0;
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, step_tokens) && ot_bench_is_on_front(bench, i)) {
            int at = n++;
            for (; at > 0 && bench->results[order[at - 1]].device_bytes > bench->results[i].device_bytes;
                 at--)
                order[at] = order[at - 1];
            order[at] = i;
        }
    ot_string_append_text(out, "<path class=\"front\" d=\"");
    for (int i = 0; i < n; i++) {
        const struct ot_bench_result *r = &bench->results[order[i]];
        double px = ot_plot_at(x, (double)r->device_bytes), py = ot_plot_at(y, r->step_seconds / unit);
        if (i == 0)
            ot_string_append_format(out, "M%.1f,%.1f", px, py);
        else
            ot_string_append_format(out, "H%.1fV%.1f", px, py);
    }
    ot_string_append_format(out, "H%d\"/>\n", OT_PLOT_RIGHT);
}

void ot_bench_plot_memory(const struct ot_bench *bench, int64_t step_tokens, int n,
                          struct ot_string_builder *out) {
    double least = INFINITY, most = 0, slowest = 0;
    char id[16], title[128], tokens[OT_TEXT_BYTES], text[256], y_name[48];
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, step_tokens)) {
            const struct ot_bench_result *r = &bench->results[i];
            least = fmin(least, (double)r->device_bytes);
            most = fmax(most, (double)r->device_bytes);
            slowest = fmax(slowest, fmax(r->step_seconds, r->slowest_seconds));
        }
    if (most == 0)
        return;
    struct unit unit = unit_for(slowest);
    double low = exp2(floor(log2(least))), high = exp2(ceil(log2(most)));
    struct ot_plot_axis x = {low, high > low ? high : 2 * low, OT_PLOT_LEFT, OT_PLOT_RIGHT, true};
    struct ot_plot_axis y = {0, 1.08 * slowest / unit.seconds, OT_PLOT_BOTTOM, OT_PLOT_TOP, false};
    snprintf(id, sizeof id, "memory%d", n);
    snprintf(title, sizeof title, "Memory against time, %s tokens a step",
             ot_text_count(step_tokens, tokens));
    snprintf(y_name, sizeof y_name, "time of a step, %s", unit.name);
    ot_plot_begin(out, id, OT_PLOT_HEIGHT, title,
                  "One point for each plan: further left is less device memory, further down is less time. "
                  "The grey staircase is the Pareto front: the shortest time for each amount of memory.");
    draw_bytes(out, &x);
    ot_plot_rows(out, &y);
    ot_plot_axes(out, "peak of device memory", y_name);
    draw_front(bench, step_tokens, &x, &y, unit.seconds, out);
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, step_tokens)) {
            const struct ot_bench_result *r = &bench->results[i];
            double at = ot_plot_at(&x, (double)r->device_bytes);
            describe_point(r, text, sizeof text);
            ot_plot_line(out, "spread", at, ot_plot_at(&y, r->fastest_seconds / unit.seconds), at,
                         ot_plot_at(&y, r->slowest_seconds / unit.seconds));
            ot_plot_marker(out, r->point.mix, at, ot_plot_at(&y, r->step_seconds / unit.seconds), text);
        }
    ot_plot_end(out);
}

/* ---- time by lane ---- */

static void draw_bar(struct ot_string_builder *out, const struct ot_bench_lanes *lanes,
                     const struct ot_plot_axis *x, double y, double height) {
    double until = 0;
    for (int time = 0; time < OT_BENCH_TIMES; time++) {
        char text[OT_TEXT_BYTES], tooltip[64];
        double seconds = ot_bench_time(lanes, time), from = ot_plot_at(x, until);
        until += seconds;
        double width = ot_plot_at(x, until) - from;
        snprintf(tooltip, sizeof tooltip, "%s: %s", ot_bench_time_name(time),
                 ot_bench_seconds(seconds, text));
        if (width >= 0.05)
            ot_plot_bar(out, time, from, y, width, height, tooltip);
    }
}

void ot_bench_plot_lanes(const struct ot_bench *bench, int64_t step_tokens, int n,
                         struct ot_string_builder *out) {
    enum { ROW = 52, BAR = 18, THIN = 6, EDGE = 4 };
    int rows = 0;
    double longest = 0, at = 0;
    char id[16], title[128], text[128], tokens[OT_TEXT_BYTES], bytes[OT_TEXT_BYTES], seconds[OT_TEXT_BYTES];
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, step_tokens)) {
            rows++;
            longest = fmax(longest, fmax(sum_parts(&bench->results[i].lanes),
                                         sum_parts(&bench->results[i].predicted_lanes)));
        }
    if (!rows || longest == 0)
        return;
    struct ot_plot_axis x = {0, longest, EDGE, OT_PLOT_WIDTH - EDGE, false};
    snprintf(id, sizeof id, "lanes%d", n);
    snprintf(title, sizeof title, "Time by lane, %s tokens a step", ot_text_count(step_tokens, tokens));
    ot_plot_begin(out, id, rows * ROW, title,
                  "One bar for each plan: the time of a step, divided into computing and waiting for each "
                  "lane. The thin bar below it is the prediction.");
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, step_tokens)) {
            const struct ot_bench_result *r = &bench->results[i];
            const char *mix = ot_bench_mix_at(r->point.mix)->name;
            if (r->point.micro_sequences)
                snprintf(text, sizeof text, "%s, %lld x %lld at once", mix, (long long)r->micro_batches,
                         (long long)(r->micro_sequences * r->point.sequence_tokens));
            else
                snprintf(text, sizeof text, "%s · %s", mix, ot_text_bytes(r->device_bytes, bytes));
            ot_plot_text(out, EDGE, at + 16, "start", text);
            ot_plot_text(out, OT_PLOT_WIDTH - EDGE, at + 16, "end",
                         ot_bench_seconds(r->step_seconds, seconds));
            draw_bar(out, &r->lanes, &x, at + 20, BAR);
            draw_bar(out, &r->predicted_lanes, &x, at + 20 + BAR + 1, THIN);
            at += ROW;
        }
    ot_plot_end(out);
}

/* ---- predicted against measured ---- */

static int compare_reals(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

struct ot_bench_errors ot_bench_prediction_errors(const struct ot_bench *bench) {
    struct ot_bench_errors errors = {0};
    double all[OT_BENCH_MAX_POINTS];
    for (int i = 0; i < bench->n; i++) {
        const struct ot_bench_result *r = &bench->results[i];
        if (r->status == OT_BENCH_DONE && r->predicted_seconds > 0)
            all[errors.n++] = fabs(r->predicted_seconds - r->step_seconds) / r->step_seconds;
    }
    if (errors.n == 0)
        return errors;
    qsort(all, (size_t)errors.n, sizeof *all, compare_reals);
    errors.median = (all[(errors.n - 1) / 2] + all[errors.n / 2]) / 2;
    errors.worst = all[errors.n - 1];
    return errors;
}

/* Draws the band of predictions within a tenth of the measured time. */
static void draw_band(struct ot_string_builder *out, const struct ot_plot_axis *x,
                      const struct ot_plot_axis *y) {
    double up = ot_plot_at(y, y->low) - ot_plot_at(y, y->low * 1.1);
    ot_string_append_format(
        out, "<path clip-path=\"url(#inside)\" class=\"band\" d=\"M%.1f,%.1fL%.1f,%.1fv%.1fL%.1f,%.1fz\"/>\n",
        x->from, y->from - up, x->to, y->to - up, 2 * up, x->from, y->from + up);
    ot_plot_line(out, "front", x->from, y->from, x->to, y->to);
}

void ot_bench_plot_prediction(const struct ot_bench *bench, struct ot_string_builder *out) {
    double least = INFINITY, most = 0;
    char text[256], more[320], x_name[48], y_name[48], seconds[OT_TEXT_BYTES];
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, 0) && bench->results[i].predicted_seconds > 0) {
            const struct ot_bench_result *r = &bench->results[i];
            least = fmin(least, fmin(r->fastest_seconds, r->predicted_seconds));
            most = fmax(most, fmax(r->slowest_seconds, r->predicted_seconds));
        }
    if (most == 0)
        return;
    struct unit unit = unit_for(most);
    struct ot_plot_axis x = {least / unit.seconds / 1.2, most / unit.seconds * 1.2, OT_PLOT_LEFT,
                             OT_PLOT_RIGHT, true};
    struct ot_plot_axis y = {x.low, x.high, OT_PLOT_BOTTOM, OT_PLOT_TOP, true};
    snprintf(x_name, sizeof x_name, "measured, %s", unit.name);
    snprintf(y_name, sizeof y_name, "predicted, %s", unit.name);
    ot_plot_begin(out, "prediction", OT_PLOT_HEIGHT, "Predicted against measured time of a step",
                  "One point for each plan. On the line, the step took as long as predicted; above it, less "
                  "time; below it, more. The grey band is a tenth to either side.");
    ot_string_append_format(
        out, "<clipPath id=\"inside\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n",
        OT_PLOT_LEFT, OT_PLOT_TOP, OT_PLOT_RIGHT - OT_PLOT_LEFT, OT_PLOT_BOTTOM - OT_PLOT_TOP);
    draw_band(out, &x, &y);
    ot_plot_columns(out, &x);
    ot_plot_rows(out, &y);
    ot_plot_axes(out, x_name, y_name);
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, 0) && bench->results[i].predicted_seconds > 0) {
            const struct ot_bench_result *r = &bench->results[i];
            describe_point(r, text, sizeof text);
            snprintf(more, sizeof more, "%s, %s predicted", text,
                     ot_bench_seconds(r->predicted_seconds, seconds));
            double at = ot_plot_at(&y, r->predicted_seconds / unit.seconds);
            ot_plot_line(out, "spread", ot_plot_at(&x, r->fastest_seconds / unit.seconds), at,
                         ot_plot_at(&x, r->slowest_seconds / unit.seconds), at);
            ot_plot_marker(out, r->point.mix, ot_plot_at(&x, r->step_seconds / unit.seconds), at, more);
        }
    ot_plot_end(out);
}

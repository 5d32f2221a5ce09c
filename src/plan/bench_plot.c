#include "src/plan/bench_plot.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* The area of a plot with axes, in the units of the view box. */
#define SPREAD_COLOUR "#111"
enum { LEFT = 56, RIGHT = 336, TOP = 14, BOTTOM = 244, HEIGHT = 292 };

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

static void draw_tick_text(struct ot_string_builder *out, double x, double y, const char *anchor,
                           double value) {
    char text[32];
    snprintf(text, sizeof text, "%g", value);
    ot_svg_text(out, x, y, anchor, text);
}

static void draw_line(struct ot_string_builder *out, double x1, double y1, double x2, double y2,
                      const char *colour) {
    ot_string_append_format(out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"%s\"/>\n",
                            x1, y1, x2, y2, colour);
}

/* Draws horizontal grid lines and their numbers. */
static void draw_rows(struct ot_string_builder *out, const struct ot_svg_axis *y) {
    double ticks[OT_SVG_MOST_TICKS];
    int n = ot_svg_ticks(y, ticks);
    for (int i = 0; i < n; i++) {
        double at = ot_svg_at(y, ticks[i]);
        draw_line(out, LEFT, at, RIGHT, at, "#ddd");
        draw_tick_text(out, LEFT - 6, at + 5, "end", ticks[i]);
    }
}

static void draw_columns(struct ot_string_builder *out, const struct ot_svg_axis *x) {
    double ticks[OT_SVG_MOST_TICKS];
    int n = ot_svg_ticks(x, ticks);
    for (int i = 0; i < n; i++) {
        double at = ot_svg_at(x, ticks[i]);
        draw_line(out, at, TOP, at, BOTTOM, "#ddd");
        draw_tick_text(out, at, BOTTOM + 18, "middle", ticks[i]);
    }
}

static void draw_axes(struct ot_string_builder *out, const char *x_name, const char *y_name) {
    draw_line(out, LEFT, BOTTOM, RIGHT, BOTTOM, "#444");
    draw_line(out, LEFT, TOP, LEFT, BOTTOM, "#444");
    ot_svg_text(out, (LEFT + RIGHT) / 2.0, BOTTOM + 40, "middle", x_name);
    ot_string_append_format(out, "<g transform=\"translate(12,%d) rotate(-90)\">", (TOP + BOTTOM) / 2);
    ot_svg_text(out, 0, 2, "middle", y_name);
    ot_string_append_text(out, "</g>\n");
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
static void draw_bytes(struct ot_string_builder *out, const struct ot_svg_axis *x) {
    int low = (int)lround(log2(x->low)), high = (int)lround(log2(x->high)), stride = (high - low + 5) / 6;
    for (int power = low; power <= high; power += stride) {
        char text[32];
        double at = ot_svg_at(x, exp2(power));
        snprintf(text, sizeof text, "%d%c", 1 << (power % 10), "BKMGTP"[power / 10]);
        draw_line(out, at, TOP, at, BOTTOM, "#ddd");
        ot_svg_text(out, at, BOTTOM + 18, "middle", text);
    }
}

/* Draws the shortest time for each amount of memory: a staircase that goes down to the right. */
static void draw_front(const struct ot_bench *bench, int64_t step_tokens, const struct ot_svg_axis *x,
                       const struct ot_svg_axis *y, double unit, struct ot_string_builder *out) {
    int order[OT_BENCH_MAX_POINTS], n = 0;
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, step_tokens) && ot_bench_is_on_front(bench, i)) {
            int at = n++;
            for (; at > 0 && bench->results[order[at - 1]].device_bytes > bench->results[i].device_bytes;
                 at--)
                order[at] = order[at - 1];
            order[at] = i;
        }
    ot_string_append_text(out, "<path fill=\"none\" stroke=\"#888\" stroke-width=\"3\" d=\"");
    for (int i = 0; i < n; i++) {
        const struct ot_bench_result *r = &bench->results[order[i]];
        double px = ot_svg_at(x, (double)r->device_bytes), py = ot_svg_at(y, r->step_seconds / unit);
        if (i == 0)
            ot_string_append_format(out, "M%.1f,%.1f", px, py);
        else
            ot_string_append_format(out, "H%.1fV%.1f", px, py);
    }
    ot_string_append_format(out, "H%d\"/>\n", RIGHT);
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
    struct ot_svg_axis x = {low, high > low ? high : 2 * low, LEFT, RIGHT, true};
    struct ot_svg_axis y = {0, 1.08 * slowest / unit.seconds, BOTTOM, TOP, false};
    snprintf(id, sizeof id, "memory%d", n);
    snprintf(title, sizeof title, "Memory against time, %s tokens a step",
             ot_text_count(step_tokens, tokens));
    snprintf(y_name, sizeof y_name, "time of a step, %s", unit.name);
    ot_svg_begin(out, id, HEIGHT, title,
                 "One point for each plan: further left is less device memory, further down is less time. "
                 "The grey staircase is the Pareto front: the shortest time for each amount of memory.");
    draw_bytes(out, &x);
    draw_rows(out, &y);
    draw_axes(out, "peak of device memory", y_name);
    draw_front(bench, step_tokens, &x, &y, unit.seconds, out);
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, step_tokens)) {
            const struct ot_bench_result *r = &bench->results[i];
            double at = ot_svg_at(&x, (double)r->device_bytes);
            describe_point(r, text, sizeof text);
            draw_line(out, at, ot_svg_at(&y, r->fastest_seconds / unit.seconds), at,
                      ot_svg_at(&y, r->slowest_seconds / unit.seconds), SPREAD_COLOUR);
            ot_svg_marker(out, r->point.mix, at, ot_svg_at(&y, r->step_seconds / unit.seconds), text);
        }
    ot_svg_end(out);
}

/* ---- time by lane ---- */

static void draw_bar(struct ot_string_builder *out, const struct ot_bench_lanes *lanes,
                     const struct ot_svg_axis *x, double y, double height) {
    double until = 0;
    for (int time = 0; time < OT_BENCH_TIMES; time++) {
        char text[OT_TEXT_BYTES];
        double seconds = ot_bench_time(lanes, time), from = ot_svg_at(x, until);
        until += seconds;
        double width = ot_svg_at(x, until) - from;
        if (width >= 0.05)
            ot_string_append_format(out,
                                    "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\">"
                                    "<title>%s: %s</title></rect>\n",
                                    from, y, width, height, ot_svg_fill(time), ot_bench_time_name(time),
                                    ot_bench_seconds(seconds, text));
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
    struct ot_svg_axis x = {0, longest, EDGE, OT_SVG_WIDTH - EDGE, false};
    snprintf(id, sizeof id, "lanes%d", n);
    snprintf(title, sizeof title, "Time by lane, %s tokens a step", ot_text_count(step_tokens, tokens));
    ot_svg_begin(out, id, rows * ROW, title,
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
            ot_svg_text(out, EDGE, at + 16, "start", text);
            ot_svg_text(out, OT_SVG_WIDTH - EDGE, at + 16, "end", ot_bench_seconds(r->step_seconds, seconds));
            draw_bar(out, &r->lanes, &x, at + 20, BAR);
            draw_bar(out, &r->predicted_lanes, &x, at + 20 + BAR + 1, THIN);
            at += ROW;
        }
    ot_svg_end(out);
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
static void draw_band(struct ot_string_builder *out, const struct ot_svg_axis *x,
                      const struct ot_svg_axis *y) {
    double up = ot_svg_at(y, y->low) - ot_svg_at(y, y->low * 1.1);
    ot_string_append_format(
        out, "<path clip-path=\"url(#inside)\" fill=\"#ddd\" d=\"M%.1f,%.1fL%.1f,%.1fv%.1fL%.1f,%.1fz\"/>\n",
        x->from, y->from - up, x->to, y->to - up, 2 * up, x->from, y->from + up);
    ot_string_append_format(
        out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\" stroke=\"#888\" stroke-width=\"2\"/>\n",
        x->from, y->from, x->to, y->to);
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
    struct ot_svg_axis x = {least / unit.seconds / 1.2, most / unit.seconds * 1.2, LEFT, RIGHT, true};
    struct ot_svg_axis y = {x.low, x.high, BOTTOM, TOP, true};
    snprintf(x_name, sizeof x_name, "measured, %s", unit.name);
    snprintf(y_name, sizeof y_name, "predicted, %s", unit.name);
    ot_svg_begin(out, "prediction", HEIGHT, "Predicted against measured time of a step",
                 "One point for each plan. On the line, the step took as long as predicted; above it, less "
                 "time; below it, more. The grey band is a tenth to either side.");
    ot_string_append_format(
        out, "<clipPath id=\"inside\"><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/></clipPath>\n",
        LEFT, TOP, RIGHT - LEFT, BOTTOM - TOP);
    draw_band(out, &x, &y);
    draw_columns(out, &x);
    draw_rows(out, &y);
    draw_axes(out, x_name, y_name);
    for (int i = 0; i < bench->n; i++)
        if (is_shown(bench, i, 0) && bench->results[i].predicted_seconds > 0) {
            const struct ot_bench_result *r = &bench->results[i];
            describe_point(r, text, sizeof text);
            snprintf(more, sizeof more, "%s, %s predicted", text,
                     ot_bench_seconds(r->predicted_seconds, seconds));
            double at = ot_svg_at(&y, r->predicted_seconds / unit.seconds);
            draw_line(out, ot_svg_at(&x, r->fastest_seconds / unit.seconds), at,
                      ot_svg_at(&x, r->slowest_seconds / unit.seconds), at, SPREAD_COLOUR);
            ot_svg_marker(out, r->point.mix, ot_svg_at(&x, r->step_seconds / unit.seconds), at, more);
        }
    ot_svg_end(out);
}

/* ---- SVG: text ---- */

static const char *entity(char c) {
    switch (c) {
    case '<':
        return "&lt;";
    case '>':
        return "&gt;";
    case '&':
        return "&amp;";
    case '"':
        return "&quot;";
    case '\'':
        return "&#39;";
    default:
        return (unsigned char)c < 0x20 || c == 0x7f ? " " : NULL;
    }
}

void ot_svg_escape(struct ot_string_builder *out, const char *text) {
    for (; *text; text++) {
        const char *as = entity(*text);
        if (as)
            ot_string_append_text(out, as);
        else
            ot_string_append(out, text, 1);
    }
}

void ot_svg_begin(struct ot_string_builder *out, const char *id, int height, const char *title,
                  const char *description) {
    ot_string_append_format(out,
                            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\" "
                            "font-size=\"%d\">\n<title id=\"%s-t\">",
                            OT_SVG_WIDTH, height, id, id, OT_SVG_FONT, id);
    ot_svg_escape(out, title);
    ot_string_append_format(out, "</title>\n<desc id=\"%s-d\">", id);
    ot_svg_escape(out, description);
    ot_string_append_text(out, "</desc>\n");
}

void ot_svg_end(struct ot_string_builder *out) {
    ot_string_append_text(out, "</svg>\n");
}

void ot_svg_text(struct ot_string_builder *out, double x, double y, const char *anchor, const char *text) {
    ot_string_append_format(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    ot_svg_escape(out, text);
    ot_string_append_text(out, "</text>\n");
}

/* ---- markers ---- */

static const struct {
    const char *colour, *path; /* around 0,0 */
} markers[OT_SVG_MARKERS] = {
    {"#0072B2", "M-6,0a6,6 0 1,0 12,0a6,6 0 1,0 -12,0z"}, /* circle */
    {"#E69F00", "M-5.5,-5.5h11v11h-11z"},                 /* square */
    {"#009E73", "M0,-7l6.5,12h-13z"},                     /* triangle */
    {"#D55E00", "M0,-7.5l7.5,7.5l-7.5,7.5l-7.5,-7.5z"},   /* diamond */
    {"#CC79A7", "M0,7l6.5,-12h-13z"},                     /* triangle, down */
    {"#000000", "M-2,-7h4v5h5v4h-5v5h-4v-5h-5v-4h5z"},    /* cross */
};

void ot_svg_marker(struct ot_string_builder *out, int index, double x, double y, const char *tooltip) {
    ot_string_append_format(out,
                            "<path transform=\"translate(%.1f,%.1f)\" d=\"%s\" fill=\"%s\" stroke=\"#fff\">"
                            "<title>",
                            x, y, markers[index].path, markers[index].colour);
    ot_svg_escape(out, tooltip);
    ot_string_append_text(out, "</title></path>\n");
}

void ot_svg_marker_key(struct ot_string_builder *out, int index) {
    ot_string_append_format(out,
                            "<svg class=\"key\" viewBox=\"-8 -8 16 16\" aria-hidden=\"true\"><path d=\"%s\" "
                            "fill=\"%s\"/></svg>",
                            markers[index].path, markers[index].colour);
}

/* ---- fills ---- */

static const struct {
    const char *fill, *colour; /* of a hatching: its colour; NULL: solid */
} fills[OT_SVG_FILLS] = {
    {"#0072B2", NULL},           {"#E69F00", NULL}, {"url(#hatch2)", "#56B4E9"}, {"#009E73", NULL},
    {"url(#hatch4)", "#D55E00"}, {"#CC79A7", NULL}, {"url(#hatch6)", "#777777"},
};

const char *ot_svg_fill(int index) {
    return fills[index].fill;
}

void ot_svg_fill_patterns(struct ot_string_builder *out) {
    ot_string_append_text(out, "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\n");
    for (int i = 0; i < OT_SVG_FILLS; i++)
        if (fills[i].colour)
            ot_string_append_format(out,
                                    "<pattern id=\"hatch%d\" width=\"6\" height=\"6\" "
                                    "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(%d)\">"
                                    "<rect width=\"6\" height=\"6\" fill=\"#fff\"/>"
                                    "<rect width=\"4\" height=\"6\" fill=\"%s\"/></pattern>\n",
                                    i, 45 * (i - 3), fills[i].colour);
    ot_string_append_text(out, "</defs></svg>\n");
}

void ot_svg_fill_key(struct ot_string_builder *out, int index) {
    ot_string_append_format(out,
                            "<svg class=\"key\" viewBox=\"0 0 16 16\" aria-hidden=\"true\">"
                            "<rect width=\"16\" height=\"16\" fill=\"%s\"/></svg>",
                            fills[index].fill);
}

/* ---- axes ---- */

double ot_svg_at(const struct ot_svg_axis *axis, double value) {
    double share = axis->logarithmic ? log(value / axis->low) / log(axis->high / axis->low)
                                     : (value - axis->low) / (axis->high - axis->low);
    return axis->from + share * (axis->to - axis->from);
}

/* Multiples of 1, 2 or 5 times a power of ten. */
static int linear_ticks(const struct ot_svg_axis *axis, double ticks[OT_SVG_MOST_TICKS]) {
    double rough = (axis->high - axis->low) / (OT_SVG_MOST_TICKS - 1), ten = pow(10, floor(log10(rough)));
    double step = rough <= ten ? ten : rough <= 2 * ten ? 2 * ten : rough <= 5 * ten ? 5 * ten : 10 * ten;
    int n = 0;
    for (double i = ceil(axis->low / step - 1e-9);
         n < OT_SVG_MOST_TICKS && i * step <= axis->high * (1 + 1e-9); i++)
        ticks[n++] = i * step + 0.0; /* no minus zero */
    return n;
}

/* 1, 2, 5; or 1, 3; or 1 times powers of ten; fewer where even these are too many. Less than a power of ten
 * is nearly linear. */
static int log_ticks(const struct ot_svg_axis *axis, double ticks[OT_SVG_MOST_TICKS]) {
    static const double mantissas[][4] = {{1, 2, 5, 0}, {1, 3, 0}, {1, 0}};
    if (axis->high / axis->low < 10)
        return linear_ticks(axis, ticks);
    int first = (int)floor(log10(axis->low)), last = (int)ceil(log10(axis->high));
    for (int set = 0, stride = 1; stride < 64; set < 2 ? set++ : (stride *= 2)) {
        int n = 0;
        for (int power = first; power <= last; power += stride)
            for (const double *m = mantissas[set]; *m; m++) {
                double tick = *m * pow(10, power);
                bool inside = tick >= axis->low * (1 - 1e-9) && tick <= axis->high * (1 + 1e-9);
                if (inside && n < OT_SVG_MOST_TICKS)
                    ticks[n] = tick;
                n += inside;
            }
        if (n <= OT_SVG_MOST_TICKS)
            return n;
    }
    return 0;
}

int ot_svg_ticks(const struct ot_svg_axis *axis, double ticks[OT_SVG_MOST_TICKS]) {
    return axis->logarithmic ? log_ticks(axis, ticks) : linear_ticks(axis, ticks);
}

#include "src/page/plot.h"

#include <math.h>
#include <stdio.h>

#include "src/page/page.h"

void ot_plot_begin(struct ot_string_builder *out, const char *id, int height, const char *title,
                   const char *description) {
    ot_string_append_format(out,
                            "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-labelledby=\"%s-t %s-d\" "
                            "font-size=\"%d\">\n<title id=\"%s-t\">",
                            OT_PLOT_WIDTH, height, id, id, OT_PLOT_FONT, id);
    ot_page_escape(out, title);
    ot_string_append_format(out, "</title>\n<desc id=\"%s-d\">", id);
    ot_page_escape(out, description);
    ot_string_append_text(out, "</desc>\n");
}

void ot_plot_end(struct ot_string_builder *out) {
    ot_string_append_text(out, "</svg>\n");
}

void ot_plot_text(struct ot_string_builder *out, double x, double y, const char *anchor, const char *text) {
    ot_string_append_format(out, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">", x, y, anchor);
    ot_page_escape(out, text);
    ot_string_append_text(out, "</text>\n");
}

void ot_plot_line(struct ot_string_builder *out, const char *class, double x1, double y1, double x2,
                  double y2) {
    ot_string_append_format(out, "<line class=\"%s\" x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"/>\n",
                            class, x1, y1, x2, y2);
}

/* ---- markers ---- */

static const struct {
    const char *colour, *path; /* around 0,0 */
} markers[OT_PLOT_MARKERS] = {
    {"#0072B2", "M-6,0a6,6 0 1,0 12,0a6,6 0 1,0 -12,0z"},   /* circle */
    {"#E69F00", "M-5.5,-5.5h11v11h-11z"},                   /* square */
    {"#009E73", "M0,-7l6.5,12h-13z"},                       /* triangle */
    {"#D55E00", "M0,-7.5l7.5,7.5l-7.5,7.5l-7.5,-7.5z"},     /* diamond */
    {"#CC79A7", "M0,7l6.5,-12h-13z"},                       /* triangle, down */
    {"currentColor", "M-2,-7h4v5h5v4h-5v5h-4v-5h-5v-4h5z"}, /* cross */
};

void ot_plot_marker(struct ot_string_builder *out, int index, double x, double y, const char *tooltip) {
    ot_string_append_format(out,
                            "<path transform=\"translate(%.1f,%.1f)\" d=\"%s\" fill=\"%s\" class=\"marker\">"
                            "<title>",
                            x, y, markers[index].path, markers[index].colour);
    ot_page_escape(out, tooltip);
    ot_string_append_text(out, "</title></path>\n");
}

void ot_plot_marker_key(struct ot_string_builder *out, int index) {
    ot_string_append_format(out,
                            "<svg class=\"key\" viewBox=\"-8 -8 16 16\" aria-hidden=\"true\"><path d=\"%s\" "
                            "fill=\"%s\"/></svg>",
                            markers[index].path, markers[index].colour);
}

/* ---- fills ---- */

static const struct {
    const char *fill, *colour; /* of a hatching: its colour; NULL: solid */
} fills[OT_PLOT_FILLS] = {
    {"#0072B2", NULL},           {"#E69F00", NULL}, {"url(#hatch2)", "#56B4E9"}, {"#009E73", NULL},
    {"url(#hatch4)", "#D55E00"}, {"#CC79A7", NULL}, {"url(#hatch6)", "#777777"},
};

void ot_plot_fill_patterns(struct ot_string_builder *out) {
    ot_string_append_text(out, "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs>\n");
    for (int i = 0; i < OT_PLOT_FILLS; i++)
        if (fills[i].colour)
            ot_string_append_format(out,
                                    "<pattern id=\"hatch%d\" width=\"6\" height=\"6\" "
                                    "patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(%d)\">"
                                    "<rect class=\"back\" width=\"6\" height=\"6\"/>"
                                    "<rect width=\"4\" height=\"6\" fill=\"%s\"/></pattern>\n",
                                    i, 45 * (i - 3), fills[i].colour);
    ot_string_append_text(out, "</defs></svg>\n");
}

void ot_plot_fill_key(struct ot_string_builder *out, int index) {
    ot_string_append_format(out,
                            "<svg class=\"key\" viewBox=\"0 0 16 16\" aria-hidden=\"true\">"
                            "<rect width=\"16\" height=\"16\" fill=\"%s\"/></svg>",
                            fills[index].fill);
}

void ot_plot_bar(struct ot_string_builder *out, int index, double x, double y, double width, double height,
                 const char *tooltip) {
    ot_string_append_format(out,
                            "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" fill=\"%s\"><title>",
                            x, y, width, height, fills[index].fill);
    ot_page_escape(out, tooltip);
    ot_string_append_text(out, "</title></rect>\n");
}

/* ---- axes ---- */

double ot_plot_at(const struct ot_plot_axis *axis, double value) {
    double share = axis->logarithmic ? log(value / axis->low) / log(axis->high / axis->low)
                                     : (value - axis->low) / (axis->high - axis->low);
    return axis->from + share * (axis->to - axis->from);
}

/* Multiples of 1, 2 or 5 times a power of ten. */
static int linear_ticks(const struct ot_plot_axis *axis, double ticks[OT_PLOT_MOST_TICKS]) {
    double rough = (axis->high - axis->low) / (OT_PLOT_MOST_TICKS - 1), ten = pow(10, floor(log10(rough)));
    double step = rough <= ten ? ten : rough <= 2 * ten ? 2 * ten : rough <= 5 * ten ? 5 * ten : 10 * ten;
    int n = 0;
    for (double i = ceil(axis->low / step - 1e-9);
         n < OT_PLOT_MOST_TICKS && i * step <= axis->high * (1 + 1e-9); i++)
        ticks[n++] = i * step + 0.0; /* no minus zero */
    return n;
}

/* 1, 2, 5; or 1, 3; or 1 times powers of ten; fewer where even these are too many. Less than a power of ten
 * is nearly linear. */
static int log_ticks(const struct ot_plot_axis *axis, double ticks[OT_PLOT_MOST_TICKS]) {
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
                if (inside && n < OT_PLOT_MOST_TICKS)
                    ticks[n] = tick;
                n += inside;
            }
        if (n <= OT_PLOT_MOST_TICKS)
            return n;
    }
    return 0;
}

int ot_plot_ticks(const struct ot_plot_axis *axis, double ticks[OT_PLOT_MOST_TICKS]) {
    return axis->logarithmic ? log_ticks(axis, ticks) : linear_ticks(axis, ticks);
}

/* 2k, 1.5M, 3e-5: short enough for an axis. */
static void put_number(struct ot_string_builder *out, double x, double y, const char *anchor, double value) {
    char text[32];
    double size = fabs(value);
    int power = size > 0 && size < 0.01 ? (int)floor(log10(size) + 1e-9) : 0;
    if (power < 0)
        snprintf(text, sizeof text, "%.3ge%d", value / pow(10, power), power);
    else if (size >= 1000)
        snprintf(text, sizeof text, "%.4g%c",
                 size >= 1e9   ? value / 1e9
                 : size >= 1e6 ? value / 1e6
                               : value / 1e3,
                 size >= 1e9   ? 'G'
                 : size >= 1e6 ? 'M'
                               : 'k');
    else
        snprintf(text, sizeof text, "%.4g", value);
    ot_plot_text(out, x, y, anchor, text);
}

void ot_plot_rows(struct ot_string_builder *out, const struct ot_plot_axis *y) {
    double ticks[OT_PLOT_MOST_TICKS];
    int n = ot_plot_ticks(y, ticks);
    for (int i = 0; i < n; i++) {
        double at = ot_plot_at(y, ticks[i]);
        ot_plot_line(out, "grid", OT_PLOT_LEFT, at, OT_PLOT_RIGHT, at);
        put_number(out, OT_PLOT_LEFT - 6, at + 5, "end", ticks[i]);
    }
}

void ot_plot_columns(struct ot_string_builder *out, const struct ot_plot_axis *x) {
    double ticks[OT_PLOT_MOST_TICKS];
    int n = ot_plot_ticks(x, ticks);
    for (int i = 0; i < n; i++) {
        double at = ot_plot_at(x, ticks[i]);
        ot_plot_line(out, "grid", at, OT_PLOT_TOP, at, OT_PLOT_BOTTOM);
        put_number(out, at, OT_PLOT_BOTTOM + 18, "middle", ticks[i]);
    }
}

void ot_plot_axes(struct ot_string_builder *out, const char *x_name, const char *y_name) {
    ot_plot_line(out, "axis", OT_PLOT_LEFT, OT_PLOT_BOTTOM, OT_PLOT_RIGHT, OT_PLOT_BOTTOM);
    ot_plot_line(out, "axis", OT_PLOT_LEFT, OT_PLOT_TOP, OT_PLOT_LEFT, OT_PLOT_BOTTOM);
    ot_plot_text(out, (OT_PLOT_LEFT + OT_PLOT_RIGHT) / 2.0, OT_PLOT_BOTTOM + 40, "middle", x_name);
    ot_string_append_format(out, "<g transform=\"translate(11,%d) rotate(-90)\">",
                            (OT_PLOT_TOP + OT_PLOT_BOTTOM) / 2);
    ot_plot_text(out, 0, 0, "middle", y_name);
    ot_string_append_text(out, "</g>\n");
}

/* ---- lines ---- */

/* The dashes of the lines whose colours come again; the last entry is for all others. */
static const char *dashes_of(int index) {
    static const char *const dashes[] = {"", " stroke-dasharray=\"6 3\"", " stroke-dasharray=\"2 3\""};
    return dashes[index / OT_PLOT_MARKERS < 2 ? index / OT_PLOT_MARKERS : 2];
}

static void put_path(struct ot_string_builder *out, const struct ot_plot_series *s,
                     const struct ot_plot_axis *x, const struct ot_plot_axis *y) {
    ot_string_append_format(out, "<path class=\"%s\" stroke=\"%s\"%s d=\"", s->is_faint ? "faint" : "curve",
                            markers[s->index % OT_PLOT_MARKERS].colour, dashes_of(s->index));
    for (int i = 0; i < s->n; i++)
        ot_string_append_format(out, "%c%.1f,%.1f", i ? 'L' : 'M', ot_plot_at(x, s->x[i]),
                                ot_plot_at(y, s->y[i]));
    ot_string_append_text(out, "\"/>\n");
}

static void put_points(struct ot_string_builder *out, const struct ot_plot_series *s,
                       const struct ot_plot_axis *x, const struct ot_plot_axis *y) {
    char text[64];
    for (int i = 0; i < s->n; i++) {
        snprintf(text, sizeof text, "%.10g: %.5g", s->x[i], s->y[i]);
        ot_plot_marker(out, s->index % OT_PLOT_MARKERS, ot_plot_at(x, s->x[i]), ot_plot_at(y, s->y[i]), text);
    }
}

/* Leaves room above and below the values, and makes both ends different. */
static struct ot_plot_axis make_y(double low, double high) {
    struct ot_plot_axis y = {low, high, OT_PLOT_BOTTOM, OT_PLOT_TOP, low > 0 && high / low > 4};
    double room = high > low ? 0.05 * (high - low) : fmax(0.05 * fabs(low), 1e-9);
    y.low = y.logarithmic ? low / 1.1 : low - room;
    y.high = y.logarithmic ? high * 1.1 : high + room;
    if (low >= 0 && y.low < 0)
        y.low = 0;
    return y;
}

void ot_plot_put_lines(struct ot_string_builder *out, const struct ot_plot_lines *lines) {
    double left = INFINITY, right = -INFINITY, low = INFINITY, high = -INFINITY;
    for (int s = 0; s < lines->n; s++)
        for (int i = 0; i < lines->series[s].n; i++) {
            left = fmin(left, lines->series[s].x[i]);
            right = fmax(right, lines->series[s].x[i]);
            low = fmin(low, lines->series[s].y[i]);
            high = fmax(high, lines->series[s].y[i]);
        }
    if (!(left <= right))
        return;
    struct ot_plot_axis x = {left, right > left ? right : left + 1, OT_PLOT_LEFT, OT_PLOT_RIGHT, false};
    struct ot_plot_axis y = make_y(low, high);
    ot_plot_begin(out, lines->id, OT_PLOT_HEIGHT, lines->title, lines->description);
    ot_plot_columns(out, &x);
    ot_plot_rows(out, &y);
    ot_plot_axes(out, lines->x_name, lines->y_name);
    for (int s = 0; s < lines->n; s++)
        if (lines->series[s].has_markers)
            put_points(out, &lines->series[s], &x, &y);
        else if (lines->series[s].n > 0)
            put_path(out, &lines->series[s], &x, &y);
    ot_plot_end(out);
}

void ot_plot_line_key(struct ot_string_builder *out, int index) {
    ot_string_append_format(
        out,
        "<svg class=\"key\" viewBox=\"0 0 16 16\" aria-hidden=\"true\"><path class=\"curve\" "
        "stroke=\"%s\"%s d=\"M0,8H16\"/></svg>",
        markers[index % OT_PLOT_MARKERS].colour, dashes_of(index));
}

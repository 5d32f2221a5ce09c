#include "src/plan/bench_svg.h"

#include <math.h>

/* ---- text ---- */

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

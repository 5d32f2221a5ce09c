/* The three plots of a bench, as SVG: memory against time with the Pareto front, time by lane, predicted
 * against measured. Each plot shows the measured points, and has a title and a description for screen
 * readers. */
#ifndef OT_PLAN_BENCH_PLOT_H
#define OT_PLAN_BENCH_PLOT_H

#include <stdbool.h>

#include "src/base/text.h"
#include "src/plan/bench.h"

/* The uses of a step's time, in the order of the stacked bars and of their colours. */
enum { OT_BENCH_TIMES = 7 };
const char *ot_bench_time_name(int time); /* "compute", "h2d", ... */
double ot_bench_time(const struct ot_bench_lanes *lanes, int time);

/* Plots of the points with `step_tokens` tokens per step. `n` makes the ids of the images in a page
 * different. */
void ot_bench_plot_memory(const struct ot_bench *bench, int64_t step_tokens, int n,
                          struct ot_string_builder *out);
void ot_bench_plot_lanes(const struct ot_bench *bench, int64_t step_tokens, int n,
                         struct ot_string_builder *out);
/* Plot of all points. Draws nothing if no point has a prediction. */
void ot_bench_plot_prediction(const struct ot_bench *bench, struct ot_string_builder *out);

struct ot_bench_errors {
    int n;
    double median, worst; /* of |predicted - measured| / measured */
};
struct ot_bench_errors ot_bench_prediction_errors(const struct ot_bench *bench);

/* ---- SVG ---- */

/* Draws the plots of a bench: SVG for the inside of an HTML page, readable from a width of 360 pixels on.
 * Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any colour vision
 * tell apart; every coloured item also has a shape or a hatching.
 */

/* Units of the view box; a unit is a pixel on a phone. Text is never smaller than OT_SVG_FONT. */
enum { OT_SVG_WIDTH = 360, OT_SVG_FONT = 14 };

/* Writes <, >, &, " and ' as entities, and control characters, which HTML does not allow, as spaces. */
void ot_svg_escape(struct ot_string_builder *out, const char *text);

/* An image for those who see it and, with title and description, for those who do not. `id` is of the page's
 * own making and unique in it; the texts are escaped. */
void ot_svg_begin(struct ot_string_builder *out, const char *id, int height, const char *title,
                  const char *description);
void ot_svg_end(struct ot_string_builder *out);
/* anchor: "start", "middle" or "end". The text is escaped. */
void ot_svg_text(struct ot_string_builder *out, double x, double y, const char *anchor, const char *text);

/* Shapes of some 10 units, each in its colour; index from 0 on. A marker's tooltip is escaped. */
enum { OT_SVG_MARKERS = 6 };
void ot_svg_marker(struct ot_string_builder *out, int index, double x, double y, const char *tooltip);
/* A small image of the marker, for a legend in the page's text. */
void ot_svg_marker_key(struct ot_string_builder *out, int index);

/* Fills, solid and hatched in turn; index from 0 on. The hatchings need ot_svg_fill_patterns once a page. */
enum { OT_SVG_FILLS = 7 };
const char *ot_svg_fill(int index);
void ot_svg_fill_patterns(struct ot_string_builder *out);
void ot_svg_fill_key(struct ot_string_builder *out, int index);

/* An axis maps [low, high] to [from, to]; from > to if it goes up. Logarithmic: low > 0. */
struct ot_svg_axis {
    double low, high, from, to;
    bool logarithmic;
};
double ot_svg_at(const struct ot_svg_axis *axis, double value);

/* Round numbers on the axis, between MOST / 3 and MOST of them. Returns how many. */
enum { OT_SVG_MOST_TICKS = 7 };
int ot_svg_ticks(const struct ot_svg_axis *axis, double ticks[OT_SVG_MOST_TICKS]);

#endif

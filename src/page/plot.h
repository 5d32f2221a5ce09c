/* Plots as SVG, for the inside of a page: axes, markers, fills and lines. They can be read from a width of
 * 360 pixels on. Colours are those of Okabe and Ito ("Color Universal Design", 2008), which people with any
 * colour vision tell apart; every coloured item also has a shape, a hatching or dashes.
 */
#ifndef OT_PAGE_PLOT_H
#define OT_PAGE_PLOT_H

#include <stdbool.h>

#include "src/base/text.h"

/* Units of the view box; a unit is a pixel on a phone. Text is never smaller than OT_PLOT_FONT. */
enum { OT_PLOT_WIDTH = 360, OT_PLOT_FONT = 14 };
/* The area of a plot with axes, and the height with the names of the axes. */
enum { OT_PLOT_LEFT = 56, OT_PLOT_RIGHT = 336, OT_PLOT_TOP = 14, OT_PLOT_BOTTOM = 244, OT_PLOT_HEIGHT = 292 };

/* An image for those who see it and, with title and description, for those who do not. `id` is of the page's
 * own making and unique in it; the texts are escaped. */
void ot_plot_begin(struct ot_string_builder *out, const char *id, int height, const char *title,
                   const char *description);
void ot_plot_end(struct ot_string_builder *out);
/* anchor: "start", "middle" or "end". The text is escaped. */
void ot_plot_text(struct ot_string_builder *out, double x, double y, const char *anchor, const char *text);
/* class: of page.css, "grid", "axis", "spread" or "front". */
void ot_plot_line(struct ot_string_builder *out, const char *class, double x1, double y1, double x2,
                  double y2);

/* ---- axes ---- */

/* An axis maps [low, high] to [from, to]; from > to if it goes up. Logarithmic: low > 0. */
struct ot_plot_axis {
    double low, high, from, to;
    bool logarithmic;
};
double ot_plot_at(const struct ot_plot_axis *axis, double value);

/* Round numbers on the axis, between MOST / 3 and MOST of them. Returns how many. */
enum { OT_PLOT_MOST_TICKS = 7 };
int ot_plot_ticks(const struct ot_plot_axis *axis, double ticks[OT_PLOT_MOST_TICKS]);

/* Draw the grid lines of an axis, with their numbers, and then the axes with their names. */
void ot_plot_rows(struct ot_string_builder *out, const struct ot_plot_axis *y);
void ot_plot_columns(struct ot_string_builder *out, const struct ot_plot_axis *x);
void ot_plot_axes(struct ot_string_builder *out, const char *x_name, const char *y_name);

/* ---- markers and fills ---- */

/* Shapes of some 10 units, each in its colour; index from 0 on. A marker's tooltip is escaped. */
enum { OT_PLOT_MARKERS = 6 };
void ot_plot_marker(struct ot_string_builder *out, int index, double x, double y, const char *tooltip);
/* A small image of the marker, for a legend in the page's text. */
void ot_plot_marker_key(struct ot_string_builder *out, int index);

/* Fills, solid and hatched in turn; index from 0 on. The hatchings need ot_plot_fill_patterns once a page. */
enum { OT_PLOT_FILLS = 7 };
void ot_plot_fill_patterns(struct ot_string_builder *out);
void ot_plot_fill_key(struct ot_string_builder *out, int index);
/* A part of a bar; the tooltip is escaped. */
void ot_plot_bar(struct ot_string_builder *out, int index, double x, double y, double width, double height,
                 const char *tooltip);

/* ---- lines ---- */

/* Points in the order of x. The colour is that of the marker `index`; from OT_PLOT_MARKERS on the colours
 * return with dashes. */
struct ot_plot_series {
    int index, n;
    const double *x, *y; /* [n] finite */
    bool is_faint;       /* the background of another line */
    bool has_markers;    /* for few points: each has a marker, without a line */
};
/* A plot of several lines over one x axis. The y axis is logarithmic if all values are positive and the
 * largest is more than 4 times the smallest. Draws nothing without a point. */
struct ot_plot_lines {
    const char *id, *title, *description, *x_name, *y_name;
    int n;
    const struct ot_plot_series *series;
};
void ot_plot_put_lines(struct ot_string_builder *out, const struct ot_plot_lines *lines);
/* A small image of the line, for a legend. */
void ot_plot_line_key(struct ot_string_builder *out, int index);

#endif

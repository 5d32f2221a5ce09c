/* A curve over the steps of a run in bounded memory: when it has OT_CURVE_POINTS points, neighbours are
 * merged, and each later point covers twice as many steps. Plain data; zero it first. */
#ifndef OT_VIEW_CURVE_H
#define OT_VIEW_CURVE_H

#include <stdint.h>

enum { OT_CURVE_POINTS = 1000 };

struct ot_curve_point {
    int64_t first, n; /* its first step, and how many steps have a value */
    double sum, low, high;
};

struct ot_curve {
    int n;
    int64_t stride; /* the steps that a point covers; 0 counts as 1 */
    int64_t step;   /* the last one with a value */
    double last;    /* its value */
    struct ot_curve_point points[OT_CURVE_POINTS];
};

/* Steps come in order. A step that is not after the last one was made again by a resumed run: it removes the
 * points from this step on. In a merged point, steps before it are removed with it. Values that are not
 * finite and negative steps are ignored. */
void ot_curve_add(struct ot_curve *curve, int64_t step, double value);
double ot_curve_mean(const struct ot_curve_point *point);
double ot_curve_middle(const struct ot_curve_point *point); /* of its steps */

/* Writes the means and middles of all points. Returns their number. */
int ot_curve_line(const struct ot_curve *curve, double x[OT_CURVE_POINTS], double y[OT_CURVE_POINTS]);
/* Replaces each of n values by a mean of the values up to it, in which a value counts less the earlier it is:
 * `1 - 1 / span` of the value after it. */
void ot_curve_smooth(double *y, int n, double span);

#endif

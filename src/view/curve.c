#include "src/view/curve.h"

#include <math.h>
#include <stdbool.h>

static int64_t stride_of(const struct ot_curve *c) {
    return c->stride > 0 ? c->stride : 1;
}

static void merge(struct ot_curve_point *into, const struct ot_curve_point *p) {
    into->n += p->n;
    into->sum += p->sum;
    into->low = fmin(into->low, p->low);
    into->high = fmax(into->high, p->high);
}

/* Doubles the steps that a point covers. */
static void widen(struct ot_curve *c) {
    int n = 0;
    c->stride = 2 * stride_of(c);
    for (int i = 0; i < c->n; i++)
        if (n > 0 && c->points[n - 1].first / c->stride == c->points[i].first / c->stride)
            merge(&c->points[n - 1], &c->points[i]);
        else
            c->points[n++] = c->points[i];
    c->n = n;
}

void ot_curve_add(struct ot_curve *c, int64_t step, double value) {
    if (step < 0 || !isfinite(value))
        return;
    bool is_again = c->n > 0 && step <= c->step;
    while (is_again && c->n > 0 && c->points[c->n - 1].first / stride_of(c) >= step / stride_of(c))
        c->n--;
    struct ot_curve_point point = {step, 1, value, value, value};
    while (c->n == OT_CURVE_POINTS && c->points[c->n - 1].first / stride_of(c) != step / stride_of(c))
        widen(c);
    if (c->n > 0 && c->points[c->n - 1].first / stride_of(c) == step / stride_of(c))
        merge(&c->points[c->n - 1], &point);
    else
        c->points[c->n++] = point;
    c->step = step;
    c->last = value;
}

double ot_curve_mean(const struct ot_curve_point *point) {
    return point->sum / (double)point->n;
}

double ot_curve_middle(const struct ot_curve_point *point) {
    return (double)point->first + (double)(point->n - 1) / 2;
}

int ot_curve_line(const struct ot_curve *c, double x[OT_CURVE_POINTS], double y[OT_CURVE_POINTS]) {
    for (int i = 0; i < c->n; i++) {
        x[i] = ot_curve_middle(&c->points[i]);
        y[i] = ot_curve_mean(&c->points[i]);
    }
    return c->n;
}

void ot_curve_smooth(double *y, int n, double span) {
    double sum = 0, weight = 0, keep = span > 1 ? 1 - 1 / span : 0;
    for (int i = 0; i < n; i++) {
        sum = keep * sum + y[i];
        weight = keep * weight + 1;
        y[i] = sum / weight;
    }
}

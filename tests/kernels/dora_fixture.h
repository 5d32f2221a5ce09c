/* Cases of DoRA's ops (kernels/ops.h), for the cpu device and for two devices: inputs, runs, and bounds that
 * follow from the lengths of the sums. */
#ifndef OT_TESTS_KERNELS_DORA_FIXTURE_H
#define OT_TESTS_KERNELS_DORA_FIXTURE_H

#include <math.h>
#include <stdlib.h>

#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"

/* ---- factors ---- */

struct dora_factors_shape {
    int64_t rows, cols, rank;
    float scale;
    int shift;
};

struct dora_factors_case {
    struct dora_factors_shape at;
    float *weight, *a, *b, *change; /* a: [rank, cols] */
    float *cross, *gram;
};

static double dora_dot(const float *x, const float *y, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * y[i];
    return sum;
}

/* Row 0 is zeros and stays so; row 1 has a B of zeros. */
static void dora_factors_open(struct dora_factors_case *c, const struct dora_factors_shape *shape) {
    int64_t rows = shape->rows, cols = shape->cols, rank = shape->rank;
    *c = (struct dora_factors_case){.at = *shape,
                                    .weight = ops_random(1, rows * cols, 1),
                                    .a = ops_random(2, rank * cols, 1),
                                    .b = ops_random(3, rows * rank, 0.5f),
                                    .change = ops_random(4, rows, 0.125f)};
    c->cross = malloc((size_t)(rows * rank) * sizeof *c->cross);
    c->gram = malloc((size_t)(rank * rank) * sizeof *c->gram);
    assert_true(c->cross && c->gram);
    for (int64_t i = 0; i < cols; i++)
        c->weight[i] = 0;
    for (int64_t i = 0; i < 2 * rank && i < rows * rank; i++)
        c->b[i] = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t k = 0; k < rank; k++)
            c->cross[r * rank + k] = (float)dora_dot(c->weight + r * cols, c->a + k * cols, cols);
    for (int64_t j = 0; j < rank; j++)
        for (int64_t k = 0; k < rank; k++)
            c->gram[j * rank + k] = (float)dora_dot(c->a + j * cols, c->a + k * cols, cols);
}

static void dora_factors_close(struct dora_factors_case *c) {
    free(c->weight);
    free(c->a);
    free(c->b);
    free(c->change);
    free(c->cross);
    free(c->gram);
}

static void dora_factors_run(struct ops_fixture *f, const void *argument) {
    const struct dora_factors_case *c = argument;
    int64_t rows = c->at.rows, cols = c->at.cols, rank = c->at.rank;
    const struct ot_dora_factors op = {
        .dtype = f->dtype,
        .rows = rows,
        .cols = cols,
        .rank = rank,
        .scale = c->at.scale,
        .weight = ops_upload(f, f->dtype, c->weight, rows * cols),
        .b = ops_upload(f, f->dtype, c->b, rows * rank),
        .change = ops_upload(f, f->dtype, c->change, rows),
        .cross = ops_upload(f, OT_F32, c->cross, rows * rank),
        .gram = ops_upload(f, OT_F32, c->gram, rank * rank),
        .factor = ops_blank_values(f, OT_F32, rows),
        .inverse = ops_blank_values(f, OT_F32, rows),
    };
    f->ops->dora_factors(f->lane, &op);
    ops_collect(f, "factor", OT_F32, op.factor, rows);
    ops_collect(f, "inverse", OT_F32, op.inverse, rows);
}

/* The relative error of a factor on a device: half of that of |V|^2, half of that of |W|^2, and some
 * roundings. Every term goes through at most cols + 2 rank additions and products. The terms of |V|^2 may
 * cancel, so their absolute values count. Cross and gram are rounded too. */
static double dora_factor_error(const struct dora_factors_case *c, int64_t row) {
    int64_t rank = c->at.rank;
    const float *b = c->b + row * rank, *weight = c->weight + row * c->at.cols;
    double scale = fabs((double)c->at.scale), before = dora_dot(weight, weight, c->at.cols);
    double terms = before, after = before;
    for (int64_t j = 0; j < rank; j++) {
        double sum = 2 * (double)c->cross[row * rank + j], size = fabs(sum);
        for (int64_t k = 0; k < rank; k++) {
            sum += (double)c->at.scale * b[k] * c->gram[k * rank + j];
            size += fabs(scale * b[k] * c->gram[k * rank + j]);
        }
        after += (double)c->at.scale * b[j] * sum;
        terms += fabs(scale * b[j]) * size;
    }
    double roundings = (double)(c->at.cols + 2 * rank + 8) * 0x1p-24;
    return after > 0 ? roundings * (terms / after + 1) : 0;
}

/* ---- the use of factors, and backward ---- */

struct dora_shape {
    int64_t rows, cols, ld;
    int shift;
};

struct dora_case {
    struct dora_shape at;
    bool wide; /* u is fp32 in every dtype */
    float *u, *less, *dy, *addend, *bias, *factor, *inverse;
};

static float *dora_gaps(float *values, const struct dora_shape *shape) {
    for (int64_t i = 0; i < shape->rows * shape->ld; i++)
        if (i % shape->ld >= shape->cols)
            values[i] = NAN;
    return values;
}

static void dora_open(struct dora_case *c, const struct dora_shape *shape, bool wide) {
    int64_t n = shape->rows * shape->ld, cols = shape->cols;
    *c = (struct dora_case){.at = *shape,
                            .wide = wide,
                            .u = dora_gaps(ops_random(5, n, 1), shape),
                            .less = dora_gaps(ops_random(11, n, 1), shape),
                            .dy = dora_gaps(ops_random(6, n, 1), shape),
                            .addend = dora_gaps(ops_random(7, n, 1), shape),
                            .bias = ops_random(8, cols, 1),
                            .factor = ops_random(9, cols, 1),
                            .inverse = ops_random(10, cols, 1)};
}

static void dora_close(struct dora_case *c) {
    free(c->u);
    free(c->less);
    free(c->dy);
    free(c->addend);
    free(c->bias);
    free(c->factor);
    free(c->inverse);
}

/* y; y over what is subtracted; y in place with neither bias nor factor. */
static void dora_run_forward(struct ops_fixture *f, const void *argument) {
    const struct dora_case *c = argument;
    int64_t n = c->at.rows * c->at.ld, cols = c->at.cols;
    void *u = ops_upload(f, f->dtype, c->u, n), *y = ops_blank_values(f, f->dtype, n);
    struct ot_dora op = {
        .dtype = f->dtype,
        .rows = c->at.rows,
        .cols = cols,
        .ld = c->at.ld,
        .factor = ops_upload(f, OT_F32, c->factor, cols),
        .u = u,
        .bias = ops_upload(f, f->dtype, c->bias, cols),
        .addend = ops_upload(f, f->dtype, c->addend, n),
        .y = y,
    };
    f->ops->dora(f->lane, &op);
    ops_collect(f, "y", f->dtype, y, n);
    op.less = op.y = ops_upload(f, f->dtype, c->less, n);
    f->ops->dora(f->lane, &op);
    ops_collect(f, "y over less", f->dtype, op.y, n);
    op.less = NULL;
    op.factor = NULL;
    op.bias = NULL;
    op.y = u;
    f->ops->dora(f->lane, &op);
    ops_collect(f, "y in place", f->dtype, u, n);
    op.u = op.addend;
    op.addend = NULL;
    op.y = y;
    f->ops->dora(f->lane, &op);
    ops_collect(f, "copy", f->dtype, y, n);
}

/* Without factor and sums, du in memory of its own; sums alone; du over dy. */
static void dora_run_backward(struct ops_fixture *f, const void *argument) {
    const struct dora_case *c = argument;
    int64_t n = c->at.rows * c->at.ld, cols = c->at.cols;
    enum ot_dtype u_dtype = c->wide ? OT_F32 : f->dtype;
    void *dy = ops_upload(f, f->dtype, c->dy, n), *du = ops_blank_values(f, f->dtype, n);
    struct ot_dora_backward op = {
        .dtype = f->dtype,
        .u_dtype = u_dtype,
        .rows = c->at.rows,
        .cols = cols,
        .ld = c->at.ld,
        .ld_dy = c->at.ld,
        .inverse = ops_upload(f, OT_F32, c->inverse, cols),
        .dy = dy,
        .du = du,
    };
    f->ops->dora_backward(f->lane, &op);
    ops_collect(f, "copy", f->dtype, du, n);
    op.u = ops_upload(f, u_dtype, c->u, n);
    op.factor = ops_upload(f, OT_F32, c->factor, cols);
    op.dchange = ops_upload(f, OT_F32, c->bias, cols);
    op.du = NULL;
    f->ops->dora_backward(f->lane, &op);
    ops_collect(f, "dchange alone", OT_F32, op.dchange, cols);
    op.dchange = ops_upload(f, OT_F32, c->bias, cols);
    op.du = dy;
    f->ops->dora_backward(f->lane, &op);
    ops_collect(f, "du", f->dtype, dy, n);
    ops_collect(f, "dchange", OT_F32, op.dchange, cols);
}

/* The change of a magnitude's gradient, exactly, and the bound of its error on a device: every term goes
 * through at most as many additions as there are rows. */
static double dora_change(const struct dora_case *c, int64_t col, double *bound) {
    double sum = 0, size = 0;
    for (int64_t row = 0; row < c->at.rows; row++) {
        double term = (double)c->dy[row * c->at.ld + col] * c->u[row * c->at.ld + col];
        sum += term * c->inverse[col];
        size += fabs(term * c->inverse[col]);
    }
    *bound = (double)(c->at.rows + 4) * 0x1p-24 * (size + fabs((double)c->bias[col]));
    return (double)c->bias[col] + sum;
}

#endif

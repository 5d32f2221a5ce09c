/* Norms and their backward pass on the cuda device against the cpu device: every layout of rows, lengths from
 * one value to more than shared memory holds, all dtypes.
 *
 * Bounds. u is 2^-24. A sum is off by at most (the additions that a term goes through) * u * sum of |terms|.
 * For k terms these additions are k / 16 and a tree of 16 on the cpu device, and k / 512 or two packs and a
 * tree of 512 on the cuda device. Each product or quotient adds one u. The test applies the op's formula to
 * absolute values, in double, to bound the effect of these errors on a result. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/cuda_fixture.h"
#include "tests/support/check.h"

struct norm_shape {
    enum ot_norm_kind kind;
    int64_t rows, cols, group, pad; /* pad: elements between groups of rows */
    /* Residual: backward adds a gradient to dx. In place: y overwrites x. */
    bool residual, in_place;
    int shift;
    bool adds_one;
};

static const struct norm_shape shapes[] = {
    /* heads inside wider rows, with and without packs of 16 bytes */
    {OT_NORM_RMS, 12, 64, 4, 64, false, true, 0, false},
    {OT_NORM_RMS, 10, 128, 2, 8, false, false, 0, false},
    {OT_NORM_RMS, 9, 80, 3, 3, true, true, 0, false},
    {OT_NORM_LAYER, 35, 20, 5, 0, true, false, 1, false},
    {OT_NORM_RMS, 6, 256, 3, 0, false, true, 1, false},
    /* half the alignment of packs: first of the arrays, then of the rows, in fp32 and in 16 bits */
    {OT_NORM_RMS, 6, 64, 3, 0, false, true, 2, false},
    {OT_NORM_LAYER, 4, 64, 1, 0, true, false, 4, false},
    {OT_NORM_RMS, 6, 72, 3, 2, false, false, 0, false},
    {OT_NORM_LAYER, 6, 72, 3, 4, false, true, 0, false},
    /* one value, a few values, and whole packs plus a part of a pack */
    {OT_NORM_RMS, 3, 1, 1, 0, false, false, 0, false},
    {OT_NORM_LAYER, 4, 7, 1, 0, true, true, 0, false},
    {OT_NORM_LAYER, 5, 515, 1, 5, false, false, 0, false},
    /* one block for each row */
    {OT_NORM_RMS, 5, 1000, 1, 0, true, true, 0, false},
    {OT_NORM_LAYER, 3, 2048, 1, 16, true, false, 0, false},
    {OT_NORM_RMS, 2, 4099, 1, 0, false, true, 3, false},
    {OT_NORM_LAYER, 2, 16384, 1, 0, true, true, 0, false},
    /* several chunks of rows, the last chunk short; more chunks than a group has */
    {OT_NORM_LAYER, 53, 96, 1, 0, true, true, 0, false},
    {OT_NORM_RMS, 600, 8, 1, 0, false, false, 0, false},
    {OT_NORM_RMS, 8300, 2, 1, 0, false, false, 0, false}, /* more groups than are joined at once */
    {OT_NORM_LAYER, 19, 1040, 1, 0, false, false, 0, false},
    /* 1 + weight: heads, a part of a pack, a block for each row */
    {OT_NORM_RMS, 12, 64, 4, 64, true, true, 0, true},
    {OT_NORM_RMS, 21, 515, 1, 5, false, false, 1, true},
    {OT_NORM_LAYER, 6, 1000, 1, 0, true, false, 0, true},
};

/* dx overwrites dy, or dx_add, or has memory of its own. */
enum dx_place { DX_OVER_DY, DX_OVER_ADD, DX_OWN };

/* The inputs of a case: rows, with NaNs between the groups. */
struct norm_input {
    const struct norm_shape *shape;
    enum dx_place place;
    float *x, *add, *dy, *weight, *bias;
};

static int64_t row_ld(const struct norm_shape *s) {
    return s->group * s->cols + s->pad;
}

static int64_t row_at(const struct norm_shape *s, int64_t row) {
    return row / s->group * row_ld(s) + row % s->group * s->cols;
}

static int64_t all_values(const struct norm_shape *s) {
    return (s->rows + s->group - 1) / s->group * row_ld(s);
}

static float *random_rows(const struct norm_shape *s, uint64_t seed, float scale) {
    float *values = ops_random(seed, all_values(s), scale);
    int64_t width = s->group * s->cols;
    for (int64_t i = 0; i < all_values(s); i++)
        if (i % row_ld(s) >= width)
            values[i] = NAN;
    return values;
}

static struct norm_input make_input(const struct norm_shape *s, enum dx_place place) {
    return (struct norm_input){s,
                               place,
                               random_rows(s, 1, 1),
                               s->residual ? random_rows(s, 2, 0.5f) : NULL,
                               random_rows(s, 3, 1),
                               ops_random(4, s->cols, 1),
                               ops_random(5, s->cols, 1)};
}

static void free_input(struct norm_input *in) {
    free(in->x);
    free(in->add);
    free(in->dy);
    free(in->weight);
    free(in->bias);
}

static struct ot_norm run_forward(struct ops_fixture *f, const struct norm_input *in) {
    const struct norm_shape *s = in->shape;
    int64_t n = all_values(s);
    bool layer = s->kind == OT_NORM_LAYER;
    void *x = ops_upload(f, f->dtype, in->x, n);
    struct ot_norm op = {.dtype = f->dtype,
                         .kind = s->kind,
                         .adds_one = s->adds_one,
                         .rows = s->rows,
                         .cols = s->cols,
                         .group = s->group,
                         .ldx = row_ld(s),
                         .ldy = row_ld(s),
                         .eps = 1e-5f};
    op.x = x;
    op.weight = ops_upload(f, f->dtype, in->weight, s->cols);
    op.y = s->in_place ? x : ops_blank_values(f, f->dtype, n);
    op.rstd = ops_blank_values(f, OT_F32, s->rows);
    if (layer) {
        op.bias = ops_upload(f, f->dtype, in->bias, s->cols);
        op.mean = ops_blank_values(f, OT_F32, s->rows);
    }
    f->ops->norm(f->lane, &op);
    ops_collect(f, "y", f->dtype, op.y, n);
    ops_collect(f, "rstd", OT_F32, op.rstd, s->rows);
    if (layer)
        ops_collect(f, "mean", OT_F32, op.mean, s->rows);
    return op;
}

static void run_backward(struct ops_fixture *f, const struct norm_input *in, const struct ot_norm *forward) {
    const struct norm_shape *s = in->shape;
    int64_t n = all_values(s);
    void *dy = ops_upload(f, f->dtype, in->dy, n);
    void *add = s->residual ? ops_upload(f, f->dtype, in->add, n) : NULL;
    struct ot_norm_backward op = {.dtype = f->dtype,
                                  .kind = s->kind,
                                  .adds_one = s->adds_one,
                                  .rows = s->rows,
                                  .cols = s->cols,
                                  .group = s->group,
                                  .ldx = row_ld(s),
                                  .ldy = row_ld(s)};
    /* The forward pass may have overwritten its own input. */
    op.x = ops_upload(f, f->dtype, in->x, n);
    op.dy = dy;
    op.dx_add = add;
    op.weight = forward->weight;
    op.mean = forward->mean;
    op.rstd = forward->rstd;
    op.dx = in->place == DX_OVER_DY           ? dy
            : in->place == DX_OVER_ADD && add ? add
                                              : ops_blank_values(f, f->dtype, n);
    op.dweight = ops_upload(f, OT_F32, in->bias, s->cols); /* += onto known values */
    op.dbias = s->kind == OT_NORM_LAYER ? ops_upload(f, OT_F32, in->weight, s->cols) : NULL;
    f->ops->norm_backward(f->lane, &op);
    ops_collect(f, "dx", f->dtype, op.dx, n);
    ops_collect(f, "dweight", OT_F32, op.dweight, s->cols);
    if (op.dbias)
        ops_collect(f, "dbias", OT_F32, op.dbias, s->cols);
}

static void run_norm(struct ops_fixture *f, const void *argument) {
    const struct norm_input *in = argument;
    struct ot_norm forward = run_forward(f, in);
    run_backward(f, in, &forward);
}

/* ---- bounds ---- */

struct norm_bounds {
    double *y, *dx, *dweight, *dbias; /* the bound of each value */
    double rstd, mean;                /* rstd: relative; mean: absolute */
};

/* The number that multiplies column i. */
static double weight_at(const struct norm_input *in, int64_t i) {
    return fabs((double)in->weight[i] + in->shape->adds_one);
}

/* A row in double: z and g of the backward pass, and means of absolute values. */
struct row_numbers {
    double mean, rstd, abs_x, abs_g, abs_gz;
};

static struct row_numbers measure_row(const struct norm_input *in, int64_t at) {
    const struct norm_shape *s = in->shape;
    struct row_numbers row = {0};
    double squares = 0, cols = (double)s->cols;
    for (int64_t i = 0; i < s->cols; i++) {
        row.abs_x += fabs((double)in->x[at + i]) / cols;
        row.mean += s->kind == OT_NORM_LAYER ? (double)in->x[at + i] / cols : 0;
    }
    for (int64_t i = 0; i < s->cols; i++)
        squares += pow((double)in->x[at + i] - row.mean, 2) / cols;
    row.rstd = 1 / sqrt(squares + 1e-5);
    for (int64_t i = 0; i < s->cols; i++) {
        double g = fabs((double)in->dy[at + i]) * weight_at(in, i);
        row.abs_g += g / cols;
        row.abs_gz += g * (fabs((double)in->x[at + i]) + fabs(row.mean)) * row.rstd / cols;
    }
    return row;
}

/* error: relative error of x, of the row's sums and of every value derived from them. */
static void add_row_bounds(struct norm_bounds *b, const struct norm_input *in, int64_t at, double error) {
    const struct norm_shape *s = in->shape;
    bool layer = s->kind == OT_NORM_LAYER;
    struct row_numbers row = measure_row(in, at);
    for (int64_t i = 0; i < s->cols; i++) {
        double weight = weight_at(in, i), dy = fabs((double)in->dy[at + i]);
        double z = (fabs((double)in->x[at + i]) + (layer ? row.abs_x : 0)) * row.rstd;
        b->y[at + i] = error * (z * weight + (layer ? fabs((double)in->bias[i]) : 0));
        b->dx[at + i] = error * row.rstd * (dy * weight + (layer ? row.abs_g : 0) + z * row.abs_gz);
        b->dx[at + i] += 0x1p-23 * (in->add ? fabs((double)in->add[at + i]) : 0);
        b->dweight[i] += dy * z;
        b->dbias[i] += dy;
    }
}

static struct norm_bounds make_bounds(const struct norm_input *in) {
    const struct norm_shape *s = in->shape;
    int64_t n = all_values(s);
    struct norm_bounds b = {calloc((size_t)n, sizeof(double)),
                            calloc((size_t)n, sizeof(double)),
                            calloc((size_t)s->cols, sizeof(double)),
                            calloc((size_t)s->cols, sizeof(double)),
                            0,
                            0};
    assert_true(b.y && b.dx && b.dweight && b.dbias);
    double depths = ((double)s->cols / 16 + 4) + ((double)s->cols / 512 + 25); /* cpu, cuda */
    /* The error of the mean and of the variance. */
    double error = (2 * depths + 16) * 0x1p-24;
    b.rstd = b.mean = error;
    for (int64_t row = 0; row < s->rows; row++)
        add_row_bounds(&b, in, row_at(s, row), error);
    for (int64_t i = 0; i < s->cols; i++) {
        double rows = 2 * (double)(s->rows + 2) * 0x1p-24; /* additions down the column, on both devices */
        b.dweight[i] = (rows + error) * b.dweight[i] + rows * fabs((double)in->bias[i]);
        b.dbias[i] = rows * (b.dbias[i] + fabs((double)in->weight[i]));
    }
    return b;
}

static void check_norm(const struct norm_shape *shape, enum ot_dtype dtype, enum dx_place place) {
    struct norm_input in = make_input(shape, place);
    struct norm_bounds b = make_bounds(&in);
    struct cuda_pair p;
    cuda_run(&p, run_norm, &in, dtype, shape->shift);
    cuda_check_close(&p, "y", &(struct cuda_bound){.each = b.y});
    cuda_check_close(&p, "rstd", &(struct cuda_bound){.relative = b.rstd});
    cuda_check_close(&p, "dx", &(struct cuda_bound){.each = b.dx});
    cuda_check_close(&p, "dweight", &(struct cuda_bound){.each = b.dweight});
    if (shape->kind == OT_NORM_LAYER) {
        cuda_check_close(&p, "mean", &(struct cuda_bound){.absolute = 2 * b.mean});
        cuda_check_close(&p, "dbias", &(struct cuda_bound){.each = b.dbias});
    }
    cuda_close(&p);
    free(b.y);
    free(b.dx);
    free(b.dweight);
    free(b.dbias);
    free_input(&in);
}

static void test_shapes(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) /* every shape meets every place in some dtype */
            check_norm(&shapes[i], (enum ot_dtype)dtype, (enum dx_place)((i + (size_t)dtype) % 3));
}

/* Rows, and sums of rows, that are larger than shared memory. */
static void test_rows_beyond_shared_memory(void **state) {
    (void)state;
    check_norm(&(struct norm_shape){OT_NORM_LAYER, 2, 61000, 1, 0, true, true, 0, true}, OT_F32, DX_OVER_DY);
    check_norm(&(struct norm_shape){OT_NORM_RMS, 2, 61001, 1, 0, false, true, 0, false}, OT_BF16, DX_OVER_DY);
}

/* The bits depend on the shape and not on the row's address: packs and single values are summed in the same
 * order. */
static void test_alignment(void **state) {
    (void)state;
    static const int64_t lengths[] = {72, 200, 1024};
    static const char *const names[] = {"y", "rstd", "mean", "dx", "dweight", "dbias"};
    for (int l = 0; l < 3; l++) {
        struct norm_shape shape = {OT_NORM_LAYER, 21, lengths[l], 1, 0, true, true, 0, false};
        struct norm_input in = make_input(&shape, DX_OVER_ADD);
        struct cuda_pair packed, single;
        cuda_run(&packed, run_norm, &in, OT_BF16, 0);
        cuda_run(&single, run_norm, &in, OT_BF16, 1);
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            int64_t n;
            const float *want = ops_result(&packed.cuda, names[i], &n);
            if (memcmp(ops_result(&single.cuda, names[i], NULL), want, (size_t)n * sizeof *want) != 0)
                fail_msg("%s of rows of %lld changes with alignment", names[i], (long long)lengths[l]);
        }
        cuda_close(&packed);
        cuda_close(&single);
        free_input(&in);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_rows_beyond_shared_memory),
        cmocka_unit_test(test_alignment),
    };
    cuda_skip_without_device();
    return cmocka_run_group_tests_name("cuda_norm", tests, NULL, NULL);
}

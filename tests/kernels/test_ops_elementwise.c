/* Activations, gated activations, add, cast, adamw: PyTorch's values, in-place use, the same bits on any
 * number of threads and with any instruction set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/adamw.h"
#include "kernels/cpu/cpu_ops.h"
#include "src/base/dtype.h"
#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

/* In the order of enum ot_activation. */
static const char *const ACT_NAMES[] = {"silu", "gelu_erf", "gelu_tanh", "relu"};

/* ---- activations ---- */

struct activation_case {
    enum ot_activation act;
    int64_t rows, cols;
    const float *x, *dy;           /* inputs of activate */
    const float *gate, *up, *dout; /* inputs of glu */
};

static void run_activate(struct ops_fixture *f, const void *argument) {
    const struct activation_case *c = argument;
    int64_t n = c->rows * c->cols;
    struct ot_activate op = {f->dtype, c->act, n, ops_upload(f, f->dtype, c->x, n),
                             ops_blank_values(f, f->dtype, n)};
    f->ops->activate(f->lane, &op);
    ops_collect(f, "y", f->dtype, op.y, n);
    void *dy = ops_upload(f, f->dtype, c->dy, n);
    struct ot_activate_backward back = {f->dtype, c->act, n, op.x, dy, dy}; /* in place */
    f->ops->activate_backward(f->lane, &back);
    ops_collect(f, "dx", f->dtype, back.dx, n);
    struct ot_activate in_place = {f->dtype, c->act, n, op.x, (void *)(uintptr_t)op.x};
    f->ops->activate(f->lane, &in_place);
    ops_collect(f, "y in place", f->dtype, in_place.y, n);
}

static void run_glu(struct ops_fixture *f, const void *argument) {
    const struct activation_case *c = argument;
    int64_t n = c->rows * c->cols;
    /* gate and up lie side by side in rows of twice the width, as a fused product leaves them */
    float *both = malloc((size_t)(2 * n) * sizeof *both);
    assert_non_null(both);
    for (int64_t row = 0; row < c->rows; row++) {
        memcpy(both + 2 * row * c->cols, c->gate + row * c->cols, (size_t)c->cols * sizeof *both);
        memcpy(both + (2 * row + 1) * c->cols, c->up + row * c->cols, (size_t)c->cols * sizeof *both);
    }
    char *gate = ops_upload(f, f->dtype, both, 2 * n),
         *up = gate + (size_t)c->cols * ot_dtype_bytes(f->dtype);
    free(both);
    struct ot_glu op = {.dtype = f->dtype,
                        .act = c->act,
                        .rows = c->rows,
                        .cols = c->cols,
                        .ld_in = 2 * c->cols,
                        .ld_out = c->cols,
                        .gate = gate,
                        .up = up,
                        .out = ops_blank_values(f, f->dtype, n)};
    f->ops->glu(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, n);
    struct ot_glu_backward back = {op, ops_upload(f, f->dtype, c->dout, n), gate, up}; /* in place */
    f->ops->glu_backward(f->lane, &back);
    ops_collect(f, "dgate and dup", f->dtype, gate, 2 * n);
}

/* Takes the gradients of a gated activation, dense, out of "dgate and dup". */
static void check_glu_gradients(const struct ops_fixture *f, const struct activation_case *c,
                                struct ot_golden *golden, const char *prefix) {
    const float *both = ops_result(f, "dgate and dup", NULL);
    static const char *const names[] = {"dgate", "dup"};
    for (int part = 0; part < 2; part++) {
        char name[96];
        snprintf(name, sizeof name, "%s.%s", prefix, names[part]);
        const float *want = golden_f32(golden, name, NULL);
        for (int64_t row = 0; row < c->rows; row++)
            check_close(name, both + (2 * row + part) * c->cols, want + row * c->cols, c->cols, 1e-6, 2e-6);
    }
}

static void test_activations(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    for (int act = 0; act < 4; act++) {
        char name[64];
        struct activation_case c = {.act = (enum ot_activation)act, .rows = 1};
#define ARRAY(kind, field) (snprintf(name, sizeof name, kind ".%s." field, ACT_NAMES[act]), name)
        c.x = golden_f32(golden, ARRAY("act", "x"), &c.cols);
        c.dy = golden_f32(golden, ARRAY("act", "dy"), NULL);
        struct ops_fixture f;
        ops_check_threads(&f, run_activate, &c, OT_F32);
        /* A few ulp of the functions. GELU's 1 + erf cancels for very negative x, hence the absolute part. */
        check_close(name, ops_result(&f, "y", NULL), golden_f32(golden, ARRAY("act", "y"), NULL), c.cols,
                    1e-6, 1e-6);
        check_close(name, ops_result(&f, "dx", NULL), golden_f32(golden, ARRAY("act", "dx"), NULL), c.cols,
                    1e-6, 2e-6);
        assert_memory_equal(ops_result(&f, "y", NULL), ops_result(&f, "y in place", NULL),
                            (size_t)c.cols * sizeof(float));
        ops_close(&f);
        ops_check_half(run_activate, &c, 0x1p-8);
        c.gate = golden_f32(golden, ARRAY("glu", "gate"), NULL);
        c.up = golden_f32(golden, ARRAY("glu", "up"), NULL);
        c.dout = golden_f32(golden, ARRAY("glu", "dout"), NULL);
        c.rows = golden_dim(golden, name, 0);
        c.cols = golden_dim(golden, name, 1);
        ops_check_threads(&f, run_glu, &c, OT_F32);
        check_close(name, ops_result(&f, "out", NULL), golden_f32(golden, ARRAY("glu", "out"), NULL),
                    c.rows * c.cols, 1e-6, 2e-6);
        snprintf(name, sizeof name, "glu.%s", ACT_NAMES[act]);
        check_glu_gradients(&f, &c, golden, name);
        ops_close(&f);
        ops_check_half(run_glu, &c, 0x1p-8);
#undef ARRAY
    }
    golden_close(golden);
}

/* More elements than a chunk, so that threads really share the work. */
static void test_activation_threads(void **state) {
    (void)state;
    struct activation_case c = {.act = OT_ACT_SILU, .rows = 41, .cols = 1003};
    float *x = ops_random(1, c.rows * c.cols, 2), *y = ops_random(2, c.rows * c.cols, 1),
          *z = ops_random(3, c.rows * c.cols, 1);
    c.x = c.gate = x;
    c.dy = c.up = y;
    c.dout = z;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ops_fixture f;
        ops_check_threads(&f, run_activate, &c, (enum ot_dtype)dtype);
        ops_close(&f);
        ops_check_threads(&f, run_glu, &c, (enum ot_dtype)dtype);
        ops_close(&f);
    }
    free(x);
    free(y);
    free(z);
}

/* ---- the gated unit with limits ---- */

struct bounded_case {
    int64_t rows, cols, ld_in;
    float limit;
    const float *both, *dout; /* [rows, ld_in], [rows, cols] */
};

static void run_bounded(struct ops_fixture *f, const void *argument) {
    const struct bounded_case *c = argument;
    void *both = ops_upload(f, f->dtype, c->both, c->rows * c->ld_in);
    struct ot_glu op = {.dtype = f->dtype,
                        .rows = c->rows,
                        .cols = c->cols,
                        .ld_in = c->ld_in,
                        .ld_out = c->cols,
                        .gate = both,
                        .out = ops_blank_values(f, f->dtype, c->rows * c->cols),
                        .limit = c->limit,
                        .alpha = 1.702f};
    f->ops->glu(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, c->rows * c->cols);
    struct ot_glu_backward back = {op, ops_upload(f, f->dtype, c->dout, c->rows * c->cols), both,
                                   NULL}; /* in place */
    f->ops->glu_backward(f->lane, &back);
    ops_collect(f, "dboth", f->dtype, both, c->rows * c->ld_in);
}

static void test_bounded_glu(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    struct bounded_case c = {.limit = 7};
    c.both = golden_f32(golden, "glu.bounded.both", NULL);
    c.dout = golden_f32(golden, "glu.bounded.dout", NULL);
    c.rows = golden_dim(golden, "glu.bounded.both", 0);
    c.ld_in = golden_dim(golden, "glu.bounded.both", 1);
    c.cols = c.ld_in / 2;
    struct ops_fixture f;
    ops_check_threads(&f, run_bounded, &c, OT_F32);
    check_close("out", ops_result(&f, "out", NULL), golden_f32(golden, "glu.bounded.out", NULL),
                c.rows * c.cols, 1e-6, 2e-6);
    check_close("dboth", ops_result(&f, "dboth", NULL), golden_f32(golden, "glu.bounded.dboth", NULL),
                c.rows * c.ld_in, 2e-6, 2e-6);
    ops_close(&f);
    ops_check_half(run_bounded, &c, 0x1p-8);
    golden_close(golden);
}

/* At its limit an input still has a gradient; beyond it, none; a NaN stays. */
static void test_bounded_glu_limits(void **state) {
    (void)state;
    static const float both[] = {7, 1, 7.0625f, 1, -40, 2, 1, 7, 1, 7.0625f, 1, -7, 1, -8, NAN, 1, 1, NAN};
    static const float dout[] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct bounded_case c = {.rows = 1, .cols = 9, .ld_in = 18, .limit = 7, .both = both, .dout = dout};
    struct ops_fixture f;
    ops_open(&f, 1, OT_F32);
    run_bounded(&f, &c);
    const float *out = ops_result(&f, "out", NULL), *d = ops_result(&f, "dboth", NULL);
    assert_true(out[0] == out[1] && d[0] != 0 && d[2] == 0 && d[1] == d[3]);
    assert_true(out[3] == out[4] && d[7] != 0 && d[9] == 0 && d[11] != 0 && d[13] == 0);
    assert_true(out[5] == out[6] && out[5] < 0 && isnan(out[7]) && isnan(d[14]));
    assert_true(isnan(out[8]) && isnan(d[16]));
    ops_close(&f);
}

/* Wider rows, tails of every length, many rows. */
static void test_bounded_glu_layouts(void **state) {
    (void)state;
    for (int cols = 1; cols < 36; cols += cols < 20 ? 1 : 5) {
        struct bounded_case c = {.rows = 50, .cols = cols, .ld_in = 2 * cols + 4, .limit = 1};
        float *both = ops_random(1, c.rows * c.ld_in, 1), *dout = ops_random(2, c.rows * c.cols, 1);
        for (int64_t i = 0; i < c.rows * c.ld_in; i++)
            if (i % c.ld_in >= 2 * cols)
                both[i] = NAN;
        c.both = both;
        c.dout = dout;
        struct ops_fixture f;
        ops_check_threads(&f, run_bounded, &c, OT_BF16);
        for (int64_t i = 0; i < c.rows * c.cols; i++) {
            const float *pair = both + i / cols * c.ld_in + i % cols * 2;
            double g = fmin(pair[0], 1), u = fmax(fmin(pair[1], 1), -1);
            float want = (float)((u + 1) * g / (1 + exp(-1.702 * g)));
            check_close("out", ops_result(&f, "out", NULL) + i, &want, 1, 1e-6, 0x1.01p-8);
        }
        for (int64_t i = 0; i < c.rows * c.ld_in; i++)
            assert_true(isnan(ops_result(&f, "dboth", NULL)[i]) == (i % c.ld_in >= 2 * cols));
        ops_close(&f);
        free(both);
        free(dout);
    }
}

/* ---- add ---- */

static void run_add(struct ops_fixture *f, const void *argument) {
    const struct activation_case *c = argument;
    void *a = ops_upload(f, f->dtype, c->x, c->cols), *b = ops_upload(f, f->dtype, c->dy, c->cols);
    struct ot_add op = {f->dtype, c->cols, a, b, b};
    f->ops->add(f->lane, &op);
    ops_collect(f, "sum", f->dtype, b, c->cols);
}

static void test_add(void **state) {
    (void)state;
    struct activation_case c = {.cols = 40003};
    float *a = ops_random(1, c.cols, 1), *b = ops_random(2, c.cols, 1);
    c.x = a;
    c.dy = b;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ops_fixture f;
        ops_check_threads(&f, run_add, &c, (enum ot_dtype)dtype);
        const float *sum = ops_result(&f, "sum", NULL);
        for (int64_t i = 0; i < c.cols; i++) {
            float want;
            ot_dtype_write((enum ot_dtype)dtype, &want, 0, a[i] + b[i]);
            assert_true(sum[i] == ot_dtype_read((enum ot_dtype)dtype, &want, 0));
        }
        ops_close(&f);
    }
    free(a);
    free(b);
}

static float rounded(enum ot_dtype dtype, float value) {
    if (dtype == OT_F32)
        return value;
    return dtype == OT_BF16 ? ot_bf16_to_f32(ot_bf16_from_f32(value)) : ot_f16_to_f32(ot_f16_from_f32(value));
}

/* ---- dropout ---- */

/* The places cross 2^32, where the upper half of a place changes within a vector. */
static const struct ot_dropout drops = {
    .first = ((int64_t)1 << 32) - 20011, .drop = 0.3f, .noise = {0x12345678u, 0x9abcdef0u}};

static void run_dropout(struct ops_fixture *f, const void *argument) {
    const struct activation_case *c = argument;
    void *x = ops_upload(f, f->dtype, c->x, c->cols), *sum = ops_upload(f, f->dtype, c->dy, c->cols);
    void *moved = ops_upload(f, f->dtype, c->dy, c->cols);
    struct ot_dropout op = drops;
    op.dtype = f->dtype;
    op.n = c->cols;
    op.x = x;
    op.addend = op.out = sum;
    f->ops->dropout(f->lane, &op);
    op.addend = op.out = moved;
    op.of_difference = true;
    f->ops->dropout(f->lane, &op);
    op.of_difference = false;
    op.addend = NULL;
    op.out = x;
    f->ops->dropout(f->lane, &op);
    ops_collect(f, "dropped", f->dtype, x, c->cols);
    ops_collect(f, "added", f->dtype, sum, c->cols);
    ops_collect(f, "moved", f->dtype, moved, c->cols);
}

/* The bits of the contract, and as many dropped elements as asked for, within 5 standard deviations. */
static void test_dropout(void **state) {
    (void)state;
    struct activation_case c = {.cols = 40003};
    float *x = ops_random(1, c.cols, 1), *y = ops_random(2, c.cols, 1);
    c.x = x;
    c.dy = y;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ops_fixture f;
        int64_t dropped = 0;
        ops_check_threads(&f, run_dropout, &c, (enum ot_dtype)dtype);
        const float *got = ops_result(&f, "dropped", NULL), *sum = ops_result(&f, "added", NULL),
                    *moved = ops_result(&f, "moved", NULL);
        for (int64_t i = 0; i < c.cols; i++) {
            bool drop = ot_state_word(drops.noise, drops.first + i) < (double)0.3f * 0x1p32;
            float factor = (float)(1 / (1 - (double)0.3f)), kept = drop ? 0 : x[i] * factor;
            float kept_difference = drop ? 0 : (x[i] - y[i]) * factor;
            assert_true(got[i] == rounded((enum ot_dtype)dtype, kept));
            assert_true(sum[i] == rounded((enum ot_dtype)dtype, y[i] + kept));
            assert_true(moved[i] == rounded((enum ot_dtype)dtype, y[i] + kept_difference));
            dropped += drop;
        }
        assert_true(fabs((double)dropped - 0.3 * (double)c.cols) < 5 * sqrt(0.21 * (double)c.cols));
        ops_close(&f);
    }
    free(x);
    free(y);
}

/* ---- join and cast ---- */

struct join_case {
    int64_t n;
    int n_parts, own;
    bool tree, in_place;
    const float *x; /* [n_parts][n] */
};

static void run_join(struct ops_fixture *f, const void *argument) {
    const struct join_case *c = argument;
    int64_t stride = (c->n + 31) / 32 * 32;
    float *wide = calloc((size_t)(stride * c->n_parts), sizeof *wide);
    for (int p = 0; p < c->n_parts; p++)
        for (int64_t i = 0; i < c->n; i++) /* the own part is elsewhere: NaN shows a read of its place here */
            wide[p * stride + i] = p == c->own ? NAN : c->x[p * c->n + i];
    void *parts = ops_upload(f, f->dtype, wide, stride * c->n_parts);
    void *own = ops_upload(f, f->dtype, c->x + c->own * c->n, c->n);
    float *out = c->in_place ? own : ops_blank_values(f, OT_F32, c->n);
    struct ot_join op = {f->dtype, c->n, c->n_parts, c->own, parts, stride, own, out, c->tree};
    f->ops->join(f->lane, &op);
    ops_collect(f, "sum", OT_F32, out, c->n);
    free(wide);
}

static float join_of(const struct join_case *c, enum ot_dtype dtype, int first, int n, int64_t i) {
    if (n == 1)
        return rounded(dtype, c->x[first * c->n + i]);
    int left = c->tree ? n / 2 : n - 1;
    return join_of(c, dtype, first, left, i) + join_of(c, dtype, first + left, n - left, i);
}

static void check_join(const struct join_case *c, enum ot_dtype dtype) {
    struct ops_fixture f;
    ops_check_threads(&f, run_join, c, dtype);
    const float *sum = ops_result(&f, "sum", NULL);
    for (int64_t i = 0; i < c->n; i++)
        assert_true(sum[i] == join_of(c, dtype, 0, c->n_parts, i));
    ops_close(&f);
}

static void test_join(void **state) {
    (void)state;
    enum { MOST = 8 };
    struct join_case c = {.n = 40003};
    float *x = ops_random(1, c.n * MOST, 1);
    c.x = x;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
        for (c.n_parts = 1; c.n_parts <= MOST; c.n_parts++)
            for (int tree = 0; tree < 2; tree++) {
                c.tree = tree;
                c.own = c.n_parts / 2;
                c.in_place = dtype == OT_F32 && c.n_parts % 2 == 0;
                if (!tree || (c.n_parts & (c.n_parts - 1)) == 0)
                    check_join(&c, (enum ot_dtype)dtype);
            }
    free(x);
}

static void test_cast(void **state) {
    (void)state;
    enum { N = 20011 };
    float *x = ops_random(1, N, 3);
    for (int i = 0; i < N; i++)
        x[i] *= 1.0001f; /* values that bf16 does not have, so that roundings show */
    for (int from = OT_F32; from <= OT_F16; from++)
        for (int to = OT_F32; to <= OT_F16; to++) {
            struct ops_fixture f;
            ops_open(&f, 2, OT_F32);
            struct ot_cast op = {(enum ot_dtype)from, (enum ot_dtype)to, N,
                                 ops_upload(&f, (enum ot_dtype)from, x, N),
                                 ops_blank_values(&f, (enum ot_dtype)to, N)};
            f.ops->cast(f.lane, &op);
            ops_collect(&f, "cast", op.to, op.dst, N);
            for (int i = 0; i < N; i++)
                assert_true(ops_result(&f, "cast", NULL)[i] == rounded(op.to, rounded(op.from, x[i])));
            ops_close(&f);
        }
    free(x);
}

/* ---- adamw ---- */

/* The op, which cuts its work into chunks for the pool, equals one call over all elements, bit for bit. */
static void test_adamw(void **state) {
    (void)state;
    enum { N = 50021 };
    struct ot_adamw_step step = {1e-3f, 0.9f, 0.999f, 1e-8f, 0.1f, 0.1f, 0.0316f, 0.5f, 0, {0, 0}, {0, 0}};
    float *values[4];
    struct ops_fixture f;
    ops_open(&f, 3, OT_F32);
    float *device[4];
    for (int i = 0; i < 4; i++) {
        values[i] = ops_random((uint64_t)i, N, 1);
        for (int j = 0; i == 2 && j < N; j++)
            values[i][j] *= values[i][j]; /* v is not negative */
        device[i] = ops_upload(&f, OT_F32, values[i], N);
    }
    struct ot_adamw_step *device_step = ops_blank(&f, sizeof step);
    ot_lane_copy(f.lane, OT_COPY_H2D, device_step, &step, sizeof step);
    struct ot_adamw op = {.dtype = OT_F32,
                          .n = N,
                          .decay = true,
                          .step = device_step,
                          .weight = device[0],
                          .m = device[1],
                          .v = device[2],
                          .grad = device[3]};
    f.ops->adamw(f.lane, &op);
    op.step = &step;
    op.weight = values[0];
    op.m = values[1];
    op.v = values[2];
    op.grad = values[3];
    ot_adamw_run(&op);
    static const char *const names[] = {"weight", "m", "v"};
    for (int i = 0; i < 3; i++) {
        ops_collect(&f, names[i], OT_F32, device[i], N);
        assert_memory_equal(ops_result(&f, names[i], NULL), values[i], N * sizeof(float));
    }
    ops_close(&f);
    for (int i = 0; i < 4; i++)
        free(values[i]);
}

/* ---- instruction sets ---- */

static void test_builds(void **state) {
    (void)state;
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    struct activation_case c = {.rows = 3, .cols = 1003};
    float *x = ops_random(1, c.rows * c.cols, 3), *y = ops_random(2, c.rows * c.cols, 1);
    c.x = c.gate = x;
    c.dy = c.up = c.dout = y;
    assert_non_null(ot_cpu_ops_named(ot_cpu_ops_choose().name));
    assert_null(ot_cpu_ops_named("none"));
    for (int b = 0; b < 3; b++) {
        if (!ot_cpu_ops_named(builds[b]))
            continue;
        for (int act = 0; act < 4; act++) {
            c.act = (enum ot_activation)act;
            ops_check_build(run_activate, &c, builds[b], OT_F32);
            ops_check_build(run_glu, &c, builds[b], OT_BF16);
        }
        ops_check_build(run_bounded, &(struct bounded_case){3, 501, 1002, 1, x, y}, builds[b], OT_F32);
    }
    free(x);
    free(y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations),
        cmocka_unit_test(test_activation_threads),
        cmocka_unit_test(test_bounded_glu),
        cmocka_unit_test(test_bounded_glu_limits),
        cmocka_unit_test(test_bounded_glu_layouts),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_dropout),
        cmocka_unit_test(test_join),
        cmocka_unit_test(test_cast),
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_builds),
    };
    return cmocka_run_group_tests_name("elementwise", tests, NULL, NULL);
}

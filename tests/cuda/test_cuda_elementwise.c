/* Activations, gated activations, sums, casts and reductions have the same bits on cuda and on cpu. Both
 * devices compute the same formulas (kernels/formulas.h) in the same order, so no bound is needed. */
#include "tests/cuda/cuda_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "tests/support/check.h"

static const int64_t SIZES[] = {1, 3, 7, 8, 9, 63, 255, 256, 257, 2047, 4099};
enum { N_SIZES = sizeof SIZES / sizeof *SIZES, LARGEST = 4099, SHIFTS = 9 };

/* ---- inputs ---- */

/* Values at which the formulas change their branch or leave their range. fp16 has them too. */
static const float EDGES[] = {0.0f,    -0.0f,  INFINITY, -INFINITY, NAN,       0.625f,   -0.625f,   1.0f,
                              -1.0f,   1.375f, 1.4375f,  4.0f,      -4.0f,     5.5f,     -5.75f,    17.0f,
                              -17.0f,  60.0f,  -60.0f,   88.0f,     -88.0f,    -88.5f,   88.5f,     104.0f,
                              -104.0f, 120.0f, -120.0f,  61440.0f,  -61440.0f, 0x1p-24f, -0x1p-24f, 0x1p-14f};
/* More such values, which fp16 does not have. */
static const float WIDE_EDGES[] = {0x1p-149f, -0x1p-130f, 0x1p64f, -0x1p64f, 0x1.fep127f, -0x1.fep127f};
enum { N_EDGES = sizeof EDGES / sizeof *EDGES, N_WIDE_EDGES = sizeof WIDE_EDGES / sizeof *WIDE_EDGES };

/* Normally distributed numbers, with all edges among them if n is large enough. */
static float *inputs(uint64_t seed, int64_t n, bool wide) {
    float *x = ops_random(seed, n, 3);
    for (int64_t i = 0; i < n && i < 2 * (N_EDGES + N_WIDE_EDGES); i += 2) {
        int64_t edge = i / 2;
        if (edge < N_EDGES)
            x[i] = EDGES[edge];
        else if (wide)
            x[i] = WIDE_EDGES[edge - N_EDGES];
    }
    return x;
}

/* ---- activations ---- */

struct span {
    enum ot_activation act;
    int64_t n;
    const float *x, *y;
};

static void run_activate(struct ops_fixture *f, const void *argument) {
    const struct span *c = argument;
    void *x = ops_upload(f, f->dtype, c->x, c->n), *y = ops_blank_values(f, f->dtype, c->n);
    void *dy = ops_upload(f, f->dtype, c->y, c->n), *dx = ops_blank_values(f, f->dtype, c->n);
    f->ops->activate(f->lane, &(struct ot_activate){f->dtype, c->act, c->n, x, y});
    ops_collect(f, "y", f->dtype, y, c->n);
    f->ops->activate_backward(f->lane, &(struct ot_activate_backward){f->dtype, c->act, c->n, x, dy, dx});
    ops_collect(f, "dx", f->dtype, dx, c->n);
    f->ops->activate_backward(f->lane, &(struct ot_activate_backward){f->dtype, c->act, c->n, x, dy, dy});
    ops_collect(f, "dx in place", f->dtype, dy, c->n);
    f->ops->activate(f->lane, &(struct ot_activate){f->dtype, c->act, c->n, x, x});
    ops_collect(f, "y in place", f->dtype, x, c->n);
}

static void check_activate(const struct span *c, enum ot_dtype dtype, int shift) {
    struct cuda_pair p;
    cuda_run(&p, run_activate, c, dtype, shift);
    cuda_check_bits(&p, "y");
    cuda_check_bits(&p, "dx");
    cuda_check_bits(&p, "y in place");
    cuda_check_bits(&p, "dx in place");
    cuda_close(&p);
}

static void run_softcap(struct ops_fixture *f, const void *argument) {
    const struct span *c = argument;
    float *x = ops_upload(f, OT_F32, c->x, c->n);
    f->ops->softcap(f->lane, &(struct ot_softcap){c->n, 2.5f, x});
    ops_collect(f, "capped", OT_F32, x, c->n);
}

static void test_softcap(void **state) {
    (void)state;
    float *x = inputs(1, LARGEST, true);
    for (int s = 0; s < N_SIZES; s++) {
        struct cuda_pair p;
        cuda_run(&p, run_softcap, &(struct span){.n = SIZES[s], .x = x}, OT_F32, s % SHIFTS);
        cuda_check_bits(&p, "capped");
        cuda_close(&p);
    }
    free(x);
}

static void test_activations(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        float *x = inputs(1, LARGEST, dtype != OT_F16), *dy = ops_random(2, LARGEST, 1);
        for (int act = 0; act < 4; act++)
            check_activate(&(struct span){(enum ot_activation)act, LARGEST, x, dy}, (enum ot_dtype)dtype, 0);
        for (int s = 0; s < N_SIZES; s++) /* all activations share one loop */
            check_activate(&(struct span){OT_ACT_SILU, SIZES[s], x, dy}, (enum ot_dtype)dtype, s % SHIFTS);
        free(x);
        free(dy);
    }
}

/* ---- gated activations ---- */

struct rows {
    enum ot_activation act;
    int64_t rows, cols, ld_in, ld_out;
    bool one_array; /* gate and up are parts of the same rows */
    const float *gate, *up, *dout;
};

static int64_t extent(int64_t rows, int64_t cols, int64_t ld) {
    return (rows - 1) * ld + cols;
}

static void run_glu(struct ops_fixture *f, const void *argument) {
    const struct rows *c = argument;
    size_t bytes = ot_dtype_bytes(f->dtype);
    int64_t in = extent(c->rows, c->one_array ? 2 * c->cols : c->cols, c->ld_in),
            out = extent(c->rows, c->cols, c->ld_out);
    char *gate = ops_upload(f, f->dtype, c->gate, in);
    char *up = c->one_array ? gate + (size_t)c->cols * bytes : ops_upload(f, f->dtype, c->up, in);
    void *result = ops_blank_values(f, f->dtype, out), *dout = ops_upload(f, f->dtype, c->dout, out);
    struct ot_glu op = {.dtype = f->dtype,
                        .act = c->act,
                        .rows = c->rows,
                        .cols = c->cols,
                        .ld_in = c->ld_in,
                        .ld_out = c->ld_out,
                        .gate = gate,
                        .up = up,
                        .out = result};
    f->ops->glu(f->lane, &op);
    ops_collect(f, "out", f->dtype, result, out);
    char *dgate = ops_blank_values(f, f->dtype, in);
    char *dup = c->one_array ? dgate + (size_t)c->cols * bytes : ops_blank_values(f, f->dtype, in);
    f->ops->glu_backward(f->lane, &(struct ot_glu_backward){op, dout, dgate, dup});
    ops_collect(f, "dgate", f->dtype, dgate, in);
    f->ops->glu_backward(f->lane, &(struct ot_glu_backward){op, dout, gate, up});
    ops_collect(f, "dgate in place", f->dtype, gate, in);
    if (c->one_array)
        return;
    ops_collect(f, "dup", f->dtype, dup, in);
    ops_collect(f, "dup in place", f->dtype, up, in);
}

static void check_glu(const struct rows *c, enum ot_dtype dtype, int shift) {
    static const char *const names[] = {"out", "dgate", "dgate in place", "dup", "dup in place"};
    struct cuda_pair p;
    cuda_run(&p, run_glu, c, dtype, shift);
    for (int i = 0; i < (c->one_array ? 3 : 5); i++)
        cuda_check_bits(&p, names[i]);
    cuda_close(&p);
}

static void test_glu(void **state) {
    (void)state;
    /* rows, cols, ld_in, ld_out: contiguous, packs in wider rows, no packs, one row, one column */
    static const int64_t shapes[][4] = {{5, 200, 200, 200}, {3, 264, 528, 264},  {4, 129, 258, 129},
                                        {3, 130, 260, 144}, {1, 517, 1034, 517}, {7, 1, 2, 1}};
    enum { ROOM = 8192 };
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        float *gate = inputs(3, ROOM, dtype != OT_F16), *up = ops_random(4, ROOM, 1);
        float *dout = ops_random(5, ROOM, 1);
        for (int s = 0; s < 6 * 2; s++) {
            const int64_t *shape = shapes[s / 2];
            struct rows c = {OT_ACT_SILU, shape[0], shape[1], shape[2], shape[3], shape[2] >= 2 * shape[1],
                             gate,        up,       dout};
            check_glu(&c, (enum ot_dtype)dtype, s % 2 * 3);
        }
        for (int act = 0; act < 4; act++)
            check_glu(&(struct rows){(enum ot_activation)act, 3, 264, 528, 264, true, gate, up, dout},
                      (enum ot_dtype)dtype, 0);
        free(gate);
        free(up);
        free(dout);
    }
}

static void run_bounded(struct ops_fixture *f, const void *argument) {
    const struct rows *c = argument;
    int64_t in = extent(c->rows, 2 * c->cols, c->ld_in), out = extent(c->rows, c->cols, c->ld_out);
    void *both = ops_upload(f, f->dtype, c->gate, in), *dout = ops_upload(f, f->dtype, c->dout, out);
    struct ot_glu op = {.dtype = f->dtype,
                        .rows = c->rows,
                        .cols = c->cols,
                        .ld_in = c->ld_in,
                        .ld_out = c->ld_out,
                        .gate = both,
                        .out = ops_blank_values(f, f->dtype, out),
                        .limit = 2,
                        .alpha = 1.702f};
    f->ops->glu(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, out);
    void *dboth = ops_blank_values(f, f->dtype, in);
    f->ops->glu_backward(f->lane, &(struct ot_glu_backward){op, dout, dboth, NULL});
    ops_collect(f, "dboth", f->dtype, dboth, in);
    f->ops->glu_backward(f->lane, &(struct ot_glu_backward){op, dout, both, NULL});
    ops_collect(f, "dboth in place", f->dtype, both, in);
}

static void test_bounded_glu(void **state) {
    (void)state;
    static const char *const names[] = {"out", "dboth", "dboth in place"};
    /* rows, cols, ld_in, ld_out, shift: contiguous, packs in wider rows, no packs, one column */
    static const int64_t shapes[][5] = {{5, 200, 400, 200, 0}, {3, 264, 544, 272, 0},  {4, 129, 260, 129, 0},
                                        {3, 130, 260, 130, 3}, {1, 517, 1034, 517, 4}, {7, 1, 2, 1, 0}};
    enum { ROOM = 8192 };
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        float *both = inputs(3, ROOM, dtype != OT_F16), *dout = ops_random(5, ROOM, 1);
        for (int s = 0; s < 6; s++) {
            const int64_t *shape = shapes[s];
            struct rows c = {.rows = shape[0],
                             .cols = shape[1],
                             .ld_in = shape[2],
                             .ld_out = shape[3],
                             .gate = both,
                             .dout = dout};
            struct cuda_pair p;
            cuda_run(&p, run_bounded, &c, (enum ot_dtype)dtype, (int)shape[4]);
            for (int i = 0; i < 3; i++)
                cuda_check_bits(&p, names[i]);
            cuda_close(&p);
        }
        free(both);
        free(dout);
    }
}

/* ---- sums of two ---- */

static void run_add(struct ops_fixture *f, const void *argument) {
    const struct span *c = argument;
    size_t one = ot_dtype_bytes(f->dtype);
    int64_t n = c->n;
    char *a = ops_upload(f, f->dtype, c->x, n), *b = ops_upload(f, f->dtype, c->y, n);
    char *out = ops_blank_values(f, f->dtype, n);
    f->ops->add(f->lane, &(struct ot_add){f->dtype, n, a, b, out});
    ops_collect(f, "sum", f->dtype, out, n);
    if (n > 1) { /* a begins one element later, so no pack is aligned in both arrays */
        f->ops->add(f->lane, &(struct ot_add){f->dtype, n - 1, a + one, b, out});
        ops_collect(f, "sum of shifted", f->dtype, out, n - 1);
    }
    f->ops->add(f->lane, &(struct ot_add){f->dtype, n, a, b, a});
    ops_collect(f, "sum in a", f->dtype, a, n);
    f->ops->add(f->lane, &(struct ot_add){f->dtype, n, a, b, b});
    ops_collect(f, "sum in b", f->dtype, b, n);
}

static void run_dropout(struct ops_fixture *f, const void *argument) {
    const struct span *c = argument;
    size_t one = ot_dtype_bytes(f->dtype);
    int64_t n = c->n;
    char *x = ops_upload(f, f->dtype, c->x, n), *sum = ops_upload(f, f->dtype, c->y, n);
    char *out = ops_blank_values(f, f->dtype, n);
    struct ot_dropout op = {f->dtype, n, ((int64_t)1 << 32) - 7, 0.4f, {77, 5}, x, NULL, out, false};
    f->ops->dropout(f->lane, &op);
    ops_collect(f, "dropped", f->dtype, out, n);
    if (n > 1) {
        op.n = n - 1;
        op.x = x + one;
        f->ops->dropout(f->lane, &op);
        ops_collect(f, "dropped, shifted", f->dtype, out, n - 1);
    }
    op.n = n;
    op.x = x;
    op.addend = op.out = sum;
    f->ops->dropout(f->lane, &op);
    ops_collect(f, "dropped and added", f->dtype, sum, n);
    op.addend = op.out = ops_upload(f, f->dtype, c->y, n);
    op.of_difference = true;
    f->ops->dropout(f->lane, &op);
    ops_collect(f, "dropped difference", f->dtype, op.out, n);
}

static void check_dropout(const struct span *c, enum ot_dtype dtype, int shift) {
    struct cuda_pair p;
    cuda_run(&p, run_dropout, c, dtype, shift);
    cuda_check_bits(&p, "dropped");
    if (c->n > 1)
        cuda_check_bits(&p, "dropped, shifted");
    cuda_check_bits(&p, "dropped and added");
    cuda_check_bits(&p, "dropped difference");
    cuda_close(&p);
}

/* The span is eight parts, of which the cases join the first ones. The shares begin at multiples of 32. */
static const struct {
    int n_parts, own;
    bool tree;
    const char *name;
} joins[] = {{2, 0, false, "join of 2"}, {3, 1, false, "join of 3"}, {8, 7, false, "join of 8"},
             {1, 0, true, "tree of 1"},  {2, 1, true, "tree of 2"},  {4, 2, true, "tree of 4"},
             {8, 3, true, "tree of 8"}};
enum { JOINS = sizeof joins / sizeof *joins };

static void run_join(struct ops_fixture *f, const void *argument) {
    const struct span *c = argument;
    int64_t stride = c->n / 8 / 32 * 32, n = stride - 1;
    char *parts = ops_upload(f, f->dtype, c->x, c->n), *own = ops_upload(f, f->dtype, c->y, c->n);
    for (int i = 0; i < JOINS; i++) {
        float *out = ops_blank_values(f, OT_F32, n);
        f->ops->join(f->lane, &(struct ot_join){f->dtype, n, joins[i].n_parts, joins[i].own, parts, stride,
                                                own, out, joins[i].tree});
        ops_collect(f, joins[i].name, OT_F32, out, n);
    }
}

static void check_join(const struct span *c, enum ot_dtype dtype, int shift) {
    struct cuda_pair p;
    if (c->n < 8 * 32)
        return;
    cuda_run(&p, run_join, c, dtype, shift);
    for (int i = 0; i < JOINS; i++)
        cuda_check_bits(&p, joins[i].name);
    cuda_close(&p);
}

static void check_add(const struct span *c, enum ot_dtype dtype, int shift) {
    struct cuda_pair p;
    cuda_run(&p, run_add, c, dtype, shift);
    cuda_check_bits(&p, "sum");
    if (c->n > 1)
        cuda_check_bits(&p, "sum of shifted");
    cuda_check_bits(&p, "sum in a");
    if (dtype != OT_F16) /* the reference rounds only once, at the end, because a is a sum already */
        cuda_check_bits(&p, "sum in b");
    cuda_close(&p);
}

static void test_add(void **state) {
    (void)state;
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        float *x = inputs(6, LARGEST, dtype != OT_F16), *y = ops_random(7, LARGEST, 2);
        for (int s = 0; s < N_SIZES; s++) {
            struct span span = {OT_ACT_RELU, SIZES[s], x, y};
            check_add(&span, (enum ot_dtype)dtype, s % SHIFTS);
            check_join(&span, (enum ot_dtype)dtype, s % SHIFTS);
            check_dropout(&span, (enum ot_dtype)dtype, s % SHIFTS);
        }
        free(x);
        free(y);
    }
}

/* More elements than the grid has threads, so that each thread takes several. */
static void test_add_of_many(void **state) {
    (void)state;
    enum { MANY = 1 << 20 };
    float *x = ops_random(8, MANY, 1), *y = ops_random(9, MANY, 1);
    check_add(&(struct span){OT_ACT_RELU, MANY, x, y}, OT_F32, 1);
    free(x);
    free(y);
}

/* ---- casts ---- */

struct cast {
    enum ot_dtype from, to;
    int64_t n;
    const float *x;
};

static void run_cast(struct ops_fixture *f, const void *argument) {
    const struct cast *c = argument;
    void *src = ops_upload(f, c->from, c->x, c->n), *dst = ops_blank_values(f, c->to, c->n);
    f->ops->cast(f->lane, &(struct ot_cast){c->from, c->to, c->n, src, dst});
    ops_collect(f, "cast", c->to, dst, c->n);
}

static void check_cast(const struct cast *c, int shift) {
    struct cuda_pair p;
    cuda_run(&p, run_cast, c, OT_F32, shift);
    cuda_check_bits(&p, "cast");
    cuda_close(&p);
}

static void test_casts(void **state) {
    (void)state;
    float *x = inputs(10, LARGEST, true);
    for (int64_t i = 100; i < LARGEST;
         i++) /* values between those of the small dtypes, so that roundings show, over fp16's range */
        x[i] = ldexpf(x[i] * 1.0001f, (int)(i % 48) - 28);
    for (int from = OT_F32; from <= OT_F16; from++)
        for (int to = OT_F32; to <= OT_F16; to++)
            for (int s = 0; s < N_SIZES; s++)
                check_cast(&(struct cast){(enum ot_dtype)from, (enum ot_dtype)to, SIZES[s], x}, s % SHIFTS);
    free(x);
}

/* Every pattern of the half that is rounded off, at several exponents and at the ends of fp16's range. */
static void test_ties_and_ranges(void **state) {
    (void)state;
    static const uint32_t highs[] = {0x3f80, 0x3f81, 0xc2ff, 0x477f, 0x387f, 0x3380, 0x3300, 0x7f7f, 0x0000};
    enum { N_HIGHS = sizeof highs / sizeof *highs, LOWS = 0x10000 / 16 };
    float *x = malloc(N_HIGHS * LOWS * sizeof *x);
    assert_non_null(x);
    for (int h = 0; h < N_HIGHS; h++)
        for (uint32_t low = 0; low < LOWS; low++) /* every 16th pattern, and both neighbours of a tie */
            x[h * LOWS + (int)low] = ot_f32_from_bits(highs[h] << 16 | (low * 16 + low % 3 - (low > 0)));
    for (int to = OT_BF16; to <= OT_F16; to++)
        check_cast(&(struct cast){OT_F32, (enum ot_dtype)to, (int64_t)N_HIGHS * LOWS, x}, 0);
    free(x);
}

/* ---- reduce ---- */

/* Compares the two halves of the double as fp32 numbers. No sum here has a half that is a NaN. */
static void run_reduce(struct ops_fixture *f, const void *argument) {
    const struct span *c = argument;
    static const char *const names[] = {"sum", "squares", "sum, accumulated", "squares, accumulated"};
    const float *x = ops_upload(f, OT_F32, c->x, c->n);
    double *out = ops_blank(f, sizeof *out);
    for (int kind = 0; kind < 4; kind++) {
        struct ot_reduce op = {.n = c->n, .x = x, .out = out, .squares = kind & 1, .accumulate = kind & 2};
        op.rounded_dtype = f->dtype;
        op.rounded = kind & 2 ? ops_blank_values(f, f->dtype, c->n) : NULL;
        f->ops->reduce(f->lane, &op);
        ops_collect(f, names[kind], OT_F32, out, 2);
        if (kind & 2)
            ops_collect(f, kind & 1 ? "rounded beside squares" : "rounded beside the sum", f->dtype,
                        op.rounded, c->n);
    }
}

static void check_reduce(const float *x, int64_t n, enum ot_dtype dtype, int shift) {
    static const char *const names[] = {"sum", "squares", "sum, accumulated", "squares, accumulated"};
    struct cuda_pair p;
    cuda_run(&p, run_reduce, &(struct span){.n = n, .x = x}, dtype, shift);
    cuda_check_bits(&p, "rounded beside squares");
    cuda_check_bits(&p, "rounded beside the sum");
    for (int kind = 0; kind < 4; kind++) {
        cuda_check_bits(&p, names[kind]);
        double value;
        memcpy(&value, ops_result(&p.cuda, names[kind], NULL), sizeof value);
        assert_true(isfinite(value));
    }
    cuda_close(&p);
}

static void test_reduce(void **state) {
    (void)state;
    static const int64_t sizes[] = {
        0, 1, 15, 16, 17, 255, 256, 257, 5000, 65535, 65536, 65537, 9 * 65536 + 777};
    enum { ROOM = 9 * 65536 + 777 };
    float *x = ops_random(11, ROOM, 1);
    for (int64_t i = 0; i < ROOM; i++) /* other orders of summation give other bits for such numbers */
        x[i] = ldexpf(x[i] * 1.0001f, (int)(i % 80) - 40);
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++)
        check_reduce(x, sizes[s], (enum ot_dtype)(s % 3), (int)(s % 4));
    free(x);
}

static void run_reduce_infinite(struct ops_fixture *f, const void *argument) {
    const struct span *c = argument;
    const float *x = ops_upload(f, OT_F32, c->x, c->n);
    double *out = ops_blank(f, sizeof *out);
    f->ops->reduce(f->lane, &(struct ot_reduce){.n = c->n, .x = x, .out = out, .squares = true});
    ops_collect(f, "squares", OT_F32, out, 2);
}

/* A single input that is not finite makes the result not finite. */
static void test_reduce_is_not_finite_where_an_input_is_not(void **state) {
    (void)state;
    enum { N = 70001 };
    static const int64_t places[] = {0, 17, 65535, 65536, N - 1};
    float *x = ops_random(12, N, 1);
    for (size_t i = 0; i < 2 * sizeof places / sizeof *places; i++) {
        float kept = x[places[i / 2]];
        x[places[i / 2]] = i % 2 ? NAN : -INFINITY;
        struct cuda_pair p;
        cuda_run(&p, run_reduce_infinite, &(struct span){.n = N, .x = x}, OT_F32, 0);
        double value;
        memcpy(&value, ops_result(&p.cuda, "squares", NULL), sizeof value);
        assert_false(isfinite(value));
        cuda_close(&p);
        x[places[i / 2]] = kept;
    }
    free(x);
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_activations), cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_glu),         cmocka_unit_test(test_bounded_glu),
        cmocka_unit_test(test_add),         cmocka_unit_test(test_add_of_many),
        cmocka_unit_test(test_casts),       cmocka_unit_test(test_ties_and_ranges),
        cmocka_unit_test(test_reduce),      cmocka_unit_test(test_reduce_is_not_finite_where_an_input_is_not),
    };
    return cmocka_run_group_tests_name("cuda_elementwise", tests, NULL, NULL);
}

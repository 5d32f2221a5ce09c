/* Attention against PyTorch on small cases; against a plain double-precision reference on cases that span
 * several blocks (finite differences check the reference itself). Also: the same bits on any number of
 * threads, bf16, and memory linear in the tokens. */
#include <malloc.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

struct attention_case {
    int64_t n, n_keys, heads, kv_heads, head_dim, window;
    const int32_t *row_start;
    const float *q, *k, *v, *dout;
    bool backward;
    int64_t pad;         /* more elements between tokens, which must not change */
    const float *slopes; /* may be NULL */
};

/* ---- the reference ---- */

struct reference {
    double *out, *lse, *dq, *dk, *dv;
};

static double *zeros(int64_t n) {
    double *values = calloc((size_t)n, sizeof *values);
    assert_non_null(values);
    return values;
}

static bool sees(const struct attention_case *c, int64_t query, int64_t key) {
    int64_t own = query + c->n_keys - c->n;
    return key >= c->row_start[query] && key <= own && (c->window == 0 || key > own - c->window);
}

static double dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* One query of one head. p[key] becomes its softmax row. Returns the log of the sum. */
static double softmax_row(const struct attention_case *c, const double *q, const double *k, int64_t query,
                          int64_t head, double *p) {
    int64_t dim = c->head_dim, kv = head / (c->heads / c->kv_heads);
    double max = -INFINITY, sum = 0;
    for (int64_t j = 0; j < c->n_keys; j++) {
        p[j] = -INFINITY;
        if (sees(c, query, j))
            p[j] = dot(q + (query * c->heads + head) * dim, k + (j * c->kv_heads + kv) * dim, dim) /
                       sqrt((double)dim) -
                   (c->slopes ? c->slopes[head] * (double)(query + c->n_keys - c->n - j) : 0);
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j < c->n_keys; j++)
        sum += exp(p[j] - max);
    for (int64_t j = 0; j < c->n_keys; j++)
        p[j] = exp(p[j] - max) / sum;
    return max + log(sum);
}

/* Adds the gradients of one query and head. */
static void reference_backward(const struct attention_case *c, const double *const in[4], int64_t query,
                               int64_t head, const double *p, struct reference *r) {
    int64_t dim = c->head_dim, kv = head / (c->heads / c->kv_heads), own = (query * c->heads + head) * dim;
    const double *q = in[0] + own, *dout = in[3] + own;
    double delta = dot(r->out + own, dout, dim);
    for (int64_t j = 0; j < c->n_keys; j++) {
        int64_t key = (j * c->kv_heads + kv) * dim;
        double slope = p[j] * (dot(dout, in[2] + key, dim) - delta) / sqrt((double)dim);
        for (int64_t d = 0; d < dim; d++) {
            r->dq[own + d] += slope * in[1][key + d];
            r->dk[key + d] += slope * q[d];
            r->dv[key + d] += p[j] * dout[d];
        }
    }
}

/* in: q, k, v, dout. */
static struct reference reference_run(const struct attention_case *c, const double *const in[4]) {
    int64_t dim = c->head_dim, q_elems = c->n * c->heads * dim, k_elems = c->n_keys * c->kv_heads * dim;
    struct reference r = {zeros(q_elems), zeros(c->heads * c->n), zeros(q_elems), zeros(k_elems),
                          zeros(k_elems)};
    double *p = zeros(c->n_keys);
    for (int64_t head = 0; head < c->heads; head++) {
        int64_t kv = head / (c->heads / c->kv_heads);
        for (int64_t i = 0; i < c->n; i++) {
            r.lse[head * c->n + i] = softmax_row(c, in[0], in[1], i, head, p);
            double *out = r.out + (i * c->heads + head) * dim;
            for (int64_t j = 0; j < c->n_keys; j++)
                for (int64_t d = 0; p[j] > 0 && d < dim; d++)
                    out[d] += p[j] * in[2][(j * c->kv_heads + kv) * dim + d];
            if (c->backward)
                reference_backward(c, in, i, head, p, &r);
        }
    }
    free(p);
    return r;
}

static void reference_free(struct reference *r) {
    free(r->out);
    free(r->lse);
    free(r->dq);
    free(r->dk);
    free(r->dv);
}

/* ---- the op ---- */

/* A [tokens, width] array with `pad` elements of NaN after each token. */
static float *spread(const float *from, int64_t tokens, int64_t width, int64_t pad) {
    float *to = malloc((size_t)(tokens * (width + pad)) * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < tokens * (width + pad); i++)
        to[i] = i % (width + pad) < width ? from[i / (width + pad) * width + i % (width + pad)] : NAN;
    return to;
}

static void *upload_spread(struct ops_fixture *f, const float *from, int64_t tokens, int64_t width,
                           int64_t pad) {
    float *wide = spread(from, tokens, width, pad);
    void *memory = ops_upload(f, f->dtype, wide, tokens * (width + pad));
    free(wide);
    return memory;
}

static struct ot_attention upload_case(struct ops_fixture *f, const struct attention_case *c) {
    int64_t q_width = c->heads * c->head_dim, k_width = c->kv_heads * c->head_dim;
    return (struct ot_attention){
        .dtype = f->dtype,
        .n = c->n,
        .n_keys = c->n_keys,
        .heads = c->heads,
        .kv_heads = c->kv_heads,
        .head_dim = c->head_dim,
        .window = c->window,
        .ldq = q_width + c->pad,
        .ldk = k_width + c->pad,
        .ldv = k_width + c->pad,
        .ldo = q_width,
        .scale = 1.0f / sqrtf((float)c->head_dim),
        .row_start = ops_upload_ids(f, c->row_start, c->n),
        .slopes = c->slopes ? ops_upload(f, OT_F32, c->slopes, c->heads) : NULL,
        .q = upload_spread(f, c->q, c->n, q_width, c->pad),
        .k = upload_spread(f, c->k, c->n_keys, k_width, c->pad),
        .v = upload_spread(f, c->v, c->n_keys, k_width, c->pad),
        .out = ops_blank_values(f, f->dtype, c->n * q_width),
        .lse = ops_blank(f, (size_t)(c->heads * c->n) * sizeof(float)),
    };
}

static void run_case(struct ops_fixture *f, const void *argument) {
    const struct attention_case *c = argument;
    struct ot_attention op = upload_case(f, c);
    int64_t q_elems = c->n * c->heads * c->head_dim;
    f->ops->attention(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, q_elems);
    ops_collect(f, "lse", OT_F32, op.lse, c->heads * c->n);
    if (!c->backward)
        return;
    struct ot_attention_backward back = {.forward = op};
    back.dout = ops_upload(f, f->dtype, c->dout, q_elems);
    back.dq = ops_blank_values(f, f->dtype, c->n * op.ldq);
    back.dk = ops_blank_values(f, f->dtype, c->n * op.ldk);
    back.dv = ops_blank_values(f, f->dtype, c->n * op.ldv);
    back.scratch = ops_blank(f, ot_attention_backward_scratch_bytes(c->n, c->heads));
    f->ops->attention_backward(f->lane, &back);
    ops_collect(f, "dq", f->dtype, back.dq, c->n * op.ldq);
    ops_collect(f, "dk", f->dtype, back.dk, c->n * op.ldk);
    ops_collect(f, "dv", f->dtype, back.dv, c->n * op.ldv);
}

/* Compares [tokens, width + pad] with a dense reference. The padding must still be poison. */
static void compare(const struct ops_fixture *f, const char *name, const double *want, int64_t tokens,
                    int64_t width, int64_t pad, double bound) {
    const float *got = ops_result(f, name, NULL);
    float *dense = malloc((size_t)(tokens * width) * sizeof *dense),
          *narrow = malloc((size_t)(tokens * width) * sizeof *narrow);
    assert_non_null(dense);
    assert_non_null(narrow);
    for (int64_t i = 0; i < tokens * (width + pad); i++) {
        int64_t column = i % (width + pad), to = i / (width + pad) * width + column;
        if (column >= width) {
            assert_true(isnan(got[i]));
            continue;
        }
        dense[to] = got[i];
        narrow[to] = (float)want[to];
    }
    double error = relative_error(dense, narrow, tokens * width);
    if (!(error < bound))
        fail_msg("%s differs by %.3g, allowed %.3g", name, error, bound);
    free(dense);
    free(narrow);
}

/* fp32 rounding of dot products of head_dim terms and of sums over some hundred keys. Such errors grow with
 * the square root of the length: 2^-24 * sqrt(600) * a few operations. */
static const double FP32_BOUND = 4e-6;
/* bf16 keeps 8 bits. Inputs are exact, p and out are rounded, and terms of the gradients cancel a little. */
static const double BF16_BOUND = 1.2e-2;

/* ---- against PyTorch ---- */

static void check_golden(const char *name, bool backward) {
    struct ot_golden *golden = golden_open("ops.bin");
    char array[64];
#define ARRAY(field) (snprintf(array, sizeof array, "attention.%s.%s", name, field), array)
    struct attention_case c = {.backward = backward, .pad = 3};
    c.q = golden_f32(golden, ARRAY("q"), NULL);
    c.n = golden_dim(golden, array, 0);
    c.heads = golden_dim(golden, array, 1);
    c.head_dim = golden_dim(golden, array, 2);
    c.k = golden_f32(golden, ARRAY("k"), NULL);
    c.n_keys = golden_dim(golden, array, 0);
    c.kv_heads = golden_dim(golden, array, 1);
    c.v = golden_f32(golden, ARRAY("v"), NULL);
    c.dout = golden_f32(golden, ARRAY("dout"), NULL);
    c.row_start = golden_i32(golden, ARRAY("row_start"), NULL);
    c.window = golden_i32(golden, ARRAY("window"), NULL)[0];
    struct ops_fixture f;
    ops_check_threads(&f, run_case, &c, OT_F32);
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv"};
    int64_t widths[] = {c.heads * c.head_dim, 1, c.heads * c.head_dim, c.kv_heads * c.head_dim,
                        c.kv_heads * c.head_dim};
    for (int i = 0; i < (backward ? 5 : 2); i++) {
        int64_t count;
        const float *want = golden_f32(golden, ARRAY(names[i]), &count);
        double *wide = zeros(count);
        for (int64_t j = 0; j < count; j++)
            wide[j] = want[j];
        compare(&f, names[i], wide, count / widths[i], widths[i], i < 2 ? 0 : c.pad, 2e-6);
        free(wide);
    }
#undef ARRAY
    ops_close(&f);
    ops_check_half(run_case,
                   &(struct attention_case){c.n, c.n_keys, c.heads, c.kv_heads, c.head_dim, c.window,
                                            c.row_start, c.q, c.k, c.v, c.dout, backward, 0, NULL},
                   BF16_BOUND);
    golden_close(golden);
}

static void test_golden(void **state) {
    (void)state;
    check_golden("plain", true);
    check_golden("grouped", true);
    check_golden("window", true);
    check_golden("decode", false);
}

/* ---- against the reference ---- */

struct shape {
    int64_t n, n_keys, heads, kv_heads, head_dim, window, row; /* rows of `row` tokens; 0: one row */
    bool backward, slopes;
};

/* ALiBi's slopes for 8 heads, except the last, which is not a power of two here. */
static const float alibi_slopes[8] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.003f};

/* Random inputs for a shape. release_case frees them. */
static struct attention_case make_case(const struct shape *s, int32_t **row_start, float *values[4]) {
    int64_t q_elems = s->n * s->heads * s->head_dim, k_elems = s->n_keys * s->kv_heads * s->head_dim;
    values[0] = ops_random(1, q_elems, 1);
    values[1] = ops_random(2, k_elems, 1);
    values[2] = ops_random(3, k_elems, 1);
    values[3] = ops_random(4, q_elems, 1);
    *row_start = malloc((size_t)s->n * sizeof **row_start);
    assert_non_null(*row_start);
    for (int64_t i = 0; i < s->n; i++)
        (*row_start)[i] = (int32_t)(s->row ? i / s->row * s->row : 0);
    return (struct attention_case){s->n,        s->n_keys,
                                   s->heads,    s->kv_heads,
                                   s->head_dim, s->window,
                                   *row_start,  values[0],
                                   values[1],   values[2],
                                   values[3],   s->backward,
                                   0,           s->slopes ? alibi_slopes : NULL};
}

static void release_case(int32_t *row_start, float *values[4]) {
    free(row_start);
    for (int i = 0; i < 4; i++)
        free(values[i]);
}

static void widen(const struct attention_case *c, double *in[4]) {
    const float *from[4] = {c->q, c->k, c->v, c->dout};
    for (int i = 0; i < 4; i++) {
        int64_t n = i == 1 || i == 2 ? c->n_keys * c->kv_heads * c->head_dim : c->n * c->heads * c->head_dim;
        in[i] = zeros(n);
        for (int64_t j = 0; j < n; j++)
            in[i][j] = from[i][j];
    }
}

static void check_shape(const struct shape *s) {
    int32_t *row_start;
    float *values[4];
    double *in[4];
    struct attention_case c = make_case(s, &row_start, values);
    c.pad = 5;
    widen(&c, in);
    struct reference want = reference_run(&c, (const double *const *)in);
    struct ops_fixture f;
    ops_check_threads(&f, run_case, &c, OT_F32);
    int64_t q_width = c.heads * c.head_dim, k_width = c.kv_heads * c.head_dim;
    compare(&f, "out", want.out, c.n, q_width, 0, FP32_BOUND);
    compare(&f, "lse", want.lse, c.heads * c.n, 1, 0, FP32_BOUND);
    if (s->backward) {
        compare(&f, "dq", want.dq, c.n, q_width, c.pad, FP32_BOUND);
        compare(&f, "dk", want.dk, c.n, k_width, c.pad, FP32_BOUND);
        compare(&f, "dv", want.dv, c.n, k_width, c.pad, FP32_BOUND);
    }
    ops_close(&f);
    ops_check_threads(&f, run_case, &c, OT_BF16);
    ops_close(&f);
    c.pad = 0;
    if (s->n_keys > 1) /* a softmax over one key has gradients of 0, so no relative error exists */
        ops_check_half(run_case, &c, BF16_BOUND);
    reference_free(&want);
    for (int i = 0; i < 4; i++)
        free(in[i]);
    release_case(row_start, values);
}

static void test_blocks(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 0, 0, true, false},           /* the smallest case */
        {129, 129, 3, 1, 24, 0, 0, true, false},      /* one key past two blocks */
        {300, 300, 4, 2, 64, 0, 0, true, false},      /* several blocks of queries and of keys */
        {280, 280, 2, 2, 32, 0, 37, true, false},     /* rows that straddle blocks */
        {333, 333, 4, 4, 16, 50, 0, true, false},     /* a window that leaves whole blocks unseen */
        {290, 290, 2, 1, 128, 100, 171, true, false}, /* rows and a window */
        {1, 600, 8, 2, 64, 0, 0, false, false},       /* one token of decoding */
        {70, 523, 4, 2, 40, 90, 0, false, false},     /* a prompt after a past, with a window */
        {300, 300, 8, 4, 16, 0, 0, true, true},       /* ALiBi over several blocks */
        {70, 523, 4, 2, 24, 90, 0, false, true},      /* after a past, with a window */
        {280, 280, 8, 8, 16, 40, 67, true, true},     /* and with rows */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_brief() ? 3 : 1)
        check_shape(&shapes[i]);
}

/* Checks the reference's gradient: the directional derivative of sum(out * dout) along a random direction, by
 * central differences in double. */
static void test_reference(void **state) {
    (void)state;
    static const struct shape shape = {24, 24, 4, 2, 6, 7, 15, true, true};
    int32_t *row_start;
    float *values[4];
    double *in[4];
    struct attention_case c = make_case(&shape, &row_start, values);
    widen(&c, in);
    struct reference want = reference_run(&c, (const double *const *)in);
    const double *grads[3] = {want.dq, want.dk, want.dv};
    for (int which = 0; which < 3; which++) {
        int64_t n = (which ? c.n_keys * c.kv_heads : c.n * c.heads) * c.head_dim;
        float *direction = ops_random(50 + (uint64_t)which, n, 1);
        double loss[2], step = 1e-5, slope = 0;
        for (int side = 0; side < 2; side++) {
            for (int64_t i = 0; i < n; i++)
                in[which][i] += (side ? -2 : 1) * step * direction[i];
            struct reference moved = reference_run(&c, (const double *const *)in);
            loss[side] = dot(moved.out, in[3], c.n * c.heads * c.head_dim);
            reference_free(&moved);
        }
        for (int64_t i = 0; i < n; i++) {
            in[which][i] += step * direction[i];
            slope += grads[which][i] * direction[i];
        }
        double measured = (loss[0] - loss[1]) / (2 * step);
        assert_true(fabs(measured - slope) < 1e-7 * fmax(1, fabs(slope)));
        free(direction);
    }
    reference_free(&want);
    for (int i = 0; i < 4; i++)
        free(in[i]);
    release_case(row_start, values);
}

/* ---- memory ---- */

static long resident_peak_bytes(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss * 1024;
}

/* 8192 tokens: a T x T matrix of a single head would take 256 MiB. Forward and backward together may take 32
 * MiB beside their own arrays, which are allocated before. */
static void test_linear_memory(void **state) {
    (void)state;
    if (tests_are_brief()) /* the memory of a sanitizer would count too */
        skip();
    struct ops_fixture f;
    ops_open(&f, 2, OT_F32);
    static const struct shape shape = {8192, 8192, 1, 1, 16, 0, 0, true, false};
    int32_t *row_start;
    float *values[4];
    struct attention_case c = make_case(&shape, &row_start, values);
    struct ot_attention op = upload_case(&f, &c);
    int64_t elems = c.n * c.head_dim;
    struct ot_attention_backward back = {.forward = op, .dout = ops_upload(&f, OT_F32, c.dout, elems)};
    back.dq = ops_blank_values(&f, OT_F32, elems);
    back.dk = ops_blank_values(&f, OT_F32, elems);
    back.dv = ops_blank_values(&f, OT_F32, elems);
    back.scratch = ops_blank(&f, ot_attention_backward_scratch_bytes(c.n, c.heads));
    struct ot_device_usage before, after;
    ot_device_usage(f.device, &before);
    long resident = resident_peak_bytes();
    f.ops->attention(f.lane, &op);
    f.ops->attention_backward(f.lane, &back);
    check_ok(ot_lane_sync(f.lane));
    ot_device_usage(f.device, &after);
    assert_int_equal(after.peak_bytes, before.peak_bytes);
    assert_true(resident_peak_bytes() - resident < 32l << 20);
    ops_collect(&f, "dv", OT_F32, back.dv, elems);
    for (int64_t i = 0; i < elems; i++)
        assert_true(isfinite(ops_result(&f, "dv", NULL)[i]));
    ops_close(&f);
    release_case(row_start, values);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_linear_memory),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}

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
    int64_t pad;                 /* more elements between tokens, which must not change */
    const float *slopes, *sinks; /* may be NULL */
    float softcap;
};

/* ---- the reference ---- */

enum { SINKS = 4, INPUTS };

struct reference {
    double *out, *lse, *dq, *dk, *dv, *dsinks;
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

/* The score of a key that the query sees. *derivative: of the score by scale * q.k. */
static double score_of(const struct attention_case *c, const double *q, const double *k, int64_t query,
                       int64_t head, int64_t key, double *derivative) {
    int64_t dim = c->head_dim, kv = head / (c->heads / c->kv_heads);
    double x =
        dot(q + (query * c->heads + head) * dim, k + (key * c->kv_heads + kv) * dim, dim) / sqrt((double)dim);
    *derivative = 1;
    if (c->softcap > 0) {
        double t = tanh(x / c->softcap);
        *derivative = 1 - t * t;
        x = c->softcap * t;
    }
    return x - (c->slopes ? c->slopes[head] * (double)(query + c->n_keys - c->n - key) : 0);
}

/* One query of one head. p[key] becomes its softmax row. Returns the log of the sum. */
static double softmax_row(const struct attention_case *c, const double *q, const double *k,
                          const double *sinks, int64_t query, int64_t head, double *p) {
    double max = sinks ? sinks[head] : -INFINITY, sum = 0, derivative;
    for (int64_t j = 0; j < c->n_keys; j++) {
        p[j] = sees(c, query, j) ? score_of(c, q, k, query, head, j, &derivative) : -INFINITY;
        max = fmax(max, p[j]);
    }
    for (int64_t j = 0; j < c->n_keys; j++)
        sum += exp(p[j] - max);
    sum += sinks ? exp(sinks[head] - max) : 0;
    for (int64_t j = 0; j < c->n_keys; j++)
        p[j] = exp(p[j] - max) / sum;
    return max + log(sum);
}

/* Adds the gradients of one query and head. */
static void reference_backward(const struct attention_case *c, const double *const in[INPUTS], int64_t query,
                               int64_t head, const double *p, struct reference *r) {
    int64_t dim = c->head_dim, kv = head / (c->heads / c->kv_heads), own = (query * c->heads + head) * dim;
    const double *q = in[0] + own, *dout = in[3] + own;
    double delta = dot(r->out + own, dout, dim), derivative;
    for (int64_t j = 0; j < c->n_keys; j++) {
        int64_t key = (j * c->kv_heads + kv) * dim;
        if (!sees(c, query, j))
            continue;
        score_of(c, in[0], in[1], query, head, j, &derivative);
        double slope = p[j] * (dot(dout, in[2] + key, dim) - delta) / sqrt((double)dim) * derivative;
        for (int64_t d = 0; d < dim; d++) {
            r->dq[own + d] += slope * in[1][key + d];
            r->dk[key + d] += slope * q[d];
            r->dv[key + d] += p[j] * dout[d];
        }
    }
    if (in[SINKS])
        r->dsinks[head] -= exp(in[SINKS][head] - r->lse[head * c->n + query]) * delta;
}

/* in: q, k, v, dout, sinks (may be NULL). */
static struct reference reference_run(const struct attention_case *c, const double *const in[INPUTS]) {
    int64_t dim = c->head_dim, q_elems = c->n * c->heads * dim, k_elems = c->n_keys * c->kv_heads * dim;
    struct reference r = {zeros(q_elems), zeros(c->heads * c->n), zeros(q_elems),
                          zeros(k_elems), zeros(k_elems),         zeros(c->heads)};
    double *p = zeros(c->n_keys);
    for (int64_t head = 0; head < c->heads; head++) {
        int64_t kv = head / (c->heads / c->kv_heads);
        for (int64_t i = 0; i < c->n; i++) {
            r.lse[head * c->n + i] = softmax_row(c, in[0], in[1], in[SINKS], i, head, p);
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
    free(r->dsinks);
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
        .softcap = c->softcap,
        .row_start = ops_upload_ids(f, c->row_start, c->n),
        .slopes = c->slopes ? ops_upload(f, OT_F32, c->slopes, c->heads) : NULL,
        .sinks = c->sinks ? ops_upload(f, f->dtype, c->sinks, c->heads) : NULL,
        .q = upload_spread(f, c->q, c->n, q_width, c->pad),
        .k = upload_spread(f, c->k, c->n_keys, k_width, c->pad),
        .v = upload_spread(f, c->v, c->n_keys, k_width, c->pad),
        .out = ops_blank_values(f, f->dtype, c->n * q_width),
        .lse = ops_blank(f, (size_t)(c->heads * c->n) * sizeof(float)),
    };
}

/* dsinks is accumulated: these numbers are there before. */
static const float earlier_dsinks[8] = {0.5f, -0.25f, 1, 0, 2, -1, 0.125f, 3};

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
    back.dsinks = c->sinks ? ops_upload(f, OT_F32, earlier_dsinks, c->heads) : NULL;
    back.scratch = ops_blank(f, ot_attention_backward_scratch_bytes(c->n, c->heads));
    f->ops->attention_backward(f->lane, &back);
    ops_collect(f, "dq", f->dtype, back.dq, c->n * op.ldq);
    ops_collect(f, "dk", f->dtype, back.dk, c->n * op.ldk);
    ops_collect(f, "dv", f->dtype, back.dv, c->n * op.ldv);
    if (c->sinks)
        ops_collect(f, "dsinks", OT_F32, back.dsinks, c->heads);
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
    if (golden_has(golden, ARRAY("softcap")))
        c.softcap = golden_f32(golden, array, NULL)[0];
    if (golden_has(golden, ARRAY("sinks")))
        c.sinks = golden_f32(golden, array, NULL);
    struct ops_fixture f;
    ops_check_threads(&f, run_case, &c, OT_F32);
    static const char *const names[] = {"out", "lse", "dq", "dk", "dv", "dsinks"};
    int64_t widths[] = {c.heads * c.head_dim,    1,      c.heads * c.head_dim, c.kv_heads * c.head_dim,
                        c.kv_heads * c.head_dim, c.heads};
    for (int i = 0; i < (backward ? c.sinks ? 6 : 5 : 2); i++) {
        int64_t count;
        const float *want = golden_f32(golden, ARRAY(names[i]), &count);
        double *wide = zeros(count);
        for (int64_t j = 0; j < count; j++)
            wide[j] = (i == 5 ? earlier_dsinks[j] : 0) + want[j];
        compare(&f, names[i], wide, count / widths[i], widths[i], i < 2 || i == 5 ? 0 : c.pad, 2e-6);
        free(wide);
    }
#undef ARRAY
    ops_close(&f);
    c.pad = 0;
    ops_check_half(run_case, &c, BF16_BOUND);
    golden_close(golden);
}

static void test_golden(void **state) {
    (void)state;
    check_golden("plain", true);
    check_golden("grouped", true);
    check_golden("window", true);
    check_golden("decode", false);
    check_golden("capped", true);
    check_golden("sinks", true);
    check_golden("capped_sinks", true);
    check_golden("saturated", true);
    check_golden("capped_decode", false);
}

/* ---- against the reference ---- */

struct shape {
    int64_t n, n_keys, heads, kv_heads, head_dim, window, row; /* rows of `row` tokens; 0: one row */
    bool backward, slopes;
    float softcap, sink; /* sink: of head 0; the other heads' are close to it. 0: none */
    float q_size;        /* 0: 1 */
};

/* ALiBi's slopes for 8 heads, except the last, which is not a power of two here. */
static const float alibi_slopes[8] = {0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f, 0.0078125f, 0.003f};
/* Added to the first head's sink; the sums are numbers of bf16 and fp16. */
static const float sink_steps[8] = {0, 0.5f, -1, 1.5f, 2, -0.5f, 1, -2};

/* Random inputs for a shape. release_case frees them. */
static struct attention_case make_case(const struct shape *s, int32_t **row_start, float *values[INPUTS]) {
    int64_t q_elems = s->n * s->heads * s->head_dim, k_elems = s->n_keys * s->kv_heads * s->head_dim;
    values[0] = ops_random(1, q_elems, s->q_size > 0 ? s->q_size : 1);
    values[1] = ops_random(2, k_elems, 1);
    values[2] = ops_random(3, k_elems, 1);
    values[3] = ops_random(4, q_elems, 1);
    values[SINKS] = s->sink != 0 ? ops_random(5, s->heads, 1) : NULL;
    for (int64_t head = 0; values[SINKS] && head < s->heads; head++)
        values[SINKS][head] = s->sink + sink_steps[head];
    *row_start = malloc((size_t)s->n * sizeof **row_start);
    assert_non_null(*row_start);
    for (int64_t i = 0; i < s->n; i++)
        (*row_start)[i] = (int32_t)(s->row ? i / s->row * s->row : 0);
    return (struct attention_case){.n = s->n,
                                   .n_keys = s->n_keys,
                                   .heads = s->heads,
                                   .kv_heads = s->kv_heads,
                                   .head_dim = s->head_dim,
                                   .window = s->window,
                                   .row_start = *row_start,
                                   .q = values[0],
                                   .k = values[1],
                                   .v = values[2],
                                   .dout = values[3],
                                   .backward = s->backward,
                                   .slopes = s->slopes ? alibi_slopes : NULL,
                                   .sinks = values[SINKS],
                                   .softcap = s->softcap};
}

static void release_case(int32_t *row_start, float *values[INPUTS]) {
    free(row_start);
    for (int i = 0; i < INPUTS; i++)
        free(values[i]);
}

static void widen(const struct attention_case *c, double *in[INPUTS]) {
    int64_t q_elems = c->n * c->heads * c->head_dim, k_elems = c->n_keys * c->kv_heads * c->head_dim;
    const float *from[INPUTS] = {c->q, c->k, c->v, c->dout, c->sinks};
    const int64_t elems[INPUTS] = {q_elems, k_elems, k_elems, q_elems, c->heads};
    for (int i = 0; i < INPUTS; i++) {
        in[i] = from[i] ? zeros(elems[i]) : NULL;
        for (int64_t j = 0; from[i] && j < elems[i]; j++)
            in[i][j] = from[i][j];
    }
}

static void check_shape(const struct shape *s) {
    int32_t *row_start;
    float *values[INPUTS];
    double *in[INPUTS];
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
    if (s->backward && c.sinks) {
        for (int64_t head = 0; head < c.heads; head++)
            want.dsinks[head] += earlier_dsinks[head];
        compare(&f, "dsinks", want.dsinks, 1, c.heads, 0, FP32_BOUND);
    }
    ops_close(&f);
    ops_check_threads(&f, run_case, &c, OT_BF16);
    ops_close(&f);
    c.pad = 0;
    if (s->n_keys > 1 ||
        c.sinks) /* a softmax over one key alone has gradients of 0: no relative error exists */
        ops_check_half(run_case, &c, BF16_BOUND);
    reference_free(&want);
    for (int i = 0; i < INPUTS; i++)
        free(in[i]);
    release_case(row_start, values);
}

static void test_blocks(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {1, 1, 1, 1, 1, 0, 0, .backward = true},           /* the smallest case */
        {129, 129, 3, 1, 24, 0, 0, .backward = true},      /* one key past two blocks */
        {300, 300, 4, 2, 64, 0, 0, .backward = true},      /* several blocks of queries and of keys */
        {280, 280, 2, 2, 32, 0, 37, .backward = true},     /* rows that straddle blocks */
        {333, 333, 4, 4, 16, 50, 0, .backward = true},     /* a window that leaves whole blocks unseen */
        {290, 290, 2, 1, 128, 100, 171, .backward = true}, /* rows and a window */
        {1, 600, 8, 2, 64, .row = 0},                      /* one token of decoding */
        {70, 523, 4, 2, 40, .window = 90},                 /* a prompt after a past, with a window */
        {300, 300, 8, 4, 16, 0, 0, .backward = true, .slopes = true},   /* ALiBi over several blocks */
        {70, 523, 4, 2, 24, 90, 0, .slopes = true},                     /* after a past, with a window */
        {280, 280, 8, 8, 16, 40, 67, .backward = true, .slopes = true}, /* and with rows */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_brief() ? 3 : 1)
        check_shape(&shapes[i]);
}

/* Softcaps and sinks. */
static void test_caps_and_sinks(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {300, 300, 4, 2, 64, 0, 0, .backward = true, .softcap = 2},
        {300, 300, 8, 4, 16, 0, 0, .backward = true, .slopes = true, .softcap = 1.5f}, /* before ALiBi */
        {290, 290, 2, 1, 128, 100, 171, .backward = true, .softcap = 2, .sink = 1},    /* rows and a window */
        {280, 280, 8, 8, 16, 40, 67, .backward = true, .slopes = true, .softcap = 3, .sink = -1},
        {200, 200, 4, 2, 32, 0, 0, .backward = true, .softcap = 4,
         .q_size = 40},                                    /* scores far beyond the cap */
        {1, 600, 8, 2, 64, 0, 0, .softcap = 2, .sink = 2}, /* one token of decoding */
        {70, 523, 4, 2, 40, 90, 0, .slopes = true, .softcap = 2, .sink = 2},
        {1, 1, 1, 1, 8, 0, 0, .backward = true, .sink = 0.5f},     /* one key and a sink */
        {40, 40, 2, 1, 8, 1, 0, .backward = true, .sink = 0.5f},   /* the same by a window */
        {150, 150, 4, 2, 24, 0, 0, .backward = true, .sink = 12},  /* much larger than the scores */
        {150, 150, 4, 2, 24, 0, 0, .backward = true, .sink = -12}, /* much smaller */
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i += tests_are_for_races() ? 4
                                                                : tests_are_brief()   ? 2
                                                                                      : 1)
        check_shape(&shapes[i]);
}

/* Checks the reference's gradient: the directional derivative of sum(out * dout) along a random direction, by
 * central differences in double. */
static void test_reference(void **state) {
    (void)state;
    static const struct shape shape = {
        24, 24, 4, 2, 6, 7, 15, .backward = true, .slopes = true, .softcap = 2, .sink = 1};
    int32_t *row_start;
    float *values[INPUTS];
    double *in[INPUTS];
    struct attention_case c = make_case(&shape, &row_start, values);
    widen(&c, in);
    struct reference want = reference_run(&c, (const double *const *)in);
    const double *grads[INPUTS] = {want.dq, want.dk, want.dv, NULL, want.dsinks};
    for (int which = 0; which < INPUTS; which++) {
        if (!grads[which])
            continue;
        int64_t n = (which ? c.n_keys * c.kv_heads : c.n * c.heads) * c.head_dim;
        n = which == SINKS ? c.heads : n;
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
    for (int i = 0; i < INPUTS; i++)
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
    static const struct shape shape = {8192, 8192, 1, 1, 16, 0, 0, .backward = true};
    int32_t *row_start;
    float *values[INPUTS];
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
        cmocka_unit_test(test_golden),        cmocka_unit_test(test_reference),
        cmocka_unit_test(test_blocks),        cmocka_unit_test(test_caps_and_sinks),
        cmocka_unit_test(test_linear_memory),
    };
    return cmocka_run_group_tests_name("attention", tests, NULL, NULL);
}

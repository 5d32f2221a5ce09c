/* Cases of causal attention (kernels/ops.h), and a reference in double: test_ops_attention.c has whole rows,
 * test_ops_attention_sections.c has sections of rows. */
#ifndef OT_TESTS_KERNELS_ATTENTION_FIXTURE_H
#define OT_TESTS_KERNELS_ATTENTION_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"

struct attention_case {
    int64_t n, n_keys, heads, kv_heads, head_dim, window;
    const int32_t *row_start;
    const float *q, *k, *v, *dout;
    const float *dk_sums, *dv_sums; /* [n_keys, kv_heads, head_dim]; NULL: whole rows */
    bool backward;
    int64_t pad;                 /* more elements between tokens, which must not change; dk has 2 pad, dv 3 */
    const float *slopes, *sinks; /* may be NULL */
    float softcap;
    struct ot_weight_drop drop;
};

/* ---- the reference ---- */

enum {
    ATTENTION_SINKS = 4,
    ATTENTION_INPUTS,
    ATTENTION_DK_SUMS = ATTENTION_INPUTS,
    ATTENTION_DV_SUMS,
    ATTENTION_VALUES
};

struct attention_reference {
    double *out, *lse, *dq, *dk, *dv, *dsinks;
};

static inline double *attention_zeros(int64_t n) {
    double *values = calloc((size_t)n, sizeof *values);
    assert_non_null(values);
    return values;
}

static inline bool attention_sees(const struct attention_case *c, int64_t query, int64_t key) {
    int64_t own = query + c->n_keys - c->n;
    return key >= c->row_start[query] && key <= own && (c->window == 0 || key > own - c->window);
}

static inline double attention_dot(const double *a, const double *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += a[i] * b[i];
    return sum;
}

/* The score of a key that the query sees. *derivative: of the score by scale * q.k. */
static inline double attention_score(const struct attention_case *c, const double *q, const double *k,
                                     int64_t query, int64_t head, int64_t key, double *derivative) {
    int64_t dim = c->head_dim, kv = head / (c->heads / c->kv_heads);
    double x = attention_dot(q + (query * c->heads + head) * dim, k + (key * c->kv_heads + kv) * dim, dim) /
               sqrt((double)dim);
    *derivative = 1;
    if (c->softcap > 0) {
        double t = tanh(x / c->softcap);
        *derivative = 1 - t * t;
        x = c->softcap * t;
    }
    return x - (c->slopes ? c->slopes[head] * (double)(query + c->n_keys - c->n - key) : 0);
}

/* The factor of a weight by dropout. */
static inline double attention_kept(const struct attention_case *c, int64_t query, int64_t head,
                                    int64_t key) {
    uint32_t word = ot_state_word(c->drop.noise, (head * c->n + query) * c->n_keys + key);
    return word < ot_dropout_least(c->drop.share) ? 0 : ot_dropout_factor(c->drop.share);
}

/* Computes the softmax row of one query of one head, p[key]. Returns the log of the sum. */
static inline double attention_softmax_row(const struct attention_case *c, const double *q, const double *k,
                                           const double *sinks, int64_t query, int64_t head, double *p) {
    double max = sinks ? sinks[head] : -INFINITY, sum = 0, derivative;
    for (int64_t j = 0; j < c->n_keys; j++) {
        p[j] =
            attention_sees(c, query, j) ? attention_score(c, q, k, query, head, j, &derivative) : -INFINITY;
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
static inline void attention_reference_backward(const struct attention_case *c,
                                                const double *const in[ATTENTION_INPUTS], int64_t query,
                                                int64_t head, const double *p,
                                                struct attention_reference *r) {
    int64_t dim = c->head_dim, kv = head / (c->heads / c->kv_heads), own = (query * c->heads + head) * dim;
    const double *q = in[0] + own, *dout = in[3] + own;
    double delta = attention_dot(r->out + own, dout, dim), derivative;
    for (int64_t j = 0; j < c->n_keys; j++) {
        int64_t key = (j * c->kv_heads + kv) * dim;
        if (!attention_sees(c, query, j))
            continue;
        attention_score(c, in[0], in[1], query, head, j, &derivative);
        double factor = attention_kept(c, query, head, j);
        double slope =
            p[j] * (factor * attention_dot(dout, in[2] + key, dim) - delta) / sqrt((double)dim) * derivative;
        for (int64_t d = 0; d < dim; d++) {
            r->dq[own + d] += slope * in[1][key + d];
            r->dk[key + d] += slope * q[d];
            r->dv[key + d] += factor * p[j] * dout[d];
        }
    }
    if (in[ATTENTION_SINKS])
        r->dsinks[head] -= exp(in[ATTENTION_SINKS][head] - r->lse[head * c->n + query]) * delta;
}

/* in: q, k, v, dout, sinks (may be NULL). */
static inline struct attention_reference attention_reference_run(const struct attention_case *c,
                                                                 const double *const in[ATTENTION_INPUTS]) {
    int64_t dim = c->head_dim, q_elems = c->n * c->heads * dim, k_elems = c->n_keys * c->kv_heads * dim;
    struct attention_reference r = {attention_zeros(q_elems), attention_zeros(c->heads * c->n),
                                    attention_zeros(q_elems), attention_zeros(k_elems),
                                    attention_zeros(k_elems), attention_zeros(c->heads)};
    double *p = attention_zeros(c->n_keys);
    for (int64_t head = 0; head < c->heads; head++) {
        int64_t kv = head / (c->heads / c->kv_heads);
        for (int64_t i = 0; i < c->n; i++) {
            r.lse[head * c->n + i] = attention_softmax_row(c, in[0], in[1], in[ATTENTION_SINKS], i, head, p);
            double *out = r.out + (i * c->heads + head) * dim;
            for (int64_t j = 0; j < c->n_keys; j++)
                for (int64_t d = 0; p[j] > 0 && d < dim; d++)
                    out[d] += attention_kept(c, i, head, j) * p[j] * in[2][(j * c->kv_heads + kv) * dim + d];
            if (c->backward)
                attention_reference_backward(c, in, i, head, p, &r);
        }
    }
    free(p);
    return r;
}

static inline void attention_reference_free(struct attention_reference *r) {
    free(r->out);
    free(r->lse);
    free(r->dq);
    free(r->dk);
    free(r->dv);
    free(r->dsinks);
}

/* ---- the op ---- */

/* A [tokens, width] array with `pad` elements of NaN after each token. */
static inline float *attention_spread(const float *from, int64_t tokens, int64_t width, int64_t pad) {
    float *to = malloc((size_t)(tokens * (width + pad)) * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < tokens * (width + pad); i++)
        to[i] = i % (width + pad) < width ? from[i / (width + pad) * width + i % (width + pad)] : NAN;
    return to;
}

static inline void *attention_upload_spread(struct ops_fixture *f, const float *from, int64_t tokens,
                                            int64_t width, int64_t pad) {
    float *wide = attention_spread(from, tokens, width, pad);
    void *memory = ops_upload(f, f->dtype, wide, tokens * (width + pad));
    free(wide);
    return memory;
}

static inline struct ot_attention attention_upload(struct ops_fixture *f, const struct attention_case *c) {
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
        .drop = c->drop,
        .q = attention_upload_spread(f, c->q, c->n, q_width, c->pad),
        .k = attention_upload_spread(f, c->k, c->n_keys, k_width, c->pad),
        .v = attention_upload_spread(f, c->v, c->n_keys, k_width, c->pad),
        .out = ops_blank_values(f, f->dtype, c->n * q_width),
        .lse = ops_blank(f, (size_t)(c->heads * c->n) * sizeof(float)),
    };
}

/* dsinks is accumulated: these numbers are there before. */
static const float attention_earlier_dsinks[8] = {0.5f, -0.25f, 1, 0, 2, -1, 0.125f, 3};

/* The arguments of backward. Its results have memory of their own. */
static inline struct ot_attention_backward attention_upload_backward(struct ops_fixture *f,
                                                                     const struct attention_case *c,
                                                                     const struct ot_attention *op) {
    int64_t width = c->kv_heads * c->head_dim, sums = c->n_keys * width;
    struct ot_attention_backward back = {
        .forward = *op, .lddk = width + 2 * c->pad, .lddv = width + 3 * c->pad};
    back.dout = ops_upload(f, f->dtype, c->dout, c->n * c->heads * c->head_dim);
    back.dq = ops_blank_values(f, f->dtype, c->n * op->ldq);
    back.dk = ops_blank_values(f, f->dtype, c->n * back.lddk);
    back.dv = ops_blank_values(f, f->dtype, c->n * back.lddv);
    back.dk_sums = c->dk_sums ? ops_upload(f, OT_F32, c->dk_sums, sums) : NULL;
    back.dv_sums = c->dv_sums ? ops_upload(f, OT_F32, c->dv_sums, sums) : NULL;
    back.dsinks = c->sinks ? ops_upload(f, OT_F32, attention_earlier_dsinks, c->heads) : NULL;
    back.scratch = ops_blank(f, ot_attention_backward_scratch_bytes(c->n, c->heads));
    return back;
}

static inline void attention_run(struct ops_fixture *f, const void *argument) {
    const struct attention_case *c = argument;
    struct ot_attention op = attention_upload(f, c);
    int64_t q_elems = c->n * c->heads * c->head_dim, sums = c->n_keys * c->kv_heads * c->head_dim;
    f->ops->attention(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, q_elems);
    ops_collect(f, "lse", OT_F32, op.lse, c->heads * c->n);
    if (!c->backward)
        return;
    const struct ot_attention_backward back = attention_upload_backward(f, c, &op);
    f->ops->attention_backward(f->lane, &back);
    ops_collect(f, "dq", f->dtype, back.dq, c->n * op.ldq);
    ops_collect(f, "dk", f->dtype, back.dk, c->n * back.lddk);
    ops_collect(f, "dv", f->dtype, back.dv, c->n * back.lddv);
    if (c->sinks)
        ops_collect(f, "dsinks", OT_F32, back.dsinks, c->heads);
    if (c->dk_sums) {
        ops_collect(f, "dk_sums", OT_F32, back.dk_sums, sums);
        ops_collect(f, "dv_sums", OT_F32, back.dv_sums, sums);
    }
}

/* Compares [tokens, width + pad] with a dense reference. The padding must still be poison. */
static inline void attention_compare(const struct ops_fixture *f, const char *name, const double *want,
                                     int64_t tokens, int64_t width, int64_t pad, double bound) {
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
static const double ATTENTION_FP32_BOUND = 4e-6;
/* bf16 keeps 8 bits. Inputs are exact, p and out are rounded, and terms of the gradients cancel a little. */
static const double ATTENTION_BF16_BOUND = 1.2e-2;

/* ---- random cases ---- */

struct attention_shape {
    int64_t n, n_keys, heads, kv_heads, head_dim, window, row; /* rows of `row` tokens; 0: one row */
    bool backward, slopes;
    float softcap, sink; /* sink: of head 0; the other heads' are close to it. 0: none */
    float q_size;        /* 0: 1 */
    bool is_section;     /* with stored sums */
    float drop;
};

/* ALiBi's slopes for 8 heads, except the last, which is not a power of two here. */
static const float attention_alibi_slopes[8] = {0.5f,     0.25f,     0.125f,     0.0625f,
                                                0.03125f, 0.015625f, 0.0078125f, 0.003f};
/* Added to the first head's sink; the sums are numbers of bf16 and fp16. */
static const float attention_sink_steps[8] = {0, 0.5f, -1, 1.5f, 2, -0.5f, 1, -2};

/* Random inputs for a shape. attention_release frees them. */
static inline struct attention_case attention_make(const struct attention_shape *s, int32_t **row_start,
                                                   float *values[ATTENTION_VALUES]) {
    int64_t q_elems = s->n * s->heads * s->head_dim, k_elems = s->n_keys * s->kv_heads * s->head_dim;
    values[0] = ops_random(1, q_elems, s->q_size > 0 ? s->q_size : 1);
    values[1] = ops_random(2, k_elems, 1);
    values[2] = ops_random(3, k_elems, 1);
    values[3] = ops_random(4, q_elems, 1);
    values[ATTENTION_SINKS] = s->sink != 0 ? ops_random(5, s->heads, 1) : NULL;
    for (int64_t head = 0; values[ATTENTION_SINKS] && head < s->heads; head++)
        values[ATTENTION_SINKS][head] = s->sink + attention_sink_steps[head];
    for (int i = ATTENTION_DK_SUMS; i <= ATTENTION_DV_SUMS; i++) /* as small as the gradients of a key */
        values[i] = s->is_section ? ops_random(1 + (uint64_t)i, k_elems, 0.05f) : NULL;
    *row_start = malloc((size_t)s->n * sizeof **row_start);
    assert_non_null(*row_start);
    for (int64_t i = 0; i < s->n; i++)
        (*row_start)[i] = (int32_t)(s->row ? (i + s->n_keys - s->n) / s->row * s->row : 0);
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
                                   .dk_sums = values[ATTENTION_DK_SUMS],
                                   .dv_sums = values[ATTENTION_DV_SUMS],
                                   .backward = s->backward,
                                   .slopes = s->slopes ? attention_alibi_slopes : NULL,
                                   .sinks = values[ATTENTION_SINKS],
                                   .softcap = s->softcap,
                                   .drop = {s->drop, ot_state_noise(6, 7)}};
}

static inline void attention_release(int32_t *row_start, float *values[ATTENTION_VALUES]) {
    free(row_start);
    for (int i = 0; i < ATTENTION_VALUES; i++)
        free(values[i]);
}

static inline void attention_widen(const struct attention_case *c, double *in[ATTENTION_INPUTS]) {
    int64_t q_elems = c->n * c->heads * c->head_dim, k_elems = c->n_keys * c->kv_heads * c->head_dim;
    const float *from[ATTENTION_INPUTS] = {c->q, c->k, c->v, c->dout, c->sinks};
    const int64_t elems[ATTENTION_INPUTS] = {q_elems, k_elems, k_elems, q_elems, c->heads};
    for (int i = 0; i < ATTENTION_INPUTS; i++) {
        in[i] = from[i] ? attention_zeros(elems[i]) : NULL;
        for (int64_t j = 0; from[i] && j < elems[i]; j++)
            in[i][j] = from[i][j];
    }
}

/* True if some query sees the key. */
static inline bool attention_is_seen(const struct attention_case *c, int64_t key) {
    for (int64_t i = 0; i < c->n; i++)
        if (attention_sees(c, i, key))
            return true;
    return false;
}

/* Adds the stored sums to the gradient `want` [n_keys, kv_heads, head_dim] of keys, and compares it: the rows
 * before the queries are in the sums, the others in dk or dv. The sums of other rows must not have changed.
 */
static inline void attention_compare_keys(const struct ops_fixture *f, const struct attention_case *c,
                                          const char *name, const char *sums, const float *stored,
                                          double *want, int64_t pad) {
    int64_t width = c->kv_heads * c->head_dim, past = c->n_keys - c->n;
    for (int64_t i = 0; stored && i < c->n_keys * width; i++) {
        want[i] += stored[i];
        if (i / width >= past || !attention_is_seen(c, i / width))
            assert_true(ops_result(f, sums, NULL)[i] == stored[i]);
    }
    if (past > 0)
        attention_compare(f, sums, want, past, width, 0, ATTENTION_FP32_BOUND);
    attention_compare(f, name, want + past * width, c->n, width, pad, ATTENTION_FP32_BOUND);
}

static inline void attention_compare_all(const struct ops_fixture *f, const struct attention_case *c,
                                         struct attention_reference *want) {
    int64_t width = c->heads * c->head_dim;
    attention_compare(f, "out", want->out, c->n, width, 0, ATTENTION_FP32_BOUND);
    attention_compare(f, "lse", want->lse, c->heads * c->n, 1, 0, ATTENTION_FP32_BOUND);
    if (!c->backward)
        return;
    attention_compare(f, "dq", want->dq, c->n, width, c->pad, ATTENTION_FP32_BOUND);
    attention_compare_keys(f, c, "dk", "dk_sums", c->dk_sums, want->dk, 2 * c->pad);
    attention_compare_keys(f, c, "dv", "dv_sums", c->dv_sums, want->dv, 3 * c->pad);
    for (int64_t head = 0; c->sinks && head < c->heads; head++)
        want->dsinks[head] += attention_earlier_dsinks[head];
    if (c->sinks)
        attention_compare(f, "dsinks", want->dsinks, 1, c->heads, 0, ATTENTION_FP32_BOUND);
}

static inline void attention_check_shape(const struct attention_shape *s) {
    int32_t *row_start;
    float *values[ATTENTION_VALUES];
    double *in[ATTENTION_INPUTS];
    struct attention_case c = attention_make(s, &row_start, values);
    c.pad = 5;
    attention_widen(&c, in);
    struct attention_reference want = attention_reference_run(&c, (const double *const *)in);
    struct ops_fixture f;
    ops_check_threads(&f, attention_run, &c, OT_F32);
    attention_compare_all(&f, &c, &want);
    ops_close(&f);
    ops_check_threads(&f, attention_run, &c, OT_BF16);
    ops_close(&f);
    c.pad = 0;
    if (s->n_keys > 1 ||
        c.sinks) /* a softmax over one key alone has gradients of 0: no relative error exists */
        ops_check_half(attention_run, &c, ATTENTION_BF16_BOUND);
    attention_reference_free(&want);
    for (int i = 0; i < ATTENTION_INPUTS; i++)
        free(in[i]);
    attention_release(row_start, values);
}

#endif

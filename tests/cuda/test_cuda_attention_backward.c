/* Attention backward on the cuda device against the cpu device: both methods (kernels/cuda/attention.h), all
 * head sizes and dtypes, shared keys, rows, windows, ALiBi, distances between tokens, arrays off alignment.
 * Both devices get the same out and lse, from a reference in double, so that only the backward pass differs.
 *
 * Bounds. u = 2^-24. v = the error of one rounding to the storage type (bf16: 2^-8 of the value; fp16: 2^-11
 * of it or 2^-25; fp32: none). The reference has p and ds of each pair, and the sums of the absolute values
 * behind them.
 *   - A score is a dot product of head_dim terms, then a few operations on numbers not larger than |score|,
 *     the distance term and |lse|: off by
 *     e = u ((head_dim + 2) scale sum |q k| + 6 (|score| + |slope distance| + |lse|)).
 *   - p = exp(score - lse), a few ulps of exp and of its argument's reduction: off by p (e + 8 u).
 *   - dout.v and delta are dot products: off by d = u (head_dim + 2) (sum |dout v| + sum |dout out|).
 *     So ds = p (dout.v - delta) scale is off by |ds| (e + 12 u) + p scale d.
 *   - A softcap: the score is off by 16 u |score| more (tests/cuda/test_cuda_attention.c). ds has the
 *     factor 1 - t^2, t = score / softcap, which the tiled kernels compute from log2(p) + lse: t is off by
 *     the errors of the score, of lse and of the logarithm (4 u of it), all divided by the softcap; so the
 *     factor is off by twice that, and by 16 u of 1.
 *   - A section of a row adds stored sums: off by u of the stored number and of what is added.
 *   - dsinks sums -exp(sink - lse) delta, in fp32 on both devices.
 *   - dv sums k terms p dout: off by k u sum |p dout|; dq and dk likewise. The sums inside tensor cores keep
 *     at
 *     least fp32's bits but may truncate instead of rounding: twice that. Both devices have these errors, so
 *     the bound is doubled. In addition, the cuda device rounds p and ds before their products if the storage
 *     type has two bytes: v each. The fixture adds the rounding of results. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/cuda/cuda_fixture.h"
#include "tests/support/check.h"

struct shape {
    int64_t n, heads, kv_heads, head_dim;
    int64_t past;        /* keys before the queries */
    bool is_section;     /* has stored sums, as a past requires */
    int64_t window, row; /* 0: no window; rows of `row` tokens, 0: one row */
    bool slopes;
    float softcap;
    float sink;  /* of head 0; the other heads' are close to it; 0: none */
    float size;  /* of q; 0: 1 */
    int64_t pad; /* elements between tokens, which must not change */
    int shift;
    int64_t nan_first, nan_end; /* tokens that are all NaN: whole rows and whole tiles of them */
    float drop;
};

static const struct ot_state_noise noise = {6, 7}; /* of dropout */

enum { Q, K, V, DOUT, OUT, ARRAYS };
enum { DQ, DK, DV, GRADS };

struct backward_case {
    const struct shape *shape;
    float scale;
    int32_t *row_start;
    float *arrays[ARRAYS], *lse, *stored[GRADS]; /* stored sums [keys, width] of DK and DV */
    float slopes[8], sinks[8];
    double *bounds[GRADS], dsinks_bounds[8]; /* bounds: [tokens, width] */
};

/* ---- memory layout ---- */

static int64_t width(const struct shape *s, bool query_side) {
    return (query_side ? s->heads : s->kv_heads) * s->head_dim;
}

static int64_t ld(const struct shape *s, bool query_side) {
    return width(s, query_side) + s->pad;
}

static bool is_query_side(int array) {
    return array == Q || array == DOUT || array == OUT;
}

static int64_t tokens(const struct shape *s, bool query_side) {
    return query_side ? s->n : s->n + s->past;
}

/* Each gradient has another one. */
static int64_t grad_ld(const struct shape *s, int grad) {
    return ld(s, grad == DQ) + 8 * grad;
}

static int64_t place(const struct shape *s, bool query_side, int64_t token, int64_t head) {
    return token * ld(s, query_side) + head * s->head_dim;
}

static int64_t dense_place(const struct shape *s, bool query_side, int64_t token, int64_t head) {
    return token * width(s, query_side) + head * s->head_dim;
}

static int64_t kv_head(const struct shape *s, int64_t head) {
    return head / (s->heads / s->kv_heads);
}

static bool sees(const struct backward_case *c, int64_t query, int64_t key) {
    const struct shape *s = c->shape;
    int64_t own = query + s->past;
    return key >= c->row_start[query] && key <= own && (s->window == 0 || key > own - s->window);
}

/* The factor of a weight by dropout. */
static double kept(const struct backward_case *c, int64_t head, int64_t query, int64_t key) {
    int64_t index = (head * c->shape->n + query) * tokens(c->shape, false) + key;
    return ot_state_word(noise, index) < ot_dropout_least(c->shape->drop) ? 0
                                                                          : ot_dropout_factor(c->shape->drop);
}

/* ---- inputs ---- */

static void *zeros(int64_t n, size_t size) {
    void *values = calloc((size_t)n, size);
    assert_non_null(values);
    return values;
}

/* Random numbers, with NaNs between the tokens and in tokens [nan_first, nan_end). */
static float *random_array(const struct shape *s, int array) {
    int64_t step = ld(s, is_query_side(array)), used = width(s, is_query_side(array));
    int64_t elems = tokens(s, is_query_side(array)) * step;
    float *values = ops_random(10 + (uint64_t)array, elems, array == Q && s->size > 0 ? s->size : 1);
    for (int64_t i = 0; i < elems; i++)
        if (i % step >= used || (i / step >= s->nan_first && i / step < s->nan_end))
            values[i] = NAN;
    return values;
}

/* Rounds to a number that bf16 and fp16 both have. */
static float on_grids(double value) {
    float rounded = ot_bf16_to_f32(ot_bf16_from_f32((float)value));
    return fabsf(rounded) < 0x1p-14f ? 0 : rounded;
}

/* ---- the reference ---- */

struct sums {
    double value, absolute;
};

static struct sums dot(const float *a, const float *b, int64_t n) {
    struct sums sum = {0, 0};
    for (int64_t i = 0; i < n; i++) {
        sum.value += (double)a[i] * b[i];
        sum.absolute += fabs((double)a[i] * b[i]);
    }
    return sum;
}

/* A score, its derivative by scale * q.k, and its error in fp32 without the part of lse. */
struct score {
    double value, derivative, error, away;
};

static struct score score(const struct backward_case *c, int64_t head, int64_t query, int64_t key) {
    const struct shape *s = c->shape;
    struct sums qk = dot(c->arrays[Q] + place(s, true, query, head),
                         c->arrays[K] + place(s, false, key, kv_head(s, head)), s->head_dim);
    double t = s->softcap > 0 ? tanh(c->scale * qk.value / s->softcap) : 0;
    double product = s->softcap > 0 ? s->softcap * t : c->scale * qk.value;
    struct score x = {.derivative = 1 - t * t,
                      .away = s->slopes ? c->slopes[head] * (double)(query + s->past - key) : 0};
    x.value = product - x.away;
    x.error = 0x1p-24 * ((double)(s->head_dim + 2) * c->scale * qk.absolute + 6 * (fabs(x.value) + x.away));
    x.error += s->softcap > 0 ? 0x1p-20 * fabs(product) : 0;
    return x;
}

/* Fills in lse and out of one query and head, as the forward pass leaves them. */
static void fill_forward(struct backward_case *c, int64_t head, int64_t query) {
    const struct shape *s = c->shape;
    double sum = s->sink != 0 ? exp((double)c->sinks[head]) : 0, *out = zeros(s->head_dim, sizeof *out);
    for (int64_t key = 0; key <= query + s->past; key++) {
        double p = sees(c, query, key) ? exp(score(c, head, query, key).value) : 0;
        const float *v = c->arrays[V] + place(s, false, key, kv_head(s, head));
        sum += p;
        for (int64_t d = 0; sees(c, query, key) && d < s->head_dim; d++)
            out[d] += kept(c, head, query, key) * p * v[d];
    }
    c->lse[head * s->n + query] = (float)log(sum);
    for (int64_t d = 0; d < s->head_dim; d++)
        c->arrays[OUT][place(s, true, query, head) + d] = on_grids(out[d] / sum);
    free(out);
}

/* Adds the effect of a pair's errors on the gradients: the error of each weight times the value that it
 * multiplies, and the rounding of sums over `terms` terms. */
static void add_pair(struct backward_case *c, enum ot_dtype dtype, int64_t head, int64_t query, int64_t key) {
    const struct shape *s = c->shape;
    const double u = 0x1p-24, terms = (double)(s->n * (s->heads / s->kv_heads) + 2);
    const double v = dtype == OT_F32 ? 0 : cuda_unit_roundoff(dtype), tiny = dtype == OT_F16 ? 0x1p-25 : 0;
    int64_t at_query = place(s, true, query, head), at_key = place(s, false, key, kv_head(s, head));
    const float *q = c->arrays[Q] + at_query, *k = c->arrays[K] + at_key, *dout = c->arrays[DOUT] + at_query;
    struct score x = score(c, head, query, key);
    double lse = c->lse[head * s->n + query], e = x.error + 6 * u * fabs(lse), p = exp(x.value - lse);
    double factor = kept(c, head, query, key);
    struct sums dp = dot(dout, c->arrays[V] + at_key, s->head_dim),
                delta = dot(dout, c->arrays[OUT] + at_query, s->head_dim);
    dp = (struct sums){factor * dp.value, factor * dp.absolute};
    double ds = fabs(p * (dp.value - delta.value) * c->scale);
    double p_error = p * (e + 8 * u);
    double ds_error =
        ds * (e + 12 * u) + p * c->scale * u * (double)(s->head_dim + 2) * (dp.absolute + delta.absolute);
    if (s->softcap > 0) {
        double t_error = (e + 4 * u * (fabs(x.value - lse) + fabs(lse) + x.away)) / s->softcap;
        ds_error = ds_error * x.derivative + ds * (2 * t_error + 16 * u);
        ds *= x.derivative;
    }
    /* the errors of both devices, and cuda's rounding */
    p_error = 2 * p_error + v * (p + p_error) + tiny;
    ds_error = 2 * ds_error + v * (ds + ds_error) + tiny;
    p_error += 3 * terms * u * (p + p_error);
    ds_error += 3 * terms * u * (ds + ds_error);
    double *dq = c->bounds[DQ] + dense_place(s, true, query, head);
    int64_t to_key = dense_place(s, false, key, kv_head(s, head));
    for (int64_t d = 0; d < s->head_dim; d++) {
        dq[d] += ds_error * fabs((double)k[d]);
        c->bounds[DK][to_key + d] += ds_error * fabs((double)q[d]);
        c->bounds[DV][to_key + d] += factor * p_error * fabs((double)dout[d]);
    }
}

/* Adds the effect of one query on the error of its head's dsinks, on both devices. */
static void add_sink(struct backward_case *c, int64_t head, int64_t query) {
    const struct shape *s = c->shape;
    const double u = 0x1p-24, terms = (double)(s->n + 2);
    int64_t at = place(s, true, query, head);
    struct sums delta = dot(c->arrays[DOUT] + at, c->arrays[OUT] + at, s->head_dim);
    double lse = c->lse[head * s->n + query], sink = c->sinks[head], p = exp(sink - lse);
    double error = p * fabs(delta.value) * u * (2 * (fabs(sink) + fabs(lse)) + 8 + terms) +
                   p * u * (double)(s->head_dim + 2) * delta.absolute;
    c->dsinks_bounds[head] += 2 * error;
}

static struct backward_case make_case(const struct shape *s, enum ot_dtype dtype) {
    struct backward_case c = {.shape = s, .scale = 1.0f / sqrtf((float)s->head_dim)};
    c.row_start = zeros(s->n, sizeof *c.row_start);
    for (int64_t i = 0; i < s->n; i++)
        c.row_start[i] = (int32_t)(s->row ? (i + s->past) / s->row * s->row : 0);
    for (int head = 0; head < 8; head++)
        c.slopes[head] = 0.3f / (float)(1 + head * head);
    for (int head = 0; head < 8; head++)
        c.sinks[head] = s->sink - 0.5f * (float)head;
    for (int array = 0; array < ARRAYS; array++)
        c.arrays[array] = random_array(s, array);
    c.lse = zeros(s->heads * s->n, sizeof *c.lse);
    for (int grad = 0; grad < GRADS; grad++) {
        int64_t elems = tokens(s, grad == DQ) * width(s, grad == DQ);
        c.bounds[grad] = zeros(elems, sizeof *c.bounds[grad]);
        c.stored[grad] = grad != DQ && s->is_section ? ops_random(20 + (uint64_t)grad, elems, 0.05f) : NULL;
        for (int64_t i = 0; c.stored[grad] && i < elems; i++) /* both devices round stored + added */
            c.bounds[grad][i] = 2 * 0x1p-24 * fabs((double)c.stored[grad][i]);
    }
    for (int64_t head = 0; head < s->heads; head++)
        for (int64_t query = 0; query < s->n; query++) {
            fill_forward(&c, head, query);
            for (int64_t key = 0; key <= query + s->past; key++)
                if (sees(&c, query, key))
                    add_pair(&c, dtype, head, query, key);
            add_sink(&c, head, query);
        }
    return c;
}

static void free_case(struct backward_case *c) {
    free(c->row_start);
    free(c->lse);
    for (int array = 0; array < ARRAYS; array++)
        free(c->arrays[array]);
    for (int grad = 0; grad < GRADS; grad++) {
        free(c->bounds[grad]);
        free(c->stored[grad]);
    }
}

/* ---- the op ---- */

static const char *const names[GRADS] = {"dq", "dk", "dv"}, *const sums_names[] = {NULL, "dk_sums",
                                                                                   "dv_sums"};

/* Stored sums are aligned, whatever the case's other arrays are. */
static float *upload_stored(struct ops_fixture *f, const float *stored, int64_t n) {
    return stored ? (float *)(void *)ops_upload_ids(f, (const int32_t *)(const void *)stored, n) : NULL;
}

static void run_case(struct ops_fixture *f, const void *argument) {
    const struct backward_case *c = argument;
    const struct shape *s = c->shape;
    struct ot_attention_backward op = {.forward = {.dtype = f->dtype,
                                                   .n = s->n,
                                                   .n_keys = s->n + s->past,
                                                   .heads = s->heads,
                                                   .kv_heads = s->kv_heads,
                                                   .head_dim = s->head_dim,
                                                   .window = s->window,
                                                   .ldq = ld(s, true),
                                                   .ldk = ld(s, false),
                                                   .ldv = ld(s, false),
                                                   .ldo = ld(s, true),
                                                   .scale = c->scale,
                                                   .softcap = s->softcap,
                                                   .row_start = ops_upload_ids(f, c->row_start, s->n),
                                                   .drop = {s->drop, noise}},
                                       .lddk = grad_ld(s, DK),
                                       .lddv = grad_ld(s, DV)};
    int64_t sums = tokens(s, false) * width(s, false);
    void *arrays[ARRAYS], *grads[GRADS];
    for (int array = 0; array < ARRAYS; array++)
        arrays[array] = ops_upload(f, f->dtype, c->arrays[array],
                                   tokens(s, is_query_side(array)) * ld(s, is_query_side(array)));
    for (int grad = 0; grad < GRADS; grad++)
        grads[grad] = ops_blank_values(f, f->dtype, s->n * grad_ld(s, grad));
    op.forward.q = arrays[Q];
    op.forward.k = arrays[K];
    op.forward.v = arrays[V];
    op.forward.out = arrays[OUT];
    op.dout = arrays[DOUT];
    op.dq = grads[DQ];
    op.dk = grads[DK];
    op.dv = grads[DV];
    op.dk_sums = upload_stored(f, c->stored[DK], sums);
    op.dv_sums = upload_stored(f, c->stored[DV], sums);
    op.forward.lse = ops_upload(f, OT_F32, c->lse, s->heads * s->n);
    op.forward.slopes = s->slopes ? ops_upload(f, OT_F32, c->slopes, s->heads) : NULL;
    op.scratch = ops_blank(f, ot_attention_backward_scratch_bytes(s->n, s->heads));
    if (s->sink != 0) {
        op.forward.sinks = ops_upload(f, f->dtype, c->sinks, s->heads);
        op.dsinks = ops_upload(f, OT_F32, c->slopes, s->heads); /* any numbers: dsinks is accumulated */
    }
    f->ops->attention_backward(f->lane, &op);
    for (int grad = 0; grad < GRADS; grad++)
        ops_collect(f, names[grad], f->dtype, grads[grad], s->n * grad_ld(s, grad));
    if (op.dsinks)
        ops_collect(f, "dsinks", OT_F32, op.dsinks, s->heads);
    if (s->is_section) {
        ops_collect(f, sums_names[DK], OT_F32, op.dk_sums, sums);
        ops_collect(f, sums_names[DV], OT_F32, op.dv_sums, sums);
    }
}

static void check_gradient(const struct cuda_pair *pair, const struct backward_case *c, int grad) {
    const struct shape *s = c->shape;
    const float *got = ops_result(&pair->cuda, names[grad], NULL);
    int64_t step = grad_ld(s, grad), used = width(s, grad == DQ), first = grad == DQ ? 0 : s->past;
    double *bounds = zeros(s->n * step, sizeof *bounds);
    for (int64_t i = 0; i < s->n * step; i++) {
        int64_t token = i / step, column = i % step;
        bool outside = column >= used || (token >= s->nan_first && token < s->nan_end);
        assert_int_equal(isnan(got[i]) != 0, outside);
        bounds[i] = column < used ? c->bounds[grad][(first + token) * used + column] : 0;
    }
    cuda_check_close(pair, names[grad], &(struct cuda_bound){.each = bounds});
    free(bounds);
    if (!c->stored[grad])
        return;
    cuda_check_close(pair, sums_names[grad], &(struct cuda_bound){.each = c->bounds[grad]});
    assert_memory_equal(ops_result(&pair->cuda, sums_names[grad], NULL) + s->past * used,
                        c->stored[grad] + s->past * used, (size_t)(s->n * used) * sizeof(float));
}

static void check_shape(const struct shape *s, enum ot_dtype dtype) {
    struct backward_case c = make_case(s, dtype);
    struct cuda_pair pair;
    cuda_run(&pair, run_case, &c, dtype, s->shift);
    for (int grad = 0; grad < GRADS; grad++)
        check_gradient(&pair, &c, grad);
    if (s->sink != 0)
        cuda_check_close(&pair, "dsinks", &(struct cuda_bound){.each = c.dsinks_bounds});
    cuda_close(&pair);
    free_case(&c);
}

static void check_shapes(const struct shape *shapes, size_t n, enum ot_dtype dtype) {
    for (size_t i = 0; i < n; i++)
        check_shape(&shapes[i], dtype);
}

/* ---- tests ---- */

#define CHECK(shapes, dtype) check_shapes(shapes, sizeof(shapes) / sizeof *(shapes), dtype)

static const struct shape tiled[] = {
    {.n = 1, .heads = 1, .kv_heads = 1, .head_dim = 64},
    {.n = 141, .heads = 2, .kv_heads = 2, .head_dim = 64, .pad = 8},
    {.n = 97, .heads = 3, .kv_heads = 1, .head_dim = 80},
    {.n = 133, .heads = 2, .kv_heads = 1, .head_dim = 96, .window = 29, .slopes = true},
    {.n = 150, .heads = 2, .kv_heads = 1, .head_dim = 128, .row = 47, .pad = 16},
    {.n = 71, .heads = 2, .kv_heads = 1, .head_dim = 256, .slopes = true, .pad = 8},
    {.n = 129, .heads = 4, .kv_heads = 2, .head_dim = 64, .window = 40, .row = 70, .slopes = true},
};

static void test_tiled_bf16(void **state) {
    (void)state;
    CHECK(tiled, OT_BF16);
}

static void test_tiled_fp16(void **state) {
    (void)state;
    CHECK(tiled, OT_F16);
}

/* Cases that the tiled kernel does not take: fp32, other head sizes, rows where 16-byte accesses are
 * impossible. */
static const struct shape plain[] = {
    {.n = 1, .heads = 1, .kv_heads = 1, .head_dim = 1},
    {.n = 45, .heads = 4, .kv_heads = 2, .head_dim = 7, .window = 9, .pad = 3},
    {.n = 70, .heads = 2, .kv_heads = 1, .head_dim = 72, .row = 33, .slopes = true, .shift = 1},
    {.n = 39, .heads = 1, .kv_heads = 1, .head_dim = 200, .window = 20, .row = 15, .pad = 1},
};
static const struct shape misaligned[] = {
    {.n = 50, .heads = 2, .kv_heads = 1, .head_dim = 64, .shift = 1},
    {.n = 35, .heads = 2, .kv_heads = 2, .head_dim = 128, .pad = 4},
};
static const struct shape single[] = {
    {.n = 67, .heads = 2, .kv_heads = 1, .head_dim = 64, .slopes = true},
    {.n = 34, .heads = 1, .kv_heads = 1, .head_dim = 256, .pad = 4},
};

static void test_plain(void **state) {
    (void)state;
    CHECK(plain, OT_F32);
    CHECK(plain, OT_BF16);
    CHECK(plain, OT_F16);
    CHECK(misaligned, OT_BF16);
    CHECK(misaligned, OT_F16);
    CHECK(single, OT_F32);
}

/* Softcaps and sinks in the tiled kernels, for each head size, with rows, windows, ALiBi and shared keys;
 * scores far beyond the cap; a window of one key, where only the sink is left to compete. */
static const struct shape bent[] = {
    {.n = 129,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 64,
     .window = 40,
     .row = 70,
     .softcap = 1.5f,
     .sink = 1},
    {.n = 97, .heads = 2, .kv_heads = 1, .head_dim = 80, .slopes = true, .softcap = 2},
    {.n = 71, .heads = 2, .kv_heads = 2, .head_dim = 96, .sink = -1, .pad = 8},
    {.n = 133, .heads = 2, .kv_heads = 1, .head_dim = 128, .row = 90, .softcap = 3, .sink = 0.5f, .pad = 16},
    {.n = 71, .heads = 2, .kv_heads = 1, .head_dim = 256, .slopes = true, .softcap = 1.5f, .sink = 2},
    {.n = 80, .heads = 1, .kv_heads = 1, .head_dim = 64, .softcap = 4, .size = 40},
    {.n = 40, .heads = 2, .kv_heads = 1, .head_dim = 64, .window = 1, .sink = 0.5f},
    {.n = 70, .heads = 2, .kv_heads = 1, .head_dim = 64, .sink = 12},
    {.n = 70, .heads = 2, .kv_heads = 1, .head_dim = 64, .softcap = 50, .sink = -40},
};
static const struct shape bent_plain[] = {
    {.n = 45, .heads = 4, .kv_heads = 2, .head_dim = 7, .window = 9, .pad = 3, .softcap = 1, .sink = 1},
    {.n = 70, .heads = 2, .kv_heads = 1, .head_dim = 72, .row = 33, .slopes = true, .softcap = 2, .sink = -2},
    {.n = 50, .heads = 1, .kv_heads = 1, .head_dim = 24, .softcap = 4, .size = 40, .sink = 15},
};

static void test_softcaps_and_sinks(void **state) {
    (void)state;
    CHECK(bent, OT_BF16);
    CHECK(bent, OT_F16);
    CHECK(bent_plain, OT_F32);
    CHECK(bent_plain, OT_BF16);
}

/* Cases for attention_hopper_backward.cu: one row of the second half of a block, so many tiles that every
 * ring of tiles turns, rows whose borders lie inside tiles and blocks, windows, three heads that share keys,
 * softcaps with ALiBi. */
static const struct shape hopper[] = {
    {.n = 65, .heads = 1, .kv_heads = 1, .head_dim = 64},
    {.n = 430, .heads = 1, .kv_heads = 1, .head_dim = 64},
    {.n = 270, .heads = 3, .kv_heads = 1, .head_dim = 128, .pad = 8},
    {.n = 300, .heads = 2, .kv_heads = 1, .head_dim = 128, .window = 90, .row = 170, .slopes = true},
    {.n = 260, .heads = 2, .kv_heads = 2, .head_dim = 64, .window = 150, .row = 1000},
    {.n = 200, .heads = 2, .kv_heads = 1, .head_dim = 128, .row = 61, .slopes = true, .softcap = 2},
    {.n = 140, .heads = 2, .kv_heads = 1, .head_dim = 64, .row = 64, .slopes = true, .softcap = 1.5f},
};

static void test_many_tiles(void **state) {
    (void)state;
    CHECK(hopper, OT_BF16);
    check_shapes(hopper + 2, 2, OT_F16);
}

/* A row full of NaNs, before or after another row, does not touch it: its tiles are skipped. The rows begin
 * at multiples of the tiles' sizes on both devices: of 64 and 128, and of 48 at head_dim 64. */
static void test_foreign_rows(void **state) {
    (void)state;
    static const struct shape shapes[] = {
        {.n = 416, .heads = 2, .kv_heads = 1, .head_dim = 64, .row = 384, .nan_first = 0, .nan_end = 384},
        {.n = 160, .heads = 1, .kv_heads = 1, .head_dim = 128, .row = 128, .nan_first = 128, .nan_end = 160},
        {.n = 160, .heads = 1, .kv_heads = 1, .head_dim = 72, .row = 128, .nan_first = 0, .nan_end = 128},
    };
    CHECK(shapes, OT_BF16);
}

/* Sections of rows, with borders inside of blocks and at blocks of 96 and 128 keys; windows and rows that
 * leave out blocks, or all keys before the section; the first section. */
static const struct shape sections[] = {
    {.n = 70, .past = 133, .is_section = true, .heads = 2, .kv_heads = 1, .head_dim = 64},
    {.n = 40,
     .past = 192,
     .is_section = true,
     .heads = 2,
     .kv_heads = 2,
     .head_dim = 64,
     .window = 30,
     .pad = 8},
    {.n = 40, .past = 96, .is_section = true, .heads = 1, .kv_heads = 1, .head_dim = 64, .row = 96},
    {.n = 50, .past = 90, .is_section = true, .heads = 3, .kv_heads = 1, .head_dim = 80, .row = 60},
    {.n = 45,
     .past = 128,
     .is_section = true,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 96,
     .slopes = true,
     .softcap = 1.5f,
     .sink = 1},
    {.n = 61,
     .past = 100,
     .is_section = true,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .window = 70,
     .row = 110,
     .slopes = true},
    {.n = 33, .past = 64, .is_section = true, .heads = 2, .kv_heads = 1, .head_dim = 256, .softcap = 2},
    {.n = 20, .is_section = true, .heads = 1, .kv_heads = 1, .head_dim = 64},
};
static const struct shape plain_sections[] = {
    {.n = 30,
     .past = 45,
     .is_section = true,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 7,
     .window = 9,
     .pad = 3},
    {.n = 40,
     .past = 70,
     .is_section = true,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 72,
     .row = 50,
     .slopes = true,
     .softcap = 2,
     .sink = -2,
     .shift = 1},
    {.n = 21, .past = 32, .is_section = true, .heads = 1, .kv_heads = 1, .head_dim = 200},
    {.n = 25, .past = 50, .is_section = true, .heads = 2, .kv_heads = 1, .head_dim = 64, .drop = 0.25f},
};

/* Sections for attention_hopper_backward.cu: borders inside and at the ends of its warpgroups' 64 keys, and
 * warpgroups whose keys no query sees. */
static const struct shape hopper_sections[] = {
    {.n = 150, .past = 300, .is_section = true, .heads = 3, .kv_heads = 1, .head_dim = 64},
    {.n = 130,
     .past = 256,
     .is_section = true,
     .heads = 2,
     .kv_heads = 1,
     .head_dim = 128,
     .row = 200,
     .slopes = true,
     .softcap = 2},
    {.n = 70, .past = 250, .is_section = true, .heads = 1, .kv_heads = 1, .head_dim = 128, .window = 50},
};

static void test_sections(void **state) {
    (void)state;
    CHECK(sections, OT_BF16);
    check_shapes(sections + 3, 2, OT_F16);
    CHECK(plain_sections, OT_F32);
    check_shapes(plain_sections + 1, 2, OT_BF16);
    CHECK(hopper_sections, OT_BF16);
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiled_bf16), cmocka_unit_test(test_tiled_fp16),
        cmocka_unit_test(test_plain),      cmocka_unit_test(test_softcaps_and_sinks),
        cmocka_unit_test(test_many_tiles), cmocka_unit_test(test_foreign_rows),
        cmocka_unit_test(test_sections),
    };
    return cmocka_run_group_tests_name("cuda_attention_backward", tests, NULL, NULL);
}

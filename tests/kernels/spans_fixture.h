/* Cases of attention over spans of keys (kernels/ops_spans.h), for the cpu device and for two devices. */
#ifndef OT_TESTS_KERNELS_SPANS_FIXTURE_H
#define OT_TESTS_KERNELS_SPANS_FIXTURE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/random.h"
#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"

/* What queries see. A row of tokens is its inputs, then its targets: the last third, but at least one. */
enum spans_kind {
    SPANS_ENCODER, /* inputs see all inputs of their row; targets see nothing */
    SPANS_DECODER, /* targets see their row's targets up to their own; inputs see nothing */
    SPANS_CROSS,   /* targets see the inputs of their row */
    SPANS_CACHE,   /* all keys up to the query's own */
    SPANS_OTHER,   /* n_keys has nothing to do with n: some keys for each part of the queries */
    SPANS_RANDOM,  /* any keys, also one and none */
    SPANS_NONE,    /* no keys */
};

struct spans_shape {
    enum spans_kind kind;
    int64_t n, n_keys, heads, head_dim, row;
    int64_t buckets, reach; /* 0 buckets: no bias */
    int64_t pad;            /* more elements between tokens, which must not change */
    float scale;
    bool backward;
};

enum { SPANS_Q, SPANS_K, SPANS_V, SPANS_DOUT, SPANS_INPUTS };

struct spans_case {
    struct spans_shape shape;
    int32_t *key_first, *key_end, *bucket_of;
    float *in[SPANS_INPUTS]; /* [tokens, heads, head_dim], dense */
    float *bias;             /* [buckets, heads] */
};

static inline void *spans_memory(int64_t n, size_t size) {
    void *memory = calloc((size_t)n + 1, size);
    assert_non_null(memory);
    return memory;
}

static inline bool spans_is_of_keys(int input) {
    return input == SPANS_K || input == SPANS_V;
}

static inline int64_t spans_tokens(const struct spans_shape *s, bool keys) {
    return keys ? s->n_keys : s->n;
}

static inline int64_t spans_width(const struct spans_shape *s) {
    return s->heads * s->head_dim;
}

/* ---- making a case ---- */

static inline int32_t spans_draw(const struct spans_case *c, int64_t i, uint64_t what, int64_t below) {
    return (int32_t)ot_random_below((uint64_t)c->shape.n, (uint64_t)i, what, (uint64_t)below);
}

static inline void spans_choose(struct spans_case *c, int64_t i) {
    const struct spans_shape *s = &c->shape;
    int64_t first = i / s->row * s->row, row_end = first + s->row < s->n ? first + s->row : s->n;
    int64_t target = row_end - 1 - (row_end - first - 1) / 3, begin = 0, end = 0;
    if (s->kind == SPANS_ENCODER && i < target) {
        begin = first, end = target;
    } else if (s->kind == SPANS_DECODER && i >= target) {
        begin = target, end = i + 1;
    } else if (s->kind == SPANS_CROSS && i >= target) {
        begin = first, end = target;
    } else if (s->kind == SPANS_CACHE) {
        end = i + s->n_keys - s->n + 1;
    } else if (s->kind == SPANS_OTHER) {
        begin = spans_draw(c, first, 0, s->n_keys);
        end = begin + 1 + spans_draw(c, first, 1, s->n_keys - begin);
    } else if (s->kind == SPANS_RANDOM) {
        begin = spans_draw(c, i, 0, s->n_keys);
        end = spans_draw(c, i, 1, 4) ? begin + 1 + spans_draw(c, i, 2, s->n_keys - begin) : begin - i % 3;
    }
    c->key_first[i] = (int32_t)begin;
    c->key_end[i] = (int32_t)end;
}

/* spans_free frees the case. */
static inline struct spans_case spans_make(const struct spans_shape *s) {
    struct spans_case c = {.shape = *s};
    c.key_first = spans_memory(s->n, sizeof *c.key_first);
    c.key_end = spans_memory(s->n, sizeof *c.key_end);
    for (int64_t i = 0; i < s->n; i++)
        spans_choose(&c, i);
    for (int input = 0; input < SPANS_INPUTS; input++)
        c.in[input] =
            ops_random(20 + (uint64_t)input, spans_tokens(s, spans_is_of_keys(input)) * spans_width(s), 1);
    if (s->buckets) {
        c.bias = ops_random(30, s->buckets * s->heads, 1);
        c.bucket_of = spans_memory(2 * s->reach + 1, sizeof *c.bucket_of);
        for (int64_t d = 0; d < 2 * s->reach + 1; d++)
            c.bucket_of[d] = spans_draw(&c, d, 3, s->buckets);
    }
    return c;
}

static inline void spans_free(struct spans_case *c) {
    free(c->key_first);
    free(c->key_end);
    free(c->bucket_of);
    free(c->bias);
    for (int input = 0; input < SPANS_INPUTS; input++)
        free(c->in[input]);
}

/* ---- running it ---- */

/* Uploads a [tokens, width] array with `pad` NaNs after each token. */
static inline void *spans_upload(struct ops_fixture *f, const struct spans_case *c, int input) {
    int64_t width = spans_width(&c->shape), ld = width + c->shape.pad;
    int64_t tokens = spans_tokens(&c->shape, spans_is_of_keys(input));
    float *wide = spans_memory(tokens * ld, sizeof *wide);
    for (int64_t i = 0; i < tokens * ld; i++)
        wide[i] = i % ld < width ? c->in[input][i / ld * width + i % ld] : NAN;
    void *memory = ops_upload(f, f->dtype, wide, tokens * ld);
    free(wide);
    return memory;
}

/* The number that dbias begins with: dbias is accumulated. */
static inline float spans_earlier(int64_t i) {
    return 0.25f * (float)(i % 7) - 0.5f;
}

static inline void spans_run_backward(struct ops_fixture *f, const struct spans_case *c,
                                      const struct ot_attend_spans *forward) {
    const struct spans_shape *s = &c->shape;
    int64_t ld = forward->ldq, n_bias = s->buckets * s->heads;
    float *earlier = spans_memory(n_bias, sizeof *earlier);
    for (int64_t i = 0; i < n_bias; i++)
        earlier[i] = spans_earlier(i);
    struct ot_attend_spans_backward op = {
        .forward = *forward,
        .dout = spans_upload(f, c, SPANS_DOUT),
        .dq = ops_blank_values(f, f->dtype, s->n * ld),
        .dk = ops_blank_values(f, f->dtype, s->n_keys * ld),
        .dv = ops_blank_values(f, f->dtype, s->n_keys * ld),
        .dbias = s->buckets ? ops_upload(f, OT_F32, earlier, n_bias) : NULL,
        .scratch = ops_blank(f, ot_attend_spans_scratch_bytes(s->n, s->heads, s->buckets)),
    };
    f->ops->attend_spans_backward(f->lane, &op);
    ops_collect(f, "dq", f->dtype, op.dq, s->n * ld);
    ops_collect(f, "dk", f->dtype, op.dk, s->n_keys * ld);
    ops_collect(f, "dv", f->dtype, op.dv, s->n_keys * ld);
    if (s->buckets)
        ops_collect(f, "dbias", OT_F32, op.dbias, n_bias);
    free(earlier);
}

static inline void spans_run(struct ops_fixture *f, const void *argument) {
    const struct spans_case *c = argument;
    const struct spans_shape *s = &c->shape;
    int64_t ld = spans_width(s) + s->pad;
    struct ot_attend_spans op = {
        .dtype = f->dtype,
        .n = s->n,
        .n_keys = s->n_keys,
        .heads = s->heads,
        .head_dim = s->head_dim,
        .ldq = ld,
        .ldk = ld,
        .ldv = ld,
        .ldo = ld,
        .scale = s->scale,
        .key_first = ops_upload_ids(f, c->key_first, s->n),
        .key_end = ops_upload_ids(f, c->key_end, s->n),
        .bias = s->buckets ? ops_upload(f, f->dtype, c->bias, s->buckets * s->heads) : NULL,
        .buckets = s->buckets,
        .reach = s->reach,
        .bucket_of = s->buckets ? ops_upload_ids(f, c->bucket_of, 2 * s->reach + 1) : NULL,
        .q = spans_upload(f, c, SPANS_Q),
        .k = spans_upload(f, c, SPANS_K),
        .v = spans_upload(f, c, SPANS_V),
        .out = ops_blank_values(f, f->dtype, s->n * ld),
        .softmax = ops_blank(f, ot_attend_spans_softmax_bytes(s->n, s->heads)),
    };
    f->ops->attend_spans(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, s->n * ld);
    ops_collect(f, "softmax", OT_F32, op.softmax, 2 * s->n * s->heads);
    if (s->backward)
        spans_run_backward(f, c, &op);
}

/* The results of a case, in the order that it collects them; the last only with a bias. */
enum { SPANS_RESULTS = 6 };
static const char *const spans_results[SPANS_RESULTS] = {"out", "softmax", "dq", "dk", "dv", "dbias"};

static inline int spans_result_count(const struct spans_shape *s) {
    return !s->backward ? 2 : s->buckets ? 6 : 5;
}

/* Shapes that both devices compute: rows that straddle tiles, empty spans, spans of one key and longer than
 * tiles, numbers of tokens and elements that fill no tile, and all kinds. */
static const struct spans_shape spans_shapes[] = {
    {SPANS_ENCODER, 1, 1, 1, 1, 1, .scale = 1, .backward = true},
    {SPANS_DECODER, 1, 1, 1, 3, 1, 2, 1, .scale = 1, .backward = true},
    {SPANS_ENCODER, 131, 131, 2, 64, 57, 32, 20, .pad = 8, .scale = 1, .backward = true},
    {SPANS_DECODER, 200, 200, 3, 24, 150, 32, 128, .pad = 3, .scale = 1, .backward = true},
    {SPANS_CROSS, 150, 150, 2, 40, 41, .pad = 5, .scale = 0.5f, .backward = true},
    {SPANS_DECODER, 64, 64, 1, 128, 19, 5, 7, .scale = 0.3f, .backward = true},
    {SPANS_OTHER, 77, 140, 2, 72, 30, .pad = 1, .scale = -0.4f, .backward = true},
    {SPANS_RANDOM, 90, 70, 2, 17, 90, 200, 30, .pad = 2, .scale = 0.7f, .backward = true},
    {SPANS_RANDOM, 40, 101, 2, 5, 40, 3, 0, .scale = 0.7f, .backward = true},
    {SPANS_CACHE, 1, 99, 3, 64, 1, 32, 50, .scale = 1},
    {SPANS_CACHE, 37, 70, 2, 64, 37, 32, 128, .pad = 3, .scale = 1, .backward = true},
    {SPANS_OTHER, 1, 65, 2, 64, 1, .scale = 1},
    {SPANS_OTHER, 0, 40, 2, 8, 1, 4, 4, .scale = 1, .backward = true},
    {SPANS_NONE, 35, 0, 2, 8, 1, 4, 4, .scale = 1, .backward = true},
};
enum { SPANS_SHAPES = sizeof spans_shapes / sizeof *spans_shapes };

#endif

/* Attention forward on cuda against cpu: tiles of all head sizes in bf16 and fp16, over many rows, windows,
 * slopes, strides and sizes.
 *
 * The test computes a bound for each element, in double. Let w_j = p_j / sum p, e the relative error of a
 * weight, u the unit roundoff of dtype. out = sum w_j v_j. The device rounds p_j to dtype (u), and its
 * exponents and sums are off by e in numerator and denominator, so |error| <= (u + 2 e) sum w_j |v_j|. The
 * exponent is off by the error of q.k (head_dim products and sums, scale and slopes, relative to the sum of
 * absolute values) and by the errors of exp2 and of the scaling by log2 e. A softcap adds at most 2^-20 of
 * the score: 2^-21 for tanh (attention_score.cuh), the rest for its argument and its product; the slope of
 * tanh is at most 1, so it does not enlarge the errors before it. A sink is one more key without a value. A
 * sum over keys is off by 2^-23 a key, because the order and the rounding inside a tensor core's sums are
 * not documented. A weight below fp16's normal range is off by 2^-25 absolutely; the largest weight is at
 * least 1. */
#include "tests/cuda/cuda_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

enum { MOST_ROWS = 8 };

struct shape {
    int64_t n, n_keys, heads, kv_heads, dim, window;
    int64_t rows[MOST_ROWS]; /* lengths of all rows except the last, beginning at key 0 */
    bool slopes, no_lse;
    int64_t pad;  /* elements of NaN between tokens */
    float q_size; /* 0: means 1 */
    float scale;  /* 0: means 1 / sqrt(dim) */
    float softcap;
    float sink;      /* of head 0; the other heads' are close to it; 0: none */
    int64_t foreign; /* keys before this key are NaN */
};

struct attention_case {
    const struct shape *shape;
    float *q, *k, *v, *slopes, *sinks;
    int32_t *row_start;
    double *out_bound, *lse_bound;
};

static float scale_of(const struct shape *s) {
    return s->scale != 0 ? s->scale : 1.0f / sqrtf((float)s->dim);
}

/* ---- inputs ---- */

static void *filled(int64_t n, size_t size) {
    void *values = calloc((size_t)n, size);
    assert_non_null(values);
    return values;
}

/* The row of query i begins at the last border that is not after the query's own key. */
static int32_t row_of(const struct shape *s, int64_t query) {
    int64_t own = query + s->n_keys - s->n, start = 0;
    for (int i = 0; i < MOST_ROWS && s->rows[i] && start + s->rows[i] <= own; i++)
        start += s->rows[i];
    return (int32_t)start;
}

/* [tokens, width] normally distributed numbers, with `pad` elements of NaN after each token. */
static float *tokens_of(uint64_t seed, int64_t tokens, int64_t width, int64_t pad, float size) {
    float *dense = ops_random(seed, tokens * width, size),
          *wide = filled(tokens * (width + pad), sizeof *wide);
    for (int64_t i = 0; i < tokens * (width + pad); i++) {
        int64_t column = i % (width + pad);
        wide[i] = column < width ? dense[i / (width + pad) * width + column] : NAN;
    }
    free(dense);
    return wide;
}

static bool sees(const struct attention_case *c, int64_t query, int64_t key) {
    const struct shape *s = c->shape;
    int64_t own = query + s->n_keys - s->n;
    return key >= c->row_start[query] && key <= own && (s->window == 0 || key > own - s->window);
}

/* The scores of one query of one head, and their errors relative to the query's own score. */
struct score {
    double value, error;
};

static struct score score_of(const struct attention_case *c, int64_t query, int64_t head, int64_t key) {
    const struct shape *s = c->shape;
    int64_t width = s->heads * s->dim + s->pad, kv_width = s->kv_heads * s->dim + s->pad;
    const float *q = c->q + query * width + head * s->dim;
    const float *k = c->k + key * kv_width + head / (s->heads / s->kv_heads) * s->dim;
    double sum = 0, absolute = 0, scale = scale_of(s);
    double bias = s->slopes ? c->slopes[head] * (double)(query + s->n_keys - s->n - key) : 0;
    for (int64_t d = 0; d < s->dim; d++) {
        sum += (double)q[d] * k[d];
        absolute += fabs((double)q[d] * k[d]);
    }
    double score = s->softcap > 0 ? s->softcap * tanh(scale * sum / s->softcap) : scale * sum;
    struct score result = {score - bias, 0};
    /* The error of the sums of products, then some roundings of the scaled score and of the running maximum
     * that is subtracted. */
    result.error = fabs(scale) * absolute * (double)s->dim * 0x1p-23 + (fabs(score) + bias) * 0x1p-21;
    result.error += s->softcap > 0 ? fabs(score) * 0x1p-20 : 0;
    return result;
}

static void bound_head(const struct attention_case *c, enum ot_dtype dtype, int64_t query, int64_t head) {
    const struct shape *s = c->shape;
    int64_t kv_width = s->kv_heads * s->dim + s->pad, keys = 0;
    double *p = filled(s->n_keys, sizeof *p), max = -INFINITY, error = 0, sum = 0;
    for (int64_t j = 0; j < s->n_keys; j++) {
        p[j] = -INFINITY;
        if (!sees(c, query, j))
            continue;
        struct score score = score_of(c, query, head, j);
        p[j] = score.value;
        max = fmax(max, score.value);
        error = fmax(error, score.error);
        keys++;
    }
    if (s->sink != 0) {
        max = fmax(max, c->sinks[head]);
        error = fmax(error, fabs((double)c->sinks[head]) * 0x1p-21);
        sum = exp(c->sinks[head] - max);
    }
    for (int64_t j = 0; j < s->n_keys; j++)
        sum += exp(p[j] - max);
    error = 2 * error + (double)keys * 0x1p-23 + 0x1p-21;
    c->lse_bound[head * s->n + query] = error + fabs(max + log(sum)) * 0x1p-22;
    for (int64_t d = 0; d < s->dim; d++) {
        double weighed = 0, absolute = 0;
        for (int64_t j = 0; j < s->n_keys; j++) {
            if (p[j] == -INFINITY)
                continue;
            double v = fabs((double)c->v[j * kv_width + head / (s->heads / s->kv_heads) * s->dim + d]);
            weighed += exp(p[j] - max) / sum * v;
            absolute += v;
        }
        c->out_bound[query * (s->heads * s->dim + s->pad) + head * s->dim + d] =
            (cuda_unit_roundoff(dtype) + 2 * error) * weighed + (dtype == OT_F16 ? 0x1p-25 * absolute : 0);
    }
    free(p);
}

static struct attention_case make_case(const struct shape *s, enum ot_dtype dtype) {
    int64_t width = s->heads * s->dim, kv_width = s->kv_heads * s->dim;
    struct attention_case c = {.shape = s};
    c.q = tokens_of(1, s->n, width, s->pad, s->q_size != 0 ? s->q_size : 1);
    c.k = tokens_of(2, s->n_keys, kv_width, s->pad, 1);
    c.v = tokens_of(3, s->n_keys, kv_width, s->pad, 1);
    c.slopes = filled(s->heads, sizeof *c.slopes);
    for (int64_t h = 0; h < s->heads; h++)
        c.slopes[h] = 0.7f / (float)(1 << h);
    c.sinks = filled(s->heads, sizeof *c.sinks);
    for (int64_t h = 0; h < s->heads; h++)
        c.sinks[h] = s->sink - 0.5f * (float)h;
    c.row_start = filled(s->n, sizeof *c.row_start);
    for (int64_t i = 0; i < s->n; i++)
        c.row_start[i] = row_of(s, i);
    for (int64_t i = 0; i < s->foreign * (kv_width + s->pad); i++)
        c.k[i] = c.v[i] = NAN;
    c.out_bound = filled(s->n * (width + s->pad), sizeof *c.out_bound);
    c.lse_bound = filled(s->heads * s->n, sizeof *c.lse_bound);
    for (int64_t i = 0; i < s->n; i++)
        for (int64_t h = 0; h < s->heads; h++)
            bound_head(&c, dtype, i, h);
    return c;
}

static void free_case(struct attention_case *c) {
    free(c->q);
    free(c->k);
    free(c->v);
    free(c->slopes);
    free(c->sinks);
    free(c->row_start);
    free(c->out_bound);
    free(c->lse_bound);
}

/* ---- the op ---- */

static void run_case(struct ops_fixture *f, const void *argument) {
    const struct attention_case *c = argument;
    const struct shape *s = c->shape;
    int64_t ld = s->heads * s->dim + s->pad, kv_ld = s->kv_heads * s->dim + s->pad;
    struct ot_attention op = {
        .dtype = f->dtype,
        .n = s->n,
        .n_keys = s->n_keys,
        .heads = s->heads,
        .kv_heads = s->kv_heads,
        .head_dim = s->dim,
        .window = s->window,
        .ldq = ld,
        .ldk = kv_ld,
        .ldv = kv_ld,
        .ldo = ld,
        .scale = scale_of(s),
        .softcap = s->softcap,
        .row_start = ops_upload_ids(f, c->row_start, s->n),
        .slopes = s->slopes ? ops_upload(f, OT_F32, c->slopes, s->heads) : NULL,
        .sinks = s->sink != 0 ? ops_upload(f, f->dtype, c->sinks, s->heads) : NULL,
        .q = ops_upload(f, f->dtype, c->q, s->n * ld),
        .k = ops_upload(f, f->dtype, c->k, s->n_keys * kv_ld),
        .v = ops_upload(f, f->dtype, c->v, s->n_keys * kv_ld),
        .out = ops_blank_values(f, f->dtype, s->n * ld),
        .lse = s->no_lse ? NULL : ops_blank(f, (size_t)(s->heads * s->n) * sizeof(float)),
    };
    f->ops->attention(f->lane, &op);
    ops_collect(f, "out", f->dtype, op.out, s->n * ld);
    if (op.lse)
        ops_collect(f, "lse", OT_F32, op.lse, s->heads * s->n);
}

static void check_shape(const struct shape *s, enum ot_dtype dtype, int shift) {
    struct attention_case c = make_case(s, dtype);
    struct cuda_pair p;
    cuda_run(&p, run_case, &c, dtype, shift);
    cuda_check_close(&p, "out", &(struct cuda_bound){.each = c.out_bound});
    if (!s->no_lse)
        cuda_check_close(&p, "lse", &(struct cuda_bound){.each = c.lse_bound});
    cuda_close(&p);
    free_case(&c);
}

/* ---- tests ---- */

static const enum ot_dtype DTYPES[] = {OT_BF16, OT_F16};
#if defined(OT_TEST_SM) && OT_TEST_SM == 90
static const int64_t DIMS[] = {64, 128}; /* of attention_hopper.cu */
#else
static const int64_t DIMS[] = {64, 80, 96, 128, 256};
#endif
enum { N_DIMS = sizeof DIMS / sizeof *DIMS };

/* One query, a part of a warp's rows, a tile of keys and one key more or less, several blocks. */
static void test_sizes(void **state) {
    (void)state;
    static const int64_t sizes[] = {1, 17, 63, 64, 65, 129, 200};
    for (int dtype = 0; dtype < 2; dtype++)
        for (int dim = 0; dim < N_DIMS; dim++)
            for (int i = dim == 0 ? 0 : 4; i < 7; i++)
                check_shape(&(struct shape){sizes[i], sizes[i], 1, 1, .dim = DIMS[dim]}, DTYPES[dtype], 0);
    check_shape(&(struct shape){333, 333, 1, 1, .dim = 128}, OT_BF16, 0);
}

static void test_heads(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++) {
        check_shape(&(struct shape){40, 40, 4, 2, .dim = DIMS[dim]}, OT_BF16, 0);
        check_shape(&(struct shape){40, 40, 3, 1, .dim = DIMS[dim]}, OT_F16, 0);
    }
    check_shape(&(struct shape){70, 70, 6, 6, .dim = 64}, OT_BF16, 0);
}

/* Borders inside tiles, between tiles of keys and between blocks of queries; a row of one token. */
static void test_rows(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++) {
        check_shape(&(struct shape){333, 333, 1, 1, DIMS[dim], .rows = {10, 54, 64, 1, 63, 77}}, OT_BF16, 0);
        check_shape(&(struct shape){150, 150, 2, 1, DIMS[dim], .rows = {128, 3, 3}}, OT_F16, 0);
    }
}

static void test_windows(void **state) {
    (void)state;
    static const int64_t windows[] = {1, 33, 64, 199, 200, 1000};
    for (int i = 0; i < 6; i++)
        check_shape(&(struct shape){200, 200, 1, 1, 64, .window = windows[i]}, OT_BF16, 0);
    for (int dim = 1; dim < N_DIMS; dim++)
        check_shape(&(struct shape){260, 260, 1, 1, DIMS[dim], .window = 70, .rows = {150}}, OT_F16, 0);
}

static void test_slopes(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++)
        check_shape(&(struct shape){140, 140, 2, 1, DIMS[dim], .rows = {50}, .slopes = true}, DTYPES[dim % 2],
                    0);
    check_shape(&(struct shape){30, 170, 4, 2, 64, .window = 100, .slopes = true}, OT_BF16, 0);
}

/* Queries after a past of keys; rows and windows may begin inside the past. */
static void test_past(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++) {
        check_shape(&(struct shape){1, 200, 2, 1, .dim = DIMS[dim]}, DTYPES[dim % 2], 0);
        check_shape(&(struct shape){15, 101, 1, 1, DIMS[dim], .window = 60, .rows = {37}}, DTYPES[dim % 2],
                    0);
    }
    check_shape(&(struct shape){140, 300, 1, 1, 64, .rows = {190, 30}}, OT_BF16, 0);
    /* so many keys that every ring of tiles turns more than once */
    check_shape(&(struct shape){130, 900, 1, 1, .dim = 128}, OT_BF16, 0);
    check_shape(&(struct shape){130, 900, 1, 1, 64, .window = 700, .rows = {300}}, OT_F16, 0);
}

/* Tokens that are further apart than their heads, and arrays that begin at any element. Where 16-byte
 * accesses are impossible, the plain kernel runs. */
static void test_strides(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++) {
        check_shape(&(struct shape){70, 70, 2, 1, DIMS[dim], .pad = 8}, OT_BF16, 8);
        check_shape(&(struct shape){20, 20, 2, 1, DIMS[dim], .pad = 40, .no_lse = true}, OT_F16, 0);
    }
    check_shape(&(struct shape){20, 20, 2, 1, 64, .pad = 3}, OT_BF16, 0);
    check_shape(&(struct shape){20, 20, 2, 1, .dim = 64}, OT_F16, 1);
}

/* Scores that outgrow the running maximum again and again, and degenerate scales. */
static void test_scores(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++)
        check_shape(&(struct shape){200, 200, 1, 1, DIMS[dim], .q_size = 12}, DTYPES[dim % 2], 0);
    check_shape(&(struct shape){100, 100, 1, 1, 64, .scale = -0.25f}, OT_BF16, 0);
    check_shape(&(struct shape){100, 100, 1, 1, 64, .scale = 0x1p-140f}, OT_BF16, 0);
}

/* A softcap before ALiBi, rows and windows; scores far beyond the cap and far below it; one query after a
 * past. The plain kernel too, in fp32 and in bf16 with a head that others do not take. */
static void test_softcaps(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++) {
        struct shape grouped = {140, 140, 4, 2, DIMS[dim], .rows = {50}, .window = 60, .softcap = 1.5f};
        check_shape(&grouped, DTYPES[dim % 2], 0);
        check_shape(&(struct shape){1, 200, 2, 1, DIMS[dim], .softcap = 2}, DTYPES[dim % 2], 0);
    }
    check_shape(&(struct shape){140, 140, 2, 1, 64, .rows = {50}, .slopes = true, .softcap = 2}, OT_BF16, 0);
    check_shape(&(struct shape){200, 200, 1, 1, 64, .q_size = 60, .softcap = 4}, OT_F16, 0);
    check_shape(&(struct shape){100, 100, 1, 1, 128, .softcap = 1e6f}, OT_BF16, 0);
    check_shape(&(struct shape){100, 100, 1, 1, 64, .scale = -0.25f, .softcap = 1}, OT_BF16, 0);
    check_shape(&(struct shape){70, 90, 2, 1, 24, .slopes = true, .pad = 3, .softcap = 2}, OT_F32, 0);
    check_shape(&(struct shape){70, 70, 2, 1, 72, .q_size = 60, .softcap = 4}, OT_BF16, 0);
}

/* Sinks with all the rest; much larger and much smaller than the scores; queries that see one key alone. */
static void test_sinks(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++) {
        struct shape grouped = {140, 140, 4, 2, DIMS[dim], .rows = {50}, .window = 60, .sink = 1};
        check_shape(&grouped, DTYPES[dim % 2], 0);
        check_shape(&(struct shape){1, 200, 2, 1, DIMS[dim], .softcap = 2, .sink = 2}, DTYPES[dim % 2], 0);
    }
    static const float sinks[] = {-1e30f, -40, -5, 5, 12, 200};
    for (int i = 0; i < 6; i++)
        check_shape(&(struct shape){200, 200, 2, 1, 64, .sink = sinks[i]}, DTYPES[i % 2], 0);
    check_shape(&(struct shape){90, 90, 2, 1, 64, .rows = {70}, .sink = -1e30f}, OT_F16, 0); /* -infinity */
    check_shape(&(struct shape){70, 70, 2, 1, 64, .window = 1, .sink = 0.5f}, OT_BF16, 0);
    check_shape(&(struct shape){200, 200, 1, 1, 64, .q_size = 12, .slopes = true, .sink = 3}, OT_F16, 0);
    check_shape(&(struct shape){70, 90, 2, 1, 24, .slopes = true, .pad = 3, .softcap = 2, .sink = 1}, OT_F32,
                0);
    check_shape(&(struct shape){70, 70, 2, 1, 72, .sink = -30}, OT_F32, 0);
    check_shape(&(struct shape){70, 70, 2, 1, 72, .sink = 30}, OT_BF16, 0);
}

/* The kernel never reads tiles that no query of a block sees: keys and values before the row of the last
 * block are NaN. */
static void test_foreign_tiles_are_skipped(void **state) {
    (void)state;
    for (int dim = 0; dim < N_DIMS; dim++) {
        struct shape rows = {60, 316, 1, 1, DIMS[dim], .rows = {256}, .foreign = 256};
        check_shape(&rows, DTYPES[dim % 2], 0);
        struct shape window = {60, 316, 1, 1, DIMS[dim], .window = 129, .foreign = 128};
        check_shape(&window, DTYPES[dim % 2], 0);
    }
}

/* The bits of a row do not depend on the rows that it is packed with, as long as it begins at the same offset
 * in a tile of keys. */
static void test_packing_does_not_show(void **state) {
    (void)state;
    enum { ROW = 70, DIM = 64 };
    static const struct shape shapes[2] = {
        {ROW + 64, ROW + 64, 1, 1, DIM, .rows = {64}},
        {ROW + 192 + 20, ROW + 192 + 20, 1, 1, DIM, .rows = {100, 92, ROW}}};
    static const int64_t starts[2] = {64, 192};
    float *rows[3] = {ops_random(7, ROW * DIM, 1), ops_random(8, ROW * DIM, 1), ops_random(9, ROW * DIM, 1)};
    struct ops_fixture fixtures[2];
    const float *outs[2];
    for (int i = 0; i < 2; i++) {
        struct attention_case c = make_case(&shapes[i], OT_BF16);
        float *to[3] = {c.q, c.k, c.v};
        for (int j = 0; j < 3; j++)
            memcpy(to[j] + starts[i] * DIM, rows[j], ROW * DIM * sizeof(float));
        cuda_open(&fixtures[i], OT_BF16);
        run_case(&fixtures[i], &c);
        outs[i] = ops_result(&fixtures[i], "out", NULL) + starts[i] * DIM;
        free_case(&c);
    }
    assert_memory_equal(outs[0], outs[1], ROW * DIM * sizeof(float));
    for (int i = 0; i < 2; i++)
        ops_close(&fixtures[i]);
    for (int j = 0; j < 3; j++)
        free(rows[j]);
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_windows),
        cmocka_unit_test(test_slopes),
        cmocka_unit_test(test_past),
        cmocka_unit_test(test_strides),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_softcaps),
        cmocka_unit_test(test_sinks),
        cmocka_unit_test(test_foreign_tiles_are_skipped),
        cmocka_unit_test(test_packing_does_not_show),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

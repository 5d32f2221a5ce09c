/* Attention over spans of keys: against PyTorch and transformers' T5 on small cases, against a plain
 * reference in double on cases of several tiles. The same bits on any number of threads, in any build of the
 * ops, and for a row alone or beside other rows. bf16 and fp16. */
#include <stdio.h>

#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/spans_fixture.h"
#include "tests/support/golden.h"

/* fp32 rounding of dot products of head_dim terms and of sums over some hundred pairs. Such errors grow with
 * the square root of the length: 2^-24 * sqrt(600) * a few operations. */
static const double FP32_BOUND = 4e-6;
/* bf16 keeps 8 bits. Inputs are exact, out is rounded, and terms of the gradients cancel a little. */
static const double BF16_BOUND = 1.2e-2;

/* ---- the reference ---- */

struct reference {
    double *results[SPANS_RESULTS]; /* as spans_results, dense; of the softmax: log(sum of exp) or 0 */
};

static int64_t result_count(const struct spans_shape *s, int result) {
    const int64_t q = s->n * spans_width(s), k = s->n_keys * spans_width(s);
    const int64_t counts[SPANS_RESULTS] = {q, s->n * s->heads, q, k, k, s->buckets * s->heads};
    return counts[result];
}

static const float *row_of(const struct spans_case *c, int input, int64_t token, int64_t head) {
    return c->in[input] + token * spans_width(&c->shape) + head * c->shape.head_dim;
}

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)a[i] * b[i];
    return sum;
}

/* The bucket of a query and a key. */
static int64_t bucket_of(const struct spans_case *c, int64_t query, int64_t key) {
    int64_t distance = key - (query + c->shape.n_keys - c->shape.n), reach = c->shape.reach;
    return c->bucket_of[reach + (distance < -reach ? -reach : distance > reach ? reach : distance)];
}

/* p[key] becomes the softmax of one query's span. Returns the log of the sum; 0 for an empty span. */
static double softmax_row(const struct spans_case *c, int64_t query, int64_t head, double *p) {
    double max = -INFINITY, sum = 0;
    for (int64_t key = c->key_first[query]; key < c->key_end[query]; key++) {
        p[key] = c->shape.scale *
                 dot(row_of(c, SPANS_Q, query, head), row_of(c, SPANS_K, key, head), c->shape.head_dim);
        p[key] += c->bias ? c->bias[bucket_of(c, query, key) * c->shape.heads + head] : 0;
        max = fmax(max, p[key]);
    }
    for (int64_t key = c->key_first[query]; key < c->key_end[query]; key++)
        sum += exp(p[key] - max);
    for (int64_t key = c->key_first[query]; key < c->key_end[query]; key++)
        p[key] = exp(p[key] - max) / sum;
    return sum > 0 ? max + log(sum) : 0;
}

/* Adds the gradients of one query and head. */
static void add_gradients(const struct spans_case *c, int64_t query, int64_t head, const double *p,
                          double *const r[SPANS_RESULTS]) {
    int64_t dim = c->shape.head_dim, own = query * spans_width(&c->shape) + head * dim;
    const float *q = c->in[SPANS_Q] + own, *dout = c->in[SPANS_DOUT] + own;
    double delta = 0;
    for (int64_t d = 0; d < dim; d++)
        delta += r[0][own + d] * dout[d];
    for (int64_t key = c->key_first[query]; key < c->key_end[query]; key++) {
        int64_t at = key * spans_width(&c->shape) + head * dim;
        double ds = p[key] * (dot(dout, c->in[SPANS_V] + at, dim) - delta);
        for (int64_t d = 0; d < dim; d++) {
            r[2][own + d] += c->shape.scale * ds * c->in[SPANS_K][at + d];
            r[3][at + d] += c->shape.scale * ds * q[d];
            r[4][at + d] += p[key] * dout[d];
        }
        if (c->bias)
            r[5][bucket_of(c, query, key) * c->shape.heads + head] += ds;
    }
}

static struct reference reference_run(const struct spans_case *c) {
    struct reference r;
    const struct spans_shape *s = &c->shape;
    double *p = spans_memory(s->n_keys, sizeof *p);
    for (int i = 0; i < SPANS_RESULTS; i++)
        r.results[i] = spans_memory(result_count(s, i), sizeof *r.results[i]);
    for (int64_t i = 0; i < s->buckets * s->heads; i++)
        r.results[5][i] = spans_earlier(i);
    for (int64_t head = 0; head < s->heads; head++)
        for (int64_t query = 0; query < s->n; query++) {
            r.results[1][head * s->n + query] = softmax_row(c, query, head, p);
            for (int64_t key = c->key_first[query]; key < c->key_end[query]; key++)
                for (int64_t d = 0; d < s->head_dim; d++)
                    r.results[0][query * spans_width(s) + head * s->head_dim + d] +=
                        p[key] * row_of(c, SPANS_V, key, head)[d];
            add_gradients(c, query, head, p, r.results);
        }
    free(p);
    return r;
}

static void reference_free(struct reference *r) {
    for (int i = 0; i < SPANS_RESULTS; i++)
        free(r->results[i]);
}

/* ---- comparing ---- */

/* The results of the fixture without padding, which must be poison still. Of the softmax: log(sum of exp). */
static float *dense_result(const struct ops_fixture *f, const struct spans_shape *s, int result) {
    int64_t count, n = result_count(s, result), width = spans_width(s), ld = width + s->pad, to = 0;
    const float *got = ops_result(f, spans_results[result], &count);
    float *dense = spans_memory(n, sizeof *dense);
    bool softmax = strcmp(spans_results[result], "softmax") == 0;
    bool padded = !softmax && strcmp(spans_results[result], "dbias") != 0;
    for (int64_t i = 0; i < count && !softmax; i++)
        if (!padded || i % ld < width)
            dense[to++] = got[i];
        else
            assert_true(isnan(got[i]));
    for (; softmax && to < n; to++)
        dense[to] = got[2 * to + 1] > 0 ? got[2 * to] - logf(got[2 * to + 1]) : got[2 * to];
    assert_int_equal(to, n);
    return dense;
}

static void compare(const struct ops_fixture *f, const struct spans_shape *s, int result, const double *want,
                    double bound) {
    int64_t n = result_count(s, result);
    float *got = dense_result(f, s, result), *narrow = spans_memory(n, sizeof *narrow);
    bool zeros = true;
    for (int64_t i = 0; i < n; i++) {
        narrow[i] = (float)want[i];
        zeros &= fabs(want[i]) < 1e-12; /* where all differences cancel, no relative error exists */
        if (want[i] == 0)
            assert_true(fabsf(got[i]) < 1e-6f);
    }
    double error = zeros ? 0 : relative_error(got, narrow, n);
    if (!(error < bound))
        fail_msg("%s differs by %.3g, allowed %.3g", spans_results[result], error, bound);
    free(got);
    free(narrow);
}

/* ---- against PyTorch ---- */

static void check_golden(struct ot_golden *golden, const char *name, bool biased) {
    char array[64];
#define ARRAY(field)  (snprintf(array, sizeof array, "spans.%s.%s", name, field), array)
#define IDS(field)    (int32_t *)(uintptr_t)golden_i32(golden, ARRAY(field), NULL)
#define FLOATS(field) (float *)(uintptr_t)golden_f32(golden, ARRAY(field), NULL)
    struct spans_case c = {.shape = {.pad = 3, .backward = true}, .key_first = IDS("key_first")};
    c.key_end = IDS("key_end");
    c.shape.scale = *FLOATS("scale");
    c.in[SPANS_K] = FLOATS("k");
    c.shape.n_keys = golden_dim(golden, array, 0);
    c.in[SPANS_V] = FLOATS("v");
    c.in[SPANS_DOUT] = FLOATS("dout");
    c.in[SPANS_Q] = FLOATS("q");
    c.shape.n = golden_dim(golden, array, 0);
    c.shape.heads = golden_dim(golden, array, 1);
    c.shape.head_dim = golden_dim(golden, array, 2);
    if (biased) {
        c.bias = FLOATS("bias");
        c.shape.buckets = golden_dim(golden, array, 0);
        c.bucket_of = IDS("bucket_of");
        c.shape.reach = golden_dim(golden, array, 0) / 2;
    }
    struct ops_fixture f;
    ops_check_threads(&f, spans_run, &c, OT_F32);
    static const char *const names[SPANS_RESULTS] = {"out", "lse", "dq", "dk", "dv", "dbias"};
    for (int i = 0; i < spans_result_count(&c.shape); i++) {
        int64_t count;
        const float *want = golden_f32(golden, ARRAY(names[i]), &count);
        assert_int_equal(count, result_count(&c.shape, i));
        double *wide = spans_memory(count, sizeof *wide);
        for (int64_t j = 0; j < count; j++)
            wide[j] = want[j] + (strcmp(names[i], "dbias") == 0 ? spans_earlier(j) : 0);
        compare(&f, &c.shape, i, wide, FP32_BOUND);
        free(wide);
    }
#undef ARRAY
#undef IDS
#undef FLOATS
    ops_close(&f);
    c.shape.pad = 0;
    ops_check_half(spans_run, &c, BF16_BOUND);
}

static void test_golden(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    check_golden(golden, "encoder", true);
    check_golden(golden, "decoder", true);
    check_golden(golden, "cross", false);
    check_golden(golden, "cache", true);
    golden_close(golden);
}

/* ---- against the reference ---- */

static void test_shapes(void **state) {
    (void)state;
    for (int i = 0; i < SPANS_SHAPES; i++) {
        struct spans_case c = spans_make(&spans_shapes[i]);
        struct reference want = reference_run(&c);
        struct ops_fixture f;
        ops_check_threads(&f, spans_run, &c, OT_F32);
        for (int result = 0; result < spans_result_count(&c.shape); result++)
            compare(&f, &c.shape, result, want.results[result], FP32_BOUND);
        ops_close(&f);
        ops_check_threads(&f, spans_run, &c, OT_BF16);
        ops_close(&f);
        c.shape.pad = 0;
        if (c.shape.n > 1 && c.shape.n_keys > 0) /* else there may be gradients of 0 alone */
            ops_check_half(spans_run, &c, BF16_BOUND);
        reference_free(&want);
        spans_free(&c);
    }
}

static void test_builds(void **state) {
    (void)state;
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    for (int i = 0; i < SPANS_SHAPES; i++) {
        struct spans_case c = spans_make(&spans_shapes[i]);
        for (int b = 0; b < 3; b++)
            if (ot_cpu_ops_named(builds[b]))
                ops_check_build(spans_run, &c, builds[b], (enum ot_dtype)((i + b) % 3));
        spans_free(&c);
    }
}

/* ---- rows ---- */

/* The case of the tokens [first, end) alone. */
static struct spans_case cut(const struct spans_case *c, int64_t first, int64_t end) {
    struct spans_shape s = c->shape;
    s.n = s.n_keys = s.row = end - first;
    struct spans_case row = spans_make(&s);
    for (int64_t i = 0; i < s.n; i++) {
        row.key_first[i] = c->key_first[first + i] - (int32_t)first;
        row.key_end[i] = c->key_end[first + i] - (int32_t)first;
    }
    for (int input = 0; input < SPANS_INPUTS; input++)
        memcpy(row.in[input], c->in[input] + first * spans_width(&s),
               (size_t)(s.n * spans_width(&s)) * sizeof(float));
    if (s.buckets)
        memcpy(row.bias, c->bias, (size_t)(s.buckets * s.heads) * sizeof(float));
    if (s.buckets)
        memcpy(row.bucket_of, c->bucket_of, (size_t)(2 * s.reach + 1) * sizeof(int32_t));
    return row;
}

/* A row has the same bits beside other rows, all of NaNs, as alone. (dbias is a sum over all rows.) */
static void check_alone(const struct spans_shape *s, enum ot_dtype dtype) {
    struct spans_case all = spans_make(s);
    int64_t first = s->row, end = 2 * s->row, width = spans_width(s);
    struct spans_case row = cut(&all, first, end);
    struct ops_fixture one, many;
    for (int input = 0; input < SPANS_INPUTS; input++)
        for (int64_t i = 0; i < s->n * width; i++)
            if (i < first * width || i >= end * width)
                all.in[input][i] = NAN;
    ops_open(&one, 1, dtype);
    ops_open(&many, 1, dtype);
    spans_run(&one, &row);
    spans_run(&many, &all);
    static const int results[] = {0, 2, 3, 4}; /* out, dq, dk, dv */
    for (int i = 0; i < 4; i++) {
        float *want = dense_result(&one, &row.shape, results[i]), *got = dense_result(&many, s, results[i]);
        for (int64_t j = 0; j < s->row * width; j++)
            assert_true(isfinite(want[j]));
        assert_memory_equal(got + first * width, want, (size_t)(s->row * width) * sizeof *want);
        free(want);
        free(got);
    }
    ops_close(&one);
    ops_close(&many);
    spans_free(&all);
    spans_free(&row);
}

static void test_rows_do_not_show(void **state) {
    (void)state;
    static const struct spans_shape shapes[] = {
        {SPANS_ENCODER, 150, 150, 2, 40, 57, 32, 20, .scale = 1, .backward = true},
        {SPANS_DECODER, 220, 220, 2, 24, 109, 32, 128, .scale = 1, .backward = true},
        {SPANS_CROSS, 100, 100, 2, 72, 41, .scale = 0.5f, .backward = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_alone(&shapes[i], (enum ot_dtype)dtype);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_builds),
        cmocka_unit_test(test_rows_do_not_show),
    };
    return cmocka_run_group_tests_name("attention over spans of keys", tests, NULL, NULL);
}

/* GEMM: every combination of transposes, output dtype, bias and accumulation, against PyTorch and against
 * products summed in double. Odd shapes with padded rows. The same bits on any number of threads. */
#include <math.h>
#include <stdlib.h>

#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

/* The addend: none, the old content of C, or another matrix. */
enum adds { ADDS_NOTHING, ADDS_TO_C, ADDS_OTHER, ADDS };

struct gemm_case {
    int64_t m, n, k, pad;
    bool trans_a, trans_b, with_bias, by_rows;
    enum adds adds;
    float scale;                   /* only without bias */
    enum ot_dtype c_dtype;         /* used by bf16 runs; an fp32 run writes fp32 */
    const float *a, *b, *bias, *c; /* dense, not transposed */
};

/* Uploads [rows, cols], or its transpose, with `pad` NaNs after each row. */
static void *upload_matrix(struct ops_fixture *f, enum ot_dtype dtype, const float *from, int64_t rows,
                           int64_t cols, bool trans, int64_t pad, int64_t *ld) {
    int64_t lines = trans ? cols : rows, length = trans ? rows : cols;
    *ld = length + pad;
    float *to = malloc((size_t)(lines * *ld) * sizeof *to);
    assert_non_null(to);
    for (int64_t i = 0; i < lines; i++)
        for (int64_t j = 0; j < *ld; j++)
            to[i * *ld + j] = j >= length ? NAN : trans ? from[j * cols + i] : from[i * cols + j];
    void *memory = ops_upload(f, dtype, to, lines * *ld);
    free(to);
    return memory;
}

static void run_case(struct ops_fixture *f, const void *argument) {
    const struct gemm_case *c = argument;
    enum ot_dtype c_dtype = f->dtype == OT_F32 ? OT_F32 : c->c_dtype;
    struct ot_gemm op = {.dtype = f->dtype,
                         .c_dtype = c_dtype,
                         .trans_a = c->trans_a,
                         .trans_b = c->trans_b,
                         .by_rows = c->by_rows,
                         .m = c->m,
                         .n = c->n,
                         .k = c->k,
                         .scale = c->scale};
    op.a = upload_matrix(f, f->dtype, c->a, c->m, c->k, c->trans_a, c->pad, &op.lda);
    op.b = upload_matrix(f, f->dtype, c->b, c->k, c->n, c->trans_b, c->pad, &op.ldb);
    op.bias = c->with_bias ? ops_upload(f, f->dtype, c->bias, c->n) : NULL;
    op.ldc = c->n + c->pad;
    if (c->adds != ADDS_NOTHING)
        op.addend = upload_matrix(f, c_dtype, c->c, c->m, c->n, false, c->pad, &op.ldc);
    op.c = c->adds == ADDS_TO_C ? (void *)(uintptr_t)op.addend : ops_blank_values(f, c_dtype, c->m * op.ldc);
    f->ops->gemm(f->lane, &op);
    ops_collect(f, "c", c_dtype, op.c, c->m * op.ldc);
}

/* The result without its padding. The padding must still be NaN. */
static float *dense_result(const struct ops_fixture *f, const struct gemm_case *c) {
    const float *got = ops_result(f, "c", NULL);
    float *dense = malloc((size_t)(c->m * c->n) * sizeof *dense);
    assert_non_null(dense);
    for (int64_t i = 0; i < c->m; i++) {
        for (int64_t j = 0; j < c->n; j++)
            dense[i * c->n + j] = got[i * (c->n + c->pad) + j];
        for (int64_t j = 0; j < c->pad; j++)
            assert_true(isnan(got[i * (c->n + c->pad) + c->n + j]));
    }
    return dense;
}

static void check_case(const struct gemm_case *c, enum ot_dtype dtype, const float *want, double absolute,
                       double relative) {
    struct ops_fixture f;
    ops_check_threads(&f, run_case, c, dtype);
    float *got = dense_result(&f, c);
    check_close("c", got, want, c->m * c->n, absolute, relative);
    free(got);
    ops_close(&f);
}

static void check_dtypes(const struct gemm_case *c, const float *want, double absolute) {
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
        check_case(c, (enum ot_dtype)dtype, want, absolute, 0);
}

static void test_golden(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    struct gemm_case c = {.m = golden_dim(golden, "gemm.a", 0),
                          .n = golden_dim(golden, "gemm.b", 1),
                          .k = golden_dim(golden, "gemm.a", 1),
                          .pad = 2,
                          .a = golden_f32(golden, "gemm.a", NULL),
                          .b = golden_f32(golden, "gemm.b", NULL),
                          .bias = golden_f32(golden, "gemm.bias", NULL),
                          .c = golden_f32(golden, "gemm.c", NULL)};
    for (int i = 0; i < 4; i++) {
        c.trans_a = i & 1;
        c.trans_b = i & 2;
        c.with_bias = false;
        c.adds = ADDS_NOTHING;
        /* 19 terms of magnitude 1: each fp32 rounding is 2^-24 of a partial sum below 16. bf16 and fp16
         * represent the inputs exactly. */
        check_dtypes(&c, golden_f32(golden, "gemm.product", NULL), 4e-6);
        c.with_bias = true;
        check_dtypes(&c, golden_f32(golden, "gemm.with_bias", NULL), 4e-6);
        c.with_bias = false;
        for (c.adds = ADDS_TO_C; c.adds < ADDS; c.adds++)
            check_dtypes(&c, golden_f32(golden, "gemm.accumulated", NULL), 4e-6);
    }
    c.a = golden_f32(golden, "gemm.scaled.a", NULL);
    c.b = golden_f32(golden, "gemm.scaled.b", NULL);
    c.c = golden_f32(golden, "gemm.scaled.c", NULL);
    c.scale = golden_f32(golden, "gemm.scaled.scale", NULL)[0];
    for (int i = 0; i < 4; i++) {
        c.trans_a = i & 1;
        c.trans_b = i & 2;
        for (c.adds = ADDS_TO_C; c.adds < ADDS; c.adds++)
            check_dtypes(&c, golden_f32(golden, "gemm.scaled.sum", NULL), 4e-6);
    }
    golden_close(golden);
}

/* The op with sums in double. */
static float *reference(const struct gemm_case *c) {
    float *want = malloc((size_t)(c->m * c->n) * sizeof *want);
    double *row = malloc((size_t)c->n * sizeof *row), scale = c->scale != 0 ? c->scale : 1;
    assert_non_null(want);
    assert_non_null(row);
    for (int64_t i = 0; i < c->m; i++) {
        for (int64_t j = 0; j < c->n; j++)
            row[j] = (c->with_bias ? c->bias[j] : 0) + (c->adds ? c->c[i * c->n + j] : 0);
        for (int64_t p = 0; p < c->k; p++)
            for (int64_t j = 0; j < c->n; j++)
                row[j] += scale * c->a[i * c->k + p] * c->b[p * c->n + j];
        for (int64_t j = 0; j < c->n; j++)
            want[i * c->n + j] = (float)row[j];
    }
    free(row);
    return want;
}

/* A product with a scale, with every addend: in every dtype of C, rounded once. fp32: the bound of the same
 * product without a scale. */
static void check_scale(const struct gemm_case *unscaled, double fp32) {
    struct gemm_case c = *unscaled;
    c.scale = -0.70710678f;
    for (c.adds = ADDS_NOTHING; c.adds < ADDS; c.adds++) {
        float *want = reference(&c);
        c.c_dtype = OT_F32;
        check_dtypes(&c, want, fp32);
        c.c_dtype = OT_BF16; /* one rounding to 8 bits */
        check_case(&c, OT_BF16, want, fp32, 0x1p-8);
        free(want);
    }
}

/* A scale of 1 is no scale: the same bits, whatever is added. */
static void test_scale_of_one(void **state) {
    (void)state;
    enum { M = 70, N = 45, K = 90 };
    float *a = ops_random(1, M * K, 1), *b = ops_random(2, K * N, 1), *old = ops_random(3, M * N, 1),
          *bias = ops_random(4, N, 1);
    struct gemm_case c = {.m = M, .n = N, .k = K, .pad = 3, .a = a, .b = b, .c = old, .bias = bias};
    for (int i = 0; i < 3 * 2 * ADDS; i++) {
        enum ot_dtype dtype = (enum ot_dtype)(i % 3);
        struct ops_fixture without, with;
        c.adds = (enum adds)(i / 6);
        c.with_bias = i / 3 % 2;
        c.c_dtype = i % 2 ? OT_F32 : dtype;
        ops_open(&without, 2, dtype);
        ops_open(&with, 2, dtype);
        c.scale = 0;
        run_case(&without, &c);
        c.scale = 1;
        run_case(&with, &c);
        assert_memory_equal(with.results[0].values, without.results[0].values,
                            (size_t)with.results[0].n * sizeof(float));
        ops_close(&without);
        ops_close(&with);
    }
    free(a), free(b), free(old), free(bias);
}

static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},      {1, 300, 200},  {4, 130, 77},
                                        {5, 700, 33},   {130, 65, 513}, {513, 31, 17},
                                        {257, 385, 70}, {64, 64, 1100}, {96, 70, 640}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s += tests_are_brief() ? 3 : 1) {
        int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
        float *a = ops_random(1, m * k, 1), *b = ops_random(2, k * n, 1), *bias = ops_random(3, n, 1),
              *old = ops_random(4, m * n, 1);
        struct gemm_case c = {.m = m, .n = n, .k = k, .pad = 3, .a = a, .b = b, .bias = bias, .c = old};
        /* The rounding errors of a sum of k products of magnitude 1 are a random walk over partial sums of
         * sqrt(k): about 2^-24 * k. The bound is six standard deviations. */
        double fp32 = 6 * 0x1p-24 * (double)(k + 8);
        for (int i = 0; i < 4; i += tests_are_for_races() ? 3 : 1) {
            c.trans_a = i & 1;
            c.trans_b = i & 2;
            c.adds = (enum adds)(i % ADDS);
            c.with_bias = !(i & 1);
            c.c_dtype = OT_F32;
            float *want = reference(&c);
            check_dtypes(&c, want, fp32);
            c.c_dtype = OT_BF16; /* one rounding to 8 bits: half of 2^-7 of the value */
            check_case(&c, OT_BF16, want, fp32, 0x1p-8);
            c.c_dtype = OT_F16; /* one rounding to 11 bits */
            check_case(&c, OT_F16, want, fp32, 0x1p-11);
            free(want);
        }
        c.with_bias = false;
        c.adds = ADDS_NOTHING;
        check_scale(&c, fp32);
        free(a);
        free(b);
        free(bias);
        free(old);
    }
}

/* A gradient of weights, twice: overwriting C, and adding to zeros. The engine does the former for the first
 * micro-batch of a sum, and the latter after a micro-batch without tokens. */
static void run_first_sums(struct ops_fixture *f, const void *argument) {
    const struct gemm_case *c = argument;
    struct ot_gemm op = {
        .dtype = f->dtype, .c_dtype = OT_F32, .trans_a = true, .m = c->m, .n = c->n, .k = c->k};
    op.lda = c->m, op.ldb = op.ldc = c->n;
    op.a = ops_upload(f, f->dtype, c->a, c->k * c->m);
    op.b = ops_upload(f, f->dtype, c->b, c->k * c->n);
    op.c = ops_blank_values(f, OT_F32, c->m * c->n);
    f->ops->gemm(f->lane, &op);
    ops_collect(f, "overwritten", OT_F32, op.c, c->m * c->n);
    op.addend = op.c = ops_upload(f, OT_F32, c->c, c->m * c->n);
    f->ops->gemm(f->lane, &op);
    ops_collect(f, "added to zeros", OT_F32, op.c, c->m * c->n);
}

static void test_first_sum_has_the_bits_of_adding_to_zeros(void **state) {
    (void)state;
    enum { WIDTH = 530, TOKENS = 700 };
    float *a = ops_random(1, TOKENS * WIDTH, 1), *b = ops_random(2, TOKENS * WIDTH, 1);
    float *zeros = calloc(WIDTH * WIDTH, sizeof *zeros);
    assert_non_null(zeros);
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
        for (int64_t k = 1; k <= TOKENS; k += TOKENS - 1) {
            const struct gemm_case c = {.m = WIDTH, .n = WIDTH - 7, .k = k, .a = a, .b = b, .c = zeros};
            struct ops_fixture f;
            ops_check_threads(&f, run_first_sums, &c, (enum ot_dtype)dtype);
            assert_memory_equal(ops_result(&f, "added to zeros", NULL), ops_result(&f, "overwritten", NULL),
                                (size_t)(c.m * c.n) * sizeof(float));
            ops_close(&f);
        }
    free(a), free(b), free(zeros);
}

/* A product so long that the packed method cuts it into blocks of C. Its sums with random signs over each row
 * are compared with A times (B times those signs) in double (Freivalds' check: a wrong element shows in half
 * of all cases). */
static void test_large(void **state) {
    (void)state;
    enum { M = 544, N = 550, K = 8224, PERIOD = 65521 };
    float *period = ops_random(1, PERIOD, 1), *a = malloc(M * K * sizeof *a), *b = malloc(K * N * sizeof *b);
    double *through = calloc(K, sizeof *through);
    assert_true(a && b && through);
    for (int64_t i = 0; i < M * K; i++)
        a[i] = period[i * 7 % PERIOD];
    for (int64_t i = 0; i < K * N; i++)
        b[i] = period[i * 11 % PERIOD];
    for (int64_t p = 0; p < K; p++)
        for (int64_t j = 0; j < N; j++)
            through[p] += period[j] > 0 ? b[p * N + j] : -b[p * N + j];
    for (int trans = tests_are_for_races(); trans < 2; trans++) {
        struct gemm_case c = {.m = M, .n = N, .k = K, .trans_a = trans, .trans_b = !trans, .a = a, .b = b};
        struct ops_fixture f;
        ops_open(&f, 2, OT_BF16);
        run_case(&f, &c);
        const float *got = ops_result(&f, "c", NULL);
        for (int64_t i = 0; i < M; i++) {
            double sum = 0, want = 0;
            for (int64_t j = 0; j < N; j++)
                sum += period[j] > 0 ? got[i * N + j] : -got[i * N + j];
            for (int64_t p = 0; p < K; p++)
                want += a[i * K + p] * through[p];
            /* N roundings of sums of K products each (see test_shapes), which add like a random walk. */
            assert_true(fabs(sum - want) < 6 * 0x1p-24 * K * sqrt(N));
        }
        ops_close(&f);
    }
    free(period);
    free(a);
    free(b);
    free(through);
}

/* by_rows: each row has the bits of a product of that row alone, for any number of rows. */
static void test_rows_have_bits_of_their_own(void **state) {
    (void)state;
    enum { M = 67, N = 71, K = 150 };
    static const enum ot_dtype dtypes[] = {OT_F32, OT_BF16, OT_F16};
    float *a = ops_random(21, M * K, 1), *b = ops_random(22, K * N, 1);
    float *bias = ops_random(23, N, 1), *addend = ops_random(24, M * N, 1);
    static const int64_t rows[] = {1, 2, 4, 5, 7, 64, M};
    for (int variant = 0; variant < 3 * (int)(sizeof rows / sizeof *rows);
         variant += tests_are_for_races() ? 5 : 1) {
        int64_t m = rows[variant / 3];
        struct gemm_case all = {.m = m,
                                .n = N,
                                .k = K - variant % 7,
                                .pad = variant % 4,
                                .trans_b = true,
                                .by_rows = true,
                                .with_bias = variant & 1,
                                .adds = (enum adds)(variant / 2 % ADDS),
                                .scale = variant & 1 ? 0 : 0.25f,
                                .c_dtype = variant % 5 ? OT_F32 : dtypes[variant % 3],
                                .a = a,
                                .b = b,
                                .bias = bias,
                                .c = addend};
        struct ops_fixture f, one;
        ops_open(&f, 2, dtypes[variant % 3]);
        run_case(&f, &all);
        float *got = dense_result(&f, &all);
        ops_close(&f);
        for (int64_t i = 0; i < m; i++) {
            struct gemm_case row = all;
            row.m = 1;
            row.a = a + i * all.k;
            row.c = addend + i * N;
            ops_open(&one, 2, dtypes[variant % 3]);
            run_case(&one, &row);
            float *want = dense_result(&one, &row);
            assert_memory_equal(got + i * N, want, N * sizeof *want);
            free(want);
            ops_close(&one);
        }
        free(got);
    }
    free(a), free(b), free(bias), free(addend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),       cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_scale_of_one), cmocka_unit_test(test_first_sum_has_the_bits_of_adding_to_zeros),
        cmocka_unit_test(test_large),        cmocka_unit_test(test_rows_have_bits_of_their_own),
    };
    return cmocka_run_group_tests_name("gemm", tests, NULL, NULL);
}

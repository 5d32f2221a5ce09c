/* Matrix products on cuda against cpu: every transposition, with bias, accumulation and either dtype of C,
 * over odd and aligned sizes, rows with padding behind them and arrays off alignment; and the products of a
 * decoder layer, forward, dX and dW. Padding is NaN on both sides and must stay so. */
#include "tests/cuda/cuda_fixture.h"

#include <math.h>
#include <stdlib.h>

#include "tests/support/check.h"

struct product {
    int64_t m, n, k;
    bool trans_a, trans_b;
    int64_t pad_a, pad_b, pad_c;   /* elements between the end of a row and the next */
    const float *a, *b, *bias, *c; /* dense; a and b are the operands as they are multiplied */
};

/* What is done with a product. wide: C is fp32 whatever the dtype. */
static const struct variant {
    const char *name;
    bool bias, accumulate, wide;
} variants[] = {
    {"plain", false, false, false},     {"bias", true, false, false},
    {"wide", false, false, true},       {"wide with bias", true, false, true},
    {"accumulated", false, true, true}, {"accumulated with bias", true, true, true},
};
enum { VARIANTS = sizeof variants / sizeof *variants };

/* [rows, cols], or its transpose, with `pad` NaNs after each row. */
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

static void run_product(struct ops_fixture *f, const void *argument) {
    const struct product *p = argument;
    struct ot_gemm op = {
        .dtype = f->dtype, .trans_a = p->trans_a, .trans_b = p->trans_b, .m = p->m, .n = p->n, .k = p->k};
    op.a = upload_matrix(f, f->dtype, p->a, p->m, p->k, p->trans_a, p->pad_a, &op.lda);
    op.b = upload_matrix(f, f->dtype, p->b, p->k, p->n, p->trans_b, p->pad_b, &op.ldb);
    void *bias = ops_upload(f, f->dtype, p->bias, p->n);
    for (int v = 0; v < VARIANTS; v++) {
        op.bias = variants[v].bias ? bias : NULL;
        op.accumulate = variants[v].accumulate;
        op.c_dtype = variants[v].wide ? OT_F32 : f->dtype;
        op.ldc = p->n + p->pad_c;
        op.c = op.accumulate ? upload_matrix(f, OT_F32, p->c, p->m, p->n, false, p->pad_c, &op.ldc)
                             : ops_blank_values(f, op.c_dtype, p->m * op.ldc);
        f->ops->gemm(f->lane, &op);
        ops_collect(f, variants[v].name, op.c_dtype, op.c, p->m * op.ldc);
    }
}

/* The worst that two orders of adding up the same k products can differ by, for each element. A sum of k + 2
 * terms loses at most half an ulp of the sum of their magnitudes in each addition where it rounds to nearest,
 * as the CPU does. Tensor cores cut off instead, which loses up to a whole one (Fasi et al., "Numerical
 * behavior of NVIDIA tensor cores", 2021). */
static double *error_bounds(const struct product *p) {
    int64_t ldc = p->n + p->pad_c;
    double *each = calloc((size_t)(p->m * ldc), sizeof *each);
    assert_non_null(each);
    for (int64_t i = 0; i < p->m; i++) {
        for (int64_t t = 0; t < p->k; t++)
            for (int64_t j = 0; j < p->n; j++)
                each[i * ldc + j] += fabs((double)p->a[i * p->k + t] * p->b[t * p->n + j]);
        for (int64_t j = 0; j < p->n; j++)
            each[i * ldc + j] = (each[i * ldc + j] + fabsf(p->bias[j]) + fabsf(p->c[i * p->n + j])) *
                                (double)(p->k + 2) * (0x1p-24 + 0x1p-23);
    }
    return each;
}

static void check_product(struct product p, enum ot_dtype dtype, int shift) {
    float *a = ops_random(1, p.m * p.k, 1), *b = ops_random(2, p.k * p.n, 1), *bias = ops_random(3, p.n, 4),
          *c = ops_random(4, p.m * p.n, 4);
    p.a = a, p.b = b, p.bias = bias, p.c = c;
    struct cuda_pair pair;
    double *each = error_bounds(&p);
    cuda_run(&pair, run_product, &p, dtype, shift);
    for (int v = 0; v < VARIANTS; v++)
        cuda_check_close(&pair, variants[v].name, &(struct cuda_bound){.each = each});
    cuda_close(&pair);
    free(each);
    free(a);
    free(b);
    free(bias);
    free(c);
}

/* Odd sizes: no access can be wider than an element. Padding by 8 keeps rows aligned, by 3 does not. */
static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 77, 40},  {5, 3, 130},  {33, 17, 65},
                                        {64, 64, 128}, {72, 40, 96}, {130, 65, 8}, {16, 136, 264}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int trans = 0; trans < 4; trans++) {
            struct product p = {.m = shapes[s][0],
                                .n = shapes[s][1],
                                .k = shapes[s][2],
                                .trans_a = trans & 1,
                                .trans_b = trans & 2,
                                .pad_a = s % 3 == 0   ? 0
                                         : s % 3 == 1 ? 8
                                                      : 3,
                                .pad_b = trans == 1 ? 8 : 0,
                                .pad_c = s % 2 == 0 ? 0 : 8};
            for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
                check_product(p, (enum ot_dtype)dtype, 0);
        }
}

/* Arrays that begin at an odd element, as slices of larger ones may: the bias too. */
static void test_alignment(void **state) {
    (void)state;
    static const int shifts[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof shifts / sizeof *shifts; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_product((struct product){.m = 24, .n = 32, .k = 40, .trans_b = i % 2}, (enum ot_dtype)dtype,
                          shifts[i]);
}

/* A decoder layer of 48 tokens, hidden size 64, four heads over two, and an MLP of 176: the output of the
 * fused projection of q, k and v is a slice of wider rows, and so is what comes back through it. */
static void test_decoder_layer(void **state) {
    (void)state;
    enum { TOKENS = 48, HIDDEN = 64, QKV = 128, MLP = 176, VOCAB = 200 };
    static const struct product products[] = {
        /* y = x W^T, dx = dy W, dW += dy^T x */
        {.m = TOKENS, .n = QKV, .k = HIDDEN, .trans_b = true, .pad_c = QKV},
        {.m = TOKENS, .n = HIDDEN, .k = QKV, .pad_a = QKV},
        {.m = QKV, .n = HIDDEN, .k = TOKENS, .trans_a = true, .pad_a = QKV},
        {.m = TOKENS, .n = MLP, .k = HIDDEN, .trans_b = true, .pad_c = MLP},
        {.m = TOKENS, .n = HIDDEN, .k = MLP, .pad_a = MLP},
        {.m = MLP, .n = HIDDEN, .k = TOKENS, .trans_a = true, .pad_a = MLP},
        {.m = TOKENS, .n = HIDDEN, .k = MLP, .trans_b = true},
        {.m = TOKENS, .n = MLP, .k = HIDDEN},
        {.m = HIDDEN, .n = MLP, .k = TOKENS, .trans_a = true},
        {.m = TOKENS, .n = VOCAB, .k = HIDDEN, .trans_b = true},
        {.m = VOCAB, .n = HIDDEN, .k = TOKENS, .trans_a = true, .pad_a = VOCAB},
    };
    for (size_t i = 0; i < sizeof products / sizeof *products; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_product(products[i], (enum ot_dtype)dtype, 0);
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_decoder_layer),
    };
    return cmocka_run_group_tests_name("cuda gemm", tests, NULL, NULL);
}

/* Matrix products on cuda against cpu: every transposition, with bias, scale, accumulation and both dtypes of
 * C, over odd and aligned sizes, padded rows and arrays off alignment; and the products of a decoder layer
 * (forward, dX, dW). Padding is NaN on both sides and must stay NaN. */
#include "tests/cuda/cuda_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/check.h"

/* Variants of a product. WIDE: C is fp32 for every dtype. ADDED: to the old content of C, in fp32. SUM: with
 * another matrix. SCALED: the sums are multiplied by SCALE. */
enum {
    PLAIN,
    BIAS,
    WIDE,
    WIDE_BIAS,
    ADDED,
    ADDED_BIAS,
    SUM,
    SUM_BIAS,
    SCALED,
    SCALED_ADDED,
    SCALED_SUM,
    VARIANTS
};
static const float SCALE = -0.7f;
static const struct {
    const char *name;
    bool bias, adds, in_place, wide, scaled;
} variants[VARIANTS] = {
    [PLAIN] = {"plain", .wide = false},
    [BIAS] = {"with bias", .bias = true},
    [WIDE] = {"in fp32", .wide = true},
    [WIDE_BIAS] = {"in fp32, with bias", .bias = true, .wide = true},
    [ADDED] = {"accumulated", .adds = true, .in_place = true, .wide = true},
    [ADDED_BIAS] = {"accumulated, with bias", .bias = true, .adds = true, .in_place = true, .wide = true},
    [SUM] = {"with an addend", .adds = true},
    [SUM_BIAS] = {"with an addend and bias", .bias = true, .adds = true},
    [SCALED] = {"scaled", .scaled = true},
    [SCALED_ADDED] = {"scaled, accumulated", .adds = true, .in_place = true, .wide = true, .scaled = true},
    [SCALED_SUM] = {"scaled, with an addend", .adds = true, .scaled = true},
};

struct product {
    int64_t m, n, k;
    bool trans_a, trans_b;
    int64_t pad_a, pad_b, pad_c; /* padding: elements between the end of a row and the next row */
    unsigned variants;           /* one bit for each variant */
    float *a, *b, *bias, *c;     /* dense; a and b are op(A) and op(B) */
    char names[VARIANTS][64];    /* names of the results */
};

/* Products that share one device, because opening a device takes longer than the products. */
struct batch {
    struct product *products;
    int n;
};

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

static void run_product(struct ops_fixture *f, const struct product *p) {
    struct ot_gemm op = {
        .dtype = f->dtype, .trans_a = p->trans_a, .trans_b = p->trans_b, .m = p->m, .n = p->n, .k = p->k};
    op.a = upload_matrix(f, f->dtype, p->a, p->m, p->k, p->trans_a, p->pad_a, &op.lda);
    op.b = upload_matrix(f, f->dtype, p->b, p->k, p->n, p->trans_b, p->pad_b, &op.ldb);
    void *bias = ops_upload(f, f->dtype, p->bias, p->n);
    for (int v = 0; v < VARIANTS; v++) {
        if (!(p->variants >> v & 1))
            continue;
        op.bias = variants[v].bias ? bias : NULL;
        op.scale = variants[v].scaled ? SCALE : 0;
        op.c_dtype = variants[v].wide ? OT_F32 : f->dtype;
        op.ldc = p->n + p->pad_c;
        void *addend = variants[v].adds
                           ? upload_matrix(f, op.c_dtype, p->c, p->m, p->n, false, p->pad_c, &op.ldc)
                           : NULL;
        op.addend = addend;
        op.c = variants[v].in_place ? addend : ops_blank_values(f, op.c_dtype, p->m * op.ldc);
        f->ops->gemm(f->lane, &op);
        ops_collect(f, p->names[v], op.c_dtype, op.c, p->m * op.ldc);
    }
}

static void run_batch(struct ops_fixture *f, const void *argument) {
    const struct batch *batch = argument;
    for (int i = 0; i < batch->n; i++)
        run_product(f, &batch->products[i]);
}

/* The largest difference between two orders of adding the same k products, for each element. A sum of k + 2
 * terms, scaled in between, loses at most half an ulp of the sum of magnitudes in each addition if it
 * rounds to nearest, as the CPU does. Tensor cores truncate instead, which loses up to one ulp (Fasi et
 * al., "Numerical behavior of NVIDIA tensor cores", 2021). */
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
                                (double)(p->k + 3) * (0x1p-24 + 0x1p-23);
    }
    return each;
}

static void fill_product(struct product *p, int number) {
    p->a = ops_random(1, p->m * p->k, 1);
    p->b = ops_random(2, p->k * p->n, 1);
    p->bias = ops_random(3, p->n, 4);
    p->c = ops_random(4, p->m * p->n, 4);
    for (int v = 0; v < VARIANTS; v++)
        snprintf(p->names[v], sizeof p->names[v], "product %d, %lldx%lldx%lld, %s", number, (long long)p->m,
                 (long long)p->n, (long long)p->k, variants[v].name);
}

static void check_batch(struct batch batch, enum ot_dtype dtype, int shift) {
    struct cuda_pair pair;
    for (int i = 0; i < batch.n; i++)
        fill_product(&batch.products[i], i);
    cuda_run(&pair, run_batch, &batch, dtype, shift);
    for (int i = 0; i < batch.n; i++) {
        struct product *p = &batch.products[i];
        double *each = error_bounds(p);
        for (int v = 0; v < VARIANTS; v++)
            if (p->variants >> v & 1)
                cuda_check_close(&pair, p->names[v], &(struct cuda_bound){.each = each});
        free(each);
    }
    cuda_close(&pair);
    for (int i = 0; i < batch.n; i++) {
        struct product *p = &batch.products[i];
        free(p->a);
        free(p->b);
        free(p->bias);
        free(p->c);
    }
}

/* All transpositions of one shape, each with some of the variants. Two shapes together have all variants. */
static void check_shape(const int64_t shape[3], int number, enum ot_dtype dtype, int shift) {
    static const unsigned halves[] = {1 << PLAIN | 1 << WIDE_BIAS | 1 << ADDED | 1 << SUM_BIAS | 1 << SCALED |
                                          1 << SCALED_SUM,
                                      1 << BIAS | 1 << WIDE | 1 << ADDED_BIAS | 1 << SUM | 1 << SCALED_ADDED};
    struct product products[4];
    for (int trans = 0; trans < 4; trans++)
        products[trans] = (struct product){.m = shape[0],
                                           .n = shape[1],
                                           .k = shape[2],
                                           .trans_a = trans & 1,
                                           .trans_b = trans & 2,
                                           .pad_a = number % 3 == 0   ? 0
                                                    : number % 3 == 1 ? 8
                                                                      : 3,
                                           .pad_b = trans == 1 ? 8 : 0,
                                           .pad_c = number % 4 < 2 ? 0 : 8,
                                           .variants = halves[(trans + number) % 2]};
    check_batch((struct batch){products, 4}, dtype, shift);
}

/* Odd sizes, where every access is one element wide, and even sizes, where accesses may be wider. Padding by
 * 8 keeps rows aligned; padding by 3 does not. */
static void test_shapes(void **state) {
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 77, 40},  {5, 3, 130},  {33, 17, 65},
                                        {64, 64, 128}, {72, 40, 96}, {130, 65, 8}, {16, 136, 264}};
    for (int s = 0; s < (int)(sizeof shapes / sizeof *shapes); s++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_shape(shapes[s], s, (enum ot_dtype)dtype, 0);
}

/* Arrays that begin at an odd element, like slices of larger arrays. The bias too. */
static void test_alignment(void **state) {
    (void)state;
    static const int64_t shape[3] = {24, 32, 40};
    for (int i = 0; i < 4; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++)
            check_shape(shape, i, (enum ot_dtype)dtype, 1 << i);
}

/* A decoder layer of 48 tokens with hidden size 64 and an MLP of 176, and its head: y = x W^T, dx = dy W and
 * dW += dy^T x of each. Projections that run as one product write slices of wider rows, and their gradients
 * are slices of wider rows too. */
static void test_decoder_layer(void **state) {
    (void)state;
    enum { TOKENS = 48, HIDDEN = 64, QKV = 128, MLP = 176, VOCAB = 200 };
    const struct product products[] = {
        {TOKENS, QKV, HIDDEN, .trans_b = true, .pad_c = QKV, .variants = 1 << BIAS},
        {TOKENS, HIDDEN, QKV, .pad_a = QKV, .variants = 1 << PLAIN},
        {QKV, HIDDEN, TOKENS, .trans_a = true, .pad_a = QKV, .variants = 1 << ADDED},
        {TOKENS, MLP, HIDDEN, .trans_b = true, .pad_c = MLP, .variants = 1 << PLAIN},
        {TOKENS, HIDDEN, MLP, .pad_a = MLP, .variants = 1 << PLAIN},
        {MLP, HIDDEN, TOKENS, .trans_a = true, .pad_a = MLP, .variants = 1 << ADDED},
        {TOKENS, HIDDEN, MLP, .trans_b = true, .variants = 1 << SUM_BIAS},
        {TOKENS, MLP, HIDDEN, .variants = 1 << PLAIN},
        {HIDDEN, MLP, TOKENS, .trans_a = true, .variants = 1 << ADDED},
        {TOKENS, VOCAB, HIDDEN, .trans_b = true, .variants = 1 << WIDE},
        {VOCAB, HIDDEN, TOKENS, .trans_a = true, .pad_a = VOCAB, .variants = 1 << ADDED},
    };
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct product copy[sizeof products / sizeof *products];
        memcpy(copy, products, sizeof copy);
        check_batch((struct batch){copy, sizeof products / sizeof *products}, (enum ot_dtype)dtype, 0);
    }
}

/* ---- tuning ---- */

enum { ROOM_BYTES = 1 << 20, GUARD_BYTES = 4096 };

static void *alloc(struct ot_device *device, size_t bytes) {
    void *memory;
    check_ok(ot_device_alloc(device, bytes, "a test", &memory));
    return memory;
}

static uint8_t *read_back(struct ot_lane *lane, const void *from, size_t bytes) {
    uint8_t *to = malloc(bytes);
    assert_non_null(to);
    ot_lane_copy(lane, OT_COPY_D2H, to, from, bytes);
    check_ok(ot_lane_sync(lane));
    return to;
}

/* Four kinds of products that share operands and write to adjacent places of c. */
static void enqueue_kinds(struct ot_lane *lane, const char *operands, char *c) {
    enum { M = 48, N = 40, K = 64 };
    for (int kind = 0; kind < 4; kind++) {
        bool wide = kind & 1, trans = kind & 2;
        struct ot_gemm op = {.dtype = OT_F16,
                             .c_dtype = wide ? OT_F32 : OT_F16,
                             .trans_a = trans,
                             .trans_b = !trans,
                             .m = M,
                             .n = N,
                             .k = K,
                             .lda = trans ? M : K,
                             .ldb = trans ? N : K,
                             .ldc = N,
                             .a = operands,
                             .b = operands + (size_t)M * K * 2,
                             .c = c + (size_t)kind * M * N * 4};
        ot_device_ops(ot_lane_device(lane))->gemm(lane, &op);
    }
}

/* Tuning changes no bit of any product and no memory that was not lent to it. With too little memory it times
 * no shape, and its report says so. It happens once. The test opens a device of its own, which has not seen
 * other shapes. */
static void test_tuning(void **state) {
    (void)state;
    struct ot_device_config config = {.kind = "cuda", .memory_bytes = (size_t)128 << 20, .threads = 1};
    struct ot_device *device;
    struct ot_lane *lane;
    struct ot_device_tuning tuning;
    enum { KINDS = 4, C_BYTES = KINDS * 48 * 40 * 4 };
    setenv("XDG_CACHE_HOME", "", 1); /* no saved choices */
    setenv("HOME", "", 1);
    check_ok(ot_device_open(&config, &device));
    check_ok(ot_lane_open(device, "compute", &lane));
    check_ok(ot_device_tune(device, NULL, 0, 60, &tuning)); /* the device has seen no product yet */
    assert_int_equal(tuning.shapes, 0);
    float *values = ops_random(7, ROOM_BYTES / 4, 1);
    uint16_t *halves = malloc(ROOM_BYTES / 2);
    assert_non_null(halves);
    for (int i = 0; i < ROOM_BYTES / 4; i++)
        halves[i] = ot_f16_from_f32(values[i]);
    char *operands = alloc(device, ROOM_BYTES / 2), *c = alloc(device, C_BYTES),
         *lent = alloc(device, ROOM_BYTES + GUARD_BYTES);
    ot_lane_copy(lane, OT_COPY_H2D, operands, halves, ROOM_BYTES / 2);
    ot_lane_fill(lane, c, 0xff, C_BYTES);
    ot_lane_fill(lane, lent, 0x5a, ROOM_BYTES + GUARD_BYTES);
    enqueue_kinds(lane, operands, c);
    uint8_t *before = read_back(lane, c, C_BYTES);
    check_ok(ot_device_tune(device, lent, 1024, 60, &tuning));
    assert_true(tuning.shapes == KINDS && tuning.timed == 0);
    check_ok(ot_device_tune(device, lent, ROOM_BYTES, 60, &tuning));
    /* A choice between two-byte results needs more equal elements than so small a product has. */
    assert_true(tuning.shapes == KINDS && tuning.timed >= 1 && tuning.timed < KINDS);
    assert_true(tuning.replaced <= tuning.timed);
    assert_true(tuning.after > 0 && tuning.after <= tuning.before && !tuning.is_kept);
    uint8_t *untouched = read_back(lane, c, C_BYTES),
            *behind = read_back(lane, lent + ROOM_BYTES, GUARD_BYTES);
    assert_memory_equal(untouched, before, C_BYTES);
    for (int i = 0; i < GUARD_BYTES; i++)
        assert_int_equal(behind[i], 0x5a);
    ot_lane_fill(lane, c, 0xff, C_BYTES);
    enqueue_kinds(lane, operands, c);
    uint8_t *after = read_back(lane, c, C_BYTES);
    assert_memory_equal(after, before, C_BYTES);
    check_ok(ot_device_tune(device, lent, ROOM_BYTES, 60, &tuning));
    assert_int_equal(tuning.shapes, 0);
    free(values), free(halves), free(before), free(untouched), free(behind), free(after);
    ot_device_free(device, operands);
    ot_device_free(device, c);
    ot_device_free(device, lent);
    ot_lane_close(lane);
    ot_device_close(device);
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_decoder_layer),
        cmocka_unit_test(test_tuning),
    };
    return cmocka_run_group_tests_name("cuda gemm", tests, NULL, NULL);
}

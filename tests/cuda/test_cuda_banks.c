/* The tensor-core kernels of attention and of products by groups access shared memory without bank conflicts:
 * ldmatrix, and the copies into tiles. On the emulated device alone, which counts them
 * (tests/emu/emu_banks.cpp). Rows of tiles have another swizzle for each head size; blocks have other
 * shapes on cards with less or more shared memory. */
#include "kernels/cuda/launchers.h"
#include "tests/emu/emu_faults.h"
#include "tests/support/check.h"

enum { TOKENS = 150, HEADS = 2 };

struct card {
    int arch, shared_bytes;
    enum ot_dtype dtype;
};

static const struct card cards[] = {
    {75, 64 << 10, OT_F16}, {80, 163 << 10, OT_BF16}, {86, 99 << 10, OT_BF16}, {90, 227 << 10, OT_BF16}};

static void use_card(const struct card *c) {
    struct ot_emu_card card = ot_emu_default_card();
    card.compute_capability = c->arch;
    card.shared_bytes = (size_t)c->shared_bytes;
    ot_emu_set_card(&card);
}

static void *device_memory(size_t bytes) {
    void *memory;
    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    assert_int_equal(cudaMemsetAsync(memory, 0, bytes, NULL), cudaSuccess);
    return memory;
}

static void check_counts(struct ot_emu_usage *before, const char *pass, const struct card *c,
                         int64_t head_dim) {
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    const struct ot_emu_usage now = ot_emu_usage();
    if (now.shared_accesses == before->shared_accesses || now.bank_conflicts != before->bank_conflicts)
        fail_msg("%s on sm_%d, head_dim %lld: %lld accesses of eight lanes, %lld conflicts", pass, c->arch,
                 (long long)head_dim, (long long)(now.shared_accesses - before->shared_accesses),
                 (long long)(now.bank_conflicts - before->bank_conflicts));
    *before = now;
}

static void check_attention(const struct card *c, int64_t head_dim) {
    enum { ARRAYS = 8 };
    void *arrays[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        arrays[i] = device_memory((size_t)(TOKENS * HEADS * head_dim) * 2);
    float *lse = device_memory(sizeof *lse * TOKENS * HEADS),
          *delta = device_memory(sizeof *delta * TOKENS * HEADS);
    int32_t *row_start = device_memory(sizeof *row_start * TOKENS);
    const int64_t ld = HEADS * head_dim;
    const struct ot_attention_backward op = {.forward = {.dtype = c->dtype,
                                                         .n = TOKENS,
                                                         .n_keys = TOKENS,
                                                         .heads = HEADS,
                                                         .kv_heads = 1,
                                                         .head_dim = head_dim,
                                                         .ldq = ld,
                                                         .ldk = ld,
                                                         .ldv = ld,
                                                         .ldo = ld,
                                                         .scale = 1,
                                                         .row_start = row_start,
                                                         .q = arrays[0],
                                                         .k = arrays[1],
                                                         .v = arrays[2],
                                                         .out = arrays[3],
                                                         .lse = lse},
                                             .dout = arrays[4],
                                             .dq = arrays[5],
                                             .dk = arrays[6],
                                             .dv = arrays[7],
                                             .lddk = ld,
                                             .lddv = ld,
                                             .scratch = delta};
    const struct ot_cuda_stream on = {.sm_count = 4, .shared_bytes = c->shared_bytes, .arch = c->arch};
    struct ot_emu_usage usage = ot_emu_usage();
    assert_int_equal(ot_cuda_attention(&op.forward, &on), cudaSuccess);
    check_counts(&usage, "forward", c, head_dim);
    assert_int_equal(ot_cuda_attention_backward(&op, &on), cudaSuccess);
    check_counts(&usage, "backward", c, head_dim);
    for (int i = 0; i < ARRAYS; i++)
        assert_int_equal(cudaFree(arrays[i]), cudaSuccess);
    assert_int_equal(cudaFree(lse), cudaSuccess);
    assert_int_equal(cudaFree(delta), cudaSuccess);
    assert_int_equal(cudaFree(row_start), cudaSuccess);
}

/* Two rows, the second seen key by key, with a bias. */
static void check_spans(const struct card *c, int64_t head_dim) {
    enum { ARRAYS = 9, BUCKETS = 4, REACH = 40, TABLES = 2 * TOKENS + 2 * REACH + 1 };
    void *arrays[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        arrays[i] = device_memory((size_t)(TOKENS * HEADS * head_dim) * 2);
    float *softmax = device_memory(ot_attend_spans_softmax_bytes(TOKENS, HEADS)),
          *scratch = device_memory(ot_attend_spans_scratch_bytes(TOKENS, HEADS, BUCKETS)),
          *dbias = device_memory(sizeof *dbias * BUCKETS * HEADS);
    int32_t *tables = device_memory(sizeof *tables * TABLES), host[TABLES] = {0};
    for (int i = 0; i < TOKENS; i++) {
        host[i] = i < 70 ? 0 : 70;
        host[TOKENS + i] = i < 70 ? 70 : i + 1;
    }
    assert_int_equal(cudaMemcpyAsync(tables, host, sizeof host, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    const int64_t ld = HEADS * head_dim;
    const struct ot_attend_spans_backward op = {.forward = {.dtype = c->dtype,
                                                            .n = TOKENS,
                                                            .n_keys = TOKENS,
                                                            .heads = HEADS,
                                                            .head_dim = head_dim,
                                                            .ldq = ld,
                                                            .ldk = ld,
                                                            .ldv = ld,
                                                            .ldo = ld,
                                                            .scale = 1,
                                                            .key_first = tables,
                                                            .key_end = tables + TOKENS,
                                                            .bias = arrays[8],
                                                            .buckets = BUCKETS,
                                                            .reach = REACH,
                                                            .bucket_of = tables + 2 * TOKENS,
                                                            .q = arrays[0],
                                                            .k = arrays[1],
                                                            .v = arrays[2],
                                                            .out = arrays[3],
                                                            .softmax = softmax},
                                                .dout = arrays[4],
                                                .dq = arrays[5],
                                                .dk = arrays[6],
                                                .dv = arrays[7],
                                                .dbias = dbias,
                                                .scratch = scratch};
    const struct ot_cuda_stream on = {.sm_count = 4, .shared_bytes = c->shared_bytes, .arch = c->arch};
    struct ot_emu_usage usage = ot_emu_usage();
    assert_int_equal(ot_cuda_attend_spans(&op.forward, &on), cudaSuccess);
    check_counts(&usage, "forward over spans", c, head_dim);
    assert_int_equal(ot_cuda_attend_spans_backward(&op, &on), cudaSuccess);
    check_counts(&usage, "backward over spans", c, head_dim);
    void *const others[] = {softmax, scratch, dbias, tables};
    for (int i = 0; i < ARRAYS; i++)
        assert_int_equal(cudaFree(arrays[i]), cudaSuccess);
    for (int i = 0; i < 4; i++)
        assert_int_equal(cudaFree(others[i]), cudaSuccess);
}

static void test_spans_have_no_bank_conflicts(void **state) {
    (void)state;
    for (size_t card = 0; card < sizeof cards / sizeof *cards; card++) {
        if (cards[card].arch < 80) /* the plain kernels */
            continue;
        ot_emu_reset();
        use_card(&cards[card]);
        check_spans(&cards[card], 64);
        check_spans(&cards[card], 128);
    }
    ot_emu_reset();
}

static void test_attention_has_no_bank_conflicts(void **state) {
    (void)state;
    static const int64_t head_dims[] = {64, 80, 96, 128, 256};
    for (size_t card = 0; card < sizeof cards / sizeof *cards; card++) {
        ot_emu_reset();
        use_card(&cards[card]);
        for (size_t i = 0; i < sizeof head_dims / sizeof *head_dims; i++)
            check_attention(&cards[card], head_dims[i]);
    }
    ot_emu_reset();
}

/* Each layout of the operands: rows along k, rows across k, both for A and for B. */
static void check_products(const struct card *card) {
    enum { ROWS = 200, WIDE = 136 };
    const int32_t ends[2] = {0, ROWS};
    int32_t *offsets = device_memory(sizeof ends);
    void *arrays[3];
    for (int i = 0; i < 3; i++)
        arrays[i] = device_memory(ROWS * WIDE * 4);
    assert_int_equal(cudaMemcpyAsync(offsets, ends, sizeof ends, cudaMemcpyHostToDevice, NULL), cudaSuccess);
    const struct ot_cuda_stream on = {.sm_count = 4, .shared_bytes = card->shared_bytes, .arch = card->arch};
    for (int kind = 0; kind < 3; kind++) {
        const struct ot_gemm_groups op = {.dtype = card->dtype,
                                          .c_dtype = OT_F32,
                                          .form = kind == 2 ? OT_GROUPS_SUMS : OT_GROUPS_ROWS,
                                          .trans_b = kind == 1,
                                          .experts = 1,
                                          .rows = ROWS,
                                          .m = WIDE,
                                          .n = WIDE,
                                          .k = WIDE,
                                          .offsets = offsets,
                                          .a = arrays[0],
                                          .b = arrays[1],
                                          .c = arrays[2],
                                          .lda = WIDE,
                                          .ldb = WIDE,
                                          .ldc = WIDE,
                                          .stride = WIDE * WIDE};
        struct ot_emu_usage usage = ot_emu_usage();
        assert_int_equal(ot_cuda_gemm_groups(&op, &on), cudaSuccess);
        check_counts(&usage, "product", card, kind);
    }
    for (int i = 0; i < 3; i++)
        assert_int_equal(cudaFree(arrays[i]), cudaSuccess);
    assert_int_equal(cudaFree(offsets), cudaSuccess);
}

/* On a card of compute capability 8.0, and on one of 9.0, which has a kernel of its own. */
static void test_products_have_no_bank_conflicts(void **state) {
    (void)state;
    for (int card = 1; card <= 3; card += 2) {
        ot_emu_reset();
        use_card(&cards[card]);
        check_products(&cards[card]);
    }
    ot_emu_reset();
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_attention_has_no_bank_conflicts),
                                       cmocka_unit_test(test_spans_have_no_bank_conflicts),
                                       cmocka_unit_test(test_products_have_no_bank_conflicts)};
    return cmocka_run_group_tests_name("cuda_banks", tests, NULL, NULL);
}

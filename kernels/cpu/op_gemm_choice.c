/* The entry point of every matrix product, which chooses the method, and products with few rows, as in
 * decoding. The choice depends on the shape, the dtype and the CPU alone. */
#include "kernels/cpu/op_parts.h"

/* With this few rows, the time of a product is the time to read B once. Packing or converting B would read
 * and write it again. Four rows of B are processed at a time, so that this many sums are in flight. */
enum { FEW_ROWS = 4, FEW_COLS = 4, FEW_CHUNK = 16 * FEW_COLS };

static OT_INLINE void gemm_few_dots(enum ot_dtype dtype, const struct ot_gemm *op, const void *a,
                                    const void *const b[FEW_COLS], float out[FEW_COLS]) {
    ot_vf sums[FEW_COLS] = {0};
    OT_FOR_LANES(i, lanes, op->k, {
        ot_vf x = vec_load(dtype, a, i, lanes);
        for (int j = 0; j < FEW_COLS; j++)
            sums[j] += x * vec_load(dtype, b[j], i, lanes);
    });
    for (int j = 0; j < FEW_COLS; j++)
        out[j] = vec_sum(sums[j]);
}

static void gemm_few_store(const struct ot_gemm *op, int64_t row, int64_t col, float value) {
    int64_t at_c = row * op->ldc + col;
    if (gemm_scales(op))
        value *= op->scale;
    if (op->bias)
        value += ot_dtype_read(op->dtype, op->bias, col);
    if (op->addend)
        value += ot_dtype_read(op->c_dtype, op->addend, at_c);
    ot_dtype_write(op->c_dtype, op->c, at_c, value);
}

/* Computes columns [first, first + cols) of C, at most FEW_COLS. Their rows of B stay in L1 while all rows of
 * A pass. */
static OT_INLINE void gemm_few_columns(enum ot_dtype dtype, const struct ot_gemm *op, int64_t first,
                                       int64_t cols) {
    const void *b[FEW_COLS];
    float values[FEW_COLS];
    for (int64_t j = 0; j < FEW_COLS; j++) /* repeats the last row if there are fewer */
        b[j] = at(dtype, op->b, (first + ot_min(j, cols - 1)) * op->ldb);
    for (int64_t i = 0; i < op->m; i++) {
        gemm_few_dots(dtype, op, at(dtype, op->a, i * op->lda), b, values);
        for (int64_t j = 0; j < cols; j++)
            gemm_few_store(op, i, first + j, values[j]);
    }
}

static void gemm_few_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_gemm *op = context;
    for (int64_t j = begin; j < end; j += FEW_COLS)
        WITH_DTYPE(op->dtype, gemm_few_columns, op, j, ot_min(FEW_COLS, end - j));
}

static void run_gemm(struct ot_lane *lane, const void *args) {
    const struct ot_gemm *op = args;
    if (op->m <= FEW_ROWS && !op->trans_a && op->trans_b)
        ot_pool_run(ot_cpu_lane_pool(lane), op->n, FEW_CHUNK, gemm_few_chunk, (void *)op);
    else if (op->dtype == OT_BF16 && ot_cpu_blas_bf16_way() == OT_CPU_BF16_AMX)
        run_gemm_packed(lane, op);
    else
        run_gemm_tiles(lane, op);
}

static void cpu_gemm(struct ot_lane *lane, const struct ot_gemm *op) {
    assert(!gemm_scales(op) || !op->bias);
    ot_cpu_lane_push(lane, run_gemm, op, sizeof *op);
}

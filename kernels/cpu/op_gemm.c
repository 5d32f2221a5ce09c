/* Matrix products. C is cut into tiles that depend on the shape alone. Each tile is one single-threaded BLAS
 * call (cpu_blas.h). */
#include "kernels/cpu/op_parts.h"

/* Tiles start at TILE_MAX, the size at which BLAS is fastest. They are halved until there are enough tiles
 * for many threads, or until they reach TILE_MIN, below which BLAS becomes slow (tests/bench/bench_ops.c). */
enum { TILE_MAX = 512, TILE_MIN = 128, TILES_WANTED = 8 };
/* Rows of the k dimension that are converted at a time if bf16 goes through fp32. */
enum { CONVERT_K = 512 };

struct gemm_run {
    const struct ot_gemm *op;
    int64_t tile_m, tile_n, tiles_n;
    /* worker_elems for each worker: result tile, A block, B block (the last two only if operands are
     * converted) */
    float *scratch;
    int64_t worker_elems;
};

struct gemm_tile {
    int64_t row, col, rows, cols;
};

/* ThreadSanitizer does not see the accesses inside BLAS. Touch one element of each row, so that it sees the
 * rows. */
#if defined(__SANITIZE_THREAD__)
#define SEES_THREADS 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define SEES_THREADS 1
#endif
#endif

static void show_read(enum ot_dtype dtype, const void *array, int64_t rows, int64_t ld) {
#ifdef SEES_THREADS
    for (int64_t row = 0; row < rows; row++)
        (void)*(const volatile uint16_t *)at(dtype, array, row * ld);
#else
    (void)dtype, (void)array, (void)rows, (void)ld;
#endif
}

static void show_write(float *array, int64_t rows, int64_t ld) {
#ifdef SEES_THREADS
    for (int64_t row = 0; row < rows; row++) {
        volatile float *element = array + row * ld;
        *element = *element;
    }
#else
    (void)array, (void)rows, (void)ld;
#endif
}

/* Converts the block of `rows` rows and `cols` columns to fp32, contiguous. */
static OT_INLINE void convert_block(enum ot_dtype dtype, const void *from, int64_t ld, int64_t rows,
                                    int64_t cols, float *to) {
    for (int64_t row = 0; row < rows; row++) {
        const void *line = at(dtype, from, row * ld);
        OT_FOR_LANES(i, lanes, cols,
                     { vec_store(OT_F32, to, row * cols + i, lanes, vec_load(dtype, line, i, lanes)); });
    }
}

/* Multiplies two-byte operands through fp32, a part of k at a time, so that the copies stay in the cache. */
static void product_converted(enum ot_dtype dtype, const struct ot_cpu_product *whole, float *a, float *b) {
    struct ot_cpu_product part = *whole;
    for (int64_t k = 0; k < whole->k; k += CONVERT_K) {
        part.k = ot_min(CONVERT_K, whole->k - k);
        const uint16_t *from_a = (const uint16_t *)whole->a + (whole->trans_a ? k * whole->lda : k);
        const uint16_t *from_b = (const uint16_t *)whole->b + (whole->trans_b ? k : k * whole->ldb);
        part.lda = whole->trans_a ? whole->m : part.k;
        part.ldb = whole->trans_b ? part.k : whole->n;
        WITH_DTYPE(dtype, convert_block, from_a, whole->lda, whole->trans_a ? part.k : whole->m, part.lda, a);
        WITH_DTYPE(dtype, convert_block, from_b, whole->ldb, whole->trans_b ? whole->n : part.k, part.ldb, b);
        part.a = a;
        part.b = b;
        ot_cpu_blas_f32(&part);
        part.accumulate = true;
    }
}

static bool gemm_scales(const struct ot_gemm *op) {
    return op->scale != 0 && op->scale != 1;
}

/* True if the product can add to C itself. Sums that are scaled first cannot. */
static bool gemm_adds_in_place(const struct ot_gemm *op) {
    return op->addend && op->addend == op->c && op->c_dtype == OT_F32 && !gemm_scales(op);
}

/* True if the sums are kept in C. Otherwise they lie in the scratch until gemm_finish stores them. */
static bool gemm_sums_in_c(const struct ot_gemm *op) {
    return op->c_dtype == OT_F32 && (op->addend != op->c || gemm_adds_in_place(op));
}

/* Stores the sums of a tile in C: scaled, then with the bias and the addend. */
static OT_INLINE void gemm_finish(enum ot_dtype dtype, const struct ot_gemm *op, const struct gemm_tile *tile,
                                  const float *from, int64_t ld) {
    const void *addend = gemm_adds_in_place(op) ? NULL : op->addend;
    for (int64_t row = 0; row < tile->rows; row++) {
        int64_t first = (tile->row + row) * op->ldc + tile->col;
        OT_FOR_LANES(i, lanes, tile->cols, {
            ot_vf value = vec_load(OT_F32, from, row * ld + i, lanes);
            if (gemm_scales(op))
                value *= op->scale;
            if (op->bias)
                value += vec_load(op->dtype, op->bias, tile->col + i, lanes);
            if (addend)
                value += vec_load(dtype, addend, first + i, lanes);
            vec_store(dtype, op->c, first + i, lanes, value);
        });
    }
}

/* True if gemm_finish has to complete the sums of a tile, or to move them to C. */
static bool gemm_needs_finish(const struct ot_gemm *op) {
    return !gemm_sums_in_c(op) || gemm_scales(op) || op->bias || (op->addend && !gemm_adds_in_place(op));
}

static bool gemm_converts(const struct ot_gemm *op) {
    return op->dtype == OT_F16 || (op->dtype == OT_BF16 && ot_cpu_blas_bf16_way() == OT_CPU_BF16_CONVERT);
}

static void gemm_tile(const struct gemm_run *run, const struct gemm_tile *tile, float *scratch) {
    const struct ot_gemm *op = run->op;
    bool direct = gemm_sums_in_c(op);
    float *c = direct ? (float *)op->c + tile->row * op->ldc + tile->col : scratch;
    int64_t ldc = direct ? op->ldc : tile->cols;
    const void *a = at(op->dtype, op->a, op->trans_a ? tile->row : tile->row * op->lda);
    const void *b = at(op->dtype, op->b, op->trans_b ? tile->col * op->ldb : tile->col);
    struct ot_cpu_product product = {
        op->trans_a, op->trans_b, gemm_adds_in_place(op), tile->rows, tile->cols, op->k, a, b, c, op->lda,
        op->ldb,     ldc};
    show_read(op->dtype, a, op->trans_a ? op->k : tile->rows, op->lda);
    show_read(op->dtype, b, op->trans_b ? tile->cols : op->k, op->ldb);
    show_write(c, tile->rows, ldc);
    if (op->dtype == OT_F32)
        ot_cpu_blas_f32(&product);
    else if (!gemm_converts(op))
        ot_cpu_blas_onednn(&product);
    else
        product_converted(op->dtype, &product,
                          scratch + run->worker_elems - (run->tile_m + run->tile_n) * CONVERT_K,
                          scratch + run->worker_elems - run->tile_n * CONVERT_K);
    if (gemm_needs_finish(op))
        WITH_DTYPE(op->c_dtype, gemm_finish, op, tile, c, ldc);
}

static void gemm_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk;
    const struct gemm_run *run = context;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = i / run->tiles_n * run->tile_m, col = i % run->tiles_n * run->tile_n;
        struct gemm_tile tile = {row, col, ot_min(run->tile_m, run->op->m - row),
                                 ot_min(run->tile_n, run->op->n - col)};
        gemm_tile(run, &tile, run->scratch + worker * run->worker_elems);
    }
}

static void run_gemm_tiles(struct ot_lane *lane, const struct ot_gemm *op) {
    struct ot_pool *pool = ot_cpu_lane_pool(lane);
    int64_t m = TILE_MAX, n = TILE_MAX;
    while (ot_chunk_count(op->m, m) * ot_chunk_count(op->n, n) < TILES_WANTED && ot_max(m, n) > TILE_MIN) {
        if (n >= m)
            n /= 2;
        else
            m /= 2;
    }
    int64_t result_elems = gemm_sums_in_c(op) ? 0 : m * n;
    int64_t copy_elems = gemm_converts(op) ? (m + n) * CONVERT_K : 0;
    struct gemm_run run = {op, m, n, ot_chunk_count(op->n, n), NULL, result_elems + copy_elems};
    run.scratch =
        ot_cpu_lane_scratch(lane, (size_t)(1 + run.worker_elems * ot_pool_threads(pool)) * sizeof(float));
    if (run.scratch)
        ot_pool_run(pool, ot_chunk_count(op->m, m) * run.tiles_n, 1, gemm_chunk, &run);
}

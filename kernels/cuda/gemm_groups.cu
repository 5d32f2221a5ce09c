/* Products by groups on tensor cores (kernels/ops_experts.h), for bf16 and fp16 with fp32 sums.
 *
 * A block of 8 warps computes a tile of C of 128 x 128 elements, a warp 64 x 32 of it: 64 fp32 sums a thread.
 * It walks along k (ROWS) or along the rows of the group (SUMS) in steps of 32. Three stages of both operands
 * lie in shared memory, 48 KiB in all, so that two blocks fit a multiprocessor of any kind. While the warps
 * multiply one stage, cp.async fills the others.
 *
 * Shared memory and FLOPs. A step of a warp loads 16 fragments of A and 8 of B with 12 ldmatrix.x4, and makes
 * 32 products 16x8x16. So shared memory delivers 192 bytes a product; the tensor cores of an sm_80 take two
 * clocks for it, in which shared memory delivers 256.
 *
 * OPERANDS lie in tiles with the swizzle of attention_tiles.cuh, whose loads have no bank conflicts. A tile
 * has the layout of the matrix in memory: rows along k (A of ROWS, B with trans_b) are 128 rows of 32
 * elements, loaded as they are; rows across k (A and B of SUMS, B of dx) are 32 rows of 128, and ldmatrix
 * transposes them. An operand whose rows do not begin at 16-byte borders, or end between them, is copied
 * element by element to the same places. So the bits do not depend on alignment. That copy is slow.
 *
 * ORDER. An element's sum runs along k in pieces of 16, whose terms the tensor core adds. It starts at the
 * first row of the group (SUMS), so other groups do not change it. Rows behind the group's end, and elements
 * behind k, are zeros.
 *
 * Not measured on a GPU. Expected: some 60 % of the tensor cores' rate, as other kernels of this kind, where
 * an expert has at least 128 rows. An expert with fewer rows wastes the rest of its tile.
 */
#include "kernels/cuda/gemm_groups.h"

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/gemm_groups.cuh"

inline namespace gemm_groups_cu {

enum {
    TILE = 128, /* rows and columns of C */
    STEP = 32,  /* along k */
    STAGES = 3,
    THREADS = 256,
    WARP_ROWS = 64,
    WARP_COLS = 32,
    M = WARP_ROWS / 16,
    N = WARP_COLS / 8,
    OPERAND = TILE * STEP, /* elements of an operand's stage */
};

/* A part of a matrix in memory: rows and columns from `row` and `col` on. They end at `rows` and `cols`. */
template <class T>
struct operand {
    const T *matrix;
    int64_t ld;
    int row, rows, col, cols;
    bool aligned; /* 16-byte copies are possible, and no chunk of 8 elements crosses `cols` */
};

/* Copies 8 elements one by one. */
template <class T>
__device__ __forceinline__ void copy_single(T *to, const T *from, int count) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = i < count ? from[i] : ot_from_float<T>(0.0f);
}

/* Starts the copy of ROWS x DIM elements. Elements outside of the matrix become zero. */
template <int ROWS, int DIM, class T>
__device__ __forceinline__ void copy_tile(T *tile, const operand<T> &x) {
    constexpr int CHUNKS = DIM / 8;
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int number = i * THREADS + (int)threadIdx.x, r = number / CHUNKS, chunk = number % CHUNKS;
        int row = x.row + r, col = x.col + chunk * 8;
        bool valid = row < x.rows && col < x.cols;
        const T *from = valid ? x.matrix + row * x.ld + col : x.matrix;
        T *to = tile + ot_tile<DIM>::at(r, chunk);
        if (x.aligned)
            ot_cp_async_16(to, from, valid);
        else
            copy_single(to, from, valid ? x.cols - col : 0);
    }
}

/* ALONG: rows of the tile are rows (A) or columns (B) of the product, and lie along k. */
template <bool ALONG, class T>
__device__ __forceinline__ void copy_operand(T *tile, const operand<T> &x) {
    if (ALONG)
        copy_tile<TILE, STEP>(tile, x);
    else
        copy_tile<STEP, TILE>(tile, x);
}

/* The fragments of the warp's 64 rows of A, for 16 elements from 16 k on. */
template <bool ALONG, class T>
__device__ __forceinline__ void load_a(uint32_t (&a)[M][4], const T *tile, int warp, int k) {
    if (ALONG) {
        const ot_tile_lane<STEP> lane = ot_tile_lane_a<STEP>();
#pragma unroll
        for (int m = 0; m < M; m++)
            ot_ldmatrix_x4(a[m], lane.at(tile + warp * WARP_ROWS * STEP, 16 * m, 2 * k));
    } else {
        const ot_tile_lane<TILE> lane = ot_tile_lane_b<TILE>();
#pragma unroll
        for (int m = 0; m < M; m++)
            ot_ldmatrix_x4_trans(a[m], lane.at(tile + warp * WARP_ROWS, 16 * k, 2 * m));
    }
}

/* The fragments of the 16 columns of B from 16 n on, of the warp's 32, for 16 elements from 16 k on. */
template <bool ALONG, class T>
__device__ __forceinline__ void load_b(uint32_t (&b)[4], const T *tile, int warp, int n, int k) {
    if (ALONG) {
        const ot_tile_lane<STEP> lane = ot_tile_lane_b<STEP>();
        ot_ldmatrix_x4(b, lane.at(tile + warp * WARP_COLS * STEP, 16 * n, 2 * k));
    } else { /* two warps share the 8 chunks that the swizzle permutes */
        int own = (int)threadIdx.x % OT_WARP;
        const ot_tile_lane<TILE> lane(own % 16, own / 16 + warp % 2 * 4);
        ot_ldmatrix_x4_trans(b, lane.at(tile + warp / 2 * 2 * WARP_COLS, 16 * k, 2 * n));
    }
}

template <bool A_ALONG, bool B_ALONG, class T>
__device__ __forceinline__ void multiply_stage(float (&c)[M][N][4], const T *a_tile, const T *b_tile,
                                               int warp) {
#pragma unroll
    for (int k = 0; k < STEP / 16; k++) {
        uint32_t a[M][4];
        load_a<A_ALONG>(a, a_tile, warp / 4, k);
#pragma unroll
        for (int n = 0; n < N / 2; n++) {
            uint32_t b[4];
            load_b<B_ALONG>(b, b_tile, warp % 4, n, k);
#pragma unroll
            for (int m = 0; m < M; m++) {
                ot_mma_16816<T>(c[m][2 * n], a[m], b[0], b[1]);
                ot_mma_16816<T>(c[m][2 * n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Starts the copies of a step into its stage. Behind the last step there is nothing to copy. */
template <bool A_ALONG, bool B_ALONG, class T>
__device__ __forceinline__ void copy_stage(T *shared, operand<T> a, operand<T> b, int step, int steps) {
    T *stage = shared + step % STAGES * 2 * OPERAND;
    (A_ALONG ? a.col : a.row) += step * STEP;
    (B_ALONG ? b.col : b.row) += step * STEP;
    if (step < steps) {
        copy_operand<A_ALONG>(stage, a);
        copy_operand<B_ALONG>(stage + OPERAND, b);
    }
    ot_cp_async_commit();
}

/* Two neighbours of a row, as one store if `paired`. */
template <class C>
__device__ __forceinline__ void store_two(C *to, float first, float second, bool paired, bool both) {
    if (paired && both && sizeof(C) == 2) {
        *reinterpret_cast<uint32_t *>(to) = ot_pack_two<C>(first, second);
        return;
    }
    if (paired && both) {
        *reinterpret_cast<float2 *>(to) = make_float2(first, second);
        return;
    }
    to[0] = ot_from_float<C>(first);
    if (both)
        to[1] = ot_from_float<C>(second);
}

template <class T, class C>
__device__ __forceinline__ void store_tile(const struct ot_gemm_groups &op, const struct ot_groups_tile &at,
                                           const float (&c)[M][N][4], bool paired) {
    bool sums = op.form == OT_GROUPS_SUMS;
    int warp = (int)threadIdx.x / OT_WARP, lane = (int)threadIdx.x % OT_WARP;
    int first_row = at.row + warp / 4 * WARP_ROWS + lane / 4, end = sums ? (int)op.m : at.end;
    int first_col = at.col + warp % 4 * WARP_COLS + lane % 4 * 2, n_cols = (int)op.n;
    C *base = static_cast<C *>(op.c);
    int64_t begin = sums ? at.expert * op.stride : 0;
#pragma unroll
    for (int m = 0; m < 2 * M; m++) {
        int row = first_row + 8 * m;
        if (row >= end)
            break;
#pragma unroll
        for (int n = 0; n < N; n++) {
            int col = first_col + 8 * n;
            if (col >= n_cols)
                break;
            int64_t place = begin + row * op.ldc + col;
            bool both = col + 1 < n_cols;
            float second = c[m / 2][n][m % 2 * 2 + 1];
            float first = ot_groups_finish<T, C>(op, at.expert, c[m / 2][n][m % 2 * 2], col, place);
            if (both)
                second = ot_groups_finish<T, C>(op, at.expert, second, col + 1, place + 1);
            store_two(base + place, first, second, paired, both);
        }
    }
}

/* The operands that are aligned for vector loads and stores. The host checks this. */
struct alignment {
    bool a, b; /* operands */
    bool c;    /* two neighbours of C can be stored at once */
};

template <class T, class C, bool SUMS, bool TRANS_B>
__global__ void __launch_bounds__(THREADS, 2) groups_tiled(struct ot_gemm_groups op, struct alignment is) {
    constexpr bool A_ALONG = !SUMS, B_ALONG = TRANS_B;
    T *shared = ot_shared<T>();
    struct ot_groups_tile at;
    if (!ot_groups_find<TILE, TILE>(op, (int)blockIdx.x, &at))
        return;
    int first = SUMS ? at.begin : 0, last = SUMS ? at.end : (int)op.k;
    int steps = (last - first + STEP - 1) / STEP, warp = (int)threadIdx.x / OT_WARP;
    operand<T> a = {static_cast<const T *>(op.a), op.lda, at.row, at.end, first, last, is.a};
    operand<T> b = {static_cast<const T *>(op.b), op.ldb, first, last, at.col, (int)op.n, is.b};
    if (SUMS)
        a = {a.matrix, a.ld, first, last, at.row, (int)op.m, is.a};
    else
        b.matrix += at.expert * op.stride;
    if (TRANS_B)
        b = {b.matrix, b.ld, at.col, (int)op.n, first, last, is.b};
    float c[M][N][4];
    ot_tile_zero(c);
#pragma unroll
    for (int step = 0; step < STAGES - 1; step++)
        copy_stage<A_ALONG, B_ALONG>(shared, a, b, step, steps);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        ot_cp_async_wait<STAGES - 2>();
        __syncthreads(); /* the stage is complete, and all warps have left the one before it */
        copy_stage<A_ALONG, B_ALONG>(shared, a, b, step + STAGES - 1, steps);
        const T *stage = shared + step % STAGES * 2 * OPERAND;
        multiply_stage<A_ALONG, B_ALONG>(c, stage, stage + OPERAND, warp);
    }
    store_tile<T, C>(op, at, c, is.c);
}

template <class T, class C>
cudaError_t launch_tiled(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    bool sums = op->form == OT_GROUPS_SUMS;
    /* the length of a row in memory, which chunks of 8 elements must fill */
    int64_t a_cols = sums ? op->m : op->k, b_cols = op->trans_b ? op->k : op->n;
    struct alignment is = {};
    is.a = ot_is_packable(static_cast<const T *>(op->a), op->lda, a_cols);
    is.b = ot_is_packable(static_cast<const T *>(op->b), op->ldb, b_cols) && (sums || op->stride % 8 == 0);
    is.c = (uintptr_t)op->c % (2 * sizeof(C)) == 0 && op->ldc % 2 == 0 && (!sums || op->stride % 2 == 0);
    auto kernel = sums          ? groups_tiled<T, C, true, false>
                  : op->trans_b ? groups_tiled<T, C, false, true>
                                : groups_tiled<T, C, false, false>;
    return ot_launch(kernel, dim3((unsigned)ot_groups_tiles(*op, TILE, TILE)), dim3(THREADS),
                     (size_t)STAGES * 2 * OPERAND * sizeof(T), on->stream, *op, is);
}

} // namespace gemm_groups_cu

cudaError_t ot_cuda_gemm_groups(const struct ot_gemm_groups *args, const struct ot_cuda_stream *on) {
    if (args->experts == 0 || args->n == 0 || (args->form == OT_GROUPS_SUMS ? args->m : args->rows) == 0)
        return cudaSuccess;
    if (ot_groups_tiles(*args, 16, 16) > INT32_MAX)
        return cudaErrorInvalidValue;
    if (on->plain || !ot_gemm_groups_is_tiled(args))
        return ot_gemm_groups_plain(args, on);
    if (ot_gemm_groups_is_hopper(args, on))
        return ot_gemm_groups_hopper(args, on);
    bool wide = args->c_dtype == OT_F32;
    if (args->dtype == OT_BF16)
        return wide ? launch_tiled<__nv_bfloat16, float>(args, on)
                    : launch_tiled<__nv_bfloat16, __nv_bfloat16>(args, on);
    return wide ? launch_tiled<__half, float>(args, on) : launch_tiled<__half, __half>(args, on);
}

/* ---- plain ---- */

/* The plain product by groups: a block computes a tile of 16 x 16 elements, one per thread, like
 * gemm_plain.cu. Each element is one fp32 sum in the order of k (ROWS), or of the rows of the group (SUMS).
 */

inline namespace gemm_groups_cu {

enum { PLAIN_TILE = 16, ROW = PLAIN_TILE + 1, PLAIN_THREADS = PLAIN_TILE * PLAIN_TILE };

/* Element [row, col] of a matrix whose rows and columns end at `rows` and `cols`; 0 outside of it. */
template <class T>
__device__ __forceinline__ float element(const T *matrix, int64_t ld, int row, int rows, int col, int cols) {
    return row < rows && col < cols ? ot_to_float(matrix[row * ld + col]) : 0.0f;
}

/* T: type of A, B and the bias; C: type of the result. */
template <class T, class C>
__global__ void groups_plain(struct ot_gemm_groups op) {
    float *a = ot_shared<float>(), *b = a + PLAIN_TILE * ROW;
    int x = (int)threadIdx.x % PLAIN_TILE, y = (int)threadIdx.x / PLAIN_TILE;
    struct ot_groups_tile at;
    if (!ot_groups_find<PLAIN_TILE, PLAIN_TILE>(op, (int)blockIdx.x, &at))
        return;
    bool sums = op.form == OT_GROUPS_SUMS;
    int first = sums ? at.begin : 0, last = sums ? at.end : (int)op.k, n = (int)op.n, m = (int)op.m;
    const T *from_a = static_cast<const T *>(op.a), *from_b = static_cast<const T *>(op.b);
    if (!sums)
        from_b += at.expert * op.stride;
    float sum = 0;
    for (int k = first; k < last; k += PLAIN_TILE) {
        a[y * ROW + x] = sums ? element(from_a, op.lda, k + x, last, at.row + y, m)
                              : element(from_a, op.lda, at.row + y, at.end, k + x, last);
        b[y * ROW + x] = op.trans_b ? element(from_b, op.ldb, at.col + x, n, k + y, last)
                                    : element(from_b, op.ldb, k + y, last, at.col + x, n);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < PLAIN_TILE; i++)
            sum = fmaf(a[y * ROW + i], b[i * ROW + x], sum);
        __syncthreads();
    }
    int row = at.row + y, col = at.col + x;
    if (row >= (sums ? m : at.end) || col >= n)
        return;
    int64_t place = row * op.ldc + col + (sums ? at.expert * op.stride : 0);
    static_cast<C *>(op.c)[place] = ot_from_float<C>(ot_groups_finish<T, C>(op, at.expert, sum, col, place));
}

template <class T, class C>
cudaError_t launch_plain(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    return ot_launch(groups_plain<T, C>, dim3((unsigned)ot_groups_tiles(*op, PLAIN_TILE, PLAIN_TILE)),
                     dim3(PLAIN_THREADS), 2 * PLAIN_TILE * ROW * sizeof(float), on->stream, *op);
}

} // namespace gemm_groups_cu

cudaError_t ot_gemm_groups_plain(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    return ot_dispatch(op->dtype, [&](auto zero) {
        using T = decltype(zero);
        return op->c_dtype == OT_F32 ? launch_plain<T, float>(op, on) : launch_plain<T, T>(op, on);
    });
}

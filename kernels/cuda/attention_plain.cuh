/* Tiles of attention with ordinary arithmetic, for attention_plain.cu and attention_spans.cu.
 *
 * A block has 64 threads, seen as 8 x 8. It owns ROWS = 8 M rows (queries, or keys when it sums the gradients
 * of keys) and walks over tiles of as many rows of the other side. All tiles are in shared memory as fp32.
 * Rows are padded to an odd length, so that equal columns of consecutive rows are in different banks, and
 * filled with zeros beyond the head and beyond the last token. Thread (r, c) computes the M x M scores of
 * rows r + 8 a with columns c + 8 b. It passes its weights through shared memory to the 8 threads of its row,
 * which are of one warp. It sums columns c + 8 e of its rows' results in registers. The scores take M^2
 * multiply-adds for 2 M loads, the results M E for M + E.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_PLAIN_CUH
#define OT_KERNELS_CUDA_ATTENTION_PLAIN_CUH

#include "kernels/cuda/kernel.cuh"

/* BLOCKS: the least number of blocks on a multiprocessor; it allows a thread 255 registers. */
enum { PLAIN_THREADS = 64, PLAIN_BLOCKS = 4, PLAIN_MAX_DIM = 256 };

/* ONLY_75: for GPUs of compute capability 7.5, whose blocks have 64 KB of shared memory; others have more. */
template <int MAX_DIM, int ROWS_PER_THREAD, bool ONLY_75_ = false>
struct plain_shape {
    static constexpr bool ONLY_75 = ONLY_75_;
    static constexpr int M = ROWS_PER_THREAD, ROWS = 8 * M, DIM = MAX_DIM, E = DIM / 8;
    static constexpr int LD = DIM + 1, WEIGHT_LD = ROWS + 1;
    static constexpr int TILE = ROWS * LD, WEIGHTS = ROWS * WEIGHT_LD; /* in floats */
};

/* ---- tiles ---- */

/* Copies rows [first, first + ROWS) of one head into a tile. Elements beyond `end` or the head become 0. Does
 * not end with a barrier. */
template <class S, class T>
__device__ __forceinline__ void plain_copy(float *tile, const T *from, int64_t ld, int first, int end,
                                           int dim) {
    for (int row = (int)threadIdx.x / OT_WARP; row < S::ROWS; row += PLAIN_THREADS / OT_WARP)
        for (int d = (int)threadIdx.x % OT_WARP; d < S::DIM; d += OT_WARP)
            tile[row * S::LD + d] =
                first + row < end && d < dim ? ot_to_float(from[(first + row) * ld + d]) : 0.0f;
}

/* s[a][b] = dot of row r + 8 a of x and row c + 8 b of y. */
template <class S>
__device__ __forceinline__ void plain_dots(float (&s)[S::M][S::M], const float *x, const float *y, int dim) {
    x += (int)threadIdx.x / 8 * S::LD;
    y += (int)threadIdx.x % 8 * S::LD;
#pragma unroll
    for (int a = 0; a < S::M; a++)
#pragma unroll
        for (int b = 0; b < S::M; b++)
            s[a][b] = 0.0f;
#pragma unroll 4
    for (int d = 0; d < dim; d++) {
        float left[S::M], right[S::M];
#pragma unroll
        for (int a = 0; a < S::M; a++) {
            left[a] = x[a * 8 * S::LD + d];
            right[a] = y[a * 8 * S::LD + d];
        }
#pragma unroll
        for (int a = 0; a < S::M; a++)
#pragma unroll
            for (int b = 0; b < S::M; b++)
                s[a][b] = fmaf(left[a], right[b], s[a][b]);
    }
}

/* Stores a thread's weights where all threads of its rows can read them. These threads are of one warp. */
template <class S>
__device__ __forceinline__ void plain_share(float *weights, const float (&p)[S::M][S::M]) {
    int at = (int)threadIdx.x / 8 * S::WEIGHT_LD + (int)threadIdx.x % 8;
    __syncwarp();
#pragma unroll
    for (int a = 0; a < S::M; a++)
#pragma unroll
        for (int b = 0; b < S::M; b++)
            weights[at + 8 * a * S::WEIGHT_LD + 8 * b] = p[a][b];
    __syncwarp();
}

/* sum[a][e] (columns c + 8 e of row r + 8 a) += the weights of the row times the rows of z. SKIPS: weights
 * that are 0 add nothing, not even a NaN. */
template <class S, bool SKIPS = false>
__device__ __forceinline__ void plain_weigh(float (&sum)[S::M][S::E], const float *weights, const float *z) {
    weights += (int)threadIdx.x / 8 * S::WEIGHT_LD;
    z += (int)threadIdx.x % 8;
    for (int j = 0; j < S::ROWS; j++) {
        float p[S::M];
#pragma unroll
        for (int a = 0; a < S::M; a++)
            p[a] = weights[8 * a * S::WEIGHT_LD + j];
#pragma unroll
        for (int e = 0; e < S::E; e++) {
            float value = z[j * S::LD + 8 * e];
#pragma unroll
            for (int a = 0; a < S::M; a++)
                sum[a][e] = SKIPS && p[a] == 0.0f ? sum[a][e] : fmaf(p[a], value, sum[a][e]);
        }
    }
}

template <class S>
__device__ __forceinline__ void plain_zero(float (&sum)[S::M][S::E]) {
#pragma unroll
    for (int a = 0; a < S::M; a++)
#pragma unroll
        for (int e = 0; e < S::E; e++)
            sum[a][e] = 0.0f;
}

/* Stores row r + 8 a of the sum, times a factor, to row `token` of `to`. */
template <class S, class T>
__device__ __forceinline__ void plain_store(T *to, int64_t ld, int token, int dim,
                                            const float (&sum)[S::M][S::E], int a, float factor) {
    to += token * ld;
#pragma unroll
    for (int e = 0; e < S::E; e++) {
        int d = (int)threadIdx.x % 8 + 8 * e;
        if (d < dim)
            to[d] = ot_from_float<T>(sum[a][e] * factor);
    }
}

/* Adds row `key` of the stored sums to row r + 8 a. stores: the row is stored again. */
template <class S>
__device__ __forceinline__ void plain_add_stored(float (&sum)[S::M][S::E], int a, float *sums, int64_t ld,
                                                 int key, int dim, bool stores) {
    sums += key * ld;
#pragma unroll
    for (int e = 0; e < S::E; e++) {
        int d = (int)threadIdx.x % 8 + 8 * e;
        if (d >= dim)
            continue;
        sum[a][e] += sums[d];
        if (stores)
            sums[d] = sum[a][e];
    }
}

/* The maximum over the 8 threads of a row. */
__device__ __forceinline__ float plain_row_max(float x) {
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset));
    return x;
}
__device__ __forceinline__ float plain_row_sum(float x) {
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

#endif

/* Helpers of the kernels that work by rows: the packs of a row, teams of threads, partial sums of columns.
 *
 * A row is cut into packs of 16 bytes, whatever its length and alignment. Pack p belongs to thread p mod
 * (threads of the team). If 16-byte accesses are impossible, the same thread reads the same values one by
 * one. So the order of a sum depends on the shape and the dtype alone, never on the address of the row.
 */
#ifndef OT_KERNELS_CUDA_ROWS_CUH
#define OT_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/kernel.cuh"

/* ---- packs of a row ---- */

/* True if all rows of `bytes`-wide values, ld apart, begin at 16-byte borders. */
static inline bool ot_rows_aligned(const void *first, int64_t ld, size_t bytes) {
    return (uintptr_t)first % 16 == 0 && ld * (int64_t)bytes % 16 == 0;
}

/* Loads pack `index` of a row of n values; zeros beyond the end. ALIGNED: the row begins at a 16-byte
 * border. */
template <bool ALIGNED, class T>
__device__ __forceinline__ ot_pack<T> ot_row_load(const T *row, int index, int n) {
    int first = index * ot_pack<T>::N;
    if (ALIGNED && first + ot_pack<T>::N <= n)
        return ot_load(row + first);
    ot_pack<T> pack;
#pragma unroll
    for (int i = 0; i < ot_pack<T>::N; i++)
        pack.v[i] = first + i < n ? ot_to_float(row[first + i]) : 0.0f;
    return pack;
}

template <bool ALIGNED, class T>
__device__ __forceinline__ void ot_row_store(T *row, int index, int n, const ot_pack<T> &pack) {
    int first = index * ot_pack<T>::N;
    if (ALIGNED && first + ot_pack<T>::N <= n) {
        ot_store(row + first, pack);
        return;
    }
#pragma unroll
    for (int i = 0; i < ot_pack<T>::N; i++)
        if (first + i < n)
            row[first + i] = ot_from_float<T>(pack.v[i]);
}

/* Loads the N fp32 values that belong to a pack of T, in one or two accesses. */
template <bool ALIGNED, class T>
__device__ __forceinline__ ot_pack<T> ot_row_load_floats(const float *row, int index, int n) {
    constexpr int PARTS = ot_pack<T>::N / ot_pack<float>::N;
    ot_pack<T> pack;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        ot_pack<float> four = ot_row_load<ALIGNED>(row, index * PARTS + part, n);
#pragma unroll
        for (int i = 0; i < ot_pack<float>::N; i++)
            pack.v[part * ot_pack<float>::N + i] = four.v[i];
    }
    return pack;
}

template <bool ALIGNED, class T>
__device__ __forceinline__ void ot_row_store_floats(float *row, int index, int n, const ot_pack<T> &pack) {
    constexpr int PARTS = ot_pack<T>::N / ot_pack<float>::N;
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        ot_pack<float> four;
#pragma unroll
        for (int i = 0; i < ot_pack<float>::N; i++)
            four.v[i] = pack.v[part * ot_pack<float>::N + i];
        ot_row_store<ALIGNED>(row, index * PARTS + part, n, four);
    }
}

/* Offset of row r of a norm (kernels/ops.h, struct ot_norm). row and group must fit 31 bits. */
__device__ __forceinline__ int64_t ot_norm_offset(int64_t row, int64_t group, int64_t ld, int64_t cols) {
    if (group == 1)
        return row * ld;
    uint32_t r = (uint32_t)row, g = (uint32_t)group; /* a 64-bit division would cost as much as a short row */
    return (int64_t)(r / g) * ld + (int64_t)(r % g) * cols;
}

/* The numbers that multiply pack `index` of a norm's row: the weights, or 1 + the weights. Adding -0
 * changes no weight, nor the sign of a 0. */
template <bool ALIGNED, class T>
__device__ __forceinline__ ot_pack<T> ot_norm_weight(const void *weight, bool adds_one, int index, int cols) {
    ot_pack<T> pack = ot_row_load<ALIGNED>(static_cast<const T *>(weight), index, cols);
    float more = adds_one ? 1.0f : -0.0f;
#pragma unroll
    for (int i = 0; i < ot_pack<T>::N; i++)
        pack.v[i] += more;
    return pack;
}

/* ---- teams: the threads that share a row ---- */

/* A team is a part of a warp (a power of two) or a whole block. */
struct ot_team {
    int size, rank, index,
        /* threads of a team; this thread's place in it; this team's place in the block; teams of the block */
        count;
};

__device__ __forceinline__ struct ot_team ot_team_here(int size) {
    return {size, (int)threadIdx.x % size, (int)threadIdx.x / size, (int)blockDim.x / size};
}

/* Every thread of the team gets the sum. All threads of the block must call. room: as for ot_block_sum. */
__device__ __forceinline__ float ot_team_sum(const struct ot_team &team, float x, float *room) {
    if (team.size > OT_WARP)
        return ot_block_sum(x, room);
    for (int offset = team.size / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

/* N sums at once, each in the order of ot_team_sum, with the barriers of one. room: as for ot_block_sum, N
 * times. */
template <int N>
__device__ __forceinline__ void ot_team_sums(const struct ot_team &team, float (&x)[N], float *room) {
    int lane = (int)threadIdx.x % OT_WARP, size = team.size < OT_WARP ? team.size : OT_WARP;
    for (int offset = size / 2; offset > 0; offset /= 2)
#pragma unroll
        for (int i = 0; i < N; i++)
            x[i] += __shfl_xor_sync(0xffffffffu, x[i], offset);
    if (team.size <= OT_WARP)
        return;
#pragma unroll
    for (int i = 0; i < N; i++)
        if (lane == 0)
            room[i * OT_WARP + (int)threadIdx.x / OT_WARP] = x[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N; i++)
        x[i] = ot_warp_sum(lane < (int)blockDim.x / OT_WARP ? room[i * OT_WARP + lane] : 0.0f);
    __syncthreads();
}

enum { OT_TEAM_LARGE_BLOCK = 512 };

struct ot_team_shape {
    int team, block; /* in threads */
};

/* A row of up to 64 packs (a head's norm: 64 to 256 values) gets a warp or less, so that a block has many
 * rows. A longer row gets a block of its own, with two packs or more for each thread. */
static inline struct ot_team_shape ot_team_shape(int64_t packs) {
    enum { WARP_PACKS = 64, SMALL_BLOCK = 256 };
    if (packs > WARP_PACKS) {
        int block = OT_TEAM_LARGE_BLOCK;
        if (packs < 2 * OT_TEAM_LARGE_BLOCK)
            block = (int)ot_ceil_div(packs, 2 * OT_WARP) * OT_WARP;
        return {block, block};
    }
    int team = 1;
    while (team < packs && team < OT_WARP)
        team *= 2;
    return {team, SMALL_BLOCK};
}

/* ---- sums of columns ---- */

/* Sums of columns over many rows. A kernel sums chunks of rows into partial sums in the scratch; then
 * ot_column_join adds the chunks. The number of rows in a chunk depends on the shape alone. Chunks are added
 * in groups: the chunks of a group in order, then the groups, in order, to the output. The scratch must hold
 * whole groups but not all chunks. Chunks are computed and added in as many rounds as the scratch needs; the
 * number of rounds changes no bit.
 */
struct ot_column_plan {
    int64_t chunk_rows, chunks; /* chunks: for all rows */
    int group;                  /* chunks of a group */
    int64_t round;              /* chunks whose partial sums fit the scratch: whole groups, or all chunks */
};

/* arrays: the number of partial sums of `cols` floats per chunk. A chunk has at least min_rows rows, and
 * there are at most max_chunks chunks. cudaErrorInvalidValue: not even one chunk fits the smallest
 * scratch. */
cudaError_t ot_column_plan(int64_t rows, int64_t cols, int arrays, int64_t min_rows, int64_t max_chunks,
                           const struct ot_cuda_stream *on, struct ot_column_plan *out);

/* out[cols] += the sums of the first cols columns of partial[chunks, ld], in the order described above. */
cudaError_t ot_column_join(const float *partial, int64_t ld, int64_t chunks, int group, int64_t cols,
                           float *out, const struct ot_cuda_stream *on);

#endif

/* What the kernels share whose work is by rows: a row's packs, teams of threads, partial sums of columns.
 *
 * A row is cut into packs of 16 bytes, whatever its length and alignment; pack p belongs to thread p mod
 * (threads of the team). Where 16-byte accesses are impossible the same thread takes the same values one by
 * one, so that the order of a sum depends on the shape and the dtype alone, never on where the row lies.
 */
#ifndef OT_KERNELS_CUDA_ROWS_CUH
#define OT_KERNELS_CUDA_ROWS_CUH

#include "kernels/cuda/kernel.cuh"

/* ---- packs of a row ---- */

/* Whether rows of `bytes`-wide values, ld apart, all begin at 16-byte borders. */
static inline bool ot_rows_aligned(const void *first, int64_t ld, size_t bytes) {
    return (uintptr_t)first % 16 == 0 && ld * (int64_t)bytes % 16 == 0;
}

/* Pack `index` of a row of n values; zeros beyond the end. ALIGNED: the row begins at a 16-byte border. */
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

/* The fp32 values that belong to a pack of T: N of them, in one or two accesses. */
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

/* Where row r of a norm begins (kernels/ops.h, struct ot_norm). Rows and group fit 31 bits. */
__device__ __forceinline__ int64_t ot_norm_offset(int64_t row, int64_t group, int64_t ld, int64_t cols) {
    if (group == 1)
        return row * ld;
    uint32_t r = (uint32_t)row, g = (uint32_t)group; /* a 64-bit division costs as much as a short row */
    return (int64_t)(r / g) * ld + (int64_t)(r % g) * cols;
}

/* ---- teams: the threads that share a row ---- */

/* A part of a warp (a power of two) or a whole block. */
struct ot_team {
    int size, rank, index,
        count; /* threads in a team, this one's place; this team's place in the block, teams */
};

__device__ __forceinline__ struct ot_team ot_team_here(int size) {
    return {size, (int)threadIdx.x % size, (int)threadIdx.x / size, (int)blockDim.x / size};
}

/* Every thread of the team gets the sum; all threads of the block take part. room as for ot_block_sum. */
__device__ __forceinline__ float ot_team_sum(const struct ot_team &team, float x, float *room) {
    if (team.size > OT_WARP)
        return ot_block_sum(x, room);
    for (int offset = team.size / 2; offset > 0; offset /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, offset);
    return x;
}

enum { OT_TEAM_LARGE_BLOCK = 512 };

struct ot_team_shape {
    int team, block; /* threads */
};

/* Up to 64 packs (a head's norm: 64 to 256 values) a warp or less has a row, so that a block has many of
 * them; longer rows have a block of their own, with two packs or more for each thread. */
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

/* Column sums over many rows: a kernel sums chunks of rows into partial sums in the scratch, then this adds
 * the chunks. How many rows a chunk has depends on the shape alone. Chunks are added in groups: a group's
 * chunks in order, then the groups, in order, onto the output. The scratch need not hold all chunks, only
 * whole groups: they are made and added in as many rounds as it takes, which changes no bit.
 */
struct ot_column_plan {
    int64_t chunk_rows, chunks; /* of all rows */
    int group;                  /* chunks */
    int64_t round;              /* chunks whose partial sums fit the scratch: whole groups, or all */
};

/* arrays: partial sums of `cols` floats that a chunk has. Chunks have at least min_rows rows; there are at
 * most max_chunks. Errors: not even one chunk would fit the smallest scratch. */
cudaError_t ot_column_plan(int64_t rows, int64_t cols, int arrays, int64_t min_rows, int64_t max_chunks,
                           const struct ot_cuda_stream *on, struct ot_column_plan *out);

/* out[cols] += partial[chunks, ld], of which the first cols of each row, as said above. */
cudaError_t ot_column_join(const float *partial, int64_t ld, int64_t chunks, int group, int64_t cols,
                           float *out, const struct ot_cuda_stream *on);

#endif

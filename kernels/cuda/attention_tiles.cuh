/* Tiles: what the tensor-core kernels of attention, forward and backward, are built from.
 *
 * A TILE is ROWS tokens of one head in shared memory, DIM two-byte elements each, with no padding between
 * rows. It is seen as chunks of 16 bytes (8 elements), since that is what cp.async writes and what a lane
 * of ldmatrix reads. A row has S = DIM / 8 chunks: 8, 10, 12, 16 or 32.
 *
 * SWIZZLE. Shared memory serves 128 bytes a clock when eight 16-byte accesses fall into different groups of
 * four banks, that is, when their chunk indices differ modulo 8. ldmatrix asks for chunk c of eight
 * consecutive rows, which unswizzled are S apart: for S = 8, 16 and 32 all in one group, eight clocks
 * instead of one. So chunk c of row r is kept at place c ^ k(r) of its row, with
 *
 *     P = gcd(S, 8)  (8, 2, 4, 8, 8)        k(r) = (r / (8 / P)) mod P
 *
 * Then its group is (r S + (c ^ k)) mod 8. Write c = u + v with v = c mod P: k < P flips bits of v only, so
 * the group is (r S + u) mod 8, a multiple of P, plus v ^ k, less than P. Of eight rows aligned to 8, those
 * with the same r mod (8 / P) have P different k, hence different second parts; the others differ in the
 * first, because S / P is odd. (S = 32 and 16 have P = 8 and S / P even, but then 8 / P = 1: the second
 * part alone tells all eight apart.) So no two meet. Writes too: eight successive lanes of a copy fill
 * eight successive chunks that begin at a multiple of P, and the swizzle only permutes within each P.
 *
 * Since k depends on r mod 8 alone, a lane's k is the same in every group of 8 rows; and it flips only bits
 * below P, so all but P / 2 of the addresses that a lane needs are these plus constants: immediate offsets
 * of the instructions.
 *
 * FRAGMENTS. A warp multiplies 16x8 pieces (ot_mma_16816: lane = 4 g + t). ot_tile_dots forms x y^T of the
 * rows of two tiles (queries and keys), ot_tile_weigh multiplies a result of that, rounded to two bytes in
 * registers, into the rows of a tile: a C fragment of two neighbouring 16x8 pieces holds exactly the
 * elements that the A fragment of their 16x16 needs, in the same lane (Dao, "FlashAttention-2", 2023,
 * section 3.3 has warps that own rows for this reason). Each ldmatrix.x4 of y or of the weighed tile feeds
 * 2 M products: with M = 2 (32 rows a warp) shared memory delivers 128 bytes for each 16x8x16 product, one
 * clock, where the tensor cores of an sm_80 take two for it.
 *
 * WHO SEES WHOM. Query i stands at key i + n_keys - n and sees keys [first, last] of ot_attention_keys;
 * neither bound ever decreases with i. So the keys that a block of queries needs are one range, from the
 * first of its first query to the last of its last, and a tile of keys needs no mask exactly when it lies
 * between the first of its last query and the last of its first.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_TILES_CUH
#define OT_KERNELS_CUDA_ATTENTION_TILES_CUH

#include <float.h>
#include <math.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/ptx.cuh"

#define OT_LOG2_E 1.4426950408889634f
#define OT_LN_2   0.6931471805599453f

/* ---- where things lie in a tile ---- */

template <int DIM>
struct ot_tile {
    static constexpr int CHUNKS = DIM / 8;
    static constexpr int P = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
    static_assert(DIM % 16 == 0, "a product takes 16 elements");

    __device__ static __forceinline__ int swizzle(int row) { return row / (8 / P) % P; }

    /* Offset, in elements, of a chunk. */
    __device__ static __forceinline__ int at(int row, int chunk) {
        return row * DIM + (chunk ^ swizzle(row)) * 8;
    }
};

/* Where one lane points ldmatrix: a row below 16 of some 16 rows, and the first or second of some two
 * chunks. */
template <int DIM>
struct ot_tile_lane {
    int row_at, flip;

    __device__ __forceinline__ ot_tile_lane(int row, int second)
        : row_at(row * DIM), flip(second ^ ot_tile<DIM>::swizzle(row)) {}

    /* Offset for the rows from `row`, a multiple of 8, and the chunks from `chunk`, even; both known when
     * compiled. */
    __device__ __forceinline__ int at(int row, int chunk) const {
        constexpr int P = ot_tile<DIM>::P;
        return row_at + row * DIM + chunk / P * P * 8 + (chunk % P ^ flip) * 8;
    }
};

/* Rows 0..15 x 16 elements as an A fragment; or, transposed, 16 rows x two pieces of 8 columns as two B
 * fragments. */
template <int DIM>
__device__ __forceinline__ ot_tile_lane<DIM> ot_tile_lane_a() {
    int lane = (int)threadIdx.x % OT_WARP;
    return {lane % 16, lane / 16};
}

/* 16 rows x 16 elements as the B fragments of two pieces of 8 columns: a row of the tile is a column of B. */
template <int DIM>
__device__ __forceinline__ ot_tile_lane<DIM> ot_tile_lane_b() {
    int lane = (int)threadIdx.x % OT_WARP;
    return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

/* Starts copies of rows [first, first + ROWS) of one head into a tile, by all THREADS of the block. from:
 * the head's part of token 0. Rows from `end` on become zeros and are not read. */
template <int ROWS, int DIM, int THREADS, class T>
__device__ __forceinline__ void ot_tile_copy(T *tile, const T *from, int64_t ld, int first, int end) {
    constexpr int CHUNKS = ot_tile<DIM>::CHUNKS;
    static_assert(ROWS * CHUNKS % THREADS == 0, "every thread copies as many chunks");
#pragma unroll
    for (int i = 0; i < ROWS * CHUNKS / THREADS; i++) {
        int index = (int)threadIdx.x + i * THREADS, row = index / CHUNKS, chunk = index % CHUNKS;
        ot_cp_async_16(tile + ot_tile<DIM>::at(row, chunk), from + (first + row) * ld + chunk * 8,
                       first + row < end);
    }
}

/* ---- products ---- */

template <int M, int N>
__device__ __forceinline__ void ot_tile_zero(float (&c)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                c[m][n][i] = 0.0f;
}

/* c += x y^T: the first 16 M rows at x (a warp's own) with the first 8 N rows at y, over DIM. */
template <int DIM, int M, int N, class T>
__device__ __forceinline__ void ot_tile_dots(float (&c)[M][N][4], const T *x, const T *y) {
    static_assert(N % 2 == 0, "fragments of y come in pairs");
    const ot_tile_lane<DIM> a_lane = ot_tile_lane_a<DIM>(), b_lane = ot_tile_lane_b<DIM>();
#pragma unroll
    for (int k = 0; k < DIM / 8; k += 2) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            ot_ldmatrix_x4(a[m], x + a_lane.at(16 * m, k));
#pragma unroll
        for (int n = 0; n < N; n += 2) {
            uint32_t b[4];
            ot_ldmatrix_x4(b, y + b_lane.at(8 * n, k));
#pragma unroll
            for (int m = 0; m < M; m++) {
                ot_mma_16816<T>(c[m][n], a[m], b[0], b[1]);
                ot_mma_16816<T>(c[m][n + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* The A fragment of 16x16 from the C fragments of its two halves, rounded. */
template <class T>
__device__ __forceinline__ void ot_tile_round(uint32_t (&a)[4], const float (&left)[4],
                                              const float (&right)[4]) {
    a[0] = ot_pack_two<T>(left[0], left[1]);
    a[1] = ot_pack_two<T>(left[2], left[3]);
    a[2] = ot_pack_two<T>(right[0], right[1]);
    a[3] = ot_pack_two<T>(right[2], right[3]);
}

/* sum += p z: weights p of 16 M rows (a warp's own), rounded to T, with the first 8 N rows at z. */
template <int DIM, int M, int N, class T>
__device__ __forceinline__ void ot_tile_weigh(float (&sum)[M][DIM / 8][4], const float (&p)[M][N][4],
                                              const T *z) {
    static_assert(N % 2 == 0, "a product takes 16 rows of z");
    const ot_tile_lane<DIM> lane = ot_tile_lane_a<DIM>();
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            ot_tile_round<T>(a[m], p[m][n], p[m][n + 1]);
#pragma unroll
        for (int d = 0; d < DIM / 8; d += 2) {
            uint32_t b[4];
            ot_ldmatrix_x4_trans(b, z + lane.at(8 * n, d));
#pragma unroll
            for (int m = 0; m < M; m++) {
                ot_mma_16816<T>(sum[m][d], a[m], b[0], b[1]);
                ot_mma_16816<T>(sum[m][d + 1], a[m], b[2], b[3]);
            }
        }
    }
}

/* Over the four lanes that share rows of a C fragment. */
__device__ __forceinline__ float ot_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float ot_quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* ---- who sees whom ---- */

/* Keys first..last. A query beyond the end sees none: first > last. */
struct ot_attention_span {
    int first, last;
};

__device__ __forceinline__ ot_attention_span ot_attention_keys(const struct ot_attention &op, int query) {
    if (query >= op.n)
        return {INT32_MAX, -1};
    int last = query + (int)(op.n_keys - op.n), first = op.row_start[query];
    if (op.window > 0 && op.window <= last)
        first = first > last + 1 - (int)op.window ? first : last + 1 - (int)op.window;
    return {first, last};
}

/* Calls f(T(), ot_head_dim<DIM>()) for what ot_attention_is_tiled accepts. */
template <int DIM>
struct ot_head_dim {
    static constexpr int value = DIM;
};

template <class F>
cudaError_t ot_attention_dispatch(const struct ot_attention *op, F f) {
    auto with = [&](auto dim) { return op->dtype == OT_BF16 ? f(__nv_bfloat16(), dim) : f(__half(), dim); };
    switch (op->head_dim) {
    case 64:
        return with(ot_head_dim<64>());
    case 80:
        return with(ot_head_dim<80>());
    case 96:
        return with(ot_head_dim<96>());
    case 128:
        return with(ot_head_dim<128>());
    case 256:
        return with(ot_head_dim<256>());
    }
    return cudaErrorInvalidValue;
}

#endif

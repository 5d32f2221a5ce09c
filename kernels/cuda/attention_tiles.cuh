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

/* threadIdx.x. What a tile's loads and copies make of it they shall make of it anew each time: it is a few
 * instructions, and the registers that it would stay in are the fragments'. So the compiler must not know
 * it. */
__device__ __forceinline__ unsigned ot_thread() {
    unsigned thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

__device__ __forceinline__ int ot_lane() {
    return (int)(ot_thread() % OT_WARP);
}

/* ---- where things lie in a tile ---- */

template <int DIM>
struct ot_tile {
    static constexpr int CHUNKS = DIM / 8;
    static constexpr int P = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
    static_assert(DIM % 16 == 0, "a product takes 16 elements");

    __device__ static __forceinline__ int swizzle(int row) { return row / (8 / P) % P; }

    /* The order in which a sum over DIM takes its pieces of 16 elements: those whose chunks have the same
     * place modulo P, so that they share an address in each tile, follow each other. */
    __device__ static constexpr int piece(int i) {
        constexpr int SHARING = CHUNKS / P;
        return i % SHARING * (P / 2) + i / SHARING;
    }

    /* Offset, in elements, of a chunk. */
    __device__ static __forceinline__ int at(int row, int chunk) {
        return row * DIM + (chunk ^ swizzle(row)) * 8;
    }
};

/* Where one lane points ldmatrix: a row below 16 of some 16 rows, and the first or second of some two
 * chunks. */
template <int DIM>
struct ot_tile_lane {
    int first; /* in rows from 0, chunks from 0 */

    __device__ __forceinline__ ot_tile_lane(int row, int second) : first(ot_tile<DIM>::at(row, second)) {}

    /* For the rows from `row`, a multiple of 8, and the chunks from `chunk`, even; both known when
     * compiled. */
    template <class T>
    __device__ __forceinline__ const T *at(const T *tile, int row, int chunk) const {
        constexpr int P = ot_tile<DIM>::P;
        return tile + (first ^ chunk % P * 8) + (row * DIM + chunk / P * P * 8);
    }
};

/* Rows 0..15 x 16 elements as an A fragment; or, transposed, 16 rows x two pieces of 8 columns as two B
 * fragments. */
template <int DIM>
__device__ __forceinline__ ot_tile_lane<DIM> ot_tile_lane_a() {
    int lane = ot_lane();
    return {lane % 16, lane / 16};
}

/* 16 rows x 16 elements as the B fragments of two pieces of 8 columns: a row of the tile is a column of B. */
template <int DIM>
__device__ __forceinline__ ot_tile_lane<DIM> ot_tile_lane_b() {
    int lane = ot_lane();
    return {lane % 8 + lane / 16 * 8, lane / 8 % 2};
}

/* Which chunks a thread copies: of rows `row`, `row` + ROWS, ... those at `column`, `column` + P, ... Its
 * swizzle is the same in all of them, so that one offset in shared memory and one address per row serve,
 * the rest being constants. */
template <int DIM, int THREADS>
struct ot_tile_share {
    static constexpr int P = ot_tile<DIM>::P, ROWS = THREADS / P;
    static_assert(ROWS % 8 == 0, "one swizzle for all rows of a thread");
    int row, column, row_at;

    __device__ __forceinline__ ot_tile_share(unsigned thread)
        : row((int)(thread / P)), column((int)(thread % P)), row_at(ot_tile<DIM>::at(row, column)) {}
};

/* Starts copies of rows [first, first + ROWS) of one head into a tile, by all THREADS of the block. from:
 * the head's part of token 0. Rows from `end` on become zeros and are not read. */
template <int ROWS, int DIM, int THREADS, class T>
__device__ __forceinline__ void ot_tile_copy(T *tile, const T *from, int64_t ld, int first, int end) {
    using S = ot_tile_share<DIM, THREADS>;
    static_assert(ROWS % S::ROWS == 0, "every thread copies as many rows");
    const S share(ot_thread());
    const T *row_from = from + (first + share.row) * ld + share.column * 8;
    tile += share.row_at;
#pragma unroll
    for (int row = 0; row < ROWS; row += S::ROWS) {
#pragma unroll
        for (int chunk = 0; chunk < ot_tile<DIM>::CHUNKS; chunk += S::P)
            ot_cp_async_16(tile + row * DIM + chunk * 8, row_from + chunk * 8, first + share.row + row < end);
        row_from += S::ROWS * ld;
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

/* The A fragments of 16 M rows at x, of all their elements. */
template <int DIM, int M, class T>
__device__ __forceinline__ void ot_tile_load(uint32_t (&a)[DIM / 16][M][4], const T *x) {
    const ot_tile_lane<DIM> lane = ot_tile_lane_a<DIM>();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
#pragma unroll
        for (int m = 0; m < M; m++)
            ot_ldmatrix_x4(a[k][m], lane.at(x, 16 * m, 2 * k));
}

/* c += a y^T over 16 of the DIM elements, those from chunk 2 k on; 8 N rows at y. */
template <int DIM, int M, int N, class T>
__device__ __forceinline__ void ot_tile_dots_step(float (&c)[M][N][4], const uint32_t (&a)[M][4], const T *y,
                                                  const ot_tile_lane<DIM> &lane, int k) {
    static_assert(N % 2 == 0, "fragments of y come in pairs");
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t b[4];
        ot_ldmatrix_x4(b, lane.at(y, 8 * n, 2 * k));
#pragma unroll
        for (int m = 0; m < M; m++) {
            ot_mma_16816<T>(c[m][n], a[m], b[0], b[1]);
            ot_mma_16816<T>(c[m][n + 1], a[m], b[2], b[3]);
        }
    }
}

/* c += x y^T: 16 M rows (a warp's own), loaded before, with the first 8 N rows at y. */
template <int DIM, int M, int N, class T>
__device__ __forceinline__ void ot_tile_dots(float (&c)[M][N][4], const uint32_t (&x)[DIM / 16][M][4],
                                             const T *y) {
    const ot_tile_lane<DIM> b_lane = ot_tile_lane_b<DIM>();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        ot_tile_dots_step<DIM>(c, x[ot_tile<DIM>::piece(i)], y, b_lane, ot_tile<DIM>::piece(i));
}

/* The same with the first 16 M rows at x. */
template <int DIM, int M, int N, class T>
__device__ __forceinline__ void ot_tile_dots(float (&c)[M][N][4], const T *x, const T *y) {
    const ot_tile_lane<DIM> a_lane = ot_tile_lane_a<DIM>(), b_lane = ot_tile_lane_b<DIM>();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        const int k = ot_tile<DIM>::piece(i);
        uint32_t a[M][4];
#pragma unroll
        for (int m = 0; m < M; m++)
            ot_ldmatrix_x4(a[m], a_lane.at(x, 16 * m, 2 * k));
        ot_tile_dots_step<DIM>(c, a, y, b_lane, k);
    }
}

/* The A fragments, rounded to T, of what C fragments hold: p[m][i] are the 16x16 of c[m][2 i] and c[m][2 i
 * + 1]. */
template <class T, int M, int N>
__device__ __forceinline__ void ot_tile_round(uint32_t (&p)[M][N / 2][4], const float (&c)[M][N][4]) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            p[m][n / 2][n % 2 * 2] = ot_pack_two<T>(c[m][n][0], c[m][n][1]);
            p[m][n / 2][n % 2 * 2 + 1] = ot_pack_two<T>(c[m][n][2], c[m][n][3]);
        }
}

/* sum += p z: weights of 16 M rows (a warp's own) with the first 16 K rows at z. */
template <int DIM, int M, int K, class T>
__device__ __forceinline__ void ot_tile_weigh(float (&sum)[M][DIM / 8][4], const uint32_t (&p)[M][K][4],
                                              const T *z) {
    const ot_tile_lane<DIM> lane = ot_tile_lane_a<DIM>();
#pragma unroll
    for (int k = 0; k < K; k++)
#pragma unroll
        for (int d = 0; d < DIM / 8; d += 2) {
            uint32_t b[4];
            ot_ldmatrix_x4_trans(b, lane.at(z, 16 * k, d));
#pragma unroll
            for (int m = 0; m < M; m++) {
                ot_mma_16816<T>(sum[m][d], p[m][k], b[0], b[1]);
                ot_mma_16816<T>(sum[m][d + 1], p[m][k], b[2], b[3]);
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

/* Training shape (n_keys = n): the end of the queries that see a key of [begin, end). They are those from
 * `begin` on whose first key lies before `end`. A warp searches together, 32 places at a time; all of it
 * must call. */
__device__ __forceinline__ int ot_attention_end_query(const struct ot_attention &op, int begin, int end) {
    int low = begin, high = (int)op.n; /* `low` sees one: itself */
    for (;;) {
        int step = (high - low + OT_WARP - 1) / OT_WARP, query = low + ot_lane() * step;
        bool sees = query < high && ot_attention_keys(op, query).first < end;
        int seeing = __popc(__ballot_sync(0xffffffffu, sees));
        if (step == 1)
            return low + seeing;
        high = min(high, low + seeing * step);
        low += (seeing - 1) * step;
    }
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

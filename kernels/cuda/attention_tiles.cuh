/* Tiles: the parts that the tensor-core kernels of attention, forward and backward, are built from.
 *
 * A TILE is ROWS tokens of one head in shared memory, DIM two-byte elements each, with no padding between
 * rows. Each row is divided into chunks of 16 bytes (8 elements), because cp.async writes one chunk and each
 * lane of ldmatrix reads one chunk. A row has S = DIM / 8 chunks: 8, 10, 12, 16 or 32.
 *
 * SWIZZLE. Shared memory serves 128 bytes a clock when eight 16-byte accesses fall into different groups of
 * four banks. That is so when their chunk indices differ modulo 8. ldmatrix asks for chunk c of eight
 * consecutive rows, which are S chunks apart without a swizzle. For S = 8, 16 and 32 they all fall into one
 * group, which takes eight clocks instead of one. So chunk c of row r is stored at place c ^ k(r) of its row,
 * with
 *
 *     P = gcd(S, 8)  (8, 2, 4, 8, 8)        k(r) = (r / (8 / P)) mod P
 *
 * Then its group is (r S + (c ^ k)) mod 8. Write c = u + v with v = c mod P. k < P flips bits of v only, so
 * the group is (r S + u) mod 8, a multiple of P, plus v ^ k, which is less than P. Of eight rows aligned to
 * 8, the rows with the same r mod (8 / P) have P different k, so their second parts differ. The others differ
 * in the first part, because S / P is odd. (S = 32 and 16 have P = 8 and S / P even, but then 8 / P = 1: the
 * second part alone distinguishes all eight.) So no two accesses meet. The same holds for writes: eight
 * successive lanes of a copy fill eight successive chunks that begin at a multiple of P, and the swizzle only
 * permutes within each P.
 *
 * k depends on r mod 8 alone, so a lane's k is the same in every group of 8 rows. k also flips only bits
 * below P. So all but P / 2 of the addresses that a lane needs are these plus constants: immediate offsets of
 * the instructions.
 *
 * FRAGMENTS. A warp multiplies 16x8 pieces (ot_mma_16816: lane = 4 g + t). ot_tile_dots computes x y^T of the
 * rows of two tiles (queries and keys). ot_tile_weigh multiplies such a result, rounded to two bytes in
 * registers, with the rows of a tile. No exchange between lanes is needed: a C fragment of two neighbouring
 * 16x8 pieces holds exactly the elements that the A fragment of their 16x16 needs, in the same lane. (In Dao,
 * "FlashAttention-2", 2023, section 3.3, warps own rows for this reason.) Each ldmatrix.x4 of y or of the
 * weighed tile feeds 2 M products. With M = 2 (32 rows a warp), shared memory delivers 128 bytes for each
 * 16x8x16 product, which takes one clock; the tensor cores of an sm_80 take two clocks for the product.
 *
 * WHICH KEYS A QUERY SEES. Query i is at key i + n_keys - n and sees the keys [first, last] of
 * ot_attention_keys. Neither bound ever decreases with i. So the keys that a block of queries needs are one
 * range, from `first` of its first query to `last` of its last query. A tile of keys needs no mask if and
 * only if it lies between `first` of the block's last query and `last` of its first query.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_TILES_CUH
#define OT_KERNELS_CUDA_ATTENTION_TILES_CUH

#include <float.h>
#include <math.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/ptx.cuh"

/* threadIdx.x, hidden from the compiler's optimizer. Loads and copies of a tile shall recompute the values
 * that they derive from it: that costs a few instructions. Otherwise the compiler keeps the values in
 * registers, which the fragments need. */
__device__ __forceinline__ unsigned ot_thread() {
    unsigned thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

__device__ __forceinline__ int ot_lane() {
    return (int)(ot_thread() % OT_WARP);
}

/* ---- addresses inside a tile ---- */

template <int DIM>
struct ot_tile {
    static constexpr int CHUNKS = DIM / 8;
    static constexpr int P = CHUNKS % 8 == 0 ? 8 : CHUNKS % 4 == 0 ? 4 : 2;
    static_assert(DIM % 16 == 0, "a product takes 16 elements");

    __device__ static __forceinline__ int swizzle(int row) { return row / (8 / P) % P; }

    /* The order in which a sum over DIM takes its pieces of 16 elements. Pieces whose chunks have the same
     * place modulo P share an address in each tile, so they follow each other. */
    __device__ static constexpr int piece(int i) {
        constexpr int SHARING = CHUNKS / P;
        return i % SHARING * (P / 2) + i / SHARING;
    }

    /* Offset of a chunk, in elements. */
    __device__ static __forceinline__ int at(int row, int chunk) {
        return row * DIM + (chunk ^ swizzle(row)) * 8;
    }
};

/* The address that one lane passes to ldmatrix: a row below 16 of any 16 rows, and the first or the second of
 * any two chunks. */
template <int DIM>
struct ot_tile_lane {
    int first; /* offset for row 0 and chunk 0 */

    __device__ __forceinline__ ot_tile_lane(int row, int second) : first(ot_tile<DIM>::at(row, second)) {}

    /* The address for the rows from `row` on (a multiple of 8) and the chunks from `chunk` on (even). Both
     * are compile-time constants. */
    template <class T>
    __device__ __forceinline__ const T *at(const T *tile, int row, int chunk) const {
        constexpr int P = ot_tile<DIM>::P;
        return tile + (first ^ chunk % P * 8) + (row * DIM + chunk / P * P * 8);
    }
};

/* 16 rows x 16 elements as an A fragment. Transposed: 16 rows x two pieces of 8 columns as two B
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

/* The chunks that one thread copies: of rows `row`, `row` + ROWS, ... the chunks at `column`, `column` + P,
 * ... All of them have the same swizzle, so one offset in shared memory and one address per row suffice; the
 * rest are constants. */
template <int DIM, int THREADS>
struct ot_tile_share {
    static constexpr int P = ot_tile<DIM>::P, ROWS = THREADS / P;
    static_assert(ROWS % 8 == 0, "one swizzle for all rows of a thread");
    int row, column, row_at;

    __device__ __forceinline__ ot_tile_share(unsigned thread)
        : row((int)(thread / P)), column((int)(thread % P)), row_at(ot_tile<DIM>::at(row, column)) {}
};

/* Starts copies of rows [first, first + ROWS) of one head into a tile. All THREADS of the block take part.
 * from: the head's part of token 0. Rows for which is_read(row) is false become zeros and are not read. */
template <int ROWS, int DIM, int THREADS, class T, class F>
__device__ __forceinline__ void ot_tile_copy_some(T *tile, const T *from, int64_t ld, int first, F is_read) {
    using S = ot_tile_share<DIM, THREADS>;
    static_assert(ROWS % S::ROWS == 0, "every thread copies as many rows");
    const S share(ot_thread());
    const T *row_from = from + (first + share.row) * ld + share.column * 8;
    tile += share.row_at;
#pragma unroll
    for (int row = 0; row < ROWS; row += S::ROWS) {
        const bool valid = is_read(first + share.row + row);
#pragma unroll
        for (int chunk = 0; chunk < ot_tile<DIM>::CHUNKS; chunk += S::P)
            ot_cp_async_16(tile + row * DIM + chunk * 8, row_from + chunk * 8, valid);
        row_from += S::ROWS * ld;
    }
}

/* The same. Rows from `end` on become zeros and are not read. */
template <int ROWS, int DIM, int THREADS, class T>
__device__ __forceinline__ void ot_tile_copy(T *tile, const T *from, int64_t ld, int first, int end) {
    ot_tile_copy_some<ROWS, DIM, THREADS>(tile, from, ld, first, [&](int row) { return row < end; });
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

/* Loads the A fragments of the 16 M rows at x, all elements. */
template <int DIM, int M, class T>
__device__ __forceinline__ void ot_tile_load(uint32_t (&a)[DIM / 16][M][4], const T *x) {
    const ot_tile_lane<DIM> lane = ot_tile_lane_a<DIM>();
#pragma unroll
    for (int k = 0; k < DIM / 16; k++)
#pragma unroll
        for (int m = 0; m < M; m++)
            ot_ldmatrix_x4(a[k][m], lane.at(x, 16 * m, 2 * k));
}

/* c += a y^T over 16 of the DIM elements, starting at chunk 2 k; y has 8 N rows. */
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

/* c += x y^T: x is 16 M rows (a warp's own) in registers, y is the first 8 N rows at y. */
template <int DIM, int M, int N, class T>
__device__ __forceinline__ void ot_tile_dots(float (&c)[M][N][4], const uint32_t (&x)[DIM / 16][M][4],
                                             const T *y) {
    const ot_tile_lane<DIM> b_lane = ot_tile_lane_b<DIM>();
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        ot_tile_dots_step<DIM>(c, x[ot_tile<DIM>::piece(i)], y, b_lane, ot_tile<DIM>::piece(i));
}

/* Like the function above, with the first 16 M rows at x in shared memory. */
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

/* Rounds C fragments to T and returns them as A fragments: p[m][i] is the 16x16 of c[m][2 i] and c[m][2 i +
 * 1]. */
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

/* sum += p z: p are weights of 16 M rows (a warp's own), z is the first 16 K rows at z. */
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

/* ---- rows ---- */

/* The maximum over the four lanes that share rows of a C fragment. */
__device__ __forceinline__ float ot_quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
__device__ __forceinline__ float ot_quad_sum(float x) {
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

/* ---- which keys a query sees ---- */

/* Keys first..last. A query beyond the end sees no key: first > last. */
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

/* The number of keys before that of query 0, hidden from the compiler's optimizer like ot_thread(): loops
 * compute it again, because they have no register for it. */
__device__ __forceinline__ int ot_attention_past(const struct ot_attention &op) {
    int past = (int)(op.n_keys - op.n);
    asm volatile("" : "+r"(past));
    return past;
}

/* The first query at or behind a key. */
__device__ __forceinline__ int ot_attention_first_query(const struct ot_attention &op, int key) {
    return max(key - ot_attention_past(op), 0);
}

/* The end of the queries that see a key of [begin, end). They are the queries at or behind `begin` whose
 * first key is before `end`. If there is none, this is ot_attention_first_query(op, begin). A warp searches
 * together, 32 places at a time, so all its lanes must call. */
__device__ __forceinline__ int ot_attention_end_query(const struct ot_attention &op, int begin, int end) {
    int low = ot_attention_first_query(op, begin), high = (int)op.n;
    for (;;) { /* query `low` sees a key, if any query does */
        int step = (high - low + OT_WARP - 1) / OT_WARP, query = low + ot_lane() * step;
        bool sees = query < high && ot_attention_keys(op, query).first < end;
        int seeing = __popc(__ballot_sync(0xffffffffu, sees));
        if (step == 1 || seeing == 0)
            return low + seeing;
        high = min(high, low + seeing * step);
        low += (seeing - 1) * step;
    }
}

/* ---- sections of rows ---- */

/* Adds the stored sums of a section (ot_attention_backward) to a warp's rows of dk or dv, which begin with
 * key `first`. Stores the rows of keys before the section again. sums: those of the kv head. */
template <int M, int D>
__device__ __forceinline__ void ot_tile_add_stored(float (&sum)[M][D][4], float *sums,
                                                   const struct ot_attention &op, int first) {
    const int64_t ld = op.kv_heads * (8 * D);
    const int lane = ot_lane();
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int key = first + lane / 4 + 16 * m + 8 * r;
            if (key >= op.n_keys)
                continue;
            float2 *stored = reinterpret_cast<float2 *>(sums + key * ld + lane % 4 * 2);
#pragma unroll
            for (int d = 0; d < D; d++) {
                float2 total = stored[4 * d];
                total.x += sum[m][d][2 * r];
                total.y += sum[m][d][2 * r + 1];
                sum[m][d][2 * r] = total.x;
                sum[m][d][2 * r + 1] = total.y;
                if (key < ot_attention_past(op))
                    stored[4 * d] = total;
            }
        }
}

/* Calls f(T(), ot_head_dim<DIM>()) for the types and head sizes that ot_attention_is_tiled accepts. */
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

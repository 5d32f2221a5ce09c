/* Attention backward on tensor cores. With p = exp(score - lse) and delta = dot(out, dout), for each pair of
 * query and key:
 *
 *     dv += p dout          ds = p (dout.v - delta) scale          dq += ds k          dk += ds q
 *
 * (Dao, "FlashAttention-2", 2023, section 3.1.2). With a softcap, ds has one more factor, the derivative of
 * the score (attention_score.cuh). A sink changes p through lse alone; attention_sinks.cu computes its own
 * gradient. p and ds are rounded to the two-byte type before they are multiplied. Everything else between
 * loads and stores is fp32.
 *
 * TWO PASSES. Gradients of keys are sums over queries; gradients of queries are sums over keys. A kernel that
 * walks over the tiles once can keep one of the two sums in registers. It must add the other in memory, tile
 * by tile. It could use atomics, but their order changes from run to run. Or blocks could take turns, but
 * then every block waits for its predecessor, and an fp32 dq of n * heads * head_dim is needed beside the
 * bf16 one; the contract's scratch has n * heads floats. So there are two kernels, as on the cpu device. One
 * owns queries and sums dq. The other owns keys and sums dk and dv over the queries and, in order, over the
 * heads that share the keys. Both recompute scores and dout.v: 3 and 4 products, 7 instead of the 5 of one
 * pass, that is 14 instead of 10 head_dim operations per visible pair. At head_dim 256 a warp's registers
 * cannot hold both dk and dv. The kernel of keys is then launched once for each, which makes 8 products.
 *
 * The results depend on the arguments alone: each sum has one owner, which adds its pairs sixteen at a time
 * in ascending order, whatever the sizes below.
 *
 * A BLOCK's warps own 16 M rows each. The block's two tiles of owned rows (q and dout, or k and v) stay in
 * shared memory. The two tiles of the other side come through a ring of stages. Owned rows are the rows of
 * the score fragments, also in the kernel of keys, where the scores are therefore transposed. So p and ds,
 * rounded in the registers that hold them, are the left operands of the sums (attention_tiles.cuh), and
 * shared memory holds the inputs only.
 *
 * INVISIBLE TILES are skipped. The queries of a block need the keys from the first key of the block's first
 * query to the last key of its last query. The keys of a block are seen by the queries from the block itself
 * on, up to the first query whose row begins after the block. Inside a visited tile, pairs that do not see
 * each other get p = ds = 0. (A NaN there spreads through its tile, no further.)
 */
#include <type_traits>

#include "kernels/cuda/attention_score.cuh"
#include "kernels/cuda/attention_tiles.cuh"

/* ---- delta ---- */

/* Eight threads compute each dot product, with 16-byte accesses if the rows are aligned for that. */
template <class T, bool PACKED>
__global__ void attention_delta(const struct ot_attention_backward op) {
    constexpr int N = PACKED ? ot_pack<T>::N : 1;
    const struct ot_attention &f = op.forward;
    int64_t row = (int64_t)(blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8);
    int64_t query = row / f.heads, head = row % f.heads;
    float sum = 0.0f;
    if (query < f.n) {
        int64_t at = query * f.ldo + head * f.head_dim;
        const T *out = static_cast<const T *>(f.out) + at, *dout = static_cast<const T *>(op.dout) + at;
        for (int d = (int)(threadIdx.x % 8) * N; d < f.head_dim; d += 8 * N) {
            if constexpr (PACKED) {
                ot_pack<T> a = ot_load(out + d), b = ot_load(dout + d);
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum = fmaf(a.v[i], b.v[i], sum);
            } else {
                sum = fmaf(ot_to_float(out[d]), ot_to_float(dout[d]), sum);
            }
        }
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (query < f.n && threadIdx.x % 8 == 0)
        op.scratch[head * f.n + query] = sum;
}

static cudaError_t launch_delta(const struct ot_attention_backward *op, const struct ot_cuda_stream *on) {
    enum { THREADS = 256 };
    const struct ot_attention *f = &op->forward;
    dim3 grid((unsigned)ot_ceil_div(f->n * f->heads, THREADS / 8));
    return ot_dispatch(f->dtype, [&](auto zero) {
        using T = decltype(zero);
        bool packed = ot_is_packable(static_cast<const T *>(f->out), f->ldo, f->head_dim) &&
                      ot_is_packable(static_cast<const T *>(op->dout), f->ldo, f->head_dim);
        return ot_launch(packed ? attention_delta<T, true> : attention_delta<T, false>, grid, dim3(THREADS),
                         0, on->stream, *op);
    });
}

/* ---- sizes ---- */

/* A block has WARPS warps with 16 M rows each; a tile of the other side has 8 N rows. */
template <int HEAD_DIM, int M_, int N_, int WARPS_>
struct backward_shape {
    static constexpr int DIM = HEAD_DIM, M = M_, N = N_, WARPS = WARPS_, THREADS = WARPS * OT_WARP;
    static constexpr int OWNED = WARPS * 16 * M, VISITED = 8 * N;
    static constexpr int BLOCKS = 8 / WARPS; /* blocks per multiprocessor: together they use all registers */
    static constexpr int OWNED_BYTES = 2 * OWNED * DIM * 2, STAGE_BYTES = 2 * VISITED * DIM * 2;
    /* Threads that copy a visited tile: no more than the tile has pieces. */
    static constexpr int PIECES = VISITED * ot_tile<DIM>::P, COPIERS = THREADS < PIECES ? THREADS : PIECES;
};

/* SMALL: fits the 64 KiB of shared memory of sm_75. */
template <int DIM, bool SMALL>
using queries_shape = backward_shape<DIM, DIM == 64 || (DIM <= 128 && !SMALL) ? 2 : 1,
                                     DIM == 256 && SMALL ? 2 : 4, DIM == 256 && SMALL ? 2 : 4>;
/* At head_dim 64, a tile of 32 queries would make the compiler spill registers. */
template <int DIM, bool SMALL>
using keys_shape = backward_shape<DIM, DIM == 64 ? 2 : 1, DIM == 64 || (DIM == 256 && SMALL) ? 2 : 4,
                                  DIM == 256 ? (SMALL ? 2 : 4) : (DIM == 64 || SMALL ? 4 : 8)>;

/* ---- the ring of visited tiles ---- */

/* The two arrays that tiles are copied from, and their elements between tokens. The struct stays a kernel
 * argument, in constant memory, so it costs no registers. */
struct backward_source {
    const void *a, *b;
    int64_t lda, ldb;
};

/* Brings pairs of tiles (k and v, or q and dout) of rows [first, end) of some heads, one head after the
 * other, through `stages` slots of shared memory, as in the forward pass. With one stage, copying and
 * computing alternate. HEADS: more than one head. */
template <class T, class S, bool HEADS>
struct backward_ring {
    int stages, free_slot, first, end, row;
    int column, end_column; /* range of the heads that are not copied yet, in elements */

    __device__ __forceinline__ T *slot() const { /* the free slot, behind the owned tiles */
        return ot_shared<T>() + (2 * S::OWNED * S::DIM) + free_slot * (2 * S::VISITED * S::DIM);
    }

    __device__ __forceinline__ void copy_next(const backward_source &from) {
        if (HEADS ? column < end_column : row < end) {
            T *to = slot();
            if (S::COPIERS == S::THREADS || threadIdx.x < S::COPIERS) {
                ot_tile_copy<S::VISITED, S::DIM, S::COPIERS>(to, static_cast<const T *>(from.a) + column,
                                                             from.lda, row, end);
                ot_tile_copy<S::VISITED, S::DIM, S::COPIERS>(
                    to + S::VISITED * S::DIM, static_cast<const T *>(from.b) + column, from.ldb, row, end);
            }
            row += S::VISITED;
            if (HEADS && row >= end) {
                row = first;
                column += S::DIM;
            }
        }
        ot_cp_async_commit(); /* also an empty group, because ot_cp_async_wait counts groups */
        free_slot = free_slot + 1 == stages ? 0 : free_slot + 1;
    }

    /* Returns the next pair of tiles. All warps must call. The pair is valid until the next call. */
    __device__ __forceinline__ const T *next(const backward_source &from) {
        if (stages == 1) {
            __syncthreads();
            copy_next(from);
        }
        if (stages <= 2)
            ot_cp_async_wait<0>();
        else
            ot_cp_async_wait<1>();
        __syncthreads();
        if (stages > 1)
            copy_next(from);
        return slot();
    }
};

/* ---- scores ---- */

enum backward_sight { SEES_NONE, SEES_SOME, SEES_ALL };

/* How much of a tile is visible. any_first and all_first: the first key of the tile's first query and of its
 * last query. */
__device__ __forceinline__ backward_sight backward_look(int any_first, int all_first, int query, int queries,
                                                        int key, int keys) {
    if (query + queries - 1 < key || key + keys <= any_first)
        return SEES_NONE;
    return key + keys - 1 <= query && key >= all_first ? SEES_ALL : SEES_SOME;
}

/* query, key: of the lane's first element. Rows are queries. */
template <int M, int N>
__device__ __forceinline__ void backward_mask_rows(float (&s)[M][N][4], const struct ot_attention &op,
                                                   int query, int key) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            ot_attention_span seen = ot_attention_keys(op, query + 16 * m + 8 * r);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (key + 8 * n + i < seen.first || key + 8 * n + i > seen.last)
                        s[m][n][2 * r + i] = -INFINITY;
        }
}

/* Like backward_mask_rows, but columns are queries. */
template <int M, int N>
__device__ __forceinline__ void backward_mask_columns(float (&s)[M][N][4], const struct ot_attention &op,
                                                      int query, int key) {
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            ot_attention_span seen = ot_attention_keys(op, query + 8 * n + i);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int r = 0; r < 2; r++)
                    if (key + 16 * m + 8 * r < seen.first || key + 16 * m + 8 * r > seen.last)
                        s[m][n][2 * r + i] = -INFINITY;
        }
}

/* Values of a query: lse as an exponent of 2, and delta times the scale; 0 beyond the end. Each tile loads
 * them again, from the nearest cache: kept in registers, they would occupy them during products that need all
 * registers. */
__device__ __forceinline__ float backward_lse(const struct ot_attention &op, int head, int query) {
    return query < op.n ? op.lse[head * op.n + query] * OT_LOG2_E : 0.0f;
}
__device__ __forceinline__ float backward_delta(const struct ot_attention_backward &op, int head, int query) {
    const struct ot_attention &f = op.forward;
    return query < f.n ? op.scratch[head * f.n + query] * f.scale : 0.0f;
}

/* Multiplies each weight by the derivative of its capped score. The weight still tells its score: log2(p) +
 * lse, off by 2^-22 (|log2 p| + |lse|) at most. So no registers keep scores while the kernel of keys sums
 * dv. A weight of 0 stays 0. query: of the lane's first element; SIGN, distance: see ot_score_bend. */
template <int SIGN, int M, int N>
__device__ __forceinline__ void backward_cap(float (&p)[M][N][4], const struct ot_attention &op,
                                             const ot_score_scale &scale, int head, int query, int distance) {
    if (!(scale.cap > 0.0f))
        return;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float lse = backward_lse(op, head, query + (SIGN == 1 ? 16 * m + i / 2 * 8 : 8 * n + i % 2));
                float away = (float)distance + (float)ot_score_step<SIGN>(m, n, i);
                p[m][n][i] *= ot_score_slope(scale, ot_log2_approx(p[m][n][i]) + lse, away);
            }
}

/* Rounds and stores a warp's rows through `room`: the warp's own rows of a tile that no warp reads any more.
 * Row 0 goes to token `first`. */
template <class S, class T>
__device__ __forceinline__ void backward_store(T *to, int64_t ld, int first, int end,
                                               const float (&sum)[S::M][S::DIM / 8][4], T *room) {
    int lane = ot_lane(), row = lane / 4, column = lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++)
#pragma unroll
            for (int d = 0; d < S::DIM / 8; d++)
                *reinterpret_cast<uint32_t *>(room + ot_tile<S::DIM>::at(row + 16 * m + 8 * r, d) + column) =
                    ot_pack_two<T>(sum[m][d][2 * r], sum[m][d][2 * r + 1]);
    __syncwarp();
    constexpr int P = ot_tile<S::DIM>::P;
    for (int at = lane / P; at < 16 * S::M && first + at < end; at += OT_WARP / P)
#pragma unroll
        for (int chunk = lane % P; chunk < ot_tile<S::DIM>::CHUNKS; chunk += P)
            *reinterpret_cast<uint4 *>(to + (first + at) * ld + chunk * 8) =
                *reinterpret_cast<const uint4 *>(room + ot_tile<S::DIM>::at(at, chunk));
}

/* ---- dq ---- */

template <class T, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attention_backward_queries(const struct ot_attention_backward op, int stages) {
    const struct ot_attention &f = op.forward;
    /* The last queries see most keys, so the longest blocks start first. */
    int n = (int)f.n, blocks = (n + S::OWNED - 1) / S::OWNED, heads = (int)f.heads;
    int head = (int)blockIdx.x % heads, begin = (blocks - 1 - (int)blockIdx.x / heads) * S::OWNED;
    int kv_head = head / (heads / (int)f.kv_heads), end = begin + S::OWNED < n ? begin + S::OWNED : n;
    int warp_row = (int)(threadIdx.x / OT_WARP) * 16 * S::M, query = begin + warp_row;

    T *q = ot_shared<T>(), *dout = q + S::OWNED * S::DIM;
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(q, static_cast<const T *>(f.q) + head * S::DIM, f.ldq, begin,
                                               n);
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(dout, static_cast<const T *>(op.dout) + head * S::DIM, f.ldo,
                                               begin, n);
    int first = ot_attention_keys(f, begin).first / S::VISITED * S::VISITED;
    const backward_source source = {f.k, f.v, f.ldk, f.ldv};
    backward_ring<T, S, false> ring = {
        stages, 0, first, end, first, kv_head * S::DIM, (kv_head + 1) * S::DIM};
    for (int i = 0; i < stages - 1; i++)
        ring.copy_next(source); /* q and dout are part of the first group */
    q += warp_row * S::DIM;
    dout += warp_row * S::DIM;

    float dq[S::M][S::DIM / 8][4];
    ot_tile_zero(dq);
    for (int key = first; key < end; key += S::VISITED) {
        const T *k = ring.next(source), *v = k + S::VISITED * S::DIM;
        int any_first = ot_attention_keys(f, query).first,
            all_first = ot_attention_keys(f, query + 16 * S::M - 1).first;
        backward_sight sight = backward_look(any_first, all_first, query, 16 * S::M, key, S::VISITED);
        if (sight == SEES_NONE)
            continue;
        float p[S::M][S::N][4];
        ot_tile_zero(p);
        ot_tile_dots<S::DIM>(p, q, k);
        const int lane = ot_lane(), lane_query = query + lane / 4, lane_key = key + lane % 4 * 2;
        const ot_score_scale scale(f, head);
        ot_score_bend<1>(p, scale, lane_key - lane_query);
        if (sight == SEES_SOME)
            backward_mask_rows(p, f, lane_query, lane_key);
#pragma unroll
        for (int m = 0; m < S::M; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float lse = backward_lse(f, head, lane_query + 16 * m + 8 * r);
#pragma unroll
                for (int n = 0; n < S::N; n++)
#pragma unroll
                    for (int i = 2 * r; i < 2 * r + 2; i++)
                        p[m][n][i] = ot_exp2_approx(fmaf(p[m][n][i], scale.rest(), -lse));
            }
        backward_cap<1>(p, f, scale, head, lane_query, lane_key - lane_query);
        float ds[S::M][S::N][4];
        uint32_t rounded[S::M][S::N / 2][4];
        ot_tile_zero(ds);
        ot_tile_dots<S::DIM>(ds, dout, v);
#pragma unroll
        for (int m = 0; m < S::M; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                float delta = backward_delta(op, head, lane_query + 16 * m + 8 * r);
#pragma unroll
                for (int n = 0; n < S::N; n++)
#pragma unroll
                    for (int i = 2 * r; i < 2 * r + 2; i++)
                        ds[m][n][i] = p[m][n][i] * fmaf(ds[m][n][i], f.scale, -delta);
            }
        ot_tile_round<T>(rounded, ds);
        ot_tile_weigh<S::DIM>(dq, rounded, k);
    }
    backward_store<S>(static_cast<T *>(op.dq) + head * S::DIM, f.ldq, query, end, dq, q);
}

/* ---- dk, dv ---- */

enum { SUM_KEYS = 1, SUM_VALUES = 2 };

template <class T, class S, int SUMS>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attention_backward_keys(const struct ot_attention_backward op, int stages) {
    const struct ot_attention &f = op.forward;
    /* The first keys are seen by most queries, so the longest blocks start first. */
    int n = (int)f.n, kv_heads = (int)f.kv_heads, group = (int)f.heads / kv_heads;
    int kv_head = (int)blockIdx.x % kv_heads, begin = (int)blockIdx.x / kv_heads * S::OWNED;
    int end = begin + S::OWNED < n ? begin + S::OWNED : n, end_query = ot_attention_end_query(f, begin, end);
    int warp_row = (int)(threadIdx.x / OT_WARP) * 16 * S::M, key = begin + warp_row;

    T *k = ot_shared<T>(), *v = k + S::OWNED * S::DIM;
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(k, static_cast<const T *>(f.k) + kv_head * S::DIM, f.ldk,
                                               begin, n);
    if constexpr ((SUMS & SUM_KEYS) != 0)
        ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(v, static_cast<const T *>(f.v) + kv_head * S::DIM, f.ldv,
                                                   begin, n);
    const backward_source source = {f.q, op.dout, f.ldq, f.ldo};
    backward_ring<T, S, true> ring = {
        stages, 0, begin, end_query, begin, kv_head * group * S::DIM, (kv_head + 1) * group * S::DIM};
    for (int i = 0; i < stages - 1; i++)
        ring.copy_next(source); /* k and v are part of the first group */
    k += warp_row * S::DIM;
    v += warp_row * S::DIM;

    float dk[S::M][S::DIM / 8][4], dv[S::M][S::DIM / 8][4];
    ot_tile_zero(dk);
    ot_tile_zero(dv);
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++) {
        for (int query = begin; query < end_query; query += S::VISITED) {
            const T *q = ring.next(source), *dout = q + S::VISITED * S::DIM;
            int any_first = ot_attention_keys(f, query).first,
                all_first = ot_attention_keys(f, query + S::VISITED - 1).first;
            backward_sight sight = backward_look(any_first, all_first, query, S::VISITED, key, 16 * S::M);
            if (sight == SEES_NONE)
                continue;
            float p[S::M][S::N][4];
            ot_tile_zero(p);
            ot_tile_dots<S::DIM>(p, k, q);
            const int lane = ot_lane(), lane_query = query + lane % 4 * 2, lane_key = key + lane / 4;
            const ot_score_scale scale(f, head);
            ot_score_bend<-1>(p, scale, lane_key - lane_query);
            if (sight == SEES_SOME)
                backward_mask_columns(p, f, lane_query, lane_key);
#pragma unroll
            for (int n = 0; n < S::N; n++)
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    float lse = backward_lse(f, head, lane_query + 8 * n + c);
#pragma unroll
                    for (int m = 0; m < S::M; m++)
#pragma unroll
                        for (int i = c; i < 4; i += 2)
                            p[m][n][i] = ot_exp2_approx(fmaf(p[m][n][i], scale.rest(), -lse));
                }
            if constexpr ((SUMS & SUM_VALUES) != 0) {
                uint32_t rounded[S::M][S::N / 2][4];
                ot_tile_round<T>(rounded, p);
                ot_tile_weigh<S::DIM>(dv, rounded, dout);
            }
            if constexpr ((SUMS & SUM_KEYS) != 0) {
                backward_cap<-1>(p, f, scale, head, lane_query, lane_key - lane_query);
                float ds[S::M][S::N][4];
                uint32_t rounded[S::M][S::N / 2][4];
                ot_tile_zero(ds);
                ot_tile_dots<S::DIM>(ds, v, dout);
#pragma unroll
                for (int n = 0; n < S::N; n++)
#pragma unroll
                    for (int c = 0; c < 2; c++) {
                        float delta = backward_delta(op, head, lane_query + 8 * n + c);
#pragma unroll
                        for (int m = 0; m < S::M; m++)
#pragma unroll
                            for (int i = c; i < 4; i += 2)
                                ds[m][n][i] = p[m][n][i] * fmaf(ds[m][n][i], f.scale, -delta);
                    }
                ot_tile_round<T>(rounded, ds);
                ot_tile_weigh<S::DIM>(dk, rounded, q);
            }
        }
    }
    if constexpr ((SUMS & SUM_KEYS) != 0)
        backward_store<S>(static_cast<T *>(op.dk) + kv_head * S::DIM, f.ldk, key, end, dk, k);
    if constexpr ((SUMS & SUM_VALUES) != 0)
        backward_store<S>(static_cast<T *>(op.dv) + kv_head * S::DIM, f.ldv, key, end, dv, k);
}

/* ---- launch ---- */

/* Number of stages, chosen like forward_stages, but one stage is enough. 0: shared memory is too small. */
template <class S>
static int backward_stages(int shared_bytes) {
    for (int blocks = S::BLOCKS; blocks > 0; blocks--)
        for (int stages = 3; stages >= 2; stages--)
            if (blocks * (S::OWNED_BYTES + stages * S::STAGE_BYTES + 1024) <= shared_bytes + 1024)
                return stages;
    return S::OWNED_BYTES + S::STAGE_BYTES <= shared_bytes ? 1 : 0;
}

template <class S>
static cudaError_t launch_pass(void (*kernel)(struct ot_attention_backward, int),
                               const struct ot_attention_backward *op, int64_t heads, int stages,
                               const struct ot_cuda_stream *on) {
    unsigned grid = (unsigned)(ot_ceil_div(op->forward.n, S::OWNED) * heads);
    return ot_launch(kernel, dim3(grid), dim3(S::THREADS), S::OWNED_BYTES + stages * S::STAGE_BYTES,
                     on->stream, *op, stages);
}

template <class T, int DIM, bool SMALL>
static cudaError_t launch_tiled(const struct ot_attention_backward *op, const struct ot_cuda_stream *on) {
    using Q = queries_shape<DIM, SMALL>;
    using K = keys_shape<DIM, SMALL>;
    int stages_q = backward_stages<Q>(on->shared_bytes), stages_k = backward_stages<K>(on->shared_bytes);
    if (stages_q == 0 || stages_k == 0)
        return ot_attention_backward_plain(op, on);
    int64_t heads = op->forward.heads, kv_heads = op->forward.kv_heads;
    OT_CUDA_TRY(launch_pass<Q>(attention_backward_queries<T, Q>, op, heads, stages_q, on));
    if constexpr (DIM <= 128) {
        return launch_pass<K>(attention_backward_keys<T, K, SUM_KEYS | SUM_VALUES>, op, kv_heads, stages_k,
                              on);
    } else {
        OT_CUDA_TRY(launch_pass<K>(attention_backward_keys<T, K, SUM_KEYS>, op, kv_heads, stages_k, on));
        return launch_pass<K>(attention_backward_keys<T, K, SUM_VALUES>, op, kv_heads, stages_k, on);
    }
}

static bool is_tiled(const struct ot_attention_backward *op, int arch) {
    const struct ot_attention *f = &op->forward;
    return ot_attention_is_tiled(f, arch) && ot_attention_is_aligned(op->dout, f->ldo) &&
           ot_attention_is_aligned(op->dq, f->ldq) && ot_attention_is_aligned(op->dk, f->ldk) &&
           ot_attention_is_aligned(op->dv, f->ldv);
}

extern "C" cudaError_t ot_cuda_attention_backward(const struct ot_attention_backward *args,
                                                  const struct ot_cuda_stream *on) {
    if (args->forward.n == 0)
        return cudaSuccess;
    OT_CUDA_TRY(launch_delta(args, on));
    if (args->dsinks)
        OT_CUDA_TRY(ot_attention_backward_sinks(args, on));
    if (!is_tiled(args, on->arch) || on->plain)
        return ot_attention_backward_plain(args, on);
    return ot_attention_dispatch(&args->forward, [&](auto zero, auto dim) {
        using T = decltype(zero);
        constexpr int DIM = decltype(dim)::value;
        if constexpr (std::is_same<T, __half>::value)
            if (on->arch < 80)
                return launch_tiled<T, DIM, true>(args, on);
        return launch_tiled<T, DIM, false>(args, on);
    });
}

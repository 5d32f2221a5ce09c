/* Attention forward on tensor cores. A block of queries walks over tiles of keys and keeps a running softmax
 * (Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018; Rabe & Staats, "Self-attention
 * Does Not Need O(n^2) Memory", 2021). Warps own rows as in Dao, "FlashAttention-2", 2023.
 *
 * attention_softmax.cuh explains the running softmax.
 *
 * WHICH TILES. A block visits the tiles from the first key of its first query to the key of its last
 * query. Rows packed before and keys behind the window are never read. A warp also skips tiles that none of
 * its own queries sees. It masks only tiles that some query sees in part. A masked key counts as p = 0
 * exactly, whatever the key holds. But a masked value that is not finite gives 0 * inf = NaN, as in any
 * product.
 *
 * DETERMINISM. One warp owns a row of the result and takes the tiles in order. No other split exists, and no
 * atomics. Tiles of keys begin at multiples of KEYS. So a query's bits depend on the keys and values of its
 * own row and on where that row begins modulo KEYS. They do not depend on the other packed rows, on n, or on
 * the depth of the ring.
 *
 * COST, causal, head_dim 128, for one warp and tile (32 queries x 64 keys, 2^20 multiply-adds), counted in
 * the SASS of sm_90. Masks (282), slopes (112) and risen references (128) are not included; most tiles need
 * none of them. A softcap (1050, with 128 MUFU) is not included either:
 *
 *     256 HMMA.16816   80 LDSM   16 LDGSTS   68 MUFU   32 F2FP   about 910 instructions in all
 *
 * On an H200 the target of 350 TFLOP/s allows a scheduler 11 clocks for each HMMA, which is 2780 clocks per
 * warp and tile. Of these, issuing takes 910 clocks and the special-function units take 68 * 8 = 544. Shared
 * memory delivers 40 KiB to each of four warps and receives 32 KiB, 1540 clocks at 128 bytes. No unit is busy
 * for more than 55 % of the time, and two blocks on an SM overlap the softmax of one with the products of the
 * other. L2 delivers 32 KiB for each 128 x 64 x 128 x 4 FLOP: 128 FLOP a byte, 2.7 TB/s. Blocks that run at
 * the same time are neighbours in a few heads and share most of it. Memory delivers q, k, v and takes out
 * about once: with 4096 tokens and 32 heads that is 128 MiB for 137 GFLOP, 0.03 of 0.39 ms.
 *
 * Why these M and N: with M = 1 each fragment of keys would serve half as many products, and shared memory
 * would be the limit. M = 2 needs 128 registers for `sum` and 64 for s at head_dim 128. At head_dim 256 the
 * registers suffice for M = 1 only.
 */
#include "kernels/cuda/attention_softmax.cuh"
#include "kernels/cuda/attention_spans.cuh"

/* ---- sizes ---- */

/* A block is four warps with 16 M queries of one head each. The warps walk together over tiles of 8 N
 * keys. */
template <int HEAD_DIM>
struct forward_shape {
    static constexpr int DIM = HEAD_DIM;
    static constexpr int M = DIM <= 128 ? 2 : 1, N = DIM <= 128 ? 8 : 4;
    static constexpr int WARPS = 4, THREADS = WARPS * OT_WARP;
    static constexpr int QUERIES = WARPS * 16 * M, KEYS = 8 * N;
    /* blocks that a multiprocessor shall hold at the same time */
    static constexpr int BLOCKS = 2;
    /* the fragments of q stay in registers; otherwise each tile loads them again */
    static constexpr bool QUERIES_STAY = DIM <= 80;
    static constexpr int QUERY_BYTES = QUERIES * DIM * 2, TILE_BYTES = KEYS * DIM * 2;
};

/* ---- the ring of keys and values ---- */

/* Tiles of keys and of values go alternately (K0, V0, K1, V1, ...) through `stages` slots of shared memory.
 * When a step begins, stages - 1 tiles are in the slots or being copied; the step uses the slot after the
 * free one. The barrier of the step shows that all warps have finished the step before. So that step's slot
 * is free, and the next tile is copied to it. */
template <class T, class S>
struct forward_ring {
    const T *k, *v; /* keys and values of this head */
    int64_t ldk, ldv;
    T *slots;
    int stages, free_slot;
    /* range of the keys that the block needs */
    int copies, first_key, end_key;

    /* The first group of copies also contains the caller's earlier copies. k_, v_: at token 0. */
    __device__ __forceinline__ forward_ring(const T *k_, const T *v_, int64_t ldk_, int64_t ldv_, int first,
                                            int end, T *slots_, int stages_)
        : k(k_), v(v_), ldk(ldk_), ldv(ldv_), slots(slots_), stages(stages_), free_slot(0), copies(0),
          first_key(first), end_key(end) {
        for (int i = 0; i < stages - 1; i++)
            copy_next();
    }

    __device__ __forceinline__ void copy_next() {
        int key = first_key + (copies >> 1) * S::KEYS;
        if (key < end_key)
            ot_tile_copy<S::KEYS, S::DIM, S::THREADS>(slots + free_slot * (S::KEYS * S::DIM),
                                                      (copies & 1) ? v : k, (copies & 1) ? ldv : ldk, key,
                                                      end_key);
        ot_cp_async_commit(); /* also an empty group, because ot_cp_async_wait counts groups */
        copies++;
        free_slot = free_slot + 1 == stages ? 0 : free_slot + 1;
    }

    /* Returns the next tile. All warps must call. The tile is valid until the next call. */
    __device__ __forceinline__ const T *next() {
        if (stages == 2)
            ot_cp_async_wait<0>();
        else if (stages == 3)
            ot_cp_async_wait<1>();
        else
            ot_cp_async_wait<2>();
        __syncthreads();
        copy_next();
        return slots + free_slot * (S::KEYS * S::DIM);
    }
};

/* ---- one warp's queries ---- */

/* Index of this warp's first row in the block. */
template <class S>
__device__ __forceinline__ int forward_warp_row() {
    return (int)(ot_thread() / OT_WARP) * 16 * S::M;
}

/* ---- the visited keys of a block ---- */

/* The keys of a block, and how it makes scores of them, for each op. A block has one or more runs of queries
 * (attention_spans.cuh); causal attention has one. first_key, end_key: the keys of the current run, whose
 * tiles begin at first_key. */
template <class T, class S, class Op>
struct forward_view;

template <class T, class S>
struct forward_view<T, S, struct ot_attention> {
    static constexpr bool HAS_RUNS = false;
    const ot_score_scale scale;
    int past, block_self, first_key, end_key;
    int common, warp_first; /* all queries see all keys from `common` to block_self */

    __device__ __forceinline__ forward_view(const struct ot_attention &op, int head, int block_query,
                                            int end_query, float *)
        : scale(op, head), past((int)(op.n_keys - op.n)), block_self(block_query + past),
          first_key(ot_attention_keys(op, block_query).first / S::KEYS * S::KEYS),
          end_key(block_self + S::QUERIES < op.n_keys ? block_self + S::QUERIES : (int)op.n_keys),
          common(ot_attention_keys(op, end_query - 1).first),
          warp_first(ot_attention_keys(op, block_query + forward_warp_row<S>()).first) {}
    __device__ __forceinline__ bool next(const struct ot_attention &) { return false; }

    /* row: the warp's first. True if one of the warp's queries sees a key of the tile. */
    __device__ __forceinline__ bool sees(int key, int row) const {
        return key <= block_self + row + 16 * S::M - 1 && key + S::KEYS > warp_first;
    }
    __device__ __forceinline__ float rest() const { return scale.rest(); }
    /* Turns dot products into scores. */
    __device__ __forceinline__ void score(float (&s)[S::M][S::N][4], const struct ot_attention &op, int key,
                                          int row) const {
        int self = block_self + row, lane = ot_lane(), lane_self = self + lane / 4,
            lane_key = key + lane % 4 * 2;
        ot_score_bend<1>(s, scale, lane_key - lane_self);
        if (key < common || key + S::KEYS - 1 > self)
            ot_softmax_mask<S>(s, op, lane_self - past, lane_key);
    }
    __device__ __forceinline__ void store(const struct ot_attention &op, int head, int first_query,
                                          ot_softmax_rows<S> &rows, T *room) const {
        ot_softmax_store<T, S>(op, head, first_query, rows, room);
    }
};

template <class T, class S>
struct forward_view<T, S, struct ot_attend_spans> {
    static constexpr bool HAS_RUNS = true;
    static constexpr int PAD = spans_pad(S::M, S::N);
    const spans_score<PAD> scale;
    int past, block_query, end_query, first_key, end_key;
    int begin, end;       /* the queries of the run */
    int common, warp_end; /* the least and the largest end of a nonempty span of the warp's queries */

    __device__ __forceinline__ forward_view(const struct ot_attend_spans &op, int head, int block_query_,
                                            int end_query_, float *table)
        : scale(op, table), past((int)(op.n_keys - op.n)), block_query(block_query_), end_query(end_query_),
          end(block_query_) {
        spans_make_table<T, S::THREADS>(op, PAD, head, table);
        next(op);
    }
    /* Moves on to the next run. False if there is none. */
    __device__ __forceinline__ bool next(const struct ot_attend_spans &op) {
        static_assert(16 * S::M <= OT_WARP, "a lane for each query of a warp");
        if (end == end_query)
            return false;
        const spans_run run = spans_run_at(op, end, end_query);
        begin = run.begin, end = run.end, first_key = run.first, end_key = run.last;
        const spans_rows rows = {op, begin, end};
        const int lane = ot_lane(), query = block_query + forward_warp_row<S>() + lane;
        const ot_attention_span seen = ot_attention_keys(rows, lane < 16 * S::M ? query : (int)op.n);
        warp_end = spans_warp_max(seen.last + 1);
        common = -spans_warp_max(seen.first <= seen.last ? -1 - seen.last : INT32_MIN + 1);
        return true;
    }
    __device__ __forceinline__ bool sees(int key, int) const { return key < warp_end; }
    __device__ __forceinline__ float rest() const { return scale.rest(); }
    __device__ __forceinline__ void score(float (&s)[S::M][S::N][4], const struct ot_attend_spans &op,
                                          int key, int row) const {
        int lane = ot_lane(), lane_query = block_query + row + lane / 4, lane_key = key + lane % 4 * 2;
        ot_score_bend<1>(s, scale, lane_key - lane_query - past);
        if (key + S::KEYS > common)
            ot_softmax_mask<S>(s, op, lane_query, lane_key);
    }
    /* Keeps log(sum exp(score)) and 1, the numbers of the softmax for exp(score - log(sum)) 1. */
    __device__ __forceinline__ void store(const struct ot_attend_spans &op, int head, int first_query,
                                          ot_softmax_rows<S> &rows, T *room) const {
        const int query_of_lane = first_query + ot_lane() / 4;
        spans_clear(rows.sum, op, query_of_lane, 1.0f);
#pragma unroll
        for (int i = 0; i < 2 * S::M; i++) /* 0 / 1, not 0 / 0 */
            if (spans_is_empty(op, query_of_lane + 8 * i))
                rows.total[i / 2][i % 2] = 1.0f;
        ot_softmax_store_some<T>(op, head, first_query, begin, end, rows, room,
                                 [&](int query, float top, float total) {
                                     if (!op.softmax)
                                         return;
                                     const bool empty = spans_is_empty(op, query);
                                     float *softmax = op.softmax + 2 * (head * op.n + query);
                                     softmax[0] = empty ? 0.0f : top * OT_LN_2 + logf(total);
                                     softmax[1] = empty ? 0.0f : 1.0f;
                                 });
    }
};

/* Spans have no groups of heads and no sinks. */
__device__ __forceinline__ int forward_kv_head(const struct ot_attention &op, int head) {
    return head / ((int)op.heads / (int)op.kv_heads);
}
__device__ __forceinline__ int forward_kv_head(const struct ot_attend_spans &, int head) {
    return head;
}
__device__ __forceinline__ const void *forward_sinks(const struct ot_attention &op) {
    return op.sinks;
}
__device__ __forceinline__ const void *forward_sinks(const struct ot_attend_spans &) {
    return nullptr;
}

/* ---- the kernel ---- */

template <class T, class S, class Op>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) attention_forward(const Op op, int stages) {
    /* In causal attention the last queries see most keys, so the longest blocks start first. */
    int blocks = (int)((op.n + S::QUERIES - 1) / S::QUERIES), heads = (int)op.heads;
    int head = (int)blockIdx.x % heads, block_query = (blocks - 1 - (int)blockIdx.x / heads) * S::QUERIES;
    int end_query = block_query + S::QUERIES < op.n ? block_query + S::QUERIES : (int)op.n;
    int column = forward_kv_head(op, head) * S::DIM;

    T *queries = ot_shared<T>(), *slots = queries + S::QUERIES * S::DIM;
    ot_tile_copy<S::QUERIES, S::DIM, S::THREADS>(queries, static_cast<const T *>(op.q) + head * S::DIM,
                                                 op.ldq, block_query, (int)op.n);
    forward_view<T, S, Op> view(op, head, block_query, end_query,
                                reinterpret_cast<float *>(slots + stages * (S::KEYS * S::DIM)));
    do {
        forward_ring<T, S> ring(static_cast<const T *>(op.k) + column, static_cast<const T *>(op.v) + column,
                                op.ldk, op.ldv, view.first_key, view.end_key, slots, stages);
        ot_softmax_rows<S> rows(static_cast<const T *>(forward_sinks(op)), head);
        uint32_t q[S::DIM / 16][S::M][4]; /* used if QUERIES_STAY */
        for (int key = ring.first_key; key < ring.end_key; key += S::KEYS) {
            const int row = forward_warp_row<S>();
            const bool sees_any = view.sees(key, row);
            uint32_t p[S::M][S::N / 2][4];
            const T *k = ring.next();
            if constexpr (S::QUERIES_STAY)
                if (key == ring.first_key)
                    ot_tile_load<S::DIM>(q, queries + row * S::DIM);
            if (sees_any) {
                float s[S::M][S::N][4], factor = view.rest();
                ot_tile_zero(s);
                if constexpr (S::QUERIES_STAY)
                    ot_tile_dots<S::DIM>(s, q, k);
                else
                    ot_tile_dots<S::DIM>(s, queries + row * S::DIM, k);
                view.score(s, op, key, row);
                float shrink[S::M][2];
                if (ot_softmax_raise<S>(s, factor, rows, shrink))
                    ot_softmax_shrink<S>(rows, shrink);
                ot_softmax_weights<S>(s, factor, rows);
                ot_tile_round<T>(p, s);
            }
            const T *v = ring.next();
            if (sees_any)
                ot_tile_weigh<S::DIM>(rows.sum, p, v);
        }
        if constexpr (forward_view<T, S, Op>::HAS_RUNS) {
            ot_cp_async_wait<0>(); /* the queries may still be on their way, if the run has no keys */
            __syncthreads();       /* the next run copies into the slots */
        }
        int row = forward_warp_row<S>();
        view.store(op, head, block_query + row, rows, queries + row * S::DIM);
    } while (view.next(op));
}

/* ---- launch ---- */

/* The deepest ring with which a multiprocessor can hold S::BLOCKS blocks; if none fits, fewer blocks. A
 * multiprocessor has 1 KiB more shared memory than a block may use, and each block costs 1 KiB extra. rest:
 * other shared memory of a block, in bytes. 0: shared memory is too small. */
template <class S>
static int forward_stages(int shared_bytes, int rest) {
    for (int blocks = S::BLOCKS; blocks > 0; blocks--)
        for (int stages = 4; stages >= 2; stages--)
            if (blocks * (S::QUERY_BYTES + stages * S::TILE_BYTES + rest + 1024) <= shared_bytes + 1024)
                return stages;
    return 0;
}

template <class T, class S, class Op>
static cudaError_t forward_launch(const Op *op, int stages, int rest, const struct ot_cuda_stream *on) {
    unsigned grid = (unsigned)(ot_ceil_div(op->n, S::QUERIES) * op->heads);
    return ot_launch(attention_forward<T, S, Op>, dim3(grid), dim3(S::THREADS),
                     S::QUERY_BYTES + stages * S::TILE_BYTES + rest, on->stream, *op, stages);
}

static cudaError_t forward_tiled(const struct ot_attention *op, const struct ot_cuda_stream *on) {
    return ot_attention_dispatch(op, [&](auto zero, auto dim) {
        using T = decltype(zero);
        using S = forward_shape<decltype(dim)::value>;
        int stages = forward_stages<S>(on->shared_bytes, 0);
        return stages ? forward_launch<T, S>(op, stages, 0, on) : ot_attention_forward_plain(op, on);
    });
}

cudaError_t ot_attend_spans_tiled(const struct ot_attend_spans *op, const struct ot_cuda_stream *on) {
    return spans_tiled_dispatch(op, [&](auto zero, auto dim) {
        using T = decltype(zero);
        using S = forward_shape<decltype(dim)::value>;
        int rest = spans_table_places(*op, spans_pad(S::M, S::N)) * (int)sizeof(float);
        return forward_launch<T, S>(op, forward_stages<S>(on->shared_bytes, rest), rest, on);
    });
}

extern "C" cudaError_t ot_cuda_attention(const struct ot_attention *args, const struct ot_cuda_stream *on) {
    if (args->n == 0)
        return cudaSuccess;
    if (on->plain || args->drop.share > 0 || !ot_attention_is_tiled(args, on->arch))
        return ot_attention_forward_plain(args, on);
    return ot_attention_is_hopper(args, on) ? ot_attention_forward_hopper(args, on) : forward_tiled(args, on);
}

/* Attention backward on tensor cores: the parts that its kernels share, their sizes and their cost. For each
 * pair of query and key, with p = exp(score - lse) and delta = dot(out, dout):
 *
 *     dv += p dout          ds = p (dout.v - delta) scale          dq += ds k          dk += ds q
 *
 * (Dao, "FlashAttention-2", 2023, section 3.1.2). With a softcap, ds has one more factor, the derivative of
 * the score (attention_score.cuh). A sink changes p through lse alone; attention_backward.cu computes its own
 * gradient. p and ds are rounded to the two-byte type before they are multiplied. Everything else between
 * loads and stores is fp32.
 *
 * TWO PASSES. Gradients of keys are sums over queries; gradients of queries are sums over keys. A kernel
 * that walks over the tiles once can keep one of the two sums in registers. It must add the other in
 * memory, tile by tile. It could use atomics, but their order changes from run to run. Or blocks could take
 * turns, but then every block waits for its predecessor, and an fp32 dq of n * heads * head_dim is needed
 * beside the bf16 one; the contract's scratch has n * heads floats. So there are two kernels, as on the cpu
 * device. attention_backward_queries.cu owns queries and sums dq. attention_backward_keys.cu owns keys and
 * sums dk and dv over the queries and, in order, over the heads that share the keys. Both recompute scores
 * and dout.v: 3 and 4 products, 7 instead of the 5 of one pass, that is 14 instead of 10 head_dim
 * operations per visible pair.
 *
 * The results depend on the arguments alone: each sum has one owner, which adds its pairs sixteen at a time
 * in ascending order, whatever the sizes below.
 *
 * TILES. A block owns rows (queries or keys) of one head. Tiles of the other side (VISITED rows of k and v,
 * or of q and dout) come through a ring of stages in shared memory. Owned rows are the rows of the score
 * fragments, also in the kernel of keys, where the scores are therefore transposed. So p and ds, rounded in
 * the registers that hold them, are the left operands of the sums (attention_tiles.cuh).
 *
 * INVISIBLE TILES are skipped. The queries of a block need the keys from the first key of the block's first
 * query to the last key of its last query. The keys of a block are seen by the queries from the block itself
 * on (from query 0 on, if the block lies before a section), up to the first query whose row begins after the
 * block. Inside a visited part of 8 N rows, pairs that do not see each other get p = ds = 0. (A NaN there
 * spreads through its part, no further.)
 *
 * SECTIONS OF ROWS (kernels/ops.h) have keys before query 0. A block of keys that no query sees ends at once.
 * The others add the stored sums to the finished sums in registers, before they store.
 *
 * COST. One mma of a warp multiplies 16x16 by 16x8. A warp owns M fragments of 16 rows and takes N fragments
 * of 8 visited rows at a time. An ldmatrix.x4 reads 512 bytes from shared memory. So each mma reads
 *
 *     512 / N + 256 / M bytes    scores and dout.v, where the owned rows lie in shared memory
 *     256 / M                    scores and dout.v, where registers hold the owned rows
 *     256 / M                    dq, dk, dv: p and ds are in registers
 *
 * and where one warp hands p to another in fp32 (attention_backward_keys.cu), the write and the read are 8
 * bytes for each pair, that is 16384 / head_dim for each mma of one product. The sums of the seven products,
 * in bytes for seven mmas, with the copies into shared memory (8192 / rows of a block, once in each pass):
 *
 *     head_dim                                       64     80     96    128    256
 *     queries: M, N, * owned rows in registers     2 2 *  2 2 *  2 4    2 4    1 4
 *              scores + dout.v + dq                 384    384    640    640   1024
 *     keys:    M, N, * owned rows in registers     3 2 *  2 2 *  2 2 *  2 2 *  1 2 *
 *              scores + dout.v + dk + dv            341    512    512    512   1024
 *              p from warp to warp                  256    205    171    128     64
 *     both passes                                   981   1101   1323   1280   2112
 *     copies                                        149    128    128    128    256
 *
 * Shared memory delivers 128 bytes a clock and multiprocessor, on all architectures. An mma with fp32 sums
 * takes 2 clocks on sm_80 (1024 multiply-adds a clock, NVIDIA A100 whitepaper), 1.6 on sm_90 (the 2048 of
 * wgmma, of which mma.sync reaches 62 %), and 4 on sm_86, sm_89 and sm_120 (512; 8 on GeForce cards, which
 * halve it). Clocks for seven mmas:
 *
 *     head_dim                                       64     80     96    128    256
 *     shared memory                                 8.8    9.6   11.3   11.0   18.5
 *     tensor cores                   sm_80 14, sm_90 11.3, sm_86, sm_89, sm_120 28 or 56
 *
 * So shared memory is the limit at head_dim 256 on sm_80 and sm_90 only, where the sums leave a warp no
 * registers for M = 2. A pass with five products would not read less: with M = 1 for the keys, as two sums
 * in each warp require, it would read 384 + 384 + 256 + 256 + 128 = 1408 bytes at head_dim 80 to 128 for
 * its five mmas, and move dq in memory besides. At head_dim 256, one warp has no registers for two sums.
 *
 * tests/scripts/test_kernel_ptx.py compares both tables with the compiler's code.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_BACKWARD_CUH
#define OT_KERNELS_CUDA_ATTENTION_BACKWARD_CUH

#include <type_traits>

#include "kernels/cuda/attention_score.cuh"
#include "kernels/cuda/attention_spans.cuh"
#include "kernels/cuda/attention_tiles.cuh"

/* ---- sizes ---- */

/* A warp owns 16 M rows and takes 8 N visited rows at a time. A visited tile has VISITED rows. A
 * multiprocessor shall hold BLOCKS blocks at the same time, which then use all its registers. */
template <int DIM_, int M_, int N_, int WARPS_, int OWNED_, int VISITED_>
struct backward_shape {
    static constexpr int DIM = DIM_, M = M_, N = N_, WARPS = WARPS_, THREADS = WARPS * OT_WARP;
    static constexpr int OWNED = OWNED_, VISITED = VISITED_, BLOCKS = 8 / WARPS;
    static constexpr int OWNED_BYTES = 2 * OWNED * DIM * 2, STAGE_BYTES = 2 * VISITED * DIM * 2;
    /* Threads that copy a visited tile: no more than the tile has pieces. */
    static constexpr int PIECES = VISITED * ot_tile<DIM>::P, COPIERS = THREADS < PIECES ? THREADS : PIECES;
    static_assert(VISITED % (8 * N) == 0, "a tile is some steps of a warp");
};

/* blockIdx.x, hidden from the compiler's optimizer like ot_thread(). */
__device__ __forceinline__ int backward_block() {
    unsigned block = blockIdx.x;
    asm volatile("" : "+r"(block));
    return (int)block;
}

/* ---- the ring of visited tiles ---- */

/* The two arrays that tiles are copied from, and their elements between tokens. The struct stays a kernel
 * argument, in constant memory, so it costs no registers. */
struct backward_source {
    const void *a, *b;
    int64_t lda, ldb;
    static constexpr bool MAY_HAVE_HOLES = false;
};

/* The queries of an op over spans, as the keys [begin, end) visit them. has_holes: some of the visited
 * queries do not see these keys; those become zeros (attention_spans.cuh, EMPTY SPANS). */
struct backward_watchers : backward_source {
    const struct ot_attend_spans &op;
    int begin, end;
    bool has_holes;
    static constexpr bool MAY_HAVE_HOLES = true;

    __device__ __forceinline__ bool has(int query) const {
        ot_attention_span seen = ot_attention_keys(op, query);
        return max(seen.first, begin) <= min(seen.last, end - 1);
    }
};

/* Starts copies of a pair of tiles of rows [row, end) at this column. */
template <class T, class S, class Source>
__device__ __forceinline__ void backward_copy(T *to, const Source &from, int column, int row, int end) {
    T *second = to + S::VISITED * S::DIM;
    const T *a = static_cast<const T *>(from.a) + column, *b = static_cast<const T *>(from.b) + column;
    if constexpr (Source::MAY_HAVE_HOLES)
        if (from.has_holes) {
            auto has = [&](int query) { return query < end && from.has(query); };
            ot_tile_copy_some<S::VISITED, S::DIM, S::COPIERS>(to, a, from.lda, row, has);
            ot_tile_copy_some<S::VISITED, S::DIM, S::COPIERS>(second, b, from.ldb, row, has);
            return;
        }
    ot_tile_copy<S::VISITED, S::DIM, S::COPIERS>(to, a, from.lda, row, end);
    ot_tile_copy<S::VISITED, S::DIM, S::COPIERS>(second, b, from.ldb, row, end);
}

/* Copies pairs of tiles (k and v, or q and dout) of rows [first, end) of some heads, one head after the
 * other, through `stages` slots of shared memory, as in the forward pass. With one stage, copying and
 * computing alternate. HEADS: more than one head. */
template <class T, class S, bool HEADS>
struct backward_ring {
    int stages, free_slot, first, end, row;
    int column, end_column; /* range of the heads that are not copied yet, in elements */
    int slots;              /* offset of the first slot in shared memory, in elements */

    __device__ __forceinline__ T *slot() const { /* the free slot */
        return ot_shared<T>() + slots + free_slot * (2 * S::VISITED * S::DIM);
    }

    template <class Source>
    __device__ __forceinline__ void copy_next(const Source &from) {
        if (HEADS ? column < end_column : row < end) {
            T *to = slot();
            if (S::COPIERS == S::THREADS || threadIdx.x < S::COPIERS)
                backward_copy<T, S>(to, from, column, row, end);
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
    template <class Source>
    __device__ __forceinline__ const T *next(const Source &from) {
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

/* Returns how much of a tile is visible. */
__device__ __forceinline__ backward_sight backward_look(const struct ot_attention &op, int query, int queries,
                                                        int key, int keys) {
    int any_first = ot_attention_keys(op, query).first,
        all_first = ot_attention_keys(op, query + queries - 1).first;
    int own = query + ot_attention_past(op); /* the first query's key */
    if (own + queries - 1 < key || key + keys <= any_first)
        return SEES_NONE;
    return key + keys - 1 <= own && key >= all_first ? SEES_ALL : SEES_SOME;
}

/* The same for spans. All lanes of the warp must call. Op: ot_attend_spans, or the rows of one run. */
template <class Op>
__device__ __forceinline__ backward_sight backward_look(const Op &op, int query, int queries, int key,
                                                        int keys) {
    bool any = false, all = true;
    for (int i = ot_lane(); i < queries; i += OT_WARP) {
        const ot_attention_span seen = ot_attention_keys(op, query + i);
        any = any || max(seen.first, key) <= min(seen.last, key + keys - 1);
        all = all && seen.first <= key && seen.last >= key + keys - 1;
    }
    if (!__any_sync(0xffffffffu, any))
        return SEES_NONE;
    return __all_sync(0xffffffffu, all) ? SEES_ALL : SEES_SOME;
}

/* query, key: the lane's first element. Rows are queries. */
template <int M, int N, class Op>
__device__ __forceinline__ void backward_mask_rows(float (&s)[M][N][4], const Op &op, int query, int key) {
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
template <int M, int N, class Op>
__device__ __forceinline__ void backward_mask_columns(float (&s)[M][N][4], const Op &op, int query, int key) {
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
 * them again, from the nearest cache: kept in registers, they would occupy them during products that need
 * all registers. */
__device__ __forceinline__ float backward_lse(const struct ot_attention &op, int head, int query) {
    return query < op.n ? op.lse[head * op.n + query] * OT_LOG2_E : 0.0f;
}
__device__ __forceinline__ float backward_delta(const struct ot_attention_backward &op, int head, int query) {
    const struct ot_attention &f = op.forward;
    return query < f.n ? op.scratch[head * f.n + query] * f.scale : 0.0f;
}

/* The same for spans, from the two numbers of the softmax: exp(score - r) f = exp2(score log2(e) - lse).
 * lse is infinite for an empty span, so p is 0; delta may be NaN. The scale of spans is a factor of the
 * finished sums, because dbias needs ds without it. */
__device__ __forceinline__ float backward_lse(const struct ot_attend_spans &op, int head, int query) {
    if (query >= op.n)
        return 0.0f;
    const float *softmax = op.softmax + 2 * (head * op.n + query);
    return fmaf(softmax[0], OT_LOG2_E, -ot_log2_approx(softmax[1]));
}
__device__ __forceinline__ float backward_delta(const struct ot_attend_spans_backward &op, int head,
                                                int query) {
    return query < op.forward.n ? op.scratch[head * op.forward.n + query] : 0.0f;
}

/* The factor of (dout.v - delta). */
__device__ __forceinline__ float backward_factor(const struct ot_attention_backward &op) {
    return op.forward.scale;
}
__device__ __forceinline__ float backward_factor(const struct ot_attend_spans_backward &) {
    return 1.0f;
}

/* p times the fma of ds. HAS_GAPS: a pair with p = 0 may have anything in v, dout and delta. */
template <bool HAS_GAPS>
__device__ __forceinline__ float backward_ds(float p, float dout_v, float factor, float delta) {
    float ds = p * fmaf(dout_v, factor, -delta);
    return HAS_GAPS && p == 0.0f ? 0.0f : ds;
}

/* The derivative of a capped score, from its weight p > 0, which still tells the score: log2(p) + lse, off
 * by 2^-22 (|log2 p| + |lse|) at most. So no registers keep scores. 0 for p = 0. away: key minus query. */
__device__ __forceinline__ float backward_slope(const ot_score_scale &scale, float p, float lse, float away) {
    return ot_score_slope(scale, ot_log2_approx(p) + lse, away);
}

/* Rounds and stores a warp's rows through `room`: the warp's own rows of a tile that no warp reads any
 * more. Row 0 goes to token `first`. Stores tokens [begin, end) alone, and leaves the others' places in the
 * room. */
template <class S, class T>
__device__ __forceinline__ void backward_store(T *to, int64_t ld, int first, int begin, int end,
                                               const float (&sum)[S::M][S::DIM / 8][4], T *room) {
    int lane = ot_lane(), row = lane / 4, column = lane % 4 * 2;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int at = row + 16 * m + 8 * r;
            if (first + at < begin || first + at >= end)
                continue;
#pragma unroll
            for (int d = 0; d < S::DIM / 8; d++)
                *reinterpret_cast<uint32_t *>(room + ot_tile<S::DIM>::at(at, d) + column) =
                    ot_pack_two<T>(sum[m][d][2 * r], sum[m][d][2 * r + 1]);
        }
    __syncwarp();
    constexpr int P = ot_tile<S::DIM>::P;
    for (int at = lane / P; at < 16 * S::M && first + at < end; at += OT_WARP / P)
#pragma unroll
        for (int chunk = lane % P; first + at >= begin && chunk < ot_tile<S::DIM>::CHUNKS; chunk += P)
            *reinterpret_cast<uint4 *>(to + (first + at) * ld + chunk * 8) =
                *reinterpret_cast<const uint4 *>(room + ot_tile<S::DIM>::at(at, chunk));
}

/* ---- launch ---- */

/* Shared memory, in bytes, that a block may use on every card that runs the kernels: of sm_75, where the
 * shapes are SMALL, and of all newer ones. */
static constexpr int BACKWARD_SMALL_BYTES = 64 << 10, BACKWARD_BYTES = 99 << 10;

/* Calls f(T(), ot_head_dim<DIM>(), small) with small = std::true_type() or std::false_type(). */
template <class F>
cudaError_t backward_dispatch(const struct ot_attention *op, const struct ot_cuda_stream *on, F f) {
    return ot_attention_dispatch(op, [&](auto zero, auto dim) {
        if constexpr (std::is_same<decltype(zero), __half>::value)
            if (on->arch < 80)
                return f(zero, dim, std::true_type());
        return f(zero, dim, std::false_type());
    });
}

/* Writes dot(out, dout) of each query and head to op->scratch. */
cudaError_t ot_attention_backward_delta(const struct ot_attention_backward *op,
                                        const struct ot_cuda_stream *on);

/* Each launches one pass, for arguments that ot_cuda_attention_backward or ot_attend_spans_backward_is_tiled
 * has found fit for tiles. op->scratch holds delta. */
cudaError_t ot_attention_backward_queries(const struct ot_attention_backward *op,
                                          const struct ot_cuda_stream *on);
cudaError_t ot_attention_backward_keys(const struct ot_attention_backward *op,
                                       const struct ot_cuda_stream *on);
cudaError_t ot_attend_spans_backward_queries(const struct ot_attend_spans_backward *op,
                                             const struct ot_cuda_stream *on);
cudaError_t ot_attend_spans_backward_keys(const struct ot_attend_spans_backward *op,
                                          const struct ot_cuda_stream *on);

#endif

/* Attention backward on tensor cores: the kernel that owns queries and sums dq (attention_backward.cuh).
 *
 * A block's warps own 16 M queries each, and walk together over tiles of keys and values. The block's tiles
 * of q and dout stay in shared memory. Where registers allow it, a warp also holds the fragments of its
 * queries and of their dout: then ldmatrix reads them once, not once for each tile. At head_dim 128, dq
 * takes 128 registers, p and ds take 64, and none are left for that. At 96 and 256, those of q alone would
 * fit, but to the last register: on some architectures the compiler spills.
 *
 * Two warps could share 16 M queries as in the kernel of keys: one would compute p, the other ds and dq. At
 * head_dim 128 that moves 512 bytes for three mmas instead of 640. But one warp would have twice the
 * products of the other, and with eight warps on a multiprocessor only four would sum.
 */
#include "kernels/cuda/attention_backward.cuh"

/* HELD: registers hold the owned rows. ONLY_75: see ot_trap_unless_75. */
template <int DIM, int M, int N, int WARPS, int VISITED, bool HELD_, bool ONLY_75_ = false>
struct queries_shape : backward_shape<DIM, M, N, WARPS, WARPS * 16 * M, VISITED> {
    static constexpr bool HELD = HELD_, ONLY_75 = ONLY_75_;
};

/* For spans, N = 2 leaves registers for the sums of dbias at head_dim 128. */
template <int DIM>
using queries_spans_shape = queries_shape<DIM, 2, 2, 4, 32, DIM == 64>;

template <int DIM, bool SMALL>
struct queries_shapes;
template <int DIM>
struct queries_shapes<DIM, false> {
    using shape = std::conditional_t<DIM <= 80, queries_shape<DIM, 2, 2, 4, 32, true>,
                                     queries_shape<DIM, DIM <= 128 ? 2 : 1, 4, 4, 32, false>>;
    static_assert(shape::OWNED_BYTES + shape::STAGE_BYTES <= BACKWARD_BYTES, "one stage fits");
};
template <int DIM>
struct queries_shapes<DIM, true> {
    using shape = std::conditional_t<DIM <= 128, queries_shape<DIM, DIM == 64 ? 2 : 1, 4, 4, 32, false, true>,
                                     queries_shape<DIM, 1, 2, 2, 16, false, true>>;
    static_assert(shape::OWNED_BYTES + shape::STAGE_BYTES <= BACKWARD_SMALL_BYTES, "one stage fits");
};

/* c += x y^T: x is `held` if HELD, else the 16 M rows at `rows`. */
template <bool HELD, int DIM, int M, int N, class T>
__device__ __forceinline__ void queries_dots(float (&c)[M][N][4], const uint32_t (&held)[DIM / 16][M][4],
                                             const T *rows, const T *y) {
    if constexpr (HELD)
        ot_tile_dots<DIM>(c, held, y);
    else
        ot_tile_dots<DIM>(c, rows, y);
}

/* ---- scores of each op ---- */

/* Multiplies each weight by the derivative of its capped score. A weight of 0 stays 0. query: the lane's
 * first row; distance: see ot_score_bend. */
template <int M, int N>
__device__ __forceinline__ void queries_cap(float (&p)[M][N][4], const struct ot_attention &op,
                                            const ot_score_scale &scale, int head, int query, int distance) {
    if (!(scale.cap > 0.0f))
        return;
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float lse = backward_lse(op, head, query + 16 * m + i / 2 * 8);
                float away = (float)distance + (float)ot_score_step<1>(m, n, i);
                p[m][n][i] *= backward_slope(scale, p[m][n][i], lse, away);
            }
}

/* Spans have no softcap. */
template <int M, int N, int PAD>
__device__ __forceinline__ void queries_cap(float (&)[M][N][4], const struct ot_attend_spans &,
                                            const spans_score<PAD> &, int, int, int) {}

/* The runs of keys of a block (attention_spans.cuh). Causal attention has one run. */
template <class T, class S, class Op>
struct queries_view;

template <class T, class S>
struct queries_view<T, S, struct ot_attention_backward> {
    static constexpr bool HAS_RUNS = false;
    int begin, end, first, end_key; /* the queries of the run, and its keys */

    __device__ __forceinline__ queries_view(const struct ot_attention_backward &op, int, int begin_, int end_,
                                            char *)
        : begin(begin_), end(end_),
          first(ot_attention_keys(op.forward, begin).first / S::VISITED * S::VISITED),
          end_key(end_ + ot_attention_past(op.forward)) {}
    __device__ __forceinline__ bool next(const struct ot_attention_backward &) { return false; }
    __device__ __forceinline__ const struct ot_attention &rows(const struct ot_attention &f) const {
        return f;
    }
    __device__ __forceinline__ ot_score_scale scale(const struct ot_attention &f, int head) const {
        return ot_score_scale(f, head);
    }
};

/* Behind the stages lie the table of biases, and for each warp a histogram and a room. */
template <class T, class S>
struct queries_view<T, S, struct ot_attend_spans_backward> {
    static constexpr bool HAS_RUNS = true;
    static constexpr int PAD = spans_pad(S::M, S::N);
    using slopes = spans_slopes<S::M, S::N>;
    int begin, end, first, end_key, end_block;
    float *table;

    static int bytes(const struct ot_attend_spans &f) {
        return f.bias ? ((1 + S::WARPS) * spans_table_places(f, PAD) + S::WARPS * slopes::ROOM + 1) *
                            (int)sizeof(float)
                      : 0;
    }
    __device__ __forceinline__ queries_view(const struct ot_attend_spans_backward &op, int head, int begin_,
                                            int end_, char *memory)
        : end(begin_), end_block(end_), table(reinterpret_cast<float *>(memory)) {
        spans_make_table<T, S::THREADS>(op.forward, PAD, head, table);
        for (int i = (int)threadIdx.x; op.dbias && i < S::WARPS * places(op); i += S::THREADS)
            histograms(op)[i] = 0.0f;
        next(op);
    }
    __device__ __forceinline__ bool next(const struct ot_attend_spans_backward &op) {
        if (end == end_block)
            return false;
        const spans_run run = spans_run_at(op.forward, end, end_block);
        begin = run.begin, end = run.end, first = run.first, end_key = run.last;
        return true;
    }
    __device__ __forceinline__ spans_rows rows(const struct ot_attend_spans &f) const {
        return {f, begin, end};
    }
    __device__ __forceinline__ spans_score<PAD> scale(const struct ot_attend_spans &f, int) const {
        return spans_score<PAD>(f, table);
    }

    __device__ __forceinline__ int places(const struct ot_attend_spans_backward &op) const {
        return spans_table_places(op.forward, PAD);
    }
    __device__ __forceinline__ float *histograms(const struct ot_attend_spans_backward &op) const {
        return table + places(op);
    }
    /* Adds a piece's ds to the warp's histogram. distance: from the warp's first query to the piece's first
     * key. */
    __device__ __forceinline__ void add_bias(const float (&ds)[S::M][S::N][4],
                                             const struct ot_attend_spans_backward &op, int distance) const {
        const int warp = (int)(ot_thread() / OT_WARP), all = (1 + S::WARPS) * places(op);
        float *room = table + (all + all % 2) + warp * slopes::ROOM; /* aligned to 8 bytes */
        slopes::add(ds, room, histograms(op) + warp * places(op), scale(op.forward, 0).place(distance));
    }
    __device__ __forceinline__ void finish_bias(const struct ot_attend_spans_backward &op, int head,
                                                int block) const {
        const struct ot_attend_spans &f = op.forward;
        spans_finish_bias<PAD, S::WARPS>(f, table, histograms(op),
                                         op.scratch + f.n * f.heads + (block * f.heads + head) * f.buckets);
    }
};

/* ---- one step of a warp ---- */

/* The scores of a step, in p, become weights, times the derivatives of the scores. query, key: the lane's
 * first element; own: the key of that query. Rows: see queries_view. */
template <int M, int N, class Op, class Rows, class Scale>
__device__ __forceinline__ void queries_weights(float (&p)[M][N][4], const Op &op, const Rows &rows,
                                                const Scale &scale, int head, int query, int own, int key,
                                                backward_sight sight) {
    ot_score_bend<1>(p, scale, key - own);
    if (sight == SEES_SOME)
        backward_mask_rows(p, rows, query, key);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float lse = backward_lse(op, head, query + 16 * m + 8 * r);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    p[m][n][i] = ot_exp2_approx(fmaf(p[m][n][i], scale.rest(), -lse));
        }
    queries_cap(p, op, scale, head, query, key - own);
}

/* dout.v in ds becomes ds. query: the lane's first row. */
template <bool HAS_GAPS, int M, int N, class Op>
__device__ __forceinline__ void queries_slopes(float (&ds)[M][N][4], const float (&p)[M][N][4], const Op &op,
                                               int head, int query) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float delta = backward_delta(op, head, query + 16 * m + 8 * r);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    ds[m][n][i] = backward_ds<HAS_GAPS>(p[m][n][i], ds[m][n][i], backward_factor(op), delta);
        }
}

/* ---- the kernel ---- */

__device__ __forceinline__ int queries_kv_head(const struct ot_attention &f, int head) {
    return head / ((int)f.heads / (int)f.kv_heads);
}
__device__ __forceinline__ int queries_kv_head(const struct ot_attend_spans &, int head) {
    return head;
}

/* The number of keys before the key of query 0's own token. */
__device__ __forceinline__ int queries_past(const struct ot_attention &op) {
    return ot_attention_past(op);
}
__device__ __forceinline__ int queries_past(const struct ot_attend_spans &f) {
    return (int)(f.n_keys - f.n);
}

/* Adds one step of a warp to dq. q, dout: the warp's rows; k: the step's keys, whose values lie in the tile
 * behind. query: the warp's first; key: the step's first. */
template <class T, class S, class Op, class View>
__device__ __forceinline__ void
queries_step(float (&dq)[S::M][S::DIM / 8][4], const uint32_t (&held_q)[S::DIM / 16][S::M][4],
             const uint32_t (&held_dout)[S::DIM / 16][S::M][4], const T *q, const T *dout, const T *k,
             const Op &op, const View &view, int head, int query, int key, backward_sight sight) {
    const auto &f = op.forward;
    const T *v = k + S::VISITED * S::DIM;
    float p[S::M][S::N][4], ds[S::M][S::N][4];
    ot_tile_zero(p);
    queries_dots<S::HELD, S::DIM>(p, held_q, q, k);
    const int lane = ot_lane(), lane_query = query + lane / 4;
    queries_weights(p, f, view.rows(f), view.scale(f, head), head, lane_query, lane_query + queries_past(f),
                    key + lane % 4 * 2, sight);
    ot_tile_zero(ds);
    queries_dots<S::HELD, S::DIM>(ds, held_dout, dout, v);
    queries_slopes<View::HAS_RUNS>(ds, p, op, head, lane_query);
    uint32_t rounded[S::M][S::N / 2][4];
    ot_tile_round<T>(rounded, ds);
    if constexpr (View::HAS_RUNS)
        if (op.dbias)
            view.add_bias(ds, op, key - query - queries_past(f));
    ot_tile_weigh<S::DIM>(dq, rounded, k);
}

template <class T, class S, class Op>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS) attention_backward_queries(const Op op, int stages) {
    if (ot_trap_unless_75(S::ONLY_75))
        return;
    using View = queries_view<T, S, Op>;
    const auto &f = op.forward;
    /* In causal attention the last queries see most keys, so the longest blocks start first. */
    int n = (int)f.n, blocks = (n + S::OWNED - 1) / S::OWNED, heads = (int)f.heads;
    int head = backward_block() % heads, begin = (blocks - 1 - backward_block() / heads) * S::OWNED;
    int kv_head = queries_kv_head(f, head), end = begin + S::OWNED < n ? begin + S::OWNED : n;

    T *q = ot_shared<T>(), *dout = q + S::OWNED * S::DIM;
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(q, static_cast<const T *>(f.q) + head * S::DIM, f.ldq, begin,
                                               n);
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(dout, static_cast<const T *>(op.dout) + head * S::DIM, f.ldo,
                                               begin, n);
    const int warp_row = (int)(ot_thread() / OT_WARP) * 16 * S::M, query = begin + warp_row;
    q += warp_row * S::DIM;
    dout += warp_row * S::DIM;
    View view(op, head, begin, end, ot_shared<char>() + S::OWNED_BYTES + stages * S::STAGE_BYTES);
    const backward_source source = {f.k, f.v, f.ldk, f.ldv};
    do {
        backward_ring<T, S, false> ring = {stages,
                                           0,
                                           view.first,
                                           view.end_key,
                                           view.first,
                                           kv_head * S::DIM,
                                           (kv_head + 1) * S::DIM,
                                           2 * S::OWNED * S::DIM};
        for (int i = 0; i < stages - 1; i++)
            ring.copy_next(source); /* q and dout are part of the first group */

        float dq[S::M][S::DIM / 8][4];
        uint32_t held_q[S::DIM / 16][S::M][4], held_dout[S::DIM / 16][S::M][4]; /* used if HELD */
        ot_tile_zero(dq);
        for (int tile_key = view.first; tile_key < view.end_key; tile_key += S::VISITED) {
            const T *tile = ring.next(source);
            if constexpr (S::HELD)
                if (tile_key == view.first) {
                    ot_tile_load<S::DIM>(held_q, q);
                    ot_tile_load<S::DIM>(held_dout, dout);
                }
#pragma unroll 1
            for (int step = 0; step < S::VISITED; step += 8 * S::N) {
                const int key = tile_key + step;
                const backward_sight sight = backward_look(view.rows(f), query, 16 * S::M, key, 8 * S::N);
                if (sight == SEES_NONE)
                    continue;
                queries_step<T, S>(dq, held_q, held_dout, q, dout, tile + step * S::DIM, op, view, head,
                                   query, key, sight);
            }
        }
        if constexpr (View::HAS_RUNS) {
            ot_cp_async_commit(); /* with one stage, q and dout are in no group yet if the run has no keys */
            ot_cp_async_wait<0>();
            __syncthreads(); /* the next run copies into the stages */
            spans_clear(dq, f, query + ot_lane() / 4, f.scale);
        }
        /* computed anew, because all registers are needed while the block walks */
        head = backward_block() % heads;
        if constexpr (View::HAS_RUNS)
            backward_store<S>(static_cast<T *>(op.dq) + head * S::DIM, f.ldq, query, view.begin, view.end, dq,
                              q);
        else
            backward_store<S>(static_cast<T *>(op.dq) + head * S::DIM, f.ldq, query, query, n, dq, q);
    } while (view.next(op));
    if constexpr (View::HAS_RUNS)
        if (op.dbias)
            view.finish_bias(op, head, begin / S::OWNED);
}

/* ---- launch ---- */

/* Number of stages, chosen like forward_stages; one, if shared memory has no room for more. rest: other
 * shared memory of a block, in bytes. */
template <class S>
static int queries_stages(int shared_bytes, int rest) {
    for (int blocks = S::BLOCKS; blocks > 0; blocks--)
        for (int stages = 3; stages >= 2; stages--)
            if (blocks * (S::OWNED_BYTES + stages * S::STAGE_BYTES + rest + 1024) <= shared_bytes + 1024)
                return stages;
    return 1;
}

template <class T, class S, class Op>
static cudaError_t queries_launch(const Op *op, int rest, const struct ot_cuda_stream *on) {
    int stages = queries_stages<S>(on->shared_bytes, rest);
    unsigned grid = (unsigned)(ot_ceil_div(op->forward.n, S::OWNED) * op->forward.heads);
    return ot_launch(attention_backward_queries<T, S, Op>, dim3(grid), dim3(S::THREADS),
                     S::OWNED_BYTES + stages * S::STAGE_BYTES + rest, on->stream, *op, stages);
}

cudaError_t ot_attention_backward_queries(const struct ot_attention_backward *op,
                                          const struct ot_cuda_stream *on) {
    return backward_dispatch(&op->forward, on, [&](auto zero, auto dim, auto small) {
        using S = typename queries_shapes<decltype(dim)::value, decltype(small)::value>::shape;
        return queries_launch<decltype(zero), S>(op, 0, on);
    });
}

cudaError_t ot_attend_spans_backward_queries(const struct ot_attend_spans_backward *op,
                                             const struct ot_cuda_stream *on) {
    return spans_tiled_dispatch(&op->forward, [&](auto zero, auto dim) {
        using T = decltype(zero);
        using S = queries_spans_shape<decltype(dim)::value>;
        int rest = queries_view<T, S, struct ot_attend_spans_backward>::bytes(op->forward);
        OT_CUDA_TRY((queries_launch<T, S>(op, rest, on)));
        return op->dbias ? ot_attend_spans_join_bias(op, S::OWNED, on) : cudaSuccess;
    });
}

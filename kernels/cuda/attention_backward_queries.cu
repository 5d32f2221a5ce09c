/* Attention backward on tensor cores: the kernel that owns queries and sums dq (attention_backward.cuh).
 *
 * A block's warps own 16 M queries each, and walk together over tiles of keys and values. The block's tiles
 * of q and dout stay in shared memory. Where registers allow it, a warp also holds the fragments of its
 * queries and of their dout: then ldmatrix reads them once, not once for each tile. At head_dim 128, dq takes
 * 128 registers, p and ds take 64, and none are left for that. At 96 and 256, those of q alone would fit, but
 * to the last register: on some architectures the compiler spills.
 *
 * Two warps could share 16 M queries as in the kernel of keys: one would compute p, the other ds and dq. At
 * head_dim 128 that moves 512 bytes for three mmas instead of 640. But one warp would have twice the products
 * of the other, and with eight warps on a multiprocessor only four would sum.
 */
#include "kernels/cuda/attention_backward.cuh"

/* HELD: registers hold the owned rows. */
template <int DIM, int M, int N, int WARPS, int VISITED, bool HELD_>
struct queries_shape : backward_shape<DIM, M, N, WARPS, WARPS * 16 * M, VISITED> {
    static constexpr bool HELD = HELD_;
};

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
    using shape = std::conditional_t<DIM <= 128, queries_shape<DIM, DIM == 64 ? 2 : 1, 4, 4, 32, false>,
                                     queries_shape<DIM, 1, 2, 2, 16, false>>;
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

/* Multiplies each weight by the derivative of its capped score. A weight of 0 stays 0. query: of the lane's
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

/* The scores of a step, in p, become weights, times the derivatives of the scores. query, key: of the lane's
 * first element. */
template <int M, int N>
__device__ __forceinline__ void queries_weights(float (&p)[M][N][4], const struct ot_attention &op, int head,
                                                int query, int key, backward_sight sight) {
    const ot_score_scale scale(op, head);
    ot_score_bend<1>(p, scale, key - query);
    if (sight == SEES_SOME)
        backward_mask_rows(p, op, query, key);
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
    queries_cap(p, op, scale, head, query, key - query);
}

/* dout.v in ds becomes ds. query: of the lane's first row. */
template <int M, int N>
__device__ __forceinline__ void queries_slopes(float (&ds)[M][N][4], const float (&p)[M][N][4],
                                               const struct ot_attention_backward &op, int head, int query) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float delta = backward_delta(op, head, query + 16 * m + 8 * r);
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 2 * r; i < 2 * r + 2; i++)
                    ds[m][n][i] = p[m][n][i] * fmaf(ds[m][n][i], op.forward.scale, -delta);
        }
}

template <class T, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attention_backward_queries(const struct ot_attention_backward op, int stages) {
    const struct ot_attention &f = op.forward;
    /* The last queries see most keys, so the longest blocks start first. */
    int n = (int)f.n, blocks = (n + S::OWNED - 1) / S::OWNED, heads = (int)f.heads;
    int head = backward_block() % heads, begin = (blocks - 1 - backward_block() / heads) * S::OWNED;
    int kv_head = head / (heads / (int)f.kv_heads), end = begin + S::OWNED < n ? begin + S::OWNED : n;

    T *q = ot_shared<T>(), *dout = q + S::OWNED * S::DIM;
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(q, static_cast<const T *>(f.q) + head * S::DIM, f.ldq, begin,
                                               n);
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(dout, static_cast<const T *>(op.dout) + head * S::DIM, f.ldo,
                                               begin, n);
    int first = ot_attention_keys(f, begin).first / S::VISITED * S::VISITED;
    const backward_source source = {f.k, f.v, f.ldk, f.ldv};
    backward_ring<T, S, false> ring = {
        stages, 0, first, end, first, kv_head * S::DIM, (kv_head + 1) * S::DIM, 2 * S::OWNED * S::DIM};
    for (int i = 0; i < stages - 1; i++)
        ring.copy_next(source); /* q and dout are part of the first group */

    const int warp_row = (int)(ot_thread() / OT_WARP) * 16 * S::M, query = begin + warp_row;
    q += warp_row * S::DIM;
    dout += warp_row * S::DIM;

    float dq[S::M][S::DIM / 8][4];
    uint32_t held_q[S::DIM / 16][S::M][4], held_dout[S::DIM / 16][S::M][4]; /* used if HELD */
    ot_tile_zero(dq);
    for (int tile_key = first; tile_key < end; tile_key += S::VISITED) {
        const T *tile = ring.next(source);
        if constexpr (S::HELD)
            if (tile_key == first) {
                ot_tile_load<S::DIM>(held_q, q);
                ot_tile_load<S::DIM>(held_dout, dout);
            }
#pragma unroll 1
        for (int step = 0; step < S::VISITED; step += 8 * S::N) {
            const int key = tile_key + step;
            const backward_sight sight = backward_look(f, query, 16 * S::M, key, 8 * S::N);
            if (sight == SEES_NONE)
                continue;
            const T *k = tile + step * S::DIM, *v = k + S::VISITED * S::DIM;
            float p[S::M][S::N][4], ds[S::M][S::N][4];
            ot_tile_zero(p);
            queries_dots<S::HELD, S::DIM>(p, held_q, q, k);
            const int lane = ot_lane(), lane_query = query + lane / 4;
            queries_weights(p, f, head, lane_query, key + lane % 4 * 2, sight);
            ot_tile_zero(ds);
            queries_dots<S::HELD, S::DIM>(ds, held_dout, dout, v);
            queries_slopes(ds, p, op, head, lane_query);
            uint32_t rounded[S::M][S::N / 2][4];
            ot_tile_round<T>(rounded, ds);
            ot_tile_weigh<S::DIM>(dq, rounded, k);
        }
    }
    /* computed anew, because all registers are needed while the block walks */
    head = backward_block() % heads;
    backward_store<S>(static_cast<T *>(op.dq) + head * S::DIM, f.ldq, query, n, dq, q);
}

/* ---- launch ---- */

/* Number of stages, chosen like forward_stages; one, if shared memory has no room for more. */
template <class S>
static int queries_stages(int shared_bytes) {
    for (int blocks = S::BLOCKS; blocks > 0; blocks--)
        for (int stages = 3; stages >= 2; stages--)
            if (blocks * (S::OWNED_BYTES + stages * S::STAGE_BYTES + 1024) <= shared_bytes + 1024)
                return stages;
    return 1;
}

cudaError_t ot_attention_backward_queries(const struct ot_attention_backward *op,
                                          const struct ot_cuda_stream *on) {
    return backward_dispatch(&op->forward, on, [&](auto zero, auto dim, auto small) {
        using T = decltype(zero);
        using S = typename queries_shapes<decltype(dim)::value, decltype(small)::value>::shape;
        int stages = queries_stages<S>(on->shared_bytes);
        unsigned grid = (unsigned)(ot_ceil_div(op->forward.n, S::OWNED) * op->forward.heads);
        return ot_launch(attention_backward_queries<T, S>, dim3(grid), dim3(S::THREADS),
                         S::OWNED_BYTES + stages * S::STAGE_BYTES, on->stream, *op, stages);
    });
}

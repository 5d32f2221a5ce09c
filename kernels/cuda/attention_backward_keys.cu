/* Attention backward on tensor cores: the kernel that owns keys and sums dk and dv (attention_backward.cuh).
 *
 * TWO WARPS SHARE KEYS. A block's warps form teams of two. A team owns 16 M keys, and each of its warps has
 * one of the two sums:
 *
 *     the warp of the values    holds the fragments of k:    p = exp(k q^T - lse)     dv += p dout
 *     the warp of the keys      holds the fragments of v:    ds = p (v dout^T - delta) scale     dk += ds q
 *
 * So a warp's registers hold one sum and one owned tile over the whole walk, and M can be twice as large as
 * in a warp with both sums: every fragment that ldmatrix reads serves twice as many products. At head_dim 256
 * one warp cannot hold both sums at all. The warp of the values hands p to the other in fp32, through shared
 * memory, one fragment as 16 bytes of each lane: lane l reads its own bytes, so no other layout is needed and
 * no two lanes meet in a bank. The warp of the keys has its dout.v ready before p is. Both warps have two
 * products of the same size for each step, and each scheduler has one or two warps of each kind.
 *
 * Per step, a team meets once, at its own barrier, when p is written. Two rooms for p alternate. The first of
 * them is written again after the next meeting, which the reader joins after it has read.
 *
 * What else was counted, at head_dim 128, in bytes for the four mmas of this kernel (here 640):
 *
 *     one warp with both sums, M = 1, N = 4 (384 + 384 + 256 + 256)                              1280
 *     the same with k and v in registers: 64 more registers, but none is left                    1024
 *     two warps with one half of head_dim of both sums each, M = 2, N = 4. Each warp computes
 *     p and ds for half of the queries, and hands both to the other, rounded                      896
 *     two warps with one sum each; each computes p and ds for half of the queries                 832
 *
 * A warp with both sums could make the transposed fragments of q and dout from the plain ones with movmatrix,
 * without a second ldmatrix. But it would keep the plain fragments until p is known, in 8 N head_dim / 32
 * registers. Here, a warp reads q and dout once each.
 *
 * AFTER THE OWNED TILES ARE IN REGISTERS, their place in shared memory is free. Where shared memory is short,
 * the rooms and the ring begin there (`apart` is false); otherwise they lie behind it, and the first stage is
 * on its way together with the owned tiles. At the end, the results are stored through the same place.
 */
#include "kernels/cuda/attention_backward.cuh"

/* ONLY_75: see ot_trap_unless_75. */
template <int DIM, int M, int WARPS, int VISITED, bool ONLY_75_>
struct keys_shape : backward_shape<DIM, M, 2, WARPS, WARPS / 2 * 16 * M, VISITED> {
    static constexpr bool ONLY_75 = ONLY_75_;
    static constexpr int TEAMS = WARPS / 2;
    /* A room has a float4 for each lane, fragment and team. */
    static constexpr int ROOM = M * 2 * OT_WARP, ROOMS_BYTES = 2 * TEAMS * ROOM * 16;
};

template <int DIM, bool SMALL>
struct keys_shapes {
    static constexpr int VISITED = (DIM == 256 ? 32 : 64) / (SMALL ? 2 : 1);
    using shape = std::conditional_t<DIM == 64, keys_shape<DIM, 3, 4, VISITED, SMALL>,
                                     keys_shape<DIM, DIM <= 128 ? 2 : 1, 8, VISITED, SMALL>>;
    static_assert(shape::ROOMS_BYTES + shape::STAGE_BYTES <=
                          (SMALL ? BACKWARD_SMALL_BYTES : BACKWARD_BYTES) &&
                      shape::OWNED_BYTES <= (SMALL ? BACKWARD_SMALL_BYTES : BACKWARD_BYTES),
                  "one stage fits");
};

/* Number of the calling warp's team. */
template <class S>
__device__ __forceinline__ int keys_team() {
    return (int)(ot_thread() / OT_WARP % S::TEAMS);
}

/* ---- one step of a team ---- */

/* Multiplies each weight in the room by the derivative of its capped score. A weight of 0 stays 0. The loop
 * is not unrolled, because it works without the registers of s. query, distance: the lane's first element. */
template <int M, int N>
__device__ __forceinline__ void keys_cap(float4 *room, const struct ot_attention &op,
                                         const ot_score_scale &scale, int head, int query, int distance) {
#pragma unroll 1
    for (int at = 0; at < M * N; at++) {
        const int column = at % N * 8;
        const float away = (float)(distance + at / N * 16 - column);
        const float first = backward_lse(op, head, query + column),
                    second = backward_lse(op, head, query + column + 1);
        float4 p = room[at * OT_WARP];
        p.x *= backward_slope(scale, p.x, first, away);
        p.y *= backward_slope(scale, p.y, second, away - 1.0f);
        p.z *= backward_slope(scale, p.z, first, away + 8.0f);
        p.w *= backward_slope(scale, p.w, second, away + 7.0f);
        room[at * OT_WARP] = p;
    }
}

/* Spans have no softcap. */
template <int M, int N, int PAD>
__device__ __forceinline__ void keys_cap(float4 *, const struct ot_attend_spans &, const spans_score<PAD> &,
                                         int, int, int) {}

/* The warp of the values: the scores in s become weights. `rounded` gets them, and the room gets them times
 * the derivatives of the scores. query, key: the lane's first element; own: the key of that query. */
template <class T, int M, int N, class Op, class Scale>
__device__ __forceinline__ void keys_weights(uint32_t (&rounded)[M][N / 2][4], float (&s)[M][N][4],
                                             float4 *room, const Op &op, const Scale &scale, int head,
                                             int query, int own, int key, backward_sight sight) {
    ot_score_bend<-1>(s, scale, key - own);
    if (sight == SEES_SOME)
        backward_mask_columns(s, op, query, key);
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float lse = backward_lse(op, head, query + 8 * n + c);
#pragma unroll
            for (int m = 0; m < M; m++)
#pragma unroll
                for (int i = c; i < 4; i += 2)
                    s[m][n][i] = ot_exp2_approx(fmaf(s[m][n][i], scale.rest(), -lse));
        }
    ot_tile_round<T>(rounded, s);
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
            room[(m * N + n) * OT_WARP] = make_float4(s[m][n][0], s[m][n][1], s[m][n][2], s[m][n][3]);
    if (scale.cap > 0.0f)
        keys_cap<M, N>(room, op, scale, head, query, key - own);
}

/* The warp of the keys: dout.v in s becomes ds; `rounded` gets it. delta: the columns'. */
template <class T, bool HAS_GAPS, int M, int N>
__device__ __forceinline__ void keys_slopes(uint32_t (&rounded)[M][N / 2][4], float (&s)[M][N][4],
                                            const float4 *room, const float (&delta)[N][2], float factor) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float4 p = room[(m * N + n) * OT_WARP];
            s[m][n][0] = backward_ds<HAS_GAPS>(p.x, s[m][n][0], factor, delta[n][0]);
            s[m][n][1] = backward_ds<HAS_GAPS>(p.y, s[m][n][1], factor, delta[n][1]);
            s[m][n][2] = backward_ds<HAS_GAPS>(p.z, s[m][n][2], factor, delta[n][0]);
            s[m][n][3] = backward_ds<HAS_GAPS>(p.w, s[m][n][3], factor, delta[n][1]);
        }
    ot_tile_round<T>(rounded, s);
}

/* ---- the visited queries of a block ---- */

/* The elements between tokens in dk and dv, and the key of their first token. */
struct keys_results {
    int64_t lddk, lddv;
    int first;
};

/* The visited queries of a block, and how it makes scores of them, for each op. table: the biases, behind the
 * stages. */
template <class T, class S, class Op>
struct keys_view;

template <class T, class S>
struct keys_view<T, S, struct ot_attention_backward> {
    static constexpr bool IS_OF_SPANS = false;
    using source = backward_source;
    int first, end; /* queries */

    __device__ __forceinline__ keys_view(const struct ot_attention_backward &op, int, int begin, float *)
        : first(ot_attention_first_query(op.forward, begin)),
          end(ot_attention_end_query(op.forward, begin, min(begin + S::OWNED, keys(op.forward)))) {}
    __device__ __forceinline__ source visited(const struct ot_attention_backward &op, int) const {
        return {op.forward.q, op.dout, op.forward.ldq, op.forward.ldo};
    }
    __device__ __forceinline__ ot_score_scale scale(const struct ot_attention &f, int head) const {
        return ot_score_scale(f, head);
    }
    __device__ static __forceinline__ int past(const struct ot_attention &f) { return ot_attention_past(f); }
    __host__ __device__ static __forceinline__ int kv_heads(const struct ot_attention &f) {
        return (int)f.kv_heads;
    }
    __host__ __device__ static __forceinline__ int keys(const struct ot_attention &f) {
        return (int)f.n_keys;
    }
    __device__ static __forceinline__ keys_results results(const struct ot_attention_backward &op) {
        return {op.lddk, op.lddv, ot_attention_past(op.forward)};
    }
};

template <class T, class S>
struct keys_view<T, S, struct ot_attend_spans_backward> {
    static constexpr bool IS_OF_SPANS = true;
    static constexpr int PAD = spans_pad(S::M, S::N);
    using source = backward_watchers;
    int first, end;
    bool has_holes;
    const float *table;

    __device__ __forceinline__ keys_view(const struct ot_attend_spans_backward &op, int head, int begin,
                                         float *table_)
        : table(table_) {
        const spans_watchers all =
            spans_find_watchers<S::THREADS>(op.forward, begin, begin + S::OWNED, ot_shared<int>());
        first = all.first, end = all.end, has_holes = all.has_holes;
        spans_make_table<T, S::THREADS>(op.forward, PAD, head, table_);
    }
    __device__ __forceinline__ source visited(const struct ot_attend_spans_backward &op, int begin) const {
        return {{op.forward.q, op.dout, op.forward.ldq, op.forward.ldo},
                op.forward,
                begin,
                begin + S::OWNED,
                has_holes};
    }
    __device__ __forceinline__ spans_score<PAD> scale(const struct ot_attend_spans &f, int) const {
        return spans_score<PAD>(f, table);
    }
    __device__ static __forceinline__ int past(const struct ot_attend_spans &f) {
        return (int)(f.n_keys - f.n);
    }
    __host__ __device__ static __forceinline__ int kv_heads(const struct ot_attend_spans &f) {
        return (int)f.heads;
    }
    __host__ __device__ static __forceinline__ int keys(const struct ot_attend_spans &f) {
        return (int)f.n_keys;
    }
    __device__ static __forceinline__ keys_results results(const struct ot_attend_spans_backward &op) {
        return {op.forward.ldk, op.forward.ldv, 0};
    }
};

/* Both warps: makes the left operand of the step's sum, `rounded`, from the products in s. room: the lane's
 * own. */
template <class T, class S, class View, class Op>
__device__ __forceinline__ void
keys_exchange(uint32_t (&rounded)[S::M][S::N / 2][4], float (&s)[S::M][S::N][4], float4 *room, bool values,
              const Op &op, const View &view, int head, int query, int key, backward_sight sight) {
    if (values) {
        keys_weights<T>(rounded, s, room, op.forward, view.scale(op.forward, head), head, query,
                        query + View::past(op.forward), key, sight);
        ot_barrier_sync(1 + keys_team<S>(), 2 * OT_WARP);
    } else {
        float delta[S::N][2];
#pragma unroll
        for (int n = 0; n < S::N; n++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                delta[n][c] = backward_delta(op, head, query + 8 * n + c);
        ot_barrier_sync(1 + keys_team<S>(), 2 * OT_WARP);
        keys_slopes<T, View::IS_OF_SPANS>(rounded, s, room, delta, backward_factor(op));
    }
}

/* ---- the kernel ---- */

/* The place of the table of biases: behind the stages and the owned tiles. */
template <class S>
__host__ __device__ __forceinline__ int keys_table(int stages, bool apart) {
    int walk = (apart ? S::OWNED_BYTES : 0) + S::ROOMS_BYTES + stages * S::STAGE_BYTES;
    return walk > S::OWNED_BYTES ? walk : S::OWNED_BYTES;
}

template <int M, int D>
__device__ __forceinline__ void keys_scale(float (&sum)[M][D][4], float factor) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int d = 0; d < D; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[m][d][i] *= factor;
}

/* Copies the owned tiles and prepares the ring. Returns when `own` holds the fragments of the warp's tile. n:
 * the number of keys. */
template <class T, class S, class Source, class Op>
__device__ __forceinline__ void
keys_begin(uint32_t (&own)[S::DIM / 16][S::M][4], backward_ring<T, S, true> &ring, const Source &source,
           const Op &op, int n, int kv_head, int begin, bool values, bool apart) {
    T *k = ot_shared<T>(), *v = k + S::OWNED * S::DIM;
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(k, static_cast<const T *>(op.k) + kv_head * S::DIM, op.ldk,
                                               begin, n);
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(v, static_cast<const T *>(op.v) + kv_head * S::DIM, op.ldv,
                                               begin, n);
    if (apart)
        for (int i = 0; i < ring.stages - 1; i++)
            ring.copy_next(source);
    ot_cp_async_commit();
    ot_cp_async_wait<0>();
    __syncthreads();
    ot_tile_load<S::DIM>(own, (values ? k : v) + keys_team<S>() * 16 * S::M * S::DIM);
    if (!apart) {
        __syncthreads();
        for (int i = 0; i < ring.stages - 1; i++)
            ring.copy_next(source);
    }
}

template <class T, class S, class Op>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attention_backward_keys(const Op op, int stages, bool apart) {
    if (ot_trap_unless_75(S::ONLY_75))
        return;
    using View = keys_view<T, S, Op>;
    const auto &f = op.forward;
    /* In causal attention the first keys are seen by most queries, so the longest blocks start first. */
    int n = View::keys(f), kv_heads = View::kv_heads(f), group = (int)f.heads / kv_heads;
    int kv_head = backward_block() % kv_heads, begin = backward_block() / kv_heads * S::OWNED;
    const bool values = threadIdx.x < S::THREADS / 2;

    const int rooms = apart ? S::OWNED_BYTES : 0;
    const View view(op, kv_head, begin,
                    reinterpret_cast<float *>(ot_shared<char>() + keys_table<S>(stages, apart)));
    if constexpr (!View::IS_OF_SPANS)
        if (view.first == view.end)
            return; /* no query sees these keys: they lie before a section of a row */
    const typename View::source source = view.visited(op, begin);
    backward_ring<T, S, true> ring = {stages,
                                      0,
                                      view.first,
                                      view.end,
                                      view.first,
                                      kv_head * group * S::DIM,
                                      (kv_head + (view.first < view.end)) * group * S::DIM, /* or nothing */
                                      (rooms + S::ROOMS_BYTES) / (int)sizeof(T)};
    uint32_t own[S::DIM / 16][S::M][4];
    keys_begin<T, S>(own, ring, source, f, n, kv_head, begin, values, apart);

    float sum[S::M][S::DIM / 8][4];
    ot_tile_zero(sum);
    int room = 0;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int first = view.first; first < view.end; first += S::VISITED) {
            const T *tile = ring.next(source);
            const int key = begin + keys_team<S>() * 16 * S::M;
            const backward_sight most = backward_look(f, first, S::VISITED, key, 16 * S::M);
            if (most == SEES_NONE)
                continue;
#pragma unroll 1
            for (int query = first; query < first + S::VISITED;
                 query += 8 * S::N, tile += 8 * S::N * S::DIM) {
                backward_sight sight = most;
                if (most == SEES_SOME)
                    sight = backward_look(f, query, 8 * S::N, key, 16 * S::M);
                if (sight == SEES_NONE)
                    continue;
                const T *q = tile, *dout = tile + S::VISITED * S::DIM;
                float s[S::M][S::N][4];
                uint32_t rounded[S::M][S::N / 2][4];
                ot_tile_zero(s);
                ot_tile_dots<S::DIM>(s, own, values ? q : dout);
                const int lane = ot_lane(), at = (room * S::TEAMS + keys_team<S>()) * S::ROOM + lane;
                keys_exchange<T, S>(rounded, s, reinterpret_cast<float4 *>(ot_shared<char>() + rooms) + at,
                                    values, op, view, head, query + lane % 4 * 2, key + lane / 4, sight);
                room ^= 1;
                ot_tile_weigh<S::DIM>(sum, rounded, values ? dout : q);
            }
        }

    __syncthreads();
    if constexpr (View::IS_OF_SPANS)
        keys_scale(sum, values ? 1.0f : f.scale);
    kv_head = backward_block() % kv_heads;
    T *owned = ot_shared<T>() + keys_team<S>() * 16 * S::M * S::DIM;
    const int key = backward_block() / kv_heads * S::OWNED + keys_team<S>() * 16 * S::M;
    if constexpr (!View::IS_OF_SPANS)
        if (op.dk_sums)
            ot_tile_add_stored(sum, (values ? op.dv_sums : op.dk_sums) + kv_head * S::DIM, f, key);
    const keys_results to = View::results(op);
    if (values)
        backward_store<S>(static_cast<T *>(op.dv) + kv_head * S::DIM, to.lddv, key - to.first, 0,
                          n - to.first, sum, owned + S::OWNED * S::DIM);
    else
        backward_store<S>(static_cast<T *>(op.dk) + kv_head * S::DIM, to.lddk, key - to.first, 0,
                          n - to.first, sum, owned);
}

/* ---- launch ---- */

/* The shared memory of a block. */
struct keys_memory {
    int bytes, stages;
    bool apart;
};

/* Two stages suffice, because a tile's products take several times as long as its copy. rest: other shared
 * memory of a block, in bytes. */
template <class S>
static keys_memory keys_memory_of(int shared_bytes, int rest) {
    for (int blocks = S::BLOCKS; blocks > 0; blocks--)
        for (int apart = 1; apart >= 0; apart--) {
            int bytes = keys_table<S>(2, apart) + rest;
            if (blocks * (bytes + 1024) <= shared_bytes + 1024)
                return {bytes, 2, apart == 1};
        }
    return {keys_table<S>(1, false) + rest, 1, false};
}

template <class T, class S, class Op>
static cudaError_t keys_launch(const Op *op, int rest, const struct ot_cuda_stream *on) {
    using View = keys_view<T, S, Op>;
    const keys_memory memory = keys_memory_of<S>(on->shared_bytes, rest);
    unsigned grid = (unsigned)(ot_ceil_div(View::keys(op->forward), S::OWNED) * View::kv_heads(op->forward));
    return ot_launch(attention_backward_keys<T, S, Op>, dim3(grid), dim3(S::THREADS), memory.bytes,
                     on->stream, *op, memory.stages, memory.apart);
}

cudaError_t ot_attention_backward_keys(const struct ot_attention_backward *op,
                                       const struct ot_cuda_stream *on) {
    return backward_dispatch(&op->forward, on, [&](auto zero, auto dim, auto small) {
        using S = typename keys_shapes<decltype(dim)::value, decltype(small)::value>::shape;
        return keys_launch<decltype(zero), S>(op, 0, on);
    });
}

cudaError_t ot_attend_spans_backward_keys(const struct ot_attend_spans_backward *op,
                                          const struct ot_cuda_stream *on) {
    return spans_tiled_dispatch(&op->forward, [&](auto zero, auto dim) {
        using S = typename keys_shapes<decltype(dim)::value, false>::shape;
        int rest = spans_table_places(op->forward, spans_pad(S::M, S::N)) * (int)sizeof(float);
        return keys_launch<decltype(zero), S>(op, rest, on);
    });
}

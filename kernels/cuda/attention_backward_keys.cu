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
 * memory, one fragment as 16 bytes of each lane: lane l reads what lane l has written, so no other layout is
 * needed and no two lanes meet in a bank. The warp of the keys has its dout.v ready before p is. Both warps
 * have two products of the same size for each step, and each scheduler has one or two warps of each kind.
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

template <int DIM, int M, int WARPS, int VISITED>
struct keys_shape : backward_shape<DIM, M, 2, WARPS, WARPS / 2 * 16 * M, VISITED> {
    static constexpr int TEAMS = WARPS / 2;
    /* A room has a float4 for each lane, fragment and team. */
    static constexpr int ROOM = M * 2 * OT_WARP, ROOMS_BYTES = 2 * TEAMS * ROOM * 16;
};

template <int DIM, bool SMALL>
struct keys_shapes {
    static constexpr int VISITED = (DIM == 256 ? 32 : 64) / (SMALL ? 2 : 1);
    using shape = std::conditional_t<DIM == 64, keys_shape<DIM, 3, 4, VISITED>,
                                     keys_shape<DIM, DIM <= 128 ? 2 : 1, 8, VISITED>>;
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
 * is not unrolled, because it works without the registers of s. query, distance: of the first element of the
 * lane. */
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

/* The warp of the values: the scores in s become weights. `rounded` gets them, and the room gets them times
 * the derivatives of the scores. query, key: of the lane's first element. */
template <class T, int M, int N>
__device__ __forceinline__ void keys_weights(uint32_t (&rounded)[M][N / 2][4], float (&s)[M][N][4],
                                             float4 *room, const struct ot_attention &op, int head, int query,
                                             int key, backward_sight sight) {
    const ot_score_scale scale(op, head);
    ot_score_bend<-1>(s, scale, key - query);
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
        keys_cap<M, N>(room, op, scale, head, query, key - query);
}

/* The warp of the keys: dout.v in s becomes ds; `rounded` gets it. delta: of the columns. */
template <class T, int M, int N>
__device__ __forceinline__ void keys_slopes(uint32_t (&rounded)[M][N / 2][4], float (&s)[M][N][4],
                                            const float4 *room, const float (&delta)[N][2], float scale) {
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++) {
            float4 p = room[(m * N + n) * OT_WARP];
            s[m][n][0] = p.x * fmaf(s[m][n][0], scale, -delta[n][0]);
            s[m][n][1] = p.y * fmaf(s[m][n][1], scale, -delta[n][1]);
            s[m][n][2] = p.z * fmaf(s[m][n][2], scale, -delta[n][0]);
            s[m][n][3] = p.w * fmaf(s[m][n][3], scale, -delta[n][1]);
        }
    ot_tile_round<T>(rounded, s);
}

/* Both warps: makes the left operand of the step's sum, `rounded`, from the products in s. room: the lane's
 * own. */
template <class T, class S>
__device__ __forceinline__ void
keys_exchange(uint32_t (&rounded)[S::M][S::N / 2][4], float (&s)[S::M][S::N][4], float4 *room, bool values,
              const struct ot_attention_backward &op, int head, int query, int key, backward_sight sight) {
    if (values) {
        keys_weights<T>(rounded, s, room, op.forward, head, query, key, sight);
        ot_barrier_sync(1 + keys_team<S>(), 2 * OT_WARP);
    } else {
        float delta[S::N][2];
#pragma unroll
        for (int n = 0; n < S::N; n++)
#pragma unroll
            for (int c = 0; c < 2; c++)
                delta[n][c] = backward_delta(op, head, query + 8 * n + c);
        ot_barrier_sync(1 + keys_team<S>(), 2 * OT_WARP);
        keys_slopes<T>(rounded, s, room, delta, op.forward.scale);
    }
}

/* ---- the kernel ---- */

/* Copies the owned tiles and prepares the ring. Returns when `own` holds the fragments of the warp's tile. */
template <class T, class S>
__device__ __forceinline__ void keys_begin(uint32_t (&own)[S::DIM / 16][S::M][4],
                                           backward_ring<T, S, true> &ring, const backward_source &source,
                                           const struct ot_attention &op, int kv_head, int begin, bool values,
                                           bool apart) {
    T *k = ot_shared<T>(), *v = k + S::OWNED * S::DIM;
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(k, static_cast<const T *>(op.k) + kv_head * S::DIM, op.ldk,
                                               begin, (int)op.n);
    ot_tile_copy<S::OWNED, S::DIM, S::THREADS>(v, static_cast<const T *>(op.v) + kv_head * S::DIM, op.ldv,
                                               begin, (int)op.n);
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

template <class T, class S>
__global__ void __launch_bounds__(S::THREADS, S::BLOCKS)
    attention_backward_keys(const struct ot_attention_backward op, int stages, bool apart) {
    const struct ot_attention &f = op.forward;
    /* The first keys are seen by most queries, so the longest blocks start first. */
    int n = (int)f.n, kv_heads = (int)f.kv_heads, group = (int)f.heads / kv_heads;
    int kv_head = backward_block() % kv_heads, begin = backward_block() / kv_heads * S::OWNED;
    int end_query = ot_attention_end_query(f, begin, begin + S::OWNED < n ? begin + S::OWNED : n);
    const bool values = threadIdx.x < S::THREADS / 2;

    const int rooms = apart ? S::OWNED_BYTES : 0;
    const backward_source source = {f.q, op.dout, f.ldq, f.ldo};
    backward_ring<T, S, true> ring = {stages,
                                      0,
                                      begin,
                                      end_query,
                                      begin,
                                      kv_head * group * S::DIM,
                                      (kv_head + 1) * group * S::DIM,
                                      (rooms + S::ROOMS_BYTES) / (int)sizeof(T)};
    uint32_t own[S::DIM / 16][S::M][4];
    keys_begin<T, S>(own, ring, source, f, kv_head, begin, values, apart);

    float sum[S::M][S::DIM / 8][4];
    ot_tile_zero(sum);
    int room = 0;
    for (int head = kv_head * group; head < (kv_head + 1) * group; head++)
        for (int first = begin; first < end_query; first += S::VISITED) {
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
                                    values, op, head, query + lane % 4 * 2, key + lane / 4, sight);
                room ^= 1;
                ot_tile_weigh<S::DIM>(sum, rounded, values ? dout : q);
            }
        }

    __syncthreads();
    kv_head = backward_block() % kv_heads;
    T *owned = ot_shared<T>() + keys_team<S>() * 16 * S::M * S::DIM;
    const int key = backward_block() / kv_heads * S::OWNED + keys_team<S>() * 16 * S::M;
    if (values)
        backward_store<S>(static_cast<T *>(op.dv) + kv_head * S::DIM, f.ldv, key, n, sum,
                          owned + S::OWNED * S::DIM);
    else
        backward_store<S>(static_cast<T *>(op.dk) + kv_head * S::DIM, f.ldk, key, n, sum, owned);
}

/* ---- launch ---- */

/* How a block uses shared memory. */
struct keys_memory {
    int bytes, stages;
    bool apart;
};

/* Two stages suffice, because a tile's products take several times as long as its copy. */
template <class S>
static keys_memory keys_memory_of(int shared_bytes) {
    int walk = S::ROOMS_BYTES + 2 * S::STAGE_BYTES, apart = S::OWNED_BYTES + walk;
    int least = walk > S::OWNED_BYTES ? walk : S::OWNED_BYTES;
    for (int blocks = S::BLOCKS; blocks > 0; blocks--) {
        if (blocks * (apart + 1024) <= shared_bytes + 1024)
            return {apart, 2, true};
        if (blocks * (least + 1024) <= shared_bytes + 1024)
            return {least, 2, false};
    }
    walk -= S::STAGE_BYTES;
    return {walk > S::OWNED_BYTES ? walk : S::OWNED_BYTES, 1, false};
}

cudaError_t ot_attention_backward_keys(const struct ot_attention_backward *op,
                                       const struct ot_cuda_stream *on) {
    return backward_dispatch(&op->forward, on, [&](auto zero, auto dim, auto small) {
        using T = decltype(zero);
        using S = typename keys_shapes<decltype(dim)::value, decltype(small)::value>::shape;
        const keys_memory memory = keys_memory_of<S>(on->shared_bytes);
        unsigned grid = (unsigned)(ot_ceil_div(op->forward.n, S::OWNED) * op->forward.kv_heads);
        return ot_launch(attention_backward_keys<T, S>, dim3(grid), dim3(S::THREADS), memory.bytes,
                         on->stream, *op, memory.stages, memory.apart);
    });
}

/* Attention forward on the tensor cores of compute capability 9.0 (ptx_hopper.cuh), for heads of 64 and 128
 * elements. The softmax is that of attention_softmax.cuh, and warps own rows as in attention_forward.cu. The
 * division of labour is that of Shah et al., "FlashAttention-3", 2024: one warpgroup copies, two multiply.
 *
 * A block computes 128 queries of one head and walks over tiles of 128 keys. The warpgroup that copies sends
 * tiles of keys and of values alternately through a ring in shared memory. The other two have 64 queries
 * each. While the tensor cores add P V of one tile, a warpgroup computes the softmax of the next:
 *
 *     s = q K0^T                                       p = softmax(s)
 *     start s = q K1^T, start sum += p V0, wait for s, softmax(s), wait for sum, p = s
 *     ...
 *     sum += p V
 *
 * The two warpgroups also overlap with each other, as the hardware schedules them.
 *
 * ALTERNATIVES that this kernel does not use. Copies are cp.async, not the tensor memory accelerator: four
 * warps copy a tile with 150 instructions each, in exactly the swizzle that wgmma reads (ot_tile<64>). The
 * accelerator would need a tensor map from the driver for each operand and launch. q stays in registers: as
 * an operand in shared memory it would add 16 bytes a clock to the traffic below. No barrier makes the two
 * warpgroups take turns.
 *
 * DETERMINISM. One warp owns a row of the result and takes the tiles in order. Tiles begin at multiples of
 * KEYS. So the bits depend on what attention_forward.cu says. They differ from the bits of that kernel,
 * because its tiles are smaller and its reference rises at other keys.
 *
 * A warpgroup skips tiles that none of its queries sees. So what attention_forward.cu says about keys and
 * values that are not finite is true for tiles of 128 keys.
 *
 * COST for one tile of keys and of values, head_dim 128, both warpgroups (128 x 128 x 128 x 2 multiply-adds),
 * counted. Measured on an H100 with heads of 128, causal: 480 TFLOP/s for 4096 tokens, 555 for 16384.
 *
 *     tensor cores         32 wgmma of 64x128x16, 64 clocks each at 2048 multiply-adds a clock    2048 clocks
 *     shared memory        32 x 4 KiB of operands + 64 KiB of copies, at 128 bytes a clock        1536
 *     special functions    128 x 128 exponentials, 16 a clock                                     1024
 *     issue of a scheduler 2 warps with 450 instructions each, 1 warp with 300 for the copies     1200
 *
 * (450: without masks, slopes and risen references, which most tiles do not need; the loop has 880 with
 * them, and 1100 more for a softcap.) So the tensor cores are the limit. If both warpgroups run in step,
 * the exponentials of both run beside p V of both (1024 clocks each). A block begins with a copy that
 * nothing covers and ends with a store. L2 delivers 64 KiB for each 2^23 FLOP, 128 FLOP a byte, as in
 * attention_forward.cu.
 */
#include "kernels/cuda/attention_hopper.cuh"
#include "kernels/cuda/attention_softmax.cuh"

/* The build defines OT_HOPPER if it compiles this file for sm_90a. Otherwise other kernels replace it. */
#if defined(OT_HOPPER) || defined(OT_EMU)

/* ---- sizes ---- */

template <int HEAD_DIM>
struct hopper_shape {
    static constexpr int DIM = HEAD_DIM, M = 1, N = 16; /* a warp's, for attention_softmax.cuh */
    static constexpr int KEYS = 8 * N;
    /* Item 2 i of the ring is the i-th tile of keys, item 2 i + 1 the i-th tile of values. */
    static constexpr int STAGES = 6, SLOT_BYTES = KEYS * DIM * 2;
    static constexpr int OWNED_BYTES = HOPPER_ROWS * DIM * 2; /* queries */
};

/* ---- the warpgroup that copies ---- */

/* Fills the ring. A tile is announced when LAG more have been started, so that LAG to LAG + 1 tiles are on
 * their way. The ring is deeper than that, so that the announcement never waits for a slot that depends on
 * it. */
template <class T, class S>
__device__ __forceinline__ void hopper_copy(const struct ot_attention &op, const hopper_room<T, S> &room,
                                            int head, int query, hopper_span keys) {
    constexpr int LAG = 2;
    static_assert(LAG + 3 < S::STAGES + 1, "the multiplying warps hold up to three tiles");
    int kv_head = head / (int)(op.heads / op.kv_heads);
    const T *k = static_cast<const T *>(op.k) + kv_head * S::DIM;
    const T *v = static_cast<const T *>(op.v) + kv_head * S::DIM;
    ot_tile_copy<HOPPER_ROWS, S::DIM, HOPPER_GROUP>(room.owned, static_cast<const T *>(op.q) + head * S::DIM,
                                                    op.ldq, query, (int)op.n);
    hopper_place<S, 1> next(0), oldest(0);
    int tiles = 2 * ((keys.end - keys.first + S::KEYS - 1) / S::KEYS);
#pragma unroll 1
    for (int i = 0; i < tiles + LAG; i++) {
        if (i < tiles) {
            ot_mbarrier_wait(room.empty + next.slot, next.parity ^ 1);
            hopper_copy_tile<S::KEYS, S::DIM>(room.slot(next.slot), i % 2 ? v : k, i % 2 ? op.ldv : op.ldk,
                                              keys.first + i / 2 * S::KEYS, keys.end);
            next.advance();
        }
        ot_cp_async_commit(); /* also an empty group, because the wait counts groups */
        if (i >= LAG) {
            ot_cp_async_wait<LAG>();
            ot_fence_proxy_async();
            hopper_arrive(room.full + oldest.slot);
            oldest.advance();
        }
    }
}

/* ---- a warpgroup that multiplies ---- */

/* The state of a multiplying warp: its rows, and its next tiles of keys and of values. */
template <class T, class S>
struct hopper_warp {
    const struct ot_attention &op;
    const hopper_room<T, S> &room;
    const ot_score_scale scale;
    int row, query; /* the warp's first row in the block, and its query */
    int common;     /* the first key that all of its queries see; behind all keys if it has less than 16 */
    hopper_place<S, 2> keys, values;
    ot_softmax_rows<S> rows;

    __device__ __forceinline__ hopper_warp(const struct ot_attention &op_, const hopper_room<T, S> &room_,
                                           int head, int block_query)
        : op(op_), room(room_), scale(op_, head), row(hopper_warp_row()), query(block_query + row),
          common(ot_attention_keys(op_, query + 15).first), keys(0), values(1),
          rows(static_cast<const T *>(op_.sinks), head) {}

    __device__ __forceinline__ const T *take(const hopper_place<S, 2> &place) const {
        ot_mbarrier_wait(room.full + place.slot, place.parity);
        return room.slot(place.slot);
    }
    __device__ __forceinline__ void give(hopper_place<S, 2> &place) const {
        hopper_arrive(room.empty + place.slot);
        place.advance();
    }
    /* Tiles that the warpgroup's queries do not see. */
    __device__ __forceinline__ void skip(int first, int end) {
#pragma unroll 1
        for (int key = first; key < end; key += S::KEYS) {
            take(keys);
            give(keys);
            take(values);
            give(values);
        }
    }

    /* Turns the products of a tile of keys into weights. True: the sums must shrink. */
    __device__ __forceinline__ bool weigh(float (&s)[1][S::N][4], int key, float (&shrink)[1][2]) {
        int past = (int)(op.n_keys - op.n), self = query + past, lane = ot_lane();
        int lane_query = query + lane / 4, lane_key = key + lane % 4 * 2;
        float factor = scale.rest();
        ot_score_bend<1>(s, scale, lane_key - lane_query - past);
        if (key < common || key + S::KEYS - 1 > self)
            ot_softmax_mask<S>(s, op, lane_query, lane_key);
        bool raised = ot_softmax_raise<S>(s, factor, rows, shrink);
        ot_softmax_weights<S>(s, factor, rows);
        return raised;
    }
};

/* The compiler must finish the weights here. It knows that nothing in them needs the wait that follows, and
 * moves the wait before them: then they would not run beside the products. It does not move the wait over a
 * branch. A sum of weights is never negative. */
template <class S>
__device__ __forceinline__ void hopper_finish(const ot_softmax_rows<S> &rows) {
    if (rows.total[0][0] < 0.0f || rows.total[0][1] < 0.0f)
        __trap();
}

/* All tiles of one warpgroup. seen: the keys that its queries see; all: those that the block copies. */
template <class T, class S>
__device__ __forceinline__ void hopper_multiply(hopper_warp<T, S> &warp, hopper_span seen, hopper_span all) {
    hopper_registers<S::DIM> q;
    uint32_t p[1][S::N / 2][4];
    float s[1][S::N][4], shrink[1][2];
    warp.skip(all.first, seen.first);
    const T *k = warp.take(warp.keys);
    ot_tile_load<S::DIM>(q.a, warp.room.owned + warp.row * S::DIM);
    hopper_start_dots<T, S::DIM>(s, q, k);
    ot_wgmma_wait<0>();
    ot_wgmma_ready(s[0]);
    warp.give(warp.keys);
    warp.weigh(s, seen.first, shrink); /* the sums are 0 */
    ot_tile_round<T>(p, s);
    int key = seen.first + S::KEYS;
#pragma unroll 1
    for (; key < seen.end; key += S::KEYS) {
        k = warp.take(warp.keys);
        hopper_start_dots<T, S::DIM>(s, q, k);
        hopper_start_weigh<T, S::DIM>(warp.rows.sum, p, warp.take(warp.values));
        ot_wgmma_wait<1>();
        ot_wgmma_ready(s[0]);
        warp.give(warp.keys);
        bool raised = warp.weigh(s, key, shrink);
        hopper_finish(warp.rows);
        ot_wgmma_wait<0>();
        ot_wgmma_ready(warp.rows.sum[0]);
        warp.give(warp.values);
        if (raised)
            ot_softmax_shrink<S>(warp.rows, shrink);
        ot_tile_round<T>(p, s);
    }
    hopper_start_weigh<T, S::DIM>(warp.rows.sum, p, warp.take(warp.values));
    ot_wgmma_wait<0>();
    ot_wgmma_ready(warp.rows.sum[0]);
    warp.give(warp.values);
    warp.skip(key, all.end);
}

/* ---- the kernel ---- */

template <class T, class S>
__global__ void __launch_bounds__(HOPPER_THREADS, 1) attention_hopper(const struct ot_attention op) {
    /* The last queries see most keys, so the longest blocks start first. */
    int blocks = (int)((op.n + HOPPER_ROWS - 1) / HOPPER_ROWS), heads = (int)op.heads;
    int head = (int)blockIdx.x % heads, query = (blocks - 1 - (int)blockIdx.x / heads) * HOPPER_ROWS;
    const hopper_room<T, S> room;
    hopper_span all = hopper_keys<S::KEYS>(op, query, HOPPER_ROWS);
    room.init();
    if (threadIdx.x < HOPPER_GROUP) {
        ot_registers_give<HOPPER_COPY_REGISTERS>();
        hopper_copy<T, S>(op, room, head, query, all);
        return;
    }
    ot_registers_take<HOPPER_PRODUCT_REGISTERS>();
    hopper_warp<T, S> warp(op, room, head, query);
    int group_query = query + warp.row / HOPPER_GROUP_ROWS * HOPPER_GROUP_ROWS;
    hopper_span seen = hopper_keys<S::KEYS>(op, group_query, HOPPER_GROUP_ROWS);
    if (seen.first == seen.end) /* no query: the other warpgroup still needs the slots */
        warp.skip(all.first, all.end);
    else {
        hopper_multiply<T, S>(warp, seen, all);
        ot_softmax_store<T, S>(op, head, warp.query, warp.rows, room.owned + warp.row * S::DIM);
    }
}

/* ---- launch ---- */

template <class T>
static cudaError_t launch(const struct ot_attention *op, const struct ot_cuda_stream *on) {
    auto with = [&](auto shape) {
        using S = decltype(shape);
        unsigned grid = (unsigned)(ot_ceil_div(op->n, HOPPER_ROWS) * op->heads);
        return ot_launch(attention_hopper<T, S>, dim3(grid), dim3(HOPPER_THREADS), hopper_shared_bytes<S>(),
                         on->stream, *op);
    };
    return op->head_dim == 64 ? with(hopper_shape<64>()) : with(hopper_shape<128>());
}

bool ot_attention_is_hopper(const struct ot_attention *op, const struct ot_cuda_stream *on) {
    return on->arch == 90 && !on->no_hopper && (op->head_dim == 64 || op->head_dim == 128) &&
           on->shared_bytes >= hopper_shared_bytes<hopper_shape<128>>() &&
           ot_attention_is_tiled(op, on->arch);
}

cudaError_t ot_attention_forward_hopper(const struct ot_attention *op, const struct ot_cuda_stream *on) {
    return op->dtype == OT_BF16 ? launch<__nv_bfloat16>(op, on) : launch<__half>(op, on);
}

#else

bool ot_attention_is_hopper(const struct ot_attention *, const struct ot_cuda_stream *) {
    return false;
}

cudaError_t ot_attention_forward_hopper(const struct ot_attention *, const struct ot_cuda_stream *) {
    return cudaErrorInvalidDeviceFunction;
}

#endif

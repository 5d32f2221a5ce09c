/* Attention backward on the tensor cores of compute capability 9.0 (ptx_hopper.cuh), for heads of 64 and 128
 * elements. The formulas, and why there are two passes, stand at the top of attention_backward.cuh. The pass
 * of queries sums dq; the pass of keys sums dk and dv. The division of labour is that of Shah et al.,
 * "FlashAttention-3", 2024: one warpgroup copies, two multiply. attention_hopper.cuh has the ring of tiles.
 *
 * One template is both passes. A block owns 128 rows of one side: the tiles a and b are q and dout, or k and
 * v. It walks over tiles of the other side: x and y are k and v, or q and dout. A warpgroup has 64 owned rows
 * and computes for each tile
 *
 *     pass of queries                              pass of keys
 *     start s = a x^T, start d = b y^T             the same
 *     wait for s, p = exp2(s - lse)                the same, then start sum_b += p y   (dv)
 *     wait for d, ds = p (d scale - delta)         the same
 *     start sum_a += ds x   (dq)                   wait for sum_b, start sum_a += ds x   (dk)
 *
 * p takes the registers of s, and ds those of d. Rounded, they are the left operands of the sums, so shared
 * memory holds inputs only. The tensor cores work on d during the exponentials, and on sum_b while ds is
 * computed. The next tile's s and d start before sum_a is finished. A softcap multiplies by the score's
 * derivative as in attention_backward.cuh. Its branch also marks the place before which ptxas must finish p,
 * or ds: ptxas moves a wait up over independent arithmetic, but not over a branch.
 *
 * DETERMINISM. One warp owns a row of a result and adds the tiles in order, head after head. The pass of
 * queries begins its tiles at multiples of 64, the pass of keys at the query of the block's first key, or at
 * query 0. So the bits depend on the arguments alone. They differ from the bits of attention_backward.cuh,
 * because the sizes of the tiles differ. A warpgroup skips tiles that its rows do not see. Within a visited
 * tile, what attention_backward.cuh says about numbers that are not finite is true.
 *
 * COST for one tile of 64 tokens, heads of 128 elements, both warpgroups, counted. Measured on an H100,
 * causal: 362 TFLOP/s for 4096 tokens, 400 for 16384; heads of 64 on an H200: 296 for 4096.
 *
 *                          pass of queries (3 products)           pass of keys (4 products)
 *     tensor cores         32 wgmma of 64x64x16, 32 clocks each   the same
 *                          8 of 64x128x16, 64 each: 1536 clocks   16 of 64x128x16: 2048 clocks
 *     shared memory        32 x 2 KiB + 8 x 4 KiB of operands,    32 x 4 KiB + 16 x 4 KiB of operands,
 *     (128 bytes a clock)  32 KiB of copies: 1024                 32 KiB of copies, 8 of numbers: 1856
 *     special functions    128 x 64 exponentials, 16 a clock: 512                                 512
 *     issue of a           2 warps with 270 instructions each,    2 warps with 400 each,
 *     scheduler            1 with 130 for the copies: 670         1 with 200: 1000
 *     L2                   32 KiB: 21 bytes a clock               32 KiB: 16 bytes a clock
 *
 * (Without masks, slopes and softcaps. For heads of 64 elements: 768 and 1024 clocks of tensor cores, 768 and
 * 640 of shared memory, 512 of special functions, 600 and 780 of issue.) So the tensor cores are the limit.
 * 128 x 64 pairs take 1536 + 2048 clocks for 5 x 2^21 FLOP, as attention's are counted: 2926 a clock, 71 % of
 * the tensor cores' rate, 650 TFLOP/s for 132 multiprocessors at 1.7 GHz.
 *
 * REGISTERS. In the pass of keys for heads of 128 elements, the sums take 128, s and d 64, p 16. k and v do
 * not fit too: they are left operands in shared memory, which this makes almost as busy as the tensor cores.
 * ptxas spills 2 registers unless each tile makes the scores' scale again (IS_FULL) and finds the visible
 * tokens of its rows in shared memory. In the pass of queries for heads of 64 elements, q and dout are in
 * shared memory because of an error of ptxas (gradient_shape::IN_REGISTERS).
 *
 * ALTERNATIVES that this kernel does not use.
 *   - One pass with 5 products would take 2560 clocks instead of 3584. But dq must then be added in memory,
 *     in fp32 (256 MiB for 16384 tokens of 32 heads of 128 elements), which a block reads and writes at every
 *     tile: 64 KiB for 64 queries, beside 32 KiB of inputs. For repeatable bits, the blocks of a head must
 *     add in a fixed order and wait for each other. ds must go through shared memory, because the sum over
 *     keys needs it transposed, and a third kernel must round dq.
 *   - 48 queries a tile in the pass of keys, for heads of 128 elements, would need 20 registers less. But
 *     then every product of 24 clocks reads 3.5 KiB: 146 bytes a clock, more than shared memory delivers.
 */
#include "kernels/cuda/attention_hopper_backward.cuh"

/* The build defines OT_HOPPER if it compiles this file for sm_90a. Otherwise other kernels replace it. */
#if defined(OT_HOPPER) || defined(OT_EMU)

/* ---- the warpgroup that copies ---- */

template <class S, class T>
__device__ __forceinline__ void gradient_copy_owned(T *tile, const T *from, int64_t ld, int first, int end) {
    if constexpr (S::IN_REGISTERS) /* for ldmatrix */
        ot_tile_copy<HOPPER_ROWS, S::DIM, HOPPER_GROUP>(tile, from, ld, first, end);
    else
        hopper_copy_tile<HOPPER_ROWS, S::DIM>(tile, from, ld, first, end);
}

/* The warpgroup's rows as a left operand. tile: all of the block. */
template <int DIM, class T>
__device__ __forceinline__ void gradient_load_owned(hopper_registers<DIM> &x, const T *tile, int) {
    ot_tile_load<DIM>(x.a, tile + hopper_warp_row() * DIM);
}
template <int DIM, class T>
__device__ __forceinline__ void gradient_load_owned(hopper_panels<HOPPER_ROWS> &x, const T *tile, int group) {
    x.a = ot_wgmma_operand(tile + group * 64, 0, HOPPER_EIGHT_ROWS);
}

template <class T, class S>
__device__ __forceinline__ float *gradient_numbers(const hopper_room<T, S> &room, int slot) {
    return reinterpret_cast<float *>(room.owned + 2 * S::OWNED_TILE) + slot * S::NUMBERS;
}

/* Fills the ring, as in attention_hopper.cu. Each thread also brings one number of the tile, through a
 * register: it stores the number after it has started the next tile, so that it waits for nothing else
 * meanwhile. */
template <class T, class S>
__device__ __forceinline__ void gradient_copy(const struct ot_attention_backward &op,
                                              const hopper_room<T, S> &room, const gradient_block<S> &block) {
    constexpr int LAG = 2;
    static_assert(LAG + 2 <= S::STAGES, "the multiplying warps hold up to two slots");
    const struct ot_attention &f = op.forward;
    constexpr bool QUERIES = S::PASS == OF_QUERIES;
    int64_t query_column = block.head * S::DIM, key_column = block.kv_head * S::DIM;
    const T *q = static_cast<const T *>(f.q) + query_column, *k = static_cast<const T *>(f.k) + key_column;
    const T *dout = static_cast<const T *>(op.dout) + query_column,
            *v = static_cast<const T *>(f.v) + key_column;
    gradient_copy_owned<S>(room.owned, QUERIES ? q : k, QUERIES ? f.ldq : f.ldk, block.begin, block.rows(f));
    gradient_copy_owned<S>(room.owned + S::OWNED_TILE, QUERIES ? dout : v, QUERIES ? f.ldo : f.ldv,
                           block.begin, block.rows(f));
    const T *a = QUERIES ? k : q, *b = QUERIES ? v : dout;
    int64_t lda = QUERIES ? f.ldk : f.ldq, ldb = QUERIES ? f.ldv : f.ldo;
    int end = block.visited.end, token = block.visited.first, head = block.head;
    int tiles = (end - token + S::VISITED - 1) / S::VISITED * (block.end_head - head);
    float number = 0.0f, *number_to = nullptr;
    hopper_place<S, 1> next(0), oldest(0);
#pragma unroll 1
    for (int i = 0; i < tiles + LAG; i++) {
        if (i < tiles) {
            ot_mbarrier_wait(room.empty + next.slot, next.parity ^ 1);
            hopper_copy_tile<S::VISITED, S::DIM>(room.slot(next.slot), a, lda, token, end);
            hopper_copy_tile<S::VISITED, S::DIM>(room.slot(next.slot) + S::TILE, b, ldb, token, end);
        }
        ot_cp_async_commit(); /* also an empty group, because the wait counts groups */
        if constexpr (!QUERIES) {
            int thread = (int)ot_thread(), query = thread % S::VISITED;
            bool is_delta = thread >= S::VISITED, brings = thread < S::NUMBERS;
            if (brings && i > 0 && i <= tiles)
                *number_to = number;
            if (brings && i < tiles) {
                number_to =
                    gradient_numbers(room, next.slot) + is_delta * S::VISITED + gradient_number_place(query);
                number = gradient_number(op, is_delta, head, token + query, end);
            }
        }
        next.advance();
        token += S::VISITED;
        if (!QUERIES && token >= end) {
            token = block.visited.first;
            head++;
            a += S::DIM;
            b += S::DIM;
        }
        if (i >= LAG) {
            ot_cp_async_wait<LAG>();
            ot_fence_proxy_async();
            hopper_arrive(room.full + oldest.slot);
            oldest.advance();
        }
    }
}

/* ---- a warpgroup that multiplies ---- */

/* A multiplying warp: its next slot, its operands and its sums. a: dq or dk; b: dv. */
template <class T, class S>
struct gradient_warp {
    const struct ot_attention_backward &op;
    const hopper_room<T, S> &room;
    const int
        begin; /* the block's first row, counted like the visited tokens: a key's query, a query's key */
    hopper_place<S, 1> next;
    typename S::owned a, b;
    float sum_a[1][S::DIM / 8][4], sum_b[1][S::DIM / 8][4];

    __device__ __forceinline__ gradient_warp(const struct ot_attention_backward &op_,
                                             const hopper_room<T, S> &room_, int begin_)
        : op(op_), room(room_), begin(begin_), next(0) {
        ot_tile_zero(sum_a);
        ot_tile_zero(sum_b);
    }

    /* The warp's first row, counted so. */
    __device__ __forceinline__ int first() const { return begin + hopper_warp_row(); }
    /* The owned rows come with the first slot. */
    __device__ __forceinline__ void load(int group) {
        ot_mbarrier_wait(room.full, 0);
        gradient_load_owned<S::DIM>(a, room.owned, group);
        gradient_load_owned<S::DIM>(b, room.owned + S::OWNED_TILE, group);
    }

    __device__ __forceinline__ int take() {
        int slot = hopper_uniform(next.slot);
        ot_mbarrier_wait(room.full + slot, next.parity);
        next.advance();
        return slot;
    }
    __device__ __forceinline__ void give(int slot) const { hopper_arrive(room.empty + slot); }
    __device__ __forceinline__ void give_before(int slot) const { give(slot > 0 ? slot - 1 : S::STAGES - 1); }
    /* Tiles that the warpgroup does not need. */
    __device__ __forceinline__ void skip(int token, int end) {
#pragma unroll 1
        for (; token < end; token += S::VISITED)
            give(take());
    }
};

/* Multiplies each x by the derivative of its capped score, which its weight still tells (backward_cap of
 * attention_backward.cuh). x may be p. SIGN, distance: see ot_score_bend. */
template <int SIGN, int N, class Numbers>
__device__ __forceinline__ void gradient_cap(float (&x)[1][N][4], const float (&p)[1][N][4],
                                             const ot_score_scale &scale, const Numbers &numbers,
                                             int distance) {
    if (!(scale.cap > 0.0f))
        return;
    numbers.lse([&](int n, int i, float lse) {
        float away = (float)distance + (float)ot_score_step<SIGN>(0, n, i);
        x[0][n][i] *= ot_score_slope(scale, ot_log2_approx(p[0][n][i]) + lse, away);
    });
}

/* Adds the tiles `seen` of one head to the sums. */
template <class T, class S>
__device__ __forceinline__ void gradient_add(gradient_warp<T, S> &warp, int head, hopper_span seen) {
    constexpr bool QUERIES = S::PASS == OF_QUERIES;
    constexpr int SIGN = QUERIES ? 1 : -1; /* columns minus rows: times this, key minus query */
    const struct ot_attention &f = warp.op.forward;
    ot_score_scale scale(f, head);
    const typename S::numbers of_rows(warp.op, head, warp.first() - ot_attention_past(f));
    float p[1][S::N][4], ds[1][S::N][4];
    uint32_t rounded[1][S::N / 2][4];
#pragma unroll 1
    for (int token = seen.first; token < seen.end; token += S::VISITED) {
        int slot = warp.take();
        const T *tile = warp.room.slot(slot);
        hopper_start_dots<T, S::DIM>(p, warp.a, tile);
        hopper_start_dots<T, S::DIM>(ds, warp.b, tile + S::TILE);
        ot_wgmma_wait<1>(); /* ds is unfinished */
        ot_wgmma_ready(p[0]);
        if (token > seen.first)
            warp.give_before(slot);
        if constexpr (S::IS_FULL)
            scale = ot_score_scale(f, head);
        int distance = SIGN * (token + ot_lane() % 4 * 2 - (warp.first() + ot_lane() / 4));
        ot_score_bend<SIGN>(p, scale, distance);
        gradient_mask<T, S>(p, warp.room, token);
        const typename S::numbers numbers = of_rows.with(gradient_numbers(warp.room, slot));
        numbers.lse([&](int n, int i, float lse) {
            p[0][n][i] = ot_exp2_approx(fmaf(p[0][n][i], scale.rest(), -lse));
        });
        if constexpr (QUERIES) {
            gradient_cap<SIGN>(p, p, scale, numbers, distance);
        } else {
            ot_tile_round<T>(rounded, p);
            hopper_start_weigh<T, S::DIM>(warp.sum_b, rounded, tile + S::TILE);
        }
        ot_wgmma_wait<QUERIES ? 0 : 1>(); /* sum_b is unfinished */
        ot_wgmma_ready(ds[0]);
        numbers.delta([&](int n, int i, float delta) {
            ds[0][n][i] = p[0][n][i] * fmaf(ds[0][n][i], f.scale, -delta);
        });
        if constexpr (!QUERIES) {
            gradient_cap<SIGN>(ds, p, scale, numbers, distance);
            ot_wgmma_wait<0>(); /* the registers of p are free */
        }
        ot_tile_round<T>(rounded, ds);
        hopper_start_weigh<T, S::DIM>(warp.sum_a, rounded, tile);
    }
    ot_wgmma_wait<0>();
    warp.give_before(warp.next.slot);
    ot_wgmma_ready(warp.sum_a[0]);
    if constexpr (!QUERIES)
        ot_wgmma_ready(warp.sum_b[0]);
}

/* ---- results ---- */

/* Lane t of four has x[j] = element (t, j) of a 4x4 matrix and gets the elements (j, t). */
__device__ __forceinline__ void gradient_transpose(uint32_t (&x)[4]) {
    int t = ot_lane() % 4;
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if ((j & bit) == 0) {
                bool upper = (t & bit) != 0;
                uint32_t mine = upper ? x[j] : x[j | bit];
                uint32_t theirs = __shfl_xor_sync(0xffffffffu, mine, bit);
                if (upper)
                    x[j] = theirs;
                else
                    x[j | bit] = theirs;
            }
}

/* Rounds and stores a warp's rows, which go to the tokens from `first` on. Tokens outside of [0, end) are
 * left out. Four lanes have a row: each has two elements of every eight. They exchange them, so that each
 * stores 16 bytes. */
template <class T, int DIM>
__device__ __forceinline__ void gradient_store(T *to, int64_t ld, int first, int end,
                                               const float (&sum)[1][DIM / 8][4]) {
    int lane = ot_lane();
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int token = first + lane / 4 + 8 * r;
        T *row = to + token * ld + lane % 4 * 8;
#pragma unroll
        for (int d = 0; d < DIM / 8; d += 4) {
            uint32_t x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = ot_pack_two<T>(sum[0][d + j][2 * r], sum[0][d + j][2 * r + 1]);
            gradient_transpose(x);
            if (token >= 0 && token < end)
                *reinterpret_cast<uint4 *>(row + d * 8) = make_uint4(x[0], x[1], x[2], x[3]);
        }
    }
}

/* ---- the kernel ---- */

template <class T, class S>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    attention_hopper_backward(const struct ot_attention_backward op) {
    const struct ot_attention &f = op.forward;
    const gradient_block<S> block(f);
    if (S::PASS == OF_KEYS && block.visited.first == block.visited.end)
        return; /* no query sees these keys: they lie before a section of a row */
    const hopper_room<T, S> room;
    room.init();
    if (threadIdx.x < HOPPER_GROUP) {
        ot_registers_give<HOPPER_COPY_REGISTERS>();
        gradient_copy<T, S>(op, room, block);
        return;
    }
    ot_registers_take<HOPPER_PRODUCT_REGISTERS>();
    const int past = (S::PASS == OF_QUERIES ? 1 : -1) * ot_attention_past(f);
    gradient_warp<T, S> warp(op, room, block.begin + past);
    int group = hopper_uniform((int)threadIdx.x / HOPPER_GROUP - 1) * HOPPER_GROUP_ROWS;
    hopper_span seen = block.seen(f, block.begin + group);
    seen = {hopper_uniform(seen.first), hopper_uniform(seen.end)};
    gradient_look<T, S>(f, room, warp.first() - past, seen.end);
    warp.load(group);
#pragma unroll 1
    for (int head = block.head; head < block.end_head; head++) {
        warp.skip(block.visited.first, seen.first);
        if (seen.first < seen.end)
            gradient_add<T, S>(warp, head, seen);
        warp.skip(seen.first + (seen.end - seen.first + S::VISITED - 1) / S::VISITED * S::VISITED,
                  block.visited.end);
    }
    if constexpr (S::PASS == OF_QUERIES) {
        gradient_store<T, S::DIM>(static_cast<T *>(op.dq) + block.head * S::DIM, f.ldq,
                                  warp.first() - ot_attention_past(f), (int)f.n, warp.sum_a);
    } else {
        if (op.dk_sums) {
            const int key = warp.first() + ot_attention_past(f);
            ot_tile_add_stored(warp.sum_a, op.dk_sums + block.kv_head * S::DIM, f, key);
            ot_tile_add_stored(warp.sum_b, op.dv_sums + block.kv_head * S::DIM, f, key);
        }
        gradient_store<T, S::DIM>(static_cast<T *>(op.dk) + block.kv_head * S::DIM, op.lddk, warp.first(),
                                  (int)f.n, warp.sum_a);
        gradient_store<T, S::DIM>(static_cast<T *>(op.dv) + block.kv_head * S::DIM, op.lddv, warp.first(),
                                  (int)f.n, warp.sum_b);
    }
}

/* ---- launch ---- */

template <class T, class S>
static cudaError_t launch_pass(const struct ot_attention_backward *op, int64_t heads,
                               const struct ot_cuda_stream *on) {
    unsigned grid = (unsigned)(ot_ceil_div(gradient_block<S>::rows(op->forward), HOPPER_ROWS) * heads);
    return ot_launch(attention_hopper_backward<T, S>, dim3(grid), dim3(HOPPER_THREADS),
                     hopper_shared_bytes<S>(), on->stream, *op);
}

template <class T, int DIM>
static cudaError_t launch_passes(const struct ot_attention_backward *op, const struct ot_cuda_stream *on) {
    OT_CUDA_TRY((launch_pass<T, gradient_shape<DIM, OF_QUERIES>>(op, op->forward.heads, on)));
    return launch_pass<T, gradient_shape<DIM, OF_KEYS>>(op, op->forward.kv_heads, on);
}

bool ot_attention_backward_is_hopper(const struct ot_attention *op, const struct ot_cuda_stream *on) {
    return on->arch == 90 && !on->no_hopper && (op->head_dim == 64 || op->head_dim == 128) &&
           on->shared_bytes >= hopper_shared_bytes<gradient_shape<128, OF_KEYS>>() && /* the most */
           ot_attention_is_tiled(op, on->arch);
}

cudaError_t ot_attention_backward_hopper(const struct ot_attention_backward *op,
                                         const struct ot_cuda_stream *on) {
    return ot_attention_dispatch(&op->forward, [&](auto zero, auto dim) {
        constexpr int DIM = decltype(dim)::value;
        if constexpr (DIM == 64 || DIM == 128)
            return launch_passes<decltype(zero), DIM>(op, on);
        else
            return cudaErrorInvalidValue;
    });
}

#else

bool ot_attention_backward_is_hopper(const struct ot_attention *, const struct ot_cuda_stream *) {
    return false;
}

cudaError_t ot_attention_backward_hopper(const struct ot_attention_backward *,
                                         const struct ot_cuda_stream *) {
    return cudaErrorInvalidDeviceFunction;
}

#endif

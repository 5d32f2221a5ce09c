/* The warps of gemm_groups_hopper.cu: those that copy, and those that multiply and store. */
#ifndef OT_KERNELS_CUDA_GEMM_GROUPS_HOPPER_CUH
#define OT_KERNELS_CUDA_GEMM_GROUPS_HOPPER_CUH

#include "kernels/cuda/gemm_groups.cuh"
#include "kernels/cuda/ring_hopper.cuh"

/* ---- sizes ---- */

/* The copying warps' message to the others about a tile. It lies beside the slot of the tile's first step. */
struct groups_note {
    struct ot_groups_tile at;
    int steps; /* 0: there are no more tiles */
};

struct groups_shape {
    static constexpr int ROWS = HOPPER_ROWS, COLS = 256, STEP = 64;
    static constexpr int STAGES = 4, SLOT_BYTES = (ROWS + COLS) * STEP * 2; /* A, then B */
    static constexpr int OWNED_BYTES = STAGES * (int)sizeof(groups_note);
};
static_assert(groups_shape::OWNED_BYTES % 8 == 0, "barriers follow the notes");
/* Registers of a thread. The warps that copy need more than those of attention. */
static constexpr int GROUPS_COPY_REGISTERS = 40, GROUPS_PRODUCT_REGISTERS = 232;
static_assert(HOPPER_GROUP * (GROUPS_COPY_REGISTERS + HOPPER_GROUPS * GROUPS_PRODUCT_REGISTERS) <= 65536,
              "registers suffice");

/* One kernel. A_ALONG, B_ALONG: rows in memory of the operand lie along k. */
template <class OF, class RESULT, bool SUMS_, bool TRANS_B, bool ALIGNED_>
struct groups_kind {
    using T = OF;
    using C = RESULT;
    static constexpr bool SUMS = SUMS_, A_ALONG = !SUMS_, B_ALONG = TRANS_B;
    static constexpr bool ALIGNED = ALIGNED_; /* all arrays begin at 16-byte borders */
};

template <class T>
using groups_room = hopper_room<T, groups_shape>;
using groups_place = hopper_place<groups_shape, 1>;

template <class T>
__device__ __forceinline__ groups_note *groups_notes(const groups_room<T> &room) {
    return reinterpret_cast<groups_note *>(room.owned);
}

/* ---- the warpgroup that copies ---- */

/* Copies 8 elements one by one, or zeros. */
template <class T>
__device__ __forceinline__ void groups_copy_single(T *to, const T *from, bool valid) {
#pragma unroll
    for (int i = 0; i < 8; i++)
        to[i] = valid ? from[i] : ot_from_float<T>(0.0f);
}

/* One thread's share of an operand (SIZE rows of A, or columns of B): in each panel the rows r, r + 16, ...
 * of its chunk of 8 elements. rows, cols: the matrix's extent from the thread's first element on. */
template <class T, bool ALONG, int SIZE, bool ALIGNED>
struct groups_source {
    static constexpr int PANELS = ALONG ? 1 : SIZE / 64, PANEL_ROWS = ALONG ? SIZE : groups_shape::STEP;
    using share = ot_tile_share<64, HOPPER_GROUP>;
    const T *from;
    int64_t ld;
    int rows, cols;

    /* k runs from first_k to end_k; the product's rows or columns from `first` to `end`. */
    __device__ __forceinline__ groups_source(const T *matrix, int64_t ld_, int first_k, int end_k, int first,
                                             int end)
        : ld(ld_) {
        const share own(ot_thread());
        int row = (ALONG ? first : first_k) + own.row, col = (ALONG ? first_k : first) + own.column * 8;
        from = matrix + row * ld + col;
        rows = (ALONG ? end : end_k) - row;
        cols = (ALONG ? end_k : end) - col;
    }

    /* Starts the copies of a step, and goes on to the next one. */
    __device__ __forceinline__ void copy(T *to) {
        const T *row_from = from;
        to += share(ot_thread()).row_at;
#pragma unroll(ALIGNED ? PANEL_ROWS : 1)
        for (int row = 0; row < PANEL_ROWS; row += share::ROWS) {
#pragma unroll
            for (int panel = 0; panel < PANELS; panel++) {
                bool valid = row < rows && 64 * panel < cols;
                T *place = to + (panel * PANEL_ROWS + row) * 64;
                if (ALIGNED)
                    ot_cp_async_16(place, row_from + 64 * panel, valid);
                else
                    groups_copy_single(place, row_from + 64 * panel, valid);
            }
            row_from += share::ROWS * ld;
        }
        from += ALONG ? groups_shape::STEP : groups_shape::STEP * ld;
        (ALONG ? cols : rows) -= groups_shape::STEP;
    }
};

/* The end of the ring where items enter. An item is announced when LAG more have been started, so that LAG to
 * LAG + 1 are on their way. The multiplying warps hold two: the ring is deep enough for both. */
template <class T>
struct groups_entry {
    static constexpr int LAG = 2;
    static_assert(LAG + 2 <= groups_shape::STAGES, "no announcement waits for a slot that depends on it");
    const groups_room<T> &room;
    groups_place next, oldest;
    int waiting; /* items that are started and not announced */

    __device__ __forceinline__ explicit groups_entry(const groups_room<T> &room_)
        : room(room_), next(0), oldest(0), waiting(0) {}

    __device__ __forceinline__ T *take() const {
        ot_mbarrier_wait(room.empty + next.slot, next.parity ^ 1);
        return room.slot(next.slot);
    }
    __device__ __forceinline__ void note(const groups_note &note) const {
        if (ot_thread() == 0)
            groups_notes(room)[next.slot] = note;
    }
    __device__ __forceinline__ void announce() {
        ot_fence_proxy_async();
        hopper_arrive(room.full + oldest.slot);
        oldest.advance();
    }
    __device__ __forceinline__ void give() {
        ot_cp_async_commit();
        next.advance();
        if (waiting < LAG) {
            waiting++;
            return;
        }
        ot_cp_async_wait<LAG>();
        announce();
    }
    __device__ __forceinline__ void finish() {
        ot_cp_async_wait<0>();
        for (; waiting > 0; waiting--)
            announce();
    }
};

/* Copies one tile. */
template <class K>
__device__ __forceinline__ void groups_copy_tile(const struct ot_gemm_groups &op, const groups_note &note,
                                                 groups_entry<typename K::T> &entry) {
    using T = typename K::T;
    using S = groups_shape;
    const struct ot_groups_tile &at = note.at;
    int first = K::SUMS ? at.begin : 0, end = K::SUMS ? at.end : (int)op.k;
    const T *weights = static_cast<const T *>(op.b) + (K::SUMS ? 0 : at.expert * op.stride);
    groups_source<T, K::A_ALONG, S::ROWS, K::ALIGNED> a(static_cast<const T *>(op.a), op.lda, first, end,
                                                        at.row, K::SUMS ? (int)op.m : at.end);
    groups_source<T, K::B_ALONG, S::COLS, K::ALIGNED> b(weights, op.ldb, first, end, at.col, (int)op.n);
#pragma unroll 1
    for (int step = 0; step < note.steps; step++) {
        T *slot = entry.take();
        if (step == 0)
            entry.note(note);
        a.copy(slot);
        b.copy(slot + S::ROWS * S::STEP);
        entry.give();
    }
}

template <class K>
__device__ __forceinline__ void groups_copy(const struct ot_gemm_groups &op,
                                            const groups_room<typename K::T> &room, int tiles) {
    using S = groups_shape;
    groups_entry<typename K::T> entry(room);
    groups_note note;
#pragma unroll 1
    for (int index = (int)blockIdx.x; index < tiles; index += (int)gridDim.x) {
        if (!ot_groups_find<S::ROWS, S::COLS>(op, index, &note.at))
            break;
        int along = K::SUMS ? note.at.end - note.at.begin : (int)op.k;
        note.steps = max((along + S::STEP - 1) / S::STEP, 1); /* the first one brings the note */
        groups_copy_tile<K>(op, note, entry);
    }
    entry.take();
    note.steps = 0;
    entry.note(note);
    entry.give();
    entry.finish();
}

/* ---- a warpgroup that multiplies ---- */

/* Starts c += the warpgroup's rows of the slot's A, times its B. */
template <class K>
__device__ __forceinline__ void groups_start_step(float (&c)[groups_shape::COLS / 8][4],
                                                  const typename K::T *slot, int group) {
    using S = groups_shape;
    constexpr int PANEL_BYTES = 64 * HOPPER_PANEL_ROW, PIECE_BYTES = 16 * HOPPER_PANEL_ROW;
    /* 64 rows of the one panel, or a panel of 64 columns: both have the same size */
    uint64_t a = ot_wgmma_operand(slot + group * HOPPER_GROUP_ROWS * S::STEP, 0, HOPPER_EIGHT_ROWS);
    uint64_t b = ot_wgmma_operand(slot + S::ROWS * S::STEP, PANEL_BYTES, HOPPER_EIGHT_ROWS);
    ot_wgmma_fence();
#pragma unroll
    for (int i = 0; i < S::STEP / 16; i++)
        ot_wgmma<typename K::T, !K::B_ALONG, true, !K::A_ALONG>(
            c, ot_wgmma_advance(a, i * (K::A_ALONG ? 32 : PIECE_BYTES)),
            ot_wgmma_advance(b, i * (K::B_ALONG ? 32 : PIECE_BYTES)));
    ot_wgmma_commit();
}

/* Multiplies all steps of a tile. A slot is free when the next step's products have been started and its own
 * have ended. */
template <class K>
__device__ __forceinline__ void groups_multiply_tile(float (&c)[groups_shape::COLS / 8][4],
                                                     const groups_room<typename K::T> &room, int steps,
                                                     groups_place &next, int group) {
    groups_place held = next;
#pragma unroll
    for (int n = 0; n < groups_shape::COLS / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            c[n][i] = 0.0f;
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        ot_mbarrier_wait(room.full + next.slot, next.parity);
        groups_start_step<K>(c, room.slot(next.slot), group);
        next.advance();
        ot_wgmma_wait<1>();
        if (step > 0) {
            hopper_arrive(room.empty + held.slot);
            held.advance();
        }
    }
    ot_wgmma_wait<0>();
    ot_wgmma_ready(c);
    hopper_arrive(room.empty + held.slot);
}

/* The steps of a tile in which the warpgroup has no rows. */
template <class T>
__device__ __forceinline__ void groups_skip_tile(const groups_room<T> &room, int steps, groups_place &next) {
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        ot_mbarrier_wait(room.full + next.slot, next.parity);
        hopper_arrive(room.empty + next.slot);
        next.advance();
    }
}

/* ---- the store ---- */

/* In a fragment, the four lanes of a quad share 8 neighbouring columns of a row, two each. From four such
 * pieces, lane t of the quad gets piece t: v[2 i], v[2 i + 1] are the columns that lane i had. Two exchanges,
 * in which a lane sends the half that it does not keep. */
__device__ __forceinline__ void groups_gather_piece(float (&v)[8]) {
    int lane = ot_lane();
#pragma unroll
    for (int apart = 1; apart <= 2; apart *= 2) {
        bool upper = lane & apart;
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int other = i + 2 * apart;
            if (i / 2 & apart)
                continue;
            float got = __shfl_xor_sync(0xffffffffu, upper ? v[i] : v[other], apart);
            v[i] = upper ? got : v[i];
            v[other] = upper ? v[other] : got;
        }
    }
}

template <bool ALIGNED, class C>
__device__ __forceinline__ void groups_load_piece(float (&v)[8], const C *from) {
    constexpr int N = ot_pack<C>::N;
#pragma unroll
    for (int i = 0; i < 8; i += N) {
        ot_pack<C> pack;
        if (ALIGNED)
            pack = ot_load(from + i);
#pragma unroll
        for (int j = 0; j < N; j++)
            v[i + j] = ALIGNED ? pack.v[j] : ot_to_float(from[i + j]);
    }
}

template <bool ALIGNED, class C>
__device__ __forceinline__ void groups_store_piece(C *to, const float (&v)[8]) {
    constexpr int N = ot_pack<C>::N;
#pragma unroll
    for (int i = 0; i < 8; i += N) {
        ot_pack<C> pack;
#pragma unroll
        for (int j = 0; j < N; j++)
            if (ALIGNED)
                pack.v[j] = v[i + j];
            else
                to[i + j] = ot_from_float<C>(v[i + j]);
        if (ALIGNED)
            ot_store_global(to + i, pack);
    }
}

/* Scales 8 sums, adds the bias and the addend, and stores them: the operations of ot_groups_finish. */
template <class K>
__device__ __forceinline__ void groups_finish_piece(const struct ot_gemm_groups &op, float (&v)[8],
                                                    const float (&addend)[8], int expert, int col,
                                                    int64_t place) {
    using T = typename K::T;
    if (op.scale != 0)
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] *= op.scale;
    if (op.bias) {
        float bias[8];
        groups_load_piece<K::ALIGNED>(bias, static_cast<const T *>(op.bias) + expert * op.n + col);
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] += bias[i];
    }
    if (op.addend)
#pragma unroll
        for (int i = 0; i < 8; i++)
            v[i] += addend[i];
    groups_store_piece<K::ALIGNED>(static_cast<typename K::C *>(op.c) + place, v);
}

/* Stores the warp's 16 rows. BATCH pieces of the addend are read before one is stored: the addend may be C,
 * so the compiler does not move a load before a store. */
template <class K>
__device__ __forceinline__ void groups_store_tile(const struct ot_gemm_groups &op,
                                                  const struct ot_groups_tile &at,
                                                  const float (&c)[groups_shape::COLS / 8][4]) {
    constexpr int BATCH = 4, PIECES = groups_shape::COLS / 32;
    using C = typename K::C;
    int lane = ot_lane(), n = (int)op.n, first_col = at.col + lane % 4 * 8;
    int end = K::SUMS ? (int)op.m : at.end;
    int64_t begin = K::SUMS ? at.expert * op.stride : 0;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = at.row + hopper_warp_row() + lane / 4 + 8 * half;
        int64_t place = begin + row * op.ldc + first_col;
#pragma unroll
        for (int batch = 0; batch < PIECES; batch += BATCH) {
            float addend[BATCH][8] = {};
#pragma unroll
            for (int i = 0; i < BATCH; i++)
                if (op.addend && row < end && first_col + (batch + i) * 32 < n)
                    groups_load_piece<K::ALIGNED>(addend[i], static_cast<const C *>(op.addend) + place +
                                                                 (batch + i) * 32);
#pragma unroll
            for (int i = 0; i < BATCH; i++) {
                float v[8];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    v[j] = c[(batch + i) * 4 + j / 2][half * 2 + j % 2];
                groups_gather_piece(v);
                int col = first_col + (batch + i) * 32;
                if (row < end && col < n)
                    groups_finish_piece<K>(op, v, addend[i], at.expert, col, place + (batch + i) * 32);
            }
        }
    }
}

/* All tiles of the block. */
template <class K>
__device__ __forceinline__ void groups_multiply(const struct ot_gemm_groups &op,
                                                const groups_room<typename K::T> &room) {
    int group = hopper_uniform((int)ot_thread() / HOPPER_GROUP) - 1;
    groups_place next(0);
#pragma unroll 1
    for (;;) {
        ot_mbarrier_wait(room.full + next.slot, next.parity);
        groups_note note = groups_notes(room)[next.slot];
        if (note.steps == 0)
            return;
        if (note.at.row + group * HOPPER_GROUP_ROWS >= (K::SUMS ? (int)op.m : note.at.end)) {
            groups_skip_tile(room, note.steps, next);
            continue;
        }
        float c[groups_shape::COLS / 8][4];
        groups_multiply_tile<K>(c, room, note.steps, next, group);
        groups_store_tile<K>(op, note.at, c);
    }
}

#endif

/* The parts that the attention kernels of compute capability 9.0 share (attention_hopper.cu,
 * attention_hopper_backward.cu): the ring of tiles in shared memory, and the two kinds of products.
 *
 * A BLOCK owns 128 rows, queries or keys, and walks over tiles of the other side. Its first warpgroup copies;
 * two more warpgroups multiply and own 64 rows each. S describes the shape:
 *
 *     DIM               elements of a head, 64 or 128
 *     STAGES            slots of the ring
 *     SLOT_BYTES        a slot, a multiple of 1024
 *     OWNED_BYTES       what the block keeps beside the ring, a multiple of 1024 at its start
 *
 * PANELS. A tile that wgmma reads consists of DIM / 64 panels (ptx_hopper.cuh), each with all rows of the
 * tile.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_HOPPER_CUH
#define OT_KERNELS_CUDA_ATTENTION_HOPPER_CUH

#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/ptx_hopper.cuh"

/* ---- sizes ---- */

static constexpr int HOPPER_GROUP = 128; /* threads of a warpgroup; the first one copies */
static constexpr int HOPPER_GROUPS = 2;  /* warpgroups that multiply */
static constexpr int HOPPER_THREADS = (1 + HOPPER_GROUPS) * HOPPER_GROUP;
static constexpr int HOPPER_GROUP_ROWS = 64, HOPPER_ROWS = HOPPER_GROUPS * HOPPER_GROUP_ROWS;
static constexpr int HOPPER_PANEL_ROW = 128;   /* bytes */
static constexpr int HOPPER_EIGHT_ROWS = 1024; /* bytes; the swizzle repeats, so panels are aligned to it */
/* Registers of a thread: a multiprocessor has 65536, and the launch gives each thread 168. */
static constexpr int HOPPER_COPY_REGISTERS = 24, HOPPER_PRODUCT_REGISTERS = 240;
static_assert(HOPPER_GROUP * (HOPPER_COPY_REGISTERS + HOPPER_GROUPS * HOPPER_PRODUCT_REGISTERS) <= 65536,
              "registers suffice");

template <class S>
constexpr int hopper_shared_bytes() {
    return HOPPER_EIGHT_ROWS + S::STAGES * S::SLOT_BYTES + S::OWNED_BYTES +
           2 * S::STAGES * (int)sizeof(uint64_t);
}

/* x, which all lanes of a warp have. The compiler then knows that, and keeps what depends on it in uniform
 * registers. */
__device__ __forceinline__ int hopper_uniform(int x) {
    return __shfl_sync(0xffffffffu, x, 0);
}

/* The first row of a multiplying warp inside the block. */
__device__ __forceinline__ int hopper_warp_row() {
    return (int)(ot_thread() / OT_WARP - HOPPER_GROUP / OT_WARP) * 16;
}

/* ---- the ring ---- */

/* Shared memory of a block. Item j goes through slot j % STAGES. full[slot] ends a phase when the four
 * copying warps have filled the slot, empty[slot] when all multiplying warps have finished with it. The first
 * phase of full[0] also covers the owned rows. */
template <class T, class S>
struct hopper_room {
    T *slots, *owned;
    uint64_t *full, *empty;

    __device__ __forceinline__ hopper_room() {
        char *shared = ot_shared<char>();
        shared += (HOPPER_EIGHT_ROWS - ot_shared_address(shared) % HOPPER_EIGHT_ROWS) % HOPPER_EIGHT_ROWS;
        slots = reinterpret_cast<T *>(shared);
        owned = reinterpret_cast<T *>(shared + S::STAGES * S::SLOT_BYTES);
        full = reinterpret_cast<uint64_t *>(shared + S::STAGES * S::SLOT_BYTES + S::OWNED_BYTES);
        empty = full + S::STAGES;
    }

    /* All threads of the block must call. */
    __device__ __forceinline__ void init() const {
        if (threadIdx.x == 0)
            for (int i = 0; i < S::STAGES; i++) {
                ot_mbarrier_init(full + i, HOPPER_GROUP / OT_WARP);
                ot_mbarrier_init(empty + i, HOPPER_GROUPS * HOPPER_GROUP / OT_WARP);
            }
        __syncthreads();
    }

    __device__ __forceinline__ T *slot(int i) const { return slots + i * (S::SLOT_BYTES / (int)sizeof(T)); }
};

/* A place in the ring. Its items are STEP apart: 2 for those that take every second item, else 1. */
template <class S, int STEP>
struct hopper_place {
    int slot;
    uint32_t parity; /* of the phase of full[slot] that its item ends */

    __device__ __forceinline__ explicit hopper_place(int first) : slot(first), parity(0) {}
    __device__ __forceinline__ void advance() {
        static_assert(S::STAGES % STEP == 0, "a turn ends where it began");
        slot += STEP;
        if (slot >= S::STAGES) {
            slot -= S::STAGES;
            parity ^= 1;
        }
    }
};

/* A warp arrives once, after all that its lanes have done. */
__device__ __forceinline__ void hopper_arrive(uint64_t *barrier) {
    __syncwarp();
    if (ot_lane() == 0)
        ot_mbarrier_arrive(barrier);
}

/* ---- which tiles ---- */

/* Tokens [first, end). */
struct hopper_span {
    int first, end;
};

/* The keys that some queries see, first rounded down to a tile of KEYS. Empty if there is no query. */
template <int KEYS>
__device__ __forceinline__ hopper_span hopper_keys(const struct ot_attention &op, int query, int queries) {
    if (query >= op.n)
        return {0, 0};
    int past = (int)(op.n_keys - op.n), end = query + queries + past;
    return {ot_attention_keys(op, query).first / KEYS * KEYS, end < op.n_keys ? end : (int)op.n_keys};
}

/* ---- copies ---- */

/* Starts copies of ROWS rows of one head into panels. The copying warpgroup takes part (ot_tile_copy). */
template <int ROWS, int DIM, class T>
__device__ __forceinline__ void hopper_copy_tile(T *tile, const T *from, int64_t ld, int first, int end) {
#pragma unroll
    for (int panel = 0; panel < DIM / 64; panel++)
        ot_tile_copy<ROWS, 64, HOPPER_GROUP>(tile + panel * (ROWS * 64), from + panel * 64, ld, first, end);
}

/* ---- products ---- */

/* The 64 rows of a warpgroup as the left operand of hopper_start_dots. step(i): elements from 16 i
 * on. */
template <int DIM>
struct hopper_registers {
    uint32_t a[DIM / 16][1][4];
    __device__ __forceinline__ const uint32_t (&step(int i) const)[4] { return a[i][0]; }
};

/* In panels of ROWS rows. */
template <int ROWS>
struct hopper_panels {
    uint64_t a;
    __device__ __forceinline__ uint64_t step(int i) const {
        return ot_wgmma_advance(a, i / 4 * (ROWS * HOPPER_PANEL_ROW) + i % 4 * 32);
    }
};

/* Starts s = x y^T: x is the warpgroup's rows, y is the 8 N rows at y, in panels. */
template <class T, int DIM, int N, class X>
__device__ __forceinline__ void hopper_start_dots(float (&s)[1][N][4], const X &x, const T *y) {
    hopper_panels<8 *N> rows = {ot_wgmma_operand(y, 0, HOPPER_EIGHT_ROWS)};
    ot_wgmma_fence();
    ot_wgmma<T, false, false>(s[0], x.step(0), rows.step(0));
#pragma unroll
    for (int i = 1; i < DIM / 16; i++)
        ot_wgmma<T, false, true>(s[0], x.step(i), rows.step(i));
    ot_wgmma_commit();
}

/* Starts sum += p z: p are weights of the warpgroup's rows, z is the 16 K rows at z, in panels. */
template <class T, int DIM, int K>
__device__ __forceinline__ void hopper_start_weigh(float (&sum)[1][DIM / 8][4], const uint32_t (&p)[1][K][4],
                                                   const T *z) {
    uint64_t rows = ot_wgmma_operand(z, 16 * K * HOPPER_PANEL_ROW, HOPPER_EIGHT_ROWS);
    ot_wgmma_fence();
#pragma unroll
    for (int i = 0; i < K; i++)
        ot_wgmma<T, true, true>(sum[0], p[0][i], ot_wgmma_advance(rows, i * 16 * HOPPER_PANEL_ROW));
    ot_wgmma_commit();
}

#endif

/* Shared by the kernels of compute capability 9.0 (attention_hopper.cu, attention_hopper_backward.cu,
 * gemm_groups_hopper.cu): the division of a block into warpgroups, and the ring of tiles in shared memory.
 *
 * The first warpgroup of a block copies tiles into the ring; two more warpgroups multiply and own 64 rows of
 * the result each. S describes the shape:
 *
 *     STAGES            slots of the ring
 *     SLOT_BYTES        a slot, a multiple of 1024
 *     OWNED_BYTES       the block's data beside the ring, from a multiple of 1024 on; a multiple of 8
 */
#ifndef OT_KERNELS_CUDA_RING_HOPPER_CUH
#define OT_KERNELS_CUDA_RING_HOPPER_CUH

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

/* Returns x, which is equal in all lanes of a warp. This tells the compiler to keep values derived from x in
 * uniform registers. */
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
    uint32_t parity; /* parity of the phase of full[slot] that its item ends */

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

#endif

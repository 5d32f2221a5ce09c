/* Products by groups on the tensor cores of compute capability 9.0 (ptx_hopper.cuh), for bf16 and fp16 with
 * fp32 sums. gemm_groups_hopper.cuh has the parts of a warp, gemm_groups.cuh finds tiles.
 *
 * A tile of C has 128 x 256 elements. One warpgroup copies steps of 64 along k (ROWS), or along the rows of
 * the group (SUMS), into a ring of four slots of 48 KiB. Two warpgroups multiply, 64 x 256 elements each: 128
 * fp32 sums a thread. Both operands lie in shared memory. A warpgroup whose 64 rows lie behind the group's
 * end multiplies nothing: the last tile of a group then costs half.
 *
 * PERSISTENT. A multiprocessor has one block. Block b computes the tiles b, b + blocks, b + 2 blocks, ... The
 * copying warps alone search for tiles. A note in shared memory, beside the slot of a tile's first step, says
 * which tile it is. So the search, and the copies of the next tile's first four steps, run while the other
 * warps still multiply and store the tile before it. A group without rows (SUMS) has one step of zeros. Which
 * block computes a tile changes no bit. LIMIT: blocks get tiles in turn. So in the form SUMS, experts with
 * many rows may load some blocks more than others.
 *
 * OPERANDS lie in panels (ptx_hopper.cuh) as in memory. Rows along k (A of ROWS, B with trans_b) make one
 * panel of all rows. Rows across k (A and B of SUMS, B of dx) make panels of 64 columns and 64 rows, which
 * wgmma transposes. So every copy writes whole rows of 128 bytes, without bank conflicts.
 *
 * ORDER. As in gemm_groups.cu, an element's sum runs in pieces of 16 from the start of k, or of the group.
 * The tensor core adds the terms of a piece. PTX does not say in which order or with how many bits, and wgmma
 * may differ from mma.sync there. So on a GPU the bits may differ from those of gemm_groups.cu; in the
 * emulator they are the same. The choice between the kernels depends on the sizes, strides and the machine
 * alone (ot_gemm_groups_is_hopper). Arrays off 16-byte borders have kernels of their own, with the same bits.
 * These copy and store single elements, which is slow.
 *
 * COST of one step of a block, 128 x 256 x 64 multiply-adds, counted; not run on a GPU:
 *
 *     tensor cores         8 wgmma of 64x256x16, 128 clocks each at 2048 multiply-adds a clock   1024 clocks
 *     shared memory        8 x (2 + 8) KiB of operands + 48 KiB of copies, at 128 bytes a clock  1024
 *     issue of a scheduler 1 warp with 24 copies and about 100 other instructions, 2 warps with 40 200
 *     L2                   48 KiB; 5120 bytes a clock for 132 multiprocessors                    1267
 *
 * So L2 is the limit, at 81 % of the 989 TFLOP/s of the tensor cores: 800. gemm_groups.cu is limited by
 * shared memory, to 474.
 *
 * The copies of a tile begin during the tile before. No product of the same block covers its store: 128
 * exchanges and about 1500 clocks, 5 % of the 32 steps of k = 2048. For fp32 sums with an addend, it moves
 * 256 KiB of device memory: 17000 clocks at a multiprocessor's share. So device memory limits the gradients
 * of the weights of experts with less than 1000 rows. Expected: 600 TFLOP/s for k = 2048 and bf16 results.
 */
#include "kernels/cuda/gemm_groups.h"
#include "kernels/cuda/gemm_groups_hopper.cuh"

/* The build defines OT_HOPPER if it compiles this file for sm_90a. Otherwise gemm_groups.cu replaces it. */
#if defined(OT_HOPPER) || defined(OT_EMU)

inline namespace gemm_groups_hopper_cu {

template <class T, class C, bool SUMS, bool TRANS_B, bool ALIGNED>
__global__ void __launch_bounds__(HOPPER_THREADS, 1)
    groups_hopper(const struct ot_gemm_groups op, int tiles) {
    using K = groups_kind<T, C, SUMS, TRANS_B, ALIGNED>;
    const hopper_room<T, groups_shape> room;
    room.init();
    if (threadIdx.x < HOPPER_GROUP) {
        ot_registers_give<GROUPS_COPY_REGISTERS>();
        groups_copy<K>(op, room, tiles);
        return;
    }
    ot_registers_take<GROUPS_PRODUCT_REGISTERS>();
    groups_multiply<K>(op, room);
}

template <class T, class C, bool ALIGNED>
cudaError_t launch(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    auto kernel = op->form == OT_GROUPS_SUMS ? groups_hopper<T, C, true, false, ALIGNED>
                  : op->trans_b              ? groups_hopper<T, C, false, true, ALIGNED>
                                             : groups_hopper<T, C, false, false, ALIGNED>;
    int tiles = (int)ot_groups_tiles(*op, groups_shape::ROWS, groups_shape::COLS);
    int blocks = tiles < on->sm_count ? tiles : on->sm_count;
    return ot_launch(kernel, dim3((unsigned)blocks), dim3(HOPPER_THREADS),
                     hopper_shared_bytes<groups_shape>(), on->stream, *op, tiles);
}

bool is_aligned(const struct ot_gemm_groups *op) {
    return ((uintptr_t)op->a | (uintptr_t)op->b | (uintptr_t)op->bias | (uintptr_t)op->addend |
            (uintptr_t)op->c) %
               16 ==
           0;
}

template <class T, class C>
cudaError_t launch_aligned(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    return is_aligned(op) ? launch<T, C, true>(op, on) : launch<T, C, false>(op, on);
}

} // namespace gemm_groups_hopper_cu

/* Not: narrow C, most of whose tile would be waste, and k below one step. Sizes and strides must be whole
 * chunks of 8 elements. */
bool ot_gemm_groups_is_hopper(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    bool sums = op->form == OT_GROUPS_SUMS;
    int64_t inner = sums ? op->m : op->k;
    return on->arch == 90 && !on->no_hopper && on->shared_bytes >= hopper_shared_bytes<groups_shape>() &&
           ot_gemm_groups_is_tiled(op) && op->n > groups_shape::COLS / 2 &&
           (sums || op->k >= groups_shape::STEP) && op->rows < 1 << 30 && op->n < 1 << 30 &&
           inner < 1 << 30 && (inner | op->n | op->lda | op->ldb | op->ldc | op->stride) % 8 == 0;
}

cudaError_t ot_gemm_groups_hopper(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on) {
    bool wide = op->c_dtype == OT_F32;
    if (op->dtype == OT_BF16)
        return wide ? launch_aligned<__nv_bfloat16, float>(op, on)
                    : launch_aligned<__nv_bfloat16, __nv_bfloat16>(op, on);
    return wide ? launch_aligned<__half, float>(op, on) : launch_aligned<__half, __half>(op, on);
}

#else

bool ot_gemm_groups_is_hopper(const struct ot_gemm_groups *, const struct ot_cuda_stream *) {
    return false;
}

cudaError_t ot_gemm_groups_hopper(const struct ot_gemm_groups *, const struct ot_cuda_stream *) {
    return cudaErrorInvalidDeviceFunction;
}

#endif

/* Products by groups (struct ot_gemm_groups): three kernels of one contract.
 *
 * HOPPER (gemm_groups_hopper.cu): the tensor cores of compute capability 9.0, for two-byte types, sizes and
 * strides of whole chunks of 8 elements, and more than half a tile of columns. TILED (gemm_groups.cu): any
 * tensor cores, two-byte types, every size. PLAIN (gemm_groups.cu): ordinary arithmetic for any dtype:
 * fp32, and ops that the guard does not trust (cuda_guard.h). All of them take every alignment. The choice
 * depends on the arguments and the machine alone, and not on where arrays lie.
 */
#ifndef OT_KERNELS_CUDA_GEMM_GROUPS_H
#define OT_KERNELS_CUDA_GEMM_GROUPS_H

#include "kernels/cuda/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t ot_gemm_groups_plain(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on);
cudaError_t ot_gemm_groups_hopper(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on);
/* True if the kernel for compute capability 9.0 computes this product, unless on->plain is set. */
bool ot_gemm_groups_is_hopper(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on);
#ifdef __cplusplus
}
#endif

static inline bool ot_gemm_groups_is_tiled(const struct ot_gemm_groups *op) {
    return op->dtype != OT_F32;
}

#endif

/* Products by groups (struct ot_gemm_groups): two kernels of one contract.
 *
 * TILED (gemm_groups.cu): tensor cores, two-byte types. PLAIN (gemm_groups_plain.cu): ordinary arithmetic for
 * any dtype: fp32, and what the guard does not trust (cuda_guard.h). Both take every shape and alignment. The
 * choice depends on the arguments and the machine alone.
 */
#ifndef OT_KERNELS_CUDA_GEMM_GROUPS_H
#define OT_KERNELS_CUDA_GEMM_GROUPS_H

#include "kernels/cuda/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif
cudaError_t ot_gemm_groups_plain(const struct ot_gemm_groups *op, const struct ot_cuda_stream *on);
#ifdef __cplusplus
}
#endif

static inline bool ot_gemm_groups_is_tiled(const struct ot_gemm_groups *op) {
    return op->dtype != OT_F32;
}

#endif

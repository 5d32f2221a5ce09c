/* Attention on a GPU: two ways to the same contract (kernels/ops.h), and who takes which.
 *
 * TILED (attention_forward.cu, attention_backward.cu): tensor cores over tiles in shared memory, for two-byte
 * types and the head sizes of common models. PLAIN (attention_plain.cu): any dtype and any head size with
 * ordinary arithmetic, for what tiles do not cover: fp32, odd heads, rows that 16-byte accesses cannot reach,
 * and for tiles that failed their check (cuda_guard.h). The choice depends on the arguments and the machine
 * alone, never on timing, so that a run repeats.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_H
#define OT_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/launchers.h"

cudaError_t ot_attention_forward_plain(const struct ot_attention *op, const struct ot_cuda_stream *on);
/* With dot(out, dout) in op->scratch. */
cudaError_t ot_attention_backward_plain(const struct ot_attention_backward *op,
                                        const struct ot_cuda_stream *on);

/* Whether rows that start at p and lie ld two-byte elements apart can be read 16 bytes at a time. */
static inline bool ot_attention_is_aligned(const void *p, int64_t ld) {
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0;
}

/* Whether the tiled kernels take a forward pass (the backward has more pointers to look at). Key indices
 * are int32 there, with room for a tile beyond the end. */
static inline bool ot_attention_is_tiled(const struct ot_attention *op, int arch) {
    int64_t dim = op->head_dim;
    bool dtype = (op->dtype == OT_BF16 && arch >= 80) || (op->dtype == OT_F16 && arch >= 75);
    return dtype && (dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256) &&
           op->n_keys < 1 << 30 && ot_attention_is_aligned(op->q, op->ldq) &&
           ot_attention_is_aligned(op->k, op->ldk) && ot_attention_is_aligned(op->v, op->ldv) &&
           ot_attention_is_aligned(op->out, op->ldo);
}

#endif

/* Attention on a GPU: three implementations of one contract (kernels/ops.h), and the rule that chooses
 * between them.
 *
 * HOPPER (attention_hopper.cu, attention_hopper_backward.cu): the tensor cores of compute capability 9.0,
 * for heads of 64 and 128 elements. TILED (attention_forward.cu, attention_backward.cuh): tensor cores
 * work on tiles in shared memory. It takes two-byte types and the head sizes of common models. PLAIN
 * (attention_plain.cu): ordinary arithmetic for any dtype and any head size. It takes everything that
 * tiled cannot: fp32, odd head sizes, and rows that 16-byte accesses cannot reach. It also replaces tiled
 * kernels that failed their check, or that the environment forbids (cuda_guard.h). All of them take
 * softcaps and sinks, and plain alone takes dropout. One kernel sums the gradients of the sinks for all
 * (attention_backward.cu). The choice depends on the arguments and the machine alone, never on timing, so
 * that a run repeats.
 *
 * Attention over spans (kernels/ops_spans.h) has two: TILED, other instances of the tiled kernels
 * (attention_spans.cuh), for heads of 64 and 128 elements; and PLAIN (attention_spans.cu).
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_H
#define OT_KERNELS_CUDA_ATTENTION_H

#include "kernels/cuda/launchers.h"

cudaError_t ot_attention_forward_plain(const struct ot_attention *op, const struct ot_cuda_stream *on);
/* Writes dot(out, dout) to op->scratch first. */
cudaError_t ot_attention_backward_plain(const struct ot_attention_backward *op,
                                        const struct ot_cuda_stream *on);

/* Adds the gradients of the sinks to op->dsinks, for every implementation. Needs dot(out, dout) in
 * op->scratch. */
cudaError_t ot_attention_backward_sinks(const struct ot_attention_backward *op,
                                        const struct ot_cuda_stream *on);

/* Attention over spans on tensor cores, for arguments that ot_attend_spans_is_tiled or
 * ot_attend_spans_backward_is_tiled accepts. */
cudaError_t ot_attend_spans_tiled(const struct ot_attend_spans *op, const struct ot_cuda_stream *on);
cudaError_t ot_attend_spans_backward_tiled(const struct ot_attend_spans_backward *op,
                                           const struct ot_cuda_stream *on);
/* dbias += the parts that blocks of `queries` queries wrote to op->scratch, in order. */
cudaError_t ot_attend_spans_join_bias(const struct ot_attend_spans_backward *op, int queries,
                                      const struct ot_cuda_stream *on);

#ifdef __cplusplus
extern "C" {
#endif
/* True if the kernel for compute capability 9.0 computes this forward pass, unless on->plain is set. */
bool ot_attention_is_hopper(const struct ot_attention *op, const struct ot_cuda_stream *on);
/* The same for the backward pass whose forward arguments are *op, if ot_attention_is_aligned holds for the
 * gradients too. */
bool ot_attention_backward_is_hopper(const struct ot_attention *op, const struct ot_cuda_stream *on);
#ifdef __cplusplus
}
#endif
cudaError_t ot_attention_forward_hopper(const struct ot_attention *op, const struct ot_cuda_stream *on);
/* op->scratch holds dot(out, dout). */
cudaError_t ot_attention_backward_hopper(const struct ot_attention_backward *op,
                                         const struct ot_cuda_stream *on);

/* True if rows that start at p and lie ld two-byte elements apart can be read 16 bytes at a time. */
static inline bool ot_attention_is_aligned(const void *p, int64_t ld) {
    return (uintptr_t)p % 16 == 0 && ld % 8 == 0;
}

/* True if the tiled kernels can compute this forward pass over spans. Tables of biases with a reach above
 * OT_SPANS_MOST_REACH take too much shared memory; T5 has 128. */
enum { OT_SPANS_MOST_REACH = 256, OT_SPANS_SHARED_BYTES = 99 << 10 };

static inline bool ot_attend_spans_is_tiled(const struct ot_attend_spans *op,
                                            const struct ot_cuda_stream *on) {
    return (op->dtype == OT_BF16 || op->dtype == OT_F16) && (op->head_dim == 64 || op->head_dim == 128) &&
           on->arch >= 80 && on->shared_bytes >= OT_SPANS_SHARED_BYTES &&
           (!op->bias || op->reach <= OT_SPANS_MOST_REACH) && op->n < 1 << 30 && op->n_keys < 1 << 30 &&
           ot_attention_is_aligned(op->q, op->ldq) && ot_attention_is_aligned(op->k, op->ldk) &&
           ot_attention_is_aligned(op->v, op->ldv) && ot_attention_is_aligned(op->out, op->ldo);
}

/* The same for the backward pass. */
static inline bool ot_attend_spans_backward_is_tiled(const struct ot_attend_spans_backward *op,
                                                     const struct ot_cuda_stream *on) {
    const struct ot_attend_spans *f = &op->forward;
    return ot_attend_spans_is_tiled(f, on) && ot_attention_is_aligned(op->dout, f->ldo) &&
           ot_attention_is_aligned(op->dq, f->ldq) && ot_attention_is_aligned(op->dk, f->ldk) &&
           ot_attention_is_aligned(op->dv, f->ldv);
}

/* True if the tiled kernels can compute this forward pass. (The backward has to check more pointers.) Key
 * indices are int32 in the kernels, with room for one tile behind the last key. */
static inline bool ot_attention_is_tiled(const struct ot_attention *op, int arch) {
    int64_t dim = op->head_dim;
    bool dtype = (op->dtype == OT_BF16 && arch >= 80) || (op->dtype == OT_F16 && arch >= 75);
    return dtype && (dim == 64 || dim == 80 || dim == 96 || dim == 128 || dim == 256) &&
           op->n_keys < 1 << 30 && ot_attention_is_aligned(op->q, op->ldq) &&
           ot_attention_is_aligned(op->k, op->ldk) && ot_attention_is_aligned(op->v, op->ldv) &&
           ot_attention_is_aligned(op->out, op->ldo);
}

#endif

/* The plain matrix product: the contract of struct ot_gemm (kernels/ops.h) without a library.
 *
 * The kernel takes every shape, dtype and alignment. Its bits depend on the arguments alone: each element is
 * one fp32 sum in the order of k. It is slow (some per cent of the rate of tensor cores). It computes shapes
 * for which cuBLASLt has no algorithm, and it is the reference that a fast product is compared with
 * (cuda_guard.h).
 */
#ifndef OT_KERNELS_CUDA_GEMM_PLAIN_H
#define OT_KERNELS_CUDA_GEMM_PLAIN_H

#include "kernels/cuda/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* m, n, k >= 1. The kernel needs no scratch. */
cudaError_t ot_cuda_gemm_plain(const struct ot_gemm *op, const struct ot_cuda_stream *on);

#ifdef __cplusplus
}
#endif

/* ---- tuning ---- */

/* The kernels of tuning (cuda_gemm_tune.c): they generate operands and compare two results. */

#ifdef __cplusplus
extern "C" {
#endif

/* to[i] = a pseudo-random number in [-1, 1), which depends on the seed and i alone. */
cudaError_t ot_cuda_gemm_fill(enum ot_dtype dtype, void *to, int64_t n, uint32_t seed,
                              const struct ot_cuda_stream *on);
/* Adds a positive number to *differ if any of the n pairs of two-byte words differ. */
cudaError_t ot_cuda_gemm_compare(const void *a, const void *b, int64_t n, uint32_t *differ,
                                 const struct ot_cuda_stream *on);

#ifdef __cplusplus
}
#endif

#endif

/* The kernels of tuning (cuda_gemm_tune.c): they generate operands and compare two results. */
#ifndef OT_KERNELS_CUDA_GEMM_TUNE_H
#define OT_KERNELS_CUDA_GEMM_TUNE_H

#include "kernels/cuda/launchers.h"

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

/* The kernels of tuning (cuda_gemm_tune.c): operands out of nothing, and whether two results are the same. */
#ifndef OT_KERNELS_CUDA_GEMM_TUNE_H
#define OT_KERNELS_CUDA_GEMM_TUNE_H

#include "kernels/cuda/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* to[i] = a number in [-1, 1) that looks random: a function of the seed and i. */
cudaError_t ot_cuda_gemm_fill(enum ot_dtype dtype, void *to, int64_t n, uint32_t seed,
                              const struct ot_cuda_stream *on);
/* Adds to *differ if one of the n pairs of two-byte words is not a pair. */
cudaError_t ot_cuda_gemm_compare(const void *a, const void *b, int64_t n, uint32_t *differ,
                                 const struct ot_cuda_stream *on);

#ifdef __cplusplus
}
#endif

#endif

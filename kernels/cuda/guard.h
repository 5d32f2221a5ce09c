/* The kernel of the guard (cuda_guard.h): how far two results are apart. */
#ifndef OT_KERNELS_CUDA_GUARD_H
#define OT_KERNELS_CUDA_GUARD_H

#include "kernels/cuda/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Device memory; zero it first. Several arrays may be compared into one. */
struct ot_guard_distance {
    float difference; /* the largest |a - b|; NaN if one of the two is, or both are, not a number */
    float magnitude;  /* the largest |b| */
};
cudaError_t ot_cuda_guard_compare(enum ot_dtype dtype, const void *a, const void *b, int64_t n,
                                  struct ot_guard_distance *out, const struct ot_cuda_stream *on);

#ifdef __cplusplus
}
#endif

#endif

/* The kernel of the guard (cuda_guard.h): measures the distance of two results. */
#ifndef OT_KERNELS_CUDA_GUARD_H
#define OT_KERNELS_CUDA_GUARD_H

#include "kernels/cuda/launchers.h"

#ifdef __cplusplus
extern "C" {
#endif

/* In device memory. Set it to zero first. Several arrays may be compared into the same struct. */
struct ot_guard_distance {
    float difference; /* the largest |a - b|; NaN if a or b is NaN anywhere */
    float magnitude;  /* the largest |b| */
};
cudaError_t ot_cuda_guard_compare(enum ot_dtype dtype, const void *a, const void *b, int64_t n,
                                  struct ot_guard_distance *out, const struct ot_cuda_stream *on);

#ifdef __cplusplus
}
#endif

#endif

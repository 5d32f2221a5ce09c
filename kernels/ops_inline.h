/* Formulas of the ops that both devices compile: C, and CUDA C++. */
#ifndef OT_KERNELS_OPS_INLINE_H
#define OT_KERNELS_OPS_INLINE_H

#ifdef __CUDACC__
#define OT_OPS_INLINE __host__ __device__ inline
#else
#define OT_OPS_INLINE inline
#endif

#endif

/* The kernels of tuning. They are limited by memory bandwidth and run beside products that take far longer,
 * so one element at a time per thread is fast enough. The 32 threads of a warp still read and write whole
 * sectors. */
#include "kernels/cuda/gemm_tune.h"

#include "kernels/cuda/kernel.cuh"

namespace {

enum { THREADS = 256, BLOCKS_PER_SM = 32 };

/* The mixing function of splitmix64 (Steele, Lea and Flood, "Fast Splittable Pseudorandom Number
 * Generators"). The bits of neighbouring elements are unrelated. So if two algorithms add random operands in
 * different orders, their additions round differently. */
__device__ __forceinline__ uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

template <class T>
__global__ void fill_kernel(T *to, int64_t n, uint64_t seed) {
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        int32_t word = (int32_t)(mix(seed << 48 ^ (uint64_t)i) >> 40) - (1 << 23);
        to[i] = ot_from_float<T>((float)word * (1.0f / (1 << 23)));
    }
}

__global__ void compare_kernel(const uint16_t *a, const uint16_t *b, int64_t n, uint32_t *differ) {
    uint32_t mine = 0;
    int64_t stride = (int64_t)gridDim.x * blockDim.x;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride)
        mine |= a[i] != b[i];
    if (mine)
        atomicAdd(differ, mine);
}

dim3 grid_of(int64_t n, const struct ot_cuda_stream *on) {
    int64_t blocks = ot_ceil_div(n, THREADS), most = (int64_t)on->sm_count * BLOCKS_PER_SM;
    return dim3((unsigned)(blocks < most ? blocks : most));
}

} /* namespace */

cudaError_t ot_cuda_gemm_fill(enum ot_dtype dtype, void *to, int64_t n, uint32_t seed,
                              const struct ot_cuda_stream *on) {
    return ot_dispatch(dtype, [&](auto zero) {
        using T = decltype(zero);
        return ot_launch(fill_kernel<T>, grid_of(n, on), dim3(THREADS), 0, on->stream, static_cast<T *>(to),
                         n, (uint64_t)seed);
    });
}

cudaError_t ot_cuda_gemm_compare(const void *a, const void *b, int64_t n, uint32_t *differ,
                                 const struct ot_cuda_stream *on) {
    return ot_launch(compare_kernel, grid_of(n, on), dim3(THREADS), 0, on->stream,
                     static_cast<const uint16_t *>(a), static_cast<const uint16_t *>(b), n, differ);
}

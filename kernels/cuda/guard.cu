/* For numbers that are not negative, the order of the numbers is the order of their bits. So integer atomics
 * compute their maximum, in any order. The bits of a NaN are larger than those of infinity, so a NaN stays
 * the maximum. */
#include "kernels/cuda/guard.h"

#include "kernels/cuda/kernel.cuh"

inline namespace guard_cu {

enum { THREADS = 256 };

template <class T>
__global__ void guard_compare(const T *a, const T *b, int64_t n, struct ot_guard_distance *out) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= n)
        return;
    float x = ot_to_float(a[i]), y = ot_to_float(b[i]);
    atomicMax(reinterpret_cast<unsigned *>(&out->difference), __float_as_uint(fabsf(x - y)));
    atomicMax(reinterpret_cast<unsigned *>(&out->magnitude), __float_as_uint(fabsf(y)));
}

} // namespace guard_cu

cudaError_t ot_cuda_guard_compare(enum ot_dtype dtype, const void *a, const void *b, int64_t n,
                                  struct ot_guard_distance *out, const struct ot_cuda_stream *on) {
    return ot_dispatch(dtype, [&](auto zero) {
        using T = decltype(zero);
        return ot_launch(guard_compare<T>, dim3((unsigned)ot_ceil_div(n, THREADS)), dim3(THREADS), 0,
                         on->stream, static_cast<const T *>(a), static_cast<const T *>(b), n, out);
    });
}

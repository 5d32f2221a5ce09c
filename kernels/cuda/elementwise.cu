/* Sums of two arrays and conversions between storage types.
 *
 * Bytes: add reads two arrays and writes one, cast reads one and writes one; both do one operation for each
 * element, so that memory alone decides.
 */
#include "kernels/cuda/map.cuh"

#include <type_traits>

namespace {

template <class T>
struct add {
    static constexpr int N = ot_pack<T>::N;
    const T *a, *b;
    T *out;

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_values<W> x = ot_read<W>(a + i), y = ot_read<W>(b + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            x.v[j] += y.v[j];
        ot_write(out + i, x);
    }
};

template <class From, class To>
struct cast {
    static constexpr int N = ot_pack<From>::N > ot_pack<To>::N ? ot_pack<From>::N : ot_pack<To>::N;
    const From *src;
    To *dst;

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_write(dst + i, ot_read<W>(src + i));
    }
};

} // namespace

cudaError_t ot_cuda_add(const struct ot_add *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), n = args->n;
        int64_t head = ot_map_head({{args->a, bytes, 0}, {args->b, bytes, 0}, {args->out, bytes, 0}}, 1, n);
        return ot_map(add<T>{(const T *)args->a, (const T *)args->b, (T *)args->out}, 1, n, head, on);
    });
}

cudaError_t ot_cuda_cast(const struct ot_cast *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->from, [&](auto from_zero) {
        return ot_dispatch(args->to, [&](auto to_zero) {
            using From = decltype(from_zero);
            using To = decltype(to_zero);
            int64_t from_bytes = sizeof(From), to_bytes = sizeof(To), n = args->n;
            if constexpr (std::is_same_v<From, To>) { /* a copy of bits, NaNs as they are */
                return cudaMemcpyAsync(args->dst, args->src, (size_t)(n * to_bytes), cudaMemcpyDeviceToDevice,
                                       on->stream);
            } else {
                int64_t head = ot_map_head({{args->src, from_bytes, 0}, {args->dst, to_bytes, 0}}, 1, n);
                return ot_map(cast<From, To>{(const From *)args->src, (To *)args->dst}, 1, n, head, on);
            }
        });
    });
}

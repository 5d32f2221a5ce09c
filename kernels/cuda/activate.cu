/* Activations and their gradients, and the softcap of logits, on contiguous arrays.
 *
 * Bytes per two-byte element: forward 4, backward 6; of a softcap's fp32 element: 8. The formulas are in
 * kernels/formulas.h. They take from some 30 instructions (SILU, GELU by tanh) to 60 (GELU by erf,
 * backward). A GPU issues about as many while its memory moves those bytes.
 */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/map.cuh"

namespace {

template <class T, ot_activation ACT>
struct activate {
    static constexpr int N = ot_pack<T>::N;
    const T *x;
    T *y;

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_values<W> v = ot_read<W>(x + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            v.v[j] = vec_activation(ACT, v.v[j]);
        ot_write(y + i, v);
    }
};

template <class T, ot_activation ACT>
struct activate_backward {
    static constexpr int N = ot_pack<T>::N;
    const T *x, *dy;
    T *dx;

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_values<W> v = ot_read<W>(x + i), d = ot_read<W>(dy + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float y;
            d.v[j] = d.v[j] * vec_activation_slope(ACT, v.v[j], &y);
        }
        ot_write(dx + i, d);
    }
};

struct softcap {
    static constexpr int N = ot_pack<float>::N;
    float cap, *x;

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_values<W> v = ot_read<W>(x + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float y;
            vec_softcap_slope(cap, v.v[j], &y);
            v.v[j] = y;
        }
        ot_write(x + i, v);
    }
};

} // namespace

cudaError_t ot_cuda_softcap(const struct ot_softcap *args, const struct ot_cuda_stream *on) {
    int64_t head = ot_map_head({{args->x, 4, 0}}, 1, args->n);
    return ot_map(softcap{args->cap, args->x}, 1, args->n, head, on);
}

cudaError_t ot_cuda_activate(const struct ot_activate *args, const struct ot_cuda_stream *on) {
    return ot_dispatch_activation(args->dtype, args->act, [&](auto zero, auto act) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), n = args->n;
        int64_t head = ot_map_head({{args->x, bytes, 0}, {args->y, bytes, 0}}, 1, n);
        return ot_map(activate<T, act.value>{(const T *)args->x, (T *)args->y}, 1, n, head, on);
    });
}

cudaError_t ot_cuda_activate_backward(const struct ot_activate_backward *args,
                                      const struct ot_cuda_stream *on) {
    return ot_dispatch_activation(args->dtype, args->act, [&](auto zero, auto act) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), n = args->n;
        int64_t head = ot_map_head({{args->x, bytes, 0}, {args->dy, bytes, 0}, {args->dx, bytes, 0}}, 1, n);
        activate_backward<T, act.value> op = {(const T *)args->x, (const T *)args->dy, (T *)args->dx};
        return ot_map(op, 1, n, head, on);
    });
}

/* Dropout.
 *
 * Bytes: it reads one array, or two, and writes one. A random word takes eight integer instructions, so
 * memory bandwidth is the limit.
 */
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/noise.cuh"

namespace {

enum form { ALONE, ADDS, OF_DIFFERENCE };

template <class T, form Form>
struct dropout {
    static constexpr int N = ot_pack<T>::N;
    const T *x, *addend;
    T *out;
    struct ot_state_noise noise;
    int64_t first;
    uint32_t least;
    float factor;

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_values<W> v = ot_read<W>(x + i), sum;
        if constexpr (Form != ALONE)
            sum = ot_read<W>(addend + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            if constexpr (Form == OF_DIFFERENCE)
                v.v[j] -= sum.v[j];
            v.v[j] = random_word(noise, first + i + j) < least ? 0.0f : v.v[j] * factor;
            if constexpr (Form != ALONE)
                v.v[j] = sum.v[j] + v.v[j];
        }
        ot_write(out + i, v);
    }
};

template <class T, form Form>
cudaError_t launch(const struct ot_dropout *args, const struct ot_cuda_stream *on) {
    int64_t bytes = sizeof(T), n = args->n;
    const void *addend = Form == ALONE ? args->x : args->addend;
    int64_t head = ot_map_head({{args->x, bytes, 0}, {addend, bytes, 0}, {args->out, bytes, 0}}, 1, n);
    return ot_map(dropout<T, Form>{(const T *)args->x, (const T *)args->addend, (T *)args->out, args->noise,
                                   args->first, ot_dropout_least(args->drop), ot_dropout_factor(args->drop)},
                  1, n, head, on);
}

} // namespace

cudaError_t ot_cuda_dropout(const struct ot_dropout *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        return args->of_difference ? launch<T, OF_DIFFERENCE>(args, on)
               : args->addend      ? launch<T, ADDS>(args, on)
                                   : launch<T, ALONE>(args, on);
    });
}

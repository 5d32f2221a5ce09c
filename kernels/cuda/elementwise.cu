/* Sums of arrays, conversions between storage types, dropout, NEFTune and marks.
 *
 * Bytes: add reads two arrays and writes one; join reads each part and writes one; cast reads one and writes
 * one. All do one operation per element that they read, so memory bandwidth is the only limit.
 */
#include <type_traits>

#include "kernels/cuda/kernel.cuh"
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/scalar.cuh"

inline namespace elementwise_cu {

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

template <class T, bool Tree>
struct join {
    static constexpr int N = ot_pack<T>::N;
    const T *parts, *own_part;
    float *out;
    int64_t stride;
    int n_parts, own;

    template <int W>
    static __device__ __forceinline__ void add_to(ot_values<W> *sum, const ot_values<W> &more) {
#pragma unroll
        for (int j = 0; j < W; j++)
            sum->v[j] += more.v[j];
    }

    template <int W>
    __device__ __forceinline__ ot_values<W> part(int p, int64_t i) const {
        return ot_read<W>(p == own ? own_part + i : parts + p * stride + i);
    }

    template <int W>
    __device__ __forceinline__ ot_values<W> in_order(int64_t i) const {
        ot_values<W> sum = part<W>(0, i);
#pragma unroll 2 /* with more, some architectures run out of registers */
        for (int p = 1; p < n_parts; p++)
            add_to(&sum, part<W>(p, i));
        return sum;
    }

    /* The sum of the 2^LEVEL parts from `first` on. */
    template <int W, int LEVEL>
    __device__ __forceinline__ ot_values<W> along_tree(int first, int64_t i) const {
        if constexpr (LEVEL == 0) {
            return part<W>(first, i);
        } else {
            ot_values<W> left = along_tree<W, LEVEL - 1>(first, i);
            add_to(&left, along_tree<W, LEVEL - 1>(first + (1 << (LEVEL - 1)), i));
            return left;
        }
    }

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        if constexpr (!Tree)
            ot_write(out + i, in_order<W>(i));
        else if (n_parts == 8)
            ot_write(out + i, along_tree<W, 3>(0, i));
        else if (n_parts == 4)
            ot_write(out + i, along_tree<W, 2>(0, i));
        else if (n_parts == 2)
            ot_write(out + i, along_tree<W, 1>(0, i));
        else
            ot_write(out + i, part<W>(0, i));
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

} // namespace elementwise_cu

cudaError_t ot_cuda_add(const struct ot_add *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), n = args->n;
        int64_t head = ot_map_head({{args->a, bytes, 0}, {args->b, bytes, 0}, {args->out, bytes, 0}}, 1, n);
        return ot_map(add<T>{(const T *)args->a, (const T *)args->b, (T *)args->out}, 1, n, head, on);
    });
}

cudaError_t ot_cuda_join(const struct ot_join *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t bytes = sizeof(T), n = args->n;
        int64_t head =
            ot_map_head({{args->parts, bytes, 0}, {args->own_part, bytes, 0}, {args->out, 4, 0}}, 1, n);
        const T *parts = (const T *)args->parts, *own = (const T *)args->own_part;
        if (args->tree)
            return ot_map(join<T, true>{parts, own, args->out, args->stride, args->n_parts, args->own}, 1, n,
                          head, on);
        return ot_map(join<T, false>{parts, own, args->out, args->stride, args->n_parts, args->own}, 1, n,
                      head, on);
    });
}

cudaError_t ot_cuda_cast(const struct ot_cast *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->from, [&](auto from_zero) {
        return ot_dispatch(args->to, [&](auto to_zero) {
            using From = decltype(from_zero);
            using To = decltype(to_zero);
            int64_t from_bytes = sizeof(From), to_bytes = sizeof(To), n = args->n;
            if constexpr (std::is_same_v<From, To>) { /* copies the bits, so NaNs keep their bits */
                return cudaMemcpyAsync(args->dst, args->src, (size_t)(n * to_bytes), cudaMemcpyDeviceToDevice,
                                       on->stream);
            } else {
                int64_t head = ot_map_head({{args->src, from_bytes, 0}, {args->dst, to_bytes, 0}}, 1, n);
                return ot_map(cast<From, To>{(const From *)args->src, (To *)args->dst}, 1, n, head, on);
            }
        });
    });
}

/* ---- dropout ---- */

/* Dropout.
 *
 * Bytes: it reads one array, or two, and writes one. A random word takes eight integer instructions, so
 * memory bandwidth is the limit.
 */

inline namespace elementwise_cu {

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

} // namespace elementwise_cu

cudaError_t ot_cuda_dropout(const struct ot_dropout *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        return args->of_difference ? launch<T, OF_DIFFERENCE>(args, on)
               : args->addend      ? launch<T, ADDS>(args, on)
                                   : launch<T, ALONE>(args, on);
    });
}

/* ---- NEFTune ---- */

/* A block has a token, and finds the end of its row by bisection. Bytes: x once in, once out. */

template <class T>
__global__ void neftune_rows(struct ot_neftune op) {
    int64_t token = blockIdx.x, first = token * op.cols;
    T *x = static_cast<T *>(op.x) + first;
    int64_t row = ot_neftune_row_end(&op, token) - op.row_start[token];
    float size = op.alpha / sqrtf((float)(row * op.cols));
    for (int64_t c = threadIdx.x; c < op.cols; c += blockDim.x) {
        float u = (float)(int32_t)random_word(op.noise, first + c) * 0x1p-31f;
        x[c] = ot_from_float<T>(ot_to_float(x[c]) + size * u);
    }
}

cudaError_t ot_cuda_neftune(const struct ot_neftune *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        return ot_launch(neftune_rows<decltype(zero)>, dim3((unsigned)args->n), dim3(256), 0, on->stream,
                         *args);
    });
}

/* ---- marks ---- */

/* Writes the number of the current mark to host memory (cuda_state.h: ERRORS). */

static __global__ void mark_kernel(uint32_t *word, uint32_t number) {
    *word = number;
}

cudaError_t ot_cuda_mark(uint32_t *word, uint32_t number, cudaStream_t stream) {
    return ot_launch(mark_kernel, dim3(1), dim3(1), 0, stream, word, number);
}

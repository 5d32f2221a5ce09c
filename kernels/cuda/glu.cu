/* Gated activations (SwiGLU, GeGLU: Shazeer, "GLU Variants Improve Transformer", 2020) and their gradients.
 *
 * Bytes per two-byte element: forward 6 (gate, up, out), backward 10 (gate, up, dout, dgate, dup); some 35
 * and 45 instructions with SILU. Gate and up may be the halves of wider rows, the output of one fused
 * product.
 */
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/map.cuh"

namespace {

template <class T, ot_activation ACT>
struct glu {
    static constexpr int N = ot_pack<T>::N;
    const T *gate, *up;
    T *out;
    int64_t ld_in, ld_out;

    template <int W>
    __device__ __forceinline__ void run(int64_t row, int64_t i) const {
        int64_t in = row * ld_in + i;
        ot_values<W> g = ot_read<W>(gate + in), u = ot_read<W>(up + in);
#pragma unroll
        for (int j = 0; j < W; j++)
            g.v[j] = vec_activation(ACT, g.v[j]) * u.v[j];
        ot_write(out + row * ld_out + i, g);
    }
};

template <class T, ot_activation ACT>
struct glu_backward {
    static constexpr int N = ot_pack<T>::N;
    const T *gate, *up, *dout;
    T *dgate, *dup;
    int64_t ld_in, ld_out;

    template <int W>
    __device__ __forceinline__ void run(int64_t row, int64_t i) const {
        int64_t in = row * ld_in + i;
        ot_values<W> g = ot_read<W>(gate + in), u = ot_read<W>(up + in),
                     d = ot_read<W>(dout + row * ld_out + i);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float a, slope = vec_activation_slope(ACT, g.v[j], &a);
            g.v[j] = (d.v[j] * u.v[j]) * slope;
            u.v[j] = d.v[j] * a;
        }
        ot_write(dgate + in, g);
        ot_write(dup + in, u);
    }
};

/* Treats rows without gaps as one long row. */
void join_rows(int64_t *rows, int64_t *cols, int64_t ld_in, int64_t ld_out) {
    if (ld_in == *cols && ld_out == *cols) {
        *cols *= *rows;
        *rows = 1;
    }
}

} // namespace

cudaError_t ot_cuda_glu(const struct ot_glu *args, const struct ot_cuda_stream *on) {
    return ot_dispatch_activation(args->dtype, args->act, [&](auto zero, auto act) {
        using T = decltype(zero);
        int64_t rows = args->rows, cols = args->cols, bytes = sizeof(T), in = args->ld_in, out = args->ld_out;
        join_rows(&rows, &cols, in, out);
        int64_t head = ot_map_head({{args->gate, bytes, in}, {args->up, bytes, in}, {args->out, bytes, out}},
                                   rows, cols);
        glu<T, act.value> op = {(const T *)args->gate, (const T *)args->up, (T *)args->out, in, out};
        return ot_map(op, rows, cols, head, on);
    });
}

cudaError_t ot_cuda_glu_backward(const struct ot_glu_backward *args, const struct ot_cuda_stream *on) {
    const struct ot_glu *forward = &args->forward;
    return ot_dispatch_activation(forward->dtype, forward->act, [&](auto zero, auto act) {
        using T = decltype(zero);
        int64_t rows = forward->rows, cols = forward->cols, bytes = sizeof(T);
        int64_t in = forward->ld_in, out = forward->ld_out;
        join_rows(&rows, &cols, in, out);
        int64_t head = ot_map_head({{forward->gate, bytes, in},
                                    {forward->up, bytes, in},
                                    {args->dgate, bytes, in},
                                    {args->dup, bytes, in},
                                    {args->dout, bytes, out}},
                                   rows, cols);
        glu_backward<T, act.value> op = {(const T *)forward->gate,
                                         (const T *)forward->up,
                                         (const T *)args->dout,
                                         (T *)args->dgate,
                                         (T *)args->dup,
                                         in,
                                         out};
        return ot_map(op, rows, cols, head, on);
    });
}

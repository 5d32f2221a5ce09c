/* Activations and their gradients, and the softcap of logits, on contiguous arrays.
 *
 * Bytes per two-byte element: forward 4, backward 6; of a softcap's fp32 element: 8. The formulas are in
 * kernels/formulas.h. They take from some 30 instructions (SILU, GELU by tanh) to 60 (GELU by erf,
 * backward). A GPU issues about as many while its memory moves those bytes.
 */
#include "kernels/cuda/map.cuh"
#include "kernels/cuda/scalar.cuh"

/* ---- activation ---- */

/* Instantiates a kernel for each activation: the formulas of kernels/formulas.h, with the switch decided at
 * compile time. */

template <ot_activation ACT>
struct ot_activation_constant {
    static constexpr ot_activation value = ACT;
};

/* Calls f(zero, act) like ot_dispatch; act.value is the activation. */
template <class F>
cudaError_t ot_dispatch_activation(enum ot_dtype dtype, enum ot_activation act, F f) {
    return ot_dispatch(dtype, [&](auto zero) {
        switch (act) {
        case OT_ACT_SILU:
            return f(zero, ot_activation_constant<OT_ACT_SILU>());
        case OT_ACT_GELU_ERF:
            return f(zero, ot_activation_constant<OT_ACT_GELU_ERF>());
        case OT_ACT_GELU_TANH:
            return f(zero, ot_activation_constant<OT_ACT_GELU_TANH>());
        case OT_ACT_RELU:
            return f(zero, ot_activation_constant<OT_ACT_RELU>());
        }
        return cudaErrorInvalidValue;
    });
}

/* ---- activate ---- */

inline namespace activation_cu {

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

} // namespace activation_cu

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

/* ---- glu ---- */

/* Gated activations (SwiGLU, GeGLU: Shazeer, "GLU Variants Improve Transformer", 2020) and their gradients.
 *
 * Bytes per two-byte element: forward 6 (gate, up, out), backward 10 (gate, up, dout, dgate, dup); some 35
 * and 45 instructions with SILU. Gate and up may be the halves of wider rows, the output of one fused
 * product. In gpt-oss' unit, which has limits, they are neighbours: a thread reads two packs of pairs for one
 * pack of out.
 */

inline namespace activation_cu {

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

/* ---- the unit with limits ---- */

/* Reads W pairs of gate and up. */
template <int W, class T>
__device__ __forceinline__ void read_pairs(const T *from, ot_values<W> &gate, ot_values<W> &up) {
    if constexpr (W == 1) {
        gate.v[0] = ot_to_float(from[0]);
        up.v[0] = ot_to_float(from[1]);
    } else {
        ot_values<2 *W> both = ot_read<2 * W>(from);
#pragma unroll
        for (int j = 0; j < W; j++) {
            gate.v[j] = both.v[2 * j];
            up.v[j] = both.v[2 * j + 1];
        }
    }
}

template <class T>
struct bounded_glu {
    static constexpr int N = ot_pack<T>::N;
    const T *both;
    T *out;
    int64_t ld_in, ld_out;
    float limit, alpha;

    template <int W>
    __device__ __forceinline__ void run(int64_t row, int64_t i) const {
        ot_values<W> g, u;
        read_pairs(both + row * ld_in + 2 * i, g, u);
#pragma unroll
        for (int j = 0; j < W; j++)
            g.v[j] = vec_bounded_glu(limit, alpha, g.v[j], u.v[j]);
        ot_write(out + row * ld_out + i, g);
    }
};

template <class T>
struct bounded_glu_backward {
    static constexpr int N = ot_pack<T>::N;
    const T *both, *dout;
    T *dboth;
    int64_t ld_in, ld_out;
    float limit, alpha;

    template <int W>
    __device__ __forceinline__ void run(int64_t row, int64_t i) const {
        ot_values<W> g, u, d = ot_read<W>(dout + row * ld_out + i);
        ot_values<2 * W> gradients;
        read_pairs(both + row * ld_in + 2 * i, g, u);
#pragma unroll
        for (int j = 0; j < W; j++) {
            float by_up, by_gate = vec_bounded_glu_slopes(limit, alpha, g.v[j], u.v[j], &by_up);
            gradients.v[2 * j] = d.v[j] * by_gate;
            gradients.v[2 * j + 1] = d.v[j] * by_up;
        }
        T *to = dboth + row * ld_in + 2 * i;
        if constexpr (W == 1) {
            to[0] = ot_from_float<T>(gradients.v[0]);
            to[1] = ot_from_float<T>(gradients.v[1]);
        } else {
            ot_write(to, gradients);
        }
    }
};

/* Treats rows without gaps as one long row. */
void join_rows(int64_t *rows, int64_t *cols, int64_t ld_in, int64_t ld_out) {
    if (ld_in == *cols && ld_out == *cols) {
        *cols *= *rows;
        *rows = 1;
    }
}

} // namespace activation_cu

static cudaError_t bounded_forward(const struct ot_glu *args, const struct ot_cuda_stream *on) {
    return ot_dispatch(args->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t rows = args->rows, cols = args->cols, bytes = sizeof(T), in = args->ld_in, out = args->ld_out;
        join_rows(&rows, &cols, in / 2, out);
        int64_t head = ot_map_head({{args->gate, 2 * bytes, in / 2}, {args->out, bytes, out}}, rows, cols);
        bounded_glu<T> op = {(const T *)args->gate, (T *)args->out, in, out, args->limit, args->alpha};
        return ot_map(op, rows, cols, head, on);
    });
}

static cudaError_t bounded_backward(const struct ot_glu_backward *args, const struct ot_cuda_stream *on) {
    const struct ot_glu *forward = &args->forward;
    return ot_dispatch(forward->dtype, [&](auto zero) {
        using T = decltype(zero);
        int64_t rows = forward->rows, cols = forward->cols, bytes = sizeof(T);
        int64_t in = forward->ld_in, out = forward->ld_out;
        join_rows(&rows, &cols, in / 2, out);
        int64_t head = ot_map_head(
            {{forward->gate, 2 * bytes, in / 2}, {args->dgate, 2 * bytes, in / 2}, {args->dout, bytes, out}},
            rows, cols);
        bounded_glu_backward<T> op = {
            (const T *)forward->gate, (const T *)args->dout, (T *)args->dgate, in, out,
            forward->limit,           forward->alpha};
        return ot_map(op, rows, cols, head, on);
    });
}

cudaError_t ot_cuda_glu(const struct ot_glu *args, const struct ot_cuda_stream *on) {
    if (args->limit != 0)
        return bounded_forward(args, on);
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
    if (forward->limit != 0)
        return bounded_backward(args, on);
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

/* AdamW in place: kernels/adamw.h's arithmetic, operation by operation, so that it has the bits of the
 * CPU's kernels and a parameter may be updated on either side.
 *
 * Bytes for a parameter: 28 in fp32 (weight, m, v read and written, gradient read), 26 with the split
 * master (two of weight and two of low instead of four, two of the gradient), 28 with an fp16 weight (written
 * alone, its fp32 master read and written). Two divisions and a square
 * root, IEEE all three: some 60 instructions, well below what the memory leaves time for.
 */
#include "kernels/cuda/map.cuh"

namespace {

/* A step's numbers as the loop wants them; each operation here is part of the contract. */
struct numbers {
    float beta1, beta2, rest1, rest2; /* rest: 1 - beta */
    float eps, grad_scale, bias2_sqrt;
    float minus_decay, minus_rate;
};

__device__ __forceinline__ numbers step_numbers(const struct ot_adamw_step *step, bool decay) {
    return {step->beta1,
            step->beta2,
            1.0f - step->beta1,
            1.0f - step->beta2,
            step->eps,
            step->grad_scale,
            step->bias2_sqrt,
            decay ? -(step->lr * step->weight_decay) : 0.0f,
            -(step->lr / step->bias1)};
}

/* kernels/adamw.h, line by line; returns the new p. */
__device__ __forceinline__ float update(const numbers &k, float p, float grad, float *m, float *v) {
    float g = grad * k.grad_scale;
    *m = fmaf(k.beta1, *m, k.rest1 * g);
    *v = fmaf(k.beta2, *v, (k.rest2 * g) * g);
    float d = sqrtf(*v) / k.bias2_sqrt + k.eps;
    p = fmaf(k.minus_decay, p, p);
    return fmaf(k.minus_rate, *m / d, p);
}

/* The master weights of each dtype: [i, i + W) as fp32, and back. */

struct f32_master {
    using grad_type = float;
    static constexpr int N = 4;
    float *weight;

    template <int W>
    __device__ __forceinline__ ot_values<W> read(int64_t i) const {
        return ot_read<W>(weight + i);
    }
    template <int W>
    __device__ __forceinline__ void write(int64_t i, const ot_values<W> &p) const {
        ot_write(weight + i, p);
    }
};

/* W 16-bit integers in one access. */
template <int W>
struct alignas(2 * W) halves {
    uint16_t v[W];
};

/* ot_join_f32 and ot_split_f32 of src/base/dtype.h. */
struct split_master {
    using grad_type = __nv_bfloat16;
    static constexpr int N = 8;
    uint16_t *high, *low;

    template <int W>
    __device__ __forceinline__ ot_values<W> read(int64_t i) const {
        halves<W> hi = *reinterpret_cast<const halves<W> *>(high + i);
        halves<W> lo = *reinterpret_cast<const halves<W> *>(low + i);
        ot_values<W> p;
#pragma unroll
        for (int j = 0; j < W; j++)
            p.v[j] = __uint_as_float(((uint32_t)hi.v[j] << 16) + (uint32_t)(int32_t)(int16_t)lo.v[j]);
        return p;
    }
    template <int W>
    __device__ __forceinline__ void write(int64_t i, const ot_values<W> &p) const {
        halves<W> hi, lo;
#pragma unroll
        for (int j = 0; j < W; j++) {
            uint32_t bits = __float_as_uint(p.v[j]);
            hi.v[j] = (uint16_t)((bits + 0x8000u) >> 16);
            lo.v[j] = (uint16_t)bits; /* bits - (hi << 16) in 16 bits, whichever way hi was rounded */
        }
        *reinterpret_cast<halves<W> *>(high + i) = hi;
        *reinterpret_cast<halves<W> *>(low + i) = lo;
    }
};

/* The master lies apart; weight is its rounding and is never read. */
struct f16_master {
    using grad_type = __half;
    static constexpr int N = 8;
    __half *weight;
    float *master;

    template <int W>
    __device__ __forceinline__ ot_values<W> read(int64_t i) const {
        return ot_read<W>(master + i);
    }
    template <int W>
    __device__ __forceinline__ void write(int64_t i, const ot_values<W> &p) const {
        ot_write(master + i, p);
        ot_write(weight + i, p);
    }
};

template <class Master>
struct adamw {
    static constexpr int N = Master::N;
    Master master;
    const typename Master::grad_type *grad;
    float *m, *v;
    const struct ot_adamw_step *step;
    bool decay;
    numbers k; /* of the thread */

    template <int W>
    __device__ __forceinline__ void run(int64_t, int64_t i) const {
        ot_values<W> p = master.template read<W>(i), g = ot_read<W>(grad + i), mean = ot_read<W>(m + i),
                     square = ot_read<W>(v + i);
#pragma unroll
        for (int j = 0; j < W; j++)
            p.v[j] = update(k, p.v[j], g.v[j], &mean.v[j], &square.v[j]);
        master.template write<W>(i, p);
        ot_write(m + i, mean);
        ot_write(v + i, square);
    }
};

template <class Master>
__device__ __forceinline__ bool ot_map_prepare(adamw<Master> &op) {
    op.k = step_numbers(op.step, op.decay);
    return !op.step->skip;
}

template <class Master>
cudaError_t launch(const struct ot_adamw *args, const Master &master, const struct ot_cuda_stream *on) {
    using G = typename Master::grad_type;
    int64_t bytes = sizeof(G); /* of a weight as well */
    const void *low = args->low ? (const void *)args->low : args->weight;
    const void *apart = args->master ? (const void *)args->master : (const void *)args->m;
    int64_t head = ot_map_head({{args->weight, bytes, 0},
                                {low, bytes, 0},
                                {apart, 4, 0},
                                {args->grad, bytes, 0},
                                {args->m, 4, 0},
                                {args->v, 4, 0}},
                               1, args->n);
    adamw<Master> op = {master, (const G *)args->grad, args->m, args->v, args->step, args->decay, {}};
    return ot_map(op, 1, args->n, head, on);
}

} // namespace

cudaError_t ot_cuda_adamw(const struct ot_adamw *args, const struct ot_cuda_stream *on) {
    switch (args->dtype) {
    case OT_F32:
        return launch(args, f32_master{(float *)args->weight}, on);
    case OT_BF16:
        return launch(args, split_master{(uint16_t *)args->weight, (uint16_t *)args->low}, on);
    case OT_F16:
        return launch(args, f16_master{(__half *)args->weight, args->master}, on);
    }
    return cudaErrorInvalidValue;
}

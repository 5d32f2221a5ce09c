/* Shared by the AdamW kernels: the arithmetic of kernels/adamw.h, and access to the master weights. */
#ifndef OT_KERNELS_CUDA_ADAMW_CUH
#define OT_KERNELS_CUDA_ADAMW_CUH

#include "kernels/cuda/map.cuh"
#include "kernels/cuda/scalar.cuh"

inline namespace adamw_cuh {
/* The numbers of a step in the form that the loop needs. Each operation here is part of the contract in
 * kernels/adamw.h. */
struct numbers {
    float beta1, beta2, rest1, rest2; /* rest1, rest2: 1 - beta1, 1 - beta2 */
    float eps, grad_scale, per_bias2; /* per_bias2: 1 / bias2_sqrt */
    float minus_decay, minus_rate;
};

__device__ __forceinline__ numbers step_numbers(const struct ot_adamw_step *step, bool decay, float rate) {
    float lr = rate != 0 ? step->lr * rate : step->lr;
    return {step->beta1,
            step->beta2,
            1.0f - step->beta1,
            1.0f - step->beta2,
            step->eps,
            step->grad_scale,
            1.0f / step->bias2_sqrt,
            decay ? -(lr * step->weight_decay) : 0.0f,
            -(lr / step->bias1)};
}

/* Implements kernels/adamw.h line by line; returns the new p. */
__device__ __forceinline__ float update(const numbers &k, float p, float grad, float *m, float *v) {
    float g = grad * k.grad_scale;
    *m = fmaf(k.beta1, *m, k.rest1 * g);
    *v = fmaf(k.beta2, *v, (k.rest2 * g) * g);
    float d = fmaf(sqrtf(*v), k.per_bias2, k.eps);
    p = fmaf(k.minus_decay, p, p);
    return fmaf(k.minus_rate, *m / d, p);
}

/* ot_state_half_word. */
__device__ __forceinline__ uint32_t half_word(const struct ot_state_noise &noise, int64_t index) {
    return random_word(noise, index & ~(int64_t)4) >> (index & 4 ? 16 : 0) & 0xffffu;
}

__device__ __forceinline__ uint16_t round_bf16(float value, uint32_t random) { /* ot_state_round_bf16 */
    uint32_t bits = __float_as_uint(value);
    return (uint16_t)((bits + ((bits & 0x7fffffffu) < 0x7f7f0000u ? random : 0)) >> 16);
}

/* Access to the master weights of each dtype: loads [i, i + W) as fp32, and stores them. */

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

/* Computes ot_join_f32 and ot_split_f32 of src/base/dtype.h. */
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
            lo.v[j] = (uint16_t)bits; /* bits - (hi << 16) fits 16 bits, whichever way hi was rounded */
        }
        *reinterpret_cast<halves<W> *>(high + i) = hi;
        *reinterpret_cast<halves<W> *>(low + i) = lo;
    }
};

/* The master is a separate array. weight is the rounded master and is never read. */
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

/* bf16 weights without masters (OT_MASTERS_NONE). first: the place of weight[0] in its slab. */
struct no_master {
    using grad_type = __nv_bfloat16;
    static constexpr int N = 8;
    uint16_t *weight;
    const struct ot_adamw_step *step;
    int64_t first;

    template <int W>
    __device__ __forceinline__ ot_values<W> read(int64_t i) const {
        halves<W> bits = *reinterpret_cast<const halves<W> *>(weight + i);
        ot_values<W> p;
#pragma unroll
        for (int j = 0; j < W; j++)
            p.v[j] = __uint_as_float((uint32_t)bits.v[j] << 16);
        return p;
    }
    template <int W>
    __device__ __forceinline__ void write(int64_t i, const ot_values<W> &p) const {
        struct ot_state_noise noise = step->weight_noise;
        halves<W> bits;
#pragma unroll
        for (int j = 0; j < W; j++)
            bits.v[j] = round_bf16(p.v[j], half_word(noise, first + i + j));
        *reinterpret_cast<halves<W> *>(weight + i) = bits;
    }
};

} // namespace adamw_cuh

#endif

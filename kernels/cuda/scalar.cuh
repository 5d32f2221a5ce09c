/* Defines one thread's number for kernels/formulas.h. So GPU and cpu device use the same formulas and get the
 * same bits.
 */
#ifndef OT_KERNELS_CUDA_SCALAR_CUH
#define OT_KERNELS_CUDA_SCALAR_CUH

#include "kernels/cuda/kernel.cuh"
#include "kernels/state_format.h"

#define OT_INLINE __device__ __forceinline__

typedef float ot_vf;
typedef int32_t ot_vi;

static OT_INLINE float vec_set(float value) {
    return value;
}
static OT_INLINE float vec_fma(float a, float b, float c) {
    return fmaf(a, b, c);
}
static OT_INLINE float vec_min(float a, float b) {
    return fminf(a, b);
}
static OT_INLINE float vec_max(float a, float b) {
    return fmaxf(a, b);
}
static OT_INLINE float vec_select(bool mask, float yes, float no) {
    return mask ? yes : no;
}
static OT_INLINE float vec_abs(float a) {
    return fabsf(a);
}
static OT_INLINE float vec_copysign(float a, float b) {
    return copysignf(a, b);
}
static OT_INLINE int32_t vec_bits(float a) {
    return __float_as_int(a);
}
static OT_INLINE float vec_add_exponent(float a, int32_t n) {
    return __uint_as_float(__float_as_uint(a) + ((uint32_t)n << 23));
}

#include "kernels/formulas.h"

/* ---- noise ---- */

/* The random words of kernels/state_format.h in kernels. */

/* ot_state_word. */
__device__ __forceinline__ uint32_t random_word(const struct ot_state_noise &noise, int64_t index) {
    uint32_t x =
        noise.begin + (uint32_t)index * OT_NOISE_STEP + (uint32_t)((uint64_t)index >> 32) * OT_NOISE_PAGE;
    x = (x ^ x >> 16) * OT_NOISE_MIX1;
    return (x ^ x >> 15 ^ noise.key) * OT_NOISE_MIX2;
}

/* The factor of an attention's weight (ops_drop.h): 1 without dropout. */
__device__ __forceinline__ float weight_factor(const struct ot_weight_drop &drop, int64_t index) {
    if (drop.share == 0)
        return 1.0f;
    uint32_t least = (uint32_t)((double)drop.share * 0x1p32);
    return random_word(drop.noise, index) < least ? 0.0f : (float)(1 / (1 - (double)drop.share));
}

#endif

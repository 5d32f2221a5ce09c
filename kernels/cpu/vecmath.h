/* Vectors of 16 floats and the functions that the cpu ops need on them: loads and stores in the storage
 * dtypes, sums, exp, tanh, erf, sigmoid.
 *
 * The compiler's vector extension is used, not intrinsics: one source for AVX-512 (one register), AVX2 (two),
 * SSE2 and NEON (four). A lane's arithmetic is written out and never contracted, so an element's bits depend
 * neither on its place in the vector nor on the instruction set; a tail shorter than 16 is padded, computed
 * and cut.
 *
 * Accuracy, measured over all exponents by tests/kernels/test_vecmath.c: exp within 1.5 ulp, tanh and erf
 * within 2.5, sigmoid within 3. Argument reduction of exp: Cody and Waite, "Software Manual for the
 * Elementary Functions", 1980, with the two-part ln 2 of Moshier's Cephes. The polynomials are minimax fits
 * of ours (Lawson's iteration on Chebyshev nodes, mpmath).
 */
#ifndef OT_KERNELS_CPU_VECMATH_H
#define OT_KERNELS_CPU_VECMATH_H

#include <stdint.h>
#include <string.h>

#include "src/base/dtype.h"

#define OT_INLINE inline __attribute__((always_inline))

enum { OT_LANES = 16 };

typedef float ot_vf __attribute__((vector_size(64)));
typedef int32_t ot_vi __attribute__((vector_size(64)));
typedef uint32_t ot_vu __attribute__((vector_size(64)));
typedef uint16_t ot_vh __attribute__((vector_size(32)));
typedef double ot_vd __attribute__((vector_size(64))); /* 8 lanes */
typedef float ot_vf8 __attribute__((vector_size(32)));
/* The same anywhere in memory, whatever its declared type. */
typedef float ot_vf_at __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t ot_vh_at __attribute__((vector_size(32), aligned(2), may_alias));

static OT_INLINE ot_vf vec_set(float value) {
    return value - (ot_vf){0};
}

/* ---- memory ---- */

static OT_INLINE ot_vf vec_from_bf16(ot_vh half) {
    return (ot_vf)(__builtin_convertvector(half, ot_vu) << 16);
}

/* Rounds as ot_bf16_from_f32 does. */
static OT_INLINE ot_vh vec_to_bf16(ot_vf value) {
    ot_vu bits = (ot_vu)value;
    ot_vu nan = (ot_vu)((bits & 0x7fffffffu) > 0x7f800000u);
    ot_vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    ot_vu quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector((nan & quiet) | (~nan & rounded), ot_vh);
}

/* Elements [first, first + count) of an array of dtype, count <= 16; the missing lanes are 0. With count 16 a
 * constant, this is one plain load. */
static OT_INLINE ot_vf vec_load(enum ot_dtype dtype, const void *array, int64_t first, int64_t count) {
    if (dtype == OT_F32) {
        const float *from = (const float *)array + first;
        if (count == OT_LANES)
            return *(const ot_vf_at *)from;
        ot_vf value = {0};
        memcpy(&value, from, (size_t)count * sizeof *from);
        return value;
    }
    const uint16_t *from = (const uint16_t *)array + first;
    if (count == OT_LANES)
        return vec_from_bf16(*(const ot_vh_at *)from);
    ot_vh value = {0};
    memcpy(&value, from, (size_t)count * sizeof *from);
    return vec_from_bf16(value);
}

static OT_INLINE void vec_store(enum ot_dtype dtype, void *array, int64_t first, int64_t count, ot_vf value) {
    if (dtype == OT_F32) {
        float *to = (float *)array + first;
        if (count == OT_LANES)
            *(ot_vf_at *)to = value;
        else
            memcpy(to, &value, (size_t)count * sizeof *to);
        return;
    }
    uint16_t *to = (uint16_t *)array + first;
    ot_vh half = vec_to_bf16(value);
    if (count == OT_LANES)
        *(ot_vh_at *)to = half;
    else
        memcpy(to, &half, (size_t)count * sizeof *to);
}

/* Runs the block that follows n for i = 0, 16, ... with `lanes` lanes: a constant 16 in the loop, the rest
 * once at its end. */
#define OT_FOR_LANES(i, lanes, n, ...)                                                                       \
    do {                                                                                                     \
        int64_t i = 0;                                                                                       \
        for (const int64_t lanes = OT_LANES; i + OT_LANES <= (n); i += OT_LANES)                             \
            __VA_ARGS__                                                                                      \
        if (i < (n)) {                                                                                       \
            const int64_t lanes = (n)-i;                                                                     \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    } while (0)

/* ---- lanes ---- */

/* mask lanes are all ones or all zeros, as comparisons make them. */
static OT_INLINE ot_vf vec_select(ot_vi mask, ot_vf yes, ot_vf no) {
    return (ot_vf)((mask & (ot_vi)yes) | (~mask & (ot_vi)no));
}

static OT_INLINE ot_vf vec_max(ot_vf a, ot_vf b) {
    return vec_select(a > b, a, b);
}

static OT_INLINE ot_vf vec_abs(ot_vf a) {
    return (ot_vf)((ot_vi)a & 0x7fffffff);
}

/* |a| with the sign of b. */
static OT_INLINE ot_vf vec_copysign(ot_vf a, ot_vf b) {
    return (ot_vf)(((ot_vi)a & 0x7fffffff) | ((ot_vi)b & (int32_t)0x80000000u));
}

/* The lanes' sum, always as the same tree. */
static OT_INLINE float vec_sum(ot_vf a) {
    float lanes[OT_LANES];
    memcpy(lanes, &a, sizeof lanes);
    for (int width = OT_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] += lanes[i + width];
    return lanes[0];
}

static OT_INLINE float vec_largest(ot_vf a) {
    float lanes[OT_LANES];
    memcpy(lanes, &a, sizeof lanes);
    for (int width = OT_LANES / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++)
            lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

/* All ones in the first `count` lanes. */
static OT_INLINE ot_vi vec_first(int64_t count) {
    const ot_vi index = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return index < (int32_t)count;
}

/* ---- functions ---- */

/* exp over the whole range: 0 below -104, infinity above 88.73, subnormals in between; NaN stays NaN. */
static OT_INLINE ot_vf vec_exp(ot_vf x) {
    const float shift = 0x1.8p23f; /* adding it rounds to an integer, which is then in the low bits */
    x = vec_select(x < -104.0f, vec_set(-104.0f), x);
    x = vec_select(x > 89.0f, vec_set(89.0f), x);
    ot_vf shifted = x * 0x1.715476p+0f + shift;
    ot_vf n = shifted - shift;
    ot_vi power = (ot_vi)shifted - (int32_t)0x4b400000;
    ot_vf r = (x - n * 0x1.63p-1f) - n * -0x1.bd0106p-13f; /* ln 2 in two parts: n times the first is exact */
    ot_vf q = vec_set(0x1.6c6b96p-10f);
    q = q * r + 0x1.121022p-7f;
    q = q * r + 0x1.5555bep-5f;
    q = q * r + 0x1.5554d8p-3f;
    q = q * r + 0.5f;
    ot_vf result = 1.0f + (r + (r * r) * q);
    /* 2^power in two factors, since it may lie outside the normal range. */
    ot_vi half = power >> 1;
    ot_vf first = (ot_vf)((half + 127) << 23), second = (ot_vf)((power - half + 127) << 23);
    return (result * first) * second;
}

static OT_INLINE ot_vf vec_sigmoid(ot_vf x) {
    return 1.0f / (1.0f + vec_exp(-x));
}

static OT_INLINE ot_vf vec_tanh(ot_vf x) {
    ot_vf s = x * x;
    ot_vf p = vec_set(-0.006096937f);
    p = p * s + 0.020997355f;
    p = p * s - 0.053850953f;
    p = p * s + 0.13332771f;
    p = p * s - 0.33333328f;
    ot_vf small = x + x * (s * p);
    ot_vf large = 1.0f - 2.0f / (vec_exp(2.0f * vec_abs(x)) + 1.0f);
    return vec_select(vec_abs(x) < 0.625f, small, vec_copysign(large, x));
}

/* Below 1 an odd polynomial, above it 1 - exp(fit of log erfc). */
static OT_INLINE ot_vf vec_erf(ot_vf x) {
    ot_vf s = x * x, t = vec_abs(x);
    ot_vf p = vec_set(7.964401e-05f);
    p = p * s - 0.00080375804f;
    p = p * s + 0.005190598f;
    p = p * s - 0.02685445f;
    p = p * s + 0.11283583f;
    p = p * s - 0.37612623f;
    p = p * s + 0.12837917f;
    ot_vf small = x + x * p;
    ot_vf u = vec_select(t > 4.0f, vec_set(4.0f), t);
    ot_vf l = vec_set(1.6024898e-06f);
    l = l * u - 4.5354573e-05f;
    l = l * u + 0.00059071515f;
    l = l * u - 0.0047302814f;
    l = l * u + 0.026335537f;
    l = l * u - 0.10992518f;
    l = l * u - 0.6319953f;
    l = l * u - 1.1301315f;
    l = l * u + 0.00029427418f;
    ot_vf large = vec_copysign(1.0f - vec_exp(l), x);
    return vec_select(t < 1.0f, small, large);
}

#endif

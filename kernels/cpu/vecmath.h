/* Vectors of 16 floats and the functions on them that the cpu ops need: loads and stores in the storage
 * dtypes, sums, and the formulas that both devices share (kernels/formulas.h).
 *
 * The code uses the compiler's vector extension, and intrinsics for fma only. So one source serves AVX-512
 * (one register), AVX2 (two), SSE2 and NEON (four). The arithmetic of an element is written out and never
 * contracted. So an element's bits depend neither on its place in the vector nor on the instruction set. A
 * tail of fewer than 16 elements is padded, computed and cut.
 */
#ifndef OT_KERNELS_CPU_VECMATH_H
#define OT_KERNELS_CPU_VECMATH_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#ifdef __FMA__
#include <immintrin.h>
#endif

#include "src/base/dtype.h"

#define OT_INLINE inline __attribute__((always_inline))

enum { OT_LANES = 16 };

typedef float ot_vf __attribute__((vector_size(64)));
typedef int32_t ot_vi __attribute__((vector_size(64)));
typedef uint32_t ot_vu __attribute__((vector_size(64)));
typedef uint16_t ot_vh __attribute__((vector_size(32)));
typedef int8_t ot_vb __attribute__((vector_size(16)));
typedef double ot_vd __attribute__((vector_size(64))); /* 8 lanes */
typedef float ot_vf8 __attribute__((vector_size(32)));
/* The same types at any address, for memory of any declared type. */
typedef float ot_vf_at __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t ot_vh_at __attribute__((vector_size(32), aligned(2), may_alias));

static OT_INLINE ot_vf vec_set(float value) {
    return value - (ot_vf){0};
}

/* ---- memory ---- */

static OT_INLINE ot_vf vec_from_bf16(ot_vh half) {
    return (ot_vf)(__builtin_convertvector(half, ot_vu) << 16);
}

/* All ones where a > limit, for a < 2^31 and limit >= 0. gcc makes scalar code of a comparison of vectors
 * that are longer than a register, but not of a subtraction and a shift. */
static OT_INLINE ot_vu vec_above(ot_vu a, int32_t limit) {
    return (ot_vu)((limit - (ot_vi)a) >> 31);
}

/* Rounds like ot_bf16_from_f32. */
static OT_INLINE ot_vh vec_to_bf16(ot_vf value) {
    ot_vu bits = (ot_vu)value;
    ot_vu nan = vec_above(bits & 0x7fffffffu, 0x7f800000);
    ot_vu rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    ot_vu quiet = (bits >> 16) | 0x40u;
    return __builtin_convertvector((nan & quiet) | (~nan & rounded), ot_vh);
}

/* Converts like ot_f16_to_f32. The shifted bits are a number 2^112 too small; the product corrects that
 * exactly, also for subnormals. */
static OT_INLINE ot_vf vec_from_f16(ot_vh half) {
    ot_vu bits = __builtin_convertvector(half, ot_vu), magnitude = (bits & 0x7fffu) << 13;
    ot_vu finite = (ot_vu)((ot_vf)magnitude * 0x1p112f);
    ot_vu special = vec_above(magnitude, 0x0f7fffff);
    return (ot_vf)((bits & 0x8000u) << 16 | (special & (magnitude | 0x7f800000u)) | (~special & finite));
}

/* Rounds like ot_f16_from_f32. For subnormals, adding 1/2 rounds at 2^-24, their unit, and leaves their count
 * in the low bits. */
static OT_INLINE ot_vh vec_to_f16(ot_vf value) {
    ot_vu sign = ((ot_vu)value >> 16) & 0x8000u, bits = (ot_vu)value & 0x7fffffffu;
    ot_vu normal = (bits + 0xfffu + ((bits >> 13) & 1u) - 0x38000000u) >> 13;
    ot_vu subnormal = (ot_vu)((ot_vf)bits + 0.5f) - 0x3f000000u;
    ot_vu small = ~vec_above(bits, 0x387fffff), large = vec_above(bits, 0x477fefff);
    ot_vu nan = vec_above(bits, 0x7f800000);
    ot_vu half = (small & subnormal) | (~small & normal);
    half = (large & 0x7c00u) | (~large & half);
    half = (nan & 0x7e00u) | (~nan & half);
    return __builtin_convertvector(sign | half, ot_vh);
}

static OT_INLINE ot_vf vec_from_half(enum ot_dtype dtype, ot_vh half) {
    return dtype == OT_BF16 ? vec_from_bf16(half) : vec_from_f16(half);
}

/* Loads elements [first, first + count) of an array of dtype, count <= 16. The missing lanes are 0. If count
 * is the constant 16, this is one plain load. */
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
        return vec_from_half(dtype, *(const ot_vh_at *)from);
    ot_vh value = {0};
    memcpy(&value, from, (size_t)count * sizeof *from);
    return vec_from_half(dtype, value);
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
    ot_vh half = dtype == OT_BF16 ? vec_to_bf16(value) : vec_to_f16(value);
    if (count == OT_LANES)
        *(ot_vh_at *)to = half;
    else
        memcpy(to, &half, (size_t)count * sizeof *to);
}

/* Runs the block after n for i = 0, 16, ... with `lanes` active lanes. lanes is the constant 16 inside the
 * loop; the rest of the elements runs once at the end. */
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

/* Each lane of mask is all ones or all zeros, as comparisons produce them. */
static OT_INLINE ot_vf vec_select(ot_vi mask, ot_vf yes, ot_vf no) {
    return (ot_vf)((mask & (ot_vi)yes) | (~mask & (ot_vi)no));
}

static OT_INLINE ot_vf vec_max(ot_vf a, ot_vf b) {
    return vec_select(a > b, a, b);
}

static OT_INLINE ot_vf vec_min(ot_vf a, ot_vf b) {
    return vec_select(a < b, a, b);
}

static OT_INLINE ot_vi vec_bits(ot_vf a) {
    return (ot_vi)a;
}

static OT_INLINE ot_vf vec_add_exponent(ot_vf a, ot_vi n) {
    return (ot_vf)((ot_vu)a + ((ot_vu)n << 23));
}

/* a * b + c with one rounding; slow on CPUs without such an instruction. */
#if defined(__AVX512F__)
static OT_INLINE ot_vf vec_fma(ot_vf a, ot_vf b, ot_vf c) {
    return (ot_vf)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
#elif defined(__FMA__)
#define VEC_LOW(x)  __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
#define VEC_HIGH(x) __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15)
static OT_INLINE ot_vf vec_fma(ot_vf a, ot_vf b, ot_vf c) {
    __m256 low = _mm256_fmadd_ps(VEC_LOW(a), VEC_LOW(b), VEC_LOW(c));
    __m256 high = _mm256_fmadd_ps(VEC_HIGH(a), VEC_HIGH(b), VEC_HIGH(c));
    return __builtin_shufflevector(low, high, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
#else
static __attribute__((noinline, unused)) ot_vf vec_fma(ot_vf a, ot_vf b, ot_vf c) {
    for (int i = 0; i < OT_LANES; i++)
        a[i] = fmaf(a[i], b[i], c[i]);
    return a;
}
#endif

static OT_INLINE ot_vf vec_abs(ot_vf a) {
    return (ot_vf)((ot_vi)a & 0x7fffffff);
}

/* |a| with the sign of b. */
static OT_INLINE ot_vf vec_copysign(ot_vf a, ot_vf b) {
    return (ot_vf)(((ot_vi)a & 0x7fffffff) | ((ot_vi)b & (int32_t)0x80000000u));
}

/* The sum of all lanes, always added in the order of the same tree. */
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

/* A variable in every lane. (gcc stores it 16 times to the stack for vec_set, and loads them.) */
static OT_INLINE ot_vf vec_repeat(float value) {
#if defined(__AVX512F__)
    return (ot_vf)_mm512_set1_ps(value);
#elif defined(__FMA__)
    __m256 x = _mm256_set1_ps(value);
    return __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    return vec_set(value);
#endif
}

/* table[index] for each lane; index is in [0, 16). */
static OT_INLINE ot_vf vec_lookup(const float *table, ot_vi index) {
#if defined(__AVX512F__)
    return (ot_vf)_mm512_permutexvar_ps((__m512i)index, _mm512_loadu_ps(table));
#elif defined(__AVX2__) && defined(__FMA__)
    /* Each half of the table is looked up with the lower three bits; bit 3, moved to the sign, chooses. */
    __m256 first = _mm256_loadu_ps(table), second = _mm256_loadu_ps(table + 8);
    __m256i low = (__m256i)VEC_LOW((ot_vf)index), high = (__m256i)VEC_HIGH((ot_vf)index);
    __m256 x = _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, low), _mm256_permutevar8x32_ps(second, low),
                                (__m256)_mm256_slli_epi32(low, 28));
    __m256 y = _mm256_blendv_ps(_mm256_permutevar8x32_ps(first, high), _mm256_permutevar8x32_ps(second, high),
                                (__m256)_mm256_slli_epi32(high, 28));
    return __builtin_shufflevector(x, y, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
#else
    ot_vf value;
    for (int i = 0; i < OT_LANES; i++)
        value[i] = table[index[i]];
    return value;
#endif
}

/* The first 8 lanes, each twice in a row. */
static OT_INLINE ot_vf vec_twice(ot_vf a) {
    return __builtin_shufflevector(a, a, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
}

/* The even and the odd ones of the 32 lanes of a and b. */
static OT_INLINE ot_vf vec_evens(ot_vf a, ot_vf b) {
    return __builtin_shufflevector(a, b, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
}

static OT_INLINE ot_vf vec_odds(ot_vf a, ot_vf b) {
    return __builtin_shufflevector(a, b, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
}

/* The lanes of a and b by turns: the first 8 of each, and the last 8 of each. */
static OT_INLINE ot_vf vec_zip_low(ot_vf a, ot_vf b) {
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}

static OT_INLINE ot_vf vec_zip_high(ot_vf a, ot_vf b) {
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Lanes 2 j and 2 j + 1 change places. */
static OT_INLINE ot_vf vec_swap_neighbours(ot_vf a) {
    return __builtin_shufflevector(a, a, 1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14);
}

/* ---- functions ---- */

#include "kernels/formulas.h"

#endif

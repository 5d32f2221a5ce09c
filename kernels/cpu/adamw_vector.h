/* Vectors of adamw_vector.c: 16 parameters with AVX-512 F, BW and VL, or 8 with AVX2, FMA and F16C
 * (OT_ADAMW_LANES). And the scales of eight groups at once. Private to the AdamW kernel.
 *
 * The vectors of vecmath.h have 16 lanes everywhere, more than a register of AVX2. This kernel mostly widens,
 * narrows and compares, of which gcc makes scalar code if a vector is longer than a register. */
#ifndef OT_KERNELS_CPU_ADAMW_VECTOR_H
#define OT_KERNELS_CPU_ADAMW_VECTOR_H

#include <immintrin.h>

#include "kernels/cpu/adamw_kernels.h"

#define INLINE static inline __attribute__((always_inline))

/* V(name), HALF(name): the intrinsic of a vector, of half of one. vw: the integers that intrinsics take.
 * vhalf: half of a vector: 16 bits of each lane, or 8 bits of each parameter of a pair. */
#if OT_ADAMW_LANES == 16
#define V(name)    _mm512_##name
#define HALF(name) _mm256_##name
typedef __m512 vf;
typedef __m512i vw;
typedef __m256i vhalf;
typedef __m256i_u vhalf_at;
#else
#define V(name)    _mm256_##name
#define HALF(name) _mm_##name
typedef __m256 vf;
typedef __m256i vw;
typedef __m128i vhalf;
typedef __m128i_u vhalf_at;
#endif
enum { LANES = OT_ADAMW_LANES, PAIR = 2 * LANES, PAIRS = OT_STATE_GROUP / PAIR /* per group */ };
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
typedef int16_t vs __attribute__((vector_size(4 * LANES)));

/* The parameters of two vectors: narrow formats are unpacked from one register and packed into one. */
struct pair {
    vf a, b;
};
struct words {
    vu a, b;
};

/* ---- 8 and 16 bits a lane ---- */

INLINE vhalf load_halves(const void *at) {
    return *(const vhalf_at *)at;
}

INLINE void store_halves(void *at, vhalf x) {
    *(vhalf_at *)at = x;
}

INLINE vf load_bf16(const void *at) {
    return (vf)((vu)V(cvtepu16_epi32)(load_halves(at)) << 16);
}

INLINE struct pair load_bf16_pair(const uint16_t *at) {
    return (struct pair){load_bf16(at), load_bf16(at + LANES)};
}

INLINE __m128i load_bytes(const void *at) { /* as many as a vector has lanes */
    return LANES == 16 ? _mm_loadu_si128(at) : _mm_loadl_epi64(at);
}

/* Stores integers below 2^16. Packing works inside 128-bit parts, which the permutation puts in order. */
INLINE void store_16bits(void *at, vu a, vu b) {
    vw packed = V(packus_epi32)((vw)a, (vw)b);
#if OT_ADAMW_LANES == 16
    packed = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 2, 4, 6, 1, 3, 5, 7), packed);
    _mm512_storeu_si512(at, packed);
#else
    _mm256_storeu_si256(at, _mm256_permute4x64_epi64(packed, 0xd8));
#endif
}

/* A group's integers as 32 bytes, in an order of the packing. Too large integers become the largest. */
INLINE __m256i pack_signed(const struct words x[PAIRS]) {
#if OT_ADAMW_LANES == 16
    return _mm512_cvtsepi16_epi8(_mm512_packs_epi32((vw)x->a, (vw)x->b));
#else
    return _mm256_packs_epi16(_mm256_packs_epi32((vw)x[0].a, (vw)x[0].b),
                              _mm256_packs_epi32((vw)x[1].a, (vw)x[1].b));
#endif
}

INLINE __m256i pack_unsigned(const struct words x[PAIRS]) {
#if OT_ADAMW_LANES == 16
    return _mm512_cvtusepi16_epi8(_mm512_packs_epi32((vw)x->a, (vw)x->b));
#else
    return _mm256_packus_epi16(_mm256_packs_epi32((vw)x[0].a, (vw)x[0].b),
                               _mm256_packs_epi32((vw)x[1].a, (vw)x[1].b));
#endif
}

INLINE void store_packed(void *at, __m256i packed) {
    const __m256i order =
        LANES == 16 ? _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7) : _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    _mm256_storeu_si256(at, _mm256_permutevar8x32_epi32(packed, order));
}

INLINE vhalf high_half(vw x) {
#if OT_ADAMW_LANES == 16
    return _mm512_extracti64x4_epi64(x, 1);
#else
    return _mm256_extracti128_si256(x, 1);
#endif
}

INLINE vhalf low_half(vw x) {
#if OT_ADAMW_LANES == 16
    return _mm512_castsi512_si256(x);
#else
    return _mm256_castsi256_si128(x);
#endif
}

INLINE vf absolute(vf x) {
    return (vf)((vu)x & 0x7fffffff);
}

/* Eight numbers; one of them is the largest of x. */
INLINE __m256 larger_half(vf x) {
#if OT_ADAMW_LANES == 16
    return _mm256_max_ps((__m256)low_half((vw)x), (__m256)high_half((vw)x));
#else
    return x;
#endif
}

/* ---- random words (ot_state_word) and rounding ---- */

#if OT_ADAMW_LANES == 16
#define PLACES                                                                                               \
    { 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15 }
#define SHARED                                                                                               \
    { 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27 }
#define HALVES                                                                                               \
    { 0, 0, 0, 0, 16, 16, 16, 16, 0, 0, 0, 0, 16, 16, 16, 16 }
#define FIRST_TWICE(x) _mm512_shuffle_i32x4(x, x, 0x50) /* each 128 bits of the first half twice */
#define LAST_TWICE(x)  _mm512_shuffle_i32x4(x, x, 0xfa)
#else
#define PLACES                                                                                               \
    { 0, 1, 2, 3, 4, 5, 6, 7 }
#define SHARED                                                                                               \
    { 0, 1, 2, 3, 8, 9, 10, 11 }
#define HALVES                                                                                               \
    { 0, 0, 0, 0, 16, 16, 16, 16 }
#define FIRST_TWICE(x) _mm256_permute4x64_epi64(x, 0x44)
#define LAST_TWICE(x)  _mm256_permute4x64_epi64(x, 0xee)
#endif

/* The words of parameters index + places, all in the same page of 2^32 places. */
INLINE vu random_words(struct ot_state_noise noise, int64_t index, vu places) {
    uint32_t first =
        noise.begin + (uint32_t)index * OT_NOISE_STEP + (uint32_t)((uint64_t)index >> 32) * OT_NOISE_PAGE;
    vu x = places * OT_NOISE_STEP + first;
    x = (x ^ x >> 16) * OT_NOISE_MIX1;
    return (x ^ x >> 15 ^ noise.key) * OT_NOISE_MIX2;
}

INLINE struct words whole_words(struct ot_state_noise noise, int64_t index) {
    vu places = PLACES;
    return (struct words){random_words(noise, index, places), random_words(noise, index, places + LANES)};
}

/* The 16 random bits of each parameter (ot_state_half_word). index: a multiple of 16. */
INLINE struct words half_words(struct ot_state_noise noise, int64_t index) {
    vw words = (vw)random_words(noise, index, (vu)SHARED);
    return (struct words){(vu)FIRST_TWICE(words) >> (vu)HALVES & 0xffff,
                          (vu)LAST_TWICE(words) >> (vu)HALVES & 0xffff};
}

/* ot_state_round_bf16, without the cut. random: 16 bits. */
INLINE vu add_random(vf value, vu random) {
    vu in_range = (vu)((vi)((vu)value & 0x7fffffff) < 0x7f7f0000);
    return (vu)value + (in_range & random);
}

INLINE void store_rounded(uint16_t *at, struct pair x, vu a, vu b) {
    store_16bits(at, add_random(x.a, a) >> 16, add_random(x.b, b) >> 16);
}

/* ---- the scales of eight groups ---- */

enum { GROUPS = 8 };

/* The scales of a block: in their stored form, and 1024 times the codes that one unit of m and sqrt(v) has.
 */
struct block_scales {
    _Alignas(32) struct ot_state_scale stored[GROUPS];
    _Alignas(32) float m_steps[GROUPS], v_steps[GROUPS];
};

/* The largest element of each of eight vectors. */
INLINE __m256 maxima(const __m256 x[GROUPS]) {
    __m256 two[4], four[2];
    for (int i = 0; i < 4; i++)
        two[i] = _mm256_max_ps(_mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                               _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        four[i] = _mm256_max_ps(_mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0x44),
                                _mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0xee));
    return _mm256_max_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20),
                         _mm256_permute2f128_ps(four[0], four[1], 0x31));
}

/* The bits of min(x, most) / codes, rounded up to bf16. */
INLINE __m256i scale_above(__m256 x, float most, float codes) {
    x = _mm256_div_ps(_mm256_min_ps(x, _mm256_set1_ps(most)), _mm256_set1_ps(codes));
    __m256i above = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0xffff));
    return _mm256_and_si256(above, _mm256_set1_epi32((int)0xffff0000));
}

INLINE __m256 steps_of(__m256i scale) {
    __m256 size = _mm256_max_ps(_mm256_castsi256_ps(scale), _mm256_set1_ps(0x1p-100f));
    return _mm256_div_ps(_mm256_set1_ps(1024), size);
}

/* most_m, most_root: for each group a vector that has the largest |m| and the largest square root of v in one
 * of its elements, and none that is larger. */
INLINE void find_scales(const __m256 most_m[GROUPS], const __m256 most_root[GROUPS],
                        struct block_scales *out) {
    __m256i s = scale_above(maxima(most_m), 0x1p126f, 174);
    __m256i u = scale_above(maxima(most_root), 0x1p64f, 255);
    __m256i both = _mm256_or_si256(_mm256_srli_epi32(s, 16), u); /* m is first, and x86 is little endian */
    _mm256_store_si256((void *)out->stored, both);
    _mm256_store_ps(out->m_steps, steps_of(s));
    _mm256_store_ps(out->v_steps, steps_of(u));
}

#endif

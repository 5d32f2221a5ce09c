/* The AVX-512 instructions of kernels/cpu/adamw_avx512.c in plain C, element by element, so that a CPU
 * without them can check the kernel's bits. The compiler includes this file before the kernel (-include).
 * Written after the pseudocode of Intel's Software Developer's Manual, volume 2. */
#ifndef OT_TESTS_AVX512_EMULATED_H
#define OT_TESTS_AVX512_EMULATED_H

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "src/base/dtype.h"

typedef float emu_f32 __attribute__((vector_size(64)));
typedef int32_t emu_i32 __attribute__((vector_size(64)));
typedef uint32_t emu_u32 __attribute__((vector_size(64)));

#define EMU      static inline __attribute__((always_inline))
#define EMU_EACH for (int i = 0; i < 16; i++)

/* Some compilers have these as macros. */
#undef _mm512_setr_epi32
#undef _mm512_extractf64x4_pd
#undef _mm512_shuffle_i32x4
#undef _mm512_cmp_ps_mask
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph

/* ---- constants, casts ---- */

EMU __m512 emu_set1_ps(float x) {
    emu_f32 r;
    EMU_EACH r[i] = x;
    return (__m512)r;
}
EMU __m512i emu_set1_epi32(int x) {
    emu_i32 r;
    EMU_EACH r[i] = x;
    return (__m512i)r;
}
#define _mm512_set1_ps(x)      emu_set1_ps(x)
#define _mm512_set1_epi32(x)   emu_set1_epi32(x)
#define _mm512_setr_epi32(...) ((__m512i)(emu_i32){__VA_ARGS__})
#define _mm512_castps_si512(x) ((__m512i)(x))
#define _mm512_castsi512_ps(x) ((__m512)(x))
#define _mm512_castps_pd(x)    ((__m512d)(x))

EMU __m256 emu_half(const void *x, int number) {
    __m256 r;
    memcpy(&r, (const char *)x + 32 * number, sizeof r);
    return r;
}
EMU __m256 emu_castps512_ps256(__m512 x) {
    return emu_half(&x, 0);
}
EMU __m256d emu_extractf64x4_pd(__m512d x, int number) {
    return (__m256d)emu_half(&x, number);
}
/* Two quarters of a, then two of b. */
EMU __m512i emu_shuffle_i32x4(__m512i a, __m512i b, int quarters) {
    emu_i32 r;
    EMU_EACH r[i] = ((emu_i32)(i < 8 ? a : b))[4 * (quarters >> i / 4 * 2 & 3) + i % 4];
    return (__m512i)r;
}
#define _mm512_shuffle_i32x4(a, b, quarters) emu_shuffle_i32x4(a, b, quarters)
#define _mm512_castps512_ps256(x)            emu_castps512_ps256(x)
#define _mm512_extractf64x4_pd(x, number)    emu_extractf64x4_pd(x, number)

/* ---- loads and stores ---- */

EMU __m512 emu_maskz_loadu_ps(__mmask16 mask, const float *at) {
    emu_f32 r;
    EMU_EACH r[i] = mask >> i & 1 ? at[i] : 0;
    return (__m512)r;
}
EMU void emu_mask_storeu_ps(float *at, __mmask16 mask, __m512 x) {
    EMU_EACH if (mask >> i & 1) at[i] = ((emu_f32)x)[i];
}
EMU __m256i emu_maskz_loadu_epi16(__mmask16 mask, const void *at) {
    uint16_t halves[16] = {0};
    EMU_EACH if (mask >> i & 1) memcpy(&halves[i], (const char *)at + 2 * i, 2);
    return _mm256_loadu_si256((const void *)halves);
}
EMU void emu_mask_storeu_epi16(void *at, __mmask16 mask, __m256i x) {
    EMU_EACH if (mask >> i & 1) memcpy((char *)at + 2 * i, (const char *)&x + 2 * i, 2);
}
#define _mm512_maskz_loadu_ps(mask, at)       emu_maskz_loadu_ps(mask, at)
#define _mm512_loadu_ps(at)                   emu_maskz_loadu_ps(0xffff, at)
#define _mm512_mask_storeu_ps(at, mask, x)    emu_mask_storeu_ps(at, mask, x)
#define _mm512_storeu_ps(at, x)               emu_mask_storeu_ps(at, 0xffff, x)
#define _mm256_maskz_loadu_epi16(mask, at)    emu_maskz_loadu_epi16(mask, at)
#define _mm256_mask_storeu_epi16(at, mask, x) emu_mask_storeu_epi16(at, mask, x)

/* ---- arithmetic ---- */

EMU __m512 emu_fmadd_ps(__m512 a, __m512 b, __m512 c) {
    emu_f32 r;
    EMU_EACH r[i] = fmaf(((emu_f32)a)[i], ((emu_f32)b)[i], ((emu_f32)c)[i]);
    return (__m512)r;
}
EMU __m512 emu_sqrt_ps(__m512 a) {
    emu_f32 r;
    EMU_EACH r[i] = sqrtf(((emu_f32)a)[i]);
    return (__m512)r;
}
/* "If a value in the second operand is a NaN or if both are 0, the second operand is returned." */
EMU __m512 emu_min_ps(__m512 a, __m512 b) {
    emu_f32 r, x = (emu_f32)a, y = (emu_f32)b;
    EMU_EACH r[i] = x[i] < y[i] ? x[i] : y[i];
    return (__m512)r;
}
EMU __m512 emu_max_ps(__m512 a, __m512 b) {
    emu_f32 r, x = (emu_f32)a, y = (emu_f32)b;
    EMU_EACH r[i] = x[i] > y[i] ? x[i] : y[i];
    return (__m512)r;
}
EMU __m512i emu_max_epi32(__m512i a, __m512i b) {
    emu_i32 r, x = (emu_i32)a, y = (emu_i32)b;
    EMU_EACH r[i] = x[i] > y[i] ? x[i] : y[i];
    return (__m512i)r;
}
#define _mm512_mul_ps(a, b)          ((__m512)((emu_f32)(a) * (emu_f32)(b)))
#define _mm512_div_ps(a, b)          ((__m512)((emu_f32)(a) / (emu_f32)(b)))
#define _mm512_fmadd_ps(a, b, c)     emu_fmadd_ps(a, b, c)
#define _mm512_sqrt_ps(a)            emu_sqrt_ps(a)
#define _mm512_min_ps(a, b)          emu_min_ps(a, b)
#define _mm512_max_ps(a, b)          emu_max_ps(a, b)
#define _mm512_abs_ps(a)             ((__m512)((emu_u32)(a)&0x7fffffffu))
#define _mm512_add_epi32(a, b)       ((__m512i)((emu_u32)(a) + (emu_u32)(b)))
#define _mm512_sub_epi32(a, b)       ((__m512i)((emu_u32)(a) - (emu_u32)(b)))
#define _mm512_mullo_epi32(a, b)     ((__m512i)((emu_u32)(a) * (emu_u32)(b)))
#define _mm512_and_si512(a, b)       ((__m512i)((emu_u32)(a) & (emu_u32)(b)))
#define _mm512_xor_si512(a, b)       ((__m512i)((emu_u32)(a) ^ (emu_u32)(b)))
#define _mm512_slli_epi32(a, count)  ((__m512i)((emu_u32)(a) << (count)))
#define _mm512_srli_epi32(a, count)  ((__m512i)((emu_u32)(a) >> (count)))
#define _mm512_srlv_epi32(a, counts) ((__m512i)((emu_u32)(a) >> (emu_u32)(counts)))
#define _mm512_max_epi32(a, b)       emu_max_epi32(a, b)
#define _mm512_abs_epi32(a)          emu_max_epi32(a, _mm512_sub_epi32(emu_set1_epi32(0), a))

/* ---- masks ---- */

EMU __mmask16 emu_cmplt_epi32_mask(__m512i a, __m512i b) {
    uint32_t r = 0;
    EMU_EACH r |= (uint32_t)(((emu_i32)a)[i] < ((emu_i32)b)[i]) << i;
    return (__mmask16)r;
}
EMU __mmask16 emu_cmpgt_ps_mask(__m512 a, __m512 b) {
    uint32_t r = 0;
    EMU_EACH r |= (uint32_t)(((emu_f32)a)[i] > ((emu_f32)b)[i]) << i;
    return (__mmask16)r;
}
EMU __m512i emu_blend(__m512i otherwise, __mmask16 mask, __m512i x) {
    emu_i32 r;
    EMU_EACH r[i] = mask >> i & 1 ? ((emu_i32)x)[i] : ((emu_i32)otherwise)[i];
    return (__m512i)r;
}
#define _mm512_cmplt_epi32_mask(a, b)        emu_cmplt_epi32_mask(a, b)
#define _mm512_cmp_ps_mask(a, b, predicate)  emu_##predicate(a, b)
#define emu__CMP_GT_OQ(a, b)                 emu_cmpgt_ps_mask(a, b)
#define _mm512_mask_add_epi32(x, mask, a, b) emu_blend(x, mask, _mm512_add_epi32(a, b))
#define _mm512_mask_sub_epi32(x, mask, a, b) emu_blend(x, mask, _mm512_sub_epi32(a, b))
#define _mm512_mask_max_epi32(x, mask, a, b) emu_blend(x, mask, emu_max_epi32(a, b))

/* ---- conversions ---- */

EMU __m512i emu_widen(const void *from, int bytes, int is_signed) {
    emu_i32 r;
    EMU_EACH {
        uint32_t x = 0, sign = 1u << (8 * bytes - 1);
        memcpy(&x, (const char *)from + i * bytes, (size_t)bytes); /* x86 is little endian */
        r[i] = (int32_t)(is_signed ? (x ^ sign) - sign : x);
    }
    return (__m512i)r;
}
EMU __m512i emu_cvtepu16_epi32(__m256i x) {
    return emu_widen(&x, 2, 0);
}
EMU __m512i emu_cvtepi16_epi32(__m256i x) {
    return emu_widen(&x, 2, 1);
}
EMU __m512i emu_cvtepu8_epi32(__m128i x) {
    return emu_widen(&x, 1, 0);
}
EMU __m512i emu_cvtepi8_epi32(__m128i x) {
    return emu_widen(&x, 1, 1);
}
EMU __m256i emu_cvtepi32_epi16(__m512i x) {
    uint16_t r[16];
    EMU_EACH r[i] = (uint16_t)((emu_u32)x)[i];
    return _mm256_loadu_si256((const void *)r);
}
EMU __m128i emu_cvtepi32_epi8(__m512i x) {
    uint8_t r[16];
    EMU_EACH r[i] = (uint8_t)((emu_u32)x)[i];
    return _mm_loadu_si128((const void *)r);
}
EMU __m512 emu_cvtepi32_ps(__m512i x) {
    emu_f32 r;
    EMU_EACH r[i] = (float)((emu_i32)x)[i];
    return (__m512)r;
}
EMU __m512i emu_cvtps_epi32(__m512 x) { /* of numbers that fit */
    emu_i32 r;
    EMU_EACH r[i] = (int32_t)rintf(((emu_f32)x)[i]);
    return (__m512i)r;
}
EMU __m512 emu_cvtph_ps(__m256i x) {
    emu_f32 r;
    EMU_EACH {
        uint16_t half;
        memcpy(&half, (const char *)&x + 2 * i, 2);
        r[i] = ot_f16_to_f32(half);
    }
    return (__m512)r;
}
EMU __m256i emu_cvtps_ph(__m512 x) {
    uint16_t r[16];
    EMU_EACH r[i] = ot_f16_from_f32(((emu_f32)x)[i]);
    return _mm256_loadu_si256((const void *)r);
}
#define _mm512_cvtepu16_epi32(x)     emu_cvtepu16_epi32(x)
#define _mm512_cvtepi16_epi32(x)     emu_cvtepi16_epi32(x)
#define _mm512_cvtepu8_epi32(x)      emu_cvtepu8_epi32(x)
#define _mm512_cvtepi8_epi32(x)      emu_cvtepi8_epi32(x)
#define _mm512_cvtepi32_epi16(x)     emu_cvtepi32_epi16(x)
#define _mm512_cvtepi32_epi8(x)      emu_cvtepi32_epi8(x)
#define _mm512_cvtepi32_ps(x)        emu_cvtepi32_ps(x)
#define _mm512_cvtps_epi32(x)        emu_cvtps_epi32(x)
#define _mm512_cvtph_ps(x)           emu_cvtph_ps(x)
#define _mm512_cvtps_ph(x, rounding) emu_cvtps_ph(x)

#endif

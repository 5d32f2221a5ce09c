/* The AVX-512 instructions of kernels/cpu/adamw_vector.c in plain C, element by element, so that a CPU
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
typedef int16_t emu_i16 __attribute__((vector_size(64)));
typedef int8_t emu_i8 __attribute__((vector_size(32)));

#define EMU      static inline __attribute__((always_inline))
#define EMU_EACH for (int i = 0; i < 16; i++)

/* Some compilers have these as macros. */
#undef _mm512_setr_epi64
#undef _mm512_extracti64x4_epi64
#undef _mm512_shuffle_i32x4
#undef _mm512_cvtph_ps
#undef _mm512_cvtps_ph

/* ---- constants, casts ---- */

EMU __m512 emu_set1_ps(float x) {
    emu_f32 r;
    EMU_EACH r[i] = x;
    return (__m512)r;
}
#define _mm512_set1_ps(x)      emu_set1_ps(x)
#define _mm512_setr_epi64(...) ((__m512i){__VA_ARGS__})

EMU __m256i emu_half(__m512i x, int number) {
    __m256i r;
    memcpy(&r, (const char *)&x + 32 * number, sizeof r);
    return r;
}
EMU __m512i emu_permutexvar_epi64(__m512i places, __m512i x) {
    __m512i r;
    for (int i = 0; i < 8; i++)
        r[i] = x[places[i] & 7];
    return r;
}
/* Two quarters of a, then two of b. */
EMU __m512i emu_shuffle_i32x4(__m512i a, __m512i b, int quarters) {
    emu_i32 r;
    EMU_EACH r[i] = ((emu_i32)(i < 8 ? a : b))[4 * (quarters >> i / 4 * 2 & 3) + i % 4];
    return (__m512i)r;
}
#define _mm512_shuffle_i32x4(a, b, quarters) emu_shuffle_i32x4(a, b, quarters)
#define _mm512_castsi512_si256(x)            emu_half(x, 0)
#define _mm512_extracti64x4_epi64(x, number) emu_half(x, number)
#define _mm512_permutexvar_epi64(places, x)  emu_permutexvar_epi64(places, x)

/* ---- loads and stores ---- */

EMU __m512 emu_loadu_ps(const float *at) {
    __m512 r;
    memcpy(&r, at, sizeof r);
    return r;
}
EMU void emu_store(void *at, __m512i x) {
    memcpy(at, &x, sizeof x);
}
#define _mm512_loadu_ps(at)        emu_loadu_ps(at)
#define _mm512_storeu_ps(at, x)    emu_store(at, (__m512i)(x))
#define _mm512_storeu_si512(at, x) emu_store(at, x)

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
#define _mm512_fmadd_ps(a, b, c) emu_fmadd_ps(a, b, c)
#define _mm512_sqrt_ps(a)        emu_sqrt_ps(a)
#define _mm512_min_ps(a, b)      emu_min_ps(a, b)
#define _mm512_max_ps(a, b)      emu_max_ps(a, b)

/* ---- packing ---- */

EMU int32_t emu_within(int32_t x, int32_t least, int32_t most) {
    return x < least ? least : x > most ? most : x;
}
/* In each 128 bits, four integers of a, then four of b. */
EMU __m512i emu_pack(__m512i a, __m512i b, int32_t least, int32_t most) {
    emu_i16 r;
    for (int i = 0; i < 32; i++)
        r[i] = (int16_t)emu_within(((emu_i32)(i % 8 < 4 ? a : b))[i / 8 * 4 + i % 4], least, most);
    return (__m512i)r;
}
EMU __m256i emu_cvtsepi16_epi8(__m512i x) {
    emu_i8 r;
    for (int i = 0; i < 32; i++)
        r[i] = (int8_t)emu_within(((emu_i16)x)[i], -128, 127);
    return (__m256i)r;
}
EMU __m256i emu_cvtusepi16_epi8(__m512i x) {
    emu_i8 r;
    for (int i = 0; i < 32; i++)
        r[i] = (int8_t)emu_within((uint16_t)((emu_i16)x)[i], 0, 255);
    return (__m256i)r;
}
#define _mm512_packs_epi32(a, b)  emu_pack(a, b, INT16_MIN, INT16_MAX)
#define _mm512_packus_epi32(a, b) emu_pack(a, b, 0, UINT16_MAX)
#define _mm512_cvtsepi16_epi8(x)  emu_cvtsepi16_epi8(x)
#define _mm512_cvtusepi16_epi8(x) emu_cvtusepi16_epi8(x)

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
EMU __m512i emu_widen_bytes(__m256i x, int is_signed) {
    emu_i16 r;
    for (int i = 0; i < 32; i++)
        r[i] = (int16_t)(is_signed ? ((emu_i8)x)[i] : (uint8_t)((emu_i8)x)[i]);
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
EMU __m512 emu_cvtepi32_ps(__m512i x) {
    emu_f32 r;
    EMU_EACH r[i] = (float)((emu_i32)x)[i];
    return (__m512)r;
}
/* "If a converted result is too large, the indefinite integer value (0x80000000) is returned." */
EMU __m512i emu_cvtps_epi32(__m512 x) {
    emu_i32 r;
    EMU_EACH {
        float near = rintf(((emu_f32)x)[i]);
        r[i] = near >= -0x1p31f && near < 0x1p31f ? (int32_t)near : INT32_MIN;
    }
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
#define _mm512_cvtepi8_epi16(x)      emu_widen_bytes(x, 1)
#define _mm512_cvtepu8_epi16(x)      emu_widen_bytes(x, 0)
#define _mm512_cvtepi32_ps(x)        emu_cvtepi32_ps(x)
#define _mm512_cvtps_epi32(x)        emu_cvtps_epi32(x)
#define _mm512_cvtph_ps(x)           emu_cvtph_ps(x)
#define _mm512_cvtps_ph(x, rounding) emu_cvtps_ph(x)

#endif

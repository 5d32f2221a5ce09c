#include "src/base/crc32.h"

#include <stdbool.h>
#include <zlib.h>

static uint32_t crc_zlib(uint32_t crc, const void *data, size_t bytes) {
    return (uint32_t)crc32_z(crc, data, bytes);
}

#ifdef __x86_64__
#include <immintrin.h>

/* Folding, after Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction"
 * (Intel, 2009). The message is a polynomial over GF(2). Take 16 bytes of it, and 16 others that follow D
 * bits later. Multiplying the first 16 by x^D mod P and adding them to the later ones does not change the
 * remainder. A register holds two halves, so this takes two constants: x^(D+32) mod P for the first half and
 * x^(D-32) mod P for the second. The bits of each constant are reversed, as in CRC-32, and shifted left by
 * one, because the product of two reversed polynomials comes out one bit lower.
 *
 * Four registers in a row hide the latency of the multiplication. At the end, zlib computes the remainder of
 * the last 64 bytes and continues with the rest of the message. */
enum { LANE_BYTES = 16, LANES = 4, ROW_BYTES = LANE_BYTES * LANES };

__attribute__((target("pclmul,sse4.1"))) static __m128i fold(__m128i x, __m128i constants, __m128i next) {
    __m128i first = _mm_clmulepi64_si128(x, constants, 0x00);
    __m128i second = _mm_clmulepi64_si128(x, constants, 0x11);
    return _mm_xor_si128(_mm_xor_si128(first, second), next);
}

__attribute__((target("pclmul,sse4.1"))) static uint32_t crc_pclmulqdq(uint32_t crc, const void *data,
                                                                       size_t bytes) {
    if (bytes < 2 * ROW_BYTES)
        return crc_zlib(crc, data, bytes);
    /* D = 512 bits: one row of four registers */
    const __m128i by_row = _mm_set_epi64x(0x1c6e41596, 0x154442bd4);
    const unsigned char *at = data;
    __m128i x[LANES], row[LANES];
    for (int i = 0; i < LANES; i++)
        x[i] = _mm_loadu_si128((const __m128i *)at + i);
    /* The CRC of the earlier data is added to the first 32 bits; zlib keeps the remainder inverted. */
    x[0] = _mm_xor_si128(x[0], _mm_cvtsi32_si128((int)~crc));
    for (at += ROW_BYTES, bytes -= ROW_BYTES; bytes >= ROW_BYTES; at += ROW_BYTES, bytes -= ROW_BYTES)
        for (int i = 0; i < LANES; i++)
            x[i] = fold(x[i], by_row, _mm_loadu_si128((const __m128i *)at + i));
    for (int i = 0; i < LANES; i++)
        _mm_storeu_si128(&row[i], x[i]);
    /* The row now has the remainder of all data before it, so zlib starts from a remainder of 0, inverted. */
    return crc_zlib(crc_zlib(UINT32_MAX, row, sizeof row), at, bytes);
}

static bool have_pclmulqdq(void) {
    __builtin_cpu_init();
    return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}
#else
static uint32_t crc_pclmulqdq(uint32_t crc, const void *data, size_t bytes) {
    return crc_zlib(crc, data, bytes);
}

static bool have_pclmulqdq(void) {
    return false;
}
#endif

uint32_t ot_crc32(uint32_t crc, const void *data, size_t bytes) {
    return have_pclmulqdq() ? crc_pclmulqdq(crc, data, bytes) : crc_zlib(crc, data, bytes);
}

uint32_t ot_crc32_combine(uint32_t first, uint32_t second, size_t second_bytes) {
    return (uint32_t)crc32_combine(first, second, (z_off_t)second_bytes);
}

const char *ot_crc32_kernel(void) {
    return have_pclmulqdq() ? "pclmulqdq" : "zlib";
}

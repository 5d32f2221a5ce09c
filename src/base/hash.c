#include "src/base/hash.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

static uint32_t crc_zlib(uint32_t crc, const void *data, size_t bytes) {
    return (uint32_t)crc32_z(crc, data, bytes);
}

#ifdef __x86_64__
#include <cpuid.h>
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

/* ---- SHA-256 ---- */

/* The first 32 bits of the fractional parts of the cube roots of the first 64 primes. */
static const uint32_t constants[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

/* Makes the 64 words of the schedule from a block of 16 big-endian words. */
static void expand(const uint8_t block[OT_SHA256_BLOCK], uint32_t w[64]) {
    for (int i = 0; i < 16; i++, block += 4)
        w[i] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
    for (int i = 16; i < 64; i++) {
        uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
}

static void take_blocks_plainly(uint32_t state[8], const uint8_t *block, size_t n) {
    for (; n > 0; n--, block += OT_SHA256_BLOCK) {
        uint32_t w[64], a = state[0], b = state[1], c = state[2], d = state[3];
        uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
        expand(block, w);
#pragma GCC unroll 8 /* then nothing is moved */
        for (int i = 0; i < 64; i++) {
            uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25), choice = (e & f) ^ (~e & g);
            uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
            uint32_t majority = (a & b) ^ (a & c) ^ (b & c);
            uint32_t t = h + s1 + choice + constants[i] + w[i];
            h = g, g = f, f = e, e = d + t;
            d = c, c = b, b = a, a = t + s0 + majority;
        }
        state[0] += a, state[1] += b, state[2] += c, state[3] += d;
        state[4] += e, state[5] += f, state[6] += g, state[7] += h;
    }
}

#ifdef __x86_64__
/* With the SHA instructions, after Gulley et al., "Intel SHA Extensions" (Intel, 2013). They keep the words
 * A, B, E, F of the state in one register and C, D, G, H in another. */
__attribute__((target("sha,sse4.1"))) static void take_blocks_sha(uint32_t state[8], const uint8_t *block,
                                                                  size_t n) {
    const __m128i bytes_swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    __m128i dcba = _mm_loadu_si128((const __m128i *)state);
    __m128i hgfe = _mm_loadu_si128((const __m128i *)state + 1);
    __m128i cdab = _mm_shuffle_epi32(dcba, 0xb1), efgh = _mm_shuffle_epi32(hgfe, 0x1b);
    __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xf0);
    for (; n > 0; n--, block += OT_SHA256_BLOCK) {
        __m128i w[16], first = abef, second = cdgh;
        for (int i = 0; i < 16; i++) { /* four words and four rounds each */
            w[i] = i < 4 ? _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)block + i), bytes_swap)
                         : _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[i - 4], w[i - 3]),
                                                              _mm_alignr_epi8(w[i - 1], w[i - 2], 4)),
                                                w[i - 1]);
            __m128i sum = _mm_add_epi32(w[i], _mm_loadu_si128((const __m128i *)constants + i));
            cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
            abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0e));
        }
        abef = _mm_add_epi32(abef, first);
        cdgh = _mm_add_epi32(cdgh, second);
    }
    __m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
    _mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
    _mm_storeu_si128((__m128i *)state + 1, _mm_alignr_epi8(dchg, feba, 8));
}

static bool have_sha(void) {
    unsigned a, b = 0, c, d;
    __builtin_cpu_init();
    return __builtin_cpu_supports("sse4.1") && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA);
}
#else
#define take_blocks_sha take_blocks_plainly
static bool have_sha(void) {
    return false;
}
#endif

enum { KERNEL_UNKNOWN, KERNEL_PLAIN, KERNEL_SHA };
static _Atomic int sha256_kernel;

bool ot_sha256_use_instructions(bool use) {
    sha256_kernel = use && have_sha() ? KERNEL_SHA : KERNEL_PLAIN;
    return sha256_kernel == KERNEL_SHA;
}

static void take_blocks(struct ot_sha256 *hash, const uint8_t *blocks, size_t n) {
    if (sha256_kernel == KERNEL_UNKNOWN)
        ot_sha256_use_instructions(true);
    (sha256_kernel == KERNEL_SHA ? take_blocks_sha : take_blocks_plainly)(hash->state, blocks, n);
}

void ot_sha256_begin(struct ot_sha256 *hash) {
    *hash = (struct ot_sha256){.state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f,
                                         0x9b05688c, 0x1f83d9ab, 0x5be0cd19}};
}

void ot_sha256_add(struct ot_sha256 *hash, const void *data, size_t bytes) {
    const uint8_t *at = data;
    while (bytes > 0) {
        size_t held = hash->bytes % OT_SHA256_BLOCK, part = OT_SHA256_BLOCK - held;
        if (held == 0 && bytes >= OT_SHA256_BLOCK) {
            part = bytes - bytes % OT_SHA256_BLOCK;
            take_blocks(hash, at, part / OT_SHA256_BLOCK);
        } else {
            part = part < bytes ? part : bytes;
            memcpy(hash->block + held, at, part);
            if (held + part == OT_SHA256_BLOCK)
                take_blocks(hash, hash->block, 1);
        }
        hash->bytes += part;
        at += part;
        bytes -= part;
    }
}

void ot_sha256_end(struct ot_sha256 *hash, uint8_t digest[OT_SHA256_BYTES]) {
    uint64_t bits = 8 * hash->bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    ot_sha256_add(hash, "\x80", 1);
    while (hash->bytes % OT_SHA256_BLOCK != OT_SHA256_BLOCK - sizeof length)
        ot_sha256_add(hash, "", 1); /* zeros */
    ot_sha256_add(hash, length, sizeof length);
    for (int i = 0; i < OT_SHA256_BYTES; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

/* ---- HMAC ---- */

void ot_hmac_begin(struct ot_hmac *mac, const void *key, size_t key_bytes) {
    uint8_t block[OT_SHA256_BLOCK] = {0}, inner[OT_SHA256_BLOCK], outer[OT_SHA256_BLOCK];
    if (key_bytes > sizeof block) { /* a long key is replaced by its hash */
        ot_sha256_begin(&mac->inner);
        ot_sha256_add(&mac->inner, key, key_bytes);
        ot_sha256_end(&mac->inner, block);
    } else if (key_bytes > 0) {
        memcpy(block, key, key_bytes);
    }
    for (size_t i = 0; i < sizeof block; i++) {
        inner[i] = block[i] ^ 0x36;
        outer[i] = block[i] ^ 0x5c;
    }
    ot_sha256_begin(&mac->inner);
    ot_sha256_add(&mac->inner, inner, sizeof inner);
    ot_sha256_begin(&mac->outer);
    ot_sha256_add(&mac->outer, outer, sizeof outer);
}

void ot_hmac_add(struct ot_hmac *mac, const void *data, size_t bytes) {
    ot_sha256_add(&mac->inner, data, bytes);
}

void ot_hmac_end(struct ot_hmac *mac, uint8_t digest[OT_SHA256_BYTES]) {
    ot_sha256_end(&mac->inner, digest);
    ot_sha256_add(&mac->outer, digest, OT_SHA256_BYTES);
    ot_sha256_end(&mac->outer, digest);
}

/* ---- SHA-1 ---- */

static uint32_t rotate_left(uint32_t x, int n) {
    return x << n | x >> (32 - n);
}

static void take_sha1_block(struct ot_sha1 *hash) {
    static const uint32_t of_twenty[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    const uint8_t *block = hash->block;
    uint32_t w[80], s[5];
    for (int i = 0; i < 16; i++, block += 4)
        w[i] = (uint32_t)block[0] << 24 | (uint32_t)block[1] << 16 | (uint32_t)block[2] << 8 | block[3];
    for (int i = 16; i < 80; i++)
        w[i] = rotate_left(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
    memcpy(s, hash->state, sizeof s);
    for (int i = 0; i < 80; i++) {
        uint32_t parity = s[1] ^ s[2] ^ s[3];
        uint32_t f = i < 20              ? (s[1] & s[2]) | (~s[1] & s[3])
                     : i >= 40 && i < 60 ? (s[1] & s[2]) | (s[1] & s[3]) | (s[2] & s[3])
                                         : parity;
        uint32_t t = rotate_left(s[0], 5) + f + s[4] + of_twenty[i / 20] + w[i];
        memmove(s + 1, s, 4 * sizeof *s);
        s[2] = rotate_left(s[2], 30);
        s[0] = t;
    }
    for (int i = 0; i < 5; i++)
        hash->state[i] += s[i];
}

void ot_sha1_begin(struct ot_sha1 *hash) {
    *hash = (struct ot_sha1){.state = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}};
}

void ot_sha1_add(struct ot_sha1 *hash, const void *data, size_t bytes) {
    for (const uint8_t *at = data, *end = at + bytes; at < end; at++) {
        hash->block[hash->bytes++ % sizeof hash->block] = *at;
        if (hash->bytes % sizeof hash->block == 0)
            take_sha1_block(hash);
    }
}

void ot_sha1_end(struct ot_sha1 *hash, uint8_t digest[OT_SHA1_BYTES]) {
    uint64_t bits = 8 * hash->bytes;
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bits >> (56 - 8 * i));
    ot_sha1_add(hash, "\x80", 1);
    while (hash->bytes % sizeof hash->block != sizeof hash->block - sizeof length)
        ot_sha1_add(hash, "", 1); /* zeros */
    ot_sha1_add(hash, length, sizeof length);
    for (int i = 0; i < OT_SHA1_BYTES; i++)
        digest[i] = (uint8_t)(hash->state[i / 4] >> (24 - 8 * (i % 4)));
}

void ot_hash_text(const uint8_t *digest, size_t bytes, char *text) {
    for (size_t i = 0; i < bytes; i++)
        snprintf(text + 2 * i, 3, "%02x", digest[i]);
}

bool ot_sha256_is_same(const uint8_t a[OT_SHA256_BYTES], const uint8_t b[OT_SHA256_BYTES]) {
    unsigned differs = 0;
    for (int i = 0; i < OT_SHA256_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

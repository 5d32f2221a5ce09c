#include "src/base/random.h"

#include <math.h>

/* Weyl increments and multipliers of Philox4x32 (Salmon et al., section 3.3). */
enum { ROUNDS = 10 };
static const uint32_t multiplier[2] = {0xd2511f53u, 0xcd9e8d57u};
static const uint32_t key_step[2] = {0x9e3779b9u, 0xbb67ae85u};

void ot_random_block(uint64_t seed, uint64_t stream, uint64_t index, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t p0 = (uint64_t)multiplier[0] * c0, p1 = (uint64_t)multiplier[1] * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += key_step[0];
        k1 += key_step[1];
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The finalizer of splitmix64 (Steele, Lea, Flood, OOPSLA'14): one-to-one; each input bit affects each output
 * bit. */
static uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

uint64_t ot_random_stream(enum ot_random_use use, uint64_t step, uint64_t tensor) {
    return mix(mix(mix((uint64_t)use) ^ step) ^ tensor);
}

uint32_t ot_random_u32(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t block[4];
    ot_random_block(seed, stream, index / 4, block);
    return block[index % 4];
}

static uint64_t random_u64(uint64_t seed, uint64_t stream, uint64_t index) {
    uint32_t block[4];
    ot_random_block(seed, stream, index / 2, block);
    const uint32_t *pair = block + 2 * (index % 2);
    return (uint64_t)pair[1] << 32 | pair[0];
}

/* The high half of a product. The probability of a value is wrong by at most bound / 2^64 of itself. */
uint64_t ot_random_below(uint64_t seed, uint64_t stream, uint64_t index, uint64_t bound) {
    return (uint64_t)(((unsigned __int128)random_u64(seed, stream, index) * bound) >> 64);
}

double ot_random_unit(uint64_t seed, uint64_t stream, uint64_t index) {
    return (double)(random_u64(seed, stream, index) >> 11) * 0x1p-53;
}

/* ---- normal numbers: Box and Muller, "A Note on the Generation of Random Normal Deviates" (1958) ----
 *
 * libm's log and cos may differ in the last bit from one machine to the next. These use +, -, *, / and sqrt
 * alone, which IEEE 754 defines exactly. Their error, some 1e-15, is far below the fp32 result. */

/* ln(n / 2^32), n in [1, 2^32]: n = m 2^e with m in [1/sqrt 2, sqrt 2), ln m = 2 atanh((m - 1) / (m + 1)). */
static double log_fraction(uint64_t n) {
    int exponent = 63 - __builtin_clzll(n);
    double m = (double)n / (double)(UINT64_C(1) << exponent);
    if (m > 0x1.6a09e667f3bcdp0) {
        m /= 2;
        exponent++;
    }
    double s = (m - 1) / (m + 1), s2 = s * s, sum = 0;
    for (int k = 21; k >= 1; k -= 2) /* s^2 < 0.0295, so the omitted terms are below 1e-17 */
        sum = sum * s2 + 1.0 / k;
    return 2 * s * sum + (exponent - 32) * 0x1.62e42fefa39efp-1;
}

/* cos and sin in one vector: its operations are those of two doubles. */
typedef double both __attribute__((vector_size(16)));

/* cos and sin of x in [-pi/4, pi/4] by their Taylor series; x^16/16! < 1e-15. */
static both cos_sin_small(double x) {
    both x2 = {x * x, x * x}, one = {1, 1}, sum = one;
    for (int k = 16; k >= 2; k -= 2)
        sum = one - sum * x2 / (both){k * (k - 1), k * (k + 1)};
    return sum * (both){1, x};
}

/* Two words make two numbers: a radius times cos and sin of 2 pi n / 2^32. The nearest quarter turn is exact,
 * and the rest goes by series. */
static void normal_pair(const uint32_t words[2], float out[2]) {
    double radius = sqrt(-2 * log_fraction((uint64_t)words[0] + 1));
    int64_t n = words[1], quarter = (n + (1 << 29)) >> 30;
    both small = cos_sin_small((double)(n - quarter * (1 << 30)) * 0x1.921fb54442d18p-30); /* pi/2 / 2^30 */
    const double turned[4] = {small[0], -small[1], -small[0], small[1]}; /* the cos of 0 to 3 quarters more */
    out[0] = (float)(radius * turned[quarter & 3]);
    out[1] = (float)(radius * turned[(quarter - 1) & 3]); /* sin x = cos(x - pi/2) */
}

float ot_random_normal(uint64_t seed, uint64_t stream, uint64_t index) {
    float value;
    ot_random_normals(seed, stream, index, 1, &value);
    return value;
}

void ot_random_normals(uint64_t seed, uint64_t stream, uint64_t first, int64_t n, float *out) {
    uint32_t words[4];
    float pair[2];
    for (uint64_t i = first; i < first + (uint64_t)n; i++) {
        if (i == first || i % 4 == 0)
            ot_random_block(seed, stream, i / 4, words);
        if (i == first || i % 2 == 0)
            normal_pair(words + i % 4 / 2 * 2, pair);
        *out++ = pair[i % 2];
    }
}

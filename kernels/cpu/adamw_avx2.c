#include <immintrin.h>
#include <stdbool.h>

#include "kernels/adamw.h"
#include "kernels/cpu/adamw_scales.h"

enum { LANES = 8 };

struct vectors {
    __m256 beta1, beta2, rest1, rest2, eps, grad_scale, per_bias2, minus_decay, minus_rate;
};

static struct vectors broadcast(const struct ot_adamw_numbers *k) {
    return (struct vectors){
        .beta1 = _mm256_set1_ps(k->beta1),
        .beta2 = _mm256_set1_ps(k->beta2),
        .rest1 = _mm256_set1_ps(k->rest1),
        .rest2 = _mm256_set1_ps(k->rest2),
        .eps = _mm256_set1_ps(k->eps),
        .grad_scale = _mm256_set1_ps(k->grad_scale),
        .per_bias2 = _mm256_set1_ps(k->per_bias2),
        .minus_decay = _mm256_set1_ps(k->minus_decay),
        .minus_rate = _mm256_set1_ps(k->minus_rate),
    };
}

#define INLINE static inline __attribute__((always_inline))

/* ---- random words (ot_state_word) and rounding ---- */

/* The words of parameters index + places, all in the same page of 2^32 places. */
INLINE __m256i random_words(struct ot_state_noise noise, int64_t index, __m256i places) {
    uint32_t first =
        noise.begin + (uint32_t)index * OT_NOISE_STEP + (uint32_t)((uint64_t)index >> 32) * OT_NOISE_PAGE;
    __m256i x = _mm256_mullo_epi32(places, _mm256_set1_epi32((int)OT_NOISE_STEP)); /* a constant */
    x = _mm256_add_epi32(x, _mm256_set1_epi32((int)first));
    x = _mm256_xor_si256(x, _mm256_srli_epi32(x, 16));
    x = _mm256_mullo_epi32(x, _mm256_set1_epi32((int)OT_NOISE_MIX1));
    x = _mm256_xor_si256(_mm256_xor_si256(x, _mm256_srli_epi32(x, 15)), _mm256_set1_epi32((int)noise.key));
    return _mm256_mullo_epi32(x, _mm256_set1_epi32((int)OT_NOISE_MIX2));
}

/* The words of half a pair: parameters index + {0-3, 8-11}. index: a multiple of 4. */
INLINE __m256i pair_words(struct ot_state_noise noise, int64_t index) {
    return random_words(noise, index, _mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11));
}

/* ot_state_round_bf16, without the cut; the random bits are the low 16 bits of each element of `random`. */
INLINE __m256i add_random(__m256 value, __m256i random) {
    __m256i bits = _mm256_castps_si256(value);
    __m256i magnitude = _mm256_and_si256(bits, _mm256_set1_epi32(0x7fffffff));
    __m256i in_range = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x7f7f0000), magnitude);
    return _mm256_add_epi32(bits, _mm256_and_si256(in_range, random));
}

/* ---- master weights and gradients in fp32 and fp16 ----
 *
 * `master` is a constant in every call, and inlining removes the branches. */

INLINE __m256 load_grad(const struct ot_adamw *args, enum adamw_master master, int64_t i) {
    if (master == MASTER_F32)
        return _mm256_loadu_ps((const float *)args->grad + i);
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)((const uint16_t *)args->grad + i)));
}

INLINE __m256 load_master(const struct ot_adamw *args, enum adamw_master master, int64_t i) {
    return _mm256_loadu_ps((master == MASTER_F32 ? (const float *)args->weight : args->master) + i);
}

INLINE void store_master(const struct ot_adamw *args, enum adamw_master master, int64_t i, __m256 p) {
    if (master == MASTER_F32) {
        _mm256_storeu_ps((float *)args->weight + i, p);
    } else {
        __m128i half = _mm256_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT);
        _mm256_storeu_ps(args->master + i, p);
        _mm_storeu_si128((void *)((uint16_t *)args->weight + i), half);
    }
}

/* Implements kernels/adamw.h line by line; returns the new p. *root: the square root of the new v. */
INLINE __m256 update(const struct vectors *k, __m256 p, __m256 grad, __m256 *m, __m256 *v, __m256 *root) {
    __m256 g = _mm256_mul_ps(grad, k->grad_scale);
    *m = _mm256_fmadd_ps(k->beta1, *m, _mm256_mul_ps(k->rest1, g));
    *v = _mm256_fmadd_ps(k->beta2, *v, _mm256_mul_ps(_mm256_mul_ps(k->rest2, g), g));
    *root = _mm256_sqrt_ps(*v);
    __m256 d = _mm256_fmadd_ps(*root, k->per_bias2, k->eps);
    p = _mm256_fmadd_ps(k->minus_decay, p, p);
    return _mm256_fmadd_ps(k->minus_rate, _mm256_div_ps(*m, d), p);
}

/* ---- pairs ----
 *
 * Kernels of compact states and of bf16 weights work on 16 parameters in two vectors. AVX2 widens and narrows
 * inside 128-bit parts, so a has the parameters 0-3 and 8-11, and b has 4-7 and 12-15. */

enum { PAIR = 2 * LANES, PAIRS = OT_STATE_GROUP / PAIR /* per group */ };

struct pair {
    __m256 a, b;
};

INLINE struct pair in_pair_order(__m256 low, __m256 high) { /* takes 0-7 and 8-15; or back */
    return (struct pair){_mm256_permute2f128_ps(low, high, 0x20), _mm256_permute2f128_ps(low, high, 0x31)};
}

INLINE struct pair pair_of_bf16(__m256i halves) {
    const __m256i zero = _mm256_setzero_si256();
    return (struct pair){_mm256_castsi256_ps(_mm256_unpacklo_epi16(zero, halves)),
                         _mm256_castsi256_ps(_mm256_unpackhi_epi16(zero, halves))};
}

INLINE __m256i load_halves(const void *at) {
    return _mm256_loadu_si256(at);
}

/* The upper halves of 16 numbers, in order. */
INLINE __m256i upper_halves(__m256i a, __m256i b) {
    return _mm256_packus_epi32(_mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
}

INLINE bool is_bf16(enum adamw_master master) {
    return master == MASTER_SPLIT || master == MASTER_NONE;
}

/* Stores a pair as bf16. The random bits are the low 16 bits of each element of a and b. */
INLINE void store_rounded(uint16_t *at, struct pair x, __m256i a, __m256i b) {
    _mm256_storeu_si256((void *)at, upper_halves(add_random(x.a, a), add_random(x.b, b)));
}

INLINE struct pair load_grads(const struct ot_adamw *args, enum adamw_master master, int64_t i) {
    if (is_bf16(master))
        return pair_of_bf16(load_halves((const uint16_t *)args->grad + i));
    return in_pair_order(load_grad(args, master, i), load_grad(args, master, i + LANES));
}

INLINE struct pair load_masters(const struct ot_adamw *args, enum adamw_master master, int64_t i) {
    if (!is_bf16(master))
        return in_pair_order(load_master(args, master, i), load_master(args, master, i + LANES));
    __m256i high = load_halves((const uint16_t *)args->weight + i);
    if (master == MASTER_NONE)
        return pair_of_bf16(high);
    __m256i low = load_halves(args->low + i);
    high = _mm256_add_epi16(high, _mm256_srai_epi16(low, 15)); /* the borrow of a negative remainder */
    return (struct pair){_mm256_castsi256_ps(_mm256_unpacklo_epi16(low, high)),
                         _mm256_castsi256_ps(_mm256_unpackhi_epi16(low, high))};
}

INLINE void store_masters(const struct ot_adamw *args, enum adamw_master master, int64_t i, struct pair p) {
    if (!is_bf16(master)) {
        p = in_pair_order(p.a, p.b);
        store_master(args, master, i, p.a);
        store_master(args, master, i + LANES, p.b);
        return;
    }
    const __m256i mask = _mm256_set1_epi32(0xffff);
    if (master ==
        MASTER_NONE) { /* ot_state_half_word: a has the lower halves of the words, b the upper ones */
        __m256i words = pair_words(args->step->weight_noise, args->first + i);
        store_rounded((uint16_t *)args->weight + i, p, _mm256_and_si256(words, mask),
                      _mm256_srli_epi32(words, 16));
        return;
    }
    __m256i a = _mm256_castps_si256(p.a), b = _mm256_castps_si256(p.b);
    __m256i low = _mm256_packus_epi32(_mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
    __m256i high = _mm256_add_epi16(upper_halves(a, b), _mm256_srli_epi16(low, 15)); /* rounds away */
    _mm256_storeu_si256((void *)((uint16_t *)args->weight + i), high);
    _mm256_storeu_si256((void *)(args->low + i), low);
}

/* Updates 16 parameters. Returns the square roots of the new v. */
INLINE struct pair update_pair(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                               int64_t i, struct pair *m, struct pair *v) {
    struct pair p = load_masters(args, master, i), grads = load_grads(args, master, i), roots;
    p.a = update(k, p.a, grads.a, &m->a, &v->a, &roots.a);
    p.b = update(k, p.b, grads.b, &m->b, &v->b, &roots.b);
    store_masters(args, master, i, p);
    return roots;
}

/* ---- fp32 ---- */

INLINE struct pair load_pair(const float *at) {
    return in_pair_order(_mm256_loadu_ps(at), _mm256_loadu_ps(at + LANES));
}

INLINE void store_pair(float *at, struct pair x) {
    x = in_pair_order(x.a, x.b);
    _mm256_storeu_ps(at, x.a);
    _mm256_storeu_ps(at + LANES, x.b);
}

INLINE void update_f32_pairs(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                             int64_t n) {
    for (int64_t i = 0; i < n; i += PAIR) {
        float *m_at = (float *)args->m + i, *v_at = (float *)args->v + i;
        struct pair m = load_pair(m_at), v = load_pair(v_at);
        update_pair(args, k, master, i, &m, &v);
        store_pair(m_at, m);
        store_pair(v_at, v);
    }
}

INLINE void update_f32(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                       int64_t n) {
    if (is_bf16(master)) {
        update_f32_pairs(args, k, master, n);
        return;
    }
    for (int64_t i = 0; i < n; i += LANES) {
        float *m_at = (float *)args->m + i, *v_at = (float *)args->v + i;
        __m256 m = _mm256_loadu_ps(m_at), v = _mm256_loadu_ps(v_at), root;
        __m256 p = load_master(args, master, i), grad = load_grad(args, master, i);
        store_master(args, master, i, update(k, p, grad, &m, &v, &root));
        _mm256_storeu_ps(m_at, m);
        _mm256_storeu_ps(v_at, v);
    }
}

/* ---- 16 bits ---- */

INLINE void update_16bit(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                         int64_t n) {
    const __m256i mask = _mm256_set1_epi32(0xffff);
    for (int64_t i = 0; i < n; i += PAIR) {
        uint16_t *m_at = (uint16_t *)args->m + i, *v_at = (uint16_t *)args->v + i;
        struct pair m = pair_of_bf16(load_halves(m_at)), v = pair_of_bf16(load_halves(v_at));
        update_pair(args, k, master, i, &m, &v);
        __m256i a = pair_words(args->step->noise, args->first + i);
        __m256i b = pair_words(args->step->noise, args->first + i + 4);
        store_rounded(m_at, m, _mm256_and_si256(a, mask), _mm256_and_si256(b, mask));
        store_rounded(v_at, v, _mm256_srli_epi32(a, 16), _mm256_srli_epi32(b, 16));
    }
}

/* ---- 8 bits ---- */

struct block {
    struct pair m[GROUPS][PAIRS], root[GROUPS][PAIRS]; /* root: the square root of v */
    __m256 most_m[GROUPS], most_root[GROUPS];          /* per lane */
};

INLINE __m256 absolute(__m256 x) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x);
}

/* 32 bytes so that unpacking inside 128-bit parts gives pairs; or back. */
INLINE __m256i in_byte_order(__m256i bytes) {
    return _mm256_permute4x64_epi64(bytes, 0xd8);
}

/* m of the pairs of a group. */
INLINE void decode_m(const int8_t *at, float scale, struct pair m[PAIRS]) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i code = in_byte_order(_mm256_loadu_si256((const void *)at)), size = _mm256_abs_epi8(code);
    size = _mm256_add_epi8(size, _mm256_subs_epu8(size, _mm256_set1_epi8(80)));
    __m256i words[PAIRS] = {
        _mm256_sign_epi16(_mm256_unpacklo_epi8(size, zero), _mm256_unpacklo_epi8(code, code)),
        _mm256_sign_epi16(_mm256_unpackhi_epi8(size, zero), _mm256_unpackhi_epi8(code, code))};
    __m256 s = _mm256_set1_ps(scale * 0x1p-16f); /* the sizes are in the upper halves: 2^16 times as large */
    for (int q = 0; q < PAIRS; q++) {
        m[q].a = _mm256_mul_ps(s, _mm256_cvtepi32_ps(_mm256_unpacklo_epi16(zero, words[q])));
        m[q].b = _mm256_mul_ps(s, _mm256_cvtepi32_ps(_mm256_unpackhi_epi16(zero, words[q])));
    }
}

INLINE void decode_v(const uint8_t *at, float scale, struct pair v[PAIRS]) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i code = in_byte_order(_mm256_loadu_si256((const void *)at));
    __m256i words[PAIRS] = {_mm256_unpacklo_epi8(code, zero), _mm256_unpackhi_epi8(code, zero)};
    __m256 u = _mm256_set1_ps(scale);
    for (int q = 0; q < PAIRS; q++) {
        __m256 a = _mm256_mul_ps(u, _mm256_cvtepi32_ps(_mm256_unpacklo_epi16(words[q], zero)));
        __m256 b = _mm256_mul_ps(u, _mm256_cvtepi32_ps(_mm256_unpackhi_epi16(words[q], zero)));
        v[q] = (struct pair){_mm256_mul_ps(a, a), _mm256_mul_ps(b, b)};
    }
}

INLINE void update_group(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                         int64_t i, const struct ot_state_scale *scale, struct block *block, int g) {
    struct pair m[PAIRS], v[PAIRS];
    __m256 most_m = _mm256_setzero_ps(), most_root = _mm256_setzero_ps();
    decode_m((const int8_t *)args->m + i, ot_bf16_to_f32(scale->m), m);
    decode_v((const uint8_t *)args->v + i, ot_bf16_to_f32(scale->v), v);
    for (int q = 0; q < PAIRS; q++) {
        struct pair root = update_pair(args, k, master, i + q * PAIR, &m[q], &v[q]);
        block->m[g][q] = m[q];
        block->root[g][q] = root;
        /* If the first operand is NaN, max returns the second one, as fmaxf does. */
        most_m = _mm256_max_ps(absolute(m[q].a), _mm256_max_ps(absolute(m[q].b), most_m));
        most_root = _mm256_max_ps(root.a, _mm256_max_ps(root.b, most_root));
    }
    block->most_m[g] = most_m;
    block->most_root[g] = most_root;
}

/* 16 numbers as 16-bit integers, in order. Too large ones become the largest. */
INLINE __m256i narrow(__m256i a, __m256i b) {
    return _mm256_packs_epi32(a, b);
}

INLINE __m256i narrow_bits(struct pair x) { /* keeps the sign, and whether x is 0 */
    return narrow(_mm256_castps_si256(x.a), _mm256_castps_si256(x.b));
}

/* (round(place) + random) / 1024. A place that is too large or NaN becomes 2^31, and so a large code, which
 * packing cuts to 127 or 255. */
INLINE __m256i code_of(__m256 place, __m256i random) {
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(place), random), 10);
}

INLINE __m256i code_of_m(__m256 m, __m256 k, __m256 k2, __m256i random) {
    __m256 size = absolute(m), line = _mm256_fmadd_ps(size, k2, _mm256_set1_ps(40960));
    return code_of(_mm256_min_ps(_mm256_mul_ps(size, k), line), random);
}

INLINE void encode_group(const struct ot_adamw *args, int64_t i, const struct block *block, int g,
                         float m_steps, float v_steps) {
    const __m256i ten_bits = _mm256_set1_epi32(1023);
    __m256i m_codes[PAIRS], v_codes[PAIRS], signs[PAIRS], positive[PAIRS];
    __m256 k = _mm256_set1_ps(m_steps), k2 = _mm256_set1_ps(m_steps * 0.5f), v_k = _mm256_set1_ps(v_steps);
    for (int q = 0; q < PAIRS; q++) {
        struct pair m = block->m[g][q], root = block->root[g][q];
        __m256i words = pair_words(args->step->noise, args->first + i + q * PAIR);
        __m256i m_a = code_of_m(m.a, k, k2, _mm256_srli_epi32(_mm256_slli_epi32(words, 16), 22));
        __m256i m_b = code_of_m(m.b, k, k2, _mm256_srli_epi32(words, 22));
        __m256i v_a = code_of(_mm256_mul_ps(root.a, v_k), _mm256_and_si256(words, ten_bits));
        __m256i high = _mm256_and_si256(_mm256_srli_epi32(words, 16), ten_bits);
        __m256i v_b = code_of(_mm256_mul_ps(root.b, v_k), high);
        m_codes[q] = narrow(m_a, m_b);
        v_codes[q] = narrow(v_a, v_b);
        signs[q] = narrow_bits(m);
        positive[q] = narrow_bits(root);
    }
    __m256i m_code = _mm256_packs_epi16(m_codes[0], m_codes[1]);
    m_code = _mm256_sign_epi8(m_code, _mm256_packs_epi16(signs[0], signs[1])); /* 0 has code 0 */
    __m256i v_code = _mm256_packus_epi16(v_codes[0], v_codes[1]);
    __m256i least = _mm256_min_epu8(_mm256_packs_epi16(positive[0], positive[1]), _mm256_set1_epi8(1));
    v_code = _mm256_max_epu8(v_code, least); /* at least 1 if v > 0; v is never -0 */
    _mm256_storeu_si256((void *)((int8_t *)args->m + i), in_byte_order(m_code));
    _mm256_storeu_si256((void *)((uint8_t *)args->v + i), in_byte_order(v_code));
}

/* Updates `groups` groups, at most GROUPS, from parameter i on. */
INLINE void update_block(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                         int64_t i, int groups, struct ot_state_scale *scales) {
    struct block block;
    struct block_scales found;
    for (int g = 0; g < groups; g++)
        update_group(args, k, master, i + g * OT_STATE_GROUP, &scales[g], &block, g);
    for (int g = groups; g < GROUPS; g++)
        block.most_m[g] = block.most_root[g] = _mm256_setzero_ps();
    find_scales(block.most_m, block.most_root, &found);
    for (int g = 0; g < groups; g++) {
        encode_group(args, i + g * OT_STATE_GROUP, &block, g, found.m_steps[g], found.v_steps[g]);
        scales[g] = found.stored[g];
    }
}

/* ---- entry ---- */

#include "kernels/cpu/adamw_entry.h"

void ot_adamw_avx2(const struct ot_adamw *args) {
    update_all(args, PAIR);
}

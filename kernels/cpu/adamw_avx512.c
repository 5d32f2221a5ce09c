#include <immintrin.h>
#include <stdbool.h>

#include "kernels/cpu/adamw_scales.h"

enum { LANES = 16, VECTORS = OT_STATE_GROUP / LANES /* per group */ };

struct vectors {
    __m512 beta1, beta2, rest1, rest2, eps, grad_scale, per_bias2, minus_decay, minus_rate;
};

static struct vectors broadcast(const struct ot_adamw_numbers *k) {
    return (struct vectors){
        .beta1 = _mm512_set1_ps(k->beta1),
        .beta2 = _mm512_set1_ps(k->beta2),
        .rest1 = _mm512_set1_ps(k->rest1),
        .rest2 = _mm512_set1_ps(k->rest2),
        .eps = _mm512_set1_ps(k->eps),
        .grad_scale = _mm512_set1_ps(k->grad_scale),
        .per_bias2 = _mm512_set1_ps(k->per_bias2),
        .minus_decay = _mm512_set1_ps(k->minus_decay),
        .minus_rate = _mm512_set1_ps(k->minus_rate),
    };
}

/* The active lanes of one vector. Whole vectors are loaded and stored without a mask: AMD's Zen 4 and 5 run
 * masked stores many times slower than plain ones, most of all stores that also narrow. The last vector has a
 * mask, so that it neither reads nor writes beyond n. `whole` is a constant in every call, and inlining
 * removes it. */
struct lanes {
    bool whole;
    __mmask16 mask;
};
static const struct lanes all = {.whole = true};

#define INLINE static inline __attribute__((always_inline))

INLINE __m512 load(struct lanes lanes, const float *at) {
    return lanes.whole ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(lanes.mask, at);
}

INLINE void store(struct lanes lanes, float *at, __m512 value) {
    if (lanes.whole)
        _mm512_storeu_ps(at, value);
    else
        _mm512_mask_storeu_ps(at, lanes.mask, value);
}

INLINE __m256i load16(struct lanes lanes, const void *at) {
    return lanes.whole ? _mm256_loadu_si256(at) : _mm256_maskz_loadu_epi16(lanes.mask, at);
}

INLINE void store16(struct lanes lanes, void *at, __m256i value) {
    if (lanes.whole)
        _mm256_storeu_si256(at, value);
    else
        _mm256_mask_storeu_epi16(at, lanes.mask, value);
}

/* ---- random words (ot_state_word) and rounding ---- */

/* The words of parameters index + places. index: a multiple of 16 or 32, so they share the upper half of
 * their places. */
INLINE __m512i random_words(struct ot_state_noise noise, int64_t index, __m512i places) {
    uint32_t first =
        noise.begin + (uint32_t)index * OT_NOISE_STEP + (uint32_t)((uint64_t)index >> 32) * OT_NOISE_PAGE;
    __m512i x = _mm512_mullo_epi32(places, _mm512_set1_epi32((int)OT_NOISE_STEP)); /* a constant */
    x = _mm512_add_epi32(x, _mm512_set1_epi32((int)first));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 16));
    x = _mm512_mullo_epi32(x, _mm512_set1_epi32((int)OT_NOISE_MIX1));
    x = _mm512_xor_si512(x, _mm512_srli_epi32(x, 15));
    x = _mm512_xor_si512(x, _mm512_set1_epi32((int)noise.key));
    return _mm512_mullo_epi32(x, _mm512_set1_epi32((int)OT_NOISE_MIX2));
}

INLINE __m512i whole_words(struct ot_state_noise noise, int64_t index) {
    return random_words(noise, index,
                        _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

/* The words of a group: one for each two parameters (ot_state_half_word). index: a multiple of 16. */
INLINE __m512i group_words(struct ot_state_noise noise, int64_t index) {
    return random_words(noise, index,
                        _mm512_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27));
}

/* The 16 random bits of each parameter in vector j of the group: the lower halves of four words, then their
 * upper halves, then those of the next four. */
INLINE __m512i half_words(__m512i words, int j) {
    __m512i high = _mm512_setr_epi32(0, 0, 0, 0, 16, 16, 16, 16, 0, 0, 0, 0, 16, 16, 16, 16);
    words = j == 0 ? _mm512_shuffle_i32x4(words, words, 0x50) : _mm512_shuffle_i32x4(words, words, 0xfa);
    return _mm512_and_si512(_mm512_srlv_epi32(words, high), _mm512_set1_epi32(0xffff));
}

/* ot_state_round_bf16; the random bits are the low 16 bits of each element of `random`. */
INLINE void store_rounded(uint16_t *at, __m512 value, __m512i random) {
    __m512i bits = _mm512_castps_si512(value);
    __m512i magnitude = _mm512_and_si512(bits, _mm512_set1_epi32(0x7fffffff));
    __mmask16 in_range = _mm512_cmplt_epi32_mask(magnitude, _mm512_set1_epi32(0x7f7f0000));
    bits = _mm512_mask_add_epi32(bits, in_range, bits, random);
    store16(all, at, _mm512_cvtepi32_epi16(_mm512_srli_epi32(bits, 16)));
}

/* ---- master weights and gradients of each dtype ----
 *
 * `master` is a constant in every call, and inlining removes the branches. */

INLINE __m512i load_high(struct lanes lanes, const void *at) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(lanes, at)), 16);
}

INLINE __m512 load_grad(const struct ot_adamw *args, enum adamw_master master, int64_t i,
                        struct lanes lanes) {
    if (master == MASTER_F32)
        return load(lanes, (const float *)args->grad + i);
    const uint16_t *grad = (const uint16_t *)args->grad + i;
    return master == MASTER_F16 ? _mm512_cvtph_ps(load16(lanes, grad))
                                : _mm512_castsi512_ps(load_high(lanes, grad));
}

INLINE __m512 load_master(const struct ot_adamw *args, enum adamw_master master, int64_t i,
                          struct lanes lanes) {
    if (master == MASTER_F32)
        return load(lanes, (const float *)args->weight + i);
    if (master == MASTER_F16)
        return load(lanes, args->master + i);
    __m512i high = load_high(lanes, (const uint16_t *)args->weight + i);
    if (master == MASTER_NONE)
        return _mm512_castsi512_ps(high);
    return _mm512_castsi512_ps(_mm512_add_epi32(high, _mm512_cvtepi16_epi32(load16(lanes, args->low + i))));
}

INLINE void store_master(const struct ot_adamw *args, enum adamw_master master, int64_t i, struct lanes lanes,
                         __m512 p) {
    uint16_t *half = (uint16_t *)args->weight + i;
    if (master == MASTER_F32) {
        store(lanes, (float *)args->weight + i, p);
    } else if (master == MASTER_F16) {
        store(lanes, args->master + i, p);
        store16(lanes, half, _mm512_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT));
    } else if (master == MASTER_NONE) { /* whole vectors alone */
        store_rounded(half, p, half_words(group_words(args->step->weight_noise, args->first + i), 0));
    } else {
        __m512i bits = _mm512_castps_si512(p);
        __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
        store16(lanes, half, _mm512_cvtepi32_epi16(rounded));
        /* bits - (hi << 16), cut to 16 bits, is the low half of bits, whichever way hi was rounded. */
        store16(lanes, args->low + i, _mm512_cvtepi32_epi16(bits));
    }
}

/* Implements kernels/adamw.h line by line for parameters [i, i + 16). Returns the square root of the new v.
 */
INLINE __m512 update(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                     int64_t i, struct lanes lanes, __m512 *m, __m512 *v) {
    __m512 g = _mm512_mul_ps(load_grad(args, master, i, lanes), k->grad_scale);
    *m = _mm512_fmadd_ps(k->beta1, *m, _mm512_mul_ps(k->rest1, g));
    *v = _mm512_fmadd_ps(k->beta2, *v, _mm512_mul_ps(_mm512_mul_ps(k->rest2, g), g));
    __m512 root = _mm512_sqrt_ps(*v), d = _mm512_fmadd_ps(root, k->per_bias2, k->eps);
    __m512 p = load_master(args, master, i, lanes);
    p = _mm512_fmadd_ps(k->minus_decay, p, p);
    store_master(args, master, i, lanes, _mm512_fmadd_ps(k->minus_rate, _mm512_div_ps(*m, d), p));
    return root;
}

/* ---- fp32 ---- */

INLINE void vector_f32(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                       int64_t i, struct lanes lanes) {
    float *m_at = (float *)args->m + i, *v_at = (float *)args->v + i;
    __m512 m = load(lanes, m_at), v = load(lanes, v_at);
    update(args, k, master, i, lanes, &m, &v);
    store(lanes, m_at, m);
    store(lanes, v_at, v);
}

INLINE void update_f32(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                       int64_t n) {
    int64_t whole = n / LANES * LANES;
    for (int64_t i = 0; i < whole; i += LANES)
        vector_f32(args, k, master, i, all);
    if (whole < n)
        vector_f32(args, k, master, whole, (struct lanes){.mask = (__mmask16)((1u << (n - whole)) - 1)});
}

/* ---- 16 bits ---- */

INLINE void update_16bit(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                         int64_t n) {
    for (int64_t i = 0; i < n; i += LANES) {
        uint16_t *m_at = (uint16_t *)args->m + i, *v_at = (uint16_t *)args->v + i;
        __m512 m = _mm512_castsi512_ps(load_high(all, m_at)), v = _mm512_castsi512_ps(load_high(all, v_at));
        update(args, k, master, i, all, &m, &v);
        __m512i words = whole_words(args->step->noise, args->first + i);
        store_rounded(m_at, m, _mm512_and_si512(words, _mm512_set1_epi32(0xffff)));
        store_rounded(v_at, v, _mm512_srli_epi32(words, 16));
    }
}

/* ---- 8 bits ---- */

struct block {
    __m512 m[GROUPS][VECTORS], root[GROUPS][VECTORS]; /* root: the square root of v */
    __m256 most_m[GROUPS], most_root[GROUPS];
};

INLINE __m512 decode_m(const int8_t *at, __m512 s) {
    __m512i code = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)at)), zero = _mm512_set1_epi32(0);
    __m512i size = _mm512_abs_epi32(code);
    size = _mm512_add_epi32(size, _mm512_max_epi32(_mm512_sub_epi32(size, _mm512_set1_epi32(80)), zero));
    __mmask16 negative = _mm512_cmplt_epi32_mask(code, zero);
    return _mm512_mul_ps(s, _mm512_cvtepi32_ps(_mm512_mask_sub_epi32(size, negative, zero, size)));
}

INLINE __m256 larger_half(__m512 x) {
    __m256 high = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(x), 1));
    return _mm256_max_ps(_mm512_castps512_ps256(x), high);
}

INLINE void update_group(const struct ot_adamw *args, const struct vectors *k, enum adamw_master master,
                         int64_t i, const struct ot_state_scale *scale, struct block *block, int g) {
    __m512 s = _mm512_set1_ps(ot_bf16_to_f32(scale->m)), u = _mm512_set1_ps(ot_bf16_to_f32(scale->v));
    __m512 most_m = _mm512_set1_ps(0), most_root = _mm512_set1_ps(0);
    for (int j = 0; j < VECTORS; j++) {
        int64_t at = i + j * LANES;
        __m512 m = decode_m((const int8_t *)args->m + at, s);
        __m512i v_code = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)((const uint8_t *)args->v + at)));
        __m512 root = _mm512_mul_ps(_mm512_cvtepi32_ps(v_code), u), v = _mm512_mul_ps(root, root);
        root = update(args, k, master, at, all, &m, &v);
        block->m[g][j] = m;
        block->root[g][j] = root;
        /* If the first operand is NaN, max and min return the second one, as fmaxf and fminf do. */
        most_m = _mm512_max_ps(_mm512_abs_ps(m), most_m);
        most_root = _mm512_max_ps(root, most_root);
    }
    block->most_m[g] = larger_half(most_m);
    block->most_root[g] = larger_half(most_root);
}

/* k: 1024 times the codes that one unit of m has. random: 16 bits. */
INLINE __m128i encode_m(__m512 m, __m512 k, __m512i random) {
    __m512 size = _mm512_abs_ps(m), k2 = _mm512_mul_ps(k, _mm512_set1_ps(0.5f));
    __m512 place = _mm512_min_ps(_mm512_fmadd_ps(size, k2, _mm512_set1_ps(40960)), _mm512_set1_ps(130048));
    place = _mm512_min_ps(_mm512_mul_ps(size, k), place);
    __m512i sum = _mm512_add_epi32(_mm512_cvtps_epi32(place), _mm512_srli_epi32(random, 6));
    __m512i code = _mm512_srli_epi32(sum, 10), zero = _mm512_set1_epi32(0);
    __mmask16 negative = _mm512_cmplt_epi32_mask(_mm512_castps_si512(m), zero);
    return _mm512_cvtepi32_epi8(_mm512_mask_sub_epi32(code, negative, zero, code));
}

INLINE __m128i encode_v(__m512 root, __m512 k, __m512i random) {
    __m512 place = _mm512_min_ps(_mm512_mul_ps(root, k), _mm512_set1_ps(261120));
    random = _mm512_and_si512(random, _mm512_set1_epi32(1023));
    __m512i code = _mm512_srli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(place), random), 10);
    __mmask16 positive = _mm512_cmp_ps_mask(root, _mm512_set1_ps(0), _CMP_GT_OQ);
    return _mm512_cvtepi32_epi8(_mm512_mask_max_epi32(code, positive, code, _mm512_set1_epi32(1)));
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
        __m512 m_steps = _mm512_set1_ps(found.m_steps[g]), v_steps = _mm512_set1_ps(found.v_steps[g]);
        __m512i words = group_words(args->step->noise, args->first + i + g * OT_STATE_GROUP);
        for (int j = 0; j < VECTORS; j++) {
            int64_t at = i + g * OT_STATE_GROUP + j * LANES;
            __m512i random = half_words(words, j);
            _mm_storeu_si128((void *)((int8_t *)args->m + at), encode_m(block.m[g][j], m_steps, random));
            _mm_storeu_si128((void *)((uint8_t *)args->v + at), encode_v(block.root[g][j], v_steps, random));
        }
        scales[g] = found.stored[g];
    }
}

/* ---- entry ---- */

#include "kernels/cpu/adamw_entry.h"

void ot_adamw_avx512(const struct ot_adamw *args) {
    update_all(args, 1);
}

#include <immintrin.h>
#include <stdbool.h>

#include "kernels/cpu/adamw_kernels.h"

enum { LANES = 16 };

struct vectors {
    __m512 beta1, beta2, rest1, rest2, eps, grad_scale, bias2_sqrt, minus_decay, minus_rate;
};

static struct vectors broadcast(const struct ot_adamw_numbers *k) {
    return (struct vectors){
        .beta1 = _mm512_set1_ps(k->beta1),
        .beta2 = _mm512_set1_ps(k->beta2),
        .rest1 = _mm512_set1_ps(k->rest1),
        .rest2 = _mm512_set1_ps(k->rest2),
        .eps = _mm512_set1_ps(k->eps),
        .grad_scale = _mm512_set1_ps(k->grad_scale),
        .bias2_sqrt = _mm512_set1_ps(k->bias2_sqrt),
        .minus_decay = _mm512_set1_ps(k->minus_decay),
        .minus_rate = _mm512_set1_ps(k->minus_rate),
    };
}

/* The lanes of one vector. Whole vectors are loaded and stored without a mask: AMD's Zen 4 and 5 run
 * masked stores, and above all stores that also narrow, many times slower than plain ones. The last vector
 * has a mask, so that it neither reads nor writes beyond n. `whole` is a constant in every call, which
 * inlining removes. */
struct lanes {
    bool whole;
    __mmask16 mask;
};

static inline __m512 load(struct lanes lanes, const float *at) {
    return lanes.whole ? _mm512_loadu_ps(at) : _mm512_maskz_loadu_ps(lanes.mask, at);
}

static inline void store(struct lanes lanes, float *at, __m512 value) {
    if (lanes.whole)
        _mm512_storeu_ps(at, value);
    else
        _mm512_mask_storeu_ps(at, lanes.mask, value);
}

static inline __m256i load16(struct lanes lanes, const void *at) {
    return lanes.whole ? _mm256_loadu_si256(at) : _mm256_maskz_loadu_epi16(lanes.mask, at);
}

static inline void store16(struct lanes lanes, void *at, __m256i value) {
    if (lanes.whole)
        _mm256_storeu_si256(at, value);
    else
        _mm256_mask_storeu_epi16(at, lanes.mask, value);
}

/* kernels/adamw.h, line by line. */
static inline __m512 update(const struct vectors *k, __m512 p, __m512 grad, float *m_at, float *v_at,
                            struct lanes lanes) {
    __m512 g = _mm512_mul_ps(grad, k->grad_scale);
    __m512 m = _mm512_fmadd_ps(k->beta1, load(lanes, m_at), _mm512_mul_ps(k->rest1, g));
    __m512 v = _mm512_fmadd_ps(k->beta2, load(lanes, v_at), _mm512_mul_ps(_mm512_mul_ps(k->rest2, g), g));
    __m512 d = _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(v), k->bias2_sqrt), k->eps);
    store(lanes, m_at, m);
    store(lanes, v_at, v);
    p = _mm512_fmadd_ps(k->minus_decay, p, p);
    return _mm512_fmadd_ps(k->minus_rate, _mm512_div_ps(m, d), p);
}

/* ---- one vector of each format ---- */

static inline void vector_f32(const struct ot_adamw *args, const struct vectors *k, int64_t i,
                              struct lanes lanes) {
    float *p = (float *)args->weight + i;
    __m512 grad = load(lanes, (const float *)args->grad + i);
    store(lanes, p, update(k, load(lanes, p), grad, args->m + i, args->v + i, lanes));
}

static inline __m512i load_high(struct lanes lanes, const uint16_t *at) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(load16(lanes, at)), 16);
}

static inline void vector_split(const struct ot_adamw *args, const struct vectors *k, int64_t i,
                                struct lanes lanes) {
    uint16_t *hi = (uint16_t *)args->weight + i;
    __m512i low = _mm512_cvtepi16_epi32(load16(lanes, args->low + i));
    __m512 p = _mm512_castsi512_ps(_mm512_add_epi32(load_high(lanes, hi), low));
    __m512 grad = _mm512_castsi512_ps(load_high(lanes, (const uint16_t *)args->grad + i));
    p = update(k, p, grad, args->m + i, args->v + i, lanes);
    __m512i bits = _mm512_castps_si512(p);
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
    store16(lanes, hi, _mm512_cvtepi32_epi16(rounded));
    /* bits - (hi << 16) in 16 bits is the low half of bits, whichever way hi was rounded. */
    store16(lanes, args->low + i, _mm512_cvtepi32_epi16(bits));
}

static inline void vector_f16(const struct ot_adamw *args, const struct vectors *k, int64_t i,
                              struct lanes lanes) {
    __m512 grad = _mm512_cvtph_ps(load16(lanes, (const uint16_t *)args->grad + i));
    __m512 p = update(k, load(lanes, args->master + i), grad, args->m + i, args->v + i, lanes);
    store(lanes, args->master + i, p);
    store16(lanes, (uint16_t *)args->weight + i, _mm512_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT));
}

#define EACH_VECTOR(vector, args, k)                                                                         \
    do {                                                                                                     \
        int64_t whole = (args)->n / LANES * LANES, left = (args)->n - whole;                                 \
        for (int64_t i = 0; i < whole; i += LANES)                                                           \
            vector(args, k, i, (struct lanes){.whole = true});                                               \
        if (left)                                                                                            \
            vector(args, k, whole, (struct lanes){.mask = (__mmask16)((1u << left) - 1)});                   \
    } while (0)

void ot_adamw_avx512(const struct ot_adamw *args) {
    if (args->step->skip)
        return;
    struct ot_adamw_numbers numbers = ot_adamw_numbers(args);
    struct vectors k = broadcast(&numbers);
    if (args->dtype == OT_F32)
        EACH_VECTOR(vector_f32, args, &k);
    else if (args->dtype == OT_BF16)
        EACH_VECTOR(vector_split, args, &k);
    else
        EACH_VECTOR(vector_f16, args, &k);
}

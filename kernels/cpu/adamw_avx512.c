#include <immintrin.h>

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

/* All lanes but for the last vector, which neither reads nor writes beyond n. */
static inline __mmask16 lanes_left(int64_t left) {
    return left >= LANES ? 0xffff : (__mmask16)((1u << left) - 1);
}

/* kernels/adamw.h, line by line. */
static inline __m512 update(const struct vectors *k, __m512 p, __m512 grad, float *m_at, float *v_at,
                            __mmask16 mask) {
    __m512 g = _mm512_mul_ps(grad, k->grad_scale);
    __m512 m = _mm512_fmadd_ps(k->beta1, _mm512_maskz_loadu_ps(mask, m_at), _mm512_mul_ps(k->rest1, g));
    __m512 v = _mm512_fmadd_ps(k->beta2, _mm512_maskz_loadu_ps(mask, v_at),
                               _mm512_mul_ps(_mm512_mul_ps(k->rest2, g), g));
    __m512 d = _mm512_add_ps(_mm512_div_ps(_mm512_sqrt_ps(v), k->bias2_sqrt), k->eps);
    _mm512_mask_storeu_ps(m_at, mask, m);
    _mm512_mask_storeu_ps(v_at, mask, v);
    p = _mm512_fmadd_ps(k->minus_decay, p, p);
    return _mm512_fmadd_ps(k->minus_rate, _mm512_div_ps(m, d), p);
}

static void update_f32(const struct ot_adamw *args, const struct vectors *k) {
    float *p = args->weight;
    const float *grad = args->grad;
    for (int64_t i = 0; i < args->n; i += LANES) {
        __mmask16 mask = lanes_left(args->n - i);
        __m512 updated = update(k, _mm512_maskz_loadu_ps(mask, p + i), _mm512_maskz_loadu_ps(mask, grad + i),
                                args->m + i, args->v + i, mask);
        _mm512_mask_storeu_ps(p + i, mask, updated);
    }
}

static inline __m512i load_high(__mmask16 mask, const uint16_t *at) {
    return _mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at)), 16);
}

static void update_split(const struct ot_adamw *args, const struct vectors *k) {
    uint16_t *hi = args->weight;
    const uint16_t *grad = args->grad;
    for (int64_t i = 0; i < args->n; i += LANES) {
        __mmask16 mask = lanes_left(args->n - i);
        __m512i low = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(mask, args->low + i));
        __m512 p = _mm512_castsi512_ps(_mm512_add_epi32(load_high(mask, hi + i), low));
        p = update(k, p, _mm512_castsi512_ps(load_high(mask, grad + i)), args->m + i, args->v + i, mask);
        __m512i bits = _mm512_castps_si512(p);
        __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x8000)), 16);
        _mm512_mask_cvtepi32_storeu_epi16(hi + i, mask, rounded);
        /* bits - (hi << 16) in 16 bits is the low half of bits, whichever way hi was rounded. */
        _mm512_mask_cvtepi32_storeu_epi16(args->low + i, mask, bits);
    }
}

static void update_f16(const struct ot_adamw *args, const struct vectors *k) {
    uint16_t *weight = args->weight;
    const uint16_t *grad = args->grad;
    for (int64_t i = 0; i < args->n; i += LANES) {
        __mmask16 mask = lanes_left(args->n - i);
        __m512 g = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(mask, grad + i));
        __m512 p =
            update(k, _mm512_maskz_loadu_ps(mask, args->master + i), g, args->m + i, args->v + i, mask);
        _mm512_mask_storeu_ps(args->master + i, mask, p);
        _mm256_mask_storeu_epi16(weight + i, mask, _mm512_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT));
    }
}

void ot_adamw_avx512(const struct ot_adamw *args) {
    if (args->step->skip)
        return;
    struct ot_adamw_numbers numbers = ot_adamw_numbers(args);
    struct vectors k = broadcast(&numbers);
    if (args->dtype == OT_F32)
        update_f32(args, &k);
    else if (args->dtype == OT_BF16)
        update_split(args, &k);
    else
        update_f16(args, &k);
}

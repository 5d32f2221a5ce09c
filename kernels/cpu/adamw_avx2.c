#include <immintrin.h>

#include "kernels/adamw.h"
#include "kernels/cpu/adamw_kernels.h"

enum { LANES = 8 };

struct vectors {
    __m256 beta1, beta2, rest1, rest2, eps, grad_scale, bias2_sqrt, minus_decay, minus_rate;
};

static struct vectors broadcast(const struct ot_adamw_numbers *k) {
    return (struct vectors){
        .beta1 = _mm256_set1_ps(k->beta1),
        .beta2 = _mm256_set1_ps(k->beta2),
        .rest1 = _mm256_set1_ps(k->rest1),
        .rest2 = _mm256_set1_ps(k->rest2),
        .eps = _mm256_set1_ps(k->eps),
        .grad_scale = _mm256_set1_ps(k->grad_scale),
        .bias2_sqrt = _mm256_set1_ps(k->bias2_sqrt),
        .minus_decay = _mm256_set1_ps(k->minus_decay),
        .minus_rate = _mm256_set1_ps(k->minus_rate),
    };
}

/* kernels/adamw.h, line by line. */
static inline __m256 update(const struct vectors *k, __m256 p, __m256 grad, float *m_at, float *v_at) {
    __m256 g = _mm256_mul_ps(grad, k->grad_scale);
    __m256 m = _mm256_fmadd_ps(k->beta1, _mm256_loadu_ps(m_at), _mm256_mul_ps(k->rest1, g));
    __m256 v = _mm256_fmadd_ps(k->beta2, _mm256_loadu_ps(v_at), _mm256_mul_ps(_mm256_mul_ps(k->rest2, g), g));
    __m256 d = _mm256_add_ps(_mm256_div_ps(_mm256_sqrt_ps(v), k->bias2_sqrt), k->eps);
    _mm256_storeu_ps(m_at, m);
    _mm256_storeu_ps(v_at, v);
    p = _mm256_fmadd_ps(k->minus_decay, p, p);
    return _mm256_fmadd_ps(k->minus_rate, _mm256_div_ps(m, d), p);
}

static void update_f32(const struct ot_adamw *args, const struct vectors *k, int64_t n) {
    float *p = args->weight;
    const float *grad = args->grad;
    for (int64_t i = 0; i < n; i += LANES) {
        __m256 updated =
            update(k, _mm256_loadu_ps(p + i), _mm256_loadu_ps(grad + i), args->m + i, args->v + i);
        _mm256_storeu_ps(p + i, updated);
    }
}

static inline __m256i load_u16(const void *at) {
    return _mm256_cvtepu16_epi32(_mm_loadu_si128(at));
}

/* The low halves of eight 32-bit numbers. */
static inline void store_u16(void *at, __m256i x) {
    __m256i halves = _mm256_packus_epi32(x, x); /* within 128-bit parts */
    _mm_storeu_si128(at, _mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
}

static void update_split(const struct ot_adamw *args, const struct vectors *k, int64_t n) {
    uint16_t *hi = args->weight;
    const uint16_t *grad = args->grad;
    for (int64_t i = 0; i < n; i += LANES) {
        __m256i low = _mm256_cvtepi16_epi32(_mm_loadu_si128((const void *)(args->low + i)));
        __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(load_u16(hi + i), 16), low);
        __m256 g = _mm256_castsi256_ps(_mm256_slli_epi32(load_u16(grad + i), 16));
        __m256 p = update(k, _mm256_castsi256_ps(bits), g, args->m + i, args->v + i);
        bits = _mm256_castps_si256(p);
        store_u16(hi + i, _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x8000)), 16));
        /* bits - (hi << 16) in 16 bits is the low half of bits, whichever way hi was rounded. */
        store_u16(args->low + i, _mm256_and_si256(bits, _mm256_set1_epi32(0xffff)));
    }
}

static void update_f16(const struct ot_adamw *args, const struct vectors *k, int64_t n) {
    uint16_t *weight = args->weight;
    const uint16_t *grad = args->grad;
    for (int64_t i = 0; i < n; i += LANES) {
        __m256 g = _mm256_cvtph_ps(_mm_loadu_si128((const void *)(grad + i)));
        __m256 p = update(k, _mm256_loadu_ps(args->master + i), g, args->m + i, args->v + i);
        _mm256_storeu_ps(args->master + i, p);
        _mm_storeu_si128((void *)(weight + i), _mm256_cvtps_ph(p, _MM_FROUND_TO_NEAREST_INT));
    }
}

void ot_adamw_avx2(const struct ot_adamw *args) {
    if (args->step->skip)
        return;
    struct ot_adamw_numbers numbers = ot_adamw_numbers(args);
    struct vectors k = broadcast(&numbers);
    int64_t whole = args->n / LANES * LANES;
    if (args->dtype == OT_F32)
        update_f32(args, &k, whole);
    else if (args->dtype == OT_BF16)
        update_split(args, &k, whole);
    else
        update_f16(args, &k, whole);
    struct ot_adamw tail = ot_adamw_slice(args, whole, args->n - whole);
    ot_adamw_scalar(&tail);
}

/* The scales of eight groups at once (kernels/state_format.h), with AVX2. Private to the AdamW kernels. */
#ifndef OT_KERNELS_CPU_ADAMW_SCALES_H
#define OT_KERNELS_CPU_ADAMW_SCALES_H

#include <immintrin.h>

#include "kernels/cpu/adamw_kernels.h"

/* Groups of a block. Its groups are updated, then their scales are found, then they are encoded. So the
 * maxima and the divisions of all groups share vectors, and no group waits for its own scale. */
enum { GROUPS = 8 };

/* The scales of a block: in their stored form, and 1024 times the codes that one unit of m and sqrt(v) has.
 */
struct block_scales {
    _Alignas(32) struct ot_state_scale stored[GROUPS];
    _Alignas(32) float m_steps[GROUPS], v_steps[GROUPS];
};

/* The largest element of each of eight vectors. */
static inline __m256 maxima(const __m256 x[GROUPS]) {
    __m256 two[4], four[2];
    for (int i = 0; i < 4; i++)
        two[i] = _mm256_max_ps(_mm256_unpacklo_ps(x[2 * i], x[2 * i + 1]),
                               _mm256_unpackhi_ps(x[2 * i], x[2 * i + 1]));
    for (int i = 0; i < 2; i++)
        four[i] = _mm256_max_ps(_mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0x44),
                                _mm256_shuffle_ps(two[2 * i], two[2 * i + 1], 0xee));
    return _mm256_max_ps(_mm256_permute2f128_ps(four[0], four[1], 0x20),
                         _mm256_permute2f128_ps(four[0], four[1], 0x31));
}

/* The bits of min(x, most) / codes, rounded up to bf16. */
static inline __m256i scale_above(__m256 x, float most, float codes) {
    x = _mm256_div_ps(_mm256_min_ps(x, _mm256_set1_ps(most)), _mm256_set1_ps(codes));
    __m256i above = _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(0xffff));
    return _mm256_and_si256(above, _mm256_set1_epi32((int)0xffff0000));
}

static inline __m256 steps_of(__m256i scale) {
    __m256 size = _mm256_max_ps(_mm256_castsi256_ps(scale), _mm256_set1_ps(0x1p-100f));
    return _mm256_div_ps(_mm256_set1_ps(1024), size);
}

/* most_m, most_root: for each group a vector that has the largest |m| and the largest square root of v in one
 * of its elements, and none that is larger. */
static inline void find_scales(const __m256 most_m[GROUPS], const __m256 most_root[GROUPS],
                               struct block_scales *out) {
    __m256i s = scale_above(maxima(most_m), 0x1p126f, 174);
    __m256i u = scale_above(maxima(most_root), 0x1p64f, 255);
    __m256i both = _mm256_or_si256(_mm256_srli_epi32(s, 16), u); /* m is first, and x86 is little endian */
    _mm256_store_si256((void *)out->stored, both);
    _mm256_store_ps(out->m_steps, steps_of(s));
    _mm256_store_ps(out->v_steps, steps_of(u));
}

#endif

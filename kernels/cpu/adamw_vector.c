/* The AdamW kernel for AVX2 and for AVX-512: this file is compiled once for each, and a vector has 8 or 16
 * parameters. The instructions that only one of the two has, or that both have under other names, are in
 * adamw_vector.h. Every function matches adamw_scalar.c bit for bit. */
#include "kernels/cpu/adamw_vector.h"
#include "src/base/minmax.h"

struct numbers { /* ot_adamw_numbers, each in every lane */
    vf beta1, beta2, rest1, rest2, eps, grad_scale, per_bias2, minus_decay, minus_rate;
};

static struct numbers broadcast(const struct ot_adamw_numbers *k) {
    return (struct numbers){
        .beta1 = V(set1_ps)(k->beta1),
        .beta2 = V(set1_ps)(k->beta2),
        .rest1 = V(set1_ps)(k->rest1),
        .rest2 = V(set1_ps)(k->rest2),
        .eps = V(set1_ps)(k->eps),
        .grad_scale = V(set1_ps)(k->grad_scale),
        .per_bias2 = V(set1_ps)(k->per_bias2),
        .minus_decay = V(set1_ps)(k->minus_decay),
        .minus_rate = V(set1_ps)(k->minus_rate),
    };
}

/* ---- masters and gradients ----
 *
 * `master` is a constant in every call, and inlining removes the branches. */

INLINE vf load_f16(const void *at) {
    return V(cvtph_ps)(load_halves(at));
}

INLINE struct pair load_f32(const float *at) {
    return (struct pair){V(loadu_ps)(at), V(loadu_ps)(at + LANES)};
}

INLINE void store_f32(float *at, struct pair x) {
    V(storeu_ps)(at, x.a);
    V(storeu_ps)(at + LANES, x.b);
}

INLINE struct pair load_grads(const struct ot_adamw *args, enum adamw_master master, int64_t i) {
    const uint16_t *half = (const uint16_t *)args->grad + i;
    if (master == MASTER_F32)
        return load_f32((const float *)args->grad + i);
    if (master == MASTER_F16)
        return (struct pair){load_f16(half), load_f16(half + LANES)};
    return load_bf16_pair(half);
}

INLINE vf add_low(vf high, const int16_t *low) {
    return (vf)((vu)high + (vu)V(cvtepi16_epi32)(load_halves(low)));
}

INLINE struct pair load_masters(const struct ot_adamw *args, enum adamw_master master, int64_t i) {
    if (master == MASTER_F32 || master == MASTER_F16)
        return load_f32((master == MASTER_F32 ? (const float *)args->weight : args->master) + i);
    struct pair high = load_bf16_pair((const uint16_t *)args->weight + i);
    if (master == MASTER_NONE)
        return high;
    return (struct pair){add_low(high.a, args->low + i), add_low(high.b, args->low + i + LANES)};
}

INLINE void store_masters(const struct ot_adamw *args, enum adamw_master master, int64_t i, struct pair p) {
    uint16_t *half = (uint16_t *)args->weight + i;
    vu a = (vu)p.a, b = (vu)p.b;
    if (master == MASTER_F32) {
        store_f32((float *)args->weight + i, p);
    } else if (master == MASTER_F16) {
        store_f32(args->master + i, p);
        store_halves(half, V(cvtps_ph)(p.a, _MM_FROUND_TO_NEAREST_INT));
        store_halves(half + LANES, V(cvtps_ph)(p.b, _MM_FROUND_TO_NEAREST_INT));
    } else if (master == MASTER_NONE) {
        struct words random = half_words(args->step->weight_noise, args->first + i);
        store_rounded(half, p, random.a, random.b);
    } else {
        store_16bits(half, (a + 0x8000) >> 16, (b + 0x8000) >> 16);
        /* bits - (hi << 16), cut to 16 bits, is the low half of bits, whichever way hi was rounded. */
        store_16bits(args->low + i, a & 0xffff, b & 0xffff);
    }
}

/* Implements kernels/adamw.h line by line; returns the new p. *root: the square root of the new v. */
INLINE vf update(const struct numbers *k, vf p, vf grad, vf *m, vf *v, vf *root) {
    vf g = grad * k->grad_scale;
    *m = V(fmadd_ps)(k->beta1, *m, k->rest1 * g);
    *v = V(fmadd_ps)(k->beta2, *v, (k->rest2 * g) * g);
    *root = V(sqrt_ps)(*v);
    vf d = V(fmadd_ps)(*root, k->per_bias2, k->eps);
    p = V(fmadd_ps)(k->minus_decay, p, p);
    return V(fmadd_ps)(k->minus_rate, *m / d, p);
}

/* Updates the parameters [i, i + PAIR). Returns the square roots of the new v. */
INLINE struct pair update_pair(const struct ot_adamw *args, const struct numbers *k, enum adamw_master master,
                               int64_t i, struct pair *m, struct pair *v) {
    struct pair p = load_masters(args, master, i), grads = load_grads(args, master, i), roots;
    p.a = update(k, p.a, grads.a, &m->a, &v->a, &roots.a);
    p.b = update(k, p.b, grads.b, &m->b, &v->b, &roots.b);
    store_masters(args, master, i, p);
    return roots;
}

/* ---- state in fp32 and 16 bits ---- */

INLINE void update_f32(const struct ot_adamw *args, const struct numbers *k, enum adamw_master master) {
    for (int64_t i = 0; i < args->n; i += PAIR) {
        float *m_at = (float *)args->m + i, *v_at = (float *)args->v + i;
        struct pair m = load_f32(m_at), v = load_f32(v_at);
        update_pair(args, k, master, i, &m, &v);
        store_f32(m_at, m);
        store_f32(v_at, v);
    }
}

INLINE void update_16bit(const struct ot_adamw *args, const struct numbers *k, enum adamw_master master) {
    for (int64_t i = 0; i < args->n; i += PAIR) {
        uint16_t *m_at = (uint16_t *)args->m + i, *v_at = (uint16_t *)args->v + i;
        struct pair m = load_bf16_pair(m_at), v = load_bf16_pair(v_at);
        update_pair(args, k, master, i, &m, &v);
        struct words words = whole_words(args->step->noise, args->first + i);
        store_rounded(m_at, m, words.a & 0xffff, words.b & 0xffff);
        store_rounded(v_at, v, words.a >> 16, words.b >> 16);
    }
}

/* ---- state in 8 bits ----
 *
 * The groups of a block are updated, then their scales are found, then they are encoded. So the maxima and
 * the divisions of all groups share vectors, and no group waits for its own scale. */

struct block {
    struct pair m[GROUPS][PAIRS], root[GROUPS][PAIRS]; /* root: the square root of v */
    __m256 most_m[GROUPS], most_root[GROUPS];          /* one of the elements is the group's largest */
};

INLINE struct pair decode_m(const int8_t *at, vf s) {
    vhalf code = load_halves(at), size = HALF(abs_epi8)(code);
    size = HALF(add_epi8)(size, HALF(subs_epu8)(size, HALF(set1_epi8)(80)));
    vs negative = (vs)V(cvtepi8_epi16)(code) >> 15;
    vw value = (vw)(((vs)V(cvtepu8_epi16)(size) ^ negative) - negative);
    return (struct pair){V(cvtepi32_ps)(V(cvtepi16_epi32)(low_half(value))) * s,
                         V(cvtepi32_ps)(V(cvtepi16_epi32)(high_half(value))) * s};
}

INLINE vf decode_root(const uint8_t *at, vf u) {
    return V(cvtepi32_ps)(V(cvtepu8_epi32)(load_bytes(at))) * u;
}

INLINE void update_group(const struct ot_adamw *args, const struct numbers *k, enum adamw_master master,
                         int64_t i, const struct ot_state_scale *scale, struct block *block, int g) {
    vf s = V(set1_ps)(ot_bf16_to_f32(scale->m)), u = V(set1_ps)(ot_bf16_to_f32(scale->v));
    vf most_m = {0}, most_root = {0};
    for (int q = 0; q < PAIRS; q++) {
        int64_t at = i + q * PAIR;
        const uint8_t *v_at = (const uint8_t *)args->v + at;
        struct pair m = decode_m((const int8_t *)args->m + at, s);
        struct pair root = {decode_root(v_at, u), decode_root(v_at + LANES, u)};
        struct pair v = {root.a * root.a, root.b * root.b};
        root = update_pair(args, k, master, at, &m, &v);
        block->m[g][q] = m;
        block->root[g][q] = root;
        /* If the first operand is NaN, max and min return the second one, as fmaxf and fminf do. */
        most_m = V(max_ps)(absolute(m.a), V(max_ps)(absolute(m.b), most_m));
        most_root = V(max_ps)(root.a, V(max_ps)(root.b, most_root));
    }
    block->most_m[g] = larger_half(most_m);
    block->most_root[g] = larger_half(most_root);
}

/* (round(place) + random) / 1024. A place that is too large or NaN becomes 2^31, and so a large code, which
 * packing cuts to 127 or 255. */
INLINE vu code_of(vf place, vu random) {
    return ((vu)V(cvtps_epi32)(place) + random) >> 10;
}

/* k: 1024 times the codes that one unit of m has. random: 16 bits. */
INLINE vu code_of_m(vf m, vf k, vu random) {
    vf size = absolute(m), line = V(fmadd_ps)(size, k * 0.5f, V(set1_ps)(40960));
    return code_of(V(min_ps)(size * k, line), random >> 6);
}

INLINE void encode_group(const struct ot_adamw *args, int64_t i, const struct block *block, int g,
                         float m_steps, float v_steps) {
    vf m_k = V(set1_ps)(m_steps), v_k = V(set1_ps)(v_steps);
    struct words m_codes[PAIRS], v_codes[PAIRS], m_bits[PAIRS], v_bits[PAIRS];
    for (int q = 0; q < PAIRS; q++) {
        struct words random = half_words(args->step->noise, args->first + i + q * PAIR);
        struct pair m = block->m[g][q], root = block->root[g][q];
        m_codes[q] = (struct words){code_of_m(m.a, m_k, random.a), code_of_m(m.b, m_k, random.b)};
        v_codes[q].a = code_of(root.a * v_k, random.a & 1023);
        v_codes[q].b = code_of(root.b * v_k, random.b & 1023);
        m_bits[q] = (struct words){(vu)m.a, (vu)m.b};
        v_bits[q] = (struct words){(vu)root.a, (vu)root.b};
    }
    /* Packing the bits of a number keeps its sign, and whether it is 0. 0 has code 0. */
    store_packed((int8_t *)args->m + i, _mm256_sign_epi8(pack_signed(m_codes), pack_signed(m_bits)));
    /* At least 1 if v > 0; v is never -0. */
    __m256i least = _mm256_min_epu8(pack_signed(v_bits), _mm256_set1_epi8(1));
    store_packed((uint8_t *)args->v + i, _mm256_max_epu8(pack_unsigned(v_codes), least));
}

/* Updates `groups` groups, at most GROUPS, from parameter i on. */
INLINE void update_block(const struct ot_adamw *args, const struct numbers *k, enum adamw_master master,
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

INLINE void update_8bit(const struct ot_adamw *args, const struct numbers *k, enum adamw_master master) {
    enum { BLOCK = GROUPS * OT_STATE_GROUP };
    for (int64_t i = 0; i < args->n; i += BLOCK)
        update_block(args, k, master, i, (int)(ot_min(args->n - i, BLOCK) / OT_STATE_GROUP),
                     args->scales + i / OT_STATE_GROUP);
}

/* ---- entry: the code for the state's format and the master, both constants in every call ---- */

INLINE void update_format(const struct ot_adamw *args, const struct numbers *k, enum adamw_master master) {
    if (args->state == OT_STATE_F32)
        update_f32(args, k, master);
    else if (args->state == OT_STATE_16BIT)
        update_16bit(args, k, master);
    else
        update_8bit(args, k, master);
}

void OT_ADAMW(const struct ot_adamw *args); /* as in adamw_kernels.h, or the emulated one of the tests */

void OT_ADAMW(const struct ot_adamw *args) {
    if (args->step->skip)
        return;
    struct ot_adamw_cut cut = ot_adamw_cut(args, ot_adamw_rounds(args) ? OT_STATE_GROUP : PAIR);
    struct ot_adamw_numbers numbers = ot_adamw_numbers(args);
    struct numbers k = broadcast(&numbers);
    ot_adamw_scalar(&cut.before);
    if (args->dtype == OT_F32)
        update_format(&cut.body, &k, MASTER_F32);
    else if (args->dtype == OT_F16)
        update_format(&cut.body, &k, MASTER_F16);
    else if (args->masters == OT_MASTERS_NONE)
        update_format(&cut.body, &k, MASTER_NONE);
    else
        update_format(&cut.body, &k, MASTER_SPLIT);
    ot_adamw_scalar(&cut.after);
}

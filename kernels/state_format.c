/* The reference of the state formats: kernels/state_format.h operation by operation. */
#include "kernels/state_format.h"

#include <math.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/random.h"

const char *ot_state_format_name(enum ot_state_format format) {
    static const char *const names[] = {"fp32", "16bit", "8bit"};
    return names[format];
}

const char *ot_masters_name(enum ot_masters masters) {
    return masters == OT_MASTERS_NONE ? "none" : "fp32";
}

struct ot_state_noise ot_state_noise(uint64_t seed, uint64_t stream) {
    uint32_t words[4];
    ot_random_block(seed, stream, 0, words);
    return (struct ot_state_noise){words[0], words[1]};
}

uint16_t ot_state_round_bf16(float value, uint32_t random) {
    uint32_t bits = ot_f32_bits(value);
    return (uint16_t)((bits + ((bits & 0x7fffffffu) < 0x7f7f0000u ? random : 0)) >> 16);
}

/* ---- 8 bits ---- */

static uint16_t bf16_above(float value) { /* value: 0 to 2^126 */
    return (uint16_t)((ot_f32_bits(value) + 0xffffu) >> 16);
}

static int size_of_code(int code) {
    return code + (code > 80 ? code - 80 : 0);
}

/* Codes a step. */
static float steps_of(uint16_t scale) {
    return 1024.0f / fmaxf(ot_bf16_to_f32(scale), 0x1p-100f);
}

static int32_t place_of_m(float size, float k) {
    float place = fminf(fmaf(size, k * 0.5f, 40960.0f), 130048.0f);
    return (int32_t)rintf(fminf(size * k, place));
}

void ot_state_decode_group(const int8_t *m, const uint8_t *v, const struct ot_state_scale *scale,
                           struct ot_state_group *out) {
    float s = ot_bf16_to_f32(scale->m), u = ot_bf16_to_f32(scale->v);
    for (int i = 0; i < OT_STATE_GROUP; i++) {
        float root = (float)v[i] * u;
        out->m[i] = s * (float)(m[i] < 0 ? -size_of_code(-m[i]) : size_of_code(m[i]));
        out->v[i] = root * root;
    }
}

void ot_state_encode_group(const struct ot_state_group *group, const uint32_t *halves, int8_t *m, uint8_t *v,
                           struct ot_state_scale *scale) {
    float most_m = 0, most_root = 0;
    for (int i = 0; i < OT_STATE_GROUP; i++) {
        most_m = fmaxf(most_m, fabsf(group->m[i]));
        most_root = fmaxf(most_root, sqrtf(group->v[i]));
    }
    scale->m = bf16_above(fminf(most_m, 0x1p126f) / 174.0f);
    scale->v = bf16_above(fminf(most_root, 0x1p64f) / 255.0f);
    float m_steps = steps_of(scale->m), v_steps = steps_of(scale->v);
    for (int i = 0; i < OT_STATE_GROUP; i++) {
        int32_t code = (place_of_m(fabsf(group->m[i]), m_steps) + (int32_t)(halves[i] >> 6)) >> 10;
        m[i] = (int8_t)(signbit(group->m[i]) ? -code : code);
        float root = sqrtf(group->v[i]);
        code = ((int32_t)rintf(fminf(root * v_steps, 261120.0f)) + (int32_t)(halves[i] & 1023)) >> 10;
        v[i] = (uint8_t)(code > 0 ? code : root > 0);
    }
}

/* ---- from format to format ---- */

static void load(struct ot_state_view from, int64_t at, struct ot_state_group *group) {
    if (from.format == OT_STATE_8BIT) {
        ot_state_decode_group((const int8_t *)from.m + at, (const uint8_t *)from.v + at,
                              from.scales + at / OT_STATE_GROUP, group);
        return;
    }
    for (int i = 0; i < OT_STATE_GROUP; i++) {
        enum ot_dtype dtype = from.format == OT_STATE_16BIT ? OT_BF16 : OT_F32;
        group->m[i] = ot_dtype_read(dtype, from.m, at + i);
        group->v[i] = ot_dtype_read(dtype, from.v, at + i);
    }
}

/* index: the place of parameter `at` in its slab. */
static void store(const struct ot_state_arrays *to, int64_t at, const struct ot_state_group *group,
                  struct ot_state_noise noise, int64_t index) {
    uint32_t random[OT_STATE_GROUP];
    for (int i = 0; i < OT_STATE_GROUP; i++)
        random[i] = to->format == OT_STATE_8BIT ? ot_state_half_word(noise, index + i)
                                                : ot_state_word(noise, index + i);
    if (to->format == OT_STATE_8BIT) {
        ot_state_encode_group(group, random, (int8_t *)to->m + at, (uint8_t *)to->v + at,
                              to->scales + at / OT_STATE_GROUP);
    } else if (to->format == OT_STATE_16BIT) {
        for (int i = 0; i < OT_STATE_GROUP; i++) {
            ((uint16_t *)to->m)[at + i] = ot_state_round_bf16(group->m[i], random[i] & 0xffffu);
            ((uint16_t *)to->v)[at + i] = ot_state_round_bf16(group->v[i], random[i] >> 16);
        }
    } else {
        memcpy((float *)to->m + at, group->m, sizeof group->m);
        memcpy((float *)to->v + at, group->v, sizeof group->v);
    }
}

void ot_state_convert(struct ot_state_view from, const struct ot_state_arrays *to, int64_t first, int64_t n,
                      uint64_t seed, uint64_t stream) {
    if (from.format == OT_STATE_8BIT && to->format == OT_STATE_8BIT) {
        memcpy(to->m, from.m, (size_t)n);
        memcpy(to->v, from.v, (size_t)n);
        memcpy(to->scales, from.scales, (size_t)(n / OT_STATE_GROUP) * sizeof *to->scales);
        return;
    }
    struct ot_state_noise noise = ot_state_noise(seed, stream);
    for (int64_t at = 0; at < n; at += OT_STATE_GROUP) {
        struct ot_state_group group;
        load(from, at, &group);
        store(to, at, &group, noise, first + at);
    }
}

/* AdamW one parameter at a time, without vectors. */
#include <math.h>

#include "kernels/cpu/adamw_kernels.h"

/* The reference kernel: every other kernel must match it bit for bit. fmaf rounds once, also on CPUs without
 * FMA. */
static float update(const struct ot_adamw_numbers *k, float p, float grad, float *m, float *v) {
    float g = grad * k->grad_scale;
    *m = fmaf(k->beta1, *m, k->rest1 * g);
    *v = fmaf(k->beta2, *v, (k->rest2 * g) * g);
    float d = fmaf(sqrtf(*v), k->per_bias2, k->eps);
    p = fmaf(k->minus_decay, p, p);
    return fmaf(k->minus_rate, *m / d, p);
}

/* Updates parameter i, whose moments are *m and *v. */
static void update_param(const struct ot_adamw *args, const struct ot_adamw_numbers *k, int64_t i, float *m,
                         float *v) {
    float grad = ot_dtype_read(args->dtype, args->grad, i);
    if (args->dtype == OT_F32) {
        float *p = (float *)args->weight + i;
        *p = update(k, *p, grad, m, v);
    } else if (args->masters == OT_MASTERS_NONE) {
        uint16_t *weight = (uint16_t *)args->weight + i;
        uint32_t random = ot_state_half_word(args->step->weight_noise, args->first + i);
        *weight = ot_state_round_bf16(update(k, ot_bf16_to_f32(*weight), grad, m, v), random);
    } else if (args->dtype == OT_BF16) {
        uint16_t *hi = (uint16_t *)args->weight + i;
        ot_split_f32(update(k, ot_join_f32(*hi, args->low[i]), grad, m, v), hi, &args->low[i]);
    } else {
        args->master[i] = update(k, args->master[i], grad, m, v);
        ot_dtype_write(OT_F16, args->weight, i, args->master[i]);
    }
}

static void update_16bit(const struct ot_adamw *args, const struct ot_adamw_numbers *k) {
    uint16_t *m_at = args->m, *v_at = args->v;
    for (int64_t i = 0; i < args->n; i++) {
        uint32_t word = ot_state_word(args->step->noise, args->first + i);
        float m = ot_bf16_to_f32(m_at[i]), v = ot_bf16_to_f32(v_at[i]);
        update_param(args, k, i, &m, &v);
        m_at[i] = ot_state_round_bf16(m, word & 0xffffu);
        v_at[i] = ot_state_round_bf16(v, word >> 16);
    }
}

/* Decodes and encodes whole groups, and updates those of their parameters that lie in [0, n). */
static void update_8bit(const struct ot_adamw *args, const struct ot_adamw_numbers *k) {
    for (int64_t at = -(args->first % OT_STATE_GROUP), g = 0; at < args->n; at += OT_STATE_GROUP, g++) {
        int8_t *m = (int8_t *)args->m + at;
        uint8_t *v = (uint8_t *)args->v + at;
        struct ot_state_group group;
        uint32_t halves[OT_STATE_GROUP];
        for (int i = 0; i < OT_STATE_GROUP; i++)
            halves[i] = ot_state_half_word(args->step->noise, args->first + at + i);
        ot_state_decode_group(m, v, &args->scales[g], &group);
        for (int i = 0; i < OT_STATE_GROUP; i++)
            if (at + i >= 0 && at + i < args->n)
                update_param(args, k, at + i, &group.m[i], &group.v[i]);
        ot_state_encode_group(&group, halves, m, v, &args->scales[g]);
    }
}

void ot_adamw_scalar(const struct ot_adamw *args) {
    if (args->step->skip || args->n == 0)
        return;
    struct ot_adamw_numbers k = ot_adamw_numbers(args);
    if (args->state == OT_STATE_16BIT)
        update_16bit(args, &k);
    else if (args->state == OT_STATE_8BIT)
        update_8bit(args, &k);
    else
        for (int64_t i = 0; i < args->n; i++)
            update_param(args, &k, i, (float *)args->m + i, (float *)args->v + i);
}

#include <math.h>

#include "kernels/cpu/adamw_kernels.h"

/* The reference: what every other kernel must match bit for bit. fmaf is one rounding also where the CPU has
 * no FMA. */
static float update(const struct ot_adamw_numbers *k, float p, float grad, float *m, float *v) {
    float g = grad * k->grad_scale;
    *m = fmaf(k->beta1, *m, k->rest1 * g);
    *v = fmaf(k->beta2, *v, (k->rest2 * g) * g);
    float d = sqrtf(*v) / k->bias2_sqrt + k->eps;
    p = fmaf(k->minus_decay, p, p);
    return fmaf(k->minus_rate, *m / d, p);
}

static void update_f32(const struct ot_adamw *args, const struct ot_adamw_numbers *k) {
    float *p = args->weight;
    const float *grad = args->grad;
    for (int64_t i = 0; i < args->n; i++)
        p[i] = update(k, p[i], grad[i], &args->m[i], &args->v[i]);
}

static void update_split(const struct ot_adamw *args, const struct ot_adamw_numbers *k) {
    uint16_t *hi = args->weight;
    const uint16_t *grad = args->grad;
    for (int64_t i = 0; i < args->n; i++) {
        float p = ot_join_f32(hi[i], args->low[i]);
        p = update(k, p, ot_bf16_to_f32(grad[i]), &args->m[i], &args->v[i]);
        ot_split_f32(p, &hi[i], &args->low[i]);
    }
}

static void update_f16(const struct ot_adamw *args, const struct ot_adamw_numbers *k) {
    uint16_t *weight = args->weight;
    const uint16_t *grad = args->grad;
    for (int64_t i = 0; i < args->n; i++) {
        args->master[i] = update(k, args->master[i], ot_f16_to_f32(grad[i]), &args->m[i], &args->v[i]);
        weight[i] = ot_f16_from_f32(args->master[i]);
    }
}

void ot_adamw_scalar(const struct ot_adamw *args) {
    if (args->step->skip)
        return;
    struct ot_adamw_numbers k = ot_adamw_numbers(args);
    if (args->dtype == OT_F32)
        update_f32(args, &k);
    else if (args->dtype == OT_BF16)
        update_split(args, &k);
    else
        update_f16(args, &k);
}

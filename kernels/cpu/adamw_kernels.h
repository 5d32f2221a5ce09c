/* Declarations that the AdamW kernels for CPUs share: the kernels, and the numbers that all of them start
 * from. */
#ifndef OT_KERNELS_CPU_ADAMW_KERNELS_H
#define OT_KERNELS_CPU_ADAMW_KERNELS_H

#include "kernels/ops.h"

/* The numbers of a step in the form that the inner loops need. Each fp32 operation here is part of the
 * contract in kernels/adamw.h. */
struct ot_adamw_numbers {
    float beta1, beta2, rest1, rest2; /* rest1, rest2: 1 - beta1, 1 - beta2 */
    float eps, grad_scale;
    float per_bias2;   /* 1 / bias2_sqrt */
    float minus_decay; /* -(lr * weight_decay); 0 if the parameters do not decay */
    float minus_rate;  /* -(lr / bias1) */
};

static inline struct ot_adamw_numbers ot_adamw_numbers(const struct ot_adamw *args) {
    const struct ot_adamw_step *step = args->step;
    float lr = args->rate != 0 ? step->lr * args->rate : step->lr;
    return (struct ot_adamw_numbers){
        .beta1 = step->beta1,
        .beta2 = step->beta2,
        .rest1 = 1.0f - step->beta1,
        .rest2 = 1.0f - step->beta2,
        .eps = step->eps,
        .grad_scale = step->grad_scale,
        .per_bias2 = 1.0f / step->bias2_sqrt,
        .minus_decay = args->decay ? -(lr * step->weight_decay) : 0.0f,
        .minus_rate = -(lr / step->bias1),
    };
}

/* The form of a parameter's fp32 master. The vector kernels are compiled for each form. */
enum adamw_master {
    MASTER_F32,   /* the weight is the master */
    MASTER_SPLIT, /* bf16: the weight and a remainder */
    MASTER_F16,   /* a separate array */
    MASTER_NONE   /* bf16 */
};

/* True if an update rounds stochastically: then it depends on the places of the parameters. */
static inline bool ot_adamw_rounds(const struct ot_adamw *args) {
    return args->state != OT_STATE_F32 || args->masters == OT_MASTERS_NONE;
}

/* Cuts an update for a kernel that works on whole units of parameters; if it rounds, on whole groups. The
 * scalar kernel updates the parameters before and after the body. */
struct ot_adamw_cut {
    struct ot_adamw before, body, after;
};
struct ot_adamw_cut ot_adamw_cut(const struct ot_adamw *args, int64_t unit);

void ot_adamw_scalar(const struct ot_adamw *args);
void ot_adamw_avx2(const struct ot_adamw *args);   /* needs AVX2, FMA and F16C */
void ot_adamw_avx512(const struct ot_adamw *args); /* needs AVX-512 F, BW and VL */

#endif

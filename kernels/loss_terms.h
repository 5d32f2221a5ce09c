/* The loss of a row from sums over its logits, with label smoothing and z-loss (struct ot_cross_entropy).
 * Both devices compile these formulas.
 */
#ifndef OT_KERNELS_LOSS_TERMS_H
#define OT_KERNELS_LOSS_TERMS_H

#include <math.h>

#include "kernels/ops.h"

/* Sums over a row: of exp(logit - max), and of the target's logit less each logit. */
struct loss_sums {
    float exps, distances;
};

/* The derivative of the loss by logit j is by_z p[j] - target for the target, and by_z p[j] - other for the
 * others, where p is the softmax: by_z is the derivative by z. */
struct loss_terms {
    float loss, by_z, target, other;
};

/* max, hit: the largest logit, and that of the target. Without regularisers: exactly 1, 1 and 0. */
static OT_OPS_INLINE struct loss_terms loss_terms(const struct ot_cross_entropy *op, float max, float hit,
                                                  struct loss_sums sums) {
    float log_sum = logf(sums.exps), part = op->smoothing / (float)op->vocab;
    struct loss_terms t = {log_sum + (max - hit), 1, 1.0f - op->smoothing + part, part};
    if (op->smoothing != 0)
        t.loss += op->smoothing * (sums.distances / (float)op->vocab);
    if (op->z_weight != 0) {
        float z = log_sum + max;
        t.loss += op->z_weight * z * z;
        t.by_z += 2 * op->z_weight * z;
    }
    return t;
}

#endif

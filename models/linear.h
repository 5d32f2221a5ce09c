/* A linear layer y = x W^T + b as three GEMMs, on the lane of a block's run. W is [out, in]; x, y and their
 * gradients are [rows, in] and [rows, out] without gaps. Private to models/.
 */
#ifndef OT_MODELS_LINEAR_H
#define OT_MODELS_LINEAR_H

#include "offload/block.h"

struct ot_linear {
    int64_t rows, in, out;
    const void *weight, *bias; /* bias NULL: none */
    float *dweight, *dbias;    /* backward; accumulated into */
};

/* y_dtype: the run's dtype, or OT_F32 (logits). */
void ot_linear_forward(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                       enum ot_dtype y_dtype, void *y);
/* Gradients of weight and bias from dy and x. ld_dy: elements between rows of dy. */
void ot_linear_backward_params(const struct ot_block_run *run, const struct ot_linear *linear, const void *x,
                               const void *dy, int64_t ld_dy);
/* Overwrites dx. */
void ot_linear_backward_input(const struct ot_block_run *run, const struct ot_linear *linear, const void *dy,
                              int64_t ld_dy, void *dx);

#endif

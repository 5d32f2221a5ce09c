/* A norm of rows of `hidden` elements, of the kind that the model has. Private to models/. */
#ifndef OT_MODELS_NORM_H
#define OT_MODELS_NORM_H

#include "models/decoder.h"

/* Statistics of the rows of a norm's input, [rows]. mean: only LAYER has it. */
struct ot_norm_memory {
    float *mean, *rstd;
};

/* y = the norm of x, [rows, hidden]. */
void ot_model_norm(const struct ot_model *model, const struct ot_block_run *run,
                   const struct ot_norm_layout *at, int64_t rows, const void *x, void *y,
                   struct ot_norm_memory memory);
/* dx = the gradient of x through the norm (+ addend, if it is not NULL), [rows, hidden]. */
void ot_model_norm_backward(const struct ot_model *model, const struct ot_block_run *run,
                            const struct ot_norm_layout *at, int64_t rows, const void *x,
                            struct ot_norm_memory memory, const void *dy, const void *addend, void *dx);

#endif

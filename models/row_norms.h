/* The norms of the rows of a weight that streams, for DoRA's magnitudes (lora.h): of the weight as the run
 * computes with it. So a frozen matrix in a base type (encoded.h) is encoded and decoded first. Rounding to
 * the device's dtype is left out: a norm in fp32 is nearer to what PEFT computes in its own dtype than that
 * rounding is. */
#ifndef OT_MODELS_ROW_NORMS_H
#define OT_MODELS_ROW_NORMS_H

#include "models/model.h"

/* Gets values [first, first + n) of a weight, exactly. first is a multiple of 256, and so is n, or they end
 * with the weight. */
typedef int (*ot_weight_source)(void *context, const struct ot_tensor *weight, int64_t first, int64_t n,
                                float *values);

/* norms[rows] of a matrix of the model. Some rows at a time are in memory, and of an encoded matrix also its
 * encoded bytes. Errors: OT_E_BUDGET, OT_E_INPUT (a value that is encoded is not finite), and those of the
 * source. */
int ot_model_row_norms(const struct ot_model *model, const struct ot_tensor *weight, ot_weight_source source,
                       void *context, float *norms);

#endif

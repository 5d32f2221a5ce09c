/* The row norms of a streamed weight, for DoRA's magnitudes (lora.h). A run computes with decoded weights, so
 * a frozen matrix in a base type (encoded.h) is encoded and decoded first. Weights are not rounded to the
 * device's dtype: norms in fp32 are nearer to PEFT's. */
#ifndef OT_MODELS_ROW_NORMS_H
#define OT_MODELS_ROW_NORMS_H

#include "models/model.h"

/* Gets values [first, first + n) of a weight, exactly. first is a multiple of 256, and so is n, or they end
 * with the weight. */
typedef int (*ot_weight_source)(void *context, const struct ot_tensor *weight, int64_t first, int64_t n,
                                float *values);

/* Computes norms[rows] of a matrix of the model. Memory holds a few rows at a time, and all encoded bytes of
 * an encoded matrix. Errors: OT_E_BUDGET, OT_E_INPUT (a value that is encoded is not finite), and those of
 * the source. */
int ot_model_row_norms(const struct ot_model *model, const struct ot_tensor *weight, ot_weight_source source,
                       void *context, float *norms);

#endif

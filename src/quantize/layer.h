/* The matrices of one layer: their codes, and the tensors that the checkpoint stores
 * (src/files/quant_encode.h).
 *
 * A UNIT is the matrices that multiply the same input. They are adjacent in the slab, so GPTQ takes them as
 * one matrix; its rows do not depend on each other. Each expert has units of its own, as it has rows of its
 * own. nf4 and int8 take each matrix by itself, and MXFP4 the matrices of all experts as one. The rows of a
 * fused q, k and v are stored in the order of files (ot_tensor.is_fused).
 */
#ifndef OT_QUANTIZE_LAYER_H
#define OT_QUANTIZE_LAYER_H

#include "models/linear_inputs.h"
#include "src/files/quant_encode.h"
#include "src/quantize/gptq.h"

struct ot_pool;

enum { OT_UNIT_MAPS = 3 };

struct ot_quant_map {
    const struct ot_tensor *tensor;
    /* The square error of its outputs on the rows of calibration, and the outputs' sum of squares; for a
     * matrix that was only rounded, those of its weights. */
    double error, power;
    char *encoded; /* nf4, int8: as kernels/weight_format.h */
};

struct ot_quant_unit {
    enum ot_layer_input input;
    int64_t expert;            /* -1: it is not one expert's */
    int64_t first, rows, cols; /* in the layer's slab */
    int n_maps;
    struct ot_quant_map maps[OT_UNIT_MAPS];
    /* GPTQ */
    bool rounded; /* to nearest, without calibration */
    uint8_t *codes, *zeros;
    float *scales;
    int32_t *index;
};

struct ot_quant_layer {
    const struct ot_quant_format *format;
    const struct ot_model_config *config; /* set by begin */
    struct ot_pool *pool;
    struct ot_quant_unit *units; /* in the order of forward */
    int n_units;
    void *tensors[OT_QUANT_TENSORS]; /* of the matrix that was asked for last */
};

/* Finds the units of a slab that the format takes. Error OT_E_BUDGET. */
int ot_quant_layer_begin(const struct ot_model *model, int slab, struct ot_quant_layer *layer);
void ot_quant_layer_free(struct ot_quant_layer *layer); /* units and codes; begin follows, or nothing */
/* The most memory that the codes and tensors of a layer take. */
int64_t ot_quant_layer_bytes(const struct ot_model *model, const struct ot_quant_format *format);

/* The statistics of a unit's input for GPTQ. */
struct ot_quant_input {
    const float *hessian; /* NULL: too few rows, so the unit is rounded to nearest */
    int64_t rows;         /* of calibration */
};

/* Quantizes a unit. weights: [rows, cols] of the unit; on return they are the values of the codes.
 * input: for GPTQ; else NULL. Errors: as ot_gptq_run, with the matrices' names. */
int ot_quant_unit_run(struct ot_quant_layer *layer, int unit, const struct ot_quant_input *input,
                      float *weights);
/* Points tensors[i] to the bytes of tensor i of a matrix of the layer, valid until the next call. Errors:
 * OT_E_BUDGET. */
int ot_quant_layer_tensors(struct ot_quant_layer *layer, const struct ot_tensor *tensor,
                           const void *tensors[OT_QUANT_TENSORS]);

#endif

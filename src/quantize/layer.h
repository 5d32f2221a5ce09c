/* The matrices of one layer: their codes, and the tensors that the checkpoint stores (src/files/pack.h).
 *
 * A UNIT is the matrices that multiply the same input. They are adjacent in the slab, so GPTQ takes them as
 * one matrix; its rows do not depend on each other. nf4 and int8 take each matrix by itself. The rows of a
 * fused q, k and v are stored in the order of files (ot_tensor.is_fused).
 */
#ifndef OT_QUANTIZE_LAYER_H
#define OT_QUANTIZE_LAYER_H

#include "models/inputs.h"
#include "src/files/pack.h"
#include "src/quantize/gptq.h"

struct ot_pool;

enum { OT_UNIT_MAPS = 3, OT_LAYER_MAPS = 7 };

struct ot_quant_map {
    const struct ot_tensor *tensor;
    double error;  /* of its outputs (GPTQ) or of its weights, relative */
    char *encoded; /* nf4, int8: as kernels/weight_format.h */
};

struct ot_quant_unit {
    int64_t first, rows, cols; /* in the layer's slab */
    int n_maps;
    struct ot_quant_map maps[OT_UNIT_MAPS];
    /* GPTQ */
    uint8_t *codes, *zeros;
    float *scales;
    int32_t *index;
};

struct ot_quant_layer {
    const struct ot_pack_format *format;
    const struct ot_model_config *config; /* set by begin */
    struct ot_pool *pool;
    struct ot_quant_unit units[OT_LAYER_INPUTS];
    void *parts[OT_PACK_PARTS]; /* of the matrix that was asked for last */
};

/* Finds the units of a slab. */
void ot_quant_layer_begin(const struct ot_model *model, int slab, struct ot_quant_layer *layer);
void ot_quant_layer_free(struct ot_quant_layer *layer); /* the codes; begin follows, or nothing */
/* The most memory that the codes and parts of a layer take. */
int64_t ot_quant_layer_bytes(const struct ot_model *model, const struct ot_pack_format *format);

/* Quantizes a unit. weights: [rows, cols] of the unit; on return they are the values of the codes.
 * hessian: of its input, for GPTQ; else NULL. Errors: as ot_gptq_run, with the matrices' names. */
int ot_quant_unit_run(struct ot_quant_layer *layer, enum ot_layer_input input, const float *hessian,
                      float *weights);
/* Points parts[i] to the bytes of part i of a matrix of the layer, valid until the next call. Errors:
 * OT_E_BUDGET. */
int ot_quant_layer_parts(struct ot_quant_layer *layer, const struct ot_tensor *tensor,
                         const void *parts[OT_PACK_PARTS]);

#endif

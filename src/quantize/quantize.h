/* Makes a quantised checkpoint of a model: the command `quantize`.
 *
 * The model is saved tensor by tensor (src/files/model_dir.h). Before the first matrix of a layer is written,
 * the layer is quantised: for each unit (layer.h), in the order of forward, the inputs of the unit in the
 * calibration rows make the Hessian, GPTQ chooses the codes, and the codes' values replace the weights on the
 * device. So each unit is calibrated on what it will see (the option true_sequential of AutoGPTQ). Then the
 * calibration rows pass through the quantised layer. nf4, int8 and MXFP4 need no calibration.
 *
 * EXPERTS. Each expert is calibrated on the tokens that the router, which stays plain, sends to it. An expert
 * that gets less than a share of them (format.least_share) is rounded to nearest, as GPTQModel does.
 *
 * Held-out rows pass through each layer twice: with the model's weights, and in a second copy with those of
 * the checkpoint. At the head they give the losses before and after. A model is read once.
 *
 * Memory: on the device one block, one sequence and a Hessian; of experts, as many Hessians as take the bytes
 * of a block (stream.h). On the host, the activations of all rows, one layer in fp32, its codes, and for the
 * largest unit 12 bytes for each element of its Hessian.
 */
#ifndef OT_QUANTIZE_QUANTIZE_H
#define OT_QUANTIZE_QUANTIZE_H

#include <stdint.h>

#include "src/files/quant_encode.h"
#include "src/quantize/layer.h"
#include "src/quantize/stream.h"
#include "src/session/open.h"

/* ---- stage times ---- */

/* The stages of a quantization: their time, and the largest memory of the process while they ran. Exactly one
 * stage runs at any time, so the times add up to the time of the whole. */

enum ot_stage {
    OT_STAGE_READ,    /* rows and weights */
    OT_STAGE_FORWARD, /* of layers and head, with the copies to and from the device */
    OT_STAGE_HESSIAN, /* the products x x^T, and their copy to the host */
    OT_STAGE_SOLVE,   /* choosing the codes */
    OT_STAGE_WRITE,
    OT_STAGES
};

struct ot_stage_times {
    enum ot_stage now;
    double began; /* the present stage */
    double seconds[OT_STAGES];
    int64_t peak_bytes[OT_STAGES]; /* 0: the stage did not run, or the peak is unknown */
};

const char *ot_stage_name(enum ot_stage stage);
void ot_stage_times_begin(struct ot_stage_times *stages, enum ot_stage first);
void ot_stage_times_enter(struct ot_stage_times *stages, enum ot_stage stage); /* ends the present one */
/* Moves seconds of the present stage to another. */
void ot_stage_times_move(struct ot_stage_times *stages, enum ot_stage to, double seconds);
/* Ends the present stage. Returns the sum of all. */
double ot_stage_times_end(struct ot_stage_times *stages);

/* ---- quantize ---- */

enum { OT_LAYER_MAPS = 7 };

/* The matrices of a name in a layer: one, those of all experts, or those of both attentions of a T5. */
struct ot_quantize_map {
    const char *name; /* "q_proj" */
    int bytes;        /* of the name */
    /* Sums over its matrices; of experts, over those that are calibrated. */
    double error, power;
};

struct ot_quantize_row { /* a layer that is done */
    int64_t layer, n_layers;
    int n_maps; /* those with a calibrated matrix */
    struct ot_quantize_map maps[OT_LAYER_MAPS];
    int64_t experts, rounded; /* 0 experts: the layer has none. rounded: those that too few rows reach */
    double seconds;
};

/* Root mean square of the errors, divided by that of the outputs or weights. */
double ot_quantize_map_error(const struct ot_quantize_map *map);

struct ot_quantize_loss {
    double before, after; /* mean over trained tokens of the held-out rows */
    int64_t trained;      /* 0: there are no losses */
};

struct ot_quantize {
    const struct ot_session *session;
    const struct ot_model *model; /* in the session's dtype */
    const struct ot_quant_format *format;
    const struct ot_sequences *calibration, *held_out; /* n 0: none */
    const struct ot_model_save *save;                  /* with pack and without quant_source */
    bool (*stopped)(void);
    void (*done)(void *context, const struct ot_quantize_row *row);
    void *context;
    /* Results. stages has begun already. */
    struct ot_stage_times stages;
    struct ot_quantize_loss loss;
};

/* The memory that ot_quantize_run takes beyond the session's. */
struct ot_quantize_memory {
    int64_t activations, weights, codes, hessian; /* of the host */
    int64_t hessians;                             /* of the device */
};
/* Error OT_E_BUDGET. */
int ot_quantize_memory(const struct ot_quantize *job, struct ot_quantize_memory *out);

/* Errors: OT_E_BUDGET, OT_E_INPUT (a matrix does not fit the format, a weight is not finite), OT_E_NUMERIC,
 * OT_E_IO, OT_E_DEVICE, OT_E_INTERRUPT (stopped). After an error the output is unchanged. */
int ot_quantize_run(struct ot_quantize *job);

#endif

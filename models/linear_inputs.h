/* The inputs of a layer's linear maps, for methods of quantization, which choose the weights of a map by the
 * inputs that it has. Maps that multiply the same input (q, k, v; gate, up) are one entry: they are one
 * matrix, whose rows are adjacent in the slab. Gate, up and down of an expert have rows of its own: those of
 * the tokens that the router sends to it.
 */
#ifndef OT_MODELS_LINEAR_INPUTS_H
#define OT_MODELS_LINEAR_INPUTS_H

#include "models/model.h"
#include "offload/block.h"

/* In forward's order. Only encoder-decoders have the inputs of cross attention. */
enum ot_layer_input {
    OT_INPUT_QKV,
    OT_INPUT_O,
    OT_INPUT_CROSS_Q,
    OT_INPUT_CROSS_KV,
    OT_INPUT_CROSS_O,
    OT_INPUT_GATE_UP,
    OT_INPUT_DOWN,
    OT_LAYER_INPUTS
};

/* block: the layer's number in the chain. */
int64_t ot_model_input_width(const struct ot_model *model, int block, enum ot_layer_input input);
/* True if the layer has experts and they read this input. */
bool ot_model_input_is_of_experts(const struct ot_model *model, int block, enum ot_layer_input input);
/* True if the tensor is the matrix of a layer's linear map, of an expert's, or of all experts' maps; *input:
 * its input. A router does not count. */
bool ot_tensor_reads_input(const struct ot_tensor *tensor, enum ot_layer_input *input);

/* An input on the device. */
struct ot_layer_rows {
    const void *x; /* [n_tokens, width] of the run's dtype; of experts: packed rows (kernels/ops_experts.h) */
    /* The experts' groups in the packed rows, [n_experts + 1], and the rows' assignments. NULL without
     * experts. */
    const int32_t *offsets, *assignments;
};

/* Enqueues a layer's forward up to this input. It lies in run->work or run->scratch, and is valid until
 * another call uses them. run: as for chain.forward with OT_PASS_EVAL; y is not written. The model
 * works on all tokens at once (ot_model_set_chunk). Not of an encoder-decoder. */
struct ot_layer_rows ot_model_layer_input(const struct ot_model *model, int block, enum ot_layer_input input,
                                          const struct ot_block_run *run);

#endif

/* A layer's forward and backward in parts. decoder_layer.c has the order; layer_attention.c computes from the
 * norm before attention to the output projection; layer_experts.c computes experts in place of an MLP.
 * Private to these files.
 */
#ifndef OT_MODELS_LAYER_H
#define OT_MODELS_LAYER_H

#include "models/linear_inputs.h"
#include "models/layer_memory.h"
#include "models/linear.h"

/* One call of forward or backward, with the addresses of its buffers. */
struct ot_layer_call {
    const struct ot_model *model;
    const struct ot_model_config *config;
    const struct ot_layer_layout *at;
    const struct ot_block_run *run;
    const struct ot_ops *ops;
    int64_t layer, n;
    bool has_experts;
    /* Rows and columns of the inner activation of the MLP: with experts, a row for each assignment
     * (kernels/ops_experts.h). */
    int64_t inner_rows, ffn;
    struct ot_layer_memory memory;
    enum ot_layer_input until; /* OT_LAYER_INPUTS: forward computes the whole layer */
};

/* A linear map of the layer. want_grad: backward computes the gradients of its weights. */
struct ot_linear ot_layer_linear(const struct ot_layer_call *call, int64_t in, int64_t out,
                                 struct ot_place weight, struct ot_place bias,
                                 const struct ot_lora_unit *lora, const struct ot_unit_memory *memory,
                                 bool want_grad);

/* ---- attention (layer_attention.c) ---- */

/* The projection to q, k and v. */
struct ot_linear ot_layer_qkv(const struct ot_layer_call *call, bool want_grad);
/* q, k and v that attention reads, from memory.qkv: norms of q and k, and rope. */
void ot_layer_finish_qkv(const struct ot_layer_call *call);
/* memory.attn from q, k and v. */
void ot_layer_attend(const struct ot_layer_call *call);
/* memory.attn from `input` [n, hidden], with a key-value cache: writes the new k and v into the cache behind
 * those of earlier tokens. */
void ot_layer_attend_cached(const struct ot_layer_call *call, const void *input);
/* memory.wide = gradient of the projection's output, from memory.narrow, the gradient of memory.attn. */
void ot_layer_attend_backward(const struct ot_layer_call *call);

/* ---- experts (layer_experts.c) ---- */

/* The router's choice, and the groups of its assignments, from memory.normed2. In the first half of forward,
 * it notes the parts of the slab that are chosen: part p has the matrices of expert p. */
void ot_layer_route(const struct ot_layer_call *call);
/* memory.packed from memory.normed2. */
void ot_layer_gather(const struct ot_layer_call *call);
/* memory.gate_up from memory.packed, and memory.down_out from memory.inner. */
void ot_layer_experts_gate_up(const struct ot_layer_call *call);
void ot_layer_experts_down(const struct ot_layer_call *call);
/* y = memory.mid + the weighted sum of memory.down_out. */
void ot_layer_combine(const struct ot_layer_call *call, void *y);
/* memory.wide = the gradient of memory.inner. dy: the gradient of y. memory.down_out becomes its own
 * gradient. Adds to the gradients of down, and of its adapters. */
void ot_layer_experts_down_backward(const struct ot_layer_call *call, const void *dy);
/* dinput = the gradient of memory.normed2, also through the router. memory.gate_up holds its own gradient.
 * Adds to the gradients of gate, up, their adapters, and the router. Overwrites memory.down_out. */
void ot_layer_experts_gate_up_backward(const struct ot_layer_call *call, void *dinput);

#endif

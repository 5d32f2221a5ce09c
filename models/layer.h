/* The pieces of a layer's forward and backward, of which the layers of both kinds are composed (kinds.h):
 *
 *     layer.c             the call, linear maps, norms
 *     layer_attention.c   the attention branch: from x to mid
 *     layer_mlp.c         the MLP branch: from mid to y
 *     layer_experts.c     experts in place of an MLP
 *
 * decoder_layer.c and encdec_layer.c have the order. Private to these files. A call is of all tokens that the
 * layer works on, or of a chunk of them (layer_memory.h). Attention is of all; everything else may be of a
 * chunk.
 */
#ifndef OT_MODELS_LAYER_H
#define OT_MODELS_LAYER_H

#include "models/dropout.h"
#include "models/layer_memory.h"
#include "models/linear.h"
#include "models/linear_inputs.h"

/* One call of forward or backward, with the addresses of its buffers. */
struct ot_layer_call {
    const struct ot_model *model;
    const struct ot_model_config *config;
    const struct ot_layer_layout *at;
    const struct ot_block_run *run;
    const struct ot_ops *ops;
    /* The call works on tokens [first, first + n) of the micro-batch: on all of them or a chunk in a decoder.
     * Its arrays have their rows alone, without the others', except for q, k, v and their gradients
     * (layer_memory.h). */
    int64_t layer, first, n;
    bool alone;    /* the layer has no other chunks, which would overwrite what this one has in scratch */
    bool adds;     /* backward adds to the gradients of matrices; false: it overwrites them */
    const void *x; /* [n, hidden], those of run->x, run->y and run->dxy */
    void *y, *dxy;
    bool cached; /* attention reads k and v of earlier tokens in run->kv */
    bool has_experts;
    /* Rows and columns of the inner activation of the MLP: with experts, a row for each assignment
     * (kernels/ops_experts.h). */
    int64_t inner_rows, ffn;
    enum ot_keep_level kept; /* run->saved_level, but no more than layers of this kind keep */
    struct ot_layer_memory memory;
    enum ot_layer_input until; /* OT_LAYER_INPUTS: forward computes the whole layer */
};

struct ot_layer_call ot_layer_call_make(const struct ot_model *model, int block,
                                        const struct ot_block_run *run, int64_t first, int64_t n);

/* The chunk of a decoder's call of all tokens that begins with token `first`. */
struct ot_layer_call ot_layer_chunk(const struct ot_layer_call *all, int64_t first);

/* True if the call runs a phase (offload/block.h). */
static inline bool ot_layer_does(const struct ot_block_run *run, enum ot_phase phase) {
    return run->phase == OT_PHASE_WHOLE || run->phase == phase;
}

static inline bool ot_layer_is_parallel(const struct ot_layer_call *call) {
    return call->config->residual != OT_SEQUENTIAL;
}

static inline bool ot_layer_has_before(const struct ot_layer_call *call) {
    return ot_model_has_norms_before(call->config);
}

static inline bool ot_layer_has_after(const struct ot_layer_call *call) {
    return ot_model_has_norms_after(call->config);
}

/* [n, hidden] */
static inline const void *ot_layer_qkv_input(const struct ot_layer_call *call) {
    return ot_layer_has_before(call) ? call->memory.normed1 : call->x;
}

/* [n, hidden] */
static inline const void *ot_layer_gate_up_input(const struct ot_layer_call *call) {
    return ot_layer_has_before(call) ? call->memory.normed2 : call->memory.mid;
}

/* ---- maps, norms and sums (layer.c) ---- */

/* A linear map of the layer. want_grad: backward computes the gradients of its weights. */
struct ot_linear ot_layer_linear(const struct ot_layer_call *call, int64_t in, int64_t out,
                                 struct ot_place weight, struct ot_place bias,
                                 const struct ot_lora_unit *lora, const struct ot_unit_memory *memory,
                                 bool want_grad);
/* Adds to the gradients of the map's weights; dx = the gradient of x, whose place may be dy's. */
void ot_layer_linear_backward(const struct ot_layer_call *call, const struct ot_linear *map, const void *x,
                              const void *dy, void *dx);

/* Computes the result y of a map from u and the factors, which are valid, if `products` keeps no result. */
void ot_layer_from_u(const struct ot_layer_call *call, const struct ot_linear *map, void *y);
/* Outputs [first, first + out) of a map of x, to y [n, out]. */
void ot_layer_project_part(const struct ot_layer_call *call, struct ot_linear map, const void *x,
                           int64_t first, int64_t out, void *y);

/* y = the norm of x [n, hidden]. */
void ot_layer_norm(const struct ot_layer_call *call, const struct ot_norm_layout *at, const void *x, void *y,
                   struct ot_norm_memory memory);
/* dx = the gradient of x through the norm (+ addend). */
void ot_layer_norm_backward(const struct ot_layer_call *call, const struct ot_norm_layout *at, const void *x,
                            struct ot_norm_memory memory, const void *dy, const void *addend, void *dx);

/* out = a + b, [n, hidden] each. */
void ot_layer_add(const struct ot_layer_call *call, const void *a, const void *b, void *out);

/* Dropout of what a branch adds to x (dropout.h), [n, hidden]. If the pass drops there, the branch's product
 * leaves out x, and y = addend + dropout(y). */
static inline bool ot_layer_drops(const struct ot_layer_call *call, enum ot_drop_site site) {
    return ot_drop_share(call->model, call->run, site) > 0;
}
void ot_layer_drop_add(const struct ot_layer_call *call, enum ot_drop_site site, const void *addend, void *y);
/* The gradient of the branch's result, from dy: dy, or what dropout makes of it, in room. */
const void *ot_layer_drop_backward(const struct ot_layer_call *call, enum ot_drop_site site, const void *dy,
                                   void *room);

/* ---- the branches of a layer (layer_attention.c, layer_mlp.c) ---- */

/* The attention branch computes memory.mid from x, and the MLP branch memory.inner from memory.mid.
 * Both leave out what is valid already. `have`: activations that this level keeps are valid. */

/* False: `until` is reached. wants_mid: with parallel branches, computes mid, which only forward reads. The
 * input of q, k and v is valid afterwards only if the level of the call keeps it. */
bool ot_layer_attention_branch(const struct ot_layer_call *call, enum ot_keep_level have, bool wants_mid);
/* The branch in three parts, of which the second is of all tokens. With a cache, the first has attended. */
bool ot_layer_compute_qkv(const struct ot_layer_call *call, enum ot_keep_level have);
void ot_layer_attend(const struct ot_layer_call *all, enum ot_keep_level have);
/* Copies k and v of a section, or those of the call's group of heads, to run->row (offload/block.h). Does
 * nothing for whole sequences. */
void ot_layer_hand_on_keys(const struct ot_layer_call *all);
void ot_layer_finish_attention(const struct ot_layer_call *call, enum ot_keep_level have, bool wants_mid);
void ot_layer_mlp_branch(const struct ot_layer_call *call, enum ot_keep_level have);
/* y = memory.mid + the MLP, or the experts, from memory.inner. */
void ot_layer_finish(const struct ot_layer_call *call);

/* Computes the buffers of the last projection that this level does not keep: those that backward reads, and
 * the result if a norm follows. */
void ot_layer_recompute_down(const struct ot_layer_call *call, enum ot_keep_level have);
/* dxy is the gradient of y. Sequential: turns it into the gradient of mid. Parallel: leaves it, and writes
 * the gradient of the MLP's input to memory.beside. */
void ot_layer_mlp_backward(const struct ot_layer_call *call);
/* After ot_layer_mlp_backward: dxy becomes the gradient of x. */
void ot_layer_attention_backward(const struct ot_layer_call *call);
/* The same in three parts. The first computes the gradient of attention's output, in memory.narrow; the
 * second, for all tokens, that of the projection's output, in memory.wide; the third computes dxy. */
void ot_layer_o_backward(const struct ot_layer_call *call);
void ot_layer_attend_backward(const struct ot_layer_call *all);
/* attend_backward in two parts: attention, of the heads of the call's group; then norms and rope, of all. */
void ot_layer_heads_backward(const struct ot_layer_call *all);
void ot_layer_qk_backward(const struct ot_layer_call *all);
void ot_layer_qkv_backward(const struct ot_layer_call *call);

/* OT_DECODER_LAYERS.attend and attend_backward. */
void ot_decoder_attend(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys);
void ot_decoder_attend_backward(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys,
                                const struct ot_qkv *grad);

/* ---- experts (layer_experts.c) ---- */

/* The router's choice, and the groups of its assignments, from memory.normed2. In the first half of forward,
 * it notes the parts of the slab that are chosen: part p has the matrices of expert p. */
void ot_layer_route(const struct ot_layer_call *call);
/* memory.packed from memory.normed2. */
void ot_layer_gather(const struct ot_layer_call *call);
/* memory.gate_up from memory.packed, and memory.down_out from memory.inner. */
void ot_layer_experts_gate_up(const struct ot_layer_call *call);
void ot_layer_experts_down(const struct ot_layer_call *call);
/* With a balancing loss: the tail of y from that of x. The layer's router has run, if it has one. */
void ot_layer_hand_on_load(const struct ot_layer_call *call);
/* y = memory.mid + the weighted sum of memory.down_out. */
void ot_layer_combine(const struct ot_layer_call *call, void *y);
/* memory.wide = the gradient of memory.inner. dy: the gradient of y. memory.down_out becomes its own
 * gradient. Adds to the gradients of down, and of its adapters. */
void ot_layer_experts_down_backward(const struct ot_layer_call *call, const void *dy);
/* dinput = the gradient of memory.normed2, also through the router. memory.gate_up holds its own gradient.
 * Adds to the gradients of gate, up, their adapters, and the router. Overwrites memory.down_out. */
void ot_layer_experts_gate_up_backward(const struct ot_layer_call *call, void *dinput);

#endif

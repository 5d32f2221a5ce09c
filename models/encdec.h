/* The layers of an encoder-decoder (T5, Raffel et al. 2020). decoder.h has the chain around them.
 *
 * A micro-batch has the inputs of all rows, then their targets (offload/block.h, ROWS OF PAIRS). The first
 * n_encoder_layers layers are the encoder's. With n1, n2, n3 the norms before the sides of a layer, and e the
 * encoder's last norm:
 *
 *     encoder   mid = x + attention(n1(x)),   y = mid + mlp(n2(mid))                   for inputs
 *     decoder   mid = x + attention(n1(x)),   across = mid + cross(n2(mid), e(inputs)),
 *               y = across + mlp(n3(across))                                           for targets
 *
 * The other tokens pass a layer as they are: y = x. So the boundary carries the encoder's result, before its
 * last norm, through all layers of the decoder, and its gradient back, to which each of them adds. e is
 * computed again in each layer of the decoder, in two passes over the inputs: with a block of its own, the
 * chain would have blocks that are neither layers nor edges, to save a hundredth of a layer's time.
 *
 * SHARED. Attention over a token's own part adds a bias to each score, by the distance of query and key
 * (kernels/ops_spans.h). One table for all layers of the encoder, one for those of the decoder, and the
 * weight of e are a slab that all layers use (params.c, build_stacks).
 *
 * MEMORY. Arrays have a row for each token of the micro-batch, and a layer uses the rows of its own tokens,
 * because how many of the tokens are inputs is known only with the micro-batch. So a plan reserves for each
 * layer what it would take if all tokens were its own: with as many inputs as targets, twice as much as the
 * layer uses. No product and no attention is computed for tokens of the other part.
 *
 * Levels keep these activations for backward (offload/block.h), as a decoder does (layer_memory.h):
 *
 *     attention   the outputs of attention, and what its softmax needs
 *     products    q, k, v of both attentions; mid; across; gate and up; ax of adapters, and with DoRA u
 *     all         the same: norms and the MLP's activation are always computed again, in scratch. These
 *                 passes over memory take a twentieth of a layer's time
 *
 * ADAPTERS. The maps of a layer are units (linear.h): q, k and v of its own attention; k and v of cross
 * attention, which multiply inputs; and each of the others. With DoRA, `products` keeps the results beside
 * the u that they are made of: T5s are small, and a pass less is worth its code.
 *
 * GENERATION. The first call has all inputs of a text. The cache has a place for each token: those of inputs
 * have k and v of cross attention, those of targets k and v of the decoder's own attention. Layers of the
 * encoder leave their part of the cache unused.
 *
 * Private to models/.
 */
#ifndef OT_MODELS_ENCDEC_H
#define OT_MODELS_ENCDEC_H

#include "models/linear.h"

/* ---- the maps of a layer (encdec_memory.c) ---- */

enum ot_encdec_map {
    OT_ENCDEC_QKV,
    OT_ENCDEC_O,
    OT_ENCDEC_CROSS_Q,
    OT_ENCDEC_CROSS_KV,
    OT_ENCDEC_CROSS_O,
    OT_ENCDEC_GATE_UP,
    OT_ENCDEC_DOWN,
    OT_ENCDEC_MAPS
};
struct ot_encdec_map_layout {
    int64_t in, out;
    struct ot_place weight;
    const struct ot_lora_unit *lora;
};
/* In an encoder's layer, the cross maps have neither a weight nor adapters. */
struct ot_encdec_map_layout ot_encdec_map_find(const struct ot_model *model, int64_t layer,
                                               enum ot_encdec_map map);
static inline bool ot_encdec_map_is_cross(enum ot_encdec_map map) {
    return map >= OT_ENCDEC_CROSS_Q && map <= OT_ENCDEC_CROSS_O;
}

/* ---- memory (encdec_memory.c) ---- */

/* All arrays are of the compute dtype, with a row for each token, but for softmax, rstd and attention. */
struct ot_encdec_memory {
    /* In `saved` from their level on, else in `work`. cross_..., and across: of a decoder. Backward
     * overwrites gate_up. */
    void *attn, *qkv, *mid, *gate_up; /* [q_elems], [3 q_elems], [hidden], [inner_elems] */
    void *cross_attn, *cross_q, *cross_kv, *across;
    float *softmax, *cross_softmax;
    struct ot_unit_memory lora[OT_ENCDEC_MAPS];
    /* Scratch. wide: the MLP's activation and its gradient, or the gradients of q, k and v, or those of
     * cross_q and then cross_kv. normed: the output of a norm. narrow: the gradient of a norm's or of
     * attention's output. */
    void *wide, *normed, *narrow;
    float *rstd, *attention;
    void *dax, *dropped; /* of one map at a time (struct ot_linear) */
    float *products;
};

/* Neighbouring tokens of a micro-batch. */
struct ot_token_range {
    int64_t first, n;
};

/* One call of forward or backward. */
struct ot_encdec_call {
    const struct ot_model *model;
    const struct ot_layer_layout *at;
    const struct ot_block_run *run;
    const struct ot_ops *ops;
    int64_t layer;
    bool is_decoder;
    struct ot_token_range inputs, own, others; /* of this call; own: those that the layer works on */
    struct ot_encdec_memory memory;
};

void ot_encdec_memory_find(const struct ot_model *model, int64_t layer, const struct ot_block_run *run,
                           struct ot_encdec_memory *out);

/* ---- attention (encdec_attention.c) ---- */

enum ot_encdec_side { OT_SIDE_OWN, OT_SIDE_CROSS };
/* memory.attn from memory.qkv, or memory.cross_attn from cross_q and cross_kv. */
void ot_encdec_attend(const struct ot_encdec_call *call, enum ot_encdec_side side);
/* The same, of queries [n, q_elems] from the first of their rows on, with keys and values in the cache. */
void ot_encdec_attend_cached(const struct ot_encdec_call *call, enum ot_encdec_side side);
/* Computes gradients from memory.narrow, the gradient of attention's output. OWN: of q, k, v, in wide. CROSS:
 * of cross_q, in wide, and of cross_kv, behind it (ot_encdec_dkv). */
void ot_encdec_attend_backward(const struct ot_encdec_call *call, enum ot_encdec_side side);
void *ot_encdec_dkv(const struct ot_encdec_call *call);

/* Row `row` of an array with rows of `width` elements. */
static inline void *ot_encdec_row(const struct ot_encdec_call *call, const void *base, int64_t row,
                                  int64_t width) {
    return ot_run_at(call->run, base, row * width);
}

#endif

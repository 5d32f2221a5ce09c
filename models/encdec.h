/* The layers of an encoder-decoder (T5, Raffel et al. 2020). kinds.h has the other kinds.
 *
 * A micro-batch has the inputs of all rows, then their targets (offload/block.h, ROWS OF PAIRS). The first
 * n_encoder_layers layers are the encoder's. With n1, n2, n3 the norms before the branches, and e the
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
 * PIECES. A layer has the attention branch and the MLP branch that a decoder has (layer.h), with attention by
 * spans in place of causal attention. A decoder's layer has cross attention between them: its MLP branch
 * reads `across` where that of other layers reads mid.
 *
 * MEMORY. A layer uses rows of its own tokens alone, because how many of the tokens are inputs is known only
 * with the micro-batch. So a plan reserves for each layer what it would take if all tokens were its own: with
 * as many inputs as targets, twice as much as the layer uses. No product and no attention is computed for
 * tokens of the other part. layer_memory.h says what levels keep.
 *
 * ADAPTERS. The maps of a layer are units (linear.h): q, k and v of its own attention; k and v of cross
 * attention, which multiply inputs; and each of the others.
 *
 * GENERATION. The first call has all inputs of a text. The cache has a place for each token: those of inputs
 * have k and v of cross attention, those of targets k and v of the decoder's own attention. Layers of the
 * encoder leave their part of the cache unused.
 *
 * Private to models/.
 */
#ifndef OT_MODELS_ENCDEC_H
#define OT_MODELS_ENCDEC_H

#include "models/layer.h"

/* ---- attention (encdec_attention.c) ---- */

/* OT_ENCDEC_LAYERS.attend and attend_backward: of a token's own part. */
void ot_encdec_attend(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys);
void ot_encdec_attend_backward(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys,
                               const struct ot_qkv *grad);
/* memory.cross_attn from memory.cross_q and memory.cross_kv, or k and v in the cache. */
void ot_encdec_attend_inputs(const struct ot_layer_call *call);
/* From memory.narrow, the gradient of memory.cross_attn: the gradient of cross_q [n, q_elems], in
 * memory.wide, and of cross_kv [inputs, 2 q_elems], behind it. Returns the address of the second. */
void *ot_encdec_attend_inputs_backward(const struct ot_layer_call *call);

#endif

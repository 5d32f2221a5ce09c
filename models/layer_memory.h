/* The inner activations that a layer keeps, and the places of its buffers. Private to the layer's files
 * (layer.h).
 *
 * Backward reads activations of forward. A level (offload/block.h) says which of them forward keeps. Each
 * level adds to the previous one; the bytes are those of a token and layer of Llama 7B in bf16:
 *
 *     attention  attention's output, and per head the softmax's log-sum-exp (lse) in fp32     8 KiB
 *     products   q, k, v; mid; gate and up; with q and k norms also their outputs and rstd   83 KiB
 *                (with adapters of rank r on all maps, ax: 14 r bytes more)
 *     all        the outputs of both norms with their rstd, the MLP's inner activation      121 KiB
 *
 * At `products`, one elementwise pass computes each of the rest again, in scratch, which all layers share.
 *
 * The value of a kept byte: a product that reads h elements saves 2 h FLOPs with each element of its result.
 * This is the same for q, k, v, for mid, and for gate and up. Attention saves 4 FLOPs with each element of
 * its output for each key that a query sees. A FLOP of attention takes about twice as long as one of a
 * product, so an element of attention's output saves more time than an element of q, k, v if a query sees
 * more than h / 4 keys. Then level `attention` keeps only attention's output, and backward computes q, k, v
 * again. With fewer keys (short sequences, windows, wide models) it also keeps q, k, v, which raises what
 * each of its bytes saves, and backward computes only the output projection and the MLP again.
 *
 * The product of a unit with DoRA (lora.h) computes u, and one elementwise pass turns u into the unit's
 * result. So levels keep u in place of q, k, v, of mid, and of gate and up; `products` also keeps u of down.
 * The results themselves are kept at level `all`, where backward computes nothing again. In the example, with
 * DoRA on all maps, `products` keeps 91 KiB and `all` 204 KiB.
 *
 * With norms behind attention and MLP (config.h), the products o and down end in o_out and down_out, which
 * those norms read. Levels keep these in place of mid: `products` keeps both, and one pass makes mid of
 * o_out. With DoRA they are made of u in turn.
 *
 * With experts, gate and up have a row for each assignment (kernels/ops_experts.h), and so has down_out, the
 * result of down, which the gradient of the router reads. `products` keeps these, and the router's logits and
 * choice. The ax of adapters of experts has such rows too.
 *
 * With parallel sides, backward does not read mid: no level keeps it, and recomputation leaves it out.
 *
 * With DoRA and dropout, the result takes a second product, W x, as long as the first, and backward reads
 * both arrays. So the level that keeps u also keeps the result: two arrays that save two products. In the
 * example `products` keeps 166 KiB.
 *
 * Scratch has three large areas, each used for several purposes in turn; see struct ot_layer_memory.
 */
#ifndef OT_MODELS_LAYER_MEMORY_H
#define OT_MODELS_LAYER_MEMORY_H

#include "models/linear.h"

/* Statistics of the rows of a norm's input. mean: only LAYER has it. */
struct ot_norm_memory {
    float *mean, *rstd;
};

struct ot_layer_memory {
    /* Inner activations, in `saved` from their level on, else in `work`. Without q and k norms, attention
     * reads q, k and v from qkv. With them, attention reads q and k from qk and v from qkv; qkv then holds
     * the input of the norms. */
    void *attn, *qkv, *qk, *mid, *gate_up;
    float *lse, *rstd_q, *rstd_k;
    /* The inputs of the norms behind attention and MLP. With experts, down_out has the packed rows of all
     * experts. Also in `saved` from their level on. */
    void *o_out, *down_out;
    struct ot_norm_memory post1, post2;
    /* For experts: the router's logits, choice and groups; in `saved` from level `products` on. packed has
     * the input's rows by expert: in `saved` at level `all`, else in scratch. */
    void *router_logits, *packed;
    int32_t *ids, *offsets, *counts, *rows, *assignments;
    float *weights;
    /* Inner activations, in `saved` at level `all`, else in scratch: normed1 and normed2 in normed, inner
     * (the MLP's) in wide, stats1 and stats2 (of the norms before) in one place. If one norm serves both
     * sides, the second of each is the first. */
    void *normed1, *normed2, *inner;
    struct ot_norm_memory stats1, stats2;
    struct ot_unit_memory qkv_lora, o_lora, gate_up_lora, down_lora;
    /* Scratch. wide: the gradient of inner, then the gradient of qkv. normed: the gradient of qk. narrow:
     * the gradient of a norm's output or of attention's output. */
    void *wide, *normed, *narrow;
    float *dweights;     /* the gradient of the router's weights */
    void *ones;          /* with biases of experts: 1 for each assignment */
    int32_t *grouping;   /* of op group */
    void *beside;        /* of parallel sides: the gradient of the MLP's input */
    void *dax, *dropped; /* of one unit at a time */
    float *products;     /* of DoRA's factors, of one unit at a time */
    float *attention;
};

/* Finds the buffers of a call of forward or backward. */
void ot_layer_memory_find(const struct ot_model *model, int64_t layer, const struct ot_block_run *run,
                          struct ot_layer_memory *out);

#endif

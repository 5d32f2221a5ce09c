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
 * With parallel branches, backward does not read mid: no level keeps it, and recomputation leaves it out.
 *
 * With DoRA and dropout, the result takes a second product, W x, as long as the first, and backward reads
 * both arrays. So the level that keeps u also keeps the result: two arrays that save two products. In the
 * example `products` keeps 166 KiB.
 *
 * Layers of an encoder-decoder have softmax's two numbers of each query and head in place of lse, and a
 * layer of the decoder has cross attention, whose buffers follow those of its own attention in each level.
 * They keep nothing more at level `all` than at `products`: norms and the MLP's activation are always
 * computed again, in scratch, which takes a twentieth of a layer's time. With DoRA, `products` keeps the
 * results beside the u that they are made of: T5s are small, and a pass less is worth its bytes.
 *
 * ROWS. A layer of an encoder-decoder uses the first rows of its arrays, for its own tokens (encdec.h). q, k
 * and v of a layer's own attention and their gradients lie in the rows of their tokens in the micro-batch,
 * because keys are counted from its first token on.
 *
 * CHUNKS. A layer works on a micro-batch in chunks of its tokens (decoder_layer.c). What only one chunk
 * needs at a time has room for the tokens of a chunk: all arrays of struct ot_layer_memory that are neither
 * kept nor marked "all". The others have room for all tokens, and a chunk has its own rows of them. So a
 * token more in a row takes 40 KiB of Llama 3.1 8B (q, k, v, attention's output and their gradients in
 * bf16), where all of `work` and scratch would take 128 KiB. An encoder-decoder has one chunk.
 *
 * Scratch has three large areas, each used for several purposes in turn; see struct ot_layer_memory.
 */
#ifndef OT_MODELS_LAYER_MEMORY_H
#define OT_MODELS_LAYER_MEMORY_H

#include "models/kinds.h"
#include "models/linear.h"
#include "models/norm.h"

/* The rows of arrays: of all tokens of the micro-batch and of a chunk, and the first of this chunk. */
struct ot_chunk_rows {
    int64_t all, chunk, first;
};

struct ot_layer_memory {
    /* ---- inner activations, in `saved` from their level on, else in `work` ---- */

    /* Without q and k norms, attention reads q, k and v from qkv. With them, attention reads q and k from qk
     * and v from qkv; qkv then holds the input of the norms. qkv and qk are the first rows of the micro-batch
     * for each chunk. */
    void *attn;             /* all: [tokens, heads, head_dim] */
    void *qkv;              /* all: [tokens, heads + 2 kv_heads, head_dim] */
    void *qk;               /* all: [tokens, heads + kv_heads, head_dim] */
    void *mid;              /* [tokens, hidden] */
    void *gate_up;          /* [tokens, 2 ffn], [tokens, ffn] without a gate, [assignments, 2 expert_ffn] */
    float *softmax;         /* all: lse, [heads, tokens]; in an encoder-decoder [heads, tokens, 2] */
    float *rstd_q, *rstd_k; /* all: [tokens, heads], [tokens, kv_heads], or of whole rows [tokens] */
    /* The inputs of the norms behind attention and MLP. */
    void *o_out;    /* [tokens, hidden] */
    void *down_out; /* [tokens, hidden]; with experts [assignments, hidden] */
    struct ot_norm_memory post1, post2;
    /* Cross attention. across: mid and what cross attention adds to it. */
    void *cross_attn, *cross_q; /* [tokens, heads, head_dim] */
    void *cross_kv;             /* [inputs, 2 heads, head_dim] */
    void *across;               /* [tokens, hidden] */
    float *cross_softmax;       /* [heads, tokens, 2] */
    /* Experts: the router's logits, choice and groups. */
    void *router_logits;            /* [tokens, experts] */
    float *weights;                 /* [tokens, top] */
    int32_t *ids, *rows;            /* [tokens, top] */
    int32_t *assignments;           /* [assignments] */
    int32_t *offsets, *counts;      /* [experts + 1], [experts], of each chunk */
    struct ot_unit_memory qkv_lora; /* all */
    struct ot_unit_memory o_lora, gate_up_lora, down_lora;
    struct ot_unit_memory cross_q_lora, cross_kv_lora, cross_o_lora;

    /* ---- inner activations, in `saved` at level `all`, else in scratch ---- */

    /* In scratch: normed1 and normed2 in normed, inner in wide, the statistics in one place. If one norm
     * serves both branches, the second of each is the first. */
    void *normed1, *normed2; /* [tokens, hidden] */
    void *inner;             /* [tokens, ffn]; with experts [assignments, expert_ffn] */
    void *packed;            /* with experts [assignments, hidden]: the rows of normed2 by expert */
    struct ot_norm_memory stats1, stats2; /* of the norms before */

    /* ---- scratch ---- */

    /* The gradients of inner, of o's result, and of qkv (all), or of cross_o's result, cross_q and
     * cross_kv. */
    void *wide;
    void *normed; /* [tokens, hidden], or the gradient of qk (all) */
    /* The gradient of a norm's output, or all: of attention's output. A chunk's place begins with its rows of
     * the second, so it overwrites no rows of earlier chunks. */
    void *narrow;
    float *dweights;     /* the gradient of the router's weights [tokens, top] */
    void *ones;          /* with biases of experts: 1 for each assignment */
    int32_t *grouping;   /* of op group */
    void *beside;        /* all: of parallel branches, the gradient of the MLP's input [tokens, hidden] */
    void *dax, *dropped; /* [tokens, rank] and [tokens, in], of one unit at a time */
    float *products;     /* of DoRA's factors, of one unit at a time */
    float *attention;    /* of attention's backward */
};

/* The level, or the last one at which the model's layers keep more. */
static inline enum ot_keep_level ot_layer_kept(const struct ot_model *model, enum ot_keep_level level) {
    enum ot_keep_level most = model->layer_kind->most_kept;
    return level < most ? level : most;
}
/* True if level `products` keeps u of a unit, and a pass makes its result of that. */
static inline bool ot_layer_makes_from_u(const struct ot_model *model, const struct ot_lora_unit *unit) {
    return ot_lora_from_u(unit) && model->layer_kind->most_kept == OT_KEEP_ALL;
}
/* The lowest level that keeps q, k and v, or with DoRA their u. */
enum ot_keep_level ot_layer_qkv_level(const struct ot_model *model, int64_t layer);
/* True if backward still has the input of q, k and v when it has computed attention's gradient: one norm
 * serves both branches, and no other gradient lay in its place. */
static inline bool ot_layer_keeps_normed(const struct ot_model_config *c) {
    return c->residual == OT_PARALLEL && c->qk_norm == OT_QK_NORM_NONE;
}

/* ot_block_kind.bytes of both kinds of layers. */
struct ot_block_bytes ot_layer_bytes(const struct ot_model *model, int block, enum ot_keep_level level,
                                     int64_t n_tokens);
/* Finds the buffers of a call of forward or backward, for the chunk whose first token is `first`. */
void ot_layer_memory_find(const struct ot_model *model, int64_t layer, const struct ot_block_run *run,
                          int64_t first, struct ot_layer_memory *out);

#endif

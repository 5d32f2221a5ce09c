/* The kinds of blocks of a chain, and the table of functions of each:
 *
 *     the embedding                     decoder_embed.c     OT_EMBED_BLOCK
 *     a layer of a decoder              decoder_layer.c     OT_DECODER_LAYERS
 *     a layer of an encoder-decoder     encdec_layer.c      OT_ENCDEC_LAYERS
 *     the head                          decoder_head.c      OT_HEAD_BLOCK
 *
 * chain.c passes each call of the chain to the table of the block's kind. No other code asks which kind a
 * block is of. A `backward` computes itself again what it needs and no level has kept.
 *
 * All layers of a model are of one kind. Both kinds are composed of the same pieces (layer.h): the
 * attention branch, the MLP branch, and the backward of each. One layout of buffers serves both
 * (layer_memory.h), and one count of work (decoder_work.c). The pieces read the table where the kinds
 * differ: which tokens a layer works on, which attention it has, and how much its levels keep.
 *
 * Private to models/.
 */
#ifndef OT_MODELS_KINDS_H
#define OT_MODELS_KINDS_H

#include "models/decoder.h"

/* Bytes of run.saved, run.work and run.scratch (offload/block.h). */
struct ot_block_bytes {
    size_t saved, work, scratch;
};

/* `block` is a number in the chain: layer l is block 1 + l. */
struct ot_block_kind {
    struct ot_block_bytes (*bytes)(const struct ot_model *model, int block, enum ot_keep_level level,
                                   int64_t n_tokens);
    void (*forward)(const struct ot_model *model, int block, const struct ot_block_run *run);
    /* With run->first, chain.c has cleared what no product overwrites. */
    void (*backward)(const struct ot_model *model, int block, const struct ot_block_run *run);
    /* offload/block.h; NULL: blocks of this kind have none. */
    void (*keys)(const struct ot_model *model, int block, const struct ot_block_run *run);
    /* Adds to a work of zero. OT_WORK_CLEAR is chain.c's. */
    void (*work)(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                 int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out);
};

/* Addresses and row strides of q, k and v, or of their gradients. */
struct ot_qkv {
    void *q, *k, *v; /* [tokens, heads, head_dim], [tokens, kv_heads, head_dim] */
    int64_t ldq, ldk, ldv;
};

struct ot_layer_call; /* layer.h */

struct ot_layer_kind {
    struct ot_block_kind block;
    /* The part of a micro-batch's tokens that a layer works on, and the head. A plan is made before any row
     * is read, so we assume that half of the tokens of an encoder-decoder are inputs. */
    double share;
    /* The levels beyond this one keep the same (layer_memory.h). */
    enum ot_keep_level most_kept;
    /* Attention: what backward needs of the softmax, and the scratch of its backward. */
    size_t (*softmax_bytes)(int64_t n_tokens, int64_t heads);
    size_t (*attention_bytes)(const struct ot_model *model, int64_t n_tokens);
    /* memory.attn from q of the call's tokens, and k and v of n_keys tokens. */
    void (*attend)(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys);
    /* *grad from memory.narrow, the gradient of memory.attn. */
    void (*attend_backward)(const struct ot_layer_call *call, const struct ot_qkv *at, int64_t n_keys,
                            const struct ot_qkv *grad);
    double (*flops_per_token)(const struct ot_model *model, double mean_row_tokens); /* model.h */
};

extern const struct ot_block_kind OT_EMBED_BLOCK, OT_HEAD_BLOCK;
extern const struct ot_layer_kind OT_DECODER_LAYERS, OT_ENCDEC_LAYERS;

/* ---- work, for predictions (decoder_work.c) ---- */

void ot_embed_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                   int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out);
void ot_layer_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                   int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out);
void ot_encdec_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                    int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out);
void ot_head_work(const struct ot_model *model, int block, enum ot_work_kind kind, enum ot_keep_level level,
                  int64_t n_tokens, int64_t row_tokens, struct ot_block_work *out);
double ot_encdec_flops_per_token(const struct ot_model *model, double mean_row_tokens);

#endif

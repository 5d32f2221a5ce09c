/* The decoder behind model.h and offload/block.h; private to models/.
 *
 * Chain: block 0 is the embedding, blocks 1..n_layers are layers, the last is the head (final norm, output
 * projection, loss). Slabs are in the same order, one a block; a tied head uses its own slab (the norm) and,
 * as second use, the embedding's.
 *
 * Inside a slab come the matrices, then the vectors, then frozen zeros up to OT_SLAB_ALIGN_PARAMS. The
 * matrices that multiply the same input lie next to each other, so that one GEMM computes them: q, k, v;
 * gate, up. So do their biases.
 *
 * An ot_model is immutable once open: every function here may be called from any thread.
 */
#ifndef OT_MODELS_DECODER_H
#define OT_MODELS_DECODER_H

#include <stdint.h>

#include "kernels/ops.h"
#include "models/model.h"
#include "offload/block.h"

/* Where a layer's tensors begin in its slab; OT_ABSENT where the model has none. */
enum { OT_ABSENT = -1 };
struct ot_layer_layout {
    int64_t qkv, o, gate_up, down;
    int64_t qkv_bias, o_bias, gate_up_bias, down_bias;
    int64_t q_norm, k_norm, norm1, norm2;
};

struct ot_head_layout {
    int projection_use; /* 0: own slab; 1: the embedding's, tied */
    int64_t projection, norm;
};

struct ot_slab_memory { /* what a slab's spec points to */
    char name[24];
    struct ot_param_group groups[3]; /* matrices, vectors, padding */
    int64_t first_tensor, n_tensors;
};

struct ot_model {
    struct ot_model_config config;
    int64_t q_elems, kv_elems, qkv_elems; /* heads x head_dim, kv_heads x head_dim, both and kv again */
    struct ot_tensor *tensors;
    int64_t n_tensors;
    struct ot_slab_memory *slab_memory;
    struct ot_slab_spec *slabs;
    struct ot_block_spec *blocks;
    struct ot_layer_layout layer;
    struct ot_head_layout head;
    struct ot_chain chain;
};

/* Fills tensors, slabs and layouts of a model whose config is set and checked. Errors: OT_E_BUDGET. */
int ot_model_build_params(struct ot_model *model);

/* ---- the blocks ---- */

void ot_embed_forward(const struct ot_model *model, const struct ot_block_run *run);
void ot_embed_backward(const struct ot_model *model, const struct ot_block_run *run);

size_t ot_layer_saved_bytes(const struct ot_model *model, int64_t n_tokens);
size_t ot_layer_scratch_bytes(const struct ot_model *model, int64_t n_tokens);
void ot_layer_forward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run);
void ot_layer_backward(const struct ot_model *model, int64_t layer, const struct ot_block_run *run);

size_t ot_head_scratch_bytes(const struct ot_model *model, int64_t n_tokens);
void ot_head_forward(const struct ot_model *model, const struct ot_block_run *run);
void ot_head_backward(const struct ot_model *model, const struct ot_block_run *run);

/* chain.work of the three kinds of block (decoder_work.c). */
void ot_embed_work(const struct ot_model *model, enum ot_work_part part, int64_t n_tokens,
                   struct ot_block_work *out);
void ot_layer_work(const struct ot_model *model, int64_t layer, enum ot_work_part part, int64_t n_tokens,
                   int64_t row_tokens, struct ot_block_work *out);
void ot_head_work(const struct ot_model *model, enum ot_work_part part, int64_t n_tokens,
                  struct ot_block_work *out);

/* ---- rope ---- */

/* The constants: cos, then sin, fp32 [max_position, rotary_dim / 2] each, at 256-byte borders. */
size_t ot_rope_table_bytes(const struct ot_model *model); /* of one of the two */
void ot_rope_fill_tables(const struct ot_model *model, void *host_memory);

/* ---- small things that blocks share ---- */

static inline const struct ot_ops *ot_run_ops(const struct ot_block_run *run) {
    return ot_device_ops(ot_lane_device(run->lane));
}

/* Device address of element `index` of an array of the compute dtype. */
static inline void *ot_run_at(const struct ot_block_run *run, const void *base, int64_t index) {
    return (char *)base + (size_t)index * ot_dtype_bytes(run->dtype);
}

/* Weights and gradients at an offset of a layout; NULL where it is OT_ABSENT. */
static inline const void *ot_run_weight(const struct ot_block_run *run, int use, int64_t offset) {
    return offset == OT_ABSENT ? NULL : ot_run_at(run, run->weights[use], offset);
}

static inline float *ot_run_grad(const struct ot_block_run *run, int use, int64_t offset) {
    return offset == OT_ABSENT ? NULL : run->grads[use] + offset;
}

/* Cuts pieces off a block of memory, 256 bytes aligned as device memory is. With base NULL it only counts. */
struct ot_pieces {
    char *base;
    size_t bytes;
};
static inline void *ot_pieces_take(struct ot_pieces *pieces, size_t bytes) {
    size_t at = pieces->bytes;
    pieces->bytes += (bytes + 255) & ~(size_t)255;
    return pieces->base ? pieces->base + at : NULL;
}

#endif

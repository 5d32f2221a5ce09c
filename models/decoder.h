/* The implementation of model.h and offload/block.h. kinds.h has the kinds of blocks. Private to models/.
 *
 * Chain: block 0 is the embedding, blocks 1..n_layers are the layers, the last block is the head (final
 * norm, output projection, loss). An encoder-decoder has the layers of both in one chain (encdec.h). A block
 * owns one or two slabs: its frozen tensors, then its trained ones. A tied head also uses the slab with the
 * embedding.
 *
 * A slab holds its matrices, then its vectors, then frozen zeros up to a multiple of OT_SLAB_ALIGN_PARAMS.
 * Matrices that multiply the same input (q, k, v; gate, up) are adjacent, so that one GEMM computes them.
 * Their biases are adjacent too. The matrices of all experts of a layer are two such units: gate and up of
 * each expert in turn, and down. Such a UNIT is frozen if all its tensors are. If some are trained, the whole
 * unit lies in the trained slab, and its untrained groups keep their bits.
 *
 * An open ot_model never changes, so any thread may call every function here.
 */
#ifndef OT_MODELS_DECODER_H
#define OT_MODELS_DECODER_H

#include <stdint.h>

#include "kernels/ops.h"
#include "models/model.h"
#include "offload/block.h"

/* The place of a tensor or a unit: one of its block's uses, and a parameter of that slab. use OT_ABSENT: the
 * model has no such tensor. */
enum { OT_ABSENT = -1 };
struct ot_place {
    int use;
    int64_t at;
};

/* The adapters of a unit of linear maps (lora.h): A [rank, in] has the rows of the first map's A, then those
 * of the next. A map's outputs are [first, first + out) of the unit's. Of experts, a unit has one map, with
 * an A [rank, in] and a B [out, rank] for each expert, one after the other. */
struct ot_lora_map {
    int64_t first, out, rank;
    float scale;
    struct ot_place b;      /* [out, rank] */
    struct ot_place change; /* [out]; with DoRA */
};
enum { OT_MAX_UNIT_MAPS = 3 };
struct ot_lora_unit {
    int n; /* 0: no map of the unit has an adapter */
    int64_t rank;
    struct ot_place a;
    float drop;
    bool dora;
    int64_t number; /* of the unit's first weight: a key of its random words */
    struct ot_lora_map maps[OT_MAX_UNIT_MAPS];
};

/* True if training multiplies W with x and with dropout(x): with DoRA and dropout. */
static inline bool ot_lora_doubles(const struct ot_lora_unit *unit) {
    return unit->dora && unit->drop > 0;
}

/* True if one pass over u makes the unit's result in training: with DoRA and without dropout. */
static inline bool ot_lora_from_u(const struct ot_lora_unit *unit) {
    return unit->dora && !ot_lora_doubles(unit);
}

struct ot_norm_layout {
    struct ot_place weight, bias;
};

struct ot_layer_layout {
    struct ot_place qkv, o, gate_up, down;
    struct ot_place router, expert_gate_up, expert_down; /* in place of gate_up and down */
    struct ot_place router_bias, expert_gate_up_bias, expert_down_bias;
    struct ot_lora_unit qkv_lora, o_lora, gate_up_lora, down_lora; /* the last two also of experts */
    struct ot_place qkv_bias, o_bias, gate_up_bias, down_bias;
    struct ot_place q_norm, k_norm, sinks;
    struct ot_norm_layout norm1, norm2, post1, post2; /* with OT_PARALLEL, norm2 is norm1 */
    /* Attention to the encoder's output; only decoders behind an encoder have it. */
    struct ot_place cross_q, cross_kv, cross_o;
    struct ot_lora_unit cross_q_lora, cross_kv_lora, cross_o_lora;
    struct ot_norm_layout cross_norm;
};

static inline bool ot_layer_has_cross(const struct ot_layer_layout *at) {
    return at->cross_q.use != OT_ABSENT;
}

/* The tensors that all layers of an encoder-decoder use. They lie in a shared slab (offload/block.h). */
struct ot_stacks_layout {
    int slab;
    struct ot_place encoder_bias, decoder_bias; /* [position_buckets, n_heads] */
    struct ot_norm_layout encoder_norm;
};

struct ot_embed_layout {
    struct ot_place table, positions;
    struct ot_norm_layout norm;
    struct ot_lora_unit lora; /* a: [vocab, rank], whose rows are looked up */
    struct ot_place new_rows; /* [n_new, hidden]; lora.h, TOKENS */
};

struct ot_head_layout {
    struct ot_place projection, bias;
    struct ot_norm_layout norm;
    struct ot_lora_unit lora;
    struct ot_place new_rows; /* [n_new, hidden]; of a tied head those of the embedding */
};

struct ot_slab_memory { /* owns what the pointers of a slab's ot_slab_spec refer to */
    char name[32];
    struct ot_param_group
        *groups; /* a part of ot_model.groups: in order; neighbours differ; then the padding */
    int64_t first_tensor, n_tensors;
    int64_t matrix_params; /* of the matrices before the first vector; products compute their gradients */
};

struct ot_model {
    struct ot_model_config config;
    /* n_heads x head_dim, n_kv_heads x head_dim, q_elems + 2 kv_elems */
    int64_t q_elems, kv_elems, qkv_elems;
    int64_t inner_elems; /* outputs of gate and up, or of up alone; not of experts */
    struct ot_tensor *tensors;
    int64_t n_tensors;
    struct ot_slab_memory *slab_memory;
    struct ot_param_group *groups; /* of all slabs */
    struct ot_slab_spec *slabs;
    struct ot_block_spec *blocks;
    char (*block_names)[24];
    struct ot_embed_layout embed;
    struct ot_layer_layout *layers; /* [n_layers] */
    struct ot_head_layout head;
    struct ot_stacks_layout stacks;
    const struct ot_layer_kind *layer_kind; /* kinds.h */
    enum ot_base_type base;
    struct ot_regular regular;
    int64_t chunk_tokens; /* model.h: ot_model_set_chunk */
    struct ot_chain chain;
};

/* Fills in tensors, slabs, blocks and layouts. The model's config must be set and checked. setup: NULL, or
 * as given to ot_model_open_setup. Errors: OT_E_BUDGET (no memory), OT_E_INPUT (adapters, or a matrix that
 * cannot be encoded). */
int ot_model_build_params(struct ot_model *model, const struct ot_model_setup *setup);

/* Makes a slab with all its tensors an encoded one, if it is to be (encoded.c). Errors: OT_E_INPUT. */
int ot_slab_encode(struct ot_model *model, int slab);
/* ot_chain.decode. */
void ot_slab_decode(const void *model, int slab, struct ot_lane *lane, const struct ot_slab_decoding *what);

/* ---- constants ---- */

/* The chain's constants are the tables of rope, then with ALiBi the slopes, fp32 [n_heads], then with biases
 * of experts the number 1 in the compute dtype, in 4 bytes; an encoder-decoder has only its tables of
 * buckets. A table of rope is [max_position, rotary_dim / 2] of fp32, cosines and then sines, padded with
 * zeros to a multiple of 256 bytes. */
size_t ot_rope_bytes(const struct ot_model *model);
void ot_rope_fill(const struct ot_model *model, void *host_memory);
struct ot_rope_table {
    const float *cosines, *sines;
};
enum ot_rope_use { OT_ROPE_OF_Q, OT_ROPE_OF_K };
/* The table of a layer that rotates. constants: the chain's. */
struct ot_rope_table ot_rope_find(const struct ot_model *model, const void *constants, int64_t layer,
                                  enum ot_rope_use use);
const float *ot_model_slopes(const struct ot_model *model, const void *constants);
const void *ot_model_one(const struct ot_model *model, const void *constants);
/* The tables of buckets: int32, of the encoder and of the decoder (encdec_attention.c). */
size_t ot_encdec_constant_bytes(const struct ot_model_config *config);
void ot_encdec_fill_constants(const struct ot_model_config *config, void *host_memory);

/* ---- helpers of all blocks ---- */

static inline const struct ot_ops *ot_run_ops(const struct ot_block_run *run) {
    return ot_device_ops(ot_lane_device(run->lane));
}

/* Device address of element `index` of an array of the compute dtype. */
static inline void *ot_run_at(const struct ot_block_run *run, const void *base, int64_t index) {
    return (char *)base + (size_t)index * ot_dtype_bytes(run->dtype);
}

/* True if each row of a forward product must have the bits of a product of that row alone (block.h). */
static inline bool ot_run_by_rows(const struct ot_block_run *run) {
    return run->kv.texts != NULL;
}

/* The regularisers of a pass. */
static inline struct ot_regular ot_run_regular(const struct ot_model *model, const struct ot_block_run *run) {
    return run->pass == OT_PASS_TRAIN ? model->regular : (struct ot_regular){0};
}

/* The tail of a boundary, with a balancing loss: of an activation the sums of struct ot_balance, of a
 * gradient its slopes. */
struct ot_tail {
    int32_t *counts; /* [experts] */
    float *sums;     /* [experts] */
    float *slopes;   /* [experts]; in the place of counts */
};
static inline struct ot_tail ot_run_tail(const struct ot_model *model, const struct ot_block_run *run,
                                         const void *boundary) {
    char *tail = (char *)(uintptr_t)boundary + ot_chain_boundary_tail(&model->chain, run->batch.n_tokens);
    return (struct ot_tail){(int32_t *)tail, (float *)tail + model->config.n_experts, (float *)tail};
}

/* Address of a weight or a gradient. NULL if the model has no such tensor; of a gradient also if the tensor
 * is frozen. */
static inline const void *ot_run_weight(const struct ot_block_run *run, struct ot_place place) {
    return place.use == OT_ABSENT ? NULL : ot_run_at(run, run->weights[place.use], place.at);
}

static inline float *ot_run_grad(const struct ot_block_run *run, struct ot_place place) {
    return place.use == OT_ABSENT || !run->grads[place.use] ? NULL : run->grads[place.use] + place.at;
}

/* The place n parameters further on. */
static inline struct ot_place ot_place_behind(struct ot_place place, int64_t n) {
    return (struct ot_place){place.use, place.at + n};
}

/* The unit of outputs [first, first + out) of a unit: the outputs of one map, or a part of them. in: its
 * inputs. n 0: the map has no adapter. */
struct ot_lora_unit ot_lora_unit_part(const struct ot_lora_unit *unit, int64_t first, int64_t out,
                                      int64_t in);

/* Cuts one allocation into pieces that are aligned to 256 bytes, as device allocations are. With base NULL,
 * ot_pieces_take only adds up the bytes. */
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

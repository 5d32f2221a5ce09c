/* An open model: its tensors, where each lies in a slab, and its chain of blocks. config.h describes a model
 * as data, family.h the families.
 */
#ifndef OT_MODELS_MODEL_H
#define OT_MODELS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "models/config.h"
#include "models/family.h"
#include "models/lora.h"

/* ---- parameters: which tensor lies where ---- */

enum ot_init {
    OT_INIT_NORMAL,
    OT_INIT_NORMAL_RESIDUAL,
    OT_INIT_ONE,
    OT_INIT_ZERO,
    OT_INIT_LORA_A,
    OT_INIT_LORA_NORMAL
};

enum { OT_MODEL_NAME_BYTES = 96 };

/* The relation of the values in a slab to those in model and adapter files. */
enum ot_file_form {
    OT_FORM_SAME,
    /* The file has the slab's value plus the norm of the same row of the adapted weight (DoRA, lora.h):
     * ot_model_adapted finds the weight, row_norms.h computes its norms. */
    OT_FORM_ABOVE_NORM,
    OT_FORM_TRANSPOSED, /* the file has [cols, rows] (lora_embedding_A, and matrices of GPT-2) */
    /* For the B of experts' adapters: each part is [out, rank], and the file has [out, rank * parts]. Column
     * k * parts + e of the file is column k of part e. */
    OT_FORM_EXPERT_COLUMNS,
};

/* One tensor of the checkpoint inside its slab. Linear weights are [out, in], as stored by Hugging Face. */
struct ot_tensor {
    char name
        [OT_MODEL_NAME_BYTES]; /* "model.layers.3.self_attn.q_proj.weight"; of an adapter as lora.h says */
    /* Keys the random numbers. It counts the model's own tensors in the order of a model that trains all. An
     * adapter's tensor has the number of the weight that it adapts. */
    int64_t number;
    enum ot_module module; /* of an adapter's tensor: of the weight that it adapts */
    int64_t layer;         /* -1: it lies in no layer */
    int64_t expert;        /* -1: it is not that of one expert */
    int slab;
    int64_t first; /* in parameters from the slab's start */
    int64_t rows, cols;
    int dims; /* 1: a vector of `cols`; 2: a matrix */
    /* The number of experts whose matrices or vectors the tensor holds, one after the other: in files, its
     * first dimension, unless the form is OT_FORM_EXPERT_COLUMNS. OT_FORM_TRANSPOSED then applies to each
     * matrix. 0: the tensor has no such dimension. */
    int64_t parts;
    bool decay, trained;
    float rate; /* multiplies the learning rate; 0 means 1 */
    enum ot_init init;
    enum ot_file_form file_form;
    /* The rows (of a vector, its values) are those of a fused q, k, v: row r is row ot_model_fused_row(r) of
     * the file. */
    bool is_fused;
};

/* The storage of layers' frozen matrices (encoded.h says of which). AUTO: in the dtype of the device. */
enum ot_base_type {
    OT_BASE_AUTO,
    OT_BASE_BF16,
    OT_BASE_F16,
    OT_BASE_INT8,
    OT_BASE_NF4,
    OT_BASE_NF4_DOUBLE,
    OT_BASE_MXFP4,
};

/* The parameters that a run trains, its adapters, and the storage of the frozen base. */
struct ot_model_setup {
    /* Returns true if the run trains the tensor. It is asked before the tensor has a place, and not for the
     * tensors of adapters, which are always trained. NULL: it trains all tensors, or with adapters none of
     * the model's own. */
    bool (*trains)(const void *context, const struct ot_tensor *tensor);
    const void *context;
    const struct ot_lora *lora; /* NULL: no adapters */
    enum ot_base_type base;
};

/* Regularisers of training. They change passes that train (OT_PASS_TRAIN), and never evaluations, generation,
 * or the log-probabilities by a reference model. 0: off.
 *
 * NEFTUNE adds noise to the embedding (struct ot_neftune), in front of learned positions and norms. As in
 * transformers, it is added behind the scale of Gemma, and in front of that of Granite. L is the number of
 * tokens in the row, as in the paper. In transformers it is that of the padded batch, or with padding-free
 * batches of all rows together: the same for a batch of one row. Not in an encoder-decoder, where
 * transformers adds its noise to a module that neither stack reads.
 *
 * LABEL SMOOTHING and Z-LOSS: struct ot_cross_entropy. The mean is over trained tokens, as it is without
 * them.
 *
 * BALANCE is the coefficient of the balancing loss of experts (struct ot_balance): of a micro-batch and all
 * layers, and each trained token has that loss. So a step has the mean over its micro-batches, weighted by
 * their trained tokens. transformers adds them up: there the coefficient grows with the number of
 * micro-batches. Counts and sums travel in the tails of boundary activations (offload/block.h): forward from
 * layer to layer, and as slopes from the head back to all layers. So neither plans nor stages change a bit,
 * and backward needs no second pass.
 *
 * DROPOUT applies the dropouts of the model's config: dropout.h.
 *
 * The random words depend on the run's seed, the step, the micro-batch in the step, and the element's place
 * in the micro-batch, as those of dropout do (lora.h). */
struct ot_regular {
    float neftune, label_smoothing, z_loss, balance;
    bool dropout;
};

struct ot_model; /* tensors, slabs and chain of blocks, built from a config */

/* dtype: OT_F32, OT_BF16 or OT_F16, of weights and activations on the device. max_position: the number of
 * positions in the rope tables; no sequence may be longer. Allocates no weights. Close with ot_model_close.
 * Errors: OT_E_INPUT (the config, as ot_model_config_check, or max_position), OT_E_BUDGET (no memory). */
int ot_model_open(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                  struct ot_model **out);
/* The same, for a run that does not train all parameters, or that has adapters. setup: read before it
 * returns; NULL: it trains all. Errors also: OT_E_INPUT (a wrong adapter, as ot_lora_find, or no module
 * has one; a matrix is too large for the base's type). */
int ot_model_open_setup(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                        const struct ot_model_setup *setup, struct ot_model **out);
/* The format of the optimizer's moments, and whether bf16 weights have fp32 masters; OT_STATE_F32 and
 * OT_MASTERS_F32 if they are not set. Before a plan is made. */
void ot_model_set_state(struct ot_model *model, enum ot_state_format format, enum ot_masters masters);
/* compares: rows are compared (offload/block.h, COMPARISONS); false if it is not set. Before a plan is made.
 * */
void ot_model_set_compares(struct ot_model *model, bool compares);
/* All off if it is not set. Before a plan is made. */
void ot_model_set_regular(struct ot_model *model, const struct ot_regular *regular);
const struct ot_regular *ot_model_get_regular(const struct ot_model *model);
/* The tokens that a layer works on at a time (layer_memory.h, CHUNKS): a multiple of 8, or INT64_MAX.
 * Products and sums of weight gradients are cut there, so this number is part of what fixes the bits of a
 * micro-batch that has more tokens. It is OT_CHUNK_TOKENS for all decoders and machines, so that no budget
 * changes a bit; of an encoder-decoder all tokens. Only tests, and what must see all tokens at once, set
 * another one, before a plan is made.
 *
 * A chunk rewrites the fp32 gradients of the layer's matrices, 8 bytes a parameter for 2 x OT_CHUNK_TOKENS
 * FLOPs: at the rates of an H100 (decoder_head.c) a quarter of the time of its products, beside which they
 * run. */
enum { OT_CHUNK_TOKENS = 4096 };
void ot_model_set_chunk(struct ot_model *model, int64_t tokens);
int64_t ot_model_get_chunk(const struct ot_model *model);
/* Sections (offload/block.h) have a multiple of this number of tokens, so that no tile of a kernel has tokens
 * of two: the kernels take any number, and are faster so. Only tests set another one. */
enum { OT_SECTION_ALIGN = 256 };
void ot_model_set_section_align(struct ot_model *model, int64_t tokens);
void ot_model_close(struct ot_model *model);
const struct ot_model_config *ot_model_get_config(const struct ot_model *model);
int64_t ot_model_tensor_count(const struct ot_model *model);
const struct ot_tensor *ot_model_tensor(const struct ot_model *model, int64_t index); /* in slab order */
/* True if such modules can have adapters of their own: linear maps of layers, the head and the embedding. Not
 * the embedding of an encoder-decoder: PEFT adapts a module that its stacks do not read. In a model with
 * experts, only the maps of attention, the head and the embedding: PEFT reads the name of a map of an MLP
 * there as that of the experts, also in a layer that has none. The experts of a layer have adapters together
 * (lora.h). */
bool ot_model_can_adapt(const struct ot_model_config *config, enum ot_module module);
/* The weight that an adapter's tensor belongs to. For a tied head's adapter this is the embedding. */
const struct ot_tensor *ot_model_adapted(const struct ot_model *model, const struct ot_tensor *adapter);
/* True if adapters have rows of tokens that take the place of some of this table's (lora.h, TOKENS). */
bool ot_model_has_token_rows(const struct ot_model *model, const struct ot_tensor *table);
struct ot_chain;
/* The model as the engine sees it (offload/block.h). Owned by the model. */
const struct ot_chain *ot_model_chain(const struct ot_model *model);

/* Fills values[n] with the initial values of parameters [first, first + n) of a slab: normal(0, init_std),
 * residual projections (o_proj, down_proj) scaled by 1/sqrt(2 n_layers) as GPT-2 does, norms 1, biases and
 * padding 0, adapters as lora.h says; of an encoder-decoder, normal with the deviations of transformers' T5.
 * A pure function of (seed, tensor, index). */
void ot_model_init_values(const struct ot_model *model, uint64_t seed, int slab, int64_t first, int64_t n,
                          float *values);

/* FLOPs per trained token, forward and backward, without recomputation, and causal attention in rows of
 * mean_row_tokens. For MFU. A model that trains all its N parameters takes 6 N, N being those without the
 * embedding lookup. A frozen parameter takes 2 less, and backward ends at the first block that trains
 * something. */
double ot_model_flops_per_token(const struct ot_model *model, double mean_row_tokens);
#endif

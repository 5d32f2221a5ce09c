/* Decoder models described as data. struct ot_model_config describes a model of any supported family. Each
 * family has a row in family.c: the names that its config.json uses, and the defaults of keys that
 * config.json leaves out. preset.c lists known models with their exact parameter counts.
 *
 * Sources: each model's config.json on the Hugging Face hub, and the configuration classes of transformers.
 * tests/models/test_params.c recomputes every preset's parameter count.
 */
#ifndef OT_MODELS_MODEL_H
#define OT_MODELS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"
#include "models/lora.h"

enum ot_family { OT_FAMILY_LLAMA, OT_FAMILY_MISTRAL, OT_FAMILY_QWEN2, OT_FAMILY_QWEN3, OT_FAMILY_COUNT };

/* The deepest published model has 126 layers. Planning time grows with the square of the layers. */
enum { OT_MODEL_MAX_LAYERS = 1024 };

enum ot_rope_scaling { OT_ROPE_PLAIN, OT_ROPE_LINEAR, OT_ROPE_LLAMA3 };

struct ot_model_config {
    enum ot_family family;
    int64_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, max_position;
    /* Sliding window in tokens (0: none) of layers window_first_layer and later. Mistral: sliding_window, in
     * all layers. Qwen: sliding_window if use_sliding_window is true, in layers max_window_layers and
     * later. */
    int64_t window, window_first_layer;
    /* True where config.json lists the kind of each layer (layer_types). Bit i of window_layers then says
     * whether layer i has the window, and window_first_layer has no effect. */
    bool window_by_layer;
    uint64_t window_layers[OT_MODEL_MAX_LAYERS / 64];
    enum ot_norm_kind norm;
    float norm_eps;
    enum ot_activation act;
    double rope_theta;
    enum ot_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_original_max_position;
    int64_t rotary_dim;      /* = head_dim in these families; the kernels can also rotate a part of a head */
    bool qkv_bias, out_bias; /* attention_bias of llama and qwen3 sets both */
    bool mlp_bias, qk_norm, tied;
    double init_std; /* initializer_range */
};

/* Checks that counts are positive, widths at most 2^24, other sizes below 2^31, query heads a multiple of the
 * key-value heads, rope and norm settings usable, and that no later product overflows. Errors: OT_E_INPUT;
 * the message names `where` (a path) and the key of config.json. */
int ot_model_config_check(const struct ot_model_config *config, const char *where);
int64_t ot_model_param_count(const struct ot_model_config *config); /* a tied tensor counts once */

/* ---- families ---- */

struct ot_family_row {
    enum ot_family family;
    const char *model_type;        /* config.json: "llama" */
    const char *architecture;      /* config.json: "LlamaForCausalLM" */
    bool qkv_bias, qk_norm;        /* fixed by the family, not said in config.json */
    bool attention_bias, mlp_bias; /* whether the family has these keys; if not, they are ignored */
    /* Defaults of absent keys. head_dim_if_absent 0: hidden / heads. window_if_absent 0: the family has no
     * sliding window, and the key is ignored. */
    bool tied_if_absent;
    double norm_eps_if_absent, rope_theta_if_absent;
    int64_t head_dim_if_absent, window_if_absent;
    /* The window applies only if use_sliding_window is true, in layers max_window_layers and later. */
    bool window_by_flag;
    int64_t max_window_layers_if_absent;
};
const struct ot_family_row *ot_family_row(enum ot_family family);
const struct ot_family_row *ot_family_find(const char *model_type); /* NULL if unknown */
const char *ot_family_known_types(void); /* "llama, mistral, qwen2, qwen3", for error messages */

/* ---- presets ---- */

struct ot_preset {
    const char *name;   /* "llama-7b" */
    const char *hub_id; /* "huggyllama/llama-7b", or NULL for this program's own presets */
    int64_t n_params;   /* exact */
    struct ot_model_config config;
};
const struct ot_preset *ot_preset_find(const char *name); /* NULL if unknown */
const struct ot_preset *ot_preset_at(int index);          /* NULL past the last */

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

/* How the values in a slab relate to those in model and adapter files. */
enum ot_file_form {
    OT_FORM_SAME,
    /* The file has the slab's value plus the norm of the same row of the adapted weight (DoRA, lora.h):
     * ot_model_adapted finds the weight, row_norms.h computes its norms. */
    OT_FORM_ABOVE_NORM,
    OT_FORM_TRANSPOSED, /* the file has [cols, rows] (lora_embedding_A) */
};

/* One tensor of the checkpoint inside its slab. Linear weights are [out, in], as stored by Hugging Face. */
struct ot_tensor {
    char name
        [OT_MODEL_NAME_BYTES]; /* "model.layers.3.self_attn.q_proj.weight"; of an adapter as lora.h says */
    /* Keys the random numbers. It counts the model's own tensors in the order of a model that trains all. An
     * adapter's tensor has the number of the weight that it adapts. */
    int64_t number;
    int slab;
    int64_t first; /* in parameters from the slab's start */
    int64_t rows, cols;
    int dims; /* 1: a vector of `cols`; 2: a matrix */
    bool decay, trained;
    float rate; /* multiplies the learning rate; 0 means 1 */
    enum ot_init init;
    enum ot_file_form file_form;
};

/* How frozen matrices of layers are stored (encoded.h says which). AUTO: in the dtype of the device. */
enum ot_base_type {
    OT_BASE_AUTO,
    OT_BASE_BF16,
    OT_BASE_F16,
    OT_BASE_INT8,
    OT_BASE_NF4,
    OT_BASE_NF4_DOUBLE,
};

/* What a run does with the parameters. */
struct ot_model_parts {
    /* Returns true if the run trains the tensor with this name. It is not asked for the tensors of adapters,
     * which are always trained. NULL: it trains all tensors, or with adapters none of the model's own. */
    bool (*trains)(const void *context, const char *name);
    const void *context;
    const struct ot_lora *lora; /* NULL: no adapters */
    enum ot_base_type base;
};

struct ot_model; /* tensors, slabs and chain of blocks, built from a config */

/* dtype: OT_F32, OT_BF16 or OT_F16, of weights and activations on the device. max_position: the number of
 * positions in the rope tables; no sequence may be longer. Allocates no weights. Close with ot_model_close.
 * Errors: OT_E_INPUT (the config, as ot_model_config_check, or max_position), OT_E_BUDGET (no memory). */
int ot_model_open(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                  struct ot_model **out);
/* The same, for a run that does not train all parameters, or that has adapters. parts: read before it
 * returns; NULL: it trains all. Errors also: OT_E_INPUT (a wrong adapter, as ot_lora_find, or no module
 * has one; a matrix is too large for the base's type). */
int ot_model_open_parts(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                        const struct ot_model_parts *parts, struct ot_model **out);
/* The format of the optimizer's moments, and whether bf16 weights have fp32 masters; OT_STATE_F32 and
 * OT_MASTERS_F32 if they are not set. Before a plan is made. */
void ot_model_set_state(struct ot_model *model, enum ot_state_format format, enum ot_masters masters);
void ot_model_close(struct ot_model *model);
const struct ot_model_config *ot_model_get_config(const struct ot_model *model);
int64_t ot_model_tensor_count(const struct ot_model *model);
const struct ot_tensor *ot_model_tensor(const struct ot_model *model, int64_t index); /* in slab order */
/* The weight that an adapter's tensor belongs to. Of a tied head's adapter: the embedding. */
const struct ot_tensor *ot_model_adapted(const struct ot_model *model, const struct ot_tensor *adapter);
struct ot_chain;
/* The model as the engine sees it (offload/block.h). Owned by the model. */
const struct ot_chain *ot_model_chain(const struct ot_model *model);

/* Fills values[n] with the initial values of parameters [first, first + n) of a slab: normal(0, init_std),
 * residual projections (o_proj, down_proj) scaled by 1/sqrt(2 n_layers) as GPT-2 does, norms 1, biases and
 * padding 0, adapters as lora.h says. A pure function of (seed, tensor, index). */
void ot_model_init_values(const struct ot_model *model, uint64_t seed, int slab, int64_t first, int64_t n,
                          float *values);

/* FLOPs per trained token, forward and backward, without recomputation, and causal attention in rows of
 * mean_row_tokens. For MFU. A model that trains all its N parameters takes 6 N, N being those without the
 * embedding lookup. A frozen parameter takes 2 less, and backward ends at the first block that trains
 * something. */
double ot_model_flops_per_token(const struct ot_model *model, double mean_row_tokens);
/* The sliding window of a layer; 0: none. */
int64_t ot_model_layer_window(const struct ot_model_config *config, int64_t layer);
/* Mean number of keys that a query attends to, over a causal row of row_tokens tokens. window 0: no sliding
 * window. */
double ot_model_mean_keys(double row_tokens, double window);

#endif

/* What a decoder is, as data. One struct describes every family that we know; a row per family (family.c)
 * says how its config.json and tensors are named, and what its absent keys mean; presets (preset.c) are known
 * configurations with their exact parameter counts.
 *
 * Facts: reference model cards as gathered in the design's reference pages; each preset's count is asserted
 * by a test.
 */
#ifndef OT_MODELS_MODEL_H
#define OT_MODELS_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/ops.h"

enum ot_family { OT_FAMILY_LLAMA, OT_FAMILY_MISTRAL, OT_FAMILY_QWEN2, OT_FAMILY_QWEN3, OT_FAMILY_COUNT };

enum { OT_MODEL_MAX_LAYERS = 1024 }; /* the deepest published model has 126; planning takes their square */

enum ot_rope_scaling { OT_ROPE_PLAIN, OT_ROPE_LINEAR, OT_ROPE_LLAMA3 };

struct ot_model_config {
    enum ot_family family;
    int64_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, max_position;
    /* Sliding window in tokens (0: none), of the layers from window_first_layer on. Mistral: sliding_window
     * in all layers. Qwen: only where use_sliding_window is true, in layers from max_window_layers on. */
    int64_t window, window_first_layer;
    /* Where layers with and without it alternate (layer_types), a bit a layer says which have it. */
    bool window_by_layer;
    uint64_t window_layers[OT_MODEL_MAX_LAYERS / 64];
    enum ot_norm_kind norm;
    float norm_eps;
    enum ot_activation act;
    double rope_theta;
    enum ot_rope_scaling rope_scaling;
    double rope_factor, rope_low_freq_factor, rope_high_freq_factor, rope_original_max_position;
    int64_t rotary_dim;      /* = head_dim: these families rotate whole heads, though the kernels need not */
    bool qkv_bias, out_bias; /* attention_bias of llama and qwen3 sets both */
    bool mlp_bias, qk_norm, tied;
    double init_std; /* initializer_range */
};

/* Errors: OT_E_INPUT with `where` (a path) and the field's name in config.json: counts positive, widths at
 * most 2^24, others below 2^31, heads divisible, no product overflowing. */
int ot_model_config_check(const struct ot_model_config *config, const char *where);
int64_t ot_model_param_count(const struct ot_model_config *config); /* each tied tensor once */

/* ---- families ---- */

struct ot_family_row {
    enum ot_family family;
    const char *model_type;        /* config.json: "llama" */
    const char *architecture;      /* config.json: "LlamaForCausalLM" */
    bool qkv_bias, qk_norm;        /* facts that are not in config.json */
    bool attention_bias, mlp_bias; /* whether these keys of config.json are heeded */
    /* What absent keys mean. head_dim 0: hidden / heads. The window of a family without one is 0, and the key
     * ignored. */
    bool tied_if_absent;
    double norm_eps_if_absent, rope_theta_if_absent;
    int64_t head_dim_if_absent, window_if_absent;
    bool window_by_flag; /* the window needs use_sliding_window, and begins at layer max_window_layers */
    int64_t max_window_layers_if_absent;
};
const struct ot_family_row *ot_family_row(enum ot_family family);
const struct ot_family_row *ot_family_find(const char *model_type); /* NULL if unknown */
const char *ot_family_known_types(void); /* "llama, mistral, qwen2, qwen3", for sentences */

/* ---- presets ---- */

struct ot_preset {
    const char *name;   /* "llama-7b" */
    const char *hub_id; /* "huggyllama/llama-7b", or NULL for presets of our own */
    int64_t n_params;   /* exact */
    struct ot_model_config config;
};
const struct ot_preset *ot_preset_find(const char *name); /* NULL if unknown */
const struct ot_preset *ot_preset_at(int index);          /* NULL past the last */

/* ---- parameters: which tensor lies where ---- */

enum ot_init { OT_INIT_NORMAL, OT_INIT_NORMAL_RESIDUAL, OT_INIT_ONE, OT_INIT_ZERO };

/* One tensor of the checkpoint inside its slab. Linear weights are [out, in], as stored by Hugging Face. */
struct ot_tensor {
    char name[96]; /* "model.layers.3.self_attn.q_proj.weight" */
    int slab;
    int64_t first; /* in parameters from the slab's start */
    int64_t rows, cols;
    int dims; /* 1: a vector of `cols`; 2: a matrix */
    bool decay;
    enum ot_init init;
};

struct ot_model; /* the tensors, the slabs, and the chain built from a config */

/* dtype: OT_F32 or OT_BF16, of weights and activations on the device. max_position: positions that the rope
 * tables must cover (the sequence length). Errors: as ot_model_config_check, OT_E_BUDGET. */
int ot_model_open(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                  struct ot_model **out);
void ot_model_close(struct ot_model *model);
const struct ot_model_config *ot_model_get_config(const struct ot_model *model);
int64_t ot_model_tensor_count(const struct ot_model *model);
const struct ot_tensor *ot_model_tensor(const struct ot_model *model, int64_t index); /* in slab order */
struct ot_chain;
/* See offload/block.h; lives as long as the model. */
const struct ot_chain *ot_model_chain(const struct ot_model *model);

/* Fills values[n] with the initial values of parameters [first, first + n) of a slab: normal(0, init_std),
 * residual projections (o_proj, down_proj) scaled by 1/sqrt(2 n_layers) as GPT-2 does, norms 1, biases and
 * padding 0. A pure function of (seed, tensor, index). */
void ot_model_init_values(const struct ot_model *model, uint64_t seed, int slab, int64_t first, int64_t n,
                          float *values);

/* Model floating-point operations per trained token at a given mean row length, forward and backward, without
 * recompute: 6 N (embedding lookup excluded) + causal attention. For MFU. */
double ot_model_flops_per_token(const struct ot_model_config *config, double mean_row_tokens);
/* The sliding window of a layer; 0: none. */
int64_t ot_model_layer_window(const struct ot_model_config *config, int64_t layer);
/* Keys that a query sees, averaged over a causal row of the given length. window 0: none. */
double ot_model_mean_keys(double row_tokens, double window);

#endif

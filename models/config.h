/* A model described as data. struct ot_model_config describes a model of any supported family; every size
 * and every difference between families is a member. A family (family.h) says which values its models have.
 *
 * ONE LAYER. With n1, n2 the norms before attention and before the MLP, and p1, p2 the norms behind them:
 *
 *     before       mid = x + attention(n1(x)),       y = mid + mlp(n2(mid))         (Llama, GPT-2, ...)
 *     after        mid = x + p1(attention(x)),       y = mid + p2(mlp(mid))         (OLMo 2)
 *     around       mid = x + p1(attention(n1(x))),   y = mid + p2(mlp(n2(mid)))     (Gemma 2)
 *     parallel     y = x + attention(n1(x)) + mlp(n2(x)),  n2 may be n1             (Falcon, CodeGen)
 *
 * A residual scale r multiplies what a layer adds: mid = x + r attention(...), y = mid + r mlp(...)
 * (Granite). The MLP is down(act(gate(x)) * up(x)), or down(act(up(x))).
 *
 * A mixture of experts has n_experts such MLPs in place of one. A router, a linear map of x, gives each token
 * its top_experts and their weights; the layer adds the weighted sum of their results
 * (kernels/ops_experts.h).
 * An encoder-decoder has two more forms of a layer: encdec.h.
 *
 * Zero is the value of a Llama in every member that is not a size, so a struct that sets the sizes describes
 * one.
 *
 * Sources: each model's config.json on the Hugging Face hub, and the configuration and modelling classes of
 * transformers.
 */
#ifndef OT_MODELS_CONFIG_H
#define OT_MODELS_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "kernels/ops.h"

enum ot_family {
    OT_FAMILY_LLAMA,
    OT_FAMILY_MISTRAL,
    OT_FAMILY_QWEN2,
    OT_FAMILY_QWEN3,
    OT_FAMILY_GPT2,
    OT_FAMILY_BLOOM,
    OT_FAMILY_FALCON,
    OT_FAMILY_CODEGEN,
    OT_FAMILY_PHI3,
    OT_FAMILY_GEMMA,
    OT_FAMILY_GEMMA2,
    OT_FAMILY_GEMMA3,
    OT_FAMILY_OLMO2,
    OT_FAMILY_OLMO3,
    OT_FAMILY_SMOLLM3,
    OT_FAMILY_MINISTRAL,
    OT_FAMILY_MINISTRAL3,
    OT_FAMILY_GRANITE,
    OT_FAMILY_MIXTRAL,
    OT_FAMILY_QWEN3_MOE,
    OT_FAMILY_GPT_OSS,
    OT_FAMILY_T5,
    OT_FAMILY_COUNT
};

/* The deepest published model has 126 layers. Planning time grows with the square of the layers. */
enum { OT_MODEL_MAX_LAYERS = 1024 };

/* One bit for each layer. */
struct ot_layer_set {
    uint64_t bits[OT_MODEL_MAX_LAYERS / 64];
};

static inline bool ot_layer_set_has(const struct ot_layer_set *set, int64_t layer) {
    return set->bits[layer / 64] >> (layer % 64) & 1;
}

static inline void ot_layer_set_add(struct ot_layer_set *set, int64_t layer) {
    set->bits[layer / 64] |= UINT64_C(1) << (layer % 64);
}

enum ot_norm_place { OT_NORMS_BEFORE, OT_NORMS_AFTER, OT_NORMS_AROUND };
/* PARALLEL: one norm of x for both branches; PARALLEL_TWO: one for each. Both have the norms before. */
enum ot_residual { OT_SEQUENTIAL, OT_PARALLEL, OT_PARALLEL_TWO };
enum ot_positions {
    OT_POSITIONS_ROPE,
    OT_POSITIONS_LEARNED, /* a second table of max_position rows is added to the embedding */
    OT_POSITIONS_ALIBI,   /* Press et al., "Train Short, Test Long", 2022 */
    OT_POSITIONS_RELATIVE /* learned biases of scores, by the distance of query and key (T5) */
};
/* HEADS: q and k of each head, before rope (Qwen3). WHOLE: all of q, all of k, before rope (OLMo 2). */
enum ot_qk_norm { OT_QK_NORM_NONE, OT_QK_NORM_HEADS, OT_QK_NORM_WHOLE };

enum ot_rope_scaling {
    OT_ROPE_PLAIN,
    OT_ROPE_LINEAR,
    OT_ROPE_LLAMA3,
    OT_ROPE_DYNAMIC,
    OT_ROPE_YARN,
    OT_ROPE_LONGROPE,
    OT_ROPE_PROPORTIONAL,
    OT_ROPE_SCALINGS
};

enum { OT_ROPE_MAX_PAIRS = 256 };

/* The rotation of q and k. rope.c explains each number. */
struct ot_rope_config {
    double theta;
    enum ot_rope_scaling scaling;
    double factor;
    double low_freq_factor, high_freq_factor; /* llama3 */
    double original_max_position;             /* llama3, yarn, longrope */
    double attention_factor;                  /* yarn, longrope: multiplies cos and sin */
    double beta_fast, beta_slow;              /* yarn */
    bool keeps_fractions;                     /* yarn: truncate is false */
    double share;                             /* proportional: of a head's pairs that turn */
    /* longrope: of each pair, for sequences up to original_max_position, and for longer ones. */
    float short_factors[OT_ROPE_MAX_PAIRS], long_factors[OT_ROPE_MAX_PAIRS];
};

struct ot_model_config {
    enum ot_family family;
    int64_t n_layers, hidden, ffn, n_heads, n_kv_heads, head_dim, vocab, max_position;
    double init_std; /* initializer_range */
    bool tied;       /* the output projection is the embedding */

    /* ---- norms and residuals ---- */
    enum ot_norm_kind norm; /* LAYER has biases */
    float norm_eps;
    bool norm_adds_one; /* norms multiply by 1 + weight (Gemma) */
    enum ot_norm_place norm_place;
    enum ot_residual residual;
    bool embed_norm;       /* a norm follows the embedding (BLOOM) */
    double embed_scale;    /* multiplies the embedding, rounded to the compute dtype first; 0: 1 */
    double residual_scale; /* 0: 1 */

    /* ---- positions and attention ---- */
    enum ot_positions positions;
    struct ot_rope_config rope;
    int64_t rotary_dim;    /* elements of a head that rotate; 0 without rope */
    bool rope_interleaved; /* pairs are neighbours (CodeGen) */
    /* Layers with a window rotate by this theta, unscaled (Gemma 3); 0: as the others. */
    double local_rope_theta;
    struct ot_layer_set no_rope; /* layers that do not rotate (SmolLM3) */
    /* q is multiplied by 1 + beta ln(1 + floor(position / rope.original_max_position)) (Ministral 3) */
    double q_scale_beta;
    enum ot_qk_norm qk_norm;
    double attention_scale;  /* 0: 1 / sqrt(head_dim) */
    float attention_softcap; /* 0: none */
    bool sinks;              /* a layer's heads have a sink each (kernels/ops.h; gpt-oss) */
    bool alibi_scaled;       /* the scale of attention multiplies ALiBi too (Falcon) */
    /* Sliding window in tokens (0: none) of layers window_first_layer and later. */
    int64_t window, window_first_layer;
    /* True where the layers with a window are not the last ones. window_layers then has them, and
     * window_first_layer has no effect. */
    bool window_by_layer;
    struct ot_layer_set window_layers;

    /* ---- encoder-decoder (encdec.h) ---- */
    int64_t n_encoder_layers; /* of the n_layers, the first ones; 0: a decoder alone */
    /* RELATIVE: biases of a head, and the distance from which on they are all one. */
    int64_t position_buckets, position_distance;

    /* ---- linear maps ---- */
    enum ot_activation act;
    bool plain_mlp; /* down(act(up(x))) */
    bool qkv_bias, out_bias, mlp_bias, head_bias;
    /* The rows of one fused matrix of q, k and v in files: fused_groups groups, each with its heads of q,
     * then those of k, then of v (fused_v_first: v before k). 0 and 1: q, k and v whole, which is how slabs
     * have them. Only families with a fused matrix (family.h) have groups. */
    int64_t fused_groups;
    bool fused_v_first;

    /* ---- experts ---- */
    /* 0: each layer has one MLP. Else `ffn` is the width of the MLP in dense layers only. */
    int64_t n_experts;
    int64_t top_experts, expert_ffn; /* experts of a token; the inner width of an expert's MLP */
    bool router_over_all;            /* a token's weights are not divided by their sum */
    struct ot_layer_set dense_layers;
    bool router_bias, expert_bias;
    /* limit and alpha of struct ot_glu, for experts whose gate and up are interleaved (gpt-oss). limit 0:
     * none, and gate and up lie side by side. */
    float glu_limit, glu_alpha;
    /* For the balancing loss (model.h): router_aux_loss_coef, and output_router_logits, with which
     * transformers adds it. */
    double router_aux;
    bool asks_balance;

    /* ---- dropouts, if a run applies them (dropout.h) ---- */
    float embed_drop, attention_drop; /* of the embedding; of attention's weights */
    /* The dropout of what attention and the MLP add to x; 0 with norms behind them, and with experts. */
    float o_drop, mlp_drop;

    /* ---- head ---- */
    float logit_softcap;  /* 0: none */
    double logit_divisor; /* logits are divided by it (Granite); 0: 1 */

    /* ---- tokens that adapters train (lora.h, TOKENS); no key of config.json ---- */
    int64_t first_new, n_new; /* their ids; n_new 0: none */
    bool head_has_new;        /* a head that is not tied has them too */
};

/* Checks that counts are positive, widths at most 2^24, other sizes below 2^31, query heads a multiple of
 * the key-value heads, rope and norm settings usable, and that no later product overflows. Errors:
 * OT_E_INPUT; the message names `where` (a path) and the key of config.json. */
int ot_model_config_check(const struct ot_model_config *config, const char *where);
int64_t ot_model_param_count(const struct ot_model_config *config); /* a tied tensor counts once */

/* The sliding window of a layer; 0: none. */
int64_t ot_model_layer_window(const struct ot_model_config *config, int64_t layer);
/* True if a layer rotates q and k. */
bool ot_model_layer_rotates(const struct ot_model_config *config, int64_t layer);
/* True if the MLP of a layer is a mixture of experts. */
bool ot_model_layer_has_experts(const struct ot_model_config *config, int64_t layer);
/* The token that the decoder of an encoder-decoder reads first, before the targets. */
enum { OT_PAIR_START_ID = 0 };
/* True if rows have inputs, which an encoder reads, and targets, which a decoder reads. */
static inline bool ot_model_has_pairs(const struct ot_model_config *config) {
    return config->n_encoder_layers > 0;
}
/* The largest dropout of the config. */
float ot_model_most_dropout(const struct ot_model_config *config);
/* Attention multiplies q k^T by this factor. */
float ot_model_attention_scale(const struct ot_model_config *config);
/* The most tokens that a row may have: max_position, and with a dynamic scaling of rope its factor times
 * that. */
int64_t ot_model_longest_row(const struct ot_model_config *config);
/* The number of a row of the slab's q, k, v in the file's fused matrix (fused_groups). */
int64_t ot_model_fused_row(const struct ot_model_config *config, int64_t row);
/* Mean number of keys that a query attends to, over a causal row of row_tokens tokens. window 0: no sliding
 * window. */
double ot_model_mean_keys(double row_tokens, double window);

static inline bool ot_model_has_norms_before(const struct ot_model_config *c) {
    return c->norm_place != OT_NORMS_AFTER;
}

static inline bool ot_model_has_norms_after(const struct ot_model_config *c) {
    return c->norm_place != OT_NORMS_BEFORE;
}

#endif

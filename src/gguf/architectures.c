#include "src/gguf/architectures.h"

#include <math.h>
#include <string.h>

#include "models/family.h"
#include "src/base/error.h"

/* ---- the rows ---- */

#define LLAMA_ROW .permuted = true, .out_bias = true, .mlp_bias = true, .factors = OT_GGUF_FACTORS_ALL
#define PLAIN_ROW .narrow = true, .out_bias = true, .mlp_bias = true

static const struct ot_gguf_architecture ROWS[OT_FAMILY_COUNT] = {
    [OT_FAMILY_LLAMA] = {.name = "llama", LLAMA_ROW},
    [OT_FAMILY_MISTRAL] = {.name = "llama", LLAMA_ROW, .window = OT_GGUF_WINDOW_IGNORED},
    [OT_FAMILY_QWEN2] = {.name = "qwen2", .narrow = true},
    [OT_FAMILY_QWEN3] = {.name = "qwen3"},
    [OT_FAMILY_GPT2] = {.name = "gpt2", PLAIN_ROW},
    [OT_FAMILY_BLOOM] = {.name = "bloom", PLAIN_ROW},
    [OT_FAMILY_FALCON] = {.name = "falcon", .narrow = true},
    [OT_FAMILY_PHI3] = {.name = "phi3",
                        .narrow = true,
                        .window = OT_GGUF_WINDOW_IGNORED,
                        .factors = OT_GGUF_FACTORS_LONGROPE},
    [OT_FAMILY_GEMMA] = {.name = "gemma", .tied = OT_GGUF_TIED_ALWAYS},
    [OT_FAMILY_GEMMA2] = {.name = "gemma2",
                          .window = OT_GGUF_WINDOW_REQUIRED,
                          .period = 2,
                          .tied = OT_GGUF_TIED_ALWAYS},
    [OT_FAMILY_GEMMA3] = {.name = "gemma3", .window = OT_GGUF_WINDOW_LAYERS, .period = 6},
    [OT_FAMILY_OLMO2] = {.name = "olmo2", .narrow = true, .tied = OT_GGUF_TIED_NEVER},
    [OT_FAMILY_OLMO3] = {.name = "olmo2",
                         .narrow = true,
                         .window = OT_GGUF_WINDOW_LAYERS,
                         .period = 4,
                         .tied = OT_GGUF_TIED_NEVER},
    [OT_FAMILY_SMOLLM3] = {.name = "smollm3", .permuted = true},
    [OT_FAMILY_MINISTRAL3] = {.name = "mistral3", LLAMA_ROW, .betas = true},
    [OT_FAMILY_GRANITE] = {.name = "granite", LLAMA_ROW},
    [OT_FAMILY_MIXTRAL] = {.name = "llama", LLAMA_ROW, .window = OT_GGUF_WINDOW_IGNORED},
    [OT_FAMILY_QWEN3_MOE] = {.name = "qwen3moe"},
    [OT_FAMILY_GPT_OSS] = {.name = "gpt-oss",
                           .out_bias = true,
                           .window = OT_GGUF_WINDOW_REQUIRED,
                           .period = 2,
                           .tied = OT_GGUF_TIED_NEVER},
    [OT_FAMILY_T5] = {.name = "t5"},
};

const char ot_gguf_known_architectures[] =
    "bloom, falcon, gemma, gemma2, gemma3, gpt-oss, gpt2, granite, "
    "llama, mistral3, olmo2, phi3, qwen2, qwen3, qwen3moe, smollm3, t5";

const struct ot_gguf_architecture *ot_gguf_architecture(enum ot_family family) {
    return &ROWS[family];
}

/* ---- numbers that llama.cpp derives ---- */

/* llama.cpp takes the largest Gemma 2 and 3 by their numbers of layers. Their heads are scaled as if they
 * were hidden / n_heads wide. */
double ot_gguf_attention_scale(const struct ot_model_config *c) {
    bool largest = (c->family == OT_FAMILY_GEMMA2 && c->n_layers == 46) ||
                   (c->family == OT_FAMILY_GEMMA3 && c->n_layers == 62);
    if (c->family != OT_FAMILY_GEMMA2 && c->family != OT_FAMILY_GEMMA3)
        return 0;
    return 1 / sqrt((double)(largest ? c->hidden / c->n_heads : c->head_dim));
}

double ot_gguf_yarn_magnitude(double factor, double log_multiplier) {
    double whole = factor <= 1 ? 1 : 0.1 * log(factor) + 1;
    double part = factor <= 1 || log_multiplier == 0 ? 1 : 0.1 * log_multiplier * log(factor) + 1;
    return whole / part;
}

enum ot_activation ot_gguf_pair_act(bool plain_mlp) {
    return plain_mlp ? OT_ACT_RELU : OT_ACT_GELU_TANH;
}

double ot_gguf_logit_divisor(const struct ot_model_config *c) {
    return ot_model_has_pairs(c) && c->tied ? sqrt((double)c->hidden) : 0;
}

/* ---- features that llama.cpp lacks ---- */

struct check {
    const struct ot_model_config *c;
    const struct ot_gguf_architecture *row;
    const char *where;
};

/* lacks: the feature that llama.cpp does not have; says: the config's value. */
static int refuse(const struct check *k, const char *lacks, const char *says) {
    return ot_fail(OT_E_INPUT, "%s: llama.cpp has no %s for models of type %s, but %s", k->where, lacks,
                   ot_family_row(k->c->family)->model_type, says);
}

/* llama.cpp has one activation for an MLP with a gate and one for an MLP without. */
static int check_pairs(const struct check *k) {
    const struct ot_model_config *c = k->c;
    double divisor = ot_gguf_logit_divisor(c);
    if (c->act != ot_gguf_pair_act(c->plain_mlp))
        return refuse(k, "feed_forward_proj other than relu and gated-gelu", "the config has another one");
    if (c->position_distance != OT_GGUF_PAIR_DISTANCE)
        return refuse(k, "relative_attention_max_distance other than 128", "the config has another one");
    if (c->n_layers - c->n_encoder_layers > c->n_encoder_layers)
        return refuse(k, "decoder with more layers than the encoder", "num_decoder_layers is larger");
    if ((float)c->logit_divisor != (float)divisor)
        return refuse(k, "key for the scale of the logits",
                      "scale_decoder_outputs is not as tie_word_embeddings");
    return 0;
}

static int check_maps(const struct check *k) {
    const struct ot_model_config *c = k->c;
    if (c->act != ot_family_row(c->family)->base.act)
        return ot_fail(OT_E_INPUT,
                       "%s: llama.cpp computes models of type %s with one activation, but the config has "
                       "another one",
                       k->where, ot_family_row(c->family)->model_type);
    if (k->row->narrow && c->n_heads * c->head_dim != c->hidden)
        return refuse(k, "attention that is wider or narrower than the model",
                      "num_attention_heads times head_dim is not hidden_size");
    if (c->out_bias && !k->row->out_bias)
        return refuse(k, "bias of o_proj", "the config says that attention has biases");
    if (c->mlp_bias && !k->row->mlp_bias)
        return refuse(k, "biases of the MLP", "the config says that it has them");
    if (c->tied && k->row->tied == OT_GGUF_TIED_NEVER)
        return refuse(k, "tied embedding", "the config says tie_word_embeddings true");
    if (!c->tied && k->row->tied == OT_GGUF_TIED_ALWAYS)
        return refuse(k, "output matrix of its own", "the config says tie_word_embeddings false");
    if (c->residual == OT_SEQUENTIAL && c->family == OT_FAMILY_FALCON)
        return refuse(k, "attention before the MLP", "the config says parallel_attn false");
    if (c->positions == OT_POSITIONS_ALIBI && c->family == OT_FAMILY_FALCON)
        return refuse(k, "ALiBi", "the config says alibi true");
    return 0;
}

static int check_attention(const struct check *k) {
    const struct ot_model_config *c = k->c;
    double scale = ot_gguf_attention_scale(c);
    if (c->window > 0 && k->row->window == OT_GGUF_WINDOW_NONE)
        return refuse(k, "sliding window", "the config has one");
    if (c->window == 0 && k->row->window == OT_GGUF_WINDOW_REQUIRED)
        return refuse(k, "form without sliding window", "the config has none");
    if (scale != 0 && (float)scale != (float)c->attention_scale)
        return refuse(k, "query_pre_attn_scalar other than head_dim", "the config has another one");
    if (c->attention_softcap != 0 && c->family != OT_FAMILY_GEMMA2)
        return refuse(k, "attn_logit_softcapping", "the config has it");
    if ((c->attention_softcap == 0 || c->logit_softcap == 0) && c->family == OT_FAMILY_GEMMA2)
        return refuse(k, "form without attn_logit_softcapping or final_logit_softcapping",
                      "the config leaves one out");
    for (int64_t l = 0; l < c->n_layers && c->family == OT_FAMILY_SMOLLM3; l++)
        if (ot_model_layer_rotates(c, l) == ((l + 1) % 4 == 0))
            return refuse(k, "no_rope_layers other than each fourth", "the config has others");
    return 0;
}

static int check_yarn(const struct check *k) {
    const struct ot_rope_config *rope = &k->c->rope;
    if (k->c->family == OT_FAMILY_GEMMA3)
        return refuse(k, "rope_scaling of type yarn", "the config has it");
    if (rope->keeps_fractions && k->c->family != OT_FAMILY_GPT_OSS)
        return refuse(k, "YaRN with truncate false", "the config says it");
    if (!rope->keeps_fractions && k->c->family == OT_FAMILY_GPT_OSS)
        return ot_fail(
            OT_E_INPUT,
            "%s: GGUF cannot say truncate of YaRN, and models of type gpt_oss are read with truncate "
            "false, but the config says true",
            k->where);
    if (!k->row->betas && (rope->beta_fast != 32 || rope->beta_slow != 1))
        return refuse(k, "beta_fast and beta_slow of YaRN other than 32 and 1", "the config has others");
    return 0;
}

static int check_rope(const struct check *k) {
    const struct ot_model_config *c = k->c;
    bool longrope = c->rope.scaling == OT_ROPE_LONGROPE, llama3 = c->rope.scaling == OT_ROPE_LLAMA3;
    if (c->positions != OT_POSITIONS_ROPE)
        return 0;
    if (c->rope.scaling == OT_ROPE_DYNAMIC || c->rope.scaling == OT_ROPE_PROPORTIONAL)
        return ot_fail(OT_E_INPUT,
                       "%s: rope_scaling of this type cannot be written as GGUF; known: linear, llama3, "
                       "yarn, longrope",
                       k->where);
    if ((llama3 && k->row->factors != OT_GGUF_FACTORS_ALL) ||
        (longrope && k->row->factors == OT_GGUF_FACTORS_NONE))
        return refuse(k, llama3 ? "rope_scaling of type llama3" : "rope_scaling of type longrope",
                      "the config has it");
    if (c->family == OT_FAMILY_OLMO3 && c->window > 0 && c->local_rope_theta != c->rope.theta)
        return refuse(k, "rope_theta that layers with a window have alone", "the config has one");
    return c->rope.scaling == OT_ROPE_YARN ? check_yarn(k) : 0;
}

static int check_experts(const struct check *k) {
    const struct ot_model_config *c = k->c;
    const struct ot_layer_set none = {0};
    if (memcmp(&c->dense_layers, &none, sizeof none) != 0)
        return refuse(k, "layers without experts", "mlp_only_layers or decoder_sparse_step has some");
    if (c->router_over_all)
        return refuse(k, "norm_topk_prob false", "the config says it, or nothing");
    if (c->family != OT_FAMILY_GPT_OSS)
        return 0;
    if (!c->out_bias)
        return refuse(k, "attention without biases", "the config says attention_bias false");
    if (c->glu_limit != OT_GGUF_GLU_LIMIT || c->glu_alpha != OT_GGUF_GLU_ALPHA)
        return refuse(k, "swiglu_limit other than 7 and swiglu_alpha other than 1.702",
                      "the config has them");
    return 0;
}

int ot_gguf_check_config(const struct ot_model_config *config, const char *where) {
    const struct check k = {config, ot_gguf_architecture(config->family), where};
    if (!k.row->name)
        return ot_fail(OT_E_INPUT,
                       "%s: llama.cpp has no models of type %s, so there is no GGUF form of them; their "
                       "Hugging Face directory (export without --gguf) is what other programs read. GGUF "
                       "has the architectures %s",
                       where, ot_family_row(config->family)->model_type, ot_gguf_known_architectures);
    if (ot_model_has_pairs(config))
        return check_pairs(&k);
    OT_TRY(check_maps(&k));
    OT_TRY(check_attention(&k));
    if (config->n_experts > 0)
        OT_TRY(check_experts(&k));
    return check_rope(&k);
}

/* The family T5: names and keys of T5 (Raffel et al. 2020), T5 v1.1 and flan-t5. */
#include "models/family_t5.h"

#include <math.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"

/* ---- names ---- */

/* T5: an MLP of two maps (t5-small) or three (v1.1), in layers of an encoder or of a decoder. */
#define T5_ENDS                                                                                              \
    [OT_MODULE_EMBEDDING] = "shared",                                                                        \
    [OT_MODULE_ENCODER_BIAS] = "encoder.block.0.layer.0.SelfAttention.relative_attention_bias",              \
    [OT_MODULE_DECODER_BIAS] = "decoder.block.0.layer.0.SelfAttention.relative_attention_bias",              \
    [OT_MODULE_ENCODER_NORM] = "encoder.final_layer_norm", [OT_MODULE_NORM] = "decoder.final_layer_norm",    \
    [OT_MODULE_HEAD] = "lm_head"
#define T5_ATTENTION                                                                                         \
    [OT_MODULE_Q] = "layer.0.SelfAttention.q", [OT_MODULE_K] = "layer.0.SelfAttention.k",                    \
    [OT_MODULE_V] = "layer.0.SelfAttention.v", [OT_MODULE_O] = "layer.0.SelfAttention.o",                    \
    [OT_MODULE_NORM1] = "layer.0.layer_norm"
#define T5_CROSS                                                                                             \
    [OT_MODULE_CROSS_Q] = "layer.1.EncDecAttention.q", [OT_MODULE_CROSS_K] = "layer.1.EncDecAttention.k",    \
    [OT_MODULE_CROSS_V] = "layer.1.EncDecAttention.v", [OT_MODULE_CROSS_O] = "layer.1.EncDecAttention.o",    \
    [OT_MODULE_CROSS_NORM] = "layer.1.layer_norm"
#define T5_MLP(at)                                                                                           \
    [OT_MODULE_NORM2] = "layer." at ".layer_norm", [OT_MODULE_DOWN] = "layer." at ".DenseReluDense.wo"
#define T5_PLAIN(at) T5_MLP(at), [OT_MODULE_UP] = "layer." at ".DenseReluDense.wi"
#define T5_GATED(at)                                                                                         \
    T5_MLP(at), [OT_MODULE_GATE] = "layer." at ".DenseReluDense.wi_0",                                       \
                [OT_MODULE_UP] = "layer." at ".DenseReluDense.wi_1"

const struct ot_family_names OT_T5_NAMES[2][2] = {
    {{.layers = "encoder.block.", .modules = {T5_ENDS, T5_ATTENTION, T5_PLAIN("1")}},
     {.layers = "decoder.block.", .modules = {T5_ENDS, T5_ATTENTION, T5_CROSS, T5_PLAIN("2")}}},
    {{.layers = "encoder.block.", .modules = {T5_ENDS, T5_ATTENTION, T5_GATED("1")}},
     {.layers = "decoder.block.", .modules = {T5_ENDS, T5_ATTENTION, T5_CROSS, T5_GATED("2")}}},
};

const struct ot_family_names *ot_t5_layer_names(const struct ot_model_config *c, int64_t layer) {
    return &OT_T5_NAMES[!c->plain_mlp][layer >= c->n_encoder_layers];
}

/* ---- config.json ---- */

/* The MLP of a T5: "relu", or "gated-gelu" with the gelu of the first GPT. */
static const struct {
    const char *name;
    bool gated;
    enum ot_activation act;
} T5_MLPS[] = {{"relu", false, OT_ACT_RELU},
               {"gated-gelu", true, OT_ACT_GELU_TANH},
               {"gated-relu", true, OT_ACT_RELU},
               {"gated-silu", true, OT_ACT_SILU},
               {"gelu", false, OT_ACT_GELU_ERF},
               {"gelu_new", false, OT_ACT_GELU_TANH},
               {"gated-gelu_new", true, OT_ACT_GELU_TANH}};
enum { N_T5_MLPS = sizeof T5_MLPS / sizeof *T5_MLPS };

static int read_t5_mlp(const struct ot_config_reader *r) {
    const char *name = "relu";
    OT_TRY(ot_config_string(r, "feed_forward_proj", &name));
    for (int i = 0; i < N_T5_MLPS; i++)
        if (strcmp(T5_MLPS[i].name, name) == 0) {
            r->config->plain_mlp = !T5_MLPS[i].gated;
            r->config->act = T5_MLPS[i].act;
            return 0;
        }
    return ot_fail(OT_E_INPUT,
                   "%s: feed_forward_proj '%s' is not supported; known: relu, gelu, gelu_new, gated-relu, "
                   "gated-gelu, gated-silu",
                   r->where, name);
}

/* Models of the first T5 share the embedding with the head, and divide the logits by the root of the width;
 * later ones (v1.1, flan-t5) do neither. transformers 5 writes the latter as scale_decoder_outputs, and
 * tie_word_embeddings as true for both: files of weights without a head tie it (src/files/model_dir.c). */
static int read_t5_head(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    bool scales = c->tied;
    OT_TRY(ot_config_bool_or_null(r, "scale_decoder_outputs", &scales));
    c->tied = c->tied && scales;
    c->logit_divisor = scales ? sqrt((double)c->hidden) : 0;
    return 0;
}

/* Positions are relative, so n_positions of config.json limits nothing. */
int ot_t5_read(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    int64_t n_decoder = c->n_layers;
    int64_t start = 0;
    bool is_pair = true;
    c->n_encoder_layers = c->n_layers;
    OT_TRY(ot_config_bool(r, "is_encoder_decoder", &is_pair));
    if (!is_pair)
        return ot_fail(OT_E_INPUT,
                       "%s: is_encoder_decoder is false; only whole models of type t5 are supported",
                       r->where);
    OT_TRY(
        ot_json_need_int(r->root, r->where, "num_decoder_layers", false, 1, OT_MODEL_MAX_LAYERS, &n_decoder));
    OT_TRY(ot_config_int(r, "relative_attention_num_buckets", 4, 256, &c->position_buckets));
    OT_TRY(ot_config_int(r, "relative_attention_max_distance", 1, 1 << 20, &c->position_distance));
    OT_TRY(ot_config_int(r, "decoder_start_token_id", 0, INT32_MAX, &start));
    if (start != OT_T5_START_ID)
        return ot_fail(OT_E_INPUT, "%s: decoder_start_token_id is %lld; only %d is supported", r->where,
                       (long long)start, OT_T5_START_ID);
    c->n_layers += n_decoder;
    c->n_kv_heads = c->n_heads;
    c->max_position = OT_T5_LONGEST_ROW;
    OT_TRY(read_t5_mlp(r));
    return read_t5_head(r);
}

void ot_t5_write(const struct ot_model_config *c, struct ot_json_writer *w) {
    int i = 0;
    while (i + 1 < N_T5_MLPS && (T5_MLPS[i].gated == c->plain_mlp || T5_MLPS[i].act != c->act))
        i++;
    ot_json_put_int(w, "d_ff", c->ffn);
    ot_json_put_int(w, "d_kv", c->head_dim);
    ot_json_put_int(w, "d_model", c->hidden);
    ot_json_put_int(w, "decoder_start_token_id", OT_T5_START_ID);
    ot_json_put_text(w, "feed_forward_proj", T5_MLPS[i].name);
    ot_json_put_bool(w, "is_encoder_decoder", true);
    ot_json_put_real(w, "layer_norm_epsilon", ot_config_decimal(c->norm_eps));
    ot_json_put_int(w, "num_decoder_layers", c->n_layers - c->n_encoder_layers);
    ot_json_put_int(w, "num_heads", c->n_heads);
    ot_json_put_int(w, "num_layers", c->n_encoder_layers);
    ot_json_put_int(w, "pad_token_id", OT_T5_START_ID);
    ot_json_put_int(w, "relative_attention_max_distance", c->position_distance);
    ot_json_put_int(w, "relative_attention_num_buckets", c->position_buckets);
    ot_json_put_bool(w, "scale_decoder_outputs", c->logit_divisor != 0);
    ot_json_put_bool(w, "tie_word_embeddings", c->tied);
    ot_json_put_int(w, "vocab_size", c->vocab);
}

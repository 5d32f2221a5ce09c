#include "src/files/model_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"

/* Counts in a config are limited here only so that products do not overflow. ot_model_config_check does the
 * real checks. */
#define MAX_COUNT INT64_C(0x7fffffff)

struct parser {
    const struct ot_json *root;
    const char *where;
    const struct ot_family_row *family;
    struct ot_model_config *config;
};

/* ---- model family ---- */

static const struct ot_family_row *find_architecture(const char *name) {
    for (int i = 0; i < OT_FAMILY_COUNT; i++)
        if (strcmp(ot_family_row((enum ot_family)i)->architecture, name) == 0)
            return ot_family_row((enum ot_family)i);
    return NULL;
}

static int parse_family(struct parser *p) {
    const char *type = NULL;
    OT_TRY(ot_json_need_string(p->root, p->where, "model_type", false, &type));
    const char *architecture = ot_json_string(ot_json_at(ot_json_get(p->root, "architectures"), 0), NULL);
    if (!type && !architecture)
        return ot_fail(
            OT_E_INPUT,
            "%s: the key 'model_type' is missing; this is not the config.json of a Hugging Face model",
            p->where);
    p->family = type ? ot_family_find(type) : find_architecture(architecture);
    if (!p->family)
        return ot_fail(OT_E_INPUT, "%s: %s '%s' is not supported; known model types: %s", p->where,
                       type ? "model_type" : "architecture", type ? type : architecture,
                       ot_family_known_types());
    if (architecture && strcmp(architecture, p->family->architecture) != 0)
        return ot_fail(OT_E_INPUT,
                       "%s: architecture '%s' is not supported; a model of type '%s' must be a %s", p->where,
                       architecture, p->family->model_type, p->family->architecture);
    p->config->family = p->family->family;
    return 0;
}

/* ---- sizes ---- */

/* The first of `names` (at most 4; the list ends with NULL) that is present and not null. If none is,
 * names[0]. */
static const char *present_key(const struct parser *p, const char *const *names) {
    for (int i = 0; names[i]; i++)
        if (ot_json_get(p->root, names[i]))
            return names[i];
    return names[0];
}

static int parse_sizes(struct parser *p) {
    struct ot_model_config *c = p->config;
    const struct {
        const char *names[5];
        bool required;
        int64_t *value;
    } sizes[] = {
        {{"num_hidden_layers", "n_layer", "n_layers", NULL}, true, &c->n_layers},
        {{"hidden_size", "n_embd", "n_embed", "d_model", NULL}, true, &c->hidden},
        {{"intermediate_size", "ffn_hidden_size", "n_inner", NULL}, true, &c->ffn},
        {{"num_attention_heads", "n_head", "n_heads", NULL}, true, &c->n_heads},
        {{"num_key_value_heads", "num_kv_heads", "n_head_kv", NULL}, false, &c->n_kv_heads},
        {{"head_dim", NULL}, false, &c->head_dim},
        {{"vocab_size", NULL}, true, &c->vocab},
        {{"max_position_embeddings", "n_positions", "n_ctx", "seq_length", NULL}, true, &c->max_position},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        OT_TRY(ot_json_need_int(p->root, p->where, present_key(p, sizes[i].names), sizes[i].required, 1,
                                MAX_COUNT, sizes[i].value));
    if (c->n_kv_heads == 0)
        c->n_kv_heads = c->n_heads;
    if (c->head_dim == 0)
        c->head_dim = p->family->head_dim_if_absent;
    if (c->head_dim == 0) {
        if (c->hidden % c->n_heads != 0)
            return ot_fail(
                OT_E_INPUT,
                "%s: head_dim is absent, and hidden_size %lld is not a multiple of num_attention_heads %lld",
                p->where, (long long)c->hidden, (long long)c->n_heads);
        c->head_dim = c->hidden / c->n_heads;
    }
    return 0;
}

static int parse_norm_and_act(struct parser *p) {
    struct ot_model_config *c = p->config;
    double eps = p->family->norm_eps_if_absent;
    const char *act = "silu";
    c->norm = OT_NORM_RMS;
    c->init_std = 0.02;
    OT_TRY(ot_json_need_real(p->root, p->where, "rms_norm_eps", false, 0, 1, &eps));
    OT_TRY(ot_json_need_real(p->root, p->where, "initializer_range", false, 0, 1e3, &c->init_std));
    OT_TRY(ot_json_need_string(p->root, p->where, "hidden_act", false, &act));
    c->norm_eps = (float)eps;
    static const struct {
        const char *name;
        enum ot_activation act;
    } acts[] = {{"silu", OT_ACT_SILU},
                {"swish", OT_ACT_SILU},
                {"gelu", OT_ACT_GELU_ERF},
                {"gelu_new", OT_ACT_GELU_TANH},
                {"gelu_pytorch_tanh", OT_ACT_GELU_TANH},
                {"relu", OT_ACT_RELU}};
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(act, acts[i].name) == 0) {
            c->act = acts[i].act;
            return 0;
        }
    return ot_fail(
        OT_E_INPUT,
        "%s: hidden_act '%s' is not supported; known: silu, swish, gelu, gelu_new, gelu_pytorch_tanh, relu",
        p->where, act);
}

static int parse_flags(struct parser *p) {
    struct ot_model_config *c = p->config;
    bool attention_bias = false;
    c->tied = p->family->tied_if_absent;
    OT_TRY(ot_json_need_bool(p->root, p->where, "tie_word_embeddings", false, &c->tied));
    if (p->family->attention_bias)
        OT_TRY(ot_json_need_bool(p->root, p->where, "attention_bias", false, &attention_bias));
    if (p->family->mlp_bias)
        OT_TRY(ot_json_need_bool(p->root, p->where, "mlp_bias", false, &c->mlp_bias));
    c->qkv_bias = p->family->qkv_bias || attention_bias;
    c->out_bias = attention_bias;
    c->qk_norm = p->family->qk_norm;
    return 0;
}

/* ---- attention window ---- */

static int parse_layer_type(const struct parser *p, const struct ot_json *types, int64_t layer,
                            bool *slides) {
    const char *type = ot_json_string(ot_json_at(types, (size_t)layer), NULL);
    *slides = type && strcmp(type, "sliding_attention") == 0;
    if (*slides || (type && strcmp(type, "full_attention") == 0))
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: layer_types[%lld] '%s' is not supported; known: full_attention, sliding_attention",
                   p->where, (long long)layer, type ? type : "");
}

/* transformers 5 lists the type of each layer. Most models have one boundary: full attention before it,
 * sliding window after it. In other models the two types alternate. */
static int parse_layer_types(struct parser *p) {
    struct ot_model_config *c = p->config;
    const struct ot_json *types = ot_json_get(p->root, "layer_types");
    if (!types || c->n_layers > OT_MODEL_MAX_LAYERS) /* ot_model_config_check refuses that many layers */
        return 0;
    if ((int64_t)ot_json_length(types) != c->n_layers)
        return ot_fail(OT_E_INPUT, "%s: layer_types must be a list of num_hidden_layers (%lld) entries",
                       p->where, (long long)c->n_layers);
    int64_t first = c->n_layers, n_sliding = 0;
    for (int64_t i = 0; i < c->n_layers; i++) {
        bool slides;
        OT_TRY(parse_layer_type(p, types, i, &slides));
        if (!slides)
            continue;
        first = n_sliding++ ? first : i;
        c->window_layers[i / 64] |= UINT64_C(1) << (i % 64);
    }
    if (n_sliding > 0 && c->window == 0)
        return ot_fail(OT_E_INPUT,
                       "%s: layer_types has sliding_attention, but the sliding window is off (see "
                       "sliding_window, use_sliding_window)",
                       p->where);
    if (n_sliding < c->n_layers && c->window > 0 && !p->family->window_by_flag)
        return ot_fail(
            OT_E_INPUT,
            "%s: layer_types has full_attention, but a model of type '%s' has a sliding window in every "
            "layer; set sliding_window to null for full attention",
            p->where, p->family->model_type);
    c->window_first_layer = first;
    c->window_by_layer = n_sliding < c->n_layers - first;
    if (!c->window_by_layer)
        memset(c->window_layers, 0, sizeof c->window_layers);
    return 0;
}

static bool has_key(const struct ot_json *object, const char *wanted) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(object, &cursor, &key, &value))
        if (strcmp(key, wanted) == 0)
            return true;
    return false;
}

static int parse_window(struct parser *p) {
    struct ot_model_config *c = p->config;
    bool use = !p->family->window_by_flag;
    if (p->family->window_if_absent == 0) /* the family has no window and ignores the key */
        return 0;
    c->window = has_key(p->root, "sliding_window") ? 0 : p->family->window_if_absent; /* null: no window */
    OT_TRY(ot_json_need_int(p->root, p->where, "sliding_window", false, 1, MAX_COUNT, &c->window));
    if (p->family->window_by_flag) {
        OT_TRY(ot_json_need_bool(p->root, p->where, "use_sliding_window", false, &use));
        c->window_first_layer = p->family->max_window_layers_if_absent;
        OT_TRY(ot_json_need_int(p->root, p->where, "max_window_layers", false, 0, MAX_COUNT,
                                &c->window_first_layer));
    }
    if (!use)
        c->window = 0;
    OT_TRY(parse_layer_types(p));
    if (c->window_first_layer >= c->n_layers)
        c->window = 0;
    if (c->window == 0)
        c->window_first_layer = 0;
    return 0;
}

/* ---- rope ---- */

static int parse_rope_numbers(struct parser *p, const struct ot_json *rope, const char *where) {
    struct ot_model_config *c = p->config;
    OT_TRY(ot_json_need_real(rope, where, "factor", true, 1, 1e6, &c->rope_factor));
    if (c->rope_scaling != OT_ROPE_LLAMA3)
        return 0;
    OT_TRY(ot_json_need_real(rope, where, "low_freq_factor", true, 0, 1e6, &c->rope_low_freq_factor));
    OT_TRY(ot_json_need_real(rope, where, "high_freq_factor", true, 0, 1e6, &c->rope_high_freq_factor));
    bool inside = ot_json_get(rope, "original_max_position_embeddings");
    return ot_json_need_real(inside ? rope : p->root, inside ? where : p->where,
                             "original_max_position_embeddings", true, 1, (double)MAX_COUNT,
                             &c->rope_original_max_position);
}

static int parse_rope_type(struct parser *p, const struct ot_json *rope, const char *key, const char *where) {
    const char *type = NULL;
    OT_TRY(ot_json_need_string(rope, where, "type", false, &type)); /* the older key */
    OT_TRY(ot_json_need_string(rope, where, "rope_type", false, &type));
    if (!type && ot_json_get(rope, "factor"))
        return ot_fail(OT_E_INPUT, "%s: the key 'rope_type' is missing", where);
    if (!type || strcmp(type, "default") == 0)
        return 0;
    if (strcmp(type, "linear") == 0)
        p->config->rope_scaling = OT_ROPE_LINEAR;
    else if (strcmp(type, "llama3") == 0)
        p->config->rope_scaling = OT_ROPE_LLAMA3;
    else
        return ot_fail(OT_E_INPUT, "%s: %s of type '%s' is not supported; known: default, linear, llama3",
                       p->where, key, type);
    return parse_rope_numbers(p, rope, where);
}

/* Attention of these families rotates whole heads. transformers ignores the key, but fails if the rope is
 * scaled, because its tables are then too short. */
static int refuse_partial_rope(const struct parser *p, const struct ot_json *rope, const char *where) {
    double fraction = 1;
    if (p->config->rope_scaling == OT_ROPE_PLAIN)
        return 0;
    OT_TRY(ot_json_need_real(p->root, p->where, "partial_rotary_factor", false, 0, 1, &fraction));
    OT_TRY(ot_json_need_real(rope, where, "partial_rotary_factor", false, 0, 1, &fraction));
    if (fraction == 1)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: partial_rotary_factor %g with a scaled rope is not supported for model type '%s'",
                   where, fraction, p->family->model_type);
}

static int parse_rope(struct parser *p) {
    struct ot_model_config *c = p->config;
    const char *key = ot_json_get(p->root, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    const struct ot_json *rope = ot_json_get(p->root, key);
    char where[512];
    snprintf(where, sizeof where, "%s: %s", p->where, key);
    c->rope_theta = p->family->rope_theta_if_absent;
    c->rope_scaling = OT_ROPE_PLAIN;
    OT_TRY(ot_json_need_real(p->root, p->where, "rope_theta", false, 1, 1e12, &c->rope_theta));
    if (rope) {
        OT_TRY(ot_json_need_real(rope, where, "rope_theta", false, 1, 1e12, &c->rope_theta));
        OT_TRY(parse_rope_type(p, rope, key, where));
        if (ot_json_get(rope, "full_attention") || ot_json_get(rope, "sliding_attention"))
            return ot_fail(OT_E_INPUT, "%s: different rope parameters for each layer type are not supported",
                           where);
    }
    c->rotary_dim = c->head_dim;
    return refuse_partial_rope(p, rope, where);
}

/* ---- dtype and ids ---- */

static const struct {
    const char *name;
    enum ot_dtype dtype;
} dtypes[] = {{"float32", OT_F32}, {"bfloat16", OT_BF16}, {"float16", OT_F16}};

const char *ot_torch_dtype_name(enum ot_dtype dtype) {
    size_t i = 0;
    while (dtypes[i].dtype != dtype)
        i++;
    return dtypes[i].name;
}

static int parse_dtype(struct parser *p, struct ot_config_file *out) {
    const char *key = ot_json_get(p->root, "dtype") ? "dtype" : "torch_dtype", *name = NULL;
    OT_TRY(ot_json_need_string(p->root, p->where, key, false, &name));
    if (!name || strcmp(name, "auto") == 0)
        return 0;
    if (strncmp(name, "torch.", 6) == 0)
        name += 6;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            out->dtype = dtypes[i].dtype;
            out->has_dtype = true;
            return 0;
        }
    return ot_fail(OT_E_INPUT, "%s: %s '%s' is not supported; known: float32, bfloat16, float16", p->where,
                   key, name);
}

static int parse_id(const struct ot_json *value, const char *where, const char *key, int64_t vocab,
                    int32_t *id) {
    int64_t number = ot_json_int(value, -1);
    if (ot_json_type(value) != OT_JSON_INT || number < 0 || number >= vocab)
        return ot_fail(OT_E_INPUT, "%s: %s must be a token id from 0 to %lld, the vocabulary's last", where,
                       key, (long long)vocab - 1);
    *id = (int32_t)number;
    return 0;
}

int ot_token_ids_parse(const struct ot_json *root, const char *where, int64_t vocab,
                       struct ot_token_ids *ids) {
    const struct ot_json *bos = ot_json_get(root, "bos_token_id"), *eos = ot_json_get(root, "eos_token_id");
    if (bos)
        OT_TRY(parse_id(bos, where, "bos_token_id", vocab, &ids->bos));
    if (!eos)
        return 0;
    if (ot_json_type(eos) != OT_JSON_ARRAY) {
        ids->n_eos = 1;
        return parse_id(eos, where, "eos_token_id", vocab, &ids->eos[0]);
    }
    if (ot_json_length(eos) > OT_MAX_EOS)
        return ot_fail(OT_E_INPUT, "%s: eos_token_id lists %zu ids, at most %d are supported", where,
                       ot_json_length(eos), OT_MAX_EOS);
    ids->n_eos = (int)ot_json_length(eos);
    for (int i = 0; i < ids->n_eos; i++)
        OT_TRY(parse_id(ot_json_at(eos, (size_t)i), where, "eos_token_id", vocab, &ids->eos[i]));
    return 0;
}

int ot_model_config_parse(const struct ot_json *root, const char *where, struct ot_config_file *out) {
    struct parser p = {.root = root, .where = where, .config = &out->config};
    *out = (struct ot_config_file){.dtype = OT_BF16, .ids = {.bos = -1}};
    if (ot_json_type(root) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: the file holds %s, not a JSON object", where,
                       ot_json_type_name(ot_json_type(root)));
    OT_TRY(parse_family(&p));
    OT_TRY(parse_flags(&p));
    OT_TRY(parse_sizes(&p));
    OT_TRY(parse_norm_and_act(&p));
    OT_TRY(parse_window(&p));
    OT_TRY(parse_rope(&p));
    OT_TRY(ot_model_config_check(&out->config, where));
    OT_TRY(ot_json_need_real(root, where, "attention_dropout", false, 0, 1, &out->attention_dropout));
    OT_TRY(parse_dtype(&p, out));
    if (ot_json_get(root, "quantization_config"))
        OT_TRY(ot_quantization_parse(ot_json_get(root, "quantization_config"), where, &out->quantized));
    return ot_token_ids_parse(root, where, out->config.vocab, &out->ids);
}

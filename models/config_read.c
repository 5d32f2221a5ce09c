/* Reads config.json as a model's description: the keys that families share. families.c has the others. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/family.h"
#include "models/rope.h"
#include "src/base/error.h"
#include "src/base/json.h"

/* Counts in a config are limited here only so that products do not overflow. ot_model_config_check does the
 * real checks. */
#define MAX_COUNT INT64_C(0x7fffffff)

/* ---- keys ---- */

int ot_config_refuse_null(const struct ot_json *object, const char *where, const char *key) {
    if (ot_json_has(object, key) && !ot_json_get(object, key))
        return ot_fail(
            OT_E_INPUT,
            "%s: key '%s' is null, which says nothing; give its value, or remove it for the default", where,
            key);
    return 0;
}

int ot_config_int(const struct ot_config_reader *r, const char *key, int64_t min, int64_t max, int64_t *out) {
    OT_TRY(ot_config_refuse_null(r->root, r->where, key));
    return ot_json_need_int(r->root, r->where, key, false, min, max, out);
}

int ot_config_real(const struct ot_config_reader *r, const char *key, double min, double max, double *out) {
    OT_TRY(ot_config_refuse_null(r->root, r->where, key));
    return ot_json_need_real(r->root, r->where, key, false, min, max, out);
}

int ot_config_bool(const struct ot_config_reader *r, const char *key, bool *out) {
    OT_TRY(ot_config_refuse_null(r->root, r->where, key));
    return ot_json_need_bool(r->root, r->where, key, false, out);
}

int ot_config_string(const struct ot_config_reader *r, const char *key, const char **out) {
    OT_TRY(ot_config_refuse_null(r->root, r->where, key));
    return ot_json_need_string(r->root, r->where, key, false, out);
}

int ot_config_bool_or_null(const struct ot_config_reader *r, const char *key, bool *out) {
    if (ot_json_has(r->root, key))
        *out = false;
    return ot_json_need_bool(r->root, r->where, key, false, out);
}

/* ---- model family ---- */

static const struct ot_family_row *find_architecture(const char *name) {
    for (int i = 0; i < OT_FAMILY_COUNT; i++)
        if (strcmp(ot_family_row((enum ot_family)i)->architecture, name) == 0)
            return ot_family_row((enum ot_family)i);
    return NULL;
}

static int read_family(struct ot_config_reader *r) {
    const char *type = NULL;
    OT_TRY(ot_json_need_string(r->root, r->where, "model_type", false, &type));
    const char *architecture = ot_json_string(ot_json_at(ot_json_get(r->root, "architectures"), 0), NULL);
    if (!type && !architecture)
        return ot_fail(
            OT_E_INPUT,
            "%s: the key 'model_type' is missing; this is not the config.json of a Hugging Face model",
            r->where);
    r->family = type ? ot_family_find(type) : find_architecture(architecture);
    if (!r->family)
        return ot_fail(OT_E_INPUT, "%s: %s '%s' is not supported; known model types: %s", r->where,
                       type ? "model_type" : "architecture", type ? type : architecture,
                       ot_family_known_types());
    if (architecture && strcmp(architecture, r->family->architecture) != 0)
        return ot_fail(OT_E_INPUT,
                       "%s: architecture '%s' is not supported; a model of type '%s' must be a %s", r->where,
                       architecture, r->family->model_type, r->family->architecture);
    *r->config = r->family->base;
    r->config->family = r->family->family;
    return 0;
}

/* ---- sizes ---- */

/* The first of `names` (the list ends with NULL) that is present and not null. If none is, the first that is
 * null, else names[0]. */
static const char *present_key(const struct ot_config_reader *r, const char *const *names) {
    const char *null_key = NULL;
    for (int i = 0; names[i]; i++) {
        if (ot_json_get(r->root, names[i]))
            return names[i];
        if (!null_key && ot_json_has(r->root, names[i]))
            null_key = names[i];
    }
    return null_key ? null_key : names[0];
}

/* Sizes that were left out, and that follow from others. */
static int default_sizes(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    if (c->ffn == 0)
        c->ffn = 4 * c->hidden;
    if (c->n_kv_heads == 0)
        c->n_kv_heads = c->n_heads;
    if (c->plain_mlp) /* transformers ignores the key in these families */
        c->head_dim = 0;
    if (c->head_dim != 0)
        return 0;
    if (c->hidden % c->n_heads != 0)
        return ot_fail(
            OT_E_INPUT,
            "%s: head_dim is absent, and hidden_size %lld is not a multiple of num_attention_heads %lld",
            r->where, (long long)c->hidden, (long long)c->n_heads);
    c->head_dim = c->hidden / c->n_heads;
    return 0;
}

static int read_sizes(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    const struct ot_family_row *family = r->family;
    const struct {
        const char *names[5];
        bool can_miss;    /* default_sizes knows it */
        bool can_be_null; /* null stands for that which default_sizes knows */
        int64_t *value;
    } sizes[] = {
        {{"num_hidden_layers", "n_layer", "n_layers", "num_layers", NULL}, false, false, &c->n_layers},
        {{"hidden_size", "n_embd", "n_embed", "d_model", NULL}, false, false, &c->hidden},
        {{"intermediate_size", "ffn_hidden_size", "n_inner", "d_ff", NULL},
         c->plain_mlp,
         c->plain_mlp,
         &c->ffn},
        {{"num_attention_heads", "n_head", "n_heads", "num_heads", NULL}, false, false, &c->n_heads},
        {{"num_key_value_heads", "num_kv_heads", "n_head_kv", NULL},
         true,
         family->kv_heads_or_null,
         &c->n_kv_heads},
        {{"head_dim", "d_kv", NULL}, true, family->head_dim_or_null || c->plain_mlp, &c->head_dim},
        {{"vocab_size", NULL}, false, false, &c->vocab},
        {{"max_position_embeddings", "n_positions", "n_ctx", "seq_length", NULL},
         false,
         false,
         &c->max_position},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *key = present_key(r, sizes[i].names);
        if (!sizes[i].can_be_null)
            OT_TRY(ot_config_refuse_null(r->root, r->where, key));
        else if (ot_json_has(r->root, key))
            *sizes[i].value = 0;
        OT_TRY(ot_json_need_int(r->root, r->where, key, !sizes[i].can_miss && *sizes[i].value == 0, 1,
                                MAX_COUNT, sizes[i].value));
    }
    return default_sizes(r);
}

static int read_act(const struct ot_config_reader *r) {
    static const struct {
        const char *name;
        enum ot_activation act;
    } acts[] = {{"silu", OT_ACT_SILU},
                {"swish", OT_ACT_SILU},
                {"gelu", OT_ACT_GELU_ERF},
                {"gelu_new", OT_ACT_GELU_TANH},
                {"gelu_pytorch_tanh", OT_ACT_GELU_TANH},
                {"relu", OT_ACT_RELU}};
    const char *act = NULL, *key = r->family->act_keys[0] ? present_key(r, r->family->act_keys) : NULL;
    if (key)
        OT_TRY(ot_config_string(r, key, &act));
    if (!act)
        return 0;
    for (size_t i = 0; i < sizeof acts / sizeof *acts; i++)
        if (strcmp(act, acts[i].name) == 0) {
            r->config->act = acts[i].act;
            return 0;
        }
    return ot_fail(
        OT_E_INPUT,
        "%s: %s '%s' is not supported; known: silu, swish, gelu, gelu_new, gelu_pytorch_tanh, relu", r->where,
        key, act);
}

static int read_norm(const struct ot_config_reader *r) {
    static const char *const keys[] = {"rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", NULL};
    struct ot_model_config *c = r->config;
    double eps = (double)c->norm_eps;
    OT_TRY(ot_config_real(r, present_key(r, keys), 0, 1, &eps));
    c->norm_eps = (float)eps;
    return ot_config_real(r, "initializer_range", 0, 1e3, &c->init_std);
}

static int read_flags(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    bool attention_bias = false;
    OT_TRY(r->family->family == OT_FAMILY_T5
               ? ot_json_need_bool(r->root, r->where, "tie_word_embeddings", false, &c->tied)
               : ot_config_bool(r, "tie_word_embeddings", &c->tied));
    if (r->family->attention_bias)
        OT_TRY(ot_config_bool(r, "attention_bias", &attention_bias));
    if (r->family->mlp_bias)
        OT_TRY(ot_config_bool(r, "mlp_bias", &c->mlp_bias));
    c->qkv_bias = c->qkv_bias || attention_bias;
    c->out_bias = c->out_bias || attention_bias;
    return 0;
}

/* ---- attention window ---- */

static int read_layer_type(const struct ot_config_reader *r, const struct ot_json *types, int64_t layer,
                           bool *slides) {
    const char *type = ot_json_string(ot_json_at(types, (size_t)layer), NULL);
    *slides = type && strcmp(type, "sliding_attention") == 0;
    if (*slides || (type && strcmp(type, "full_attention") == 0))
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: layer_types[%lld] '%s' is not supported; known: full_attention, sliding_attention",
                   r->where, (long long)layer, type ? type : "");
}

/* If the layers are the last ones, window_first_layer says it; else window_layers has them. */
void ot_config_set_window_layers(struct ot_model_config *c, const struct ot_layer_set *slides) {
    int64_t first = c->n_layers, n = 0;
    for (int64_t l = c->n_layers - 1; l >= 0; l--)
        if (ot_layer_set_has(slides, l)) {
            first = l;
            n++;
        }
    c->window_by_layer = n < c->n_layers - first;
    c->window_first_layer = c->window_by_layer ? 0 : first;
    c->window_layers = c->window_by_layer ? *slides : (struct ot_layer_set){0};
    c->window = n > 0 ? c->window : 0;
}

/* transformers 5 lists the type of each layer. */
static int read_layer_types(const struct ot_config_reader *r, const struct ot_json *types) {
    struct ot_model_config *c = r->config;
    struct ot_layer_set slides = {0};
    int64_t n_sliding = 0;
    if ((int64_t)ot_json_length(types) != c->n_layers)
        return ot_fail(OT_E_INPUT, "%s: layer_types must be a list of num_hidden_layers (%lld) entries",
                       r->where, (long long)c->n_layers);
    for (int64_t i = 0; i < c->n_layers; i++) {
        bool has;
        OT_TRY(read_layer_type(r, types, i, &has));
        if (has)
            ot_layer_set_add(&slides, i);
        n_sliding += has;
    }
    if (n_sliding > 0 && c->window == 0)
        return ot_fail(OT_E_INPUT,
                       "%s: layer_types has sliding_attention, but the sliding window is off (see "
                       "sliding_window, use_sliding_window)",
                       r->where);
    if (n_sliding < c->n_layers && c->window > 0 && r->family->window == OT_WINDOW_ALL)
        return ot_fail(
            OT_E_INPUT,
            "%s: layer_types has full_attention, but a model of type '%s' has a sliding window in every "
            "layer; set sliding_window to null for full attention",
            r->where, r->family->model_type);
    ot_config_set_window_layers(c, &slides);
    return 0;
}

/* The layers with a window where layer_types is absent. */
static int default_window_layers(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    struct ot_layer_set slides = {0};
    int64_t pattern = r->family->window_pattern;
    if (r->family->window == OT_WINDOW_TYPES) {
        OT_TRY(ot_config_int(r, "sliding_window_pattern", 1, MAX_COUNT, &pattern));
        for (int64_t l = 0; l < c->n_layers; l++)
            if (pattern == 0 || (l + 1) % pattern != 0)
                ot_layer_set_add(&slides, l);
        if (c->window == 0 && pattern > 1)
            return ot_fail(
                OT_E_INPUT,
                "%s: sliding_window is null, but layer_types is absent and some layers of a model of "
                "type '%s' then have a window; give layer_types for full attention",
                r->where, r->family->model_type);
        ot_config_set_window_layers(c, &slides);
    }
    return 0;
}

static int read_window(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    const struct ot_json *types = ot_json_get(r->root, "layer_types");
    enum ot_window_rule rule = r->family->window;
    bool by_flag = rule == OT_WINDOW_FLAG || rule == OT_WINDOW_SWITCH || rule == OT_WINDOW_NO_ROPE;
    bool use = !by_flag;
    if (rule == OT_WINDOW_NONE)
        return 0;
    if (ot_json_has(r->root, "sliding_window")) /* null: no window */
        c->window = 0;
    OT_TRY(ot_json_need_int(r->root, r->where, "sliding_window", false, 1, MAX_COUNT, &c->window));
    if (by_flag)
        OT_TRY(ot_config_bool(r, "use_sliding_window", &use));
    if (rule == OT_WINDOW_FLAG) {
        c->window_first_layer = r->family->max_window_layers;
        OT_TRY(ot_config_int(r, "max_window_layers", 0, MAX_COUNT, &c->window_first_layer));
    }
    if (!use)
        c->window = 0;
    if (c->n_layers <= OT_MODEL_MAX_LAYERS) /* ot_model_config_check refuses more */
        OT_TRY(types ? read_layer_types(r, types) : default_window_layers(r));
    if (c->window_first_layer >= c->n_layers)
        c->window = 0;
    if (c->window == 0)
        c->window_first_layer = 0;
    return 0;
}

/* ---- dropouts ---- */

/* null: as if it were absent. */
static int read_drop(const struct ot_config_reader *r, const char *key, float *out) {
    double drop = (double)*out;
    if (key)
        OT_TRY(ot_json_need_real(r->root, r->where, key, false, 0, 1, &drop));
    *out = (float)drop;
    return 0;
}

static int read_drops(const struct ot_config_reader *r) {
    struct ot_model_config *c = r->config;
    const char *attention = r->family->drop_keys.attention;
    OT_TRY(read_drop(r, r->family->drop_keys.embed, &c->embed_drop));
    OT_TRY(read_drop(r, attention ? attention : "attention_dropout", &c->attention_drop));
    OT_TRY(read_drop(r, r->family->drop_keys.branches, &c->o_drop));
    return read_drop(r, r->family->drop_keys.branches, &c->mlp_drop);
}

/* ---- all ---- */

const struct ot_json *ot_model_config_text_part(const struct ot_json *root) {
    static const char *const types[] = {"gemma3", "mistral3"};
    const char *type = ot_json_string(ot_json_get(root, "model_type"), NULL);
    const struct ot_json *part = ot_json_get(root, "text_config");
    for (size_t i = 0; type && part && i < sizeof types / sizeof *types; i++)
        if (strcmp(type, types[i]) == 0)
            return part;
    return NULL;
}

int ot_model_config_read(const struct ot_json *root, const char *where, struct ot_model_config *out) {
    const struct ot_json *part = ot_model_config_text_part(root);
    struct ot_config_reader r = {.root = part ? part : root, .where = where, .config = out};
    char inside[512];
    if (part) {
        snprintf(inside, sizeof inside, "%s: text_config", where);
        r.where = where = inside;
        root = part;
    }
    if (ot_json_type(root) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: the file holds %s, not a JSON object", where,
                       ot_json_type_name(ot_json_type(root)));
    OT_TRY(read_family(&r));
    OT_TRY(read_flags(&r));
    OT_TRY(read_sizes(&r));
    OT_TRY(read_norm(&r));
    OT_TRY(read_act(&r));
    OT_TRY(read_window(&r));
    OT_TRY(read_drops(&r));
    OT_TRY(ot_rope_config_read(&r));
    if (r.family->read && out->n_layers <= OT_MODEL_MAX_LAYERS)
        OT_TRY(r.family->read(&r));
    return ot_model_config_check(out, where);
}

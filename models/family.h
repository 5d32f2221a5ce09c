/* Families: transformers' names for the tensors of a model and the keys of its config.json, and the meaning
 * of absent keys. families.c has one row for each; functions add the facts that a row cannot hold.
 *
 * Sources: the configuration and modelling classes of transformers (models/FAMILY), and the config.json of
 * published models.
 */
#ifndef OT_MODELS_FAMILY_H
#define OT_MODELS_FAMILY_H

#include <stddef.h>

#include "models/config.h"

struct ot_json;
struct ot_json_writer;

/* ---- tensors ---- */

/* The role of a module in the model. Those from OT_MODULE_Q to OT_MODULE_DOWN are linear maps of a layer. */
enum ot_module {
    OT_MODULE_EMBEDDING,
    OT_MODULE_POSITIONS, /* the table of learned positions */
    OT_MODULE_EMBED_NORM,
    OT_MODULE_ENCODER_BIAS, /* the table of position biases of an encoder, and of a decoder */
    OT_MODULE_DECODER_BIAS,
    OT_MODULE_ENCODER_NORM, /* the last norm of an encoder */
    OT_MODULE_Q,
    OT_MODULE_K,
    OT_MODULE_V,
    OT_MODULE_QKV, /* q, k and v as one matrix */
    OT_MODULE_O,
    OT_MODULE_CROSS_Q, /* of a decoder's attention to the encoder's output */
    OT_MODULE_CROSS_K,
    OT_MODULE_CROSS_V,
    OT_MODULE_CROSS_O,
    OT_MODULE_GATE,
    OT_MODULE_UP,
    OT_MODULE_GATE_UP, /* gate and up as one matrix, gate first */
    OT_MODULE_DOWN,
    OT_MODULE_ROUTER,
    OT_MODULE_EXPERT_GATE, /* of each expert, whose number stands for the * in the name */
    OT_MODULE_EXPERT_UP,
    OT_MODULE_EXPERT_DOWN,
    OT_MODULE_EXPERTS_GATE_UP, /* of all experts, as one tensor [experts, in, out] (gpt-oss) */
    OT_MODULE_EXPERTS_DOWN,
    OT_MODULE_SINKS,
    OT_MODULE_Q_NORM,
    OT_MODULE_K_NORM,
    OT_MODULE_CROSS_NORM, /* before that attention */
    OT_MODULE_NORM1,      /* before attention; with OT_PARALLEL also before the MLP */
    OT_MODULE_NORM2,      /* before the MLP */
    OT_MODULE_POST1,      /* behind attention */
    OT_MODULE_POST2,      /* behind the MLP */
    OT_MODULE_NORM,       /* the last norm */
    OT_MODULE_HEAD,
    OT_MODULES
};

static inline bool ot_module_is_map(enum ot_module module) {
    return module >= OT_MODULE_Q && module <= OT_MODULE_DOWN;
}
static inline bool ot_module_is_expert(enum ot_module module) {
    return module >= OT_MODULE_EXPERT_GATE && module <= OT_MODULE_EXPERTS_DOWN;
}
static inline bool ot_module_is_norm(enum ot_module module) {
    return module == OT_MODULE_EMBED_NORM || module == OT_MODULE_ENCODER_NORM ||
           (module >= OT_MODULE_Q_NORM && module <= OT_MODULE_NORM);
}
static inline bool ot_module_is_in_layer(enum ot_module module) {
    return module >= OT_MODULE_Q && module <= OT_MODULE_POST2;
}

struct ot_family_names {
    const char *layers; /* in front of a layer's number: "model.layers." */
    /* Without ".weight" and ".bias"; of modules in layers without "model.layers.3." too. A family has QKV or
     * Q, K and V, and GATE_UP or GATE and UP. If it has experts, it has EXPERT_GATE, EXPERT_UP and
     * EXPERT_DOWN, or EXPERTS_GATE_UP and EXPERTS_DOWN, whose tensors end in "" and "_bias". NULL: the family
     * has no such module. */
    const char *modules[OT_MODULES];
    /* Matrices of layers are stored as [in, out] (the Conv1D of GPT-2). */
    bool transposed;
};

/* ---- config.json ---- */

/* The way in which config.json names the layers with a sliding window. */
enum ot_window_rule {
    OT_WINDOW_NONE,   /* no layer: the key is ignored */
    OT_WINDOW_ALL,    /* sliding_window, in all layers */
    OT_WINDOW_FLAG,   /* if use_sliding_window is true, in layers max_window_layers and later (Qwen) */
    OT_WINDOW_SWITCH, /* if use_sliding_window is true, in all layers (Qwen3-MoE) */
    OT_WINDOW_TYPES,  /* layer_types, else all layers but each window_pattern-th */
    OT_WINDOW_NO_ROPE /* if use_sliding_window is true, in layers that do not rotate (SmolLM3) */
};

/* config.json while it is read. */
struct ot_config_reader {
    const struct ot_json *root;
    const char *where; /* its path, for messages */
    const struct ot_family_row *family;
    struct ot_model_config *config;
};

struct ot_family_row {
    enum ot_family family;
    const char *model_type;   /* config.json: "llama" */
    const char *architecture; /* config.json: "LlamaForCausalLM" */
    const struct ot_family_names *names;
    const struct ot_family_names *names_of_two; /* of models with OT_PARALLEL_TWO; NULL: as names */
    /* The names of a layer's modules, if they depend on the layer. NULL: as names. */
    const struct ot_family_names *(*names_of_layer)(const struct ot_model_config *config, int64_t layer);
    /* Facts that no key states, and the defaults of absent keys. A size of 0: the key is required; but 0 in
     * ffn, n_kv_heads and head_dim means 4 times hidden, n_heads, hidden / n_heads. */
    struct ot_model_config base;
    /* Which keys the family has besides the sizes, theta, init_std and tied. A key that it does not have is
     * ignored, as transformers does. */
    bool attention_bias, mlp_bias; /* these keys; attention_bias sets qkv_bias and out_bias */
    bool partial_rotary;           /* partial_rotary_factor */
    bool head_dim_or_null;         /* head_dim may be null: hidden / n_heads */
    bool kv_heads_or_null;         /* num_key_value_heads may be null: n_heads */
    const char *act_keys[3];       /* names of the activation's key; none: base.act */
    /* Keys of dropouts: of the embedding, of attention's weights, and of what a layer adds. NULL: there is
     * none; of attention's weights "attention_dropout". */
    struct {
        const char *embed, *attention, *branches;
    } drop_keys;
    enum ot_window_rule window;
    int64_t window_pattern, max_window_layers;
    /* Reads the remaining keys, after all others. NULL: there are none. Errors: OT_E_INPUT. */
    int (*read)(const struct ot_config_reader *reader);
    /* Writes the keys that `read` reads. NULL: none. If the family has writes_all, they are all keys but the
     * architecture and the type. */
    void (*write)(const struct ot_model_config *config, struct ot_json_writer *writer);
    bool writes_all;
};

/* Typed access to a key of config.json. If the key is missing, *out keeps its value. A key that is null is
 * refused, as transformers refuses it: only where its classes take None for a value does a family read the
 * key otherwise. Errors: OT_E_INPUT (also: another type, a value outside [min, max]). */
int ot_config_int(const struct ot_config_reader *reader, const char *key, int64_t min, int64_t max,
                  int64_t *out);
int ot_config_real(const struct ot_config_reader *reader, const char *key, double min, double max,
                   double *out);
int ot_config_bool(const struct ot_config_reader *reader, const char *key, bool *out);
int ot_config_string(const struct ot_config_reader *reader, const char *key, const char **out);
/* Fails if the key is there and null. where: the place of `object`. Error OT_E_INPUT. */
int ot_config_refuse_null(const struct ot_json *object, const char *where, const char *key);
/* Reads the flag of a class for which None is false. Error OT_E_INPUT. */
int ot_config_bool_or_null(const struct ot_config_reader *reader, const char *key, bool *out);

/* Gives the sliding window to these layers. No layer: no window. */
void ot_config_set_window_layers(struct ot_model_config *config, const struct ot_layer_set *layers);

/* Fails if a flag of config.json is not `value`, which is also its default. Error OT_E_INPUT. */
int ot_config_need_flag(const struct ot_config_reader *reader, const char *key, bool value);

const struct ot_family_row *ot_family_row(enum ot_family family);
const struct ot_family_row *ot_family_find(const char *model_type); /* NULL if unknown */
const char *ot_family_known_types(void); /* "bloom, codegen, ...", for error messages */
/* The names of a model's modules. The first function has those of one layer. */
const struct ot_family_names *ot_model_layer_names(const struct ot_model_config *config, int64_t layer);
const struct ot_family_names *ot_model_names(const struct ot_model_config *config);
/* Writes the name of a module, with its layer if it lies in one: "model.layers.3.self_attn.q_proj". In the
 * name of an expert's module, * stands for the expert's number. False: the family has no such module. */
bool ot_model_module_name(const struct ot_model_config *config, enum ot_module module, int64_t layer,
                          char *name, size_t bytes);
/* The same for a module of one expert. */
bool ot_model_expert_name(const struct ot_model_config *config, enum ot_module module, int64_t layer,
                          int64_t expert, char *name, size_t bytes);
/* Writes transformers 5's name for the parameter of a layer's experts, which may differ from the files':
 * "model.layers.3.mlp.experts.gate_up_proj", or down_proj. module: OT_MODULE_EXPERTS_GATE_UP or _DOWN. */
void ot_model_experts_parameter(const struct ot_model_config *config, enum ot_module module, int64_t layer,
                                char *name, size_t bytes);
/* The layer that a tensor or a module lies in, by its name; -1: in none. */
int64_t ot_model_layer_of(const struct ot_model_config *config, const char *name);

/* The config.json of a model of text and images that has a model of text inside: the object text_config.
 * NULL: the model has only text. */
const struct ot_json *ot_model_config_text_part(const struct ot_json *root);
/* Reads the description of a model from config.json, or from a table of the same keys. where: its path, for
 * messages. Accepts the key names of old and new transformers. Whatever would make results differ from
 * transformers is refused by name: an unknown model_type, architecture, rope type or activation. Of a model
 * of text and images (ot_model_config_text_part), the text part. The result is checked
 * (ot_model_config_check). Errors: OT_E_INPUT. */
int ot_model_config_read(const struct ot_json *root, const char *where, struct ot_model_config *out);
/* Writes the keys of a config.json that transformers 4 and 5 both read as this model, without braces. */
void ot_model_config_put(const struct ot_model_config *config, struct ot_json_writer *writer);

/* The shortest decimal number that reads back as this float: 1e-06, not 9.99999997e-07. */
double ot_config_decimal(float value);

/* Stretches the context of a model, as a person says it: "yarn:4", "linear:2" or "dynamic:4". max_position
 * grows by the factor (dynamic: ot_model_longest_row does). A scaling that the model has already: YaRN
 * replaces one of type llama3, over its original positions; linear, llama3 and yarn multiply the factor of
 * one of their own type. Errors: OT_E_USAGE (another text; the model has no rope, or a scaling that this one
 * cannot replace). */
int ot_model_config_scale_rope(struct ot_model_config *config, const char *text);
/* True if both have the same rope. */
bool ot_model_config_same_rope(const struct ot_model_config *a, const struct ot_model_config *b);
/* True for the keys of config.json that ot_model_config_put_rope writes, in all their spellings. */
bool ot_model_config_is_rope_key(const char *key);
void ot_model_config_put_rope(const struct ot_model_config *config, struct ot_json_writer *writer);

/* ---- presets: known models ---- */

struct ot_preset {
    const char *name;   /* "llama-7b" */
    const char *hub_id; /* "huggyllama/llama-7b", or NULL for this program's own presets */
    int64_t n_params;   /* exact */
    struct ot_model_config config;
};
const struct ot_preset *ot_preset_find(const char *name); /* NULL if unknown */
/* The preset of the same model under another spelling: its hub id, or its name or the id's last part, in
 * any case and without regard to hyphens, underscores and dots ("Llama-3.1-8B", "llama13b"). NULL if none. */
const struct ot_preset *ot_preset_spelled(const char *name);
/* The preset of the same shape: also from another organisation, and of models that were trained further
 * ("unsloth/Llama-3.1-8B-Instruct"). NULL if none. */
const struct ot_preset *ot_preset_shaped(const char *name);
const struct ot_preset *ot_preset_at(int index); /* NULL past the last */

#endif

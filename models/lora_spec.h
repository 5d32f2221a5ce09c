/* Which modules of a model have adapters, as a person says it:
 *
 *     r=16,alpha=32,dropout=0.05,rslora,targets=q_proj,v_proj,r:down_proj=8,alpha:down_proj=16
 *
 *     r            rank of all adapters; default 16
 *     alpha        numerator of their scale (lora.h); default twice the rank of the adapter
 *     dropout      default 0
 *     rslora       scale alpha / sqrt(r) instead of alpha / r
 *     dora         also trains the magnitude of each row (DoRA, lora.h)
 *     lr-ratio     the learning rate of B, divided by that of A (LoRA+, lora.h); default 1
 *     targets      all-linear (the default: all linear maps of the layers), or names of modules. A word
 *                  without '=' after it is one more target
 *     r:NAME       rank of the modules with this name
 *     alpha:NAME   their alpha
 *
 * A name is a module's whole name, as in lora.h, or the end of it after a point: q_proj, self_attn.q_proj,
 * model.layers.3.self_attn.q_proj. This is how PEFT matches target_modules, rank_pattern and alpha_pattern.
 * If several patterns match a module, the first one counts. An empty text means the defaults.
 *
 * In a model with experts, all-linear is the maps of attention (ot_model_can_adapt). The experts of a layer
 * are two modules, mlp.experts.gate_up_proj and mlp.experts.down_proj (ot_model_experts_parameter). A text
 * names them explicitly, at least as experts.down_proj: down_proj alone could be the map of an MLP. PEFT
 * calls them target_parameters. */
#ifndef OT_MODELS_LORA_SPEC_H
#define OT_MODELS_LORA_SPEC_H

#include <stddef.h>

#include "models/lora.h"

struct ot_model_config;

struct ot_lora_spec {
    const char *text; /* borrowed */
    int64_t rank;
    double alpha;        /* 0: twice the adapter's rank */
    struct ot_lora lora; /* for ot_model_setup; borrows the spec, which must stay where it is */
};

/* Reads the text. Errors: OT_E_USAGE; the message quotes the wrong part. */
int ot_lora_spec_read(const char *text, struct ot_lora_spec *out);
/* Checks that every name of the spec is the name of a module that gets an adapter. Errors: OT_E_USAGE. */
int ot_lora_spec_check(const struct ot_lora_spec *spec, const struct ot_model_config *config);

/* A name in the text of a spec: not terminated. */
struct ot_lora_word {
    const char *text;
    int bytes;
};

/* True if the model has experts and the name, of this many bytes, means experts, their router, or a map of an
 * MLP (ot_model_can_adapt). Such a target module of PEFT has no adapter here. */
bool ot_lora_names_experts(const struct ot_model_config *config, const char *name, size_t bytes);

enum { OT_LORA_MODULE_BYTES = 64 };
/* The modules of a model that can have adapters, by index: the linear maps of each layer, then the head and
 * the embedding, then the two of each layer with experts. False: there are no more. */
bool ot_lora_module_at(const struct ot_model_config *config, int64_t index,
                       char module[OT_LORA_MODULE_BYTES]);
/* True if a word of a spec names experts, and no other module. */
bool ot_lora_word_is_of_experts(struct ot_lora_word word);

enum ot_lora_word_kind { OT_LORA_TARGET, OT_LORA_RANK_PATTERN, OT_LORA_ALPHA_PATTERN };
/* The next word of a kind; *at begins as spec->text. `value`: the rank or the alpha of a pattern. False:
 * there are no more. A spec for all linear maps has no targets. */
bool ot_lora_spec_next(const char **at, enum ot_lora_word_kind kind, struct ot_lora_word *out, double *value);

#endif

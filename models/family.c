/* Finds families, and names modules. */
#include "models/family.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"

const struct ot_family_row *ot_family_find(const char *model_type) {
    for (int i = 0; i < OT_FAMILY_COUNT; i++)
        if (strcmp(ot_family_row((enum ot_family)i)->model_type, model_type) == 0)
            return ot_family_row((enum ot_family)i);
    return NULL;
}

int ot_config_need_flag(const struct ot_config_reader *r, const char *key, bool value) {
    bool flag = value;
    OT_TRY(ot_config_bool(r, key, &flag));
    return flag == value
               ? 0
               : ot_fail(OT_E_INPUT, "%s: %s is %s; only %s is supported for models of type %s", r->where,
                         key, flag ? "true" : "false", value ? "true" : "false", r->family->model_type);
}

const char *ot_family_known_types(void) {
    return "llama, mistral, qwen2, qwen3, gpt2, bloom, falcon, codegen, phi3, gemma, gemma2, gemma3_text, "
           "olmo2, olmo3, smollm3, ministral, ministral3, granite, mixtral, qwen3_moe, gpt_oss, "
           "t5";
}

const struct ot_family_names *ot_model_names(const struct ot_model_config *config) {
    const struct ot_family_row *row = ot_family_row(config->family);
    return config->residual == OT_PARALLEL_TWO && row->names_of_two ? row->names_of_two : row->names;
}

const struct ot_family_names *ot_model_layer_names(const struct ot_model_config *config, int64_t layer) {
    const struct ot_family_row *row = ot_family_row(config->family);
    return row->names_of_layer && layer >= 0 ? row->names_of_layer(config, layer) : ot_model_names(config);
}

/* The layers of a decoder behind an encoder are counted from 0. */
static int64_t number_in_stack(const struct ot_model_config *config, int64_t layer) {
    return layer >= config->n_encoder_layers ? layer - config->n_encoder_layers : layer;
}

bool ot_model_module_name(const struct ot_model_config *config, enum ot_module module, int64_t layer,
                          char *name, size_t bytes) {
    bool is_in_layer = ot_module_is_in_layer(module);
    const struct ot_family_names *names = ot_model_layer_names(config, is_in_layer ? layer : -1);
    if (!names->modules[module])
        return false;
    if (is_in_layer)
        snprintf(name, bytes, "%s%lld.%s", names->layers, (long long)number_in_stack(config, layer),
                 names->modules[module]);
    else
        snprintf(name, bytes, "%s", names->modules[module]);
    return true;
}

bool ot_model_expert_name(const struct ot_model_config *config, enum ot_module module, int64_t layer,
                          int64_t expert, char *name, size_t bytes) {
    const char *pattern = ot_model_names(config)->modules[module];
    const char *star = pattern ? strchr(pattern, '*') : NULL;
    if (!star)
        return false;
    snprintf(name, bytes, "%s%lld.%.*s%lld%s", ot_model_names(config)->layers, (long long)layer,
             (int)(star - pattern), pattern, (long long)expert, star + 1);
    return true;
}

void ot_model_experts_parameter(const struct ot_model_config *config, enum ot_module module, int64_t layer,
                                char *name, size_t bytes) {
    snprintf(name, bytes, "%s%lld.mlp.experts.%s", ot_model_names(config)->layers, (long long)layer,
             module == OT_MODULE_EXPERTS_GATE_UP ? "gate_up_proj" : "down_proj");
}

/* The number behind a prefix; -1: there is none. */
static int64_t number_behind(const char *prefix, const char *name) {
    size_t bytes = strlen(prefix);
    bool is_number = strncmp(name, prefix, bytes) == 0 && name[bytes] >= '0' && name[bytes] <= '9';
    return is_number ? strtoll(name + bytes, NULL, 10) : -1;
}

int64_t ot_model_layer_of(const struct ot_model_config *config, const char *name) {
    int64_t layer = number_behind(ot_model_layer_names(config, 0)->layers, name);
    if (layer >= 0 || !ot_model_has_pairs(config))
        return layer;
    layer = number_behind(ot_model_layer_names(config, config->n_encoder_layers)->layers, name);
    return layer < 0 ? -1 : config->n_encoder_layers + layer;
}

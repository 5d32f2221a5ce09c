#include <string.h>

#include "models/model.h"

/* The defaults of absent keys are those of transformers' configuration classes (LlamaConfig, MistralConfig,
 * Qwen2Config, Qwen3Config). No key of config.json tells the qkv bias of Qwen2 and the q and k norms of
 * Qwen3: only transformers' modelling code has them. */
static const struct ot_family_row ROWS[] = {
    {
        .family = OT_FAMILY_LLAMA,
        .model_type = "llama",
        .architecture = "LlamaForCausalLM",
        .attention_bias = true,
        .mlp_bias = true,
        .norm_eps_if_absent = 1e-6,
        .rope_theta_if_absent = 1e4,
    },
    {
        .family = OT_FAMILY_MISTRAL,
        .model_type = "mistral",
        .architecture = "MistralForCausalLM",
        .norm_eps_if_absent = 1e-6,
        .rope_theta_if_absent = 1e4,
        .window_if_absent = 4096,
    },
    {
        .family = OT_FAMILY_QWEN2,
        .model_type = "qwen2",
        .architecture = "Qwen2ForCausalLM",
        .qkv_bias = true,
        .norm_eps_if_absent = 1e-6,
        .rope_theta_if_absent = 1e4,
        .window_if_absent = 4096,
        .window_by_flag = true,
        .max_window_layers_if_absent = 28,
    },
    {
        .family = OT_FAMILY_QWEN3,
        .model_type = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .qk_norm = true,
        .attention_bias = true,
        .norm_eps_if_absent = 1e-6,
        .rope_theta_if_absent = 1e4,
        .head_dim_if_absent = 128,
        .window_if_absent = 4096,
        .window_by_flag = true,
        .max_window_layers_if_absent = 28,
    },
};
_Static_assert(sizeof ROWS / sizeof ROWS[0] == OT_FAMILY_COUNT, "a row for each family, in enum order");

const struct ot_family_row *ot_family_row(enum ot_family family) {
    return &ROWS[family];
}

const struct ot_family_row *ot_family_find(const char *model_type) {
    for (int i = 0; i < OT_FAMILY_COUNT; i++)
        if (strcmp(ROWS[i].model_type, model_type) == 0)
            return &ROWS[i];
    return NULL;
}

const char *ot_family_known_types(void) {
    return "llama, mistral, qwen2, qwen3";
}

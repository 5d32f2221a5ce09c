#include "tests/gguf/families.h"

#include <stdio.h>
#include <string.h>

#include "src/base/json.h"
#include "tests/support/check.h"

/* The keys that all forms have. */
#define WIDTHS                                                                                               \
    "\"hidden_size\": 32, \"intermediate_size\": 64, \"num_attention_heads\": 4, \"vocab_size\": 64, "       \
    "\"max_position_embeddings\": 128, "
#define SIZES   WIDTHS "\"num_hidden_layers\": 12, "
#define GROUPED SIZES "\"num_key_value_heads\": 2, "
#define FEW     WIDTHS "\"num_key_value_heads\": 2, "
#define T5                                                                                                   \
    "\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 12, \"d_ff\": 64, \"num_heads\": 3, "                \
    "\"vocab_size\": 64, \"relative_attention_num_buckets\": 16, \"num_layers\": 11, "
#define FULL   "\"full_attention\""
#define SLIDES "\"sliding_attention\""

static const struct {
    const char *name, *keys;
} FORMS[] = {
    {"llama", GROUPED "\"model_type\": \"llama\", \"rms_norm_eps\": 1e-5"},
    {"llama_bias", GROUPED "\"model_type\": \"llama\", \"attention_bias\": true, \"mlp_bias\": true, "
                           "\"tie_word_embeddings\": true"},
    {"llama_linear", GROUPED "\"model_type\": \"llama\", \"rope_theta\": 1e6, \"rope_scaling\": "
                             "{\"rope_type\": \"linear\", \"factor\": 4.0}"},
    {"llama_yarn", GROUPED "\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"yarn\", "
                           "\"factor\": 4.0, \"original_max_position_embeddings\": 32}"},
    {"llama_yarn_factor", GROUPED "\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"yarn\", "
                                  "\"factor\": 4.0, \"attention_factor\": 1.3}"},
    {"llama_longrope",
     GROUPED "\"model_type\": \"llama\", \"rope_scaling\": {\"rope_type\": \"longrope\", \"factor\": 4.0, "
             "\"original_max_position_embeddings\": 32, \"short_factor\": [1, 1.1, 1.25, 2], "
             "\"long_factor\": [1.5, 3.3, 4, 9]}"},
    {"mistral", GROUPED "\"model_type\": \"mistral\", \"sliding_window\": 48"},
    {"qwen2", GROUPED "\"model_type\": \"qwen2\", \"tie_word_embeddings\": true"},
    {"qwen3", GROUPED "\"model_type\": \"qwen3\", \"head_dim\": 16"},
    {"gpt2", "\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_inner\": 72, \"n_layer\": 12, \"n_head\": 4, "
             "\"vocab_size\": 64, \"n_positions\": 128"},
    {"gpt2_untied", "\"model_type\": \"gpt2\", \"n_embd\": 32, \"n_layer\": 2, \"n_head\": 4, "
                    "\"vocab_size\": 64, \"n_positions\": 128, \"tie_word_embeddings\": false"},
    {"bloom", "\"model_type\": \"bloom\", \"hidden_size\": 32, \"n_layer\": 12, \"n_head\": 4, "
              "\"vocab_size\": 64"},
    {"falcon", SIZES "\"model_type\": \"falcon\""},
    {"falcon_heads", SIZES "\"model_type\": \"falcon\", \"multi_query\": false"},
    {"falcon_two",
     SIZES "\"model_type\": \"falcon\", \"num_kv_heads\": 2, \"new_decoder_architecture\": true"},
    {"falcon_one",
     SIZES "\"model_type\": \"falcon\", \"num_kv_heads\": 2, \"new_decoder_architecture\": true,"
           "\"num_ln_in_parallel_attn\": 1, \"tie_word_embeddings\": false"},
    {"phi3", GROUPED "\"model_type\": \"phi3\", \"partial_rotary_factor\": 0.75, \"sliding_window\": 40, "
                     "\"original_max_position_embeddings\": 32, \"rope_scaling\": {\"type\": \"longrope\", "
                     "\"short_factor\": [1, 1.1, 1.25], \"long_factor\": [1.5, 3.3, 9]}"},
    {"phi3_plain", GROUPED "\"model_type\": \"phi3\", \"sliding_window\": null"},
    {"gemma", GROUPED "\"model_type\": \"gemma\", \"head_dim\": 16"},
    {"gemma2", GROUPED "\"model_type\": \"gemma2\", \"head_dim\": 12, \"query_pre_attn_scalar\": 12, "
                       "\"sliding_window\": 24"},
    {"gemma2_types", FEW "\"model_type\": \"gemma2\", \"head_dim\": 16, \"query_pre_attn_scalar\": 16, "
                         "\"num_hidden_layers\": 3, \"attn_logit_softcapping\": 7, "
                         "\"final_logit_softcapping\": 8, \"layer_types\": [" FULL "," SLIDES "," FULL "]"},
    {"gemma3", GROUPED "\"model_type\": \"gemma3_text\", \"head_dim\": 16, \"query_pre_attn_scalar\": 16, "
                       "\"sliding_window\": 24, \"rope_local_base_freq\": 5000, \"rope_scaling\": "
                       "{\"rope_type\": \"linear\", \"factor\": 8.0}"},
    {"gemma3_full", GROUPED "\"model_type\": \"gemma3_text\", \"head_dim\": 16, \"sliding_window\": null, "
                            "\"query_pre_attn_scalar\": 16, \"tie_word_embeddings\": false, "
                            "\"num_hidden_layers\": 2, \"layer_types\": [" FULL "," FULL "]"},
    {"olmo2", GROUPED "\"model_type\": \"olmo2\""},
    {"olmo3", GROUPED "\"model_type\": \"olmo3\", \"sliding_window\": 24, \"rope_scaling\": {\"rope_type\": "
                      "\"yarn\", \"factor\": 8.0, \"original_max_position_embeddings\": 16}"},
    {"olmo3_types",
     FEW "\"model_type\": \"olmo3\", \"num_hidden_layers\": 2, \"layer_types\": [" FULL "," SLIDES "]"},
    {"smollm3", GROUPED "\"model_type\": \"smollm3\""},
    {"ministral3",
     GROUPED "\"model_type\": \"ministral3\", \"head_dim\": 16, \"rope_parameters\": {\"rope_type\": "
             "\"yarn\", \"rope_theta\": 1e6, \"factor\": 16.0, \"original_max_position_embeddings\": 32, "
             "\"beta_fast\": 16, \"beta_slow\": 2, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
             "\"llama_4_scaling_beta\": 0.1}"},
    {"ministral3_half",
     GROUPED "\"model_type\": \"ministral3\", \"head_dim\": 16, \"rope_parameters\": {\"rope_type\": "
             "\"yarn\", \"rope_theta\": 1e6, \"factor\": 16.0, \"original_max_position_embeddings\": 32, "
             "\"mscale\": 1.0, \"mscale_all_dim\": 0.5, \"llama_4_scaling_beta\": 0.1}"},
    {"granite", GROUPED "\"model_type\": \"granite\", \"embedding_multiplier\": 12.0, "
                        "\"residual_multiplier\": 0.22, \"attention_multiplier\": 0.015625, "
                        "\"logits_scaling\": 16.0, \"tie_word_embeddings\": true"},
    {"mixtral", GROUPED "\"model_type\": \"mixtral\", \"sliding_window\": null"},
    {"mixtral_window",
     GROUPED "\"model_type\": \"mixtral\", \"sliding_window\": 48, \"num_local_experts\": 3, "
             "\"num_experts_per_tok\": 1, \"tie_word_embeddings\": true"},
    {"qwen3_moe",
     GROUPED "\"model_type\": \"qwen3_moe\", \"head_dim\": 16, \"num_experts\": 4, "
             "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 24, \"norm_topk_prob\": true"},
    {"gpt_oss",
     GROUPED "\"model_type\": \"gpt_oss\", \"head_dim\": 16, \"num_local_experts\": 4, "
             "\"num_experts_per_tok\": 2, \"sliding_window\": 24, \"rope_scaling\": {\"rope_type\": "
             "\"yarn\", \"factor\": 8.0, \"original_max_position_embeddings\": 16, \"truncate\": false}"},
    {"gpt_oss_types",
     FEW "\"model_type\": \"gpt_oss\", \"head_dim\": 8, \"num_local_experts\": 1, "
         "\"num_experts_per_tok\": 1, \"num_hidden_layers\": 2, \"layer_types\": [" FULL "," SLIDES
         "], \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5000.0}"},
    {"t5", T5 "\"num_decoder_layers\": 10"},
    {"t5_gated", T5 "\"feed_forward_proj\": \"gated-gelu\", \"tie_word_embeddings\": false"},
};

struct ot_model_config config_of(const char *json) {
    struct ot_model_config config;
    struct ot_json *root;
    check_ok(ot_json_parse(json, strlen(json), "config", &root));
    check_ok(ot_model_config_read(root, "config", &config));
    ot_json_free(root);
    return config;
}

bool family_form(int index, const char **name, struct ot_model_config *config) {
    char json[1024];
    if (index >= (int)(sizeof FORMS / sizeof *FORMS))
        return false;
    int n = snprintf(json, sizeof json, "{%s}", FORMS[index].keys);
    assert_true(n < (int)sizeof json);
    *name = FORMS[index].name;
    *config = config_of(json);
    return true;
}

struct ot_model_config family_named(const char *wanted) {
    struct ot_model_config config;
    const char *name;
    for (int i = 0; family_form(i, &name, &config); i++)
        if (strcmp(name, wanted) == 0)
            return config;
    fail_msg("no form %s", wanted);
    return (struct ot_model_config){0};
}

/* The families: one row for each. The defaults of absent keys are those of transformers' configuration
 * classes (LlamaConfig, GPT2Config, ...). Facts without a key, such as the biases of Qwen2, stand in its
 * modelling code. */
#include "models/family_keys.h"
#include "models/family_t5.h"

/* ---- names ---- */

#define LLAMA_ATTENTION                                                                                      \
    [OT_MODULE_Q] = "self_attn.q_proj", [OT_MODULE_K] = "self_attn.k_proj",                                  \
    [OT_MODULE_V] = "self_attn.v_proj", [OT_MODULE_O] = "self_attn.o_proj",                                  \
    [OT_MODULE_Q_NORM] = "self_attn.q_norm", [OT_MODULE_K_NORM] = "self_attn.k_norm"
#define LLAMA_MLP                                                                                            \
    [OT_MODULE_GATE] = "mlp.gate_proj", [OT_MODULE_UP] = "mlp.up_proj", [OT_MODULE_DOWN] = "mlp.down_proj"
#define LLAMA_ENDS                                                                                           \
    [OT_MODULE_EMBEDDING] = "model.embed_tokens", [OT_MODULE_NORM] = "model.norm",                           \
    [OT_MODULE_HEAD] = "lm_head"
#define LLAMA_NORMS [OT_MODULE_NORM1] = "input_layernorm", [OT_MODULE_NORM2] = "post_attention_layernorm"

static const struct ot_family_names LLAMA_NAMES = {
    .layers = "model.layers.",
    .modules = {LLAMA_ENDS, LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS},
};

static const struct ot_family_names PHI3_NAMES = {
    .layers = "model.layers.",
    .modules = {LLAMA_ENDS,
                LLAMA_NORMS, [OT_MODULE_QKV] = "self_attn.qkv_proj", [OT_MODULE_O] = "self_attn.o_proj",
                [OT_MODULE_GATE_UP] = "mlp.gate_up_proj", [OT_MODULE_DOWN] = "mlp.down_proj"},
};

static const struct ot_family_names GEMMA2_NAMES = {
    .layers = "model.layers.",
    .modules =
        {LLAMA_ENDS, LLAMA_ATTENTION,
         LLAMA_MLP, [OT_MODULE_NORM1] = "input_layernorm", [OT_MODULE_POST1] = "post_attention_layernorm",
         [OT_MODULE_NORM2] = "pre_feedforward_layernorm", [OT_MODULE_POST2] = "post_feedforward_layernorm"},
};

static const struct ot_family_names OLMO2_NAMES = {
    .layers = "model.layers.",
    .modules = {LLAMA_ENDS, LLAMA_ATTENTION, LLAMA_MLP, [OT_MODULE_POST1] = "post_attention_layernorm",
                [OT_MODULE_POST2] = "post_feedforward_layernorm"},
};

static const struct ot_family_names MIXTRAL_NAMES = {
    .layers = "model.layers.",
    .modules = {LLAMA_ENDS, LLAMA_ATTENTION, LLAMA_NORMS, [OT_MODULE_ROUTER] = "block_sparse_moe.gate",
                [OT_MODULE_EXPERT_GATE] = "block_sparse_moe.experts.*.w1",
                [OT_MODULE_EXPERT_UP] = "block_sparse_moe.experts.*.w3",
                [OT_MODULE_EXPERT_DOWN] = "block_sparse_moe.experts.*.w2"},
};

static const struct ot_family_names GPT_OSS_NAMES = {
    .layers = "model.layers.",
    .modules = {LLAMA_ENDS, LLAMA_ATTENTION, LLAMA_NORMS, [OT_MODULE_ROUTER] = "mlp.router",
                [OT_MODULE_EXPERTS_GATE_UP] = "mlp.experts.gate_up_proj",
                [OT_MODULE_EXPERTS_DOWN] = "mlp.experts.down_proj", [OT_MODULE_SINKS] = "self_attn.sinks"},
};

static const struct ot_family_names QWEN3_MOE_NAMES = {
    .layers = "model.layers.",
    .modules =
        {LLAMA_ENDS, LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS, [OT_MODULE_ROUTER] = "mlp.gate",
         [OT_MODULE_EXPERT_GATE] = "mlp.experts.*.gate_proj", [OT_MODULE_EXPERT_UP] = "mlp.experts.*.up_proj",
         [OT_MODULE_EXPERT_DOWN] = "mlp.experts.*.down_proj"},
};

static const struct ot_family_names GPT2_NAMES = {
    .layers = "transformer.h.",
    .modules = {[OT_MODULE_EMBEDDING] = "transformer.wte",
                [OT_MODULE_POSITIONS] = "transformer.wpe",
                [OT_MODULE_QKV] = "attn.c_attn",
                [OT_MODULE_O] = "attn.c_proj",
                [OT_MODULE_UP] = "mlp.c_fc",
                [OT_MODULE_DOWN] = "mlp.c_proj",
                [OT_MODULE_NORM1] = "ln_1",
                [OT_MODULE_NORM2] = "ln_2",
                [OT_MODULE_NORM] = "transformer.ln_f",
                [OT_MODULE_HEAD] = "lm_head"},
    .transposed = true,
};

static const struct ot_family_names CODEGEN_NAMES = {
    .layers = "transformer.h.",
    .modules = {[OT_MODULE_EMBEDDING] = "transformer.wte",
                [OT_MODULE_QKV] = "attn.qkv_proj",
                [OT_MODULE_O] = "attn.out_proj",
                [OT_MODULE_UP] = "mlp.fc_in",
                [OT_MODULE_DOWN] = "mlp.fc_out",
                [OT_MODULE_NORM1] = "ln_1",
                [OT_MODULE_NORM] = "transformer.ln_f",
                [OT_MODULE_HEAD] = "lm_head"},
};

#define BLOOM_MODULES                                                                                        \
    [OT_MODULE_EMBEDDING] = "transformer.word_embeddings",                                                   \
    [OT_MODULE_EMBED_NORM] = "transformer.word_embeddings_layernorm",                                        \
    [OT_MODULE_QKV] = "self_attention.query_key_value", [OT_MODULE_O] = "self_attention.dense",              \
    [OT_MODULE_UP] = "mlp.dense_h_to_4h", [OT_MODULE_DOWN] = "mlp.dense_4h_to_h",                            \
    [OT_MODULE_NORM] = "transformer.ln_f", [OT_MODULE_HEAD] = "lm_head"

static const struct ot_family_names BLOOM_NAMES = {
    .layers = "transformer.h.",
    .modules = {BLOOM_MODULES, LLAMA_NORMS},
};

static const struct ot_family_names FALCON_NAMES_OF_TWO = {
    .layers = "transformer.h.",
    .modules = {BLOOM_MODULES, [OT_MODULE_NORM1] = "ln_attn", [OT_MODULE_NORM2] = "ln_mlp"},
};

/* ---- the rows ---- */

#define ACT_KEY     .act_keys = {"hidden_act"}
#define LLAMA_BASE  .norm = OT_NORM_RMS, .act = OT_ACT_SILU, .init_std = 0.02
#define LAYER_NORMS .norm = OT_NORM_LAYER, .norm_eps = 1e-5f, .init_std = 0.02
#define GEMMA_BASE                                                                                           \
    .norm = OT_NORM_RMS, .norm_adds_one = true, .act = OT_ACT_GELU_TANH, .init_std = 0.02,                   \
    .norm_eps = 1e-6f, .head_dim = 256, .tied = true

static const struct ot_family_row ROWS[] = {
    {
        .family = OT_FAMILY_LLAMA,
        .model_type = "llama",
        .architecture = "LlamaForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .norm_eps = 1e-6f, .rope.theta = 1e4},
        ACT_KEY,
        .attention_bias = true,
        .mlp_bias = true,
        .head_dim_or_null = true,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_MISTRAL,
        .model_type = "mistral",
        .architecture = "MistralForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 8, .norm_eps = 1e-6f, .rope.theta = 1e4, .window = 4096},
        ACT_KEY,
        .window = OT_WINDOW_ALL,
        .head_dim_or_null = true,
    },
    {
        .family = OT_FAMILY_QWEN2,
        .model_type = "qwen2",
        .architecture = "Qwen2ForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 32, .norm_eps = 1e-6f, .rope.theta = 1e4, .window = 4096,
                 .qkv_bias = true},
        ACT_KEY,
        .window = OT_WINDOW_FLAG,
        .max_window_layers = 28,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_QWEN3,
        .model_type = "qwen3",
        .architecture = "Qwen3ForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 32, .norm_eps = 1e-6f, .rope.theta = 1e4, .window = 4096,
                 .head_dim = 128, .qk_norm = OT_QK_NORM_HEADS},
        ACT_KEY,
        .attention_bias = true,
        .window = OT_WINDOW_FLAG,
        .max_window_layers = 28,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_GPT2,
        .model_type = "gpt2",
        .architecture = "GPT2LMHeadModel",
        .names = &GPT2_NAMES,
        .base = {LAYER_NORMS, .act = OT_ACT_GELU_TANH, .positions = OT_POSITIONS_LEARNED, .plain_mlp = true,
                 .qkv_bias = true, .out_bias = true, .mlp_bias = true, .tied = true, .embed_drop = 0.1f,
                 .attention_drop = 0.1f, .o_drop = 0.1f, .mlp_drop = 0.1f},
        .act_keys = {"activation_function"},
        .drop_keys = {"embd_pdrop", "attn_pdrop", "resid_pdrop"},
        .read = ot_config_read_gpt2,
        .write = ot_config_write_gpt2,
    },
    {
        .family = OT_FAMILY_BLOOM,
        .model_type = "bloom",
        .architecture = "BloomForCausalLM",
        .names = &BLOOM_NAMES,
        .base = {LAYER_NORMS, .act = OT_ACT_GELU_TANH, .positions = OT_POSITIONS_ALIBI, .plain_mlp = true,
                 .embed_norm = true, .qkv_bias = true, .out_bias = true, .mlp_bias = true, .tied = true,
                 .max_position = 2048},
        .drop_keys.branches = "hidden_dropout",
        .read = ot_config_read_bloom,
    },
    {
        .family = OT_FAMILY_FALCON,
        .model_type = "falcon",
        .architecture = "FalconForCausalLM",
        .names = &BLOOM_NAMES,
        .names_of_two = &FALCON_NAMES_OF_TWO,
        .base = {LAYER_NORMS, .act = OT_ACT_GELU_ERF, .plain_mlp = true, .tied = true, .rope.theta = 1e4,
                 .max_position = 2048, .alibi_scaled = true},
        .act_keys = {"activation"},
        .drop_keys.branches = "hidden_dropout",
        .read = ot_config_read_falcon,
        .write = ot_config_write_falcon,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_CODEGEN,
        .model_type = "codegen",
        .architecture = "CodeGenForCausalLM",
        .names = &CODEGEN_NAMES,
        .base = {LAYER_NORMS, .act = OT_ACT_GELU_TANH, .residual = OT_PARALLEL, .plain_mlp = true,
                 .rope.theta = 1e4, .rope_interleaved = true, .mlp_bias = true, .head_bias = true,
                 .fused_v_first = true},
        .act_keys = {"activation_function"},
        .drop_keys = {"embd_pdrop", "attn_pdrop", "resid_pdrop"},
        .read = ot_config_read_codegen,
        .write = ot_config_write_codegen,
    },
    {
        .family = OT_FAMILY_PHI3,
        .model_type = "phi3",
        .architecture = "Phi3ForCausalLM",
        .names = &PHI3_NAMES,
        .base = {LLAMA_BASE, .norm_eps = 1e-5f, .rope.theta = 1e4},
        ACT_KEY,
        .partial_rotary = true,
        .drop_keys.branches = "resid_pdrop",
        .window = OT_WINDOW_ALL,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_GEMMA,
        .model_type = "gemma",
        .architecture = "GemmaForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {GEMMA_BASE, .n_kv_heads = 16, .rope.theta = 1e4},
        ACT_KEY,
        .attention_bias = true,
        .read = ot_config_read_gemma,
        .write = ot_config_write_gemma,
    },
    {
        .family = OT_FAMILY_GEMMA2,
        .model_type = "gemma2",
        .architecture = "Gemma2ForCausalLM",
        .names = &GEMMA2_NAMES,
        .base = {GEMMA_BASE, .n_kv_heads = 4, .rope.theta = 1e4, .norm_place = OT_NORMS_AROUND,
                 .window = 4096, .attention_softcap = 50, .logit_softcap = 30},
        .act_keys = {"hidden_activation"},
        .attention_bias = true,
        .window = OT_WINDOW_TYPES,
        .window_pattern = 2,
        .read = ot_config_read_gemma,
        .write = ot_config_write_gemma,
    },
    {
        .family = OT_FAMILY_GEMMA3,
        .model_type = "gemma3_text",
        .architecture = "Gemma3ForCausalLM",
        .names = &GEMMA2_NAMES,
        .base = {GEMMA_BASE, .rope.theta = 1e6, .local_rope_theta = 1e4, .norm_place = OT_NORMS_AROUND,
                 .qk_norm = OT_QK_NORM_HEADS, .window = 4096,
                 /* The text part of the larger models leaves these out. */
                 .vocab = 262208, .n_heads = 8, .n_kv_heads = 4, .max_position = 131072},
        .act_keys = {"hidden_activation"},
        .attention_bias = true,
        .window = OT_WINDOW_TYPES,
        .window_pattern = 6,
        .read = ot_config_read_gemma,
        .write = ot_config_write_gemma,
    },
    {
        .family = OT_FAMILY_OLMO2,
        .model_type = "olmo2",
        .architecture = "Olmo2ForCausalLM",
        .names = &OLMO2_NAMES,
        .base = {LLAMA_BASE, .norm_eps = 1e-5f, .rope.theta = 1e4, .norm_place = OT_NORMS_AFTER,
                 .qk_norm = OT_QK_NORM_WHOLE},
        ACT_KEY,
        .attention_bias = true,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_OLMO3,
        .model_type = "olmo3",
        .architecture = "Olmo3ForCausalLM",
        .names = &OLMO2_NAMES,
        .base = {LLAMA_BASE, .norm_eps = 1e-5f, .rope.theta = 5e5, .local_rope_theta = 5e5,
                 .norm_place = OT_NORMS_AFTER, .qk_norm = OT_QK_NORM_WHOLE, .window = 4096},
        ACT_KEY,
        .attention_bias = true,
        .window = OT_WINDOW_TYPES,
        .window_pattern = 4,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_SMOLLM3,
        .model_type = "smollm3",
        .architecture = "SmolLM3ForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 4, .norm_eps = 1e-6f, .rope.theta = 2e6, .tied = true},
        ACT_KEY,
        .attention_bias = true,
        .mlp_bias = true,
        .window = OT_WINDOW_NO_ROPE,
        .read = ot_config_read_smollm3,
        .write = ot_config_write_smollm3,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_MINISTRAL,
        .model_type = "ministral",
        .architecture = "MinistralForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 8, .norm_eps = 1e-6f, .rope.theta = 1e4, .window = 4096},
        ACT_KEY,
        .window = OT_WINDOW_TYPES,
    },
    {
        .family = OT_FAMILY_MINISTRAL3,
        .model_type = "ministral3",
        .architecture = "Ministral3ForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 8, .norm_eps = 1e-5f, .rope.theta = 1e4, .head_dim = 128},
        ACT_KEY,
        .window = OT_WINDOW_ALL,
        .read = ot_config_read_ministral3,
    },
    {
        .family = OT_FAMILY_GRANITE,
        .model_type = "granite",
        .architecture = "GraniteForCausalLM",
        .names = &LLAMA_NAMES,
        .base = {LLAMA_BASE, .norm_eps = 1e-6f, .rope.theta = 1e4},
        ACT_KEY,
        .attention_bias = true,
        .mlp_bias = true,
        .read = ot_config_read_granite,
        .write = ot_config_write_granite,
        .kv_heads_or_null = true,
    },
    {
        .family = OT_FAMILY_MIXTRAL,
        .model_type = "mixtral",
        .architecture = "MixtralForCausalLM",
        .names = &MIXTRAL_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 8, .norm_eps = 1e-5f, .rope.theta = 1e6, .n_experts = 8,
                 .top_experts = 2, .router_aux = 0.001},
        ACT_KEY,
        .window = OT_WINDOW_ALL,
        .read = ot_config_read_mixtral,
        .write = ot_config_write_mixtral,
        .head_dim_or_null = true,
    },
    {
        .family = OT_FAMILY_QWEN3_MOE,
        .model_type = "qwen3_moe",
        .architecture = "Qwen3MoeForCausalLM",
        .names = &QWEN3_MOE_NAMES,
        .base = {LLAMA_BASE, .n_kv_heads = 4, .norm_eps = 1e-6f, .rope.theta = 1e4, .window = 4096,
                 .qk_norm = OT_QK_NORM_HEADS, .n_experts = 128, .top_experts = 8, .expert_ffn = 768,
                 .router_aux = 0.001},
        ACT_KEY,
        .attention_bias = true,
        .window = OT_WINDOW_SWITCH,
        .read = ot_config_read_qwen3_moe,
        .write = ot_config_write_qwen3_moe,
    },
    {
        .family = OT_FAMILY_GPT_OSS,
        .model_type = "gpt_oss",
        .architecture = "GptOssForCausalLM",
        .names = &GPT_OSS_NAMES,
        .base = {LLAMA_BASE, .norm_eps = 1e-5f, .rope.theta = 150000, .window = 128, .head_dim = 64,
                 .n_heads = 64, .n_kv_heads = 8, .sinks = true, .router_bias = true, .expert_bias = true,
                 .n_experts = 128, .top_experts = 4, .router_aux = 0.9},
        ACT_KEY,
        .attention_bias = true,
        .window = OT_WINDOW_TYPES,
        .window_pattern = 2,
        .read = ot_config_read_gpt_oss,
        .write = ot_config_write_gpt_oss,
    },
    {
        .family = OT_FAMILY_T5,
        .model_type = "t5",
        .architecture = "T5ForConditionalGeneration",
        .names = &OT_T5_NAMES[0][0],
        .names_of_layer = ot_t5_layer_names,
        /* The sizes are those of t5-small. */
        .base = {.norm = OT_NORM_RMS,
                 .norm_eps = 1e-6f,
                 .init_std = 0.02,
                 .tied = true,
                 .positions = OT_POSITIONS_RELATIVE,
                 .position_buckets = 32,
                 .position_distance = 128,
                 .attention_scale = 1,
                 .n_layers = 6,
                 .hidden = 512,
                 .ffn = 2048,
                 .n_heads = 8,
                 .head_dim = 64,
                 .vocab = 32128,
                 .max_position = OT_T5_LONGEST_ROW,
                 .embed_drop = 0.1f,
                 .attention_drop = 0.1f,
                 .o_drop = 0.1f,
                 .mlp_drop = 0.1f},
        .drop_keys = {"dropout_rate", "dropout_rate", "dropout_rate"},
        .read = ot_t5_read,
        .write = ot_t5_write,
        .writes_all = true,
    },
};
_Static_assert(sizeof ROWS / sizeof ROWS[0] == OT_FAMILY_COUNT, "a row for each family, in enum order");

const struct ot_family_row *ot_family_row(enum ot_family family) {
    return &ROWS[family];
}

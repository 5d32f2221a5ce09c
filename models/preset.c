#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "models/model.h"

/* Sizes, rope and eps are those of each model's config.json on the Hugging Face hub. The two tiny presets
 * are this program's own: scripts/quickstart trains tiny-sql within a minute on two cores; tiny-test is for
 * tests. Their vocabulary has room for a byte-level tokenizer: 256 bytes, some special tokens and some
 * merges, rounded up to a multiple of 128. */
#define COMMON .norm = OT_NORM_RMS, .act = OT_ACT_SILU, .init_std = 0.02
#define SHAPE(layers, width, mlp, heads, kv, dim, words, positions)                                          \
    .n_layers = (layers), .hidden = (width), .ffn = (mlp), .n_heads = (heads), .n_kv_heads = (kv),           \
    .head_dim = (dim), .vocab = (words), .max_position = (positions)
/* The same for heads that rotate whole. */
#define ROTATING(layers, width, mlp, heads, kv, dim, words, positions)                                       \
    SHAPE(layers, width, mlp, heads, kv, dim, words, positions), .rotary_dim = (dim)
#define LLAMA3_SCALING(by)                                                                                   \
    .rope.scaling = OT_ROPE_LLAMA3, .rope.factor = (by), .rope.low_freq_factor = 1,                          \
    .rope.high_freq_factor = 4, .rope.original_max_position = 8192

/* The fields that all models of a family share (families.c). */
#define LAYER_NORMS .norm = OT_NORM_LAYER, .norm_eps = 1e-5f, .init_std = 0.02, .plain_mlp = true
#define BIASES      .qkv_bias = true, .out_bias = true, .mlp_bias = true
#define GPT2                                                                                                 \
    LAYER_NORMS, BIASES, .family = OT_FAMILY_GPT2, .act = OT_ACT_GELU_TANH,                                  \
                         .positions = OT_POSITIONS_LEARNED, .tied = true
#define BLOOM(heads)                                                                                         \
    LAYER_NORMS, BIASES, .family = OT_FAMILY_BLOOM, .act = OT_ACT_GELU_TANH,                                 \
                         .positions = OT_POSITIONS_ALIBI, .embed_norm = true, .tied = true,                  \
                         .fused_groups = (heads)
#define FALCON(sides, groups)                                                                                \
    LAYER_NORMS, .family = OT_FAMILY_FALCON, .act = OT_ACT_GELU_ERF, .tied = true, .alibi_scaled = true,     \
                 .residual = (sides), .fused_groups = (groups), .rope.theta = 1e4
#define CODEGEN(groups, rotates)                                                                             \
    LAYER_NORMS, .family = OT_FAMILY_CODEGEN, .act = OT_ACT_GELU_TANH, .residual = OT_PARALLEL,              \
                 .mlp_bias = true, .head_bias = true, .fused_groups = (groups), .fused_v_first = true,       \
                 .rope_interleaved = true, .rotary_dim = (rotates), .rope.theta = 1e4
#define GEMMA(width)                                                                                         \
    .norm = OT_NORM_RMS, .norm_adds_one = true, .norm_eps = 1e-6f, .act = OT_ACT_GELU_TANH,                  \
    .init_std = 0.02, .tied = true, .embed_scale = (width)
#define GEMMA2(width)                                                                                        \
    GEMMA(width), .family = OT_FAMILY_GEMMA2, .norm_place = OT_NORMS_AROUND, .attention_softcap = 50,        \
                  .logit_softcap = 30, .rope.theta = 1e4
#define OLMO2                                                                                                \
    COMMON, .norm_place = OT_NORMS_AFTER, .qk_norm = OT_QK_NORM_WHOLE, .norm_eps = 1e-6f, .rope.theta = 5e5
#define GRANITE(attention, logits)                                                                           \
    COMMON, .family = OT_FAMILY_GRANITE, .norm_eps = 1e-5f, .rope.theta = 1e7, .tied = true,                 \
            .embed_scale = 12, .residual_scale = 0.22, .attention_scale = (attention),                       \
            .logit_divisor = (logits)
#define QWEN3_MOE(width)                                                                                     \
    COMMON, .family = OT_FAMILY_QWEN3_MOE, .norm_eps = 1e-6f, .rope.theta = 1e6,                             \
            .qk_norm = OT_QK_NORM_HEADS, .n_experts = 128, .top_experts = 8, .expert_ffn = (width)
/* As many layers of the encoder as of the decoder. The first T5 shares the embedding with the head, and
 * divides the logits by the root of the width. */
#define T5(layers, width, mlp, heads)                                                                        \
    .family = OT_FAMILY_T5, .norm = OT_NORM_RMS, .norm_eps = 1e-6f, .init_std = 0.02,                        \
    .positions = OT_POSITIONS_RELATIVE, .position_buckets = 32, .position_distance = 128,                    \
    .attention_scale = 1, .n_encoder_layers = (layers),                                                      \
    SHAPE(2 * (layers), width, mlp, heads, heads, 64, 32128, 1 << 20)
#define T5_FIRST(root) .act = OT_ACT_RELU, .plain_mlp = true, .tied = true, .logit_divisor = (root)
/* Layers with a window: all but each n-th. Of 64 layers. */
#define EVERY_SECOND   UINT64_C(0x5555555555555555)
#define ALL_BUT_SIXTH  UINT64_C(0xf7df7df7df7df7df)
#define ALL_BUT_FOURTH UINT64_C(0x7777777777777777)
#define WINDOWS(tokens, layers, count)                                                                       \
    .window = (tokens), .window_by_layer = true,                                                             \
    .window_layers.bits[0] = (layers) & ((UINT64_C(1) << (count)) - 1)
/* The context of 4,096 tokens that yarn stretches by 32; 0.1 ln 32 + 1. */
#define GPT_OSS(layers, experts)                                                                             \
    COMMON, .family = OT_FAMILY_GPT_OSS, ROTATING(layers, 2880, 2880, 64, 8, 64, 201088, 131072),            \
            .norm_eps = 1e-5f, .rope.theta = 150000, .rope.scaling = OT_ROPE_YARN, .rope.factor = 32,        \
            .rope.original_max_position = 4096, .rope.attention_factor = 1.3465735902799727,                 \
            .rope.beta_fast = 32, .rope.beta_slow = 1, .rope.keeps_fractions = true, .sinks = true,          \
            .qkv_bias = true, .out_bias = true, .n_experts = (experts), .top_experts = 4,                    \
            .expert_ffn = 2880, .router_bias = true, .expert_bias = true, .glu_limit = 7,                    \
            .glu_alpha = 1.702f, WINDOWS(128, EVERY_SECOND, layers)

static const struct ot_preset PRESETS[] = {
    {"llama-7b",
     "huggyllama/llama-7b",
     6738415616,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 11008, 32, 32, 128, 32000, 2048),
      .norm_eps = 1e-6f, .rope.theta = 1e4}},
    {"llama-13b",
     "huggyllama/llama-13b",
     13015864320,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(40, 5120, 13824, 40, 40, 128, 32000, 2048),
      .norm_eps = 1e-6f, .rope.theta = 1e4}},
    {"llama-2-7b",
     "meta-llama/Llama-2-7b-hf",
     6738415616,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 11008, 32, 32, 128, 32000, 4096),
      .norm_eps = 1e-5f, .rope.theta = 1e4}},
    {"llama-2-13b",
     "meta-llama/Llama-2-13b-hf",
     13015864320,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(40, 5120, 13824, 40, 40, 128, 32000, 4096),
      .norm_eps = 1e-5f, .rope.theta = 1e4}},
    {"llama-3-8b",
     "meta-llama/Meta-Llama-3-8B",
     8030261248,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 14336, 32, 8, 128, 128256, 8192),
      .norm_eps = 1e-5f, .rope.theta = 5e5}},
    {"llama-3.1-8b",
     "meta-llama/Llama-3.1-8B",
     8030261248,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 14336, 32, 8, 128, 128256, 131072),
      .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(8)}},
    {"llama-3.2-1b",
     "meta-llama/Llama-3.2-1B",
     1235814400,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(16, 2048, 8192, 32, 8, 64, 128256, 131072),
      .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(32), .tied = true}},
    {"tinyllama-1.1b",
     "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
     1100048384,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(22, 2048, 5632, 32, 4, 64, 32000, 2048), .norm_eps = 1e-5f,
      .rope.theta = 1e4}},
    {"llama-2-70b",
     "meta-llama/Llama-2-70b-hf",
     68976648192,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(80, 8192, 28672, 64, 8, 128, 32000, 4096),
      .norm_eps = 1e-5f, .rope.theta = 1e4}},
    {"llama-3.1-70b",
     "meta-llama/Llama-3.1-70B",
     70553706496,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(80, 8192, 28672, 64, 8, 128, 128256, 131072),
      .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(8)}},
    {"mistral-7b",
     "mistralai/Mistral-7B-v0.1",
     7241732096,
     {COMMON, .family = OT_FAMILY_MISTRAL, ROTATING(32, 4096, 14336, 32, 8, 128, 32000, 32768),
      .norm_eps = 1e-5f, .rope.theta = 1e4, .window = 4096}},
    {"qwen2.5-0.5b",
     "Qwen/Qwen2.5-0.5B",
     494032768,
     {COMMON, .family = OT_FAMILY_QWEN2, ROTATING(24, 896, 4864, 14, 2, 64, 151936, 32768), .norm_eps = 1e-6f,
      .rope.theta = 1e6, .qkv_bias = true, .tied = true}},
    {"qwen2.5-7b",
     "Qwen/Qwen2.5-7B",
     7615616512,
     {COMMON, .family = OT_FAMILY_QWEN2, ROTATING(28, 3584, 18944, 28, 4, 128, 152064, 131072),
      .norm_eps = 1e-6f, .rope.theta = 1e6, .qkv_bias = true}},
    {"qwen3-0.6b",
     "Qwen/Qwen3-0.6B",
     596049920,
     {COMMON, .family = OT_FAMILY_QWEN3, ROTATING(28, 1024, 3072, 16, 8, 128, 151936, 40960),
      .norm_eps = 1e-6f, .rope.theta = 1e6, .qk_norm = true, .tied = true}},
    {"qwen3-8b",
     "Qwen/Qwen3-8B",
     8190735360,
     {COMMON, .family = OT_FAMILY_QWEN3, ROTATING(36, 4096, 12288, 32, 8, 128, 151936, 40960),
      .norm_eps = 1e-6f, .rope.theta = 1e6, .qk_norm = true}},
    {"gpt2", "openai-community/gpt2", 124439808, {GPT2, SHAPE(12, 768, 3072, 12, 12, 64, 50257, 1024)}},
    {"gpt2-xl",
     "openai-community/gpt2-xl",
     1557611200,
     {GPT2, SHAPE(48, 1600, 6400, 25, 25, 64, 50257, 1024)}},
    {"bloom-560m",
     "bigscience/bloom-560m",
     559214592,
     {BLOOM(16), SHAPE(24, 1024, 4096, 16, 16, 64, 250880, 2048)}},
    {"bloom-1b1",
     "bigscience/bloom-1b1",
     1065314304,
     {BLOOM(16), SHAPE(24, 1536, 6144, 16, 16, 96, 250880, 2048)}},
    {"bloom-7b1",
     "bigscience/bloom-7b1",
     7069016064,
     {BLOOM(32), SHAPE(30, 4096, 16384, 32, 32, 128, 250880, 2048)}},
    {"falcon-7b",
     "tiiuae/falcon-7b",
     6921720704,
     {FALCON(OT_PARALLEL, 1), ROTATING(32, 4544, 18176, 71, 1, 64, 65024, 2048)}},
    {"falcon-40b",
     "tiiuae/falcon-40b",
     41303293952,
     {FALCON(OT_PARALLEL_TWO, 8), ROTATING(60, 8192, 32768, 128, 8, 64, 65024, 2048)}},
    {"codegen-350m",
     "Salesforce/codegen-350M-mono",
     356712448,
     {CODEGEN(4, 32), SHAPE(20, 1024, 4096, 16, 16, 64, 51200, 2048)}},
    {"codegen2-1b",
     "Salesforce/codegen2-1B_P",
     1015306240,
     {CODEGEN(8, 64), SHAPE(16, 2048, 8192, 16, 16, 128, 51200, 2048)}},
    {"phi-3-mini-4k",
     "microsoft/Phi-3-mini-4k-instruct",
     3821079552,
     {COMMON, .family = OT_FAMILY_PHI3, ROTATING(32, 3072, 8192, 32, 32, 96, 32064, 4096), .norm_eps = 1e-5f,
      .rope.theta = 1e4, .window = 2047}},
    {"phi-4",
     "microsoft/phi-4",
     14659507200,
     {COMMON, .family = OT_FAMILY_PHI3, ROTATING(40, 5120, 17920, 40, 10, 128, 100352, 16384),
      .norm_eps = 1e-5f, .rope.theta = 25e4}},
    {"gemma-2b",
     "google/gemma-2b",
     2506172416,
     {GEMMA(45.254833995939045), .family = OT_FAMILY_GEMMA,
      ROTATING(18, 2048, 16384, 8, 1, 256, 256000, 8192), .rope.theta = 1e4}},
    {"gemma-7b",
     "google/gemma-7b",
     8537680896,
     {GEMMA(55.42562584220407), .family = OT_FAMILY_GEMMA,
      ROTATING(28, 3072, 24576, 16, 16, 256, 256000, 8192), .rope.theta = 1e4}},
    {"gemma-2-2b",
     "google/gemma-2-2b",
     2614341888,
     {GEMMA2(48), ROTATING(26, 2304, 9216, 8, 4, 256, 256000, 8192), .attention_scale = 0.0625,
      WINDOWS(4096, EVERY_SECOND, 26)}},
    {"gemma-2-9b",
     "google/gemma-2-9b",
     9241705984,
     {GEMMA2(59.866518188383065), ROTATING(42, 3584, 14336, 16, 8, 256, 256000, 8192),
      .attention_scale = 0.0625, WINDOWS(4096, EVERY_SECOND, 42)}},
    {"gemma-2-27b",
     "google/gemma-2-27b",
     27227128320,
     {GEMMA2(67.88225099390856), ROTATING(46, 4608, 36864, 32, 16, 128, 256000, 8192),
      .attention_scale = 1.0 / 12, WINDOWS(4096, EVERY_SECOND, 46)}},
    {"gemma-3-1b",
     "google/gemma-3-1b-pt",
     999885952,
     {GEMMA(33.94112549695428), .family = OT_FAMILY_GEMMA3, .norm_place = OT_NORMS_AROUND,
      .qk_norm = OT_QK_NORM_HEADS, ROTATING(26, 1152, 6912, 4, 1, 256, 262144, 32768),
      .attention_scale = 0.0625, .rope.theta = 1e6, .local_rope_theta = 1e4,
      WINDOWS(512, ALL_BUT_SIXTH, 26)}},
    {"olmo-2-1b",
     "allenai/OLMo-2-0425-1B",
     1484916736,
     {OLMO2, .family = OT_FAMILY_OLMO2, ROTATING(16, 2048, 8192, 16, 16, 128, 100352, 4096)}},
    {"olmo-2-7b",
     "allenai/OLMo-2-1124-7B",
     7298617344,
     {OLMO2, .family = OT_FAMILY_OLMO2, ROTATING(32, 4096, 11008, 32, 32, 128, 100352, 4096)}},
    {"olmo-3-7b",
     "allenai/Olmo-3-1025-7B",
     7298011136,
     {OLMO2, .family = OT_FAMILY_OLMO3, ROTATING(32, 4096, 11008, 32, 32, 128, 100278, 65536),
      .local_rope_theta = 5e5, .rope.scaling = OT_ROPE_YARN, .rope.factor = 8,
      .rope.original_max_position = 8192, .rope.attention_factor = 1.2079441541679836, .rope.beta_fast = 32,
      .rope.beta_slow = 1, WINDOWS(4096, ALL_BUT_FOURTH, 32)}},
    {"smollm3-3b",
     "HuggingFaceTB/SmolLM3-3B",
     3075098624,
     {COMMON, .family = OT_FAMILY_SMOLLM3, ROTATING(36, 2048, 11008, 16, 4, 128, 128256, 65536),
      .norm_eps = 1e-6f, .rope.theta = 2e6, .tied = true,
      .no_rope.bits[0] = ~ALL_BUT_FOURTH & ((UINT64_C(1) << 36) - 1)}},
    {"ministral-8b",
     "mistralai/Ministral-8B-Instruct-2410",
     8019808256,
     {COMMON, .family = OT_FAMILY_MINISTRAL, ROTATING(36, 4096, 12288, 32, 8, 128, 131072, 32768),
      .norm_eps = 1e-5f, .rope.theta = 1e8, WINDOWS(32768, ALL_BUT_FOURTH << 1, 36)}},
    {"granite-3.3-2b",
     "ibm-granite/granite-3.3-2b-base",
     2533539840,
     {GRANITE(0.015625, 8), ROTATING(40, 2048, 8192, 32, 8, 64, 49159, 131072)}},
    {"granite-3.3-8b",
     "ibm-granite/granite-3.3-8b-base",
     8170864640,
     {GRANITE(0.0078125, 16), ROTATING(40, 4096, 12800, 32, 8, 128, 49159, 131072)}},
    {"gpt-oss-20b", "openai/gpt-oss-20b", 20914757184, {GPT_OSS(24, 32)}},
    {"gpt-oss-120b", "openai/gpt-oss-120b", 116829156672, {GPT_OSS(36, 128)}},
    {"mixtral-8x7b",
     "mistralai/Mixtral-8x7B-v0.1",
     46702792704,
     {COMMON, .family = OT_FAMILY_MIXTRAL, ROTATING(32, 4096, 14336, 32, 8, 128, 32000, 32768),
      .norm_eps = 1e-5f, .rope.theta = 1e6, .n_experts = 8, .top_experts = 2, .expert_ffn = 14336}},
    {"qwen3-30b-a3b",
     "Qwen/Qwen3-30B-A3B",
     30532122624,
     {QWEN3_MOE(768), ROTATING(48, 2048, 6144, 32, 4, 128, 151936, 40960)}},
    {"qwen3-235b-a22b",
     "Qwen/Qwen3-235B-A22B",
     235093634560,
     {QWEN3_MOE(1536), ROTATING(94, 4096, 12288, 64, 4, 128, 151936, 40960)}},
    {"falcon3-7b",
     "tiiuae/Falcon3-7B-Base",
     7455550464,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(28, 3072, 23040, 12, 4, 256, 131072, 32768),
      .norm_eps = 1e-6f, .rope.theta = 1000042}},
    {"deepseek-r1-distill-qwen-7b",
     "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B",
     7615616512,
     {COMMON, .family = OT_FAMILY_QWEN2, ROTATING(28, 3584, 18944, 28, 4, 128, 152064, 131072),
      .norm_eps = 1e-6f, .rope.theta = 1e4, .qkv_bias = true}},
    {"deepseek-r1-distill-llama-8b",
     "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
     8030261248,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 14336, 32, 8, 128, 128256, 131072),
      .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(8)}},
    {"yi-6b",
     "01-ai/Yi-6B",
     6061035520,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 11008, 32, 4, 128, 64000, 4096),
      .norm_eps = 1e-5f, .rope.theta = 5e6}},
    {"vicuna-7b",
     "lmsys/vicuna-7b-v1.5",
     6738415616,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 11008, 32, 32, 128, 32000, 4096),
      .norm_eps = 1e-5f, .rope.theta = 1e4}},
    {"codellama-7b",
     "codellama/CodeLlama-7b-hf",
     6738546688,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(32, 4096, 11008, 32, 32, 128, 32016, 16384),
      .norm_eps = 1e-5f, .rope.theta = 1e6}},
    {"t5-small", "google-t5/t5-small", 60506624, {T5(6, 512, 2048, 8), T5_FIRST(22.627416997969522)}},
    {"t5-base", "google-t5/t5-base", 222903552, {T5(12, 768, 3072, 12), T5_FIRST(27.712812921102035)}},
    {"flan-t5-base", "google/flan-t5-base", 247577856, {T5(12, 768, 2048, 12), .act = OT_ACT_GELU_TANH}},
    {"tiny-sql",
     NULL,
     2730432,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(6, 192, 512, 6, 6, 32, 384, 512), .norm_eps = 1e-5f,
      .rope.theta = 1e4, .tied = true}},
    {"tiny-test",
     NULL,
     123200,
     {COMMON, .family = OT_FAMILY_LLAMA, ROTATING(2, 64, 128, 4, 2, 16, 384, 256), .norm_eps = 1e-5f,
      .rope.theta = 1e4}},
};
static const int N_PRESETS = sizeof PRESETS / sizeof PRESETS[0];

const struct ot_preset *ot_preset_find(const char *name) {
    for (int i = 0; i < N_PRESETS; i++)
        if (strcmp(PRESETS[i].name, name) == 0)
            return &PRESETS[i];
    return NULL;
}

enum { PLAIN_BYTES = 96 };

/* Reduces a name to lower-case letters and digits. Returns text. */
static const char *plain(const char *name, char text[PLAIN_BYTES]) {
    size_t n = 0;
    for (; *name && n < PLAIN_BYTES - 1; name++)
        if (isalnum((unsigned char)*name))
            text[n++] = (char)tolower((unsigned char)*name);
    text[n] = '\0';
    return text;
}

static const char *last_part(const char *name) {
    const char *slash = strrchr(name, '/');
    return slash ? slash + 1 : name;
}

/* Finds the preset whose name, or the last part of whose hub id, is this, as plain text. A preset's own
 * name comes before another's hub id. */
static const struct ot_preset *find_plain(const char *wanted) {
    char text[PLAIN_BYTES];
    for (int i = 0; i < N_PRESETS && *wanted; i++)
        if (strcmp(plain(PRESETS[i].name, text), wanted) == 0)
            return &PRESETS[i];
    for (int i = 0; i < N_PRESETS && *wanted; i++)
        if (PRESETS[i].hub_id && strcmp(plain(last_part(PRESETS[i].hub_id), text), wanted) == 0)
            return &PRESETS[i];
    return NULL;
}

const struct ot_preset *ot_preset_spelled(const char *name) {
    char text[PLAIN_BYTES];
    if (!strchr(name, '/'))
        return find_plain(plain(name, text));
    for (int i = 0; i < N_PRESETS; i++)
        if (PRESETS[i].hub_id && strcasecmp(PRESETS[i].hub_id, name) == 0)
            return &PRESETS[i];
    return NULL;
}

const struct ot_preset *ot_preset_shaped(const char *name) {
    /* Endings that fine-tuned or converted models add to a name. */
    static const char *const endings[] = {"instruct", "chat", "hf", "it", "base", "pt"};
    char text[PLAIN_BYTES];
    const struct ot_preset *found = find_plain(plain(last_part(name), text));
    for (bool shorter = true; !found && shorter;) {
        shorter = false;
        for (size_t i = 0; i < sizeof endings / sizeof *endings && !shorter; i++) {
            size_t n = strlen(text), end = strlen(endings[i]);
            shorter = n > end && strcmp(text + n - end, endings[i]) == 0;
            text[n - (shorter ? end : 0)] = '\0';
        }
        found = shorter ? find_plain(text) : NULL;
    }
    return found;
}

const struct ot_preset *ot_preset_at(int index) {
    return index >= 0 && index < N_PRESETS ? &PRESETS[index] : NULL;
}

#include <string.h>

#include "models/model.h"

/* Sizes, rope and eps are those of each model's config.json on the Hugging Face hub. The two tiny presets
 * are this program's own: scripts/quickstart trains tiny-sql within a minute on two cores; tiny-test is for
 * tests. Their vocabulary has room for a byte-level tokenizer: 256 bytes, some special tokens and some
 * merges, rounded up to a multiple of 128. */
#define COMMON .norm = OT_NORM_RMS, .act = OT_ACT_SILU, .init_std = 0.02
#define SHAPE(layers, width, mlp, heads, kv, dim, words, positions)                                          \
    .n_layers = (layers), .hidden = (width), .ffn = (mlp), .n_heads = (heads), .n_kv_heads = (kv),           \
    .head_dim = (dim), .rotary_dim = (dim), .vocab = (words), .max_position = (positions)
#define LLAMA3_SCALING(by)                                                                                   \
    .rope.scaling = OT_ROPE_LLAMA3, .rope.factor = (by), .rope.low_freq_factor = 1,                          \
    .rope.high_freq_factor = 4, .rope.original_max_position = 8192

static const struct ot_preset PRESETS[] = {
    {"llama-7b",
     "huggyllama/llama-7b",
     6738415616,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(32, 4096, 11008, 32, 32, 128, 32000, 2048), .norm_eps = 1e-6f,
      .rope.theta = 1e4}},
    {"llama-13b",
     "huggyllama/llama-13b",
     13015864320,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(40, 5120, 13824, 40, 40, 128, 32000, 2048), .norm_eps = 1e-6f,
      .rope.theta = 1e4}},
    {"llama-2-7b",
     "meta-llama/Llama-2-7b-hf",
     6738415616,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(32, 4096, 11008, 32, 32, 128, 32000, 4096), .norm_eps = 1e-5f,
      .rope.theta = 1e4}},
    {"llama-2-13b",
     "meta-llama/Llama-2-13b-hf",
     13015864320,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(40, 5120, 13824, 40, 40, 128, 32000, 4096), .norm_eps = 1e-5f,
      .rope.theta = 1e4}},
    {"llama-3-8b",
     "meta-llama/Meta-Llama-3-8B",
     8030261248,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(32, 4096, 14336, 32, 8, 128, 128256, 8192), .norm_eps = 1e-5f,
      .rope.theta = 5e5}},
    {"llama-3.1-8b",
     "meta-llama/Llama-3.1-8B",
     8030261248,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(32, 4096, 14336, 32, 8, 128, 128256, 131072),
      .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(8)}},
    {"llama-3.2-1b",
     "meta-llama/Llama-3.2-1B",
     1235814400,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(16, 2048, 8192, 32, 8, 64, 128256, 131072), .norm_eps = 1e-5f,
      .rope.theta = 5e5, LLAMA3_SCALING(32), .tied = true}},
    {"tinyllama-1.1b",
     "TinyLlama/TinyLlama-1.1B-Chat-v1.0",
     1100048384,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(22, 2048, 5632, 32, 4, 64, 32000, 2048), .norm_eps = 1e-5f,
      .rope.theta = 1e4}},
    {"llama-2-70b",
     "meta-llama/Llama-2-70b-hf",
     68976648192,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(80, 8192, 28672, 64, 8, 128, 32000, 4096), .norm_eps = 1e-5f,
      .rope.theta = 1e4}},
    {"llama-3.1-70b",
     "meta-llama/Llama-3.1-70B",
     70553706496,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(80, 8192, 28672, 64, 8, 128, 128256, 131072),
      .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(8)}},
    {"mistral-7b",
     "mistralai/Mistral-7B-v0.1",
     7241732096,
     {COMMON, .family = OT_FAMILY_MISTRAL, SHAPE(32, 4096, 14336, 32, 8, 128, 32000, 32768),
      .norm_eps = 1e-5f, .rope.theta = 1e4, .window = 4096}},
    {"qwen2.5-0.5b",
     "Qwen/Qwen2.5-0.5B",
     494032768,
     {COMMON, .family = OT_FAMILY_QWEN2, SHAPE(24, 896, 4864, 14, 2, 64, 151936, 32768), .norm_eps = 1e-6f,
      .rope.theta = 1e6, .qkv_bias = true, .tied = true}},
    {"qwen2.5-7b",
     "Qwen/Qwen2.5-7B",
     7615616512,
     {COMMON, .family = OT_FAMILY_QWEN2, SHAPE(28, 3584, 18944, 28, 4, 128, 152064, 131072),
      .norm_eps = 1e-6f, .rope.theta = 1e6, .qkv_bias = true}},
    {"qwen3-0.6b",
     "Qwen/Qwen3-0.6B",
     596049920,
     {COMMON, .family = OT_FAMILY_QWEN3, SHAPE(28, 1024, 3072, 16, 8, 128, 151936, 40960), .norm_eps = 1e-6f,
      .rope.theta = 1e6, .qk_norm = true, .tied = true}},
    {"qwen3-8b",
     "Qwen/Qwen3-8B",
     8190735360,
     {COMMON, .family = OT_FAMILY_QWEN3, SHAPE(36, 4096, 12288, 32, 8, 128, 151936, 40960), .norm_eps = 1e-6f,
      .rope.theta = 1e6, .qk_norm = true}},
    {"tiny-sql",
     NULL,
     2730432,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(6, 192, 512, 6, 6, 32, 384, 512), .norm_eps = 1e-5f,
      .rope.theta = 1e4, .tied = true}},
    {"tiny-test",
     NULL,
     123200,
     {COMMON, .family = OT_FAMILY_LLAMA, SHAPE(2, 64, 128, 4, 2, 16, 384, 256), .norm_eps = 1e-5f,
      .rope.theta = 1e4}},
};
static const int N_PRESETS = sizeof PRESETS / sizeof PRESETS[0];

const struct ot_preset *ot_preset_find(const char *name) {
    for (int i = 0; i < N_PRESETS; i++)
        if (strcmp(PRESETS[i].name, name) == 0)
            return &PRESETS[i];
    return NULL;
}

const struct ot_preset *ot_preset_at(int index) {
    return index >= 0 && index < N_PRESETS ? &PRESETS[index] : NULL;
}

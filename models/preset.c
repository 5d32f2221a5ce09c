/* The presets: models that --model names without a directory. */
#include <ctype.h>
#include <pthread.h>
#include <string.h>
#include <strings.h>

#include "models/model.h"

/* The facts of a model besides those of its family, as in its config.json on the Hugging Face hub: sizes, and
 * all that differs from the family's row in families.c. The two tiny presets are this program's own:
 * scripts/quickstart trains tiny-sql within a minute on two cores; tiny-test is for tests. Their vocabulary
 * has room for a byte-level tokenizer: 256 bytes, some special tokens and some merges, rounded up to a
 * multiple of 128. */
struct row {
    const char *name, *hub_id;
    int64_t n_params;
    struct ot_model_config shape; /* sizes and window are used as they are, other fields if they are not 0 */
    bool untied;                  /* not tied, although the family is */
};

#define PRESET(preset, id, params, of, layers, width, mlp, heads, kv, dim, words, positions, ...)            \
    .name = (preset), .hub_id = (id), .n_params = (params),                                                  \
    .shape = {.family = OT_FAMILY_##of,                                                                      \
              .n_layers = (layers),                                                                          \
              .hidden = (width),                                                                             \
              .ffn = (mlp),                                                                                  \
              .n_heads = (heads),                                                                            \
              .n_kv_heads = (kv),                                                                            \
              .head_dim = (dim),                                                                             \
              .vocab = (words),                                                                              \
              .max_position = (positions),                                                                   \
              __VA_ARGS__}
#define LLAMA3_SCALING(by)                                                                                   \
    .rope.scaling = OT_ROPE_LLAMA3, .rope.factor = (by), .rope.low_freq_factor = 1,                          \
    .rope.high_freq_factor = 4, .rope.original_max_position = 8192
/* by: the factor that stretches a context of `tokens`. attention: 0.1 ln by + 1. */
#define YARN(by, tokens, attention)                                                                          \
    .rope.scaling = OT_ROPE_YARN, .rope.factor = (by), .rope.original_max_position = (tokens),               \
    .rope.attention_factor = (attention), .rope.beta_fast = 32, .rope.beta_slow = 1
/* Layers with a window: all but each n-th, of 64 layers. */
#define EVERY_SECOND       UINT64_C(0x5555555555555555)
#define ALL_BUT_SIXTH      UINT64_C(0xf7df7df7df7df7df)
#define ALL_BUT_FOURTH     UINT64_C(0x7777777777777777)
#define LAYERS(set, count) ((set) & ((UINT64_C(1) << (count)) - 1))
#define WINDOWS(tokens, set, count)                                                                          \
    .window = (tokens), .window_by_layer = true, .window_layers.bits[0] = LAYERS(set, count)
#define GPT_OSS_EXTRAS                                                                                       \
    YARN(32, 4096, 1.3465735902799727), .rope.keeps_fractions = true, .qkv_bias = true, .out_bias = true,    \
                                        .expert_ffn = 2880, .glu_limit = 7, .glu_alpha = 1.702f

static const struct row ROWS[] = {
    {PRESET("llama-7b", "huggyllama/llama-7b", 6738415616, LLAMA, 32, 4096, 11008, 32, 32, 128, 32000, 2048)},
    {PRESET("llama-13b", "huggyllama/llama-13b", 13015864320, LLAMA, 40, 5120, 13824, 40, 40, 128, 32000,
            2048)},
    {PRESET("llama-2-7b", "meta-llama/Llama-2-7b-hf", 6738415616, LLAMA, 32, 4096, 11008, 32, 32, 128, 32000,
            4096, .norm_eps = 1e-5f)},
    {PRESET("llama-2-13b", "meta-llama/Llama-2-13b-hf", 13015864320, LLAMA, 40, 5120, 13824, 40, 40, 128,
            32000, 4096, .norm_eps = 1e-5f)},
    {PRESET("llama-3-8b", "meta-llama/Meta-Llama-3-8B", 8030261248, LLAMA, 32, 4096, 14336, 32, 8, 128,
            128256, 8192, .norm_eps = 1e-5f, .rope.theta = 5e5)},
    {PRESET("llama-3.1-8b", "meta-llama/Llama-3.1-8B", 8030261248, LLAMA, 32, 4096, 14336, 32, 8, 128, 128256,
            131072, .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(8))},
    {PRESET("llama-3.2-1b", "meta-llama/Llama-3.2-1B", 1235814400, LLAMA, 16, 2048, 8192, 32, 8, 64, 128256,
            131072, .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(32), .tied = true)},
    {PRESET("tinyllama-1.1b", "TinyLlama/TinyLlama-1.1B-Chat-v1.0", 1100048384, LLAMA, 22, 2048, 5632, 32, 4,
            64, 32000, 2048, .norm_eps = 1e-5f)},
    {PRESET("llama-2-70b", "meta-llama/Llama-2-70b-hf", 68976648192, LLAMA, 80, 8192, 28672, 64, 8, 128,
            32000, 4096, .norm_eps = 1e-5f)},
    {PRESET("llama-3.1-70b", "meta-llama/Llama-3.1-70B", 70553706496, LLAMA, 80, 8192, 28672, 64, 8, 128,
            128256, 131072, .norm_eps = 1e-5f, .rope.theta = 5e5, LLAMA3_SCALING(8))},
    {PRESET("mistral-7b", "mistralai/Mistral-7B-v0.1", 7241732096, MISTRAL, 32, 4096, 14336, 32, 8, 128,
            32000, 32768, .norm_eps = 1e-5f, .window = 4096)},
    {PRESET("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B", 494032768, QWEN2, 24, 896, 4864, 14, 2, 64, 151936, 32768,
            .rope.theta = 1e6, .tied = true)},
    {PRESET("qwen2.5-7b", "Qwen/Qwen2.5-7B", 7615616512, QWEN2, 28, 3584, 18944, 28, 4, 128, 152064, 131072,
            .rope.theta = 1e6)},
    {PRESET("qwen3-0.6b", "Qwen/Qwen3-0.6B", 596049920, QWEN3, 28, 1024, 3072, 16, 8, 128, 151936, 40960,
            .rope.theta = 1e6, .tied = true)},
    {PRESET("qwen3-8b", "Qwen/Qwen3-8B", 8190735360, QWEN3, 36, 4096, 12288, 32, 8, 128, 151936, 40960,
            .rope.theta = 1e6)},
    {PRESET("qwen3-32b", "Qwen/Qwen3-32B", 32762123264, QWEN3, 64, 5120, 25600, 64, 8, 128, 151936, 40960,
            .rope.theta = 1e6)},
    {PRESET("gpt2", "openai-community/gpt2", 124439808, GPT2, 12, 768, 3072, 12, 12, 64, 50257, 1024)},
    {PRESET("gpt2-xl", "openai-community/gpt2-xl", 1557611200, GPT2, 48, 1600, 6400, 25, 25, 64, 50257,
            1024)},
    {PRESET("bloom-560m", "bigscience/bloom-560m", 559214592, BLOOM, 24, 1024, 4096, 16, 16, 64, 250880, 2048,
            .fused_groups = 16)},
    {PRESET("bloom-1b1", "bigscience/bloom-1b1", 1065314304, BLOOM, 24, 1536, 6144, 16, 16, 96, 250880, 2048,
            .fused_groups = 16)},
    {PRESET("bloom-7b1", "bigscience/bloom-7b1", 7069016064, BLOOM, 30, 4096, 16384, 32, 32, 128, 250880,
            2048, .fused_groups = 32)},
    {PRESET("falcon-7b", "tiiuae/falcon-7b", 6921720704, FALCON, 32, 4544, 18176, 71, 1, 64, 65024, 2048,
            .residual = OT_PARALLEL, .fused_groups = 1)},
    {PRESET("falcon-40b", "tiiuae/falcon-40b", 41303293952, FALCON, 60, 8192, 32768, 128, 8, 64, 65024, 2048,
            .residual = OT_PARALLEL_TWO, .fused_groups = 8)},
    {PRESET("codegen-350m", "Salesforce/codegen-350M-mono", 356712448, CODEGEN, 20, 1024, 4096, 16, 16, 64,
            51200, 2048, .fused_groups = 4, .rotary_dim = 32)},
    {PRESET("codegen2-1b", "Salesforce/codegen2-1B_P", 1015306240, CODEGEN, 16, 2048, 8192, 16, 16, 128,
            51200, 2048, .fused_groups = 8, .rotary_dim = 64)},
    {PRESET("phi-3-mini-4k", "microsoft/Phi-3-mini-4k-instruct", 3821079552, PHI3, 32, 3072, 8192, 32, 32, 96,
            32064, 4096, .window = 2047)},
    {PRESET("phi-4", "microsoft/phi-4", 14659507200, PHI3, 40, 5120, 17920, 40, 10, 128, 100352, 16384,
            .rope.theta = 25e4)},
    {PRESET("gemma-2b", "google/gemma-2b", 2506172416, GEMMA, 18, 2048, 16384, 8, 1, 256, 256000, 8192,
            .embed_scale = 45.254833995939045)},
    {PRESET("gemma-7b", "google/gemma-7b", 8537680896, GEMMA, 28, 3072, 24576, 16, 16, 256, 256000, 8192,
            .embed_scale = 55.42562584220407)},
    {PRESET("gemma-2-2b", "google/gemma-2-2b", 2614341888, GEMMA2, 26, 2304, 9216, 8, 4, 256, 256000, 8192,
            .embed_scale = 48, .attention_scale = 0.0625, WINDOWS(4096, EVERY_SECOND, 26))},
    {PRESET("gemma-2-9b", "google/gemma-2-9b", 9241705984, GEMMA2, 42, 3584, 14336, 16, 8, 256, 256000, 8192,
            .embed_scale = 59.866518188383065, .attention_scale = 0.0625, WINDOWS(4096, EVERY_SECOND, 42))},
    {PRESET("gemma-2-27b", "google/gemma-2-27b", 27227128320, GEMMA2, 46, 4608, 36864, 32, 16, 128, 256000,
            8192, .embed_scale = 67.88225099390856, .attention_scale = 1.0 / 12,
            WINDOWS(4096, EVERY_SECOND, 46))},
    {PRESET("gemma-3-1b", "google/gemma-3-1b-pt", 999885952, GEMMA3, 26, 1152, 6912, 4, 1, 256, 262144, 32768,
            .embed_scale = 33.94112549695428, .attention_scale = 0.0625, .local_rope_theta = 1e4,
            WINDOWS(512, ALL_BUT_SIXTH, 26))},
    {PRESET("olmo-2-1b", "allenai/OLMo-2-0425-1B", 1484916736, OLMO2, 16, 2048, 8192, 16, 16, 128, 100352,
            4096, .norm_eps = 1e-6f, .rope.theta = 5e5)},
    {PRESET("olmo-2-7b", "allenai/OLMo-2-1124-7B", 7298617344, OLMO2, 32, 4096, 11008, 32, 32, 128, 100352,
            4096, .norm_eps = 1e-6f, .rope.theta = 5e5)},
    {PRESET("olmo-3-7b", "allenai/Olmo-3-1025-7B", 7298011136, OLMO3, 32, 4096, 11008, 32, 32, 128, 100278,
            65536, .norm_eps = 1e-6f, .local_rope_theta = 5e5, YARN(8, 8192, 1.2079441541679836),
            WINDOWS(4096, ALL_BUT_FOURTH, 32))},
    {PRESET("smollm3-3b", "HuggingFaceTB/SmolLM3-3B", 3075098624, SMOLLM3, 36, 2048, 11008, 16, 4, 128,
            128256, 65536, .no_rope.bits[0] = LAYERS(~ALL_BUT_FOURTH, 36))},
    {PRESET("ministral-8b", "mistralai/Ministral-8B-Instruct-2410", 8019808256, MINISTRAL, 36, 4096, 12288,
            32, 8, 128, 131072, 32768, .norm_eps = 1e-5f, .rope.theta = 1e8,
            WINDOWS(32768, ALL_BUT_FOURTH << 1, 36))},
    {PRESET("granite-3.3-2b", "ibm-granite/granite-3.3-2b-base", 2533539840, GRANITE, 40, 2048, 8192, 32, 8,
            64, 49159, 131072, .norm_eps = 1e-5f, .rope.theta = 1e7, .tied = true, .embed_scale = 12,
            .residual_scale = 0.22, .attention_scale = 0.015625, .logit_divisor = 8)},
    {PRESET("granite-3.3-8b", "ibm-granite/granite-3.3-8b-base", 8170864640, GRANITE, 40, 4096, 12800, 32, 8,
            128, 49159, 131072, .norm_eps = 1e-5f, .rope.theta = 1e7, .tied = true, .embed_scale = 12,
            .residual_scale = 0.22, .attention_scale = 0.0078125, .logit_divisor = 16)},
    {PRESET("gpt-oss-20b", "openai/gpt-oss-20b", 20914757184, GPT_OSS, 24, 2880, 2880, 64, 8, 64, 201088,
            131072, GPT_OSS_EXTRAS, .n_experts = 32, WINDOWS(128, EVERY_SECOND, 24))},
    {PRESET("gpt-oss-120b", "openai/gpt-oss-120b", 116829156672, GPT_OSS, 36, 2880, 2880, 64, 8, 64, 201088,
            131072, GPT_OSS_EXTRAS, .n_experts = 128, WINDOWS(128, EVERY_SECOND, 36))},
    {PRESET("mixtral-8x7b", "mistralai/Mixtral-8x7B-v0.1", 46702792704, MIXTRAL, 32, 4096, 14336, 32, 8, 128,
            32000, 32768, .n_experts = 8, .expert_ffn = 14336)},
    {PRESET("qwen3-30b-a3b", "Qwen/Qwen3-30B-A3B", 30532122624, QWEN3_MOE, 48, 2048, 6144, 32, 4, 128, 151936,
            40960, .rope.theta = 1e6, .expert_ffn = 768)},
    {PRESET("qwen3-235b-a22b", "Qwen/Qwen3-235B-A22B", 235093634560, QWEN3_MOE, 94, 4096, 12288, 64, 4, 128,
            151936, 40960, .rope.theta = 1e6, .expert_ffn = 1536)},
    {PRESET("falcon3-7b", "tiiuae/Falcon3-7B-Base", 7455550464, LLAMA, 28, 3072, 23040, 12, 4, 256, 131072,
            32768, .rope.theta = 1000042)},
    {PRESET("deepseek-r1-distill-qwen-7b", "deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", 7615616512, QWEN2, 28,
            3584, 18944, 28, 4, 128, 152064, 131072)},
    {PRESET("deepseek-r1-distill-llama-8b", "deepseek-ai/DeepSeek-R1-Distill-Llama-8B", 8030261248, LLAMA, 32,
            4096, 14336, 32, 8, 128, 128256, 131072, .norm_eps = 1e-5f, .rope.theta = 5e5,
            LLAMA3_SCALING(8))},
    {PRESET("yi-6b", "01-ai/Yi-6B", 6061035520, LLAMA, 32, 4096, 11008, 32, 4, 128, 64000, 4096,
            .norm_eps = 1e-5f, .rope.theta = 5e6)},
    {PRESET("vicuna-7b", "lmsys/vicuna-7b-v1.5", 6738415616, LLAMA, 32, 4096, 11008, 32, 32, 128, 32000, 4096,
            .norm_eps = 1e-5f)},
    {PRESET("codellama-7b", "codellama/CodeLlama-7b-hf", 6738546688, LLAMA, 32, 4096, 11008, 32, 32, 128,
            32016, 16384, .norm_eps = 1e-5f, .rope.theta = 1e6)},
    {PRESET("t5-small", "google-t5/t5-small", 60506624, T5, 12, 512, 2048, 8, 8, 64, 32128, 1 << 20,
            .n_encoder_layers = 6, .act = OT_ACT_RELU, .plain_mlp = true,
            .logit_divisor = 22.627416997969522)},
    {PRESET("t5-base", "google-t5/t5-base", 222903552, T5, 24, 768, 3072, 12, 12, 64, 32128, 1 << 20,
            .n_encoder_layers = 12, .act = OT_ACT_RELU, .plain_mlp = true,
            .logit_divisor = 27.712812921102035)},
    {PRESET("flan-t5-base", "google/flan-t5-base", 247577856, T5, 24, 768, 2048, 12, 12, 64, 32128, 1 << 20,
            .n_encoder_layers = 12, .act = OT_ACT_GELU_TANH),
     .untied = true},
    {PRESET("tiny-sql", NULL, 2730432, LLAMA, 6, 192, 512, 6, 6, 32, 384, 512, .norm_eps = 1e-5f,
            .tied = true)},
    {PRESET("tiny-test", NULL, 123200, LLAMA, 2, 64, 128, 4, 2, 16, 384, 256, .norm_eps = 1e-5f)},
};
enum { N_PRESETS = sizeof ROWS / sizeof ROWS[0] };

static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct ot_preset PRESETS[N_PRESETS];

#define TAKE(field)                                                                                          \
    if (shape->field)                                                                                        \
    c->field = shape->field

static void take_rope(const struct ot_model_config *shape, struct ot_model_config *c) {
    TAKE(rope.theta);
    TAKE(rope.scaling);
    TAKE(rope.factor);
    TAKE(rope.low_freq_factor);
    TAKE(rope.high_freq_factor);
    TAKE(rope.original_max_position);
    TAKE(rope.attention_factor);
    TAKE(rope.beta_fast);
    TAKE(rope.beta_slow);
    TAKE(rope.keeps_fractions);
    c->rotary_dim = c->rope.theta > 0 ? shape->head_dim : 0; /* heads rotate whole, where they rotate */
    TAKE(rotary_dim);
    c->no_rope = shape->no_rope;
}

/* Sets *c to what the family's row and the preset's say. */
static void describe(const struct row *row, struct ot_model_config *c) {
    const struct ot_model_config *shape = &row->shape;
    *c = ot_family_row(shape->family)->base;
    c->family = shape->family;
    c->n_layers = shape->n_layers;
    c->n_encoder_layers = shape->n_encoder_layers;
    c->hidden = shape->hidden;
    c->ffn = shape->ffn;
    c->n_heads = shape->n_heads;
    c->n_kv_heads = shape->n_kv_heads;
    c->head_dim = shape->head_dim;
    c->vocab = shape->vocab;
    c->max_position = shape->max_position;
    c->window = shape->window;
    c->window_by_layer = shape->window_by_layer;
    c->window_layers = shape->window_layers;
    c->tied = (c->tied || shape->tied) && !row->untied;
    take_rope(shape, c);
    TAKE(norm_eps);
    TAKE(residual);
    TAKE(embed_scale);
    TAKE(residual_scale);
    TAKE(attention_scale);
    TAKE(act);
    TAKE(plain_mlp);
    TAKE(qkv_bias);
    TAKE(out_bias);
    TAKE(fused_groups);
    TAKE(n_experts);
    TAKE(expert_ffn);
    TAKE(glu_limit);
    TAKE(glu_alpha);
    TAKE(logit_divisor);
}

static void describe_all(void) {
    for (int i = 0; i < N_PRESETS; i++) {
        PRESETS[i] = (struct ot_preset){ROWS[i].name, ROWS[i].hub_id, ROWS[i].n_params, {0}};
        describe(&ROWS[i], &PRESETS[i].config);
    }
}

const struct ot_preset *ot_preset_at(int index) {
    pthread_once(&once, describe_all);
    return index >= 0 && index < N_PRESETS ? &PRESETS[index] : NULL;
}

const struct ot_preset *ot_preset_find(const char *name) {
    for (int i = 0; i < N_PRESETS; i++)
        if (strcmp(ROWS[i].name, name) == 0)
            return ot_preset_at(i);
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
        if (strcmp(plain(ROWS[i].name, text), wanted) == 0)
            return ot_preset_at(i);
    for (int i = 0; i < N_PRESETS && *wanted; i++)
        if (ROWS[i].hub_id && strcmp(plain(last_part(ROWS[i].hub_id), text), wanted) == 0)
            return ot_preset_at(i);
    return NULL;
}

const struct ot_preset *ot_preset_spelled(const char *name) {
    char text[PLAIN_BYTES];
    if (!strchr(name, '/'))
        return find_plain(plain(name, text));
    for (int i = 0; i < N_PRESETS; i++)
        if (ROWS[i].hub_id && strcasecmp(ROWS[i].hub_id, name) == 0)
            return ot_preset_at(i);
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

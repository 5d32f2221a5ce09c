#include "src/gguf/names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- architectures ---- */

const char *ot_gguf_architecture(enum ot_family family) {
    static const char *const names[OT_FAMILY_COUNT] = {[OT_FAMILY_LLAMA] = "llama",
                                                       [OT_FAMILY_MISTRAL] = "llama",
                                                       [OT_FAMILY_QWEN2] = "qwen2",
                                                       [OT_FAMILY_QWEN3] = "qwen3"};
    return names[family];
}

bool ot_gguf_has_permuted_heads(enum ot_family family) {
    return family == OT_FAMILY_LLAMA || family == OT_FAMILY_MISTRAL;
}

/* ---- tensors ---- */

struct name_pair {
    const char *tensor, *name;
};

static const struct name_pair EDGES[] = {
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
};

/* Without "model.layers.N." or "blk.N.", and without ".weight" or ".bias". */
static const struct name_pair PARTS[] = {
    {"self_attn.q_proj", "attn_q"},
    {"self_attn.k_proj", "attn_k"},
    {"self_attn.v_proj", "attn_v"},
    {"self_attn.o_proj", "attn_output"},
    {"self_attn.q_norm", "attn_q_norm"},
    {"self_attn.k_norm", "attn_k_norm"},
    {"mlp.gate_proj", "ffn_gate"},
    {"mlp.up_proj", "ffn_up"},
    {"mlp.down_proj", "ffn_down"},
    {"input_layernorm", "attn_norm"},
    {"post_attention_layernorm", "ffn_norm"},
};

/* A name of the form PREFIX N . PART ENDING. False: it has another form. */
struct layer_name {
    int layer;
    char part[48];
    const char *ending; /* ".weight" or ".bias" */
};

static bool split_name(const char *name, const char *prefix, struct layer_name *out) {
    size_t begin = strlen(prefix);
    int digits = 0;
    if (strncmp(name, prefix, begin) != 0)
        return false;
    if (sscanf(name + begin, "%4d%n", &out->layer, &digits) != 1 || name[begin] < '0' || name[begin] > '9' ||
        name[begin + (size_t)digits] != '.' || (name[begin] == '0' && digits > 1))
        return false;
    const char *part = name + begin + digits + 1;
    out->ending = strrchr(part, '.');
    if (!out->ending || (strcmp(out->ending, ".weight") != 0 && strcmp(out->ending, ".bias") != 0))
        return false;
    int n = snprintf(out->part, sizeof out->part, "%.*s", (int)(out->ending - part), part);
    return n < (int)sizeof out->part;
}

bool ot_gguf_name_of(const char *tensor, char name[OT_GGUF_NAME_BYTES]) {
    struct layer_name at;
    for (size_t i = 0; i < sizeof EDGES / sizeof *EDGES; i++)
        if (strcmp(tensor, EDGES[i].tensor) == 0) {
            snprintf(name, OT_GGUF_NAME_BYTES, "%s", EDGES[i].name);
            return true;
        }
    if (!split_name(tensor, "model.layers.", &at))
        return false;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (strcmp(at.part, PARTS[i].tensor) == 0) {
            snprintf(name, OT_GGUF_NAME_BYTES, "blk.%d.%s%s", at.layer, PARTS[i].name, at.ending);
            return true;
        }
    return false;
}

bool ot_gguf_name_of_adapter(const char *tensor, char name[OT_GGUF_NAME_BYTES]) {
    char target[OT_MODEL_NAME_BYTES], of_target[OT_GGUF_NAME_BYTES];
    const char *module = tensor + strlen(OT_LORA_PREFIX), *end = strstr(tensor, ".lora_");
    if (!ot_lora_has_tensor(tensor) || !end)
        return false;
    snprintf(target, sizeof target, "%.*s.weight", (int)(end - module), module);
    if (!ot_gguf_name_of(target, of_target))
        return false;
    int n = snprintf(name, OT_GGUF_NAME_BYTES, "%s.lora_%c", of_target, strstr(end, ".lora_A") ? 'a' : 'b');
    return n < OT_GGUF_NAME_BYTES;
}

bool ot_gguf_name_back(const char *name, char tensor[96]) {
    struct layer_name at;
    for (size_t i = 0; i < sizeof EDGES / sizeof *EDGES; i++)
        if (strcmp(name, EDGES[i].name) == 0) {
            snprintf(tensor, 96, "%s", EDGES[i].tensor);
            return true;
        }
    if (!split_name(name, "blk.", &at))
        return false;
    for (size_t i = 0; i < sizeof PARTS / sizeof *PARTS; i++)
        if (strcmp(at.part, PARTS[i].name) == 0) {
            snprintf(tensor, 96, "model.layers.%d.%s%s", at.layer, PARTS[i].tensor, at.ending);
            return true;
        }
    return false;
}

int64_t ot_gguf_head_rows(const struct ot_model_config *config, const char *tensor) {
    struct layer_name at;
    bool turns = split_name(tensor, "model.layers.", &at) &&
                 (strcmp(at.part, "self_attn.q_proj") == 0 || strcmp(at.part, "self_attn.k_proj") == 0);
    return turns && ot_gguf_has_permuted_heads(config->family) ? config->head_dim : 0;
}

float ot_gguf_rope_factor(const struct ot_model_config *c, int64_t pair) {
    double wavelength = 2 * M_PI * pow(c->rope.theta, 2.0 * (double)pair / (double)c->rotary_dim);
    double low = c->rope.low_freq_factor, high = c->rope.high_freq_factor;
    double original = c->rope.original_max_position;
    if (wavelength < original / high)
        return 1;
    if (wavelength > original / low)
        return (float)c->rope.factor;
    double blend = (original / wavelength - low) / (high - low);
    return (float)(1 / ((1 - blend) / c->rope.factor + blend));
}

/* ---- mixtures of types ---- */

static const struct ot_gguf_mixture MIXTURES[] = {
    {.name = "f32", .label = "F32", .file_type = 0, .type = OT_GGUF_F32},
    {.name = "f16", .label = "F16", .file_type = 1, .type = OT_GGUF_F16},
    {.name = "bf16", .label = "BF16", .file_type = 32, .type = OT_GGUF_BF16},
    {.name = "q8_0", .label = "Q8_0", .file_type = 7, .type = OT_GGUF_Q8_0},
    {.name = "q6_k", .label = "Q6_K", .file_type = 18, .type = OT_GGUF_Q6_K},
    {.name = "q4_k_m",
     .label = "Q4_K_M",
     .file_type = 15,
     .type = OT_GGUF_Q4_K,
     .finer_output = true,
     .finer_layers = true},
    {.name = "q4_0", .label = "Q4_0", .file_type = 2, .type = OT_GGUF_Q4_0, .finer_output = true},
};

const struct ot_gguf_mixture *ot_gguf_mixture_at(int index) {
    return index < (int)(sizeof MIXTURES / sizeof *MIXTURES) ? &MIXTURES[index] : NULL;
}

static bool is_finer_layer(int64_t layer, int64_t n_layers) {
    int64_t eighth = n_layers / 8;
    return layer < eighth || layer >= 7 * n_layers / 8 || (layer - eighth) % 3 == 2;
}

static bool is_finer(const struct ot_gguf_mixture *mixture, const struct ot_model_config *config,
                     const char *tensor) {
    struct layer_name at;
    if (!split_name(tensor, "model.layers.", &at))
        return mixture->finer_output &&
               strcmp(tensor, config->tied ? "model.embed_tokens.weight" : "lm_head.weight") == 0;
    bool matters = strcmp(at.part, "self_attn.v_proj") == 0 || strcmp(at.part, "mlp.down_proj") == 0;
    return mixture->finer_layers && matters && is_finer_layer(at.layer, config->n_layers);
}

const struct ot_gguf_type *ot_gguf_type_of(const struct ot_gguf_mixture *mixture,
                                           const struct ot_model_config *config,
                                           const struct ot_tensor *tensor) {
    if (tensor->dims == 1)
        return ot_gguf_type(OT_GGUF_F32);
    enum ot_gguf_type_id id = is_finer(mixture, config, tensor->name) ? OT_GGUF_Q6_K : mixture->type;
    const enum ot_gguf_type_id tries[] = {id, OT_GGUF_Q8_0};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        if (tensor->cols % ot_gguf_type(tries[i])->block_values == 0)
            return ot_gguf_type(tries[i]);
    return ot_gguf_type(OT_GGUF_F16);
}

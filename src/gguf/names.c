#include "src/gguf/names.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- tensors ---- */

#define GATE_OF_EXPERTS "ffn_gate_exps"
#define UP_OF_EXPERTS   "ffn_up_exps"

static const char *const NAMES[OT_MODULES] = {
    [OT_MODULE_EMBEDDING] = "token_embd",
    [OT_MODULE_POSITIONS] = "position_embd",
    [OT_MODULE_EMBED_NORM] = "token_embd_norm",
    [OT_MODULE_Q] = "attn_q",
    [OT_MODULE_K] = "attn_k",
    [OT_MODULE_V] = "attn_v",
    [OT_MODULE_QKV] = "attn_qkv",
    [OT_MODULE_O] = "attn_output",
    [OT_MODULE_GATE] = "ffn_gate",
    [OT_MODULE_UP] = "ffn_up",
    [OT_MODULE_GATE_UP] = "ffn_up",
    [OT_MODULE_DOWN] = "ffn_down",
    [OT_MODULE_Q_NORM] = "attn_q_norm",
    [OT_MODULE_K_NORM] = "attn_k_norm",
    [OT_MODULE_NORM1] = "attn_norm",
    [OT_MODULE_NORM2] = "ffn_norm",
    [OT_MODULE_POST1] = "post_attention_norm",
    [OT_MODULE_POST2] = "post_ffw_norm",
    [OT_MODULE_NORM] = "output_norm",
    [OT_MODULE_HEAD] = "output",
    [OT_MODULE_ROUTER] = "ffn_gate_inp",
    [OT_MODULE_EXPERT_GATE] = GATE_OF_EXPERTS,
    [OT_MODULE_EXPERT_UP] = UP_OF_EXPERTS,
    [OT_MODULE_EXPERT_DOWN] = "ffn_down_exps",
    [OT_MODULE_EXPERTS_GATE_UP] = GATE_OF_EXPERTS,
    [OT_MODULE_EXPERTS_DOWN] = "ffn_down_exps",
    [OT_MODULE_SINKS] = "attn_sinks",
};

/* The modules that have another name in an encoder-decoder. */
static const char *const PAIR_NAMES[OT_MODULES] = {
    [OT_MODULE_O] = "attn_o",
    [OT_MODULE_CROSS_Q] = "cross_attn_q",
    [OT_MODULE_CROSS_K] = "cross_attn_k",
    [OT_MODULE_CROSS_V] = "cross_attn_v",
    [OT_MODULE_CROSS_O] = "cross_attn_o",
    [OT_MODULE_CROSS_NORM] = "cross_attn_norm",
    [OT_MODULE_ENCODER_BIAS] = "enc.blk.0.attn_rel_b",
    [OT_MODULE_DECODER_BIAS] = "dec.blk.0.attn_rel_b",
    [OT_MODULE_ENCODER_NORM] = "enc.output_norm",
    [OT_MODULE_NORM] = "dec.output_norm",
};

static const char *module_name(const struct ot_model_config *config, enum ot_module module) {
    if (config->residual == OT_PARALLEL_TWO && module == OT_MODULE_NORM1)
        return "attn_norm_2";
    if (config->residual == OT_PARALLEL_TWO && module == OT_MODULE_NORM2)
        return "attn_norm";
    if (config->family == OT_FAMILY_GPT_OSS && module == OT_MODULE_NORM2)
        return NAMES[OT_MODULE_POST1];
    return ot_model_has_pairs(config) && PAIR_NAMES[module] ? PAIR_NAMES[module] : NAMES[module];
}

/* The prefix of the layers' names, and the layers [first, end) that have it. */
struct stack {
    const char *prefix;
    int64_t first, end;
};

static struct stack stack_of(const struct ot_model_config *config, bool decoder) {
    if (!ot_model_has_pairs(config))
        return (struct stack){"blk.", 0, OT_MODEL_MAX_LAYERS};
    return decoder ? (struct stack){"dec.blk.", config->n_encoder_layers, config->n_layers}
                   : (struct stack){"enc.blk.", 0, config->n_encoder_layers};
}

/* True if the tensors of Hugging Face end in "" and "_bias". */
static bool is_bare(enum ot_module module) {
    return module == OT_MODULE_SINKS || module == OT_MODULE_EXPERTS_GATE_UP ||
           module == OT_MODULE_EXPERTS_DOWN;
}

bool ot_gguf_name_of(const struct ot_model_config *config, const struct ot_tensor *tensor,
                     char name[OT_GGUF_NAME_BYTES]) {
    bool adapter = ot_lora_has_tensor(tensor->name);
    const char *part = module_name(config, tensor->module), *ending = strrchr(tensor->name, '.');
    char layer[32] = "";
    if (!part || !ending || strstr(tensor->name, "lora_embedding_") || strstr(tensor->name, "lora_magnitude"))
        return false;
    if (adapter)
        ending = strstr(tensor->name, ".lora_A") ? ".weight.lora_a" : ".weight.lora_b";
    else if (is_bare(tensor->module))
        ending = strstr(ending, "_bias") ? ".bias" : ".weight";
    if (tensor->layer >= 0) {
        const struct stack stack = stack_of(config, tensor->layer >= config->n_encoder_layers);
        snprintf(layer, sizeof layer, "%s%lld.", stack.prefix, (long long)(tensor->layer - stack.first));
    }
    int n = snprintf(name, OT_GGUF_NAME_BYTES, "%s%s%s", layer, part, ending);
    return n < OT_GGUF_NAME_BYTES;
}

void ot_gguf_name_up(char name[OT_GGUF_NAME_BYTES]) {
    char *gate = strstr(name, GATE_OF_EXPERTS);
    char ending[OT_GGUF_NAME_BYTES];
    snprintf(ending, sizeof ending, "%s", gate + strlen(GATE_OF_EXPERTS));
    snprintf(gate, OT_GGUF_NAME_BYTES - (size_t)(gate - name), UP_OF_EXPERTS "%s", ending);
}

/* Reads the prefix of a layer's names, such as "blk.N.". *after: what follows. Without it: layer -1. False:
 * there is no such layer. */
static bool split_layer(const struct ot_model_config *config, const char *name, int64_t *layer,
                        const char **after) {
    int number, digits = 0;
    *layer = -1;
    *after = name;
    for (int decoder = 0; decoder < 2; decoder++) {
        const struct stack stack = stack_of(config, decoder);
        const char *begin = name + strlen(stack.prefix);
        if (strncmp(name, stack.prefix, strlen(stack.prefix)) != 0)
            continue;
        if (*begin < '0' || *begin > '9' || sscanf(begin, "%4d%n", &number, &digits) != 1 ||
            begin[digits] != '.' || (*begin == '0' && digits > 1) || stack.first + number >= stack.end)
            return false;
        *layer = stack.first + number;
        *after = begin + digits + 1;
        return true;
    }
    return true;
}

/* True if the text from part to end is this name; NULL is none. */
static bool is_part(const char *name, const char *part, const char *end) {
    return name && strlen(name) == (size_t)(end - part) && strncmp(part, name, (size_t)(end - part)) == 0;
}

bool ot_gguf_find_place(const struct ot_model_config *config, const char *name, struct ot_gguf_place *place) {
    static const char *const endings[] = {".weight", ".bias"};
    char known[OT_MODEL_NAME_BYTES];
    const char *part, *end = strrchr(name, '.');
    int64_t layer;
    if (!end || !split_layer(config, name, &layer, &part) || part > end)
        return false;
    place->ending = NULL;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
        if (strcmp(end, endings[i]) == 0)
            place->ending = endings[i];
    for (int i = 0; i < OT_MODULES && place->ending; i++) {
        enum ot_module module = (enum ot_module)i;
        bool in_layer = ot_module_is_in_layer(module);
        const char *begin = in_layer ? part : name; /* the tables of a T5 have names with a layer */
        place->module = module;
        place->layer = in_layer ? layer : -1;
        place->is_up = ot_gguf_is_pair(module) && is_part(UP_OF_EXPERTS, begin, end);
        if ((place->is_up || is_part(module_name(config, module), begin, end)) && (layer >= 0 || !in_layer) &&
            ot_model_module_name(config, module, place->layer, known, sizeof known))
            return true;
    }
    return false;
}

void ot_gguf_name_back(const struct ot_model_config *config, const struct ot_gguf_place *place,
                       int64_t expert, char tensor[OT_MODEL_NAME_BYTES]) {
    const char *ending = place->ending;
    if (is_bare(place->module))
        ending = strcmp(ending, ".bias") == 0 ? "_bias" : "";
    if (!ot_model_expert_name(config, place->module, place->layer, expert, tensor, OT_MODEL_NAME_BYTES))
        ot_model_module_name(config, place->module, place->layer, tensor, OT_MODEL_NAME_BYTES);
    size_t n = strlen(tensor);
    snprintf(tensor + n, OT_MODEL_NAME_BYTES - n, "%s", ending);
}

int ot_gguf_expert_shape(const struct ot_model_config *config, const struct ot_gguf_place *place,
                         int64_t shape[3]) {
    bool down = place->module == OT_MODULE_EXPERT_DOWN || place->module == OT_MODULE_EXPERTS_DOWN;
    if (!ot_module_is_expert(place->module))
        return 0;
    shape[0] = config->n_experts;
    shape[1] = down ? config->hidden : config->expert_ffn;
    shape[2] = down ? config->expert_ffn : config->hidden;
    return strcmp(place->ending, ".bias") == 0 ? 2 : 3;
}

int64_t ot_gguf_head_rows(const struct ot_model_config *config, enum ot_module module) {
    bool turns = module == OT_MODULE_Q || module == OT_MODULE_K;
    return turns && ot_gguf_architecture(config->family)->permuted ? config->head_dim : 0;
}

float ot_gguf_addend(const struct ot_model_config *config, enum ot_module module) {
    return config->norm_adds_one && ot_module_is_norm(module) ? 1 : 0;
}

/* ---- factors of rope ---- */

bool ot_gguf_is_rope_tensor(const char *name) {
    return strcmp(name, OT_GGUF_ROPE_FREQS) == 0 || strcmp(name, OT_GGUF_FACTORS_LONG) == 0 ||
           strcmp(name, OT_GGUF_FACTORS_SHORT) == 0;
}

const char *ot_gguf_rope_tensor(const struct ot_model_config *config, int index) {
    static const char *const longrope[] = {OT_GGUF_FACTORS_LONG, OT_GGUF_FACTORS_SHORT};
    if (config->rope.scaling == OT_ROPE_LLAMA3)
        return index == 0 ? OT_GGUF_ROPE_FREQS : NULL;
    return config->rope.scaling == OT_ROPE_LONGROPE && index < 2 ? longrope[index] : NULL;
}

static float llama3_factor(const struct ot_model_config *c, int64_t pair) {
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

float ot_gguf_rope_factor(const struct ot_model_config *config, const char *name, int64_t pair) {
    if (strcmp(name, OT_GGUF_FACTORS_LONG) == 0)
        return config->rope.long_factors[pair];
    if (strcmp(name, OT_GGUF_FACTORS_SHORT) == 0)
        return config->rope.short_factors[pair];
    return llama3_factor(config, pair);
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

/* True for the output matrix, and for an embedding that is also the output. */
static bool is_output(const struct ot_model_config *config, const struct ot_tensor *tensor) {
    return tensor->module == (config->tied ? OT_MODULE_EMBEDDING : OT_MODULE_HEAD);
}

/* llama.cpp's rules for the 8 experts of Mixtral, whose attention is small. True: *type is chosen. */
static bool choose_of_eight(const struct ot_gguf_mixture *mixture, const struct ot_model_config *config,
                            enum ot_module module, enum ot_gguf_type_id *type) {
    bool is_k_or_v = module == OT_MODULE_K || module == OT_MODULE_V;
    *type = is_k_or_v ? OT_GGUF_Q8_0 : OT_GGUF_Q6_K;
    return config->n_experts == 8 && (is_k_or_v || (module == OT_MODULE_O && mixture->finer_layers));
}

static enum ot_gguf_type_id choose_type(const struct ot_gguf_mixture *mixture,
                                        const struct ot_model_config *config,
                                        const struct ot_tensor *tensor) {
    enum ot_module module = tensor->module;
    enum ot_gguf_type_id type;
    bool quantised = ot_gguf_type(mixture->type)->block_values > 1;
    bool matters = module == OT_MODULE_V || module == OT_MODULE_CROSS_V || module == OT_MODULE_QKV ||
                   module == OT_MODULE_DOWN || module == OT_MODULE_EXPERT_DOWN ||
                   module == OT_MODULE_EXPERTS_DOWN;
    bool positions =
        module == OT_MODULE_POSITIONS || module == OT_MODULE_ENCODER_BIAS || module == OT_MODULE_DECODER_BIAS;
    if (tensor->dims == 1 || positions || module == OT_MODULE_ROUTER)
        return OT_GGUF_F32;
    if (is_output(config, tensor) && quantised && config->family == OT_FAMILY_FALCON)
        return OT_GGUF_Q8_0;
    if (quantised && choose_of_eight(mixture, config, module, &type))
        return type;
    bool finer = is_output(config, tensor)
                     ? mixture->finer_output
                     : mixture->finer_layers && matters && is_finer_layer(tensor->layer, config->n_layers);
    return finer ? OT_GGUF_Q6_K : mixture->type;
}

const struct ot_gguf_type *ot_gguf_type_of(const struct ot_gguf_mixture *mixture,
                                           const struct ot_model_config *config,
                                           const struct ot_tensor *tensor) {
    enum ot_gguf_type_id type = choose_type(mixture, config, tensor);
    const enum ot_gguf_type_id tries[] = {type, type == OT_GGUF_Q4_K ? OT_GGUF_Q5_0 : OT_GGUF_Q8_0};
    for (size_t i = 0; i < sizeof tries / sizeof *tries; i++)
        if (tensor->cols % ot_gguf_type(tries[i])->block_values == 0)
            return ot_gguf_type(tries[i]);
    return ot_gguf_type(OT_GGUF_F16);
}

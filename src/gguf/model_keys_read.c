/* Makes config.json from the keys of a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/family.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"
#include "src/gguf/model_keys.h"

#define OT_GGUF_MOST INT64_C(0x7fffffff)

struct ot_gguf_maker {
    const struct ot_gguf *file;
    const struct ot_family_row *family;
    const struct ot_gguf_architecture *row; /* its name is the prefix of the keys */
    struct ot_model_config c;
};

/* ---- one key ---- */

/* "llama.block_count"; static, overwritten by the next call of the thread. */
static const char *key_name(const struct ot_gguf_maker *m, const char *name) {
    static _Thread_local char key[80];
    snprintf(key, sizeof key, "%s.%s", m->row->name, name);
    return key;
}

static int take_int(const struct ot_gguf_maker *m, const char *name, bool required, int64_t min, int64_t max,
                    int64_t *out) {
    return ot_gguf_need_int(m->file, key_name(m, name), required, min, max, out);
}

/* The decimal with the fewest digits that is stored as this value after a division by `unit`. */
static double round_decimal(float stored, double unit) {
    char text[32];
    double value = (double)stored * unit;
    for (int digits = 1; digits <= 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        double decimal = strtod(text, NULL);
        if ((float)(decimal / unit) == stored)
            return decimal;
    }
    return value;
}

/* As ot_gguf_need_real; *out becomes the decimal that model_keys.h promises. */
static int take_real(const struct ot_gguf_maker *m, const char *name, bool required, double min, double max,
                     double *out) {
    const char *key = key_name(m, name);
    OT_TRY(ot_gguf_need_real(m->file, key, required, min, max, out));
    if (ot_gguf_find(m->file, key))
        *out = round_decimal((float)*out, 1);
    return 0;
}

/* ---- the family ---- */

/* True if the file has the key with a number other than 0. */
static bool has_number(const struct ot_gguf_maker *m, const char *name) {
    double value = 0;
    int64_t count = 0;
    const char *key = key_name(m, name);
    const struct ot_gguf_value *found = ot_gguf_find(m->file, key);
    if (found && found->kind == OT_GGUF_KIND_F32)
        return ot_gguf_need_real(m->file, key, false, -1e30, 1e30, &value) == 0 && value != 0;
    return found && ot_gguf_need_int(m->file, key, false, 0, OT_GGUF_MOST, &count) == 0 && count != 0;
}

/* Chooses among families with the same architecture (model_keys.h). */
static enum ot_family choose_family(const struct ot_gguf_maker *m, enum ot_family first) {
    if (first == OT_FAMILY_LLAMA && has_number(m, "expert_count"))
        return OT_FAMILY_MIXTRAL;
    if (first == OT_FAMILY_LLAMA && has_number(m, "attention.sliding_window"))
        return OT_FAMILY_MISTRAL;
    if (first == OT_FAMILY_OLMO2 && has_number(m, "attention.sliding_window"))
        return OT_FAMILY_OLMO3;
    if (first == OT_FAMILY_MINISTRAL3 && !has_number(m, "attention.temperature_scale"))
        return OT_FAMILY_MISTRAL;
    return first;
}

static int find_family(struct ot_gguf_maker *m) {
    struct ot_gguf_string name;
    int first = 0;
    OT_TRY(ot_gguf_need_string(m->file, "general.architecture", true, &name));
    while (first < OT_FAMILY_COUNT) {
        m->row = ot_gguf_architecture((enum ot_family)first);
        if (m->row->name && ot_gguf_string_is(name, m->row->name))
            break;
        first++;
    }
    if (first == OT_FAMILY_COUNT)
        return ot_fail(OT_E_INPUT, "%s: general.architecture '%.*s' is not supported; known: %s",
                       ot_gguf_path(m->file), (int)ot_min(name.bytes, 60), name.text,
                       ot_gguf_known_architectures);
    m->family = ot_family_row(choose_family(m, (enum ot_family)first));
    m->c = m->family->base;
    m->c.family = m->family->family;
    return 0;
}

/* ---- sizes ---- */

/* Reads the sizes of both stacks of a T5. The context length limits nothing (family_t5.h). */
static int read_pair_counts(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    int64_t n_decoder = c->n_layers, start = OT_PAIR_START_ID;
    OT_TRY(take_int(m, "decoder_block_count", false, 1, OT_MODEL_MAX_LAYERS, &n_decoder));
    OT_TRY(take_int(m, "decoder_start_token_id", false, 0, OT_GGUF_MOST, &start));
    if (start != OT_PAIR_START_ID)
        return ot_fail(OT_E_INPUT, "%s: key %s is %lld; only %d is supported", ot_gguf_path(m->file),
                       key_name(m, "decoder_start_token_id"), (long long)start, OT_PAIR_START_ID);
    c->n_encoder_layers = c->n_layers;
    c->n_layers += n_decoder;
    c->position_distance = OT_GGUF_PAIR_DISTANCE;
    return take_int(m, "attention.relative_buckets_count", true, 4, 256, &c->position_buckets);
}

static int read_counts(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    OT_TRY(take_int(m, "block_count", true, 1, OT_MODEL_MAX_LAYERS, &c->n_layers));
    if (c->positions == OT_POSITIONS_RELATIVE)
        OT_TRY(read_pair_counts(m));
    else
        OT_TRY(take_int(m, "context_length", true, 1, OT_GGUF_MOST, &c->max_position));
    OT_TRY(take_int(m, "embedding_length", true, 1, OT_GGUF_MOST, &c->hidden));
    OT_TRY(take_int(m, "feed_forward_length", true, 1, OT_GGUF_MOST, &c->ffn));
    OT_TRY(take_int(m, "attention.head_count", true, 1, OT_GGUF_MOST, &c->n_heads));
    c->n_kv_heads = c->n_heads;
    OT_TRY(take_int(m, "attention.head_count_kv", false, 1, OT_GGUF_MOST, &c->n_kv_heads));
    c->head_dim = c->hidden / c->n_heads;
    return take_int(m, "attention.key_length", false, 1, OT_GGUF_MOST, &c->head_dim);
}

/* llama.cpp applies groups of experts in all architectures. */
static int check_groups(const struct ot_gguf_maker *m) {
    int64_t groups = 0;
    OT_TRY(take_int(m, "expert_group_count", false, 0, OT_GGUF_MOST, &groups));
    return groups > 1
               ? ot_fail(OT_E_INPUT, "%s: key %s is %lld; a choice among groups of experts is not supported",
                         ot_gguf_path(m->file), key_name(m, "expert_group_count"), (long long)groups)
               : 0;
}

static int read_experts(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    bool has_experts = c->n_experts > 0, is_gpt_oss = c->family == OT_FAMILY_GPT_OSS;
    int64_t most_top;
    c->n_experts = 0;
    OT_TRY(take_int(m, "expert_count", has_experts, has_experts, OT_MOST_EXPERTS, &c->n_experts));
    if (c->n_experts == 0)
        return 0;
    if (!has_experts)
        return ot_fail(OT_E_INPUT, "%s: key %s is %lld; experts of this architecture are not supported",
                       ot_gguf_path(m->file), key_name(m, "expert_count"), (long long)c->n_experts);
    most_top = ot_min(c->n_experts, OT_MOST_TOP);
    OT_TRY(take_int(m, "expert_used_count", true, 1, most_top, &c->top_experts));
    OT_TRY(check_groups(m));
    c->expert_ffn =
        c->family == OT_FAMILY_QWEN3_MOE ? c->ffn / c->top_experts : c->ffn; /* llama.cpp's defaults */
    if (c->family != OT_FAMILY_MIXTRAL)
        OT_TRY(take_int(m, "expert_feed_forward_length", is_gpt_oss, 1, OT_GGUF_MOST, &c->expert_ffn));
    if (is_gpt_oss) {
        c->ffn = c->expert_ffn;
        c->glu_limit = OT_GGUF_GLU_LIMIT;
        c->glu_alpha = OT_GGUF_GLU_ALPHA;
    }
    return 0;
}

static int read_norm(struct ot_gguf_maker *m) {
    double eps = 0;
    const char *key =
        m->c.norm == OT_NORM_LAYER ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
    OT_TRY(take_real(m, key, true, 0, 1, &eps));
    m->c.norm_eps = (float)eps;
    return 0;
}

/* Reads the facts of a T5 that only its tensors show. */
static int read_pair_facts(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    c->plain_mlp = !ot_gguf_find_tensor(m->file, "enc.blk.0.ffn_gate.weight");
    c->act = ot_gguf_pair_act(c->plain_mlp);
    c->logit_divisor = ot_gguf_logit_divisor(c);
    if (ot_gguf_find_tensor(m->file, "enc.blk.1.attn_rel_b.weight"))
        return ot_fail(OT_E_INPUT,
                       "%s: each layer has position biases of its own (a UMT5), which is not supported",
                       ot_gguf_path(m->file));
    return 0;
}

/* Reads the facts that only the tensors show. */
static int read_tensor_facts(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    const struct ot_gguf_tensor *embedding = ot_gguf_find_tensor(m->file, "token_embd.weight");
    if (!embedding || embedding->dims != 2)
        return ot_fail(OT_E_INPUT, "%s: the tensor token_embd.weight is missing, or is not a matrix",
                       ot_gguf_path(m->file));
    c->vocab = embedding->shape[0];
    c->tied = !ot_gguf_find_tensor(m->file, "output.weight");
    if (ot_model_has_pairs(c))
        OT_TRY(read_pair_facts(m));
    if (m->family->attention_bias && ot_gguf_find_tensor(m->file, "blk.0.attn_q.bias"))
        c->qkv_bias = c->out_bias = true;
    if (m->family->mlp_bias && ot_gguf_find_tensor(m->file, "blk.0.ffn_gate.bias"))
        c->mlp_bias = true;
    if (c->family == OT_FAMILY_FALCON)
        c->residual =
            ot_gguf_find_tensor(m->file, "blk.0.attn_norm_2.weight") ? OT_PARALLEL_TWO : OT_PARALLEL;
    return 0;
}

/* ---- the window ---- */

/* The file has a list of the layers with a window, or a number: each layer of this period has none. */
static int read_pattern(const struct ot_gguf_maker *m, int64_t period, struct ot_layer_set *slides) {
    static const char name[] = "attention.sliding_window_pattern";
    const char *key = key_name(m, name);
    const struct ot_gguf_value *list = ot_gguf_find(m->file, key);
    int64_t n_layers = m->c.n_layers;
    bool is_list = list && list->kind == OT_GGUF_KIND_ARRAY;
    if (is_list)
        OT_TRY(ot_gguf_need_array(m->file, key, true, OT_GGUF_KIND_BOOL, &list));
    else
        OT_TRY(take_int(m, name, false, 0, OT_GGUF_MOST, &period));
    if (is_list && list->n != n_layers)
        return ot_fail(OT_E_INPUT, "%s: key %s has %lld items, but the model has %lld layers",
                       ot_gguf_path(m->file), key_name(m, name), (long long)list->n, (long long)n_layers);
    for (int64_t l = 0; l < n_layers; l++)
        if (is_list ? list->data[l] != 0 : period == 0 || (l + 1) % period != 0)
            ot_layer_set_add(slides, l);
    return 0;
}

static int read_window(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    const struct ot_layer_set none = {0};
    const struct ot_gguf_architecture *row = ot_gguf_architecture(c->family);
    c->window = c->family == OT_FAMILY_GEMMA2 ? 4096 : 0; /* llama.cpp's default */
    if (row->window == OT_GGUF_WINDOW_NONE)
        return 0;
    bool required = row->window == OT_GGUF_WINDOW_REQUIRED && c->window == 0;
    OT_TRY(take_int(m, "attention.sliding_window", required, required, OT_GGUF_MOST, &c->window));
    if (c->window == 0 || row->period == 0)
        return 0;
    OT_TRY(read_pattern(m, row->period, &c->window_layers));
    c->window_by_layer = memcmp(&c->window_layers, &none, sizeof none) != 0;
    if (!c->window_by_layer)
        c->window = 0;
    return 0;
}

/* ---- keys of single families ---- */

static int read_caps(struct ot_gguf_maker *m) {
    bool both = m->c.family == OT_FAMILY_GEMMA2;
    double of_scores = both ? 50 : 0, of_logits = both ? 30 : 0; /* llama.cpp's defaults */
    if (both)
        OT_TRY(take_real(m, "attn_logit_softcapping", false, 1e-3, 1e9, &of_scores));
    OT_TRY(take_real(m, "final_logit_softcapping", false, 0, 1e9, &of_logits));
    m->c.attention_softcap = (float)of_scores;
    m->c.logit_softcap = (float)of_logits;
    m->c.attention_scale = ot_gguf_attention_scale(&m->c);
    return 0;
}

static int read_scales(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    c->attention_scale = round_decimal((float)(1 / sqrt((double)c->head_dim)), 1);
    OT_TRY(take_real(m, "embedding_scale", false, 1e-6, 1e6, &c->embed_scale));
    OT_TRY(take_real(m, "residual_scale", false, 1e-6, 1e6, &c->residual_scale));
    OT_TRY(take_real(m, "attention.scale", false, 1e-6, 1e6, &c->attention_scale));
    return take_real(m, "logit_scale", true, 1e-6, 1e6, &c->logit_divisor);
}

static int read_family(struct ot_gguf_maker *m) {
    switch (m->c.family) {
    case OT_FAMILY_GEMMA2:
    case OT_FAMILY_GEMMA3:
        return read_caps(m);
    case OT_FAMILY_GRANITE:
        return read_scales(m);
    case OT_FAMILY_MINISTRAL3:
        return take_real(m, "attention.temperature_scale", true, 0, 100, &m->c.q_scale_beta);
    case OT_FAMILY_SMOLLM3:
        for (int64_t l = 3; l < m->c.n_layers; l += 4)
            ot_layer_set_add(&m->c.no_rope, l);
        return 0;
    default:
        return 0;
    }
}

/* ---- the rope: tensors of factors ---- */

/* Pairs of a head. */
enum { MAX_PAIRS = 1 << 12 };

static int read_factors(const struct ot_gguf_maker *m, const char *name, int64_t most,
                        float factors[MAX_PAIRS]) {
    const struct ot_gguf_tensor *tensor = ot_gguf_find_tensor(m->file, name);
    int64_t pairs = m->c.rotary_dim / 2;
    if (!tensor || tensor->type->id != OT_GGUF_F32 || tensor->dims != 1 || tensor->count < 1 ||
        tensor->count > most || tensor->count != pairs)
        return ot_fail(OT_E_INPUT,
                       "%s: tensor %s must have 1 to %lld values of type F32, one for each pair of a head's "
                       "%lld elements that rotate",
                       ot_gguf_path(m->file), name, (long long)most, (long long)m->c.rotary_dim);
    OT_TRY(ot_mapped_file_fetch(ot_gguf_map(m->file), tensor->data, tensor->bytes));
    memcpy(factors, tensor->data, tensor->bytes);
    return 0;
}

static bool has_factors(const struct ot_model_config *c, const float *factors, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(ot_gguf_rope_factor(c, OT_GGUF_ROPE_FREQS, i) - factors[i]) <= 1e-5f * factors[i]))
            return false;
    return true;
}

/* Finds the numbers of Llama 3's scaling that give these factors. All published models have low_freq_factor 1
 * and high_freq_factor 4. For each original length the last pair, whose wavelength is the longest, gives the
 * factor; the other pairs show whether they are right. */
static bool find_scaling(struct ot_model_config *c, const float *factors, int64_t n) {
    double wavelength = 2 * M_PI * pow(c->rope.theta, 2.0 * (double)(n - 1) / (double)c->rotary_dim);
    c->rope.low_freq_factor = 1;
    c->rope.high_freq_factor = 4;
    for (int bits = 4; bits <= 24; bits++) {
        c->rope.original_max_position = (double)(1 << bits);
        double blend = (c->rope.original_max_position / wavelength - 1) / 3, last = (double)factors[n - 1];
        c->rope.factor = blend <= 0 ? last : (1 - blend) / (1 / last - blend);
        c->rope.factor = round(c->rope.factor * 64) / 64;
        if (c->rope.factor >= 1 && has_factors(c, factors, n))
            return true;
    }
    return false;
}

static int read_llama3(struct ot_gguf_maker *m) {
    float factors[MAX_PAIRS];
    bool scaled = false;
    int64_t n = m->c.rotary_dim / 2;
    OT_TRY(read_factors(m, OT_GGUF_ROPE_FREQS, MAX_PAIRS, factors));
    for (int64_t i = 0; i < n; i++)
        scaled = scaled || factors[i] != 1;
    if (!scaled)
        return 0;
    if (!find_scaling(&m->c, factors, n))
        return ot_fail(OT_E_INPUT,
                       "%s: the factors of tensor " OT_GGUF_ROPE_FREQS
                       " are not those of Llama 3's RoPE scaling; other scalings are not supported",
                       ot_gguf_path(m->file));
    m->c.rope.scaling = OT_ROPE_LLAMA3;
    return 0;
}

/* ---- the rope: kinds of scaling ---- */

static int read_original(struct ot_gguf_maker *m) {
    int64_t original = m->c.max_position;
    OT_TRY(take_int(m, "rope.scaling.original_context_length", false, 1, OT_GGUF_MOST, &original));
    m->c.rope.original_max_position = (double)original;
    return 0;
}

static int read_longrope_factors(const struct ot_gguf_maker *m, const char *name,
                                 float out[OT_ROPE_MAX_PAIRS]) {
    float factors[MAX_PAIRS];
    OT_TRY(read_factors(m, name, OT_ROPE_MAX_PAIRS, factors));
    for (int64_t i = 0; i < m->c.rotary_dim / 2; i++) {
        if (!(factors[i] > 0) || !isfinite(factors[i]))
            return ot_fail(OT_E_INPUT, "%s: value %lld of tensor %s is %g, must be a number above 0",
                           ot_gguf_path(m->file), (long long)i, name, (double)factors[i]);
        out[i] = factors[i];
    }
    return 0;
}

static int read_longrope(struct ot_gguf_maker *m) {
    struct ot_rope_config *rope = &m->c.rope;
    double stored = 1, length = (double)m->c.max_position;
    rope->scaling = OT_ROPE_LONGROPE;
    OT_TRY(read_original(m));
    rope->factor = length / rope->original_max_position;
    OT_TRY(read_longrope_factors(m, OT_GGUF_FACTORS_SHORT, rope->short_factors));
    OT_TRY(read_longrope_factors(m, OT_GGUF_FACTORS_LONG, rope->long_factors));
    OT_TRY(take_real(m, "rope.scaling.attn_factor", false, 1e-6, 1e6, &stored));
    double usual = rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log(rope->original_max_position));
    rope->attention_factor = (float)usual == (float)stored ? usual : stored;
    return 0;
}

static int read_yarn(struct ot_gguf_maker *m) {
    static const char key[] = "rope.scaling.attn_factor";
    struct ot_rope_config *rope = &m->c.rope;
    double log_multiplier = 0, stored = 1;
    rope->scaling = OT_ROPE_YARN;
    rope->factor = 1;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    rope->keeps_fractions = m->c.family == OT_FAMILY_GPT_OSS; /* architectures.h */
    OT_TRY(read_original(m));
    OT_TRY(take_real(m, "rope.scaling.factor", false, 1, 1e6, &rope->factor));
    OT_TRY(take_real(m, key, false, 1e-6, 1e6, &stored));
    if (m->row->betas) {
        OT_TRY(take_real(m, "rope.scaling.yarn_beta_fast", false, 1e-3, 1e6, &rope->beta_fast));
        OT_TRY(take_real(m, "rope.scaling.yarn_beta_slow", false, 1e-3, 1e6, &rope->beta_slow));
        OT_TRY(take_real(m, "rope.scaling.yarn_log_multiplier", false, 0, 1e6, &log_multiplier));
    }
    double usual = ot_gguf_yarn_magnitude(rope->factor, log_multiplier);
    rope->attention_factor = stored == 1 ? usual : round_decimal((float)stored, usual);
    return 0;
}

static int read_scaling(struct ot_gguf_maker *m) {
    struct ot_gguf_string type = {"none", 4};
    double factor = 1;
    OT_TRY(ot_gguf_need_string(m->file, key_name(m, "rope.scaling.type"), false, &type));
    if (ot_gguf_string_is(type, "longrope") || ot_gguf_find_tensor(m->file, OT_GGUF_FACTORS_LONG))
        return read_longrope(m);
    if (ot_gguf_string_is(type, "yarn") && m->c.family != OT_FAMILY_GEMMA3)
        return read_yarn(m);
    if (!ot_gguf_string_is(type, "none") && !ot_gguf_string_is(type, "linear"))
        return ot_fail(OT_E_INPUT, "%s: key %s '%.*s' is not supported; known: none, linear, yarn, longrope",
                       ot_gguf_path(m->file), key_name(m, "rope.scaling.type"), (int)ot_min(type.bytes, 60),
                       type.text);
    OT_TRY(take_real(m, "rope.scaling.factor", false, 0, 1e6, &factor));
    if (ot_gguf_string_is(type, "linear") && factor > 1) {
        m->c.rope.scaling = OT_ROPE_LINEAR;
        m->c.rope.factor = factor;
    }
    return 0;
}

/* ---- the rope: its size, base and scaling ---- */

/* Elements of a head that rotate. */
static int read_rotary(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    c->rotary_dim = c->head_dim;
    OT_TRY(take_int(m, "rope.dimension_count", false, 1, OT_GGUF_MOST, &c->rotary_dim));
    if (c->rotary_dim <= c->head_dim && (m->family->partial_rotary || c->rotary_dim == c->head_dim))
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: RoPE rotates %lld of each head's %lld elements; only whole heads are supported for "
                   "this architecture",
                   ot_gguf_path(m->file), (long long)c->rotary_dim, (long long)c->head_dim);
}

/* Reads the RoPE of q and k, after the sizes and the window. */
static int read_rope(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    c->rope.theta = 1e4; /* llama.cpp's defaults */
    OT_TRY(read_rotary(m));
    OT_TRY(take_real(m, "rope.freq_base", false, 1, 1e12, &c->rope.theta));
    if (c->family == OT_FAMILY_GEMMA3) {
        c->local_rope_theta = 1e4;
        OT_TRY(take_real(m, "rope.freq_base_swa", false, 1, 1e12, &c->local_rope_theta));
    }
    if (c->family == OT_FAMILY_OLMO3)
        c->local_rope_theta = c->rope.theta;
    OT_TRY(read_scaling(m));
    if (c->q_scale_beta != 0)
        OT_TRY(read_original(m));
    return ot_gguf_find_tensor(m->file, OT_GGUF_ROPE_FREQS) ? read_llama3(m) : 0;
}

/* ---- the whole config ---- */

static int read_all(struct ot_gguf_maker *m) {
    OT_TRY(find_family(m));
    OT_TRY(read_counts(m));
    OT_TRY(read_experts(m));
    OT_TRY(read_tensor_facts(m));
    OT_TRY(read_norm(m));
    OT_TRY(read_window(m));
    OT_TRY(read_family(m));
    return m->c.positions == OT_POSITIONS_ROPE ? read_rope(m) : 0;
}

int ot_gguf_make_config(const struct ot_gguf *file, int64_t bos, int64_t eos, char **text, size_t *bytes) {
    static const char *const dtypes[] = {[OT_F32] = "float32", [OT_BF16] = "bfloat16", [OT_F16] = "float16"};
    struct ot_gguf_maker m = {.file = file};
    struct ot_json_writer w = {0};
    OT_TRY(read_all(&m));
    ot_json_begin_object(&w, NULL);
    ot_model_config_put(&m.c, &w);
    ot_json_put_text(&w, "torch_dtype", dtypes[ot_gguf_dtype(file)]);
    if (bos >= 0)
        ot_json_put_int(&w, "bos_token_id", bos);
    if (eos >= 0)
        ot_json_put_int(&w, "eos_token_id", eos);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

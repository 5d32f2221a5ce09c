/* Makes config.json from the keys of a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/gguf/model_keys.h"

#define MOST INT64_C(0x7fffffff)

struct maker {
    const struct ot_gguf *file;
    const struct ot_family_row *family;
    const char *architecture;
    struct ot_json_writer w;
};

static const char *key_of(const struct maker *m, const char *name, char key[80]) {
    snprintf(key, 80, "%s.%s", m->architecture, name);
    return key;
}

/* The family is the first that has this architecture; a mistral is a llama with a sliding window. */
static int find_family(struct maker *m) {
    struct ot_gguf_string name;
    char key[80];
    OT_TRY(ot_gguf_need_string(m->file, "general.architecture", true, &name));
    for (int i = OT_FAMILY_COUNT - 1; i >= 0; i--)
        if (ot_gguf_architecture((enum ot_family)i) &&
            ot_gguf_string_is(name, ot_gguf_architecture((enum ot_family)i)))
            m->family = ot_family_row((enum ot_family)i);
    if (!m->family)
        return ot_fail(OT_E_INPUT,
                       "%s: general.architecture '%.*s' is not supported; known: llama, qwen2, qwen3",
                       ot_gguf_path(m->file), (int)(name.bytes < 60 ? name.bytes : 60), name.text);
    m->architecture = ot_gguf_architecture(m->family->family);
    if (m->family->family == OT_FAMILY_LLAMA &&
        ot_gguf_find(m->file, key_of(m, "attention.sliding_window", key)))
        m->family = ot_family_row(OT_FAMILY_MISTRAL);
    return 0;
}

static int refuse_experts(const struct maker *m) {
    int64_t experts = 0;
    char key[80];
    OT_TRY(ot_gguf_need_int(m->file, key_of(m, "expert_count", key), false, 0, MOST, &experts));
    if (experts == 0)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: a mixture of %lld experts is not supported", ot_gguf_path(m->file),
                   (long long)experts);
}

static int put_counts(struct maker *m) {
    static const struct {
        const char *name, *to;
        bool required;
    } counts[] = {
        {"block_count", "num_hidden_layers", true},
        {"context_length", "max_position_embeddings", true},
        {"embedding_length", "hidden_size", true},
        {"feed_forward_length", "intermediate_size", true},
        {"attention.head_count", "num_attention_heads", true},
        {"attention.head_count_kv", "num_key_value_heads", false},
        {"attention.key_length", "head_dim", false},
        {"attention.sliding_window", "sliding_window", false},
    };
    char key[80];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        int64_t value = 0;
        OT_TRY(
            ot_gguf_need_int(m->file, key_of(m, counts[i].name, key), counts[i].required, 1, MOST, &value));
        if (value > 0)
            ot_json_put_int(&m->w, counts[i].to, value);
    }
    return 0;
}

/* Numbers that only the tensors tell. */
static int put_tensor_facts(struct maker *m) {
    const struct ot_gguf_tensor *embedding = ot_gguf_find_tensor(m->file, "token_embd.weight");
    if (!embedding || embedding->dims != 2)
        return ot_fail(OT_E_INPUT, "%s: the tensor token_embd.weight is missing, or is not a matrix",
                       ot_gguf_path(m->file));
    ot_json_put_int(&m->w, "vocab_size", embedding->shape[0]);
    ot_json_put_bool(&m->w, "tie_word_embeddings", !ot_gguf_find_tensor(m->file, "output.weight"));
    if (m->family->attention_bias)
        ot_json_put_bool(&m->w, "attention_bias", ot_gguf_find_tensor(m->file, "blk.0.attn_q.bias"));
    if (m->family->mlp_bias)
        ot_json_put_bool(&m->w, "mlp_bias", ot_gguf_find_tensor(m->file, "blk.0.ffn_gate.bias"));
    return 0;
}

/* ---- rope ---- */

/* Elements of a head, all of which RoPE must rotate. */
static int read_head(const struct maker *m, int64_t *head) {
    int64_t hidden = 0, heads = 1, rotary;
    char key[80];
    OT_TRY(ot_gguf_need_int(m->file, key_of(m, "embedding_length", key), true, 1, MOST, &hidden));
    OT_TRY(ot_gguf_need_int(m->file, key_of(m, "attention.head_count", key), true, 1, MOST, &heads));
    *head = hidden / heads;
    OT_TRY(ot_gguf_need_int(m->file, key_of(m, "attention.key_length", key), false, 1, MOST, head));
    rotary = *head;
    OT_TRY(ot_gguf_need_int(m->file, key_of(m, "rope.dimension_count", key), false, 1, MOST, &rotary));
    if (rotary == *head)
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: RoPE rotates %lld of each head's %lld elements; only whole heads are supported",
                   ot_gguf_path(m->file), (long long)rotary, (long long)*head);
}

/* Pairs of a head, and their factors. */
enum { MAX_PAIRS = 1 << 12 };

static bool has_factors(const struct ot_model_config *c, const float *factors, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(ot_gguf_rope_factor(c, i) - factors[i]) <= 1e-5f * factors[i]))
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

static void put_llama3(struct maker *m, const struct ot_model_config *c) {
    ot_json_begin_object(&m->w, "rope_scaling");
    ot_json_put_text(&m->w, "rope_type", "llama3");
    ot_json_put_exact(&m->w, "factor", c->rope.factor);
    ot_json_put_exact(&m->w, "low_freq_factor", c->rope.low_freq_factor);
    ot_json_put_exact(&m->w, "high_freq_factor", c->rope.high_freq_factor);
    ot_json_put_int(&m->w, "original_max_position_embeddings", (int64_t)c->rope.original_max_position);
    ot_json_end_object(&m->w);
}

static int put_factors(struct maker *m, const struct ot_gguf_tensor *tensor, double theta, int64_t head) {
    struct ot_model_config c = {.rope.theta = theta, .rotary_dim = 2 * tensor->count};
    const char *path = ot_gguf_path(m->file);
    float factors[MAX_PAIRS];
    if (tensor->type->id != OT_GGUF_F32 || tensor->dims != 1 || tensor->count < 1 ||
        tensor->count > MAX_PAIRS || tensor->count != head / 2)
        return ot_fail(OT_E_INPUT,
                       "%s: tensor " OT_GGUF_ROPE_FREQS " must have 1 to %d values of type F32, one for each "
                       "pair of a head's %lld elements",
                       path, MAX_PAIRS, (long long)head);
    OT_TRY(ot_mapped_file_fetch(ot_gguf_map(m->file), tensor->data, tensor->bytes));
    memcpy(factors, tensor->data, tensor->bytes);
    bool scaled = false;
    for (int64_t i = 0; i < tensor->count; i++)
        scaled = scaled || factors[i] != 1;
    if (!scaled)
        return 0;
    if (!find_scaling(&c, factors, tensor->count))
        return ot_fail(OT_E_INPUT,
                       "%s: the factors of tensor " OT_GGUF_ROPE_FREQS
                       " are not those of Llama 3's RoPE scaling; other scalings are not supported",
                       path);
    put_llama3(m, &c);
    return 0;
}

static int put_rope(struct maker *m) {
    const struct ot_gguf_tensor *factors = ot_gguf_find_tensor(m->file, OT_GGUF_ROPE_FREQS);
    struct ot_gguf_string type = {"none", 4};
    double theta = 1e4, factor = 1; /* llama.cpp's defaults */
    int64_t head;
    char key[80];
    OT_TRY(read_head(m, &head));
    OT_TRY(ot_gguf_need_real(m->file, key_of(m, "rope.freq_base", key), false, 1, 1e12, &theta));
    OT_TRY(ot_gguf_need_string(m->file, key_of(m, "rope.scaling.type", key), false, &type));
    OT_TRY(ot_gguf_need_real(m->file, key_of(m, "rope.scaling.factor", key), false, 0, 1e6, &factor));
    ot_json_put_exact(&m->w, "rope_theta", theta);
    if (ot_gguf_string_is(type, "linear") && factor > 1) {
        ot_json_begin_object(&m->w, "rope_scaling");
        ot_json_put_text(&m->w, "rope_type", "linear");
        ot_json_put_exact(&m->w, "factor", factor);
        ot_json_end_object(&m->w);
    } else if (!ot_gguf_string_is(type, "none") && !ot_gguf_string_is(type, "linear")) {
        return ot_fail(OT_E_INPUT, "%s: key %s '%.*s' is not supported; known: none, linear",
                       ot_gguf_path(m->file), key_of(m, "rope.scaling.type", key),
                       (int)(type.bytes < 60 ? type.bytes : 60), type.text);
    }
    return factors ? put_factors(m, factors, theta, head) : 0;
}

static int put_rest(struct maker *m, int64_t bos, int64_t eos) {
    static const char *const dtypes[] = {[OT_F32] = "float32", [OT_BF16] = "bfloat16", [OT_F16] = "float16"};
    double eps = 0;
    char key[80];
    OT_TRY(ot_gguf_need_real(m->file, key_of(m, "attention.layer_norm_rms_epsilon", key), true, 0, 1, &eps));
    ot_json_put_exact(&m->w, "rms_norm_eps", eps);
    ot_json_put_text(&m->w, "hidden_act", "silu");
    ot_json_put_text(&m->w, "torch_dtype", dtypes[ot_gguf_dtype(m->file)]);
    if (bos >= 0)
        ot_json_put_int(&m->w, "bos_token_id", bos);
    if (eos >= 0)
        ot_json_put_int(&m->w, "eos_token_id", eos);
    return 0;
}

static int put_all(struct maker *m, int64_t bos, int64_t eos) {
    OT_TRY(find_family(m));
    OT_TRY(refuse_experts(m));
    ot_json_begin_object(&m->w, NULL);
    ot_json_begin_array(&m->w, "architectures");
    ot_json_put_text(&m->w, NULL, m->family->architecture);
    ot_json_end_array(&m->w);
    ot_json_put_text(&m->w, "model_type", m->family->model_type);
    OT_TRY(put_counts(m));
    OT_TRY(put_tensor_facts(m));
    OT_TRY(put_rope(m));
    OT_TRY(put_rest(m, bos, eos));
    ot_json_end_object(&m->w);
    return 0;
}

int ot_gguf_make_config(const struct ot_gguf *file, int64_t bos, int64_t eos, char **text, size_t *bytes) {
    struct maker m = {.file = file};
    int rc = put_all(&m, bos, eos);
    if (rc == 0)
        return ot_json_writer_take(&m.w, text, bytes);
    free(m.w.out.text);
    return rc;
}

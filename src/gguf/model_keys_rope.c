/* The rope of config.json from the keys and tensors of a file. */
#include <math.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/gguf/model_keys_state.h"

/* Pairs of a head. */
enum { MAX_PAIRS = 1 << 12 };

/* ---- tensors of factors ---- */

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

/* ---- kinds of scaling ---- */

static int read_original(struct ot_gguf_maker *m) {
    int64_t original = m->c.max_position;
    OT_TRY(ot_gguf_maker_int(m, "rope.scaling.original_context_length", false, 1, OT_GGUF_MOST, &original));
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
    OT_TRY(ot_gguf_maker_real(m, "rope.scaling.attn_factor", false, 1e-6, 1e6, &stored));
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
    OT_TRY(ot_gguf_maker_real(m, "rope.scaling.factor", false, 1, 1e6, &rope->factor));
    OT_TRY(ot_gguf_maker_real(m, key, false, 1e-6, 1e6, &stored));
    if (m->row->betas) {
        OT_TRY(ot_gguf_maker_real(m, "rope.scaling.yarn_beta_fast", false, 1e-3, 1e6, &rope->beta_fast));
        OT_TRY(ot_gguf_maker_real(m, "rope.scaling.yarn_beta_slow", false, 1e-3, 1e6, &rope->beta_slow));
        OT_TRY(ot_gguf_maker_real(m, "rope.scaling.yarn_log_multiplier", false, 0, 1e6, &log_multiplier));
    }
    double usual = ot_gguf_yarn_magnitude(rope->factor, log_multiplier);
    rope->attention_factor = stored == 1 ? usual : ot_gguf_decimal((float)stored, usual);
    return 0;
}

static int read_scaling(struct ot_gguf_maker *m) {
    struct ot_gguf_string type = {"none", 4};
    double factor = 1;
    OT_TRY(ot_gguf_need_string(m->file, ot_gguf_maker_key(m, "rope.scaling.type"), false, &type));
    if (ot_gguf_string_is(type, "longrope") || ot_gguf_find_tensor(m->file, OT_GGUF_FACTORS_LONG))
        return read_longrope(m);
    if (ot_gguf_string_is(type, "yarn") && m->c.family != OT_FAMILY_GEMMA3)
        return read_yarn(m);
    if (!ot_gguf_string_is(type, "none") && !ot_gguf_string_is(type, "linear"))
        return ot_fail(OT_E_INPUT, "%s: key %s '%.*s' is not supported; known: none, linear, yarn, longrope",
                       ot_gguf_path(m->file), ot_gguf_maker_key(m, "rope.scaling.type"),
                       (int)ot_min(type.bytes, 60), type.text);
    OT_TRY(ot_gguf_maker_real(m, "rope.scaling.factor", false, 0, 1e6, &factor));
    if (ot_gguf_string_is(type, "linear") && factor > 1) {
        m->c.rope.scaling = OT_ROPE_LINEAR;
        m->c.rope.factor = factor;
    }
    return 0;
}

/* ---- all ---- */

/* Elements of a head that rotate. */
static int read_rotary(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    c->rotary_dim = c->head_dim;
    OT_TRY(ot_gguf_maker_int(m, "rope.dimension_count", false, 1, OT_GGUF_MOST, &c->rotary_dim));
    if (c->rotary_dim <= c->head_dim && (m->family->partial_rotary || c->rotary_dim == c->head_dim))
        return 0;
    return ot_fail(OT_E_INPUT,
                   "%s: RoPE rotates %lld of each head's %lld elements; only whole heads are supported for "
                   "this architecture",
                   ot_gguf_path(m->file), (long long)c->rotary_dim, (long long)c->head_dim);
}

int ot_gguf_read_rope(struct ot_gguf_maker *m) {
    struct ot_model_config *c = &m->c;
    c->rope.theta = 1e4; /* llama.cpp's defaults */
    OT_TRY(read_rotary(m));
    OT_TRY(ot_gguf_maker_real(m, "rope.freq_base", false, 1, 1e12, &c->rope.theta));
    if (c->family == OT_FAMILY_GEMMA3) {
        c->local_rope_theta = 1e4;
        OT_TRY(ot_gguf_maker_real(m, "rope.freq_base_swa", false, 1, 1e12, &c->local_rope_theta));
    }
    if (c->family == OT_FAMILY_OLMO3)
        c->local_rope_theta = c->rope.theta;
    OT_TRY(read_scaling(m));
    if (c->q_scale_beta != 0)
        OT_TRY(read_original(m));
    return ot_gguf_find_tensor(m->file, OT_GGUF_ROPE_FREQS) ? read_llama3(m) : 0;
}

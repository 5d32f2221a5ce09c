/* Rope in config.json: reading, checking, writing. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/rope.h"
#include "src/base/error.h"
#include "src/base/json.h"

#define MAX_COUNT INT64_C(0x7fffffff)

static const char *const SCALING_NAMES[OT_ROPE_SCALINGS] = {
    [OT_ROPE_PLAIN] = "default",
    [OT_ROPE_LINEAR] = "linear",
    [OT_ROPE_LLAMA3] = "llama3",
    [OT_ROPE_DYNAMIC] = "dynamic",
    [OT_ROPE_YARN] = "yarn",
    [OT_ROPE_LONGROPE] = "longrope",
    [OT_ROPE_PROPORTIONAL] = "proportional",
};

/* ---- reading ---- */

/* The object of a rope, and where it is. rope may be NULL: absent. */
struct rope_reader {
    const struct ot_config_reader *r;
    const struct ot_json *rope;
    const struct ot_json
        *outer; /* the object that holds `rope` and that of layers with a window; else rope */
    const char *key;
    char where[512];
};

/* A number that may be null, which is the same as absent. */
static int read_real(const struct rope_reader *p, const char *key, bool required, double min, double max,
                     double *out) {
    return ot_json_need_real(p->rope, p->where, key, required, min, max, out);
}

/* A number that may not be null. */
static int read_number(const struct rope_reader *p, const char *key, bool required, double min, double max,
                       double *out) {
    OT_TRY(ot_config_refuse_null(p->rope, p->where, key));
    return read_real(p, key, required, min, max, out);
}

/* Reads the length that a model was trained with: from config.json itself, else from the scaling's object.
 * Phi-3 has it only in config.json. Absent: max_position; 4096 for Phi-3. */
static int read_original(const struct rope_reader *p, double *out) {
    static const char key[] = "original_max_position_embeddings";
    bool is_phi3 = p->r->family->family == OT_FAMILY_PHI3;
    *out = is_phi3 ? 4096 : (double)p->r->config->max_position;
    if (!is_phi3)
        OT_TRY(ot_config_refuse_null(p->rope, p->where, key));
    if (is_phi3 || ot_json_has(p->r->root, key))
        return ot_config_real(p->r, key, 1, (double)MAX_COUNT, out);
    return read_real(p, key, false, 1, (double)MAX_COUNT, out);
}

static double yarn_magnitude(double factor, double scale) {
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

static int read_yarn(const struct rope_reader *p, struct ot_rope_config *rope) {
    double magnitude = 0, of_all = 0, length = (double)p->r->config->max_position;
    bool truncate = true;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    OT_TRY(read_original(p, &rope->original_max_position));
    rope->factor = length / rope->original_max_position;
    OT_TRY(read_real(p, "factor", !ot_json_has(p->rope, "factor"), 1, 1e6, &rope->factor));
    if (rope->factor < 1)
        return ot_fail(OT_E_INPUT,
                       "%s: factor is null, and original_max_position_embeddings, %g, is above "
                       "max_position_embeddings, %g",
                       p->where, rope->original_max_position, length);
    OT_TRY(read_real(p, "mscale", false, 0, 1e6, &magnitude));
    OT_TRY(read_real(p, "mscale_all_dim", false, 0, 1e6, &of_all));
    rope->attention_factor = magnitude != 0 && of_all != 0 ? yarn_magnitude(rope->factor, magnitude) /
                                                                 yarn_magnitude(rope->factor, of_all)
                                                           : yarn_magnitude(rope->factor, 1);
    OT_TRY(read_real(p, "attention_factor", false, 0, 1e6, &rope->attention_factor));
    OT_TRY(read_real(p, "beta_fast", false, 1e-3, 1e6, &rope->beta_fast));
    OT_TRY(read_real(p, "beta_slow", false, 1e-3, 1e6, &rope->beta_slow));
    if (ot_json_has(p->outer, "truncate")) /* where transformers looks for it; null is false there */
        truncate = false;
    if (p->outer)
        OT_TRY(ot_json_need_bool(p->outer, p->where, "truncate", false, &truncate));
    rope->keeps_fractions = !truncate;
    return 0;
}

/* A list of one factor for each pair. */
static int read_factors(const struct rope_reader *p, const char *key, float factors[OT_ROPE_MAX_PAIRS]) {
    const struct ot_json *list = ot_json_get(p->rope, key);
    int64_t pairs = p->r->config->rotary_dim / 2;
    if ((int64_t)ot_json_length(list) != pairs || pairs > OT_ROPE_MAX_PAIRS)
        return ot_fail(OT_E_INPUT, "%s: %s must be a list of %lld numbers, at most %d", p->where, key,
                       (long long)pairs, OT_ROPE_MAX_PAIRS);
    for (int64_t j = 0; j < pairs; j++) {
        factors[j] = (float)ot_json_real(ot_json_at(list, (size_t)j), 0);
        if (!(factors[j] > 0) || !isfinite(factors[j]))
            return ot_fail(OT_E_INPUT, "%s: %s[%lld] must be a number above 0", p->where, key, (long long)j);
    }
    return 0;
}

static int read_longrope(const struct rope_reader *p, struct ot_rope_config *rope) {
    double length = (double)p->r->config->max_position;
    OT_TRY(read_original(p, &rope->original_max_position));
    rope->factor = length / rope->original_max_position;
    OT_TRY(read_real(p, "factor", false, 1e-10, 1e10, &rope->factor));
    rope->attention_factor =
        rope->factor <= 1 ? 1 : sqrt(1 + log(rope->factor) / log(rope->original_max_position));
    OT_TRY(read_real(p, "attention_factor", false, 0, 1e6, &rope->attention_factor));
    OT_TRY(read_factors(p, "short_factor", rope->short_factors));
    return read_factors(p, "long_factor", rope->long_factors);
}

static int read_llama3(const struct rope_reader *p, struct ot_rope_config *rope) {
    OT_TRY(read_real(p, "factor", true, 1, 1e6, &rope->factor));
    OT_TRY(read_real(p, "low_freq_factor", true, 0, 1e6, &rope->low_freq_factor));
    OT_TRY(read_real(p, "high_freq_factor", true, 0, 1e6, &rope->high_freq_factor));
    return read_original(p, &rope->original_max_position);
}

static int read_numbers(const struct rope_reader *p, struct ot_rope_config *rope) {
    switch (rope->scaling) {
    case OT_ROPE_LINEAR:
    case OT_ROPE_DYNAMIC:
        return read_real(p, "factor", true, 1, 1e6, &rope->factor);
    case OT_ROPE_LLAMA3:
        return read_llama3(p, rope);
    case OT_ROPE_YARN:
        return read_yarn(p, rope);
    case OT_ROPE_LONGROPE:
        return read_longrope(p, rope);
    case OT_ROPE_PROPORTIONAL:
        rope->factor = rope->share = 1;
        OT_TRY(read_real(p, "partial_rotary_factor", false, 1e-3, 1, &rope->share));
        return read_real(p, "factor", false, 1e-6, 1e6, &rope->factor);
    default:
        return 0;
    }
}

static int find_scaling(const struct rope_reader *p, const char *type, enum ot_rope_scaling *out) {
    bool is_phi3 = p->r->family->family == OT_FAMILY_PHI3;
    if (is_phi3 && (strcmp(type, "su") == 0 || strcmp(type, "yarn") == 0)) /* its older names */
        type = SCALING_NAMES[OT_ROPE_LONGROPE];
    for (int i = 0; i < OT_ROPE_SCALINGS; i++)
        if (strcmp(type, SCALING_NAMES[i]) == 0) {
            *out = (enum ot_rope_scaling)i;
            return 0;
        }
    return ot_fail(OT_E_INPUT,
                   "%s: %s of type '%s' is not supported; known: default, linear, llama3, dynamic, yarn, "
                   "longrope, proportional",
                   p->r->where, p->key, type);
}

static int read_scaling(const struct rope_reader *p, struct ot_rope_config *rope) {
    const char *type = NULL;
    OT_TRY(ot_config_refuse_null(p->rope, p->where, "rope_type"));
    OT_TRY(ot_json_need_string(p->rope, p->where, "type", false, &type)); /* the older key */
    OT_TRY(ot_json_need_string(p->rope, p->where, "rope_type", false, &type));
    if (!type && ot_json_get(p->rope, "factor"))
        return ot_fail(OT_E_INPUT, "%s: the key 'rope_type' is missing", p->where);
    return type ? find_scaling(p, type, &rope->scaling) : 0;
}

/* Attention of most families rotates whole heads. transformers ignores the key there, but fails if the rope
 * is scaled, because its tables are then too short. */
static int read_share(const struct rope_reader *p) {
    struct ot_model_config *c = p->r->config;
    double fraction = 1;
    bool matters = p->r->family->partial_rotary || c->rope.scaling != OT_ROPE_PLAIN;
    if (!matters || c->rope.scaling == OT_ROPE_PROPORTIONAL)
        return 0;
    OT_TRY(ot_json_need_real(p->r->root, p->r->where, "partial_rotary_factor", false, 0, 1, &fraction));
    if (p->rope)
        OT_TRY(read_number(p, "partial_rotary_factor", false, 0, 1, &fraction));
    if (fraction != 1 && !p->r->family->partial_rotary)
        return ot_fail(OT_E_INPUT,
                       "%s: partial_rotary_factor %g with a scaled rope is not supported for model type '%s'",
                       p->where, fraction, p->r->family->model_type);
    c->rotary_dim = (int64_t)((double)c->head_dim * fraction);
    return 0;
}

/* The two ropes of a family whose layers with a window have their own. Older files have the other's
 * rope_theta and rope_scaling, and rope_local_base_freq. */
static int read_local(struct rope_reader *p) {
    struct ot_model_config *c = p->r->config;
    const struct ot_json *local = ot_json_get(p->rope, "sliding_attention");
    const char *type = "default";
    OT_TRY(ot_config_real(p->r, "rope_local_base_freq", 1, 1e12, &c->local_rope_theta));
    if (local) {
        OT_TRY(ot_config_refuse_null(local, p->where, "rope_theta"));
        OT_TRY(ot_config_refuse_null(local, p->where, "rope_type"));
        OT_TRY(ot_json_need_real(local, p->where, "rope_theta", false, 1, 1e12, &c->local_rope_theta));
        OT_TRY(ot_json_need_string(local, p->where, "rope_type", false, &type));
    }
    if (strcmp(type, "default") != 0)
        return ot_fail(OT_E_INPUT,
                       "%s: sliding_attention has rope_type '%s'; only default is supported there", p->where,
                       type);
    const struct ot_json *full = ot_json_get(p->rope, "full_attention");
    bool is_old = strcmp(p->key, "rope_scaling") == 0;
    if (is_old)
        p->outer = NULL;
    if (local || full)
        p->rope = full;
    return 0;
}

int ot_rope_config_read(const struct ot_config_reader *reader) {
    struct ot_model_config *c = reader->config;
    struct rope_reader p = {.r = reader};
    if (c->positions != OT_POSITIONS_ROPE)
        return 0;
    p.key = ot_json_get(reader->root, "rope_parameters") ? "rope_parameters" : "rope_scaling";
    p.rope = p.outer = ot_json_get(reader->root, p.key);
    snprintf(p.where, sizeof p.where, "%s: %s", reader->where, p.key);
    c->rotary_dim = c->head_dim;
    OT_TRY(ot_json_need_real(reader->root, reader->where, "rope_theta", false, 1, 1e12, &c->rope.theta));
    if (c->local_rope_theta != 0)
        OT_TRY(read_local(&p));
    if (reader->family->family == OT_FAMILY_PHI3)
        OT_TRY(ot_config_refuse_null(reader->root, reader->where, "original_max_position_embeddings"));
    if (!ot_json_get(p.rope, "rope_theta"))
        OT_TRY(ot_config_refuse_null(reader->root, reader->where, "rope_theta"));
    if (!p.rope)
        return read_share(&p);
    OT_TRY(read_number(&p, "rope_theta", false, 1, 1e12, &c->rope.theta));
    OT_TRY(read_scaling(&p, &c->rope));
    if (ot_json_get(p.rope, "full_attention") || ot_json_get(p.rope, "sliding_attention"))
        return ot_fail(OT_E_INPUT, "%s: different rope parameters for each layer type are not supported",
                       p.where);
    OT_TRY(read_share(&p));
    return read_numbers(&p, &c->rope);
}

/* ---- checking ---- */

static int check_positive(double value, const char *key, const char *where) {
    if (!(value > 0) || !isfinite(value))
        return ot_fail(OT_E_INPUT, "%s: %s is %g, must be a positive number", where, key, value);
    return 0;
}

static int check_factors(const struct ot_model_config *c, const char *where) {
    if (c->rotary_dim / 2 > OT_ROPE_MAX_PAIRS)
        return ot_fail(OT_E_INPUT, "%s: rope_scaling has factors for %lld pairs; at most %d are supported",
                       where, (long long)c->rotary_dim / 2, OT_ROPE_MAX_PAIRS);
    for (int64_t j = 0; j < c->rotary_dim / 2; j++) {
        OT_TRY(check_positive((double)c->rope.short_factors[j], "rope_scaling.short_factor", where));
        OT_TRY(check_positive((double)c->rope.long_factors[j], "rope_scaling.long_factor", where));
    }
    return 0;
}

static int check_scaling(const struct ot_model_config *c, const char *where) {
    const struct ot_rope_config *rope = &c->rope;
    if (rope->scaling == OT_ROPE_PLAIN)
        return 0;
    OT_TRY(check_positive(rope->factor, "rope_scaling.factor", where));
    if (rope->scaling == OT_ROPE_DYNAMIC && c->rotary_dim <= 2)
        return ot_fail(OT_E_INPUT,
                       "%s: rope_scaling of type dynamic needs heads that rotate more than 2 elements",
                       where);
    if (rope->scaling == OT_ROPE_LINEAR || rope->scaling == OT_ROPE_DYNAMIC ||
        rope->scaling == OT_ROPE_PROPORTIONAL)
        return 0;
    OT_TRY(
        check_positive(rope->original_max_position, "rope_scaling.original_max_position_embeddings", where));
    if (rope->scaling == OT_ROPE_LONGROPE || rope->scaling == OT_ROPE_YARN)
        OT_TRY(check_positive(rope->attention_factor, "rope_scaling.attention_factor", where));
    if (rope->scaling == OT_ROPE_LONGROPE)
        return check_factors(c, where);
    if (rope->scaling == OT_ROPE_YARN) {
        OT_TRY(check_positive(rope->beta_fast, "rope_scaling.beta_fast", where));
        return check_positive(rope->beta_slow, "rope_scaling.beta_slow", where);
    }
    OT_TRY(check_positive(rope->low_freq_factor, "rope_scaling.low_freq_factor", where));
    OT_TRY(check_positive(rope->high_freq_factor, "rope_scaling.high_freq_factor", where));
    if (rope->high_freq_factor <= rope->low_freq_factor)
        return ot_fail(OT_E_INPUT,
                       "%s: rope_scaling.high_freq_factor is %g, must be above low_freq_factor, %g", where,
                       rope->high_freq_factor, rope->low_freq_factor);
    return 0;
}

int ot_rope_config_check(const struct ot_model_config *c, const char *where) {
    if (c->positions != OT_POSITIONS_ROPE)
        return 0;
    if (c->rotary_dim < 2 || c->rotary_dim > c->head_dim || c->rotary_dim % 2)
        return ot_fail(
            OT_E_INPUT,
            "%s: rope would rotate %lld of each head's %lld elements; must be even and from 2 to head_dim",
            where, (long long)c->rotary_dim, (long long)c->head_dim);
    OT_TRY(check_positive(c->rope.theta, "rope_theta", where));
    if (c->q_scale_beta != 0) {
        OT_TRY(check_positive(c->rope.original_max_position, "original_max_position_embeddings", where));
        if (c->rotary_dim != c->head_dim)
            return ot_fail(OT_E_INPUT, "%s: llama_4_scaling_beta needs heads that rotate whole", where);
    }
    return check_scaling(c, where);
}

/* ---- as a person says it ---- */

static const char *const SAID = "give yarn:4, linear:2 or dynamic:4, for example";

static int read_said(const char *text, enum ot_rope_scaling *scaling, double *factor) {
    const char *colon = strchr(text, ':');
    char *end = NULL;
    *scaling = OT_ROPE_PLAIN;
    *factor = colon ? strtod(colon + 1, &end) : 0;
    for (int i = 0; colon && i < OT_ROPE_SCALINGS; i++)
        if (strlen(SCALING_NAMES[i]) == (size_t)(colon - text) &&
            strncmp(text, SCALING_NAMES[i], (size_t)(colon - text)) == 0)
            *scaling = (enum ot_rope_scaling)i;
    if (*scaling == OT_ROPE_PLAIN || *scaling == OT_ROPE_LONGROPE || *scaling == OT_ROPE_PROPORTIONAL)
        return ot_fail(OT_E_USAGE, "'%.80s' is no scaling that can be chosen; %s", text, SAID);
    if (*end != '\0' || !(*factor > 1) || *factor > 1e4)
        return ot_fail(OT_E_USAGE, "'%.80s': the factor must be a number above 1, at most 10000; %s", text,
                       SAID);
    return 0;
}

/* YaRN may replace llama3, and linear, llama3 and yarn lengthen their own kind. YaRN may not replace linear:
 * configs differ in whether max_position_embeddings counts that factor. */
static int check_replaces(enum ot_rope_scaling own, enum ot_rope_scaling scaling) {
    static const char *const replaced_by[OT_ROPE_SCALINGS] = {[OT_ROPE_PLAIN] =
                                                                  "yarn:N, linear:N or dynamic:N",
                                                              [OT_ROPE_LINEAR] = "linear:N",
                                                              [OT_ROPE_LLAMA3] = "yarn:N or llama3:N",
                                                              [OT_ROPE_YARN] = "yarn:N"};
    const char *by = replaced_by[own], *name = by ? strstr(by, SCALING_NAMES[scaling]) : NULL;
    if (name)
        return 0;
    if (own == OT_ROPE_PLAIN)
        return ot_fail(OT_E_USAGE, "%s:N lengthens such a scaling, and the config has none; give %s",
                       SCALING_NAMES[scaling], by);
    return ot_fail(OT_E_USAGE, "the config's rope_scaling of type %s can be replaced by %s, not by %s",
                   SCALING_NAMES[own], by ? by : "none", SCALING_NAMES[scaling]);
}

/* Sets YaRN in place of what the model has, for `factor` times its positions. */
static void set_yarn(struct ot_model_config *c, double factor) {
    struct ot_rope_config *rope = &c->rope;
    if (rope->scaling == OT_ROPE_YARN) {
        rope->attention_factor *= yarn_magnitude(factor * rope->factor, 1) / yarn_magnitude(rope->factor, 1);
        rope->factor *= factor;
        return;
    }
    double positions = (double)c->max_position;
    if (rope->scaling == OT_ROPE_PLAIN)
        rope->original_max_position = positions;
    rope->factor = factor * positions / rope->original_max_position;
    rope->attention_factor = yarn_magnitude(rope->factor, 1);
    rope->beta_fast = 32;
    rope->beta_slow = 1;
}

int ot_model_config_scale_rope(struct ot_model_config *c, const char *text) {
    enum ot_rope_scaling scaling;
    double factor;
    OT_TRY(read_said(text, &scaling, &factor));
    if (c->positions != OT_POSITIONS_ROPE)
        return ot_fail(OT_E_USAGE, "this model has no rotary positions, so they cannot be scaled");
    OT_TRY(check_replaces(c->rope.scaling, scaling));
    if (factor * (double)c->max_position > (double)MAX_COUNT)
        return ot_fail(OT_E_USAGE, "'%.80s': %lld positions times that factor are too many", text,
                       (long long)c->max_position);
    if (scaling == OT_ROPE_YARN)
        set_yarn(c, factor);
    else
        c->rope.factor = c->rope.scaling == scaling ? factor * c->rope.factor : factor;
    c->rope.scaling = scaling;
    if (scaling != OT_ROPE_DYNAMIC)
        c->max_position = (int64_t)(factor * (double)c->max_position);
    return ot_rope_config_check(c, "the scaling of positions");
}

bool ot_model_config_same_rope(const struct ot_model_config *a, const struct ot_model_config *b) {
    return a->rope.scaling == b->rope.scaling && a->rope.factor == b->rope.factor &&
           a->max_position == b->max_position;
}

/* ---- writing ---- */

static void put_factors(struct ot_json_writer *w, const char *key, const float *factors, int64_t n) {
    ot_json_begin_array(w, key);
    for (int64_t j = 0; j < n; j++)
        ot_json_put_real(w, NULL, (double)factors[j]);
    ot_json_end_array(w);
}

static void put_scaling(const struct ot_model_config *c, struct ot_json_writer *w) {
    const struct ot_rope_config *rope = &c->rope;
    ot_json_put_text(w, "rope_type", SCALING_NAMES[rope->scaling]);
    ot_json_put_real(w, "factor", rope->factor);
    if (rope->scaling == OT_ROPE_LLAMA3) {
        ot_json_put_real(w, "low_freq_factor", rope->low_freq_factor);
        ot_json_put_real(w, "high_freq_factor", rope->high_freq_factor);
    }
    if (rope->scaling == OT_ROPE_YARN || rope->scaling == OT_ROPE_LONGROPE)
        ot_json_put_exact(w, "attention_factor", rope->attention_factor);
    if (rope->scaling == OT_ROPE_YARN) {
        ot_json_put_real(w, "beta_fast", rope->beta_fast);
        ot_json_put_real(w, "beta_slow", rope->beta_slow);
        ot_json_put_bool(w, "truncate", !rope->keeps_fractions);
    }
    if (rope->scaling == OT_ROPE_LONGROPE) {
        put_factors(w, "short_factor", rope->short_factors, c->rotary_dim / 2);
        put_factors(w, "long_factor", rope->long_factors, c->rotary_dim / 2);
    }
    if (rope->scaling == OT_ROPE_PROPORTIONAL)
        ot_json_put_real(w, "partial_rotary_factor", rope->share);
    if (rope->original_max_position > 0)
        ot_json_put_int(w, "original_max_position_embeddings", (int64_t)rope->original_max_position);
    if (c->family == OT_FAMILY_MINISTRAL3)
        ot_json_put_real(w, "llama_4_scaling_beta", c->q_scale_beta);
}

/* Uses the older key names: transformers 5 still reads them, transformers 4 reads no others. Ministral 3 is
 * younger than they are. */
void ot_rope_config_put(const struct ot_model_config *c, struct ot_json_writer *w) {
    const struct ot_family_row *row = ot_family_row(c->family);
    if (c->positions != OT_POSITIONS_ROPE)
        return;
    bool young = c->family == OT_FAMILY_MINISTRAL3;
    if (!young)
        ot_json_put_real(w, "rope_theta", c->rope.theta);
    if (c->local_rope_theta != 0)
        ot_json_put_real(w, "rope_local_base_freq", c->local_rope_theta);
    if (row->partial_rotary && c->rope.scaling != OT_ROPE_PROPORTIONAL)
        ot_json_put_real(w, "partial_rotary_factor", (double)c->rotary_dim / (double)c->head_dim);
    if (c->rope.scaling ==
        OT_ROPE_LONGROPE) /* transformers prefers this place, and Phi3Config has a default */
        ot_json_put_int(w, "original_max_position_embeddings", (int64_t)c->rope.original_max_position);
    if (c->rope.scaling == OT_ROPE_PLAIN && !young &&
        c->family != OT_FAMILY_GPT_OSS) /* whose default is YaRN */
        return;
    ot_json_begin_object(w, young ? "rope_parameters" : "rope_scaling");
    if (young)
        ot_json_put_real(w, "rope_theta", c->rope.theta);
    put_scaling(c, w);
    ot_json_end_object(w);
}

bool ot_model_config_is_rope_key(const char *key) {
    static const char *const keys[] = {"rope_parameters",
                                       "rope_scaling",
                                       "rope_theta",
                                       "rope_local_base_freq",
                                       "partial_rotary_factor",
                                       "max_position_embeddings",
                                       "n_positions",
                                       "original_max_position_embeddings"};
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

void ot_model_config_put_rope(const struct ot_model_config *c, struct ot_json_writer *w) {
    ot_json_put_int(w, "max_position_embeddings", c->max_position);
    ot_rope_config_put(c, w);
}

#include "models/lora_spec.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

enum { DEFAULT_RANK = 16 };

/* ---- the settings of the text, which commas separate ---- */

struct setting {
    struct ot_lora_word key;   /* all of it if there is no '=' */
    struct ot_lora_word value; /* text NULL: there is no '=' */
};

static bool next_setting(const char **at, struct setting *out) {
    const char *text = *at, *equals;
    if (!text || !*text)
        return false;
    int bytes = (int)strcspn(text, ",");
    *at = text[bytes] ? text + bytes + 1 : NULL;
    *out = (struct setting){.key = {text, bytes}};
    if ((equals = memchr(text, '=', (size_t)bytes))) {
        out->key.bytes = (int)(equals - text);
        out->value = (struct ot_lora_word){equals + 1, bytes - out->key.bytes - 1};
    }
    return true;
}

static bool is_word(struct ot_lora_word w, const char *word) {
    return (size_t)w.bytes == strlen(word) && memcmp(w.text, word, strlen(word)) == 0;
}

/* Takes a prefix away. */
static bool skip(struct ot_lora_word *w, const char *prefix) {
    int bytes = (int)strlen(prefix);
    if (w->bytes <= bytes || memcmp(w->text, prefix, (size_t)bytes) != 0)
        return false;
    *w = (struct ot_lora_word){w->text + bytes, w->bytes - bytes};
    return true;
}

static bool is_flag(const struct setting *p) {
    return !p->value.text && (is_word(p->key, "rslora") || is_word(p->key, "dora"));
}

static bool read_number(struct ot_lora_word w, double *out) {
    char text[32], *end;
    if (w.bytes < 1 || w.bytes >= (int)sizeof text || !strchr("0123456789.", w.text[0]))
        return false;
    snprintf(text, sizeof text, "%.*s", w.bytes, w.text);
    *out = strtod(text, &end);
    return !*end;
}

bool ot_lora_spec_next(const char **at, enum ot_lora_word_kind kind, struct ot_lora_word *out,
                       double *value) {
    struct setting p;
    while (next_setting(at, &p)) {
        bool names_targets = p.value.text && is_word(p.key, "targets");
        *out = names_targets ? p.value : p.key;
        if (kind == OT_LORA_TARGET ? names_targets || (!p.value.text && !is_flag(&p))
                                   : skip(out, kind == OT_LORA_RANK_PATTERN ? "r:" : "alpha:")) {
            if (value)
                read_number(p.value, value);
            return true;
        }
    }
    return false;
}

/* ---- matching ---- */

/* True if the name is, or ends in, a name of experts. */
bool ot_lora_word_is_of_experts(struct ot_lora_word w) {
    static const char *const ends[] = {"experts.gate_up_proj", "experts.down_proj"};
    for (int i = 0; i < 2; i++) {
        int bytes = (int)strlen(ends[i]), before = w.bytes - bytes;
        if (before >= 0 && memcmp(w.text + before, ends[i], (size_t)bytes) == 0 &&
            (before == 0 || w.text[before - 1] == '.'))
            return true;
    }
    return false;
}

/* True if `w` is the module's name, or its end after a point. */
static bool names(struct ot_lora_word w, const char *module) {
    size_t bytes = strlen(module), n = (size_t)w.bytes;
    if (ot_lora_is_of_experts(module) && !ot_lora_word_is_of_experts(w))
        return false;
    return bytes >= n && memcmp(module + bytes - n, w.text, n) == 0 &&
           (bytes == n || module[bytes - n - 1] == '.');
}

static bool is_target(struct ot_lora_word w, const char *module) {
    return is_word(w, "all-linear") ? ot_lora_is_linear(module) : names(w, module);
}

/* The value of the first pattern that matches the module, else `otherwise`. */
static double pattern_value(const char *text, enum ot_lora_word_kind kind, const char *module,
                            double otherwise) {
    struct ot_lora_word w;
    double value = 0;
    while (ot_lora_spec_next(&text, kind, &w, &value))
        if (names(w, module))
            return value;
    return otherwise;
}

static struct ot_lora_rank choose(const void *context, const char *module) {
    const struct ot_lora_spec *spec = context;
    const char *at = spec->text;
    struct ot_lora_word w;
    bool has_targets = false, found = false;
    while (!found && ot_lora_spec_next(&at, OT_LORA_TARGET, &w, NULL)) {
        has_targets = true;
        found = is_target(w, module);
    }
    if (has_targets ? !found : !ot_lora_is_linear(module))
        return (struct ot_lora_rank){0};
    struct ot_lora_rank out = {
        .rank = (int64_t)pattern_value(spec->text, OT_LORA_RANK_PATTERN, module, (double)spec->rank)};
    out.alpha = pattern_value(spec->text, OT_LORA_ALPHA_PATTERN, module,
                              spec->alpha != 0 ? spec->alpha : 2 * (double)out.rank);
    return out;
}

/* ---- reading ---- */

static int fail_setting(const struct setting *p, const char *why) {
    int bytes = p->key.bytes + (p->value.text ? 1 + p->value.bytes : 0);
    return ot_fail(OT_E_USAGE, "'%.*s': %s", ot_min(bytes, 80), p->key.text, why);
}

static int read_rank(const struct setting *p, int64_t *out) {
    double value;
    if (!read_number(p->value, &value) || !(value >= 1 && value <= OT_LORA_MAX_RANK) ||
        value != (double)(int64_t)value)
        return fail_setting(p, "a rank is a whole number from 1 to 65536");
    *out = (int64_t)value;
    return 0;
}

static int read_alpha(const struct setting *p, double *out) {
    if (!read_number(p->value, out) || !(*out > 0 && *out <= 1e6))
        return fail_setting(p, "alpha is a number above 0, at most 1e6");
    return 0;
}

static int read_dropout(const struct setting *p, float *out) {
    double value;
    if (!read_number(p->value, &value) || !(value >= 0 && value < 1))
        return fail_setting(p, "dropout is a number from 0 to less than 1, such as 0.05");
    *out = (float)value;
    return 0;
}

static int read_lr_ratio(const struct setting *p, float *out) {
    double value;
    if (!read_number(p->value, &value) || !(value >= 1e-4 && value <= 1e4))
        return fail_setting(p, "lr-ratio is a number from 0.0001 to 10000, such as 16");
    *out = (float)value;
    return 0;
}

static int read_setting(const struct setting *p, bool *has_targets, struct ot_lora_spec *out) {
    struct ot_lora_word name = p->key;
    int64_t rank;
    double alpha;
    if (!p->value.text) {
        if (is_flag(p))
            *(is_word(p->key, "dora") ? &out->lora.dora : &out->lora.rslora) = true;
        else if (!*has_targets || p->key.bytes == 0)
            return fail_setting(
                p, "the parts are r=16, alpha=32, dropout=0.05, targets=q_proj,v_proj, rslora, dora, "
                   "lr-ratio=16, r:NAME=8 and alpha:NAME=16");
        return 0;
    }
    if (is_word(name, "targets")) {
        *has_targets = true;
        return p->value.bytes > 0 ? 0 : fail_setting(p, "give all-linear, or names such as q_proj,v_proj");
    }
    if (is_word(name, "r") || is_word(name, "rank"))
        return read_rank(p, &out->rank);
    if (is_word(name, "alpha"))
        return read_alpha(p, &out->alpha);
    if (is_word(name, "dropout"))
        return read_dropout(p, &out->lora.dropout);
    if (is_word(name, "lr-ratio"))
        return read_lr_ratio(p, &out->lora.lr_ratio);
    if (skip(&name, "r:"))
        return read_rank(p, &rank);
    if (skip(&name, "alpha:"))
        return read_alpha(p, &alpha);
    return fail_setting(p, "the settings are r, alpha, dropout, lr-ratio, targets, r:NAME and alpha:NAME");
}

int ot_lora_spec_read(const char *text, struct ot_lora_spec *out) {
    const char *at = text;
    bool has_targets = false;
    struct setting p;
    *out =
        (struct ot_lora_spec){.text = text, .rank = DEFAULT_RANK, .lora = {.choose = choose, .context = out}};
    while (next_setting(&at, &p))
        OT_TRY(read_setting(&p, &has_targets, out));
    return 0;
}

/* ---- checking ---- */

static bool has_adaptable(const struct ot_model_config *config, int64_t layer, enum ot_module module) {
    return ot_model_layer_names(config, layer)->modules[module] && ot_model_can_adapt(config, module);
}

/* The number of linear maps in a layer that can have adapters. */
static int64_t layer_modules(const struct ot_model_config *config, int64_t layer) {
    int64_t n = 0;
    for (int module = OT_MODULE_Q; module <= OT_MODULE_DOWN; module++)
        n += has_adaptable(config, layer, (enum ot_module)module);
    return n;
}

/* Finds module `index` of the experts, counted from the first layer that has experts. */
static bool experts_at(const struct ot_model_config *config, int64_t index,
                       char module[OT_LORA_MODULE_BYTES]) {
    int64_t layer = -1;
    for (int64_t at = index / 2; at >= 0 && ++layer < config->n_layers;)
        at -= ot_model_layer_has_experts(config, layer);
    if (layer == config->n_layers)
        return false;
    ot_model_experts_parameter(config, index % 2 ? OT_MODULE_EXPERTS_DOWN : OT_MODULE_EXPERTS_GATE_UP, layer,
                               module, OT_LORA_MODULE_BYTES);
    return true;
}

/* Layers of an encoder have other maps than those of the decoder behind it. */
bool ot_lora_module_at(const struct ot_model_config *config, int64_t index,
                       char module[OT_LORA_MODULE_BYTES]) {
    int64_t encoder = config->n_encoder_layers, of_encoder = layer_modules(config, 0);
    int64_t n = layer_modules(config, config->n_layers - 1), first = encoder * of_encoder;
    int64_t layer = index < first ? index / of_encoder : encoder + (index - first) / n;
    int64_t at = index < first ? index % of_encoder : (index - first) % n;
    int64_t behind = index - first - (config->n_layers - encoder) * n;
    enum ot_module found = OT_MODULE_Q;
    if (behind >= 2)
        return experts_at(config, behind - 2, module);
    if (behind < 0) {
        while (!has_adaptable(config, layer, found) || at-- > 0)
            found++;
    } else {
        found = behind == 0 ? OT_MODULE_HEAD : OT_MODULE_EMBEDDING;
        layer = -1;
    }
    ot_model_module_name(config, found, layer, module, OT_LORA_MODULE_BYTES);
    return behind < 1 || (behind == 1 && ot_model_can_adapt(config, OT_MODULE_EMBEDDING));
}

/* The last words of the names of the modules that can have adapters: "q_proj, k_proj and v_proj". */
static void list_modules(const struct ot_model_config *config, char *list, size_t bytes) {
    int64_t n = layer_modules(config, 0), index = n;
    char module[OT_LORA_MODULE_BYTES];
    size_t used = 0;
    for (int64_t i = 0; i < n; i++) {
        ot_lora_module_at(config, i, module);
        const char *between = i == 0 ? "" : i == n - 1 ? " and " : ", ";
        used += (size_t)snprintf(list + used, bytes - used, "%s%s", between, strrchr(module, '.') + 1);
    }
    while (ot_lora_module_at(config, index, module) && ot_lora_is_linear(module))
        index++;
    used += (size_t)snprintf(list + used, bytes - used, " in %lld layers%s %s", (long long)config->n_layers,
                             ot_model_can_adapt(config, OT_MODULE_EMBEDDING) ? "," : " and", module);
    if (!ot_lora_module_at(config, index + 1, module))
        return;
    const char *end = strrchr(module, '.');
    used += (size_t)snprintf(list + used, bytes - used, " and %s", end ? end + 1 : module);
    if (ot_lora_module_at(config, index + 2, module))
        snprintf(list + used, bytes - used, ", and for experts experts.gate_up_proj and experts.down_proj");
}

/* True if the word names a module. spec: one that has an adapter; NULL: any. */
static bool names_module(const struct ot_lora_spec *spec, struct ot_lora_word w,
                         const struct ot_model_config *config) {
    char module[OT_LORA_MODULE_BYTES];
    for (int64_t i = 0; ot_lora_module_at(config, i, module); i++)
        if (is_target(w, module) && (!spec || choose(spec, module).rank > 0))
            return true;
    return false;
}

/* By the last word of the name: "w1", "gate". transformers names the matrices of all experts of a layer
 * mlp.experts.gate_up_proj and mlp.experts.down_proj. */
bool ot_lora_names_experts(const struct ot_model_config *config, const char *name, size_t bytes) {
    char text[OT_MODEL_NAME_BYTES];
    snprintf(text, sizeof text, "%.*s", (int)(bytes < sizeof text ? bytes : 0), name);
    const char *point = strrchr(text, '.'), *last = point ? point + 1 : text;
    if (config->n_experts == 0)
        return false;
    for (int module = OT_MODULE_GATE; module <= OT_MODULE_EXPERT_DOWN; module++) {
        const char *of_module = ot_model_names(config)->modules[module];
        if (of_module && strcmp(strrchr(of_module, '.') + 1, last) == 0)
            return true;
    }
    return strstr(text, "experts") || strcmp(last, "gate_up_proj") == 0;
}

int ot_lora_spec_check(const struct ot_lora_spec *spec, const struct ot_model_config *config) {
    char list[OT_MODULES * OT_LORA_MODULE_BYTES];
    for (enum ot_lora_word_kind kind = OT_LORA_TARGET; kind <= OT_LORA_ALPHA_PATTERN; kind++) {
        const char *at = spec->text;
        struct ot_lora_word w;
        while (ot_lora_spec_next(&at, kind, &w, NULL)) {
            if (names_module(spec, w, config))
                continue;
            list_modules(config, list, sizeof list);
            if (ot_lora_names_experts(config, w.text, (size_t)w.bytes) && !names_module(NULL, w, config))
                return ot_fail(
                    OT_E_USAGE,
                    "'%.*s' names the MLP, experts or the router of a model with experts, and of these only "
                    "all experts of a layer together can have adapters; this model has %s",
                    ot_min(w.bytes, 80), w.text, list);
            return ot_fail(
                OT_E_USAGE, "'%.*s' is the name of no %s; this model has %s", ot_min(w.bytes, 80), w.text,
                kind == OT_LORA_TARGET ? "module that can have an adapter" : "module with an adapter", list);
        }
    }
    return 0;
}

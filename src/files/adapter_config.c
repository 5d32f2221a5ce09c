#include "src/files/adapter_config.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/text.h"
#include "src/files/model_dir.h"
#include "src/tokenizer/regex_match.h"

enum { MAX_BYTES = 4 << 20, PATTERN_BYTES = 4096 };

/* A file that is being read. */
struct reader {
    const char *where; /* the path */
    struct ot_json *root;
    const struct ot_model_config *config;
    struct ot_regex_scratch *scratch;
    bool rslora, dora;
    double dropout;
    struct ot_lora_rank *ranks; /* of each module, by its index (ot_lora_module_at) */
    int64_t n;
};

static int check_type(const struct reader *r) {
    const char *type;
    OT_TRY(ot_json_need_string(r->root, r->where, "peft_type", true, &type));
    return strcasecmp(type, "LORA") == 0
               ? 0
               : ot_fail(OT_E_INPUT, "%s: peft_type is %.40s; only adapters of type LORA can be used",
                         r->where, type);
}

static int open_file(const char *dir, char path[PATH_MAX], struct ot_json **root) {
    if (snprintf(path, PATH_MAX, "%s/" OT_ADAPTER_CONFIG_NAME, dir) >= PATH_MAX)
        return ot_fail(OT_E_INPUT, "%.64s...: the path is too long", dir);
    return ot_json_read_file(path, MAX_BYTES, root);
}

int ot_adapter_config_base(const char *dir, char **base) {
    char path[PATH_MAX];
    struct reader r = {.where = path};
    const char *name = NULL;
    int rc;
    OT_TRY_GOTO(open_file(dir, path, &r.root), rc, out);
    OT_TRY_GOTO(check_type(&r), rc, out);
    OT_TRY_GOTO(ot_json_need_string(r.root, path, "base_model_name_or_path", false, &name), rc, out);
    rc = name && *name ? ot_string_format(base, "%s", name)
                       : ot_fail(OT_E_INPUT,
                                 "%s: base_model_name_or_path is missing; give the base with "
                                 "--model, and this directory with --adapter",
                                 path);
out:
    ot_json_free(r.root);
    return rc;
}

/* True if `name` is the module's name, or the end of it after a point. */
static bool ends_with_name(const char *module, const char *name) {
    size_t bytes = strlen(module), n = strlen(name);
    return n <= bytes && strcmp(module + bytes - n, name) == 0 &&
           (n == bytes || module[bytes - n - 1] == '.');
}

/* ---- refusals ---- */

static bool is_empty(const struct ot_json *value) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *member;
    switch (ot_json_type(value)) {
    case OT_JSON_NULL:
        return true;
    case OT_JSON_BOOL:
        return !ot_json_bool(value, false);
    case OT_JSON_ARRAY:
        return ot_json_length(value) == 0;
    case OT_JSON_OBJECT:
        return !ot_json_next(value, &cursor, &key, &member);
    default:
        return false;
    }
}

/* Keys whose value this file reads, or that change nothing for a trained adapter. */
static bool is_known(const char *key) {
    static const char keys[] =
        "peft_type task_type auto_mapping base_model_name_or_path revision inference_mode "
        "peft_version r lora_alpha lora_dropout target_modules target_parameters "
        "exclude_modules modules_to_save rank_pattern alpha_pattern layers_to_transform "
        "layers_pattern use_rslora use_dora init_lora_weights bias ensure_weight_tying "
        "megatron_core loftq_config runtime_config qalora_group_size trainable_token_indices";
    return ot_words_have(keys, key);
}

/* ---- which modules, as PEFT chooses ---- */

/* Python's re.fullmatch of BEFORE pattern. */
static int match_regex(const struct reader *r, const char *before, const char *pattern, const char *module,
                       bool *matches) {
    char text[PATTERN_BYTES], where[PATH_MAX];
    struct ot_regex *regex;
    size_t begin, end, bytes = strlen(module);
    snprintf(where, sizeof where, "%.*s: a pattern of modules", PATH_MAX - 32, r->where);
    int n = snprintf(text, sizeof text, "^%s(?:%s)$", before, pattern);
    if (n >= (int)sizeof text)
        return ot_fail(OT_E_INPUT, "%s has %d bytes, which is too long", where, n);
    OT_TRY(ot_regex_open(text, (size_t)n, where, &regex));
    int rc = ot_regex_match(regex, r->scratch, module, bytes, 0, &begin, &end);
    ot_regex_close(regex);
    *matches = rc == 1 && begin == 0 && end == bytes;
    return rc < 0 ? rc : 0;
}

/* target_modules or exclude_modules: a regular expression or a list of names. */
static int match_modules(const struct reader *r, const char *key, const char *module, bool *matches) {
    const struct ot_json *value = ot_json_get(r->root, key);
    const char *text = ot_json_string(value, NULL);
    *matches = false;
    if (text && strcasecmp(text, "all-linear") == 0) {
        *matches = ot_lora_is_linear(module);
        return 0;
    }
    if (text)
        return match_regex(r, "", text, module, matches);
    for (size_t i = 0; i < ot_json_length(value) && !*matches; i++) {
        const char *name = ot_json_string(ot_json_at(value, i), NULL);
        if (!name)
            return ot_fail(OT_E_INPUT, "%s: %s must be a list of names, or a regular expression", r->where,
                           key);
        *matches = ends_with_name(module, name);
    }
    return 0;
}

/* target_parameters: a list of names. */
static bool matches_parameters(const struct reader *r, const char *parameter) {
    const struct ot_json *list = ot_json_get(r->root, "target_parameters");
    for (size_t i = 0; i < ot_json_length(list); i++) {
        const char *name = ot_json_string(ot_json_at(list, i), NULL);
        if (name && ends_with_name(parameter, name))
            return true;
    }
    return false;
}

/* layers_to_transform: a number or a list of numbers; absent: all. */
static bool has_layer(const struct reader *r, const char *module) {
    const struct ot_json *layers = ot_json_get(r->root, "layers_to_transform");
    int64_t layer = ot_lora_layer_of(module);
    if (ot_json_type(layers) == OT_JSON_NULL)
        return true;
    if (layer < 0)
        return false;
    if (ot_json_type(layers) == OT_JSON_INT)
        return ot_json_int(layers, -1) == layer;
    for (size_t i = 0; i < ot_json_length(layers); i++)
        if (ot_json_int(ot_json_at(layers, i), -1) == layer)
            return true;
    return false;
}

/* The value of the first pattern of `key` that the module matches; otherwise *value stays. */
static int find_pattern(const struct reader *r, const char *key, const char *module, double *value) {
    const struct ot_json *patterns = ot_json_get(r->root, key);
    void *cursor = NULL;
    const char *pattern;
    struct ot_json *found;
    while (ot_json_next(patterns, &cursor, &pattern, &found)) {
        bool matches;
        OT_TRY(match_regex(r, "(?:.*\\.)?", pattern, module, &matches));
        if (matches) {
            *value = ot_json_real(found, 0);
            return 0;
        }
    }
    return 0;
}

static bool saves_embedding(const struct reader *r, const char *embedding) {
    const struct ot_json *modules = ot_json_get(r->root, "modules_to_save");
    for (size_t i = 0; i < ot_json_length(modules); i++) {
        const char *name = ot_json_string(ot_json_at(modules, i), NULL);
        if (name && ends_with_name(embedding, name))
            return true;
    }
    return false;
}

static int refuse_others(const struct reader *r) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    bool transposed = ot_model_names(r->config)->transposed; /* PEFT then sets fan_in_fan_out */
    while (ot_json_next(r->root, &cursor, &key, &value))
        if (!is_known(key) && !is_empty(value) && !(transposed && strcmp(key, "fan_in_fan_out") == 0))
            return ot_fail(OT_E_INPUT, "%s: adapters with '%.60s' are not supported", r->where, key);
    const char *task = ot_json_string(ot_json_get(r->root, "task_type"), NULL);
    if (task && strcmp(task, "CAUSAL_LM") != 0 && strcmp(task, "SEQ_2_SEQ_LM") != 0)
        return ot_fail(
            OT_E_INPUT,
            "%s: task_type is '%.40s', whose model has another head than that of a language model; "
            "only CAUSAL_LM and SEQ_2_SEQ_LM can be used",
            r->where, task);
    const char *bias = "none", *init = NULL, *pattern = NULL;
    OT_TRY(ot_json_need_string(r->root, r->where, "bias", false, &bias));
    if (strcmp(bias, "none") != 0)
        return ot_fail(OT_E_INPUT, "%s: bias is '%.40s'; only 'none' can be used", r->where, bias);
    init = ot_json_string(ot_json_get(r->root, "init_lora_weights"), NULL);
    if (init && (strncasecmp(init, "pissa", 5) == 0 || strcasecmp(init, "olora") == 0 ||
                 strcasecmp(init, "corda") == 0 || strcasecmp(init, "loftq") == 0))
        return ot_fail(OT_E_INPUT,
                       "%s: init_lora_weights is '%.40s', which changes the base too; save the adapter with "
                       "PEFT's path_initial_model_for_weight_conversion first",
                       r->where, init);
    bool tying = false;
    OT_TRY(ot_json_need_bool(r->root, r->where, "ensure_weight_tying", false, &tying));
    bool embedding, head;
    char table[OT_LORA_MODULE_BYTES], projection[OT_LORA_MODULE_BYTES];
    ot_model_module_name(r->config, OT_MODULE_EMBEDDING, -1, table, sizeof table);
    ot_model_module_name(r->config, OT_MODULE_HEAD, -1, projection, sizeof projection);
    OT_TRY(match_modules(r, "target_modules", table, &embedding));
    OT_TRY(match_modules(r, "target_modules", projection, &head));
    if (r->config->tied && tying && (embedding || head))
        return ot_fail(
            OT_E_INPUT,
            "%s: ensure_weight_tying with adapters of the embedding or of the head is not available",
            r->where);
    if (r->config->tied && !tying && saves_embedding(r, table))
        return ot_fail(OT_E_INPUT,
                       "%s: modules_to_save has the embedding, which the base shares with its head, and "
                       "ensure_weight_tying is not true: PEFT then trained the embedding alone, which this "
                       "program cannot follow",
                       r->where);
    pattern = ot_json_string(ot_json_get(r->root, "layers_pattern"), NULL);
    const char *layers = ot_model_names(r->config)->layers; /* "model.layers." */
    size_t end = strlen(layers) - 1, begin = (size_t)(strchr(layers, '.') + 1 - layers);
    if (pattern && *pattern &&
        (strlen(pattern) != end - begin || strncmp(pattern, layers + begin, end - begin) != 0))
        return ot_fail(OT_E_INPUT, "%s: layers_pattern is '%.40s'; the layers are called '%.*s' here",
                       r->where, pattern, (int)(end - begin), layers + begin);
    return 0;
}

/* True if the name is a parameter of experts, or the end of such a name. */
static bool names_parameter(const struct reader *r, const char *name) {
    static const enum ot_module modules[] = {OT_MODULE_EXPERTS_GATE_UP, OT_MODULE_EXPERTS_DOWN};
    char module[OT_LORA_MODULE_BYTES];
    for (int64_t layer = 0; layer < r->config->n_layers; layer++)
        for (int i = 0; i < 2 && ot_model_layer_has_experts(r->config, layer); i++) {
            ot_model_experts_parameter(r->config, modules[i], layer, module, sizeof module);
            if (ends_with_name(module, name))
                return true;
        }
    return false;
}

/* Refuses parameters that do not belong to experts. */
static int refuse_parameters(const struct reader *r) {
    const struct ot_json *list = ot_json_get(r->root, "target_parameters");
    if (!is_empty(list) && ot_json_type(list) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: target_parameters must be a list of names", r->where);
    for (size_t i = 0; i < ot_json_length(list); i++) {
        const char *name = ot_json_string(ot_json_at(list, i), NULL);
        if (!name || !names_parameter(r, name))
            return ot_fail(OT_E_INPUT,
                           "%s: target_parameters has '%.60s', and here such adapters can be those of a "
                           "model's experts alone, mlp.experts.gate_up_proj and mlp.experts.down_proj",
                           r->where, name ? name : "a value that is no name");
    }
    return 0;
}

/* PEFT gave adapters to the matrices of single experts or to routers: names of target_modules say so. */
static int refuse_experts(const struct reader *r) {
    const struct ot_json *targets = ot_json_get(r->root, "target_modules");
    for (size_t i = 0; i < ot_json_length(targets); i++) {
        const char *name = ot_json_string(ot_json_at(targets, i), NULL);
        if (name && ot_lora_names_experts(r->config, name, strlen(name)))
            return ot_fail(OT_E_INPUT,
                           "%s: target_modules has '%.60s', and in a model with experts only attention, head "
                           "and embedding can have adapters by that key here, and all experts of a layer by "
                           "target_parameters",
                           r->where, name);
    }
    return 0;
}

/* ---- ranks ---- */

static int is_module_target(const struct reader *r, const char *module, bool *is_target) {
    bool is_excluded;
    OT_TRY(match_modules(r, "target_modules", module, is_target));
    OT_TRY(match_modules(r, "exclude_modules", module, &is_excluded));
    *is_target = *is_target && !is_excluded && has_layer(r, module);
    return 0;
}

static int find_rank(struct reader *r, const char *module, double rank, double alpha,
                     struct ot_lora_rank *out) {
    bool is_target, of_experts = ot_lora_is_of_experts(module);
    *out = (struct ot_lora_rank){0};
    if (of_experts)
        is_target = matches_parameters(r, module);
    else
        OT_TRY(is_module_target(r, module, &is_target));
    if (!is_target)
        return 0;
    if (of_experts && (r->dropout > 0 || r->dora))
        return ot_fail(OT_E_INPUT, "%s: %s, which adapters of experts (target_parameters) cannot have",
                       r->where, r->dora ? "use_dora is true" : "lora_dropout is above 0");
    OT_TRY(find_pattern(r, "rank_pattern", module, &rank));
    OT_TRY(find_pattern(r, "alpha_pattern", module, &alpha));
    if (!(rank >= 1 && rank <= OT_LORA_MAX_RANK && rank == floor(rank)) || !(alpha > 0 && alpha <= 1e6))
        return ot_fail(OT_E_INPUT, "%s: %s has rank %g and alpha %g; a rank is from 1 to %d, alpha above 0",
                       r->where, module, rank, alpha, OT_LORA_MAX_RANK);
    *out = (struct ot_lora_rank){(int64_t)rank, alpha};
    return 0;
}

static int find_ranks(struct reader *r) {
    char module[OT_LORA_MODULE_BYTES];
    double rank = 8, alpha = 8; /* PEFT's defaults */
    OT_TRY(ot_json_need_real(r->root, r->where, "r", false, 1, OT_LORA_MAX_RANK, &rank));
    OT_TRY(ot_json_need_real(r->root, r->where, "lora_alpha", false, 0, 1e6, &alpha));
    while (ot_lora_module_at(r->config, r->n, module))
        r->n++;
    r->ranks = calloc((size_t)r->n + 1, sizeof *r->ranks);
    if (!r->ranks)
        return ot_fail(OT_E_BUDGET, "%s: no memory for %lld modules", r->where, (long long)r->n);
    int64_t adapted = 0;
    for (int64_t i = 0; i < r->n; i++) {
        ot_lora_module_at(r->config, i, module);
        OT_TRY(find_rank(r, module, rank, alpha, &r->ranks[i]));
        adapted += r->ranks[i].rank > 0;
    }
    return adapted > 0 ? 0
                       : ot_fail(OT_E_INPUT,
                                 "%s: target_modules names no module of the base that can have an "
                                 "adapter, nor do target_parameters",
                                 r->where);
}

/* ---- the text of the spec ---- */

static bool same_rank(struct ot_lora_rank a, struct ot_lora_rank b) {
    return a.rank == b.rank && a.alpha == b.alpha;
}

/* The first module whose name ends in the same word, if the module is in a layer; else its own index. */
static int64_t first_alike(const struct reader *r, int64_t index) {
    char module[OT_LORA_MODULE_BYTES], other[OT_LORA_MODULE_BYTES];
    ot_lora_module_at(r->config, index, module);
    for (int64_t i = 0; i < index && ot_lora_layer_of(module) >= 0; i++) {
        ot_lora_module_at(r->config, i, other);
        if (ot_lora_layer_of(other) >= 0 && strcmp(strrchr(other, '.'), strrchr(module, '.')) == 0)
            return i;
    }
    return index;
}

/* True if all modules of layers whose names end in one word have the same adapter. */
static bool is_uniform(const struct reader *r) {
    for (int64_t i = 0; i < r->n; i++)
        if (!same_rank(r->ranks[i], r->ranks[first_alike(r, i)]))
            return false;
    return true;
}

/* The name of module i in the text: the end of its name if that says enough. */
static const char *short_name(const char *module, bool uniform) {
    const char *point = strrchr(module, '.'), *experts = strstr(module, "experts.");
    if (!uniform)
        return module;
    return experts ? experts : point ? point + 1 : module;
}

static int make_text(const struct reader *r, double dropout, char **lora) {
    struct ot_string_builder b = {0};
    bool uniform = is_uniform(r);
    int64_t first = 0;
    char module[OT_LORA_MODULE_BYTES];
    while (r->ranks[first].rank == 0)
        first++;
    struct ot_lora_rank usual = r->ranks[first];
    ot_string_append_format(&b, "r=%lld,alpha=%.17g%s", (long long)usual.rank, usual.alpha,
                            r->rslora ? ",rslora" : "");
    ot_string_append_text(&b, r->dora ? ",dora" : "");
    if (dropout > 0)
        ot_string_append_format(&b, ",dropout=%.9g", dropout);
    for (int part = 0, n = 0; part < 2; part++)
        for (int64_t i = 0; i < r->n; i++) {
            struct ot_lora_rank rank = r->ranks[i];
            if (rank.rank == 0 || (uniform && first_alike(r, i) < i))
                continue;
            ot_lora_module_at(r->config, i, module);
            const char *name = short_name(module, uniform);
            if (part == 0)
                ot_string_append_format(&b, ",%s%s", n++ == 0 ? "targets=" : "", name);
            else if (rank.rank != usual.rank)
                ot_string_append_format(&b, ",r:%s=%lld", name, (long long)rank.rank);
            if (part == 1 && rank.alpha != usual.alpha)
                ot_string_append_format(&b, ",alpha:%s=%.17g", name, rank.alpha);
        }
    *lora = b.text;
    if (!b.failed)
        return 0;
    free(b.text);
    return ot_fail(OT_E_BUDGET, "%s: no memory for the names of its modules", r->where);
}

int ot_adapter_config_parse(struct ot_json *root, const char *where, const struct ot_model_config *config,
                            bool to_train, char **lora) {
    struct reader r = {.where = where, .root = root, .config = config};
    int rc;
    OT_TRY_GOTO(check_type(&r), rc, out);
    OT_TRY_GOTO(ot_json_need_real(root, where, "lora_dropout", false, 0, 0.999, &r.dropout), rc, out);
    OT_TRY_GOTO(ot_json_need_bool(root, where, "use_rslora", false, &r.rslora), rc, out);
    OT_TRY_GOTO(ot_json_need_bool(root, where, "use_dora", false, &r.dora), rc, out);
    OT_TRY_GOTO(ot_regex_scratch_open(&r.scratch), rc, out);
    OT_TRY_GOTO(refuse_others(&r), rc, out);
    OT_TRY_GOTO(refuse_experts(&r), rc, out);
    OT_TRY_GOTO(refuse_parameters(&r), rc, out);
    OT_TRY_GOTO(find_ranks(&r), rc, out);
    rc = make_text(&r, to_train ? r.dropout : 0, lora);
out:
    ot_regex_scratch_close(r.scratch);
    free(r.ranks);
    return rc;
}

int ot_adapter_config_read(const char *dir, const struct ot_model_config *config, bool to_train,
                           char **lora) {
    char path[PATH_MAX];
    struct ot_json *root;
    OT_TRY(open_file(dir, path, &root));
    int rc = ot_adapter_config_parse(root, path, config, to_train, lora);
    ot_json_free(root);
    return rc;
}

/* ---- tokens ---- */

static int read_indices(const struct reader *r, const struct ot_json *list, struct ot_adapter_tokens *out) {
    int64_t n = (int64_t)ot_json_length(list), first = ot_json_int(ot_json_at(list, 0), -1);
    bool good = n > 0 && first >= 0 && first <= INT32_MAX;
    for (int64_t i = 1; i < n && good; i++)
        good = ot_json_int(ot_json_at(list, (size_t)i), -1) == first + i;
    if (!good || (out->n > 0 && (out->n != n || out->first != first)))
        return ot_fail(OT_E_INPUT,
                       "%s: trainable_token_indices must be lists of neighbouring ids, the same for the "
                       "embedding and the head; other tokens are not supported",
                       r->where);
    out->first = first;
    out->n = n;
    return 0;
}

static int read_tokens(const struct reader *r, const struct ot_json *value, struct ot_adapter_tokens *out) {
    char table[OT_LORA_MODULE_BYTES], head[OT_LORA_MODULE_BYTES];
    bool in_table = ot_json_type(value) == OT_JSON_ARRAY;
    void *cursor = NULL;
    const char *key;
    struct ot_json *list;
    if (in_table)
        OT_TRY(read_indices(r, value, out));
    ot_model_module_name(r->config, OT_MODULE_EMBEDDING, -1, table, sizeof table);
    ot_model_module_name(r->config, OT_MODULE_HEAD, -1, head, sizeof head);
    while (ot_json_next(value, &cursor, &key, &list)) {
        bool is_table = ends_with_name(table, key);
        if (!is_table && !ends_with_name(head, key))
            return ot_fail(OT_E_INPUT,
                           "%s: trainable_token_indices has '%.60s', which is neither the embedding nor "
                           "the head",
                           r->where, key);
        OT_TRY(read_indices(r, list, out));
        in_table = in_table || is_table;
        out->in_head = out->in_head || (!is_table && !r->config->tied);
    }
    return in_table
               ? 0
               : ot_fail(OT_E_INPUT, "%s: trainable_token_indices has no tokens of the embedding", r->where);
}

int ot_adapter_config_tokens(const char *dir, const struct ot_model_config *config,
                             struct ot_adapter_tokens *out) {
    char path[PATH_MAX];
    struct reader r = {.where = path, .config = config};
    *out = (struct ot_adapter_tokens){0};
    OT_TRY(open_file(dir, path, &r.root));
    const struct ot_json *value = ot_json_get(r.root, "trainable_token_indices");
    int rc = is_empty(value) ? 0 : read_tokens(&r, value, out);
    if (rc == 0 && out->n > 0 && ot_model_has_pairs(config))
        rc = ot_fail(OT_E_INPUT, "%s: trainable_token_indices of an encoder-decoder are not supported", path);
    ot_json_free(r.root);
    return rc;
}

int ot_adapter_config_check_saved(const char *path, const struct ot_model_dir *dir) {
    char where[PATH_MAX];
    struct ot_json *root;
    int rc = 0;
    OT_TRY(open_file(path, where, &root));
    const struct ot_json *modules = ot_json_get(root, "modules_to_save");
    for (size_t i = 0; i < ot_json_length(modules) && rc == 0; i++) {
        const char *name = ot_json_string(ot_json_at(modules, i), NULL);
        /* Two modules that share their weights are stored once. */
        bool shared = name && ot_model_dir_facts(dir)->config.tied && ends_with_name("lm_head", name);
        if (name && !shared && !ot_model_dir_adapts_module(dir, name))
            rc = ot_fail(OT_E_INPUT,
                         "%s: modules_to_save has '%.60s', but the adapter's weights have no tensor of it: "
                         "the file is not whole, get it again",
                         where, name);
    }
    ot_json_free(root);
    return rc;
}

int ot_adapter_config_equal(const char *a, const char *b, const struct ot_model_config *config, bool *equal) {
    struct ot_lora_spec specs[2];
    struct ot_lora_rank ranks[2];
    char module[OT_LORA_MODULE_BYTES];
    OT_TRY(ot_lora_spec_read(a, &specs[0]));
    OT_TRY(ot_lora_spec_read(b, &specs[1]));
    *equal = specs[0].lora.rslora == specs[1].lora.rslora && specs[0].lora.dora == specs[1].lora.dora;
    for (int64_t i = 0; *equal && ot_lora_module_at(config, i, module); i++) {
        OT_TRY(ot_lora_find(&specs[0].lora, module, &ranks[0]));
        OT_TRY(ot_lora_find(&specs[1].lora, module, &ranks[1]));
        *equal = same_rank(ranks[0], ranks[1]);
    }
    return 0;
}

#include "models/selection.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/block.h"
#include "src/base/error.h"
#include "src/base/text.h"

/* One pattern of a list: not terminated. */
struct pattern {
    const char *text;
    int length;
};

/* The first pattern at *at; goes on to the next one. False: the list is at its end. */
static bool next_pattern(const char **at, struct pattern *out) {
    if (!*at)
        return false;
    *out = (struct pattern){*at, (int)strcspn(*at, ",")};
    *at = (*at)[out->length] == ',' ? *at + out->length + 1 : NULL;
    return true;
}

static bool is_word(struct pattern p, const char *word) {
    return (size_t)p.length == strlen(word) && strncmp(p.text, word, (size_t)p.length) == 0;
}

/* ---- layers ---- */

struct layer_range {
    int64_t first, end;
};

/* True if the pattern names layers by number. A range that is wrong is empty, so it matches no tensor. */
static bool reads_layers(struct pattern p, int64_t n_layers, struct layer_range *out) {
    char text[32];
    long long a = 0, b = 0;
    int used = 0;
    snprintf(text, sizeof text, "%.*s", p.length, p.text);
    if (is_word(p, "layers"))
        *out = (struct layer_range){0, n_layers};
    else if (sscanf(text, "first:%lld%n", &a, &used) == 1 && used == p.length)
        *out = (struct layer_range){0, a};
    else if (sscanf(text, "last:%lld%n", &a, &used) == 1 && used == p.length)
        *out = (struct layer_range){a <= 0 ? n_layers : a < n_layers ? n_layers - a : 0, n_layers};
    else if (sscanf(text, "layers:%lld-%lld%n", &a, &b, &used) == 2 && used == p.length)
        *out = (struct layer_range){a, b < n_layers ? b + 1 : 0};
    else if (sscanf(text, "layers:%lld%n", &a, &used) == 1 && used == p.length)
        *out = (struct layer_range){a, a < n_layers ? a + 1 : 0};
    else
        return false;
    if (a < 0)
        out->end = 0;
    return true;
}

/* ---- matching ---- */

static bool ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

static bool matches_glob(struct pattern p, const char *name) {
    char *glob = ot_string_copy(p.text, (size_t)p.length);
    bool matches = glob && fnmatch(glob, name, 0) == 0;
    free(glob);
    return matches;
}

static bool matches(struct pattern p, const struct ot_tensor *t, int64_t n_layers) {
    struct layer_range range;
    if (reads_layers(p, n_layers, &range))
        return t->layer >= range.first && t->layer < range.end && t->layer >= 0;
    if (is_word(p, "embeddings"))
        return t->module == OT_MODULE_EMBEDDING || t->module == OT_MODULE_POSITIONS;
    if (is_word(p, "head"))
        return t->module == OT_MODULE_HEAD;
    if (is_word(p, "norms"))
        return ot_module_is_norm(t->module);
    if (is_word(p, "biases"))
        return ends_with(t->name, ".bias");
    return matches_glob(p, t->name);
}

static bool list_has(const char *list, const struct ot_tensor *tensor, int64_t n_layers) {
    struct pattern p;
    while (next_pattern(&list, &p))
        if (matches(p, tensor, n_layers))
            return true;
    return false;
}

/* ---- the model ---- */

struct chooser {
    struct ot_selection selection;
    int64_t n_layers;
};

static bool trains(const void *context, const struct ot_tensor *tensor) {
    const struct chooser *c = context;
    const struct ot_selection *s = &c->selection;
    bool selected = s->train ? list_has(s->train, tensor, c->n_layers) : !s->lora;
    return selected && !s->trains_nothing && !(s->freeze && list_has(s->freeze, tensor, c->n_layers));
}

/* Every pattern matches a tensor. */
static int check_list(const struct ot_model *model, const char *list) {
    int64_t n_layers = ot_model_get_config(model)->n_layers;
    struct pattern p;
    while (next_pattern(&list, &p)) {
        bool found = false;
        for (int64_t i = 0; i < ot_model_tensor_count(model) && !found; i++)
            found = matches(p, ot_model_tensor(model, i), n_layers);
        if (!found)
            return ot_fail(
                OT_E_USAGE,
                "'%.*s' matches no tensor of this model of %lld layers%s; give a part (embeddings, "
                "head, norms, biases, layers:A-B, first:N, last:N) or a name with wildcards, like "
                "'%s'",
                p.length, p.text, (long long)n_layers,
                is_word(p, "head") ? " (its head is tied to the embeddings)" : "", "*.q_proj.*");
    }
    return 0;
}

/* A module has an adapter, or its own tensors are trained: PEFT has no form for both. PEFT also has no form
 * for experts and routers that are trained with adapters: transformers has other modules for them. */
static int check_modules(const struct ot_model *model, const struct ot_lora *lora) {
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        struct ot_lora_rank rank;
        char module[OT_MODEL_NAME_BYTES];
        if (!t->trained || ot_lora_has_tensor(t->name))
            continue;
        if (t->module == OT_MODULE_ROUTER || ot_module_is_expert(t->module))
            return ot_fail(OT_E_USAGE,
                           "%s is trained beside adapters, and PEFT has no form for experts or routers in a "
                           "directory of adapters; leave it out of the trained tensors",
                           t->name);
        if (!ot_model_can_adapt(ot_model_get_config(model), t->module))
            continue;
        snprintf(module, sizeof module, "%s", t->name);
        *strrchr(module, '.') = '\0';
        OT_TRY(ot_lora_find(lora, module, &rank));
        if (rank.rank > 0)
            return ot_fail(
                OT_E_USAGE,
                "%s is trained itself, and its module also has an adapter, and PEFT has no form for "
                "both; leave it out of the trained tensors or of the adapters' targets",
                t->name);
    }
    return 0;
}

static int check(const struct ot_model *model, const struct ot_selection *selection,
                 const struct ot_lora *lora) {
    OT_TRY(check_list(model, selection->train));
    OT_TRY(check_list(model, selection->freeze));
    if (lora)
        OT_TRY(check_modules(model, lora));
    return selection->trains_nothing || ot_model_trained_count(model) > 0
               ? 0
               : ot_fail(OT_E_USAGE, "every tensor of the model is frozen: there is nothing to train");
}

int ot_model_open_selected(const struct ot_model_config *config, enum ot_dtype dtype, int64_t max_position,
                           const struct ot_selection *selection, struct ot_model **out) {
    const struct chooser chooser = {*selection, config->n_layers};
    struct ot_model_setup setup = {.trains = trains, .context = &chooser, .base = selection->base};
    struct ot_lora_spec lora;
    if (selection->lora) {
        OT_TRY(ot_lora_spec_read(selection->lora, &lora));
        OT_TRY(ot_lora_spec_check(&lora, config));
        setup.lora = &lora.lora;
    }
    OT_TRY(ot_model_open_setup(config, dtype, max_position, &setup, out));
    int rc = check(*out, selection, setup.lora);
    if (rc < 0) {
        ot_model_close(*out);
        *out = NULL;
    }
    return rc;
}

bool ot_model_has_frozen(const struct ot_model *model) {
    const struct ot_chain *chain = ot_model_chain(model);
    for (int i = 0; i < chain->n_slabs; i++)
        if (chain->slabs[i].frozen)
            return true;
    return false;
}

static int64_t count(const struct ot_model *model, bool trained) {
    int64_t n = 0;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        n += t->trained == trained ? t->rows * t->cols : 0;
    }
    return n;
}

int64_t ot_model_trained_count(const struct ot_model *model) {
    return count(model, true);
}

int64_t ot_model_frozen_count(const struct ot_model *model) {
    return count(model, false);
}

int ot_selection_count(const struct ot_model_config *config, const struct ot_selection *selection,
                       int64_t *trained) {
    struct ot_model *model;
    OT_TRY(ot_model_open_selected(config, OT_F32, 1, selection, &model));
    *trained = ot_model_trained_count(model);
    ot_model_close(model);
    return 0;
}

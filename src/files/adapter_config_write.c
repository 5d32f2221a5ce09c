/* Writes adapter_config.json with the keys and the order of PEFT's save_pretrained. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/files/adapter_config.h"

/* As an integer if it is one: PEFT's configs have integers here. */
static void put_number(struct ot_json_writer *w, const char *key, double value) {
    if (value == floor(value))
        ot_json_put_int(w, key, (int64_t)value);
    else
        ot_json_put_exact(w, key, value);
}

/* The last words of the names of the linear maps of a layer that can have adapters: "q_proj". */
static void put_linear(const struct ot_model_config *config, struct ot_json_writer *w) {
    const char *const *names = ot_model_layer_names(config, config->n_layers - 1)->modules;
    for (int module = OT_MODULE_Q; module <= OT_MODULE_DOWN; module++) {
        const char *name = ot_model_can_adapt(config, (enum ot_module)module) ? names[module] : NULL;
        const char *end = name ? strrchr(name, '.') : NULL;
        bool again = false; /* GPT-2 has two maps c_proj; a T5 has two q */
        for (int other = OT_MODULE_Q; end && other < module; other++) {
            const char *before = names[other];
            again = again || (before && strcmp(strrchr(before, '.'), end) == 0);
        }
        if (end && !again)
            ot_json_put_text(w, NULL, end + 1);
    }
}

/* Names of experts: PEFT has other adapters for them than for modules. */
static void put_parameters(const struct ot_lora_spec *spec, struct ot_json_writer *w) {
    const char *at = spec->text;
    struct ot_lora_word word;
    ot_json_begin_array(w, "target_parameters");
    while (ot_lora_spec_next(&at, OT_LORA_TARGET, &word, NULL))
        if (ot_lora_word_is_of_experts(word))
            ot_json_put_string(w, NULL, word.text, (size_t)word.bytes);
    ot_json_end_array(w);
}

static void put_targets(const struct ot_lora_spec *spec, const struct ot_model_config *config,
                        struct ot_json_writer *w) {
    const char *at = spec->text;
    struct ot_lora_word word;
    bool has_targets = false, has_experts = false;
    ot_json_begin_array(w, "target_modules");
    for (bool more = true; more;) {
        more = ot_lora_spec_next(&at, OT_LORA_TARGET, &word, NULL);
        bool all = more ? word.bytes == 10 && memcmp(word.text, "all-linear", 10) == 0 : !has_targets;
        if (all)
            put_linear(config, w);
        bool of_experts = more && ot_lora_word_is_of_experts(word);
        if (more && !all && !of_experts)
            ot_json_put_string(w, NULL, word.text, (size_t)word.bytes);
        has_targets = has_targets || more;
        has_experts = has_experts || of_experts;
    }
    ot_json_end_array(w);
    if (has_experts)
        put_parameters(spec, w);
}

/* True if a pattern of the kind has this name and comes before `end` in the text. */
static bool has_pattern(const struct ot_lora_spec *spec, enum ot_lora_word_kind kind,
                        struct ot_lora_word name, const char *end) {
    const char *at = spec->text;
    struct ot_lora_word word;
    while (ot_lora_spec_next(&at, kind, &word, NULL) && (!end || word.text < end))
        if (word.bytes == name.bytes && memcmp(word.text, name.text, (size_t)word.bytes) == 0)
            return true;
    return false;
}

/* A rank pattern without its own alpha has alpha twice its rank, unless the spec has an alpha for all. */
static void put_patterns(const struct ot_lora_spec *spec, struct ot_json_writer *w) {
    static const char *const keys[] = {
        [OT_LORA_RANK_PATTERN] = "rank_pattern", [OT_LORA_ALPHA_PATTERN] = "alpha_pattern"};
    char name[256];
    for (enum ot_lora_word_kind kind = OT_LORA_RANK_PATTERN; kind <= OT_LORA_ALPHA_PATTERN; kind++) {
        bool implied = kind == OT_LORA_ALPHA_PATTERN && spec->alpha == 0;
        ot_json_begin_object(w, keys[kind]);
        for (int pass = 0; pass < (implied ? 2 : 1); pass++) {
            const char *at = spec->text;
            struct ot_lora_word word;
            double value;
            enum ot_lora_word_kind from = pass ? OT_LORA_RANK_PATTERN : kind;
            while (ot_lora_spec_next(&at, from, &word, &value)) {
                /* The first of equal names counts here; in a JSON object the last would. */
                if (has_pattern(spec, from, word, word.text) || (pass && has_pattern(spec, kind, word, NULL)))
                    continue;
                snprintf(name, sizeof name, "%.*s", word.bytes, word.text);
                put_number(w, name, pass ? 2 * value : value);
            }
        }
        ot_json_end_object(w);
    }
}

/* The modules whose own tensors are trained. */
static void put_modules(const struct ot_model *model, struct ot_json_writer *w) {
    char module[OT_MODEL_NAME_BYTES], last[sizeof module] = "";
    bool tied = false;
    ot_json_begin_array(w, "modules_to_save");
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        snprintf(module, sizeof module, "%s", t->name);
        *strrchr(module, '.') = '\0';
        if (!t->trained || ot_lora_has_tensor(t->name) || strcmp(module, last) == 0)
            continue;
        tied = tied || t->module == OT_MODULE_EMBEDDING;
        ot_json_put_text(w, NULL, module);
        memcpy(last, module, sizeof last);
    }
    ot_json_end_array(w);
    if (tied && ot_model_get_config(model)->tied)
        ot_json_put_bool(w, "ensure_weight_tying", true);
}

/* The tokens whose rows are trained by themselves, of each table that has such rows. */
static void put_tokens(const struct ot_model *model, struct ot_json_writer *w) {
    const struct ot_model_config *config = ot_model_get_config(model);
    bool begun = false;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        char module[OT_MODEL_NAME_BYTES];
        if (!ot_lora_is_of_tokens(t->name))
            continue;
        ot_model_module_name(config, t->module, -1, module, sizeof module);
        const char *point = strrchr(module, '.');
        if (!begun)
            ot_json_begin_object(w, "trainable_token_indices");
        begun = true;
        ot_json_begin_array(w, point ? point + 1 : module);
        for (int64_t k = 0; k < t->rows; k++)
            ot_json_put_int(w, NULL, config->first_new + k);
        ot_json_end_array(w);
    }
    if (begun)
        ot_json_end_object(w);
}

int ot_adapter_config_write(const char *lora, const struct ot_model *model, const char *base, char **text,
                            size_t *bytes) {
    struct ot_json_writer w = {.indent = 0};
    struct ot_lora_spec spec;
    char dropout[32];
    OT_TRY(ot_lora_spec_read(lora, &spec));
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "peft_type", "LORA");
    bool pairs = ot_model_has_pairs(ot_model_get_config(model));
    ot_json_put_text(&w, "task_type", pairs ? "SEQ_2_SEQ_LM" : "CAUSAL_LM");
    if (base)
        ot_json_put_text(&w, "base_model_name_or_path", base);
    ot_json_put_int(&w, "r", spec.rank);
    put_number(&w, "lora_alpha", spec.alpha != 0 ? spec.alpha : 2 * (double)spec.rank);
    snprintf(dropout, sizeof dropout, "%.6g", (double)spec.lora.dropout); /* 0.05, not its nearest float */
    ot_json_put_real(&w, "lora_dropout", strtod(dropout, NULL));
    put_targets(&spec, ot_model_get_config(model), &w);
    put_patterns(&spec, &w);
    put_modules(model, &w);
    put_tokens(model, &w);
    ot_json_put_bool(&w, "use_rslora", spec.lora.rslora);
    ot_json_put_bool(&w, "use_dora", spec.lora.dora);
    ot_json_put_text(&w, "bias", "none");
    ot_json_put_bool(&w, "fan_in_fan_out", ot_model_names(ot_model_get_config(model))->transposed);
    ot_json_put_bool(&w, "inference_mode", true);
    ot_json_put_bool(&w, "init_lora_weights", true);
    ot_json_end_object(&w);
    return ot_json_writer_take(&w, text, bytes);
}

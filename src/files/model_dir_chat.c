/* Finds the chat templates of a model's directory, in the order in which transformers looks for them. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/arena.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/read_file.h"
#include "src/files/model_dir_state.h"

#define TOOL_FILE "additional_chat_templates/tool_use.jinja"

static int keep_text(struct ot_model_dir *dir, const char *text, size_t bytes, const char **out,
                     size_t *kept_bytes) {
    *out = ot_arena_strdup(dir->arena, text, bytes);
    *kept_bytes = bytes;
    return *out ? 0 : -OT_E_BUDGET;
}

static int read_jinja(struct ot_model_dir *dir, const char *name, const char **out, size_t *bytes) {
    char path[PATH_MAX], *text;
    size_t n;
    OT_TRY(ot_read_file(ot_model_dir_file(dir, name, path), OT_CONFIG_MAX_BYTES, &text, &n));
    int rc = keep_text(dir, text, n, out, bytes);
    free(text);
    return rc;
}

/* Several templates are a list of {"name", "template"}. */
static const struct ot_json *find_named(const struct ot_json *list, const char *wanted) {
    for (size_t i = 0; i < ot_json_length(list); i++) {
        const struct ot_json *item = ot_json_at(list, i);
        const char *name = ot_json_string(ot_json_get(item, "name"), NULL);
        if (name && strcmp(name, wanted) == 0)
            return ot_json_get(item, "template");
    }
    return NULL;
}

/* Takes "chat_template" of a configuration: a text, or a list with "default" and "tool_use". */
static int take_value(struct ot_model_dir *dir, const struct ot_json *value) {
    struct ot_model_facts *facts = &dir->facts;
    const struct ot_json *named = find_named(value, "default");
    size_t bytes = 0;
    if (!value)
        return 0;
    facts->has_chat_template = true;
    const char *text = ot_json_string(named ? named : value, &bytes);
    if (text)
        OT_TRY(keep_text(dir, text, bytes, &facts->chat_template, &facts->chat_template_bytes));
    text = ot_json_string(find_named(value, "tool_use"), &bytes);
    return text ? keep_text(dir, text, bytes, &facts->tool_template, &facts->tool_template_bytes) : 0;
}

/* A processor's file, the last resort. */
static int read_processor(struct ot_model_dir *dir) {
    struct ot_json *config;
    char path[PATH_MAX];
    if (dir->facts.has_chat_template || !ot_model_dir_has(dir, "chat_template.json"))
        return 0;
    OT_TRY(
        ot_json_read_file(ot_model_dir_file(dir, "chat_template.json", path), OT_CONFIG_MAX_BYTES, &config));
    int rc = take_value(dir, ot_json_get(config, "chat_template"));
    ot_json_free(config);
    return rc;
}

int ot_model_dir_find_chat_template(struct ot_model_dir *dir) {
    struct ot_model_facts *facts = &dir->facts;
    char path[PATH_MAX];
    if (ot_model_dir_has(dir, "tokenizer_config.json"))
        OT_TRY(ot_json_read_file(ot_model_dir_file(dir, "tokenizer_config.json", path), OT_CONFIG_MAX_BYTES,
                                 &dir->tokenizer_config));
    facts->tokenizer_config = dir->tokenizer_config;
    if (ot_model_dir_has(dir, TOOL_FILE))
        OT_TRY(read_jinja(dir, TOOL_FILE, &facts->tool_template, &facts->tool_template_bytes));
    if (ot_model_dir_has(dir, "chat_template.jinja")) {
        facts->has_chat_template = true;
        return read_jinja(dir, "chat_template.jinja", &facts->chat_template, &facts->chat_template_bytes);
    }
    OT_TRY(take_value(dir, ot_json_get(dir->tokenizer_config, "chat_template")));
    return read_processor(dir);
}

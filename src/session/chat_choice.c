#include "src/session/chat_choice.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"

enum { RUN_MAX_BYTES = 1 << 20 };

/* Reads the options that the training run recorded beside its model. */
static int read_run(struct ot_session *s) {
    char path[PATH_MAX];
    const char *adapter = s->options->adapter;
    int n = snprintf(path, sizeof path, "%s/run.json", adapter ? adapter : ot_model_dir_path(s->dir));
    if (n < 0 || (size_t)n >= sizeof path || access(path, F_OK) != 0)
        return 0;
    OT_TRY(ot_json_read_file(path, RUN_MAX_BYTES, &s->run));
    if (s->options->template_name || s->options->prompt_format)
        return 0;
    s->chat.recorded = ot_json_string(ot_json_get(s->run, "template"), NULL);
    s->prompt_format = ot_json_string(ot_json_get(s->run, "prompt-format"), NULL);
    return 0;
}

static int open_own(struct ot_session *s) {
    const struct ot_model_facts *facts = ot_model_dir_facts(s->dir);
    const char *text = facts->chat_template;
    char name[160];
    if (!text)
        return 0;
    snprintf(name, sizeof name, "the chat template of %.120s", ot_model_dir_path(s->dir));
    OT_TRY(ot_own_template_open(text, facts->chat_template_bytes, name, facts->tokenizer_config,
                                &s->own_template));
    if (facts->tool_template)
        OT_TRY(ot_own_template_add_tools(s->own_template, facts->tool_template, facts->tool_template_bytes,
                                         name));
    s->chat.own = s->own_template;
    return 0;
}

int ot_chat_choice_open(struct ot_session *s) {
    const struct ot_options *o = s->options;
    s->prompt_format = o->prompt_format;
    if (!s->dir)
        return 0;
    OT_TRY(open_own(s));
    bool reads_rows = o->command == OT_COMMAND_GENERATE || o->command == OT_COMMAND_EVAL ||
                      o->command == OT_COMMAND_QUANTIZE;
    if (o->command == OT_COMMAND_MERGE)
        return read_run(s);
    bool needs_run = (!o->template_name && !o->prompt_format) || o->base_type != OT_BASE_AUTO;
    return reads_rows && needs_run ? read_run(s) : 0;
}

struct ot_template_choice ot_chat_choice(const struct ot_session *s) {
    const struct ot_options *o = s->options;
    struct ot_template_choice choice = s->chat;
    int option = ot_option_find("template", strlen("template"), o->command);
    if (o->template_name && o->source[option] == OT_FROM_COMMAND_LINE)
        choice.named = o->template_name;
    else if (o->template_name)
        choice.recorded = o->template_name;
    return choice;
}

void ot_chat_choice_settle(const struct ot_session *s, const char *name, enum ot_template_source source) {
    bool own = source == OT_TEMPLATE_OWN && ot_own_template_known(s->chat.own);
    if (s->options->command == OT_COMMAND_TRAIN && (source == OT_TEMPLATE_GUESSED || own))
        ot_settings_choose_text(s->settings, "template", name);
}

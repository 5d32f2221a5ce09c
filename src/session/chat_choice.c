#include "src/session/chat_choice.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"

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

int ot_chat_choice_open(struct ot_session *s) {
    const struct ot_options *o = s->options;
    s->prompt_format = o->prompt_format;
    if (!s->dir)
        return 0;
    const struct ot_model_facts *facts = ot_model_dir_facts(s->dir);
    if (facts->chat_template)
        OT_TRY(ot_chat_template_recognize(facts->chat_template, facts->chat_template_bytes, &s->chat.own));
    s->chat.own_unknown = facts->has_chat_template && !s->chat.own;
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
    if (source != OT_TEMPLATE_GUESSED && source != OT_TEMPLATE_OWN)
        return;
    if (source == OT_TEMPLATE_GUESSED && s->chat.own_unknown)
        ot_log(OT_LOG_WARN,
               "%s: the model's chat template is not built in, so conversations are written in template %s, "
               "whose tokens the tokenizer has. A server that uses the model's own template writes them "
               "differently. --template NAME chooses another.",
               ot_model_dir_path(s->dir), name);
    if (s->options->command == OT_COMMAND_TRAIN)
        ot_settings_choose_text(s->settings, "template", name);
}

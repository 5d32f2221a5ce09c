#include "src/session/chat_choice.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/data/chat_template.h"

enum { RUN_MAX_BYTES = 1 << 20 };

/* Reads the options that the training run recorded beside its model. */
static int read_run(struct ot_session *s) {
    char path[PATH_MAX];
    const char *adapter = s->model.resolved.adapter;
    int n = snprintf(path, sizeof path, "%s/run.json", adapter ? adapter : ot_model_dir_path(s->model.dir));
    if (n < 0 || (size_t)n >= sizeof path || access(path, F_OK) != 0)
        return 0;
    OT_TRY(ot_json_read_file(path, RUN_MAX_BYTES, &s->text.run));
    if (s->options->template_name || s->options->prompt_format)
        return 0;
    s->text.chat.recorded = ot_json_string(ot_json_get(s->text.run, "template"), NULL);
    s->text.prompt_format = ot_json_string(ot_json_get(s->text.run, "prompt-format"), NULL);
    return 0;
}

static int open_own(struct ot_session *s) {
    const struct ot_model_facts *facts = ot_model_dir_facts(s->model.dir);
    const char *text = facts->chat_template;
    char name[160];
    if (!text)
        return 0;
    snprintf(name, sizeof name, "the chat template of %.120s", ot_model_dir_path(s->model.dir));
    OT_TRY(ot_chat_renderer_open(text, facts->chat_template_bytes, name, facts->tokenizer_config,
                                 &s->text.model_template));
    if (facts->tool_template)
        OT_TRY(ot_chat_renderer_add_tools(s->text.model_template, facts->tool_template,
                                          facts->tool_template_bytes, name));
    s->text.chat.of_model = s->text.model_template;
    return 0;
}

int ot_chat_choice_open(struct ot_session *s) {
    const struct ot_options *o = s->options;
    s->text.prompt_format = o->prompt_format;
    if (!s->model.dir)
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
    struct ot_template_choice choice = s->text.chat;
    int option = ot_option_find("template", strlen("template"), o->command);
    if (o->template_name && o->source[option] == OT_FROM_COMMAND_LINE)
        choice.named = o->template_name;
    else if (o->template_name)
        choice.recorded = o->template_name;
    return choice;
}

void ot_chat_choice_settle(const struct ot_session *s, const char *name, enum ot_template_source source) {
    bool is_own = source == OT_TEMPLATE_OWN && ot_chat_renderer_known(s->text.chat.of_model);
    if (s->options->command == OT_COMMAND_TRAIN && (source == OT_TEMPLATE_GUESSED || is_own))
        ot_settings_choose_text(s->settings, "template", name);
}

/* ---- saving ---- */

/* The built-in template in which the rows are written; NULL: another one. */
static const struct ot_chat_template *written_in(const struct ot_session *s) {
    const char *name = s->options->template_name ? s->options->template_name : s->text.chat.recorded;
    return name ? ot_chat_template_find(name) : NULL;
}

/* True if the model's files have the template of the rows. Without one of their own, they have not. */
static bool has_template(const struct ot_session *s, const struct ot_chat_template *of_rows) {
    bool has = s->model.dir && ot_model_dir_facts(s->model.dir)->has_chat_template;
    return has &&
           (!of_rows || (s->text.chat.of_model && ot_chat_renderer_known(s->text.chat.of_model) == of_rows));
}

int ot_chat_choice_write(const struct ot_session *s, char **jinja, size_t *bytes) {
    const struct ot_chat_template *of_rows = written_in(s);
    *jinja = NULL;
    *bytes = 0;
    if (!of_rows || has_template(s, of_rows))
        return 0;
    return ot_chat_template_write(of_rows, s->text.specials.add_bos, jinja, bytes);
}

/* The name of BOS is in the model's tokenizer_config.json, or in that which a run writes itself. */
static bool names_bos(const struct ot_session *s) {
    bool is_own =
        !s->model.dir || s->options->tokenizer || ot_model_dir_facts(s->model.dir)->tokenizer_is_made;
    return is_own || ot_json_get(ot_model_dir_facts(s->model.dir)->tokenizer_config, "bos_token");
}

static void note_bos(const struct ot_session *s, const struct ot_chat_template *of_rows) {
    const char *jinja = s->model.dir ? ot_model_dir_facts(s->model.dir)->chat_template : NULL;
    if (!s->text.specials.add_bos || ot_chat_template_begins(of_rows))
        return;
    if (has_template(s, of_rows) && jinja && !strstr(jinja, "bos_token"))
        ot_log(OT_LOG_INFO,
               "note    the tokenizer puts BOS in front of rows, which the model's chat template "
               "does not write");
    else if (!has_template(s, of_rows) && !names_bos(s))
        ot_log(OT_LOG_INFO,
               "note    the tokenizer puts BOS in front of rows, but tokenizer_config.json has no "
               "bos_token: the saved chat template cannot write it");
}

void ot_chat_choice_note(const struct ot_session *s, const char *name) {
    const struct ot_chat_template *of_rows = name ? ot_chat_template_find(name) : NULL;
    const char *stop = of_rows ? of_rows->stop : NULL;
    if (!of_rows)
        return;
    if (s->options->command == OT_COMMAND_TRAIN && s->model.dir &&
        ot_model_dir_facts(s->model.dir)->has_chat_template && !has_template(s, of_rows))
        ot_log(OT_LOG_INFO,
               "note    the rows are written in the chat template %s: the result has it in place of the "
               "model's own",
               name);
    if (stop) {
        if (ot_tokenizer_find(s->text.tokenizer, stop, strlen(stop)) < 0)
            ot_log(OT_LOG_INFO,
                   "note    the chat template %s ends turns with %s, which is no token of this tokenizer: "
                   "several ordinary tokens spell it",
                   name, stop);
    }
    note_bos(s, of_rows);
}

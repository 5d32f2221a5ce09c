#include "src/train/resume_change.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/log.h"
#include "src/base/text.h"

int ot_resume_write_value(const struct ot_option *option, const struct ot_options *options, bool has_value,
                          char **text) {
    const void *field = (const char *)options + option->field;
    struct ot_json_writer w = {.indent = -1};
    char *object;
    size_t bytes;
    *text = NULL;
    if (option->type == OT_OPTION_FLAG)
        return ot_string_format(text, "%s", *(const bool *)field ? "on" : "off");
    if (!has_value)
        return ot_string_format(text, "not given");
    if (option->type == OT_OPTION_YES_NO)
        return ot_string_format(text, "%s", *(const bool *)field ? "yes" : "no");
    ot_json_begin_object(&w, NULL);
    ot_option_put_value(option, options, &w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &object, &bytes));
    size_t first = strlen("{\"\": ") + strlen(option->name), end = bytes - strlen("}");
    bool is_quoted = object[first] == '"';
    int rc = ot_string_format(text, "%.*s", (int)(end - first) - 2 * is_quoted, object + first + is_quoted);
    free(object);
    return rc;
}

/* ---- noting changes ---- */

static void begin_history(struct ot_resume_changes *c, const struct ot_checkpoint_record *record) {
    struct ot_json_writer *w = &c->writer;
    *w = (struct ot_json_writer){.indent = -1};
    ot_json_begin_array(w, NULL);
    for (size_t i = 0; record->history && i < ot_json_length(record->history); i++)
        ot_json_put_value(w, NULL, ot_json_at(record->history, i));
    ot_json_begin_object(w, NULL);
    ot_json_put_int(w, "step", record->progress.step);
    ot_json_begin_object(w, "changes");
}

void ot_resume_changes_note(struct ot_resume_changes *c, const struct ot_checkpoint_record *record,
                            const char *name, const char *was, const char *is) {
    if (c->n++ == 0)
        begin_history(c, record);
    ot_json_begin_array(&c->writer, name);
    ot_json_put_text(&c->writer, NULL, was);
    ot_json_put_text(&c->writer, NULL, is);
    ot_json_end_array(&c->writer);
    size_t used = strlen(c->text);
    snprintf(c->text + used, sizeof c->text - used, "%s%s %.60s -> %.60s", used ? ", " : "", name, was, is);
    enum ot_resume_change kind = ot_resume_with_kind(name);
    c->length |= kind == OT_CHANGE_LENGTH;
    c->step_rows |= kind == OT_CHANGE_STEP_ROWS;
    c->rows |= kind == OT_CHANGE_ROWS;
    c->evals |= kind == OT_CHANGE_EVALS;
}

static int take_history(struct ot_resume_changes *c) {
    char *text;
    size_t bytes;
    ot_json_end_object(&c->writer);
    ot_json_end_object(&c->writer);
    ot_json_end_array(&c->writer);
    OT_TRY(ot_json_writer_take(&c->writer, &text, &bytes));
    int rc = ot_json_parse(text, bytes, "the changes of the run", &c->own_history);
    free(text);
    c->history = c->own_history;
    return rc;
}

int ot_resume_changes_finish(struct ot_resume_changes *c, const struct ot_checkpoint_record *record,
                             const struct ot_options *options) {
    const struct ot_data_position *at = &record->position;
    const int64_t step = record->progress.step;
    c->phase = record->phase;
    c->history = record->history;
    if (c->n == 0)
        return 0;
    /* Without --eval-data, the evaluation rows are some of the rows. */
    bool had_file = ot_json_get(record->options, "eval-data") != NULL;
    c->rows |= had_file != (options->eval_data != NULL);
    c->evals |= c->rows && !options->eval_data;
    if (ot_resume_with_has(options, "warmup"))
        c->phase.lr_first = step;
    if (c->rows || c->step_rows)
        c->phase.rows_first = step;
    if (c->rows)
        c->phase.rows_at = (struct ot_data_position){at->epoch + (at->sequence > 0), 0};
    else if (c->step_rows)
        c->phase.rows_at = *at;
    if (c->evals)
        c->phase.evals_first = step;
    return take_history(c);
}

void ot_resume_changes_print(const struct ot_resume_changes *c, const struct ot_checkpoint_record *r) {
    long long next = r->progress.step + 1;
    if (c->n == 0)
        return;
    ot_log(OT_LOG_INFO, "        changed from step %lld on: %s", next, c->text);
    if (c->phase.lr_first != r->phase.lr_first)
        ot_log(OT_LOG_INFO, "        the schedule of learning rates begins anew with step %lld", next);
    if (c->rows)
        ot_log(OT_LOG_INFO, "        the rows begin anew with step %lld, as epoch %lld", next,
               (long long)c->phase.rows_at.epoch + 1);
    if (c->phase.evals_first != r->phase.evals_first)
        ot_log(OT_LOG_INFO, "        evaluations begin anew: earlier ones cannot be compared with them");
}

void ot_resume_changes_free(struct ot_resume_changes *c) {
    ot_json_free(c->own_history);
    free(c->writer.out.text); /* not finished, after an error */
    *c = (struct ot_resume_changes){0};
}

/* ---- comparing without a run ---- */

static int differs(const struct ot_option *option, const struct ot_json *value, const struct ot_options *is,
                   struct ot_options *then, bool *any) {
    char *was_text = NULL, *is_text = NULL;
    int rc = 0;
    if (value)
        rc = ot_option_parse_json(option, option->name, value, then);
    if (rc == 0)
        rc = ot_resume_write_value(option, then, value, &was_text);
    if (rc == 0)
        rc = ot_resume_write_value(option, is, true, &is_text);
    *any |= rc == 0 && strcmp(was_text, is_text) != 0;
    free(was_text);
    free(is_text);
    return rc;
}

int ot_resume_changes_any(const struct ot_checkpoint_record *record, const struct ot_options *options,
                          bool *any) {
    const struct ot_option *option;
    struct ot_options *then = calloc(1, sizeof *then);
    int rc = then ? 0 : ot_fail(OT_E_BUDGET, "no memory to compare options");
    *any = false;
    for (int i = 0; rc == 0 && (option = ot_option_at(i)); i++)
        if ((option->commands & OT_FOR_TRAIN) && ot_resume_with_has(options, option->name)) {
            ot_option_reset(then, i);
            rc = differs(option, ot_json_get(record->options, option->name), options, then, any);
        }
    free(then);
    return rc;
}

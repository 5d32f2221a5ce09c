#include "src/report/next.h"

#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/text.h"
#include "src/train/process_command.h"

static void put_turn(struct ot_json_writer *w, const char *list, const char *role, const char *user,
                     const char *text) {
    ot_json_begin_array(w, list);
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, role, user);
    ot_json_put_text(w, text, "...");
    ot_json_end_object(w);
    ot_json_end_array(w);
}

static int put_fields(struct ot_json_writer *w, const char *prompt_format) {
    struct ot_prompt_format *format;
    OT_TRY(ot_prompt_format_open(prompt_format, &format));
    for (size_t i = 0; i < ot_prompt_format_fields(format); i++)
        ot_json_put_text(w, ot_prompt_format_field(format, i), "...");
    ot_prompt_format_close(format);
    return 0;
}

/* Writes a row in the form of the training data, without its answer. */
static int put_row(struct ot_json_writer *w, enum ot_row_kind kind, const char *prompt_format) {
    switch (kind) {
    case OT_ROW_MESSAGES:
        put_turn(w, "messages", "role", "user", "content");
        return 0;
    case OT_ROW_SHAREGPT:
        put_turn(w, "conversations", "from", "human", "value");
        return 0;
    case OT_ROW_ALPACA:
        ot_json_put_text(w, "instruction", "...");
        return 0;
    case OT_ROW_SQL:
        ot_json_put_text(w, "question", "...");
        ot_json_put_text(w, "context", "...");
        return 0;
    case OT_ROW_PROMPT:
        ot_json_put_text(w, "prompt", "...");
        return 0;
    case OT_ROW_PAIR:
        ot_json_put_text(w, "input", "...");
        return 0;
    case OT_ROW_CUSTOM:
        return put_fields(w, prompt_format);
    case OT_ROW_TEXT:
    case OT_ROW_UNKNOWN:
        break;
    }
    return 0;
}

int ot_report_next_words(enum ot_row_kind kind, const char *prompt_format, char **words) {
    struct ot_json_writer w = {.indent = -1};
    char *row = NULL, *quoted = NULL;
    size_t bytes;
    int rc;
    *words = NULL;
    if (kind == OT_ROW_TEXT || kind == OT_ROW_UNKNOWN)
        return ot_string_format(words, "-p \"...\"");
    ot_json_begin_object(&w, NULL);
    OT_TRY_GOTO(put_row(&w, kind, prompt_format), rc, out);
    ot_json_end_object(&w);
    OT_TRY_GOTO(ot_json_writer_take(&w, &row, &bytes), rc, out);
    OT_TRY_GOTO(ot_process_quote(row, &quoted), rc, out);
    rc = ot_string_format(words, "--row -p %s", quoted);
out:
    free(w.out.text);
    free(quoted);
    free(row);
    return rc;
}

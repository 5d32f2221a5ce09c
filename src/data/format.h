/* Format: what kind of rows a file holds, and the text that a row becomes.
 *
 *   text       {"text"}                                 continued pre-training: all of it trains
 *   prompt     {"prompt", "completion" or "response"}   the completion trains, right behind the prompt
 *   alpaca     {"instruction", "output"[, "input"]}     the output trains; in the alpaca template
 *   messages   {"messages": [{"role", "content"}]}      every assistant turn trains
 *   sharegpt   {"conversations": [{"from", "value"}]}   the same
 *   sql        {"question", "context", "answer"}        the answer trains, behind context and question
 *   custom     --prompt-format with fields of the row   "answer", "completion", "response" or "output" trains
 *
 * "system" of alpaca, prompt, messages and sharegpt rows is a system turn; "history" of alpaca and prompt
 * rows, pairs of strings, are turns before the prompt (a prompt needs a template for both). What no template
 * has a place for is refused by name: "tools", and "tool_calls", "function_call" and "reasoning_content" of a
 * turn.
 *
 * The kind is taken from the first good row of the file, and every row is then held to it. Other keys are
 * ignored. Where the row has one prompt and one answer, a named chat template makes them the user's and the
 * assistant's turn.
 *
 * Threads: a format is fixed by ot_format_detect; after that any number of threads may render with it.
 */
#ifndef OT_DATA_FORMAT_H
#define OT_DATA_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "src/data/chat_template.h"

enum ot_row_kind {
    OT_ROW_UNKNOWN,
    OT_ROW_TEXT,
    OT_ROW_PROMPT,
    OT_ROW_ALPACA,
    OT_ROW_MESSAGES,
    OT_ROW_SHAREGPT,
    OT_ROW_SQL,
    OT_ROW_CUSTOM,
};

const char *ot_row_kind_name(enum ot_row_kind kind); /* "text", "prompt", ... */
extern const char *const ot_answer_keys[]; /* where a row with a prompt has its answer; ends with NULL */

/* Where the chat template of rows comes from: the first of these that there is. */
struct ot_template_choice {
    const char *named;    /* --template; NULL: not given. Rows of text refuse it */
    const char *recorded; /* of the run that made the model; NULL: none. Rows of text ignore it */
    const struct ot_chat_template *own; /* the model's own, where it is recognised: for conversations */
    bool own_unknown;                   /* the model has one that is not recognised */
};
/* What decided: as in the choice; guessed by the tokenizer's tokens; by the kind of the rows. */
enum ot_template_source {
    OT_TEMPLATE_NONE,
    OT_TEMPLATE_NAMED,
    OT_TEMPLATE_RECORDED,
    OT_TEMPLATE_OWN,
    OT_TEMPLATE_GUESSED,
    OT_TEMPLATE_BY_KIND
};

struct ot_format_config {
    struct ot_template_choice chat;
    const char *prompt_format; /* --prompt-format; NULL: by kind */
    const struct ot_tokenizer *tokenizer;
    struct ot_chat_marks marks;
    bool train_prompt; /* prompt masking off: everything trains */
};

struct ot_format;

/* Errors: OT_E_USAGE (no such template, a broken prompt format), OT_E_BUDGET. */
int ot_format_open(const struct ot_format_config *config, struct ot_format **out);
void ot_format_close(struct ot_format *format); /* NULL is fine */

/* Fixes the kind by this row, if it is not fixed yet. where: "FILE:LINE". Errors: OT_E_INPUT (no kind
 * fits: the sentence lists the row's keys and what is accepted), OT_E_USAGE (the options do not go with
 * this kind). */
int ot_format_detect(struct ot_format *format, const struct ot_json *row, const char *where);
enum ot_row_kind ot_format_kind(const struct ot_format *format);
/* Name of the chat template in use; NULL: none. */
const char *ot_format_template(const struct ot_format *format);
enum ot_template_source ot_format_template_source(const struct ot_format *format);

/* The row's text, replacing *r; what follows the last trained span is left out, since nothing learns from it.
 * Errors: OT_E_INPUT naming `where` and the fault (a missing key, a wrong type, an unknown role). */
int ot_format_render(const struct ot_format *format, const struct ot_json *row, const char *where,
                     struct ot_rendered *r);

#endif

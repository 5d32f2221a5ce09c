/* The formats of rows: detects the kind of a file's rows, and renders a row as text.
 *
 *   text       {"text"}                                 continued pre-training: all of it trains
 *   prompt     {"prompt", "completion" or "response"}   the completion trains, directly after the prompt
 *   messages   {"prompt": [turns], "completion": [turns]} the completion's assistant turns train
 *   alpaca     {"instruction", "output"[, "input"]}     the output trains, in the alpaca template
 *   messages   {"messages": [{"role", "content"}]}      every assistant turn trains
 *   sharegpt   {"conversations": [{"from", "value"}]}   every assistant turn trains
 *   sql        {"question", "context", "answer"}        the answer trains, after context and question
 *   pair       {"input", "target"}                      the target trains, after the input
 *   custom     --prompt-format with fields of the row   "answer", "completion", "response", "output" or
 *                                                       "target" trains
 *
 * "system" of alpaca, prompt, messages and sharegpt rows is a system turn. "history" of alpaca and prompt
 * rows is a list of string pairs: turns before the prompt. (Prompt rows need a template for both.) Keys that
 * no template can render are refused by name: "tools", and "tool_calls", "function_call" and
 * "reasoning_content" of a turn.
 *
 * The first good row of the file decides the kind, and all other rows must be of that kind. Unknown keys are
 * ignored, but not those that say that a row is not to be learned (template.h). If the row has one prompt
 * and one answer, a named or recorded chat template makes them a user's turn and an assistant's turn.
 *
 * PAIRS. An encoder-decoder learns a target for an input. Kinds with one prompt and one answer give them.
 * Rows of text, messages and sharegpt are refused (pipeline.c).
 *
 * Threads: ot_format_detect fixes a format; afterwards any number of threads may render with it.
 */
#ifndef OT_DATA_FORMAT_H
#define OT_DATA_FORMAT_H

#include <stdbool.h>
#include <stddef.h>

#include "src/data/chat_render.h"

enum ot_row_kind {
    OT_ROW_UNKNOWN,
    OT_ROW_TEXT,
    OT_ROW_PROMPT,
    OT_ROW_ALPACA,
    OT_ROW_MESSAGES,
    OT_ROW_SHAREGPT,
    OT_ROW_SQL,
    OT_ROW_PAIR,
    OT_ROW_CUSTOM,
};

const char *ot_row_kind_name(enum ot_row_kind kind); /* "text", "prompt", ... */
extern const char *const ot_answer_keys[]; /* keys of the answer in a row with a prompt; ends with NULL */

/* Sources of the rows' chat template. The first source that is given decides. */
struct ot_template_choice {
    const char *named;    /* --template; NULL: not given. An error for rows of text */
    const char *recorded; /* of the run that made the model; NULL: none. Ignored for rows of text */
    const struct ot_chat_renderer *of_model; /* the model's own; NULL: it has none. For conversations only */
};
/* The source that decided: one of ot_template_choice; GUESSED: from the tokenizer's tokens; BY_KIND: from the
 * kind of the rows. */
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
    const char *prompt_format; /* --prompt-format; NULL: by the rows' kind */
    const struct ot_tokenizer *tokenizer;
    struct ot_chat_marks marks;
    bool train_prompt; /* the prompt trains too */
};

struct ot_format;

/* Errors: OT_E_USAGE (unknown template, invalid prompt format), OT_E_BUDGET. */
int ot_format_open(const struct ot_format_config *config, struct ot_format **out);
void ot_format_close(struct ot_format *format); /* NULL is fine */

/* Sets the kind from this row if it is not set yet. where: "FILE:LINE". Errors: OT_E_INPUT (the row fits no
 * kind: the message lists its keys and the accepted keys), OT_E_USAGE (an option does not fit this kind),
 * OT_E_BUDGET. */
int ot_format_detect(struct ot_format *format, const struct ot_json *row, const char *where);
enum ot_row_kind ot_format_kind(const struct ot_format *format);
/* Name of the chat template in use, or "the model's own"; NULL: none. */
const char *ot_format_template(const struct ot_format *format);
enum ot_template_source ot_format_template_source(const struct ot_format *format);

/* Renders the row as text, replacing *r. Text after the last trained span is left out, because no token there
 * trains. Errors: OT_E_INPUT (names `where` and the fault: a missing key, a wrong type, an unknown role),
 * OT_E_BUDGET. */
int ot_format_render(const struct ot_format *format, const struct ot_json *row, const char *where,
                     struct ot_rendered *r);

/* Renders the prompt for an answer after the row's last turn, if the model's own template writes it. Returns
 * 1, or 0: a built-in template writes the row, so the caller renders it with an answer and cuts that off.
 * Errors: as ot_format_render. */
int ot_format_render_prompt(const struct ot_format *format, const struct ot_json *row, const char *where,
                            struct ot_rendered *r);

#endif

/* Rendered texts, and prompt formats.
 *
 * A rendered sample is one text that is divided into spans. Each span is marked: whether it trains, and
 * whether the user wrote it. Tokens are made from the whole text at once, because the model sees the whole
 * text when it is used. The marks are applied afterwards by byte offset.
 *
 * Two things make such texts: chat templates (chat_template.h), and prompt formats such as "{context}\n--
 * {question}\n", whose placeholders name fields of a row.
 *
 * Threads: templates and formats never change once made; a rendered text belongs to one thread.
 */
#ifndef OT_DATA_TEMPLATE_H
#define OT_DATA_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/base/json.h"

struct ot_json;

/* ---- rendered text ---- */

struct ot_span { /* begins at the end of the span before it */
    size_t end;
    bool trained, user;
    int32_t id; /* this text becomes this one token, whatever the tokenizer says; -1: tokenize it */
};

/* Set to zero before the first use. Memory is kept from sample to sample. */
struct ot_rendered {
    char *text;
    size_t bytes, capacity;
    struct ot_span *spans;
    size_t n_spans, span_capacity;
    /* A model's own template wrote the text: no BOS is added to its tokens, and an EOS only if they end with
     * no special token. */
    bool complete;
    /* The template marks the trained text itself: a token trains too if a trained span begins inside it, as
     * in transformers' mask of such marks. */
    bool marked;
    int untrainable_turns; /* assistant turns whose place in the text is not exact, so they do not train */
    bool left_out;         /* the template left out some of the row's text */
    bool failed; /* out of memory: appending does nothing, and ot_rendered_check returns the error */
};

void ot_rendered_reset(struct ot_rendered *r); /* makes it empty and keeps the memory */
void ot_rendered_free(struct ot_rendered *r);
void ot_rendered_append(struct ot_rendered *r, const char *text, size_t bytes, bool trained, bool user);
/* Appends a text that becomes the token `id`. id -1: ordinary text that the user did not write. */
void ot_rendered_append_token(struct ot_rendered *r, const char *text, size_t bytes, int32_t id,
                              bool trained);
int ot_rendered_check(const struct ot_rendered *r); /* Errors: OT_E_BUDGET */

/* A blank answer does not count: a model that trains on white space, or only on EOS, learns to say
 * nothing. */
bool ot_text_is_blank(const char *text, size_t bytes);

/* ---- prompt formats ---- */

struct ot_prompt_format;

/* Placeholders are {name}; "{{" and "}}" are braces. The escapes "\n", "\r", "\t" and "\\" are understood,
 * because a shell passes them on unchanged. Errors: OT_E_USAGE (names the fault in the format),
 * OT_E_BUDGET. */
int ot_prompt_format_open(const char *format, struct ot_prompt_format **out);
void ot_prompt_format_close(struct ot_prompt_format *format);          /* NULL is fine */
size_t ot_prompt_format_fields(const struct ot_prompt_format *format); /* number of placeholders */
const char *ot_prompt_format_field(const struct ot_prompt_format *format, size_t index);
/* Appends the format with the row's fields filled in. Literals are marked as ours and fields as the user's;
 * nothing trains. A missing or null field is empty: the caller checks that required fields are present. */
void ot_prompt_format_render(const struct ot_prompt_format *format, const struct ot_json *row,
                             struct ot_rendered *r);

/* ---- refused keys ---- */

/* Refuses, by name, keys of a row that this program does not support: such a row must not train as something
 * else. Preference rows ("chosen", "rejected") need another objective (preference.h). "label", "loss",
 * "train" with false, and "weight" with 0, say that the answer is not to be learned.
 *
 * Rows are read as Python writes them (ot_json_parse_row). NaN, Infinity and half of a surrogate pair are
 * errors only in a field that is used.
 *
 * Threads: any number.
 */

struct ot_prompt_format;

/* Refuses preference rows. Errors: OT_E_INPUT (names `where`, the key and the cure). */
int ot_row_refuse_preference(const struct ot_json *row, const char *where);
/* Refuses a row that is not to be learned. placed: the fields of --prompt-format, which are text; NULL: none.
 * is_text: the row is plain text, whose "label" is often a class. Errors: OT_E_INPUT. */
int ot_row_refuse_unlearned(const struct ot_json *row, const struct ot_prompt_format *placed, bool is_text,
                            const char *where);
/* Refuses values that are no text and no number. key: the value's name in the row. A key of a turn whose
 * value is NaN counts as missing. Errors: OT_E_INPUT. */
int ot_row_check_value(const struct ot_json *value, const char *key, const char *where);

#endif

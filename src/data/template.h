/* Templates: the text around what the user wrote.
 *
 * A rendered sample is one text with a mark on every stretch of it: does it train, and did the user write it.
 * Tokens are made from the whole text at once, because that is what the model sees when it is used; the marks
 * are applied afterwards by byte offset.
 *
 * Two things make such texts: chat templates (chat_template.h), and prompt formats like
 * "{context}\n-- {question}\n", whose placeholders name fields of a row.
 *
 * Threads: templates and formats never change once made; a rendered text belongs to one thread.
 */
#ifndef OT_DATA_TEMPLATE_H
#define OT_DATA_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_json;

/* ---- rendered text ---- */

struct ot_span { /* covers the text from the end of the span before it */
    size_t end;
    bool trained, user;
    int32_t id; /* the one token that this text becomes, whatever a tokenizer makes of it; -1: none */
};

/* Zero before the first use; memory is kept from sample to sample. */
struct ot_rendered {
    char *text;
    size_t bytes, capacity;
    struct ot_span *spans;
    size_t n_spans, span_capacity;
    bool failed; /* out of memory: appending has become a no-op, ot_rendered_check says so */
};

void ot_rendered_reset(struct ot_rendered *r); /* empty, memory kept */
void ot_rendered_free(struct ot_rendered *r);
void ot_rendered_append(struct ot_rendered *r, const char *text, size_t bytes, bool trained, bool user);
/* A text that becomes the token `id`; id -1: an ordinary text of ours. */
void ot_rendered_append_token(struct ot_rendered *r, const char *text, size_t bytes, int32_t id,
                              bool trained);
void ot_rendered_cut(struct ot_rendered *r, size_t bytes); /* keeps the first `bytes` */
int ot_rendered_check(const struct ot_rendered *r);        /* Errors: OT_E_BUDGET */

/* White space alone is no answer: a model that trains on it, or on EOS alone, learns to say nothing. */
bool ot_text_is_blank(const char *text, size_t bytes);

/* ---- prompt formats ---- */

struct ot_prompt_format;

/* Placeholders are {name}; "{{" and "}}" are braces; "\n", "\t", "\\" escapes are understood, since a shell
 * passes them on unread. Errors: OT_E_USAGE naming what is wrong with the format, OT_E_BUDGET. */
int ot_prompt_format_open(const char *format, struct ot_prompt_format **out);
void ot_prompt_format_close(struct ot_prompt_format *format);          /* NULL is fine */
size_t ot_prompt_format_fields(const struct ot_prompt_format *format); /* number of placeholders */
const char *ot_prompt_format_field(const struct ot_prompt_format *format, size_t index);
/* Appends the format filled with the row's fields, literals as ours and fields as the user's; nothing trains.
 * A missing or null field is empty: what a row must have is for the caller to check. */
void ot_prompt_format_render(const struct ot_prompt_format *format, const struct ot_json *row,
                             struct ot_rendered *r);

#endif

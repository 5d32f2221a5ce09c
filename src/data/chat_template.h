/* The built-in chat templates: the formats of models that bring no template, chosen by name (--template), by
 * the tokenizer's tokens, or because the model's own text is a published one that this program knows.
 *
 * Each is a Jinja text in src/data/templates, which src/jinja renders (chat_render.h), like the text that a
 * model brings. tests/golden/chat shows that a published template is reproduced to the last space. A file
 * there has two uses, which marks tell apart:
 *
 *   {+ ... +}   only in rows, not in the text that is saved into a model: {% generation %} around what
 *               trains; `user ~ TEXT ~ end` around what the user wrote; the separate input of an alpaca row
 *   {bos}       where a saved text writes BOS if the tokenizer puts it in front of rows; nothing in rows
 *
 * Threads: templates never change.
 */
#ifndef OT_DATA_CHAT_TEMPLATE_H
#define OT_DATA_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_conversation;
struct ot_tokenizer;

struct ot_chat_template {
    const char *name;
    const char *source;  /* the file */
    const char *stop;    /* the mark that ends an answer, and stops a model; NULL: the tokenizer's EOS */
    bool has_stop_alone; /* no other template's tokenizers have `stop`, so it tells the template */
    bool no_system;      /* system turns are refused */
    bool moves_system;   /* a system turn becomes a part of a user's turn after it */
    bool alternates;     /* user and assistant must alternate, after at most one system turn */
};

/* NULL after the last template. */
const struct ot_chat_template *ot_chat_template_at(int index);
/* Finds a template by name; NULL if there is no such template. Case and the signs - _ . do not count: llama3
 * is llama-3. */
const struct ot_chat_template *ot_chat_template_find(const char *name);
const char *ot_chat_template_names(void); /* "llama-2, llama-3, ...", for error messages */
/* The template whose own special token this tokenizer has; NULL: none. */
const struct ot_chat_template *ot_chat_template_guess(const struct ot_tokenizer *tokenizer);

/* Finds the template that renders as this Jinja text: a published text that this program reproduces, or a
 * text from ot_chat_template_write. *out is NULL if the text is unknown. Errors: OT_E_BUDGET. */
int ot_chat_template_recognize(const char *jinja, size_t bytes, const struct ot_chat_template **out);
/* Hash (64-bit FNV-1a) and length of a Jinja text as Jinja reads it: every line end is \n, and a line end at
 * the end of the text is dropped. */
uint64_t ot_chat_hash_text(const char *text, size_t n, size_t *bytes);
/* Name of the published template with that length and hash; NULL: unknown. */
const char *ot_chat_known_name(size_t bytes, uint64_t hash);

/* Writes the Jinja text that is saved with a model whose tokenizer has none. bos: the tokenizer puts BOS in
 * front of rows, so the text writes it too: no program adds BOS to a rendered conversation. The caller frees
 * the text. Errors: OT_E_BUDGET. */
int ot_chat_template_write(const struct ot_chat_template *t, bool bos, char **jinja, size_t *bytes);
/* Writes the Jinja text that renders rows. The caller frees it. Errors: OT_E_BUDGET. */
int ot_chat_template_write_for_rows(const struct ot_chat_template *t, char **jinja, size_t *bytes);
/* True if the template itself writes BOS. */
bool ot_chat_template_begins(const struct ot_chat_template *t);

/* Refuses conversations that the model's own template refuses or silently shortens. Errors: OT_E_INPUT with
 * `where` ("FILE:LINE") in front. */
int ot_chat_template_check(const struct ot_chat_template *t, const struct ot_conversation *c,
                           const char *where);

#endif

/* Chat templates: render conversations as the text that a model was tuned on.
 *
 * A model's directory defines its format as a Jinja template. This program does not run Jinja. It has the
 * formats of the models that it trains built in, chosen by name (--template) or recognised by the model's
 * Jinja text (chat_known.c). A recognised template is reproduced to the last space, as tests/golden/chat
 * shows.
 *
 * Threads: templates never change.
 */
#ifndef OT_DATA_CHAT_TEMPLATE_H
#define OT_DATA_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "src/data/template.h"

struct ot_tokenizer;

enum ot_role {
    OT_ROLE_SYSTEM,
    OT_ROLE_USER,
    OT_ROLE_ASSISTANT,
    OT_ROLE_TOOL /* not for built-in templates */
};

struct ot_turn { /* the text is borrowed from the row */
    enum ot_role role;
    const char *text;
    size_t bytes;
    const char *input; /* the separate input of an alpaca instruction; NULL: none */
    size_t input_bytes;
    bool untrained; /* an assistant turn that does not train: the row gives it the weight 0 */
};

struct ot_chat_template;

/* Finds a template by name; NULL if there is no such template. */
const struct ot_chat_template *ot_chat_template_find(const char *name);
const char *ot_chat_template_name(const struct ot_chat_template *t);
const char *ot_chat_template_names(void); /* "llama-2, llama-3, ...", for error messages */
/* The template whose own special token this tokenizer has; NULL: none. */
const struct ot_chat_template *ot_chat_template_guess(const struct ot_tokenizer *tokenizer);

/* Finds the template that renders as this Jinja text: a published text that this program reproduces, or a
 * text from ot_chat_template_write. *out is NULL if the text is unknown. Errors: OT_E_BUDGET. */
int ot_chat_template_recognize(const char *jinja, size_t bytes, const struct ot_chat_template **out);
/* Writes a Jinja text that renders as the template does, for a tokenizer that has none. bos: the tokenizer
 * puts BOS in front of rows, so the text does too, because nobody adds it to what a template wrote. The
 * caller frees the text. Errors: OT_E_BUDGET. */
int ot_chat_template_write(const struct ot_chat_template *t, bool bos, char **jinja, size_t *bytes);
/* True if the template itself writes BOS. */
bool ot_chat_template_begins(const struct ot_chat_template *t);
/* The mark that ends an answer, and stops a model: "<|im_end|>". NULL: the tokenizer's EOS. */
const char *ot_chat_template_stop(const struct ot_chat_template *t);

/* The token that templates write as {bos} or {eos}. 0 bytes: the tokenizer has none. id: the token itself if
 * the tokenizer does not find it in every text that spells it; otherwise -1. */
struct ot_chat_mark {
    const char *text;
    size_t bytes;
    int32_t id;
};
struct ot_chat_marks {
    struct ot_chat_mark bos, eos;
};

/* Renders a conversation. Every assistant turn that is not blank trains, together with its end-of-turn mark.
 * If the template has no place for a system turn, the turn goes into a later user's turn. Errors: OT_E_INPUT
 * with `where` ("FILE:LINE") in front: the template refuses such a conversation. */
int ot_chat_template_render(const struct ot_chat_template *t, const struct ot_turn *turns, size_t n_turns,
                            const struct ot_chat_marks *marks, const char *where, struct ot_rendered *r);

#endif

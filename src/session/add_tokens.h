/* Adds the tokens of --add-tokens and --add-special-tokens to a session's tokenizer, and their rows to its
 * model. */
#ifndef OT_SESSION_ADD_TOKENS_H
#define OT_SESSION_ADD_TOKENS_H

#include "src/session/session.h"

struct ot_json_writer;

/* Replaces the session's open tokenizer by one that has the tokens too, and makes the model as large as it
 * needs (src/files/model_dir_rows.c). Does nothing without the options. Errors: as ot_new_tokens_read;
 * OT_E_INPUT (the tokenizer makes no piece of a text, or one that the model has no row of); OT_E_USAGE (the
 * model has adapters already). */
int ot_session_add_tokens(struct ot_session *session);
/* The same for a model's shape alone. tokenizer: its path; NULL: unknown, then no given token is thought to
 * be there already. */
int ot_added_tokens_count(const struct ot_options *options, const char *tokenizer,
                          struct ot_model_config *config);
/* "3 new tokens, from id 259 on · 1 of the given ones in the vocabulary already". */
enum { OT_ADDED_TEXT_BYTES = 224 };
const char *ot_added_tokens_text(const struct ot_session *session, char text[OT_ADDED_TEXT_BYTES]);
/* Writes the given tokens, which are part of what a run is. Nothing without the options. */
void ot_added_tokens_put(const struct ot_session *session, struct ot_json_writer *w);

#endif

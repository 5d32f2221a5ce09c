/* Chooses the chat template that rows are written in. The sources are --template, the record of the run that
 * made the model, and the model's own template. */
#ifndef OT_SESSION_CHAT_CHOICE_H
#define OT_SESSION_CHAT_CHOICE_H

#include "src/session/session.h"

/* Opens the model's own template for session->text.chat, and takes --prompt-format into
 * session->text.prompt_format. For generate and eval without --template and --prompt-format, takes both
 * from the run.json beside the model, if there is one. Call this after session->model.dir was opened.
 * Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET.
 */
int ot_chat_choice_open(struct ot_session *session);
/* The template that --template names, or that the checkpoint or the rows read earlier have fixed. */
struct ot_template_choice ot_chat_choice(const struct ot_session *session);
/* Call this after a template was chosen for rows. For train, writes the name of a built-in template into the
 * settings, and so into the run's record. A model's own template that is none of these stays with the model.
 */
void ot_chat_choice_settle(const struct ot_session *session, const char *name,
                           enum ot_template_source source);

/* The Jinja text that the result needs, because its rows were written in a template that the model's files do
 * not have. *jinja is NULL if the model's own is right; the caller frees it. Errors: OT_E_BUDGET. */
int ot_chat_choice_write(const struct ot_session *session, char **jinja, size_t *bytes);
/* Says in one line each how rows, template and tokenizer deviate from each other. name: the template of the
 * rows; NULL: none. */
void ot_chat_choice_note(const struct ot_session *session, const char *name);

#endif

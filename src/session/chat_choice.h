/* Which chat template rows are written in: what the options say, what the run that made the model recorded,
 * and what the model's own template is recognised as. */
#ifndef OT_SESSION_CHAT_CHOICE_H
#define OT_SESSION_CHAT_CHOICE_H

#include "src/session/parts.h"

/* Reads the model's template, and for generate and eval the run.json beside the model, into the session's
 * `chat` and `prompt_format`. Needs the session's directory. Errors: OT_E_INPUT, OT_E_IO, OT_E_BUDGET. */
int ot_chat_choice_open(struct ot_session *session);
/* What --template says, or the checkpoint or the rows before have fixed. */
struct ot_template_choice ot_chat_choice(const struct ot_session *session);
/* A template was chosen for rows: warns where it stands in for a model's own that is unknown, and for a run
 * keeps it with the options. */
void ot_chat_choice_settle(const struct ot_session *session, const char *name,
                           enum ot_template_source source);

#endif

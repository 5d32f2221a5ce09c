/* A conversation at the terminal, for generate --chat. The user types a turn and reads the answer while the
 * model writes it. The conversation goes to the model as a data row does: in the chat template that rows
 * would get.
 *
 * Lines that begin with a slash are commands: /reset begins a new conversation, /exit ends the program.
 * Ctrl-C stops an answer and keeps what was written of it. At the prompt, Ctrl-D ends the program, and so
 * does Ctrl-C twice. Where stdin is no terminal, each line is a turn; the answers are all that goes to
 * stdout.
 */
#ifndef OT_CLI_CHAT_H
#define OT_CLI_CHAT_H

#include <stdint.h>

struct ot_session;

/* Tokens of a conversation for which memory is planned, if the model has so many positions. */
enum { OT_CHAT_TOKENS = 8192 };

/* Checks before the model is loaded that a conversation can be formatted. Errors: as ot_prompt_from_row. */
int ot_chat_check(const struct ot_session *session);
/* Converses until the user ends it, on rank 0. capacity: tokens for which memory was planned. Errors:
 * OT_E_IO, and those of ot_generate. */
int ot_chat_run(struct ot_session *session, int64_t capacity);

#endif

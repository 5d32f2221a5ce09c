/* A checkpoint into a session's engine. */
#ifndef OT_SESSION_RESTORE_H
#define OT_SESSION_RESTORE_H

#include "src/session/parts.h"

/* session->restored, through the plan's slots for checkpoints: no more memory than training takes. Shows how
 * far it is on a terminal. Errors: OT_E_INPUT (of another model or dtype; damaged), OT_E_IO, OT_E_DEVICE. */
int ot_session_restore(struct ot_session *session);

#endif

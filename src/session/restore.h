/* Loads a checkpoint into a session's engine. */
#ifndef OT_SESSION_RESTORE_H
#define OT_SESSION_RESTORE_H

#include "src/session/parts.h"

/* Loads session->restored through the plan's slots for checkpoints, so that loading takes no more memory than
 * training. Shows its progress on a terminal. Errors: OT_E_INPUT (of another model or dtype; damaged),
 * OT_E_IO, OT_E_DEVICE. */
int ot_session_restore(struct ot_session *session);

#endif

/* The adapters of --adapter, or of a --model that is a directory of adapters, in a session. */
#ifndef OT_SESSION_ADAPTER_H
#define OT_SESSION_ADAPTER_H

#include "src/session/parts.h"

/* Lays the adapters over session->dir, and chooses --adapter, --lora and --train from their files. Does
 * nothing without adapters, and for a run that resumes: its checkpoint has them. Errors: OT_E_INPUT, OT_E_IO,
 * OT_E_BUDGET; OT_E_USAGE if the options contradict the directory. */
int ot_session_open_adapter(struct ot_session *session);

#endif

/* What a session may use of the disks that --nvme names: the third tier's budget, and what the engine needs
 * to open its store. */
#ifndef OT_SESSION_STORE_H
#define OT_SESSION_STORE_H

#include "src/session/parts.h"

/* Fixes the budget of the nvme tier: the sum of what the directories may hold; removes what crashed runs have
 * left in them. Without --nvme it does nothing. Errors: OT_E_IO (a directory is not there, or no directory),
 * OT_E_BUDGET (more was given than is free). */
int ot_session_open_store(struct ot_session *session);

/* Bytes that are free in a directory for this user; -1: unknown. */
int64_t ot_session_free_in(const char *dir);

/* Warns of what makes a directory of --nvme slower than a disk (ot_machine_dir_note). Takes a moment. */
void ot_session_warn_disks(const struct ot_session *session);

#endif

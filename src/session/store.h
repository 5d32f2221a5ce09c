/* The use of --nvme by a session: the budget of the nvme tier and the configuration of the engine's store. */
#ifndef OT_SESSION_STORE_H
#define OT_SESSION_STORE_H

#include "src/session/parts.h"

/* Fixes the budget of the nvme tier: the sum of the directories' limits. Removes files that crashed runs left
 * in the directories. Does nothing without --nvme. Errors: OT_E_IO (the directory does not exist or is not a
 * directory), OT_E_BUDGET (a limit exceeds the free space). */
int ot_session_open_store(struct ot_session *session);

/* Bytes of a directory that are free for this user; -1: unknown. */
int64_t ot_session_free_in(const char *dir);

/* Warns of each directory of --nvme that is slower than a local disk, and why (ot_machine_dir_note). Takes a
 * moment. */
void ot_session_warn_disks(const struct ot_session *session);

#endif

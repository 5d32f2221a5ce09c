/* Opens the device that a session computes on, and fixes how much of the machine's memory and disks the
 * session may use. */
#ifndef OT_SESSION_DEVICE_H
#define OT_SESSION_DEVICE_H

#include "src/session/session.h"

/* Opens the device of --device, fixes the budgets of gpu and host, and resolves `auto` in --device and
 * --dtype. auto is the first GPU. If a GPU is present and cannot be used, a warning says why and the cpu
 * device is used instead. Errors: OT_E_DEVICE, OT_E_BUDGET (less memory is free than was asked for). */
int ot_session_open_device(struct ot_session *session);

/* Logs that a --gpu-mem above the GPU's budget means the whole budget (ot_device_is_whole). Logs nothing if
 * `given` is 0. */
void ot_session_note_whole(int64_t given, int64_t budget);

/* The largest budgets that --gpu-mem and --host-mem could have, each while the other budget stays as it is.
 * For nvme: the present budget. */
void ot_session_most_bytes(const struct ot_session *session, size_t most[OT_TIER_COUNT]);

/* Checks that the plan's bytes of RAM are free: --gpu-mem and --host-mem may each fit and together be too
 * much. Errors: OT_E_BUDGET. */
int ot_session_check_free(const struct ot_session *session);

/* ---- store ---- */

/* The use of --nvme by a session: the budget of the nvme tier and the configuration of the engine's store. */

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

/* Which device a session computes on, and what it may use of the machine's memory. */
#ifndef OT_SESSION_DEVICE_H
#define OT_SESSION_DEVICE_H

#include "src/session/parts.h"

/* Opens the device of --device, fixes the budgets of both tiers, and resolves `auto` in --device and --dtype.
 * auto is the first GPU; where one is there that cannot be used, a warning says why and the cpu device takes
 * its place. Errors: OT_E_DEVICE, OT_E_BUDGET (more memory asked for than is free). */
int ot_session_open_device(struct ot_session *session);

/* Says that a --gpu-mem beyond the GPU's budget means all of it (ot_device_is_whole). given 0: says
 * nothing. */
void ot_session_note_whole(int64_t given, int64_t budget);

/* What the budgets of gpu and host could be at most, each beside the other as it is; of nvme the budget. */
void ot_session_most_bytes(const struct ot_session *session, size_t most[OT_TIER_COUNT]);

/* Two budgets that the user gave may together be more than there is. Errors: OT_E_BUDGET. */
int ot_session_check_free(const struct ot_session *session);

#endif

/* A random program of transfers and operations, which all ranks know: each rank does its halves in calls of
 * its own choice, at its own pace, and compares every byte. Any such program ends, because each rank does
 * its halves in the order of the program. */
#ifndef OT_TESTS_OFFLOAD_COMM_RANDOM_TRANSFERS_H
#define OT_TESTS_OFFLOAD_COMM_RANDOM_TRANSFERS_H

#include "offload/comm/comm.h"

/* The largest transfer or result of an operation, and the most transfers of a call. */
enum { RANDOM_TRANSFERS_BYTES = 300001, RANDOM_TRANSFERS_IN_CALL = 9 };

/* All ranks call it with the same seed. Errors: OT_E_COMM, OT_E_BUDGET, OT_E_DEVICE. */
int random_transfers_run(struct ot_comm *comm, struct ot_device *device, struct ot_lane *lane, uint64_t seed);

#endif

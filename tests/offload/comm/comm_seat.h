/* A rank's device, lane and communicator, for tests of operations that fail. */
#ifndef OT_TESTS_OFFLOAD_COMM_SEAT_H
#define OT_TESTS_OFFLOAD_COMM_SEAT_H

#include "offload/comm/comm.h"

struct seat {
    struct ot_device *device;
    struct ot_lane *lane;
    struct ot_comm *comm;
    unsigned char *send, *receive; /* [ranks][part_bytes] */
};

/* Opens the communicator on the CPU. Errors: of ot_comm_open_with. */
int open_seat(struct ot_world *world, const struct ot_comm_v1 *api,
              const struct ot_comm_transfers_v1 *transfers, double timeout_seconds, size_t part_bytes,
              struct seat *out);
void close_seat(struct seat *s);
/* Waits for all operations. Returns the error of the first that failed. */
int finish_seat(struct seat *s);
void sleep_ms(int ms);

#endif

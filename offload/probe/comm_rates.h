/* Measures how fast a communicator moves bytes: each operation with each size, on all ranks at once. */
#ifndef OT_OFFLOAD_PROBE_COMM_RATES_H
#define OT_OFFLOAD_PROBE_COMM_RATES_H

#include <stddef.h>
#include <stdint.h>

#include "offload/comm/comm.h"

struct ot_comm_rate {
    const char *operation; /* "all_gather" */
    size_t part_bytes;     /* size of a part, or of a broadcast */
    size_t received_bytes; /* a rank gets them from others; 0: there is one rank */
    double seconds;        /* time of one operation, on the slowest rank */
    double rate;           /* received bytes per second */
    double copy_rate;      /* rate of a copy of as many bytes, on all ranks at once; 0: the device is a GPU */
};

struct ot_comm_rates_config {
    struct ot_comm *comm;
    struct ot_device *device; /* the communicator's */
    bool is_gpu;
    const size_t *sizes; /* [n_sizes] bytes of a part, each at least 1 */
    int n_sizes;
    double seconds; /* for each row; 0: 0.5 s */
    /* Called on every rank with the same rows. An error ends the measurement on this rank alone. */
    int (*take)(void *context, const struct ot_comm_rate *rate);
    void *context;
};

/* All ranks call it with the same sizes. Errors: OT_E_COMM, OT_E_BUDGET, OT_E_DEVICE, those of `take`. */
int ot_comm_rates_measure(const struct ot_comm_rates_config *config);

#endif

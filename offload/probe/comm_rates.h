/* Measures how fast a communicator moves bytes: each operation with each size, on all ranks at once. A
 * transfer is measured in a ring: each rank sends a part to the next, and receives one from the previous. */
#ifndef OT_OFFLOAD_PROBE_COMM_RATES_H
#define OT_OFFLOAD_PROBE_COMM_RATES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device.h"
#include "offload/comm/comm.h"
#include "offload/comm/world.h"

struct ot_comm_rate {
    const char *operation; /* "all_gather" */
    size_t part_bytes;     /* size of a part, or of a broadcast */
    size_t received_bytes; /* a rank gets them from others; 0: there is one rank */
    double seconds;        /* time of one operation, the mean of the ranks */
    double rate;           /* received bytes per second */
    double copy_rate;      /* rate of a copy of as many bytes, on all ranks at once; 0: the device is a GPU */
};

struct ot_comm_rates_config {
    struct ot_comm *comm;
    struct ot_device *device; /* the communicator's */
    bool is_gpu;
    const size_t *sizes; /* [n_sizes] bytes of a part, each at least 1 */
    int n_sizes;
    bool with_transfers; /* measure them too: the communicator has them */
    bool crosses;        /* and they go through memory that all ranks pin (comm/crossing.h) */
    /* 0; or: measures without the broadcast, among each so many consecutive ranks, all at once. The number
     * divides the ranks, and the communicator has transfers. */
    int members;
    /* Transfers go to the rank that is so many places later, of all ranks or members; 0: 1. So if that is the
     * number of ranks of a host, all of them go to the next host. */
    int stride;
    double seconds; /* for each row; 0: 0.5 s */
    /* Called on every rank with the same rows. An error ends the measurement on this rank alone. */
    int (*take)(void *context, const struct ot_comm_rate *rate);
    void *context;
};

/* All ranks call it with the same sizes. Errors: OT_E_COMM, OT_E_BUDGET, OT_E_DEVICE, those of `take`. */
int ot_comm_rates_measure(const struct ot_comm_rates_config *config);

/* ---- peers ---- */

/* Measures copies between the GPUs of each host: from GPU memory to GPU memory, without the communicator.
 * They show the path of the communicator's bytes (predict/rates.h). */

struct ot_peers {
    bool is_known;   /* every rank that shares its host measured a GPU beside its own; else all is zero */
    bool has_access; /* all these GPUs reach each other's memory; false: copies go through host memory */
    double rate;     /* bytes/s out of a GPU, while each copies to the next one of its host; the least */
};

struct ot_peers_config {
    struct ot_world *world;
    struct ot_device *device;
    const char *kind; /* kind of device: "cuda" */
    int index;
    size_t bytes;   /* size of a copy; as much device memory is allocated on both GPUs */
    double seconds; /* duration of the measurement */
};

/* All ranks call it at the same time, and get the same answer. A rank that cannot measure, because it sees
 * only its own GPU for example, makes the answer unknown; that is no error. Errors: OT_E_COMM, OT_E_BUDGET
 * (no memory for the answers). */
int ot_probe_peers(const struct ot_peers_config *config, struct ot_peers *out);

#endif

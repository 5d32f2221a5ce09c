/* Measures copies between the GPUs of each host: from GPU memory to GPU memory, without the communicator.
 * They show the path of the communicator's bytes (predict/rates.h). */
#ifndef OT_OFFLOAD_PROBE_PEERS_H
#define OT_OFFLOAD_PROBE_PEERS_H

#include "kernels/device.h"
#include "offload/comm/world.h"

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

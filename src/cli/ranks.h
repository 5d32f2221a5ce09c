/* Finds the rank of this process, from the options and the launcher, in this order: --nodes and --gpus;
 * torchrun (also DeepSpeed's launcher); Open MPI; MPICH's hydra and PALS; Slurm; PyTorchJob and TrainJob of
 * Kubeflow. A launcher counts only if its set of environment variables is complete, so that variables that a
 * script exports for another program do no harm. A launcher that is found but not used is noted.
 *
 * A launcher starts either all ranks or one process for each host. In the second case, and with --gpus,
 * this process starts the ranks of its host (launch.h).
 *
 * The functions read nothing but their request, so tests give them any environment. One thread. */
#ifndef OT_CLI_RANKS_H
#define OT_CLI_RANKS_H

#include "offload/comm/world.h"

enum { OT_CPU_RANKS = -1 };

/* The launch as the user and the environment request it. */
struct ot_launch_request {
    const char *gpus;     /* --gpus: "4" or "all"; NULL: not given */
    int nodes, node_rank; /* --nodes, --node-rank; 0, -1: not given */
    const char *master;   /* --master: "HOST", "HOST:PORT", ":PORT", "[IPV6]:PORT"; NULL: not given */
    int visible_gpus;     /* OT_CPU_RANKS: the device is the CPU, so any number of ranks can be started */
    const char *(*get_env)(void *context, const char *name); /* NULL: getenv */
    void *context;
};

struct ot_launch {
    struct ot_ranks ranks; /* of this process; if it starts ranks, of the first of them */
    int n_start;           /* ranks that this process starts on this host; 0: it is a rank itself */
    int listener;          /* the socket that its parent gave to rank 0; -1: none */
    char found_by[64];     /* "torchrun"; "": nobody, so there is one rank */
    char note[512];        /* a line for the log: launchers found, but not used; "": none */
};

/* Errors: OT_E_USAGE: a variable or an option has an impossible value, or one is missing; the sentence names
 * it and the cure. */
int ot_ranks_find(const struct ot_launch_request *request, struct ot_launch *out);

/* "rank 3 of 8 (local 1 of 2), found by torchrun; rank 0 is at HOST:PORT" */
enum { OT_LAUNCH_TEXT_BYTES = 640 };
const char *ot_ranks_describe(const struct ot_launch *launch, char text[OT_LAUNCH_TEXT_BYTES]);

/* The variable with which a parent tells a rank who it is (launch.h). The text holds: rank, ranks, local
 * rank, local ranks, listener, port, address, run id; "-" for an address or a run id that is not known. */
#define OT_RANKS_VARIABLE "OFFLOAD_TRAIN_LOCAL_RANK"

#endif

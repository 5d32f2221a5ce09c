/* Shared by the files of ranks.c: reading the environment, and one function for each launcher. */
#ifndef OT_CLI_RANKS_STATE_H
#define OT_CLI_RANKS_STATE_H

#include "src/cli/ranks.h"

/* The processes that a launcher has started. */
struct ot_found {
    int process, processes; /* of all; -1, 0 if not known */
    int local, locals;      /* on this host; -1, 0 if not known */
    int per_process;        /* ranks that each process starts; 1: the process is a rank */
    const char *address;    /* of rank 0; NULL: not known */
    char host[256];         /* room for an address */
    int port;               /* 0: not known */
    char run_id[128];       /* "": not known */
    const char *names[2];   /* the variables of `process` and `processes`, for errors */
};

enum { OT_LAUNCH_DEFAULT_PORT = 29600, OT_LAUNCH_MOST_PROCESSES = 1 << 20 };

/* Each returns 1 if the launcher has started this process, 0 if not. Errors: OT_E_USAGE. */
int ot_ranks_find_slurm(const struct ot_launch_request *request, struct ot_found *out);

/* ---- for tests ---- */

/* The first host of a node list of Slurm: "n[01-03,7],m" gives "n01". False: it is no node list. */
bool ot_slurm_first_host(const char *list, char *host, size_t bytes);
/* The tasks of a node, from "2(x3),1": 2 for nodes 0 to 2, 1 for node 3. 0: not known. */
int ot_slurm_tasks_of(const char *tasks_per_node, int node);

#endif

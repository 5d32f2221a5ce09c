/* Forks ranks for tests of communicator plugins, and gives each what offload-train gives to a plugin: facts,
 * a log and an exchange. */
#ifndef OT_TESTS_PLUGIN_RANKS_H
#define OT_TESTS_PLUGIN_RANKS_H

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "offload/comm/plugin.h"

enum { MOST_RANKS = 8 };

struct plugin_rank {
    int rank, ranks;
    struct plugin_meeting *meeting; /* memory that all ranks share */
    int n_exchanges;
    struct ot_comm_host_v1 host;
    struct ot_comm_facts_v1 facts;
    void *context;
    char why[512];
    char logged[512]; /* the last line of the log */
};

/* Runs body(rank, argument) in one process a rank, and waits for all. Returns the number of ranks that
 * failed, or did not end within 60 s. */
int plugin_ranks_run(int ranks, void (*body)(struct plugin_rank *rank, const void *argument),
                     const void *argument);
/* Loads a plugin; ends the process if that fails. */
const struct ot_comm_v1 *plugin_load(const char *path);
/* Its transfers; ends the process if it has none. */
const struct ot_comm_transfers_v1 *plugin_transfers(const char *path);
/* Fills in rank->host, and calls open. device: its CUDA ordinal, or -1. */
int plugin_open(struct plugin_rank *rank, const struct ot_comm_v1 *api, int device, double timeout_seconds);
/* Waits until all ranks are here; false after 20 s. */
bool plugin_rank_meet(struct plugin_rank *rank);

/* Ends the rank if the condition does not hold. */
#define NEED(rank_, condition)                                                                               \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            fprintf(stderr, "%s:%d: rank %d of %d: not true: %s (why: \"%s\", log: \"%s\")\n", __FILE__,     \
                    __LINE__, (rank_)->rank, (rank_)->ranks, #condition, (rank_)->why, (rank_)->logged);     \
            _Exit(1);                                                                                        \
        }                                                                                                    \
    } while (0)

#endif

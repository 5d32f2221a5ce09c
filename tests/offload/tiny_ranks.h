/* Trains the tiny model on several ranks inside one process: each rank is a thread with a cpu device, an
 * engine and a communicator of its own (tests/support/thread_world.h). */
#ifndef OT_TESTS_TINY_RANKS_H
#define OT_TESTS_TINY_RANKS_H

#include "tests/offload/tiny_run.h"

/* Changes the run of one rank: its plan, its threads. The plan is made already. context: the caller's. */
typedef void (*tiny_change_fn)(struct tiny_run *run, int rank, void *context);

struct tiny_world {
    int ranks;
    enum ot_shard_mode mode;
    bool world, narrow, one_copy; /* see struct ot_shard */
    int turn_blocks, in_flight;   /* stages: see struct ot_shard */
    int stages;                   /* the same; 0: one for each rank */
    bool crosses;                 /* stages: see struct ot_plan */
    enum ot_home weights, state, activations;
    int slots;
    uint64_t delay_seed;   /* delays in the communicator */
    tiny_change_fn change; /* NULL: all ranks have the same plan */
    void *context;
};

/* Trains TINY_STEPS steps on all ranks. Puts the holdings of the ranks together. Fails the test if the ranks
 * disagree about a loss, a norm, or a value that more than one holds, or if rank 0 collected other values. */
void tiny_train_ranks(const struct tiny_run *run, const struct tiny_world *world, struct tiny_result *result);

/* The same, but operation number `fail_at` of one rank fails (thread_world_fail_at). Fails the test unless
 * every rank ends with OT_E_COMM before its last step. Returns the fewest steps that a rank has completed. */
int tiny_fail_ranks(const struct tiny_run *run, const struct tiny_world *world, int failing, int fail_at);

/* Opens the engines of all ranks, whose plans differ, and closes them again. Fails the test unless no engine
 * opens, and every rank fails with OT_E_USAGE and the sentence `words`. */
void tiny_refuse_ranks(const struct tiny_run *run, const struct tiny_world *world, const char *words);

#endif

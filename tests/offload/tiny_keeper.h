/* A sink for snapshots that keeps everything that it gets. Tests compare the segments, or restore them. */
#ifndef OT_TESTS_TINY_KEEPER_H
#define OT_TESTS_TINY_KEEPER_H

#include <stdatomic.h>

#include "offload/engine/snapshot.h"
#include "tests/offload/tiny_run.h"

enum { TINY_KEEPER_PARTS = 4096 };

/* A sink that keeps everything that it gets, and delays each segment. */
struct tiny_keeper {
    struct ot_engine *engine;
    enum ot_dtype dtype;
    uint64_t seed;
    unsigned most_us; /* the longest delay of a segment */
    int fail_at;      /* the number of the call that fails; 0: none */
    /* The first call does not return until a task waits for a tile of this snapshot. NULL: it returns at
     * once. */
    struct ot_snapshot *held_for;
    bool was_waited_for;
    atomic_bool steps_are_over;
    int calls;
    bool may_refer, ended;
    char *memory;
    char *folder; /* holds hard links to the store's files */
    int n_segments;
    struct tiny_kept_segment {
        struct ot_segment segment;
        char *bytes; /* NULL: the segment refers to the store */
        struct ot_store_span *spans;
        int n_spans;
    } segments[TINY_KEEPER_PARTS];
};

/* Opens a keeper for snapshots of the run. most_us: the longest delay of a segment, which the seed chooses.
 */
void tiny_keeper_open(struct tiny_keeper *keeper, const struct tiny_run *run, uint64_t seed,
                      unsigned most_us);
void tiny_keeper_close(struct tiny_keeper *keeper);
struct ot_snapshot_config tiny_keeper_config(struct tiny_keeper *keeper);
/* Makes hard links to the store's files, so that pinned contents outlive the store. */
void tiny_keeper_link(struct tiny_keeper *keeper, const struct ot_engine *engine);
/* Fails the test unless the state and the weights of each parameter have come exactly once. */
void tiny_keeper_check(const struct tiny_keeper *keeper, const struct ot_chain *chain);
/* Restores the segments, in another order than they came. */
void tiny_keeper_put_back(struct tiny_keeper *keeper, struct ot_engine *engine);

#endif

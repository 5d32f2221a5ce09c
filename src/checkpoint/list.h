/* A list of checkpoints. The catalog makes it, and reclaim.h reads it. */
#ifndef OT_CHECKPOINT_LIST_H
#define OT_CHECKPOINT_LIST_H

#include <stdint.h>

struct ot_checkpoint_entry {
    int64_t step;
    char *dir; /* path */
};
struct ot_checkpoint_list {
    int n;
    struct ot_checkpoint_entry *entries; /* newest first */
};

#endif

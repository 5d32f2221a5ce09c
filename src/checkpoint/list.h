/* A list of checkpoints: what the catalog makes, and what is looked through for space to give back. */
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

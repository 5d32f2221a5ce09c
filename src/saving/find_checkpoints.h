/* What a directory that a user names has in it: a checkpoint, a run's checkpoints, a model. */
#ifndef OT_SAVING_FIND_CHECKPOINTS_H
#define OT_SAVING_FIND_CHECKPOINTS_H

#include "src/checkpoint/catalog.h"

struct ot_found {
    struct ot_checkpoint_list list; /* newest first: the one that is meant, then those that are older */
    bool is_model;                  /* it has a config.json: a model, or a run that came to its end */
};

/* dir: a checkpoint; a directory of them; or one with such a directory, named checkpoints. Errors: OT_E_INPUT
 * (nothing of the kind), OT_E_IO, OT_E_BUDGET. `out` needs ot_found_free in either case. */
int ot_find_checkpoints(const char *dir, struct ot_found *out);
void ot_found_free(struct ot_found *found);

#endif

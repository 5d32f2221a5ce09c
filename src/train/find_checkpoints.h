/* Finds the contents of a directory that the user names: a checkpoint, a run's checkpoints, a model. A GGUF
 * file is a model too. */
#ifndef OT_TRAIN_FIND_CHECKPOINTS_H
#define OT_TRAIN_FIND_CHECKPOINTS_H

#include "src/checkpoint/catalog.h"

struct ot_found {
    struct ot_checkpoint_list list; /* newest first: the chosen checkpoint, then older ones */
    bool is_model; /* a GGUF file, or the directory has a config.json: a model, or the result of a run */
};

/* dir: a checkpoint, a directory of checkpoints, or a directory that contains "checkpoints". Errors:
 * OT_E_INPUT (none of these), OT_E_IO, OT_E_BUDGET. Call ot_found_free on `out` also after an error. */
int ot_find_checkpoints(const char *dir, struct ot_found *out);
void ot_found_free(struct ot_found *found);

#endif

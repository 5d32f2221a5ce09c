/* The checkpoints of a run: the directories step-N in OUT/checkpoints, and which of them stay.
 *
 * Whatever is called otherwise, or has no manifest, is not looked at. What a killed run has left half made
 * (step-N.partial) or half removed is cleared away by ot_checkpoint_tidy, before checkpoints are listed; one
 * that was complete but for its name gets it. And what a run kept on disk for nothing is given back
 * (reclaim.h).
 */
#ifndef OT_CHECKPOINT_CATALOG_H
#define OT_CHECKPOINT_CATALOG_H

#include <stdbool.h>
#include <stdint.h>

#include "src/checkpoint/list.h"

/* No such directory: an empty list. Whether they are whole, ot_checkpoint_open says. Errors: OT_E_IO,
 * OT_E_BUDGET. */
int ot_checkpoint_list_make(const char *parent, struct ot_checkpoint_list *out);
void ot_checkpoint_list_free(struct ot_checkpoint_list *list);
/* "PARENT/step-00000120"; the caller frees it. */
int ot_checkpoint_name(const char *parent, int64_t step, char **out);

/* The manifest goes first, so that half a removal leaves no checkpoint. Symbolic links are not followed.
 * Errors: OT_E_IO, OT_E_INPUT (not the name of one). */
int ot_checkpoint_remove(const char *dir);
/* Removes all but the newest `keep` (>= 1) and that of best_step (< 0: none). Errors: OT_E_IO. */
int ot_checkpoint_prune(const char *parent, int keep, int64_t best_step);
/* Removes all that is of ours in the directory, whole or not; the directory stays. Errors: OT_E_IO. */
int ot_checkpoint_clear(const char *parent);
/* After a run that was killed, and ot_store_remove_stale; logs what it did. What a living process holds
 * stays. Errors: OT_E_IO. */
int ot_checkpoint_tidy(const char *parent);

/* A run that came to its end leaves a mark here: its checkpoints are then not resumed from by themselves.
 * Errors: OT_E_IO. */
int ot_checkpoint_mark_complete(const char *parent);
int ot_checkpoint_clear_complete(const char *parent);
bool ot_checkpoint_is_complete(const char *parent);

#endif

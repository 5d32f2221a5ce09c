/* The catalog of a run's checkpoints: lists, removes and tidies the directories step-N in OUT/checkpoints.
 *
 * A directory counts as a checkpoint if its name is step-N and it has a manifest. Everything else in
 * OUT/checkpoints is ignored. A killed run can leave a directory that is half written (step-N.partial) or
 * half removed. ot_checkpoint_tidy removes such directories before checkpoints are listed. It renames a
 * complete step-N.partial to step-N. It also frees disk blocks that no checkpoint refers to any more
 * (catalog.c).
 *
 * OUT/checkpoints/best has the state of the best evaluation, by the same names: a checkpoint of the weights
 * alone (segment.h), of which a model can be made, but from which no run can resume. Its files are all its
 * own. Clear and tidy look there too; lists do not.
 */
#ifndef OT_CHECKPOINT_CATALOG_H
#define OT_CHECKPOINT_CATALOG_H

#include <stdbool.h>
#include <stdint.h>

/* ---- lists of checkpoints ---- */

/* The catalog makes a list of checkpoints, newest first. */

struct ot_checkpoint_entry {
    int64_t step;
    char *dir; /* path */
};
struct ot_checkpoint_list {
    int n;
    struct ot_checkpoint_entry *entries;
};

/* ---- catalog ---- */

/* Lists the checkpoints, newest first. If the directory does not exist, the list is empty. The list does not
 * say whether a checkpoint is undamaged; ot_checkpoint_open checks that. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_checkpoint_list_make(const char *parent, struct ot_checkpoint_list *out);
void ot_checkpoint_list_free(struct ot_checkpoint_list *list);
/* Writes "PARENT/step-00000120" to *out; the caller frees it. Errors: OT_E_BUDGET. */
int ot_checkpoint_name(const char *parent, int64_t step, char **out);

/* Writes "PARENT/best" to *out; the caller frees it. Errors: OT_E_BUDGET. */
int ot_checkpoint_best_parent(const char *parent, char **out);

/* Returns the index of the checkpoint whose state had the best evaluation, and sets *cost (eval_history.h);
 * of equal ones the oldest. Of evaluations that cannot be compared (struct ot_run_phase) only the latest
 * count. Returns -1 if the state of no readable checkpoint was evaluated. */
int ot_checkpoint_find_best(const struct ot_checkpoint_list *list, double *cost);

/* Removes a checkpoint. The manifest is removed first, so that an interrupted removal leaves no checkpoint.
 * Symbolic links are not followed. Errors: OT_E_IO, OT_E_INPUT (the name is not step-N). */
int ot_checkpoint_remove(const char *dir);
/* Removes all checkpoints but the newest `keep` and the one of best_step (< 0: none). Errors: OT_E_IO,
 * OT_E_BUDGET. */
int ot_checkpoint_prune(const char *parent, int keep, int64_t best_step);
/* Removes all checkpoints, complete or not, the best state, and the mark of a completed run. The directory
 * stays. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_checkpoint_clear(const char *parent);
/* Cleans up after a run that was killed, and logs each change. Call it after ot_store_remove_stale. A
 * directory that a living process has locked stays. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_checkpoint_tidy(const char *parent);

/* A run that reaches its last step marks this directory as complete. --resume auto then does not resume from
 * these checkpoints. Errors: OT_E_IO. */
int ot_checkpoint_mark_complete(const char *parent);
int ot_checkpoint_clear_complete(const char *parent);
bool ot_checkpoint_is_complete(const char *parent);

#endif

/* Watches the numbers of a run. It counts skipped steps and spikes of the loss. After too many skipped steps
 * in a row it finds where numbers stop being finite, and says what the user can do.
 *
 * While fp16's loss scale is being lowered, skipped steps are normal: they do not count as in a row.
 */
#ifndef OT_TRAIN_LOSS_GUARD_H
#define OT_TRAIN_LOSS_GUARD_H

#include "offload/engine/engine.h"
#include "src/data/batch.h"
#include "src/session/session.h"
#include "src/train/rows.h"

struct ot_loss_guard_counts {
    int64_t skipped[OT_SKIP_COUNT]; /* skipped steps, by reason */
    int64_t spikes;                 /* loss spikes, whether the step was skipped or not */
};
int64_t ot_loss_guard_skipped(const struct ot_loss_guard_counts *counts);
/* "skipped 5 steps (3 overflow, 2 gradient) · 1 loss spike"; "" if nothing happened. */
enum { OT_LOSS_GUARD_TEXT_BYTES = 256 };
const char *ot_loss_guard_summary(const struct ot_loss_guard_counts *counts,
                                  char text[OT_LOSS_GUARD_TEXT_BYTES]);
/* The reason of a skipped step, for people: "gradient not finite". */
const char *ot_loss_guard_reason(enum ot_skip skip);

/* "layer.7 is the first block whose output is not finite (its weights are)". gradient: the name of the first
 * slab whose gradient was not finite; NULL: unknown, or not a training step. */
const char *ot_loss_guard_finding(const struct ot_bad_block *found, const char *gradient,
                                  char text[OT_LOSS_GUARD_TEXT_BYTES]);

struct ot_loss_guard {
    int64_t most; /* the limit of steps skipped in a row */
    int64_t in_a_row;
    struct ot_loss_guard_counts *counts;
};
/* Counts a step. Returns true once too many steps in a row were skipped. */
bool ot_loss_guard_add(struct ot_loss_guard *guard, const struct ot_step_result *result);

/* The step that reached the limit. The engine must be drained and all its results collected. */
struct ot_loss_guard_step {
    const struct ot_step_result *result;
    const struct ot_step_batch *batch;
    int64_t micro_sequences; /* sequences in each micro-batch of `batch` */
};
/* Runs the forward pass of the first bad micro-batch again, and fails with OT_E_NUMERIC and its finding. */
int ot_loss_guard_explain(const struct ot_loss_guard *guard, const struct ot_session *session,
                          const struct ot_rows *rows, const struct ot_loss_guard_step *step);

#endif

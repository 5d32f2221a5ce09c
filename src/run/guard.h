/* The guard of a run's numbers: counts the steps that were skipped and the spikes of the loss, and when too
 * many steps in a row were skipped finds out where numbers stop being finite, and says what to do.
 *
 * While fp16's loss scale comes down, steps are skipped as a matter of course: those do not count as in a
 * row. */
#ifndef OT_RUN_GUARD_H
#define OT_RUN_GUARD_H

#include "offload/engine/engine.h"
#include "src/data/batch.h"
#include "src/run/rows.h"
#include "src/session/session.h"

struct ot_guard_counts {
    int64_t skipped[OT_SKIP_COUNT]; /* steps, by why */
    int64_t spikes;                 /* skipped or not */
};
int64_t ot_guard_skipped(const struct ot_guard_counts *counts);
/* "skipped 5 steps (3 overflow, 2 gradient) · 1 loss spike"; "" where there is nothing to tell. */
enum { OT_GUARD_TEXT_BYTES = 256 };
const char *ot_guard_summary(const struct ot_guard_counts *counts, char text[OT_GUARD_TEXT_BYTES]);
/* Why a step was skipped, for people: "gradient not finite". */
const char *ot_guard_reason(enum ot_skip skip);

/* "layer.7 is the first block whose output is not finite (its weights are)". gradient: the name of the slab
 * whose gradient was the first that was not finite; NULL: not known, or no training step. */
const char *ot_guard_finding(const struct ot_bad_block *found, const char *gradient,
                             char text[OT_GUARD_TEXT_BYTES]);

struct ot_guard {
    int64_t most; /* skipped in a row */
    int64_t in_a_row;
    struct ot_guard_counts *counts;
};
/* Returns whether that is too many in a row. */
bool ot_guard_add(struct ot_guard *guard, const struct ot_step_result *result);

/* The step that was too much. The engine is drained, its results are collected. */
struct ot_guard_step {
    const struct ot_step_result *result;
    const struct ot_step_batch *batch;
    int64_t micro_sequences; /* of the batch */
};
/* Runs the first micro-batch that is to blame forward, and fails with what was found: OT_E_NUMERIC. */
int ot_guard_explain(const struct ot_guard *guard, const struct ot_session *session,
                     const struct ot_rows *rows, const struct ot_guard_step *step);

#endif

/* Steps, evaluations and their records, from the first step to the last or to a signal.
 *
 * Two steps are in flight, so that the next forward overlaps the update; before an evaluation the loop lets
 * the engine run dry, and before a checkpoint, which then is written beside the steps that follow. Whatever
 * the intervals of evaluations and checkpoints, the steps are the same steps. A run that goes on from a
 * checkpoint begins with the step after it, at its place in the data. One thread.
 */
#ifndef OT_TRAIN_TRAIN_LOOP_H
#define OT_TRAIN_TRAIN_LOOP_H

#include "src/report/report.h"
#include "src/run/run_identity.h"
#include "src/saving/rescue.h"
#include "src/saving/saver.h"

struct ot_train_loop {
    struct ot_session *session; /* started */
    const struct ot_rows *rows;
    const struct ot_run_shape *shape;
    struct ot_run_log *log;
    const struct ot_run_identity *identity;
    struct ot_saver *saver;                    /* NULL: no checkpoints are made */
    const struct ot_rescue *rescue;            /* with a saver */
    const struct ot_checkpoint_record *resume; /* that the session was restored from; NULL: a new run */
};

/* The engine is drained, and no checkpoint is under way, when this returns 0. A run that was asked to stop
 * has saved what --grace leaves time for, and says so in *out. *end: the record of where the run is then; it
 * borrows from the loop's identity. Errors: OT_E_NUMERIC (many steps in a row
 * without a finite gradient), OT_E_STALL (a checkpoint was made where the engine was consistent), or as the
 * engine or the log failed; what the run has is saved then (rescue.h), and the sentence says where. */
int ot_train_loop_run(const struct ot_train_loop *loop, struct ot_outcome *out,
                      struct ot_checkpoint_record *end);

#endif

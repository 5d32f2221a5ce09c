/* Steps, evaluations and their records, from the first step to the last or to a signal.
 *
 * Two steps are in flight, so that the next forward overlaps the update; before an evaluation the loop lets
 * the engine run dry. Whatever the interval of evaluations, the steps are the same steps. One thread.
 */
#ifndef OT_CLI_TRAIN_LOOP_H
#define OT_CLI_TRAIN_LOOP_H

#include "src/cli/report.h"

struct ot_train_loop {
    struct ot_session *session; /* started */
    const struct ot_rows *rows;
    const struct ot_run_shape *shape;
    struct ot_run_log *log;
};

/* The engine is drained when this returns 0. Errors: OT_E_NUMERIC (many steps in a row without a finite
 * gradient), or as the engine or the log failed. */
int ot_train_loop_run(const struct ot_train_loop *loop, struct ot_outcome *out);

#endif

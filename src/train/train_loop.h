/* Runs the steps and evaluations and records them, from the first step to the last step or to a signal.
 *
 * Two steps are in flight, so that the next forward pass overlaps the update. The loop drains the engine
 * before each evaluation and before each checkpoint. A checkpoint is then written while the next steps run.
 * The intervals of evaluations and checkpoints do not change the steps. With --stop-early an evaluation may
 * end the run before its last step: the run is then finished, not interrupted. A resumed run begins with the
 * step after its checkpoint, at that step's place in the data. Use it from one thread.
 */
#ifndef OT_TRAIN_TRAIN_LOOP_H
#define OT_TRAIN_TRAIN_LOOP_H

#include <stdatomic.h>

#include "src/train/answers.h"
#include "src/train/evaluate.h"
#include "src/train/reference.h"
#include "src/train/rescue.h"
#include "src/train/rows.h"
#include "src/train/run_identity.h"
#include "src/train/run_shape.h"
#include "src/train/saver.h"

/* This rank's requests to stop, evaluate and save, which the engine tells all ranks with each step
 * (engine.h). The caller makes it zero before ot_session_start, with ot_stop_save_requests_tell as
 * session->requests. */
struct ot_stop_save_requests {
    atomic_uint bits;
};
unsigned ot_stop_save_requests_tell(void *me);

struct ot_train_loop {
    struct ot_session *session; /* after ot_session_start */
    const struct ot_rows *rows;
    const struct ot_references *references; /* of the objective */
    struct ot_answers *answers;             /* the rows that evaluations answer; NULL: none */
    const struct ot_run_shape *shape;
    const struct ot_run_times *times; /* predicted, besides steps; NULL: unknown */
    struct ot_run_log *log;
    const struct ot_run_identity *identity;
    struct ot_saver *saver;                    /* NULL: no checkpoints are made */
    const struct ot_rescue *rescue;            /* set if saver is set */
    const char *hosts;                         /* as ot_checkpoint_record has them; NULL: one directory */
    struct ot_stop_save_requests *requests;    /* the requests that the session's engine polls */
    const struct ot_json *history;             /* struct ot_checkpoint_record */
    const struct ot_checkpoint_record *resume; /* the session was restored from this; NULL: a new run */
    /* Called once, when the session has its second forecast (forecast.h). Errors: as ot_run_log_end. */
    int (*report_again)(const struct ot_session *session, struct ot_run_log *log);
};

struct ot_outcome {
    int64_t steps;      /* of the whole run, including those before a resume */
    int64_t first_step; /* the step of the checkpoint that the run resumed from; 0: a new run */
    int64_t tokens;     /* of this process, like the times below */
    double seconds;     /* from the first step's begin to the last step's end, with the work between */
    double last_loss;
    int64_t evals; /* how often, and how long steps stood still for it: */
    double eval_seconds, save_seconds, sample_seconds, result_seconds;
    double step_seconds;  /* of all steps, without that */
    double whole_seconds; /* all of these times, from the evaluation before step 1 to this report */
    struct ot_loss_guard_counts counts;
    bool interrupted;
    bool weights_alone;      /* the weights were saved to OUT, and no checkpoint */
    bool out_of_time;        /* --grace left no time for a checkpoint */
    const char *checkpoint;  /* directory of the newest checkpoint, owned by the saver; NULL: no checkpoint */
    int64_t checkpoint_step; /* -1: no checkpoint */
    struct ot_eval_history history;
    bool stopped_early;  /* --stop-early ended the run */
    int64_t timed_steps; /* full steps in the middle of the run, whose time is timed_seconds */
    double timed_seconds;
    int64_t nvme_read_bytes, nvme_written_bytes; /* by the steps and evaluations */
    int64_t saved_best_step;                     /* of the best state that is saved; -1: none was evaluated */
    double saved_best_cost;
    int64_t result_step; /* of the best state, which the caller loaded after the last step; 0: it did not */
};

/* When this returns 0, the engine is drained and no checkpoint is being written, and it has the state after
 * step out->steps. A run that was asked to stop
 * has saved a checkpoint if --grace left time for it, and *out tells. *end: the record of the run's last
 * step; it borrows from the loop's identity. Errors: OT_E_NUMERIC (many steps in a row without a finite
 * gradient), OT_E_STALL (a checkpoint was made if the engine was consistent), or the errors of the engine and
 * the log. After those errors the run's state is saved (rescue.h), and the error text says where. */
int ot_train_loop_run(const struct ot_train_loop *loop, struct ot_outcome *out,
                      struct ot_checkpoint_record *end);

#endif

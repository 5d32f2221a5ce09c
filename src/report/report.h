/* Reports a run to a person before and after it, and to the log as the "run" event: the machine, the model,
 * the data, and the plan as a table that adds up. The lines go through the log (stderr), so that --quiet
 * silences them. */
#ifndef OT_REPORT_REPORT_H
#define OT_REPORT_REPORT_H

#include "src/report/table.h"
#include "src/run/evaluate.h"
#include "src/run/loss_guard.h"
#include "src/run/rows.h"
#include "src/run/run_log.h"
#include "src/run/run_shape.h"
#include "src/run/run_times.h"
#include "src/run/step_choice.h"
#include "src/session/session.h"

struct ot_report {
    const struct ot_session *session; /* has a plan */
    const struct ot_rows *rows;
    const struct ot_run_shape *shape;
    const struct ot_run_times *times;           /* predicted times of the work besides steps */
    const struct ot_step_choice *choice;        /* of --tokens-per-step auto; n 0: none was made */
    const struct ot_checkpoint_record *resumed; /* the run resumes from this; NULL: a new run */
    const char *out;                            /* the output directory; NULL: the run keeps nothing */
    int64_t save_bytes, disk_free_bytes;        /* disk_free_bytes < 0: unknown */
    bool has_places;                            /* hosts do not share OUT (--save-local) */
};

/* All memory that the budgets bound: the plan's bytes, scratch of the device's ops, the cache for the
 * sample's answer, the rows, and rank 0's memory to collect the model for saving. */
struct ot_ledger ot_report_ledger(const struct ot_report *report);
void ot_report_print(const struct ot_report *report);
/* True if a host keeps only the checkpoint parts of its own ranks. */
bool ot_report_is_local(const struct ot_report *report);
/* Call this once the engine is open. Prints how the engine reaches the disks, if there are any. */
void ot_report_print_store(const struct ot_report *report);
/* Writes the "run" event. If the engine is open, the event says how the disks are reached. Errors: as
 * ot_run_log_end. */
int ot_report_record(const struct ot_report *report, struct ot_run_log *log);

/* Call this once the session has a second forecast (forecast_again.h). Prints a line if it differs from the
 * first, and writes the "predicted_again" event. Errors: as ot_run_log_end. */
int ot_report_forecast_again(const struct ot_session *session, struct ot_run_log *log);

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
    bool has_eval;
    int64_t eval_step;   /* the step of the last evaluation */
    int64_t timed_steps; /* full steps in the middle of the run, whose time is timed_seconds */
    double timed_seconds;
    int64_t nvme_read_bytes, nvme_written_bytes; /* by the steps and evaluations */
    double first_eval, last_eval;
    int64_t best_step; /* of the best evaluation; 0: none was made after step 1 */
    double best_eval;
    int64_t kept_step; /* of the best checkpoint; -1: no checkpoint's state was evaluated */
    double kept_eval;
};
/* Checks that --trace FILE may be written: a file of another program is replaced only with --force. Errors:
 * OT_E_INPUT, OT_E_IO. */
int ot_report_check_trace(const struct ot_options *options);
/* With --trace: writes the trace and prints the time of each lane. Call this after the model was saved, so
 * that a failure here cannot prevent the save. Errors: as ot_report_check_trace and ot_trace_write. */
int ot_report_trace(const struct ot_report *report, struct ot_run_log *log);
/* "14s = 6 steps 0.7s + 2 evaluations 10.3s + saving 0.4s + sample 0.6s + other work 0.2s" */
const char *ot_report_spent(const struct ot_outcome *outcome, char line[OT_TABLE_LINE_BYTES]);
/* Prints the summary after the model was saved: predicted and measured time and memory, the place of the
 * result, the next command. */
void ot_report_done(const struct ot_report *report, const struct ot_outcome *outcome);
int ot_report_record_done(const struct ot_report *report, const struct ot_outcome *outcome,
                          struct ot_run_log *log);

/* Prints a generated answer to a held-out prompt, and writes it as an event. */
int ot_report_sample(struct ot_run_log *log, int64_t step, const char *prompt, const char *text);

#endif

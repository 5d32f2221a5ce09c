/* Reports a run to a person before and after it, and to the log as the "run" event: the machine, the model,
 * the data, and the plan as a table that adds up. The lines go through the log (stderr), so that --quiet
 * silences them. */
#ifndef OT_REPORT_REPORT_H
#define OT_REPORT_REPORT_H

#include "src/report/table.h"
#include "src/session/open.h"
#include "src/train/evaluate.h"
#include "src/train/rows.h"
#include "src/train/run_log.h"
#include "src/train/run_shape.h"
#include "src/train/train_loop.h"

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

/* All memory that the budgets bound: the plan's bytes, scratch of the device's ops, the rows, and rank 0's
 * memory to gather the model for saving. */
struct ot_ledger ot_report_ledger(const struct ot_report *report);
void ot_report_print(const struct ot_report *report);
/* True if a host keeps only the checkpoint parts of its own ranks. */
bool ot_report_is_local(const struct ot_report *report);
/* Call this once the engine is open. Prints how the engine reaches the disks, if there are any. */
void ot_report_print_store(const struct ot_report *report);
/* Writes the "run" event. If the engine is open, the event says how the disks are reached. Errors: as
 * ot_run_log_end. */
int ot_report_record(const struct ot_report *report, struct ot_run_log *log);

/* Call this once the session has a second forecast (forecast.h). Prints a line if it differs from the
 * first, and writes the "predicted_again" event. Errors: as ot_run_log_end. */
int ot_report_forecast_again(const struct ot_session *session, struct ot_run_log *log);

/* Checks that --trace FILE may be written: a file of another program is replaced only with --force. Errors:
 * OT_E_INPUT, OT_E_IO. */
int ot_report_check_trace(const struct ot_options *options);
/* With --trace: writes the traces of all ranks and prints the time of each lane. Call this after the model
 * was saved, so that a failure here cannot prevent the save. Errors: as ot_report_check_trace and
 * ot_trace_write. */
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

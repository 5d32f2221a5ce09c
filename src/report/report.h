/* What a person reads before and after a run, and the same facts as the "run" event of the log: the machine,
 * the model, the data, and the plan as a table that adds up. Lines go through the log (stderr), so --quiet
 * silences them.
 */
#ifndef OT_REPORT_REPORT_H
#define OT_REPORT_REPORT_H

#include "src/report/table.h"
#include "src/run/evaluate.h"
#include "src/run/guard.h"
#include "src/run/rows.h"
#include "src/run/run_log.h"
#include "src/run/run_shape.h"
#include "src/session/session.h"

struct ot_report {
    const struct ot_session *session; /* with a plan */
    const struct ot_rows *rows;
    const struct ot_run_shape *shape;
    const struct ot_checkpoint_record *resumed; /* what the run goes on from; NULL: it began anew */
    const char *out;                            /* the output directory; NULL: nothing is kept */
    int64_t save_bytes, disk_free_bytes;        /* disk_free_bytes < 0: unknown */
};

void ot_report_print(const struct ot_report *report);
/* Once the engine is open: how the disks are reached, where there are any. */
void ot_report_print_store(const struct ot_report *report);
/* Writes the "run" event, which has that as well when the engine is open. Errors: as ot_run_log_end. */
int ot_report_record(const struct ot_report *report, struct ot_run_log *log);

struct ot_outcome {
    int64_t steps;      /* of the run, with those before the checkpoint that it went on from: */
    int64_t first_step; /* that one's */
    int64_t tokens;     /* of this process, as are the times */
    double seconds, last_loss;
    struct ot_guard_counts counts;
    bool interrupted;
    bool weights_alone;      /* but for the weights, which are in OUT */
    bool out_of_time;        /* --grace left no time for a checkpoint */
    const char *checkpoint;  /* the newest one's directory; NULL: there is none. The saver's */
    int64_t checkpoint_step; /* -1: there is none */
    bool has_eval;
    int64_t eval_step;   /* of the last evaluation */
    int64_t timed_steps; /* full ones that followed two others: */
    double timed_seconds;
    int64_t nvme_read_bytes, nvme_written_bytes; /* by the steps and evaluations */
    double first_eval, last_eval;
};
/* --trace replaces no file of another program without --force. Errors: OT_E_INPUT, OT_E_IO. */
int ot_report_check_trace(const struct ot_options *options);
/* With --trace: writes it (after the model was saved: nothing may come between) and says what the lanes did.
 * Errors: as ot_report_check_trace and ot_trace_write. */
int ot_report_trace(const struct ot_report *report, struct ot_run_log *log);
/* The summary, after the model was saved: predicted against measured time and memory, where the result is,
 * what to do next. */
void ot_report_done(const struct ot_report *report, const struct ot_outcome *outcome);
int ot_report_record_done(const struct ot_report *report, const struct ot_outcome *outcome,
                          struct ot_run_log *log);

/* A generated answer to a held-out prompt, also as an event. */
int ot_report_sample(struct ot_run_log *log, int64_t step, const char *prompt, const char *text);

#endif

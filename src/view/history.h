/* A run, read back from its output directory: OUT/log.jsonl (src/train/run_log.h) and, without a log,
 * OUT/run.json. `watch` reads what is new in the log again and again, `report` reads it once.
 *
 * The files are of any version of the program, and may be damaged: a line that is not a JSON object with an
 * event is left out and counted, and so is a line above OT_HISTORY_LINE_BYTES. A last line without its
 * newline waits for the rest. Memory is bounded, whatever the size of the log: curves (curve.h), at most
 * OT_HISTORY_EVALS evaluations and OT_HISTORY_SAMPLES samples, and the last event of each other kind.
 *
 * A resumed run writes "run" again. Steps that it makes again replace the earlier ones. One thread.
 */
#ifndef OT_VIEW_HISTORY_H
#define OT_VIEW_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

#include "src/base/json.h"
#include "src/view/curve.h"

enum {
    OT_HISTORY_LINE_BYTES = 4 << 20,
    OT_HISTORY_EVALS = 1000,
    OT_HISTORY_SAMPLES = 8,
    OT_HISTORY_TAIL = 64
};

#define OT_HISTORY_MOST 1e15 /* the largest real number that is taken from a log */

enum ot_run_state {
    OT_RUN_WAITS,   /* there is no log yet */
    OT_RUN_RUNS,    /* the log has no end, and a process holds it, or it is seconds old */
    OT_RUN_DONE,    /* finished */
    OT_RUN_STOPPED, /* by a signal */
    OT_RUN_FAILED,  /* ended with an error, which the log has */
    OT_RUN_GONE     /* the log has no end, and no process holds it: killed, or lost with its machine */
};

struct ot_history_step { /* the last step; NaN: the log does not say */
    int64_t step;        /* 0: none yet */
    double epoch, loss, grad_norm, lr, tokens_per_s, seconds, roof_share;
    double gpu_bytes, host_bytes, nvme_read_bytes, nvme_written_bytes;
};

struct ot_history_eval {
    int64_t step, rows;
    double loss, accuracy, margin, exact_match, equal_results, seconds; /* NaN: not measured */
};

/* The last event of a kind, since the last "run". */
enum ot_history_event {
    OT_HISTORY_RUN,
    OT_HISTORY_RESUME,
    OT_HISTORY_AGAIN,
    OT_HISTORY_CHECKPOINT,
    OT_HISTORY_BEST,
    OT_HISTORY_LOST, /* checkpoint_failed, best_failed */
    OT_HISTORY_TRACE,
    OT_HISTORY_DONE,
    OT_HISTORY_FAILED,
    OT_HISTORY_EVENTS
};

struct ot_history {
    char *dir, *name; /* the name is the directory as text that may be shown */
    struct ot_json *last[OT_HISTORY_EVENTS];
    struct ot_json *config;                      /* run.json; NULL: not needed, or there is none */
    struct ot_json *samples[OT_HISTORY_SAMPLES]; /* the newest events "sample" */
    struct ot_history_step step;
    struct ot_history_eval evals[OT_HISTORY_EVALS]; /* in the order of steps; the last one is the newest */
    int n_samples, n_evals;
    struct ot_curve loss, rate, norm, lr, eval_loss; /* rate: tokens a second */
    int64_t skipped, spikes, not_finite;             /* steps */
    int64_t left_out;                                /* lines */
    double mean_seconds;          /* of a step: a running mean in which each counts 1/20, or 1/n of n steps */
    int64_t timed_steps;          /* since the last "run" */
    double step_seconds;          /* sum since the last "run" */
    double began, last_step_time; /* Unix time of the last "run" and of the last step; 0: unknown */
    double changed;               /* Unix time of the last change of the log; 0: there is none */
    /* Private: the open log */
    char *path;
    int fd;
    int64_t read_to;
    char tail[OT_HISTORY_TAIL]; /* the bytes before read_to */
    char *line;                 /* a line that has no newline yet */
    size_t line_bytes, line_capacity;
    bool skips_line; /* the line is too long */
};

/* Opens the directory of a run, and reads nothing. may_wait: the directory may come later. Errors: OT_E_IO
 * (no such directory), OT_E_BUDGET. */
int ot_history_open(const char *dir, bool may_wait, struct ot_history **out);
void ot_history_close(struct ot_history *history); /* NULL is fine */
/* Reads at most `most` new bytes of the log, from its beginning if the log is another file, or has been cut
 * and written again. Returns 1 if there may be more to read now, else 0. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_history_read(struct ot_history *history, int64_t most);

/* Asks the system who holds the log, if the log alone does not tell. */
enum ot_run_state ot_history_state(const struct ot_history *history);
/* The steps of the whole run; 0: unknown. */
int64_t ot_history_steps(const struct ot_history *history);
/* Seconds until the last step, for a run that is at `now`, in Unix time: the mean time of the last steps,
 * longer by the share of other work (evaluations, saving) so far. NaN: unknown. */
double ot_history_left(const struct ot_history *history, double now);
/* The options: of the last "run", else of run.json. NULL: unknown. */
const struct ot_json *ot_history_options(const struct ot_history *history);
/* The source of an option, such as "default"; NULL: unknown. */
const char *ot_history_source(const struct ot_history *history, const char *option);
/* The evaluation with the lowest loss; NULL: none. */
const struct ot_history_eval *ot_history_best(const struct ot_history *history);
/* The number at a path of keys in the last event of this kind, "prediction.step_seconds"; NaN: none. */
double ot_history_number(const struct ot_history *history, enum ot_history_event event, const char *path);

#endif

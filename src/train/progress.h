/* Shows how far a run is: a line at intervals and, on a terminal, a bar below the lines that is redrawn.
 *
 * All time counts, also that of evaluations and checkpoints. The time left is that of the steps, from a
 * running mean in which each step counts 1/20, and that of the evaluations and checkpoints still to come,
 * from the mean of those so far. So the estimate follows a machine that becomes slower, and neither one
 * slow step nor an evaluation changes it much. Tokens a second are tokens divided by all time, where
 * earlier steps count less: 19/20 of the step after them.
 */
#ifndef OT_TRAIN_PROGRESS_H
#define OT_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "src/options/options.h"
#include "src/train/run_log.h"
#include "src/train/run_shape.h"

enum ot_pause { OT_PAUSE_EVAL, OT_PAUSE_SAVE, OT_PAUSE_OTHER, OT_PAUSES };

struct ot_progress {
    int64_t steps; /* of the whole run */
    struct ot_every every;
    bool terminal;
    double mean_seconds;                  /* running mean of a step, without pauses */
    double recent_tokens, recent_seconds; /* sums in which each step counts 19/20 of the next; with pauses */
    double counted_to;                    /* ot_clock_seconds() up to which time is counted */
    double paused;                        /* since then */
    struct {
        int64_t n;
        double seconds;  /* of all */
        double expected; /* of one, until there is a first */
    } pauses[OT_PAUSES];
    double ending;                          /* expected after the last step: sample and result */
    double last_line;                       /* ot_clock_seconds() of the last line; 0: none yet */
    size_t told_gpu_bytes, told_host_bytes; /* memory in the last line that had it */
};

/* expected: NULL: nothing is known about pauses before the first. */
void ot_progress_open(struct ot_progress *progress, int64_t steps, struct ot_every every, bool terminal,
                      const struct ot_run_times *expected);
/* From `now` on, time counts for tokens a second. */
void ot_progress_start(struct ot_progress *progress, double now);
/* Reports a pause of `seconds`, in which no step ran. */
void ot_progress_pause(struct ot_progress *progress, enum ot_pause kind, double seconds);
double ot_progress_paused(const struct ot_progress *progress); /* seconds of all pauses */
/* Counts the step. Returns true if a line is due now. */
bool ot_progress_add(struct ot_progress *progress, const struct ot_step_report *step, double now);
/* left: the evaluations and checkpoints after step `step` and later ones. */
double ot_progress_seconds_left(const struct ot_progress *progress, int64_t step, struct ot_run_counts left);

enum { OT_PROGRESS_LINE_BYTES = 384 };
/* "step  44/264 ETA 2h40m loss 0.538 |g| 1.3 lr 9.5e-06 1,517 tok/s roof 62 % gpu 14.7 GiB host 43.2 GiB";
 * the roof only if it is known, memory only if it is not as in the last line. */
void ot_progress_line(const struct ot_progress *progress, const struct ot_step_report *step,
                      struct ot_run_counts left, char line[OT_PROGRESS_LINE_BYTES]);
/* "[###.................] 44/264 ETA 2h40m loss 0.538 1,517 tok/s ..." */
void ot_progress_bar(const struct ot_progress *progress, const struct ot_step_report *step,
                     struct ot_run_counts left, char line[OT_PROGRESS_LINE_BYTES]);
/* Counts the step. Prints on stderr the line, if one is due, and on a terminal the bar. */
void ot_progress_show(struct ot_progress *progress, const struct ot_step_report *step,
                      const struct ot_run_calendar *calendar);

#endif

/* Shows how far a run is: a line at intervals and, on a terminal, a bar below the lines that is redrawn.
 *
 * The time left comes from a running mean of step times in which each step counts 1/20. The mean follows a
 * machine that becomes slower, and one slow step does not change it much.
 */
#ifndef OT_TRAIN_PROGRESS_H
#define OT_TRAIN_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "src/options/options.h"
#include "src/run/run_log.h"

struct ot_progress {
    int64_t steps; /* of the whole run */
    struct ot_every every;
    bool terminal;
    double mean_seconds, mean_tokens; /* running means per step */
    double last_line;                 /* ot_clock_seconds() of the last line; 0: none yet */
};

void ot_progress_open(struct ot_progress *progress, int64_t steps, struct ot_every every, bool terminal);
/* Counts the step. Returns true if a line is due now. */
bool ot_progress_add(struct ot_progress *progress, const struct ot_step_record *step, double now);
double ot_progress_seconds_left(const struct ot_progress *progress, int64_t step);

enum { OT_PROGRESS_LINE_BYTES = 320 };
/* "step  44/264 loss 0.538 |g| 1.3 lr 9.5e-06 1,517 tok/s gpu 14.7 GiB host 43.2 GiB ETA 2h40m" */
void ot_progress_line(const struct ot_progress *progress, const struct ot_step_record *step,
                      char line[OT_PROGRESS_LINE_BYTES]);
/* "[###.................] 44/264 ETA 2h40m loss 0.538 1,517 tok/s ..." */
void ot_progress_bar(const struct ot_progress *progress, const struct ot_step_record *step,
                     char line[OT_PROGRESS_LINE_BYTES]);
/* Counts the step. Prints on stderr the line, if one is due, and on a terminal the bar. */
void ot_progress_show(struct ot_progress *progress, const struct ot_step_record *step);

#endif

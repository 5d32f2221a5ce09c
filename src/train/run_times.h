/* The times of a run's work besides steps: evaluations, checkpoints that steps wait for, the sample, saving
 * the model. Before step 1 the times are predicted. As soon as the run has done one of these, its progress
 * takes the measured time. */
#ifndef OT_TRAIN_RUN_TIMES_H
#define OT_TRAIN_RUN_TIMES_H

#include "src/train/rows.h"
#include "src/train/run_shape.h"

/* When a run does something besides steps. */
struct ot_run_calendar {
    const struct ot_options *options;
    const struct ot_run_shape *shape;
    bool evaluates, saves;
};

/* The step after which the next evaluation is due, later than `step`. By the clock, and without
 * evaluations: the last step. */
int64_t ot_calendar_next_eval(const struct ot_run_calendar *calendar, int64_t step);

struct ot_run_counts {
    int64_t evals, saves;
};
/* Counts the work due after step `first` and after later steps; first 0: also the work before step 1. Work
 * due by the clock is counted as if only steps took time. */
struct ot_run_counts ot_calendar_count(const struct ot_run_calendar *calendar, int64_t first,
                                       double step_seconds);

struct ot_run_times { /* seconds: eval, save: of each */
    struct ot_run_counts counts;
    double eval, save, sample, result;
};
/* result_bytes, checkpoint_bytes: that the run writes; 0: nothing. sample_tokens: generated at the end.
 * first: as above. Without a forecast all times are 0. Errors: as ot_forecast_passes. */
struct ot_run_work {
    int64_t first, result_bytes, checkpoint_bytes, sample_tokens;
};
int ot_run_times_predict(const struct ot_session *session, const struct ot_rows *rows,
                         const struct ot_run_shape *shape, const struct ot_run_work *work,
                         struct ot_run_times *out);
/* The sum, without steps. */
double ot_run_times_sum(const struct ot_run_times *times);

#endif

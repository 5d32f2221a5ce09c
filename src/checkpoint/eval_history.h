/* The evaluations of a run: which one is the best, and whether the run should stop early.
 *
 * METRIC. What best means: the lowest loss; the highest accuracy, the share of trained tokens of which no
 * other token has a larger logit; or the largest share of generated answers that match the rows' own, or
 * that have the right results when they are executed (train/answers.h). An evaluation before step 1 measures
 * the base, so it is never the best one of the run: every later one takes its place.
 *
 * BEST. The evaluation that is better than all before it, so of equal ones the first.
 *
 * PATIENCE (--stop-early PATIENCE,DELTA). An evaluation brings a gain if it is better than the best one
 * before it by more than DELTA. The run stops after PATIENCE evaluations in a row without a gain. A smaller
 * gain makes a new best one, but is not counted as a gain (as EarlyStoppingCallback of transformers does).
 *
 * The history is a part of the record of each checkpoint, so a run that stops and resumes ends after the same
 * step as a run that never stopped.
 */
#ifndef OT_CHECKPOINT_EVAL_HISTORY_H
#define OT_CHECKPOINT_EVAL_HISTORY_H

#include <stdbool.h>
#include <stdint.h>

/* In the order of --eval-metric. */
enum ot_eval_metric { OT_EVAL_LOSS, OT_EVAL_ACCURACY, OT_EVAL_MATCH, OT_EVAL_EXECUTION, OT_EVAL_METRICS };
const char *ot_eval_metric_name(enum ot_eval_metric metric); /* "loss", ..., "execution" */

struct ot_eval_score {
    double loss, accuracy;   /* accuracy NaN: unknown (checkpoints of older versions) */
    double match, execution; /* NaN: not measured */
};
/* The lower the better: the loss, or a share times -1. NaN: unknown. */
double ot_eval_cost(enum ot_eval_metric metric, const struct ot_eval_score *score);
/* "eval 0.4312", "accuracy 87.31 %" */
enum { OT_EVAL_TEXT_BYTES = 32 };
const char *ot_eval_cost_text(enum ot_eval_metric metric, double cost, char text[OT_EVAL_TEXT_BYTES]);

struct ot_eval_history {
    enum ot_eval_metric metric;
    bool has_any;                 /* an evaluation was made; false: all below is 0 */
    int64_t last_step, best_step; /* best_step 0: none was made after step 1 */
    struct ot_eval_score first, last, best;
    int64_t without_gain; /* evaluations in a row */
};

/* Adds an evaluation after step `step`. Returns true if it is the best one. */
bool ot_eval_history_add(struct ot_eval_history *history, int64_t step, const struct ot_eval_score *score,
                         double delta);
/* True if the run stops after step `step`: the state of that step was evaluated, and patience (0: unlimited)
 * is over. */
bool ot_eval_history_stops(const struct ot_eval_history *history, int64_t step, int64_t patience);
/* The cost of the state after step `step`. NaN: that state was not evaluated. An older evaluation says
 * nothing about it. */
double ot_eval_history_cost(const struct ot_eval_history *history, int64_t step);

#endif

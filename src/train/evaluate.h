/* Evaluates an engine's present weights on packed rows (loss and accuracy), and watches the losses of a run
 * (the loss guard). The sum of losses is in double: over the trained tokens of each micro-batch, then over
 * the micro-batches, in file order. Accuracy is a count. Of an objective that compares answers, the loss is
 * the mean over comparisons, and accuracy is the share of right ones. Several ranks take the micro-batches in
 * turn; the result is the same, and every rank gets it. */
#ifndef OT_TRAIN_EVALUATE_H
#define OT_TRAIN_EVALUATE_H

#include <stdbool.h>
#include <stdint.h>

#include "offload/engine/engine.h"
#include "src/data/batch.h"
#include "src/session/open.h"
#include "src/train/rows.h"

struct ot_comm;
struct ot_dataset;
struct ot_engine;
struct ot_packing;

/* A forward pass has one micro-batch, or one for each prompt that it reads. So the plan of a command that
 * does not train does not grow with the rows: it has places for at most this many. The schedule of 128 blocks
 * has room for them. */
enum { OT_EVAL_MOST_MICRO_BATCHES = 128 };

struct ot_evaluation {
    const struct ot_dataset *dataset;
    struct ot_packing *packing; /* not shuffled; its epoch is set to 0 */
    int64_t seq_len, micro_sequences;
    struct ot_objective objective; /* SFT: rows are not compared */
    const float *references;       /* as in batch.h */
    struct ot_comm *comm;          /* NULL: one rank */
    bool (*stopped)(void); /* called before each step: true ends the evaluation; NULL: never ends early */
};

struct ot_eval_result {
    double loss;                      /* mean over trained tokens */
    double accuracy;                  /* share of trained tokens of which no other token has a larger logit */
    struct ot_compare_means compared; /* if rows are compared */
    int64_t trained_tokens, rows;
    double seconds;
    bool stopped; /* ended early: the other members mean nothing */
};

/* The engine must be drained. Errors: OT_E_BUDGET, OT_E_INPUT (no rows), OT_E_DEVICE, OT_E_NUMERIC (the loss
 * is not finite). */
int ot_evaluate(struct ot_engine *engine, const struct ot_evaluation *evaluation, struct ot_eval_result *out);

/* The means of a step's comparisons; zeros if it compares nothing. */
struct ot_compare_means ot_step_means(const struct ot_options *options, const struct ot_step_result *result);

/* ---- the loss guard ---- */

/* Watches the numbers of a run. It counts skipped steps and spikes of the loss. After too many skipped steps
 * in a row it finds where numbers stop being finite, and says what the user can do.
 *
 * While fp16's loss scale is being lowered, skipped steps are normal: they do not count as in a row.
 */

struct ot_loss_guard_counts {
    int64_t skipped[OT_SKIP_COUNT]; /* skipped steps, by reason */
    int64_t spikes;                 /* loss spikes, whether the step was skipped or not */
};
int64_t ot_loss_guard_skipped(const struct ot_loss_guard_counts *counts);
/* "skipped 5 steps (3 overflow, 2 gradient) · 1 loss spike"; "" if nothing happened. */
enum { OT_LOSS_GUARD_TEXT_BYTES = 256 };
const char *ot_loss_guard_summary(const struct ot_loss_guard_counts *counts,
                                  char text[OT_LOSS_GUARD_TEXT_BYTES]);
/* The reason of a skipped step, for people: "gradient not finite". */
const char *ot_loss_guard_reason(enum ot_skip skip);

/* "layer.7 is the first block whose output is not finite (its weights are)". gradient: the name of the first
 * slab whose gradient was not finite; NULL: unknown, or not a training step. */
const char *ot_loss_guard_finding(const struct ot_bad_block *found, const char *gradient,
                                  char text[OT_LOSS_GUARD_TEXT_BYTES]);

struct ot_loss_guard {
    int64_t most; /* the limit of steps skipped in a row */
    int64_t in_a_row;
    struct ot_loss_guard_counts *counts;
};
/* Counts a step. Returns true once too many steps in a row were skipped. */
bool ot_loss_guard_add(struct ot_loss_guard *guard, const struct ot_step_result *result);

/* The step that reached the limit. The engine must be drained and all its results collected. */
struct ot_loss_guard_step {
    const struct ot_step_result *result;
    const struct ot_step_batch *batch;
    int64_t micro_sequences; /* sequences in each micro-batch of `batch` */
};
/* Runs the forward pass of the first bad micro-batch again, and fails with OT_E_NUMERIC and its finding. */
int ot_loss_guard_explain(const struct ot_loss_guard *guard, const struct ot_session *session,
                          const struct ot_rows *rows, const struct ot_loss_guard_step *step);

#endif

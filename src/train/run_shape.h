/* The size of a run: sequences, steps, learning rates and times, from the options and the counts of data and
 * model. --dry-run, the log, tests and training all use this. Options that were not given are chosen here and
 * written into the settings. */
#ifndef OT_TRAIN_RUN_SHAPE_H
#define OT_TRAIN_RUN_SHAPE_H

#include <stdint.h>

#include "src/checkpoint/record.h"
#include "src/options/options.h"
#include "src/options/schedule_lr.h"
#include "src/options/settings.h"
#include "src/train/rows.h"

enum { OT_DEFAULT_EPOCHS = 3, OT_DEFAULT_STEP_TOKENS = 64 * 1024 };

struct ot_run_shape {
    int64_t seq_len, step_sequences;
    int64_t sequences, steps_per_epoch; /* in one epoch; the last step of an epoch may have fewer sequences */
    struct ot_lr_schedule lr;           /* lr.steps: steps of the whole run */
    struct ot_run_phase phase;
};

/* --seq-len, or a default that is within the model's positions and a step's tokens. Errors: OT_E_USAGE
 * (longer than the model's positions). */
int ot_shape_seq_len(struct ot_settings *settings, int64_t max_position, int64_t *seq_len);
/* --beta, for an objective that compares. */
void ot_shape_choose_beta(struct ot_settings *settings);
/* --epochs, --lr and --beta, which do not depend on the step. params: of the model. */
void ot_shape_choose(struct ot_settings *settings, int64_t params);
/* Everything else, once --tokens-per-step is chosen. sequences: in one epoch. phase NULL: of a run that never
 * changed. --steps and --epochs count from the first step of the run. Errors: OT_E_USAGE (a warm-up longer
 * than the run, a micro-batch larger than a step). */
int ot_shape_run(struct ot_settings *settings, int64_t seq_len, int64_t sequences,
                 const struct ot_run_phase *phase, struct ot_run_shape *out);

/* The position in the rows at which the step after `step` begins. step >= phase.rows_first. */
struct ot_data_position ot_shape_position(const struct ot_run_shape *shape, int64_t step);
/* The first step after `step` that ends an epoch. */
int64_t ot_shape_epoch_end(const struct ot_run_shape *shape, int64_t step);

/* Sequences in a step, from --tokens-per-step. The default is OT_DEFAULT_STEP_TOKENS, or a fiftieth of an
 * epoch if an epoch of this many sequences would have fewer than 50 such steps. */
int64_t ot_shape_step_sequences(const struct ot_options *options, int64_t seq_len, int64_t sequences);

/* Steps of a run: --steps, or the steps of its epochs. sequences: in one epoch; 0: unknown, then only --steps
 * counts. */
int64_t ot_shape_steps(const struct ot_options *options, int64_t sequences, int64_t step_sequences);

/* Steps of a run through the same data with steps of twice the sequences. */
int64_t ot_shape_half_steps(const struct ot_options *options, int64_t sequences, int64_t step_sequences);

/* "14,336 = 7 x 2048 tokens a step (16,000 rounded down)" */
enum { OT_STEP_TEXT_BYTES = 128 };
const char *ot_shape_step_text(const struct ot_options *options, int64_t step_sequences, int64_t seq_len,
                               char text[OT_STEP_TEXT_BYTES]);

/* The length of the run: "94 x 3 epochs = 282 steps" */
const char *ot_shape_length_text(const struct ot_options *options, const struct ot_run_shape *shape,
                                 char text[OT_STEP_TEXT_BYTES]);

/* The learning rates of a run of `steps` steps, whose schedule begins after step `first`. Errors: OT_E_USAGE
 * (a warm-up longer than the steps that are left for it). */
int ot_shape_schedule(const struct ot_options *options, int64_t first, int64_t steps,
                      struct ot_lr_schedule *out);

/* The default learning rate: 3e-5 / sqrt(parameters / 1e9), from 1e-5 to 1e-3, rounded to one digit. Training
 * from random weights takes ten times as much, at most 3e-3. The square root follows published recipes for
 * random weights (Brown et al. 2020, table 2.1: 6e-4 at 125M to 1.2e-4 at 6.7B). */
double ot_shape_default_lr(int64_t params, bool from_random);

/* ---- times of a run ---- */

/* The times of a run's work besides steps: evaluations, checkpoints that steps wait for, the sample, saving
 * the model. Before step 1 the times are predicted. As soon as the run has done one of these, its progress
 * takes the measured time. */

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
/* result_bytes, checkpoint_bytes: that the run writes; 0: nothing. eval_sequences: of an evaluation; 0: there
 * is none. sample_tokens: generated at the end; OT_SAMPLE_TOKENS of them, if there is a row to answer. first:
 * as above. Errors: as ot_forecast_passes. */
enum { OT_SAMPLE_TOKENS = 96 };
struct ot_run_work {
    const struct ot_options *options;
    const struct ot_run_shape *shape;
    int64_t first, result_bytes, checkpoint_bytes, eval_sequences, sample_tokens;
    int64_t answers, answer_tokens; /* rows that an evaluation answers, and tokens of the longest answer */
};
int ot_run_times_predict(const struct ot_run_work *work, const struct ot_chain *chain,
                         const struct ot_plan *plan, const struct ot_costs *costs, double step_seconds,
                         struct ot_run_times *out);
/* The sum, without steps. */
double ot_run_times_sum(const struct ot_run_times *times);

/* ---- the choice of a step ---- */

/* Chooses the number of tokens of a step, for --tokens-per-step auto:MIN..MAX.
 *
 * A step of more tokens reaches more tokens a second, until the device computes all the time: its transfers
 * and updates are the same as those of a small step. But it takes fewer steps through the same data, and most
 * runs want many steps. So the choice is the candidate with the fewest tokens whose predicted tokens a second
 * are within OT_PLANNER_RESOLUTION of the best candidate's. Smaller differences are noise of the prediction.
 *
 * CANDIDATES are MIN, its doublings below MAX, and MAX. MIN is rounded up to whole sequences, MAX down. A
 * step is at least one micro-batch, if --micro-batch gives it, and at most an epoch. A candidate drops out if
 * no plan fits it, or if the run would have fewer steps than its warm-up. MAX is at most 64 times MIN, so
 * there are at most 7 candidates. Planning a step of 7 billion parameters takes about a second, so a choice
 * takes a few seconds, and never more than about seven.
 *
 * The choice changes the result of training and depends on the machine. So it is made only if the user asks
 * for it, and once: it is printed, and run.json and the checkpoints have the number as if the user had given
 * it. A resumed run takes the number of its checkpoint, which must lie within MIN..MAX. All ranks take the
 * choice of rank 0. --deterministic world refuses auto, because other numbers of ranks predict other rates.
 */

struct ot_step_candidate {
    int64_t sequences, tokens;
    int64_t steps; /* of the run; 0: unknown */
    double step_seconds;
    double tokens_per_second; /* 0: no plan fits */
};

enum { OT_STEP_CANDIDATES = 7 };
struct ot_step_choice {
    int n; /* 0: there was nothing to choose */
    int chosen;
    struct ot_step_candidate candidates[OT_STEP_CANDIDATES]; /* fewest tokens first */
};

/* True if --tokens-per-step auto is given and the number is not chosen yet. */
bool ot_step_is_open(const struct ot_options *options);

/* Predicts a step of candidate->sequences. Errors: OT_E_BUDGET: no plan fits. */
typedef int ot_step_predict(void *context, struct ot_step_candidate *candidate);

/* Predicts each candidate, the largest first, and chooses. sequences: of an epoch; 0: unknown. If no
 * candidate fits, the choice is the smallest. Errors: OT_E_USAGE (no step lies within the bounds); as
 * predict, but for OT_E_BUDGET. */
int ot_step_choice_make(const struct ot_options *options, int64_t seq_len, int64_t sequences,
                        ot_step_predict *predict, void *context, struct ot_step_choice *out);

#endif

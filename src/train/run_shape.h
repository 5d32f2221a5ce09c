/* The size of a run: sequences, steps and learning rates, from the options and the counts of data and model.
 * --dry-run, the log, tests and training all use this. Options that were not given are chosen here and
 * written into the settings. */
#ifndef OT_TRAIN_RUN_SHAPE_H
#define OT_TRAIN_RUN_SHAPE_H

#include <stdint.h>

#include "src/options/schedule_lr.h"
#include "src/options/settings.h"

enum { OT_DEFAULT_EPOCHS = 3, OT_DEFAULT_STEP_TOKENS = 64 * 1024 };

struct ot_run_shape {
    int64_t seq_len, step_sequences;
    int64_t sequences, steps_per_epoch; /* in one epoch; the last step of an epoch may have fewer sequences */
    struct ot_lr_schedule lr;           /* lr.steps: steps of the whole run */
};

/* --seq-len, or a default that is within the model's positions and a step's tokens. Errors: OT_E_USAGE
 * (longer than the model's positions). */
int ot_shape_seq_len(struct ot_settings *settings, int64_t max_position, int64_t *seq_len);
/* --epochs and --lr, which do not depend on the step. params: of the model. */
void ot_shape_choose(struct ot_settings *settings, int64_t params);
/* Everything else, once --tokens-per-step is not open (step_choice.h). sequences: in one epoch. Errors:
 * OT_E_USAGE (a warm-up longer than the run, a micro-batch larger than a step). */
int ot_shape_run(struct ot_settings *settings, int64_t seq_len, int64_t sequences, struct ot_run_shape *out);

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

/* The learning rates of a run of `steps` steps. Errors: OT_E_USAGE (a warm-up longer than the run). */
int ot_shape_schedule(const struct ot_options *options, int64_t steps, struct ot_lr_schedule *out);

/* The default learning rate: 3e-5 / sqrt(parameters / 1e9), from 1e-5 to 1e-3, rounded to one digit. Training
 * from random weights takes ten times as much, at most 3e-3. The square root follows published recipes for
 * random weights (Brown et al. 2020, table 2.1: 6e-4 at 125M to 1.2e-4 at 6.7B). */
double ot_shape_default_lr(int64_t params, bool from_random);

#endif

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
#ifndef OT_TRAIN_STEP_CHOICE_H
#define OT_TRAIN_STEP_CHOICE_H

#include "src/options/options.h"

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

/* --resume-with OPTION=VALUE,..: options that fix the result, and whose values change when a run goes on from
 * a checkpoint. src/train/resume_change.h says what then happens.
 *
 * An item is OPTION=VALUE, or OPTION alone, whose value is then given as usual (--resume-with data --data A
 * --data B). The value has no comma. The options that may change are listed in resume_with.c. The others fix
 * what the weights are, or what a checkpoint has of them: model, adapters, tokens, types, the objective.
 */
#ifndef OT_OPTIONS_RESUME_WITH_H
#define OT_OPTIONS_RESUME_WITH_H

#include "src/options/options.h"

enum ot_resume_change {
    OT_CHANGE_NOTHING, /* the option cannot change in a run that goes on */
    OT_CHANGE_STEP,    /* only what later steps compute */
    OT_CHANGE_LENGTH,
    OT_CHANGE_WARMUP,    /* the schedule of learning rates begins anew */
    OT_CHANGE_STEP_ROWS, /* later steps have another number of sequences */
    OT_CHANGE_ROWS,      /* other rows, or other sequences of them */
    OT_CHANGE_EVALS,     /* later evaluations cannot be compared with earlier ones */
};
enum ot_resume_change ot_resume_with_kind(const char *name);

/* True if --resume-with names this option. */
bool ot_resume_with_has(const struct ot_options *options, const char *name);

#endif

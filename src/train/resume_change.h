/* The changes of a run that goes on with other options (--resume-with; src/options/resume_with.h lists them).
 *
 * The run keeps its weights, the optimizer's moments, its number of steps and its log. Every step up to the
 * checkpoint stays as it is; every later step is computed with the new values. From then on the new values
 * are the run's own: its checkpoints record them, and it resumes with the bits that it would have without a
 * stop. Each change is in the record's `history`: the step, and of each option the value before and after.
 *
 * WHAT BEGINS ANEW (struct ot_run_phase):
 *
 *   learning rates   --lr, --schedule, --steps, --epochs: the rate of a step is that of the new schedule at
 *                    this step, as if the whole run had it. A warm-up would then lie in the past. So if
 *                    --warmup is named, the schedule begins anew: with its warm-up, for the steps that are
 *                    left
 *   rows             other rows, or other sequences of them: they begin with a new epoch, in an order that no
 *                    earlier epoch had. Another --tokens-per-step leaves the rows where they are
 *   evaluations      other evaluation rows, or another --eval-metric: the best state so far is set aside
 *                    (saver.h), and the state of this step is evaluated first
 *
 * THE SAME COMMAND AGAIN changes nothing: only a value that differs from the recorded one is a change, and
 * rows are compared by their contents. So a job that is started again by its scheduler goes on. A finished
 * run goes on if the command changes an option. It needs a checkpoint, which --save-end keeps.
 */
#ifndef OT_TRAIN_RESUME_CHANGE_H
#define OT_TRAIN_RESUME_CHANGE_H

#include "src/checkpoint/record.h"
#include "src/options/resume_with.h"

struct ot_resume_changes {
    int n;                         /* 0: the run goes on as it was */
    struct ot_run_phase phase;     /* of the run from here on */
    const struct ot_json *history; /* all changes of the run; NULL: none */
    char text[512];                /* "lr 0.0002 -> 0.0001, steps 100 -> 200", for people */

    /* private */
    bool length, step_rows, rows, evals;
    struct ot_json *own_history;
    struct ot_json_writer writer;
};

/* Notes a change of an option, whose values are `was` and `is` as users type them. record: of the
 * checkpoint. */
void ot_resume_changes_note(struct ot_resume_changes *changes, const struct ot_checkpoint_record *record,
                            const char *name, const char *was, const char *is);
/* Finds the phase and the history, once all changes are noted. Errors: OT_E_BUDGET. */
int ot_resume_changes_finish(struct ot_resume_changes *changes, const struct ot_checkpoint_record *record,
                             const struct ot_options *options);
/* Logs what changes, and what begins anew. record: of the checkpoint. */
void ot_resume_changes_print(const struct ot_resume_changes *changes,
                             const struct ot_checkpoint_record *record);
void ot_resume_changes_free(struct ot_resume_changes *changes);

/* True if --resume-with gives an option another value than the record has. A data file counts by its name.
 * Errors: OT_E_BUDGET, OT_E_INPUT. */
int ot_resume_changes_any(const struct ot_checkpoint_record *record, const struct ot_options *options,
                          bool *any);

/* Writes an option's value as users type it; for a flag, "on" or "off". The caller frees the text. Errors:
 * OT_E_BUDGET. */
int ot_resume_write_value(const struct ot_option *option, const struct ot_options *options, bool has_value,
                          char **text);

#endif

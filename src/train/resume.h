/* Resumes a run from a checkpoint: finds the checkpoint, takes over its options, checks that the run is the
 * same.
 *
 * FIND. --resume auto takes the newest checkpoint in OUT/checkpoints. If that run is finished, its record
 * (out_name.h) is used instead of a checkpoint, and nothing is trained. --resume DIR takes that checkpoint,
 * or the newest one in DIR or in DIR/checkpoints. A damaged newest checkpoint is never skipped silently:
 * skipping would repeat hours of training, or hide a failing disk. It is an error that names the damage and
 * the option to resume from an older checkpoint or to start a new run.
 *
 * TAKE OVER, before anything is opened. Options that decide the bits of the result (ot_option.on_resume) get
 * their recorded values, including values that the program chose (micro-batch, learning rate, dtype). If the
 * user gave such an option another value, that is an error that lists all these options. (Given as auto,
 * or as bounds around the recorded value, it keeps that value.) Options that only decide where data is kept,
 * how often something is written or which device computes are free.
 *
 * CHECK, once model and rows are read. Compares their recorded fingerprints and the length of the run.
 * CHANGE. Options that --resume-with names keep the values that the user gives now (resume_change.h).
 *
 * --steps and --epochs may change if every learning rate up to the checkpoint stays the same. Also compares
 * the device's libraries, their versions and instruction sets, because the bits of matrix products depend on
 * them.
 *
 * STATES of a resumed run, and the function of each transition (cli/command_train.c calls them in this
 * order):
 *
 *   FOUND       ot_resume_find_together: the checkpoint's record and manifest are open on every rank. Or
 *               there is a finished run, or nothing, and then the functions below do nothing
 *   TAKEN OVER  ot_resume_take_over: the settings have the recorded values; nothing is opened yet
 *   CHECKED     ot_resume_check, _check_arithmetic, _check_ranks, then _check_length and _check_position: the
 *               run would be the same, and its rows begin at the recorded position
 *   LOADED      session/weights.c: the engine has every value, and every checksum was compared. An error gets
 *               the cure from ot_resume_advise
 *   STARTED     ot_resume_clear_newer, just before the first step. From here on the saver owns the
 *               checkpoints
 *
 * INVARIANTS, with the tests that hold them (tests/train/test_resume.c and
 * test_resume_find.c, if no other file is named):
 *
 *   1. The newest checkpoint is resumed from, or the error names it and an older one that opens. No
 *      checkpoint is passed over silently. (the_newest_is_found, a_damaged_newest_one_is_not_passed_over)
 *   2. Before STARTED nothing is changed but the remains of killed saves, so a refused resume costs nothing.
 *      (test_another_run_is_refused_and_nothing_touched in tests/resume/test_resume_other.py)
 *   3. An option that decides bits has its recorded value, or all such options are refused in one error.
 *      (what_fixes_the_bits_is_taken_over, another_run_is_refused_with_all_differences,
 *      what_fixes_no_bit_may_change)
 *   4. After STARTED no checkpoint in OUT/checkpoints is newer than the state of the run, and a newer best
 *      state is of the same run. (what_is_newer_is_cleared, a_newer_best_state_of_another_length_is_cleared)
 *   5. All ranks resume from one save of one step, or none does.
 *      (test_two_saves_of_one_step_are_not_the_same in tests/resume/test_resume_local.py)
 *   6. A finished run is trained no further. (a_run_that_came_to_its_end_is_not_resumed_by_itself)
 *   7. A run that stops and resumes has the bits of the run that never stopped. (test_kill_9,
 *      test_a_signal_then_the_same_command in tests/resume/test_resume_program.py)
 *
 * One thread.
 */
#ifndef OT_TRAIN_RESUME_H
#define OT_TRAIN_RESUME_H

#include "src/checkpoint/catalog.h"
#include "src/checkpoint/reader.h"
#include "src/options/settings.h"
#include "src/train/resume_change.h"
#include "src/train/run_identity.h"
#include "src/train/run_shape.h"

struct ot_out_sharing;
struct ot_world;

struct ot_resume {
    struct ot_checkpoint *checkpoint;          /* open; NULL: no checkpoint to resume from */
    const struct ot_checkpoint_record *record; /* of the checkpoint or of the finished run; NULL: none */
    const char *dir, *record_name;             /* the record's directory, and its file name there */
    struct ot_checkpoint_record finished;      /* `record` points to it if OUT is a finished run */
    bool is_over; /* rank 0 has the result of this run already, in another directory than this rank's */
    struct ot_resume_changes changes; /* by --resume-with */
    char taken[512]; /* " --pack no": options not given now and taken from the checkpoint, for the log */
};

/* Finds the checkpoint. --out must be known. With tidy, the remains of killed saves in OUT/checkpoints are
 * removed first; without tidy, nothing is changed. Errors: OT_E_INPUT (damaged, or --resume DIR has no
 * checkpoint), OT_E_IO, OT_E_BUDGET. Call ot_resume_close on `out` also after an error. */
int ot_resume_find(const struct ot_options *options, bool tidy, struct ot_resume *out);
/* The same for several ranks, which all call it: rank 0 finds the checkpoint, and the others open that one.
 * If the ranks have several directories, each opens its own copy of the newest checkpoint that all of them
 * have. world NULL: one rank. Errors: also OT_E_COMM; OT_E_INPUT (a rank has no checkpoint and others have:
 * names it). */
int ot_resume_find_together(const struct ot_options *options, bool tidy, struct ot_world *world,
                            const struct ot_out_sharing *sharing, struct ot_resume *out);
void ot_resume_close(struct ot_resume *resume);
/* True if OUT has the result of this run already (out_name.h). */
bool ot_resume_is_finished(const struct ot_resume *resume);
/* For --dry-run: if OUT has the result already, logs that and goes on as with --resume never. */
void ot_resume_forget_finished(struct ot_resume *resume);

/* Afterwards the settings borrow texts from the checkpoint. This and the next two functions do nothing if
 * there is no record. Errors: OT_E_USAGE (an option has another value now), OT_E_INPUT (the record has an
 * invalid value). */
int ot_resume_take_over(struct ot_resume *resume, struct ot_settings *settings);
/* Also finds the changes by --resume-with. Errors: OT_E_INPUT: names the key of the model's config, the base
 * or the rows that differ, and the cure. */
int ot_resume_check(struct ot_resume *resume, const struct ot_options *options,
                    const struct ot_run_identity *identity);
/* Errors: OT_E_USAGE: the run would be shorter than it is already, or its past learning rates would
 * differ. */
int ot_resume_check_length(const struct ot_resume *resume, const struct ot_options *options,
                           const struct ot_run_shape *shape);

/* Warns if the device computes with other libraries, versions or instruction sets than the run so far. With
 * --exact this is an error. arithmetic: ot_device_arithmetic. Errors: OT_E_INPUT. */
int ot_resume_check_arithmetic(const struct ot_resume *resume, const struct ot_options *options,
                               const char *arithmetic);
/* Warns if another number of ranks goes on with the run than made the checkpoint, and the bits depend on that
 * number. With --exact this is an error. Errors: OT_E_USAGE. */
int ot_resume_check_ranks(const struct ot_resume *resume, const struct ot_options *options, int ranks);
/* Errors: OT_E_INPUT: the checkpoint's data position does not match its step. */
int ot_resume_check_position(const struct ot_resume *resume, const struct ot_run_shape *shape);

/* Adds a cure to the error `rc` if its message names the checkpoint: the older checkpoint to resume from.
 * Returns rc. */
int ot_resume_advise(const struct ot_resume *resume, int rc);
/* Logs two lines: the checkpoint and its progress, and the options taken over. Does nothing without a
 * record. */
void ot_resume_print(const struct ot_resume *resume);

/* Bytes of OUT/log.jsonl that belong to this run up to the checkpoint. 0 if the checkpoint is elsewhere, or
 * if there is none. */
int64_t ot_resume_log_bytes(const struct ot_resume *resume, const char *out);
/* True if the run resumes from a checkpoint in OUT/checkpoints. */
bool ot_resume_is_own(const struct ot_resume *resume, const char *out);
/* Removes checkpoints in OUT/checkpoints that are newer than the one that the run resumes from, so that no
 * later run resumes from them. A newer best state stays if the length of the run, `steps`, is the same: then
 * the run comes to that state again. Call it just before the first step, while the log is held. Errors:
 * OT_E_IO, OT_E_BUDGET. */
int ot_resume_clear_newer(const struct ot_resume *resume, const char *out, int64_t steps);

/* ---- finding checkpoints ---- */

/* Finds the contents of a directory that the user names: a checkpoint, a run's checkpoints, a model. A GGUF
 * file is a model too. */

struct ot_found {
    struct ot_checkpoint_list list; /* newest first: the chosen checkpoint, then older ones */
    struct ot_checkpoint_list best; /* beside them: the weights of the best evaluation (catalog.h) */
    bool is_model; /* a GGUF file, or the directory has a config.json: a model, or the result of a run */
};

/* dir: a checkpoint, a directory of checkpoints, or a directory that contains "checkpoints". Errors:
 * OT_E_INPUT (none of these), OT_E_IO, OT_E_BUDGET. Call ot_found_free on `out` also after an error. */
int ot_find_checkpoints(const char *dir, struct ot_found *out);
void ot_found_free(struct ot_found *found);

#endif

/* The saver makes the checkpoints of a run in OUT/checkpoints and decides which of them stay.
 *
 * The training loop asks for the next step that needs a checkpoint, drains the engine after that step and
 * begins the checkpoint. The engine's snapshot (offload/engine/snapshot.h) and the writer
 * (src/checkpoint/writer.h) copy and write it while the next steps run. ot_saver_poll completes a checkpoint
 * that has ended: it logs it, removes older checkpoints beyond --keep, and releases the NVMe data that they
 * referred to. A failed save is logged and does not stop the run: earlier checkpoints stay, and the next
 * checkpoint is tried when it is due. A removal that failed is logged, and tried again before the next save.
 *
 * THE BEST. If an evaluation is better than all before it (eval_history.h), the training loop saves the
 * weights of the evaluated state at once, without the optimizer's moments, in OUT/checkpoints/best
 * (ot_saver_wants_best, ot_saver_begin_best). The one before it is removed once the new one is complete. So
 * the best state costs a third of a checkpoint (bf16: 4 bytes a parameter), and the model that is made of it
 * is exact. The newest checkpoint may be due after the same step: then its snapshot begins when that of the
 * best state has ended, and the next step waits for that.
 *
 * Checkpoints are rated too, each by an evaluation of its own step alone. If a checkpoint is the best state,
 * because a signal ended the run after the evaluation, or because the best state could not be saved, it stays
 * beside the newest --keep until a better state is saved.
 *
 * THE RESULT. With --result best a run that ends in a worse state than its best one first saves this last
 * state, as a checkpoint, and then loads the best one into its engine (ot_saver_restore_best). All that
 * follows, the model and the sample, is of the best state, with any plan and any number of ranks. So both
 * states stay: one as the model and in best, the other as the newest checkpoint. If the last state cannot be
 * saved, or the best one cannot be opened, the run keeps its last state and says so.
 *
 * EVALUATIONS THAT BEGIN ANEW, after --resume-with has changed their rows or their metric: the best state so
 * far is moved to OUT/best-before-step-N, and the search for the best begins with an evaluation of step N.
 *
 * SPACE. Before step 1 the file OUT/checkpoints/reserved reserves disk space for everything that the run
 * still has to write: --keep checkpoints, the best state, the one being made, and the model. The file shrinks
 * as they are written. A disk that is too small is therefore an error before anything is computed.
 *
 * A NEW RUN in an output with checkpoints of another run renames these to OUT/checkpoints.old. It removes
 * them once it has its own first checkpoint, or the model.
 *
 * SEVERAL RANKS. Each rank has a saver. Rank 0 decides, logs, removes and reserves, for all. Each rank writes
 * what it holds (writer.h); with --shard none rank 0 holds everything, and the others write nothing. Open,
 * begin and poll are then collective: all ranks call them between the same two steps, and a checkpoint that
 * one rank could not save is kept by none. So the training loop waits until no rank is busy
 * (ot_saver_is_busy), and then lets all ranks poll with `wait`.
 *
 * SEVERAL DIRECTORIES (out_name.h). The first rank of each directory makes, removes and reserves there.
 * Record and manifest of rank 0 are written in each. With --shard none each directory gets a whole
 * checkpoint. If the process ends while some directories have the checkpoint and others do not, the older one
 * is still in all: it is removed only after all have the newer.
 *
 * STATES, and the function of each transition:
 *
 *   IDLE        under_way is false, and there is no writer.
 *     ot_saver_begin, ot_saver_begin_best
 *                      the ranks agree that they can save (prepare: leaders first, then the others), and each
 *                      starts its snapshot: to UNDER WAY. Any rank's error: give_up, and IDLE
 *   UNDER WAY   under_way is true on all ranks. The snapshot's thread copies and the writer's thread writes,
 *               into step-N.partial.
 *     ot_saver_poll    finds that this rank's snapshot has ended (`wait`: waits for that). ot_saver_join then
 *                      brings the manifests of all ranks to rank 0, which seals the checkpoint: to COMPLETE.
 *                      Any rank's error: give_up, and IDLE
 *   COMPLETE    within `complete`: the checkpoint has its name. It becomes the last one (if it is whole), is
 *               rated, and is logged; then make_place removes older ones. To IDLE
 *
 *   give_up     logs the error, stops the snapshot, releases its pins and removes the files (drop_writer)
 *   OT_E_COMM   leaves the state as it is: the run ends, and ot_saver_close gives the checkpoint up
 *   LAST        ot_saver_save_in sets keeps_all, for good: no later call removes a checkpoint or reserves
 *               space
 *
 * INVARIANTS, with the tests that hold them (tests/train/test_saver.c, if no other file is named):
 *
 *   1. A name step-N exists only for a whole checkpoint: the rename is the last step of `seal`.
 *      (test_process_ends_at_every_call in tests/checkpoint/test_writer.c)
 *   2. An older checkpoint is removed only after a newer one has its name, and a best state only after a
 *      better one has. (the_best_stays_beside_the_newest,
 *      a_rated_checkpoint_stays_until_a_better_state_is_saved; test_a_rank_that_dies_in_a_save in
 *      tests/resume/test_resume_ranks.py)
 *   3. A save that fails costs that checkpoint and nothing else: last step, best and reserved space are as
 *      before. (the_next_save_is_made_after_one_that_failed)
 *   4. All ranks have the same result of a save, so all call the saver between the same two steps.
 *      (test_a_full_disk_on_one_rank_costs_one_checkpoint)
 *   5. The store pins one content for each complete checkpoint that exists and refers to it, and no more than
 *      plan.pinned_contents: `prepare` refuses a save that would need one more. A removal that failed is
 *      tried again before the next save. (the_store_keeps_no_more_than_the_plan_says,
 *      a_removal_that_failed_is_tried_again)
 *   6. The checkpoint that the run resumed from stays until the run has one of its own.
 *      (what_the_run_resumes_from_is_not_removed)
 *   7. Checkpoints of another run stay until this run has its first, or the model.
 *      (a_new_run_removes_old_checkpoints_after_its_first, the_model_alone_replaces_old_checkpoints_too)
 *   8. The last save of a run that ends removes nothing. (the_last_save_removes_nothing)
 *
 * One thread, the engine's driver.
 */
#ifndef OT_TRAIN_SAVER_H
#define OT_TRAIN_SAVER_H

#include "src/checkpoint/record.h"
#include "src/session/open.h"
#include "src/train/run_log.h"
#include "src/train/run_shape.h"

struct ot_out_sharing;
struct ot_saver;

/* The plan of a run that saves must provide (ot_plan_request): ot_saver_slots, the number of slots for
 * segments, and ot_saver_pinned_contents, the number of checkpoints that can refer to the NVMe store's files
 * at a time (0: none can). `parent`: OUT/checkpoints, which need not exist. */
int ot_saver_slots(int64_t params, enum ot_dtype dtype);
int ot_saver_pinned_contents(const struct ot_session *session, const char *parent);
/* Bytes of a checkpoint of all ranks that are copied, and bytes that it refers to on NVMe, for the session's
 * plan. The ranks' plans are alike, so the shares of the others are taken to be as large as this rank's. */
void ot_saver_bytes(const struct ot_session *session, int64_t *copied, int64_t *referred);
/* The same for the best state. All of it is copied. */
int64_t ot_saver_best_bytes(const struct ot_session *session);

struct ot_saver_config {
    struct ot_session *session; /* started; for ot_saver_check_space, planned */
    struct ot_run_log *log;
    const char *parent;               /* OUT/checkpoints; OUT must exist */
    const struct ot_run_shape *shape; /* for --save-every epoch */
    int64_t model_bytes;              /* size of the model that the run saves at its end */
    bool evaluates;                   /* the run evaluates, so it keeps the best state */
    int64_t step;                     /* the step that the run resumes after; 0: a new run */
    const char *resumed;              /* the checkpoint that the run resumes from; NULL: a new run */
    const struct ot_out_sharing *sharing;
    bool begins_evals; /* evaluations before `step` cannot be compared with those of this run */
    bool is_own;       /* `resumed` is in `parent`: the other checkpoints there belong to this run too */
};

/* Checks that the disk has room for checkpoints and model, as far as is known before the session is started.
 * Errors: OT_E_IO (the message says how much is missing), OT_E_BUDGET. */
int ot_saver_check_space(const struct ot_saver_config *config);
/* Makes the directory, moves checkpoints of another run aside, and reserves disk space. Errors: OT_E_IO (the
 * message says how much is missing), OT_E_BUDGET. */
int ot_saver_open(const struct ot_saver_config *config, struct ot_saver **out);
/* Gives up a checkpoint that is not complete. The engine must still be open. NULL is fine. */
void ot_saver_close(struct ot_saver *saver);

/* The next step after which --save-every wants a checkpoint; INT64_MAX if --save-every is a time, or
 * never. */
int64_t ot_saver_next_step(const struct ot_saver *saver, int64_t done);
/* True if a checkpoint is due by the clock, or if SIGUSR1 came since the last call. */
bool ot_saver_is_due(struct ot_saver *saver);

/* True if --save-every or --save-end asks for checkpoints, so that the run reserves space for them and keeps
 * the best. */
bool ot_saver_is_regular(const struct ot_options *options);
/* On rank 0: true if the state after this step, of this cost, would be the best one, and is to be saved. */
bool ot_saver_wants_best(const struct ot_saver *saver, int64_t step, double cost);
/* On rank 0: step (-1: none) and cost of the best state that is saved. */
int64_t ot_saver_best(const struct ot_saver *saver, double *cost);
/* Chooses --result if it is open: best if the run evaluates and saves regularly. Errors: OT_E_USAGE: an
 * option needs evaluations, and there are none. */
int ot_saver_choose_result(struct ot_settings *settings, bool evaluates);
/* For the end of a run, with a drained engine: loads the best state if it is better than the state of the
 * engine, `end`, which then has a checkpoint. The moments of the engine stay those of `end`. *step: of the
 * state that was loaded; 0: the engine's state is still the last one. All ranks call it. Errors: as
 * ot_session_restore, and then the engine's state is undefined; OT_E_IO (of the log); OT_E_COMM. */
int ot_saver_restore_best(struct ot_saver *saver, const struct ot_checkpoint_record *end, int64_t *step);

/* Begins a checkpoint. The engine must be drained after step record->progress.step. A checkpoint that is
 * still being written is completed first. step_seconds: about the time of a step, to pace the copying; 0:
 * copy at full speed. A failure to save is logged and not returned. Errors: OT_E_BUDGET, OT_E_IO (of the log
 * only). */
int ot_saver_begin(struct ot_saver *saver, const struct ot_checkpoint_record *record, double step_seconds);
/* Begins to save the best state. The rest is as for ot_saver_begin. */
int ot_saver_begin_best(struct ot_saver *saver, const struct ot_checkpoint_record *record,
                        double step_seconds);
/* True while this rank still writes its parts of the checkpoint under way. */
bool ot_saver_is_busy(const struct ot_saver *saver);
/* True if a checkpoint is under way: on one rank, on all. */
bool ot_saver_is_under_way(const struct ot_saver *saver);
/* Completes a checkpoint that has ended. wait: waits for a checkpoint that has not ended. Errors: as
 * ot_saver_begin. */
int ot_saver_poll(struct ot_saver *saver, bool wait);
/* Waits at most `seconds` for the checkpoint that is being written. True if it has ended and was completed.
 * For callers that must not hang. */
bool ot_saver_wait(struct ot_saver *saver, double seconds);
/* True if the last complete checkpoint has that step, and its directory still exists. */
bool ot_saver_has(const struct ot_saver *saver, int64_t step);
/* Makes the directory of checkpoints if it is missing. Errors: OT_E_IO. */
int ot_saver_make_dir(struct ot_saver *saver);
/* For a run that is about to end: saves the state of a drained engine now, at any cost in time, in the
 * directory `parent` (NULL: the saver's own). All ranks call it, with the same directory. No older checkpoint
 * is removed. Does nothing if the checkpoint of that step exists. Errors: the reason why it could not be
 * saved, the same on all ranks. */
int ot_saver_save_in(struct ot_saver *saver, const char *parent, const struct ot_checkpoint_record *record);
/* The error of the most recent failed save. Callers that must end the run report it. */
int ot_saver_failure(const struct ot_saver *saver);
/* Step (-1: none) and directory (NULL: none) of the last complete checkpoint, of this run or the one it was
 * resumed from. */
int64_t ot_saver_last_step(const struct ot_saver *saver);
const char *ot_saver_last_dir(const struct ot_saver *saver);
/* Estimated seconds to save a checkpoint, with its flushes: from the last checkpoint, or from a trial flush
 * before step 1. */
double ot_saver_seconds(const struct ot_saver *saver);
/* Estimated seconds to save a model of `bytes` bytes. */
double ot_saver_model_seconds(const struct ot_saver *saver, int64_t bytes);

/* Frees the reserved disk space, because the model is about to be saved. */
void ot_saver_make_room(struct ot_saver *saver);
/* The model is saved: marks the checkpoints as complete, so that --resume auto does not resume from them.
 * Errors: OT_E_IO, OT_E_BUDGET. */
int ot_saver_complete(struct ot_saver *saver);

#endif

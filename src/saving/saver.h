/* The saver: the checkpoints of a run, OUT/checkpoints: when they are made, from what, and which of them
 * stay.
 *
 * The training loop asks after which step the next one is due, drains the engine there and begins it; the
 * engine's snapshot (offload/engine/snapshot.h) and the checkpoint's writer (src/checkpoint/writer.h) do the
 * rest beside the steps that follow. Whoever polls completes one that has ended: says so, removes the older
 * ones that --keep leaves no place for (not the best: the first one after the best evaluation that any has
 * behind it), and lets go of what they referred to on nvme. A save that fails is said, and costs the run
 * nothing: the checkpoints before it stay, and the next one is tried when it is due.
 *
 * SPACE. From before step 1 on, the place of what is still to come (checkpoints up to --keep, the best,
 * their successor, and the model) is held by a file, OUT/checkpoints/reserved, which gives way as they are
 * written: a disk that would be too small says so before anything is computed.
 *
 * A NEW RUN in an output that has checkpoints of another one renames those to OUT/checkpoints.old, and
 * removes them when it has its own first one, or the model.
 *
 * One thread, the engine's driver.
 */
#ifndef OT_SAVING_SAVER_H
#define OT_SAVING_SAVER_H

#include "src/checkpoint/record.h"
#include "src/run/run_log.h"
#include "src/session/session.h"

struct ot_saver;

/* What a run that saves wants of its plan (ot_plan_request): slots for parts, and whether checkpoints can
 * refer to the NVMe store's files, how many at a time. `parent`: OUT/checkpoints, which need not exist. */
int ot_saver_slots(int64_t params, enum ot_dtype dtype);
int ot_saver_kept_contents(const struct ot_session *session, const char *parent);
/* Bytes of one checkpoint of the session's plan that are copied, and that are referred to. */
void ot_saver_bytes(const struct ot_session *session, int64_t *copied, int64_t *referred);

struct ot_saver_config {
    struct ot_session *session; /* started; to check the space: planned */
    struct ot_run_log *log;
    const char *parent;      /* OUT/checkpoints; OUT exists */
    int64_t steps_per_epoch; /* for --save-every epoch */
    int64_t model_bytes;     /* that the run saves at its end */
    bool evaluates;          /* so that there is a best */
    int64_t step;            /* that the run begins after; 0: a new one */
    const char *resumed;     /* the checkpoint that it goes on from; NULL: a new one */
    bool is_own;             /* that lies in `parent`: what else is there is of this run too */
};

/* Whether there is room for it all, as far as can be told before the session is started. Errors: OT_E_IO
 * (what is missing), OT_E_BUDGET. */
int ot_saver_check_space(const struct ot_saver_config *config);
/* Makes the directory, holds the space of the first checkpoint, moves what another run has left out of the
 * way. Errors: OT_E_IO (what is missing), OT_E_BUDGET. */
int ot_saver_open(const struct ot_saver_config *config, struct ot_saver **out);
/* Waits for nothing: a checkpoint under way is given up. The engine is still open. NULL is fine. */
void ot_saver_close(struct ot_saver *saver);

/* The next step after which --save-every wants a checkpoint; INT64_MAX where it goes by the clock, or
 * never. */
int64_t ot_saver_next_step(const struct ot_saver *saver, int64_t done);
/* By the clock, or by SIGUSR1 since it was last asked. */
bool ot_saver_is_due(struct ot_saver *saver);

/* On a drained engine, after step record->progress.step. Completes one under way first. step_seconds: that
 * a step takes about, to pace the copying; 0: as fast as it goes. What fails is said and kept from the
 * caller. Errors: OT_E_BUDGET, OT_E_IO of the log alone. */
int ot_saver_begin(struct ot_saver *saver, const struct ot_checkpoint_record *record, double step_seconds);
/* Completes a checkpoint that has ended; wait: also one that has not. Errors: as begin. */
int ot_saver_poll(struct ot_saver *saver, bool wait);
/* Waits no longer than that for one under way: whether it has ended. For when even this may hang. */
bool ot_saver_wait(struct ot_saver *saver, double seconds);
/* Whether the last complete checkpoint is of that step, and still where it was made. */
bool ot_saver_has(const struct ot_saver *saver, int64_t step);
/* Makes the directory of checkpoints where it is not there (any more). Errors: OT_E_IO. */
int ot_saver_make_dir(struct ot_saver *saver);
/* The run is about to end: saves the state of a drained engine now and whatever it takes, in the directory
 * `parent` instead of its own (NULL: in its own). Nothing older goes. Does nothing where the checkpoint of
 * that step is there already. Errors: why it could not be made. */
int ot_saver_save_in(struct ot_saver *saver, const char *parent, const struct ot_checkpoint_record *record);
/* What the last one that failed failed with, for a caller that can go no further. */
int ot_saver_failure(const struct ot_saver *saver);
/* Of the last complete checkpoint, this run's or the one it was resumed from: its step (-1: none), and its
 * directory (NULL). */
int64_t ot_saver_last_step(const struct ot_saver *saver);
const char *ot_saver_last_dir(const struct ot_saver *saver);
/* About the seconds that a checkpoint takes, with its flushes: by the last one, or by a flush that was
 * tried before step 1. */
double ot_saver_seconds(const struct ot_saver *saver);
/* The same of a model of `bytes`. */
double ot_saver_model_seconds(const struct ot_saver *saver, int64_t bytes);

/* The model is about to be saved: its space is no longer held. */
void ot_saver_make_room(struct ot_saver *saver);
/* The model is saved: this run is not resumed by itself any more. Errors: OT_E_IO. */
int ot_saver_complete(struct ot_saver *saver);

#endif

/* Saves a run's state when an error ends the run.
 *
 * The state of a drained engine is saved as a checkpoint in --out. If OUT was moved away, it is made again,
 * and the disk space reserved for checkpoints is freed. If that fails, the first of these places that works
 * is used: beside OUT, the directories of --nvme, the working directory, $HOME, $TMPDIR or /tmp. The error
 * that ended the run then says where the checkpoint is and how to resume from it. Three ends of a run save
 * nothing: a second signal, a --grace that is over, and numbers that training cannot go on with (a checkpoint
 * would keep them).
 *
 * SEVERAL RANKS save together, so all of them must have the error, at the same step: a failed save, or a
 * model that rank 0 could not write. Rank 0 chooses the places. A place that the ranks do not share fails
 * like one that is full. If the hosts keep parts of their own (out_name.h), OUT is the only place. If only
 * one rank fails, the last checkpoint is named.
 */
#ifndef OT_TRAIN_RESCUE_H
#define OT_TRAIN_RESCUE_H

#include "src/train/saver.h"

struct ot_out_lock;

struct ot_rescue {
    struct ot_saver *saver;
    struct ot_session *session;
    const struct ot_options *options; /* with --out set */
    bool only_in_out;                 /* each host has its own directory (out_name.h) */
    struct ot_out_lock *lock;         /* lock of --out; NULL: another rank has it */
};

/* Makes --out usable again if someone moved it away or removed its marker. Errors: OT_E_INPUT (another
 * directory has that name now), OT_E_IO. */
int ot_rescue_restore_out(const struct ot_rescue *rescue);
/* The state is saved already: adds the place of the last checkpoint to the message of `rc`. Returns rc. */
int ot_rescue_tell(const struct ot_rescue *rescue, int rc);
/* Saves the state and adds the place of the checkpoint to the error message of `rc`, the error that ends the
 * run. record: of a drained engine, and several ranks all call it; NULL: the engine or one rank alone has
 * failed, and the last checkpoint is named instead, unless the message names it already. Returns rc. */
int ot_rescue_save(const struct ot_rescue *rescue, const struct ot_checkpoint_record *record, int rc);

#endif

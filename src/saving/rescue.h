/* A run never ends without its state: whatever ends it, what it has is saved first.
 *
 * The state of a drained engine is saved as a checkpoint in --out: OUT is made again where it was moved away,
 * and the space that was held for checkpoints gives way. Where that fails, the nearest place that works is
 * taken: beside OUT, the directories of --nvme, the working directory, $HOME, $TMPDIR or /tmp. The error that
 * ended the run then says where the checkpoint is and how to go on from it. Of the ends of a run three save
 * nothing: a second signal, a --grace that is over, and numbers that training cannot go on with, which a
 * checkpoint would only preserve.
 */
#ifndef OT_SAVING_RESCUE_H
#define OT_SAVING_RESCUE_H

#include "src/saving/saver.h"

struct ot_out_lock;

struct ot_rescue {
    struct ot_saver *saver;
    const struct ot_options *options; /* with --out */
    struct ot_out_lock *lock;         /* of --out */
};

/* Makes --out what it was where others have moved it away or taken its marker, so that a checkpoint can be
 * saved there. Errors: OT_E_INPUT (another directory is there now), OT_E_IO. */
int ot_rescue_restore_out(const struct ot_rescue *rescue);
/* rc: what ends the run, with its sentence, to which where the state is saved is added. record: of a drained
 * engine; NULL: the engine has failed, and the last checkpoint is all there is. Returns rc. */
int ot_rescue_save(const struct ot_rescue *rescue, const struct ot_checkpoint_record *record, int rc);

#endif

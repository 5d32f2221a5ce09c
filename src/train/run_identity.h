/* The identity of a run in its checkpoints: the options in effect, the model's shape, fingerprints of the
 * rows and of the base's weights. A resumed run compares its own identity with the recorded one (resume.h),
 * and ranks compare theirs before the first step. */
#ifndef OT_TRAIN_RUN_IDENTITY_H
#define OT_TRAIN_RUN_IDENTITY_H

#include "src/checkpoint/record.h"
#include "src/train/rows.h"

struct ot_run_identity {
    struct ot_json *options; /* by ot_options_put_json; NULL until ot_run_identity_take_options */
    struct ot_json *sources; /* of the options, by ot_options_put_sources; NULL likewise */
    struct ot_json *model;   /* by ot_model_config_write */
    struct ot_data_fingerprint data, eval_data; /* eval_data: zeros without --eval-data */
    struct ot_base_print base;
};

/* Takes the model and the rows (NULL: none). Reads all tokens once, which takes about a second for a billion
 * tokens. Errors: OT_E_BUDGET. `out` needs ot_run_identity_free in either case. */
int ot_run_identity_make(const struct ot_session *session, const struct ot_rows *rows,
                         struct ot_run_identity *out);
/* Takes the options. Call this after the last option was chosen. Errors: OT_E_BUDGET. */
int ot_run_identity_take_options(struct ot_run_identity *identity, const struct ot_options *options);
/* Puts the identity into the record of a checkpoint, which borrows it. */
void ot_run_identity_put(const struct ot_run_identity *identity, struct ot_checkpoint_record *record);
void ot_run_identity_free(struct ot_run_identity *identity);

/* ---- agreement ---- */

/* Before the first step the ranks of a run compare what must be the same on all of them: the options, the
 * model, its weights, the rows. They also check that no two ranks use one GPU. A difference is an error on
 * all ranks, in one sentence that names the ranks and both values. The version of the program is compared
 * when the ranks connect (offload/comm/world.h).
 */

/* Collective; does nothing with one rank. identity: with its options. Ranks whose devices compute with other
 * libraries or instruction sets may differ in the last digits: that is an error with --deterministic world,
 * and else a warning. Errors: OT_E_USAGE (they differ), OT_E_COMM, OT_E_BUDGET. */
int ot_agree_on_run(struct ot_session *session, const struct ot_run_identity *identity);
/* The same for a command that trains nothing. rows: NULL: it reads none. */
int ot_agree_on_use(struct ot_session *session, const struct ot_rows *rows);
/* Once the session is started: compares checksums of all weights that it read from files. Before, only a
 * sample of the base was compared, which tells revisions of a model apart before long work. Errors: as
 * ot_agree_on_run. */
int ot_agree_on_weights(const struct ot_session *session);

#endif

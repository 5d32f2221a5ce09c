/* The identity of a run in its checkpoints: the options in effect, the model's shape, fingerprints of the
 * rows and of the base's weights. A resumed run compares its own identity with the recorded one (resume.h).
 */
#ifndef OT_TRAIN_RUN_IDENTITY_H
#define OT_TRAIN_RUN_IDENTITY_H

#include "src/train/rows.h"

struct ot_run_identity {
    struct ot_json *options; /* by ot_options_put_json; NULL until ot_run_identity_take_options */
    struct ot_json *sources; /* of the options, by ot_options_put_sources; NULL likewise */
    struct ot_json *model;   /* by ot_model_config_write */
    struct ot_data_fingerprint data, eval_data; /* eval_data: zeros without --eval-data */
    struct ot_base_print base;
};

/* Takes the model and the rows. Reads all tokens once, which takes about a second for a billion tokens.
 * Errors: OT_E_BUDGET. `out` needs ot_run_identity_free in either case. */
int ot_run_identity_make(const struct ot_session *session, const struct ot_rows *rows,
                         struct ot_run_identity *out);
/* Takes the options. Call this after the last option was chosen. Errors: OT_E_BUDGET. */
int ot_run_identity_take_options(struct ot_run_identity *identity, const struct ot_options *options);
void ot_run_identity_free(struct ot_run_identity *identity);

#endif

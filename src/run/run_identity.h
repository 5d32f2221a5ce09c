/* What a run is a run of, as a checkpoint records it: the options in effect, the model's shape, a
 * fingerprint of the rows. A resumed run compares its own with the recorded one (resume.h). */
#ifndef OT_RUN_RUN_IDENTITY_H
#define OT_RUN_RUN_IDENTITY_H

#include "src/run/rows.h"

struct ot_run_identity {
    struct ot_json *options;              /* as ot_options_put_json writes them; NULL until they are taken */
    struct ot_json *sources;              /* of the options, as ot_options_put_sources writes them */
    struct ot_json *model;                /* as ot_model_config_write writes it */
    struct ot_data_print data, eval_data; /* eval_data: zeros where --eval-data is not given */
};

/* Model and rows. Reads all tokens once, about a second for a billion. Errors: OT_E_BUDGET. `out` needs
 * ot_run_identity_free in either case. */
int ot_run_identity_make(const struct ot_session *session, const struct ot_rows *rows,
                         struct ot_run_identity *out);
/* Once nothing of them is left to be chosen. Errors: OT_E_BUDGET. */
int ot_run_identity_take_options(struct ot_run_identity *identity, const struct ot_options *options);
void ot_run_identity_free(struct ot_run_identity *identity);

#endif

/* What a checkpoint says beside the parameters: checkpoint.json, for people and for resuming.
 *
 * One JSON object: format and library version, when and on what it was made; where the run was (step, Adam's
 * step, loss scale, data position, evaluations); and what it was a run of: the effective options and who gave
 * them, the model's shape, and a fingerprint of the data. Reals are written so that the same bits are read
 * back; a loss that is not finite becomes null, and NaN when it is read.
 *
 * Decoding trusts nothing: every value has its bounds. Keys that it does not know are passed over, so that
 * what a later version adds, and does not call another format, stays readable.
 */
#ifndef OT_CHECKPOINT_RECORD_H
#define OT_CHECKPOINT_RECORD_H

#include "offload/engine/engine.h"
#include "src/base/json.h"
#include "src/data/batch.h"
#include "src/data/dataset.h"

enum { OT_CHECKPOINT_FORMAT = 1, OT_RECORD_MAX_BYTES = 4 << 20 };

struct ot_checkpoint_record {
    struct ot_engine_progress progress;
    struct ot_data_position position; /* of the next step */
    int64_t steps;                    /* of the whole run */
    int64_t tokens;                   /* trained on so far */
    double seconds;                   /* that the run has taken so far, in this process and earlier ones */
    int64_t log_bytes;                /* of log.jsonl at that moment */
    bool has_eval;
    int64_t eval_step, best_step; /* of the last evaluation, and of the best */
    double first_eval, last_eval, best_eval;
    struct ot_data_print data, eval_data;
    char library[32]; /* its version, "0.1.0" */
    char device[128];
    char arithmetic[192]; /* ot_device_arithmetic; "": a version before this key wrote the record */
    char made[32];        /* "2026-11-21T09:30:00Z" */
    /* Objects; NULL is written as an empty one, or for sources left out. */
    const struct ot_json *options; /* as ot_options_put_json wrote it */
    const struct ot_json *sources; /* as ot_options_put_sources wrote it; NULL in records that are older */
    const struct ot_json *model;   /* the config.json that ot_model_config_write makes of it */
    struct ot_json *tree;          /* of a record that was read: owned, those three lie in it */
};

/* The caller frees the text. Errors: OT_E_BUDGET. */
int ot_checkpoint_record_encode(const struct ot_checkpoint_record *record, char **text, size_t *bytes);
/* where: the file, for sentences. Errors: OT_E_INPUT (damaged, or of a newer format), OT_E_BUDGET. */
int ot_checkpoint_record_decode(const char *text, size_t bytes, const char *where,
                                struct ot_checkpoint_record *out);
/* The same of JSON that is parsed already; takes the tree over in either case. */
int ot_checkpoint_record_take(struct ot_json *tree, const char *where, struct ot_checkpoint_record *out);
void ot_checkpoint_record_free(struct ot_checkpoint_record *record); /* of one that was read */

#endif

/* The record of a checkpoint, checkpoint.json: everything but the parameters, for people and for resuming.
 *
 * The record is a JSON object: format and library version; when and on which device it was made; the position
 * of the run (step, Adam's step, loss scale, data position, evaluations); the run's effective options and who
 * gave them, the model's shape, and fingerprints of the data and of the base. Reals are written so that
 * reading returns the same bits. A loss that is not finite is written as null and read as NaN.
 *
 * The decoder trusts nothing: it checks the range of every value. It ignores keys that it does not know, so
 * that it can read records of later versions that added keys but kept the format number.
 */
#ifndef OT_CHECKPOINT_RECORD_H
#define OT_CHECKPOINT_RECORD_H

#include "models/model.h"
#include "offload/engine/engine.h"
#include "src/base/json.h"
#include "src/checkpoint/eval_history.h"
#include "src/data/batch.h"
#include "src/data/dataset.h"

enum { OT_CHECKPOINT_FORMAT = 1, OT_RECORD_MAX_BYTES = 4 << 20 };

/* The steps after which the options in effect begin to count, in a run that went on with other ones
 * (--resume-with). All 0: they count from its first step. */
struct ot_run_phase {
    int64_t lr_first;   /* the schedule of learning rates begins after this step */
    int64_t rows_first; /* the rows begin at rows_at after this step */
    struct ot_data_position rows_at;
    int64_t evals_first; /* evaluations before this step cannot be compared with later ones */
};

struct ot_checkpoint_record {
    struct ot_engine_progress progress;
    struct ot_data_position position; /* where the next step begins */
    int64_t steps;                    /* length of the whole run */
    struct ot_run_phase phase;
    int64_t tokens;    /* trained so far */
    double seconds;    /* run time so far, in this process and earlier ones */
    int64_t log_bytes; /* length of log.jsonl when the record was made */
    int ranks;         /* whose sums the last step added up; at least 1 */
    /* Hosts of the ranks, in their order, with a space between: each host keeps the segments of its own ranks
     * (--save-local). NULL: all segments are in one directory. */
    const char *hosts;
    struct ot_eval_history evals;
    /* Of a finished run whose model is not of its last step (--result best): the model's step; else 0. */
    int64_t result_step;
    struct ot_data_fingerprint data, eval_data;
    bool has_base;        /* the run began with weights of files; false in older records too */
    uint32_t base_sample; /* their fingerprint (src/session/weights.h) */
    bool has_frozen;      /* frozen weights came from files; no checkpoint has them */
    uint32_t frozen_crc;
    char library[32]; /* version, "0.1.0" */
    char device[128];
    char arithmetic[192]; /* ot_device_arithmetic; "": the record is from a version without this key */
    char made[32];        /* "2026-11-21T09:30:00Z" */
    /* JSON objects. NULL `options` or `model` are written as an empty object; NULL `sources` is left out. */
    const struct ot_json *options; /* as ot_options_put_json wrote it */
    const struct ot_json *sources; /* as ot_options_put_sources wrote it; NULL in older records */
    /* The changes by --resume-with so far (src/train/resume_change.h); NULL: none. */
    const struct ot_json *history;
    const struct ot_json *model; /* the config.json that ot_model_config_write makes of the model */
    struct ot_json *tree; /* owned; only for a record that was read: `hosts` and the objects are in it */
};

/* How good exactly this state is by the metric of the run (eval_history.h). NaN: it was not evaluated. */
double ot_checkpoint_record_cost(const struct ot_checkpoint_record *record);

/* Sets what made the record, and when: library, device, arithmetic and made. */
void ot_checkpoint_record_stamp(struct ot_checkpoint_record *record, const struct ot_device *device);

/* The caller frees the text. Errors: OT_E_BUDGET. */
int ot_checkpoint_record_encode(const struct ot_checkpoint_record *record, char **text, size_t *bytes);
/* where: the path of the file, for error messages. Errors: OT_E_INPUT (damaged, or of a newer format),
 * OT_E_BUDGET. */
int ot_checkpoint_record_decode(const char *text, size_t bytes, const char *where,
                                struct ot_checkpoint_record *out);
/* Decodes JSON that is already parsed. Takes ownership of the tree, also on failure. Errors: OT_E_INPUT. */
int ot_checkpoint_record_take(struct ot_json *tree, const char *where, struct ot_checkpoint_record *out);
/* Opens the model of the run, with the selection of its options --train, --freeze and --lora. config: the
 * record's. Errors: as ot_model_open_selected, and OT_E_INPUT. */
int ot_checkpoint_record_open_model(const struct ot_checkpoint_record *record,
                                    const struct ot_model_config *config, enum ot_dtype dtype,
                                    struct ot_model **out);
/* Writes the name of the rank's host for people, or "?" if the record does not say it. Returns host. */
enum { OT_RECORD_HOST_BYTES = 72 };
const char *ot_checkpoint_record_host(const struct ot_checkpoint_record *record, int rank,
                                      char host[OT_RECORD_HOST_BYTES]);
void ot_checkpoint_record_free(struct ot_checkpoint_record *record); /* only for a record that was read */

#endif

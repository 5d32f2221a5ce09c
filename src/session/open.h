/* Opens the parts of a command that runs a model, in this order: machine, tokenizer, model, plan, device,
 * engine.
 *
 *   ot_session_open    reads the small files: config, tokenizer, safetensors headers; finds the device
 *                      and the disks of --nvme; allocates nothing large
 *   ot_session_plan    fixes the model's dtype and positions and makes the plan: all bytes are known then
 *   ot_session_start   allocates them, and loads the weights or a checkpoint, or makes random weights
 *
 * Use a session from one thread.
 */
#ifndef OT_SESSION_OPEN_H
#define OT_SESSION_OPEN_H

#include "src/session/forecast.h"
#include "src/session/session.h"

/* Writes the choices that depend on the machine (threads, device, dtype) into the settings. Errors:
 * OT_E_INPUT, OT_E_IO, OT_E_USAGE, OT_E_DEVICE, OT_E_BUDGET (the request exceeds the memory or the disk).
 * `out` needs ot_session_close in either case. */
int ot_session_open(struct ot_settings *settings, struct ot_session *out);
/* Scales the rope of a model's config if --rope-scaling says so. Errors: OT_E_USAGE. */
int ot_session_scale_rope(const struct ot_options *options, struct ot_model_config *config);
/* Like ot_session_open, without tokenizer and weight files: for commands that need only the model's shape. If
 * the session is started, its weights are random. */
int ot_session_open_model(struct ot_settings *settings, struct ot_session *out);
/* Like ot_session_open, but only for the machine and its device. Errors: OT_E_DEVICE, OT_E_BUDGET. */
int ot_session_open_machine(struct ot_settings *settings, struct ot_session *out);
/* Like ot_session_open, for the small files alone, without a device: what a saved model needs beside its
 * weights. dtype: the stored format of a model that has no files. */
int ot_session_open_files(struct ot_settings *settings, enum ot_dtype dtype, struct ot_session *out);
/* Like ot_session_open, for the tokenizer alone, without a model. */
int ot_session_open_tokenizer(struct ot_settings *settings, struct ot_session *out);
/* True if the tokenizer was made from the keys of a GGUF file, so that no file has it. */
bool ot_session_has_made_tokenizer(const struct ot_session *session);
/* The path of the SentencePiece model that the tokenizer was made from, or that lies beside its
 * tokenizer.json; NULL: none. */
const char *ot_session_sentencepiece(const struct ot_session *session);
/* True if the tokenizer was made from this model. */
bool ot_session_is_of_sentencepiece(const struct ot_session *session);
/* Closes and frees everything, except after an engine got stuck (engine.h): its threads still use the
 * session, which therefore leaks. */
void ot_session_close(struct ot_session *session);

struct ot_session_need {
    int64_t max_position; /* the number of positions that a row may have */
    int64_t sequence_tokens, step_sequences;
    int64_t micro_sequences; /* 0: the plan chooses it from the budget */
    int sections;            /* of a sequence (offload/plan/slabs.h); 0: the plan chooses */
    bool train, clip;
    int64_t cache_tokens; /* size of the key/value cache for generation; 0: no cache */
    /* Texts that are generated side by side, and the tokens of the longest; 0: one text. Then cache_tokens is
     * what all of them need, and the plan takes as much of it as an eighth of the device's memory has room
     * for, and at least longest_text. */
    int64_t texts, longest_text;
    int snapshot_slots, pinned_contents; /* for checkpoints (saver.h); 0: no checkpoint is made or read */
    bool gathers;       /* the model is saved: with several ranks, rank 0 then holds a slab of it */
    int resumed_ranks;  /* whose sums the run added up so far (record.h); 0: it is new */
    int resumed_stages; /* --stages of the run so far; 0: none, or not given */
    int64_t host_bytes; /* bytes that the caller already holds (rows); the host budget shrinks
                                        * by them */
};

/* Makes session->plan.chosen. Errors: OT_E_BUDGET, OT_E_USAGE, OT_E_INPUT (the weight files do not fit this
 * model). */
int ot_session_plan(struct ot_session *session, const struct ot_session_need *need);
/* For a run that trains, before its plan is made: predicts a step with the plan that ot_session_forecast
 * would choose, and keeps no plan. The first call measures the machine and the model's blocks; later calls
 * and the forecast use the same costs. Calls may differ only in need->step_sequences. Errors: as
 * ot_session_forecast; OT_E_BUDGET on all ranks if no plan fits on one of them. */
int ot_session_predict(struct ot_session *session, const struct ot_session_need *need,
                       const struct ot_forecast_rows *rows, struct ot_prediction *out);
/* For a run that trains, with the same `need`: measures the machine and the model's blocks, which takes
 * seconds, and replaces the plan by the fastest plan (forecast.h). Errors: OT_E_BUDGET, OT_E_DEVICE,
 * OT_E_IO. */
int ot_session_forecast(struct ot_session *session, const struct ot_session_need *need,
                        const struct ot_forecast_rows *rows);
/* Opens the engine and fills in the weights. optimizer NULL: the command does not train. Errors: OT_E_BUDGET,
 * OT_E_DEVICE, OT_E_INPUT (a weight is not finite, a checkpoint is damaged), OT_E_IO. */
int ot_session_start(struct ot_session *session, const struct ot_optimizer_config *optimizer);

#endif

/* What every command that runs a model opens, in order: machine, tokenizer, model, plan, device, engine.
 *
 *   ot_session_open    reads the small files: config, tokenizer, safetensors headers; finds the device
 *                      and the disks of --nvme; allocates nothing large
 *   ot_session_plan    fixes the model's dtype and positions and makes the plan: what would be used is known
 *   ot_session_start   allocates it, and loads the weights or a checkpoint, or makes random ones
 *
 * One thread.
 */
#ifndef OT_SESSION_SESSION_H
#define OT_SESSION_SESSION_H

#include "src/session/forecast.h"
#include "src/session/parts.h"

/* Chooses the settings that the machine decides (threads, device, dtype). Errors: OT_E_INPUT, OT_E_IO,
 * OT_E_USAGE, OT_E_DEVICE, OT_E_BUDGET (more memory or disk asked for than there is).
 * `out` needs ot_session_close in either case. */
int ot_session_open(struct ot_settings *settings, struct ot_session *out);
/* The same without tokenizer and weight files, for commands that need the model's shape: its weights, if it
 * gets any, are random. */
int ot_session_open_model(struct ot_settings *settings, struct ot_session *out);
/* The same for the machine and its device alone, for a command without a model. Errors: OT_E_DEVICE,
 * OT_E_BUDGET. */
int ot_session_open_machine(struct ot_settings *settings, struct ot_session *out);
/* The same for the small files alone, without a device: what a saved model needs beside its weights. Without
 * files of a model, dtype is what it is stored as. */
int ot_session_open_files(struct ot_settings *settings, enum ot_dtype dtype, struct ot_session *out);
/* The same for the tokenizer alone; it has no model. */
int ot_session_open_tokenizer(struct ot_settings *settings, struct ot_session *out);
/* Of a stuck engine (engine.h) all stays as it is. */
void ot_session_close(struct ot_session *session);

struct ot_session_need {
    int64_t max_position; /* positions that rows may have */
    int64_t sequence_tokens, step_sequences;
    int64_t micro_sequences; /* 0: chosen from the budget */
    bool train, clip;
    int64_t cache_tokens;              /* key/value cache for generation; 0: none */
    int snapshot_slots, kept_contents; /* for checkpoints (saver.h); 0: none are made or read */
    int64_t host_bytes;                /* held by the caller already (rows): the host budget is less by it */
};

/* Errors: OT_E_BUDGET, OT_E_USAGE, OT_E_INPUT (the weight files are not this model's). */
int ot_session_plan(struct ot_session *session, const struct ot_session_need *need);
/* The same need once more, of a run that trains: measures the machine and the model's blocks, which takes
 * seconds, and puts the fastest plan in the place of the one that fits (forecast.h). Errors: OT_E_BUDGET,
 * OT_E_DEVICE, OT_E_IO. */
int ot_session_forecast(struct ot_session *session, const struct ot_session_need *need,
                        const struct ot_forecast_rows *rows);
/* Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_INPUT (a weight is not finite, a checkpoint is damaged), OT_E_IO. */
int ot_session_start(struct ot_session *session, const struct ot_optimizer_config *optimizer);

#endif

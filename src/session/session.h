/* What every command that runs a model opens, in order: machine, tokenizer, model, plan, device, engine.
 *
 *   ot_session_open    reads the small files: config, tokenizer, safetensors headers; finds the device
 *                      and the disks of --nvme; allocates nothing large
 *   ot_session_plan    fixes the model's dtype and positions and makes the plan: what would be used is known
 *   ot_session_start   allocates it, and loads the weights or a checkpoint, or makes random ones
 *
 * The struct owns what it names and borrows the options; a field is NULL until its stage. One thread.
 */
#ifndef OT_SESSION_SESSION_H
#define OT_SESSION_SESSION_H

#include "kernels/device.h"
#include "models/model.h"
#include "offload/engine/engine.h"
#include "offload/predict/planner.h"
#include "offload/store/store.h"
#include "offload/topology/topology.h"
#include "src/data/format.h"
#include "src/data/sample.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"
#include "src/machine/machine.h"
#include "src/options/options.h"
#include "src/session/forecast.h"

struct ot_checkpoint;
struct ot_pool;

struct ot_session {
    struct ot_options *options;
    struct ot_machine machine;
    struct ot_pool *pool; /* for files and rows */

    struct ot_resolved resolved;
    struct ot_model_dir *dir; /* NULL: a preset without files, for --init random */
    struct ot_model_config config;
    enum ot_dtype stored; /* of the weight files, read and written */
    struct ot_token_ids ids;

    char *tokenizer_path;
    bool tokenizer_is_own; /* the byte-level tokenizer that own presets get: a file in memory, behind: */
    int tokenizer_fd;
    struct ot_tokenizer *tokenizer;
    struct ot_special_tokens specials;
    struct ot_json *run; /* run.json beside the model, for generate and eval; NULL: none was read */
    struct ot_template_choice chat; /* what the model's files say: see chat_choice.h */
    const char *prompt_format;      /* --prompt-format, else the recorded one; NULL: none */

    enum ot_dtype dtype; /* on the device */
    struct ot_model *model;
    size_t budget_bytes[OT_TIER_COUNT];
    struct ot_store_dir store_dirs[OT_STORE_MAX_DIRS]; /* with what may be used of each */
    struct ot_store_config store;                      /* n_dirs 0 without --nvme */
    const struct ot_costs *costs; /* borrowed, set before plan: what to choose it by; NULL: what fits */
    struct ot_plan plan;
    struct ot_prediction prediction; /* zero without costs and forecast */
    struct ot_forecast forecast;
    size_t workspace_bytes;       /* what the device's ops work in, of the gpu budget */
    size_t cache_bytes;           /* of the key/value cache for generation, beside the plan's own bytes */
    struct ot_topology *topology; /* as the device sees it */
    struct ot_topology_binding placement; /* of the device's threads and memory */
    struct ot_device *device;
    struct ot_engine *engine;
    struct ot_checkpoint *restored; /* set before start: to go on from, instead of weights; borrowed */
    double restore_seconds;         /* that reading it took */
    bool any_weights;               /* set before start: random weights need not be those of --seed */
    int64_t traced_tasks;           /* set before start: to trace so many tasks, also without --trace */
    struct ot_trace *trace;         /* NULL: none */
};

/* Fills in the options that the machine decides (threads, device, dtype). Errors: OT_E_INPUT, OT_E_IO,
 * OT_E_USAGE, OT_E_DEVICE, OT_E_BUDGET (more memory or disk asked for than there is).
 * `out` needs ot_session_close in either case. */
int ot_session_open(struct ot_options *options, struct ot_session *out);
/* The same without tokenizer and weight files, for commands that need the model's shape: its weights, if it
 * gets any, are random. */
int ot_session_open_model(struct ot_options *options, struct ot_session *out);
/* The same for the machine and its device alone, for a command without a model. Errors: OT_E_DEVICE,
 * OT_E_BUDGET. */
int ot_session_open_machine(struct ot_options *options, struct ot_session *out);
/* The same for the small files alone, without a device: what a saved model needs beside its weights. Without
 * files of a model, dtype is what it is stored as. */
int ot_session_open_files(struct ot_options *options, enum ot_dtype dtype, struct ot_session *out);
/* The same for the tokenizer alone; it has no model. */
int ot_session_open_tokenizer(struct ot_options *options, struct ot_session *out);
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

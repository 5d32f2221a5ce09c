/* What a session (session.h) has: the struct that the files of this folder fill in. It owns what it names and
 * borrows the settings; a field is NULL until its stage.
 */
#ifndef OT_SESSION_PARTS_H
#define OT_SESSION_PARTS_H

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
#include "src/options/settings.h"

struct ot_checkpoint;
struct ot_pool;

/* How fast the run will be, as forecast.h makes it. */
struct ot_forecast {
    struct ot_costs costs;
    int tried;      /* plans that were simulated */
    double seconds; /* that making it took */
    bool is_explained;
    struct ot_explanation explanation;
    struct ot_trace *trace; /* with --trace: the simulated steps, of: */
    struct ot_layout layout;
    struct ot_schedule schedule;
};

struct ot_session {
    struct ot_settings *settings;     /* borrowed; for what the session chooses */
    const struct ot_options *options; /* in effect: of the settings */
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

#endif

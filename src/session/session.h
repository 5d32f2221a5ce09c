/* The struct ot_session (open.h), which the files of this folder fill in. A session owns its members,
 * except those marked as borrowed. A pointer is NULL until the stage that sets it. */
#ifndef OT_SESSION_SESSION_H
#define OT_SESSION_SESSION_H

#include "kernels/device.h"
#include "models/model.h"
#include "offload/engine/engine.h"
#include "offload/predict/planner_ranks.h"
#include "offload/store/store.h"
#include "offload/topology/topology.h"
#include "src/data/format.h"
#include "src/data/sample.h"
#include "src/files/model_dir.h"
#include "src/files/resolve.h"
#include "src/machine/machine.h"
#include "src/options/settings.h"
#include "src/tokenizer/new_tokens.h"

struct ot_checkpoint;
struct ot_comm;
struct ot_pool;
struct ot_world;

/* The fingerprint of the base (ot_base_print_take in weights.h). */
struct ot_base_print {
    bool is_known; /* false: the weights are random */
    uint32_t sample;
};

/* The predicted speed of the run; made by forecast.h. */
struct ot_forecast {
    struct ot_costs costs;
    int tried;                     /* plans, as in planner.h */
    struct ot_shard_choice shards; /* with several ranks, on rank 0: the modes that were compared */
    double seconds;                /* time that making the forecast took */
    bool is_explained;
    struct ot_explanation explanation;
    struct ot_trace *trace; /* with --trace: the simulated steps, of this layout and schedule: */
    struct ot_layout layout;
    struct ot_schedule schedule;
    /* The prediction from the times of these steps of the run (forecast.h). step_seconds 0: none. */
    struct ot_prediction again;
    int64_t again_from, again_to;
};

/* The machine: what the run may use of it, and what is open. */
struct ot_session_machine {
    struct ot_machine limits;
    struct ot_pool *pool; /* threads that read files and rows */
    struct ot_device *device;
    struct ot_topology *topology;       /* as the device sees it */
    struct ot_topology_binding binding; /* where the device's threads and memory are placed */
    size_t budget_bytes[OT_TIER_COUNT];
    size_t workspace_bytes; /* scratch of the device's ops, part of the gpu budget */
    struct ot_store_dir store_dirs[OT_STORE_MAX_DIRS]; /* each with the bytes that may be used */
    struct ot_store_config store;                      /* n_dirs 0 without --nvme */
};

/* The model: its files, its shape, and where its values came from. */
struct ot_session_model {
    struct ot_resolved resolved;
    char *lora, *train;       /* what --adapter says of --lora and --train; NULL: nothing */
    struct ot_model_dir *dir; /* NULL: a preset without files, for --init random */
    struct ot_model_config config;
    enum ot_dtype stored; /* the dtype of the weight files, read and written */
    enum ot_dtype dtype;  /* on the device */
    struct ot_model *built;
    struct ot_base_print base; /* of the base's files */
    bool any_weights;          /* set before start: random weights need not follow --seed */
    bool has_frozen_crc;       /* frozen weights were read from files; of all their fp32 values: */
    uint32_t frozen_crc;
    uint32_t trained_crc;           /* the same of trained weights; 0: a checkpoint took their place */
    struct ot_checkpoint *restored; /* borrowed, set before start: loaded in place of weights */
    double restore_seconds;         /* time that reading the checkpoint took */
};

/* The model's text: tokenizer, and templates of rows and chats. */
struct ot_session_text {
    struct ot_token_ids ids;
    char *tokenizer_path;
    char *tokenizer_file;  /* NULL, or the file of which tokenizer_path is a copy with more added tokens */
    bool tokenizer_is_own; /* the byte-level tokenizer of own presets */
    bool tokenizer_is_of_adapter; /* it lies in the directory of the adapters, not of the base */
    bool tokenizer_is_in_memory;  /* the session made the tokenizer's file, in memory: */
    int tokenizer_fd;
    struct ot_tokenizer *tokenizer;
    struct ot_new_tokens new_tokens; /* that the options add; the ids of those that were not there before: */
    int64_t first_new, n_new;
    bool tokenizer_is_extended; /* the file in memory has tokens that the options add */
    struct ot_special_tokens specials;
    struct ot_json *run; /* run.json beside the model, for generate, eval and merge; NULL: none was read */
    struct ot_template_choice chat;          /* what the model's files say (chat_choice.h) */
    struct ot_chat_renderer *model_template; /* of the model's directory; NULL: it has none */
    const char *prompt_format;               /* --prompt-format, else the recorded one; NULL: none */
};

/* Several ranks (session_ranks.h). */
struct ot_session_ranks {
    struct ot_world *world; /* borrowed, set before open; NULL: one rank */
    struct ot_comm *comm;   /* NULL: one rank */
    struct ot_shard shard;
    bool may_one_copy; /* the ranks can have one copy of the weights in RAM, if that is faster */
    bool crosses;      /* transfers go through memory that all ranks pin (offload/comm/crossing.h) */
    /* On rank 0, after ot_session_ranks_gather_traces: of the other ranks. */
    struct ot_trace_text *traces;
    int n_traces;
    bool may_stages; /* the ranks may divide the model into stages, if that is faster */
    /* By rank, once it is measured: budgets, and the time of a layer for a token. */
    struct ot_rank_machine machines[OT_SHARD_MOST_STAGES];
};

struct ot_session_plan {
    /* Borrowed, set before plan: the planner chooses the fastest plan by these costs. NULL: takes the first
     * plan that fits. */
    const struct ot_costs *costs;
    struct ot_plan chosen;
    struct ot_prediction prediction; /* zero without costs and forecast */
    struct ot_forecast forecast;
    /* Generation: the tokens of the key/value cache, and the most texts that grow side by side. */
    int64_t cache_tokens;
    int texts;
};

struct ot_session {
    struct ot_settings *settings;     /* borrowed; the session writes its own choices here */
    const struct ot_options *options; /* settings->in_effect */
    struct ot_session_machine machine;
    struct ot_session_model model;
    struct ot_session_text text;
    struct ot_session_ranks ranks;
    struct ot_session_plan plan;
    struct ot_engine *engine;
    unsigned (*requests)(void *context); /* set before start: see engine.h; NULL: none */
    void *requests_context;
    int64_t traced_tasks;   /* set before start: trace this many tasks, even without --trace */
    struct ot_trace *trace; /* NULL: none */
};

#endif

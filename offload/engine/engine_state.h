/* Declarations that the files of the engine share (engine.c, tasks.c, sections.c, texts.c, cache.c, decide.c,
 * shadow.c, diagnose.c, nvme.c, staging.c, params.c, rank_tasks.c, snapshot_copy.c). Internal to offload/. */
#ifndef OT_OFFLOAD_ENGINE_ENGINE_STATE_H
#define OT_OFFLOAD_ENGINE_ENGINE_STATE_H

#include <pthread.h>
#include <stdatomic.h>

#include "kernels/ops.h"
#include "offload/engine/engine.h"
#include "offload/engine/executor.h"
#include "offload/plan/stages.h"
#include "offload/store/store.h"
#include "src/base/thread.h"

/* The host's data of a step in flight. ot_engine_submit writes it before the step starts; then tasks read
 * it. */
struct ot_engine_step {
    int n_micro;           /* as in the input: sections of a sequence count once */
    int n_places;          /* places up to the last micro-batch of this rank */
    int64_t *micro_tokens; /* [plan.max_micro]: padded tokens of the micro-batch in each place; 0: none */
    int64_t *micro_inputs; /* [plan.max_micro]: ot_micro_batch.n_inputs of each */
    int64_t *micro_number; /* [plan.max_micro]: its number in the step, of all ranks, sections counted */
    int64_t *comparisons;  /* [plan.max_micro]: ot_micro_batch.n_comparisons of each */
    float grad_scale;      /* 1 / n_losses, for the device */
    double inverse_losses; /* the same in double, for the loss */
    float lr;
    struct ot_step_result result; /* written by the step's last decision */
};

/* The state that decisions keep from one step to the next. Only DECIDE tasks use it while steps run, and the
 * schedule orders them. */
struct ot_engine_control {
    int64_t adam_step;    /* optimizer steps so far */
    int64_t deciding;     /* the step of the two flags below */
    bool skip, updated;   /* without clipping: a gradient was not finite; a slab was updated */
    int64_t scaled_steps; /* fp16: steps since the loss scale last changed */
    struct ot_loss_stats losses;
};

/* Updates ahead of the decision (shadow.c). The cpu lane's thread uses all members; the driver uses those
 * that the mutex protects. */
struct ot_engine_shadows {
    double *portions;    /* [n_slabs]: usual portion of the slab in the squared norm of a step */
    bool knows_portions; /* since the first step with a finite norm */
    int64_t decided;     /* the last step with a decision */
    pthread_mutex_t mutex;
    /* protected by the mutex, with the bytes of the tiles that are pending: */
    struct ot_engine_shadow {
        const struct ot_task *task; /* its SHADOW task; NULL: not pending */
        struct ot_adamw_step assumed;
    } * pending; /* [plan.shadow_frames]; NULL: the plan has no shadows */
    bool closed; /* no more shadows are made */
    struct ot_shadow_usage usage;
};

/* Staging (staging.c): extents on nvme in host memory between steps, so that the driver can read and change
 * them. */
enum { OT_STAGED_STATE, OT_STAGED_WEIGHTS, OT_STAGED_FROZEN, OT_STAGED_KINDS };
enum { OT_MOST_STAGED = 8 }; /* extents of a kind: enough writes in flight for a deep queue of the disk */

struct ot_engine_staged {
    struct ot_engine_staging *staging; /* all staged extents, with this one */
    int extent;                        /* -1: none */
    bool changed;                      /* changed since it was read or written */
    char *memory;
    /* protected by the mutex of the staging: */
    bool moves;            /* a transfer is under way; the driver leaves the memory alone */
    struct ot_error error; /* the last transfer's */
};

/* All staged extents. They are a member of the engine because a transfer may outlive the wait for it: see
 * ot_engine_is_stuck. */
struct ot_engine_staging {
    struct ot_engine_staged slots[OT_STAGED_KINDS][OT_MOST_STAGED];
    int last[OT_STAGED_KINDS]; /* the slot that was staged last: no transfer moves it */
    pthread_mutex_t mutex;
    pthread_cond_t ended; /* a transfer */
    bool stuck;           /* a transfer hangs */
};

/* A generation (texts.c). */
struct ot_engine_texts {
    int n; /* 0: no generation */
    /* The rows of a text in the cache: [first, first + capacity), of which `past` are filled. With pairs the
     * first `inputs` are the inputs. */
    struct ot_engine_text {
        int64_t first, capacity, past, inputs;
    } * at; /* [n] */
    /* The micro-batches of the present pass. */
    struct ot_engine_piece {
        int64_t first, past; /* of the text that it continues, with earlier micro-batches */
        int64_t filled;      /* 0, or its first micro-batch of the pass: the rows of earlier passes */
        const struct ot_kv_text *texts; /* NULL; or each of its tokens continues a text (block.h) */
        int64_t first_logits;           /* its place in the results, in rows of the vocabulary */
    } * pieces;                         /* [max_micro] */
    struct ot_kv_text *continued;       /* [max(plan.texts, 1)] */
};

struct ot_engine {
    struct ot_chain chain; /* a copy; the caller owns the memory behind its pointers */
    struct ot_plan plan;
    struct ot_optimizer_config optimizer;
    struct ot_objective objective;
    double skip_spikes; /* 0: skip none */
    bool (*give_up)(void);
    unsigned (*requests)(void *context);
    void *requests_context;
    struct ot_comm *comm; /* NULL: one rank */
    struct ot_device *device;
    const struct ot_ops *ops;
    struct ot_layout layout;
    char *tier_memory[OT_MEMORIES];
    bool shared_is_mapped, shared_is_pinned;
    bool crosses;                       /* the communicator's transfers go through the shared memory */
    bool one_copy_is_read;              /* a forward pass alone has read it since the last step */
    struct ot_store *store;             /* NULL: the plan has nothing on nvme */
    struct ot_store_piece *slab_pieces; /* pieces of one slab's weights, for the nvme_read lane */
    /* Pieces of a block's cache, for the nvme_read and the nvme_write lane; NULL: it is not on nvme. */
    struct ot_store_piece *cache_pieces[2];
    struct ot_engine_staging staging; /* initialised if `store` is not NULL */
    /* Several threads may put segments at the same time (params.c): taken for all but copies in host memory.
     */
    pthread_mutex_t putting;
    double stall_limit_seconds;
    struct ot_pool *pool; /* pool of the optimizer */
    struct ot_topology_binding optimizer_binding;
    struct ot_executor *executor;
    struct ot_lane *lane; /* for copies between steps; the executor has its own lanes */
    /* flush: makes late updates; no tasks if the plan has none */
    /* gather: makes weights whole; no tasks if no weights are whole between steps */
    struct ot_schedule train, flush, gather, eval, decode, prompts;
    struct ot_bound *train_bound, *flush_bound, *gather_bound, *eval_bound, *decode_bound, *prompts_bound;
    bool behind; /* the last step left updates to the next step: flush before the slabs are read */
    atomic_bool
        stale; /* the other ranks' shares of whole weights are old: gather before a forward pass alone */
    atomic_bool frozen_stale;         /* the same for frozen weights, before the first step */
    struct ot_snapshot *snapshot;     /* NULL: the plan does not train */
    struct ot_engine_fetches fetches; /* the h2d lane's thread counts */
    bool poisons_parts;               /* as in the config */
    int decide_task;                  /* task number of the step's last decision */
    struct ot_engine_step steps[2];   /* [step & 1] */
    struct ot_engine_control control;
    struct ot_engine_shadows shadows;
    int64_t submitted, collected; /* step numbers; they go on from ot_engine_set_progress */
    double last_result_time, step_start[2];
    enum ot_pass pass;                     /* the running pass: training, except during a forward only */
    struct ot_engine_diagnosis *diagnosis; /* checks the output of each block; NULL: no check */
    struct ot_engine_texts texts;
};

/* The offset of a micro-batch's token array in the buffer of the step's arrays, in elements. array: in the
 * order of ot_chain_token_arrays. */
static inline size_t ot_engine_batch_offset(const struct ot_engine *engine, int micro, int array) {
    return (size_t)(micro * ot_chain_token_arrays(&engine->chain) + array) *
           (size_t)engine->plan.micro_tokens;
}

static inline void *ot_engine_at(const struct ot_engine *engine, int buffer) {
    return ot_layout_at(&engine->layout, engine->tier_memory, buffer);
}

/* The buffer of a parity pair that belongs to this step. */
static inline void *ot_engine_at_parity(const struct ot_engine *engine, int first_of_pair, int64_t step) {
    return ot_engine_at(engine, first_of_pair + (int)(step & 1));
}

/* The address of unit `first` (slabs.h) of a slab, in a buffer of its weights or gradients. */
static inline char *ot_engine_at_unit(const struct ot_engine *engine, int buffer, int slab, int64_t first) {
    int64_t index = ot_layout_index(&engine->layout, &engine->chain, &engine->plan, buffer, slab, first);
    return (char *)ot_engine_at(engine, buffer) + ot_slab_bytes(&engine->chain, slab, index);
}

/* The loss scale for the next decision. Only decisions change it. Only decisions and the driver between steps
 * read it. */
static inline float ot_engine_loss_scale(const struct ot_engine *engine) {
    return engine->chain.dtype == OT_F16 ? *(const float *)ot_engine_at(engine, engine->layout.control) : 1;
}

/* True if a training step is running and the caller has abandoned it. */
static inline bool ot_engine_has_given_up(const struct ot_engine *engine) {
    return engine->give_up && engine->plan.clip && engine->pass == OT_PASS_TRAIN && engine->give_up();
}

/* Stages: the number of results of a rank, for all slabs and in the end. */
static inline size_t ot_engine_stage_results(const struct ot_engine *engine) {
    return (size_t)(engine->chain.n_slabs * engine->layout.norms + engine->layout.own_results);
}

/* This rank's results of a slab (slab < 0: losses and requests) in results_gpu, or a buffer like
 * all_results. */
static inline double *ot_engine_results(const struct ot_engine *engine, int buffer, int slab) {
    const struct ot_layout *layout = &engine->layout;
    bool stages = ot_plan_has_stages(&engine->plan); /* a part has all norms */
    int norms = buffer == layout->results_gpu && !stages ? layout->own_norms : layout->norms;
    size_t own = stages ? (size_t)engine->plan.shard.rank * ot_engine_stage_results(engine) : 0;
    return (double *)ot_engine_at(engine, buffer) + own + (slab >= 0 ? slab : engine->chain.n_slabs) * norms;
}

/* Bit of a rank's requests: it has given up the step. The requests are the bytes of the double
 * behind its losses. */
enum { OT_REQUEST_GIVE_UP = OT_REQUEST_LIMIT };
/* The requests of this rank now. */
static inline unsigned ot_engine_requests(const struct ot_engine *engine) {
    unsigned requests = engine->requests ? engine->requests(engine->requests_context) : 0;
    return requests | (ot_engine_has_given_up(engine) ? OT_REQUEST_GIVE_UP : 0);
}

/* The executor's callback (engine/tasks.c). */
int ot_engine_run_task(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane);
/* Runs a task of the comm lane, or one that prepares or ends it (engine/rank_tasks.c). */
void ot_engine_run_rank_task(struct ot_engine *engine, const struct ot_task *task, int64_t step,
                             struct ot_lane *lane);
/* Sections of a row (engine/sections.c). fill_row: the fields of a run that they hand on, and the place of
 * this section's losses. clear: the sums of gradients, before the first task that adds to them; nothing
 * before others. move: runs a KEYS_IN or a KEYS_OUT. */
void ot_engine_fill_row(const struct ot_engine *engine, const struct ot_task *task, struct ot_block_run *run);
void ot_engine_clear_key_sums(const struct ot_engine *engine, const struct ot_task *task,
                              struct ot_lane *lane);
void ot_engine_move_keys(const struct ot_engine *engine, const struct ot_task *task, int64_t step,
                         struct ot_lane *lane);
/* Weights and the choice of parts (engine/staging.c). Runs a FETCH, a DECODE, and a USED_OUT. choice: returns
 * the place for the choice of a forward's first half; clears it for the first micro-batch. */
void ot_engine_fetch(struct ot_engine *engine, const struct ot_task *task, int64_t step,
                     struct ot_lane *lane);
void ot_engine_decode_slab(struct ot_engine *engine, const struct ot_task *task, int64_t step,
                           struct ot_lane *lane);
void ot_engine_choice_out(struct ot_engine *engine, const struct ot_task *task, int64_t step,
                          struct ot_lane *lane);
int32_t *ot_engine_choice(const struct ot_engine *engine, const struct ot_task *task, struct ot_lane *lane);
/* The ranges that a FETCH or an NVME_READ of a slab copies. */
struct ot_run_walk ot_engine_walk(const struct ot_engine *engine, const struct ot_task *task, int64_t step);
/* Run GRAD_FINISH and GRAD_KEEP tasks (engine/decide.c). */
void ot_engine_finish_grads(struct ot_engine *engine, const struct ot_task *task, struct ot_lane *lane);
void ot_engine_keep_grads(struct ot_engine *engine, const struct ot_task *task, struct ot_lane *lane);
/* Runs a DECIDE task (engine/decide.c). Errors: OT_E_NUMERIC; OT_E_COMM: results of some ranks are missing,
 * and nothing is updated. */
int ot_engine_decide(struct ot_engine *engine, const struct ot_task *task, int64_t step);

/* The squared norm of a slab, from the results of a step. */
double ot_engine_slab_squares(const struct ot_engine *engine, const double *results, int slab);
/* The numbers with which the step updates a slab, if gradients are multiplied by `scale`. */
struct ot_adamw_step ot_engine_adamw_step(const struct ot_engine *engine, int64_t step, int slab,
                                          double scale, bool skip);

/* The pool's work on a tile: its update; the same after a copy of the tile to the frame task->frame; a copy
 * back from there. step: not used by OT_TILE_UNDO. */
enum ot_tile_work { OT_TILE_UPDATE, OT_TILE_SHADOW, OT_TILE_UNDO };
void ot_engine_work_on_tile(struct ot_engine *engine, const struct ot_task *task, enum ot_tile_work work,
                            const struct ot_adamw_step *step);

/* Shadows (engine/shadow.c). Errors of open: OT_E_BUDGET; close it also then. */
int ot_engine_open_shadows(struct ot_engine *engine);
void ot_engine_close_shadows(struct ot_engine *engine);
/* Runs a SHADOW task. */
void ot_engine_run_shadow(struct ot_engine *engine, const struct ot_task *task, int64_t step);
/* Called by an update before it changes its tile. params: the numbers of the decision. Returns true if a
 * shadow has made the same update. Undoes a shadow that has assumed other numbers. */
bool ot_engine_settle_shadow(struct ot_engine *engine, const struct ot_task *task,
                             const struct ot_adamw_step *params);
/* Called by the decision of a step. results: the squared norms of all slabs. */
void ot_engine_note_decision(struct ot_engine *engine, const double *results, int64_t step);
/* Called by the driver of a stuck engine: undoes all pending shadows. No more are made. */
void ot_engine_undo_shadows(struct ot_engine *engine);

/* Checks the output of a block after its FORWARD task has been enqueued, on the lane's thread
 * (engine/diagnose.c). */
void ot_engine_diagnose_output(struct ot_engine *engine, const struct ot_task *task, struct ot_lane *lane);

/* The memory that ranks share (engine/rank_tasks.c): one copy of weights, or the slots of transfers, which
 * go through it from then on. All ranks open it together; it does nothing if the plan has neither. given: see
 * engine_config.shared_memory. Close it when no lane has transfers. Errors: as ot_shared_memory_map,
 * ot_device_place, ot_device_pin and ot_comm_cross. */
int ot_engine_open_shared(struct ot_engine *engine, void *given);
void ot_engine_close_shared(struct ot_engine *engine);
/* Stages: checks that the communicator's memory on the host has room for each call of transfers in a
 * schedule. Errors: OT_E_INTERNAL, OT_E_BUDGET (no memory). */
int ot_engine_check_transfers(const struct ot_engine *engine, const struct ot_schedule *schedule);
/* Before a step: waits until no rank is in a forward pass alone any more. Errors: OT_E_COMM. */
int ot_engine_leave_one_copy(struct ot_engine *engine);

/* Opens engine->snapshot (engine/snapshot_copy.c). Errors: as ot_snapshot_open. */
int ot_engine_open_snapshot(struct ot_engine *engine);

/* Nvme (engine/nvme.c). Opens the store for the layout's extents; does nothing if it has none. Errors:
 * OT_E_INTERNAL (no directories), or as ot_store_open. */
int ot_engine_open_store(struct ot_engine *engine, const struct ot_store_config *config);
void ot_engine_close_store(struct ot_engine *engine); /* does nothing if there is no store */
/* The executor's callback for the nvme lanes. */
void ot_engine_start_task(void *context, const struct ot_task *task, int64_t step, ot_task_done_fn done,
                          void *arg);

/* Staging (engine/staging.c). Open it after the store, close it after the store. */
void ot_engine_open_staging(struct ot_engine *engine);
void ot_engine_close_staging(struct ot_engine *engine);
/* Between steps: brings an extent into host memory. *out is valid until another extent of the same kind is
 * staged or a step starts; the caller sets `changed` if it changes the content. Errors: OT_E_IO, OT_E_STALL;
 * also if an earlier extent could not be written back. */
int ot_engine_stage(struct ot_engine *engine, int kind, int slab, int extent, struct ot_engine_staged **out);

/* ---- a forward pass alone (engine.c) ---- */

/* Drains the engine. Then micro-batches are added, at most plan.max_micro, each padded to n_tokens tokens,
 * and the pass is run. past: tokens of the micro-batch's text in earlier passes. *results: its n results on
 * the host, valid until they are cleared. They lie where steps have norms, so every caller clears them. */
int ot_engine_begin_pass(struct ot_engine *engine);
void ot_engine_add_micro(struct ot_engine *engine, const struct ot_micro_batch *micro, int64_t past,
                         int64_t n_tokens);
int ot_engine_run_pass(struct ot_engine *engine, enum ot_pass pass, struct ot_bound *bound, int64_t n,
                       float **results);
void ot_engine_clear_results(struct ot_engine *engine);

/* The cache of generation (cache.c). find: the cache and the logits of a block's run. copy: runs a CACHE_IN
 * or a CACHE_OUT. pieces: lists the extents that an NVME_READ or an NVME_WRITE of a cache moves, at most all
 * of its buffer on nvme, and returns their number. */
void ot_engine_find_cache(const struct ot_engine *engine, const struct ot_task *task,
                          struct ot_block_run *run);
void ot_engine_copy_cache(const struct ot_engine *engine, const struct ot_task *task, int64_t step,
                          struct ot_lane *lane);
int ot_engine_cache_pieces(const struct ot_engine *engine, const struct ot_task *task, int64_t step,
                           struct ot_store_piece *pieces);
/* The number of logits of a pass (texts.c). */
int64_t ot_engine_logits_of_pass(const struct ot_engine *engine, int64_t step);

#endif

/* What the engine's own files share (engine.c, engine/tasks.c, engine/decide.c, engine/diagnose.c,
 * engine/nvme.c, engine/params.c). Internal to offload/. */
#ifndef OT_OFFLOAD_ENGINE_ENGINE_STATE_H
#define OT_OFFLOAD_ENGINE_ENGINE_STATE_H

#include <pthread.h>

#include "offload/engine/engine.h"
#include "offload/engine/executor.h"
#include "offload/store/store.h"
#include "src/base/pool.h"

/* The host's side of a step in flight: written by submit before the step starts, then read by its tasks. */
struct ot_engine_step {
    int n_micro;
    int64_t *micro_tokens; /* [plan.max_micro] */
    float grad_scale;      /* 1 / trained tokens, for the device */
    double inverse_tokens; /* and for the loss */
    float lr;
    struct ot_step_result result; /* written by the step's last decision */
};

/* What decisions carry from one to the next; only DECIDE tasks touch it, and the schedule orders them. */
struct ot_engine_control {
    int64_t adam_step;    /* updates applied so far */
    int64_t deciding;     /* the step that the two flags belong to */
    bool skip, updated;   /* without clipping: a slab was not finite; a slab was updated */
    int64_t scaled_steps; /* fp16: steps since the loss scale last changed */
    struct ot_loss_stats losses;
};

/* An extent in host memory between steps, where the host's own code reads and changes it: in a slot, which is
 * idle then. */
struct ot_engine_staged {
    int extent; /* -1: none */
    bool changed;
    char *memory;
};
enum { OT_STAGED_STATE, OT_STAGED_WEIGHTS, OT_STAGED_KINDS };

/* One transfer that the host's own code waits for. It lies in the engine because it may outlive the waiting:
 * see ot_engine_is_stuck. */
struct ot_engine_wait {
    pthread_mutex_t mutex;
    pthread_cond_t ended;
    bool done;
    struct ot_error error; /* valid when done */
};

struct ot_engine {
    struct ot_chain chain; /* a copy; what it points to is the caller's */
    struct ot_plan plan;
    struct ot_optimizer_config optimizer;
    double skip_spikes; /* 0: none */
    bool (*give_up)(void);
    struct ot_device *device;
    const struct ot_ops *ops;
    struct ot_layout layout;
    char *tier_memory[OT_TIER_COUNT];
    struct ot_store *store;             /* NULL: the plan has nothing on nvme */
    struct ot_store_piece *slab_pieces; /* of a whole slab's weights: for the nvme_read lane */
    struct ot_engine_staged staged[OT_STAGED_KINDS];
    struct ot_engine_wait wait; /* open where the store is */
    double stall_limit_seconds;
    bool stuck;           /* in that transfer */
    struct ot_pool *pool; /* the optimizer's */
    struct ot_topology_binding optimizer_binding;
    struct ot_executor *executor;
    struct ot_lane *lane; /* for copies between steps; the executor's lanes are its own */
    struct ot_schedule train, flush, eval, decode; /* flush: of no tasks where it is never due */
    struct ot_bound *train_bound, *flush_bound, *eval_bound, *decode_bound;
    bool behind; /* the last step has left something to the next one: a flush is due before anyone looks */
    struct ot_snapshot *snapshot;   /* NULL: the plan does not train */
    int decide_task;                /* the step's last decision */
    struct ot_engine_step steps[2]; /* by step & 1 */
    struct ot_engine_control control;
    int64_t submitted, collected; /* steps, counted from what set_progress said */
    double last_result_time, step_start[2];
    enum ot_pass pass;             /* what runs: training, but inside a forward alone */
    struct ot_engine_probe *probe; /* looks at what each block has put out; NULL: nobody does */
    char *kv_memory;
    int64_t kv_capacity, kv_past;
};

static inline void *ot_engine_at(const struct ot_engine *engine, int buffer) {
    return ot_layout_at(&engine->layout, engine->tier_memory, buffer);
}

/* The buffer of a parity pair that this step uses. */
static inline void *ot_engine_at_parity(const struct ot_engine *engine, int first_of_pair, int64_t step) {
    return ot_engine_at(engine, first_of_pair + (int)(step & 1));
}

/* The next decision's. Only decisions change it, and only they and the host's own code between steps ask. */
static inline float ot_engine_loss_scale(const struct ot_engine *engine) {
    return engine->chain.dtype == OT_F16 ? *(const float *)ot_engine_at(engine, engine->layout.control) : 1;
}

/* Whether what is under way is a step that the caller has given up. */
static inline bool ot_engine_has_given_up(const struct ot_engine *engine) {
    return engine->give_up && engine->plan.clip && engine->pass == OT_PASS_TRAIN && engine->give_up();
}

/* The executor's callback (engine/tasks.c). */
int ot_engine_run_task(void *context, const struct ot_task *task, int64_t step, struct ot_lane *lane);
/* Of DECIDE tasks (engine/decide.c). Errors: OT_E_NUMERIC. */
int ot_engine_decide(struct ot_engine *engine, const struct ot_task *task, int64_t step);

/* After a FORWARD task has been enqueued, on the lane's thread (engine/diagnose.c). */
void ot_engine_probe_output(struct ot_engine *engine, const struct ot_task *task, struct ot_lane *lane);

/* Opens engine->snapshot (engine/take_snapshot.c). Errors: as ot_snapshot_open. */
int ot_engine_open_snapshot(struct ot_engine *engine);

/* Nvme (engine/nvme.c). The store of the layout's extents; nothing where it has none. Errors: OT_E_INTERNAL
 * (no directories), as ot_store_open. */
int ot_engine_open_store(struct ot_engine *engine, const struct ot_store_config *config);
void ot_engine_close_store(struct ot_engine *engine); /* without a store nothing */
/* The executor's callback for the nvme lanes. */
void ot_engine_start_task(void *context, const struct ot_task *task, int64_t step, ot_task_done_fn done,
                          void *arg);
/* Between steps: the extent in host memory. Its place is valid until another extent of the kind is staged, or
 * a step starts. Errors: OT_E_IO, OT_E_STALL. */
int ot_engine_stage(struct ot_engine *engine, int kind, int slab, int extent, struct ot_engine_staged **out);
/* Before anything runs: what was changed is written, and no slot holds an extent any more. Errors:
 * OT_E_IO, OT_E_STALL. */
int ot_engine_unstage(struct ot_engine *engine);

#endif

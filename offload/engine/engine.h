/* The engine: trains a chain of blocks (block.h) on a device (kernels/device.h) under hard byte budgets.
 *
 * A PLAN (plan.h) says where every slab lives and how many slots stage it; a SCHEDULE (schedule.h) is made
 * from the plan once and checked by the verifier; the executor runs it step after step. Up to two steps are
 * in flight: submit hands over a step's micro-batches and returns, so that the forward of step k+1 starts
 * while the optimizer of step k still works on blocks further up. What the plan has streamed through the
 * device is updated in the next step, or by a drain; losses, norms, step counts and skipped steps are the
 * same as where it is updated at once.
 *
 * Same seed, data, device and micro-batch size: the same bits, whatever the plan (offload/README.md).
 *
 * fp16 training scales the loss, so that small gradients stay above what fp16 can hold, and adapts the scale
 * to what overflows: a step that does is skipped as a whole, so clipping must be on.
 *
 * A SPIKE is a step whose loss lies far above those before it. Spikes are told from a running mean and
 * variance of the loss (engine/decide.c has the numbers) and change nothing, unless skip_spikes asks that
 * they be skipped like steps whose gradient is not finite.
 *
 * Threads: one thread drives an engine. The engine owns its lanes and pools.
 */
#ifndef OT_OFFLOAD_ENGINE_ENGINE_H
#define OT_OFFLOAD_ENGINE_ENGINE_H

#include "offload/block.h"
#include "offload/engine/snapshot.h"
#include "offload/plan/plan.h"
#include "offload/predict/trace.h"
#include "offload/store/store.h"
#include "offload/topology/topology.h"

struct ot_engine;

struct ot_optimizer_config {
    float beta1, beta2, eps, weight_decay;
    float clip; /* max global norm; 0: off, and updates then overlap backward */
};

struct ot_engine_config {
    const struct ot_chain *chain; /* outlives the engine */
    struct ot_device *device;     /* outlives the engine; the plan's bytes are allocated from it */
    const struct ot_plan *plan;   /* copied */
    struct ot_optimizer_config optimizer;
    float loss_scale;       /* fp16: to begin with, a power of two; 0: 65536 */
    int optimizer_threads;  /* >= 1 */
    struct ot_trace *trace; /* NULL: none; outlives the engine */
    /* For plans with something on nvme: its directories, engine, verify, chunk, depth and calls; what depends
     * on the plan the engine fills in. NULL where there is nothing. */
    const struct ot_store_config *store;
    const struct ot_topology *topology; /* where threads are bound; outlives the engine; NULL: nowhere */
    uint64_t delay_seed;                /* test seam: not 0 delays the executor's own threads at random */
    double stall_seconds; /* the watchdog logs which task each lane is stuck on after this long; 0: 60 s */
    double stall_limit_seconds; /* and gives up after this long; 0: 600 s */
    /* With clipping: steps whose loss is more than so many standard deviations above its running mean are
     * skipped; 0: none. */
    double skip_spikes;
    /* With clipping: whether to give up steps whose decision has not been made; asked before each pass
     * through a block and by decisions, on threads of the engine's. Once true it stays true until every step
     * in flight is collected. NULL: never. */
    bool (*give_up)(void);
};

/* Allocates everything, reserves the disks' space, verifies the schedule, starts the lanes. Parameters are
 * undefined until set, m and v are zero. Errors: OT_E_BUDGET, OT_E_INTERNAL (the verifier's finding),
 * OT_E_DEVICE, OT_E_IO. */
int ot_engine_open(const struct ot_engine_config *config, struct ot_engine **out);
/* Drains first; NULL is fine. A stuck engine stays as it is. */
void ot_engine_close(struct ot_engine *engine);

/* What keeps the plan's nvme tier, and what it has moved; NULL and zeros where there is none. */
const char *ot_engine_describe_store(const struct ot_engine *engine);
void ot_engine_store_usage(const struct ot_engine *engine, struct ot_store_usage *out);

/* ---- a training step ---- */

struct ot_micro_batch { /* host memory; rows and fields as in kernels/ops.h */
    int64_t n_tokens;   /* 1..plan.micro_tokens */
    const int32_t *tokens, *targets, *position, *row_start;
};

struct ot_step_input {
    int n_micro; /* 1..plan.max_micro */
    const struct ot_micro_batch *micro;
    /* targets >= 0 in the whole step (all ranks): loss and gradient are divided by it */
    int64_t trained_tokens;
    float lr;
};

/* Why a step was skipped as a whole: nothing was changed, the optimizer's step count neither. */
enum ot_skip {
    OT_SKIP_NONE,     /* it was not */
    OT_SKIP_LOSS,     /* the loss was not finite */
    OT_SKIP_GRADIENT, /* the loss was finite, the norm of the gradient was not */
    OT_SKIP_OVERFLOW, /* fp16: there was no room for the gradient; the loss scale has been halved */
    OT_SKIP_SPIKE,
    /* engine_config.give_up said so, and the rest of the result says nothing. A caller that goes on from the
     * step before calls ot_engine_set_progress, drained. */
    OT_SKIP_GIVEN_UP,
    OT_SKIP_COUNT
};
const char *ot_skip_name(enum ot_skip skip); /* "loss", "gradient", "overflow", "spike", "given up"; "none" */

struct ot_step_result {
    int64_t step;     /* counts from 1, or on from what ot_engine_set_progress said */
    double loss;      /* mean over the step's trained tokens */
    double grad_norm; /* global, before clipping */
    double clipped_norm;
    float loss_scale; /* that the step's gradients were computed with (fp16); 1 in other dtypes */
    enum ot_skip skipped;
    bool spike;     /* skipped or not */
    int bad_micro;  /* the first micro-batch whose loss was not finite; -1: none */
    int bad_slab;   /* in backward's order, the first slab whose gradient was not finite; -1: none */
    double seconds; /* from the previous step's result (or this step's start, if later) to this one's */
};

/* Copies the input and starts the step. Blocks while two steps are in flight. Errors: OT_E_INPUT (a token,
 * target or position out of range, a bad row_start), or what an earlier step failed with. */
int ot_engine_submit(struct ot_engine *engine, const struct ot_step_input *input);
/* Waits for the oldest submitted step: its loss and norm are final; its update may still be under way.
 * Errors: as the step failed: OT_E_DEVICE, OT_E_NUMERIC (clip off, and a gradient was not finite after other
 * blocks were updated). */
int ot_engine_result(struct ot_engine *engine, struct ot_step_result *out);
/* Waits until every submitted step is complete, updates included: those that the next step would make are
 * made now. Required before anything below. */
int ot_engine_drain(struct ot_engine *engine);

/* After OT_E_STALL from any of these: a task has hung for stall_limit_seconds. Threads inside of it cannot be
 * ended, so that close frees nothing, and everything that the engine was given must stay: the caller ends the
 * process, by _exit, for exit would wait for the device.
 *
 * The watchdog sees whatever waits for a step, a forward pass or a drain, and for nvme when parameters are
 * set or read. It does not see what the driver itself asks of the device between steps (copies, tuning), nor
 * a disk that hangs while the store is opened or closed. */
bool ot_engine_is_stuck(const struct ot_engine *engine);
/* Of a stuck engine: whether weights, optimizer state and progress are all those of the last step whose
 * result was collected. They are where the step that hangs had not come to its (first) decision, the one
 * before it was complete, and no part of the plan is updated one step late, through the device (plan.h); or
 * where a forward pass alone hangs. */
bool ot_engine_is_consistent(struct ot_engine *engine);

/* Lets the device tune itself (device.h) for what the steps so far have asked of it, in those of the plan's
 * bytes that hold nothing between steps, for about `seconds`. Every result is collected; drains. No number
 * changes. Errors: OT_E_DEVICE, OT_E_INTERNAL. */
int ot_engine_tune(struct ot_engine *engine, double seconds, struct ot_device_tuning *out);

/* ---- forward alone ---- */

/* Losses of one micro-batch with the present weights: token_loss[n_tokens] on the host, 0 where the target is
 * < 0. */
int ot_engine_eval(struct ot_engine *engine, const struct ot_micro_batch *micro, float *token_loss);

/* Generation: a cache for `capacity` tokens, allocated from the device's budget. One at a time per engine. */
int ot_engine_decode_begin(struct ot_engine *engine, int64_t capacity);
/* What that takes, for a plan's extra bytes. */
size_t ot_engine_kv_bytes(const struct ot_chain *chain, int64_t capacity);
/* Appends n tokens (all but the first call usually 1) and returns the logits [vocab] after the last of them.
 * Errors: OT_E_INPUT when the cache is full. */
int ot_engine_decode(struct ot_engine *engine, const int32_t *tokens, int64_t n, float *logits);
void ot_engine_decode_end(struct ot_engine *engine);

/* ---- what is wrong (engine/diagnose.c; drained) ---- */

struct ot_bad_block {
    int block; /* the first whose output is not finite; the last one's is the loss; -1: none */
    int slab;  /* whose weights are not all finite, as the device has them; -1: none was found */
    const char *block_name, *slab_name; /* NULL: none */
    int64_t bad_weights;                /* how many of them are not */
};
/* Runs the micro-batch forward and looks at the output of each block; then at the weights of the slabs of the
 * first bad one, or, where there is none, of `suspect` (-1: of no slab). Errors: as ot_engine_eval. */
int ot_engine_find_bad_block(struct ot_engine *engine, const struct ot_micro_batch *micro, int suspect,
                             struct ot_bad_block *out);

/* ---- parameters and state (drained) ---- */

enum ot_slab_kind { OT_SLAB_MASTER, OT_SLAB_M, OT_SLAB_V };

/* fp32 values of parameters [first, first + n) of a slab; MASTER is exact: what was set is what is read. */
int ot_engine_set(struct ot_engine *engine, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  const float *values);
int ot_engine_get(struct ot_engine *engine, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  float *values);
/* The accumulated gradient of the last step, fp32, before clipping (test seam; needs plan.keep_grads). */
int ot_engine_get_grad(struct ot_engine *engine, int slab, int64_t first, int64_t n, float *values);

/* Of the losses so far, the latest weighing most. */
struct ot_loss_stats {
    double mean, variance;
    int64_t n; /* losses that went in */
};

/* What decisions carry from one step to the next: with the slabs, all that a run needs to go on with the same
 * bits. */
struct ot_engine_progress {
    int64_t step;         /* the last one */
    int64_t adam_step;    /* steps taken, skipped ones not counted */
    float loss_scale;     /* fp16: of the next step; 1 in other dtypes */
    int64_t scaled_steps; /* fp16: steps since it last changed */
    struct ot_loss_stats losses;
};
void ot_engine_get_progress(const struct ot_engine *engine, struct ot_engine_progress *out);
void ot_engine_set_progress(struct ot_engine *engine, const struct ot_engine_progress *progress);

/* ---- snapshots (snapshot.h) ---- */

/* What the plan's nvme tier is kept in, for the sink to refer to; NULL: there is none. */
struct ot_store *ot_engine_store(const struct ot_engine *engine);

/* On an engine that has been drained, or is stuck and consistent, with a plan that trains, and no other
 * snapshot under way. Errors:
 * OT_E_INTERNAL, OT_E_BUDGET, OT_E_IO (no thread). */
int ot_engine_snapshot(struct ot_engine *engine, const struct ot_snapshot_config *config);
/* Whether one is under way whose sink is still at work. */
bool ot_engine_snapshot_busy(const struct ot_engine *engine);
/* How long the last one took that was finished, without what it slept to keep its pace. */
double ot_engine_snapshot_seconds(const struct ot_engine *engine);
/* It ends as soon as it can, as one that failed; nothing where none is under way. */
void ot_engine_snapshot_give_up(struct ot_engine *engine);
/* Waits for it, unpaced, and ends it; nothing where none is under way. *pins: what it refers to, for
 * ot_engine_release; NULL: nothing. Errors: what the sink or a copy failed with; the engine is unharmed. */
int ot_engine_snapshot_finish(struct ot_engine *engine, struct ot_pins **pins);
/* Lets go of what they hold, and frees them; NULL is fine. */
void ot_engine_release(struct ot_engine *engine, struct ot_pins *pins);

/* Slots of ot_part_slot_bytes that the plan has for the sink, one after the other, pinned; also for what
 * reads parts back. */
void *ot_engine_snapshot_slots(const struct ot_engine *engine, int *n);

/* The reverse, before the first step or on a drained engine: takes a part's values home. `memory` as `put`
 * got it. Errors: OT_E_INTERNAL (no such parameters), OT_E_IO, OT_E_DEVICE. */
int ot_engine_put(struct ot_engine *engine, const struct ot_part *part, const void *memory);

#endif

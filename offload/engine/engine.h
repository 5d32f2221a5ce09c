/* The engine trains a chain of blocks (block.h) on a device (kernels/device.h) within fixed byte budgets.
 *
 * A PLAN (plan.h) says where every slab lives and how many slots stage it. A SCHEDULE (schedule.h) is made
 * from the plan once and checked by the verifier. The executor runs the schedule step after step. Up to two
 * steps are in flight: ot_engine_submit hands over a step's micro-batches and returns. So the forward of step
 * k+1 starts while the optimizer of step k still updates later blocks. Tiles of the stream engine (plan.h)
 * are updated in the next step, or by a drain. Losses, norms, step counts and skipped steps are the same as
 * with immediate updates.
 *
 * The same seed, data, device and micro-batch size give the same bits with every plan (offload/README.md).
 *
 * PADDING. The engine pads micro-batches to a multiple of tokens that the device names (device.h, SHAPES),
 * but never beyond plan.micro_tokens. A padding token repeats the first token of the micro-batch, in a row of
 * its own and without a target. So it has the first token's activations, which are finite if the first
 * token's are. Its loss and all its gradients are zeros, and it adds zeros to the gradients of weights.
 * Padding depends on the micro-batch and on plan.micro_tokens alone.
 *
 * fp16 training scales the loss, so that small gradients stay in the range of fp16. It adapts the scale: a
 * step whose gradients overflow is skipped as a whole. Therefore clipping must be on.
 *
 * A SPIKE is a step whose loss is far above the losses before it. Spikes are found from a running mean and
 * variance of the loss (engine/decide.c has the numbers). A spike changes nothing, unless skip_spikes is set:
 * then it is skipped like a step whose gradient is not finite.
 *
 * Threads: one thread, the driver, calls the functions of an engine. The engine owns its lanes and pools.
 */
#ifndef OT_OFFLOAD_ENGINE_ENGINE_H
#define OT_OFFLOAD_ENGINE_ENGINE_H

#include "offload/engine/snapshot.h"
#include "offload/plan/plan.h"
#include "offload/predict/trace.h"
#include "offload/rows.h"
#include "offload/store/store.h"
#include "offload/topology/topology.h"

struct ot_engine;
struct ot_comm;

struct ot_optimizer_config {
    float beta1, beta2, eps, weight_decay;
    float clip; /* largest global norm; 0: no clipping, and updates overlap backward */
    /* Seed of dropout, and of the random numbers that round a compact state (kernels/state_format.h). */
    uint64_t seed;
};

struct ot_engine_config {
    const struct ot_chain *chain; /* outlives the engine */
    struct ot_device *device;     /* outlives the engine, which allocates the plan's bytes from it */
    const struct ot_plan *plan;   /* copied */
    struct ot_optimizer_config optimizer;
    struct ot_objective objective; /* of a chain that compares */
    float loss_scale;              /* fp16: initial loss scale, a power of two; 0: 65536 */
    int optimizer_threads;         /* >= 1 */
    struct ot_trace *trace;        /* NULL: none; outlives the engine */
    /* For plans that use nvme: directories, I/O engine, verify, chunk, depth and calls of the store. The
     * engine fills in the fields that depend on the plan. NULL: the plan uses no nvme. */
    const struct ot_store_config *store;
    const struct ot_topology *topology; /* for binding threads; outlives the engine; NULL: do not bind */
    uint64_t delay_seed;                /* test seam: if not 0, random delays in the executor's threads */
    bool poisons_parts;   /* test seam: NaNs in the parts of a slot that are not fetched (engine/staging.c) */
    double stall_seconds; /* after this long without progress the watchdog logs each lane's task; 0: 60 s */
    double stall_limit_seconds; /* and after this long the engine is stuck; 0: 600 s */
    /* With clipping: skip steps whose loss exceeds its running mean by more than this number of standard
     * deviations. 0: skip none. */
    double skip_spikes;
    /* With clipping: returns true to abandon every step that has no decision yet. The engine's threads call
     * it before each pass through a block, and in decisions. Once it returns true it must do so until every
     * step in flight is collected. NULL: never abandon a step. */
    bool (*give_up)(void);
    /* Several ranks (plan.shard): moves bytes between them; outlives the engine. NULL: one rank. */
    struct ot_comm *comm;
    /* Test seam, for ranks that are threads of one process: the memory that they share, of the layout's
     * shared_bytes, zeros; outlives the engines. NULL: engines share memory between processes. */
    void *shared_memory;
    /* Returns the requests of this rank, as bits below OT_REQUEST_LIMIT that mean something to the caller.
     * Called once in each step, on a thread of the engine. Every rank finds the requests of all ranks in
     * the result of the same step, so all ranks can act on them alike. NULL: none. */
    unsigned (*requests)(void *context);
    void *requests_context;
};

/* Allocates all memory, reserves the disk space, verifies the schedule and starts the lanes. Parameters are
 * undefined until they are set; m and v are zero. Errors: OT_E_BUDGET, OT_E_INTERNAL (the verifier found a
 * fault), OT_E_DEVICE, OT_E_IO. */
int ot_engine_open(const struct ot_engine_config *config, struct ot_engine **out);
/* Drains the engine and frees it; NULL is fine. If the engine is stuck, close frees nothing. */
void ot_engine_close(struct ot_engine *engine);

/* A description of the NVMe store for people, and its counters. NULL and zeros if the plan uses no nvme. */
const char *ot_engine_describe_store(const struct ot_engine *engine);
void ot_engine_store_usage(const struct ot_engine *engine, struct ot_store_usage *out);

/* Updates ahead of the decision (plan/shadow_updates.h), in tiles, since the engine was opened. */
struct ot_shadow_usage {
    int64_t committed; /* the decision was as they had assumed */
    int64_t dropped;   /* the decision was different: they were undone */
};
void ot_engine_shadow_usage(struct ot_engine *engine, struct ot_shadow_usage *out);

/* ---- a training step ---- */

struct ot_step_input {
    int n_micro; /* sum over all ranks, at least 1 */
    /* This rank's micro-batches, in order (ot_shard_micro). One rank has all. */
    const struct ot_micro_batch *micro;
    /* Divides loss and gradient: the number of targets >= 0 in the whole step (all ranks), or of its
     * comparisons if the chain compares. */
    int64_t n_losses;
    float lr;
};

/* The reason why a step was skipped. A skipped step changes nothing, and is not an optimizer step. */
enum ot_skip {
    OT_SKIP_NONE,     /* not skipped */
    OT_SKIP_LOSS,     /* the loss was not finite */
    OT_SKIP_GRADIENT, /* the loss was finite, the norm of the gradient was not */
    OT_SKIP_OVERFLOW, /* fp16: the gradient overflowed; the loss scale has been halved */
    OT_SKIP_SPIKE,
    /* engine_config.give_up returned true. The other fields of the result are undefined. To continue from the
     * step before, drain the engine and call ot_engine_set_progress. */
    OT_SKIP_GIVEN_UP,
    OT_SKIP_COUNT
};
const char *ot_skip_name(enum ot_skip skip); /* "loss", "gradient", "overflow", "spike", "given up"; "none" */

enum { OT_REQUEST_LIMIT = 0x80 };

struct ot_step_result {
    int64_t step;                     /* counts from 1, or from the step given to ot_engine_set_progress */
    double loss;                      /* mean over the step's n_losses */
    double compared[OT_COMPARE_SUMS]; /* means over its comparisons, if the chain compares */
    double grad_norm;                 /* global, before clipping */
    double clipped_norm;
    float loss_scale; /* loss scale of the step's gradients (fp16); 1 in other dtypes */
    enum ot_skip skipped;
    bool spike;        /* also set if the step was not skipped */
    int bad_micro;     /* the first micro-batch, of all ranks, whose loss was not finite; -1: none */
    int bad_slab;      /* the first slab in backward's order whose gradient was not finite; -1: none */
    unsigned requests; /* union over all ranks */
    double seconds;    /* from the previous step's result, or this step's start if later, to its own result */
};

/* Copies the input and starts the step. Blocks while two steps are in flight. Errors: OT_E_INPUT (a token,
 * target, position or row_start out of range), or the error of an earlier step. */
int ot_engine_submit(struct ot_engine *engine, const struct ot_step_input *input);
/* Waits for the result of the oldest submitted step. Its loss and norm are final; its update may still be
 * under way. Errors: the error of the step: OT_E_DEVICE, OT_E_NUMERIC (clipping is off, and a gradient was
 * not finite after other blocks had been updated). */
int ot_engine_result(struct ot_engine *engine, struct ot_step_result *out);
/* Waits until every submitted step is complete, including all updates: updates that the next step would make
 * are made now. The functions below need a drained engine. */
int ot_engine_drain(struct ot_engine *engine);

/* True after a function returned OT_E_STALL: a task has hung for stall_limit_seconds. A thread that hangs in
 * a system call cannot be ended. So ot_engine_close frees nothing, and everything that was given to the
 * engine must stay valid. The caller ends the process with _exit, because exit would wait for the device.
 *
 * The watchdog covers every wait for a step, a forward pass or a drain, and for nvme when parameters are set
 * or read. It does not cover the driver's own calls of the device between steps (copies, tuning), or a disk
 * that hangs while the store is opened or closed. */
bool ot_engine_is_stuck(const struct ot_engine *engine);
/* For a stuck engine: true if weights, optimizer state and progress all belong to the last collected step.
 * That is so if the hanging step had not reached its (first) decision, the step before it was complete, and
 * no tile is updated one step late (stream engine, plan.h). It is also so if only a forward pass hangs. */
bool ot_engine_is_consistent(struct ot_engine *engine);

/* The weights that were copied to the device for blocks, since the engine was opened. */
struct ot_engine_fetches {
    int64_t bytes;      /* bytes copied */
    int64_t parts;      /* parts of the slabs that are fetched by use (plan/used_parts.h) */
    int64_t used;       /* parts of these slabs that were copied */
    int64_t left_bytes; /* bytes of the parts that were not copied */
};
void ot_engine_get_fetches(const struct ot_engine *engine, struct ot_engine_fetches *out); /* drained */

/* Drains, then lets the device tune itself (device.h) for the calls of the steps so far, for about `seconds`.
 * Uses memory of the plan that holds nothing between steps. Every result must be collected. The tuning
 * changes no number of the training. Errors: OT_E_DEVICE, OT_E_INTERNAL. */
int ot_engine_tune(struct ot_engine *engine, double seconds, struct ot_device_tuning *out);

/* ---- forward only ---- */

/* Computes the losses of one micro-batch with the present weights. token_loss: [n_tokens] on the host; 0 for
 * a token whose target is < 0. */
int ot_engine_eval(struct ot_engine *engine, const struct ot_micro_batch *micro, float *token_loss);
/* The same. token_hit: [n_tokens], true where the target's logit is the largest; NULL: not wanted. */
int ot_engine_eval_hits(struct ot_engine *engine, const struct ot_micro_batch *micro, float *token_loss,
                        bool *token_hit);
/* True if all ranks must run each forward pass alone together, with the same tokens, because they are stages
 * (plan/stages.h). All of them then have its results. */
bool ot_engine_runs_together(const struct ot_engine *engine);
/* True if no forward pass needs another rank, so that each rank may make passes of its own: any number, for
 * other tokens. All ranks call ot_engine_prepare_passes first. */
bool ot_engine_runs_alone(const struct ot_engine *engine);
/* Collective. Drains, and makes whole weights whole again where each rank has updated a part of them. */
int ot_engine_prepare_passes(struct ot_engine *engine);

/* ---- generation (engine/texts.c; drained) ---- */

/* Texts grow side by side. Each has its own part of one key/value cache, wherever its home is. A pass through
 * the blocks continues as many texts as plan.texts allows, so streamed weights cross the bus once for all of
 * them:
 *
 *   prompts   A micro-batch is a prompt or a piece of one, up to plan.micro_tokens tokens. A pass may have
 *             several. They go through the blocks layer by layer (ot_schedule_make_prompts).
 *   steps     A micro-batch has one token of each text.
 *
 * EXACTNESS. A text gets the same bits in any company. A prompt's products have the shape that they have for
 * this prompt alone. The products of a step are computed by rows (kernels/ops.h), and attention has a call
 * for each text. All other ops of a forward compute each token by itself.
 *
 * A step of an encoder-decoder has a micro-batch for each text, because its texts have inputs of different
 * lengths. */
struct ot_text_room {
    /* With pairs: the first n_inputs tokens are the inputs, at most plan.micro_tokens. They must come in one
     * call. Else 0. */
    int64_t n_inputs;
    int64_t capacity; /* tokens with the inputs */
};
/* Begins a generation of n texts. One generation at a time per engine. Errors: OT_E_INPUT; OT_E_BUDGET: the
 * texts have more tokens than plan.cache_rows. */
int ot_engine_texts_begin(struct ot_engine *engine, const struct ot_text_room *rooms, int n);
struct ot_text_tokens {
    int text; /* ascending, each at most once */
    const int32_t *tokens;
    int64_t n;
};
/* Appends tokens to n texts, and writes the logits [n][vocab] after the last token of each. Usually the first
 * call of a text has its prompt, and further calls have one token. Errors: OT_E_INPUT if a text's room is
 * full. */
int ot_engine_texts_append(struct ot_engine *engine, const struct ot_text_tokens *appended, int n,
                           float *logits);
/* The bytes of the keys and values of `capacity` tokens, in all blocks. */
size_t ot_engine_kv_bytes(const struct ot_chain *chain, int64_t capacity);

/* The same for a single text. */
int ot_engine_decode_begin(struct ot_engine *engine, int64_t capacity);
int ot_engine_decode_begin_pair(struct ot_engine *engine, int64_t n_inputs, int64_t capacity);
int ot_engine_decode(struct ot_engine *engine, const int32_t *tokens, int64_t n, float *logits);
void ot_engine_decode_end(struct ot_engine *engine); /* ends any generation */

/* ---- diagnosis (engine/diagnose.c; drained) ---- */

struct ot_bad_block {
    int block; /* first block whose output is not finite; for the last block the loss; -1: none */
    int slab;  /* slab with weights that are not finite, as the device has them; -1: none found */
    const char *block_name, *slab_name; /* NULL: none */
    int64_t bad_weights;                /* number of weights that are not finite */
};
/* Runs the micro-batch forward and checks the output of each block. Then checks the weights of the first bad
 * block, or, if no block is bad, the weights of slab `suspect` (-1: none). Errors: as ot_engine_eval. */
int ot_engine_find_bad_block(struct ot_engine *engine, const struct ot_micro_batch *micro, int suspect,
                             struct ot_bad_block *out);

/* ---- parameters and state (drained) ---- */

enum ot_slab_kind { OT_SLAB_MASTER, OT_SLAB_M, OT_SLAB_V };

/* Sets or gets the fp32 values of parameters [first, first + n) of a slab that is not encoded. MASTER is
 * exact: a get returns the values that were set; a frozen slab's are rounded to the chain's dtype. A frozen
 * slab has no M and V. If the ranks have one copy of weights (plan/slabs.h), set and ot_engine_put are
 * called while no rank is in a pass: before the first step, or after a barrier. */
int ot_engine_set(struct ot_engine *engine, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  const float *values);
int ot_engine_get(struct ot_engine *engine, enum ot_slab_kind kind, int slab, int64_t first, int64_t n,
                  float *values);
/* The same for units [first, first + n) of an encoded slab, of OT_ENCODED_UNIT bytes each. */
int ot_engine_set_encoded(struct ot_engine *engine, int slab, int64_t first, int64_t n, const void *bytes);
int ot_engine_get_encoded(struct ot_engine *engine, int slab, int64_t first, int64_t n, void *bytes);
/* Collective: brings a whole slab together on rank 0, through device memory that holds nothing between steps.
 * All ranks call it with the same kind and slab. values: [n_params] on the host; NULL except on rank 0.
 * Errors: OT_E_COMM; OT_E_BUDGET; as ot_engine_get. After an error the other ranks still wait, so the caller
 * breaks the communicator. */
int ot_engine_gather_to_rank0(struct ot_engine *engine, enum ot_slab_kind kind, int slab, float *values);
/* The accumulated gradient of the last step, fp32, before clipping (test seam; needs plan.keep_grads). */
int ot_engine_get_grad(struct ot_engine *engine, int slab, int64_t first, int64_t n, float *values);

/* Running statistics of the loss; later losses weigh more. */
struct ot_loss_stats {
    double mean, variance;
    int64_t n; /* losses counted so far */
};

/* The values that decisions keep from one step to the next. A run that restores these and the slabs continues
 * with the same bits. */
struct ot_engine_progress {
    int64_t step;         /* the last step */
    int64_t adam_step;    /* optimizer steps, without skipped steps */
    float loss_scale;     /* fp16: loss scale of the next step; 1 in other dtypes */
    int64_t scaled_steps; /* fp16: steps since the scale last changed */
    struct ot_loss_stats losses;
};
void ot_engine_get_progress(const struct ot_engine *engine, struct ot_engine_progress *out);
void ot_engine_set_progress(struct ot_engine *engine, const struct ot_engine_progress *progress);

/* ---- snapshots (snapshot.h) ---- */

/* The store of the plan's nvme tier, for a sink that refers to its files. NULL: the plan uses no nvme. */
struct ot_store *ot_engine_store(const struct ot_engine *engine);

/* Begins a snapshot. The plan must train, and no other snapshot may be under way. The engine must be drained,
 * or stuck and consistent. Errors: OT_E_INTERNAL, OT_E_BUDGET, OT_E_IO (no thread). */
int ot_engine_snapshot(struct ot_engine *engine, const struct ot_snapshot_config *config);
/* True while the thread of a snapshot is still at work. */
bool ot_engine_snapshot_busy(const struct ot_engine *engine);
/* Seconds that the last finished snapshot took, without its pauses to keep the pace. */
double ot_engine_snapshot_seconds(const struct ot_engine *engine);
/* Cancels a snapshot that is under way: it ends as soon as it can, and its finish returns an error. */
void ot_engine_snapshot_give_up(struct ot_engine *engine);
/* Waits for a snapshot that is under way, without pauses, and ends it. *pins: the pins of the extents that
 * the sink refers to, for ot_engine_release; NULL: none. Errors: that of the sink or of a copy; the engine is
 * not harmed. Without a snapshot it does nothing. */
int ot_engine_snapshot_finish(struct ot_engine *engine, struct ot_pins **pins);
/* Unpins the extents and frees `pins`; NULL is fine. */
void ot_engine_release(struct ot_engine *engine, struct ot_pins *pins);

/* The n slots of ot_segment_slot_bytes that the plan has for the sink: pinned memory, one after the other.
 * The caller may also use them to read segments back. */
void *ot_engine_snapshot_slots(const struct ot_engine *engine, int *n);

/* Copies the values of a segment that this rank holds to their homes: all, some or none. So a run can load
 * the segments of a run with another number of ranks. Call it before the first step or on a drained engine.
 * `memory`: the segment as `put` of the sink got it. Several threads may put segments of different parameters
 * at the same time. Errors: OT_E_INTERNAL (no such parameters), OT_E_IO, OT_E_DEVICE. */
int ot_engine_put(struct ot_engine *engine, const struct ot_segment *segment, const void *memory);
/* Waits until all values that were set or put are at their homes. Steps, passes and snapshots do so by
 * themselves when they begin; call it to learn of a failed write at once. Errors: OT_E_IO, OT_E_STALL. */
int ot_engine_unstage(struct ot_engine *engine);
/* True if this rank holds a value of the segment. */
bool ot_engine_holds(const struct ot_engine *engine, const struct ot_segment *segment);

#endif

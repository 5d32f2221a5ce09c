/* The schedule: the tasks of one step as a graph, with edges into the step after it.
 *
 * The generator writes a step down as a plain sequential program: this task, then that one, each with the
 * buffers that it reads and writes. Nothing in it is clever. Order between tasks then follows from the
 * accesses alone, as in a processor's scoreboard: a read comes after the last write, a write after the last
 * write and every read since. What remains after transitive reduction is exactly the set of edges whose loss
 * would be a race, which is why the mutation test can drop any one of them and expect the verifier to see it.
 * Overlap comes for free: a fetch into a slot depends on the slot's last reader and nothing else, so its lane
 * runs ahead of the compute lane as far as slots allow.
 *
 * Lanes h2d, compute and d2h are in order: tasks run as listed. The cpu lane takes whichever ready task has
 * the earliest deadline: the block that the next forward needs first. So do the nvme lanes, which start a
 * task while the one before it is still under way, and may complete them in any order.
 *
 * Two consecutive steps overlap as far as the edges let them; step k + 2 starts only after step k is
 * complete, which is what lets two copies of the parity buffers suffice.
 *
 * A step leaves the streamed tiles (plan.h) one update behind, and resident copies of what the pool updated:
 * the next step makes up for both before each slab's first use. Where no step follows (before evaluation,
 * before parameters are read), a flush does: a schedule of nothing else, which runs alone.
 *
 * Each access also says what the bytes are: "weights of slab 3 after k updates". The verifier replays the
 * program with these tags, so that a task that would read the right buffer at the wrong time, or a slot with
 * the wrong owner, is found even where no race is.
 */
#ifndef OT_OFFLOAD_SCHEDULE_SCHEDULE_H
#define OT_OFFLOAD_SCHEDULE_SCHEDULE_H

#include "offload/plan/layout.h"

enum ot_lane_id {
    OT_LANE_H2D,
    OT_LANE_COMPUTE,
    OT_LANE_D2H,
    OT_LANE_CPU,
    OT_LANE_NVME_READ,
    OT_LANE_NVME_WRITE,
    OT_LANE_COUNT
};
const char *ot_lane_name(enum ot_lane_id lane);
/* In order, on the device; the others are the host's and take what is ready. */
static inline bool ot_lane_is_device(enum ot_lane_id lane) {
    return lane < OT_LANE_CPU;
}

enum ot_task_kind {
    OT_TASK_BATCH_IN,      /* h2d: token arrays of the step */
    OT_TASK_FETCH,         /* h2d: weights from their host home into a slot */
    OT_TASK_FORWARD,       /* compute: block, micro */
    OT_TASK_SCALE_IN,      /* h2d, fp16: the loss scale that the last decision left */
    OT_TASK_BOUNDARY_OUT,  /* d2h: boundary activation to its host home */
    OT_TASK_BOUNDARY_IN,   /* h2d: and back */
    OT_TASK_BACKWARD,      /* compute: block, micro */
    OT_TASK_GRAD_FINISH,   /* compute: join the uses, squared norm, round to the storage dtype */
    OT_TASK_GRAD_OUT,      /* d2h: to the waiting gradients on the host */
    OT_TASK_GRAD_KEEP,     /* d2h: test seam */
    OT_TASK_RESULT_OUT,    /* d2h: losses and squared norms (slab < 0), or one slab's squared norm */
    OT_TASK_DECIDE,        /* cpu: norm, clip factor, skip or not; slab < 0 for the whole step */
    OT_TASK_PARAMS_IN,     /* h2d: the decision, for updates on the device */
    OT_TASK_UPDATE_CPU,    /* cpu: AdamW on one tile */
    OT_TASK_UPDATE_GPU,    /* compute: AdamW on a slab */
    OT_TASK_UPLOAD,        /* h2d: updated weights to their resident copy */
    OT_TASK_STORE,         /* d2h: weights updated on the device to their host home */
    OT_TASK_STATE_IN,      /* h2d: a streamed tile's state, and its gradients where they wait on the host */
    OT_TASK_UPDATE_STREAM, /* compute: AdamW on a streamed tile, with the step before's gradients */
    OT_TASK_STATE_OUT,     /* d2h: its state back, and its weights to their home */
    OT_TASK_LOSS_OUT,      /* d2h, forward alone: token losses or logits */
    OT_TASK_NVME_READ,     /* nvme_read: a slab's weights, a tile's state and weights, or a boundary */
    OT_TASK_NVME_WRITE,    /* nvme_write: a tile's state and weights, or a boundary */
    OT_TASK_KINDS
};
const char *ot_task_kind_name(enum ot_task_kind kind);

/* What bytes mean. version counts optimizer steps relative to the step that the task belongs to. */
enum ot_content {
    OT_CONTENT_ANY, /* scratch: read of anything, or garbage afterwards */
    OT_CONTENT_WEIGHTS,
    OT_CONTENT_STATE,
    OT_CONTENT_BATCH,
    OT_CONTENT_BOUNDARY,
    OT_CONTENT_BOUNDARY_GRAD,
    OT_CONTENT_SAVED,
    OT_CONTENT_GRAD_SUM,
    OT_CONTENT_GRAD,
    OT_CONTENT_RESULT,
    OT_CONTENT_PARAMS,
    OT_CONTENT_CONSTANTS,
    OT_CONTENT_LOSS,
    OT_CONTENT_SCALE,
};
struct ot_tag {
    uint8_t content; /* enum ot_content */
    int8_t version;  /* relative to the step */
    int32_t index;   /* slab, block, or use of a slab by a block */
    int32_t micro;   /* micro-batch, or the number of those summed up so far */
};

struct ot_access {
    int buffer;  /* for parity buffers: the first of the pair */
    bool parity; /* alternate between buffer and the next one with the step */
    bool reads, writes;
    int first_tile, n_tiles;
    struct ot_tag before, after; /* what is read, what is left; `after` only where writes */
};

enum { OT_TASK_MAX_ACCESSES = 16 };

struct ot_dep {
    int task;
    bool previous_step;
};

struct ot_task {
    enum ot_task_kind kind;
    enum ot_lane_id lane;
    int block, slab, micro, tile; /* -1 where it has none */
    int deadline;                 /* lanes of the host: smaller runs first, then what was listed first */
    struct ot_tile_span span;     /* what part of the slab it moves or updates */
    bool first;                   /* BACKWARD: clears the accumulators before it adds */
    bool saved_valid;             /* BACKWARD: the forward kept its insides */
    int n_uses;                   /* GRAD_FINISH: how many accumulators to join */
    /* Buffers by role; OT_NO_BUFFER where it has none. Parity ones name the first of the pair. */
    int weights[OT_MAX_USES], grads[OT_MAX_USES];
    int x, y, dxy, saved, from, to, state, stage;
    int n_accesses;
    struct ot_access accesses[OT_TASK_MAX_ACCESSES];
    int n_deps;
    struct ot_dep *deps;
    /* Set by ot_schedule_link. */
    bool needs_event;  /* a task of another device lane waits for it */
    bool needs_notify; /* a cpu task waits for it, or it is the last of its lane */
};

struct ot_schedule {
    int n_tasks, capacity;
    struct ot_task *tasks; /* in program order */
    int lane_count[OT_LANE_COUNT];
    int *lane_tasks[OT_LANE_COUNT]; /* indices, in order */
    bool alone;                     /* drained before and after: no two steps of it overlap */
};

/* Training step, or with plan->train false (and for evaluation in between) a forward pass over one
 * micro-batch. Errors: OT_E_USAGE when the plan's slots cannot carry the step. Free with ot_schedule_free. */
int ot_schedule_make_train(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, struct ot_schedule *out);
int ot_schedule_make_forward(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_layout *layout, enum ot_pass pass, struct ot_schedule *out);
/* What a step leaves to the next one; a schedule of no tasks where it leaves nothing. */
int ot_schedule_make_flush(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, struct ot_schedule *out);
void ot_schedule_free(struct ot_schedule *schedule);

/* Derives the edges from the accesses and reduces them; fills in everything that follows from them. */
int ot_schedule_link(struct ot_schedule *schedule, const struct ot_layout *layout);

/* Says what is wrong, with the names of the two tasks and the buffer: a cycle, an unordered pair of accesses
 * to the same bytes, a read of bytes that are not what the task expects, bytes beyond the ledger. Independent
 * of how the edges were made. Errors: OT_E_INTERNAL. */
int ot_schedule_verify(const struct ot_schedule *schedule, const struct ot_layout *layout,
                       const struct ot_plan *plan);

/* "forward layer.3 #2", into text; returns text. */
const char *ot_task_describe(const struct ot_task *task, const struct ot_chain *chain, char *text,
                             size_t bytes);

static inline int ot_access_buffer(const struct ot_access *access, int64_t step) {
    return access->buffer + (access->parity ? (int)(step & 1) : 0);
}

#endif

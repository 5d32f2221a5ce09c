/* A schedule is the graph of one step's tasks, with edges into the following step.
 *
 * The generator writes a step as a plain sequential program: a list of tasks, each with the buffers that it
 * reads and writes. The linker derives the edges from these accesses alone, as a processor's scoreboard does.
 * A read comes after the last write. A write comes after the last write and after every read since. Then the
 * linker removes every edge that other edges imply (transitive reduction). Each remaining edge prevents a
 * race, so the mutation test can drop any edge and expect the verifier to notice. Overlap needs no extra
 * work: a fetch into a slot depends only on the slot's last reader, so its lane runs ahead of the compute
 * lane as far as the slots allow.
 *
 * Lanes h2d, compute, d2h and comm run their tasks in the listed order. The cpu lane and the nvme lanes take
 * the ready task with the earliest deadline: its block is the first that the next forward needs. The nvme
 * lanes start a task while earlier tasks are still under way, and may complete them in any order.
 *
 * Two consecutive steps overlap as far as the edges allow. Step k + 2 starts only after step k is complete,
 * so two copies of the parity buffers suffice.
 *
 * After a step, the streamed tiles (plan.h) lack that step's update, and weights on the device lack the
 * updates of the CPU pool. The next step makes up for both before each slab's first use. If no step follows
 * (before evaluation, before parameters are read), a flush makes up for them. A flush is a schedule of only
 * these tasks, and runs alone.
 *
 * With clipping, tiles of the CPU pool may have a SHADOW task: it updates the tile ahead of the decision, and
 * the tile's update keeps or undoes that after the decision (plan/shadow_updates.h). A shadow is not ordered
 * with the decision. If it comes later, it does nothing.
 *
 * A fetch or a decoding of used parts (used_parts.h) reads the choice on the host while it is enqueued,
 * because the choice says what it copies or decodes. So its edge from the task that brings the choice is
 * HOST-SIDE: the lane's thread itself waits until that task is complete, where otherwise only the device
 * waits. No other edge implies it.
 *
 * Each access also says what the bytes mean, for example "weights of slab 3 after k updates". The verifier
 * replays the program with these tags. So it finds a task that would read the right buffer at the wrong time,
 * or a slot with the wrong owner, even if there is no race.
 *
 */
#ifndef OT_OFFLOAD_SCHEDULE_SCHEDULE_H
#define OT_OFFLOAD_SCHEDULE_SCHEDULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/plan/layout.h"
#include "offload/plan/stages.h"
#include "offload/plan/used_parts.h"

enum ot_lane_id {
    OT_LANE_H2D,
    OT_LANE_COMPUTE,
    OT_LANE_D2H,
    OT_LANE_COMM,
    OT_LANE_CPU,
    OT_LANE_NVME_READ,
    OT_LANE_NVME_WRITE,
    OT_LANE_COUNT
};
const char *ot_lane_name(enum ot_lane_id lane);
/* True for the lanes of the device, which are in order. The other lanes belong to the host and take any ready
 * task. */
static inline bool ot_lane_is_device(enum ot_lane_id lane) {
    return lane < OT_LANE_CPU;
}

enum ot_task_kind {
    OT_TASK_BATCH_IN,     /* h2d: token arrays of the step */
    OT_TASK_FETCH,        /* h2d: weights from their host home into a slot */
    OT_TASK_DECODE,       /* compute: an encoded slab, or parts of it, into a weight slot */
    OT_TASK_FORWARD,      /* compute: block, micro, half */
    OT_TASK_USED_OUT,     /* d2h: the parts that a round has chosen in a block */
    OT_TASK_SCALE_IN,     /* h2d, fp16: the loss scale of the last decision */
    OT_TASK_BOUNDARY_OUT, /* d2h: boundary activation to its host home */
    OT_TASK_BOUNDARY_IN,  /* h2d: boundary activation back from there */
    OT_TASK_KEPT_OUT,     /* d2h: a block's kept activations to their host home */
    OT_TASK_KEPT_IN,      /* h2d: kept activations back from there */
    OT_TASK_KEYS,         /* compute: the keys of a section once more, before its block's backward */
    OT_TASK_KEYS_IN,      /* h2d: a group of a row's keys, or the sums of their gradients, to a slot */
    OT_TASK_KEYS_OUT,     /* d2h: a section's keys of a group to their home, or all sums before the section */
    OT_TASK_BACKWARD,     /* compute: block, micro */
    OT_TASK_SUM_OUT,      /* d2h: a gradient sum, or a piece of it, to the host after a round */
    OT_TASK_SUM_IN,       /* h2d: a gradient sum back from there */
    OT_TASK_GRAD_MERGE,   /* compute: add a gradient sum of this rank to another */
    OT_TASK_GRAD_FINISH,  /* compute: take the squared norm, round to the storage dtype */
    OT_TASK_GRAD_OUT,     /* d2h: gradients to the host, where they wait for the update or go on to nvme */
    OT_TASK_GRAD_KEEP,    /* d2h: fp32 gradients to the host, for tests only */
    OT_TASK_RESULT_OUT,   /* d2h: losses and squared norms (slab < 0), or one slab's squared norm */
    /* cpu: norm, clip factor, decision to skip the update; slab < 0: for the whole step. */
    OT_TASK_DECIDE,
    OT_TASK_PARAMS_IN,     /* h2d: the decision, for updates on the device */
    OT_TASK_SHADOW,        /* cpu: AdamW on one tile ahead of the decision; its old content to a frame */
    OT_TASK_UPDATE_CPU,    /* cpu: AdamW on one tile; after a shadow: keeps it or undoes it */
    OT_TASK_UPDATE_GPU,    /* compute: AdamW on a slab */
    OT_TASK_UPLOAD,        /* h2d: weights that the pool updated, to their copy on the device */
    OT_TASK_STORE,         /* d2h: weights updated on the device to their host home */
    OT_TASK_STATE_IN,      /* h2d: a streamed tile's state, and its gradients if they wait off the device */
    OT_TASK_UPDATE_STREAM, /* compute: AdamW on a streamed tile, with the previous step's gradients */
    OT_TASK_STATE_OUT,     /* d2h: a streamed tile's state back, and its weights to their home */
    OT_TASK_CACHE_IN,      /* h2d, generation: a block's keys and values of earlier passes into a slot */
    OT_TASK_CACHE_OUT,     /* d2h, generation: the keys and values that the pass has added */
    OT_TASK_LOSS_OUT,      /* d2h, forward alone: token losses or logits */
    /* nvme_read: a slab's weights, a tile's state and weights, its gradients, a piece of a gradient sum,
     * activations, or a block's cache */
    OT_TASK_NVME_READ,
    OT_TASK_NVME_WRITE, /* nvme_write: the same, but for a slab's weights */
    /* several ranks: */
    OT_TASK_GATHER,      /* comm: the weights of all ranks, into a slot or beside this rank's own */
    OT_TASK_MEET,        /* comm: all ranks have updated a slab in their one copy (slabs.h) */
    OT_TASK_GRAD_NARROW, /* compute: round the gradient sum to the dtype in which it crosses */
    OT_TASK_EXCHANGE,    /* comm: send each rank its share of the gradient sum, receive this rank's share */
    OT_TASK_GRAD_JOIN,   /* compute: add up the sums of all ranks, in the order of the ranks */
    OT_TASK_GRAD_GATHER, /* comm, if each rank updates everything: the shares of the joined sum */
    /* comm: norms of a slab, or (slab < 0) losses and requests, of all ranks; with stages also all norms */
    OT_TASK_RESULT_GATHER,
    OT_TASK_TRANSFER, /* comm, stages: what crosses to and from other ranks (ot_transfer_kind) */
    OT_TASK_KINDS
};
const char *ot_task_kind_name(enum ot_task_kind kind);

/* The meaning of the bytes that a task reads or writes. */
enum ot_content {
    OT_CONTENT_ANY, /* no meaning: a read accepts any bytes; after a write the bytes are garbage */
    OT_CONTENT_WEIGHTS,
    OT_CONTENT_FROZEN,  /* weights of a frozen slab, as its home has them: never change */
    OT_CONTENT_DECODED, /* weights of an encoded slab, decoded: never change */
    OT_CONTENT_DENSE,   /* weights of a slab with parts, outside of the parts */
    OT_CONTENT_USED,    /* the same, and the parts that micro-batches before `micro` have chosen */
    OT_CONTENT_PARTS,   /* the chosen parts alone */
    /* Like DENSE and USED, decoded from an encoded slab. */
    OT_CONTENT_DECODED_DENSE,
    OT_CONTENT_DECODED_USED,
    OT_CONTENT_CHOICE, /* the parts that the micro-batches have chosen */
    OT_CONTENT_HALF,   /* data that the first half of a block's forward leaves to the second */
    OT_CONTENT_STATE,
    OT_CONTENT_BATCH,
    OT_CONTENT_BOUNDARY,
    OT_CONTENT_BOUNDARY_GRAD,
    OT_CONTENT_SAVED,
    OT_CONTENT_KEYS,     /* keys and values of a sequence in a block, up to section `micro` */
    OT_CONTENT_KEY_SUMS, /* the sums of their gradients, before backward's turn `micro` (slabs.h) */
    /* A block's cache: of `version` passes before this one, and of `micro` micro-batches of this pass. */
    OT_CONTENT_CACHE,
    OT_CONTENT_PHASE, /* data that a phase of a section leaves to the next one */
    OT_CONTENT_GRAD_SUM,
    OT_CONTENT_SUM_PIECE,
    OT_CONTENT_GRAD,
    OT_CONTENT_RESULT,
    OT_CONTENT_PARAMS,
    OT_CONTENT_CONSTANTS,
    OT_CONTENT_LOSS,
    OT_CONTENT_SCALE,
    OT_CONTENT_SHADOW, /* a tile with a shadow, and its frame: only the tile's update knows the content */
};
struct ot_tag {
    uint8_t content; /* enum ot_content */
    int8_t version;  /* optimizer updates, relative to the step that the task belongs to */
    int32_t index;   /* slab, block, or use of a slab by a block */
    /* Micro-batch, or the number of micro-batches summed so far; gradients of one tile: its number + 1. */
    int32_t micro;
};

static inline bool ot_tags_match(struct ot_tag a, struct ot_tag b) {
    return a.content == b.content && a.version == b.version && a.index == b.index && a.micro == b.micro;
}

struct ot_access {
    int buffer;  /* for parity buffers: the first of the pair */
    bool parity; /* odd steps use the next buffer instead */
    bool reads, writes;
    bool on_host; /* the enqueuing thread reads the bytes: a host-side edge, on a lane of the device */
    int first_tile, n_tiles;
    /* Content before and after the task; `after` only if `writes`. */
    struct ot_tag before, after;
};

enum { OT_TASK_MAX_ACCESSES = 16 };

/* One half of a transfer between two ranks (stage_times.h). */
struct ot_task_transfer {
    int peer;
    bool sends;
    enum ot_transfer_kind kind;
    int index, micro; /* as in ot_stage_transfer */
    int buffer;       /* on the device */
};

struct ot_dep {
    int task;
    bool previous_step;
    bool on_host; /* host-side */
};

struct ot_task {
    enum ot_task_kind kind;
    enum ot_lane_id lane;
    int block, slab, micro, tile; /* -1: none */
    int deadline;                 /* host lanes: -1, or a slab; smaller first, equal ones in listed order */
    struct ot_tile_span span;     /* the part of the slab that it moves or updates */
    /* BACKWARD: overwrites the gradient sums (ot_block_run.first). FORWARD, the first half: the first choice
     * of its round */
    bool first;
    enum ot_half half;       /* FORWARD */
    enum ot_fetched fetched; /* FETCH, DECODE, NVME_READ of a slab */
    int n_chosen;            /* tasks of used parts: the number of micro-batches that have chosen */
    int n_norms;             /* SHADOW: number of slabs, from its own on, whose norms are on the host */
    int frame;               /* SHADOW, UPDATE_CPU: the tile's frame (layout.h); -1: none */
    /* Buffers by role; OT_NO_BUFFER: none. For a parity pair, its first buffer. */
    int weights[OT_MAX_USES], grads[OT_MAX_USES];
    int x, y, dxy, saved, from, to, state, via, used;
    int keys; /* FORWARD, KEYS, BACKWARD of a section: row_keys of the layout; else OT_NO_BUFFER */
    /* The rows of a block's cache. FORWARD: on the device; an nvme lane: the slot on the host. Else
     * OT_NO_BUFFER */
    int cache;
    /* The same in key groups, and KEYS_IN, KEYS_OUT: the phase, the group of heads, and its slot. */
    enum ot_phase phase;
    int group, key_slot;
    enum ot_keep_level saved_level; /* level that `saved` has, or that is copied */
    int tick; /* comm, stages: of a TRANSFER; of an operation of holders, that of the transfers before it */
    int first_transfer, n_transfers; /* TRANSFER: its halves in the schedule */
    int n_deps;
    struct ot_dep *deps;
    /* Set by ot_schedule_link, but not in a draft. */
    bool needs_event;           /* a task of another device lane waits for it */
    bool needs_notify;          /* a host task waits for it, or it is the last of its lane */
    int n_accesses;             /* at most OT_TASK_MAX_ACCESSES */
    struct ot_access *accesses; /* the schedule owns them, and the edges */
};

struct ot_access_block { /* holds the accesses of many tasks */
    struct ot_access_block *next;
    int used;
    struct ot_access accesses[];
};

struct ot_schedule {
    int n_tasks;
    size_t capacity;
    struct ot_task *tasks; /* in program order */
    struct ot_access_block *accesses;
    struct ot_dep *deps; /* edges of all tasks */
    int lane_count[OT_LANE_COUNT];
    int *lane_tasks[OT_LANE_COUNT]; /* indices, in order */
    int n_transfers;
    size_t transfer_capacity;
    struct ot_task_transfer *transfers; /* of all TRANSFER tasks */
    uint32_t stage_crc;                 /* of the transfers between all ranks; 0: no stages */
    bool alone;                         /* no other step may overlap with it */
    bool is_draft;                      /* has edges that other edges imply */
};

/* Make a training step, and a forward pass over one micro-batch (for generation, for plans without training,
 * and for evaluation during training). The forward pass evaluates all sections of a sequence. Both are
 * linked. Free with ot_schedule_free. Errors: OT_E_USAGE (the plan has too few slots), OT_E_BUDGET (no
 * memory). */
int ot_schedule_make_train(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, struct ot_schedule *out);
/* Makes a draft of a training step, to simulate: the same tasks in the same order, in a time that grows with
 * their number and not with its square. The draft is not linked, because the least time of a step needs no
 * edges: call ot_schedule_link before it runs. Edges that other edges imply are not all removed. times: NULL,
 * or the table of the plan's stages (stage_times.h). Errors as above. */
struct ot_stage_times;
int ot_schedule_make_draft(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, const struct ot_stage_times *times,
                           struct ot_schedule *out);
/* Makes a DECODE pass of several micro-batches. Each is a prompt or a piece of one, and the pieces of a text
 * are in order. The pass goes layer by layer, so the weights are fetched once for all of them. */
int ot_schedule_make_prompts(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_layout *layout, struct ot_schedule *out);
/* Its number of micro-batches: those of the first round, at most OT_MOST_PIECES, or plan.texts if that is
 * more. Stages, or no generation: 1. */
enum { OT_MOST_PIECES = 8 };
int ot_schedule_prompts(const struct ot_plan *plan);
int ot_schedule_make_forward(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_layout *layout, enum ot_pass pass, struct ot_schedule *out);
/* Makes a flush: the updates and copies that a step leaves to the next one. It has no tasks if a step leaves
 * none. Errors as above. */
int ot_schedule_make_flush(const struct ot_chain *chain, const struct ot_plan *plan,
                           const struct ot_layout *layout, struct ot_schedule *out);
/* Makes a gather: brings the other ranks' shares to weights that are whole between steps, on the device or in
 * one copy. It has no tasks if there are no such weights. Errors as above. */
int ot_schedule_make_gather(const struct ot_chain *chain, const struct ot_plan *plan,
                            const struct ot_layout *layout, struct ot_schedule *out);
void ot_schedule_free(struct ot_schedule *schedule);
/* A fingerprint of the operations between ranks, in order; with stages, of the transfers between all ranks.
 * All ranks must have the same. crc: the fingerprint of the schedules before. */
uint32_t ot_schedule_operations(const struct ot_schedule *schedule, uint32_t crc);
/* Stages: a fingerprint of what the schedule sends to a rank, or receives from it, in order. It must be equal
 * on both sides of a link. */
uint32_t ot_schedule_link_crc(const struct ot_schedule *schedule, int peer, bool sends);
/* A fingerprint of the rank's own operations, in order, and of their places among the ticks. The holders of a
 * stage have the same. */
uint32_t ot_schedule_holder_crc(const struct ot_schedule *schedule);
/* Checks that transfers are in the order of their ticks, so that ranks do not wait in a cycle
 * (stage_times.h). Errors: OT_E_INTERNAL. */
int ot_schedule_check_ticks(const struct ot_schedule *schedule);

/* Derives the edges from the accesses, reduces them, and fills in lanes and signals. Errors: OT_E_BUDGET (no
 * memory). */
int ot_schedule_link(struct ot_schedule *schedule, const struct ot_layout *layout);

/* Checks a schedule without relying on how its edges were made. Finds a cycle, two unordered accesses to the
 * same bytes, a read of bytes with another content than the task expects, and bytes beyond the ledger. The
 * error names the tasks and the buffer. Errors: OT_E_INTERNAL (the schedule is wrong), OT_E_BUDGET (no
 * memory). */
int ot_schedule_verify(const struct ot_schedule *schedule, const struct ot_layout *layout,
                       const struct ot_plan *plan);

/* Writes a task's name, like "forward layer.3 #2", to text[bytes]. Returns text. */
const char *ot_task_describe(const struct ot_task *task, const struct ot_chain *chain, char *text,
                             size_t bytes);

/* The rows of its group that a KEYS_IN or a KEYS_OUT copies. */
struct ot_shard_range ot_task_key_rows(const struct ot_plan *plan, const struct ot_layout *layout,
                                       const struct ot_task *task);

static inline int ot_access_buffer(const struct ot_access *access, int64_t step) {
    return access->buffer + (access->parity ? (int)(step & 1) : 0);
}

/* ---- reach ---- */

/* Reachability in a graph whose nodes are added in topological order. Each node has a bit set of its
 * ancestors. A set has room only for the nodes before its own, so n nodes take n^2 / 16 bytes: about 35 MB
 * for two steps of a 70B model with 64 micro-batches, while linking or verifying runs. Private to
 * offload/schedule.
 */

struct ot_reach {
    int n;
    uint64_t *sets; /* the set of node i has i / 64 + 1 words */
};

int ot_reach_open(struct ot_reach *reach, int n); /* Errors: OT_E_BUDGET */
void ot_reach_close(struct ot_reach *reach);

/* Offset of the node's set in words: the sets of all nodes before it come first. */
static inline size_t ot_reach_offset(int node) {
    size_t full = (size_t)node / 64, rest = (size_t)node % 64;
    return 64 * (full * (full + 1) / 2) + rest * (full + 1);
}

/* True if ancestor comes before node. Needs ancestor < node. */
static inline bool ot_reach_has(const struct ot_reach *reach, int node, int ancestor) {
    return reach->sets[ot_reach_offset(node) + (size_t)ancestor / 64] >> (ancestor % 64) & 1;
}

/* Gives the node an empty set. Call once for each node, before any other call with it. */
void ot_reach_begin(struct ot_reach *reach, int node);

/* Notes that ancestor and all of ancestor's ancestors come before node. ancestor's own set must be
 * complete. */
void ot_reach_add(struct ot_reach *reach, int node, int ancestor);

#endif

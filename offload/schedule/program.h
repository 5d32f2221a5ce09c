/* Writing a step down as a sequential program: tasks, their accesses and slots (program.c), and what the
 * generators (program_train.c, program_update.c, program_forward.c, program_nvme.c) share. Internal to
 * offload/.
 *
 * A program ends at the first failure: p->rc keeps it, and everything after it does nothing.
 */
#ifndef OT_OFFLOAD_SCHEDULE_PROGRAM_H
#define OT_OFFLOAD_SCHEDULE_PROGRAM_H

#include "offload/schedule/schedule.h"

/* A set of equal slots on the device, and who owns each at this point of the program. */
struct ot_ring {
    int count;
    const int *buffers;
    int *owner; /* -1: free */
    int *last;  /* index of the last task that used the slot: the least recently used is overwritten first */
};
int ot_ring_open(struct ot_ring *ring, const int *buffers, int count);
void ot_ring_close(struct ot_ring *ring);
int ot_ring_find(const struct ot_ring *ring, int owner);                         /* -1: nowhere */
int ot_ring_victim(const struct ot_ring *ring, const int *needed, int n_needed); /* -1: all are needed */
int ot_ring_take(struct ot_ring *ring, int owner, int now); /* a free slot; OT_E_USAGE if none */

/* A block's turn: all micro-batches in layer-major order, one in micro-batch-major. */
struct ot_visit {
    int block;
    bool backward;
    int first_micro, n_micro;
};

/* One need of a streamed slab, in program order. */
struct ot_need {
    int slab, visit;
};

struct ot_program {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    const struct ot_layout *layout;
    struct ot_schedule *schedule;
    enum ot_pass pass;
    int rc;
    struct ot_task spare; /* written to after a failure */

    int n_visits, n_needs, next_need;
    struct ot_visit *visits;
    struct ot_need *needs;
    struct ot_ring weights[OT_SLOT_KINDS], grads[OT_SLOT_KINDS], stages[OT_SLOT_KINDS];
    struct ot_ring host_weights[OT_SLOT_KINDS]; /* owner: the slab whose present weights the slot has */

    int n_returns, next_return; /* boundaries that come back from the host, in program order */
    struct ot_return {
        int boundary, micro, slot;
    } * returns;
    int *uses_left; /* [n_slabs]: uses whose gradient is not complete yet */
    int *deferred;  /* [n_slabs]: device updates to be emitted after the next block's backward */
    int n_deferred;
    int *streamed;  /* [n_slabs]: streamed tiles that have had the step before's update */
    bool *uploaded; /* [n_slabs]: a resident slab has what the pool has updated of it */
    int next_state_slot, next_tile_slot, next_host_activation; /* these slots take turns */
};

/* Errors: OT_E_BUDGET; ot_program_close is called in either case. */
int ot_program_open(struct ot_program *p, const struct ot_chain *chain, const struct ot_plan *plan,
                    const struct ot_layout *layout, enum ot_pass pass, struct ot_schedule *out);
/* Frees the program, links the schedule; frees it too where either failed. */
int ot_program_close(struct ot_program *p);

/* Appends a task. It is then given its accesses, by what it does with the buffer; an access covers all tiles
 * of the buffer, and both steps, until the caller narrows it. Pointers are valid until the next task. */
struct ot_task *ot_program_task(struct ot_program *p, enum ot_task_kind kind, enum ot_lane_id lane);
/* The same for a task on one tile of a slab. */
struct ot_task *ot_program_tile_task(struct ot_program *p, enum ot_task_kind kind, enum ot_lane_id lane,
                                     int slab, int tile);
struct ot_access *ot_program_access(struct ot_program *p, struct ot_task *task, int buffer, bool reads,
                                    bool writes);
void ot_program_read(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag tag);
void ot_program_write(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag tag);
void ot_program_update(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag before,
                       struct ot_tag after);
/* Garbage before and after. */
void ot_program_scratch(struct ot_program *p, struct ot_task *task, int buffer);
struct ot_access *ot_program_last(struct ot_task *task);                   /* to say parity */
void ot_program_narrow(struct ot_task *task, int first_tile, int n_tiles); /* of the last access */

/* The steps that training and forward alone share. */
void ot_program_batch_in(struct ot_program *p);
/* The visit's own weights, and more as slots allow. */
void ot_program_fetch_ahead(struct ot_program *p, int visit);
void ot_program_fetch(struct ot_program *p, int slab, int slot, struct ot_tile_span span);
/* The buffer that holds them now; OT_NO_BUFFER: none on the device does. */
int ot_program_weights(struct ot_program *p, int slab);
struct ot_tile_span ot_program_whole(const struct ot_program *p, int slab);
void ot_program_forward(struct ot_program *p, int block, int micro);
void ot_program_block_inputs(struct ot_program *p, struct ot_task *task, int n_uses);

/* Decisions and updates (program_update.c). slab < 0: all norms and the losses. With a decision per slab,
 * what was decided before is not read again. */
void ot_program_result_out(struct ot_program *p, int slab);
void ot_program_decide(struct ot_program *p, int slab);
/* The decision to the device, where it has a part in the slab's updates. */
void ot_program_params_in(struct ot_program *p, int slab);
/* The engine's part of the slab; nothing where it has none. */
void ot_program_update_gpu(struct ot_program *p, int slab);
void ot_program_update_cpu(struct ot_program *p, int slab);
/* What the pool has updated of a resident slab goes there; nothing if it has. */
void ot_program_upload(struct ot_program *p, int slab);
/* Brings the number of streamed tiles that have been updated to `upto`; the slab's weights must be on the
 * device. */
void ot_program_stream(struct ot_program *p, int slab, int upto);

/* What lives on nvme (program_nvme.c). The host buffer that a slab's weights reach the device from: their
 * home, or a slot that they are read into unless it has them. */
int ot_program_weights_on_host(struct ot_program *p, int slab, struct ot_tile_span span);
/* They have changed, or will: no slot has them any more. */
void ot_program_forget_weights(struct ot_program *p, int slab);
/* A slot for the tile of the slab, OT_NO_BUFFER where nothing of it passes through one. What the engine's
 * update is about to read of it, at that version, is read into it. */
int ot_program_tile_in(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int version);
/* From the slot to its extents. */
void ot_program_tile_out(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int slot,
                         int version);
/* Accesses to the tile's state and weights off the device, in the slot or at home, for a task that moves or
 * updates them; sets task->state, or returns the weights' buffer. */
void ot_program_tile_state(struct ot_program *p, struct ot_task *task, int slot, bool reads, bool writes,
                           struct ot_tag before, struct ot_tag after);
int ot_program_tile_weights(struct ot_program *p, struct ot_task *task, int slot, bool reads, bool writes,
                            struct ot_tag before, struct ot_tag after);
/* Boundaries: the host buffer that one leaves the device for, or comes back from. */
int ot_program_boundary_home(struct ot_program *p, int boundary, int micro);
void ot_program_boundary_write(struct ot_program *p, int boundary, int micro, int slot);
int ot_program_boundary_read(struct ot_program *p, int boundary, int micro);

/* Weights of the task's span from one place to another, those tiles that the stream engine has not updated in
 * this step one version behind. */
void ot_program_move_weights(struct ot_program *p, struct ot_task *task, int from, int to);

static inline struct ot_tag ot_tag(enum ot_content content, int index, int micro, int version) {
    return (struct ot_tag){
        .content = (uint8_t)content, .version = (int8_t)version, .index = index, .micro = micro};
}

#endif

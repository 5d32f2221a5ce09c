/* Writes a step as a sequential program. program.c has tasks, accesses and slots. This header also declares
 * the shared functions of the generators: program_train.c, program_update.c, program_forward.c,
 * program_activations.c, program_cache.c, program_parts.c, program_ranks.c, program_stages.c,
 * program_sections.c, program_groups.c, program_nvme.c. Private to offload/schedule.
 *
 * Errors: most functions here return nothing. The first failure stays in p->rc, and later calls have no
 * effect; ot_program_close returns it.
 */
#ifndef OT_OFFLOAD_SCHEDULE_PROGRAM_H
#define OT_OFFLOAD_SCHEDULE_PROGRAM_H

#include "offload/plan/slabs.h"
#include "offload/schedule/schedule.h"
#include "offload/schedule/stage_times.h"

/* A set of equal slots, and the owner of each slot at this point of the program. */
struct ot_ring {
    int count;
    const int *buffers;
    int *owner; /* -1: free */
    int *last;  /* index of the slot's last task; the least recently used slot is overwritten first */
};
int ot_ring_open(struct ot_ring *ring, const int *buffers, int count);
void ot_ring_close(struct ot_ring *ring);
int ot_ring_find(const struct ot_ring *ring, int owner); /* -1: no slot */
/* -1: all slots are needed. */
int ot_ring_victim(const struct ot_ring *ring, const int *needed, int n_needed);
int ot_ring_take(struct ot_ring *ring, int owner, int now); /* a free slot; OT_E_USAGE: none */

/* A run of one block forward or backward, over the micro-batches of a round. */
struct ot_visit {
    int block;
    bool backward;
    int first_micro, n_micro;
};

/* Activations that leave the device after forward and come back before backward (program_activations.c). */
struct ot_passing {
    enum ot_content content;
    enum ot_task_kind out, in;
    const int *homes; /* [n_blocks or n_blocks - 1][places] */
    const int *slots, *host_slots;
    int n_slots, n_host_slots, next_slot, next_host_slot; /* slots are used in turn */
    int n_returns, next_return;
    int *sent; /* boundaries_pass: [n_blocks - 1][places]: micro-batch number + 1 of the content of a home */
    struct ot_return { /* in program order */
        int index, micro, slot;
    } * returns;
};

/* A streamed slab that a visit needs. Needs are in program order. */
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
    struct ot_task spare; /* receives the task after a failure */
    struct ot_access spare_accesses[OT_TASK_MAX_ACCESSES];

    int n_visits, n_needs, next_need;
    int look_ahead; /* the number of needs to look at, from next_need on */
    struct ot_visit *visits;
    struct ot_need *needs;
    struct ot_ring weights[OT_SLOT_KINDS], grads[OT_SLOT_KINDS], grads_out[OT_SLOT_KINDS];
    struct ot_ring encoded[OT_SLOT_KINDS];
    struct ot_ring exchanges[OT_SLOT_KINDS];    /* owner: a use of a slab */
    struct ot_ring host_weights[OT_SLOT_KINDS]; /* owner: the slab whose current weights are in the slot */

    struct ot_passing boundaries, kept;    /* activations that leave the device and come back */
    struct ot_passing boundary_grads;      /* the same, with boundaries_pass */
    int next_out;                          /* the next buffer of layout.stage_buffers, with boundaries_pass */
    int next_cache, caches_in, caches_out; /* a visit; the caches that have been brought, and sent back */
    int *uses_left;                        /* [n_slabs]: uses whose gradient is incomplete */
    int *deferred; /* [n_slabs]: slabs to update on the device after the next block's backward */
    int n_deferred;
    int *streamed;               /* [n_slabs]: streamed tiles that have the previous step's update by now */
    bool *uploaded;              /* [n_slabs]: the device's copy has the pool's updates */
    bool *gathered;              /* [n_slabs]: its weights on the device are whole */
    bool *met;                   /* [n_slabs]: its one copy has the updates of all ranks */
    bool *finished;              /* [n_slabs]: its gradient is complete */
    int visit;                   /* the visit that is being written */
    int prepared;                /* the last visit whose weights are on the device or on the way; -1: none */
    struct ot_sum {              /* a gradient sum */
        int micro;               /* number of micro-batches in it */
        bool away;               /* it left the device after a round */
    } * sums;                    /* by ot_layout_sum */
    struct ot_tag *in_slot;      /* [n_slabs] with parts: the content of the slab's slot */
    struct ot_tag *in_host_slot; /* [n_slabs]: the same for its host slot */
    struct ot_tag *decoded;      /* [n_slabs]: the same for the weight slot into which it is decoded */
    int *chosen;                 /* [n_blocks]: micro-batches whose choice is on the way to the host */
    int *halves;                 /* [places]: buffers of `saved` after the first half of the present visit */
    int *joining;                /* [n_slabs]: slabs whose sums the ranks exchange, until they are joined */
    int n_joining;
    int next_state_slot, next_tile_slot, next_grad_slot, next_key_slot; /* slots used in turn */
    const struct ot_stage_times *times;                                 /* NULL: the plan has no stages */
    struct ot_stage_times own_times;                                    /* made by this program */
    int next_transfer, tick; /* tick: of the transfers that were listed last; -1: there are none */
};

/* Opens a program that writes to *out. times: NULL, or the table of the plan's stages in this pass, which
 * must outlive the program. Call ot_program_close also if this fails. Errors: OT_E_BUDGET (no memory). */
int ot_program_open(struct ot_program *p, const struct ot_chain *chain, const struct ot_plan *plan,
                    const struct ot_layout *layout, enum ot_pass pass, const struct ot_stage_times *times,
                    struct ot_schedule *out);
/* Frees the program and links the schedule. Frees the schedule too if writing or linking failed. Returns the
 * first error. */
int ot_program_close(struct ot_program *p);

/* Appends a task. The caller then adds the task's accesses, with one of the functions below for each buffer.
 * An access covers all tiles of the buffer until ot_program_narrow limits it. The returned pointers are valid
 * until the next task is appended. */
struct ot_task *ot_program_task(struct ot_program *p, enum ot_task_kind kind, enum ot_lane_id lane);
/* Appends a task on one tile of a slab. */
struct ot_task *ot_program_tile_task(struct ot_program *p, enum ot_task_kind kind, enum ot_lane_id lane,
                                     int slab, int tile);
struct ot_access *ot_program_access(struct ot_program *p, struct ot_task *task, int buffer, bool reads,
                                    bool writes);
void ot_program_read(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag tag);
void ot_program_write(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag tag);
void ot_program_update(struct ot_program *p, struct ot_task *task, int buffer, struct ot_tag before,
                       struct ot_tag after);
/* The buffer holds garbage before and after the task. */
void ot_program_scratch(struct ot_program *p, struct ot_task *task, int buffer);
struct ot_access *ot_program_last(struct ot_task *task);                   /* to set `parity` */
void ot_program_narrow(struct ot_task *task, int first_tile, int n_tiles); /* limits the last access */

/* Parts of a program that training and a forward pass alone share. */
void ot_program_batch_in(struct ot_program *p);
/* Fetches the weights for the visit, and for later visits as far as slots allow. */
void ot_program_fetch_ahead(struct ot_program *p, int visit);
/* slot: a slot of ot_program_fetch_ring. fetched: other than OT_FETCH_ALL only for a whole slab with parts.
 */
void ot_program_fetch(struct ot_program *p, int slab, int slot, struct ot_tile_span span,
                      enum ot_fetched fetched);
/* The slots to which the slab's weights are fetched. */
struct ot_ring *ot_program_fetch_ring(struct ot_program *p, int slab);
/* Decodes the encoded slabs that the visit uses, unless a weight slot has them. */
void ot_program_decode(struct ot_program *p, int visit);
/* A weight slot that no slab of a later, prepared visit needs; -1, and an error: there is none. */
int ot_program_spare_slot(struct ot_program *p, struct ot_ring *ring);
/* The device buffer in which blocks find the slab's weights now. OT_NO_BUFFER: none. */
int ot_program_weights(struct ot_program *p, int slab);
/* The device buffer that has the whole slab in its home's form: the same buffer, or the encoded slab. */
int ot_program_stored_weights(struct ot_program *p, int slab);
/* The device buffer in which updates find the rank's holding of them: their home, or the same slot. */
int ot_program_held_weights(struct ot_program *p, int slab);
/* The tag of a slab's weights as its homes have them. version: counts for trained slabs. */
struct ot_tag ot_program_weights_tag(const struct ot_program *p, int slab, int version);
/* The span that a fetch for a pass copies: the holding, or with one copy the whole slab. */
struct ot_tile_span ot_program_whole(const struct ot_program *p, int slab);
void ot_program_forward(struct ot_program *p, int block, int micro, enum ot_half half);
/* Sections (slabs.h): adds the accesses of a task that adds the keys of its section to those of the sequence;
 * nothing if sequences are whole. */
void ot_program_add_keys(struct ot_program *p, struct ot_task *task);
/* True if backward's turn begins a sequence whose keys the block computes again. */
bool ot_program_needs_keys(const struct ot_program *p, int block, int turn);
/* Computes the keys of the sequence's sections again, but for the last, which computes its own. first: the
 * sequence's first micro-batch. */
void ot_program_compute_keys(struct ot_program *p, int block, int first);
/* Adds the accesses of backward to the keys of its sequence, and to the sums of their gradients. */
void ot_program_use_keys(struct ot_program *p, struct ot_task *task, int turn);
/* Key groups (program_groups.c). True if the block works on sections in phases. */
bool ot_program_has_groups(const struct ot_program *p, int block);
void ot_program_forward_groups(struct ot_program *p, int block, int micro);
/* The keys of a section again. x: the buffer with its input. */
void ot_program_keys_groups(struct ot_program *p, int block, int micro, int x);
/* Backward of a section, in these buffers. first: it overwrites the gradient sums. */
struct ot_backward_buffers {
    int turn, x, dxy, saved, grads[OT_MAX_USES];
    bool first;
};
void ot_program_backward_groups(struct ot_program *p, int block, int micro,
                                const struct ot_backward_buffers *buffers);
/* Blocks that choose (program_parts.c). If the block of a forward visit chooses: runs all first halves, and
 * fetches the chosen parts. Returns the half of forward that is left to run. */
enum ot_half ot_program_choose(struct ot_program *p, const struct ot_visit *visit);
/* Adds the access of a first half to the choice of its block. */
void ot_program_note_choice(struct ot_program *p, struct ot_task *task);
/* True if a fetch for the visit may be listed now: its choice is known, or it needs none. */
bool ot_program_may_fetch(const struct ot_program *p, int slab, int visit);
/* The content of a slab that is fetched and decoded ahead of the visit. */
enum ot_fetched ot_program_fetched(const struct ot_program *p, int slab, int visit);
/* The content that a task of a block expects in the slot of a slab whose used parts it takes. */
struct ot_tag ot_program_used_tag(const struct ot_program *p, const struct ot_task *task, int slab);
/* Lets a FETCH or an NVME_READ bring parts of its slab, or all but the parts: adds its accesses. */
void ot_program_move_parts(struct ot_program *p, struct ot_task *task, enum ot_fetched fetched);
/* Lets a DECODE decode parts of its slab, or all but the parts: adds its accesses. */
void ot_program_decode_parts(struct ot_program *p, struct ot_task *task, enum ot_fetched fetched);
/* Appends the decoding of the chosen parts of a slab, into the weight slot that has its dense rest. */
void ot_program_decode_used(struct ot_program *p, int slab);
/* The content of a slot after move_parts, if it had nothing before. */
struct ot_tag ot_program_moved_tag(const struct ot_program *p, int slab, enum ot_fetched fetched);
void ot_program_block_inputs(struct ot_program *p, struct ot_task *task, int n_uses);
/* The same without work and scratch. */
void ot_program_block_reads(struct ot_program *p, struct ot_task *task, int n_uses);

/* Decisions and updates (program_update.c). slab < 0: the losses and, with clipping, the norms of all slabs.
 * Without clipping each slab has its own decision, so its norm is not copied again. */
void ot_program_result_out(struct ot_program *p, int slab);
void ot_program_decide(struct ot_program *p, int slab);
/* Copies the decision to the device, if the device updates tiles of the slab. */
void ot_program_params_in(struct ot_program *p, int slab);
/* Update the tiles of the slab that belong to the engine, if there are any. */
void ot_program_update_gpu(struct ot_program *p, int slab);
void ot_program_update_cpu(struct ot_program *p, int slab);
/* The shadows (plan/shadow_updates.h) of a slab whose gradient is complete. They guess the norm of the step
 * from the norms of the slab and of those after it, as far as these are complete. */
void ot_program_shadow(struct ot_program *p, int slab);
/* Copies the pool's updates to the device's copy of the slab, unless this is done already. */
void ot_program_upload(struct ot_program *p, int slab);
/* Updates streamed tiles until `upto` tiles of the slab are updated. The slab's weights must be on the
 * device, unless they are one copy. */
void ot_program_stream(struct ot_program *p, int slab, int upto);

/* Several ranks (program_ranks.c). Gathers the weights of the visit's slabs, unless they are whole. */
void ot_program_gather(struct ot_program *p, int visit);
/* Before the first fetch of a slab with one copy: finishes the rank's updates of it, and waits for the
 * updates of the other ranks. */
void ot_program_meet(struct ot_program *p, int slab);
/* The slab whose meeting is next; -1: none among the slabs that the program looks ahead to. */
int ot_program_next_meeting(const struct ot_program *p);
/* Starts the exchange of a gradient sum. use: a use of the slab, or 0 if its uses are added up already.
 * local: the tag of the sum. */
void ot_program_exchange(struct ot_program *p, int slab, int use, int sum, struct ot_tag local);
/* Joins the sums of all ranks into `sum`, in this rank's share. Returns the tag of the joined sum. */
struct ot_tag ot_program_join(struct ot_program *p, int slab, int use, int sum, struct ot_tag local);
/* If each rank updates everything, gathers the joined shares. Returns the tag of the sum. */
struct ot_tag ot_program_gather_sum(struct ot_program *p, int slab, int sum, struct ot_tag joined);
/* Gathers the norms of a slab, or with slab < 0 the losses. Does nothing with one rank. With stages: the
 * norms of a slab from its holders, if there are several; or everything. */
void ot_program_result_gather(struct ot_program *p, int slab);

/* Stages (program_stages.c). `open` computes the ticks, unless `times` has them, and lists the visits of this
 * rank; it does nothing without stages. Errors: OT_E_BUDGET (no memory). */
int ot_program_open_stages(struct ot_program *p, const struct ot_stage_times *times);
void ot_program_close_stages(struct ot_program *p);
/* Lists the transfers of all ticks before this one, or before a unit. */
void ot_program_transfer_before(struct ot_program *p, int tick);
void ot_program_transfer_for(struct ot_program *p, int block, int micro, bool backward);
/* Lists the transfers up to those of a unit's result: operations of the holders, which may take long, then
 * do not delay it. */
void ot_program_transfer_results(struct ot_program *p, int block, int micro, bool backward);
/* The device buffer of the gradient sum of a use (block * OT_MAX_USES + its number in the block). */
int ot_program_sum(struct ot_program *p, int use);
/* Called when the sum of a shared slab's use crosses: the sender frees its buffer; the owner, which receives
 * it, counts the use as complete. */
void ot_program_pass_on_sum(struct ot_program *p, int use, bool sends);
/* The buffer of an activation on its way to another rank. */
int ot_program_stage_buffer(const struct ot_program *p, int block, int micro);

/* Data whose home is nvme (program_nvme.c). Returns the host buffer from which the slab's weights are copied
 * to the device: their home on the host, or a slot. Appends a read from nvme into the slot if the slot does
 * not hold them. fetched: the part that will be copied. */
int ot_program_weights_on_host(struct ot_program *p, int slab, struct ot_tile_span span,
                               enum ot_fetched fetched);
/* The slab's weights change, so no host slot holds the current weights any more. */
void ot_program_forget_weights(struct ot_program *p, int slab);
/* Takes a host slot for a tile, and reads from nvme the state, weights and gradients (of this version) that
 * the engine's update needs on the host. Returns OT_NO_BUFFER if none of them has its home on nvme. */
int ot_program_tile_in(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int version);
/* Writes the tile's state and weights from the slot to their extents. */
void ot_program_tile_out(struct ot_program *p, int slab, int tile, enum ot_tile_engine engine, int slot,
                         int version);
/* Add a task's access to a tile's state or weights on the host: in the slot, or at their home. The first sets
 * task->state; the second returns the buffer of the weights. */
void ot_program_tile_state(struct ot_program *p, struct ot_task *task, int slot, bool reads, bool writes,
                           struct ot_tag before, struct ot_tag after);
int ot_program_tile_weights(struct ot_program *p, struct ot_task *task, int slot, bool reads, bool writes,
                            struct ot_tag before, struct ot_tag after);
/* Adds a task's read of the tile's waiting gradients on the host: in the slot, or at their home. Returns the
 * buffer. */
int ot_program_tile_grads(struct ot_program *p, struct ot_task *task, int slot, int version);
/* Copies the finished gradients of the slab's tiles to their extents. from: their buffer on the device. */
void ot_program_grads_to_nvme(struct ot_program *p, int slab, int from);
/* Moves a gradient sum (by ot_layout_sum) between its extents and a buffer of the device. kind:
 * OT_TASK_SUM_OUT or OT_TASK_SUM_IN. tag: the sum's. */
void ot_program_pass_sum(struct ot_program *p, enum ot_task_kind kind, int slab, int sum, int buffer,
                         struct ot_tag tag);
/* Activations that leave the device (program_activations.c). `open` fills in p->boundaries and p->kept.
 * Errors: OT_E_BUDGET (no memory). */
int ot_program_open_activations(struct ot_program *p);
void ot_program_close_activations(struct ot_program *p);
/* send: called after forward; does nothing if the activation stays. find: returns the device buffer for
 * backward; copies the activation back, and the next ones as far as slots allow. */
void ot_program_send_boundary(struct ot_program *p, int boundary, int micro);
int ot_program_find_boundary(struct ot_program *p, int boundary, int micro);
/* place: the buffer that a block's forward writes. find_input: the one that the next forward reads. */
int ot_program_place_boundary(struct ot_program *p, int boundary, int micro);
int ot_program_find_input(struct ot_program *p, int boundary, int micro);
/* The gradient of a boundary, in the buffer that backward of a block reads and overwrites; send: after it. */
int ot_program_find_boundary_grad(struct ot_program *p, int block, int micro);
void ot_program_send_boundary_grad(struct ot_program *p, int boundary, int micro, int from);
/* The same for the inner activations that a block keeps. place: the buffer that forward writes. OT_NO_BUFFER:
 * the block keeps nothing. */
int ot_program_place_kept(struct ot_program *p, int block, int micro);
void ot_program_send_kept(struct ot_program *p, int block, int micro, int from);
int ot_program_find_kept(struct ot_program *p, int block, int micro);

/* The cache of generation (program_cache.c), in a pass that decodes. bring: copies the caches of this visit
 * and of later ones to the device, as far as slots allow. use: adds the access of a FORWARD. send: copies new
 * rows back to their home after a visit. All do nothing if the plan has no cache, or the block has none. */
void ot_program_bring_caches(struct ot_program *p);
void ot_program_use_cache(struct ot_program *p, struct ot_task *task);
void ot_program_send_cache(struct ot_program *p, int block);

/* Adds the accesses of a task that moves the weights of its span. Tiles that the stream engine has not yet
 * updated in this step are one version older. */
void ot_program_move_weights(struct ot_program *p, struct ot_task *task, int from, int to);

static inline struct ot_tag ot_tag(enum ot_content content, int index, int micro, int version) {
    return (struct ot_tag){
        .content = (uint8_t)content, .version = (int8_t)version, .index = index, .micro = micro};
}

#endif

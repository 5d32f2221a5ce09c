/* Layout: every buffer that a plan needs, by name, tier and size. The ledger is its sum, the engine allocates
 * exactly it, and the schedule's tasks name buffers by their index here. A buffer on nvme is a row of extents
 * (store.h), one a tile, each with its sides: two, and for state and weights one more for each content that
 * is to be kept.
 *
 * A buffer is the unit of conflict between tasks. Weights, and state on the host, are cut further into
 * tiles, so that the optimizer's tiles can be updated by independent tasks, and so that the verifier knows
 * the version of each. Buffers of `parity` exist twice: steps in flight alternate between them.
 */
#ifndef OT_OFFLOAD_PLAN_LAYOUT_H
#define OT_OFFLOAD_PLAN_LAYOUT_H

#include "offload/block.h"
#include "offload/plan/part.h"
#include "offload/plan/plan.h"

enum { OT_NO_BUFFER = -1 };

struct ot_buffer {
    enum ot_tier tier;
    const char *name; /* the ledger's entry */
    size_t bytes;     /* as asked for */
    size_t reserved;  /* what it takes in the tier, rounded up; on nvme all sides */
    size_t offset;    /* in the tier's one allocation */
    int n_tiles;
    int first_extent; /* nvme: of its tiles */
};

/* Consecutive tiles of a slab, and the parameters in them. */
struct ot_tile_span {
    int first_tile, n_tiles;
    int64_t first, n;
};

/* Indices into buffers; OT_NO_BUFFER where the plan has none. */
struct ot_slab_buffers {
    int weights_gpu, weights_host, weights_nvme; /* the whole slab, in the chain's dtype, by tiles */
    /* Of the tiles that the device updates, and (by tiles) of the others: m, v fp32 [n] each, then lo int16
     * [n] (bf16 training) or the master fp32 [n] (fp16 training); n: the parameters in those tiles. */
    int state_gpu, state_host;
    int state_nvme; /* in the place of state_host: an extent a tile, with m, v and the rest of that tile */
    /* Waiting gradients in the chain's dtype, of a first part of the slab and of the rest. fp32, and the
     * whole slab on the gpu: also the accumulator. */
    int grad_gpu, grad_host;
    int kept_grad; /* host, fp32: plan.keep_grads */
};

struct ot_layout {
    int n_buffers;
    struct ot_buffer *buffers;
    struct ot_slab_buffers *slabs; /* [n_slabs] */
    /* [plan's counts] */
    int *weight_slots[OT_SLOT_KINDS], *grad_slots[OT_SLOT_KINDS], *stage_slots[OT_SLOT_KINDS];
    int n_boundaries;      /* device buffers for boundaries: boundaries x micro-batches */
    int *boundary_gpu;     /* [n_boundaries][max_micro]: all n_blocks - 1, or a ping-pong of 2 */
    int *boundary_host;    /* [n_blocks - 1][max_micro], or NULL */
    int *boundary_nvme;    /* the same */
    int *activation_slots; /* [plan.activation_slots] */
    /* Between nvme and the device, [plan's counts]. A tile slot is two tiles: the state of a tile of the
     * slab, and from slot_weights_offset on its weights. */
    int *host_weight_slots[OT_SLOT_KINDS], *tile_slots, *host_activation_slots;
    size_t slot_weights_offset;
    /* Host: the slots of a snapshot's sink (snapshot.h), one after the other; and a tile as in a tile slot,
     * where a snapshot has to copy what is on nvme. OT_NO_BUFFER: none. */
    size_t tile_slot_bytes;
    int snapshot_slots, snapshot_tile;
    int *state_slots;    /* [plan.state_slots]: state of a tile, then its gradients */
    int64_t slot_params; /* parameters of the largest streamed tile: what a state slot has room for */
    int *boundary_grad;  /* [max_micro] */
    int *saved;          /* [kept_blocks][max_micro] */
    int saved_scratch, scratch, token_loss, logits;
    int constants;
    /* double: [n_slabs] squared norms, a tile each, then [max_micro] losses */
    int results_gpu, results_host[2];
    int batch_gpu[2], batch_host[2]; /* per micro-batch: tokens, targets, position, row_start */
    int params_gpu, params_host[2];  /* struct ot_adamw_step [n_slabs], a tile each */
    int control; /* host: stands for what decisions carry on (engine_state.h), which it orders; and the loss
                    scale */
    int loss_scale; /* gpu, fp16: the step's */
    size_t tier_bytes[OT_TIER_COUNT];
    int n_extents;
    size_t *extent_bytes; /* [n_extents] */
    int *extent_sides;    /* [n_extents] */
    int *extent_order;    /* [n_extents]: as a step uses them, for the store */
    /* Of the gpu tier: slots, boundaries, the insides of blocks and their scratch, which lie side by side.
     * While nothing is in flight they hold nothing that anyone will read. */
    size_t idle_offset, idle_bytes;
};

/* Errors: OT_E_BUDGET (sizes overflow, or no memory for the tables themselves). Free with ot_layout_free. */
int ot_layout_make(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_layout *out);
void ot_layout_free(struct ot_layout *layout);

/* The buffer's memory, in the one allocation of its tier. */
static inline void *ot_layout_at(const struct ot_layout *layout, char *const *tier_memory, int buffer) {
    return tier_memory[layout->buffers[buffer].tier] + layout->buffers[buffer].offset;
}

/* Sums of equal names and tiers, in order of first appearance. */
void ot_layout_ledger(const struct ot_layout *layout, struct ot_ledger *out);

enum ot_slot_kind ot_slab_slot_kind(const struct ot_chain *chain, int slab);
/* Weights of the slab reach the device through a slot; its gradient accumulates in one. */
bool ot_slab_is_streamed(const struct ot_plan *plan, int slab);
/* What of the engine's tiles passes through tile slots: their state; their weights, read or only written. */
bool ot_slab_state_passes(const struct ot_plan *plan, int slab, enum ot_tile_engine engine);
bool ot_slab_weights_pass(const struct ot_plan *plan, int slab);
/* Tiles of all slabs that do. */
int64_t ot_plan_passing_tiles(const struct ot_plan *plan);
bool ot_slab_grad_in_place(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
int ot_slab_uses(const struct ot_chain *chain, int slab); /* by how many blocks; 2 where tied */
int ot_slab_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
struct ot_tile_span ot_slab_span(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                 int first_tile, int n_tiles);
/* The engine's part; the first part, whose finished gradients wait on the device; the part whose state lives
 * on the host or on nvme. Any may be empty. */
struct ot_tile_span ot_slab_part(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                 enum ot_tile_engine engine);
struct ot_tile_span ot_slab_waiting_on_gpu(const struct ot_chain *chain, const struct ot_plan *plan,
                                           int slab);
struct ot_tile_span ot_slab_state_off_gpu(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* The device buffer of boundary b (the output of block b), micro-batch m, while the forward pass is near
 * it. */
int ot_layout_boundary(const struct ot_layout *layout, const struct ot_plan *plan, int boundary, int micro);
/* Whether a boundary's home is not the device. */
static inline bool ot_layout_spills_boundaries(const struct ot_layout *layout) {
    return layout->boundary_host || layout->boundary_nvme;
}
/* Which kept buffer block b, micro m has; OT_NO_BUFFER if the block recomputes. */
int ot_layout_saved(const struct ot_layout *layout, const struct ot_chain *chain, const struct ot_plan *plan,
                    int block, int micro);

#endif

/* Stages: each rank of a pipeline owns whole blocks.
 *
 * The ranks of the other modes (plan.h) share every slab: the weights of a block travel to each rank before
 * each use, and its gradient sums after, however few tokens the step has. With stages a block has one OWNER.
 * Its weights, gradients and state live on the owner's tiers alone, and never cross. What crosses is the
 * boundary activation of a micro-batch, forward, where the next block has another owner, and the gradient of
 * that activation, backward. Host memory, disks, the optimizer's work and the traffic of each device's bus
 * fall with the number of ranks.
 *
 * THE BITS. A block sees all micro-batches of the step, in the order of one rank, and the squared norms of
 * the slabs are added in the order of the slabs. So losses, weights and state have the bits of a run on one
 * rank, whatever the number of ranks and the division.
 *
 * THE DIVISION. Block 0 (the embedding) belongs to rank 0. Layers are dealt out in turns of `turn_blocks`
 * consecutive layers: the first turn to rank 0, the next one to rank 1, and after the last rank to rank 0
 * again. With turns of one layer (LOOPED) a rank waits least: while it runs the micro-batches of a round
 * through its block, the next rank already runs the first of them through the next block (breadth-first
 * pipeline, arXiv 2211.05953; round-robin stages, arXiv 2604.27085). With one turn each (CONTIGUOUS,
 * turn_blocks 0) activations cross least. The head belongs to the last rank. If it shares a slab with the
 * embedding, it belongs to rank 0: the slab has one owner, and no weight crosses. A large vocabulary makes
 * the head as much work as some layers, so its rank gets fewer of them (shard.head_layers). The layers of a
 * decoder behind an encoder are more work than the encoder's: contiguous stages then have equal work, and not
 * equally many layers (shard.late_layers). Ranks may be unlike: one has a slower card, or less memory. Then
 * each has as many layers as its speed and its memory allow (shard.layers).
 *
 * All blocks that use a slab have one owner, but for SHARED SLABS (offload/block.h), such as the position
 * biases of a T5. The owner of a shared slab is the rank of the first block that uses it: it alone has the
 * slab's home, state and update. The other ranks whose blocks use it BORROW it. In each pass the weights
 * come from the rank of the block that uses them before, together with the result of that block's
 * micro-batch 0, and stay on the device until the next pass. After backward, the gradient sum of each use
 * goes to the owner, which adds up the uses in the order of the blocks, as one rank does. A shared slab that
 * is encoded cannot be borrowed.
 *
 * The result of an encoder needs no more: it is a part of each later boundary (ROWS OF PAIRS there).
 *
 * WHEN a block runs a micro-batch, and when its activation crosses, is in schedule/stage_times.h.
 *
 * REPLICAS. W ranks may form D pipelines of S stages, W = D x S. Each pipeline is a replica: it holds the
 * whole model. All sections above are about one replica: its ranks count from 0 there, and owners are stages.
 *
 * The D ranks with the same stage are the holders of its slabs: the consecutive ranks from s D on, for stage
 * s. So if a host has D ranks, gradients and weights stay inside it, which are as many bytes as the model
 * however few tokens a step has, and only activations cross between hosts. The holders share the slabs as the
 * ranks of mode state do (plan.h): each has all weights of the stage on its device, 1/D of their state and of
 * the waiting gradients, and updates that share. Each replica runs its own micro-batches: replica d those of
 * rank d of D. When a slab has the gradients of all micro-batches, the holders exchange their sums, and each
 * adds up D sums of its share, in the order of the replicas. Before the next use the updated shares are
 * gathered.
 *
 * So losses, norms, weights and state have the bits of mode state with D ranks, for any S and any division:
 * the groups of micro-batches, the sums, the shares and the ranges of the norms are those of D ranks, and the
 * results of a block do not depend on the rank of a replica that computes it. With `world` the run has the
 * bits of any number of ranks.
 *
 * The holders exchange nothing but a slab's gradient sums, its norms and its updated weights. These
 * operations stand between the transfers of the rank's program, and nothing but the table of ticks, the
 * slots and the rounds decides where. The holders of a stage have the same of all three, which they compare
 * before the first step. So an operation has one tick on all of them (NO DEADLOCK in stage_times.h).
 *
 * MEMORY. A rank has slots for its own slabs; the activations that enter its blocks, which
 * backward reads again; and two buffers for activations on their way out.
 *
 * CROSSING. If the communicator takes only host memory and all ranks are on one host, transfers go through
 * memory that all ranks map and pin (plan.crosses, comm/crossing.h): once written and once read. Its links
 * follow from the owners of the blocks, so all ranks have the same. The ledger of a rank has 1/W of it, about
 * as many bytes as a call of transfers needs otherwise.
 */
#ifndef OT_OFFLOAD_PLAN_STAGES_H
#define OT_OFFLOAD_PLAN_STAGES_H

#include "offload/block.h"
#include "offload/comm/crossing.h"
#include "offload/plan/plan.h"

/* Buffers for activations on their way to another rank: one is sent while the next is computed. */
enum { OT_STAGE_BUFFERS = 2 };
/* The most activations and gradients of them that a rank sends and receives in one tick: it sends one result,
 * and has two neighbours, or three if the head is tied to the embedding. */
enum { OT_STAGE_MOST_AT_ONCE = 4 };

enum ot_transfer_kind {
    OT_TRANSFER_BOUNDARY,
    OT_TRANSFER_GRADIENT, /* of a boundary */
    OT_TRANSFER_WEIGHTS,  /* of a shared slab */
    OT_TRANSFER_SUM       /* the gradient sum of one use of a shared slab */
};

static inline bool ot_plan_has_stages(const struct ot_plan *plan) {
    return ot_shard_stages(&plan->shard) > 1;
}
/* True if a rank holds only a part of the model between uses: shares of slabs, or whole slabs. */
bool ot_plan_is_divided(const struct ot_plan *plan);
/* Sets the owners of all slabs, if the plan has stages. Errors: OT_E_USAGE: the chain has too few layers for
 * the ranks, or blocks of several ranks would use one slab. */
int ot_stages_divide(const struct ot_chain *chain, struct ot_plan *plan);
/* Sets shard->layers for stages that are unlike, so that the slowest stage takes the least time. speeds:
 * [stages], in percent of the fastest stage. most: [stages], the layers for which a stage has room. The work
 * of the head and of late layers counts as the shard says. Returns false, and leaves the shard as it is, if
 * the stages have no room for all layers, or some stage for none. */
bool ot_stages_deal(const struct ot_chain *chain, struct ot_shard *shard, const int *speeds, const int *most);
/* Errors: as ot_stages_divide, for a plan of this shard. */
int ot_stages_check(const struct ot_chain *chain, const struct ot_shard *shard);

/* The stage that owns a block; without stages 0. */
int ot_block_owner(const struct ot_chain *chain, const struct ot_plan *plan, int block);
bool ot_block_is_own(const struct ot_chain *chain, const struct ot_plan *plan, int block);
static inline bool ot_slab_is_own(const struct ot_plan *plan, int slab) {
    return !ot_plan_has_stages(plan) || plan->slabs[slab].owner == ot_shard_stage(&plan->shard);
}
/* True if another rank owns the slab, and this rank's blocks use it. */
bool ot_slab_is_borrowed(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* True if this rank's blocks use the slab, or if it owns the slab. */
static inline bool ot_slab_is_here(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return ot_slab_is_own(plan, slab) || ot_slab_is_borrowed(chain, plan, slab);
}
/* The first block that uses a slab. */
int ot_slab_first_user(const struct ot_chain *chain, int slab);
/* The bytes of a transfer of a micro-batch of n_tokens tokens. */
size_t ot_stages_transfer_bytes(const struct ot_chain *chain, enum ot_transfer_kind kind, int index,
                                int64_t n_tokens);
/* The most bytes that a rank sends and receives in one tick. A communicator that takes only host memory
 * brings all of them there. */
size_t ot_stages_bytes_at_once(const struct ot_chain *chain, const struct ot_plan *plan);
/* Lists the links of all ranks: those between stages, and those between the holders of a slab, which exchange
 * in the pieces of the communicator's staging memory. Free out->links. Errors: OT_E_BUDGET (no memory). */
int ot_stages_list_links(const struct ot_chain *chain, const struct ot_plan *plan, struct ot_crossing *out);
/* The number of layers that the division gives to the shard's rank; without stages: all. */
int ot_shard_layers(const struct ot_chain *chain, const struct ot_shard *shard);
/* The number of this rank's middle blocks from block `first` on. */
int ot_plan_middle_blocks(const struct ot_chain *chain, const struct ot_plan *plan, int first);
/* True if this rank's blocks read the boundary (the output of block number `boundary`). */
bool ot_boundary_is_own(const struct ot_chain *chain, const struct ot_plan *plan, int boundary);

#endif

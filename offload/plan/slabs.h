/* The plan's consequences for each slab: this rank's holding, its tiles, and the parts of the holding that
 * each tile engine updates.
 *
 * UNITS. Homes, holdings, tiles and spans count a slab in units. A unit is a parameter in the chain's dtype,
 * or OT_ENCODED_UNIT bytes of an encoded slab (block.h). Everything of trained slabs counts parameters.
 */
#ifndef OT_OFFLOAD_PLAN_SLABS_H
#define OT_OFFLOAD_PLAN_SLABS_H

#include "offload/block.h"
#include "offload/plan/plan.h"

/* Consecutive tiles of a slab, and the parameters in them. */
struct ot_tile_span {
    int first_tile, n_tiles;
    int64_t first, n;
};

/* The first block that uses a trained slab: backward ends there. n_blocks: all slabs are frozen. */
int ot_chain_first_trained(const struct ot_chain *chain);
enum ot_slot_kind ot_slab_slot_kind(const struct ot_chain *chain, int slab);
bool ot_slab_is_encoded(const struct ot_chain *chain, int slab);
int64_t ot_spec_units(const struct ot_slab_spec *spec);
int64_t ot_slab_units(const struct ot_chain *chain, int slab);
size_t ot_slab_bytes(const struct ot_chain *chain, int slab, int64_t units);
/* True if the weights pass through a device slot on their way to a block, before they are decoded. */
bool ot_slab_is_streamed(const struct ot_plan *plan, int slab);
/* True if the home of the rank's weights is the device: updates on the device change them there. */
bool ot_slab_is_resident(const struct ot_plan *plan, int slab);
/* True if the rank holds a share of each slab's state, and not all of it. */
bool ot_plan_is_sharded(const struct ot_plan *plan);
/* True if the state or the waiting gradients of the engine's tiles, or the weights of the slab, pass through
 * tile slots. Weights that the device updates are only written through one; gradients are only read. */
bool ot_slab_state_passes(const struct ot_plan *plan, int slab, enum ot_tile_engine engine);
bool ot_slab_grads_pass(const struct ot_plan *plan, int slab, enum ot_tile_engine engine);
bool ot_slab_weights_pass(const struct ot_plan *plan, int slab);
/* The number of tiles that use tile slots. */
int64_t ot_plan_passing_tiles(const struct ot_plan *plan);
/* True if finished gradients, or gradient sums, have their home on nvme. */
bool ot_plan_spills_grads(const struct ot_chain *chain, const struct ot_plan *plan);
bool ot_slab_grad_in_place(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* True if the sums of the slab stay in buffers of their own on the device from round to round. */
bool ot_slab_sum_stays(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* True if the sums of the slab leave the device between rounds. */
bool ot_slab_sum_leaves(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* True if finished gradients that wait on the host take the place of a gradient sum there. */
bool ot_slab_grads_follow_sum(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* Pieces of a gradient sum that passes through host slots: tile_params parameters each. They cover the whole
 * slab, whatever the rank holds of it. */
int ot_slab_pieces(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
struct ot_tile_span ot_slab_piece(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                  int piece);
int ot_slab_uses(const struct ot_chain *chain, int slab); /* number of blocks that use the slab; 2 if tied,
                                                                 more if shared */
/* The rank's holding of a slab, and the tiles in it. */
struct ot_shard_range ot_slab_holding(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
int ot_slab_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* The tiles that the optimizer updates: all of them, or none of a frozen slab. */
int ot_slab_trained_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
/* The tiles that a use of the slab reads: the holding's tiles, and the rest. */
int ot_slab_used_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
struct ot_tile_span ot_slab_span(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                 int first_tile, int n_tiles);
/* Ranges of tiles, which may be empty. ot_slab_engine_tiles: the tiles of one engine. ot_slab_waiting_on_gpu:
 * the first tiles, whose finished gradients wait on the device. ot_slab_state_off_gpu: the tiles whose state
 * is on the host or on nvme. */
struct ot_tile_span ot_slab_engine_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                         enum ot_tile_engine engine);
struct ot_tile_span ot_slab_waiting_on_gpu(const struct ot_chain *chain, const struct ot_plan *plan,
                                           int slab);
struct ot_tile_span ot_slab_state_off_gpu(const struct ot_chain *chain, const struct ot_plan *plan, int slab);

#endif

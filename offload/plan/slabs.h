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
/* Inline, like those of a shard: a search asks for each slab of each plan. */
static inline enum ot_slot_kind ot_slab_slot_kind(const struct ot_chain *chain, int slab) {
    const struct ot_slab_spec *spec = &chain->slabs[slab];
    if (spec->shared)
        return OT_SLOT_SHARED;
    if (spec->frozen)
        return spec->edge ? OT_SLOT_FROZEN_EDGE : OT_SLOT_FROZEN_LAYER;
    return spec->edge ? OT_SLOT_EDGE : OT_SLOT_LAYER;
}
static inline bool ot_slab_is_encoded(const struct ot_chain *chain, int slab) {
    return chain->slabs[slab].encoded_bytes > 0;
}
static inline int64_t ot_spec_units(const struct ot_slab_spec *spec) {
    return spec->encoded_bytes > 0 ? spec->encoded_bytes / OT_ENCODED_UNIT : spec->n_params;
}
static inline int64_t ot_slab_units(const struct ot_chain *chain, int slab) {
    return ot_spec_units(&chain->slabs[slab]);
}
size_t ot_slab_bytes(const struct ot_chain *chain, int slab, int64_t units);
/* True if the weights pass through a device slot on their way to a block, before they are decoded. */
bool ot_slab_is_streamed(const struct ot_plan *plan, int slab);
/* True if the home of the rank's weights is the device: updates on the device change them there. */
bool ot_slab_is_resident(const struct ot_plan *plan, int slab);
/* True if the rank holds a share of each slab's state, and not all of it. */
static inline bool ot_plan_is_sharded(const struct ot_plan *plan) {
    return ot_shard_holders(&plan->shard) > 1 && plan->shard.mode != OT_SHARD_NONE;
}
/* True if the holders of a slab share its state alone: each has all of its weights, on the device. */
bool ot_plan_keeps_weights(const struct ot_plan *plan);
/* True if the holders exchange the gradient sums of slabs. */
static inline bool ot_plan_exchanges(const struct ot_plan *plan) {
    return ot_shard_holders(&plan->shard) > 1;
}
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

/* ---- rounds ---- */

/* Rounds: a step's micro-batches are cut into rounds of consecutive ones. A round goes forward and backward
 * through all blocks, layer by layer, before the next round begins. Backward's inputs (boundary activations,
 * kept activations) then exist for the micro-batches of one round, not of the whole step. The price is
 * traffic: weights cross the bus twice a round instead of twice a step, and gradient sums that do not stay on
 * the device leave it after each round and come back in the next: 4 bytes a parameter each way, in fp32.
 * (Layer-major order in rounds: "horizontal" and "vertical" order are its two ends, one micro-batch a round
 * and one round a step.)
 *
 * A round of T tokens computes for 6 N T / R seconds, with N parameters at R FLOP/s. Its weights take 4 N / B
 * seconds on a bus of B bytes/s, its sums 4 N / B in each direction. So it hides its transfers from about T =
 * R / B tokens on, as a whole step does without rounds.
 *
 * Micro-batches keep their order, and a sum comes back as it left. So the bits do not depend on rounds.
 *
 * The first round may be longer or shorter than the others: the updates of the step before run under its
 * forward. The planner makes all rounds equally long. Kept activations have as many places as the longest
 * round has micro-batches, so a longer first round needs as much memory as longer rounds throughout.
 */

struct ot_round {
    int first, n; /* micro-batches of the rank */
};

/* The number of rounds of a full step; 1 or more. */
int ot_plan_rounds(const struct ot_plan *plan);
struct ot_round ot_plan_round(const struct ot_plan *plan, int round);
/* The most micro-batches of a round, or of the rounds that are in flight together (struct ot_shard). */
int ot_plan_round_places(const struct ot_plan *plan);
/* The place of a micro-batch in its round, or in the rounds in flight, counted from 0. */
int ot_plan_place(const struct ot_plan *plan, int micro);
/* The first micro-batch of the round of a micro-batch. */
int ot_plan_round_first(const struct ot_plan *plan, int micro);
/* Cuts the step into rounds of equal length, except for the last. There are fewer rounds if there are fewer
 * micro-batches. */
void ot_plan_set_rounds(struct ot_plan *plan, int rounds);

/* ---- sections ---- */

/* Sections: a sequence of N tokens may be cut into S sections of N / S tokens, which are S consecutive
 * micro-batches (block.h, SECTIONS). Then blocks work in room for a section, and the keys and values of one
 * sequence, with the sums of their gradients, have buffers that all middle blocks use in turn. So a row may
 * be longer than a block's work has room for; and with stages, a section goes to the next rank while this one
 * works on the next section.
 *
 * Forward takes micro-batches in their order. Backward takes sequences in their order, and the sections of
 * each from the last to the first, in every block. It first runs KEYS tasks: the keys and values of all
 * sections but the last are computed again from the boundary. That costs the product of q, k and v, and the
 * boundary comes to the device a second time.
 *
 * The gradient of a weight adds up the sections in the order of backward. So S is part of what fixes the
 * bits, like the micro-batch's size. Rounds, and the groups of a step, have whole sequences.
 */
static inline int ot_plan_sections(const struct ot_plan *plan) { /* of a sequence, >= 1 */
    return plan->sections > 1 ? plan->sections : 1;
}
/* The tokens of a pass that evaluates: of a micro-batch, or of all sections of a sequence. */
static inline int64_t ot_plan_pass_tokens(const struct ot_plan *plan) {
    return plan->micro_tokens * ot_plan_sections(plan);
}
/* The sequences of a full micro-batch; one if it is a section. */
static inline int64_t ot_plan_micro_sequences(const struct ot_plan *plan, int64_t sequence_tokens) {
    return ot_plan_pass_tokens(plan) / sequence_tokens;
}
/* The turn of a micro-batch in a step's backward; and the micro-batch of a turn, which is the same function.
 * Its section is the micro-batch modulo the number of sections. */
static inline int ot_plan_backward_turn(const struct ot_plan *plan, int micro) {
    int n = ot_plan_sections(plan), section = micro % n;
    return micro - section + (n - 1 - section);
}

/* ---- key groups ---- */

/* Key groups: the keys and values of a sequence in sections, and the sums of their gradients, may be too many
 * for the device. Then their home is the host, in G groups of heads (block.h, KEY GROUPS), and OT_KEY_SLOTS
 * slots on the device have room for one group of the whole sequence each. For each section and group, the
 * keys of the sections before come to a slot while attention computes the group before; the section's own
 * keys go from there to the home. In backward the sums come along, and go back. So a token of the sequence
 * takes OT_KEY_SLOTS / G of the device memory, and all of it on the host, for one block at a time.
 *
 * A sequence in S sections then moves about S / 2 times its keys to the device for a block's forward, and as
 * often in each pass over them in backward; their sums S / 2 times each way. A section of n tokens has 4 n
 * FLOPs of attention for each element of a key, so its copies hide behind attention from some thousand tokens
 * on.
 *
 * The bits do not depend on G. The search takes as few sections as fit with any G, and then the fewest
 * groups: each group is a task more in each pass over the keys. */
enum { OT_KEY_SLOTS = 2 };
static inline int ot_plan_key_groups(const struct ot_plan *plan) { /* >= 1 */
    return plan->key_groups > 1 ? plan->key_groups : 1;
}
/* Elements of the keys, and of the values, of one group for a token. */
static inline int64_t ot_plan_group_elems(const struct ot_chain *chain, const struct ot_plan *plan) {
    return chain->kv_elems / ot_plan_key_groups(plan);
}
/* Elements of the keys of one group of a sequence, or of the values, which follow them. */
static inline int64_t ot_plan_row_elems(const struct ot_chain *chain, const struct ot_plan *plan) {
    return ot_plan_pass_tokens(plan) * ot_plan_group_elems(chain, plan);
}

/* ---- kept ---- */

/* Kept activations: the inner activations that each block keeps for backward (block.h), and their tier.
 *
 * Only middle blocks keep any. The last of them keep theirs on the device, because backward needs these
 * first. Blocks before them use the host, and blocks before those use nvme. Such activations leave through a
 * slot after forward and come back through a slot before backward, while the device works on other blocks.
 * The first blocks keep nothing, and backward computes them again. Each tier has its own level.
 *
 * Kept activations cross the bus twice. That pays where the copies take less time than recomputation, and
 * where the bus has time left. The bits do not depend on it.
 */

struct ot_kept {
    enum ot_keep_level level; /* OT_KEEP_NONE: nothing */
    enum ot_tier tier;
};

struct ot_kept ot_plan_kept(const struct ot_chain *chain, const struct ot_plan *plan, int block);
/* The number of blocks that keep anything; on one tier, or (tier OT_TIER_COUNT) on all. */
int ot_plan_kept_blocks(const struct ot_plan *plan, enum ot_tier tier);
/* True if kept activations leave the device. */
bool ot_plan_spills_kept(const struct ot_plan *plan);
/* True if backward computes products of middle blocks again. */
bool ot_plan_repeats_products(const struct ot_chain *chain, const struct ot_plan *plan);
const char *ot_keep_level_name(enum ot_keep_level level); /* "none", "attention", "products", "all" */

/* ---- one copy ---- */

/* One copy: ranks of one host share the weights that live in host memory.
 *
 * Without it, a rank of mode full (plan.h) holds 1/W of a slab's weights in host memory of its own. It
 * copies them to its device over its link, and the communicator brings the other shares from the other
 * devices. If GPUs cannot copy to each other (GeForce cards), the bytes of the communicator cross the same
 * links again, twice, and host memory in between. Then a slab costs a link less if each device reads all of
 * it from the host. So with shard.one_copy the weights of a slab on the host are ONE buffer, whole, in memory
 * that the processes of all ranks map (comm/shared_memory.h). A rank updates its own tiles there, as it does
 * in its own memory. A fetch copies the whole slab, and nothing is gathered. The host holds each byte once,
 * so the ledger of a rank has 1/W of the copy. (ZeRO-Infinity, arXiv 2104.07857, reads 1/W on each rank and
 * gathers the rest; MegaTrain and llmq read whole blocks from one host copy where GPUs have no peer access.)
 *
 * It applies to slabs with weights on the host, in mode full, if all ranks are on one host. All ranks apply
 * it to the same slabs: the order of their operations says so, and ranks compare it before the first step. It
 * changes no bits, because every rank computes with the same weights as before.
 *
 * READ AFTER WRITE. A rank may read a slab in step k + 1 when all ranks have written their updates of step k.
 * The task MEET orders that: once a step, before the slab's first fetch, in the comm lane, as an operation of
 * all ranks with a few bytes. A rank enters the operation after its own updates of the slab are in the shared
 * memory, and leaves it after all ranks have entered.
 *
 *   cpu tiles      UPDATE_CPU writes them there; MEET waits for it.
 *   gpu tiles      UPDATE_GPU changes the slot, STORE copies it to the shared memory; MEET waits for STORE.
 *   stream tiles   are updated in the next step, and before the slab is fetched: a tile's weights travel with
 *                  its state through the state slot, and STATE_OUT writes both; MEET waits for STATE_OUT.
 *
 * WRITE AFTER READ. A rank may write its tiles in the updates of step k when every rank has read the slab for
 * the last time in step k. That needs no operation of its own. The update needs a decision, and the decision
 * needs the slab's norm of all ranks, so it comes after the EXCHANGE of the slab's gradients (of all slabs,
 * with clipping). A rank sends its part of that exchange after its last backward of the slab in the last
 * round, and its fetches precede the passes that use them:
 *
 *   tied slabs          The exchange comes after the backward of the last use.
 *   not needed in       The last fetch is for a forward. The forward precedes the backward of the same block,
 *   backward            which computes the gradient, in the compute lane.
 *   rounds              The exchange comes after the last round; each fetch belongs to a pass of a round.
 *   skipped steps       All tasks run, and in the same order. A skipped update writes the bytes that it read.
 *   a broken            An operation that failed orders nothing. Every decision asks for its error, so
 *   communicator        nothing is updated any more. Weights that a rank still reads may be of two
 *                       versions, and are not used.
 *
 * In the schedule the EXCHANGE leaves garbage in the REST of the shared buffer (layout.h): from then on the
 * other ranks may change it, and only a MEET makes it whole. So the verifier finds a fetch after the
 * exchange, and one without a MEET.
 *
 * NO DEADLOCK. A MEET waits for tasks that come before it in each rank's program. These wait for operations
 * before the MEET alone, and the operations have one order on all ranks.
 *
 * BETWEEN STEPS. A forward pass alone, after a step or after weights were set, comes after a MEET of all
 * slabs (ot_schedule_make_gather). Further passes need none. A step after them begins with a barrier of the
 * hosts, because its streamed tiles are written, with the same bytes, before the first exchange. Snapshots,
 * ot_engine_get and the flush touch the rank's own tiles alone. A rank that sets weights must know that no
 * rank is in a pass: before the first step, or after a barrier of the caller.
 */

/* True if the slab's weights on the host are one copy of all ranks. */
bool ot_slab_has_one_copy(const struct ot_plan *plan, int slab);
/* True if some slab has one copy. */
bool ot_plan_has_one_copy(const struct ot_plan *plan);

#endif

/* A plan decides where every slab lives, how many slots hold data that is not resident while it is used, and
 * how a step is cut into micro-batches and tiles. A schedule is made from a model and its plan. The plan's
 * ledger names every byte on every tier before anything is allocated.
 *
 * HOMES. The weights of a slab have one of three homes. On the device they need no slot. From the host they
 * are copied to a device slot for each use. From nvme (store.h) they are read into a host slot and copied to
 * a device slot for each use. Boundary activations have the same three homes.
 *
 * TILES AND THEIR ENGINES. The optimizer's work is cut into tiles of tile_params parameters. A tile has its
 * own optimizer state: m and v, and in bf16 training the remainder of the master, in fp16 the master.
 * Each tile has one of three engines, which decides where its state lives:
 *
 *   gpu      The state is on the device. The tile is updated after backward, before the next forward.
 *   stream   The state is on the host or on nvme. It is copied to a device slot and back. The tile is
 *            updated just before the slab's first use in the NEXT step, while the device computes the block
 *            before it. Until then the tile is one update behind. Its gradients wait on the device if there
 *            is room, else on the host or on nvme.
 *   cpu      The state is on the host or on nvme. The CPU pool updates the tiles in the order in which the
 *            next forward needs the slabs; some of them already during backward (shadow_updates.h). Their
 *            gradients wait on the host or on nvme.
 *
 * The tiles of a slab go to the engines in this order, so that each engine has one contiguous part of a slab.
 * All engines give the same bits. Every engine copies its updated weights to the slab's home before a task
 * reads them there. If that home is the device, the CPU pool works on a second copy of its part on the host;
 * its updates are copied to the device just before the slab's next use.
 *
 * SLOTS. Everything that is not resident passes through slots. A `layer` slot fits the largest layer slab, an
 * `edge` slot the largest other slab (embedding, head). Frozen slabs (block.h) have two kinds of their own,
 * because they may be much larger than the trained slabs beside them. So have shared slabs, which are small.
 * Gradients accumulate in fp32 slots of the first two kinds, and of shared slabs. Finished gradients leave
 * through staging slots in the gradient's storage dtype; fp32 gradients leave straight from the accumulator.
 * A state slot holds one streamed tile: its state, and its gradients if they wait off the device. Data on
 * nvme passes through slots on the host: the weights of a slab on their way to the device, one tile's state,
 * weights and gradients (read before its update and written after it), and boundary activations. A tile is
 * read as soon as a slot is free. So during backward these slots fill with the tiles that are updated first.
 * Backward brings boundary activations back into the buffers that forward used for them. A plan with more
 * slots than these has slots of their own, and so have stages, whose forward goes on beside backward.
 *
 * BOUNDARIES of a round stay on the device while forward goes on to the next block, and so do their
 * gradients in backward. With boundaries_pass they do not: forward too sends each boundary to its home, and
 * brings it back for the next block. The gradient of a boundary goes to the home of that boundary, which
 * nobody reads any more, and comes back for the block before. Then a row in sections (slabs.h) needs the
 * device for its keys alone. A boundary and its gradient cross the bus three times more.
 *
 * ENCODED SLABS are decoded into a weight slot for each visit of a block, wherever their home is. The encoded
 * bytes come to the device in an encoded slot, ahead of the visit; the decoding itself is work of the device
 * between two visits. So one weight slot is enough for them, and more encoded slots let copies run ahead.
 *
 * PARTS. A block's slab may have parts that a step leaves unused (block.h). With fetch_used only used parts
 * cross the bus (used_parts.h).
 *
 * GRADIENTS ON NVME. A finished gradient leaves the device tile by tile through a ring of host slots, and
 * comes back into the slot of its tile just before the update. A gradient sum leaves between rounds, and
 * comes back, through the same ring, in pieces of a tile's size. So the host holds gradients of a few tiles,
 * however large the model is. State is read ahead without waiting for the gradient, which is a read of its
 * own. The extents have one side (store.h): no checkpoint refers to them. Such a step writes and reads 2
 * bytes a parameter more (fp32: 4), and 4 for each round after the first.
 *
 * CACHE. Generation keeps the keys and values of all tokens of its texts, in every middle block. The plan has
 * room for cache_rows tokens. The home of this cache is the device, the host or nvme. From the host, the rows
 * of a block are copied to a device slot before each of its visits, as far as they are filled and belong to a
 * text of the pass; afterwards the new rows are copied back. From nvme they also pass through a slot on the
 * host, in extents: a pass reads those that are filled, and writes those that have new rows.
 *
 * RANKS. With several ranks (plan.h) a rank's tiles, state and waiting gradients cover its holding of each
 * slab, and so do its weights; slots have room for whole slabs. Weights on the host may be one copy of all
 * ranks (slabs.h).
 *
 * Only the micro-batch size, with the number of sections of a sequence, and the number of ranks that share
 * slabs change the bits of the result; the rest of the plan does not. With shard.world the number of ranks
 * does not either.
 */
#ifndef OT_OFFLOAD_PLAN_PLAN_H
#define OT_OFFLOAD_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/block.h"

/* ---- shard ---- */

/* Shards: the ranks of a run divide the model and a step's work.
 *
 * A run of W ranks trains one model on W devices. Every slab is cut into W equal shares, in order of its
 * parameters; the last shares may be short or empty. A rank's HOLDING is the part of a slab that it holds
 * between uses. There are three modes:
 *
 *   none    A rank holds everything. Every rank makes every update. (Data parallel, as DDP.)
 *   state   A rank holds its share of the state and of the waiting gradients, and the whole weights, on the
 *           device. It updates its share; before the next use the updated shares are gathered. (ZeRO-2.)
 *   full    A rank holds its share of everything. A block's weights are gathered into a slot before each use.
 *           (ZeRO-3, FSDP.)
 *
 * MICRO-BATCHES. A step of M micro-batches is cut into groups of consecutive ones: group g of G has those
 * from g M / G up to (g + 1) M / G. A group may be empty. Rank r runs the groups from r G / W up to (r + 1) G
 * / W.
 *
 * GRADIENTS. Each rank sums its micro-batches in fp32, in order. Then the ranks exchange their sums, so that
 * each rank has W sums of its share, and adds them up in the order of the ranks. The communicator only moves
 * bytes. So the bits depend on W, and on nothing else: not on who is faster, nor on the network.
 *
 * WORLD. With `world` the bits do not depend on W either, for W = 1, 2, 4, 8. There are always 8 groups, and
 * their sums are added along a fixed binary tree: ((0+1)+(2+3))+((4+5)+(6+7)). A rank runs an aligned power
 * of two of the groups, so it makes a subtree by itself; the ranks exchange the roots. A rank of a small run
 * needs up to four accumulators for that instead of one. Squared norms are also taken over fixed eighths of a
 * slab, and added in order. The gradients of a tied slab's two uses cross by themselves. A run may go on with
 * another number of ranks, bit for bit.
 *
 * Without `world` there are W groups, one a rank, and norms are taken over the shares.
 *
 * STAGES. The other division: a rank owns whole blocks, with their weights, state and gradients, and all
 * micro-batches of the step pass through them. Only boundary activations and their gradients cross between
 * ranks (plan/stages.h). The bits are those of one rank.
 *
 * HOLDERS. The ranks that share a slab are its holders: all ranks, in the modes above. With fewer stages than
 * ranks there are several pipelines, called replicas, and the ranks that have the same stage in them are the
 * holders of its slabs (REPLICAS in plan/stages.h). So wherever this file says how W ranks share a slab or
 * divide the micro-batches, W is the number of holders. W ranks that are one stage each have one holder.
 */

/* OT_SHARD_MODES: the number of modes that cut slabs. */
enum ot_shard_mode {
    OT_SHARD_NONE,
    OT_SHARD_STATE,
    OT_SHARD_FULL,
    OT_SHARD_MODES,
    OT_SHARD_STAGES = OT_SHARD_MODES
};
const char *ot_shard_mode_name(enum ot_shard_mode mode); /* "none", "state", "full", "stages" */

enum { OT_SHARD_MOST_STAGES = 64 };
/* Zeros are one rank. */
struct ot_shard {
    int rank, ranks; /* ranks 0 counts as 1 */
    enum ot_shard_mode mode;
    bool world;    /* the same bits for 1, 2, 4 and 8 ranks */
    bool narrow;   /* gradients cross between ranks in the chain's dtype, not in fp32 */
    bool one_copy; /* full: the host weights of all ranks are one copy (slabs.h) */
    /* stages: consecutive layers that a rank takes before the next rank's turn; 0: each rank has one turn
     * (stages.h) */
    int turn_blocks;
    /* stages: the work of the last block, in layers: the rank that has it gets fewer others */
    int head_layers;
    /* stages with one turn each: each of the last `late_layers` layers is `late_percent` of the first one's
     * work, as in a decoder behind an encoder. 0: all layers are the same work */
    int late_layers, late_percent;
    int in_flight; /* stages: the most rounds of a step that are under way at the same time; 0: one */
    int stages;    /* stages: how many there are; a divisor of `ranks`; 0: one for each rank */
    /* stages: the layers of each, for ranks that are unlike (ot_stages_deal); all 0: equal work for each */
    uint8_t layers[OT_SHARD_MOST_STAGES];
};

enum { OT_SHARD_WORLD_GROUPS = 8 };
/* Shares are cut at multiples of this number of parameters: 64 bytes of 2-byte values. A slab of
 * OT_SLAB_ALIGN_PARAMS parameters has 64 of them, so that 64 ranks have equal shares of every slab. */
enum { OT_SHARD_ALIGN_PARAMS = 32 };

/* Inline: a search asks for these numbers millions of times, for each slab of each plan. */
static inline int ot_shard_ranks(const struct ot_shard *shard) { /* >= 1 */
    return shard->ranks > 1 ? shard->ranks : 1;
}
/* The number of stages, and the stage of this rank; without stages: 1, and 0. */
static inline int ot_shard_stages(const struct ot_shard *shard) {
    if (shard->mode != OT_SHARD_STAGES)
        return 1;
    return shard->stages > 0 ? shard->stages : ot_shard_ranks(shard);
}
int ot_shard_stage(const struct ot_shard *shard);
/* The holders of a slab, whose gradient sums are added up: without `world` the bits follow from their number.
 * The number of this rank among the holders; with several stages that is its replica. */
static inline int ot_shard_holders(const struct ot_shard *shard) {
    return shard->mode == OT_SHARD_STAGES ? ot_shard_ranks(shard) / ot_shard_stages(shard)
                                          : ot_shard_ranks(shard);
}
int ot_shard_holder(const struct ot_shard *shard);
/* The rank that has a stage in a replica: the holders of a stage are consecutive ranks. */
int ot_shard_rank_of(const struct ot_shard *shard, int holder, int stage);
/* Errors: OT_E_USAGE: the rank is not one of the ranks, the stages do not divide the ranks, or `world` with
 * another number of holders than 1, 2, 4 or 8. */
int ot_shard_check(const struct ot_shard *shard);

/* Parameters of an equal share of n_params. The shares cover holders * this number, at least n_params. */
int64_t ot_shard_share(const struct ot_shard *shard, int64_t n_params);

/* A range of parameters, or of micro-batches. */
struct ot_shard_range {
    int64_t first, n;
};
/* This rank's share of n_params; may be empty. */
struct ot_shard_range ot_shard_own(const struct ot_shard *shard, int64_t n_params);

/* The groups of a step, and the groups of this rank. */
int ot_shard_groups(const struct ot_shard *shard);
int ot_shard_own_groups(const struct ot_shard *shard);
/* The micro-batches of group g, of the n_micro of a step. */
struct ot_shard_range ot_shard_group(const struct ot_shard *shard, int64_t n_micro, int group);
/* The micro-batches of a rank, of the n_micro of a step. */
struct ot_shard_range ot_shard_micro(const struct ot_shard *shard, int64_t n_micro, int rank);
/* The most micro-batches of a group, of the n_micro of a step. */
int64_t ot_shard_group_micro(const struct ot_shard *shard, int64_t n_micro);

/* Accumulators that a rank needs for a use: 1, or the depth of its subtree plus 1. */
int ot_shard_accumulators(const struct ot_shard *shard);
/* The accumulator of the rank's group g (0 for its first group): the number of unfinished subtrees before
 * it. */
int ot_shard_accumulator(int own_group);
/* The number of times that this accumulator is added to the one below it after the group. */
int ot_shard_merges(int own_group);

/* The number of equal ranges, over all holders, for which the norms of a slab are computed. Range p has the
 * parameters from p * share up to (p + 1) * share, with the share of that many holders. */
int ot_shard_norm_ranges(const struct ot_shard *shard);
struct ot_shard_range ot_shard_norm_range(const struct ot_shard *shard, int64_t n_params, int range);

/* ---- plan ---- */

enum ot_tier { OT_TIER_GPU, OT_TIER_HOST, OT_TIER_NVME, OT_TIER_COUNT };
const char *ot_tier_name(enum ot_tier tier); /* "gpu", "host", "nvme" */

enum ot_home {
    OT_HOME_AUTO = -1,
    OT_HOME_GPU = OT_TIER_GPU,
    OT_HOME_HOST = OT_TIER_HOST,
    OT_HOME_NVME = OT_TIER_NVME
};

enum ot_slot_kind {
    OT_SLOT_LAYER,
    OT_SLOT_EDGE,
    OT_SLOT_FROZEN_LAYER,
    OT_SLOT_FROZEN_EDGE,
    OT_SLOT_SHARED,
    OT_SLOT_KINDS
};
const char *ot_slot_kind_name(enum ot_slot_kind kind); /* "layer", ..., "frozen edge", "shared" */
static inline bool ot_slot_kind_is_edge(enum ot_slot_kind kind) {
    return kind == OT_SLOT_EDGE || kind == OT_SLOT_FROZEN_EDGE;
}
static inline bool ot_slot_kind_is_frozen(enum ot_slot_kind kind) {
    return kind == OT_SLOT_FROZEN_LAYER || kind == OT_SLOT_FROZEN_EDGE;
}

enum {
    OT_PLAN_MAX_SLOTS = 8,
    OT_PLAN_MAX_STATE_SLOTS = 64,
    OT_PLAN_MAX_TILE_SLOTS = 4096,
    OT_PLAN_MAX_PINNED_CONTENTS = 14
};

enum ot_tile_engine { OT_TILE_GPU, OT_TILE_STREAM, OT_TILE_CPU, OT_TILE_ENGINES };
const char *ot_tile_engine_name(enum ot_tile_engine engine); /* "gpu", "stream", "cpu" */

struct ot_slab_plan {
    int owner; /* stages: the stage that has the slab, and the blocks that use it */
    enum ot_home weights;
    /* number of tiles that each engine updates; all 0 in a plan that does not train */
    int tiles[OT_TILE_ENGINES];
    enum ot_home state; /* home of the state of stream and cpu tiles: host or nvme */
    /* Home of the finished gradients of stream and cpu tiles until their update. gpu: only gradients of
     * stream tiles; gradients of cpu tiles then wait on the host. */
    enum ot_home grads;
    enum ot_home sums; /* home of the gradient sums between rounds (slabs.h) */
};

struct ot_ledger_entry {
    enum ot_tier tier;
    /* "weights", "optimizer state", ...; the printed table adds up entries of one name */
    const char *name;
    size_t bytes;
    size_t spare_bytes; /* nvme: part of `bytes`, room for new contents beside the present ones */
};
enum { OT_LEDGER_MAX = 48 };
struct ot_ledger {
    int n;
    struct ot_ledger_entry entries[OT_LEDGER_MAX];
};
size_t ot_ledger_total(const struct ot_ledger *ledger, enum ot_tier tier);

/* Says why no plan fits. ot_plan_make fills it in when it returns OT_E_BUDGET because memory is short;
 * otherwise it is zero. */
struct ot_shortage {
    /* alone[T]: bytes of tier T that would be enough with the other budgets unchanged. 0: more of T alone
     * does not help.
     */
    size_t alone[OT_TIER_COUNT];
    /* If no tier alone is enough: bytes of all tiers that would be enough together. */
    size_t together[OT_TIER_COUNT];
};

/* The middle blocks that keep inner activations for backward on a tier. */
struct ot_kept_blocks {
    enum ot_keep_level level;
    int blocks;
};

/* The most bytes that blocks work in with micro-batches of so many tokens (block.h): the work of the first
 * and the last block, that of a middle block at each level, and the scratch of any block. saved: what each
 * middle block saves at a level; 0: they differ, or save nothing. */
struct ot_workspace {
    int64_t tokens;
    size_t edge, middle[OT_KEEP_LEVELS], scratch, saved[OT_KEEP_LEVELS];
};

struct ot_plan {
    struct ot_slab_plan *slabs; /* [n_slabs], owned */
    int n_slabs;
    struct ot_shard shard;         /* this rank's part of the work */
    enum ot_home activations;      /* home of the boundary activations */
    bool boundaries_pass;          /* they leave the device after each block: see BOUNDARIES */
    int64_t micro_tokens;          /* tokens in a full micro-batch */
    int sections;                  /* micro-batches of a sequence (slabs.h); 0 or 1: sequences are whole */
    int key_groups;                /* of a row in sections (slabs.h); 0 or 1: its keys stay on the device */
    struct ot_workspace workspace; /* of micro_tokens; ot_plan_finish sets it */
    int max_micro;                 /* places for this rank's micro-batches of the largest step */
    /* Micro-batches of the first round, and of each later one but for the last (slabs.h). first_round 0: one
     * round. */
    int first_round, round_micro;
    int texts; /* the most texts that one pass of generation continues; 0: one */
    /* Generation: the tokens of all texts that grow side by side (0: none), and the home of their keys and
     * values. */
    int64_t cache_rows;
    enum ot_home cache;
    bool train;      /* false: forward only (eval, generate), without gradients and state */
    bool clip;       /* updates wait for the global norm */
    bool fetch_used; /* slabs with parts, in all passes: see used_parts.h */
    bool keep_grads; /* test seam: see ot_engine_get_grad */
    /* 0: nothing passes through such a slot */
    int weight_slots[OT_SLOT_KINDS], grad_slots[OT_SLOT_KINDS], grad_out_slots[OT_SLOT_KINDS];
    int encoded_slots[OT_SLOT_KINDS];  /* for the bytes of encoded slabs that are not resident */
    int exchange_slots[OT_SLOT_KINDS]; /* for the gradients that other ranks send */
    int state_slots;                   /* for the stream engine; one tile each */
    int activation_slots;              /* device slots for boundary activations homed elsewhere; without
                                        * stages and boundaries_pass the first are buffers of forward */
    /* Slots on the host between nvme and the device. host_weight_slots: a slab's weights, by kind.
     * tile_slots: a tile's state, weights and gradients, before and after an update. host_grad_slots: a
     * tile's finished gradients on their way out, or a piece of a sum (slabs.h) on its way out or back.
     * host_activation_slots: boundary activations. */
    int host_weight_slots[OT_SLOT_KINDS], tile_slots, host_grad_slots, host_activation_slots;
    /* Slots for the cache of a block, if its home is not the device; and on the host, if it is nvme. */
    int cache_slots, host_cache_slots;
    /* Versions of state and weights on nvme that checkpoints may pin at the same time (store.h). Each one
     * costs every extent another side. */
    int pinned_contents;
    /* Pinned bytes of the communicator, if it takes only host memory and the device has its own (comm.h). */
    size_t staging_bytes;
    bool crosses;       /* stages: transfers go through memory that all ranks pin (stages.h) */
    int snapshot_slots; /* host slots that pass a checkpoint to the disk (snapshot.h); 0: none */
    struct ot_kept_blocks kept[OT_TIER_COUNT]; /* inner activations for backward, by tier (slabs.h) */
    int kept_slots,
        host_kept_slots; /* device slots for activations that leave, and host slots for those on nvme */
    int shadow_frames;   /* tiles that are updated ahead of the decision (shadow_updates.h) */
    int64_t tile_params; /* the optimizer's unit of work; a multiple of OT_SLAB_ALIGN_PARAMS */
    struct ot_ledger ledger;
    struct ot_shortage shortage; /* set if no plan was found */
};

/* The number of tiles, over all slabs, that the engine updates. */
int64_t ot_plan_count_tiles(const struct ot_plan *plan, enum ot_tile_engine engine);
void ot_plan_free(struct ot_plan *plan);

#endif

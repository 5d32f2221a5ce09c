/* A plan decides where every slab lives, how many slots stage data that is not resident, and how a step is
 * cut into micro-batches and tiles. A schedule is made from a model and its plan. The plan's ledger names
 * every byte on every tier before anything is allocated.
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
 * RANKS. With several ranks (shard.h) a rank's tiles, state and waiting gradients cover its holding of each
 * slab, and so do its weights; slots have room for whole slabs. Weights on the host may be one copy of all
 * ranks (one_copy.h).
 *
 * Only the micro-batch size and the number of ranks change the bits of the result; the rest of the plan does
 * not. With shard.world the number of ranks does not either.
 */
#ifndef OT_OFFLOAD_PLAN_PLAN_H
#define OT_OFFLOAD_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "offload/block.h"
#include "offload/plan/shard.h"

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
    enum ot_home weights;
    /* number of tiles that each engine updates; all 0 in a plan that does not train */
    int tiles[OT_TILE_ENGINES];
    enum ot_home state; /* home of the state of stream and cpu tiles: host or nvme */
    /* Home of the finished gradients of stream and cpu tiles until their update. gpu: only gradients of
     * stream tiles; gradients of cpu tiles then wait on the host. */
    enum ot_home grads;
    enum ot_home sums; /* home of the gradient sums between rounds (rounds.h) */
};

struct ot_ledger_entry {
    enum ot_tier tier;
    /* "weights", "optimizer state", ...; the printed table adds up entries of one name */
    const char *name;
    size_t bytes;
    size_t spare_bytes; /* nvme: part of `bytes`, room for new contents beside the present ones */
};
enum { OT_LEDGER_MAX = 40 };
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

/* The most memory that a block works in with micro-batches of so many tokens. */
struct ot_workspace {
    int64_t tokens;
    size_t work, scratch; /* bytes: block.h. work: of a block that keeps nothing, as in evaluation */
};

struct ot_plan {
    struct ot_slab_plan *slabs; /* [n_slabs], owned */
    int n_slabs;
    struct ot_shard shard;         /* this rank's part of the work */
    enum ot_home activations;      /* home of the boundary activations */
    int64_t micro_tokens;          /* tokens in a full micro-batch */
    struct ot_workspace workspace; /* of micro_tokens; ot_plan_finish sets it */
    int max_micro;                 /* places for this rank's micro-batches of the largest step */
    /* Micro-batches of the first round, and of each later one but for the last (rounds.h). first_round 0: one
     * round. */
    int first_round, round_micro;
    bool train;      /* false: forward only (eval, generate), without gradients and state */
    bool clip;       /* updates wait for the global norm */
    bool fetch_used; /* slabs with parts, in all passes: see used_parts.h */
    bool keep_grads; /* test seam: see ot_engine_get_grad */
    /* 0: nothing passes through such a slot */
    int weight_slots[OT_SLOT_KINDS], grad_slots[OT_SLOT_KINDS], stage_slots[OT_SLOT_KINDS];
    int encoded_slots[OT_SLOT_KINDS];  /* for the bytes of encoded slabs that are not resident */
    int exchange_slots[OT_SLOT_KINDS]; /* for the gradients that other ranks send */
    int state_slots;                   /* for the stream engine; one tile each */
    int activation_slots;              /* device slots for boundary activations homed elsewhere */
    /* Slots on the host between nvme and the device. host_weight_slots: a slab's weights, by kind.
     * tile_slots: a tile's state, weights and gradients, before and after an update. host_grad_slots: a
     * tile's finished gradients on their way out, or a piece of a sum (slabs.h) on its way out or back.
     * host_activation_slots: boundary activations. */
    int host_weight_slots[OT_SLOT_KINDS], tile_slots, host_grad_slots, host_activation_slots;
    /* Versions of state and weights on nvme that checkpoints may pin at the same time (store.h). Each one
     * costs every extent another side. */
    int pinned_contents;
    /* Pinned bytes of the communicator, if it takes only host memory and the device has its own (comm.h). */
    size_t staging_bytes;
    int snapshot_slots; /* host slots that pass a checkpoint to the disk (snapshot.h); 0: none */
    struct ot_kept_blocks kept[OT_TIER_COUNT]; /* inner activations for backward, by tier (kept.h) */
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

/* A plan: where every slab lives, how many slots stage what passes through, and how a step is cut. It turns a
 * model and a machine into a schedule, and its ledger names every byte on every tier before anything is
 * allocated.
 *
 * HOMES. A slab's weights live on the device, or on the host and pass through a slot at each use, or on nvme
 * (store.h) and pass through a slot of the host and one of the device. Boundary activations likewise.
 *
 * TILES AND THEIR ENGINES. The optimizer's work is cut into tiles of tile_params parameters. The state of a
 * tile is (lo, m, v), in fp32 training (m, v); where it lives follows from the engine that updates the tile:
 *
 *   gpu      state on the device: updated there after backward, before the next forward can ask for it
 *   stream   state on the host or nvme, brought to the device and back through a slot: updated just before
 *            the slab's first use in the NEXT step, while the block before it computes. Until then the tile
 *            is one update behind; its gradients wait, on the device where there is room, else on the host
 *   cpu      state on the host or nvme: updated by the CPU pool, in the order in which the next forward needs
 *            the slabs
 *
 * A slab's tiles go to the engines in this order, so that a slab which several share has one contiguous part
 * for each. All give the same bits. Each brings the weights that it has updated to the slab's home before
 * anyone reads them. For its part of a slab whose home is the device the pool keeps a second copy on the
 * host; what it updates there goes home just before the slab's next use.
 *
 * SLOTS. What is not resident passes through slots: `layer` slots fit the largest layer slab, `edge` slots
 * the largest of the others (embedding, head). Gradients accumulate in fp32 slots of the same two kinds;
 * finished ones leave through staging slots in the gradient's storage dtype (bf16 training; fp32 leaves
 * straight from the accumulator). State slots hold one streamed tile each: its state, and its gradients where
 * those wait on the host. What lives on nvme passes through slots on the host: a slab's weights on their way
 * to the device; one tile's state and weights, read before its update and written after it; and boundaries.
 * A tile is read as soon as its slot is free, so these slots are filled during backward with what the updates
 * need first.
 *
 * The micro-batch size is part of what fixes the bits; everything else in a plan is not.
 */
#ifndef OT_OFFLOAD_PLAN_PLAN_H
#define OT_OFFLOAD_PLAN_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ot_chain;

enum ot_tier { OT_TIER_GPU, OT_TIER_HOST, OT_TIER_NVME, OT_TIER_COUNT };
const char *ot_tier_name(enum ot_tier tier); /* "gpu", "host", "nvme" */

enum ot_home {
    OT_HOME_AUTO = -1,
    OT_HOME_GPU = OT_TIER_GPU,
    OT_HOME_HOST = OT_TIER_HOST,
    OT_HOME_NVME = OT_TIER_NVME
};

enum ot_order { OT_ORDER_LAYER, OT_ORDER_MICRO }; /* layer-major, or micro-batch-major (for comparison) */
enum ot_slot_kind { OT_SLOT_LAYER, OT_SLOT_EDGE, OT_SLOT_KINDS };

enum {
    OT_PLAN_MAX_SLOTS = 8,
    OT_PLAN_MAX_STATE_SLOTS = 64,
    OT_PLAN_MAX_TILE_SLOTS = 4096,
    OT_PLAN_MAX_KEPT_CONTENTS = 14
};

enum ot_tile_engine { OT_TILE_GPU, OT_TILE_STREAM, OT_TILE_CPU, OT_TILE_ENGINES };
const char *ot_tile_engine_name(enum ot_tile_engine engine); /* "gpu", "stream", "cpu" */

struct ot_slab_plan {
    enum ot_home weights;
    int tiles[OT_TILE_ENGINES]; /* how many each engine updates; all 0 in a plan that does not train */
    enum ot_home state;         /* of the tiles that stream and cpu update: host or nvme */
    enum ot_home grads;         /* where the gradients of streamed tiles wait */
};

struct ot_ledger_entry {
    enum ot_tier tier;
    /* "weights", "optimizer state", ...; entries of one name are summed in the printed table */
    const char *name;
    size_t bytes;
};
enum { OT_LEDGER_MAX = 32 };
struct ot_ledger {
    int n;
    struct ot_ledger_entry entries[OT_LEDGER_MAX];
};
size_t ot_ledger_total(const struct ot_ledger *ledger, enum ot_tier tier);

/* Why no plan fits. ot_plan_make fills it in where it returns OT_E_BUDGET for want of memory; it is zero
 * elsewhere. */
struct ot_shortage {
    /* alone[T]: bytes of tier T that are enough while the other budgets stay. 0: more of T alone does not
     * help.
     */
    size_t alone[OT_TIER_COUNT];
    /* Where no tier alone is enough: bytes of all tiers that are enough together. */
    size_t together[OT_TIER_COUNT];
};

struct ot_plan {
    struct ot_slab_plan *slabs; /* [n_slabs], owned */
    int n_slabs;
    enum ot_home activations; /* home of the boundary activations */
    int64_t micro_tokens;     /* tokens of a full micro-batch */
    int max_micro;            /* micro-batches of the largest step */
    enum ot_order order;
    bool train;      /* false: forward alone (eval, generate): no gradients, no state */
    bool clip;       /* updates wait for the global norm */
    bool keep_grads; /* test seam: see ot_engine_get_grad */
    /* 0 where nothing passes */
    int weight_slots[OT_SLOT_KINDS], grad_slots[OT_SLOT_KINDS], stage_slots[OT_SLOT_KINDS];
    int state_slots;      /* of a tile each, for the stream engine */
    int activation_slots; /* device slots for boundary activations homed elsewhere */
    /* On the host, between nvme and the device: slots of a slab's weights by kind; of a tile's state and
     * weights on their way to and from an update; of boundary activations. */
    int host_weight_slots[OT_SLOT_KINDS], tile_slots, host_activation_slots;
    /* Contents of state and weights on nvme that may be pinned (store.h) at a time, for checkpoints: each
     * takes a side more. */
    int kept_contents;
    int snapshot_slots;  /* on the host, for checkpoints on their way to the disk (snapshot.h); 0: none */
    int kept_blocks;     /* the last k middle blocks keep their inner activations; the others recompute */
    int64_t tile_params; /* the optimizer's unit of work; a multiple of OT_SLAB_ALIGN_PARAMS */
    struct ot_ledger ledger;
    struct ot_shortage shortage; /* of a plan that could not be made */
};

/* How many of all tiles the engine updates. */
int64_t ot_plan_count_tiles(const struct ot_plan *plan, enum ot_tile_engine engine);
void ot_plan_free(struct ot_plan *plan);

#endif

/* Declarations that the files of this folder share. search.c looks for the best candidate, build.c makes a
 * plan from a candidate, check.c checks a plan, build.c words the error if no plan fits. Internal to
 * offload/. sections.c makes a plan for each number of sections.
 */
#ifndef OT_OFFLOAD_PLAN_BUILD_H
#define OT_OFFLOAD_PLAN_BUILD_H

#include "offload/plan/layout.h"
#include "offload/plan/plan_search.h"
#include "offload/plan/stages.h"

/* The choices that the search makes. They count slabs in this order: the trained ones, then the frozen ones,
 * each in the order in which forward needs them. A trained slab on the device also saves the transfers of its
 * gradients and state, and trained slabs are small beside a large frozen base. */
struct ot_candidate {
    int64_t micro_sequences;
    int sections; /* of a sequence, if a micro-batch is one (slabs.h); 0: it is whole */
    /* number of first slabs that live on the device: the next forward waits for their update first */
    int resident;
    int waiting; /* number of first slabs whose streamed tiles keep gradients on the device */
    int rounds;  /* rounds of a step; the request's, if set */
    /* With several rounds: number of first slabs that keep their gradient sums on the device between rounds.
     * With sums_stay, all resident slabs do. */
    int summing;
    bool sums_stay;
    /* The number of items that move from the host to nvme, in this order: the state of slabs (last slab
     * first, because its update leaves the most time to read ahead), then all boundaries as one item, then
     * the gradients of slabs with their sums (last slab first), then the weights of slabs (last slab first).
     * Weights are last, because a step moves most bytes for each byte of them: it reads them three times and
     * writes them once. */
    int spilled;
    int kept_blocks; /* middle blocks that keep activations on the device */
    int shadow_frames;
    int slots;
    int tile_slots, grad_slots;
    int cache_slots; /* for a cache whose home is not the device */
    enum ot_home activations;
};
/* The largest value of `spilled`. */
static inline int ot_candidate_most_spilled(const struct ot_chain *chain) {
    return 3 * chain->n_slabs + 1;
}

/* Checks the request's numbers. Errors: OT_E_USAGE. */
int ot_plan_check_request(const struct ot_plan_request *request);
/* Refuses a share that is too small for one tile of the plan, instead of rounding it to zero. */
int ot_plan_check_counts(const struct ot_plan_request *request, const struct ot_plan *plan);

/* The micro-batches of a rank in a step, with this number of sequences each. */
int ot_candidate_micro(const struct ot_plan_request *request, int64_t micro_sequences);

/* Sets all fields of the plan that the candidate decides, and the ledger. Errors: as ot_plan_finish. */
int ot_candidate_build(const struct ot_plan_request *request, const struct ot_candidate *candidate,
                       struct ot_plan *plan);
/* Sets the same fields, but not always the ledger. bytes: what the plan needs of each tier, without the bytes
 * that the caller reserves. Asks request->memo first. Errors: the same. */
int ot_candidate_measure(const struct ot_plan_request *request, const struct ot_candidate *candidate,
                         struct ot_plan *plan, size_t bytes[OT_TIER_COUNT]);

/* ot_plan_make for a request that says how many sections a sequence has, and what is the home of kept
 * activations if all blocks must keep them. */
int ot_plan_make_settled(const struct ot_plan_request *request, struct ot_plan *out);

/* Returns OT_E_BUDGET always. The sentence names each tier that is short, and how much it needs, has and
 * lacks. */
int ot_plan_refuse(const struct ot_plan_request *request, const struct ot_shortage *shortage);

/* True if the request says which share of the tiles each engine updates. */
bool ot_plan_has_fractions(const double fractions[OT_TILE_ENGINES]);
/* The fractions in whole tiles. Rounds the borders between engines, so that the counts add up to `total`. */
void ot_plan_count_fractions(const struct ot_plan_request *request, int64_t total,
                             int64_t counts[OT_TILE_ENGINES]);
int64_t ot_plan_all_tiles(const struct ot_chain *chain, const struct ot_plan *plan);

bool ot_plan_streams_state(const struct ot_plan *plan);
/* True if two blocks use a slab of the kind. */
bool ot_chain_is_tied(const struct ot_chain *chain, enum ot_slot_kind kind);
int ot_chain_most_micro(const struct ot_chain *chain);
/* The most key groups (slabs.h) of the sections of a step of max_micro micro-batches: their tasks have room
 * in a schedule. Less than 2: it has no room for any. */
int ot_chain_most_key_groups(const struct ot_chain *chain, int max_micro);

/* The kinds of slots that the slabs of this rank need: bit k is kind k. */
struct ot_slot_needs {
    unsigned plain;   /* weights stream through a weight slot without encoding */
    unsigned encoded; /* encoded weights stream through an encoded slot */
    unsigned decoded; /* encoded weights are decoded into a weight slot */
    unsigned host;    /* weights pass through a host slot */
    unsigned grads;   /* gradients accumulate in a gradient slot */
    unsigned moved;   /* gradients are finished elsewhere than in their sum */
};
struct ot_slot_needs ot_plan_slot_needs(const struct ot_chain *chain, const struct ot_plan *plan);

/* The most tiles in all: each tile is a task, and checking the order of n tasks takes n^2 / 2 bytes. The
 * tiles of a 70B model grow to 17 Mi parameters, still fifty in a layer. */
enum { OT_PLAN_MOST_TILES = OT_PLAN_MAX_TILE_SLOTS };
/* Parameters of a tile of all trained slabs in n tiles; of a tile where nothing is short. */
int64_t ot_plan_tile_of(const struct ot_chain *chain, int64_t n);
int64_t ot_plan_choose_tile(const struct ot_chain *chain);
/* True if only used parts of slabs are fetched. */
bool ot_plan_fetches_used(const struct ot_plan_request *rq);

#endif

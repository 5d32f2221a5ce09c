/* What the plan's files share. check.c says what a plan may be, plan/build.c makes one from a candidate,
 * plan/search.c finds the candidate, plan/refuse.c says what is short. Internal to offload/.
 */
#ifndef OT_OFFLOAD_PLAN_CANDIDATE_H
#define OT_OFFLOAD_PLAN_CANDIDATE_H

#include "offload/plan/layout.h"
#include "offload/plan/make.h"

/* Everything that the search varies. */
struct ot_candidate {
    int64_t micro_sequences;
    int resident; /* so many of the first slabs, whose update the next forward waits for first, live on the
                     device */
    int waiting;  /* the gradients of the streamed tiles of so many of the first slabs wait on the device */
    /* What the host has no room for goes to nvme, in this order: the state of slabs, the last first, whose
     * updates have the longest to be read ahead; boundaries; weights of slabs, the last first. */
    int spilled;
    int kept_blocks;
    int slots;
    int tile_slots;
    enum ot_home activations;
};
/* How far `spilled` goes. */
static inline int ot_candidate_most_spilled(const struct ot_chain *chain) {
    return 2 * chain->n_slabs + 1;
}

/* Sets all of plan's fields that the candidate decides, and the ledger. Errors: as ot_plan_finish. */
int ot_candidate_build(const struct ot_plan_request *request, const struct ot_candidate *candidate,
                       struct ot_plan *plan);

/* Always OT_E_BUDGET: a sentence with the tiers that are short, what they need, have and lack. */
int ot_plan_refuse(const struct ot_plan_request *request, const struct ot_shortage *shortage);

/* Whether the request says who updates what. */
bool ot_plan_has_shares(const double shares[OT_TILE_ENGINES]);
/* The shares in whole tiles: the borders between engines are rounded, so that the tiles add up. */
void ot_plan_count_shares(const struct ot_plan_request *request, int64_t total,
                          int64_t counts[OT_TILE_ENGINES]);
int64_t ot_plan_all_tiles(const struct ot_chain *chain, const struct ot_plan *plan);

bool ot_plan_streams_state(const struct ot_plan *plan);
bool ot_chain_is_tied(const struct ot_chain *chain);
int ot_chain_most_micro(const struct ot_chain *chain);

/* Whether some slab of the kind passes the test. */
bool ot_plan_any_slab(const struct ot_chain *chain, const struct ot_plan *plan, enum ot_slot_kind kind,
                      bool (*test)(const struct ot_chain *, const struct ot_plan *, int));
/* Tests: weights reach the device through a slot, and a slot of the host; gradients are summed in one. */
bool ot_plan_passes_weights(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
bool ot_plan_passes_host(const struct ot_chain *chain, const struct ot_plan *plan, int slab);
bool ot_plan_passes_grads(const struct ot_chain *chain, const struct ot_plan *plan, int slab);

#endif

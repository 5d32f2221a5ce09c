/* Making a plan (plan.h): from a model and what may be used of a machine (search.c), or from fields that a
 * caller has set (check.c). Any thread.
 */
#ifndef OT_OFFLOAD_PLAN_MAKE_H
#define OT_OFFLOAD_PLAN_MAKE_H

#include "offload/plan/plan.h"

struct ot_plan_request {
    const struct ot_chain *chain;
    size_t budget_bytes[OT_TIER_COUNT];
    int64_t sequence_tokens; /* one packed sequence */
    int64_t step_sequences;  /* sequences of a step */
    int64_t micro_sequences; /* sequences of a micro-batch; 0: chosen from the budget */
    bool train, clip;
    enum ot_home weights, state, activations; /* AUTO, or forced for all slabs */
    double shares[OT_TILE_ENGINES];           /* of the tiles, by engine; all 0: chosen */
    int64_t tile_params;                      /* of the optimizer's tiles; 0: chosen */
    int slots;                                /* weight slots of each kind, 1..OT_PLAN_MAX_SLOTS; 0: chosen */
    int recompute;                            /* -1: chosen, 0: keep everything, 1: recompute every block */
    int snapshot_slots;                       /* as the plan's */
    int kept_contents;                        /* as the plan's: 0..OT_PLAN_MAX_KEPT_CONTENTS */
    enum ot_order order;
    /* Reserved for the caller within the budgets: the key/value cache of generate; rows in memory. */
    int64_t extra_device_bytes, extra_host_bytes;
};

/* Chooses within the budgets: everything resident if a micro-batch of sound size allows it; else
 * micro-batches large enough, then activations on the device, then slots enough to overlap; as much
 * residency as that leaves room for, from slab 0 on, whose update the next forward waits for first; then
 * the waiting gradients of streamed tiles, then kept activations; streams what does not fit. State that
 * does not fit is the CPU pool's. What the host has no room for goes to nvme, where there is a budget for
 * it: state, then boundary activations, then weights, of the last slabs first. Shares are of the whole
 * chain's tiles: gpu takes the first ones, for the same reason, and stream and cpu take turns in the
 * others, so that both are at work on what is needed next. Deterministic. Errors: OT_E_BUDGET: the
 * sentence names the tiers that are short, and out->shortage what would be enough; the caller words the
 * cure. OT_E_USAGE: a request that cannot be. The caller frees the plan with ot_plan_free. */
int ot_plan_make(const struct ot_plan_request *request, struct ot_plan *out);
/* Whether the shares add up and go with the home of the state. Errors: OT_E_USAGE. */
int ot_plan_check_shares(const double shares[OT_TILE_ENGINES], enum ot_home state);
/* Recomputes the ledger from the other fields, after a test or a caller has set them by hand. Errors:
 * OT_E_USAGE when the fields contradict each other (a slab homed on the host without slots, ...). */
int ot_plan_finish(const struct ot_chain *chain, struct ot_plan *plan);

#endif

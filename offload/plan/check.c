/* What a plan may be: whether its fields go together, and the ledger that follows from them. */
#include "offload/plan/candidate.h"
#include "src/base/error.h"

/* Passes of a micro-batch through a block, forward: 7B with 480 micro-batches. Each is two to four tasks,
 * whose order then takes half a GB to 2 GB to check. */
enum { MOST_PASSES = 1 << 14 };

bool ot_plan_any_slab(const struct ot_chain *chain, const struct ot_plan *plan, enum ot_slot_kind kind,
                      bool (*test)(const struct ot_chain *, const struct ot_plan *, int)) {
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_slot_kind(chain, s) == kind && test(chain, plan, s))
            return true;
    return false;
}

bool ot_plan_passes_weights(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    (void)chain;
    return ot_slab_is_streamed(plan, slab);
}

bool ot_plan_passes_host(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    (void)chain;
    return ot_slab_weights_pass(plan, slab);
}

bool ot_plan_passes_grads(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return plan->train && !ot_slab_grad_in_place(chain, plan, slab);
}

bool ot_plan_streams_state(const struct ot_plan *plan) {
    return ot_plan_count_tiles(plan, OT_TILE_STREAM) > 0;
}

bool ot_chain_is_tied(const struct ot_chain *chain) {
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_uses(chain, s) > 1)
            return true;
    return false;
}

int ot_chain_most_micro(const struct ot_chain *chain) {
    return chain->n_blocks < MOST_PASSES ? MOST_PASSES / chain->n_blocks : 1;
}

static int check_slots(const char *what, const int slots[OT_SLOT_KINDS], const bool needed[OT_SLOT_KINDS],
                       int most) {
    static const char *const kinds[] = {"layer", "edge"};
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        if (needed[k] && slots[k] < 1)
            return ot_fail(OT_E_USAGE, "plan: %s pass through the device but there is no %s slot for them",
                           what, kinds[k]);
        if (slots[k] < 0 || slots[k] > most)
            return ot_fail(OT_E_USAGE, "plan: %d %s slots for %s; give 1 to %d", slots[k], kinds[k], what,
                           most);
    }
    return 0;
}

static int check_shape(const struct ot_chain *chain, const struct ot_plan *plan) {
    if (plan->n_slabs != chain->n_slabs)
        return ot_fail(OT_E_USAGE, "plan: made for %d slabs, the model has %d", plan->n_slabs,
                       chain->n_slabs);
    if (plan->micro_tokens < 1 || plan->max_micro < 1 || plan->tile_params < OT_SLAB_ALIGN_PARAMS ||
        plan->tile_params % OT_SLAB_ALIGN_PARAMS != 0)
        return ot_fail(OT_E_USAGE,
                       "plan: %lld tokens x %d micro-batches in tiles of %lld parameters is no plan",
                       (long long)plan->micro_tokens, plan->max_micro, (long long)plan->tile_params);
    if (plan->max_micro > ot_chain_most_micro(chain))
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_MICRO_BATCHES,
                             "a step of %d micro-batches is longer than a schedule of %d blocks can be (%d)",
                             plan->max_micro, chain->n_blocks, ot_chain_most_micro(chain));
    if (plan->train && chain->dtype == OT_F16 && !plan->clip)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_UNCLIPPED_FP16,
                             "training in fp16 skips steps as a whole where gradients overflow, so updates "
                             "wait for the norm: it needs clipping");
    return 0;
}

static int check_tiles(const struct ot_chain *chain, const struct ot_plan *plan) {
    for (int s = 0; s < plan->n_slabs; s++) {
        const int *tiles = plan->slabs[s].tiles;
        int there = plan->train ? ot_slab_tiles(chain, plan, s) : 0;
        if (plan->slabs[s].state == OT_HOME_GPU && tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU] > 0)
            return ot_fail(OT_E_USAGE,
                           "plan: state of slab '%s' that stream and cpu update lives on the host or on nvme",
                           chain->slabs[s].name);
        if (tiles[OT_TILE_GPU] < 0 || tiles[OT_TILE_STREAM] < 0 || tiles[OT_TILE_CPU] < 0 ||
            tiles[OT_TILE_GPU] + tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU] != there)
            return ot_fail(OT_E_USAGE, "plan: gpu %d, stream %d and cpu %d are not the %d tiles of slab '%s'",
                           tiles[OT_TILE_GPU], tiles[OT_TILE_STREAM], tiles[OT_TILE_CPU], there,
                           chain->slabs[s].name);
    }
    if (plan->state_slots < 0 || plan->state_slots > OT_PLAN_MAX_STATE_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d slots for streamed state; give 1 to %d", plan->state_slots,
                       OT_PLAN_MAX_STATE_SLOTS);
    if (ot_plan_streams_state(plan) && plan->state_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: state streams through the device but there is no slot for it");
    return 0;
}

/* What lives on nvme needs slots on the host to pass through. */
static int check_nvme(const struct ot_chain *chain, const struct ot_plan *plan) {
    bool weights[OT_SLOT_KINDS];
    for (int k = 0; k < OT_SLOT_KINDS; k++)
        weights[k] = ot_plan_any_slab(chain, plan, (enum ot_slot_kind)k, ot_plan_passes_host);
    OT_TRY(check_slots("weights on nvme", plan->host_weight_slots, weights, OT_PLAN_MAX_SLOTS));
    if (plan->tile_slots < 0 || plan->tile_slots > OT_PLAN_MAX_TILE_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d slots for tiles on nvme; give 1 to %d", plan->tile_slots,
                       OT_PLAN_MAX_TILE_SLOTS);
    if (plan->train && plan->tile_slots < 1 && ot_plan_passing_tiles(plan) > 0)
        return ot_fail(OT_E_USAGE, "plan: tiles on nvme pass through the host but there is no slot for them");
    if (plan->kept_contents < 0 || plan->kept_contents > OT_PLAN_MAX_KEPT_CONTENTS)
        return ot_fail(OT_E_USAGE, "plan: %d contents to be kept on nvme; give 0 to %d", plan->kept_contents,
                       OT_PLAN_MAX_KEPT_CONTENTS);
    if (plan->train && plan->activations == OT_HOME_NVME && plan->host_activation_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: activations live on nvme but no slot of the host passes them on");
    return 0;
}

int ot_plan_finish(const struct ot_chain *chain, struct ot_plan *plan) {
    struct ot_layout layout;
    bool weights[OT_SLOT_KINDS], grads[OT_SLOT_KINDS], stages[OT_SLOT_KINDS];
    OT_TRY(check_shape(chain, plan));
    OT_TRY(check_tiles(chain, plan));
    OT_TRY(check_nvme(chain, plan));
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        weights[k] = ot_plan_any_slab(chain, plan, (enum ot_slot_kind)k, ot_plan_passes_weights);
        grads[k] = ot_plan_any_slab(chain, plan, (enum ot_slot_kind)k, ot_plan_passes_grads);
        stages[k] = grads[k] && chain->dtype != OT_F32;
    }
    OT_TRY(check_slots("weights", plan->weight_slots, weights, OT_PLAN_MAX_SLOTS));
    OT_TRY(check_slots("gradients", plan->grad_slots, grads, chain->n_slabs + 1));
    OT_TRY(check_slots("gradients on their way out", plan->stage_slots, stages, OT_PLAN_MAX_SLOTS));
    if (plan->train && plan->activations != OT_HOME_GPU && plan->activation_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: activations live on the %s but no slot brings them back",
                       ot_tier_name((enum ot_tier)plan->activations));
    if (plan->kept_blocks < 0 || plan->kept_blocks > chain->n_blocks - 2)
        return ot_fail(OT_E_USAGE, "plan: cannot keep the activations of %d blocks of %d", plan->kept_blocks,
                       chain->n_blocks - 2);
    OT_TRY(ot_layout_make(chain, plan, &layout));
    ot_layout_ledger(&layout, &plan->ledger);
    ot_layout_free(&layout);
    return 0;
}

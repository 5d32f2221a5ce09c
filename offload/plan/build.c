/* From a candidate to a plan. */
#include <math.h>

#include "offload/plan/candidate.h"

/* Of the tiles that the stream engine and the pool share, so many of the first n are streamed: the two take
 * turns. */
static int64_t streamed_of_first(int64_t n, int64_t streamed, int64_t shared) {
    return shared ? (n * streamed + shared / 2) / shared : 0;
}

int64_t ot_plan_all_tiles(const struct ot_chain *chain, const struct ot_plan *plan) {
    int64_t total = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        total += ot_slab_tiles(chain, plan, s);
    return total;
}

/* The shares in whole tiles: the borders between engines are rounded, so that the tiles add up. */
void ot_plan_count_shares(const struct ot_plan_request *rq, int64_t total, int64_t counts[OT_TILE_ENGINES]) {
    int64_t gpu = llround((double)total * rq->shares[OT_TILE_GPU]);
    int64_t device = llround((double)total * (rq->shares[OT_TILE_GPU] + rq->shares[OT_TILE_STREAM]));
    counts[OT_TILE_GPU] = gpu;
    counts[OT_TILE_STREAM] = device - gpu;
    counts[OT_TILE_CPU] = total - device;
}

bool ot_plan_has_shares(const double shares[OT_TILE_ENGINES]) {
    return shares[OT_TILE_GPU] != 0 || shares[OT_TILE_STREAM] != 0 || shares[OT_TILE_CPU] != 0;
}

static void deal_shares(const struct ot_plan_request *rq, struct ot_plan *plan) {
    int64_t counts[OT_TILE_ENGINES], before = 0;
    ot_plan_count_shares(rq, ot_plan_all_tiles(rq->chain, plan), counts);
    int64_t gpu = counts[OT_TILE_GPU], streamed = counts[OT_TILE_STREAM];
    for (int s = 0; s < plan->n_slabs; s++) {
        int64_t end = before + ot_slab_tiles(rq->chain, plan, s);
        int64_t from = before > gpu ? before - gpu : 0, to = end > gpu ? end - gpu : 0;
        int64_t shared = streamed + counts[OT_TILE_CPU];
        int64_t streams = streamed_of_first(to, streamed, shared) - streamed_of_first(from, streamed, shared);
        int *tiles = plan->slabs[s].tiles;
        tiles[OT_TILE_GPU] = (int)(end - before - (to - from));
        tiles[OT_TILE_STREAM] = (int)streams;
        tiles[OT_TILE_CPU] = (int)(to - from - streams);
        before = end;
    }
}

static void deal_tiles(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    if (rq->train && ot_plan_has_shares(rq->shares)) {
        deal_shares(rq, plan);
        return;
    }
    for (int s = 0; rq->train && s < plan->n_slabs; s++) {
        bool gpu = rq->state != OT_HOME_AUTO ? rq->state == OT_HOME_GPU : s < c->resident;
        int n = ot_slab_tiles(rq->chain, plan, s);
        plan->slabs[s].tiles[OT_TILE_GPU] = gpu ? n : 0;
        plan->slabs[s].tiles[OT_TILE_CPU] = gpu ? 0 : n;
    }
}

/* Between two micro-batches of a block, a part of the next slab's streamed tiles is updated: slots enough for
 * that part while the next one is on its way. */
static int wanted_state_slots(const struct ot_plan *plan, int slots) {
    int64_t most = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        most = plan->slabs[s].tiles[OT_TILE_STREAM] > most ? plan->slabs[s].tiles[OT_TILE_STREAM] : most;
    int64_t parts = 2 * ((most + plan->max_micro - 1) / plan->max_micro);
    int64_t wanted = slots > 2 && parts > slots ? parts : slots;
    return most == 0 ? 0 : wanted < OT_PLAN_MAX_STATE_SLOTS ? (int)wanted : OT_PLAN_MAX_STATE_SLOTS;
}

static void set_slots(const struct ot_chain *chain, const struct ot_plan_request *rq,
                      const struct ot_candidate *c, struct ot_plan *plan) {
    bool micro_major = rq->order == OT_ORDER_MICRO;
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        bool edge = k == OT_SLOT_EDGE;
        int in_kind = 0;
        for (int s = 0; s < chain->n_slabs; s++)
            in_kind += ot_slab_slot_kind(chain, s) == (enum ot_slot_kind)k;
        bool grads = ot_plan_any_slab(chain, plan, (enum ot_slot_kind)k, ot_plan_passes_grads);
        int needed =
            edge ? 1 + ot_chain_is_tied(chain) : 1; /* a tied head works with two edge slabs at once */
        int wanted = edge && !rq->slots ? needed : c->slots;
        bool weights = ot_plan_any_slab(chain, plan, (enum ot_slot_kind)k, ot_plan_passes_weights);
        plan->weight_slots[k] = !weights ? 0 : wanted > needed ? wanted : needed;
        /* Layer-major keeps the gradients of two layers in flight, and of the edge slabs one; a tied slab's
         * two uses need one each. Micro-batch-major sums all of them through the whole step. */
        plan->grad_slots[k] = !grads         ? 0
                              : micro_major  ? in_kind + edge
                              : edge         ? 1 + ot_chain_is_tied(chain)
                              : c->slots > 1 ? 2
                                             : 1;
        plan->stage_slots[k] = !grads || chain->dtype == OT_F32 ? 0 : edge || c->slots == 1 ? 1 : 2;
    }
    plan->state_slots = wanted_state_slots(plan, c->slots);
}

/* Of n slots that are wanted, as many as there is something for: one more than pass at a time on the device,
 * so that a read is under way while the slab before it is copied. */
static void set_nvme_slots(const struct ot_chain *chain, const struct ot_candidate *c, struct ot_plan *plan) {
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        bool passes = ot_plan_any_slab(chain, plan, (enum ot_slot_kind)k, ot_plan_passes_host);
        int wanted = k == OT_SLOT_EDGE || c->slots == 1 ? 1 : c->slots + 1;
        plan->host_weight_slots[k] = !passes ? 0 : wanted > OT_PLAN_MAX_SLOTS ? OT_PLAN_MAX_SLOTS : wanted;
    }
    int64_t tiles = ot_plan_passing_tiles(plan);
    plan->tile_slots = !plan->train ? 0 : tiles < c->tile_slots ? (int)tiles : c->tile_slots;
    plan->host_activation_slots =
        plan->activation_slots > 0 && plan->activations == OT_HOME_NVME ? plan->activation_slots + 2 : 0;
}

/* The homes of a slab where nothing forces them. */
static void set_homes(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    int n = rq->chain->n_slabs;
    bool may_spill = rq->budget_bytes[OT_TIER_NVME] > 0;
    for (int s = 0; s < n; s++) {
        struct ot_slab_plan *slab = &plan->slabs[s];
        bool state = may_spill && s >= n - c->spilled, weights = may_spill && s >= n - (c->spilled - n - 1);
        enum ot_home home = s < c->resident ? OT_HOME_GPU : weights ? OT_HOME_NVME : OT_HOME_HOST;
        slab->weights = rq->weights != OT_HOME_AUTO ? rq->weights : home;
        slab->grads = s < c->waiting ? OT_HOME_GPU : OT_HOME_HOST;
        slab->state =
            rq->state == OT_HOME_NVME || (rq->state == OT_HOME_AUTO && state) ? OT_HOME_NVME : OT_HOME_HOST;
    }
    enum ot_home activations =
        c->activations == OT_HOME_HOST && may_spill && c->spilled > n ? OT_HOME_NVME : c->activations;
    plan->activations = rq->activations != OT_HOME_AUTO ? rq->activations : activations;
}

int ot_candidate_build(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    const struct ot_chain *chain = rq->chain;
    set_homes(rq, c, plan);
    deal_tiles(rq, c, plan);
    plan->micro_tokens = c->micro_sequences * rq->sequence_tokens;
    plan->max_micro = (int)((rq->step_sequences + c->micro_sequences - 1) / c->micro_sequences);
    plan->kept_blocks = c->kept_blocks;
    plan->activation_slots = rq->train && plan->activations != OT_HOME_GPU ? c->slots : 0;
    set_slots(chain, rq, c, plan);
    set_nvme_slots(chain, c, plan);
    return ot_plan_finish(chain, plan);
}

/* Tries one plan: makes it, compares it with earlier plans, and simulates it if it may be faster. */
#include <math.h>
#include <string.h>

#include "offload/plan/kept.h"
#include "offload/plan/rounds.h"
#include "offload/plan/used_parts.h"
#include "offload/predict/bound.h"
#include "offload/predict/planner_state.h"

/* ---- plans that were tried before ---- */

static uint64_t mix(uint64_t hash, int64_t value) {
    return (hash ^ (uint64_t)value) * 0x100000001b3; /* FNV-1a, a word at a time */
}

/* A hash of the plan's fields that the search varies. Requests that force different fields often make the
 * same plan. */
static uint64_t print_plan(const struct ot_plan *p) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int s = 0; s < p->n_slabs; s++) {
        const struct ot_slab_plan *slab = &p->slabs[s];
        hash = mix(mix(mix(mix(hash, slab->weights), slab->state), slab->grads), slab->sums);
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            hash = mix(hash, slab->tiles[e]);
    }
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        hash = mix(mix(hash, p->weight_slots[k]), p->host_weight_slots[k]);
        hash = mix(mix(mix(hash, p->grad_slots[k]), p->stage_slots[k]), p->encoded_slots[k]);
    }
    hash = mix(mix(mix(hash, p->state_slots), p->tile_slots), p->host_activation_slots);
    hash = mix(mix(hash, p->host_grad_slots), p->fetch_used);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        hash = mix(mix(hash, p->kept[t].level), p->kept[t].blocks);
    hash = mix(mix(mix(hash, p->activations), p->activation_slots), p->kept_slots);
    hash = mix(mix(mix(hash, p->first_round), p->round_micro), p->shadow_frames);
    return mix(mix(hash, p->micro_tokens), p->tile_params);
}

static int64_t bits_of(double value) {
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A hash of the request's fields that the search varies. */
static uint64_t print_request(const struct ot_plan_request *rq) {
    uint64_t hash = 0xcbf29ce484222325;
    hash = mix(mix(mix(mix(hash, rq->weights), rq->state), rq->grads), rq->sums);
    hash = mix(mix(mix(mix(hash, rq->activations), rq->keep), rq->kept), rq->kept_level);
    hash = mix(mix(mix(hash, bits_of(rq->kept_off)), bits_of(rq->kept_on)), bits_of(rq->streamed));
    hash = mix(mix(mix(hash, bits_of(rq->shadows)), rq->fetch), rq->rounds);
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        hash = mix(hash, bits_of(rq->fractions[e]));
    return mix(mix(mix(hash, rq->micro_sequences), rq->tile_params), rq->slots);
}

/* Notes the hash. Returns true if it was noted before. */
static bool was_noted(uint64_t prints[OT_PLANNER_MOST_SEEN], int *n, uint64_t print) {
    for (int i = 0; i < *n; i++)
        if (prints[i] == print)
            return true;
    if (*n < OT_PLANNER_MOST_SEEN)
        prints[(*n)++] = print;
    return false;
}

bool ot_planner_was_seen(struct ot_planner_seen *seen, const struct ot_plan *plan) {
    return was_noted(seen->plans, &seen->n, print_plan(plan));
}

/* ---- one plan ---- */

/* Each block runs each micro-batch forward and backward, with copies of its boundary if activations leave the
 * device or kept ones do, and each round fetches its weights. Each tile has an update; a copy in and a copy
 * out if it may be streamed; and a read and a write if its state is on nvme. Its gradients on nvme have a
 * copy, a write and a read. */
double ot_planner_tasks(const struct ot_plan *plan, int n_blocks) {
    double tasks = 2.0 * n_blocks * (plan->max_micro * (1 + plan->activations) + 2 * ot_plan_rounds(plan));
    if (ot_plan_spills_kept(plan))
        tasks += 2.0 * n_blocks * plan->max_micro;
    for (int s = 0; s < plan->n_slabs; s++) {
        const struct ot_slab_plan *slab = &plan->slabs[s];
        int elsewhere = slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU];
        tasks += slab->tiles[OT_TILE_GPU] + elsewhere * (slab->state == OT_HOME_NVME ? 5 : 3);
        tasks += slab->grads == OT_HOME_NVME ? 3 * elsewhere : 0;
    }
    return tasks + 1;
}

int ot_planner_make(struct ot_search *s, const struct ot_plan_request *request, double limit,
                    struct ot_planner_result *out) {
    const struct ot_chain *chain = request->chain;
    int rc = 0;
    *out = (struct ot_planner_result){.forced = *request};
    s->effort -= MAKING_TASKS * chain->n_slabs;
    struct ot_plan_request trial = *request;
    trial.is_trial = true;
    if (s->effort < 0 || was_noted(s->seen->requests, &s->seen->n_requests, print_request(&trial)))
        return 0;
    if (ot_plan_make(&trial, &out->plan) < 0)
        return 0; /* the forced plan does not fit: it is no candidate */
    /* ot_plan_make chooses some fields by the free memory. Forces those fields, so that a move of one field
     * changes that field alone. */
    out->forced.micro_sequences = out->plan.micro_tokens / request->sequence_tokens;
    out->forced.activations = out->plan.activations;
    bool new = !ot_planner_was_seen(s->seen, &out->plan);
    if (new &&ot_plan_least_seconds(chain, &out->plan, s->costs) < limit) {
        s->effort -= ot_planner_tasks(&out->plan, chain->n_blocks);
        rc = ot_simulate_faster(chain, &out->plan, s->costs, limit, &out->prediction);
    }
    if (rc <= 0)
        ot_plan_free(&out->plan);
    return rc;
}

/* The time that a plan must beat. If the user wants used parts, a plan that takes them beats all others. */
static bool takes_wanted_parts(const struct ot_search *s, const struct ot_plan *plan) {
    return s->given->fetch != OT_FETCH_USED_PARTS ||
           ot_plan_whole_cause(s->given->chain, plan) == OT_WHOLE_NOT;
}

int ot_planner_try(struct ot_search *s, const struct ot_plan_request *request, double gain) {
    struct ot_planner_result *best = s->out, made;
    bool wanted = takes_wanted_parts(s, &best->plan);
    double limit = wanted ? best->prediction.step_seconds * (1 - gain) : INFINITY;
    int rc = ot_planner_make(s, request, limit, &made);
    if (rc <= 0)
        return rc;
    bool now = takes_wanted_parts(s, &made.plan);
    bool better =
        now == wanted ? made.prediction.step_seconds < best->prediction.step_seconds * (1 - gain) : now;
    if (better) {
        struct ot_planner_result before = *best;
        *best = made;
        made = before;
    }
    ot_plan_free(&made.plan);
    return better;
}

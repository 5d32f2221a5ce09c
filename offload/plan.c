#include "offload/plan.h"

#include <stdlib.h>
#include <string.h>

#include "offload/layout.h"
#include "src/base/error.h"

/* A micro-batch of this many tokens keeps the matrix units of every device that we know busy; more only costs
 * memory. */
enum { MICRO_TOKENS_ENOUGH = 4096 };
/* The CPU pool's unit: 2 Mi parameters, 52 MB of traffic: a few milliseconds, far above the cost of a
 * hand-over. */
enum { TILE_PARAMS = 2 << 20 };

const char *ot_tier_name(enum ot_tier tier) {
    static const char *const names[] = {"gpu", "host"};
    return names[tier];
}

size_t ot_ledger_total(const struct ot_ledger *ledger, enum ot_tier tier) {
    size_t total = 0;
    for (int i = 0; i < ledger->n; i++)
        if (ledger->entries[i].tier == tier)
            total += ledger->entries[i].bytes;
    return total;
}

void ot_plan_free(struct ot_plan *plan) {
    free(plan->slabs);
    memset(plan, 0, sizeof *plan);
}

static bool any_slab(const struct ot_chain *chain, const struct ot_plan *plan, enum ot_slot_kind kind,
                     bool (*test)(const struct ot_chain *, const struct ot_plan *, int)) {
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_slot_kind(chain, s) == kind && test(chain, plan, s))
            return true;
    return false;
}

static bool passes_weights(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    (void)chain;
    return ot_slab_is_streamed(plan, slab);
}

static bool passes_grads(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return plan->train && !ot_slab_grad_in_place(chain, plan, slab);
}

static bool is_tied(const struct ot_chain *chain) {
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_uses(chain, s) > 1)
            return true;
    return false;
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

int ot_plan_finish(const struct ot_chain *chain, struct ot_plan *plan) {
    struct ot_layout layout;
    bool weights[OT_SLOT_KINDS], grads[OT_SLOT_KINDS], stages[OT_SLOT_KINDS];
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        weights[k] = any_slab(chain, plan, (enum ot_slot_kind)k, passes_weights);
        grads[k] = any_slab(chain, plan, (enum ot_slot_kind)k, passes_grads);
        stages[k] = grads[k] && chain->dtype != OT_F32;
    }
    if (plan->n_slabs != chain->n_slabs)
        return ot_fail(OT_E_USAGE, "plan: made for %d slabs, the model has %d", plan->n_slabs,
                       chain->n_slabs);
    if (plan->micro_tokens < 1 || plan->max_micro < 1 || plan->tile_params < OT_SLAB_ALIGN_PARAMS ||
        plan->tile_params % OT_SLAB_ALIGN_PARAMS != 0)
        return ot_fail(OT_E_USAGE,
                       "plan: %lld tokens x %d micro-batches in tiles of %lld parameters is no plan",
                       (long long)plan->micro_tokens, plan->max_micro, (long long)plan->tile_params);
    OT_TRY(check_slots("weights", plan->weight_slots, weights, OT_PLAN_MAX_SLOTS));
    OT_TRY(check_slots("gradients", plan->grad_slots, grads, chain->n_slabs + 1));
    OT_TRY(check_slots("gradients on their way out", plan->stage_slots, stages, OT_PLAN_MAX_SLOTS));
    if (plan->train && plan->activations == OT_HOME_HOST && plan->activation_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: activations live on the host but no slot brings them back");
    if (plan->kept_blocks < 0 || plan->kept_blocks > chain->n_blocks - 2)
        return ot_fail(OT_E_USAGE, "plan: cannot keep the activations of %d blocks of %d", plan->kept_blocks,
                       chain->n_blocks - 2);
    OT_TRY(ot_layout_make(chain, plan, &layout));
    ot_layout_ledger(&layout, &plan->ledger);
    ot_layout_free(&layout);
    return 0;
}

/* ---- choosing
 * ---------------------------------------------------------------------------------------------------- */

/* One candidate: everything that the search varies. */
struct candidate {
    int64_t micro_sequences;
    int resident; /* the first slabs, whose update the next forward waits for first, live on the device whole
                   */
    int kept_blocks;
    int slots;
    enum ot_home activations;
};

static void set_slots(const struct ot_chain *chain, const struct ot_plan_request *rq,
                      const struct candidate *c, struct ot_plan *plan) {
    bool micro_major = rq->order == OT_ORDER_MICRO;
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        bool edge = k == OT_SLOT_EDGE;
        int in_kind = 0;
        for (int s = 0; s < chain->n_slabs; s++)
            in_kind += ot_slab_slot_kind(chain, s) == (enum ot_slot_kind)k;
        bool grads = any_slab(chain, plan, (enum ot_slot_kind)k, passes_grads);
        int needed = edge ? 1 + is_tied(chain) : 1; /* a tied head works with two edge slabs at once */
        int wanted = rq->slots ? rq->slots : edge ? needed : c->slots;
        bool weights = any_slab(chain, plan, (enum ot_slot_kind)k, passes_weights);
        plan->weight_slots[k] = !weights ? 0 : wanted > needed ? wanted : needed;
        /* Layer-major keeps the gradients of two layers in flight, and of the edge slabs one; a tied slab's
         * two uses need one each. Micro-batch-major sums all of them through the whole step. */
        plan->grad_slots[k] = !grads         ? 0
                              : micro_major  ? in_kind + edge
                              : edge         ? 1 + is_tied(chain)
                              : c->slots > 1 ? 2
                                             : 1;
        plan->stage_slots[k] = !grads || chain->dtype == OT_F32 ? 0 : edge || c->slots == 1 ? 1 : 2;
    }
}

static int build(const struct ot_plan_request *rq, const struct candidate *c, struct ot_plan *plan) {
    const struct ot_chain *chain = rq->chain;
    for (int s = 0; s < chain->n_slabs; s++) {
        enum ot_home home = s < c->resident ? OT_HOME_GPU : OT_HOME_HOST;
        plan->slabs[s].weights = rq->weights != OT_HOME_AUTO ? rq->weights : home;
        plan->slabs[s].state = !rq->train ? OT_HOME_HOST : rq->state != OT_HOME_AUTO ? rq->state : home;
    }
    plan->activations = rq->activations != OT_HOME_AUTO ? rq->activations : c->activations;
    plan->micro_tokens = c->micro_sequences * rq->sequence_tokens;
    plan->max_micro = (int)((rq->step_sequences + c->micro_sequences - 1) / c->micro_sequences);
    plan->kept_blocks = c->kept_blocks;
    plan->activation_slots =
        rq->train && plan->activations == OT_HOME_HOST ? (rq->slots ? rq->slots : c->slots) : 0;
    set_slots(chain, rq, c, plan);
    return ot_plan_finish(chain, plan);
}

static size_t gpu_need(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    return ot_ledger_total(&plan->ledger, OT_TIER_GPU) + (size_t)rq->extra_device_bytes;
}

/* 1: fits, 0: does not, < 0: no plan at all. */
static int fits(const struct ot_plan_request *rq, const struct candidate *c, struct ot_plan *plan) {
    OT_TRY(build(rq, c, plan));
    return gpu_need(rq, plan) <= rq->budget_bytes[OT_TIER_GPU] &&
           ot_ledger_total(&plan->ledger, OT_TIER_HOST) <= rq->budget_bytes[OT_TIER_HOST];
}

/* The largest value of *field in [low, high] that fits, given that `low` does; more of it never needs less
 * memory on the device. What it frees on the host can only help, so a failure on the host alone also ends the
 * search. */
static int grow(const struct ot_plan_request *rq, struct candidate *c, int *field, int low, int high,
                struct ot_plan *plan) {
    while (low < high) {
        int middle = low + (high - low + 1) / 2, rc;
        *field = middle;
        OT_TRY_GOTO(fits(rq, c, plan), rc, failed);
        if (rc)
            low = middle;
        else
            high = middle - 1;
        continue;
    failed:
        return rc;
    }
    *field = low;
    return 0;
}

static int describe_shortage(const struct ot_plan_request *rq, const struct candidate *smallest,
                             struct ot_plan *plan) {
    double mib = 1024.0 * 1024.0;
    OT_TRY(build(rq, smallest, plan));
    size_t need = gpu_need(rq, plan), have = rq->budget_bytes[OT_TIER_GPU];
    if (need > have)
        return ot_fail(OT_E_BUDGET,
                       "gpu memory: the smallest plan for %lld-token sequences needs %.1f MiB, the budget is "
                       "%.1f MiB, short by "
                       "%.1f MiB: give --gpu-mem %.0fM, lower --seq-len, or leave --home, --slots and "
                       "--micro-batch to the program",
                       (long long)rq->sequence_tokens, (double)need / mib, (double)have / mib,
                       (double)(need - have) / mib, (double)need / mib + 1);
    need = ot_ledger_total(&plan->ledger, OT_TIER_HOST), have = rq->budget_bytes[OT_TIER_HOST];
    return ot_fail(OT_E_BUDGET,
                   "host memory: what the gpu budget leaves to the host needs %.1f MiB, the budget is %.1f "
                   "MiB, short by %.1f "
                   "MiB: give --host-mem %.0fM, or a larger --gpu-mem so that more lives there",
                   (double)need / mib, (double)have / mib, (double)(need - have) / mib,
                   (double)need / mib + 1);
}

/* The first candidate that fits, with as little as possible resident, going down in speed: large
 * micro-batches before small ones, activations on the device before the host, three slots before one. */
static int find_base(const struct ot_plan_request *rq, struct candidate *c, struct ot_plan *plan) {
    int64_t enough = MICRO_TOKENS_ENOUGH / rq->sequence_tokens;
    enough = enough < 1 ? 1 : enough > rq->step_sequences ? rq->step_sequences : enough;
    int most_slots = rq->slots ? rq->slots : 3;
    /* All resident needs the least on the host, all streamed the least on the device: one of the two is the
     * base. */
    int64_t forced = rq->micro_sequences < rq->step_sequences ? rq->micro_sequences : rq->step_sequences;
    for (int64_t micro = forced ? forced : enough;; micro /= 2) {
        for (int home = OT_HOME_GPU; home <= OT_HOME_HOST; home++)
            for (int slots = most_slots; slots >= 1; slots--)
                for (int all = 0; all < 2; all++) {
                    *c =
                        (struct candidate){micro, all ? rq->chain->n_slabs : 0, 0, slots, (enum ot_home)home};
                    int rc = fits(rq, c, plan);
                    if (rc != 0)
                        return rc < 0 ? rc : 0;
                    if (rq->slots)
                        slots = 1; /* forced: no other count to try */
                }
        if (rq->micro_sequences || micro == 1)
            break;
    }
    c->resident = 0;
    return describe_shortage(rq, c, plan);
}

static int check_request(const struct ot_plan_request *rq) {
    if (rq->sequence_tokens < 1 || rq->step_sequences < 1 || rq->micro_sequences < 0)
        return ot_fail(OT_E_USAGE, "a step of %lld sequences of %lld tokens is no step",
                       (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (rq->step_sequences > INT32_MAX / rq->sequence_tokens)
        return ot_fail(
            OT_E_USAGE,
            "%lld sequences of %lld tokens are more than 2^31 tokens a step: lower --tokens-per-step",
            (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (rq->slots < 0 || rq->slots > OT_PLAN_MAX_SLOTS)
        return ot_fail(OT_E_USAGE, "--slots %d: give 1 to %d", rq->slots, OT_PLAN_MAX_SLOTS);
    return 0;
}

int ot_plan_make(const struct ot_plan_request *rq, struct ot_plan *out) {
    struct candidate c;
    int rc, middle_blocks = rq->chain->n_blocks - 2;
    memset(out, 0, sizeof *out);
    OT_TRY(check_request(rq));
    out->slabs = calloc((size_t)rq->chain->n_slabs, sizeof *out->slabs);
    if (!out->slabs)
        return ot_fail(OT_E_BUDGET, "out of memory for the plan");
    out->n_slabs = rq->chain->n_slabs;
    out->order = rq->order;
    out->train = rq->train;
    out->clip = rq->clip;
    out->tile_params = TILE_PARAMS;
    OT_TRY_GOTO(find_base(rq, &c, out), rc, out_failed);
    if (c.resident < rq->chain->n_slabs)
        OT_TRY_GOTO(grow(rq, &c, &c.resident, c.resident, rq->chain->n_slabs, out), rc, out_failed);
    if (rq->train && rq->recompute == 0) {
        c.kept_blocks = middle_blocks;
        OT_TRY_GOTO(fits(rq, &c, out), rc, out_failed);
        if (rc == 0) {
            rc = describe_shortage(rq, &c, out);
            ot_fail_context(rc, "--recompute none");
            goto out_failed;
        }
    } else if (rq->train && rq->recompute < 0) {
        OT_TRY_GOTO(grow(rq, &c, &c.kept_blocks, 0, middle_blocks, out), rc, out_failed);
    }
    OT_TRY_GOTO(build(rq, &c, out), rc, out_failed);
    return 0;
out_failed:
    ot_plan_free(out);
    return rc;
}

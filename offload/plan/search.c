#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/candidate.h"
#include "src/base/error.h"

/* A micro-batch of this many tokens keeps the matrix units of every device that we know busy; more only costs
 * memory. */
enum { MICRO_TOKENS_ENOUGH = 4096 };
/* Of this many it is within a few percent of that: it is not cut further to make room for residency. */
enum { MICRO_TOKENS_SOUND = 1024 };
/* The CPU pool's unit: 2 Mi parameters, 52 MB of traffic: a few milliseconds, far above the cost of a
 * hand-over. */
enum { TILE_PARAMS = 2 << 20 };
/* And no more tiles than this in all: each is a task, and the order of n tasks takes n^2 / 2 bytes to check.
 * A 70B model's tiles grow to 17 Mi parameters, still fifty to a layer. */
enum { MOST_TILES = OT_PLAN_MAX_TILE_SLOTS };
/* Slots for tiles on nvme that keep reads, updates and writes at work side by side; and where memory is
 * short. */
enum { TILE_SLOTS = 8, FEW_TILE_SLOTS = 2 };

/* What a plan takes of each tier, with what the caller reserves. */
struct need {
    size_t bytes[OT_TIER_COUNT];
};

static int measure(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan,
                   struct need *out) {
    OT_TRY(ot_candidate_build(rq, c, plan));
    out->bytes[OT_TIER_GPU] = ot_ledger_total(&plan->ledger, OT_TIER_GPU) + (size_t)rq->extra_device_bytes;
    out->bytes[OT_TIER_HOST] = ot_ledger_total(&plan->ledger, OT_TIER_HOST) + (size_t)rq->extra_host_bytes;
    out->bytes[OT_TIER_NVME] = ot_ledger_total(&plan->ledger, OT_TIER_NVME);
    return 0;
}

/* nvme takes what the host has no room for: it has room when both do. */
static bool has_room(const struct ot_plan_request *rq, const struct need *need, enum ot_tier tier) {
    bool nvme = tier == OT_TIER_GPU || need->bytes[OT_TIER_NVME] <= rq->budget_bytes[OT_TIER_NVME];
    return nvme && need->bytes[tier] <= rq->budget_bytes[tier];
}

/* The least of [low, high], whose last fits, that the host has room for; more on nvme never takes more of the
 * host there. */
static int least_spilled(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                         int low, int high) {
    while (low < high) {
        struct need need;
        c->spilled = low + (high - low) / 2;
        OT_TRY(measure(rq, c, plan, &need));
        if (need.bytes[OT_TIER_HOST] <= rq->budget_bytes[OT_TIER_HOST])
            high = c->spilled;
        else
            low = c->spilled + 1;
    }
    c->spilled = low;
    return 0;
}

/* Measures the candidate with as little on nvme as the host's room asks for; where even the most does not
 * help, with what leaves the host the least to hold. Each kind that goes there brings slots with its first
 * slab, so the kinds are looked at one after the other. */
static int measure_spilled(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                           struct need *out) {
    int n = rq->chain->n_slabs, best = 0;
    const int last[] = {0, n, n + 1, ot_candidate_most_spilled(rq->chain)};
    size_t least = SIZE_MAX;
    for (int kind = 0; kind < 4; kind++) {
        c->spilled = last[kind];
        OT_TRY(measure(rq, c, plan, out));
        if (rq->budget_bytes[OT_TIER_NVME] == 0)
            return 0;
        if (out->bytes[OT_TIER_HOST] <= rq->budget_bytes[OT_TIER_HOST]) {
            if (kind == 0)
                return 0;
            OT_TRY(least_spilled(rq, c, plan, last[kind - 1] + 1, last[kind]));
            return measure(rq, c, plan, out);
        }
        if (out->bytes[OT_TIER_HOST] < least) {
            least = out->bytes[OT_TIER_HOST];
            best = last[kind];
        }
    }
    c->spilled = best;
    return measure(rq, c, plan, out);
}

/* The smallest plans that were seen. least[T]: the least of tier T among those that the other tiers have room
 * for. smallest: the plan that needs the least of the device. SIZE_MAX: none was seen. */
struct seen {
    size_t least[OT_TIER_COUNT];
    struct need smallest;
};

/* Measures the candidate with as much on nvme as there is room for. */
static int measure_full(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                        struct need *out) {
    int low = 0, high = c->spilled;
    while (low < high) {
        c->spilled = low + (high - low + 1) / 2;
        OT_TRY(measure(rq, c, plan, out));
        if (out->bytes[OT_TIER_NVME] <= rq->budget_bytes[OT_TIER_NVME])
            low = c->spilled;
        else
            high = c->spilled - 1;
    }
    c->spilled = low;
    return measure(rq, c, plan, out);
}

static void note_least(struct seen *seen, enum ot_tier tier, const struct need *need) {
    if (need->bytes[tier] < seen->least[tier])
        seen->least[tier] = need->bytes[tier];
}

static int note_smallest(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                         struct seen *seen) {
    struct need need;
    OT_TRY(measure_spilled(rq, c, plan, &need));
    bool gpu = has_room(rq, &need, OT_TIER_GPU);
    if (gpu && need.bytes[OT_TIER_HOST] <= rq->budget_bytes[OT_TIER_HOST])
        note_least(seen, OT_TIER_NVME, &need);
    if (has_room(rq, &need, OT_TIER_HOST))
        note_least(seen, OT_TIER_GPU, &need);
    if (gpu && need.bytes[OT_TIER_NVME] > rq->budget_bytes[OT_TIER_NVME])
        OT_TRY(measure_full(rq, c, plan, &need));
    if (gpu && need.bytes[OT_TIER_NVME] <= rq->budget_bytes[OT_TIER_NVME])
        note_least(seen, OT_TIER_HOST, &need);
    if (need.bytes[OT_TIER_GPU] < seen->smallest.bytes[OT_TIER_GPU])
        seen->smallest = need;
    return 0;
}

static int refuse(const struct ot_plan_request *rq, const struct seen *seen, struct ot_plan *plan) {
    struct ot_shortage *shortage = &plan->shortage;
    bool any = false;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (seen->least[t] != SIZE_MAX) {
            shortage->alone[t] = seen->least[t];
            any = true;
        }
    if (!any)
        memcpy(shortage->together, seen->smallest.bytes, sizeof shortage->together);
    return ot_plan_refuse(rq, shortage);
}

/* More resident slabs need more of the device and less of the host, but where the last slab of a kind becomes
 * resident, slots go. The counts from the returned one up to `resident` have the same slots. */
static int stretch_start(const struct ot_chain *chain, int resident) {
    int all[OT_SLOT_KINDS] = {0}, start = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        all[ot_slab_slot_kind(chain, s)] = s + 1;
    for (int k = 0; k < OT_SLOT_KINDS; k++)
        start = all[k] <= resident && all[k] > start ? all[k] : start;
    return start;
}

/* The number of counts in [low, high] of resident slabs that the tier has room for: for the device the first
 * ones, for the host the last. */
static int count_fitting(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                         enum ot_tier tier, int low, int high) {
    int fitting = 0, unknown = high - low + 1;
    while (unknown > 0) {
        int tried = (unknown + 1) / 2;
        struct need need;
        c->resident = tier == OT_TIER_GPU ? low + fitting + tried - 1 : high - fitting - tried + 1;
        OT_TRY(measure_spilled(rq, c, plan, &need));
        bool fits = has_room(rq, &need, tier);
        fitting += fits ? tried : 0;
        unknown = fits ? unknown - tried : tried - 1;
    }
    return fitting;
}

/* Sets c->resident to the most of [low, high] that all tiers have room for. Nearly always that is `high`:
 * only the slots that come with the first slab on nvme break the rule that more on the device is less on the
 * host. 1: found, 0: none, < 0: no plan at all. */
static int largest_fitting(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                           int low, int high) {
    for (c->resident = high; c->resident >= low; c->resident--) {
        struct need need;
        OT_TRY(measure_spilled(rq, c, plan, &need));
        if (has_room(rq, &need, OT_TIER_GPU) && has_room(rq, &need, OT_TIER_HOST))
            return 1;
    }
    return 0;
}

/* Sets c->resident to the most slabs that may live on the device. 1: found, 0: nothing fits, < 0: no plan at
 * all. */
static int find_resident(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                         struct seen *seen) {
    for (int low, high = rq->chain->n_slabs; high >= 0; high = low - 1) {
        int gpu, host;
        low = stretch_start(rq->chain, high);
        OT_TRY(gpu = count_fitting(rq, c, plan, OT_TIER_GPU, low, high));
        OT_TRY(host = count_fitting(rq, c, plan, OT_TIER_HOST, low, high));
        if (gpu + host > high - low + 1) {
            int rc = largest_fitting(rq, c, plan, low, low + gpu - 1);
            if (rc != 0)
                return rc;
        }
        /* The least of the device at all, of the host beside this device, and of the device beside this
         * host. */
        int least[3] = {low, gpu > 0 ? low + gpu - 1 : low, host > 0 ? high - host + 1 : low};
        for (int i = 0; i < 3; i++) {
            c->resident = least[i];
            OT_TRY(note_smallest(rq, c, plan, seen));
        }
    }
    return 0;
}

/* Forced homes and shares may let nothing be. */
static bool is_all_resident(const struct ot_plan *plan) {
    bool resident = plan->activations == OT_HOME_GPU && !ot_plan_streams_state(plan) &&
                    ot_plan_count_tiles(plan, OT_TILE_CPU) == 0;
    for (int s = 0; s < plan->n_slabs; s++)
        resident = resident && plan->slabs[s].weights == OT_HOME_GPU;
    return resident;
}

/* Smaller micro-batches, down to a sound size, if with one of them the whole model can live on the device:
 * that saves more than larger matrices do. 1: found, 0: none, < 0: no plan at all. */
static int find_all_resident(const struct ot_plan_request *rq, int64_t micro, int64_t least, int kept,
                             struct ot_candidate *c, struct ot_plan *plan) {
    int64_t sound = (MICRO_TOKENS_SOUND + rq->sequence_tokens - 1) / rq->sequence_tokens;
    least = least > sound ? least : sound;
    for (;; micro = micro / 2) {
        struct need need;
        *c = (struct ot_candidate){.micro_sequences = micro,
                                   .resident = rq->chain->n_slabs,
                                   .kept_blocks = kept,
                                   .slots = rq->slots ? rq->slots : 1,
                                   .tile_slots = TILE_SLOTS,
                                   .activations = OT_HOME_GPU};
        OT_TRY(measure_spilled(rq, c, plan, &need));
        if (!is_all_resident(plan))
            return 0;
        if (has_room(rq, &need, OT_TIER_GPU) && has_room(rq, &need, OT_TIER_HOST))
            return 1;
        if (rq->micro_sequences || micro / 2 < least)
            return 0;
    }
}

/* The first candidate that fits, going down in speed: all resident and nothing recomputed, all resident;
 * then large micro-batches before small ones, activations on the device before the host, three slots
 * before one. */
static int find_candidate(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan) {
    struct seen seen = {{SIZE_MAX, SIZE_MAX, SIZE_MAX}, {{SIZE_MAX, SIZE_MAX, SIZE_MAX}}};
    int64_t step = rq->step_sequences,
            least = (step + ot_chain_most_micro(rq->chain) - 1) / ot_chain_most_micro(rq->chain);
    int64_t micro = MICRO_TOKENS_ENOUGH / rq->sequence_tokens;
    micro = rq->micro_sequences ? rq->micro_sequences : micro > least ? micro : least;
    micro = micro < step ? micro : step;
    int most_slots = rq->slots ? rq->slots : 3, fewest_slots = rq->slots ? rq->slots : 1;
    int kept = rq->train && rq->recompute == 0 ? rq->chain->n_blocks - 2 : 0;
    int homes = rq->train && rq->activations == OT_HOME_AUTO ? 2 : 1;
    for (int recompute = rq->train && rq->recompute < 0 ? 0 : 1; recompute < 2; recompute++) {
        int rc = find_all_resident(rq, micro, least, recompute ? kept : rq->chain->n_blocks - 2, c, plan);
        if (rc != 0)
            return rc < 0 ? rc : 0;
    }
    for (;; micro = micro / 2 > least ? micro / 2 : least) {
        for (int home = 0; home < homes; home++)
            for (int slots = most_slots; slots >= fewest_slots; slots--) {
                *c = (struct ot_candidate){.micro_sequences = micro,
                                           .kept_blocks = kept,
                                           .slots = slots,
                                           .tile_slots = slots > 1 ? TILE_SLOTS : FEW_TILE_SLOTS,
                                           .activations = (enum ot_home)home};
                int rc = find_resident(rq, c, plan, &seen);
                if (rc != 0)
                    return rc < 0 ? rc : 0;
            }
        if (rq->micro_sequences || micro <= least)
            return refuse(rq, &seen, plan);
    }
}

/* Raises *count, of what the candidate may have more of, to the most up to `high` that there is room for
 * beside what was chosen. */
static int grow(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan, int *count,
                int high) {
    int low = *count;
    while (low < high) {
        struct need need;
        *count = low + (high - low + 1) / 2;
        OT_TRY(measure(rq, c, plan, &need));
        if (has_room(rq, &need, OT_TIER_GPU) && has_room(rq, &need, OT_TIER_HOST))
            low = *count;
        else
            high = *count - 1;
    }
    *count = low;
    return 0;
}

/* ---- requests ---- */

int ot_plan_check_shares(const double shares[OT_TILE_ENGINES], enum ot_home state) {
    double sum = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++) {
        const char *name = ot_tile_engine_name((enum ot_tile_engine)e);
        if (!(shares[e] >= 0 && shares[e] <= 1))
            return ot_fail(OT_E_USAGE, "%s cannot have a share of %g: give 0 to 1", name, shares[e]);
        enum ot_home home = e == OT_TILE_GPU ? OT_HOME_GPU : OT_HOME_HOST;
        bool elsewhere = state != OT_HOME_AUTO && (state == OT_HOME_GPU) != (home == OT_HOME_GPU);
        if (shares[e] > 0 && elsewhere)
            return ot_fail(OT_E_USAGE, "%s updates state that lives on the %s, not on the %s", name,
                           ot_tier_name((enum ot_tier)home), ot_tier_name((enum ot_tier)state));
        sum += shares[e];
    }
    if (ot_plan_has_shares(shares) && fabs(sum - 1) > 1e-6)
        return ot_fail(OT_E_USAGE, "the shares add up to %g, not to 1", sum);
    return 0;
}

/* A share that is given is not rounded away. */
static int check_counts(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    int64_t counts[OT_TILE_ENGINES], total = ot_plan_all_tiles(rq->chain, plan);
    ot_plan_count_shares(rq, total, counts);
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        if (rq->shares[e] > 0 && counts[e] == 0)
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_OPTIMIZER_SHARE,
                                 "a share of %g for %s is none of this model's %lld tiles", rq->shares[e],
                                 ot_tile_engine_name((enum ot_tile_engine)e), (long long)total);
    return 0;
}

static int check_request(const struct ot_plan_request *rq) {
    if (rq->sequence_tokens < 1 || rq->step_sequences < 1 || rq->micro_sequences < 0)
        return ot_fail(OT_E_USAGE, "a step of %lld sequences of %lld tokens is no step",
                       (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (rq->step_sequences > INT32_MAX / rq->sequence_tokens)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STEP_TOKENS,
                             "%lld sequences of %lld tokens are more than 2^31 tokens a step",
                             (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (rq->slots < 0 || rq->slots > OT_PLAN_MAX_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d weight slots of a kind; give 1 to %d", rq->slots,
                       OT_PLAN_MAX_SLOTS);
    if (rq->tile_params < 0 || rq->tile_params % OT_SLAB_ALIGN_PARAMS != 0)
        return ot_fail(OT_E_USAGE, "plan: tiles of %lld parameters are not whole ones of %d",
                       (long long)rq->tile_params, OT_SLAB_ALIGN_PARAMS);
    if (rq->extra_device_bytes < 0 || rq->extra_host_bytes < 0)
        return ot_fail(OT_E_USAGE, "plan: %lld and %lld bytes cannot be reserved",
                       (long long)rq->extra_device_bytes, (long long)rq->extra_host_bytes);
    return ot_plan_check_shares(rq->shares, rq->state);
}

static int64_t choose_tile(const struct ot_chain *chain) {
    int64_t total = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        total += chain->slabs[s].n_params;
    int64_t tile = (total / MOST_TILES / OT_SLAB_ALIGN_PARAMS + 1) * OT_SLAB_ALIGN_PARAMS;
    return tile > TILE_PARAMS ? tile : TILE_PARAMS;
}

/* What lies on nvme is read ahead as far as slots allow, through all of backward. With slots for more than
 * half of the tiles the host would hold about as much as if the state lived there. */
static int grow_tile_slots(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan) {
    int64_t half = ot_plan_passing_tiles(plan) / 2;
    return plan->tile_slots == 0
               ? 0
               : grow(rq, c, plan, &c->tile_slots, half < MOST_TILES ? (int)half : MOST_TILES);
}

int ot_plan_make(const struct ot_plan_request *rq, struct ot_plan *out) {
    struct ot_candidate c;
    int rc;
    memset(out, 0, sizeof *out);
    OT_TRY(check_request(rq));
    out->slabs = calloc((size_t)rq->chain->n_slabs, sizeof *out->slabs);
    if (!out->slabs)
        return ot_fail(OT_E_BUDGET, "no memory for the plan");
    out->n_slabs = rq->chain->n_slabs;
    out->order = rq->order;
    out->train = rq->train;
    out->clip = rq->clip;
    out->kept_contents = rq->kept_contents;
    out->snapshot_slots = rq->snapshot_slots;
    out->tile_params = rq->tile_params ? rq->tile_params : choose_tile(rq->chain);
    OT_TRY_GOTO(check_counts(rq, out), rc, out_failed);
    OT_TRY_GOTO(find_candidate(rq, &c, out), rc, out_failed);
    if (ot_plan_streams_state(out))
        OT_TRY_GOTO(grow(rq, &c, out, &c.waiting, rq->chain->n_slabs), rc, out_failed);
    OT_TRY_GOTO(grow_tile_slots(rq, &c, out), rc, out_failed);
    if (rq->train && rq->recompute < 0)
        OT_TRY_GOTO(grow(rq, &c, out, &c.kept_blocks, rq->chain->n_blocks - 2), rc, out_failed);
    OT_TRY_GOTO(ot_candidate_build(rq, &c, out), rc, out_failed);
    return 0;
out_failed:;
    struct ot_shortage shortage = out->shortage;
    ot_plan_free(out);
    out->shortage = shortage;
    return rc;
}

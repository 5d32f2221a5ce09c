#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/build.h"
#include "offload/plan/shadow_updates.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* ENOUGH tokens in a micro-batch keep the matrix units of every known device busy. SOUND costs a few percent;
 * smaller micro-batches are not used to make everything resident. */
enum { MICRO_TOKENS_ENOUGH = 4096, MICRO_TOKENS_SOUND = 1024 };
/* The smallest tile that is still worth a task. Smaller ones are not tried, even if memory is short. */
enum { LEAST_TILE_PARAMS = 1 << 16 };
/* Host slots for tiles on nvme, and for gradients on their way there: TILE_SLOTS let reads, updates and
 * writes overlap. FEW_TILE_SLOTS: if memory is short. */
enum { TILE_SLOTS = 8, FEW_TILE_SLOTS = 2 };
/* Device slots for the cache of generation: with two, one cache comes in while a block uses the other. */
enum { CACHE_SLOTS = 2 };

/* Bytes that a plan needs of each tier, with the bytes that the caller reserves. */
struct need {
    size_t bytes[OT_TIER_COUNT];
};

static int measure(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan,
                   struct need *out) {
    OT_TRY(ot_candidate_measure(rq, c, plan, out->bytes));
    out->bytes[OT_TIER_GPU] += (size_t)rq->extra_device_bytes;
    out->bytes[OT_TIER_HOST] += (size_t)rq->extra_host_bytes;
    return 0;
}

/* True if the tier has room for the plan. nvme takes the host's overflow, so the host has room only if nvme
 * has room too. */
static bool has_room(const struct ot_plan_request *rq, const struct need *need, enum ot_tier tier) {
    bool nvme = tier == OT_TIER_GPU || need->bytes[OT_TIER_NVME] <= rq->budget_bytes[OT_TIER_NVME];
    return nvme && need->bytes[tier] <= rq->budget_bytes[tier];
}

/* True if the budgets of the tiers up to `last` have room for the plan. */
static bool fits(const struct ot_plan_request *rq, const struct need *need, enum ot_tier last) {
    for (int t = 0; t <= (int)last; t++)
        if (need->bytes[t] > rq->budget_bytes[t])
            return false;
    return true;
}

/* Estimates how many of the `gap` steps from a count that fits to one that does not still fit, at least 1 and
 * less than gap: each step needs nearly the same memory. */
static int estimate_steps(const struct ot_plan_request *rq, const struct need *low, const struct need *high,
                          int gap, enum ot_tier last) {
    double share = 1;
    for (int t = 0; t <= (int)last; t++)
        if (high->bytes[t] > rq->budget_bytes[t])
            share = fmin(share, (double)(rq->budget_bytes[t] - low->bytes[t]) /
                                    (double)(high->bytes[t] - low->bytes[t]));
    int steps = (int)(share * gap);
    return steps < 1 ? 1 : steps < gap ? steps : gap - 1;
}

/* Raises *count, a field of the candidate, to the largest value up to `high` that fits the tiers up to
 * `last`. The present value is known to fit, and a larger value needs more. */
static int grow_within(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                       int *count, int high, enum ot_tier last) {
    enum { ESTIMATES = 3 }; /* after so many, or where there are few values, halves the rest each time */
    struct need at_low, at_high, need;
    int low = *count;
    if (low >= high)
        return 0;
    *count = high;
    OT_TRY(measure(rq, c, plan, &at_high));
    if (fits(rq, &at_high, last))
        return 0;
    *count = low;
    OT_TRY(high - low > ESTIMATES ? measure(rq, c, plan, &at_low) : 0);
    for (int tries = high - low > ESTIMATES ? 0 : ESTIMATES; high - low > 1; tries++) {
        bool halve = tries >= ESTIMATES;
        *count = low + (halve ? (high - low) / 2 : estimate_steps(rq, &at_low, &at_high, high - low, last));
        OT_TRY(measure(rq, c, plan, &need));
        bool more = fits(rq, &need, last);
        low = more ? *count : low;
        high = more ? high : *count;
        *(more ? &at_low : &at_high) = need;
    }
    *count = low;
    return 0;
}

static int grow(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan, int *count,
                int high) {
    return grow_within(rq, c, plan, count, high, OT_TIER_NVME);
}

/* ---- on nvme: as little as possible ---- */

/* Sets c->spilled to the least value in (low, high] that the host has room for. `high` is known to fit, and
 * `low` not to. In this range a larger value never needs more of the host, and each step frees nearly the
 * same memory. */
static int least_spilled(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                         int low, size_t at_low, int high, size_t at_high) {
    enum { ESTIMATES = 3 }; /* after so many, halves the rest each time */
    const size_t budget = rq->budget_bytes[OT_TIER_HOST];
    for (int tries = 0; high - low > 1; tries++) {
        struct need need;
        double share = (double)(at_low - budget) / (double)(at_low - at_high);
        int steps = tries < ESTIMATES ? (int)ceil(share * (high - low)) : (high - low) / 2;
        c->spilled = low + ot_max(1, ot_min(steps, high - low - 1));
        OT_TRY(measure(rq, c, plan, &need));
        bool more = need.bytes[OT_TIER_HOST] > budget;
        *(more ? &low : &high) = c->spilled;
        *(more ? &at_low : &at_high) = need.bytes[OT_TIER_HOST];
    }
    c->spilled = high;
    return 0;
}

/* The largest value of c->spilled for each kind of data on nvme: none, state, activations, gradients, weights
 * (build.h). */
enum { SPILLED_KINDS = 5 };

static void list_kinds(const struct ot_chain *chain, int last[SPILLED_KINDS]) {
    int n = chain->n_slabs;
    memcpy(last, (int[]){0, n, n + 1, 2 * n + 1, ot_candidate_most_spilled(chain)},
           SPILLED_KINDS * sizeof *last);
}

/* Measures the candidate with as little on nvme as the host's budget allows. If the host is too small in any
 * case, uses the value that needs the least of the host. The first slab of each kind on nvme also needs slots
 * on the host, so each kind is searched separately. */
static int measure_spilled(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                           struct need *out) {
    int last[SPILLED_KINDS], best = 0;
    list_kinds(rq->chain, last);
    size_t least = SIZE_MAX, before = SIZE_MAX;
    for (int kind = 0; kind < SPILLED_KINDS; kind++) {
        c->spilled = last[kind];
        OT_TRY(measure(rq, c, plan, out));
        if (rq->budget_bytes[OT_TIER_NVME] == 0)
            return 0;
        if (out->bytes[OT_TIER_HOST] <= rq->budget_bytes[OT_TIER_HOST]) {
            if (kind == 0)
                return 0;
            OT_TRY(least_spilled(rq, c, plan, last[kind - 1], before, last[kind], out->bytes[OT_TIER_HOST]));
            return measure(rq, c, plan, out);
        }
        before = out->bytes[OT_TIER_HOST];
        if (out->bytes[OT_TIER_HOST] < least) {
            least = out->bytes[OT_TIER_HOST];
            best = last[kind];
        }
    }
    c->spilled = best;
    return measure(rq, c, plan, out);
}

/* The smallest plans seen. least[T]: the least need of tier T among plans that fit the other tiers. smallest:
 * the needs of the plan with the least device memory. SIZE_MAX: no plan seen. */
struct seen {
    size_t least[OT_TIER_COUNT];
    struct need smallest;
};

/* Measures the candidate with as much on nvme as the nvme budget allows. */
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
    if (rq->is_trial)
        return ot_fail(OT_E_BUDGET, "no plan fits");
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (seen->least[t] != SIZE_MAX) {
            shortage->alone[t] = seen->least[t];
            any = true;
        }
    if (!any)
        memcpy(shortage->together, seen->smallest.bytes, sizeof shortage->together);
    return ot_plan_refuse(rq, shortage);
}

/* ---- on the device: as many slabs as possible ---- */

/* The first of the counts of resident slabs, up to `resident`, that need the same slots. Among these counts,
 * one more resident slab needs more of the device and less of the host. When the last slab of a kind becomes
 * resident, the slots of that kind go away, so there the rule does not hold. */
static int stretch_start(const struct ot_chain *chain, int resident) {
    int all[OT_SLOT_KINDS] = {0}, start = 0, turn = 0;
    for (int frozen = 0; frozen < 2; frozen++)
        for (int s = 0; s < chain->n_slabs; s++)
            if (chain->slabs[s].frozen == frozen)
                all[ot_slab_slot_kind(chain, s)] = ++turn;
    for (int k = 0; k < OT_SLOT_KINDS; k++)
        start = all[k] <= resident && all[k] > start ? all[k] : start;
    return start;
}

/* Returns how many numbers of resident slabs in [low, high] fit the device: the smallest ones. */
static int count_on_device(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                           int low, int high) {
    struct need need;
    c->resident = low;
    c->spilled = 0; /* does not change the device's need */
    OT_TRY(measure(rq, c, plan, &need));
    if (!fits(rq, &need, OT_TIER_GPU))
        return 0;
    OT_TRY(grow_within(rq, c, plan, &c->resident, high, OT_TIER_GPU));
    return c->resident - low + 1;
}

/* Returns how many numbers of resident slabs in [low, high] fit the host: the largest ones. */
static int count_on_host(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                         int low, int high) {
    int fitting = 0, unknown = high - low + 1;
    while (unknown > 0) {
        int tried = (unknown + 1) / 2;
        struct need need;
        c->resident = high - fitting - tried + 1;
        OT_TRY(measure_spilled(rq, c, plan, &need));
        bool more = has_room(rq, &need, OT_TIER_HOST);
        fitting += more ? tried : 0;
        unknown = more ? unknown - tried : tried - 1;
    }
    return fitting;
}

/* Notes three plans: the least of the device, the least of the host beside this device, and the least of the
 * device beside this host. */
static int note_stretch(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                        int low, int high, int gpu, struct seen *seen) {
    int host;
    OT_TRY(host = count_on_host(rq, c, plan, low, high));
    int least[3] = {low, gpu > 0 ? low + gpu - 1 : low, host > 0 ? high - host + 1 : low};
    for (int i = 0; i < 3; i++) {
        c->resident = least[i];
        OT_TRY(note_smallest(rq, c, plan, seen));
    }
    return 0;
}

/* Sets c->resident to the most slabs that may live on the device. That is nearly always the most that the
 * device has room for, because more on the device is less on the host. The exception is the slots that the
 * first slab on nvme needs: then it is one slab less. seen: NULL, or notes the smallest plans. Returns 1:
 * found, 0: no count fits, < 0: error. */
static int find_resident(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                         struct seen *seen) {
    int most = rq->chain->n_slabs - (int)lround(rq->streamed * rq->chain->n_slabs);
    for (int low, high = most; high >= 0; high = low - 1) {
        int gpu;
        low = stretch_start(rq->chain, high);
        OT_TRY(gpu = count_on_device(rq, c, plan, low, high));
        for (int less = 0; less < 2 && less < gpu; less++) {
            struct need need;
            c->resident = low + gpu - 1 - less;
            OT_TRY(measure_spilled(rq, c, plan, &need));
            if (has_room(rq, &need, OT_TIER_HOST))
                return 1;
        }
        if (seen)
            OT_TRY(note_stretch(rq, c, plan, low, high, gpu, seen));
    }
    return 0;
}

/* Forced homes or shares may keep a plan from being all resident. */
static bool is_all_resident(const struct ot_plan *plan) {
    bool resident = plan->activations == OT_HOME_GPU && !ot_plan_streams_state(plan) &&
                    ot_plan_count_tiles(plan, OT_TILE_CPU) == 0;
    for (int s = 0; s < plan->n_slabs; s++)
        resident = resident && plan->slabs[s].weights == OT_HOME_GPU;
    return resident;
}

/* ---- candidates, the fastest first: micro-batch, rounds, slots ---- */

/* The sizes of a micro-batch to try, in sequences: from `first`, halved down to `least`. */
struct micro_range {
    int64_t first, least;
};

static struct micro_range find_range(const struct ot_plan_request *rq) {
    int64_t step = rq->step_sequences, blocks_room = ot_chain_most_micro(rq->chain);
    int64_t least = (step + blocks_room - 1) / blocks_room, first = MICRO_TOKENS_ENOUGH / rq->sequence_tokens;
    int64_t groups = ot_shard_groups(&rq->shard);
    if (rq->sections > 1)
        return (struct micro_range){1, 1};
    int64_t most = (step + groups - 1) / groups; /* every group gets a micro-batch */
    first = rq->micro_sequences ? rq->micro_sequences : ot_max(first, least);
    most = rq->micro_sequences || most < least ? step : most;
    first = ot_min(first, most);
    return (struct micro_range){first, rq->micro_sequences ? first : least};
}

/* Tries smaller micro-batches, down to a sound size, until the whole model can live on the device: residency
 * saves more time than larger matrices. Returns 1: found, 0: none, < 0: error. */
static int find_all_resident(const struct ot_plan_request *rq, struct micro_range range, int kept,
                             struct ot_candidate *c, struct ot_plan *plan) {
    int64_t sound = (MICRO_TOKENS_SOUND + rq->sequence_tokens - 1) / rq->sequence_tokens;
    int64_t least = ot_max(range.least, sound);
    for (int64_t micro = range.first;; micro = micro / 2) {
        struct need need;
        *c = (struct ot_candidate){.micro_sequences = micro,
                                   .sections = rq->sections,
                                   .rounds = rq->rounds,
                                   .resident = rq->chain->n_slabs,
                                   .sums_stay = true,
                                   .kept_blocks = kept,
                                   .slots = rq->slots ? rq->slots : 1 + (ot_shard_ranks(&rq->shard) > 1),
                                   .tile_slots = TILE_SLOTS,
                                   .grad_slots = TILE_SLOTS,
                                   .cache_slots = CACHE_SLOTS,
                                   .activations = OT_HOME_GPU};
        OT_TRY(measure(rq, c, plan, &need));
        if (!is_all_resident(plan))
            return 0;
        if (fits(rq, &need, OT_TIER_GPU)) { /* what is on nvme does not change the device's need */
            OT_TRY(measure_spilled(rq, c, plan, &need));
            if (has_room(rq, &need, OT_TIER_HOST))
                return 1;
        }
        if (rq->micro_sequences || micro / 2 < least)
            return 0;
    }
}

/* True if the plan chooses how many blocks keep activations on the device. */
static bool may_keep_on_gpu(const struct ot_plan_request *rq) {
    return rq->train && rq->keep == OT_KEEP_CHOSEN && (rq->kept == OT_HOME_AUTO || rq->kept == OT_HOME_GPU);
}

static int middle_blocks(const struct ot_plan_request *rq) {
    return ot_shard_layers(rq->chain, &rq->shard);
}

/* The blocks that keep activations on the device before slabs become resident. */
static int first_kept(const struct ot_plan_request *rq) {
    int middle = middle_blocks(rq);
    if (rq->train && rq->keep > OT_KEEP_NONE && rq->kept == OT_HOME_GPU)
        return middle;
    return may_keep_on_gpu(rq) ? (int)lround(rq->kept_on * middle) : 0;
}

/* True if the host may have room. It needs least with all slabs on the device; or with none there and as much
 * as possible on nvme, because the pool's weights stay on the host beside those on the device. */
static bool may_fit_host(const struct ot_plan_request *rq, const struct ot_candidate *candidate,
                         struct ot_plan *plan) {
    struct ot_candidate c = *candidate;
    struct need need;
    int last[SPILLED_KINDS];
    list_kinds(rq->chain, last);
    for (int kind = rq->budget_bytes[OT_TIER_NVME] > 0 ? SPILLED_KINDS - 1 : 0; kind >= 0; kind--)
        for (int all = 1; all >= 0; all--) {
            c.resident = all ? rq->chain->n_slabs : 0;
            c.spilled = last[kind];
            if (measure(rq, &c, plan, &need) < 0 ||
                need.bytes[OT_TIER_HOST] <= rq->budget_bytes[OT_TIER_HOST])
                return true; /* the search tells an error */
        }
    return false;
}

/* Tries activations on the device before the host, sums that leave before those that stay, slots downward. */
static int find_with(const struct ot_plan_request *rq, int64_t micro, int rounds, struct ot_candidate *c,
                     struct ot_plan *plan, struct seen *seen) {
    int most_slots = rq->slots ? rq->slots : 3, fewest_slots = rq->slots ? rq->slots : 1;
    int homes = rq->train && rq->activations == OT_HOME_AUTO ? 2 : 1;
    int stays = rounds > 1 && rq->train && rq->sums == OT_HOME_AUTO ? 2 : 1;
    for (int try = 0; try < homes * stays; try++) {
        struct need need;
        *c = (struct ot_candidate){.micro_sequences = micro,
                                   .sections = rq->sections,
                                   .rounds = rounds,
                                   .sums_stay = try % stays > 0,
                                   .kept_blocks = first_kept(rq),
                                   .slots = fewest_slots,
                                   .tile_slots = FEW_TILE_SLOTS,
                                   .grad_slots = FEW_TILE_SLOTS,
                                   .cache_slots = ot_min(fewest_slots, CACHE_SLOTS),
                                   .activations = (enum ot_home)(try / stays)};
        OT_TRY(rq->is_trial ? measure(rq, c, plan, &need) : 0);
        /* with more slots, and with more or fewer resident slabs, there is no room either */
        if (rq->is_trial && (!has_room(rq, &need, OT_TIER_GPU) || !may_fit_host(rq, c, plan)))
            continue;
        for (int slots = most_slots; slots >= fewest_slots; slots--) {
            *c = (struct ot_candidate){.micro_sequences = micro,
                                       .sections = rq->sections,
                                       .rounds = rounds,
                                       .sums_stay = try % stays > 0,
                                       .kept_blocks = first_kept(rq),
                                       .slots = slots,
                                       .tile_slots = slots > 1 ? TILE_SLOTS : FEW_TILE_SLOTS,
                                       .grad_slots = slots > 1 ? TILE_SLOTS : FEW_TILE_SLOTS,
                                       .cache_slots = ot_min(slots, CACHE_SLOTS),
                                       .activations = (enum ot_home)(try / stays)};
            int rc = find_resident(rq, c, plan, seen);
            if (rc != 0)
                return rc;
        }
    }
    return 0;
}

/* Large micro-batches before small ones. */
static int find_micro(const struct ot_plan_request *rq, struct micro_range range, int rounds,
                      struct ot_candidate *c, struct ot_plan *plan, struct seen *seen) {
    for (int64_t micro = range.first;; micro = ot_max(micro / 2, range.least)) {
        int rc = find_with(rq, micro, rounds, c, plan, seen);
        if (rc != 0 || micro <= range.least)
            return rc;
    }
}

/* One micro-batch a round needs the least memory. If it fits, takes as few rounds as fit with the same
 * micro-batch: fewer rounds never need less. */
static int find_rounds(const struct ot_plan_request *rq, struct micro_range range, struct ot_candidate *c,
                       struct ot_plan *plan, struct seen *seen) {
    int most = ot_candidate_micro(rq, range.least), low = 2, rc;
    if (!rq->train || rq->rounds || most < 2)
        return 0;
    OT_TRY(rc = find_micro(rq, range, most, c, plan, seen));
    int64_t micro = c->micro_sequences;
    int high = rc > 0 ? ot_candidate_micro(rq, micro) : 0;
    while (low < high) {
        int middle = low + (high - low) / 2;
        OT_TRY(rc = find_with(rq, micro, middle, c, plan, seen));
        if (rc > 0)
            high = middle;
        else
            low = middle + 1;
    }
    return high > 0 ? find_with(rq, micro, high, c, plan, seen) : 0;
}

/* Finds the first candidate that fits, fastest first: everything resident without recomputation, everything
 * resident, then the rest. Returns 1: found, 0: none, < 0: error. */
static int find_candidate(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan,
                          struct seen *seen) {
    struct micro_range range = find_range(rq);
    int rc;
    for (int recompute = may_keep_on_gpu(rq) ? 0 : 1; recompute < 2 && rq->streamed == 0; recompute++) {
        rc = find_all_resident(rq, range, recompute ? first_kept(rq) : middle_blocks(rq), c, plan);
        if (rc != 0)
            return rc;
    }
    OT_TRY(rc = find_micro(rq, range, rq->rounds ? rq->rounds : 1, c, plan, seen));
    return rc != 0 ? rc : find_rounds(rq, range, c, plan, seen);
}

/* ---- the size of tiles ---- */

/* Finds a candidate with tiles of the chosen size, halved `halvings` times. */
static int try_tiles(const struct ot_plan_request *rq, int halvings, struct ot_candidate *c,
                     struct ot_plan *plan, struct seen *seen) {
    plan->tile_params =
        (ot_plan_choose_tile(rq->chain) >> halvings) / OT_SLAB_ALIGN_PARAMS * OT_SLAB_ALIGN_PARAMS;
    return find_candidate(rq, c, plan, seen);
}

/* Finds a candidate with the largest tiles that fit. Small tiles need small slots, but are more tasks. If the
 * smallest tiles do not fit, nothing does. */
static int find_tiles(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan) {
    struct seen seen = {{SIZE_MAX, SIZE_MAX, SIZE_MAX}, {{SIZE_MAX, SIZE_MAX, SIZE_MAX}}};
    int64_t least = ot_plan_tile_of(rq->chain, OT_PLAN_MOST_TILES), tile = ot_plan_choose_tile(rq->chain);
    bool in_slots = rq->train && (rq->budget_bytes[OT_TIER_NVME] > 0 || rq->fractions[OT_TILE_STREAM] > 0);
    int rc, low = 1, high = 0;
    least = ot_max(least, LEAST_TILE_PARAMS);
    OT_TRY(rc = find_candidate(rq, c, plan, NULL));
    for (; in_slots && !rq->tile_params && tile / 2 >= least; tile /= 2)
        high++;
    if (rc == 0 && high > 0) {
        OT_TRY(rc = try_tiles(rq, high, c, plan, NULL));
        while (rc > 0 && low < high) {
            int fits, middle = low + (high - low) / 2;
            OT_TRY(fits = try_tiles(rq, middle, c, plan, NULL));
            high = fits ? middle : high;
            low = fits ? low : middle + 1;
        }
        if (rc > 0)
            OT_TRY(rc = try_tiles(rq, high, c, plan, NULL));
    }
    if (rc == 0 && !rq->is_trial)
        OT_TRY(rc = rq->tile_params ? find_candidate(rq, c, plan, &seen)
                                    : try_tiles(rq, high, c, plan, &seen));
    return rc > 0 ? 0 : refuse(rq, &seen, plan);
}

/* ---- memory that is left: slots, frames, kept activations ---- */

/* Grows the slots for tiles on nvme, because reads go on through all of backward as far as slots allow. The
 * limit is slots for half of the tiles: with more, the host would hold nearly as much as if the state lived
 * there. */
static int grow_tile_slots(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan) {
    int64_t half = ot_min(ot_plan_passing_tiles(plan) / 2, OT_PLAN_MOST_TILES);
    return plan->tile_slots == 0 ? 0 : grow(rq, c, plan, &c->tile_slots, (int)half);
}

/* Grows the slots for gradients on their way to nvme. A layer's gradients leave all at once. With room for
 * those of two layers, backward and the decision do not wait for the disk layer by layer. */
static int grow_grad_slots(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan) {
    int most = 0;
    for (int s = 0; s < plan->n_slabs; s++) {
        int tiles = ot_slab_trained_tiles(rq->chain, plan, s);
        most = ot_max(tiles, most);
    }
    return plan->host_grad_slots == 0 ? 0 : grow(rq, c, plan, &c->grad_slots, 2 * most);
}

/* Grows the frames of shadows into the free memory of the host. */
static int grow_shadows(const struct ot_plan_request *rq, struct ot_candidate *c, struct ot_plan *plan) {
    int64_t frames = llround(rq->shadows * (double)ot_plan_shadow_tiles(plan));
    if (rq->shadows <= 0 || frames == 0)
        return 0;
    size_t bytes = ot_plan_frame_bytes(rq->chain, plan);
    int64_t most = rq->shadow_bytes > 0
                       ? (int64_t)(rq->shadow_bytes / bytes) + ot_plan_free_frames(rq->chain, plan)
                       : frames;
    return grow(rq, c, plan, &c->shadow_frames, (int)ot_min(frames, most));
}

/* ---- the plan ---- */

int ot_plan_make_settled(const struct ot_plan_request *rq, struct ot_plan *out) {
    struct ot_candidate c;
    int rc;
    memset(out, 0, sizeof *out);
    OT_TRY(ot_plan_check_request(rq));
    out->slabs = calloc((size_t)rq->chain->n_slabs, sizeof *out->slabs);
    if (!out->slabs)
        return ot_fail(OT_E_BUDGET, "no memory for the plan");
    out->n_slabs = rq->chain->n_slabs;
    out->shard = rq->shard;
    out->train = rq->train;
    out->clip = rq->clip;
    out->fetch_used = ot_plan_fetches_used(rq);
    out->pinned_contents = rq->pinned_contents;
    out->texts = rq->texts;
    out->snapshot_slots = rq->snapshot_slots;
    out->tile_params = rq->tile_params ? rq->tile_params : ot_plan_choose_tile(rq->chain);
    OT_TRY_GOTO(ot_stages_divide(rq->chain, out), rc, out_failed);
    OT_TRY_GOTO(ot_plan_check_counts(rq, out), rc, out_failed);
    OT_TRY_GOTO(find_tiles(rq, &c, out), rc, out_failed);
    if (ot_plan_streams_state(out))
        OT_TRY_GOTO(grow(rq, &c, out, &c.waiting, rq->chain->n_slabs), rc, out_failed);
    OT_TRY_GOTO(grow_grad_slots(rq, &c, out), rc, out_failed);
    OT_TRY_GOTO(grow_tile_slots(rq, &c, out), rc, out_failed);
    if (may_keep_on_gpu(rq))
        OT_TRY_GOTO(grow(rq, &c, out, &c.kept_blocks, middle_blocks(rq)), rc, out_failed);
    if (rq->train && ot_plan_rounds(out) > 1)
        OT_TRY_GOTO(grow(rq, &c, out, &c.summing, rq->chain->n_slabs), rc, out_failed);
    OT_TRY_GOTO(grow_shadows(rq, &c, out), rc, out_failed);
    OT_TRY_GOTO(ot_candidate_build(rq, &c, out), rc, out_failed);
    return 0;
out_failed:;
    struct ot_shortage shortage = out->shortage;
    ot_plan_free(out);
    out->shortage = shortage;
    return rc;
}

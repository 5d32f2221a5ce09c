#include "offload/plan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "offload/layout.h"
#include "src/base/error.h"

/* A micro-batch of this many tokens keeps the matrix units of every device that we know busy; more only costs
 * memory. */
enum { MICRO_TOKENS_ENOUGH = 4096, MIB = 1 << 20 };
/* Of this many it is within a few percent of that: it is not cut further to make room for residency. */
enum { MICRO_TOKENS_SOUND = 1024 };
/* The CPU pool's unit: 2 Mi parameters, 52 MB of traffic: a few milliseconds, far above the cost of a
 * hand-over. */
enum { TILE_PARAMS = 2 << 20 };
/* And no more tiles than this in all: each is a task, and the order of n tasks takes n^2 / 2 bytes to check.
 * A 70B model's tiles grow to 17 Mi parameters, still fifty to a layer. */
enum { MOST_TILES = 4096 };
/* Passes of a micro-batch through a block, forward: 7B with 480 micro-batches. Each is two to four tasks,
 * whose order then takes half a GB to 2 GB to check. */
enum { MOST_PASSES = 1 << 14 };

const char *ot_tier_name(enum ot_tier tier) {
    static const char *const names[] = {"gpu", "host", "nvme"};
    return names[tier];
}

const char *ot_tile_engine_name(enum ot_tile_engine engine) {
    static const char *const names[] = {"gpu", "stream", "cpu"};
    return names[engine];
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

int64_t ot_plan_count_tiles(const struct ot_plan *plan, enum ot_tile_engine engine) {
    int64_t n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        n += plan->slabs[s].tiles[engine];
    return n;
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

static bool streams_state(const struct ot_plan *plan) {
    return ot_plan_count_tiles(plan, OT_TILE_STREAM) > 0;
}

static bool is_tied(const struct ot_chain *chain) {
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_uses(chain, s) > 1)
            return true;
    return false;
}

static int most_micro(const struct ot_chain *chain) {
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
    if (plan->max_micro > most_micro(chain))
        return ot_fail(OT_E_USAGE,
                       "a step of %d micro-batches is longer than a schedule of %d blocks can be (%d): lower "
                       "--tokens-per-step, or raise --micro-batch",
                       plan->max_micro, chain->n_blocks, most_micro(chain));
    if (plan->train && chain->dtype == OT_F16 && !plan->clip)
        return ot_fail(OT_E_USAGE,
                       "training in fp16 skips steps as a whole where gradients overflow, so updates "
                       "wait for the norm: it needs clipping; give --clip 1.0, or --dtype bf16");
    return 0;
}

static int check_tiles(const struct ot_chain *chain, const struct ot_plan *plan) {
    for (int s = 0; s < plan->n_slabs; s++) {
        const int *tiles = plan->slabs[s].tiles;
        int there = plan->train ? ot_slab_tiles(chain, plan, s) : 0;
        if (tiles[OT_TILE_GPU] < 0 || tiles[OT_TILE_STREAM] < 0 || tiles[OT_TILE_CPU] < 0 ||
            tiles[OT_TILE_GPU] + tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU] != there)
            return ot_fail(OT_E_USAGE, "plan: gpu %d, stream %d and cpu %d are not the %d tiles of slab '%s'",
                           tiles[OT_TILE_GPU], tiles[OT_TILE_STREAM], tiles[OT_TILE_CPU], there,
                           chain->slabs[s].name);
    }
    if (plan->state_slots < 0 || plan->state_slots > OT_PLAN_MAX_STATE_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d slots for streamed state; give 1 to %d", plan->state_slots,
                       OT_PLAN_MAX_STATE_SLOTS);
    if (streams_state(plan) && plan->state_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: state streams through the device but there is no slot for it");
    return 0;
}

int ot_plan_finish(const struct ot_chain *chain, struct ot_plan *plan) {
    struct ot_layout layout;
    bool weights[OT_SLOT_KINDS], grads[OT_SLOT_KINDS], stages[OT_SLOT_KINDS];
    OT_TRY(check_shape(chain, plan));
    OT_TRY(check_tiles(chain, plan));
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        weights[k] = any_slab(chain, plan, (enum ot_slot_kind)k, passes_weights);
        grads[k] = any_slab(chain, plan, (enum ot_slot_kind)k, passes_grads);
        stages[k] = grads[k] && chain->dtype != OT_F32;
    }
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

/* ---- choosing ---- */

/* One candidate: everything that the search varies. */
struct candidate {
    int64_t micro_sequences;
    int resident; /* so many of the first slabs, whose update the next forward waits for first, live on the
                     device */
    int waiting;  /* the gradients of the streamed tiles of so many of the first slabs wait on the device */
    int kept_blocks;
    int slots;
    enum ot_home activations;
};

/* Of the tiles that the stream engine and the pool share, so many of the first n are streamed: the two take
 * turns. */
static int64_t streamed_of_first(int64_t n, int64_t streamed, int64_t shared) {
    return shared ? (n * streamed + shared / 2) / shared : 0;
}

static int64_t count_all_tiles(const struct ot_chain *chain, const struct ot_plan *plan) {
    int64_t total = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        total += ot_slab_tiles(chain, plan, s);
    return total;
}

/* The shares in whole tiles: the borders between engines are rounded, so that the tiles add up. */
static void count_shares(const struct ot_plan_request *rq, int64_t total, int64_t counts[OT_TILE_ENGINES]) {
    int64_t gpu = llround((double)total * rq->shares[OT_TILE_GPU]);
    int64_t device = llround((double)total * (rq->shares[OT_TILE_GPU] + rq->shares[OT_TILE_STREAM]));
    counts[OT_TILE_GPU] = gpu;
    counts[OT_TILE_STREAM] = device - gpu;
    counts[OT_TILE_CPU] = total - device;
}

static bool has_shares(const double shares[OT_TILE_ENGINES]) {
    return shares[OT_TILE_GPU] != 0 || shares[OT_TILE_STREAM] != 0 || shares[OT_TILE_CPU] != 0;
}

static void deal_shares(const struct ot_plan_request *rq, struct ot_plan *plan) {
    int64_t counts[OT_TILE_ENGINES], before = 0;
    count_shares(rq, count_all_tiles(rq->chain, plan), counts);
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

static void deal_tiles(const struct ot_plan_request *rq, const struct candidate *c, struct ot_plan *plan) {
    if (rq->train && has_shares(rq->shares)) {
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
                      const struct candidate *c, struct ot_plan *plan) {
    bool micro_major = rq->order == OT_ORDER_MICRO;
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        bool edge = k == OT_SLOT_EDGE;
        int in_kind = 0;
        for (int s = 0; s < chain->n_slabs; s++)
            in_kind += ot_slab_slot_kind(chain, s) == (enum ot_slot_kind)k;
        bool grads = any_slab(chain, plan, (enum ot_slot_kind)k, passes_grads);
        int needed = edge ? 1 + is_tied(chain) : 1; /* a tied head works with two edge slabs at once */
        int wanted = edge && !rq->slots ? needed : c->slots;
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
    plan->state_slots = wanted_state_slots(plan, c->slots);
}

static int build(const struct ot_plan_request *rq, const struct candidate *c, struct ot_plan *plan) {
    const struct ot_chain *chain = rq->chain;
    for (int s = 0; s < chain->n_slabs; s++) {
        enum ot_home home = s < c->resident ? OT_HOME_GPU : OT_HOME_HOST;
        plan->slabs[s].weights = rq->weights != OT_HOME_AUTO ? rq->weights : home;
        plan->slabs[s].grads = s < c->waiting ? OT_HOME_GPU : OT_HOME_HOST;
    }
    deal_tiles(rq, c, plan);
    plan->activations = rq->activations != OT_HOME_AUTO ? rq->activations : c->activations;
    plan->micro_tokens = c->micro_sequences * rq->sequence_tokens;
    plan->max_micro = (int)((rq->step_sequences + c->micro_sequences - 1) / c->micro_sequences);
    plan->kept_blocks = c->kept_blocks;
    plan->activation_slots = rq->train && plan->activations == OT_HOME_HOST ? c->slots : 0;
    set_slots(chain, rq, c, plan);
    return ot_plan_finish(chain, plan);
}

/* What a plan takes of each tier, with what the caller reserves. */
struct need {
    size_t bytes[OT_TIER_COUNT];
};

static int measure(const struct ot_plan_request *rq, const struct candidate *c, struct ot_plan *plan,
                   struct need *out) {
    OT_TRY(build(rq, c, plan));
    out->bytes[OT_TIER_GPU] = ot_ledger_total(&plan->ledger, OT_TIER_GPU) + (size_t)rq->extra_device_bytes;
    out->bytes[OT_TIER_HOST] = ot_ledger_total(&plan->ledger, OT_TIER_HOST) + (size_t)rq->extra_host_bytes;
    out->bytes[OT_TIER_NVME] = ot_ledger_total(&plan->ledger, OT_TIER_NVME);
    return 0;
}

static bool has_room(const struct ot_plan_request *rq, const struct need *need, enum ot_tier tier) {
    return need->bytes[tier] <= rq->budget_bytes[tier];
}

/* The smallest plans that were seen: least[T] is the least of tier T among those that the other tier has room
 * for, both the one that needs the least of the device. SIZE_MAX: none seen. */
struct shortage {
    size_t least[OT_TIER_COUNT];
    struct need both;
};

static int note_shortage(const struct ot_plan_request *rq, const struct candidate *c, struct ot_plan *plan,
                         struct shortage *shortage) {
    struct need need;
    OT_TRY(measure(rq, c, plan, &need));
    for (int t = 0; t < OT_TIER_NVME; t++)
        if (has_room(rq, &need, (enum ot_tier)(1 - t)) && need.bytes[t] < shortage->least[t])
            shortage->least[t] = need.bytes[t];
    if (need.bytes[OT_TIER_GPU] < shortage->both.bytes[OT_TIER_GPU])
        shortage->both = need;
    return 0;
}

static size_t whole_mib(size_t bytes) {
    return bytes / MIB + (bytes % MIB != 0);
}

/* In MiB, what is needed rounded up to a tenth and what there is down: a shortage never reads as none. */
static double mib_needed(size_t bytes) {
    return (double)((bytes * 10 + MIB - 1) / MIB) / 10;
}

static double mib_there(size_t bytes) {
    return (double)(bytes * 10 / MIB) / 10;
}

static int describe_shortage(const struct ot_plan_request *rq, const struct shortage *shortage) {
    size_t gpu = shortage->least[OT_TIER_GPU], host = shortage->least[OT_TIER_HOST];
    size_t have_gpu = rq->budget_bytes[OT_TIER_GPU], have_host = rq->budget_bytes[OT_TIER_HOST];
    long long tokens = rq->sequence_tokens, sequences = rq->step_sequences;
    const char *instead = rq->train ? "lower --tokens-per-step or --seq-len, or leave --home, --slots, "
                                      "--recompute, --micro-batch and --optimizer-engine to the program"
                                    : "or shorten the sequences";
    if (gpu != SIZE_MAX && host != SIZE_MAX)
        return ot_fail(OT_E_BUDGET,
                       "gpu or host memory: the smallest plan for %lld-token sequences needs %.1f MiB of gpu "
                       "memory where the budget is %.1f MiB, short by %.1f MiB, or %.1f MiB of host memory "
                       "where the budget is %.1f MiB, short by %.1f MiB: give --gpu-mem %zuM or --host-mem "
                       "%zuM, %s",
                       tokens, mib_needed(gpu), mib_there(have_gpu), mib_needed(gpu - have_gpu),
                       mib_needed(host), mib_there(have_host), mib_needed(host - have_host), whole_mib(gpu),
                       whole_mib(host), instead);
    if (gpu != SIZE_MAX)
        return ot_fail(OT_E_BUDGET,
                       "gpu memory: the smallest plan for %lld-token sequences needs %.1f MiB, the budget is "
                       "%.1f MiB, short by %.1f MiB: give --gpu-mem %zuM, %s",
                       tokens, mib_needed(gpu), mib_there(have_gpu), mib_needed(gpu - have_gpu),
                       whole_mib(gpu), instead);
    if (host != SIZE_MAX)
        return ot_fail(OT_E_BUDGET,
                       "host memory: what the gpu budget leaves to the host needs %.1f MiB, the budget is "
                       "%.1f MiB, short by %.1f MiB: give --host-mem %zuM, or a larger --gpu-mem so that "
                       "more lives there",
                       mib_needed(host), mib_there(have_host), mib_needed(host - have_host), whole_mib(host));
    gpu = shortage->both.bytes[OT_TIER_GPU], host = shortage->both.bytes[OT_TIER_HOST];
    return ot_fail(
        OT_E_BUDGET,
        "gpu and host memory: the smallest plan for steps of %lld sequences of %lld tokens needs %.1f and "
        "%.1f MiB, the budgets are %.1f and %.1f MiB, short by %.1f and %.1f MiB: give --gpu-mem %zuM and "
        "--host-mem %zuM, %s",
        sequences, tokens, mib_needed(gpu), mib_needed(host), mib_there(have_gpu), mib_there(have_host),
        mib_needed(gpu - have_gpu), mib_needed(host - have_host), whole_mib(gpu), whole_mib(host), instead);
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
static int count_fitting(const struct ot_plan_request *rq, struct candidate *c, struct ot_plan *plan,
                         enum ot_tier tier, int low, int high) {
    int fitting = 0, unknown = high - low + 1;
    while (unknown > 0) {
        int tried = (unknown + 1) / 2;
        struct need need;
        c->resident = tier == OT_TIER_GPU ? low + fitting + tried - 1 : high - fitting - tried + 1;
        OT_TRY(measure(rq, c, plan, &need));
        bool fits = has_room(rq, &need, tier);
        fitting += fits ? tried : 0;
        unknown = fits ? unknown - tried : tried - 1;
    }
    return fitting;
}

/* Sets c->resident to the most slabs that may live on the device. 1: found, 0: nothing fits, < 0: no plan at
 * all. */
static int find_resident(const struct ot_plan_request *rq, struct candidate *c, struct ot_plan *plan,
                         struct shortage *shortage) {
    for (int low, high = rq->chain->n_slabs; high >= 0; high = low - 1) {
        int gpu, host;
        low = stretch_start(rq->chain, high);
        OT_TRY(gpu = count_fitting(rq, c, plan, OT_TIER_GPU, low, high));
        OT_TRY(host = count_fitting(rq, c, plan, OT_TIER_HOST, low, high));
        if (gpu + host > high - low + 1) {
            c->resident = low + gpu - 1;
            return 1;
        }
        /* The least of the device at all, of the host beside this device, and of the device beside this
         * host. */
        int least[3] = {low, gpu > 0 ? low + gpu - 1 : low, host > 0 ? high - host + 1 : low};
        for (int i = 0; i < 3; i++) {
            c->resident = least[i];
            OT_TRY(note_shortage(rq, c, plan, shortage));
        }
    }
    return 0;
}

/* Forced homes and shares may let nothing be. */
static bool is_all_resident(const struct ot_plan *plan) {
    bool resident = plan->activations == OT_HOME_GPU && !streams_state(plan) &&
                    ot_plan_count_tiles(plan, OT_TILE_CPU) == 0;
    for (int s = 0; s < plan->n_slabs; s++)
        resident = resident && plan->slabs[s].weights == OT_HOME_GPU;
    return resident;
}

/* Smaller micro-batches, down to a sound size, if with one of them the whole model can live on the device:
 * that saves more than larger matrices do. 1: found, 0: none, < 0: no plan at all. */
static int find_all_resident(const struct ot_plan_request *rq, int64_t micro, int64_t least, int kept,
                             struct candidate *c, struct ot_plan *plan) {
    int64_t sound = (MICRO_TOKENS_SOUND + rq->sequence_tokens - 1) / rq->sequence_tokens;
    least = least > sound ? least : sound;
    for (;; micro = micro / 2) {
        struct need need;
        *c = (struct candidate){.micro_sequences = micro,
                                .resident = rq->chain->n_slabs,
                                .kept_blocks = kept,
                                .slots = rq->slots ? rq->slots : 1,
                                .activations = OT_HOME_GPU};
        OT_TRY(measure(rq, c, plan, &need));
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
static int find_candidate(const struct ot_plan_request *rq, struct candidate *c, struct ot_plan *plan) {
    struct shortage shortage = {{SIZE_MAX, SIZE_MAX}, {{SIZE_MAX, SIZE_MAX}}};
    int64_t step = rq->step_sequences, least = (step + most_micro(rq->chain) - 1) / most_micro(rq->chain);
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
                *c = (struct candidate){.micro_sequences = micro,
                                        .kept_blocks = kept,
                                        .slots = slots,
                                        .activations = (enum ot_home)home};
                int rc = find_resident(rq, c, plan, &shortage);
                if (rc != 0)
                    return rc < 0 ? rc : 0;
            }
        if (rq->micro_sequences || micro <= least)
            return describe_shortage(rq, &shortage);
    }
}

/* Sets *count, of what the candidate may have more of, to the most up to `high` that there is room for beside
 * what was chosen. */
static int grow(const struct ot_plan_request *rq, struct candidate *c, struct ot_plan *plan, int *count,
                int high) {
    int low = 0;
    while (low < high) {
        struct need need;
        *count = low + (high - low + 1) / 2;
        OT_TRY(measure(rq, c, plan, &need));
        if (has_room(rq, &need, OT_TIER_GPU))
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
            return ot_fail(OT_E_USAGE, "--optimizer-engine: %s cannot have a share of %g: give 0 to 1", name,
                           shares[e]);
        enum ot_home home = e == OT_TILE_GPU ? OT_HOME_GPU : OT_HOME_HOST;
        if (shares[e] > 0 && state != OT_HOME_AUTO && state != home)
            return ot_fail(
                OT_E_USAGE,
                "--optimizer-engine: %s updates state that lives on the %s, --home state=%s puts it "
                "elsewhere; give one of them",
                name, ot_tier_name((enum ot_tier)home), ot_tier_name((enum ot_tier)state));
        sum += shares[e];
    }
    if (has_shares(shares) && fabs(sum - 1) > 1e-6)
        return ot_fail(OT_E_USAGE, "--optimizer-engine: the shares add up to %g, not to 1", sum);
    return 0;
}

/* A share that is given is not rounded away. */
static int check_counts(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    int64_t counts[OT_TILE_ENGINES], total = count_all_tiles(rq->chain, plan);
    count_shares(rq, total, counts);
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        if (rq->shares[e] > 0 && counts[e] == 0)
            return ot_fail(
                OT_E_USAGE,
                "--optimizer-engine: a share of %g for %s is none of this model's %lld tiles: give "
                "more or leave it out",
                rq->shares[e], ot_tile_engine_name((enum ot_tile_engine)e), (long long)total);
    return 0;
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

int ot_plan_make(const struct ot_plan_request *rq, struct ot_plan *out) {
    struct candidate c;
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
    out->tile_params = choose_tile(rq->chain);
    OT_TRY_GOTO(check_counts(rq, out), rc, out_failed);
    OT_TRY_GOTO(find_candidate(rq, &c, out), rc, out_failed);
    if (streams_state(out))
        OT_TRY_GOTO(grow(rq, &c, out, &c.waiting, rq->chain->n_slabs), rc, out_failed);
    if (rq->train && rq->recompute < 0)
        OT_TRY_GOTO(grow(rq, &c, out, &c.kept_blocks, rq->chain->n_blocks - 2), rc, out_failed);
    OT_TRY_GOTO(build(rq, &c, out), rc, out_failed);
    return 0;
out_failed:
    ot_plan_free(out);
    return rc;
}

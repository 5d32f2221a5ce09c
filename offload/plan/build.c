/* Makes a plan from a candidate. */
#include "offload/plan/build.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/used_parts.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* Counts the streamed tiles among the first n shared ones. The stream engine and the pool alternate on
 * `shared` tiles, and `streamed` of these are streamed. */
static int64_t streamed_of_first(int64_t n, int64_t streamed, int64_t shared) {
    return shared ? (n * streamed + shared / 2) / shared : 0;
}

int64_t ot_plan_all_tiles(const struct ot_chain *chain, const struct ot_plan *plan) {
    int64_t total = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        total += ot_slab_trained_tiles(chain, plan, s);
    return total;
}

void ot_plan_count_fractions(const struct ot_plan_request *rq, int64_t total,
                             int64_t counts[OT_TILE_ENGINES]) {
    int64_t gpu = llround((double)total * rq->fractions[OT_TILE_GPU]);
    int64_t device = llround((double)total * (rq->fractions[OT_TILE_GPU] + rq->fractions[OT_TILE_STREAM]));
    counts[OT_TILE_GPU] = gpu;
    counts[OT_TILE_STREAM] = device - gpu;
    counts[OT_TILE_CPU] = total - device;
}

bool ot_plan_has_fractions(const double fractions[OT_TILE_ENGINES]) {
    return fractions[OT_TILE_GPU] != 0 || fractions[OT_TILE_STREAM] != 0 || fractions[OT_TILE_CPU] != 0;
}

static void deal_shares(const struct ot_plan_request *rq, struct ot_plan *plan) {
    int64_t counts[OT_TILE_ENGINES], before = 0;
    ot_plan_count_fractions(rq, ot_plan_all_tiles(rq->chain, plan), counts);
    int64_t gpu = counts[OT_TILE_GPU], streamed = counts[OT_TILE_STREAM];
    for (int s = 0; s < plan->n_slabs; s++) {
        int64_t end = before + ot_slab_trained_tiles(rq->chain, plan, s);
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
    if (rq->train && ot_plan_has_fractions(rq->fractions)) {
        deal_shares(rq, plan);
        return;
    }
    for (int s = 0, turn = 0; rq->train && s < plan->n_slabs; s++) {
        if (rq->chain->slabs[s].frozen)
            continue;
        bool gpu = rq->state != OT_HOME_AUTO ? rq->state == OT_HOME_GPU : turn++ < c->resident;
        int n = ot_slab_tiles(rq->chain, plan, s);
        plan->slabs[s].tiles[OT_TILE_GPU] = gpu ? n : 0;
        plan->slabs[s].tiles[OT_TILE_CPU] = gpu ? 0 : n;
    }
}

/* Between two micro-batches of a block, the stream engine updates a part of the next slab's tiles. Two parts
 * need slots: the part that is updated and the part that is copied in meanwhile. */
static int wanted_state_slots(const struct ot_plan *plan, int slots) {
    int64_t most = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        most = ot_max(plan->slabs[s].tiles[OT_TILE_STREAM], most);
    int64_t parts = 2 * ((most + plan->max_micro - 1) / plan->max_micro);
    int64_t wanted = slots > 2 && parts > slots ? parts : slots;
    return most == 0 ? 0 : wanted < OT_PLAN_MAX_STATE_SLOTS ? (int)wanted : OT_PLAN_MAX_STATE_SLOTS;
}

/* The most uses of a slab of this kind. */
static int most_uses(const struct ot_chain *chain, enum ot_slot_kind kind) {
    int most = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_slot_kind(chain, s) == kind && ot_slab_uses(chain, s) > most)
            most = ot_slab_uses(chain, s);
    return most;
}

static void set_slots(const struct ot_chain *chain, const struct ot_plan_request *rq,
                      const struct ot_candidate *c, const struct ot_slot_needs *needs, struct ot_plan *plan) {
    for (enum ot_slot_kind k = 0; k < OT_SLOT_KINDS; k++) {
        bool edge = ot_slot_kind_is_edge(k), tied = edge && ot_chain_is_tied(chain, k);
        bool grads = needs->grads >> k & 1, moves = needs->moved >> k & 1;
        int needed = edge ? 1 + tied : 1; /* a tied head works with two edge slabs at once */
        int wanted = edge && !rq->slots ? needed : c->slots;
        wanted = ot_max(wanted, needed);
        bool streamed = needs->plain >> k & 1, decoded = needs->decoded >> k & 1;
        plan->weight_slots[k] = streamed ? wanted : decoded ? needed : 0;
        plan->encoded_slots[k] = needs->encoded >> k & 1 ? wanted : 0;
        /* The gradients of two layers are in flight, and of one edge slab. A tied head works with two edge
         * slabs at once, and a tied slab needs a buffer for each of its two uses. Each block at work needs
         * all depths of its tree. */
        int sums = ot_shard_accumulators(&plan->shard);
        bool shared = k == OT_SLOT_SHARED; /* a buffer for each use */
        plan->grad_slots[k] = !grads         ? 0
                              : shared       ? most_uses(chain, k) * sums
                              : edge         ? (1 + tied) * sums
                              : c->slots > 1 ? 1 + sums
                                             : sums;
        bool both = edge && plan->shard.world && tied; /* both uses cross (plan.h) */
        plan->exchange_slots[k] = !moves || !ot_plan_exchanges(plan) ? 0 : 1 + both;
        plan->grad_out_slots[k] = !moves || chain->dtype == OT_F32 ? 0 : edge || c->slots == 1 ? 1 : 2;
    }
    plan->state_slots = wanted_state_slots(plan, c->slots);
}

/* Sets the host slots of data on nvme. There is one slot more than on the device, so that a read is under way
 * while the slab before it is copied. There are no more slots than data to pass. */
static void set_nvme_slots(const struct ot_chain *chain, const struct ot_candidate *c, unsigned host,
                           struct ot_plan *plan) {
    for (enum ot_slot_kind k = 0; k < OT_SLOT_KINDS; k++) {
        bool passes = host >> k & 1;
        int wanted = ot_slot_kind_is_edge(k) || c->slots == 1 ? 1 : c->slots + 1;
        plan->host_weight_slots[k] = !passes ? 0 : ot_min(wanted, OT_PLAN_MAX_SLOTS);
    }
    int64_t tiles = ot_plan_passing_tiles(plan);
    plan->tile_slots = !plan->train ? 0 : tiles < c->tile_slots ? (int)tiles : c->tile_slots;
    int64_t grads = ot_plan_spills_grads(chain, plan) ? ot_plan_all_tiles(chain, plan) : 0;
    plan->host_grad_slots = !plan->train ? 0 : grads < c->grad_slots ? (int)grads : c->grad_slots;
    plan->host_activation_slots =
        plan->activation_slots > 0 && plan->activations == OT_HOME_NVME ? plan->activation_slots + 2 : 0;
}

/* Sets the homes of a slab. turn: its number in the order of build.h. */
static void set_slab_homes(const struct ot_plan_request *rq, const struct ot_candidate *c, int turn,
                           bool keeps_weights, struct ot_slab_plan *slab) {
    int n = rq->chain->n_slabs;
    bool may_spill = rq->budget_bytes[OT_TIER_NVME] > 0;
    bool state = may_spill && turn >= n - c->spilled, grads = may_spill && turn >= n - (c->spilled - n - 1);
    bool weights = may_spill && turn >= n - (c->spilled - 2 * n - 1);
    enum ot_home home = turn < c->resident ? OT_HOME_GPU : weights ? OT_HOME_NVME : OT_HOME_HOST;
    home = keeps_weights ? OT_HOME_GPU : home;
    slab->weights = rq->weights != OT_HOME_AUTO ? rq->weights : home;
    home = grads ? OT_HOME_NVME : OT_HOME_HOST;
    bool summing = turn < c->summing || (c->sums_stay && turn < c->resident);
    slab->sums = rq->sums != OT_HOME_AUTO ? rq->sums : summing ? OT_HOME_GPU : home;
    home = turn < c->waiting ? OT_HOME_GPU : home;
    slab->grads = rq->grads != OT_HOME_AUTO ? rq->grads : home;
    slab->state =
        rq->state == OT_HOME_NVME || (rq->state == OT_HOME_AUTO && state) ? OT_HOME_NVME : OT_HOME_HOST;
}

/* Sets the homes of all slabs and of the activations. A home that the request forces wins. */
static void set_homes(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    int n = rq->chain->n_slabs, turn = 0;
    bool may_spill = rq->budget_bytes[OT_TIER_NVME] > 0;
    for (int frozen = 0; frozen < 2; frozen++)
        for (int s = 0; s < n; s++)
            if (rq->chain->slabs[s].frozen == frozen)
                set_slab_homes(rq, c, turn++, ot_plan_keeps_weights(plan), &plan->slabs[s]);
    enum ot_home activations =
        c->activations == OT_HOME_HOST && may_spill && c->spilled > n ? OT_HOME_NVME : c->activations;
    plan->activations = rq->activations != OT_HOME_AUTO ? rq->activations : activations;
}

/* The blocks that keep activations, and the slots for those that leave the device. */
static void set_kept(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    bool forced = rq->keep != OT_KEEP_CHOSEN;
    enum ot_keep_level level = forced ? (enum ot_keep_level)rq->keep : rq->kept_level;
    level = level == OT_KEEP_NONE && !forced ? OT_KEEP_PRODUCTS : level;
    enum ot_tier off = rq->kept == OT_HOME_NVME ? OT_TIER_NVME : OT_TIER_HOST;
    int own = ot_plan_middle_blocks(rq->chain, plan, 1), on_gpu = ot_min(c->kept_blocks, own);
    int others = own - on_gpu;
    memset(plan->kept, 0, sizeof plan->kept);
    plan->kept_slots = plan->host_kept_slots = 0;
    if (!rq->train || level == OT_KEEP_NONE || others < 0)
        return;
    plan->kept[OT_TIER_GPU] = (struct ot_kept_blocks){level, on_gpu};
    plan->kept[off] = (struct ot_kept_blocks){level, forced ? others : (int)lround(rq->kept_off * others)};
    plan->kept_slots = ot_plan_spills_kept(plan) ? c->slots : 0;
    plan->host_kept_slots = ot_plan_kept_blocks(plan, OT_TIER_NVME) > 0 ? plan->kept_slots + 2 : 0;
}

/* The cache of generation. While a block computes, the next cache comes in through another slot. A slot on
 * the host is in use for longer, until its new rows are on the disk. */
static void set_cache(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    bool passes = rq->cache_rows > 0 && rq->cache != OT_HOME_GPU;
    plan->cache_rows = rq->cache_rows;
    plan->cache = rq->cache_rows > 0 ? rq->cache : OT_HOME_GPU;
    plan->cache_slots = passes ? c->cache_slots : 0;
    plan->host_cache_slots = passes && rq->cache == OT_HOME_NVME ? c->cache_slots + 1 : 0;
}

int ot_candidate_micro(const struct ot_plan_request *rq, int64_t micro_sequences) {
    int64_t micro = (rq->step_sequences + micro_sequences - 1) / micro_sequences;
    return (int)(ot_shard_own_groups(&rq->shard) * ot_shard_group_micro(&rq->shard, micro));
}

/* A call of transfers is staged as a whole, unless the ranks have memory in common for it. */
static void set_staging(const struct ot_plan_request *rq, struct ot_plan *plan) {
    bool stages = ot_plan_has_stages(plan);
    plan->crosses = stages && rq->crosses;
    bool staged = stages && !rq->crosses && rq->staging_bytes > 0;
    size_t call = staged ? ot_stages_bytes_at_once(rq->chain, plan) : 0;
    plan->staging_bytes = ot_max(rq->staging_bytes, call);
}

static void set_fields(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    const struct ot_chain *chain = rq->chain;
    set_homes(rq, c, plan);
    deal_tiles(rq, c, plan);
    plan->sections = c->sections > 1 ? c->sections : 0;
    plan->micro_tokens = plan->sections ? ot_plan_section_tokens(rq, plan->sections)
                                        : c->micro_sequences * rq->sequence_tokens;
    plan->key_groups = plan->sections && rq->key_groups > 1 ? rq->key_groups : 0;
    plan->max_micro = ot_candidate_micro(rq, c->micro_sequences) * ot_plan_sections(plan);
    ot_plan_set_rounds(plan, c->rounds);
    set_kept(rq, c, plan);
    set_cache(rq, c, plan);
    set_staging(rq, plan);
    plan->shadow_frames = c->shadow_frames;
    bool leave = rq->train && plan->activations != OT_HOME_GPU;
    plan->activation_slots = leave ? c->slots : 0;
    plan->boundaries_pass = leave && rq->boundaries_pass;
    struct ot_slot_needs needs = ot_plan_slot_needs(chain, plan);
    set_slots(chain, rq, c, &needs, plan);
    set_nvme_slots(chain, c, needs.host, plan);
}

/* ---- what was measured before ---- */

uint64_t ot_plan_print(const struct ot_plan *p) {
    uint64_t hash = 0xcbf29ce484222325;
    for (int s = 0; s < p->n_slabs; s++) {
        const struct ot_slab_plan *slab = &p->slabs[s];
        hash = ot_mix(ot_mix(ot_mix(ot_mix(hash, slab->weights), slab->state), slab->grads), slab->sums);
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            hash = ot_mix(hash, slab->tiles[e]);
    }
    for (int k = 0; k < OT_SLOT_KINDS; k++) {
        hash = ot_mix(ot_mix(hash, p->weight_slots[k]), p->host_weight_slots[k]);
        hash = ot_mix(ot_mix(ot_mix(hash, p->grad_slots[k]), p->grad_out_slots[k]), p->encoded_slots[k]);
    }
    hash = ot_mix(ot_mix(ot_mix(hash, p->state_slots), p->tile_slots), p->host_activation_slots);
    hash = ot_mix(ot_mix(hash, p->host_grad_slots), p->fetch_used);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        hash = ot_mix(ot_mix(hash, p->kept[t].level), p->kept[t].blocks);
    hash = ot_mix(ot_mix(ot_mix(hash, p->activations), p->activation_slots), p->kept_slots);
    hash = ot_mix(ot_mix(ot_mix(hash, p->first_round), p->round_micro), p->shadow_frames);
    hash = ot_mix(ot_mix(hash, p->shard.mode), p->shard.rank);
    hash = ot_mix(ot_mix(hash, p->shard.turn_blocks), p->shard.head_layers);
    hash = ot_mix(ot_mix(hash, p->shard.late_layers), p->shard.late_percent);
    for (int i = 0; p->shard.mode == OT_SHARD_STAGES && i < ot_shard_stages(&p->shard); i++)
        hash = ot_mix(hash, p->shard.layers[i]);
    hash = ot_mix(ot_mix(ot_mix(hash, p->shard.in_flight), p->shard.one_copy), p->shard.stages);
    hash = ot_mix(ot_mix(ot_mix(hash, p->micro_tokens), p->sections), p->boundaries_pass);
    hash = ot_mix(ot_mix(ot_mix(hash, p->cache_rows), p->cache), p->cache_slots);
    hash = ot_mix(hash, p->key_groups);
    return ot_mix(ot_mix(hash, p->max_micro), p->tile_params);
}

/* The later of two plans with the same place is remembered. */
enum { MEMO_PLACES = 1 << 14 };
struct ot_plan_memo {
    struct {
        uint64_t print; /* 0: free */
        size_t bytes[OT_TIER_COUNT];
    } places[MEMO_PLACES];
    struct ot_workspace workspace; /* of the last plan */
};

struct ot_plan_memo *ot_plan_memo_open(void) {
    return calloc(1, sizeof(struct ot_plan_memo));
}

void ot_plan_memo_close(struct ot_plan_memo *memo) {
    free(memo);
}

static int finish(const struct ot_plan_request *rq, struct ot_plan *plan) {
    if (rq->memo && rq->memo->workspace.tokens == plan->micro_tokens)
        plan->workspace = rq->memo->workspace;
    OT_TRY(ot_plan_finish(rq->chain, plan));
    if (rq->memo)
        rq->memo->workspace = plan->workspace;
    return 0;
}

int ot_candidate_build(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan) {
    set_fields(rq, c, plan);
    return finish(rq, plan);
}

int ot_candidate_measure(const struct ot_plan_request *rq, const struct ot_candidate *c, struct ot_plan *plan,
                         size_t bytes[OT_TIER_COUNT]) {
    set_fields(rq, c, plan);
    uint64_t print = rq->memo ? ot_plan_print(plan) | 1 : 0;
    size_t place = (print ^ print >> 32) % MEMO_PLACES;
    if (rq->memo && rq->memo->places[place].print == print) {
        memcpy(bytes, rq->memo->places[place].bytes, sizeof rq->memo->places[place].bytes);
        return 0;
    }
    OT_TRY(finish(rq, plan));
    for (int t = 0; t < OT_TIER_COUNT; t++)
        bytes[t] = ot_ledger_total(&plan->ledger, (enum ot_tier)t);
    if (rq->memo) {
        rq->memo->places[place].print = print;
        memcpy(rq->memo->places[place].bytes, bytes, sizeof rq->memo->places[place].bytes);
    }
    return 0;
}

/* ---- what follows from the request alone ---- */

/* Parameters of a tile, the CPU pool's unit of work: 2 Mi parameters are 52 MB of traffic. That takes a few
 * milliseconds, far more than handing over the work. */
enum { TILE_PARAMS = 2 << 20 };

/* Parameters of a tile of all trained slabs in n tiles. */
int64_t ot_plan_tile_of(const struct ot_chain *chain, int64_t n) {
    int64_t total = 0;
    for (int s = 0; s < chain->n_slabs; s++)
        total += chain->slabs[s].frozen ? 0 : chain->slabs[s].n_params;
    return (total / n / OT_SLAB_ALIGN_PARAMS + 1) * OT_SLAB_ALIGN_PARAMS;
}

int64_t ot_plan_choose_tile(const struct ot_chain *chain) {
    int64_t tile = ot_plan_tile_of(chain, OT_PLAN_MOST_TILES);
    return ot_max(tile, TILE_PARAMS);
}

/* A pass that needs at most half of the parts: the bytes that stay at home are worth more than the time that
 * fetches wait for the choice, because such a pass has few tokens and computes little. */
bool ot_plan_fetches_used(const struct ot_plan_request *rq) {
    const struct ot_chain *chain = rq->chain;
    int64_t micro = rq->micro_sequences ? rq->micro_sequences : rq->step_sequences;
    double all = rq->pass_tokens ? (double)rq->pass_tokens : (double)rq->sequence_tokens * (double)micro;
    int64_t tokens = all < INT32_MAX ? (int64_t)all : INT32_MAX; /* enough to need all parts */
    double used = 0, parts = 0;
    if (rq->fetch != OT_FETCH_CHOSEN)
        return rq->fetch == OT_FETCH_USED_PARTS;
    for (int b = 0; b < chain->n_blocks && !rq->train && rq->shard.mode != OT_SHARD_STAGES; b++)
        if (ot_block_parts(chain, b) > 0) {
            parts += ot_block_parts(chain, b);
            used += ot_block_used_parts(chain, b, tokens);
        }
    return used > 0 && used <= parts / 2;
}

/* ---- request ---- */

/* Checks a request for a plan. */

int ot_plan_check_fractions(const double fractions[OT_TILE_ENGINES], enum ot_home state) {
    double sum = 0;
    for (int e = 0; e < OT_TILE_ENGINES; e++) {
        const char *name = ot_tile_engine_name((enum ot_tile_engine)e);
        if (!(fractions[e] >= 0 && fractions[e] <= 1))
            return ot_fail(OT_E_USAGE, "%s cannot have a share of %g: give 0 to 1", name, fractions[e]);
        enum ot_home home = e == OT_TILE_GPU ? OT_HOME_GPU : OT_HOME_HOST;
        bool elsewhere = state != OT_HOME_AUTO && (state == OT_HOME_GPU) != (home == OT_HOME_GPU);
        if (fractions[e] > 0 && elsewhere)
            return ot_fail(OT_E_USAGE, "%s updates state that lives on the %s, not on the %s", name,
                           ot_tier_name((enum ot_tier)home), ot_tier_name((enum ot_tier)state));
        sum += fractions[e];
    }
    if (ot_plan_has_fractions(fractions) && fabs(sum - 1) > 1e-6)
        return ot_fail(OT_E_USAGE, "the shares add up to %g, not to 1", sum);
    return 0;
}

int ot_plan_check_counts(const struct ot_plan_request *rq, const struct ot_plan *plan) {
    int64_t counts[OT_TILE_ENGINES], total = ot_plan_all_tiles(rq->chain, plan);
    ot_plan_count_fractions(rq, total, counts);
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        if (rq->fractions[e] > 0 && counts[e] == 0)
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_OPTIMIZER_SHARE,
                                 "a share of %g for %s is less than one of this model's %lld tiles",
                                 rq->fractions[e], ot_tile_engine_name((enum ot_tile_engine)e),
                                 (long long)total);
    return 0;
}

int ot_plan_check_request(const struct ot_plan_request *rq) {
    if (rq->sequence_tokens < 1 || rq->step_sequences < 1 || rq->micro_sequences < 0)
        return ot_fail(OT_E_USAGE, "a step of %lld sequences of %lld tokens, or its micro-batch, is empty",
                       (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (rq->step_sequences > INT32_MAX / rq->sequence_tokens)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STEP_TOKENS,
                             "%lld sequences of %lld tokens are more than 2^31 tokens a step",
                             (long long)rq->step_sequences, (long long)rq->sequence_tokens);
    if (!ot_plan_may_cut(rq, rq->sections))
        return ot_fail_cause(
            OT_E_USAGE, OT_CAUSE_SECTIONS,
            rq->chain->section_align > 0 && !rq->chain->compares
                ? "sequences of %lld tokens cannot be %d sections, which are micro-batches of a "
                  "multiple of %lld tokens"
                : "sequences of %lld tokens cannot be %d sections: rows of pairs, comparisons "
                  "and NEFTune's noise need whole rows",
            (long long)rq->sequence_tokens, rq->sections, (long long)rq->chain->section_align);
    if (rq->slots < 0 || rq->slots > OT_PLAN_MAX_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d weight slots of each kind; give 1 to %d", rq->slots,
                       OT_PLAN_MAX_SLOTS);
    if (rq->tile_params < 0 || rq->tile_params % OT_SLAB_ALIGN_PARAMS != 0)
        return ot_fail(OT_E_USAGE, "plan: the %lld parameters of a tile are not a multiple of %d",
                       (long long)rq->tile_params, OT_SLAB_ALIGN_PARAMS);
    if (rq->extra_device_bytes < 0 || rq->extra_host_bytes < 0)
        return ot_fail(OT_E_USAGE,
                       "plan: cannot reserve %lld bytes of device memory and %lld bytes of host memory",
                       (long long)rq->extra_device_bytes, (long long)rq->extra_host_bytes);
    if (rq->cache_rows < 0 || rq->cache_rows > INT32_MAX)
        return ot_fail(OT_E_USAGE, "plan: texts of %lld tokens have no keys and values",
                       (long long)rq->cache_rows);
    OT_TRY(ot_shard_check(&rq->shard));
    return ot_plan_check_fractions(rq->fractions, rq->state);
}

/* ---- refuse ---- */

/* Words the error of a request that has no plan: which tier is short, and by how much. It names no option,
 * because the caller words the cure. */

enum { SIZE_BYTES = 32 };
static const size_t MIB = (size_t)1 << 20, BIG = (size_t)10 << 30;

/* Writes a size in the unit that suits `of`: MiB below 10 GiB, otherwise GiB. Rounds a need up to a tenth and
 * a budget down, so that a shortage never reads as zero. */
static const char *size_text(size_t bytes, size_t of, bool up, char text[SIZE_BYTES]) {
    size_t unit = of >= BIG ? MIB << 10 : MIB;
    double tenths = (double)(bytes / unit * 10 + (bytes % unit * 10 + (up ? unit - 1 : 0)) / unit);
    snprintf(text, SIZE_BYTES, "%.1f %s", tenths / 10, of >= BIG ? "GiB" : "MiB");
    return text;
}

/* "27.4 GiB of gpu memory, but the budget is 22.7 GiB, short by 4.7 GiB" */
static int put(char *line, size_t bytes, const struct ot_plan_request *rq, enum ot_tier tier, size_t need) {
    static const char *const what[] = {"gpu memory", "host memory", "space on nvme"};
    char needs[SIZE_BYTES], has[SIZE_BYTES], lacks[SIZE_BYTES];
    size_t have = rq->budget_bytes[tier], lack = need > have ? need - have : 0;
    return snprintf(line, bytes, "%s of %s, but the budget is %s, short by %s",
                    size_text(need, need, true, needs), what[tier], size_text(have, need, false, has),
                    size_text(lack, need, true, lacks));
}

static int refuse_together(const struct ot_plan_request *rq, const size_t together[OT_TIER_COUNT]) {
    char lines[OT_TIER_COUNT][200] = {"", "", ""};
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (together[t] > rq->budget_bytes[t])
            put(lines[t], sizeof lines[t], rq, (enum ot_tier)t, together[t]);
    const char *gpu = lines[OT_TIER_GPU], *host = lines[OT_TIER_HOST], *nvme = lines[OT_TIER_NVME];
    return ot_fail(OT_E_BUDGET,
                   "gpu and host memory: the smallest plan for steps of %lld sequences of %lld tokens needs "
                   "%s%s%s%s%s",
                   (long long)rq->step_sequences, (long long)rq->sequence_tokens, gpu,
                   *gpu && *host ? ", and " : "", host, (*gpu || *host) && *nvme ? ", and " : "", nvme);
}

int ot_plan_refuse(const struct ot_plan_request *rq, const struct ot_shortage *shortage) {
    const size_t *alone = shortage->alone;
    char gpu[200], host[200], nvme[200];
    put(gpu, sizeof gpu, rq, OT_TIER_GPU, alone[OT_TIER_GPU]);
    put(host, sizeof host, rq, OT_TIER_HOST, alone[OT_TIER_HOST]);
    put(nvme, sizeof nvme, rq, OT_TIER_NVME, alone[OT_TIER_NVME]);
    if (alone[OT_TIER_NVME] && rq->budget_bytes[OT_TIER_NVME] == 0)
        return ot_fail(OT_E_BUDGET, "nvme: no disk is given, but the plan needs %s", nvme);
    if (alone[OT_TIER_NVME])
        return ot_fail(OT_E_BUDGET, "nvme: the data that does not fit gpu and host memory needs %s", nvme);
    if (alone[OT_TIER_GPU] && alone[OT_TIER_HOST])
        return ot_fail(OT_E_BUDGET,
                       "gpu or host memory: the smallest plan for %lld-token sequences needs %s, or %s",
                       (long long)rq->sequence_tokens, gpu, host);
    if (alone[OT_TIER_GPU])
        return ot_fail(OT_E_BUDGET, "gpu memory: the smallest plan for %lld-token sequences needs %s",
                       (long long)rq->sequence_tokens, gpu);
    if (alone[OT_TIER_HOST])
        return ot_fail(OT_E_BUDGET, "host memory: the data that does not fit gpu memory needs %s", host);
    return refuse_together(rq, shortage->together);
}

/* Checks that the fields of a plan agree with each other, and computes the ledger from them. */
#include <limits.h>

#include "offload/plan/build.h"
#include "offload/plan/shadow_updates.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* The most forward passes of micro-batches through blocks in a step: 480 micro-batches of a 7B model. Each
 * pass is two to four tasks. Checking the order of these tasks takes 0.5 to 2 GB. */
enum { MOST_PASSES = 1 << 14 };
/* A section in key groups is more tasks: for each group, keys in, attention, keys out in forward; as many in
 * KEYS, but nothing comes in; and in backward attention with its keys again, then attention with keys and
 * sums in, and sums out. The tasks around them are few. */
enum { TASKS_OF_PASS = 4, TASKS_OF_GROUP = 11, TASKS_OF_SECTION = 10 };

struct ot_slot_needs ot_plan_slot_needs(const struct ot_chain *chain, const struct ot_plan *plan) {
    struct ot_slot_needs needs = {0};
    for (int s = 0; s < chain->n_slabs; s++) {
        unsigned kind = 1u << ot_slab_slot_kind(chain, s);
        if (!ot_slab_is_here(chain, plan, s))
            continue;
        bool streamed = ot_slab_is_streamed(plan, s), encoded = ot_slab_is_encoded(chain, s);
        needs.plain |= streamed && !encoded ? kind : 0;
        needs.encoded |= streamed && encoded ? kind : 0;
        needs.decoded |= encoded ? kind : 0;
        needs.host |= ot_slab_weights_pass(plan, s) ? kind : 0;
        if (!plan->train || chain->slabs[s].frozen || needs.grads & kind ||
            ot_slab_grad_in_place(chain, plan, s))
            continue;
        needs.moved |= kind;
        needs.grads |= ot_slab_sum_stays(chain, plan, s) ? 0 : kind;
    }
    return needs;
}

bool ot_plan_streams_state(const struct ot_plan *plan) {
    return ot_plan_count_tiles(plan, OT_TILE_STREAM) > 0;
}

bool ot_chain_is_tied(const struct ot_chain *chain, enum ot_slot_kind kind) {
    for (int s = 0; s < chain->n_slabs; s++)
        if (ot_slab_slot_kind(chain, s) == kind && ot_slab_uses(chain, s) > 1)
            return true;
    return false;
}

int ot_chain_most_micro(const struct ot_chain *chain) {
    return chain->n_blocks < MOST_PASSES ? MOST_PASSES / chain->n_blocks : 1;
}

int ot_chain_most_key_groups(const struct ot_chain *chain, int max_micro) {
    int64_t most = (int64_t)TASKS_OF_PASS * MOST_PASSES / ((int64_t)chain->n_blocks * max_micro);
    return (int)ot_max((most - TASKS_OF_SECTION) / TASKS_OF_GROUP, 0);
}

/* needed: bit k is kind k. */
static int check_slots(const char *what, const int slots[OT_SLOT_KINDS], unsigned needed, int most) {
    for (enum ot_slot_kind k = 0; k < OT_SLOT_KINDS; k++) {
        if (needed >> k & 1 && slots[k] < 1)
            return ot_fail(OT_E_USAGE, "plan: %s need a slot to pass through, but there is no %s slot", what,
                           ot_slot_kind_name(k));
        if (slots[k] < 0 || slots[k] > most)
            return ot_fail(OT_E_USAGE, "plan: %d %s slots for %s; give 1 to %d", slots[k],
                           ot_slot_kind_name(k), what, most);
    }
    return 0;
}

/* Checks that groups and rounds have whole sequences. */
static int check_sections(const struct ot_chain *chain, const struct ot_plan *plan) {
    int n = ot_plan_sections(plan), groups = ot_shard_own_groups(&plan->shard);
    if (n == 1)
        return 0;
    if (chain->section_align == 0 || chain->compares)
        return ot_fail(OT_E_USAGE,
                       "plan: rows of pairs, comparisons and NEFTune's noise cannot be cut into sections");
    if (plan->micro_tokens % chain->section_align != 0 || plan->max_micro % (n * groups) != 0 ||
        plan->first_round % n != 0 || plan->round_micro % n != 0)
        return ot_fail(OT_E_USAGE,
                       "plan: %d micro-batches of %lld tokens, in rounds of %d and %d, do not have whole "
                       "sequences of %d sections of a multiple of %lld tokens",
                       plan->max_micro, (long long)plan->micro_tokens, plan->first_round, plan->round_micro,
                       n, (long long)chain->section_align);
    return 0;
}

static int check_key_groups(const struct ot_chain *chain, const struct ot_plan *plan) {
    int groups = ot_plan_key_groups(plan);
    if (groups == 1)
        return 0;
    if (chain->key_heads < groups || chain->key_heads % groups != 0)
        return ot_fail(
            OT_E_USAGE,
            chain->key_heads > 0
                ? "plan: the %lld heads of keys cannot be divided into %d equal groups"
                : "plan: this model's keys (%lld heads) cannot come in %d groups: rows of pairs and "
                  "dropout of attention need all heads",
            (long long)chain->key_heads, groups);
    if (ot_plan_sections(plan) == 1 || (plan->fetch_used && ot_chain_most_parts(chain) > 0))
        return ot_fail(OT_E_USAGE,
                       "plan: keys come in groups for rows in sections alone, and not between the "
                       "halves of a block that fetches used parts");
    if (groups > ot_chain_most_key_groups(chain, plan->max_micro))
        return ot_fail(
            OT_E_USAGE,
            "plan: a schedule of %d blocks has no room for %d micro-batches with %d groups of keys",
            chain->n_blocks, plan->max_micro, groups);
    return 0;
}

static int check_passing(const struct ot_chain *chain, const struct ot_plan *plan) {
    if (!plan->boundaries_pass)
        return 0;
    if (!plan->train || plan->activations == OT_HOME_GPU || ot_plan_has_stages(plan))
        return ot_fail(OT_E_USAGE, "plan: boundaries pass in training without stages, if their home is the "
                                   "host or nvme");
    if (plan->fetch_used && ot_chain_most_parts(chain) > 0)
        return ot_fail(OT_E_USAGE, "plan: boundaries cannot pass between the halves of a block that fetches "
                                   "used parts");
    return 0;
}

static int check_shape(const struct ot_chain *chain, const struct ot_plan *plan) {
    if (plan->n_slabs != chain->n_slabs)
        return ot_fail(OT_E_USAGE, "plan: it has %d slabs, but the model has %d", plan->n_slabs,
                       chain->n_slabs);
    if (plan->micro_tokens < 1 || plan->max_micro < 1 || plan->tile_params < OT_SLAB_ALIGN_PARAMS ||
        plan->tile_params % OT_SLAB_ALIGN_PARAMS != 0)
        return ot_fail(
            OT_E_USAGE,
            "plan: invalid sizes: micro-batches of %lld tokens, %d of them, tiles of %lld parameters",
            (long long)plan->micro_tokens, plan->max_micro, (long long)plan->tile_params);
    if (plan->first_round < 0 || plan->first_round > plan->max_micro ||
        (plan->first_round > 0 && plan->first_round < plan->max_micro && plan->round_micro < 1))
        return ot_fail(OT_E_USAGE, "plan: %d micro-batches cannot be cut into a round of %d and others of %d",
                       plan->max_micro, plan->first_round, plan->round_micro);
    OT_TRY(check_sections(chain, plan));
    OT_TRY(check_key_groups(chain, plan));
    OT_TRY(check_passing(chain, plan));
    if (plan->shard.in_flight > 1 && plan->first_round != plan->round_micro)
        return ot_fail(OT_E_USAGE, "plan: rounds in flight together are equally long, not %d and %d",
                       plan->first_round, plan->round_micro);
    if (plan->max_micro > ot_chain_most_micro(chain))
        return ot_fail_cause(
            OT_E_USAGE, OT_CAUSE_MICRO_BATCHES,
            "a step of %d micro-batches is too long: a schedule of %d blocks has room for %d",
            plan->max_micro, chain->n_blocks, ot_chain_most_micro(chain));
    if (plan->train && ot_chain_first_trained(chain) == chain->n_blocks)
        return ot_fail(OT_E_USAGE, "plan: every parameter is frozen, so there is nothing to train");
    if (plan->train && chain->dtype == OT_F16 && !plan->clip)
        return ot_fail_cause(
            OT_E_USAGE, OT_CAUSE_UNCLIPPED_FP16,
            "training in fp16 needs clipping: a step whose gradients overflow is skipped as a "
            "whole, so updates must wait for the norm");
    return 0;
}

static int check_tiles(const struct ot_chain *chain, const struct ot_plan *plan) {
    for (int s = 0; s < plan->n_slabs; s++) {
        const int *tiles = plan->slabs[s].tiles;
        int there = plan->train ? ot_slab_trained_tiles(chain, plan, s) : 0;
        if (plan->slabs[s].state == OT_HOME_GPU && tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU] > 0)
            return ot_fail(OT_E_USAGE,
                           "plan: the state of slab '%s' must live on the host or on nvme, where stream and "
                           "cpu update it",
                           chain->slabs[s].name);
        if (tiles[OT_TILE_GPU] < 0 || tiles[OT_TILE_STREAM] < 0 || tiles[OT_TILE_CPU] < 0 ||
            tiles[OT_TILE_GPU] + tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU] != there)
            return ot_fail(
                OT_E_USAGE,
                "plan: gpu %d, stream %d and cpu %d tiles do not add up to the %d tiles of slab '%s'",
                tiles[OT_TILE_GPU], tiles[OT_TILE_STREAM], tiles[OT_TILE_CPU], there, chain->slabs[s].name);
    }
    if (plan->state_slots < 0 || plan->state_slots > OT_PLAN_MAX_STATE_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d slots for streamed state; give 1 to %d", plan->state_slots,
                       OT_PLAN_MAX_STATE_SLOTS);
    if (ot_plan_streams_state(plan) && plan->state_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: state streams through the device, but there is no slot for it");
    return 0;
}

/* Checks that each block has one owner, and that shared slabs belong to the stage of their first block. */
static int check_stages(const struct ot_chain *chain, const struct ot_plan *plan) {
    for (int b = 0; b < chain->n_blocks && ot_plan_has_stages(plan); b++)
        for (int u = 0; u < chain->blocks[b].n_uses; u++) {
            int slab = chain->blocks[b].uses[u].slab, owner = plan->slabs[slab].owner;
            bool borrows = chain->slabs[slab].shared && !ot_slab_is_encoded(chain, slab) &&
                           b > ot_slab_first_user(chain, slab);
            bool fits = borrows || owner == ot_block_owner(chain, plan, b);
            if (!fits || owner < 0 || owner >= ot_shard_stages(&plan->shard))
                return ot_fail(OT_E_USAGE, "plan: %s belongs to rank %d, but %s uses it on rank %d",
                               chain->slabs[slab].name, owner, chain->blocks[b].name,
                               ot_block_owner(chain, plan, b));
        }
    if (plan->fetch_used && ot_plan_has_stages(plan) && ot_chain_most_parts(chain) > 0)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STAGES,
                             "stages cannot fetch the used experts alone: all micro-batches of a round would "
                             "have to choose before one goes on");
    return 0;
}

/* Checks that the ranks can share each slab, and where whole weights live. */
static int check_shard(const struct ot_chain *chain, const struct ot_plan *plan) {
    const struct ot_shard *shard = &plan->shard;
    int holders = ot_shard_holders(shard);
    OT_TRY(ot_shard_check(shard));
    if (plan->max_micro % ot_shard_own_groups(shard) != 0)
        return ot_fail(OT_E_USAGE, "plan: %d micro-batches do not divide among the %d groups of a rank",
                       plan->max_micro, ot_shard_own_groups(shard));
    OT_TRY(check_stages(chain, plan));
    for (int s = 0; s < chain->n_slabs && holders > 1; s++) {
        int64_t n = ot_slab_units(chain, s);
        if (shard->world && chain->slabs[s].shared && !chain->slabs[s].frozen)
            return ot_fail(OT_E_USAGE,
                           "plan: %s is used by many blocks, so its gradient has other bits with other "
                           "numbers of ranks; freeze it, as adapters do, or ask for the same bits with one "
                           "number of ranks alone",
                           chain->slabs[s].name);
        if ((holders - 1) * ot_shard_share(shard, n) >= n)
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_SMALL_SHARES,
                                 "%s has only %lld parameters, too few for a share on each of %d ranks",
                                 chain->slabs[s].name, (long long)n, holders);
        if (ot_plan_keeps_weights(plan) && !ot_slab_is_resident(plan, s))
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STATE_SHARDS,
                                 "a rank that shares only the state keeps all weights in gpu memory, but "
                                 "those of %s live on the %s",
                                 chain->slabs[s].name, ot_tier_name((enum ot_tier)plan->slabs[s].weights));
    }
    return 0;
}

/* Data on nvme needs slots on the host to pass through. */
static int check_nvme(const struct ot_chain *chain, const struct ot_plan *plan, unsigned host) {
    OT_TRY(check_slots("weights on nvme", plan->host_weight_slots, host, OT_PLAN_MAX_SLOTS));
    if (plan->tile_slots < 0 || plan->tile_slots > OT_PLAN_MAX_TILE_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d slots for tiles on nvme; give 1 to %d", plan->tile_slots,
                       OT_PLAN_MAX_TILE_SLOTS);
    if (plan->train && plan->tile_slots < 1 && ot_plan_passing_tiles(plan) > 0)
        return ot_fail(OT_E_USAGE,
                       "plan: tiles on nvme pass through the host, but there is no slot for them");
    if (plan->host_grad_slots < 0 || plan->host_grad_slots > OT_PLAN_MAX_TILE_SLOTS)
        return ot_fail(OT_E_USAGE, "plan: %d slots for gradients on nvme; give 1 to %d",
                       plan->host_grad_slots, OT_PLAN_MAX_TILE_SLOTS);
    if (plan->train && plan->host_grad_slots < 1 && ot_plan_spills_grads(chain, plan))
        return ot_fail(OT_E_USAGE,
                       "plan: gradients on nvme pass through the host, but there is no slot for them");
    if (plan->pinned_contents < 0 || plan->pinned_contents > OT_PLAN_MAX_PINNED_CONTENTS)
        return ot_fail(OT_E_USAGE, "plan: %d contents to be kept on nvme; give 0 to %d",
                       plan->pinned_contents, OT_PLAN_MAX_PINNED_CONTENTS);
    if (plan->train && plan->activations == OT_HOME_NVME && plan->host_activation_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: activations live on nvme, but there is no host slot for them");
    return 0;
}

static int check_shadows(const struct ot_plan *plan) {
    int64_t most = ot_plan_shadow_tiles(plan);
    if (plan->shadow_frames < 0 || plan->shadow_frames > most)
        return ot_fail(
            OT_E_USAGE,
            "plan: %d frames for updates ahead of the decision; %lld tiles may have such an update",
            plan->shadow_frames, (long long)most);
    return 0;
}

static int check_kept(const struct ot_chain *chain, const struct ot_plan *plan) {
    int blocks = 0;
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        const struct ot_kept_blocks *kept = &plan->kept[t];
        if (kept->blocks < 0 || kept->level < OT_KEEP_NONE || kept->level >= OT_KEEP_LEVELS)
            return ot_fail(OT_E_USAGE, "plan: cannot keep the activations of %d blocks at level %d",
                           kept->blocks, kept->level);
        blocks = kept->blocks > INT_MAX / OT_TIER_COUNT ? INT_MAX : blocks + kept->blocks;
    }
    int middle = ot_plan_middle_blocks(chain, plan, 1);
    if (blocks > middle && blocks > 0)
        return ot_fail(OT_E_USAGE, "plan: cannot keep the activations of %d of the %d middle blocks", blocks,
                       middle);
    bool host = plan->train && ot_plan_kept_blocks(plan, OT_TIER_NVME) > 0;
    if ((plan->train && ot_plan_spills_kept(plan) && plan->kept_slots < 1) ||
        (host && plan->host_kept_slots < 1))
        return ot_fail(OT_E_USAGE, "plan: kept activations leave the device, but there is no slot for them");
    return 0;
}

static int check_cache(const struct ot_plan *plan) {
    if (plan->cache_rows < 0 || plan->cache_rows > INT32_MAX || plan->cache < OT_HOME_GPU ||
        plan->cache > OT_HOME_NVME)
        return ot_fail(OT_E_USAGE, "plan: the keys and values of %lld tokens have no home",
                       (long long)plan->cache_rows);
    bool passes = plan->cache_rows > 0 && plan->cache != OT_HOME_GPU;
    if ((passes && plan->cache_slots < 1) ||
        (passes && plan->cache == OT_HOME_NVME && plan->host_cache_slots < 1))
        return ot_fail(OT_E_USAGE,
                       "plan: the cache lives on the %s, but there is no slot for it to pass through",
                       ot_tier_name((enum ot_tier)plan->cache));
    return 0;
}

int ot_plan_finish(const struct ot_chain *chain, struct ot_plan *plan) {
    OT_TRY(check_shape(chain, plan));
    OT_TRY(ot_chain_check_parts(chain));
    OT_TRY(check_shard(chain, plan));
    OT_TRY(check_tiles(chain, plan));
    struct ot_slot_needs needs = ot_plan_slot_needs(chain, plan);
    unsigned weights = needs.plain | needs.encoded | needs.decoded;
    unsigned grads_out = chain->dtype != OT_F32 ? needs.moved : 0;
    unsigned exchanges = ot_plan_exchanges(plan) ? needs.moved : 0;
    OT_TRY(check_nvme(chain, plan, needs.host));
    OT_TRY(check_slots("weights", plan->weight_slots, weights, OT_PLAN_MAX_SLOTS));
    OT_TRY(check_slots("encoded weights", plan->encoded_slots, needs.encoded, OT_PLAN_MAX_SLOTS));
    /* A slab that all layers share needs a slot for each use, and each depth of its tree. */
    int most_sums = (chain->n_slabs + 1) * ot_shard_accumulators(&plan->shard) + OT_SHARD_WORLD_GROUPS;
    OT_TRY(check_slots("gradients", plan->grad_slots, needs.grads, most_sums));
    OT_TRY(check_slots("gradients of other ranks", plan->exchange_slots, exchanges, OT_PLAN_MAX_SLOTS));
    OT_TRY(check_slots("gradients on their way out", plan->grad_out_slots, grads_out, OT_PLAN_MAX_SLOTS));
    if (plan->train && plan->activations != OT_HOME_GPU && plan->activation_slots < 1)
        return ot_fail(OT_E_USAGE, "plan: activations live on the %s, but there is no device slot for them",
                       ot_tier_name((enum ot_tier)plan->activations));
    OT_TRY(check_kept(chain, plan));
    OT_TRY(check_shadows(plan));
    OT_TRY(check_cache(plan));
    if (plan->workspace.tokens != plan->micro_tokens)
        plan->workspace = ot_plan_workspace(chain, plan->micro_tokens);
    return ot_layout_measure(chain, plan, &plan->ledger);
}

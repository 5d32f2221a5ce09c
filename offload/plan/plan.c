#include "offload/plan/plan.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

const char *ot_tier_name(enum ot_tier tier) {
    static const char *const names[] = {"gpu", "host", "nvme"};
    return names[tier];
}

const char *ot_tile_engine_name(enum ot_tile_engine engine) {
    static const char *const names[] = {"gpu", "stream", "cpu"};
    return names[engine];
}

const char *ot_slot_kind_name(enum ot_slot_kind kind) {
    static const char *const names[] = {"layer", "edge", "frozen layer", "frozen edge", "shared"};
    return names[kind];
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

/* ---- shard ---- */

const char *ot_shard_mode_name(enum ot_shard_mode mode) {
    static const char *const names[] = {"none", "state", "full", "stages"};
    return names[mode];
}

int ot_shard_stage(const struct ot_shard *shard) {
    return shard->rank / ot_shard_holders(shard);
}

int ot_shard_holder(const struct ot_shard *shard) {
    return shard->rank % ot_shard_holders(shard);
}

int ot_shard_rank_of(const struct ot_shard *shard, int holder, int stage) {
    return stage * ot_shard_holders(shard) + holder;
}

int ot_shard_check(const struct ot_shard *shard) {
    int ranks = ot_shard_ranks(shard), stages = ot_shard_stages(shard), holders = ot_shard_holders(shard);
    if (shard->rank < 0 || shard->rank >= ranks)
        return ot_fail(OT_E_USAGE, "there is no rank %d of %d; ranks count from 0", shard->rank, ranks);
    if (ranks % stages != 0 || (stages == 1 && shard->stages == 1 && ranks > 1))
        return ot_fail(OT_E_USAGE,
                       "%d rank%s cannot form pipelines of %d stages: the number of stages is 2 or more, and "
                       "divides the number of ranks",
                       ranks, ranks == 1 ? "" : "s", stages);
    if (shard->world && OT_SHARD_WORLD_GROUPS % holders != 0)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_WORLD_RANKS,
                             "the same bits for every number of ranks need 1, 2, 4 or 8 %s, not %d",
                             stages > 1 ? "pipelines" : "ranks", holders);
    return 0;
}

static int64_t share_of(int64_t n_params, int n_ranges) {
    int64_t share = (n_params + n_ranges - 1) / n_ranges;
    return (share + OT_SHARD_ALIGN_PARAMS - 1) / OT_SHARD_ALIGN_PARAMS * OT_SHARD_ALIGN_PARAMS;
}

static struct ot_shard_range range_of(int64_t n_params, int n_ranges, int index) {
    int64_t share = share_of(n_params, n_ranges), first = index * share, end = first + share;
    first = ot_min(first, n_params);
    end = ot_min(end, n_params);
    return (struct ot_shard_range){first, end - first};
}

int64_t ot_shard_share(const struct ot_shard *shard, int64_t n_params) {
    return share_of(n_params, ot_shard_holders(shard));
}

struct ot_shard_range ot_shard_own(const struct ot_shard *shard, int64_t n_params) {
    return range_of(n_params, ot_shard_holders(shard), ot_shard_holder(shard));
}

/* ---- micro-batches ---- */

int ot_shard_groups(const struct ot_shard *shard) {
    return shard->world ? OT_SHARD_WORLD_GROUPS : ot_shard_holders(shard);
}

int ot_shard_own_groups(const struct ot_shard *shard) {
    return ot_shard_groups(shard) / ot_shard_holders(shard);
}

struct ot_shard_range ot_shard_group(const struct ot_shard *shard, int64_t n_micro, int group) {
    int groups = ot_shard_groups(shard);
    int64_t first = group * n_micro / groups, end = (group + 1) * n_micro / groups;
    return (struct ot_shard_range){first, end - first};
}

struct ot_shard_range ot_shard_micro(const struct ot_shard *shard, int64_t n_micro, int rank) {
    int holders = ot_shard_holders(shard), holder = rank % holders;
    int64_t first = holder * n_micro / holders, end = (holder + 1) * n_micro / holders;
    return (struct ot_shard_range){first, end - first};
}

int64_t ot_shard_group_micro(const struct ot_shard *shard, int64_t n_micro) {
    int groups = ot_shard_groups(shard);
    return (n_micro + groups - 1) / groups;
}

/* ---- the tree: a binary counter of finished groups ---- */

int ot_shard_accumulator(int own_group) {
    return __builtin_popcount((unsigned)own_group);
}

int ot_shard_merges(int own_group) {
    return __builtin_ctz(~(unsigned)own_group); /* trailing ones */
}

int ot_shard_accumulators(const struct ot_shard *shard) {
    return ot_shard_accumulator(ot_shard_own_groups(shard) - 1) + 1;
}

/* ---- norms ---- */

int ot_shard_norm_ranges(const struct ot_shard *shard) {
    return ot_shard_groups(shard);
}

struct ot_shard_range ot_shard_norm_range(const struct ot_shard *shard, int64_t n_params, int range) {
    return range_of(n_params, ot_shard_norm_ranges(shard), range);
}

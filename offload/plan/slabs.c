#include "offload/plan/slabs.h"

#include "offload/plan/stages.h"
#include "src/base/minmax.h"

int ot_chain_first_trained(const struct ot_chain *chain) {
    for (int b = 0; b < chain->n_blocks; b++)
        for (int u = 0; u < chain->blocks[b].n_uses; u++)
            if (!chain->slabs[chain->blocks[b].uses[u].slab].frozen)
                return b;
    return chain->n_blocks;
}

size_t ot_slab_bytes(const struct ot_chain *chain, int slab, int64_t units) {
    return (size_t)units * (ot_slab_is_encoded(chain, slab) ? OT_ENCODED_UNIT : ot_dtype_bytes(chain->dtype));
}

bool ot_plan_keeps_weights(const struct ot_plan *plan) {
    return plan->shard.mode == OT_SHARD_STATE || (ot_plan_has_stages(plan) && ot_plan_is_sharded(plan));
}

/* A borrowed slab stays where it arrives (stages.h). */
bool ot_slab_is_resident(const struct ot_plan *plan, int slab) {
    return plan->slabs[slab].weights == OT_HOME_GPU || !ot_slab_is_own(plan, slab);
}

bool ot_slab_is_streamed(const struct ot_plan *plan, int slab) {
    return !ot_slab_is_resident(plan, slab) ||
           (ot_plan_is_sharded(plan) && plan->shard.mode == OT_SHARD_FULL);
}

bool ot_slab_state_passes(const struct ot_plan *plan, int slab, enum ot_tile_engine engine) {
    return engine != OT_TILE_GPU && plan->slabs[slab].state == OT_HOME_NVME;
}

bool ot_slab_grads_pass(const struct ot_plan *plan, int slab, enum ot_tile_engine engine) {
    return engine != OT_TILE_GPU && plan->slabs[slab].grads == OT_HOME_NVME;
}

bool ot_slab_weights_pass(const struct ot_plan *plan, int slab) {
    return plan->slabs[slab].weights == OT_HOME_NVME && ot_slab_is_own(plan, slab);
}

int64_t ot_plan_passing_tiles(const struct ot_plan *plan) {
    int64_t n = 0;
    for (int s = 0; s < plan->n_slabs; s++)
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            if (ot_slab_weights_pass(plan, s) || ot_slab_state_passes(plan, s, (enum ot_tile_engine)e) ||
                ot_slab_grads_pass(plan, s, (enum ot_tile_engine)e))
                n += plan->slabs[s].tiles[e];
    return n;
}

bool ot_plan_spills_grads(const struct ot_chain *chain, const struct ot_plan *plan) {
    for (int s = 0; s < plan->n_slabs; s++) {
        const struct ot_slab_plan *slab = &plan->slabs[s];
        bool grads =
            slab->grads == OT_HOME_NVME && slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU] > 0;
        if (grads || (slab->sums == OT_HOME_NVME && ot_slab_sum_leaves(chain, plan, s)))
            return true;
    }
    return false;
}

/* fp32 gradients that wait on the device are summed where they wait, without a slot. The exceptions: a tied
 * slab, because its two sums are joined first; several ranks, because the sums of all ranks are joined; sums
 * along a tree. */
bool ot_slab_grad_in_place(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return chain->dtype == OT_F32 && ot_slab_uses(chain, slab) == 1 && !ot_plan_exchanges(plan) &&
           ot_shard_accumulators(&plan->shard) == 1 &&
           ot_slab_waiting_on_gpu(chain, plan, slab).n == chain->slabs[slab].n_params;
}

/* True if gradient sums of the slab must survive from round to round. */
static bool has_sums_to_keep(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return plan->train && !chain->slabs[slab].frozen && ot_slab_is_here(chain, plan, slab) &&
           ot_plan_rounds(plan) > 1 && !ot_slab_grad_in_place(chain, plan, slab);
}

bool ot_slab_sum_stays(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return plan->slabs[slab].sums == OT_HOME_GPU && has_sums_to_keep(chain, plan, slab);
}

bool ot_slab_sum_leaves(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return plan->slabs[slab].sums != OT_HOME_GPU && has_sums_to_keep(chain, plan, slab);
}

bool ot_slab_grads_follow_sum(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    const struct ot_slab_plan *sp = &plan->slabs[slab];
    int64_t stays = ot_slab_waiting_on_gpu(chain, plan, slab).n;
    return ot_slab_sum_leaves(chain, plan, slab) && sp->sums == OT_HOME_HOST && sp->grads != OT_HOME_NVME &&
           stays < ot_slab_holding(chain, plan, slab).n;
}

int ot_slab_uses(const struct ot_chain *chain, int slab) {
    int uses = 0;
    for (int b = 0; b < chain->n_blocks; b++)
        for (int u = 0; u < chain->blocks[b].n_uses; u++)
            uses += chain->blocks[b].uses[u].slab == slab;
    return uses;
}

struct ot_shard_range ot_slab_holding(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    int64_t units = ot_slab_is_own(plan, slab) ? ot_slab_units(chain, slab) : 0;
    return ot_plan_is_sharded(plan) ? ot_shard_own(&plan->shard, units) : (struct ot_shard_range){0, units};
}

int ot_slab_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return (int)((ot_slab_holding(chain, plan, slab).n + plan->tile_params - 1) / plan->tile_params);
}

int ot_slab_trained_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return chain->slabs[slab].frozen ? 0 : ot_slab_tiles(chain, plan, slab);
}

int ot_slab_used_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    if (!ot_slab_is_own(plan, slab)) /* borrowed: it crosses as a whole */
        return 1;
    return ot_slab_tiles(chain, plan, slab) + ot_plan_is_sharded(plan);
}

static int64_t clip_params(int64_t params, int64_t most) {
    return ot_min(params, most);
}

struct ot_tile_span ot_slab_span(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                 int first_tile, int n_tiles) {
    struct ot_shard_range held = ot_slab_holding(chain, plan, slab);
    int64_t first = clip_params(first_tile * plan->tile_params, held.n);
    int64_t end = clip_params((first_tile + n_tiles) * plan->tile_params, held.n);
    return (struct ot_tile_span){first_tile, n_tiles, held.first + first, end - first};
}

int ot_slab_pieces(const struct ot_chain *chain, const struct ot_plan *plan, int slab) {
    return (int)((chain->slabs[slab].n_params + plan->tile_params - 1) / plan->tile_params);
}

struct ot_tile_span ot_slab_piece(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                  int piece) {
    int64_t first = piece * plan->tile_params;
    return (struct ot_tile_span){piece, 1, first,
                                 clip_params(plan->tile_params, chain->slabs[slab].n_params - first)};
}

struct ot_tile_span ot_slab_engine_tiles(const struct ot_chain *chain, const struct ot_plan *plan, int slab,
                                         enum ot_tile_engine engine) {
    const int *tiles = plan->slabs[slab].tiles;
    int first = 0;
    for (int e = 0; e < (int)engine; e++)
        first += tiles[e];
    return ot_slab_span(chain, plan, slab, first, tiles[engine]);
}

struct ot_tile_span ot_slab_waiting_on_gpu(const struct ot_chain *chain, const struct ot_plan *plan,
                                           int slab) {
    const struct ot_slab_plan *sp = &plan->slabs[slab];
    int streamed = sp->grads == OT_HOME_GPU ? sp->tiles[OT_TILE_STREAM] : 0;
    return ot_slab_span(chain, plan, slab, 0, sp->tiles[OT_TILE_GPU] + streamed);
}

struct ot_tile_span ot_slab_state_off_gpu(const struct ot_chain *chain, const struct ot_plan *plan,
                                          int slab) {
    const int *tiles = plan->slabs[slab].tiles;
    return ot_slab_span(chain, plan, slab, tiles[OT_TILE_GPU], tiles[OT_TILE_STREAM] + tiles[OT_TILE_CPU]);
}

/* ---- rounds ---- */

static int first_round(const struct ot_plan *plan) {
    return plan->first_round ? plan->first_round : plan->max_micro;
}

int ot_plan_rounds(const struct ot_plan *plan) {
    int rest = plan->max_micro - first_round(plan);
    return rest == 0 ? 1 : 2 + (rest - 1) / plan->round_micro;
}

struct ot_round ot_plan_round(const struct ot_plan *plan, int round) {
    if (round == 0)
        return (struct ot_round){0, first_round(plan)};
    int first = first_round(plan) + (round - 1) * plan->round_micro, rest = plan->max_micro - first;
    return (struct ot_round){first, ot_min(rest, plan->round_micro)};
}

/* The micro-batches of the rounds in flight: they have places of their own. */
static int64_t flying(const struct ot_plan *plan) {
    return (int64_t)ot_max(plan->shard.in_flight, 1) * plan->round_micro;
}

int ot_plan_round_places(const struct ot_plan *plan) {
    if (plan->shard.in_flight > 1 && ot_plan_rounds(plan) > 1)
        return (int)ot_min(flying(plan), plan->max_micro);
    int first = first_round(plan), rest = plan->max_micro - first;
    int later = ot_min(rest, plan->round_micro);
    return ot_max(first, later);
}

int ot_plan_place(const struct ot_plan *plan, int micro) {
    int first = first_round(plan);
    if (plan->shard.in_flight > 1 && ot_plan_rounds(plan) > 1)
        return (int)(micro % flying(plan));
    return micro < first ? micro : (micro - first) % plan->round_micro;
}

int ot_plan_round_first(const struct ot_plan *plan, int micro) {
    int first = first_round(plan);
    return micro < first ? 0 : micro - (micro - first) % plan->round_micro;
}

void ot_plan_set_rounds(struct ot_plan *plan, int rounds) {
    int sequences = plan->max_micro / ot_plan_sections(plan), n = ot_max(1, ot_min(rounds, sequences));
    plan->round_micro = ((sequences - 1) / n + 1) * ot_plan_sections(plan); /* max_micro may be INT_MAX */
    plan->first_round = plan->round_micro;
}

/* ---- kept ---- */

struct ot_kept ot_plan_kept(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    struct ot_kept none = {OT_KEEP_NONE, OT_TIER_GPU};
    if (ot_plan_kept_blocks(plan, OT_TIER_COUNT) == 0)
        return none;
    if (!plan->train || block < 1 || block > chain->n_blocks - 2 || block < ot_chain_first_trained(chain) ||
        !ot_block_is_own(chain, plan, block))
        return none;
    int behind = ot_plan_middle_blocks(chain, plan, block + 1);
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        if (behind < plan->kept[t].blocks)
            return (struct ot_kept){plan->kept[t].level, (enum ot_tier)t};
        behind -= plan->kept[t].blocks;
    }
    return none;
}

int ot_plan_kept_blocks(const struct ot_plan *plan, enum ot_tier tier) {
    int blocks = 0;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if ((tier == OT_TIER_COUNT || (int)tier == t) && plan->kept[t].level != OT_KEEP_NONE)
            blocks += plan->kept[t].blocks;
    return blocks;
}

bool ot_plan_repeats_products(const struct ot_chain *chain, const struct ot_plan *plan) {
    bool all = true;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        all = all && (plan->kept[t].blocks == 0 || plan->kept[t].level >= OT_KEEP_PRODUCTS);
    return !all || ot_plan_kept_blocks(plan, OT_TIER_COUNT) < ot_plan_middle_blocks(chain, plan, 1);
}

bool ot_plan_spills_kept(const struct ot_plan *plan) {
    return ot_plan_kept_blocks(plan, OT_TIER_HOST) + ot_plan_kept_blocks(plan, OT_TIER_NVME) > 0;
}

const char *ot_keep_level_name(enum ot_keep_level level) {
    static const char *const names[] = {"none", "attention", "products", "all"};
    return names[level];
}

/* ---- one copy ---- */

bool ot_slab_has_one_copy(const struct ot_plan *plan, int slab) {
    return plan->shard.one_copy && plan->shard.mode == OT_SHARD_FULL && ot_plan_is_sharded(plan) &&
           plan->slabs[slab].weights == OT_HOME_HOST;
}

bool ot_plan_has_one_copy(const struct ot_plan *plan) {
    for (int s = 0; s < plan->n_slabs; s++)
        if (ot_slab_has_one_copy(plan, s))
            return true;
    return false;
}

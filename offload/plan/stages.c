#include "offload/plan/stages.h"

#include "src/base/error.h"
#include "src/base/minmax.h"

bool ot_plan_has_stages(const struct ot_plan *plan) {
    return plan->shard.mode == OT_SHARD_STAGES && ot_shard_ranks(&plan->shard) > 1;
}

bool ot_slab_is_own(const struct ot_plan *plan, int slab) {
    return !ot_plan_has_stages(plan) || plan->slabs[slab].owner == plan->shard.rank;
}

int ot_block_owner(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    return ot_plan_has_stages(plan) ? plan->slabs[chain->blocks[block].uses[0].slab].owner : plan->shard.rank;
}

bool ot_block_is_own(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    return ot_block_owner(chain, plan, block) == plan->shard.rank;
}

int ot_plan_middle_blocks(const struct ot_chain *chain, const struct ot_plan *plan, int first) {
    int last = chain->n_blocks - 2, n = 0;
    if (!ot_plan_has_stages(plan))
        return ot_max(last + 1 - first, 0);
    for (int b = first; b <= last; b++)
        n += ot_block_is_own(chain, plan, b);
    return n;
}

bool ot_boundary_is_own(const struct ot_chain *chain, const struct ot_plan *plan, int boundary) {
    return ot_block_is_own(chain, plan, boundary + 1);
}

/* ---- the division ---- */

/* The rank of layer number i of n, in the order of the chain. */
static int layer_rank(const struct ot_shard *shard, int i, int n) {
    return shard->turn_blocks > 0 ? i / shard->turn_blocks % shard->ranks
                                  : (int)((int64_t)i * shard->ranks / n);
}

static int layers_of(const struct ot_shard *shard, int rank, int n) {
    int layers = 0;
    for (int i = 0; i < n; i++)
        layers += layer_rank(shard, i, n) == rank;
    return layers;
}

static bool share_a_slab(const struct ot_block_spec *a, const struct ot_block_spec *b) {
    for (int i = 0; i < a->n_uses; i++)
        for (int j = 0; j < b->n_uses; j++)
            if (a->uses[i].slab == b->uses[j].slab)
                return true;
    return false;
}

/* The rank of the head, if each of the n layers has a rank. */
static int head_rank(const struct ot_chain *chain, const struct ot_shard *shard, int n) {
    int best = shard->ranks - 1;
    if (share_a_slab(&chain->blocks[0], &chain->blocks[chain->n_blocks - 1]))
        return 0;
    for (int r = best - 1; r >= 0; r--)
        if (layers_of(shard, r, n) < layers_of(shard, best, n))
            best = r;
    return best;
}

/* Gives the block's slabs to a rank. */
static int give(const struct ot_chain *chain, struct ot_plan *plan, int block, int rank) {
    const struct ot_block_spec *spec = &chain->blocks[block];
    for (int u = 0; u < spec->n_uses; u++) {
        struct ot_slab_plan *slab = &plan->slabs[spec->uses[u].slab];
        if (slab->owner >= 0 && slab->owner != rank)
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STAGES,
                                 "the blocks of several ranks use %s, so the model cannot be divided into "
                                 "stages",
                                 chain->slabs[spec->uses[u].slab].name);
        slab->owner = rank;
    }
    return 0;
}

int ot_stages_divide(const struct ot_chain *chain, struct ot_plan *plan) {
    const struct ot_shard *shard = &plan->shard;
    int n = chain->n_blocks - 2;
    if (!ot_plan_has_stages(plan))
        return 0;
    for (int r = 0; r < shard->ranks; r++)
        if (layers_of(shard, r, n) == 0)
            return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STAGES,
                                 "the model has %d layers, too few for a stage on each of %d ranks%s", n,
                                 shard->ranks, n >= shard->ranks ? " in turns of that length" : "");
    for (int s = 0; s < chain->n_slabs; s++)
        plan->slabs[s].owner = -1;
    OT_TRY(give(chain, plan, 0, 0));
    for (int i = 0; i < n; i++)
        OT_TRY(give(chain, plan, i + 1, layer_rank(shard, i, n)));
    return give(chain, plan, chain->n_blocks - 1, head_rank(chain, shard, n));
}

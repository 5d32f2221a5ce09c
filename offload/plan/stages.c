#include "offload/plan/stages.h"

#include <stdlib.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

bool ot_plan_is_divided(const struct ot_plan *plan) {
    return ot_shard_ranks(&plan->shard) > 1 && plan->shard.mode != OT_SHARD_NONE;
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

static bool share_a_slab(const struct ot_block_spec *a, const struct ot_block_spec *b) {
    for (int i = 0; i < a->n_uses; i++)
        for (int j = 0; j < b->n_uses; j++)
            if (a->uses[i].slab == b->uses[j].slab)
                return true;
    return false;
}

static int head_rank(const struct ot_chain *chain, const struct ot_shard *shard) {
    bool tied = share_a_slab(&chain->blocks[0], &chain->blocks[chain->n_blocks - 1]);
    return tied ? 0 : shard->ranks - 1;
}

/* The number of layers of a rank: an equal share of the work, in layers. There is a layer for each rank. */
static int layers_of(const struct ot_chain *chain, const struct ot_shard *shard, int rank) {
    int n = chain->n_blocks - 2, others = shard->ranks - 1, head = head_rank(chain, shard);
    int with_head = (n + shard->head_layers + shard->ranks / 2) / shard->ranks - shard->head_layers;
    with_head = ot_max(with_head, 0);
    if (rank == head)
        return with_head;
    int number = rank - (rank > head), rest = n - with_head;
    return rest / others + (number < rest % others);
}

/* The rank of layer number i. */
static int layer_rank(const struct ot_chain *chain, const struct ot_shard *shard, int i) {
    int most = shard->turn_blocks > 0 ? shard->turn_blocks : chain->n_blocks;
    for (int turn = 0;; turn++)
        for (int r = 0; r < shard->ranks; r++) {
            int left = layers_of(chain, shard, r) - turn * most, taken = ot_min(left, most);
            if (taken > 0 && i < taken)
                return r;
            i -= ot_max(taken, 0);
        }
}

int ot_shard_layers(const struct ot_chain *chain, const struct ot_shard *shard) {
    bool stages = shard->mode == OT_SHARD_STAGES && ot_shard_ranks(shard) > 1;
    return stages ? layers_of(chain, shard, shard->rank) : ot_max(chain->n_blocks - 2, 0);
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
    if (n < shard->ranks)
        return ot_fail_cause(OT_E_USAGE, OT_CAUSE_STAGES,
                             "the model has %d layers, too few for a stage on each of %d ranks", n,
                             shard->ranks);
    for (int s = 0; s < chain->n_slabs; s++)
        plan->slabs[s].owner = -1;
    OT_TRY(give(chain, plan, 0, 0));
    for (int i = 0; i < n; i++)
        OT_TRY(give(chain, plan, i + 1, layer_rank(chain, shard, i)));
    return give(chain, plan, chain->n_blocks - 1, head_rank(chain, shard));
}

int ot_stages_check(const struct ot_chain *chain, const struct ot_shard *shard) {
    struct ot_plan plan = {.n_slabs = chain->n_slabs, .shard = *shard};
    plan.slabs = calloc((size_t)chain->n_slabs, sizeof *plan.slabs);
    int rc = plan.slabs ? ot_stages_divide(chain, &plan) : ot_fail(OT_E_BUDGET, "no memory for a division");
    free(plan.slabs);
    return rc;
}

#include "offload/plan/one_copy.h"

#include "offload/plan/slabs.h"

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

#include "offload/plan/kept.h"

#include "offload/plan/slabs.h"

struct ot_kept ot_plan_kept(const struct ot_chain *chain, const struct ot_plan *plan, int block) {
    struct ot_kept none = {OT_KEEP_NONE, OT_TIER_GPU};
    int behind = chain->n_blocks - 2 - block; /* middle blocks behind this one */
    if (!plan->train || block < 1 || behind < 0 || block < ot_chain_first_trained(chain))
        return none;
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
    return !all || ot_plan_kept_blocks(plan, OT_TIER_COUNT) < chain->n_blocks - 2;
}

bool ot_plan_spills_kept(const struct ot_plan *plan) {
    return ot_plan_kept_blocks(plan, OT_TIER_HOST) + ot_plan_kept_blocks(plan, OT_TIER_NVME) > 0;
}

const char *ot_keep_level_name(enum ot_keep_level level) {
    static const char *const names[] = {"none", "attention", "products", "all"};
    return names[level];
}

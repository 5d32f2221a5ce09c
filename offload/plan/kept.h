/* Kept activations: the inner activations that each block keeps for backward (block.h), and their tier.
 *
 * Only middle blocks keep any. The last of them keep theirs on the device, because backward needs these
 * first. Blocks before them use the host, and blocks before those use nvme. Such activations leave through a
 * slot after forward and come back through a slot before backward, while the device works on other blocks.
 * The first blocks keep nothing, and backward computes them again. Each tier has its own level.
 *
 * Kept activations cross the bus twice. That pays where the copies take less time than recomputation, and
 * where the bus has time left. The bits do not depend on it.
 */
#ifndef OT_OFFLOAD_PLAN_KEPT_H
#define OT_OFFLOAD_PLAN_KEPT_H

#include "offload/block.h"
#include "offload/plan/plan.h"

struct ot_kept {
    enum ot_keep_level level; /* OT_KEEP_NONE: nothing */
    enum ot_tier tier;
};

struct ot_kept ot_plan_kept(const struct ot_chain *chain, const struct ot_plan *plan, int block);
/* The number of blocks that keep anything; on one tier, or (tier OT_TIER_COUNT) on all. */
int ot_plan_kept_blocks(const struct ot_plan *plan, enum ot_tier tier);
/* True if kept activations leave the device. */
bool ot_plan_spills_kept(const struct ot_plan *plan);
/* True if backward computes products of middle blocks again. */
bool ot_plan_repeats_products(const struct ot_chain *chain, const struct ot_plan *plan);
const char *ot_keep_level_name(enum ot_keep_level level); /* "none", "attention", "products", "all" */

#endif

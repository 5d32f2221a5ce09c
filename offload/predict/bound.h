/* A lower bound of a step's time, found without a schedule. A search throws away most plans by it, before it
 * makes and simulates their schedules. */
#ifndef OT_OFFLOAD_PREDICT_BOUND_H
#define OT_OFFLOAD_PREDICT_BOUND_H

#include "offload/predict/costs.h"

/* Seconds that a training step of the plan takes at least: the work of the busiest lane; or, if updates wait
 * for a decision, these updates and the computing that waits for them. Counts only work that every schedule
 * of the plan has, so it is never more than the simulated time. */
double ot_plan_least_seconds(const struct ot_chain *chain, const struct ot_plan *plan,
                             const struct ot_costs *costs);
/* Seconds of a step in which backward computes again what forward did not keep. */
double ot_plan_repeated_seconds(const struct ot_chain *chain, const struct ot_plan *plan,
                                const struct ot_costs *costs);
/* The least seconds of the compute lane of the shard's rank in a step with this number of micro-batches, with
 * any plan in which each block keeps `level` or nothing. */
double ot_least_compute_seconds(const struct ot_chain *chain, const struct ot_shard *shard,
                                const struct ot_costs *costs, int64_t micro_tokens, int n_micro,
                                enum ot_keep_level level);

#endif

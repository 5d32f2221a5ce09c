/* Declarations that costs.c and costs_blocks.c share. Internal to offload/predict. */
#ifndef OT_OFFLOAD_PREDICT_COSTS_STATE_H
#define OT_OFFLOAD_PREDICT_COSTS_STATE_H

#include "offload/predict/costs.h"

/* The inputs of a task's cost. */
struct ot_cost_context {
    const struct ot_costs *costs;
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    const struct ot_layout *layout;
};

/* chain->work, or an estimate of it from the block's parameters. */
struct ot_block_work ot_costs_work_of(const struct ot_chain *chain, int block, enum ot_work_kind kind,
                                      enum ot_keep_level level, int64_t n_tokens, int64_t row_tokens);
/* The tokens over which attention reaches: of a sequence, which a section is a part of. */
int64_t ot_costs_row_of(const struct ot_costs *costs, const struct ot_plan *plan);

/* Adds the FLOPs and the time of a FORWARD, KEYS or BACKWARD. */
void ot_costs_add_block(const struct ot_cost_context *c, const struct ot_task *task,
                        struct ot_task_cost *cost);

#endif

/* What a task costs: bytes, FLOPs and seconds of every task of a schedule, on a machine described by its
 * rates.
 *
 * Blocks are the part that rates alone predict badly: what a layer's products reach depends on their shapes.
 * So a block's cost is measured where the device is there (calibrate.h: the chain's own forward and backward
 * on random numbers), and estimated from its work (block.h) where it is not.
 *
 * A cost is the time alone on its lane; what lanes do to each other (both copy directions at once, cores and
 * memory shared by the optimizer, the copies and, on the cpu device, the ops) is the simulator's.
 */
#ifndef OT_OFFLOAD_PREDICT_COSTS_H
#define OT_OFFLOAD_PREDICT_COSTS_H

#include "offload/predict/rates.h"
#include "offload/schedule/schedule.h"

/* Seconds for a micro-batch of n tokens: at_zero + n * per_token. */
struct ot_line {
    double at_zero, per_token;
};
static inline double ot_line_at(struct ot_line line, int64_t n) {
    return line.at_zero + line.per_token * (double)n;
}

struct ot_block_cost {
    struct ot_line forward, backward; /* backward: with what forward kept */
    struct ot_line recompute;         /* to be added where nothing was kept */
};

struct ot_costs {
    struct ot_rates rates;
    int64_t row_tokens;           /* a sequence: what attention reaches over */
    struct ot_block_cost *blocks; /* [n_blocks], owned */
    int n_blocks;
    bool is_measured; /* the blocks are, but for those that had no room */
};

/* Blocks from their work and the rates; of a chain that does not know its work, from the parameters alone
 * (2 N forward, 4 N backward). Free with ot_costs_free. Errors: OT_E_BUDGET, OT_E_USAGE (a rate that is
 * needed is 0). */
int ot_costs_estimate(const struct ot_chain *chain, const struct ot_rates *rates, int64_t sequence_tokens,
                      int64_t micro_tokens, struct ot_costs *out);
void ot_costs_free(struct ot_costs *costs);

/* One task of a step of full micro-batches, alone. bytes: what it moves on its lane; flops: 0 for copies.
 * seconds: infinite where it needs a rate that is 0. */
struct ot_task_cost {
    double seconds, bytes, flops;
};
struct ot_task_cost ot_costs_of_task(const struct ot_costs *costs, const struct ot_chain *chain,
                                     const struct ot_plan *plan, const struct ot_layout *layout,
                                     const struct ot_task *task);

/* FLOPs of one training step of full micro-batches, as people count them for MFU: 6 N T and three times
 * forward's attention; without recomputation. */
double ot_costs_model_flops(const struct ot_costs *costs, const struct ot_chain *chain,
                            const struct ot_plan *plan);

#endif

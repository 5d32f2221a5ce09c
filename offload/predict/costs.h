/* The cost model: bytes, FLOPs and seconds of every task of a schedule, on a machine that is described by its
 * rates (rates.h).
 *
 * Rates alone predict a block badly, because the speed of a layer's matrix products depends on their shapes.
 * So if the device is present, a block's cost is measured (calibrate.h). If not, it is estimated from the
 * block's work (ot_block_work in block.h) and the rates.
 *
 * A cost is the time of a task while no other lane works. The simulator adds how lanes slow each other down:
 * both copy directions share the link; the optimizer, the copies and the cpu device's ops share cores and
 * memory.
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

static inline void ot_line_scale(struct ot_line *line, double factor) {
    line->at_zero *= factor;
    line->per_token *= factor;
}

struct ot_block_cost {
    struct ot_line forward, backward;         /* backward: with all inner activations kept */
    struct ot_line recompute[OT_KEEP_LEVELS]; /* extra time of backward at a level; 0 at OT_KEEP_ALL */
    /* Seconds that a backward with `first` takes beyond one that adds to sums. An estimate counts only the
     * clearing. A measurement may be negative, because products that overwrite do not read the sums. */
    double first;
};

struct ot_costs {
    struct ot_rates rates;
    int64_t row_tokens;           /* length of a sequence, over which attention reaches */
    struct ot_block_cost *blocks; /* [n_blocks], owned */
    int n_blocks;
    double decode_bytes; /* bytes/s that decoding reads and writes; 0: not measured, as other kernels */
    bool is_measured;    /* false: all blocks are estimates; true: the middle blocks at least were measured */
    /* A block's time under a long load, divided by its time after a pause (calibrate.h). The blocks' costs
     * include this factor. 0: not measured. */
    double under_load;
    /* Per lane: the measured time of its tasks, divided by these costs. A run measures it (simulate.h). 0:
     * not measured, counts as 1. */
    double slower[OT_LANE_COUNT];
};

/* FLOP/s of attention in one part of a block's work, for the chain's heads. Recomputation is forward. */
double ot_costs_attention_rate(const struct ot_rates *rates, const struct ot_chain *chain,
                               enum ot_work_kind kind);

/* Estimates every block from its work and the rates. If the chain has no work function, N parameters cost 2 N
 * FLOPs a token forward and 4 N backward. Free with ot_costs_free. Errors: OT_E_BUDGET (no memory),
 * OT_E_USAGE (a rate that is needed is 0). */
int ot_costs_estimate(const struct ot_chain *chain, const struct ot_rates *rates, int64_t sequence_tokens,
                      int64_t micro_tokens, struct ot_costs *out);
void ot_costs_free(struct ot_costs *costs);
/* The costs of a machine whose compute lane takes `factor` times as long. They share `blocks`: do not free
 * them. */
struct ot_costs ot_costs_slowed(const struct ot_costs *costs, double factor);

/* The cost of one task while no other lane works, in a step of full micro-batches. bytes: the bytes that it
 * moves on its lane. flops: 0 for copies. seconds: infinite if the task needs a rate that is 0. */
struct ot_task_cost {
    double seconds, bytes, flops;
};
struct ot_task_cost ot_costs_of_task(const struct ot_costs *costs, const struct ot_chain *chain,
                                     const struct ot_plan *plan, const struct ot_layout *layout,
                                     const struct ot_task *task);

/* The rate of transfers between this rank and another, which is on the same host or not. The replicas of a
 * pipeline that are on one host cross the network at the same time. */
struct ot_transfer_rate ot_costs_transfer_rate(const struct ot_costs *costs, const struct ot_shard *shard,
                                               int peer);
/* The cost of a TRANSFER of the schedule: its halves inside the host and beyond advance at the same time. It
 * has no time of a transfer without bytes: several may be on their way (simulate_ranks.h). For a transfer,
 * ot_costs_of_task takes all ranks to be on one host. */
struct ot_task_cost ot_costs_of_transfer(const struct ot_costs *costs, const struct ot_chain *chain,
                                         const struct ot_plan *plan, const struct ot_layout *layout,
                                         const struct ot_schedule *schedule, const struct ot_task *task);

/* FLOPs of one training step of full micro-batches, as counted for MFU: 6 N a token, plus three times the
 * attention of forward. Recomputation does not count. */
double ot_costs_model_flops(const struct ot_costs *costs, const struct ot_chain *chain,
                            const struct ot_plan *plan);

#endif

/* The grid of a bench: which points to run on this machine.
 *
 * Where device budgets were given, every mix of tiers runs at every budget. Where none were, the forced mixes
 * run with all the memory there is, and the plan's own choice at budgets from the least that a step can be
 * planned within up to the least at which everything is resident: the trade of memory for time. Then, for the
 * largest step, single sequences as micro-batches. Mixes that were named run alone, in the order given. The
 * budgets come from ot_plan_make alone, so the grid is a function of its request.
 */
#ifndef OT_BENCH_GRID_H
#define OT_BENCH_GRID_H

#include "offload/plan/make.h"
#include "src/bench/bench.h"

struct ot_bench_grid {
    /* chain, sequence_tokens, clip, budgets (of the device: the most that may be used) and what else is
     * common to all points; homes, step_sequences and micro_sequences are set here */
    struct ot_plan_request plan;
    struct ot_count_list step_tokens; /* not empty, none less than a sequence */
    struct ot_count_list gpu_bytes;   /* empty: chosen */
    struct ot_count_list micro_sequences;
    struct ot_bench_mix_list
        mixes; /* empty: all. In this order; with no gpu_bytes, at the whole budget alone */
    bool nvme; /* there are directories for it */
};

/* In the order in which to run them: smaller steps first. Errors: OT_E_USAGE: more points than
 * OT_BENCH_MAX_POINTS, or none. */
int ot_bench_grid_make(const struct ot_bench_grid *grid, struct ot_bench_point points[OT_BENCH_MAX_POINTS],
                       int *n);

#endif

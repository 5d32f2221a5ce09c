/* The grid of a bench: the points to run on this machine.
 *
 * If the user gave device budgets, every mix of tiers runs at every budget. If not, the forced mixes run with
 * all device memory. The mix "planned" then runs at several budgets, from the smallest that has a plan to the
 * smallest at which everything is resident; this shows the trade of memory for time. The largest step also
 * runs with micro-batches of one sequence. If the user named mixes, only these run, in the given order. The
 * budgets follow from ot_plan_make alone, so the grid is a function of its request.
 */
#ifndef OT_PLAN_BENCH_GRID_H
#define OT_PLAN_BENCH_GRID_H

#include "offload/plan/plan_search.h"
#include "src/plan/bench.h"

struct ot_bench_grid {
    /* the fields common to all points: chain, sequence_tokens, clip, budgets (the device's is the largest
     * allowed), ...; the grid sets homes, step_sequences and micro_sequences */
    struct ot_plan_request plan;
    struct ot_count_list step_tokens; /* not empty; each value is at least one sequence */
    struct ot_count_list gpu_bytes;   /* empty: the grid chooses */
    struct ot_count_list micro_sequences;
    /* In this order; empty: all. Without gpu_bytes, named mixes run only at the whole budget. */
    struct ot_bench_mix_list mixes;
    bool nvme; /* --nvme is given */
};

/* Makes the points in the order in which to run them: smaller steps first. Errors: OT_E_USAGE: more points
 * than OT_BENCH_MAX_POINTS, or none. */
int ot_bench_grid_make(const struct ot_bench_grid *grid, struct ot_bench_point points[OT_BENCH_MAX_POINTS],
                       int *n);

#endif

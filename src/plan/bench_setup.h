/* The work before the first point of a bench: measures the rates of the machine and the costs of the model on
 * it, from which predictions are made; chooses the steps; makes the grid. */
#ifndef OT_PLAN_BENCH_SETUP_H
#define OT_PLAN_BENCH_SETUP_H

#include <limits.h>

#include "offload/plan/plan_search.h"
#include "offload/predict/costs.h"
#include "src/options/settings.h"
#include "src/plan/bench.h"

struct ot_bench_setup {
    struct ot_costs costs;           /* costs of the model on this machine */
    char device[128], out[PATH_MAX]; /* owns the data that `bench` and the options point to */
};

/* Fills in the settings from the user's options, and the bench; of the results, only the points are set.
 * Closes everything that it opened, so that the first point starts like all others. Errors: as
 * ot_session_open; OT_E_USAGE, as ot_bench_grid_make. Call ot_bench_setup_free on `out` also after an error.
 */
int ot_bench_setup_make(const struct ot_options *asked, struct ot_settings *settings, struct ot_bench *bench,
                        struct ot_bench_setup *out);
void ot_bench_setup_free(struct ot_bench_setup *setup);

/* ---- the grid ---- */

/* The grid of a bench: the points to run on this machine.
 *
 * If the user gave device budgets, every mix of tiers runs at every budget. If not, the forced mixes run with
 * all device memory. The mix "planned" then runs at several budgets, from the smallest that has a plan to the
 * smallest at which everything is resident; this shows the trade of memory for time. The largest step also
 * runs with micro-batches of one sequence. If the user named mixes, only these run, in the given order. The
 * budgets follow from ot_plan_make alone, so the grid is a function of its request.
 */

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

/* The work before the first point of a bench: measures the rates of the machine and the costs of the model on
 * it, from which predictions are made; chooses the steps; makes the grid. */
#ifndef OT_PLAN_BENCH_SETUP_H
#define OT_PLAN_BENCH_SETUP_H

#include <limits.h>

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

#endif

/* What comes before the first point of a bench: the machine's rates and the model's costs on it, which are
 * what predictions are made of, and from them the steps, and then the grid.
 */
#ifndef OT_BENCH_SETUP_H
#define OT_BENCH_SETUP_H

#include <limits.h>

#include "offload/predict/costs.h"
#include "src/bench/bench.h"
#include "src/options/settings.h"

struct ot_bench_setup {
    struct ot_costs costs;           /* of the model on this machine */
    char device[128], out[PATH_MAX]; /* what `bench` and the options point to */
};

/* Fills in the settings, from what the user asked for, and the bench but for the results, whose points are
 * set. All that was opened is closed again, so that the first point finds the machine as the others do.
 * Errors: as ot_session_open; OT_E_USAGE, as ot_bench_grid_make. `out` needs ot_bench_setup_free in either
 * case. */
int ot_bench_setup_make(const struct ot_options *asked, struct ot_settings *settings, struct ot_bench *bench,
                        struct ot_bench_setup *out);
void ot_bench_setup_free(struct ot_bench_setup *setup);

#endif

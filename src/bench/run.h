/* One point of a bench: opens device, plan and engine as training does, with random weights and random
 * tokens, runs real steps, and takes them down again, so that no point sees what another one left.
 *
 * The first step meets the shapes and touches the memory; then the device tunes itself; then steps are
 * measured, two in flight as in training, until the time is up or there are enough of them. The time of a
 * step is from result to result; that of the lanes comes from a trace of these steps.
 */
#ifndef OT_BENCH_RUN_H
#define OT_BENCH_RUN_H

#include "offload/predict/costs.h"
#include "src/bench/bench.h"

struct ot_bench_pace {
    double most_seconds;   /* a point whose fewest steps would take longer is left out */
    double target_seconds; /* steps are measured until then */
    /* A step's time over what was predicted for it, as earlier points had it; 1 without. And how long a step
     * takes where nothing is predicted; 0: unknown. */
    double measured_over_predicted, guess_seconds;
};

/* costs: of the model on this machine; NULL: nothing is predicted. Fills in `result`, whose point is set;
 * what cannot be run is its status, not an error. `earlier` has the n_earlier results so far. Errors: what
 * no other point would do better with (OT_E_INTERNAL, ...). */
int ot_bench_measure(const struct ot_options *options, const struct ot_costs *costs,
                     const struct ot_bench_pace *pace, const struct ot_bench_result *earlier, int n_earlier,
                     struct ot_bench_result *result);

#endif

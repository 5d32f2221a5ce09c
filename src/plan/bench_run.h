/* Runs one point of a bench. Opens device, plan and engine as training does, with random weights and random
 * tokens, runs real steps, and closes everything again, so that no point affects another.
 *
 * The first step sees all shapes and touches all memory. Then the device tunes itself. Then steps are
 * measured, two in flight as in training, until the time is over or there are enough steps. The time of a
 * step is the time between two results. The times of the lanes come from a trace of these steps.
 */
#ifndef OT_PLAN_BENCH_RUN_H
#define OT_PLAN_BENCH_RUN_H

#include "offload/predict/costs.h"
#include "src/plan/bench.h"

struct ot_bench_pace {
    double most_seconds;   /* a point is skipped if its fewest steps would take longer */
    double target_seconds; /* steps are measured for this time */
    /* measured_over_predicted: measured over predicted time of a step in earlier points; 1 if there are none.
     * guess_seconds: the time of a step if there is no prediction; 0: unknown. */
    double measured_over_predicted, guess_seconds;
};

/* costs: of the model on this machine; NULL: no prediction. Fills in `result`, whose point is set. A point
 * that cannot run is not an error: its status says why. `earlier` has the n_earlier results so far. Errors:
 * failures that would also end all other points (OT_E_INTERNAL, ...). */
int ot_bench_measure(const struct ot_options *options, const struct ot_costs *costs,
                     const struct ot_bench_pace *pace, const struct ot_bench_result *earlier, int n_earlier,
                     struct ot_bench_result *result);

#endif

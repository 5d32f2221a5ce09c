/* The second prediction of a run, corrected by the measured time of its own steps.
 *
 * The first prediction takes the rates of a machine at rest, and blocks that ran alone. A long run may meet
 * other rates: other programs take their share, a disk slows down after its cache is full, a GPU gets hot.
 * So after some steps the run compares, lane by lane, the time that its tasks took with the predicted time.
 * Each lane gets a factor, and the same plan is simulated again.
 *
 * One factor a lane is enough to find the slow resource. It does not say which kind of task is slow. Time in
 * which no task runs (the host enqueues work or wakes a thread) has no factor and stays as predicted.
 */
#ifndef OT_OFFLOAD_PREDICT_MEASURED_H
#define OT_OFFLOAD_PREDICT_MEASURED_H

#include "offload/predict/simulate.h"

/* Sets costs->slower so that each lane of the simulated step is as busy as it was measured, and predicts the
 * step. busy: seconds of a step, as ot_prediction has them; a lane without work keeps its costs. first: the
 * prediction that these costs gave. Lanes that share a resource slow each other down in the simulation as
 * they did in the run, so the factors come from three simulations, of about 2 us a task each. Errors: as
 * ot_simulate_plan; *costs is then half corrected. */
int ot_predict_measured(const struct ot_chain *chain, const struct ot_plan *plan,
                        const struct ot_prediction *first, const double busy[OT_LANE_COUNT],
                        struct ot_costs *costs, struct ot_prediction *out);

#endif

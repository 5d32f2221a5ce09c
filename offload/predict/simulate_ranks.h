/* Simulates all stages of a pipeline in one virtual time (plan/stages.h).
 *
 * The simulator of one rank (simulate.h) lets a rank's transfers begin as soon as the rank is ready. In a
 * pipeline they wait for the other side. Here every rank has a simulation of its own, with its plan and its
 * rates, and all share one clock. A TRANSFER begins when each rank at the other end of one of its halves has
 * come to the same tick; the last RESULT_GATHER when all ranks have come to it.
 * The receiver has the data later than the sender sends them: by the time of a transfer, or of a gather,
 * without bytes (rates.h). Activations that were sent one after the other are on their way together. The
 * prediction has the bubbles of the pipeline: a rank computes nothing while it waits for the first
 * micro-batches, or for a slower rank.
 *
 * Several replicas do the same at the same time, so one is simulated. Its ranks exchange the slabs that they
 * share with the other replicas, without waiting for them.
 */
#ifndef OT_OFFLOAD_PREDICT_SIMULATE_RANKS_H
#define OT_OFFLOAD_PREDICT_SIMULATE_RANKS_H

#include "offload/predict/simulate.h"

/* Simulates the plans of all ranks [ranks] of the first replica, which fit together: plans[r] is the plan of
 * its rank with stage r. costs: of a rank. slowness: [ranks], the time of each compute lane, relative to
 * these costs; NULL: all are alike. out: [ranks]; all ranks have the same step_seconds, within the rounding
 * of steps. As ot_simulate_faster, returns 1 with the predictions if a step takes less than `limit`, else 0,
 * and gives up as soon as that is clear. Errors: as ot_simulate_plan. */
int ot_simulate_ranks(const struct ot_chain *chain, const struct ot_plan *plans, int ranks,
                      const struct ot_costs *costs, const double *slowness, double limit,
                      struct ot_prediction *out);

#endif

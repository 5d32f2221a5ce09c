/* The forecast of a training run: the plan that the planner chooses for this machine, and the predicted time
 * of a step. It is made before step 1 from the machine's rates and from the cost of each block, which a few
 * passes on random numbers measure. It is kept until the end, where the summary compares it with the measured
 * steps.
 *
 * If everything fits on the device, the plan of ot_plan_make stays: there is nothing to choose. Its
 * micro-batch, the only choice that changes results, then depends only on the budgets. Otherwise the
 * micro-batch may depend on measurements. The run's record holds it, so that --config repeats the bits.
 */
#ifndef OT_SESSION_FORECAST_H
#define OT_SESSION_FORECAST_H

#include "src/session/parts.h"

/* The fill of a plan's micro-batches with real rows. Micro-batches hold no pad tokens, and attention stays
 * inside a row. */
struct ot_forecast_rows {
    double fill;        /* real tokens divided by the plan's tokens, 0 to 1 */
    int64_t tokens;     /* mean tokens of a row */
    int64_t run_tokens; /* of all ranks, in the steps that the run still has; 0: not known yet */
};

/* Measures the machine's rates and the model's blocks, for the size of micro-batch of session->plan, and sets
 * session->forecast.costs. Does nothing if they are set. Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_IO. */
int ot_forecast_measure(struct ot_session *session, const struct ot_plan_request *request,
                        const struct ot_forecast_rows *rows);
/* After that, predicts a step of the plan that the planner chooses for the request; keeps no plan. On entry
 * session->plan is as in ot_forecast_make. Changes session->shard with several ranks. Errors: as the
 * planner. */
int ot_forecast_predict(struct ot_session *session, struct ot_plan_request *request,
                        const struct ot_forecast_rows *rows, struct ot_prediction *out);

/* On entry session->plan is the plan that ot_plan_make made for the request; on return it is the plan that
 * the planner chose. With several ranks, writes the shard mode and the micro-batch that all ranks share into
 * the request. Fills in session->forecast and session->prediction. Errors: OT_E_BUDGET, OT_E_DEVICE,
 * OT_E_IO. */
int ot_forecast_make(struct ot_session *session, struct ot_plan_request *request,
                     const struct ot_forecast_rows *rows);
/* After that: the seconds of a forward pass over a micro-batch, as an evaluation makes it, and of the pass
 * for one token of an answer. Lanes count as overlapping fully. Errors: OT_E_BUDGET, OT_E_USAGE. */
int ot_forecast_passes(const struct ot_session *session, double *micro_batch, double *token);
void ot_forecast_free(struct ot_forecast *forecast);

#endif

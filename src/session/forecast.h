/* The forecast of a training run: the plan that the planner chooses for this machine, and how long its step
 * will take. Made before step 1 from the machine's rates and from the blocks' own cost, which a few passes
 * on random numbers measure; kept, so that the summary can hold what was measured against it.
 *
 * Where everything is on the device the plan stays that of ot_plan_make, whatever was measured: there is
 * nothing to choose, and the micro-batch, which fixes the bits, depends on the budgets alone. Elsewhere it
 * may depend on what was measured; a run's record has it, so that --config repeats the bits.
 */
#ifndef OT_SESSION_FORECAST_H
#define OT_SESSION_FORECAST_H

#include "src/session/parts.h"

/* What the rows leave of a plan's full micro-batches: there are no pad tokens, and attention stays in a
 * row. */
struct ot_forecast_rows {
    double fill;    /* of the plan's tokens, how many there are: 0 to 1 */
    int64_t tokens; /* of a row, on average */
};

/* session->plan is what ot_plan_make made of the request, and becomes what the planner chooses. Fills in
 * session->forecast and ->prediction. Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_IO. */
int ot_forecast_make(struct ot_session *session, const struct ot_plan_request *request,
                     const struct ot_forecast_rows *rows);
void ot_forecast_free(struct ot_forecast *forecast);

#endif

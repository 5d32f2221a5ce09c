/* What the planner shares with its explanation. Private to offload/predict. */
#ifndef OT_OFFLOAD_PREDICT_PLANNER_STATE_H
#define OT_OFFLOAD_PREDICT_PLANNER_STATE_H

#include "offload/predict/planner.h"

/* Same as ot_planner_choose. start: NULL, or a request that was good on another machine; its choices are
 * tried first. */
int ot_planner_choose_from(const struct ot_plan_request *request, const struct ot_costs *costs,
                           const struct ot_plan_request *start, struct ot_planner_result *out);

#endif

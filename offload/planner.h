/* The planner: chooses among the plans that fit (plan.h) the one that the simulator says is fastest.
 *
 * It tries what changes speed and not bits: how optimizer tiles are shared out among gpu, stream and cpu
 * engines, where state, weights and activations live, how many slots stage them, what is recomputed, how
 * large tiles are; and the micro-batch, which does change bits, only where that gains more than
 * OT_PLANNER_MARGIN. Candidates are made by ot_plan_make with the choice forced, so every one keeps the
 * budgets and every force of the user. Their number is bounded by count, never by time: the same request and
 * the same costs always give the same plan.
 */
#ifndef OT_OFFLOAD_PLANNER_H
#define OT_OFFLOAD_PLANNER_H

#include "offload/plan.h"
#include "offload/simulate.h"

#define OT_PLANNER_MARGIN 0.05 /* of the step's time, that another micro-batch must gain */

struct ot_planner_result {
    struct ot_plan plan; /* free with ot_plan_free */
    struct ot_prediction prediction;
    int tried; /* plans that were simulated */
};

/* Errors: as ot_plan_make; as ot_simulate_plan. */
int ot_planner_choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                      struct ot_planner_result *out);

/* What would change if one thing of the machine did: the planner once more with it. */
struct ot_explanation {
    enum ot_lane_id bound; /* the lane that bounds the step: compute, or what it waits for most */
    double bound_share;    /* of the step */
    struct ot_what_if {
        const char *what;    /* "1 GiB more gpu memory", "twice the disks' rate" */
        double step_seconds; /* predicted with it; 0: nothing changes */
    } ifs[8];
    int n_ifs;
};
int ot_planner_explain(const struct ot_plan_request *request, const struct ot_costs *costs,
                       const struct ot_planner_result *chosen, struct ot_explanation *out);

#endif

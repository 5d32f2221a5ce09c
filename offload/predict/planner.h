/* The planner: chooses among the plans that fit (plan.h) the one that the simulator says is fastest.
 *
 * It tries what changes speed and not bits: how optimizer tiles are shared out among gpu, stream and cpu
 * engines, where state, weights and activations live, how many slots stage them, what is recomputed, how
 * large tiles are; and the micro-batch, which does change bits, only where that gains more than
 * OT_PLANNER_MARGIN. Candidates are made by ot_plan_make with the choice forced, so every one keeps the
 * budgets and every force of the user, and the first is ot_plan_make's own choice, so that no plan is slower
 * than that one, by the simulator's clock.
 *
 * The search is local: from the best plan so far, one field at a time to values near it, in a fixed order,
 * until a whole round gains nothing or the tries are used up; tile sizes last. The number of tries is
 * bounded by count, and the count by the tasks of a step, never by time: the same request and the same costs
 * always give the same plan.
 *
 * Local, with a margin for the micro-batch: with more memory or a faster machine the search may end
 * elsewhere, and predict a step that is longer by at most about that margin.
 */
#ifndef OT_OFFLOAD_PREDICT_PLANNER_H
#define OT_OFFLOAD_PREDICT_PLANNER_H

#include "offload/plan/make.h"
#include "offload/predict/simulate.h"

#define OT_PLANNER_MARGIN     0.05 /* of the step's time, that another micro-batch must gain */
#define OT_PLANNER_RESOLUTION 0.02 /* of the rate: searches that differ by less are not told apart */

struct ot_planner_result {
    struct ot_plan plan; /* free with ot_plan_free */
    struct ot_prediction prediction;
    struct ot_plan_request
        forced; /* what was asked for, with the choices forced: ot_plan_make's for the plan */
    int tried;  /* plans that were simulated */
};

/* A plan that trains; for a forward pass alone there is nothing to choose, see ot_plan_make. Errors: as
 * ot_plan_make, whose shortage is in out->plan; as ot_simulate_plan. */
int ot_planner_choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                      struct ot_planner_result *out);

enum { OT_WHAT_IFS = 8 };

/* What would change if one thing of the machine did: the planner once more with it. The chosen plan stays
 * possible with more of anything, so no answer is slower than it. A gain below OT_PLANNER_RESOLUTION, or from
 * more memory that the better plan does not even use, is the search's noise: it is 0. */
struct ot_explanation {
    enum ot_lane_id bound;            /* the lane that bounds the step: compute, or what it waits for most */
    enum ot_lane_id second;           /* the lane that comes next; == bound: there is none */
    double bound_share, second_share; /* of the step */
    struct ot_what_if {
        const char *what;         /* "1 GiB more gpu memory", "twice the disks' rate" */
        double step_seconds;      /* predicted with it */
        double tokens_per_second; /* with twice the tokens a step the only fair measure */
        double gain;              /* of tokens a second, relative; 0: none that can be told */
    } ifs[OT_WHAT_IFS];
    int n_ifs;
};
/* Fills in bound and second alone: compute's own time against the time that compute waits for each other
 * lane. */
void ot_planner_find_bound(const struct ot_prediction *prediction, struct ot_explanation *out);
int ot_planner_explain(const struct ot_plan_request *request, const struct ot_costs *costs,
                       const struct ot_planner_result *chosen, struct ot_explanation *out);

#endif

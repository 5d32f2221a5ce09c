/* The planner chooses, among the plans that fit (plan.h), the plan with the shortest simulated step.
 *
 * It varies choices that change the speed but not the bits: the shares of optimizer tiles that the gpu,
 * stream and cpu engines update; the homes of state, weights and activations; the number of slots;
 * recomputation; shadows; the tile size; whether only used parts of slabs are fetched. The micro-batch does
 * change the bits, so the planner changes it only for a gain above OT_PLANNER_MARGIN.
 *
 * ot_plan_make makes every candidate, with the choice forced. So every candidate keeps the budgets and
 * everything that the user forced. The first candidate is ot_plan_make's own plan, so by the simulator's
 * clock the result is never slower than that plan.
 *
 * The search climbs from several plans, because a climb finds only plans that are near. It makes plans with
 * each number of rounds and each way to keep activations, and simulates those that may be fast. From the
 * fastest of each way, and from the fastest with a home forced (or two), it changes one field at a time to
 * nearby values, until no change gains anything. Then it changes several fields of the best plan at random.
 * Then it tries other micro-batches, then the most state on the device beside a disk, tile sizes and shadows.
 * As soon as nothing waits and no product is computed again, it only tries to keep all other activations too.
 * The number of tries depends on the tasks of a step and never on time: the same request and the same costs
 * always give the same plan.
 *
 * Because the search is local, more memory or a faster machine can lead it to another plan, with a predicted
 * step that is longer: in hunts through small chains by up to 5.5 %. Most of that is OT_PLANNER_MARGIN.
 */
#ifndef OT_OFFLOAD_PREDICT_PLANNER_H
#define OT_OFFLOAD_PREDICT_PLANNER_H

#include "offload/plan/plan_search.h"
#include "offload/predict/simulate.h"

#define OT_PLANNER_MARGIN     0.05 /* share of the step's time that another micro-batch must save */
#define OT_PLANNER_RESOLUTION 0.02 /* smaller relative gains in tokens a second are treated as noise */

struct ot_planner_result {
    struct ot_plan plan; /* free with ot_plan_free */
    struct ot_prediction prediction;
    struct ot_plan_request
        forced; /* the user's request with the planner's choices forced: ot_plan_make gives `plan` for it */
    int tried;  /* plans; some were given up before or during their simulation (simulate.h) */
};

/* Chooses a plan for training. (For a forward pass alone, call ot_plan_make: it has a rule for all that there
 * is to choose.) Of a stage: plans all ranks of the division, and returns the plan and the prediction of the
 * shard's rank. The ranks of a run have much the same budgets and rates, so their plans fit together.
 * Errors: as ot_plan_make, which leaves its shortage in out->plan; as ot_simulate_plan. */
int ot_planner_choose(const struct ot_plan_request *request, const struct ot_costs *costs,
                      struct ot_planner_result *out);

enum { OT_WHAT_IFS = 8 };

/* Answers "what if": the planner runs again with one property of the machine or of the step changed. The
 * chosen plan also fits a larger machine, so no answer for a larger machine is slower than it. Two kinds of
 * gain are noise of the search, and are set to 0: a gain below OT_PLANNER_RESOLUTION, and a gain from more
 * memory by a plan that would fit without it. */
struct ot_explanation {
    /* The lane that bounds the step: compute, or the lane that compute waits for most. */
    enum ot_lane_id bound;
    enum ot_lane_id second;           /* the second lane; == bound if there is no other */
    double bound_share, second_share; /* shares of the step's time */
    struct ot_what_if {
        const char *what;         /* "1 GiB more gpu memory", "twice the disks' rate" */
        double step_seconds;      /* predicted for the changed machine */
        double tokens_per_second; /* compare this, not step_seconds, for "twice the tokens, half the steps" */
        double gain;              /* relative gain in tokens a second; 0: no gain above the noise */
        bool is_longer_step;      /* the answer for twice the tokens a step */
    } ifs[OT_WHAT_IFS];
    int n_ifs;
};
/* Fills in only bound, second and their shares. Compares the compute lane's busy time with the time that
 * compute waits for each other lane. */
void ot_planner_find_bound(const struct ot_prediction *prediction, struct ot_explanation *out);
int ot_planner_explain(const struct ot_plan_request *request, const struct ot_costs *costs,
                       const struct ot_planner_result *chosen, struct ot_explanation *out);

#endif

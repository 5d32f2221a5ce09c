/* The simulator: a schedule in virtual time. The same tasks, edges, lanes and deadlines as the executor's,
 * with costs in the place of work (costs.h).
 *
 * TIME. Ordered lanes run their tasks as listed; the others take, of the tasks whose edges are satisfied, the
 * one with the earliest deadline, as the executor does. A task runs at the speed that what it shares leaves
 * it: both copy directions share the link, reads and writes share the disks, and the host's cores and memory
 * are shared by the optimizer, the copies, checksums and, on the cpu device, the ops. Whenever a task begins
 * or ends the speeds are worked out anew; between, all is linear.
 *
 * Steps follow each other as in a run, two in flight. The time of a step is that of the last simulated ones,
 * from decision to decision, when slots are warm.
 *
 * Deterministic; touches no device and no clock.
 */
#ifndef OT_OFFLOAD_PREDICT_SIMULATE_H
#define OT_OFFLOAD_PREDICT_SIMULATE_H

#include "offload/predict/costs.h"
#include "offload/predict/trace.h"

struct ot_prediction {
    double step_seconds;           /* of a step in the middle of a run */
    double busy[OT_LANE_COUNT];    /* seconds of such a step in which the lane runs a task */
    double exposed[OT_LANE_COUNT]; /* in which compute stands still because of the lane (trace.h) */
    double exposed_host;           /* because of nothing that runs */
    double bytes[OT_LANE_COUNT];   /* moved in a step; compute: 0 */
    double flops;                  /* computed in a step, with recomputation */
    double model_flops;            /* as people count them: ot_costs_model_flops */
    double tokens;                 /* of a step */
};

struct ot_simulation {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    const struct ot_layout *layout;
    const struct ot_schedule *train; /* linked */
    const struct ot_costs *costs;
};

/* trace: NULL, or gets the simulated steps' spans, from second 0 on. Errors: OT_E_BUDGET, OT_E_INTERNAL (the
 * schedule does not end). */
int ot_simulate(const struct ot_simulation *simulation, struct ot_trace *trace, struct ot_prediction *out);

/* Makes the layout and the schedule of the plan, simulates, frees them. */
int ot_simulate_plan(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                     struct ot_prediction *out);

#endif

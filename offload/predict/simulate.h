/* The simulator runs a schedule in virtual time. Tasks, edges, lanes and deadlines are the executor's; each
 * task takes the time of its cost (costs.h) instead of doing work.
 *
 * TIME. The device's lanes run their tasks in the listed order. Every other lane takes, among its tasks with
 * all edges satisfied, the task with the earliest deadline, as the executor does. Tasks that share a resource
 * slow each other down. Both copy directions share the link. Reads and writes share the disks. The optimizer,
 * the copies, the checksums and the cpu device's ops share the host's cores and memory. The communicator
 * shares the link and the host's memory with them (rates.h). The simulator computes the speeds again whenever
 * a task begins or ends; between these moments they are constant.
 *
 * RANKS. The simulator runs one rank, with its share of the resources of the host's ranks (rates.h). The
 * ranks have equal shares of the model and the same lists of tasks. So if they are equally fast, each task
 * runs on all of them at the same time, a fair division gives each rank 1/n of a shared resource, and no
 * rank waits for another: one rank stands for all. Two things make ranks differ. A rank may have fewer
 * micro-batches than others in a step. The simulated rank has the most, and the others wait for it at each
 * exchange. A rank may be slower than rank 0, whose rates these are. All ranks then take its time, and the
 * prediction is too short by the difference. Stages are unlike each other by design: simulate_ranks.h
 * simulates all of them.
 *
 * SHADOWS (plan/shadow_updates.h). The simulator takes the norm of every step to be far below the limit: each
 * shadow that begins before the decision is made and committed. In a run with larger norms fewer are made,
 * and its steps take longer than predicted.
 *
 * Steps follow each other as in a run, with two in flight. The predicted time of a step is measured between
 * the decisions of later simulated steps, when the pipeline is full.
 *
 * The simulator is deterministic and uses no device and no clock.
 */
#ifndef OT_OFFLOAD_PREDICT_SIMULATE_H
#define OT_OFFLOAD_PREDICT_SIMULATE_H

#include "offload/predict/costs.h"
#include "offload/predict/trace.h"

struct ot_prediction {
    double step_seconds;           /* time of a step in the middle of a run */
    double busy[OT_LANE_COUNT];    /* seconds of such a step in which the lane runs a task */
    double exposed[OT_LANE_COUNT]; /* seconds in which compute waits for the lane (trace.h) */
    double exposed_host;           /* seconds in which compute waits, but no task that it needs runs */
    double bytes[OT_LANE_COUNT];   /* moved in a step; compute: 0 */
    double gathered, exchanged; /* several ranks: bytes of weights and of gradient sums, of the comm lane */
    double flops;               /* computed in a step, with recomputation */
    double model_flops;         /* as counted for MFU: ot_costs_model_flops */
    double tokens;              /* in a step */
};

struct ot_simulation {
    const struct ot_chain *chain;
    const struct ot_plan *plan;
    const struct ot_layout *layout;
    const struct ot_schedule *train; /* linked */
    const struct ot_costs *costs;
};

/* trace: NULL, or receives the spans of the simulated steps; their times begin at 0. Errors: OT_E_BUDGET (no
 * memory), OT_E_USAGE (a task's cost is unknown), OT_E_INTERNAL (the schedule has a deadlock). */
int ot_simulate(const struct ot_simulation *simulation, struct ot_trace *trace, struct ot_prediction *out);

/* Makes the plan's layout and schedule, simulates them and frees them. Errors: as ot_simulate, and those of
 * making the layout and the schedule. */
int ot_simulate_plan(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                     struct ot_prediction *out);
/* The same for a search: gives up as soon as it is clear that a step takes `limit` seconds or more. Returns 1
 * with the prediction if a step takes less, else 0, and then *out is unchanged. Gives up before it runs if a
 * lane has more work in a step than that, or if the tasks need more of a shared resource. */
int ot_simulate_faster(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                       double limit, struct ot_prediction *out);

/* ---- measured ---- */

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

/* Sets costs->slower so that each lane of the simulated step is as busy as it was measured, and predicts the
 * step. busy: seconds of a step, as ot_prediction has them; a lane without work keeps its costs. first: the
 * prediction that these costs gave. Lanes that share a resource slow each other down in the simulation as
 * they did in the run, so the factors come from three simulations, of about 2 us a task each. Errors: as
 * ot_simulate_plan; *costs is then half corrected. */
int ot_predict_measured(const struct ot_chain *chain, const struct ot_plan *plan,
                        const struct ot_prediction *first, const double busy[OT_LANE_COUNT],
                        struct ot_costs *costs, struct ot_prediction *out);

#endif

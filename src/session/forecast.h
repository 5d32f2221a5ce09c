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

#include "offload/probe/comm_rates.h"
#include "src/session/session.h"

/* The fill of a plan's micro-batches with real rows. Micro-batches hold no pad tokens, and attention stays
 * inside a row. */
struct ot_forecast_rows {
    double fill;        /* real tokens divided by the plan's tokens, 0 to 1 */
    int64_t tokens;     /* mean tokens of a row */
    int64_t run_tokens; /* of all ranks, in the steps that the run still has; 0: not known yet */
};

/* Measures the machine's rates and the model's blocks, for the size of micro-batch of session->plan.chosen,
 * and sets session->plan.forecast.costs. Does nothing if they are set. Errors: OT_E_BUDGET, OT_E_DEVICE,
 * OT_E_IO. */
int ot_forecast_measure(struct ot_session *session, const struct ot_plan_request *request,
                        const struct ot_forecast_rows *rows);
/* After that, predicts a step of the plan that the planner chooses for the request; keeps no plan. On entry
 * session->plan.chosen is as in ot_forecast_make. Changes session->ranks.shard with several ranks. Errors:
 * as the planner. */
int ot_forecast_predict(struct ot_session *session, struct ot_plan_request *request,
                        const struct ot_forecast_rows *rows, struct ot_prediction *out);

/* On entry session->plan.chosen is the plan that ot_plan_make made for the request; on return it is the
 * plan that the planner chose. With several ranks, writes the shard and the micro-batch that all ranks
 * share, and with stages the rounds, into the request. Fills in session->plan.forecast and
 * session->plan.prediction. Errors: OT_E_BUDGET, OT_E_DEVICE, OT_E_IO. */
int ot_forecast_make(struct ot_session *session, struct ot_plan_request *request,
                     const struct ot_forecast_rows *rows);
/* The seconds of a forward pass over a micro-batch, as an evaluation makes it, and of the pass for one token
 * of an answer. Lanes count as overlapping fully. Errors: OT_E_BUDGET, OT_E_USAGE. */
int ot_forecast_passes(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                       double *micro_batch, double *token);
/* The machine's own roof: FLOP/s of the matrix products of a layer, as the probe has measured them, times the
 * ranks. 0: not measured (--no-forecast). */
double ot_forecast_roof(const struct ot_session *session);
void ot_forecast_free(struct ot_forecast *forecast);

/* ---- the second forecast ---- */

/* The second forecast of a run. It replaces the probe's rates by those of the run's own steps
 * (offload/predict/simulate.h), because a long run may meet other rates than a short probe.
 *
 * STEPS. The first two steps of a run are warm-up: they touch memory for the first time, and after them the
 * device tunes its kernels. From the third step on the steps are traced, until two steps in a row are full
 * and were not skipped. Usually these are steps 3 and 4. The second forecast is made once a step after them
 * has been submitted, so a run of fewer than six steps has none. Nor does a run whose trace fills up earlier
 * (--trace of a long evaluation). Resumed runs count their own steps.
 *
 * COST. Before and after these steps tracing costs nothing, and during them about 0.1 us a task of the host
 * and two timed events a task of the device. The memory is 16 bytes a traced task, 4 MB at most, and the
 * events of two steps. The forecast simulates the plan three times on the thread that submits steps:
 * milliseconds for a small model, about 0.2 s for 7B, once in a run, with two steps already submitted.
 *
 * The plan stays. Another plan would need another layout of all memory, so it means a new start: stop the run
 * and continue it with --resume, which probes the blocks again and may choose another plan. The kept rates of
 * the machine (measure.h) do not learn from a run, since another program may have slowed it down;
 * `offload-train probe` measures them again.
 *
 * Several ranks: rank 0 measures itself and predicts. Where it waits for a slower rank, its comm lane is
 * slower than predicted. Use it from the thread that submits steps.
 */

struct ot_forecast_again {
    struct ot_session *session;
    int64_t begun;    /* the steps before this run */
    int in_a_row;     /* steps that can be measured, up to the last finished step */
    int64_t measured; /* the last measured step; 0: not yet */
    bool is_over;     /* made, or impossible */
};

/* Opens session->trace, paused, if the session has a forecast that this rank prints. Call this before the
 * engine is opened. Does nothing if there is a trace already. Errors: OT_E_BUDGET. */
int ot_forecast_again_trace(struct ot_session *session);

void ot_forecast_again_open(struct ot_session *session, int64_t begun, struct ot_forecast_again *out);
/* Call this before step number `step` is submitted. */
void ot_forecast_again_submit(struct ot_forecast_again *again, int64_t step);
/* Call this when a step has finished. is_typical: it is as large as most, and was not skipped. */
void ot_forecast_again_finish(struct ot_forecast_again *again, int64_t step, bool is_typical);
/* Call this after step number `step` was submitted. Returns 1 once, when session->plan.forecast.again is
 * made; else 0. Errors: as ot_predict_measured. */
int ot_forecast_again_make(struct ot_forecast_again *again, int64_t step);

/* ---- several ranks ---- */

/* The forecast of several ranks: they measure their communicator together, and take over those choices of
 * rank 0 that all must share. Every rank calls these functions at the same time. */

/* Measures the communicator and, on GPUs, copies between the GPUs of each host, for about a second. Sets the
 * communicator's rates. peers: NULL, or receives the measurements between GPUs. Does nothing for one rank.
 * Errors: OT_E_COMM, OT_E_BUDGET, OT_E_DEVICE. */
int ot_session_ranks_measure(struct ot_session *session, struct ot_rates *rates, struct ot_peers *peers);

/* Chooses this rank's plan for the request. Rank 0 chooses the shard mode, if --shard is auto (also stages,
 * if session->ranks.may_stages), whether the weights are one copy, if session->ranks.may_one_copy, the
 * micro-batch, unless the request has one, and with stages the division and the rounds. Writes these choices
 * into the request. The other ranks then choose the rest of their plans. Errors: as ot_planner_choose;
 * OT_E_COMM. */
int ot_session_ranks_choose_plan(struct ot_session *session, struct ot_plan_request *request,
                                 const struct ot_costs *costs, struct ot_planner_result *out);

#endif

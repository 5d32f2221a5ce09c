/* The forecast of several ranks: they measure their communicator together, and take over those choices of
 * rank 0 that all must share. Every rank calls these functions at the same time. */
#ifndef OT_SESSION_SESSION_RANKS_FORECAST_H
#define OT_SESSION_SESSION_RANKS_FORECAST_H

#include "offload/probe/peers.h"
#include "src/session/parts.h"

/* Measures the communicator and, on GPUs, copies between the GPUs of each host, for about a second. Sets the
 * communicator's rates. peers: NULL, or receives the measurements between GPUs. Does nothing for one rank.
 * Errors: OT_E_COMM, OT_E_BUDGET, OT_E_DEVICE. */
int ot_session_ranks_measure(struct ot_session *session, struct ot_rates *rates, struct ot_peers *peers);

/* Chooses this rank's plan for the request. Rank 0 chooses the shard mode, if --shard is auto, whether the
 * weights are one copy, if session->may_one_copy, and the micro-batch, unless the request has one; the other
 * ranks then choose the rest of their plans. Writes these choices into the request. Errors: as
 * ot_planner_choose; OT_E_COMM. */
int ot_session_ranks_choose_plan(struct ot_session *session, struct ot_plan_request *request,
                                 const struct ot_costs *costs, struct ot_planner_result *out);

#endif

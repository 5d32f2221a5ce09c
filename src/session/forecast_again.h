/* The second forecast of a run. It replaces the probe's rates by those of the run's own steps
 * (offload/predict/measured.h), because a long run may meet other rates than a short probe.
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
 * the machine (rates_cache.h) do not learn from a run, since another program may have slowed it down;
 * `offload-train probe` measures them again.
 *
 * Several ranks: rank 0 measures itself and predicts. Where it waits for a slower rank, its comm lane is
 * slower than predicted. Use it from the thread that submits steps.
 */
#ifndef OT_SESSION_FORECAST_AGAIN_H
#define OT_SESSION_FORECAST_AGAIN_H

#include "src/session/parts.h"

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
/* Call this after step number `step` was submitted. Returns 1 once, when session->forecast.again is made;
 * else 0. Errors: as ot_predict_measured. */
int ot_forecast_again_make(struct ot_forecast_again *again, int64_t step);

#endif

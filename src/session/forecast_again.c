#include "src/session/forecast_again.h"

#include "offload/predict/measured.h"
#include "src/base/error.h"
#include "src/session/session_ranks.h"

enum { WARM_UP = 2, MEASURED = 2, IN_FLIGHT = 2, MOST_TASKS = 250000 };

static bool has_forecast(const struct ot_session *s) {
    return s->forecast.costs.n_blocks > 0;
}

int ot_forecast_again_trace(struct ot_session *s) {
    if (s->trace || !has_forecast(s) || !ot_is_rank0(s))
        return 0;
    OT_TRY(ot_trace_open(ot_model_chain(s->model), MOST_TASKS, &s->trace));
    ot_trace_pause(s->trace, true);
    return 0;
}

void ot_forecast_again_open(struct ot_session *session, int64_t begun, struct ot_forecast_again *out) {
    *out = (struct ot_forecast_again){.session = session, .begun = begun};
    out->is_over = !session->trace || !has_forecast(session);
}

void ot_forecast_again_submit(struct ot_forecast_again *again, int64_t step) {
    bool is_wanted = !again->is_over && !again->measured && step - again->begun > WARM_UP;
    if (!again->session->options->trace)
        ot_trace_pause(again->session->trace, !is_wanted);
}

void ot_forecast_again_finish(struct ot_forecast_again *again, int64_t step, bool is_typical) {
    if (again->is_over || again->measured || step - again->begun <= WARM_UP)
        return;
    again->in_a_row = is_typical ? again->in_a_row + 1 : 0;
    again->measured = again->in_a_row == MEASURED ? step : 0;
}

/* Only the times of the second prediction are new. */
static void take_times(const struct ot_prediction *first, struct ot_prediction *second) {
    second->tokens = first->tokens;
    second->flops = first->flops;
    second->model_flops = first->model_flops;
}

int ot_forecast_again_make(struct ot_forecast_again *again, int64_t step) {
    struct ot_session *s = again->session;
    struct ot_forecast *f = &s->forecast;
    struct ot_trace_summary sum;
    if (again->is_over || !again->measured || step < again->measured + IN_FLIGHT)
        return 0;
    again->is_over = true; /* that step took the place of the last measured step, which is in the trace now */
    f->again_from = again->measured - MEASURED + 1;
    f->again_to = again->measured;
    int rc = ot_trace_summarise_steps(s->trace, f->again_from, f->again_to, &sum);
    if (rc == -OT_E_USAGE) /* the trace was full */
        return 0;
    OT_TRY(rc);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        sum.busy[l] /= MEASURED;
    OT_TRY(ot_predict_measured(ot_model_chain(s->model), &s->plan, &s->prediction, sum.busy, &f->costs,
                               &f->again));
    take_times(&s->prediction, &f->again);
    return 1;
}

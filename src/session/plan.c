/* A session's plan: what fits, or what the forecast says is fastest. */
#include <string.h>

#include "src/base/error.h"
#include "src/session/device.h"
#include "src/session/plan_cure.h"
#include "src/session/plan_request.h"
#include "src/session/session.h"

static struct ot_plan_request make_request(const struct ot_session *s, const struct ot_session_need *need) {
    struct ot_plan_request request = ot_plan_request_of(s->options);
    request.chain = ot_model_chain(s->model);
    memcpy(request.budget_bytes, s->budget_bytes, sizeof request.budget_bytes);
    request.sequence_tokens = need->sequence_tokens;
    request.step_sequences = need->step_sequences;
    request.micro_sequences = need->micro_sequences;
    request.train = need->train;
    request.clip = need->clip;
    request.extra_device_bytes = (int64_t)(s->cache_bytes + s->workspace_bytes);
    request.extra_host_bytes = need->host_bytes;
    request.snapshot_slots = need->snapshot_slots;
    request.kept_contents = need->kept_contents;
    return request;
}

static int make_plan(struct ot_session *s, const struct ot_plan_request *request) {
    struct ot_planner_result chosen = {0};
    if (!s->costs || !request->train)
        return ot_plan_make(request, &s->plan);
    int rc = ot_planner_choose(request, s->costs, &chosen);
    s->plan = chosen.plan;
    s->prediction = chosen.prediction;
    return rc;
}

static int refuse(const struct ot_session *s, const struct ot_plan_request *request) {
    size_t most[OT_TIER_COUNT];
    ot_session_most_bytes(s, most);
    struct ot_cure cure = {.options = s->options,
                           .request = request,
                           .most_gpu_bytes = most[OT_TIER_GPU],
                           .most_host_bytes = most[OT_TIER_HOST]};
    return ot_plan_cure(&cure, &s->plan.shortage);
}

int ot_session_plan(struct ot_session *s, const struct ot_session_need *need) {
    OT_TRY(ot_model_open(&s->config, s->dtype, need->max_position, &s->model));
    if (s->options->init == OT_CHOICE_INIT_FILES)
        OT_TRY(ot_model_dir_check(s->dir, s->model));
    if (need->cache_tokens)
        s->cache_bytes = ot_engine_kv_bytes(ot_model_chain(s->model), need->cache_tokens);
    struct ot_plan_request request = make_request(s, need);
    int rc = make_plan(s, &request);
    if (rc == -OT_E_BUDGET &&
        request.kept_contents > 0) { /* then checkpoints are copied, which needs less here */
        request.kept_contents = 0;
        rc = make_plan(s, &request);
    }
    if (rc == -OT_E_BUDGET)
        return refuse(s, &request);
    OT_TRY(rc);
    return ot_session_check_free(s);
}

int ot_session_forecast(struct ot_session *s, const struct ot_session_need *need,
                        const struct ot_forecast_rows *rows) {
    struct ot_plan_request request = make_request(s, need);
    request.kept_contents = s->plan.kept_contents;
    OT_TRY(ot_forecast_make(s, &request, rows));
    return ot_session_check_free(s);
}

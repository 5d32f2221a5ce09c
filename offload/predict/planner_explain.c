/* Explains a plan: the limit of its step, and the effect of another machine or step. */
#include <math.h>

#include "offload/predict/planner_state.h"
#include "src/base/error.h"

void ot_planner_find_bound(const struct ot_prediction *p, struct ot_explanation *out) {
    double parts[OT_LANE_COUNT];
    int first = OT_LANE_COMPUTE, second;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        parts[l] = l == OT_LANE_COMPUTE ? p->busy[l] : p->exposed[l];
    for (int l = 0; l < OT_LANE_COUNT; l++)
        first = parts[l] > parts[first] ? l : first;
    second = first;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (l != first && parts[l] > 0 && (second == first || parts[l] > parts[second]))
            second = l;
    out->bound = (enum ot_lane_id)first;
    out->second = (enum ot_lane_id)second;
    if (p->step_seconds > 0) {
        out->bound_share = parts[first] / p->step_seconds;
        out->second_share = second == first ? 0 : parts[second] / p->step_seconds;
    }
}

/* A "what if" question: a request and costs, with one property changed. */
struct question {
    const char *what;
    const struct ot_plan_request *request;
    const struct ot_costs *costs;
    bool is_more_memory;
};

/* True if a plan that was found with more memory would also fit the given budgets. */
static bool fits_without(const struct ot_plan *plan, const struct ot_plan_request *given) {
    size_t extra[OT_TIER_COUNT] = {
        [OT_TIER_GPU] = (size_t)given->extra_device_bytes, [OT_TIER_HOST] = (size_t)given->extra_host_bytes};
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (ot_ledger_total(&plan->ledger, (enum ot_tier)t) + extra[t] > given->budget_bytes[t])
            return false;
    return true;
}

/* Runs the planner again, starting from the chosen plan. If the step is longer with the larger machine, the
 * order of tasks happened to become worse: the present plan would be kept, so the gain is 0. */
static int ask(const struct question *q, const struct ot_plan_request *given,
               const struct ot_planner_result *chosen, struct ot_explanation *out) {
    struct ot_planner_result with;
    int rc = ot_planner_choose_from(q->request, q->costs, &chosen->forced, INFINITY, &with);
    if (rc == -OT_E_BUDGET || rc == -OT_E_USAGE)
        return 0; /* twice the tokens may not fit: then there is no answer */
    OT_TRY(rc);
    bool is_noise = q->is_more_memory && fits_without(&with.plan, given);
    bool is_longer = q->request->step_sequences > given->step_sequences;
    ot_plan_free(&with.plan);
    double tokens = (double)(q->request->step_sequences * q->request->sequence_tokens);
    double now = (double)(given->step_sequences * given->sequence_tokens) / chosen->prediction.step_seconds;
    double step = with.prediction.step_seconds, gain = tokens / step / now - 1;
    if (is_noise || fabs(gain) < OT_PLANNER_RESOLUTION || (gain < 0 && !is_longer)) {
        gain = 0;
        step = tokens / now;
    }
    out->ifs[out->n_ifs++] = (struct ot_what_if){q->what, step, tokens / step, gain, is_longer};
    return 0;
}

static int ask_for_memory(const struct ot_plan_request *request, const struct ot_costs *costs,
                          const struct ot_planner_result *chosen, struct ot_explanation *out) {
    static const char *const what[OT_TIER_COUNT] = {"1 GiB more gpu memory", "1 GiB more host memory",
                                                    "1 GiB more on nvme"};
    for (int tier = 0; tier < OT_TIER_COUNT; tier++) {
        struct ot_plan_request more = *request;
        if (more.budget_bytes[tier] == 0)
            continue;
        more.budget_bytes[tier] += (size_t)1 << 30;
        OT_TRY(ask(&(struct question){what[tier], &more, costs, true}, request, chosen, out));
    }
    return 0;
}

int ot_planner_explain(const struct ot_plan_request *request, const struct ot_costs *costs,
                       const struct ot_planner_result *chosen, struct ot_explanation *out) {
    struct ot_plan_request longer = *request;
    struct ot_costs changed = *costs; /* shares `blocks` with the caller's costs; do not free */
    struct ot_rates *r = &changed.rates;
    *out = (struct ot_explanation){0};
    ot_planner_find_bound(&chosen->prediction, out);
    OT_TRY(ask_for_memory(request, costs, chosen, out));
    if (r->h2d_bytes > 0) {
        r->h2d_bytes *= 2, r->d2h_bytes *= 2, r->both_bytes *= 2;
        OT_TRY(
            ask(&(struct question){"twice the link's rate", request, &changed, false}, request, chosen, out));
        *r = costs->rates;
    }
    if (request->budget_bytes[OT_TIER_NVME] > 0) {
        r->nvme_read_bytes *= 2, r->nvme_write_bytes *= 2, r->nvme_mixed_bytes *= 2;
        OT_TRY(
            ask(&(struct question){"twice the disks' rate", request, &changed, false}, request, chosen, out));
        *r = costs->rates;
    }
    ot_rates_scale_memory(r, 2);
    OT_TRY(ask(&(struct question){"twice the host memory's rate", request, &changed, false}, request, chosen,
               out));
    *r = costs->rates;
    longer.step_sequences *= 2;
    return ask(&(struct question){"twice the tokens, half the steps", &longer, costs, false}, request, chosen,
               out);
}

#include "src/session/forecast.h"

#include "offload/predict/calibrate.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/machine/process_peak.h"
#include "src/session/rates_cache.h"

/* What may be spent on measuring the blocks: not worth more than a step or two of a model that streams. */
static const double calibration_seconds = 2;

/* Weights, state and activations: then only the micro-batch and recomputation are left to choose, and
 * ot_plan_make has taken as much of either as fits. */
static bool is_resident(const struct ot_plan *plan) {
    bool resident = plan->activations == OT_HOME_GPU;
    for (int i = 0; i < plan->n_slabs && resident; i++) {
        const struct ot_slab_plan *slab = &plan->slabs[i];
        resident =
            slab->weights == OT_HOME_GPU && slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU] == 0;
    }
    return resident;
}

/* Blocks that see fill of the tokens that they are asked about. */
static void scale_blocks(struct ot_costs *costs, double fill) {
    for (int b = 0; b < costs->n_blocks; b++) {
        costs->blocks[b].forward.per_token *= fill;
        costs->blocks[b].backward.per_token *= fill;
        costs->blocks[b].recompute.per_token *= fill;
    }
}

static int measure_costs(struct ot_session *s, const struct ot_plan_request *request,
                         const struct ot_forecast_rows *rows) {
    struct ot_rates rates;
    OT_TRY(ot_rates_obtain(s, true, &rates));
    struct ot_calibration calibration = {.chain = request->chain,
                                         .device = s->device,
                                         .rates = &rates,
                                         .micro_tokens = s->plan.micro_tokens,
                                         .sequence_tokens = rows->tokens,
                                         .device_bytes = s->budget_bytes[OT_TIER_GPU] - s->workspace_bytes,
                                         .seconds = calibration_seconds};
    OT_TRY(ot_calibrate(&calibration, &s->forecast.costs));
    scale_blocks(&s->forecast.costs, rows->fill);
    return 0;
}

/* What was counted by full micro-batches. */
static void count_tokens(struct ot_prediction *p, struct ot_explanation *e, double fill) {
    p->tokens *= fill;
    p->flops *= fill;
    p->model_flops *= fill;
    for (int i = 0; i < e->n_ifs; i++)
        e->ifs[i].tokens_per_second *= fill;
}

static int choose(struct ot_session *s, const struct ot_plan_request *request,
                  struct ot_planner_result *result) {
    struct ot_forecast *f = &s->forecast;
    *result = (struct ot_planner_result){.tried = 1};
    if (!is_resident(&s->plan))
        return ot_planner_choose(request, &f->costs, result);
    OT_TRY(ot_simulate_plan(request->chain, &s->plan, &f->costs, &result->prediction));
    result->plan = s->plan;
    s->plan = (struct ot_plan){0};
    return 0;
}

/* The predicted timeline, beside which --trace shows the measured one. */
static int keep_trace(struct ot_session *s, const struct ot_chain *chain) {
    enum { MOST_SPANS = 1 << 20 };
    struct ot_forecast *f = &s->forecast;
    struct ot_prediction same;
    OT_TRY(ot_layout_make(chain, &s->plan, &f->layout));
    OT_TRY(ot_schedule_make_train(chain, &s->plan, &f->layout, &f->schedule));
    OT_TRY(ot_trace_open(chain, MOST_SPANS, &f->trace));
    struct ot_simulation simulation = {chain, &s->plan, &f->layout, &f->schedule, &f->costs};
    return ot_simulate(&simulation, f->trace, &same);
}

int ot_forecast_make(struct ot_session *s, const struct ot_plan_request *request,
                     const struct ot_forecast_rows *rows) {
    struct ot_forecast *f = &s->forecast;
    struct ot_planner_result result;
    double since = ot_clock_seconds();
    OT_TRY(measure_costs(s, request, rows));
    OT_TRY(choose(s, request, &result));
    s->prediction = result.prediction;
    f->tried = result.tried;
    int rc = 0;
    if (s->options->explain) {
        rc = ot_planner_explain(request, &f->costs, &result, &f->explanation);
        f->is_explained = rc == 0;
    }
    count_tokens(&s->prediction, &f->explanation, rows->fill);
    ot_plan_free(&s->plan);
    s->plan = result.plan;
    if (rc == 0 && s->options->trace)
        rc = keep_trace(s, request->chain);
    ot_device_forget_peaks(s->device); /* those of the run are still to come */
    ot_process_forget_peak();
    f->seconds = ot_clock_seconds() - since;
    return rc;
}

void ot_forecast_free(struct ot_forecast *f) {
    ot_trace_close(f->trace);
    ot_schedule_free(&f->schedule);
    ot_layout_free(&f->layout);
    ot_costs_free(&f->costs);
    *f = (struct ot_forecast){0};
}

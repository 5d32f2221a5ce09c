#include "src/session/forecast.h"

#include <math.h>

#include "offload/plan/kept.h"
#include "offload/predict/calibrate.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/machine/process_peak.h"
#include "src/session/rates_cache.h"
#include "src/session/session_ranks.h"
#include "src/session/session_ranks_forecast.h"

/* The most time to spend on measuring the blocks. A longer measurement would cost more than a step or two of
 * a model that streams. */
static const double calibration_seconds = 2;

/* Returns true if weights, state and activations are all on the device. */
static bool is_resident(const struct ot_plan *plan) {
    bool resident = plan->activations == OT_HOME_GPU;
    for (int i = 0; i < plan->n_slabs && resident; i++) {
        const struct ot_slab_plan *slab = &plan->slabs[i];
        resident =
            slab->weights == OT_HOME_GPU && slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU] == 0;
    }
    return resident;
}

/* Scales the blocks' cost per token: only the share `fill` of a micro-batch's tokens is real. */
static void scale_blocks(struct ot_costs *costs, double fill) {
    for (int b = 0; b < costs->n_blocks; b++) {
        costs->blocks[b].forward.per_token *= fill;
        costs->blocks[b].backward.per_token *= fill;
        for (int level = 0; level < OT_KEEP_LEVELS; level++)
            costs->blocks[b].recompute[level].per_token *= fill;
    }
}

int ot_forecast_measure(struct ot_session *s, const struct ot_plan_request *request,
                        const struct ot_forecast_rows *rows) {
    struct ot_rates rates;
    if (s->forecast.costs.blocks)
        return 0;
    OT_TRY(ot_rates_obtain(s, true, &rates));
    OT_TRY(ot_session_ranks_measure(s, &rates, NULL));
    struct ot_calibration calibration = {.chain = request->chain,
                                         .device = s->device,
                                         .rates = &rates,
                                         .micro_tokens = s->plan.micro_tokens,
                                         .sequence_tokens = rows->tokens,
                                         .device_bytes = s->budget_bytes[OT_TIER_GPU] - s->workspace_bytes,
                                         .seconds = calibration_seconds,
                                         .run_tokens = rows->run_tokens / ot_shard_ranks(&s->shard)};
    OT_TRY(ot_calibrate(&calibration, &s->forecast.costs));
    scale_blocks(&s->forecast.costs, rows->fill);
    return 0;
}

/* Scales the counts that assumed full micro-batches. The tokens become those of all ranks. */
static void count_tokens(const struct ot_plan_request *request, struct ot_prediction *p,
                         struct ot_explanation *e, double fill) {
    if (ot_shard_ranks(&request->shard) > 1)
        p->tokens = (double)(request->step_sequences * request->sequence_tokens);
    p->tokens *= fill;
    p->flops *= fill;
    p->model_flops *= fill;
    for (int i = 0; i < e->n_ifs; i++)
        e->ifs[i].tokens_per_second *= fill;
}

/* With several ranks the resident ones keep their micro-batch too, but the mode is still to be chosen. Runs
 * with the same bits for any number of ranks never let a measurement choose the micro-batch. */
static int choose_of_ranks(struct ot_session *s, struct ot_plan_request *request,
                           struct ot_planner_result *result) {
    int64_t resident = is_resident(&s->plan) || request->shard.world;
    OT_TRY(ot_session_ranks_find_least(s, &resident, 1));
    if (resident)
        request->micro_sequences = s->plan.micro_tokens / request->sequence_tokens;
    OT_TRY(ot_session_ranks_choose_plan(s, request, &s->forecast.costs, result));
    s->shard = request->shard;
    return 0;
}

/* If all is resident, a measurement never chooses the micro-batch, which changes the bits: ot_plan_make has
 * taken the largest that fits. If products are computed again, the planner looks for other rounds or homes.
 * If not, nothing is left to choose. */
static int choose(struct ot_session *s, struct ot_plan_request *request, struct ot_planner_result *result) {
    struct ot_forecast *f = &s->forecast;
    struct ot_plan_request fixed = *request;
    *result = (struct ot_planner_result){.tried = 1};
    if (s->comm)
        return choose_of_ranks(s, request, result);
    if (!is_resident(&s->plan))
        return ot_planner_choose(request, &f->costs, result);
    if (ot_plan_repeats_products(request->chain, &s->plan)) {
        fixed.micro_sequences = s->plan.micro_tokens / request->sequence_tokens;
        return ot_planner_choose(&fixed, &f->costs, result);
    }
    OT_TRY(ot_simulate_plan(request->chain, &s->plan, &f->costs, &result->prediction));
    result->plan = s->plan;
    s->plan = (struct ot_plan){0};
    return 0;
}

int ot_forecast_predict(struct ot_session *s, struct ot_plan_request *request,
                        const struct ot_forecast_rows *rows, struct ot_prediction *out) {
    struct ot_planner_result result;
    OT_TRY(choose(s, request, &result));
    count_tokens(request, &result.prediction, &(struct ot_explanation){0}, rows->fill);
    *out = result.prediction;
    ot_plan_free(&result.plan);
    return 0;
}

/* Keeps the predicted timeline, which --trace writes beside the measured one. */
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

int ot_forecast_make(struct ot_session *s, struct ot_plan_request *request,
                     const struct ot_forecast_rows *rows) {
    struct ot_forecast *f = &s->forecast;
    struct ot_planner_result result;
    double since = ot_clock_seconds();
    OT_TRY(ot_forecast_measure(s, request, rows));
    OT_TRY(choose(s, request, &result));
    s->prediction = result.prediction;
    f->tried = result.tried;
    int rc = 0;
    if (s->options->explain && ot_is_rank0(s)) {
        rc = ot_planner_explain(request, &f->costs, &result, &f->explanation);
        f->is_explained = rc == 0;
    }
    count_tokens(request, &s->prediction, &f->explanation, rows->fill);
    ot_plan_free(&s->plan);
    s->plan = result.plan;
    if (rc == 0 && s->options->trace && ot_is_rank0(s))
        rc = keep_trace(s, request->chain);
    ot_device_forget_peaks(s->device); /* from here on peaks are the run's own */
    ot_process_forget_peak();
    f->seconds = ot_clock_seconds() - since;
    return rc;
}

/* In training the last block does nothing forward; an evaluation runs it. It takes a third of the time of
 * forward and backward together. */
static double last_block_forward(const struct ot_session *s) {
    const struct ot_costs *costs = &s->forecast.costs;
    return ot_line_at(costs->blocks[costs->n_blocks - 1].backward, s->plan.micro_tokens) / 3;
}

int ot_forecast_passes(const struct ot_session *s, double *micro_batch, double *token) {
    const struct ot_chain *chain = ot_model_chain(s->model);
    const struct ot_costs *costs = &s->forecast.costs;
    double busy[OT_LANE_COUNT] = {0}, read_weights = 0;
    struct ot_layout layout = {0};
    struct ot_schedule schedule = {0};
    int rc;
    *micro_batch = *token = 0;
    OT_TRY_GOTO(ot_layout_make(chain, &s->plan, &layout), rc, out);
    OT_TRY_GOTO(ot_schedule_make_forward(chain, &s->plan, &layout, OT_PASS_EVAL, &schedule), rc, out);
    for (int i = 0; i < schedule.n_tasks; i++) {
        const struct ot_task *task = &schedule.tasks[i];
        struct ot_task_cost cost = ot_costs_of_task(costs, chain, &s->plan, &layout, task);
        busy[task->lane] += task->kind == OT_TASK_FORWARD ? 0 : cost.seconds;
        *micro_batch += task->kind == OT_TASK_FORWARD ? cost.seconds : 0;
    }
    for (int i = 0; i < chain->n_slabs; i++)
        read_weights += (double)chain->slabs[i].n_params * (double)ot_dtype_bytes(chain->dtype);
    *token = read_weights / costs->rates.device_bytes + busy[OT_LANE_COMPUTE];
    *micro_batch += last_block_forward(s) + busy[OT_LANE_COMPUTE];
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        *micro_batch = fmax(*micro_batch, busy[l]);
        *token = fmax(*token, busy[l]);
    }
out:
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    return rc;
}

void ot_forecast_free(struct ot_forecast *f) {
    ot_trace_close(f->trace);
    ot_schedule_free(&f->schedule);
    ot_layout_free(&f->layout);
    ot_costs_free(&f->costs);
    *f = (struct ot_forecast){0};
}

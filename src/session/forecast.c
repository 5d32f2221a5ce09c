#include "src/session/forecast.h"

#include <math.h>

#include "offload/plan/slabs.h"
#include "offload/plan/stages.h"
#include "offload/predict/bound.h"
#include "offload/predict/calibrate.h"
#include "offload/predict/simulate.h"
#include "offload/probe/comm_rates.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/machine/process.h"
#include "src/session/measure.h"
#include "src/session/session_ranks.h"

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
    if (s->plan.forecast.costs.blocks)
        return 0;
    OT_TRY(ot_rates_obtain(s, true, &rates));
    OT_TRY(ot_session_ranks_measure(s, &rates, NULL));
    struct ot_calibration calibration = {.chain = request->chain,
                                         .device = s->machine.device,
                                         .rates = &rates,
                                         .micro_tokens = s->plan.chosen.micro_tokens,
                                         .sequence_tokens = rows->tokens,
                                         .device_bytes = s->machine.budget_bytes[OT_TIER_GPU] -
                                                         s->machine.workspace_bytes,
                                         .seconds = calibration_seconds,
                                         .run_tokens = rows->run_tokens / ot_shard_ranks(&s->ranks.shard)};
    OT_TRY(ot_calibrate(&calibration, &s->plan.forecast.costs));
    scale_blocks(&s->plan.forecast.costs, rows->fill);
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
    int64_t resident = is_resident(&s->plan.chosen) || request->shard.world;
    OT_TRY(ot_session_ranks_find_least(s, &resident, 1));
    if (resident)
        ot_plan_force_micro(request, s->plan.chosen.micro_tokens);
    OT_TRY(ot_session_ranks_choose_plan(s, request, &s->plan.forecast.costs, result));
    s->ranks.shard = request->shard;
    return 0;
}

/* If all is resident, a measurement never chooses the micro-batch, which changes the bits: ot_plan_make has
 * taken the largest that fits. If something is computed again, the planner looks for other levels, rounds or
 * homes. If not, nothing is left to choose. */
static int choose(struct ot_session *s, struct ot_plan_request *request, struct ot_planner_result *result) {
    struct ot_forecast *f = &s->plan.forecast;
    struct ot_plan_request fixed = *request;
    *result = (struct ot_planner_result){.tried = 1};
    if (s->ranks.comm)
        return choose_of_ranks(s, request, result);
    if (!is_resident(&s->plan.chosen))
        return ot_planner_choose(request, &f->costs, result);
    if (ot_plan_repeated_seconds(request->chain, &s->plan.chosen, &f->costs) > 0) {
        ot_plan_force_micro(&fixed, s->plan.chosen.micro_tokens);
        return ot_planner_choose(&fixed, &f->costs, result);
    }
    OT_TRY(ot_simulate_plan(request->chain, &s->plan.chosen, &f->costs, &result->prediction));
    result->plan = s->plan.chosen;
    s->plan.chosen = (struct ot_plan){0};
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
    struct ot_forecast *f = &s->plan.forecast;
    struct ot_prediction same;
    OT_TRY(ot_layout_make(chain, &s->plan.chosen, &f->layout));
    OT_TRY(ot_schedule_make_train(chain, &s->plan.chosen, &f->layout, &f->schedule));
    OT_TRY(ot_trace_open(chain, MOST_SPANS, &f->trace));
    struct ot_simulation simulation = {chain, &s->plan.chosen, &f->layout, &f->schedule, &f->costs};
    return ot_simulate(&simulation, f->trace, &same);
}

int ot_forecast_make(struct ot_session *s, struct ot_plan_request *request,
                     const struct ot_forecast_rows *rows) {
    struct ot_forecast *f = &s->plan.forecast;
    struct ot_planner_result result;
    double since = ot_clock_seconds();
    OT_TRY(ot_forecast_measure(s, request, rows));
    OT_TRY(choose(s, request, &result));
    s->plan.prediction = result.prediction;
    f->tried = result.tried;
    int rc = 0;
    if (s->options->explain && ot_is_rank0(s)) {
        rc = ot_planner_explain(request, &f->costs, &result, &f->explanation);
        f->is_explained = rc == 0;
    }
    count_tokens(request, &s->plan.prediction, &f->explanation, rows->fill);
    ot_plan_free(&s->plan.chosen);
    s->plan.chosen = result.plan;
    if (rc == 0 && s->options->trace && ot_is_rank0(s))
        rc = keep_trace(s, request->chain);
    ot_device_forget_peaks(s->machine.device); /* from here on peaks are the run's own */
    ot_process_forget_peak();
    f->seconds = ot_clock_seconds() - since;
    return rc;
}

/* In training the last block does nothing forward; an evaluation runs it. It takes a third of the time of
 * forward and backward together. */
static double last_block_forward(const struct ot_costs *costs, int64_t tokens) {
    return ot_line_at(costs->blocks[costs->n_blocks - 1].backward, tokens) / 3;
}

/* Adds up the seconds of a pass: of forwards, and of each lane's other tasks. */
static int add_pass(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                    enum ot_pass pass, double *forward, double busy[OT_LANE_COUNT]) {
    struct ot_layout layout = {0};
    struct ot_schedule schedule = {0};
    int rc;
    OT_TRY_GOTO(ot_layout_make(chain, plan, &layout), rc, out);
    OT_TRY_GOTO(ot_schedule_make_forward(chain, plan, &layout, pass, &schedule), rc, out);
    for (int i = 0; i < schedule.n_tasks; i++) {
        const struct ot_task *task = &schedule.tasks[i];
        struct ot_task_cost cost = ot_costs_of_task(costs, chain, plan, &layout, task);
        *(task->kind == OT_TASK_FORWARD ? forward : &busy[task->lane]) += cost.seconds;
    }
out:
    ot_schedule_free(&schedule);
    ot_layout_free(&layout);
    return rc;
}

int ot_forecast_passes(const struct ot_chain *chain, const struct ot_plan *plan, const struct ot_costs *costs,
                       double *micro_batch, double *token) {
    double eval[OT_LANE_COUNT] = {0}, decode[OT_LANE_COUNT] = {0}, read_weights = 0, unused = 0;
    *micro_batch = *token = 0;
    OT_TRY(add_pass(chain, plan, costs, OT_PASS_EVAL, micro_batch, eval));
    OT_TRY(add_pass(chain, plan, costs, OT_PASS_DECODE, &unused, decode));
    for (int i = 0; i < chain->n_slabs; i++)
        read_weights += (double)chain->slabs[i].n_params * (double)ot_dtype_bytes(chain->dtype);
    *token = read_weights / costs->rates.device_bytes + decode[OT_LANE_COMPUTE];
    *micro_batch += ot_plan_sections(plan) * last_block_forward(costs, plan->micro_tokens);
    *micro_batch += eval[OT_LANE_COMPUTE];
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        *micro_batch = fmax(*micro_batch, eval[l]);
        *token = fmax(*token, decode[l]);
    }
    return 0;
}

double ot_forecast_roof(const struct ot_session *s) {
    return s->plan.forecast.costs.rates.product_flops * ot_shard_ranks(&s->ranks.shard);
}

void ot_forecast_free(struct ot_forecast *f) {
    ot_trace_close(f->trace);
    ot_schedule_free(&f->schedule);
    ot_layout_free(&f->layout);
    ot_costs_free(&f->costs);
    *f = (struct ot_forecast){0};
}

/* ---- the second forecast ---- */

enum { WARM_UP = 2, MEASURED = 2, IN_FLIGHT = 2, MOST_TASKS = 250000 };

static bool has_forecast(const struct ot_session *s) {
    return s->plan.forecast.costs.n_blocks > 0;
}

int ot_forecast_again_trace(struct ot_session *s) {
    if (s->trace || !has_forecast(s) || !ot_is_rank0(s))
        return 0;
    OT_TRY(ot_trace_open(ot_model_chain(s->model.built), MOST_TASKS, &s->trace));
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
    struct ot_forecast *f = &s->plan.forecast;
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
    OT_TRY(ot_predict_measured(ot_model_chain(s->model.built), &s->plan.chosen, &s->plan.prediction, sum.busy,
                               &f->costs, &f->again));
    take_times(&s->plan.prediction, &f->again);
    return 1;
}

/* ---- several ranks ---- */

/* ---- the communicator ---- */

/* Parts of these sizes are measured: the small one takes no time but the start of an operation. */
enum { SMALL_BYTES = 4096, LARGE_BYTES = 4 << 20 };
/* Time for each operation and size. */
static const double ROW_SECONDS = 0.05;
/* Copies between GPUs take NVLink if they are faster than copies from the host by this factor. */
static const double FASTER_THAN_LINK = 1.5;

struct sums {
    double small_seconds, large_seconds, large_bytes;
    int n; /* operations of the small size */
};

/* A step gathers, exchanges and transfers; broadcasts do not count. */
struct measured {
    struct sums joint, transfers;
};

static int add_rate(void *context, const struct ot_comm_rate *rate) {
    struct measured *measured = context;
    struct sums *sums = rate->operation[0] == 't' ? &measured->transfers : &measured->joint;
    if (rate->operation[0] == 'b')
        return 0;
    if (rate->part_bytes == SMALL_BYTES) {
        sums->small_seconds += rate->seconds;
        sums->n++;
    } else {
        sums->large_seconds += rate->seconds;
        sums->large_bytes += (double)rate->received_bytes;
    }
    return 0;
}

/* The large part, so that the measurement takes a quarter of the smallest device budget at most. */
static int choose_part(struct ot_session *s, size_t *out) {
    int64_t part = (int64_t)((s->machine.budget_bytes[OT_TIER_GPU] - s->machine.workspace_bytes) /
                             (8 * (size_t)ot_comm_ranks(s->ranks.comm)));
    OT_TRY(ot_session_ranks_find_least(s, &part, 1));
    *out = part > LARGE_BYTES ? LARGE_BYTES : part > 2 * SMALL_BYTES ? (size_t)part : 2 * SMALL_BYTES;
    return 0;
}

/* Sets the links and the host memory that an operation of the communicator uses. Staged bytes go over the
 * link and through host memory; those of the cpu device are in host memory anyway. A plugin that takes device
 * memory copies from GPU to GPU where they reach each other, and else through host memory. Copies that are
 * faster than the link do not use it. Unknown links between GPUs count nothing. */
static void set_ways(struct ot_rates *rates, bool is_staged, const struct ot_peers *peers) {
    bool through_host = is_staged || (peers->is_known && !peers->has_access);
    bool over_link = through_host || (peers->is_known && peers->rate < FASTER_THAN_LINK * rates->h2d_bytes);
    rates->comm_link = over_link ? 2 : 0;
    rates->comm_memory = through_host || rates->device_is_host ? 2 : 0;
}

static int measure_peers(struct ot_session *s, size_t bytes, struct ot_peers *out) {
    const struct ot_device_choice *device = &s->options->device;
    *out = (struct ot_peers){0};
    if (device->kind != OT_DEVICE_CUDA)
        return 0;
    const struct ot_peers_config config = {.world = s->ranks.world,
                                           .device = s->machine.device,
                                           .kind = "cuda",
                                           .index = device->index,
                                           .bytes = bytes,
                                           .seconds = 2 * ROW_SECONDS};
    return ot_probe_peers(&config, out);
}

/* The ranks of a host, if there are several hosts with equally many consecutive ranks; else 0. */
static int find_host_ranks(struct ot_session *s, int *out) {
    const struct ot_ranks *ranks = ot_world_ranks(s->ranks.world);
    int64_t n = ranks->local_ranks, in_order = ranks->rank % n == ranks->local_rank;
    int64_t least[] = {n, -n, in_order};
    OT_TRY(ot_session_ranks_find_least(s, least, 3));
    bool is_even = least[0] == -least[1] && least[2] && n > 1 && n < ranks->ranks;
    *out = is_even && ot_comm_need_transfers(s->ranks.comm) == 0 ? (int)n : 0;
    return 0;
}

/* The rate of the sums' large operations, without the time to start them. */
static double rate_of(const struct sums *sums) {
    double moving = sums->large_seconds - sums->small_seconds;
    return sums->large_bytes / (moving > 0 ? moving : sums->large_seconds);
}

static struct ot_transfer_rate transfer_rate(const struct sums *sums) {
    return sums->n > 0 ? (struct ot_transfer_rate){rate_of(sums), sums->small_seconds / sums->n}
                       : (struct ot_transfer_rate){0};
}

int ot_session_ranks_measure(struct ot_session *s, struct ot_rates *rates, struct ot_peers *peers) {
    size_t sizes[2] = {SMALL_BYTES};
    struct ot_peers copies;
    struct measured measured = {0};
    if (!s->ranks.comm)
        return 0;
    OT_TRY(choose_part(s, &sizes[1]));
    OT_TRY(find_host_ranks(s, &rates->host_ranks));
    struct ot_comm_rates_config config = {.comm = s->ranks.comm,
                                          .device = s->machine.device,
                                          .is_gpu = true, /* no copies beside it */
                                          .sizes = sizes,
                                          .n_sizes = 2,
                                          .with_transfers = ot_comm_need_transfers(s->ranks.comm) == 0,
                                          .crosses = s->ranks.crosses,
                                          .stride = rates->host_ranks,
                                          .seconds = ROW_SECONDS,
                                          .take = add_rate,
                                          .context = &measured};
    OT_TRY(ot_comm_rates_measure(&config));
    rates->comm_seconds = measured.joint.small_seconds / measured.joint.n;
    rates->comm_bytes = rate_of(&measured.joint);
    rates->inside = rates->between = transfer_rate(&measured.transfers);
    if (rates->host_ranks > 0) {
        measured = (struct measured){0};
        rates->between.bytes *= rates->host_ranks; /* all of a host crossed at the same time */
        config.members = rates->host_ranks;
        config.stride = 0;
        OT_TRY(ot_comm_rates_measure(&config));
        rates->host_comm_bytes = rate_of(&measured.joint);
        rates->host_comm_seconds = measured.joint.small_seconds / measured.joint.n;
        rates->inside = transfer_rate(&measured.transfers);
    }
    OT_TRY(measure_peers(s, sizes[1], &copies));
    set_ways(rates, ot_comm_staging_bytes(s->ranks.comm, SMALL_BYTES) > 0, &copies);
    if (peers)
        *peers = copies;
    return 0;
}

/* ---- the plan ---- */

/* Rank 0's choice: a failure, the shard, the tokens of a micro-batch; with stages also the rounds, else
 * 0. */
struct choice {
    int64_t rc, micro_tokens, rounds;
    struct ot_shard shard;
};

/* The time of a layer for a token. */
static double layer_seconds(const struct ot_costs *costs) {
    const struct ot_block_cost *layer = &costs->blocks[costs->n_blocks > 2];
    return layer->forward.per_token + layer->backward.per_token;
}

static int choose_first(struct ot_session *s, const struct ot_plan_request *request,
                        const struct ot_costs *costs, struct ot_planner_result *out) {
    bool any_mode = s->options->shard == OT_CHOICE_SHARD_AUTO && !request->shard.one_copy &&
                    request->shard.mode != OT_SHARD_STAGES;
    struct ot_shard_open open = {
        .mode = any_mode, .stages = s->ranks.may_stages, .one_copy = s->ranks.may_one_copy};
    return ot_planner_choose_shard(request, costs, open, out, &s->plan.forecast.shards);
}

int ot_session_ranks_choose_plan(struct ot_session *s, struct ot_plan_request *request,
                                 const struct ot_costs *costs, struct ot_planner_result *out) {
    struct choice choice = {0};
    struct ot_error why;
    if (!s->ranks.comm)
        return ot_planner_choose(request, costs, out);
    OT_TRY(ot_session_ranks_compare(s, layer_seconds(costs), request));
    if (ot_is_rank0(s)) {
        choice.rc = choose_first(s, request, costs, out);
        ot_error_save(&why, (int)choice.rc);
        choice.shard = out->forced.shard;
        choice.rounds = choice.rc >= 0 && ot_plan_has_stages(&out->plan) ? ot_plan_rounds(&out->plan) : 0;
        choice.micro_tokens = out->plan.micro_tokens;
    }
    OT_TRY(ot_comm_broadcast_host(s->ranks.comm, &choice, sizeof choice, 0));
    if (choice.rc < 0)
        return ot_is_rank0(s) ? ot_error_load(&why)
                              : ot_fail((int)-choice.rc, "rank 0 found no plan for all ranks");
    choice.shard.rank = request->shard.rank;
    request->shard = choice.shard;
    request->rounds = choice.rounds > 0 ? (int)choice.rounds : request->rounds;
    request->weights = choice.shard.one_copy ? OT_HOME_HOST : request->weights;
    ot_plan_force_micro(request, choice.micro_tokens);
    if (request->machines && request->shard.mode == OT_SHARD_STAGES)
        ot_session_ranks_tell_layers(s, &request->shard);
    return ot_is_rank0(s) ? 0 : ot_planner_choose(request, costs, out);
}

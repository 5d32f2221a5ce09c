/* DECIDE tasks: turn a step's losses and squared norms into the numbers of its update, or into a skipped
 * step. */
#include <math.h>

#include "kernels/adamw.h"
#include "offload/comm/comm.h"
#include "offload/engine/engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/random.h"

const char *ot_skip_name(enum ot_skip skip) {
    static const char *const names[] = {"none", "loss", "gradient", "overflow", "spike", "given up"};
    return names[skip];
}

/* ---- loss spikes ---- */

/* The weights of past losses. At first all losses weigh the same. Once the latest loss would have less than
 * 1/93 of the weight, weights halve every 64 steps. That is long enough to know a deviation to a tenth, and
 * short enough to follow a falling loss.
 *
 * SPIKE_AFTER: during the first 32 steps mean and deviation are not known well, and the loss falls fastest.
 *
 * spike_deviations: 6 standard deviations, which is one step in 10^9 if losses are normally distributed. OLMo
 * 2 (arXiv:2501.00656) counts spikes from 7 deviations on, over a window of 1000 steps.
 *
 * least_deviation: a constant loss has no deviation, so the deviation is at least a thousandth of a nat. */
enum { SPIKE_AFTER = 32 };
static const double spike_deviations = 6, half_life_steps = 64, least_deviation = 1e-3;

static double highest_usual_loss(const struct ot_loss_stats *s, double deviations) {
    return s->n < SPIKE_AFTER ? INFINITY : s->mean + deviations * fmax(sqrt(s->variance), least_deviation);
}

/* Finch, "Incremental calculation of weighted mean and variance" (2009), section 9. A loss above the highest
 * usual loss is counted as the highest usual loss, so that one spike does not hide the next one. A loss that
 * stays high soon becomes usual: each such step widens the deviation by a factor of at least 1.17. If it is
 * at most 150 deviations away, it is usual after twenty steps. */
static void add_loss(struct ot_loss_stats *s, double loss, double highest) {
    s->n++;
    double share = fmax(1 / (double)s->n, 1 - exp2(-1 / half_life_steps));
    double distance = fmin(loss, highest) - s->mean;
    s->mean += share * distance;
    s->variance = (1 - share) * (s->variance + share * distance * distance);
}

/* Decides whether the loss is a spike, and whether to skip the step for it. Adds the loss to the
 * statistics. */
static void judge_loss(struct ot_engine *en, struct ot_step_result *result) {
    struct ot_loss_stats *s = &en->control.losses;
    if (!isfinite(result->loss))
        return;
    double usual = highest_usual_loss(s, spike_deviations);
    double bearable = en->skip_spikes > 0 ? highest_usual_loss(s, en->skip_spikes) : INFINITY;
    result->spike = result->loss > fmin(usual, bearable);
    if (en->plan.clip && result->skipped == OT_SKIP_NONE && result->loss > bearable)
        result->skipped = OT_SKIP_SPIKE;
    add_loss(s, result->loss, usual);
}

/* ---- results of a step ---- */

/* The squared norm of a slab: the sum over its ranges (plan.h), in order. With stages its holders have all of
 * them. */
double ot_engine_slab_squares(const struct ot_engine *en, const double *results, int slab) {
    int owner = ot_shard_rank_of(&en->plan.shard, 0, en->plan.slabs[slab].owner);
    size_t before = ot_plan_has_stages(&en->plan) ? (size_t)owner * ot_engine_stage_results(en) : 0;
    const double *norms = results + before + slab * en->layout.norms;
    double squares = 0;
    for (int i = 0; i < en->layout.norms; i++)
        squares += norms[i];
    return squares;
}

/* The norm over all trained parameters, without the loss scale. */
static double global_norm(const struct ot_engine *en, const double *results) {
    double squares = 0;
    for (int s = 0; s < en->chain.n_slabs; s++)
        squares += ot_engine_slab_squares(en, results, s);
    return sqrt(squares) / (double)ot_engine_loss_scale(en);
}

/* In fp16 a sum may be finite in fp32, but too large for the storage dtype. The norm of a slab is an upper
 * bound of each of its gradients. */
static bool is_bad_norm(const struct ot_engine *en, double squares) {
    const double largest = 65504.0;
    return !isfinite(squares) || (en->chain.dtype == OT_F16 && squares > largest * largest);
}

/* With stages other ranks finish most slabs. A run on one rank finishes the last slab first. */
static int first_bad_stage(const struct ot_engine *en, const double *results) {
    for (int s = en->chain.n_slabs - 1; s >= 0; s--)
        if (is_bad_norm(en, ot_engine_slab_squares(en, results, s)))
            return s;
    return -1;
}

static int first_bad_slab(const struct ot_engine *en, const double *results) {
    if (ot_plan_has_stages(&en->plan))
        return first_bad_stage(en, results);
    for (int i = 0; i < en->train.n_tasks; i++) {
        const struct ot_task *task = &en->train.tasks[i];
        if (task->kind == OT_TASK_GRAD_FINISH &&
            is_bad_norm(en, ot_engine_slab_squares(en, results, task->slab)))
            return task->slab;
    }
    return -1;
}

/* The losses and the requests of a rank. */
static const double *results_of_rank(const struct ot_engine *en, const double *results, int rank) {
    if (ot_plan_has_stages(&en->plan))
        return results + (size_t)rank * ot_engine_stage_results(en) + en->chain.n_slabs * en->layout.norms;
    return results + en->chain.n_slabs * en->layout.norms + rank * en->layout.own_results;
}

/* Adds up the results of the micro-batches of all ranks, in order: sums[micro_results]; the first is the
 * loss. *bad: the first micro-batch whose loss is not finite; -1: none. */
static void sum_losses(const struct ot_engine *en, const struct ot_engine_step *st, const double *results,
                       double *sums, int *bad) {
    const struct ot_shard *shard = &en->plan.shard;
    int own = ot_shard_own_groups(shard), places = en->plan.max_micro / own, micro = 0;
    int each = en->layout.micro_results, sections = ot_plan_sections(&en->plan);
    /* a replica's owner of the last block has all losses of the replica */
    int owner = ot_block_owner(&en->chain, &en->plan, en->chain.n_blocks - 1);
    *bad = -1;
    for (int g = 0; g < ot_shard_groups(shard); g++) {
        const double *next =
            results_of_rank(en, results, ot_shard_rank_of(shard, g / own, owner)) + g % own * places * each;
        int64_t n = ot_shard_group(shard, st->n_micro, g).n * sections;
        for (int64_t i = 0; i < n; i++, micro++, next += each) {
            for (int k = 0; k < each; k++)
                sums[k] += next[k];
            if (*bad < 0 && !isfinite(next[0]))
                *bad = micro / sections;
        }
    }
}

/* The requests of all ranks together. With one rank nobody has written them. */
static unsigned find_requests(const struct ot_engine *en, const double *results) {
    int ranks = ot_shard_ranks(&en->plan.shard);
    unsigned requests = ranks == 1 ? ot_engine_requests(en) : 0;
    for (int r = 0; r < ranks && ranks > 1; r++)
        requests |= *(const unsigned char *)(results_of_rank(en, results, r) + en->layout.own_results - 1);
    return requests;
}

/* Returns why the step must be skipped. Ignores spikes. */
static enum ot_skip find_fault(const struct ot_engine *en, const struct ot_step_result *result) {
    if (!isfinite(result->loss))
        return OT_SKIP_LOSS;
    if (result->bad_slab < 0)
        return OT_SKIP_NONE;
    return ot_engine_loss_scale(en) > 1 ? OT_SKIP_OVERFLOW : OT_SKIP_GRADIENT;
}

static struct ot_step_result *read_results(struct ot_engine *en, const double *results, int64_t step) {
    struct ot_engine_step *st = &en->steps[step & 1];
    int bad_micro;
    double sums[OT_COMPARE_SUMS] = {0};
    sum_losses(en, st, results, sums, &bad_micro);
    st->result = (struct ot_step_result){.step = step,
                                         .loss = sums[0] * st->inverse_losses,
                                         .grad_norm = global_norm(en, results),
                                         .loss_scale = ot_engine_loss_scale(en),
                                         .bad_micro = bad_micro,
                                         .bad_slab = first_bad_slab(en, results),
                                         .requests = find_requests(en, results)};
    for (int k = 0; k < OT_COMPARE_SUMS; k++)
        st->result.compared[k] = sums[k] * st->inverse_losses;
    return &st->result;
}

/* ---- decisions ---- */

/* The numbers of update t of a slab, with the bias corrections of torch.optim.AdamW: computed in double,
 * rounded once. */
struct ot_adamw_step ot_engine_adamw_step(const struct ot_engine *en, int64_t step, int slab, double scale,
                                          bool skip) {
    const struct ot_optimizer_config *o = &en->optimizer;
    double t = (double)(en->control.adam_step + 1);
    return (struct ot_adamw_step){
        .lr = en->steps[step & 1].lr,
        .beta1 = o->beta1,
        .beta2 = o->beta2,
        .eps = o->eps,
        .weight_decay = o->weight_decay,
        .bias1 = (float)(1 - pow((double)o->beta1, t)),
        .bias2_sqrt = (float)sqrt(1 - pow((double)o->beta2, t)),
        .grad_scale = (float)scale,
        .skip = skip,
        .noise = ot_state_noise(o->seed, ot_random_stream(OT_RANDOM_ROUNDING, (uint64_t)t, (uint64_t)slab)),
        .weight_noise =
            ot_state_noise(o->seed, ot_random_stream(OT_RANDOM_WEIGHTS, (uint64_t)t, (uint64_t)slab))};
}

/* Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", ICLR 2018), with the initial numbers
 * of torch.amp.GradScaler: the scale is halved after a step that overflowed, and doubled after 2000 steps
 * that did not. Powers of two scale exactly. */
enum { GROWTH_INTERVAL = 2000 };

static void adapt_loss_scale(struct ot_engine *en, bool overflowed) {
    float *scale = ot_engine_at(en, en->layout.control);
    struct ot_engine_control *c = &en->control;
    c->scaled_steps++;
    if (overflowed && *scale > 1)
        *scale /= 2;
    else if (!overflowed && c->scaled_steps >= GROWTH_INTERVAL && *scale < 0x1p24f)
        *scale *= 2;
    else
        return;
    c->scaled_steps = 0;
}

/* Decides for all slabs at once. As torch.nn.utils.clip_grad_norm_: scale = min(1, clip / (norm + 1e-6)). */
static void decide_all(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    const double *results = ot_engine_at_parity(en, task->from, step);
    struct ot_adamw_step *params = ot_engine_at_parity(en, task->to, step);
    struct ot_step_result *result = read_results(en, results, step);
    double scale = en->optimizer.clip / (result->grad_norm + 1e-6);
    scale = ot_min(scale, 1);
    result->clipped_norm = result->grad_norm * scale;
    /* If a rank has given up the step, losses and norms may be anything. */
    bool given_up = result->requests & OT_REQUEST_GIVE_UP;
    result->skipped = given_up ? OT_SKIP_GIVEN_UP : find_fault(en, result);
    if (!given_up)
        judge_loss(en, result);
    bool skip = result->skipped != OT_SKIP_NONE;
    for (int s = 0; s < en->chain.n_slabs; s++)
        params[s] = ot_engine_adamw_step(en, step, s, scale / (double)ot_engine_loss_scale(en), skip);
    ot_engine_note_decision(en, results, step);
    en->control.adam_step += !skip;
    if (en->chain.dtype == OT_F16 && !given_up)
        adapt_loss_scale(en, result->bad_slab >= 0);
}

/* Without clipping: decides for one slab. After the first gradient that is not finite, the step updates no
 * more slabs. */
static void decide_slab(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    const double *results = ot_engine_at_parity(en, task->from, step);
    struct ot_adamw_step *params = ot_engine_at_parity(en, task->to, step);
    struct ot_engine_control *c = &en->control;
    if (c->deciding != step)
        c->skip = c->updated = false;
    c->deciding = step;
    c->skip = c->skip || !isfinite(ot_engine_slab_squares(en, results, task->slab));
    c->updated = c->updated || !c->skip;
    params[task->slab] = ot_engine_adamw_step(en, step, task->slab, 1, c->skip);
}

/* Without clipping: ends the step after the last slab. Errors: OT_E_NUMERIC. */
static int close_step(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    struct ot_engine_control *c = &en->control;
    struct ot_step_result *result = read_results(en, ot_engine_at_parity(en, task->from, step), step);
    bool skipped = c->deciding == step && c->skip;
    if (ot_plan_has_stages(&en->plan) && result->bad_slab >= 0) /* other ranks have updated their slabs */
        skipped = c->updated = true;
    result->clipped_norm = result->grad_norm;
    result->skipped = skipped ? find_fault(en, result) : OT_SKIP_NONE;
    judge_loss(en, result);
    c->adam_step += !skipped;
    if (!skipped || !c->updated)
        return 0;
    return ot_fail_cause(
        OT_E_NUMERIC, OT_CAUSE_UNCLIPPED,
        "step %lld: the gradient of %s was not finite after other blocks had been updated (clipping "
        "is off, so updates do not wait for the norm)",
        (long long)step, en->chain.slabs[result->bad_slab].name);
}

/* The results are garbage. The updates of the step must not use them. */
static int refuse_step(struct ot_engine *en, const struct ot_task *task, int64_t step, int rc) {
    struct ot_adamw_step *params = task->to == OT_NO_BUFFER ? NULL : ot_engine_at_parity(en, task->to, step);
    for (int s = 0; params && s < en->chain.n_slabs; s++)
        params[s].skip = true;
    en->shadows.decided = step;
    return rc;
}

int ot_engine_decide(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    int rc = en->comm ? ot_comm_error(en->comm) : 0;
    if (rc < 0)
        return refuse_step(en, task, step, rc);
    if (task->slab < 0 && !en->plan.clip)
        return close_step(en, task, step);
    if (task->slab < 0)
        decide_all(en, task, step);
    else
        decide_slab(en, task, step);
    return 0;
}

/* ---- finish ---- */

/* Finishes gradients: their squared norm, and their rounding to the chain's dtype, in one pass over the sums.
 * In bf16 it moves 6 bytes a parameter; a pass for each would move 10.
 *
 * A plan may let the first tiles of a slab wait on the device and send the others away, through a stage. Then
 * the finished gradients of a slab go to two places. */

/* The index of a parameter in a buffer of the task's slab. */
static int64_t index_of(const struct ot_engine *en, const struct ot_task *task, int buffer, int64_t first) {
    return ot_layout_index(&en->layout, &en->chain, &en->plan, buffer, task->slab, first);
}

/* Finished gradients of parameters below this one go to task->to, the others to task->via. */
static int64_t finish_border(const struct ot_engine *en, const struct ot_task *task) {
    struct ot_tile_span stays = ot_slab_waiting_on_gpu(&en->chain, &en->plan, task->slab);
    return stays.first + stays.n;
}

/* The place of finished gradients from parameter `first` on; NULL: they stay in the sum. */
static void *finished_at(const struct ot_engine *en, const struct ot_task *task, int64_t first) {
    int to = first < finish_border(en, task) ? task->to : task->via;
    if (to == OT_NO_BUFFER || to == task->from)
        return NULL;
    return (char *)ot_engine_at(en, to) +
           (size_t)index_of(en, task, to, first) * ot_dtype_bytes(en->chain.dtype);
}

static const float *sum_at(const struct ot_engine *en, const struct ot_task *task, int64_t first) {
    return (const float *)ot_engine_at(en, task->from) + index_of(en, task, task->from, first);
}

/* Rounds the gradients of the parameters from `first` to `end`, which may have two places. */
static void round_span(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane, int64_t first,
                       int64_t end) {
    int64_t border = finish_border(en, task);
    for (int64_t next; first < end; first = next) {
        void *to = finished_at(en, task, first);
        next = first < border && border < end ? border : end;
        if (to)
            en->ops->cast(lane, &(struct ot_cast){.from = OT_F32,
                                                  .to = en->chain.dtype,
                                                  .n = next - first,
                                                  .src = sum_at(en, task, first),
                                                  .dst = to});
    }
}

/* Like round_span; also adds the squares to the norm in the same pass. If there are two places, the span is
 * cut where chunks of the reduction begin, which changes no bit. The chunk with the border takes two passes.
 */
static void finish_span(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane, int64_t first,
                        int64_t end, double *norm) {
    int64_t border = finish_border(en, task);
    for (int64_t next; first < end; first = next) {
        int64_t before = (border - first) / OT_REDUCE_CHUNK * OT_REDUCE_CHUNK;
        next = border <= first || border >= end ? end : first + (before > 0 ? before : OT_REDUCE_CHUNK);
        next = ot_min(next, end);
        bool apart = first < border && border < next;
        en->ops->reduce(lane, &(struct ot_reduce){.n = next - first,
                                                  .x = sum_at(en, task, first),
                                                  .out = norm,
                                                  .squares = true,
                                                  .accumulate = true,
                                                  .rounded_dtype = en->chain.dtype,
                                                  .rounded = apart ? NULL : finished_at(en, task, first)});
        if (apart)
            round_span(en, task, lane, first, next);
    }
}

/* Takes the squared norm of one range (plan.h) over its trained groups, one after the other, and rounds all
 * of its gradients. */
static void finish_range(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane,
                         struct ot_shard_range range, double *norm) {
    const struct ot_slab_spec *slab = &en->chain.slabs[task->slab];
    ot_lane_fill(lane, norm, 0, sizeof *norm);
    for (int g = 0; g < slab->n_groups; g++) {
        const struct ot_param_group *group = &slab->groups[g];
        int64_t first = ot_max(group->first, range.first);
        int64_t group_end = group->first + group->n, end = range.first + range.n;
        end = ot_min(group_end, end);
        if (group->trained)
            finish_span(en, task, lane, first, end, norm);
        else
            round_span(en, task, lane, first, end);
    }
}

/* This rank's ranges cover its holding. */
void ot_engine_finish_grads(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    const struct ot_shard *shard = &en->plan.shard;
    int64_t n_params = en->chain.slabs[task->slab].n_params;
    int own = en->layout.own_norms, first = own < en->layout.norms ? ot_shard_holder(shard) * own : 0;
    double *norms =
        ot_engine_results(en, task->state, task->slab) + (ot_plan_has_stages(&en->plan) ? first : 0);
    for (int i = 0; i < own; i++)
        finish_range(en, task, lane, ot_shard_norm_range(shard, n_params, first + i), norms + i);
}

void ot_engine_keep_grads(struct ot_engine *en, const struct ot_task *task, struct ot_lane *lane) {
    struct ot_shard_range held = ot_slab_holding(&en->chain, &en->plan, task->slab);
    ot_lane_copy(lane, OT_COPY_D2H, ot_engine_at(en, task->to), sum_at(en, task, held.first),
                 (size_t)held.n * sizeof(float));
}

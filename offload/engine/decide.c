/* What DECIDE tasks do: from losses and squared norms to the numbers of an update, or to none. */
#include <math.h>

#include "kernels/adamw.h"
#include "offload/engine/engine_state.h"
#include "src/base/error.h"

const char *ot_skip_name(enum ot_skip skip) {
    static const char *const names[] = {"none", "loss", "gradient", "overflow", "spike", "given up"};
    return names[skip];
}

/* ---- loss spikes ---- */

/* All losses weigh the same until there are so many that the latest would have less than 1/93 of the weight;
 * from then on weights halve every 64 steps: long enough to know a deviation to a tenth, short enough to
 * follow a loss that falls. Before 32 steps neither is known, and a run's first losses fall fastest. Six
 * standard deviations: where losses scatter like normal ones, one step in 10^9; OLMo 2 (arXiv:2501.00656)
 * counts from seven on, over a window of 1000 steps. A loss that stands still has no deviation: it is taken
 * to be at least a thousandth of a nat. */
enum { SPIKE_AFTER = 32 };
static const double spike_deviations = 6, half_life_steps = 64, least_deviation = 1e-3;

static double highest_usual_loss(const struct ot_loss_stats *s, double deviations) {
    return s->n < SPIKE_AFTER ? INFINITY : s->mean + deviations * fmax(sqrt(s->variance), least_deviation);
}

/* Finch, "Incremental calculation of weighted mean and variance" (2009), section 9. What is above the highest
 * usual loss goes in as that: one spike does not hide the next one, and yet a loss that has come to stay is
 * usual before long: each such step widens the deviation by a factor of at least 1.17, so that within twenty
 * of them it is as usual as any, where it is not more than 150 deviations away. */
static void add_loss(struct ot_loss_stats *s, double loss, double highest) {
    s->n++;
    double share = fmax(1 / (double)s->n, 1 - exp2(-1 / half_life_steps));
    double distance = fmin(loss, highest) - s->mean;
    s->mean += share * distance;
    s->variance = (1 - share) * (s->variance + share * distance * distance);
}

/* Whether the loss is a spike, and whether to skip it for that. Counts it. */
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

/* ---- what a step's numbers say ---- */

/* Over all trained parameters, without the loss scale. */
static double global_norm(const struct ot_engine *en, const double *results) {
    double squares = 0;
    for (int s = 0; s < en->chain.n_slabs; s++)
        squares += results[s];
    return sqrt(squares) / (double)ot_engine_loss_scale(en);
}

/* In fp16 the sums may be finite and yet have no room in the storage dtype. A slab's norm bounds each of its
 * gradients. */
static bool is_bad_norm(const struct ot_engine *en, double squares) {
    const double largest = 65504.0;
    return !isfinite(squares) || (en->chain.dtype == OT_F16 && squares > largest * largest);
}

static int first_bad_slab(const struct ot_engine *en, const double *results) {
    for (int i = 0; i < en->train.n_tasks; i++) {
        const struct ot_task *task = &en->train.tasks[i];
        if (task->kind == OT_TASK_GRAD_FINISH && is_bad_norm(en, results[task->slab]))
            return task->slab;
    }
    return -1;
}

static int first_bad_micro(const struct ot_engine_step *st, const double *losses) {
    for (int m = 0; m < st->n_micro; m++)
        if (!isfinite(losses[m]))
            return m;
    return -1;
}

/* Why the step's gradient is not to be used, spikes aside. */
static enum ot_skip find_fault(const struct ot_engine *en, const struct ot_step_result *result) {
    if (!isfinite(result->loss))
        return OT_SKIP_LOSS;
    if (result->bad_slab < 0)
        return OT_SKIP_NONE;
    return ot_engine_loss_scale(en) > 1 ? OT_SKIP_OVERFLOW : OT_SKIP_GRADIENT;
}

static struct ot_step_result *read_results(struct ot_engine *en, const double *results, int64_t step) {
    struct ot_engine_step *st = &en->steps[step & 1];
    const double *losses = results + en->chain.n_slabs;
    double loss = 0;
    for (int m = 0; m < st->n_micro; m++)
        loss += losses[m];
    st->result = (struct ot_step_result){.step = step,
                                         .loss = loss * st->inverse_tokens,
                                         .grad_norm = global_norm(en, results),
                                         .loss_scale = ot_engine_loss_scale(en),
                                         .bad_micro = first_bad_micro(st, losses),
                                         .bad_slab = first_bad_slab(en, results)};
    return &st->result;
}

/* ---- decisions ---- */

/* The numbers of update number t; torch.optim.AdamW's bias corrections, in double, rounded once. */
static struct ot_adamw_step adamw_step(const struct ot_engine *en, int64_t step, double scale, bool skip) {
    const struct ot_optimizer_config *o = &en->optimizer;
    double t = (double)(en->control.adam_step + 1);
    return (struct ot_adamw_step){.lr = en->steps[step & 1].lr,
                                  .beta1 = o->beta1,
                                  .beta2 = o->beta2,
                                  .eps = o->eps,
                                  .weight_decay = o->weight_decay,
                                  .bias1 = (float)(1 - pow((double)o->beta1, t)),
                                  .bias2_sqrt = (float)sqrt(1 - pow((double)o->beta2, t)),
                                  .grad_scale = (float)scale,
                                  .skip = skip};
}

/* Dynamic loss scaling (Micikevicius et al., "Mixed Precision Training", ICLR 2018), with the numbers that
 * torch.amp.GradScaler starts from: half as much after a step that overflowed, twice as much after 2000 steps
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

/* torch.nn.utils.clip_grad_norm_: scale = min(1, clip / (norm + 1e-6)). */
static void decide_all(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    const double *results = ot_engine_at_parity(en, task->from, step);
    struct ot_adamw_step *params = ot_engine_at_parity(en, task->to, step);
    struct ot_step_result *result = read_results(en, results, step);
    double scale = en->optimizer.clip / (result->grad_norm + 1e-6);
    scale = scale < 1 ? scale : 1;
    result->clipped_norm = result->grad_norm * scale;
    bool given_up = ot_engine_has_given_up(en); /* what it was computed from may be anything */
    result->skipped = given_up ? OT_SKIP_GIVEN_UP : find_fault(en, result);
    if (!given_up)
        judge_loss(en, result);
    struct ot_adamw_step numbers =
        adamw_step(en, step, scale / (double)ot_engine_loss_scale(en), result->skipped != OT_SKIP_NONE);
    for (int s = 0; s < en->chain.n_slabs; s++)
        params[s] = numbers;
    en->control.adam_step += !numbers.skip;
    if (en->chain.dtype == OT_F16 && !given_up)
        adapt_loss_scale(en, result->bad_slab >= 0);
}

/* Without clipping: one slab. From the first gradient that is not finite on, the step updates nothing
 * more. */
static void decide_slab(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    const double *results = ot_engine_at_parity(en, task->from, step);
    struct ot_adamw_step *params = ot_engine_at_parity(en, task->to, step);
    struct ot_engine_control *c = &en->control;
    if (c->deciding != step)
        c->skip = c->updated = false;
    c->deciding = step;
    c->skip = c->skip || !isfinite(results[task->slab]);
    c->updated = c->updated || !c->skip;
    params[task->slab] = adamw_step(en, step, 1, c->skip);
}

/* Without clipping, after the last slab. */
static int close_step(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    struct ot_engine_control *c = &en->control;
    struct ot_step_result *result = read_results(en, ot_engine_at_parity(en, task->from, step), step);
    bool skipped = c->deciding == step && c->skip;
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

int ot_engine_decide(struct ot_engine *en, const struct ot_task *task, int64_t step) {
    if (task->slab < 0 && !en->plan.clip)
        return close_step(en, task, step);
    if (task->slab < 0)
        decide_all(en, task, step);
    else
        decide_slab(en, task, step);
    return 0;
}

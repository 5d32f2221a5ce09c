#include "src/train/run_shape.h"

#include <math.h>
#include <stdio.h>

#include "offload/predict/planner.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/session/forecast.h"

enum { DEFAULT_SEQ_LEN = 2048, STEPS_OF_AN_EPOCH = 50 };

int ot_shape_seq_len(struct ot_settings *settings, int64_t max_position, int64_t *seq_len) {
    const struct ot_options *options = &settings->in_effect;
    const struct ot_step_tokens *step = &options->tokens_per_step;
    bool compares = options->objective != OT_OBJECTIVE_SFT;
    max_position *= compares ? 2 : 1; /* two answers share a sequence, and each has half of it */
    if (options->seq_len > max_position)
        return ot_fail(OT_E_USAGE, "--seq-len %lld is beyond the model's %lld positions%s",
                       (long long)options->seq_len, (long long)max_position,
                       compares ? " for both answers of a row" : "");
    if (!options->seq_len) {
        int64_t chosen = ot_min(max_position, DEFAULT_SEQ_LEN);
        int64_t most = step->count ? step->count : step->most;
        if (most && most < chosen)
            chosen = most;
        ot_settings_choose_count(settings, "seq-len", chosen);
    }
    *seq_len = options->seq_len;
    return 0;
}

double ot_shape_default_lr(int64_t params, bool from_random) {
    double lr = 3e-5 * sqrt(1e9 / (double)params);
    lr = from_random ? fmin(10 * lr, 3e-3) : fmin(fmax(lr, 1e-5), 1e-3);
    double digit = pow(10, floor(log10(lr) + 1e-9));
    return round(lr / digit) * digit;
}

int64_t ot_shape_step_sequences(const struct ot_options *options, int64_t seq_len, int64_t sequences) {
    int64_t chosen = options->tokens_per_step.count / seq_len;
    if (!chosen) {
        int64_t most = OT_DEFAULT_STEP_TOKENS / seq_len;
        chosen = ot_min(sequences / STEPS_OF_AN_EPOCH, most);
    }
    return chosen > 0 ? chosen : 1;
}

int64_t ot_shape_steps(const struct ot_options *options, int64_t sequences, int64_t step_sequences) {
    return options->steps ? options->steps
                          : options->epochs * ((sequences + step_sequences - 1) / step_sequences);
}

int64_t ot_shape_half_steps(const struct ot_options *options, int64_t sequences, int64_t step_sequences) {
    return options->steps ? (options->steps + 1) / 2 : ot_shape_steps(options, sequences, 2 * step_sequences);
}

const char *ot_shape_step_text(const struct ot_options *options, int64_t step_sequences, int64_t seq_len,
                               char text[OT_STEP_TEXT_BYTES]) {
    char whole[OT_TEXT_BYTES], asked[OT_TEXT_BYTES];
    int64_t tokens = step_sequences * seq_len;
    int n = snprintf(text, OT_STEP_TEXT_BYTES, "%s = %lld x %lld tokens a step", ot_text_count(tokens, whole),
                     (long long)step_sequences, (long long)seq_len);
    if (options->tokens_per_step.count > tokens)
        snprintf(text + n, OT_STEP_TEXT_BYTES - (size_t)n, " (%s rounded down)",
                 ot_text_count(options->tokens_per_step.count, asked));
    return text;
}

const char *ot_shape_length_text(const struct ot_options *options, const struct ot_run_shape *shape,
                                 char text[OT_STEP_TEXT_BYTES]) {
    char steps[OT_TEXT_BYTES];
    const char *plural = ot_plural(shape->lr.steps);
    ot_text_count(shape->lr.steps, steps);
    if (options->steps)
        snprintf(text, OT_STEP_TEXT_BYTES, "%s step%s (%.2f epochs)", steps, plural,
                 (double)shape->lr.steps / (double)shape->steps_per_epoch);
    else if (shape->phase.rows_first > 0)
        snprintf(text, OT_STEP_TEXT_BYTES, "%s step%s, to the end of epoch %lld", steps, plural,
                 (long long)options->epochs);
    else
        snprintf(text, OT_STEP_TEXT_BYTES, "%lld x %lld epoch%s = %s step%s",
                 (long long)shape->steps_per_epoch, (long long)options->epochs, ot_plural(options->epochs),
                 steps, plural);
    return text;
}

int ot_shape_schedule(const struct ot_options *options, int64_t first, int64_t steps,
                      struct ot_lr_schedule *out) {
    const int64_t lasts = ot_max(steps - first, 0);
    *out = (struct ot_lr_schedule){.kind = (enum ot_schedule_kind)options->schedule,
                                   .peak = options->lr,
                                   .warmup = options->warmup.steps,
                                   .steps = steps,
                                   .first = first};
    if (options->warmup.share > 0)
        out->warmup = (int64_t)round(options->warmup.share * (double)lasts);
    if (out->warmup <= lasts)
        return 0;
    return ot_fail(OT_E_USAGE, "--warmup %lld is longer than the run's %lld steps%s", (long long)out->warmup,
                   (long long)lasts, first > 0 ? " that are left" : "");
}

void ot_shape_choose_beta(struct ot_settings *settings) {
    const struct ot_options *options = &settings->in_effect;
    if (options->objective != OT_OBJECTIVE_SFT && !ot_options_given(options, "beta"))
        ot_settings_choose_real(settings, "beta", options->objective == OT_OBJECTIVE_SIMPO ? 2 : 0.1);
}

void ot_shape_choose(struct ot_settings *settings, int64_t params) {
    const struct ot_options *options = &settings->in_effect;
    if (!options->steps && !options->epochs)
        ot_settings_choose_count(settings, "epochs", OT_DEFAULT_EPOCHS);
    double lr = ot_shape_default_lr(params, options->init == OT_CHOICE_INIT_RANDOM);
    bool compares = options->objective != OT_OBJECTIVE_SFT;
    if (!ot_options_given(options, "lr"))
        ot_settings_choose_real(settings, "lr", compares ? lr / 10 : lr);
    ot_shape_choose_beta(settings);
}

/* Steps from a sequence to the end of its epoch. */
static int64_t steps_to_end(const struct ot_run_shape *shape, int64_t sequence) {
    return (shape->sequences - sequence + shape->step_sequences - 1) / shape->step_sequences;
}

/* The step that ends the epoch in which the rows begin. */
static int64_t first_end(const struct ot_run_shape *shape) {
    return shape->phase.rows_first + steps_to_end(shape, shape->phase.rows_at.sequence);
}

static int64_t steps_of_epochs(const struct ot_run_shape *shape, int64_t epochs) {
    int64_t later = epochs - shape->phase.rows_at.epoch - 1;
    return later < 0 ? shape->phase.rows_first : first_end(shape) + later * shape->steps_per_epoch;
}

struct ot_data_position ot_shape_position(const struct ot_run_shape *shape, int64_t step) {
    const struct ot_data_position *at = &shape->phase.rows_at;
    int64_t after = step - first_end(shape);
    if (after < 0)
        return (struct ot_data_position){at->epoch, at->sequence + (step - shape->phase.rows_first) *
                                                                       shape->step_sequences};
    return (struct ot_data_position){at->epoch + 1 + after / shape->steps_per_epoch,
                                     after % shape->steps_per_epoch * shape->step_sequences};
}

int64_t ot_shape_epoch_end(const struct ot_run_shape *shape, int64_t step) {
    int64_t end = first_end(shape), every = shape->steps_per_epoch;
    return step < end ? end : end + ((step - end) / every + 1) * every;
}

int ot_shape_run(struct ot_settings *settings, int64_t seq_len, int64_t sequences,
                 const struct ot_run_phase *phase, struct ot_run_shape *out) {
    const struct ot_options *options = &settings->in_effect;
    *out = (struct ot_run_shape){.seq_len = seq_len, .sequences = sequences};
    if (phase)
        out->phase = *phase;
    out->step_sequences = ot_shape_step_sequences(options, seq_len, sequences);
    out->steps_per_epoch = (sequences + out->step_sequences - 1) / out->step_sequences;
    if (options->micro_batch > out->step_sequences)
        return ot_fail(
            OT_E_USAGE,
            "--micro-batch %lld is more than the %lld sequences of a step; raise --tokens-per-step",
            (long long)options->micro_batch, (long long)out->step_sequences);
    if (!options->tokens_per_step.count)
        ot_settings_choose_step(settings, out->step_sequences * seq_len);
    int64_t steps = options->steps ? options->steps : steps_of_epochs(out, options->epochs);
    return ot_shape_schedule(options, out->phase.lr_first, steps, &out->lr);
}

/* ---- times of a run ---- */

/* Bytes/s that OUT's disk is assumed to write: nothing has been written there yet. */
static const double OUT_BYTES = 1e9;

/* ---- when ---- */

/* Multiples of `every` from `first` to `last`, for positive numbers. */
static int64_t multiples(int64_t every, int64_t first, int64_t last) {
    return every > 0 && last >= first ? last / every - (first - 1) / every : 0;
}

/* Ends of epochs from step `first` to step `last`, for positive numbers. */
static int64_t epoch_ends(const struct ot_run_shape *shape, int64_t first, int64_t last) {
    int64_t end = ot_shape_epoch_end(shape, first - 1);
    return last >= end ? 1 + (last - end) / shape->steps_per_epoch : 0;
}

/* Times that work of this interval, which is not a time, is due from step `first` to step `last`. */
static int64_t count_due(const struct ot_every *every, const struct ot_run_shape *shape, int64_t first,
                         int64_t last) {
    return every->steps > 0 ? multiples(every->steps, first, last) : epoch_ends(shape, first, last);
}

int64_t ot_calendar_next_eval(const struct ot_run_calendar *c, int64_t step) {
    int64_t last = c->shape->lr.steps;
    if (!c->evaluates || c->options->eval_every.seconds > 0)
        return last;
    int64_t every = c->options->eval_every.steps;
    return ot_min(every ? (step / every + 1) * every : ot_shape_epoch_end(c->shape, step), last);
}

struct ot_run_counts ot_calendar_count(const struct ot_run_calendar *c, int64_t first, double step_seconds) {
    const struct ot_every *eval = &c->options->eval_every, *save = &c->options->save_every;
    const int64_t last = c->shape->lr.steps, from = first > 0 ? first : 1;
    const double seconds = step_seconds * (double)(last - from + 1);
    struct ot_run_counts counts = {0, 0};
    if (c->evaluates && eval->seconds > 0)
        counts.evals = (int64_t)(seconds / eval->seconds) + 1;
    else if (c->evaluates)
        counts.evals = count_due(eval, c->shape, from, last) + (count_due(eval, c->shape, last, last) == 0);
    counts.evals += c->evaluates && first == 0;
    if (c->saves && save->seconds > 0)
        counts.saves = (int64_t)(seconds / save->seconds);
    else if (c->saves && (save->epoch || save->steps > 0))
        counts.saves = count_due(save, c->shape, from, last);
    return counts;
}

/* ---- how long ---- */

/* A checkpoint is written while steps run. Steps wait only if the next one is due before it is written. */
static double wait_for_save(const struct ot_run_calendar *c, double writing, double step_seconds) {
    const struct ot_every *save = &c->options->save_every;
    int64_t steps = save->epoch ? c->shape->steps_per_epoch : save->steps;
    double between = save->seconds > 0 ? save->seconds : (double)steps * step_seconds;
    return writing > between ? writing - between : 0;
}

/* The answers of an evaluation. A step of several texts takes as long as one of a single text, and their
 * share of a pass: it fetches weights once, and computes all tokens. */
static double answer_seconds(const struct ot_run_work *work, const struct ot_plan *plan, double pass,
                             double token, int64_t at_once) {
    int64_t texts = ot_min(work->answers, ot_max(plan->texts, 1));
    if (work->answers == 0)
        return 0;
    double step = token + (double)texts / (double)plan->micro_tokens * pass;
    int64_t groups = (work->answers + texts - 1) / texts, passes = (work->answers + at_once - 1) / at_once;
    return (double)passes * pass + (double)(groups * work->answer_tokens) * step;
}

int ot_run_times_predict(const struct ot_run_work *work, const struct ot_chain *chain,
                         const struct ot_plan *plan, const struct ot_costs *costs, double step_seconds,
                         struct ot_run_times *out) {
    const struct ot_run_calendar calendar = {work->options, work->shape, work->eval_sequences > 0,
                                             work->checkpoint_bytes > 0};
    double pass, token;
    *out = (struct ot_run_times){0};
    OT_TRY(ot_forecast_passes(chain, plan, costs, &pass, &token));
    int64_t at_once = ot_plan_micro_sequences(plan, work->shape->seq_len) * ot_shard_ranks(&plan->shard);
    out->counts = ot_calendar_count(&calendar, work->first, step_seconds);
    out->eval = (double)((work->eval_sequences + at_once - 1) / at_once) * pass;
    out->eval += answer_seconds(work, plan, pass, token, at_once);
    out->save = wait_for_save(&calendar, (double)work->checkpoint_bytes / OUT_BYTES, step_seconds);
    out->sample = work->sample_tokens > 0 ? pass + (double)work->sample_tokens * token : 0;
    out->result = (double)work->result_bytes / OUT_BYTES;
    return 0;
}

double ot_run_times_sum(const struct ot_run_times *t) {
    return (double)t->counts.evals * t->eval + (double)t->counts.saves * t->save + t->sample + t->result;
}

/* ---- the choice of a step ---- */

static void add(struct ot_step_choice *choice, int64_t step_sequences, int64_t seq_len, int64_t steps) {
    choice->candidates[choice->n++] = (struct ot_step_candidate){
        .sequences = step_sequences, .tokens = step_sequences * seq_len, .steps = steps};
}

static int list(const struct ot_options *o, int64_t seq_len, int64_t sequences, struct ot_step_choice *out) {
    const struct ot_step_tokens *bounds = &o->tokens_per_step;
    int64_t least = (bounds->least + seq_len - 1) / seq_len, most = bounds->most / seq_len;
    least = ot_max(o->micro_batch, least);
    if (least > most)
        return ot_fail(
            OT_E_USAGE,
            "--tokens-per-step auto:%lld..%lld: no step of whole sequences (%lld tokens each%s) lies "
            "within; raise MAX",
            (long long)bounds->least, (long long)bounds->most, (long long)seq_len,
            o->micro_batch > 1 ? ", at least one micro-batch" : "");
    if (sequences > 0 && most > sequences)
        most = ot_max(least, sequences);
    for (int64_t n = least;; n = ot_min(2 * n, most)) {
        int64_t steps = ot_shape_steps(o, sequences, n);
        if (out->n > 0 && steps > 0 && steps < o->warmup.steps)
            return 0;
        add(out, n, seq_len, steps);
        if (n == most)
            return 0;
    }
}

bool ot_step_is_open(const struct ot_options *options) {
    return options->tokens_per_step.count == 0 && options->tokens_per_step.most > 0;
}

static int pick(const struct ot_step_candidate *candidates, int n) {
    double best = 0;
    int i = 0;
    for (int k = 0; k < n; k++)
        best = fmax(best, candidates[k].tokens_per_second);
    while (candidates[i].tokens_per_second < (1 - OT_PLANNER_RESOLUTION) * best)
        i++;
    return i;
}

int ot_step_choice_make(const struct ot_options *options, int64_t seq_len, int64_t sequences,
                        ot_step_predict *predict, void *context, struct ot_step_choice *out) {
    *out = (struct ot_step_choice){0};
    OT_TRY(list(options, seq_len, sequences, out));
    for (int i = out->n - 1; i >= 0; i--) {
        int rc = predict(context, &out->candidates[i]);
        if (rc < 0 && rc != -OT_E_BUDGET)
            return rc;
    }
    out->chosen = pick(out->candidates, out->n);
    return 0;
}

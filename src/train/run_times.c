#include "src/train/run_times.h"

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/session/forecast.h"

/* Bytes/s that OUT's disk is assumed to write: nothing has been written there yet. */
static const double OUT_BYTES = 1e9;

/* ---- when ---- */

/* Multiples of `every` from `first` to `last`, for positive numbers. */
static int64_t multiples(int64_t every, int64_t first, int64_t last) {
    return every > 0 && last >= first ? last / every - (first - 1) / every : 0;
}

static int64_t eval_steps(const struct ot_run_calendar *c) {
    const struct ot_every *every = &c->options->eval_every;
    return every->steps ? every->steps : c->shape->steps_per_epoch;
}

int64_t ot_calendar_next_eval(const struct ot_run_calendar *c, int64_t step) {
    int64_t last = c->shape->lr.steps;
    if (!c->evaluates || c->options->eval_every.seconds > 0)
        return last;
    int64_t every = eval_steps(c), next = (step / every + 1) * every;
    return ot_min(next, last);
}

struct ot_run_counts ot_calendar_count(const struct ot_run_calendar *c, int64_t first, double step_seconds) {
    const struct ot_every *eval = &c->options->eval_every, *save = &c->options->save_every;
    const int64_t last = c->shape->lr.steps, from = first > 0 ? first : 1;
    const double seconds = step_seconds * (double)(last - from + 1);
    struct ot_run_counts counts = {0, 0};
    if (c->evaluates && eval->seconds > 0)
        counts.evals = (int64_t)(seconds / eval->seconds) + 1;
    else if (c->evaluates)
        counts.evals = multiples(eval_steps(c), from, last) + (last % eval_steps(c) != 0);
    counts.evals += c->evaluates && first == 0;
    if (c->saves && save->seconds > 0)
        counts.saves = (int64_t)(seconds / save->seconds);
    else if (c->saves)
        counts.saves = multiples(save->epoch ? c->shape->steps_per_epoch : save->steps, from, last);
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

int ot_run_times_predict(const struct ot_session *s, const struct ot_rows *rows,
                         const struct ot_run_shape *shape, const struct ot_run_work *work,
                         struct ot_run_times *out) {
    const struct ot_run_calendar calendar = {s->options, shape, rows->eval != NULL,
                                             work->checkpoint_bytes > 0};
    double step = s->prediction.step_seconds, pass, token;
    *out = (struct ot_run_times){0};
    if (s->options->no_forecast)
        return 0;
    OT_TRY(ot_forecast_passes(s, &pass, &token));
    int64_t at_once = s->plan.micro_tokens / shape->seq_len * ot_shard_ranks(&s->shard);
    int64_t sequences = rows->eval ? ot_packing_sequences(rows->eval) : 0;
    out->counts = ot_calendar_count(&calendar, work->first, step);
    out->eval = (double)((sequences + at_once - 1) / at_once) * pass;
    out->save = wait_for_save(&calendar, (double)work->checkpoint_bytes / OUT_BYTES, step);
    out->sample = work->sample_tokens > 0 ? pass + (double)work->sample_tokens * token : 0;
    out->result = (double)work->result_bytes / OUT_BYTES;
    return 0;
}

double ot_run_times_sum(const struct ot_run_times *t) {
    return (double)t->counts.evals * t->eval + (double)t->counts.saves * t->save + t->sample + t->result;
}

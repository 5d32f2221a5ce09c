#include "src/train/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/train/evaluate.h"

/* The weight of a step's time relative to the next step's. */
static const double FADING = 19.0 / 20;

void ot_progress_open(struct ot_progress *progress, int64_t steps, struct ot_every every, bool terminal,
                      const struct ot_run_times *expected) {
    *progress = (struct ot_progress){.steps = steps, .every = every, .terminal = terminal};
    if (expected) {
        progress->pauses[OT_PAUSE_EVAL].expected = expected->eval;
        progress->pauses[OT_PAUSE_SAVE].expected = expected->save;
        progress->ending = expected->sample + expected->result;
    }
}

void ot_progress_start(struct ot_progress *progress, double now) {
    progress->counted_to = now;
    progress->paused = 0;
}

void ot_progress_pause(struct ot_progress *progress, enum ot_pause kind, double seconds) {
    progress->pauses[kind].n++;
    progress->pauses[kind].seconds += seconds;
    progress->paused += seconds;
}

double ot_progress_paused(const struct ot_progress *progress) {
    double seconds = 0;
    for (int kind = 0; kind < OT_PAUSES; kind++)
        seconds += progress->pauses[kind].seconds;
    return seconds;
}

bool ot_progress_add(struct ot_progress *progress, const struct ot_step_report *step, double now) {
    double passed = now - progress->counted_to, stepped = fmax(passed - progress->paused, 0);
    double weight = progress->mean_seconds > 0 ? 1 - FADING : 1;
    progress->mean_seconds += weight * (stepped - progress->mean_seconds);
    progress->recent_tokens = FADING * progress->recent_tokens + (double)step->tokens;
    progress->recent_seconds = FADING * progress->recent_seconds + passed;
    ot_progress_start(progress, now);
    bool due = step->step == 1 || step->step == progress->steps || step->skipped || step->spike;
    if (progress->every.steps > 0)
        due = due || step->step % progress->every.steps == 0;
    else
        due = due || now - progress->last_line >= progress->every.seconds;
    if (due)
        progress->last_line = now;
    return due;
}

static double mean_pause(const struct ot_progress *progress, enum ot_pause kind) {
    int64_t n = progress->pauses[kind].n;
    return n > 0 ? progress->pauses[kind].seconds / (double)n : progress->pauses[kind].expected;
}

double ot_progress_seconds_left(const struct ot_progress *progress, int64_t step, struct ot_run_counts left) {
    return (double)(progress->steps - step) * progress->mean_seconds +
           (double)left.evals * mean_pause(progress, OT_PAUSE_EVAL) +
           (double)left.saves * mean_pause(progress, OT_PAUSE_SAVE) + progress->ending;
}

/* Removes the sign of a NaN, which some operations set. */
static double plain(double value) {
    return isnan(value) ? NAN : value;
}

struct texts { /* the numbers of a line, formatted */
    char rate[OT_TEXT_BYTES], first[96], compared[48], roof[24];
};

static struct texts format_numbers(const struct ot_progress *progress, const struct ot_step_report *step,
                                   struct ot_run_counts left) {
    struct texts t = {0};
    char eta[OT_TEXT_BYTES];
    int used = 0;
    double seconds = progress->recent_seconds > 0 ? progress->recent_seconds : 1;
    ot_text_count((int64_t)(progress->recent_tokens / seconds), t.rate);
    if (step->step < progress->steps)
        used = snprintf(t.first, sizeof t.first, " ETA %s",
                        ot_text_duration(ot_progress_seconds_left(progress, step->step, left), eta));
    if (step->compares)
        snprintf(t.compared, sizeof t.compared, " margin %.3f right %.0f %%",
                 step->compared.chosen - step->compared.rejected, 100 * step->compared.right);
    if (step->roof_share > 0)
        snprintf(t.roof, sizeof t.roof, " roof %.0f %%", 100 * step->roof_share);
    if (step->skipped)
        snprintf(t.first + used, sizeof t.first - (size_t)used, " skipped: %s",
                 ot_loss_guard_reason(step->skipped));
    else if (step->spike)
        snprintf(t.first + used, sizeof t.first - (size_t)used, " loss spike");
    return t;
}

void ot_progress_line(const struct ot_progress *progress, const struct ot_step_report *step,
                      struct ot_run_counts left, char line[OT_PROGRESS_LINE_BYTES]) {
    struct texts t = format_numbers(progress, step, left);
    char total[OT_TEXT_BYTES], gpu[OT_TEXT_BYTES], host[OT_TEXT_BYTES];
    int width = snprintf(total, sizeof total, "%" PRId64, progress->steps);
    int used =
        snprintf(line, OT_PROGRESS_LINE_BYTES,
                 "step %*" PRId64 "/%s%s loss %.4f%s |g| %.3g lr %.2e %s tok/s%s", width, step->step, total,
                 t.first, plain(step->loss), t.compared, plain(step->grad_norm), step->lr, t.rate, t.roof);
    if (step->gpu_bytes != progress->told_gpu_bytes || step->host_bytes != progress->told_host_bytes)
        snprintf(line + used, (size_t)(OT_PROGRESS_LINE_BYTES - used), " gpu %s host %s",
                 ot_text_bytes((int64_t)step->gpu_bytes, gpu),
                 ot_text_bytes((int64_t)step->host_bytes, host));
}

/* The most important numbers come first: the log cuts the line at the terminal's width. */
void ot_progress_bar(const struct ot_progress *progress, const struct ot_step_report *step,
                     struct ot_run_counts left, char line[OT_PROGRESS_LINE_BYTES]) {
    enum { WIDTH = 20 };
    struct texts t = format_numbers(progress, step, left);
    char bar[WIDTH + 1];
    int done = (int)(WIDTH * step->step / (progress->steps > 0 ? progress->steps : 1));
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < done ? '#' : '.';
    bar[WIDTH] = '\0';
    snprintf(line, OT_PROGRESS_LINE_BYTES,
             "[%s] %" PRId64 "/%" PRId64 "%s loss %.4f%s %s tok/s%s |g| %.3g lr %.2e", bar, step->step,
             progress->steps, t.first, plain(step->loss), t.compared, t.rate, t.roof, plain(step->grad_norm),
             step->lr);
}

void ot_progress_show(struct ot_progress *progress, const struct ot_step_report *step,
                      const struct ot_run_calendar *calendar) {
    char line[OT_PROGRESS_LINE_BYTES];
    bool due = ot_progress_add(progress, step, ot_clock_seconds());
    struct ot_run_counts left = ot_calendar_count(calendar, step->step, progress->mean_seconds);
    if (due) {
        ot_progress_line(progress, step, left, line);
        ot_log_progress(line);
        progress->told_gpu_bytes = step->gpu_bytes;
        progress->told_host_bytes = step->host_bytes;
    }
    if (progress->terminal) {
        ot_progress_bar(progress, step, left, line);
        ot_log_set_status(line);
    }
}

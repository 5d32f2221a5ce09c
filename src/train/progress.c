#include "src/train/progress.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/units.h"
#include "src/run/guard.h"

void ot_progress_open(struct ot_progress *progress, int64_t steps, struct ot_every every, bool terminal) {
    *progress = (struct ot_progress){.steps = steps, .every = every, .terminal = terminal};
}

bool ot_progress_add(struct ot_progress *progress, const struct ot_step_record *step, double now) {
    double weight = progress->mean_seconds > 0 ? 1.0 / 20 : 1;
    progress->mean_seconds += weight * (step->seconds - progress->mean_seconds);
    progress->mean_tokens += weight * ((double)step->tokens - progress->mean_tokens);
    bool due = step->step == 1 || step->step == progress->steps || step->skipped || step->spike;
    if (progress->every.steps > 0)
        due = due || step->step % progress->every.steps == 0;
    else
        due = due || now - progress->last_line >= progress->every.seconds;
    if (due)
        progress->last_line = now;
    return due;
}

double ot_progress_seconds_left(const struct ot_progress *progress, int64_t step) {
    return (double)(progress->steps - step) * progress->mean_seconds;
}

/* Removes the sign of a NaN, which some operations set. */
static double plain(double value) {
    return isnan(value) ? NAN : value;
}

struct texts { /* the numbers of a line, formatted */
    char rate[OT_TEXT_BYTES], gpu[OT_TEXT_BYTES], host[OT_TEXT_BYTES], rest[64];
};

static struct texts format_numbers(const struct ot_progress *progress, const struct ot_step_record *step) {
    struct texts t = {0};
    char left[OT_TEXT_BYTES];
    double seconds = progress->mean_seconds > 0 ? progress->mean_seconds : 1;
    ot_text_count((int64_t)(progress->mean_tokens / seconds), t.rate);
    ot_text_bytes((int64_t)step->gpu_bytes, t.gpu);
    ot_text_bytes((int64_t)step->host_bytes, t.host);
    if (step->skipped)
        snprintf(t.rest, sizeof t.rest, " skipped: %s", ot_guard_reason(step->skipped));
    else if (step->spike)
        snprintf(t.rest, sizeof t.rest, " loss spike");
    else if (step->step < progress->steps)
        snprintf(t.rest, sizeof t.rest, " ETA %s",
                 ot_text_duration(ot_progress_seconds_left(progress, step->step), left));
    return t;
}

void ot_progress_line(const struct ot_progress *progress, const struct ot_step_record *step,
                      char line[OT_PROGRESS_LINE_BYTES]) {
    struct texts t = format_numbers(progress, step);
    char total[OT_TEXT_BYTES];
    int width = snprintf(total, sizeof total, "%" PRId64, progress->steps);
    snprintf(line, OT_PROGRESS_LINE_BYTES,
             "step %*" PRId64 "/%s loss %.4f |g| %.3g lr %.2e %s tok/s gpu %s host %s%s", width, step->step,
             total, plain(step->loss), plain(step->grad_norm), step->lr, t.rate, t.gpu, t.host, t.rest);
}

/* The most important numbers come first: the log cuts the line at the terminal's width. */
void ot_progress_bar(const struct ot_progress *progress, const struct ot_step_record *step,
                     char line[OT_PROGRESS_LINE_BYTES]) {
    enum { WIDTH = 20 };
    struct texts t = format_numbers(progress, step);
    char bar[WIDTH + 1];
    int done = (int)(WIDTH * step->step / (progress->steps > 0 ? progress->steps : 1));
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < done ? '#' : '.';
    bar[WIDTH] = '\0';
    snprintf(line, OT_PROGRESS_LINE_BYTES,
             "[%s] %" PRId64 "/%" PRId64 "%s loss %.4f %s tok/s |g| %.3g lr %.2e gpu %s host %s", bar,
             step->step, progress->steps, t.rest, plain(step->loss), t.rate, plain(step->grad_norm), step->lr,
             t.gpu, t.host);
}

void ot_progress_show(struct ot_progress *progress, const struct ot_step_record *step) {
    char line[OT_PROGRESS_LINE_BYTES];
    bool due = ot_progress_add(progress, step, ot_clock_seconds());
    if (due) {
        ot_progress_line(progress, step, line);
        ot_log_progress(line);
    }
    if (progress->terminal) {
        ot_progress_bar(progress, step, line);
        ot_log_set_status(line);
    }
}

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

bool ot_progress_add(struct ot_progress *progress, const struct ot_progress_point *point, double now) {
    double weight = progress->mean_seconds > 0 ? 1.0 / 20 : 1;
    progress->mean_seconds += weight * (point->seconds - progress->mean_seconds);
    progress->mean_tokens += weight * ((double)point->tokens - progress->mean_tokens);
    bool due = point->step == 1 || point->step == progress->steps || point->skipped || point->spike;
    if (progress->every.steps > 0)
        due = due || point->step % progress->every.steps == 0;
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

static struct texts format_numbers(const struct ot_progress *progress,
                                   const struct ot_progress_point *point) {
    struct texts t = {0};
    char left[OT_TEXT_BYTES];
    double seconds = progress->mean_seconds > 0 ? progress->mean_seconds : 1;
    ot_text_count((int64_t)(progress->mean_tokens / seconds), t.rate);
    ot_text_bytes((int64_t)point->gpu_bytes, t.gpu);
    ot_text_bytes((int64_t)point->host_bytes, t.host);
    if (point->skipped)
        snprintf(t.rest, sizeof t.rest, " skipped: %s", ot_guard_reason(point->skipped));
    else if (point->spike)
        snprintf(t.rest, sizeof t.rest, " loss spike");
    else if (point->step < progress->steps)
        snprintf(t.rest, sizeof t.rest, " ETA %s",
                 ot_text_duration(ot_progress_seconds_left(progress, point->step), left));
    return t;
}

void ot_progress_line(const struct ot_progress *progress, const struct ot_progress_point *point,
                      char line[OT_PROGRESS_LINE_BYTES]) {
    struct texts t = format_numbers(progress, point);
    char total[OT_TEXT_BYTES];
    int width = snprintf(total, sizeof total, "%" PRId64, progress->steps);
    snprintf(line, OT_PROGRESS_LINE_BYTES,
             "step %*" PRId64 "/%s loss %.4f |g| %.3g lr %.2e %s tok/s gpu %s host %s%s", width, point->step,
             total, plain(point->loss), plain(point->grad_norm), point->lr, t.rate, t.gpu, t.host, t.rest);
}

/* The most important numbers come first: the log cuts the line at the terminal's width. */
void ot_progress_bar(const struct ot_progress *progress, const struct ot_progress_point *point,
                     char line[OT_PROGRESS_LINE_BYTES]) {
    enum { WIDTH = 20 };
    struct texts t = format_numbers(progress, point);
    char bar[WIDTH + 1];
    int done = (int)(WIDTH * point->step / (progress->steps > 0 ? progress->steps : 1));
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < done ? '#' : '.';
    bar[WIDTH] = '\0';
    snprintf(line, OT_PROGRESS_LINE_BYTES,
             "[%s] %" PRId64 "/%" PRId64 "%s loss %.4f %s tok/s |g| %.3g lr %.2e gpu %s host %s", bar,
             point->step, progress->steps, t.rest, plain(point->loss), t.rate, plain(point->grad_norm),
             point->lr, t.gpu, t.host);
}

void ot_progress_show(struct ot_progress *progress, const struct ot_progress_point *point) {
    char line[OT_PROGRESS_LINE_BYTES];
    bool due = ot_progress_add(progress, point, ot_clock_seconds());
    if (due) {
        ot_progress_line(progress, point, line);
        ot_log_progress(line);
    }
    if (progress->terminal) {
        ot_progress_bar(progress, point, line);
        ot_log_set_status(line);
    }
}

#include "offload/predict/repeats.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

/* LEAST_REPEATS: repeats of a long call. MOST_CALLS: limit for the calls in one repeat. NOISY_TIMES: a noisy
 * call may take this many times the usual limit. */
enum { LEAST_REPEATS = 3, MOST_CALLS = 1000, NOISY_TIMES = 3 };

void ot_repeats_add(struct ot_repeats *repeats, double seconds) {
    if (repeats->n < OT_REPEATS_MOST)
        repeats->seconds[repeats->n++] = seconds;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The value that `share` of the repeats lie below, interpolated between two repeats. */
static double quantile(const struct ot_repeats *repeats, double share) {
    double sorted[OT_REPEATS_MOST];
    if (repeats->n == 0)
        return 0;
    memcpy(sorted, repeats->seconds, (size_t)repeats->n * sizeof *sorted);
    qsort(sorted, (size_t)repeats->n, sizeof *sorted, ascending);
    double at = share * (repeats->n - 1);
    int below = (int)at, above = below + 1 < repeats->n ? below + 1 : below;
    return sorted[below] + (at - below) * (sorted[above] - sorted[below]);
}

double ot_repeats_median(const struct ot_repeats *repeats) {
    return quantile(repeats, 0.5);
}

double ot_repeats_spread(const struct ot_repeats *repeats) {
    double median = ot_repeats_median(repeats);
    return median > 0 ? (quantile(repeats, 0.75) - quantile(repeats, 0.25)) / 2 / median : 0;
}

struct turn { /* the state of one call */
    int count;
    double spent; /* seconds of all its repeats */
};

static int repeat(const struct ot_timed_calls *calls, int call, struct turn *turn, struct ot_repeats *out) {
    double seconds;
    OT_TRY(calls->time(calls->context, call, turn->count, &seconds));
    turn->spent += seconds * turn->count;
    ot_repeats_add(out, seconds);
    return 0;
}

/* True if another repeat is wanted. The number of repeats is odd, so that the median is a measured one. */
static bool wants_more(const struct ot_timed_calls *calls, const struct turn *turn,
                       const struct ot_repeats *repeats) {
    if (repeats->n < LEAST_REPEATS || repeats->n % 2 == 0)
        return true;
    if (repeats->n < OT_REPEATS && turn->spent < calls->seconds)
        return true;
    return repeats->n < OT_REPEATS_MOST && turn->spent < NOISY_TIMES * calls->seconds &&
           ot_repeats_spread(repeats) > OT_REPEATS_NOISY;
}

/* The first call is not used: it may choose algorithms and load code. The second sets the calls of a
 * repeat. */
static int warm_up(const struct ot_timed_calls *calls, int call, struct turn *turn) {
    double once;
    OT_TRY(calls->time(calls->context, call, 1, &once));
    OT_TRY(calls->time(calls->context, call, 1, &once));
    double count = calls->seconds / OT_REPEATS / ot_max(once, 1e-7);
    turn->count = count < 1 ? 1 : count > MOST_CALLS ? MOST_CALLS : (int)count;
    return 0;
}

int ot_repeats_take(const struct ot_timed_calls *calls, struct ot_repeats *out) {
    struct turn *turns = calloc((size_t)calls->n, sizeof *turns);
    bool more = true;
    int rc = 0;
    if (!turns)
        return ot_fail(OT_E_BUDGET, "no memory to time %d calls", calls->n);
    for (int i = 0; i < calls->n; i++) {
        out[i].n = 0;
        OT_TRY_GOTO(warm_up(calls, i, &turns[i]), rc, out);
    }
    while (more) {
        more = false;
        for (int i = 0; i < calls->n; i++) {
            if (!wants_more(calls, &turns[i], &out[i]))
                continue;
            OT_TRY_GOTO(repeat(calls, i, &turns[i], &out[i]), rc, out);
            more = true;
        }
    }
out:
    free(turns);
    return rc;
}

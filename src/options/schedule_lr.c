#include "src/options/schedule_lr.h"

#include <assert.h>
#include <math.h>

static const double cosine_floor = 0.1, wsd_decay_share = 0.2;

double ot_lr_at(const struct ot_lr_schedule *schedule, int64_t step) {
    const int64_t steps = schedule->steps - schedule->first;
    step -= schedule->first;
    assert(step >= 1 && schedule->warmup >= 0 && schedule->warmup <= steps);
    if (step < schedule->warmup)
        return schedule->peak * (double)step / (double)schedule->warmup;
    if (step > steps)
        step = steps;
    int64_t top = schedule->warmup ? schedule->warmup : 1; /* the first step at the peak */
    int64_t decaying = steps - top;
    double done = decaying > 0 ? (double)(step - top) / (double)decaying : 0;
    switch (schedule->kind) {
    case OT_SCHEDULE_LINEAR: /* the last step still trains: 0 would be reached at the step after it */
        return schedule->peak * (double)(steps + 1 - step) / (double)(decaying + 1);
    case OT_SCHEDULE_COSINE:
        return schedule->peak *
               (cosine_floor + (1 - cosine_floor) * 0.5 * (1 + cos(3.14159265358979323846 * done)));
    case OT_SCHEDULE_WSD: {
        int64_t tail = (int64_t)ceil(wsd_decay_share * (double)decaying);
        int64_t left = steps + 1 - step;
        return left > tail ? schedule->peak : schedule->peak * (double)left / (double)(tail + 1);
    }
    case OT_SCHEDULE_CONSTANT:
        break;
    }
    return schedule->peak;
}

/* Monotonic time for measurements; its zero has no meaning. Any thread. */
#ifndef OT_BASE_CLOCK_H
#define OT_BASE_CLOCK_H

#include <stdint.h>
#include <time.h>

static inline int64_t ot_clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline double ot_clock_seconds(void) {
    return 1e-9 * (double)ot_clock_ns();
}

#endif

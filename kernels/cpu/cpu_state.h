/* Declarations that the two halves of the cpu device share: memory (cpu_device.c) and lanes (cpu_lane.c). */
#ifndef OT_KERNELS_CPU_STATE_H
#define OT_KERNELS_CPU_STATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "kernels/device.h"

#include "src/base/pool.h"

struct ot_cpu_device {
    struct ot_device base;
    char name[96], arithmetic[192];
    struct ot_pool *pool;

    uint64_t delay_seed;
    _Atomic int n_lanes, n_events; /* number of open ones */
    /* number of lanes ever opened; each lane's number selects a random stream of delays */
    _Atomic uint64_t lane_numbers;
};

int ot_cpu_lane_open(struct ot_device *device, const char *name, struct ot_lane **out);
void ot_cpu_lane_close(struct ot_lane *lane);
void ot_cpu_lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src, size_t bytes);
void ot_cpu_lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
void ot_cpu_lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
void ot_cpu_lane_call(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
int ot_cpu_lane_error(const struct ot_lane *lane);
int ot_cpu_lane_sync(struct ot_lane *lane);

int ot_cpu_event_create(struct ot_device *device, struct ot_event **out);
void ot_cpu_event_destroy(struct ot_event *event);
void ot_cpu_lane_record(struct ot_lane *lane, struct ot_event *event);
void ot_cpu_lane_wait(struct ot_lane *lane, struct ot_event *event);
int ot_cpu_event_sync(struct ot_event *event);
int ot_cpu_event_seconds(struct ot_event *event, double *out);

#endif

/* Inside the cpu device: what its memory half (cpu_device.c) and its lane half (cpu_lane.c) share. */
#ifndef OT_KERNELS_CPU_STATE_H
#define OT_KERNELS_CPU_STATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>

#include "kernels/device.h"
#include "src/base/error.h"
#include "src/base/pool.h"

struct ot_cpu_allocation;

/* What made a lane fail; kept until the device is closed, since events outlive lanes. */
struct ot_cpu_failure {
    struct ot_cpu_failure *next;
    struct ot_error error;
};

struct ot_cpu_device {
    struct ot_device base;
    char name[96], arithmetic[192];
    struct ot_pool *pool;
    struct ot_placement placement;
    uint64_t delay_seed;
    _Atomic int n_lanes, n_events; /* open ones */
    _Atomic uint64_t lane_numbers; /* lanes ever opened; each number is a stream of delays */

    pthread_mutex_t mutex; /* guards what follows */
    struct ot_cpu_allocation *allocations;
    struct ot_device_usage usage;
    struct ot_cpu_failure *failures;
};

int ot_cpu_lane_open(struct ot_device *device, const char *name, struct ot_lane **out);
void ot_cpu_lane_close(struct ot_lane *lane);
void ot_cpu_lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src, size_t bytes);
void ot_cpu_lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes);
void ot_cpu_lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg);
int ot_cpu_lane_error(const struct ot_lane *lane);
int ot_cpu_lane_sync(struct ot_lane *lane);

int ot_cpu_event_create(struct ot_device *device, struct ot_event **out);
void ot_cpu_event_destroy(struct ot_event *event);
void ot_cpu_lane_record(struct ot_lane *lane, struct ot_event *event);
void ot_cpu_lane_wait(struct ot_lane *lane, struct ot_event *event);
int ot_cpu_event_sync(struct ot_event *event);
int ot_cpu_event_seconds(struct ot_event *event, double *out);

#endif

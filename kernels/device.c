#include "kernels/device.h"

#include <assert.h>
#include <string.h>

#include "src/base/error.h"

static const struct {
    const char *kind;
    const struct ot_device_api *api;
} kinds[] = {{"cpu", &ot_cpu_device_api}};

int ot_device_open(const struct ot_device_config *config, struct ot_device **out) {
    assert(config->threads >= 1);
    *out = NULL;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(config->kind, kinds[i].kind) == 0)
            return kinds[i].api->open(config, out);
    return ot_fail(OT_E_DEVICE, "no device of the kind '%s' in this build; it has: cpu", config->kind);
}

void ot_device_close(struct ot_device *device) {
    if (device)
        device->api->close(device);
}

const char *ot_device_name(const struct ot_device *device) {
    return device->api->name(device);
}

const struct ot_ops *ot_device_ops(const struct ot_device *device) {
    return device->ops;
}

/* ---- memory ---- */

int ot_device_alloc(struct ot_device *device, size_t bytes, const char *name, void **out) {
    return device->api->alloc(device, bytes, name, out);
}

void ot_device_free(struct ot_device *device, void *memory) {
    if (memory)
        device->api->free(device, memory);
}

int ot_device_alloc_pinned(struct ot_device *device, size_t bytes, const char *name, void **out) {
    return device->api->alloc_pinned(device, bytes, name, out);
}

void ot_device_free_pinned(struct ot_device *device, void *memory, size_t bytes) {
    if (memory)
        device->api->free_pinned(device, memory, bytes);
}

void ot_device_usage(const struct ot_device *device, struct ot_device_usage *out) {
    device->api->usage(device, out);
}

/* ---- lanes ---- */

int ot_lane_open(struct ot_device *device, const char *name, struct ot_lane **out) {
    return device->api->lane_open(device, name, out);
}

void ot_lane_close(struct ot_lane *lane) {
    if (lane)
        lane->device->api->lane_close(lane);
}

struct ot_device *ot_lane_device(const struct ot_lane *lane) {
    return lane->device;
}

void ot_lane_copy(struct ot_lane *lane, enum ot_copy_kind kind, void *dst, const void *src, size_t bytes) {
    lane->device->api->copy(lane, kind, dst, src, bytes);
}

void ot_lane_fill(struct ot_lane *lane, void *device_dst, int byte, size_t bytes) {
    lane->device->api->fill(lane, device_dst, byte, bytes);
}

void ot_lane_notify(struct ot_lane *lane, void (*fn)(void *arg), void *arg) {
    lane->device->api->notify(lane, fn, arg);
}

int ot_lane_error(const struct ot_lane *lane) {
    return lane->device->api->lane_error(lane);
}

int ot_lane_sync(struct ot_lane *lane) {
    return lane->device->api->lane_sync(lane);
}

/* ---- events ---- */

int ot_event_create(struct ot_device *device, struct ot_event **out) {
    return device->api->event_create(device, out);
}

void ot_event_destroy(struct ot_event *event) {
    if (event)
        event->device->api->event_destroy(event);
}

void ot_lane_record(struct ot_lane *lane, struct ot_event *event) {
    assert(lane->device == event->device);
    lane->device->api->record(lane, event);
}

void ot_lane_wait(struct ot_lane *lane, struct ot_event *event) {
    assert(lane->device == event->device);
    lane->device->api->wait(lane, event);
}

int ot_event_sync(struct ot_event *event) {
    return event->device->api->event_sync(event);
}

int ot_event_create_timed(struct ot_device *device, struct ot_event **out) {
    return device->api->event_create_timed(device, out);
}

int ot_event_seconds(struct ot_event *event, double *out) {
    return event->device->api->event_seconds(event, out);
}

#include "kernels/device.h"

#include <assert.h>
#include <string.h>

#include "src/base/error.h"

static const struct kind {
    const char *name;
    const struct ot_device_api *api; /* NULL: this build lacks it */
} kinds[] = {{"cpu", &ot_cpu_device_api}, {"cuda", &ot_cuda_device_api}};

static const struct kind *find_kind(const char *name) {
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (strcmp(name, kinds[i].name) == 0)
            return &kinds[i];
    return NULL;
}

bool ot_device_is_present(const char *name) {
    const struct kind *kind = find_kind(name);
    return kind && kind->api && kind->api->is_present();
}

const char *ot_device_no_cuda(void) {
    return find_kind("cuda")->api ? NULL
                                  : "this build has no cuda device: it was made without nvcc, or with "
                                    "-Dcuda=disabled; install the CUDA toolkit and build in a "
                                    "new folder: meson setup build-cuda -Dcuda=enabled";
}

bool ot_device_bus_id(const char *name, int index, char text[OT_BUS_ID_BYTES]) {
    const struct kind *kind = find_kind(name);
    return kind && kind->api && kind->api->bus_id && kind->api->bus_id(index, text);
}

int ot_device_open(const struct ot_device_config *config, struct ot_device **out) {
    assert(config->threads >= 1);
    *out = NULL;
    const struct kind *kind = find_kind(config->kind);
    if (!kind)
        return ot_fail(OT_E_DEVICE, "unknown device '%s': this program has the devices cpu and cuda",
                       config->kind);
    if (!kind->api)
        return ot_fail(OT_E_DEVICE, "%s", ot_device_no_cuda());
    return kind->api->open(config, out);
}

void ot_device_close(struct ot_device *device) {
    if (device)
        device->api->close(device);
}

const char *ot_device_name(const struct ot_device *device) {
    return device->api->name(device);
}

const char *ot_device_arithmetic(const struct ot_device *device) {
    return device->api->arithmetic(device);
}

const struct ot_ops *ot_device_ops(const struct ot_device *device) {
    return device->ops;
}

bool ot_device_has_dtype(const struct ot_device *device, enum ot_dtype dtype) {
    return device->api->has_dtype(device, dtype);
}

int64_t ot_device_token_multiple(const struct ot_device *device) {
    return device->api->token_multiple ? device->api->token_multiple : 1;
}

bool ot_device_slows_under_load(const struct ot_device *device) {
    return device->api->slows_under_load;
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

int ot_device_place(struct ot_device *device, void *memory, size_t bytes, const char *name) {
    return device->api->place(device, memory, bytes, name);
}

int ot_device_pin(struct ot_device *device, void *memory, size_t bytes, size_t own_bytes, const char *name) {
    return device->api->pin(device, memory, bytes, own_bytes, name);
}

void ot_device_unpin(struct ot_device *device, void *memory, size_t own_bytes) {
    device->api->unpin(device, memory, own_bytes);
}

void ot_device_usage(const struct ot_device *device, struct ot_device_usage *out) {
    device->api->usage(device, out);
}

void ot_device_forget_peaks(struct ot_device *device) {
    device->api->forget_peaks(device);
}

int ot_device_measure_peer(struct ot_device *device, const char *bus_id, const void *memory, size_t bytes,
                           double seconds, struct ot_device_peer *out) {
    *out = (struct ot_device_peer){0};
    if (!device->api->measure_peer)
        return ot_fail(OT_E_USAGE, "%s is on no bus with other devices", ot_device_name(device));
    return device->api->measure_peer(device, bus_id, memory, bytes, seconds, out);
}

int ot_device_tune(struct ot_device *device, void *memory, size_t bytes, double seconds,
                   struct ot_device_tuning *out) {
    *out = (struct ot_device_tuning){0};
    return device->api->tune ? device->api->tune(device, memory, bytes, seconds, out) : 0;
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

void ot_lane_mark(struct ot_lane *lane, const char *what) {
    if (lane->device->api->mark)
        lane->device->api->mark(lane, what);
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

void ot_lane_call(struct ot_lane *lane, void (*fn)(void *arg), void *arg) {
    lane->device->api->call(lane, fn, arg);
}

void *ot_lane_stream(struct ot_lane *lane) {
    return lane->device->api->stream ? lane->device->api->stream(lane) : NULL;
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

#include "kernels/device.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

enum { PINNED_ALIGN = 4096, HUGE_PAGE = 2 << 20 };

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

/* ---- the ledger of a device: its memory, within a budget, and the failures of its lanes ---- */

struct allocation {
    struct allocation *next;
    void *memory;
    size_t bytes;
};

struct failure {
    struct failure *next;
    struct ot_error error;
};

struct ot_device_ledger {
    pthread_mutex_t mutex; /* guards the members below */
    struct ot_device_usage usage;
    struct allocation *allocations;
    struct failure *failures;
};

int ot_device_begin(struct ot_device *device, const struct ot_device_api *api, const struct ot_ops *ops,
                    const struct ot_placement *placement, const struct ot_device_usage *usage) {
    struct ot_device_ledger *ledger = calloc(1, sizeof *ledger);
    if (!ledger)
        return ot_fail(OT_E_DEVICE, "no memory to open the device");
    ledger->usage = *usage;
    pthread_mutex_init(&ledger->mutex, NULL);
    *device = (struct ot_device){api, ops, *placement, ledger};
    return 0;
}

void ot_device_end(struct ot_device *device) {
    struct ot_device_ledger *ledger = device->ledger;
    assert(!ledger->allocations && ledger->usage.pinned_bytes == 0);
    for (struct failure *failure = ledger->failures, *next; failure; failure = next) {
        next = failure->next;
        free(failure);
    }
    pthread_mutex_destroy(&ledger->mutex);
    free(ledger);
}

const struct ot_error *ot_device_keep_error(struct ot_device *device, const struct ot_error *error) {
    static const struct ot_error nameless = {
        .code = OT_E_DEVICE, .text = "the device failed, and there was no memory to describe the error"};
    struct ot_device_ledger *ledger = device->ledger;
    struct failure *failure = malloc(sizeof *failure);
    if (!failure)
        return &nameless;
    failure->error = *error;
    pthread_mutex_lock(&ledger->mutex);
    failure->next = ledger->failures;
    ledger->failures = failure;
    pthread_mutex_unlock(&ledger->mutex);
    return &failure->error;
}

/* Hold the mutex. */
static int take(struct ot_device_usage *usage, size_t bytes, const char *name) {
    size_t left = usage->budget_bytes - usage->used_bytes;
    if (bytes > left)
        return ot_fail_cause(
            OT_E_BUDGET, OT_CAUSE_DEVICE_BUDGET,
            "device memory is %zu bytes short for '%s', which needs %zu: %zu of the budget of %zu are "
            "in use",
            bytes - left, name, bytes, usage->used_bytes, usage->budget_bytes);
    usage->used_bytes += bytes;
    usage->peak_bytes = ot_max(usage->peak_bytes, usage->used_bytes);
    return 0;
}

/* Errors: OT_E_BUDGET. The text tells how many bytes are missing. */
static int ledger_reserve(struct ot_device_ledger *ledger, size_t bytes, const char *name,
                          struct allocation **out) {
    struct allocation *allocation = *out = calloc(1, sizeof *allocation);
    if (!allocation)
        return ot_fail(OT_E_BUDGET, "no memory to record the allocation of '%s'", name);
    allocation->bytes = bytes;
    pthread_mutex_lock(&ledger->mutex);
    int rc = take(&ledger->usage, bytes, name);
    pthread_mutex_unlock(&ledger->mutex);
    if (rc < 0)
        free(allocation);
    return rc;
}

/* The allocation has this memory. NULL: there was none, and its bytes go back to the budget. */
static void ledger_settle(struct ot_device_ledger *ledger, struct allocation *allocation, void *memory) {
    pthread_mutex_lock(&ledger->mutex);
    if (memory) {
        allocation->memory = memory;
        allocation->next = ledger->allocations;
        ledger->allocations = allocation;
    } else {
        ledger->usage.used_bytes -= allocation->bytes;
        free(allocation);
    }
    pthread_mutex_unlock(&ledger->mutex);
}

/* Gives the bytes of an allocation back to the budget, and returns how many they are. */
static size_t ledger_remove(struct ot_device_ledger *ledger, const void *memory) {
    pthread_mutex_lock(&ledger->mutex);
    struct allocation **link = &ledger->allocations;
    while (*link && (*link)->memory != memory)
        link = &(*link)->next;
    struct allocation *allocation = *link;
    assert(allocation); /* otherwise the memory was freed before, or this device did not allocate it */
    size_t bytes = allocation->bytes;
    *link = allocation->next;
    ledger->usage.used_bytes -= bytes;
    pthread_mutex_unlock(&ledger->mutex);
    free(allocation);
    return bytes;
}

/* ---- memory ---- */

int ot_device_alloc(struct ot_device *device, size_t bytes, const char *name, void **out) {
    struct allocation *allocation;
    *out = NULL;
    if (bytes == 0)
        return 0;
    OT_TRY(ledger_reserve(device->ledger, bytes, name, &allocation));
    int rc = device->api->alloc(device, bytes, name, out);
    ledger_settle(device->ledger, allocation, *out);
    return rc;
}

void ot_device_free(struct ot_device *device, void *memory) {
    if (memory)
        device->api->free(device, memory, ledger_remove(device->ledger, memory));
}

static size_t pinned_bytes(size_t bytes) {
    return (bytes + PINNED_ALIGN - 1) / PINNED_ALIGN * PINNED_ALIGN;
}

int ot_device_alloc_pinned(struct ot_device *device, size_t bytes, const char *name, void **out) {
    size_t mapped = pinned_bytes(bytes);
    *out = NULL;
    if (bytes == 0)
        return 0;
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ot_fail_errno(OT_E_BUDGET, errno, "the machine has no %zu bytes of host memory left for '%s'",
                             bytes, name);
    if (mapped >= HUGE_PAGE)
        madvise(memory, mapped, MADV_HUGEPAGE); /* a failure costs speed only */
    int rc = ot_device_place(device, memory, mapped, name);
    if (rc == 0)
        rc = ot_device_pin(device, memory, mapped, bytes, name);
    if (rc < 0) {
        munmap(memory, mapped);
        return rc;
    }
    *out = memory;
    return 0;
}

void ot_device_free_pinned(struct ot_device *device, void *memory, size_t bytes) {
    if (!memory)
        return;
    ot_device_unpin(device, memory, pinned_bytes(bytes), bytes);
    munmap(memory, pinned_bytes(bytes));
}

int ot_device_place(struct ot_device *device, void *memory, size_t bytes, const char *name) {
    const struct ot_placement *placement = &device->placement;
    int rc = placement->memory ? placement->memory(placement->context, memory, bytes) : 0;
    return rc < 0 ? ot_fail_context(rc, "'%s'", name) : 0;
}

int ot_device_pin(struct ot_device *device, void *memory, size_t bytes, size_t own_bytes, const char *name) {
    struct ot_device_usage *usage = &device->ledger->usage;
    if (device->api->pin)
        OT_TRY(device->api->pin(device, memory, bytes, name));
    pthread_mutex_lock(&device->ledger->mutex);
    usage->pinned_bytes += own_bytes;
    usage->pinned_peak_bytes = ot_max(usage->pinned_peak_bytes, usage->pinned_bytes);
    pthread_mutex_unlock(&device->ledger->mutex);
    return 0;
}

void ot_device_unpin(struct ot_device *device, void *memory, size_t bytes, size_t own_bytes) {
    struct ot_device_usage *usage = &device->ledger->usage;
    if (device->api->unpin)
        device->api->unpin(device, memory, bytes);
    pthread_mutex_lock(&device->ledger->mutex);
    assert(usage->pinned_bytes >= own_bytes);
    usage->pinned_bytes -= own_bytes;
    pthread_mutex_unlock(&device->ledger->mutex);
}

void ot_device_usage(const struct ot_device *device, struct ot_device_usage *out) {
    pthread_mutex_lock(&device->ledger->mutex);
    *out = device->ledger->usage;
    pthread_mutex_unlock(&device->ledger->mutex);
}

void ot_device_forget_peaks(struct ot_device *device) {
    struct ot_device_usage *usage = &device->ledger->usage;
    pthread_mutex_lock(&device->ledger->mutex);
    usage->peak_bytes = usage->used_bytes;
    usage->pinned_peak_bytes = usage->pinned_bytes;
    pthread_mutex_unlock(&device->ledger->mutex);
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

void ot_lane_copy_rows(struct ot_lane *lane, const struct ot_copy_rows *copy) {
    lane->device->api->copy_rows(lane, copy);
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

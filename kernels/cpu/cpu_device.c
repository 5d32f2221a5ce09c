#include <assert.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/cpu_blas.h"
#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/cpu_state.h"
#include "src/base/error.h"

/* Bytes of fresh device memory: a NaN in fp32, fp16 and bf16, and -1 as a token. */
enum { POISON = 0xff };

enum { ALIGN = 256, PINNED_ALIGN = 4096, HUGE_PAGE = 2 << 20 };

static struct ot_cpu_device *cpu(const struct ot_device *device) {
    return (struct ot_cpu_device *)(uintptr_t)device;
}

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

/* ---- device memory ----
 *
 * Each allocation is a separate mapping. Behind its end is a page without access, so an op that runs over the
 * end faults at once. Freed memory is unmapped, so a later access faults too. */

struct ot_cpu_allocation {
    struct ot_cpu_allocation *next;
    void *memory;
    size_t bytes;
    void *mapping;
    size_t mapping_bytes;
};

/* Places fresh memory. It must not have been touched yet, because the first touch decides where the pages
 * come from. */
static int place(const struct ot_cpu_device *device, void *memory, size_t bytes, const char *name) {
    if (bytes >= HUGE_PAGE)
        madvise(memory, bytes, MADV_HUGEPAGE); /* a failure costs speed only */
    if (!device->placement.memory)
        return 0;
    int rc = device->placement.memory(device->placement.context, memory, bytes);
    return rc < 0 ? ot_fail_context(rc, "'%s'", name) : 0;
}

static int map_allocation(const struct ot_cpu_device *device, struct ot_cpu_allocation *allocation,
                          const char *name) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = allocation->bytes;
    size_t body = round_up(bytes, page);
    unsigned char *mapping =
        mmap(NULL, body + page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return ot_fail_errno(OT_E_BUDGET, errno, "the machine has no %zu bytes left for '%s'", bytes, name);
    if (mprotect(mapping, body, PROT_READ | PROT_WRITE) != 0) {
        int error = errno;
        munmap(mapping, body + page);
        return ot_fail_errno(OT_E_BUDGET, error, "the machine has no %zu bytes left for '%s'", bytes, name);
    }
    int rc = place(device, mapping, body, name);
    if (rc < 0) {
        munmap(mapping, body + page);
        return rc;
    }
    memset(mapping, POISON, body);
    allocation->mapping = mapping;
    allocation->mapping_bytes = body + page;
    allocation->memory = mapping + body - round_up(bytes, ALIGN);
    return 0;
}

/* Takes the bytes from the budget. OT_E_BUDGET: the text tells how many bytes are missing. */
static int reserve(struct ot_cpu_device *device, size_t bytes, const char *name) {
    struct ot_device_usage *usage = &device->usage;
    size_t left = usage->budget_bytes - usage->used_bytes;
    if (bytes > left)
        return ot_fail_cause(
            OT_E_BUDGET, OT_CAUSE_DEVICE_BUDGET,
            "device memory is %zu bytes short for '%s', which needs %zu: %zu of the budget of %zu are "
            "in use",
            bytes - left, name, bytes, usage->used_bytes, usage->budget_bytes);
    usage->used_bytes += bytes;
    if (usage->used_bytes > usage->peak_bytes)
        usage->peak_bytes = usage->used_bytes;
    return 0;
}

static int alloc_device(struct ot_device *device, size_t bytes, const char *name, void **out) {
    struct ot_cpu_device *self = cpu(device);
    *out = NULL;
    if (bytes == 0)
        return 0;
    pthread_mutex_lock(&self->mutex);
    int rc = reserve(self, bytes, name);
    pthread_mutex_unlock(&self->mutex);
    if (rc < 0)
        return rc;

    struct ot_cpu_allocation *allocation = calloc(1, sizeof *allocation);
    if (allocation) {
        allocation->bytes = bytes;
        rc = map_allocation(self, allocation, name);
    } else {
        rc = ot_fail(OT_E_BUDGET, "no memory to record the allocation of '%s'", name);
    }
    pthread_mutex_lock(&self->mutex);
    if (rc < 0) {
        self->usage.used_bytes -= bytes;
        free(allocation);
    } else {
        allocation->next = self->allocations;
        self->allocations = allocation;
        *out = allocation->memory;
    }
    pthread_mutex_unlock(&self->mutex);
    return rc;
}

static void free_device(struct ot_device *device, void *memory) {
    struct ot_cpu_device *self = cpu(device);
    pthread_mutex_lock(&self->mutex);
    struct ot_cpu_allocation **link = &self->allocations;
    while (*link && (*link)->memory != memory)
        link = &(*link)->next;
    struct ot_cpu_allocation *allocation = *link;
    assert(allocation); /* otherwise the memory was freed before, or this device did not allocate it */
    *link = allocation->next;
    self->usage.used_bytes -= allocation->bytes;
    pthread_mutex_unlock(&self->mutex);
    munmap(allocation->mapping, allocation->mapping_bytes);
    free(allocation);
}

/* ---- pinned memory: ordinary pages, because this device copies from any memory at the same speed ---- */

static int place_pinned(struct ot_device *device, void *memory, size_t bytes, const char *name) {
    return place(cpu(device), memory, bytes, name);
}

static int pin(struct ot_device *device, void *memory, size_t bytes, size_t own_bytes, const char *name) {
    struct ot_cpu_device *self = cpu(device);
    (void)memory, (void)bytes, (void)name;
    pthread_mutex_lock(&self->mutex);
    self->usage.pinned_bytes += own_bytes;
    if (self->usage.pinned_bytes > self->usage.pinned_peak_bytes)
        self->usage.pinned_peak_bytes = self->usage.pinned_bytes;
    pthread_mutex_unlock(&self->mutex);
    return 0;
}

static void unpin(struct ot_device *device, void *memory, size_t own_bytes) {
    struct ot_cpu_device *self = cpu(device);
    (void)memory;
    pthread_mutex_lock(&self->mutex);
    assert(self->usage.pinned_bytes >= own_bytes);
    self->usage.pinned_bytes -= own_bytes;
    pthread_mutex_unlock(&self->mutex);
}

static int alloc_pinned(struct ot_device *device, size_t bytes, const char *name, void **out) {
    *out = NULL;
    if (bytes == 0)
        return 0;
    size_t mapped = round_up(bytes, PINNED_ALIGN);
    void *memory = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return ot_fail_errno(OT_E_BUDGET, errno, "the machine has no %zu bytes of host memory left for '%s'",
                             bytes, name);
    int rc = place_pinned(device, memory, mapped, name);
    if (rc == 0)
        rc = pin(device, memory, mapped, bytes, name);
    if (rc < 0) {
        munmap(memory, mapped);
        return rc;
    }
    *out = memory;
    return 0;
}

static void free_pinned(struct ot_device *device, void *memory, size_t bytes) {
    unpin(device, memory, bytes);
    munmap(memory, round_up(bytes, PINNED_ALIGN));
}

static void get_usage(const struct ot_device *device, struct ot_device_usage *out) {
    struct ot_cpu_device *self = cpu(device);
    pthread_mutex_lock(&self->mutex);
    *out = self->usage;
    pthread_mutex_unlock(&self->mutex);
}

static void forget_peaks(struct ot_device *device) {
    struct ot_cpu_device *self = cpu(device);
    pthread_mutex_lock(&self->mutex);
    self->usage.peak_bytes = self->usage.used_bytes;
    self->usage.pinned_peak_bytes = self->usage.pinned_bytes;
    pthread_mutex_unlock(&self->mutex);
}

/* ---- the device ---- */

static int open_device(const struct ot_device_config *config, struct ot_device **out) {
    OT_TRY(ot_cpu_blas_open());
    struct ot_cpu_device *self = calloc(1, sizeof *self);
    if (!self)
        return ot_fail(OT_E_DEVICE, "no memory to open the cpu device");
    struct ot_pool_config pool = {.threads = config->threads,
                                  .name = "compute",
                                  .on_start = config->placement.thread,
                                  .arg = config->placement.context};
    int rc = ot_pool_open_with(&pool, &self->pool);
    if (rc < 0) {
        free(self);
        return rc;
    }
    struct ot_cpu_ops_build build = ot_cpu_ops_choose();
    self->base = (struct ot_device){&ot_cpu_device_api, build.ops};
    self->placement = config->placement;
    self->delay_seed = config->lane_delay_seed;
    size_t machine_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    self->usage.budget_bytes = config->memory_bytes ? config->memory_bytes : machine_bytes;
    snprintf(self->name, sizeof self->name, "cpu (%d %s, %s, %s)", config->threads,
             config->threads == 1 ? "thread" : "threads", build.name, ot_cpu_blas_name());
    snprintf(self->arithmetic, sizeof self->arithmetic, "%s kernels, %s", build.name,
             ot_cpu_blas_arithmetic());
    pthread_mutex_init(&self->mutex, NULL);
    *out = &self->base;
    return 0;
}

static void close_device(struct ot_device *device) {
    struct ot_cpu_device *self = cpu(device);
    assert(atomic_load(&self->n_lanes) == 0 && atomic_load(&self->n_events) == 0);
    assert(!self->allocations && self->usage.pinned_bytes == 0);
    ot_pool_close(self->pool);
    for (struct ot_cpu_failure *failure = self->failures, *next; failure; failure = next) {
        next = failure->next;
        free(failure);
    }
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

static const char *get_name(const struct ot_device *device) {
    return cpu(device)->name;
}

static const char *get_arithmetic(const struct ot_device *device) {
    return cpu(device)->arithmetic;
}

static bool is_present(void) {
    return true;
}

static bool has_dtype(const struct ot_device *device, enum ot_dtype dtype) {
    (void)device, (void)dtype;
    return true;
}

const struct ot_device_api ot_cpu_device_api = {
    .is_present = is_present,
    .open = open_device,
    .close = close_device,
    .name = get_name,
    .arithmetic = get_arithmetic,
    .has_dtype = has_dtype,
    .alloc = alloc_device,
    .free = free_device,
    .alloc_pinned = alloc_pinned,
    .free_pinned = free_pinned,
    .place = place_pinned,
    .pin = pin,
    .unpin = unpin,
    .usage = get_usage,
    .forget_peaks = forget_peaks,
    .lane_open = ot_cpu_lane_open,
    .lane_close = ot_cpu_lane_close,
    .copy = ot_cpu_lane_copy,
    .fill = ot_cpu_lane_fill,
    .notify = ot_cpu_lane_notify,
    .call = ot_cpu_lane_call,
    .lane_error = ot_cpu_lane_error,
    .lane_sync = ot_cpu_lane_sync,
    .event_create = ot_cpu_event_create,
    .event_destroy = ot_cpu_event_destroy,
    .record = ot_cpu_lane_record,
    .wait = ot_cpu_lane_wait,
    .event_sync = ot_cpu_event_sync,
    .event_create_timed = ot_cpu_event_create, /* every event of this device stores its time */
    .event_seconds = ot_cpu_event_seconds,
};

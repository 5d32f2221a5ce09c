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

enum { ALIGN = 256, HUGE_PAGE = 2 << 20 };

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

/* The bytes of a mapping that can be accessed; the page behind them cannot. */
static size_t body_bytes(size_t bytes) {
    return round_up(bytes, (size_t)sysconf(_SC_PAGESIZE));
}

static size_t mapping_bytes(size_t bytes) {
    return body_bytes(bytes) + (size_t)sysconf(_SC_PAGESIZE);
}

static int alloc_device(struct ot_device *device, size_t bytes, const char *name, void **out) {
    size_t body = body_bytes(bytes), mapped = mapping_bytes(bytes);
    unsigned char *mapping =
        mmap(NULL, mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (mapping == MAP_FAILED)
        return ot_fail_errno(OT_E_BUDGET, errno, "the machine has no %zu bytes left for '%s'", bytes, name);
    if (mprotect(mapping, body, PROT_READ | PROT_WRITE) != 0) {
        int error = errno;
        munmap(mapping, mapped);
        return ot_fail_errno(OT_E_BUDGET, error, "the machine has no %zu bytes left for '%s'", bytes, name);
    }
    if (body >= HUGE_PAGE)
        madvise(mapping, body, MADV_HUGEPAGE); /* a failure costs speed only */
    /* before the first touch, which decides where the pages come from */
    int rc = ot_device_place(device, mapping, body, name);
    if (rc < 0) {
        munmap(mapping, mapped);
        return rc;
    }
    memset(mapping, POISON, body);
    *out = mapping + body - round_up(bytes, ALIGN);
    return 0;
}

static void free_device(struct ot_device *device, void *memory, size_t bytes) {
    (void)device;
    munmap((char *)memory + round_up(bytes, ALIGN) - body_bytes(bytes), mapping_bytes(bytes));
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
    size_t machine_bytes = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    struct ot_device_usage usage = {.budget_bytes =
                                        config->memory_bytes ? config->memory_bytes : machine_bytes};
    struct ot_cpu_ops_build build = ot_cpu_ops_choose();
    int rc = ot_device_begin(&self->base, &ot_cpu_device_api, build.ops, &config->placement, &usage);
    if (rc == 0 && (rc = ot_pool_open_with(&pool, &self->pool)) < 0)
        ot_device_end(&self->base);
    if (rc < 0) {
        free(self);
        return rc;
    }
    self->delay_seed = config->lane_delay_seed;
    snprintf(self->name, sizeof self->name, "cpu (%d %s, %s, %s)", config->threads,
             config->threads == 1 ? "thread" : "threads", build.name, ot_cpu_blas_name());
    snprintf(self->arithmetic, sizeof self->arithmetic, "%s kernels, %s", build.name,
             ot_cpu_blas_arithmetic());

    *out = &self->base;
    return 0;
}

static void close_device(struct ot_device *device) {
    struct ot_cpu_device *self = cpu(device);
    assert(atomic_load(&self->n_lanes) == 0 && atomic_load(&self->n_events) == 0);
    ot_pool_close(self->pool);
    ot_device_end(device);
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

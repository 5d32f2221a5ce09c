/* The cuda device: its memory, and its table of functions for device.h. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/cuda_guard.h"
#include "kernels/cuda/cuda_state.h"
#include "src/base/cache_file.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

enum { MIB = 1 << 20, DEFAULT_SCRATCH = 64 * MIB };

static double mib(size_t bytes) {
    return (double)bytes / MIB;
}

static double gib(size_t bytes) {
    return mib(bytes) / 1024;
}

/* ---- device memory ---- */

static int alloc_device(struct ot_device *base, size_t bytes, const char *name, void **out) {
    ot_cuda_enter(ot_cuda_device_of(base));
    cudaError_t code = cudaMalloc(out, bytes);
    if (code == cudaSuccess)
        return 0;
    *out = NULL;
    if (code != cudaErrorMemoryAllocation)
        return ot_cuda_check(code, "allocate %.1f MiB for '%s'", mib(bytes), name);
    (void)cudaGetLastError();
    size_t free_bytes = 0, total_bytes = 0;
    (void)cudaMemGetInfo(&free_bytes, &total_bytes); /* both stay zero if the call fails */
    return ot_fail_cause(
        OT_E_BUDGET, OT_CAUSE_DEVICE_MEMORY,
        "the GPU has no %.1f MiB in one piece left for '%s' (%.1f of %.1f MiB are free, and other "
        "programs may use it too)",
        mib(bytes), name, mib(free_bytes), mib(total_bytes));
}

static void free_device(struct ot_device *base, void *memory, size_t bytes) {
    (void)bytes;
    ot_cuda_enter(ot_cuda_device_of(base));
    cudaFree(memory);
}

/* ---- pinned memory ----
 *
 * Pinned memory is a registered anonymous mapping, not memory of cudaHostAlloc. Such a mapping can have huge
 * pages, can be bound to the memory node beside the GPU, and can be registered a second time with
 * io_uring.
 *
 * CUDA gets the mapping in one registration. If CUDA refuses that, it gets one registration for each piece of
 * PIN_PIECE. The pieces end at multiples of PIN_PIECE, where ot_cuda_lane_copy cuts every copy too: CUDA
 * refuses a copy across two registrations ("invalid argument", seen on an H100). */
#define PIN_PIECE ((size_t)1 << 30)
_Static_assert(PIN_PIECE % OT_CUDA_COPY_PIECE == 0, "no copy goes across two pieces");

/* Pinning is logged if it takes longer than this. */
#define LONG_SECONDS 1.0

/* Bytes from `at` to the end of its piece, at most `left`. */
static size_t piece_at(const char *at, size_t left) {
    return ot_min(PIN_PIECE - (uintptr_t)at % PIN_PIECE, left);
}

static void unpin(struct ot_device *base, void *memory, size_t bytes) {
    size_t piece;
    ot_cuda_enter(ot_cuda_device_of(base));
    for (size_t at = 0; at < bytes; at += piece) {
        piece = piece_at((char *)memory + at, bytes - at);
        if (cudaHostUnregister((char *)memory + at) != cudaSuccess)
            break; /* the registration that began at `memory` was the only one */
    }
    (void)cudaGetLastError();
}

/* *pinned: the bytes that CUDA took. After a failure none of them is registered any more. */
static cudaError_t pin_pieces(struct ot_device *base, char *memory, size_t bytes, size_t *pinned) {
    size_t piece;
    for (*pinned = 0; *pinned < bytes; *pinned += piece) {
        piece = piece_at(memory + *pinned, bytes - *pinned);
        cudaError_t code = cudaHostRegister(memory + *pinned, piece, cudaHostRegisterPortable);
        if (code != cudaSuccess) {
            unpin(base, memory, *pinned);
            return code;
        }
    }
    return cudaSuccess;
}

static int cannot_pin(cudaError_t code, size_t bytes, size_t pinned, const char *name) {
    const char *text = code == cudaErrorMemoryAllocation ? "out of memory" : ot_cuda_error_text(code);
    struct rlimit limit;
    char limit_text[64] = "", pinned_text[64] = "";
    if (pinned > 0)
        snprintf(pinned_text, sizeof pinned_text, "; it pins %.1f MiB of them", mib(pinned));
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
        snprintf(limit_text, sizeof limit_text, " (locked memory is limited to %.1f MiB: ulimit -l)",
                 mib((size_t)limit.rlim_cur));
    else if (access("/dev/dxg", F_OK) == 0) /* the device file of WSL2 */
        snprintf(limit_text, sizeof limit_text, " (WSL2 pins a part of memory alone)");
    return ot_fail_cause(OT_E_BUDGET, OT_CAUSE_PINNED_MEMORY,
                         "CUDA: cannot pin %.1f MiB of host memory for '%s': %s%s%s", mib(bytes), name, text,
                         pinned_text, limit_text);
}

/* The pages are resident before: cudaHostRegister would make them so on one thread only. */
static int pin(struct ot_device *base, void *memory, size_t bytes, const char *name) {
    size_t pinned = 0;
    ot_cuda_enter(ot_cuda_device_of(base));
    double began = ot_clock_seconds();
    cudaError_t code = cudaHostRegister(memory, bytes, cudaHostRegisterPortable);
    bool whole = code == cudaSuccess;
    if (!whole && bytes > PIN_PIECE)
        code = pin_pieces(base, memory, bytes, &pinned);
    (void)cudaGetLastError();
    if (code != cudaSuccess)
        return cannot_pin(code, bytes, pinned, name);
    double seconds = ot_clock_seconds() - began;
    if (seconds > LONG_SECONDS || !whole)
        ot_log(OT_LOG_INFO, "memory  %.1f GiB pinned in %.1f s, %.1f GB/s%s", gib(bytes), seconds,
               (double)bytes / seconds / 1e9, whole ? "" : ", in pieces of 1 GiB");
    return 0;
}

/* ---- the device ---- */

/* Memory that the default budget leaves free: for kernels that the driver loads at their first use, and for
 * the display. */
static size_t spare_bytes(const struct ot_cuda_gpu *gpu) {
    size_t share = gpu->total_bytes / 32, least = gpu->has_display ? 1024u * MIB : 256u * MIB;
    return ot_max(ot_min(share, 1024u * MIB), least);
}

/* Accepts a given budget even if less memory is free now, because other programs come and go. A budget larger
 * than the whole GPU means all of it. */
static size_t choose_given(const struct ot_cuda_gpu *gpu, size_t given, size_t most) {
    if (given > gpu->total_bytes)
        return most;
    if (given > gpu->free_bytes)
        ot_log(
            OT_LOG_WARN,
            "the budget is %.1f GiB, but only %.1f of the %.1f GiB of %s are free: the run fails if it needs "
            "more memory than the other programs leave",
            gib(given), gib(gpu->free_bytes), gib(gpu->total_bytes), gpu->name);
    return given;
}

static int choose_budget(const struct ot_cuda_gpu *gpu, size_t given, size_t scratch, size_t *out) {
    size_t spare = spare_bytes(gpu), most = gpu->free_bytes > spare ? gpu->free_bytes - spare : 0;
    *out = given ? choose_given(gpu, given, most) : most;
    if (*out <= scratch)
        return ot_fail(
            OT_E_BUDGET,
            "%.1f MiB of %s are too little: the kernels' workspace alone takes %.1f MiB (%.1f of %.1f "
            "MiB are free)",
            mib(*out), gpu->name, mib(scratch), mib(gpu->free_bytes), mib(gpu->total_bytes));
    return 0;
}

static void close_device(struct ot_device *base) {
    struct ot_cuda_device *self = ot_cuda_device_of(base);
    ot_cuda_enter(self);
    ot_cuda_guard_close(self->guard);
    ot_cuda_gemm_close(self->gemm);
    ot_cuda_clock_close(&self->clock);
    assert(atomic_load(&self->n_lanes) == 0 && atomic_load(&self->n_events) == 0);
    ot_device_free(base, self->on.scratch);
    ot_device_end(base);
    if (self->begun)
        cudaFreeHost((void *)(uintptr_t)self->begun);

    pthread_mutex_destroy(&self->mutex);
    free(self);
}

/* Opens cuBLASLt and the guard. */
static int open_gemm(struct ot_cuda_device *self, const struct ot_cuda_gpu *gpu, const char *blas) {
    char *folder = NULL;
    OT_TRY(ot_cache_folder(&folder));
    struct ot_cuda_gemm_config config = {.library = blas,
                                         .gpu = gpu->name,
                                         .sm_count = gpu->sm_count,
                                         .arch = gpu->arch,
                                         .driver_version = gpu->driver,
                                         .cache_folder = folder};
    int rc = ot_cuda_gemm_open(&config, &self->gemm);
    if (rc >= 0) {
        struct ot_cuda_guard_config guard = {.gpu = gpu->name,
                                             .library = ot_cuda_gemm_name(self->gemm),
                                             .driver_version = gpu->driver,
                                             .cache_folder = folder};
        rc = ot_cuda_guard_open(&guard, &self->guard);
    }
    free(folder);
    return rc;
}

static int open_parts(struct ot_cuda_device *self, const struct ot_cuda_gpu *gpu, size_t scratch,
                      const char *blas) {
    void *begun = NULL;
    OT_TRY(
        ot_cuda_check(cudaHostAlloc(&begun, sizeof *self->begun, cudaHostAllocMapped | cudaHostAllocPortable),
                      "pin host memory"));
    self->begun = begun;
    *self->begun = 0;
    OT_TRY(ot_device_alloc(&self->base, scratch, "the kernels' workspace", &self->on.scratch));
    self->on.scratch_bytes = scratch;
    OT_TRY(ot_cuda_clock_open(&self->clock));
    return open_gemm(self, gpu, blas);
}

/* Both texts name the kernels that the environment forces: the arithmetic because they change bits, the name
 * because rates are stored under it. The arithmetic omits the GPU's index: the heuristic of cuBLASLt depends
 * on the GPU's model only. */
static void describe(struct ot_cuda_device *self, const struct ot_cuda_gpu *gpu) {
    const char *model = strchr(gpu->name, '(');
    const char *forced = ot_cuda_guard_forced(self->guard);
    snprintf(self->arithmetic, sizeof self->arithmetic, "%s %d SMs, %s%s%s", model ? model : gpu->name,
             gpu->sm_count, forced, *forced ? ", " : "", ot_cuda_gemm_name(self->gemm));
    snprintf(self->name, sizeof self->name, "cuda: %s, %d SMs, driver for CUDA %d.%d, %s%s%s", gpu->name,
             gpu->sm_count, gpu->driver / 1000, gpu->driver % 1000 / 10, forced, *forced ? ", " : "",
             ot_cuda_gemm_name(self->gemm));
}

static int open_device(const struct ot_device_config *config, struct ot_device **out) {
    struct ot_cuda_gpu gpu;
    size_t budget = 0, scratch = config->scratch_bytes ? config->scratch_bytes : DEFAULT_SCRATCH;
    assert(scratch >= OT_CUDA_GEMM_SCRATCH_BYTES + OT_CUDA_GUARD_BYTES);
    OT_TRY(ot_cuda_find_gpu(config->index, &gpu));
    OT_TRY(choose_budget(&gpu, config->memory_bytes, scratch, &budget));
    struct ot_cuda_device *self = calloc(1, sizeof *self);
    if (!self)
        return ot_fail(OT_E_DEVICE, "no memory to open the cuda device");
    struct ot_device_usage usage = {.budget_bytes = budget,
                                    .scratch_bytes = scratch,
                                    .total_bytes = gpu.total_bytes,
                                    .taken_bytes = gpu.total_bytes - gpu.free_bytes};
    int rc = ot_device_begin(&self->base, &ot_cuda_device_api, &ot_cuda_ops, &config->placement, &usage);
    if (rc < 0) {
        free(self);
        return rc;
    }
    self->index = gpu.index;
    self->delay_seed = config->lane_delay_seed;
    self->on =
        (struct ot_cuda_stream){.sm_count = gpu.sm_count, .shared_bytes = gpu.shared_bytes, .arch = gpu.arch};

    pthread_mutex_init(&self->mutex, NULL);
    rc = open_parts(self, &gpu, scratch, config->blas);
    if (rc < 0) {
        close_device(&self->base);
        return rc;
    }
    describe(self, &gpu);
    *out = &self->base;
    return 0;
}

static const char *get_name(const struct ot_device *base) {
    return ot_cuda_device_of(base)->name;
}

static const char *get_arithmetic(const struct ot_device *base) {
    return ot_cuda_device_of(base)->arithmetic;
}

/* bf16 needs compute capability 8.0. */
static bool has_dtype(const struct ot_device *base, enum ot_dtype dtype) {
    return dtype != OT_BF16 || ot_cuda_device_of(base)->on.arch >= 80;
}

/* Runs on the stream of the ops, which owns the scratch. Without such a stream, no op has met a shape yet. */
static int tune(struct ot_device *base, void *memory, size_t bytes, double seconds,
                struct ot_device_tuning *out) {
    struct ot_cuda_device *self = ot_cuda_device_of(base);
    struct ot_cuda_lane *lane = atomic_load(&self->ops_lane);
    if (!lane)
        return 0;
    ot_cuda_enter(self);
    OT_TRY(ot_cuda_lane_sync(&lane->base)); /* otherwise the tuning would report an earlier failure */
    int rc = ot_cuda_gemm_tune(self->gemm, &self->on, memory, bytes, seconds, out);
    /* clears the error of a proposal that did not start; a fault cannot be cleared */
    (void)cudaGetLastError();
    return rc;
}

/* Tiles of matrix products have 64, 128 or 256 rows, so up to a multiple of 128 tokens padding costs next to
 * nothing. */
enum { TOKEN_MULTIPLE = 128 };

const struct ot_device_api ot_cuda_device_api = {
    .is_present = ot_cuda_is_present,
    .bus_id = ot_cuda_bus_id,
    .open = open_device,
    .close = close_device,
    .name = get_name,
    .arithmetic = get_arithmetic,
    .has_dtype = has_dtype,
    .token_multiple = TOKEN_MULTIPLE,
    .slows_under_load = true,
    .alloc = alloc_device,
    .free = free_device,
    .pin = pin,
    .unpin = unpin,
    .tune = tune,
    .measure_peer = ot_cuda_measure_peer,
    .lane_open = ot_cuda_lane_open,
    .lane_close = ot_cuda_lane_close,
    .mark = ot_cuda_lane_mark,
    .copy = ot_cuda_lane_copy,
    .copy_rows = ot_cuda_lane_copy_rows,
    .fill = ot_cuda_lane_fill,
    .notify = ot_cuda_lane_notify,
    .call = ot_cuda_lane_call,
    .stream = ot_cuda_lane_stream,
    .lane_error = ot_cuda_lane_error,
    .lane_sync = ot_cuda_lane_sync,
    .event_create = ot_cuda_event_create,
    .event_destroy = ot_cuda_event_destroy,
    .record = ot_cuda_lane_record,
    .wait = ot_cuda_lane_wait,
    .event_sync = ot_cuda_event_sync,
    .event_create_timed = ot_cuda_event_create_timed,
    .event_seconds = ot_cuda_event_seconds,
};

/* ---- copies to another GPU ---- */

/* The rate of copies to another GPU. The process takes memory there only for the measurement. Then it resets
 * the other GPU, which frees the context that the first call made there (hundreds of MiB). */

/* Copies that are enqueued at a time, so that the waits between them do not count. */
enum { COPIES = 8 };

struct peer {
    int from, to; /* indices of the GPUs */
    const void *source;
    void *there;
    size_t bytes;
    cudaStream_t stream;
};

static int copy_some(const struct peer *p, int copies) {
    for (int i = 0; i < copies; i++)
        OT_TRY(ot_cuda_check(cudaMemcpyPeerAsync(p->there, p->to, p->source, p->from, p->bytes, p->stream),
                             "copy to GPU %d", p->to));
    return ot_cuda_check(cudaStreamSynchronize(p->stream), "copy to GPU %d", p->to);
}

static int time_copies(const struct peer *p, double seconds, double *rate) {
    double since, passed = 0, copied = 0;
    OT_TRY(copy_some(p, 1)); /* the first copy sets up the way */
    since = ot_clock_seconds();
    do {
        OT_TRY(copy_some(p, COPIES));
        copied += COPIES * (double)p->bytes;
        passed = ot_clock_seconds() - since;
    } while (passed < seconds);
    *rate = copied / passed;
    return 0;
}

/* Without this, copies go through host memory even if the GPUs could reach each other. */
static int enable(const struct peer *p) {
    cudaError_t code = cudaDeviceEnablePeerAccess(p->to, 0);
    if (code != cudaErrorPeerAccessAlreadyEnabled)
        return ot_cuda_check(code, "let GPU %d reach GPU %d", p->from, p->to);
    (void)cudaGetLastError();
    return 0;
}

static int alloc_there(struct peer *p) {
    OT_TRY(ot_cuda_check(cudaSetDevice(p->to), "start GPU %d", p->to));
    cudaError_t code = cudaMalloc(&p->there, p->bytes);
    if (code != cudaErrorMemoryAllocation)
        return ot_cuda_check(code, "allocate memory on GPU %d", p->to);
    (void)cudaGetLastError();
    return ot_fail(OT_E_BUDGET, "GPU %d has no %zu bytes left for a measurement", p->to, p->bytes);
}

static int measure(struct peer *p, double seconds, struct ot_device_peer *out) {
    int can = 0;
    OT_TRY(ot_cuda_check(cudaDeviceCanAccessPeer(&can, p->from, p->to), "ask whether GPU %d can reach GPU %d",
                         p->from, p->to));
    OT_TRY(alloc_there(p));
    OT_TRY(ot_cuda_check(cudaSetDevice(p->from), "start GPU %d", p->from));
    if (can)
        OT_TRY(enable(p));
    OT_TRY(ot_cuda_check(cudaStreamCreateWithFlags(&p->stream, cudaStreamNonBlocking), "make a stream"));
    out->has_access = can != 0;
    return time_copies(p, seconds, &out->rate);
}

int ot_cuda_measure_peer(struct ot_device *device, const char *bus_id, const void *memory, size_t bytes,
                         double seconds, struct ot_device_peer *out) {
    const struct ot_cuda_device *self = ot_cuda_device_of(device);
    struct peer p = {.from = self->index, .source = memory, .bytes = bytes};
    if (cudaDeviceGetByPCIBusId(&p.to, bus_id) != cudaSuccess) {
        (void)cudaGetLastError();
        return ot_fail(OT_E_USAGE, "the GPU at %s is not visible to this process", bus_id);
    }
    ot_cuda_enter(self);
    int rc = measure(&p, seconds, out);
    if (p.stream)
        cudaStreamDestroy(p.stream);
    if (out->has_access)
        cudaDeviceDisablePeerAccess(p.to);
    if (p.there)
        cudaFree(p.there);
    if (cudaSetDevice(p.to) == cudaSuccess)
        cudaDeviceReset();
    cudaSetDevice(p.from);
    (void)cudaGetLastError(); /* an error of the cleanup; rc has the failure of the measurement */
    return rc;
}

/* ---- the time of an event ---- */

/* The time of an event on the host's clock: see struct ot_cuda_clock in cuda_state.h. */

/* Below this time, a float of milliseconds has steps of a quarter of a microsecond. */
#define ANCHOR_SECONDS 4.0

/* The clock's events let a thread that waits for them sleep. The end of the first one is read off the host's
 * clock, so its wait polls instead. */
static int poll_for(cudaEvent_t event) {
    cudaError_t code = cudaEventQuery(event);
    while (code == cudaErrorNotReady)
        code = cudaEventQuery(event);
    (void)cudaGetLastError(); /* clears cudaErrorNotReady, which some versions keep as the last error */
    return ot_cuda_check(code, "read the GPU's clock");
}

int ot_cuda_clock_open(struct ot_cuda_clock *clock) {
    OT_TRY(ot_cuda_check(cudaStreamCreateWithPriority(&clock->stream, cudaStreamNonBlocking, 0),
                         "make a stream for the clock"));
    OT_TRY(ot_cuda_check(cudaEventCreateWithFlags(&clock->anchor, cudaEventBlockingSync), "make an event"));
    OT_TRY(ot_cuda_check(cudaEventCreateWithFlags(&clock->next, cudaEventBlockingSync), "make an event"));
    OT_TRY(ot_cuda_check(cudaEventRecord(clock->anchor, clock->stream), "read the GPU's clock"));
    OT_TRY(poll_for(clock->anchor));
    clock->anchor_seconds = ot_clock_seconds();
    return 0;
}

void ot_cuda_clock_close(struct ot_cuda_clock *clock) {
    if (clock->next)
        cudaEventDestroy(clock->next);
    if (clock->anchor)
        cudaEventDestroy(clock->anchor);
    if (clock->stream)
        cudaStreamDestroy(clock->stream);
}

/* Waits some microseconds, because the clock's stream is empty. */
static int move_anchor(struct ot_cuda_clock *clock) {
    float ms;
    OT_TRY(ot_cuda_check(cudaEventRecord(clock->next, clock->stream), "read the GPU's clock"));
    OT_TRY(ot_cuda_check(cudaEventSynchronize(clock->next), "read the GPU's clock"));
    OT_TRY(ot_cuda_check(cudaEventElapsedTime(&ms, clock->anchor, clock->next), "read the GPU's clock"));
    cudaEvent_t old = clock->anchor;
    clock->anchor = clock->next;
    clock->next = old;
    clock->anchor_seconds += 1e-3 * (double)ms;
    return 0;
}

int ot_cuda_event_seconds(struct ot_event *base, double *out) {
    struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    struct ot_cuda_event *event = (struct ot_cuda_event *)base;
    float ms;
    OT_TRY(ot_cuda_event_sync(base));
    pthread_mutex_lock(&device->mutex);
    int rc =
        ot_cuda_check(cudaEventElapsedTime(&ms, device->clock.anchor, event->event), "read an event's time");
    *out = device->clock.anchor_seconds + 1e-3 * (double)ms;
    if (rc >= 0 && 1e-3 * (double)ms > ANCHOR_SECONDS)
        rc = move_anchor(&device->clock);
    pthread_mutex_unlock(&device->mutex);
    return rc;
}

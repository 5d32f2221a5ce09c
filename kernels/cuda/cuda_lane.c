/* Lanes and events: cuda_state.h explains their design. */
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_state.h"
#include "src/base/minmax.h"
#include "src/base/random.h"
#include "src/base/thread.h"

/* Profilers show a lane's marks as ranges of the enqueuing thread. Without a profiler the calls do
 * nothing. */
#if !defined(OT_EMU) && __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#else
#define nvtxRangePushA(text) ((void)(text))
#define nvtxRangePop()       ((void)0)
#endif

enum { LONGEST_DELAY_NS = 200000 };

static struct ot_cuda_lane *cuda(const struct ot_lane *lane) {
    return (struct ot_cuda_lane *)(uintptr_t)lane;
}

void ot_cuda_enter(const struct ot_cuda_device *device) {
    static _Thread_local int current = -1;
    if (current != device->index && cudaSetDevice(device->index) == cudaSuccess)
        current = device->index;
}

static struct ot_cuda_device *enter(const struct ot_lane *lane) {
    struct ot_cuda_device *device = ot_cuda_device_of(lane->device);
    ot_cuda_enter(device);
    return device;
}

/* ---- failures ---- */

/* Describes an error code that a call for this lane returned (lane NULL: for an event). The text does not go
 * through the calling thread's error record: closing a broken device must not overwrite the error that the
 * caller is about to report. The caller holds the device's mutex. */
static void describe(struct ot_cuda_device *device, const struct ot_cuda_lane *lane, cudaError_t code,
                     struct ot_error *out) {
    uint32_t number = lane ? lane->mark : 0;
    const struct ot_cuda_lane *ops_lane = atomic_load(&device->ops_lane);
    if (ot_cuda_error_is_fault(code) && ops_lane) {
        lane = ops_lane;
        number = *device->begun;
    }
    const char *text = ot_cuda_error_text(code), *hint = ot_cuda_error_hint(code);
    out->code = OT_E_DEVICE;
    if (!lane)
        snprintf(out->text, sizeof out->text, "CUDA: %s%s", text, hint);
    else if (number == 0)
        snprintf(out->text, sizeof out->text, "CUDA: %s on the %s lane%s", text, lane->name, hint);
    else
        snprintf(out->text, sizeof out->text, "CUDA: %s in '%s' on the %s lane%s", text,
                 lane->marks[number % OT_CUDA_MARKS], lane->name, hint);
}

void ot_cuda_lane_fail(struct ot_cuda_lane *lane, int rc) {
    struct ot_cuda_device *device = ot_cuda_device_of(lane->base.device);
    struct ot_error error;
    ot_error_save(&error, rc);
    pthread_mutex_lock(&device->mutex);
    if (!lane->error)
        lane->error = ot_device_keep_error(&device->base, &error);
    pthread_mutex_unlock(&device->mutex);
}

void ot_cuda_lane_check(struct ot_cuda_lane *lane, cudaError_t code) {
    if (code == cudaSuccess)
        return;
    struct ot_cuda_device *device = ot_cuda_device_of(lane->base.device);
    struct ot_error error;
    (void)cudaGetLastError(); /* otherwise a later launch on this thread would find it again */
    pthread_mutex_lock(&device->mutex);
    describe(device, lane, code, &error);
    if (!lane->error)
        lane->error = ot_device_keep_error(&device->base, &error);
    pthread_mutex_unlock(&device->mutex);
}

bool ot_cuda_lane_is_sound(const struct ot_cuda_lane *lane) {
    return !atomic_load_explicit(&lane->error, memory_order_acquire);
}

static void wait_until_idle(struct ot_cuda_lane *lane) {
    cudaError_t code = cudaEventRecord(lane->idle, lane->stream);
    ot_cuda_lane_check(lane, code);
    if (code == cudaSuccess)
        ot_cuda_lane_check(lane, cudaEventSynchronize(lane->idle));
    ot_cuda_notifier_drain(lane->notifier);
}

/* ---- opening and closing ---- */

/* Creates the events that host threads wait for. Those threads sleep, because the optimizer needs the
 * cores. */
static int create_waits(struct ot_cuda_lane *lane) {
    cudaEvent_t *const events[] = {&lane->idle, &lane->rounds[0], &lane->rounds[1], &lane->rounds[2]};
    _Static_assert(sizeof events / sizeof *events == 1 + OT_CUDA_ROUNDS, "every round has its event");
    for (size_t i = 0; i < sizeof events / sizeof *events; i++)
        OT_TRY(
            ot_cuda_check(cudaEventCreateWithFlags(events[i], cudaEventDisableTiming | cudaEventBlockingSync),
                          "make an event of the lane '%s'", lane->name));
    return 0;
}

static void destroy_waits(struct ot_cuda_lane *lane) {
    if (lane->idle)
        cudaEventDestroy(lane->idle);
    for (int i = 0; i < OT_CUDA_ROUNDS; i++)
        if (lane->rounds[i])
            cudaEventDestroy(lane->rounds[i]);
}

int ot_cuda_lane_open(struct ot_device *base, const char *name, struct ot_lane **out) {
    struct ot_cuda_device *device = ot_cuda_device_of(base);
    int rc;
    struct ot_cuda_lane *lane = calloc(1, sizeof *lane);
    *out = NULL;
    if (!lane)
        return ot_fail(OT_E_DEVICE, "no memory for the lane '%s'", name);
    ot_cuda_enter(device);
    lane->base.device = base;
    snprintf(lane->name, sizeof lane->name, "%s", name);
    lane->delay_stream = ot_random_stream(OT_RANDOM_TEST, 0, atomic_fetch_add(&device->lane_numbers, 1));
    OT_TRY_GOTO(ot_cuda_check(cudaStreamCreateWithFlags(&lane->stream, cudaStreamNonBlocking),
                              "open the lane '%s'", name),
                rc, out);
    OT_TRY_GOTO(create_waits(lane), rc, out);
    OT_TRY_GOTO(ot_cuda_notifier_open(lane, &lane->notifier), rc, out);
    atomic_fetch_add(&device->n_lanes, 1);
    *out = &lane->base;
    return 0;
out:
    destroy_waits(lane);
    if (lane->stream)
        cudaStreamDestroy(lane->stream);
    free(lane);
    return rc;
}

void ot_cuda_lane_close(struct ot_lane *base) {
    struct ot_cuda_lane *lane = cuda(base);
    struct ot_cuda_device *device = enter(base);
    wait_until_idle(lane); /* the result is ignored: callers that want a failure ask before */
    ot_cuda_notifier_close(lane->notifier);
    if (lane->in_range)
        nvtxRangePop();
    pthread_mutex_lock(&device->mutex);
    if (atomic_load(&device->ops_lane) == lane)
        atomic_store(&device->ops_lane, NULL);
    pthread_mutex_unlock(&device->mutex);
    destroy_waits(lane);
    cudaStreamDestroy(lane->stream);
    atomic_fetch_sub(&device->n_lanes, 1);
    free(lane);
}

/* ---- marks ---- */

void ot_cuda_lane_mark(struct ot_lane *base, const char *what) {
    struct ot_cuda_lane *lane = cuda(base);
    uint32_t number = lane->mark + 1;
    snprintf(lane->marks[number % OT_CUDA_MARKS], OT_CUDA_MARK_BYTES, "%s", what);
    lane->mark = number;
    if (lane->in_range)
        nvtxRangePop();
    nvtxRangePushA(lane->marks[number % OT_CUDA_MARKS]);
    lane->in_range = true;
}

/* ---- commands ---- */

static void sleep_on_host(void *ns) {
    nanosleep(&(struct timespec){.tv_nsec = (long)(intptr_t)ns}, NULL);
}

/* At the end of a round of commands: waits for the round OT_CUDA_ROUNDS earlier. A wait for an event that was
 * never recorded ends at once. */
static void keep_pace(struct ot_cuda_lane *lane) {
    if (++lane->commands % OT_CUDA_ROUND != 0)
        return;
    cudaEvent_t round = lane->rounds[lane->commands / OT_CUDA_ROUND % OT_CUDA_ROUNDS];
    ot_cuda_lane_check(lane, cudaEventSynchronize(round));
    ot_cuda_lane_check(lane, cudaEventRecord(round, lane->stream));
}

/* Comes before each command. False: the lane has failed and must do no more work. */
static bool begin(struct ot_cuda_lane *lane) {
    const struct ot_cuda_device *device = enter(&lane->base);
    keep_pace(lane);
    if (device->delay_seed) {
        uint64_t ns =
            ot_random_below(device->delay_seed, lane->delay_stream, lane->delays++, LONGEST_DELAY_NS + 1);
        ot_cuda_lane_check(lane, cudaLaunchHostFunc(lane->stream, sleep_on_host, (void *)(uintptr_t)ns));
    }
    return ot_cuda_lane_is_sound(lane);
}

bool ot_cuda_lane_begin_op(struct ot_cuda_lane *lane) {
    struct ot_cuda_device *device = ot_cuda_device_of(lane->base.device);
    if (!begin(lane))
        return false;
    struct ot_cuda_lane *claimed = NULL;
    if (atomic_compare_exchange_strong(&device->ops_lane, &claimed, lane))
        device->on.stream = lane->stream;
    else
        assert(claimed == lane); /* device.h: all ops of a device run on one lane */
    if (lane->announced != lane->mark) {
        lane->announced = lane->mark;
        ot_cuda_lane_check(lane,
                           ot_cuda_mark((uint32_t *)(uintptr_t)device->begun, lane->mark, lane->stream));
    }
    return ot_cuda_lane_is_sound(lane);
}

void ot_cuda_lane_copy(struct ot_lane *base, enum ot_copy_kind kind, void *dst, const void *src,
                       size_t bytes) {
    static const enum cudaMemcpyKind kinds[] = {
        [OT_COPY_H2D] = cudaMemcpyHostToDevice,
        [OT_COPY_D2H] = cudaMemcpyDeviceToHost,
        [OT_COPY_D2D] = cudaMemcpyDeviceToDevice,
    };
    struct ot_cuda_lane *lane = cuda(base);
    uintptr_t host = (uintptr_t)(kind == OT_COPY_H2D ? src : dst);
    size_t piece;
    if (bytes == 0 || !begin(lane))
        return;
    for (size_t at = 0; at < bytes; at += piece) {
        piece = bytes - at;
        if (kind != OT_COPY_D2D)
            piece = ot_min(piece, OT_CUDA_COPY_PIECE - (host + at) % OT_CUDA_COPY_PIECE);
        ot_cuda_lane_check(lane, cudaMemcpyAsync((char *)dst + at, (const char *)src + at, piece, kinds[kind],
                                                 lane->stream));
    }
}

void ot_cuda_lane_copy_rows(struct ot_lane *base, const struct ot_copy_rows *copy) {
    struct ot_cuda_lane *lane = cuda(base);
    if (copy->rows > 0 && copy->row_bytes > 0 && begin(lane))
        ot_cuda_lane_check(lane, cudaMemcpy2DAsync(copy->dst, copy->dst_stride, copy->src, copy->src_stride,
                                                   copy->row_bytes, copy->rows, cudaMemcpyDeviceToDevice,
                                                   lane->stream));
}

void ot_cuda_lane_fill(struct ot_lane *base, void *device_dst, int byte, size_t bytes) {
    struct ot_cuda_lane *lane = cuda(base);
    if (bytes > 0 && begin(lane))
        ot_cuda_lane_check(lane, cudaMemsetAsync(device_dst, byte, bytes, lane->stream));
}

void ot_cuda_lane_notify(struct ot_lane *base, void (*fn)(void *arg), void *arg) {
    begin(cuda(base));
    ot_cuda_notifier_push(cuda(base)->notifier, fn, arg);
}

/* The stream stops until fn has returned, which is the purpose. CUDA makes the call on a thread of its own.
 */
void ot_cuda_lane_call(struct ot_lane *base, void (*fn)(void *arg), void *arg) {
    struct ot_cuda_lane *lane = cuda(base);
    if (begin(lane))
        ot_cuda_lane_check(lane, cudaLaunchHostFunc(lane->stream, fn, arg));
}

void *ot_cuda_lane_stream(struct ot_lane *lane) {
    return cuda(lane)->stream;
}

/* ---- events ---- */

static int create_event(struct ot_device *base, unsigned flags, struct ot_event **out) {
    struct ot_cuda_device *device = ot_cuda_device_of(base);
    struct ot_cuda_event *event = calloc(1, sizeof *event);
    *out = NULL;
    if (!event)
        return ot_fail(OT_E_DEVICE, "no memory for an event");
    ot_cuda_enter(device);
    int rc = ot_cuda_check(cudaEventCreateWithFlags(&event->event, flags), "make an event");
    if (rc < 0) {
        free(event);
        return rc;
    }
    event->base.device = base;
    atomic_fetch_add(&device->n_events, 1);
    *out = &event->base;
    return 0;
}

int ot_cuda_event_create(struct ot_device *device, struct ot_event **out) {
    return create_event(device, cudaEventDisableTiming, out);
}

int ot_cuda_event_create_timed(struct ot_device *device, struct ot_event **out) {
    return create_event(device, cudaEventDefault, out);
}

void ot_cuda_event_destroy(struct ot_event *base) {
    struct ot_cuda_event *event = (struct ot_cuda_event *)base;
    struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    ot_cuda_enter(device);
    cudaEventDestroy(event->event);
    atomic_fetch_sub(&device->n_events, 1);
    free(event);
}

/* A failed lane also records events and waits for events, because other lanes wait for its events. */
void ot_cuda_lane_record(struct ot_lane *base, struct ot_event *event_base) {
    struct ot_cuda_lane *lane = cuda(base);
    struct ot_cuda_event *event = (struct ot_cuda_event *)event_base;
    begin(lane);
    ot_cuda_lane_check(lane, cudaEventRecord(event->event, lane->stream));
    atomic_store(&event->error, atomic_load(&lane->error));
}

void ot_cuda_lane_wait(struct ot_lane *base, struct ot_event *event) {
    struct ot_cuda_lane *lane = cuda(base);
    begin(lane);
    ot_cuda_lane_check(lane, cudaStreamWaitEvent(lane->stream, ((struct ot_cuda_event *)event)->event, 0));
}

int ot_cuda_event_sync(struct ot_event *base) {
    struct ot_cuda_event *event = (struct ot_cuda_event *)base;
    struct ot_cuda_device *device = ot_cuda_device_of(base->device);
    ot_cuda_enter(device);
    cudaError_t code = cudaEventSynchronize(event->event);
    const struct ot_error *error = atomic_load(&event->error);
    if (error)
        return ot_error_load(error);
    if (code == cudaSuccess)
        return 0;
    struct ot_error failure;
    pthread_mutex_lock(&device->mutex);
    describe(device, NULL, code, &failure);
    pthread_mutex_unlock(&device->mutex);
    return ot_error_load(&failure);
}

int ot_cuda_lane_error(const struct ot_lane *base) {
    const struct ot_error *error = atomic_load_explicit(&cuda(base)->error, memory_order_acquire);
    return error ? ot_error_load(error) : 0;
}

int ot_cuda_lane_sync(struct ot_lane *base) {
    enter(base);
    wait_until_idle(cuda(base));
    return ot_cuda_lane_error(base);
}

/* ---- notifications ---- */

/* The notifications of a lane (cuda_state.h explains why they are not CUDA's own): a ring of events and
 * calls, and a thread. The thread waits for the oldest event, makes its call, and goes on with the next. */

/* Outstanding calls; one more call waits for the oldest. Two steps make a few notifications per block. */
enum { RING_CALLS = 256 };

struct call {
    cudaEvent_t event;
    bool recorded; /* false: the lane had failed, so there is no event to wait for */
    void (*fn)(void *arg);
    void *arg;
};

struct ot_cuda_notifier {
    struct ot_cuda_lane *lane;
    pthread_t thread;
    bool started;
    pthread_mutex_t mutex; /* guards the members below */
    pthread_cond_t changed;
    bool stopping;
    uint32_t filled, finished; /* counts; the index in the ring is the count modulo RING_CALLS */
    struct call ring[RING_CALLS];
};

static void *notifier_main(void *arg) {
    struct ot_cuda_notifier *self = arg;
    ot_cuda_enter(ot_cuda_device_of(self->lane->base.device));
    pthread_mutex_lock(&self->mutex);
    for (;;) {
        while (self->finished == self->filled && !self->stopping)
            pthread_cond_wait(&self->changed, &self->mutex);
        if (self->finished == self->filled)
            break;
        struct call call = self->ring[self->finished % RING_CALLS];
        pthread_mutex_unlock(&self->mutex);
        if (call.recorded)
            ot_cuda_lane_check(self->lane, cudaEventSynchronize(call.event));
        call.fn(call.arg);
        pthread_mutex_lock(&self->mutex);
        self->finished++;
        pthread_cond_broadcast(&self->changed);
    }
    pthread_mutex_unlock(&self->mutex);
    return NULL;
}

int ot_cuda_notifier_open(struct ot_cuda_lane *lane, struct ot_cuda_notifier **out) {
    int rc = 0;
    struct ot_cuda_notifier *self = calloc(1, sizeof *self);
    *out = NULL;
    if (!self)
        return ot_fail(OT_E_DEVICE, "no memory for the lane '%s'", lane->name);
    self->lane = lane;
    pthread_mutex_init(&self->mutex, NULL);
    pthread_cond_init(&self->changed, NULL);
    /* Threads that wait for these events sleep, because the optimizer needs the cores. */
    for (int i = 0; i < RING_CALLS; i++)
        OT_TRY_GOTO(ot_cuda_check(cudaEventCreateWithFlags(&self->ring[i].event,
                                                           cudaEventDisableTiming | cudaEventBlockingSync),
                                  "make an event of the lane '%s'", lane->name),
                    rc, out);
    int error = ot_thread_start(&self->thread, lane->name, notifier_main, self);
    if (error) {
        rc = ot_fail_errno(OT_E_DEVICE, error, "cannot start a thread for the lane '%s'", lane->name);
        goto out;
    }
    self->started = true;
    *out = self;
    return 0;
out:
    ot_cuda_notifier_close(self);
    return rc;
}

void ot_cuda_notifier_close(struct ot_cuda_notifier *self) {
    if (!self)
        return;
    pthread_mutex_lock(&self->mutex);
    self->stopping = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
    if (self->started)
        pthread_join(self->thread, NULL);
    for (int i = 0; i < RING_CALLS; i++)
        if (self->ring[i].event)
            cudaEventDestroy(self->ring[i].event);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->mutex);
    free(self);
}

void ot_cuda_notifier_drain(struct ot_cuda_notifier *self) {
    pthread_mutex_lock(&self->mutex);
    while (self->finished != self->filled)
        pthread_cond_wait(&self->changed, &self->mutex);
    pthread_mutex_unlock(&self->mutex);
}

void ot_cuda_notifier_push(struct ot_cuda_notifier *self, void (*fn)(void *arg), void *arg) {
    pthread_mutex_lock(&self->mutex);
    while (self->filled - self->finished == RING_CALLS)
        pthread_cond_wait(&self->changed, &self->mutex);
    struct call *call = &self->ring[self->filled % RING_CALLS];
    pthread_mutex_unlock(&self->mutex); /* no other thread fills this entry: one thread enqueues on a lane */
    cudaError_t code = cudaEventRecord(call->event, self->lane->stream);
    ot_cuda_lane_check(self->lane, code);
    call->recorded = code == cudaSuccess;
    call->fn = fn;
    call->arg = arg;
    pthread_mutex_lock(&self->mutex);
    self->filled++;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->mutex);
}

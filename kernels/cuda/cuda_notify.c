/* The notifications of a lane (cuda_state.h explains why they are not CUDA's own): a ring of events and
 * calls, and a thread. The thread waits for the oldest event, makes its call, and goes on with the next. */
#include <assert.h>
#include <stdlib.h>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_state.h"
#include "src/base/thread.h"

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

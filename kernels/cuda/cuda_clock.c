/* The time of an event on the host's clock: see struct ot_cuda_clock in cuda_state.h. */
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_state.h"
#include "src/base/clock.h"

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

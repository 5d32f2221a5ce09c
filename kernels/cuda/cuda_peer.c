/* The rate of copies to another GPU. The process takes memory there only for the measurement. Then it resets
 * the other GPU, which frees the context that the first call made there (hundreds of MiB). */
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/cuda_state.h"
#include "src/base/clock.h"

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

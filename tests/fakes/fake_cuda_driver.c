/* A fake libcuda.so.1 for the emulated runtime, with the functions that the communicator plugin `nccl` uses.
 * It finds the runtime in the program that loads it, which is linked with export_dynamic. GPU n has the UUID
 * "fake GPU" and n. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

enum { INVALID_CONTEXT = 201, MOST_NESTED = 8 };

struct CUctx_st {
    int device;
};
struct CUuuid_st {
    char bytes[16];
};

static struct CUctx_st contexts[64];
/* The contexts that were pushed on this thread, and the runtime's device before each. */
static _Thread_local struct {
    struct CUctx_st *context;
    int before;
} nested[MOST_NESTED];
static _Thread_local int n_nested;

#define EXPORT __attribute__((visibility("default")))

EXPORT int cuInit(unsigned flags);
EXPORT int cuDeviceGet(int *device, int ordinal);
EXPORT int cuDeviceGetUuid(struct CUuuid_st *uuid, int device);
EXPORT int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device);
EXPORT int cuDevicePrimaryCtxRelease_v2(int device);
EXPORT int cuCtxPushCurrent_v2(struct CUctx_st *context);
EXPORT int cuCtxPopCurrent_v2(struct CUctx_st **context);
EXPORT int cuEventCreate(struct CUevent_st **event, unsigned flags);
EXPORT int cuEventDestroy_v2(struct CUevent_st *event);
EXPORT int cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream);
EXPORT int cuEventQuery(struct CUevent_st *event);

int cuInit(unsigned flags) {
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    return flags ? cudaErrorInvalidValue : (int)error;
}

int cuDeviceGet(int *device, int ordinal) {
    int n = 0;
    cudaError_t error = cudaGetDeviceCount(&n);
    *device = ordinal;
    return error != cudaSuccess || ordinal < 0 || ordinal >= n ? cudaErrorInvalidDevice : cudaSuccess;
}

int cuDeviceGetUuid(struct CUuuid_st *uuid, int device) {
    memset(uuid, 0, sizeof *uuid);
    snprintf(uuid->bytes, sizeof uuid->bytes, "fake GPU %d", device);
    return cudaSuccess;
}

int cuDevicePrimaryCtxRetain(struct CUctx_st **context, int device) {
    contexts[device].device = device;
    *context = &contexts[device];
    return cudaSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    (void)device;
    return cudaSuccess;
}

int cuCtxPushCurrent_v2(struct CUctx_st *context) {
    if (n_nested == MOST_NESTED) {
        fprintf(stderr, "fake libcuda: a context is pushed without end\n");
        abort();
    }
    nested[n_nested].context = context;
    cudaGetDevice(&nested[n_nested++].before);
    return (int)cudaSetDevice(context->device);
}

int cuCtxPopCurrent_v2(struct CUctx_st **context) {
    if (n_nested == 0)
        return INVALID_CONTEXT;
    *context = nested[--n_nested].context;
    return (int)cudaSetDevice(nested[n_nested].before);
}

/* Like the driver, the functions below want a current context. */
static int is_current(void) {
    return n_nested > 0;
}

int cuEventCreate(struct CUevent_st **event, unsigned flags) {
    return is_current() ? (int)cudaEventCreateWithFlags(event, flags) : INVALID_CONTEXT;
}

int cuEventDestroy_v2(struct CUevent_st *event) {
    return is_current() ? (int)cudaEventDestroy(event) : INVALID_CONTEXT;
}

int cuEventRecord(struct CUevent_st *event, struct CUstream_st *stream) {
    return is_current() ? (int)cudaEventRecord(event, stream) : INVALID_CONTEXT;
}

int cuEventQuery(struct CUevent_st *event) {
    return is_current() ? (int)cudaEventQuery(event) : INVALID_CONTEXT;
}

#include "tests/emu/emu_gpu.h"

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "src/base/clock.h"

static void check(cudaError_t error, const char *call) {
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
    exit(1);
}

void emu_gpu_use(int device) {
    check(cudaSetDevice(device), "cudaSetDevice");
}

void *emu_gpu_alloc(size_t bytes) {
    void *memory;
    check(cudaMalloc(&memory, bytes), "cudaMalloc");
    return memory;
}

void emu_gpu_free(void *memory) {
    check(cudaFree(memory), "cudaFree");
}

void *emu_gpu_alloc_pinned(size_t bytes) {
    void *memory;
    check(cudaHostAlloc(&memory, bytes, cudaHostAllocDefault), "cudaHostAlloc");
    return memory;
}

void emu_gpu_free_pinned(void *memory) {
    check(cudaFreeHost(memory), "cudaFreeHost");
}

void *emu_gpu_stream_open(void) {
    cudaStream_t stream;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
    return stream;
}

void emu_gpu_stream_close(void *stream) {
    check(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

void emu_gpu_to_device(void *stream, void *device, const void *host, size_t bytes) {
    check(cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void emu_gpu_to_host(void *stream, void *host, const void *device, size_t bytes) {
    check(cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

void emu_gpu_call(void *stream, void (*fn)(void *arg), void *arg) {
    check(cudaLaunchHostFunc(stream, fn, arg), "cudaLaunchHostFunc");
}

static void work(void *seconds) {
    double s = *(double *)seconds;
    free(seconds);
    nanosleep(&(struct timespec){(time_t)s, (long)((s - (double)(time_t)s) * 1e9)}, NULL);
}

void emu_gpu_keep_busy(void *stream, double seconds) {
    double *copy = malloc(sizeof *copy);
    if (!copy)
        exit(1);
    *copy = seconds;
    emu_gpu_call(stream, work, copy);
}

bool emu_gpu_wait(void *stream, double seconds) {
    for (double end = ot_clock_seconds() + seconds; cudaStreamQuery(stream) == cudaErrorNotReady;) {
        if (ot_clock_seconds() > end)
            return false;
        nanosleep(&(struct timespec){0, 200000}, NULL);
    }
    check(cudaStreamQuery(stream), "cudaStreamQuery");
    return true;
}

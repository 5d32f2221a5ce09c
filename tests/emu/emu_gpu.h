/* An emulated GPU for tests of libraries that work on CUDA streams: memory and streams without the device
 * interface. A failed call of the runtime ends the process. */
#ifndef OT_TESTS_EMU_GPU_H
#define OT_TESTS_EMU_GPU_H

#include <stdbool.h>
#include <stddef.h>

void emu_gpu_use(int device); /* for the calling thread */
void *emu_gpu_alloc(size_t bytes);
void emu_gpu_free(void *memory);
void *emu_gpu_alloc_pinned(size_t bytes);
void emu_gpu_free_pinned(void *memory);
void *emu_gpu_stream_open(void); /* a cudaStream_t */
void emu_gpu_stream_close(void *stream);
void emu_gpu_to_device(void *stream, void *device, const void *host, size_t bytes); /* waits */
void emu_gpu_to_host(void *stream, void *host, const void *device, size_t bytes);   /* waits */
void emu_gpu_keep_busy(void *stream, double seconds); /* enqueues work that takes so long */
/* Enqueues a call that the stream waits for. */
void emu_gpu_call(void *stream, void (*fn)(void *arg), void *arg);
/* Waits until the stream is empty. False: it is not after so many seconds. */
bool emu_gpu_wait(void *stream, double seconds);

#endif

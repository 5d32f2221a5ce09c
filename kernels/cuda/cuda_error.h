/* CUDA's error codes as sentences. Every call into the runtime is checked; this is where its code becomes
 * words. */
#ifndef OT_KERNELS_CUDA_ERROR_H
#define OT_KERNELS_CUDA_ERROR_H

#include <cuda_runtime_api.h>

#include <stdbool.h>

/* "an illegal memory access"; CUDA's own words for codes that need no better ones. */
const char *ot_cuda_error_text(cudaError_t code);
/* A kernel did it, some time ago: the call that reports it has nothing to do with it, and nothing runs on
 * the GPU any more. */
bool ot_cuda_error_is_fault(cudaError_t code);
/* What to do about it, to be put behind the sentence; "" where that is all there is to say. */
const char *ot_cuda_error_hint(cudaError_t code);

/* Records "CUDA: cannot <what>: <text>" with OT_E_DEVICE and returns its negative; 0 for cudaSuccess. */
int ot_cuda_check(cudaError_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

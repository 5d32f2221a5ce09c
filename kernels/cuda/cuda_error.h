/* Turns CUDA's error codes into sentences. The result of every CUDA call is checked and reported through this
 * file. */
#ifndef OT_KERNELS_CUDA_ERROR_H
#define OT_KERNELS_CUDA_ERROR_H

#include <cuda_runtime_api.h>

#include <stdbool.h>

/* For example "an illegal memory access"; CUDA's own text for codes that this table lacks. */
const char *ot_cuda_error_text(cudaError_t code);
/* True if a kernel that ran earlier caused this error. Then the call that reports the error is not to blame,
 * and the GPU runs nothing any more in this process. */
bool ot_cuda_error_is_fault(cudaError_t code);
/* Advice to append to the sentence, or "" if there is none. */
const char *ot_cuda_error_hint(cudaError_t code);

/* Records "CUDA: cannot <what>: <text>" with OT_E_DEVICE and returns -OT_E_DEVICE; 0 for cudaSuccess. */
int ot_cuda_check(cudaError_t code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif

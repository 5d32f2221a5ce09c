/* Writes the number of the current mark to host memory (cuda_state.h: ERRORS). */
#include "kernels/cuda/kernel.cuh"

static __global__ void mark_kernel(uint32_t *word, uint32_t number) {
    *word = number;
}

cudaError_t ot_cuda_mark(uint32_t *word, uint32_t number, cudaStream_t stream) {
    return ot_launch(mark_kernel, dim3(1), dim3(1), 0, stream, word, number);
}

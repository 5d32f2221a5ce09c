/* The random words of kernels/state_format.h in kernels. */
#ifndef OT_KERNELS_CUDA_NOISE_CUH
#define OT_KERNELS_CUDA_NOISE_CUH

#include "kernels/state_format.h"

/* ot_state_word. */
__device__ __forceinline__ uint32_t random_word(const struct ot_state_noise &noise, int64_t index) {
    uint32_t x =
        noise.begin + (uint32_t)index * OT_NOISE_STEP + (uint32_t)((uint64_t)index >> 32) * OT_NOISE_PAGE;
    x = (x ^ x >> 16) * OT_NOISE_MIX1;
    return (x ^ x >> 15 ^ noise.key) * OT_NOISE_MIX2;
}

#endif

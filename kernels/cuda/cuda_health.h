/* Warnings about a GPU that works but may spoil a long run: memory errors, a display. */
#ifndef OT_KERNELS_CUDA_HEALTH_H
#define OT_KERNELS_CUDA_HEALTH_H

#include "kernels/cuda/cuda_state.h"

enum { OT_CUDA_WARNINGS = 3, OT_CUDA_WARNING_BYTES = 256 };

struct ot_cuda_warnings {
    int n;
    char text[OT_CUDA_WARNINGS][OT_CUDA_WARNING_BYTES]; /* one sentence each */
};

/* Asks the driver's management library (cuda_health.c). Without that library there are fewer warnings. */
void ot_cuda_warnings(const struct ot_cuda_gpu *gpu, struct ot_cuda_warnings *out);

#endif

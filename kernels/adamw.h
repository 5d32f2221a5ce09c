/* The optimizer's arithmetic, once, for every engine that runs it: the CPU pool (offload/), the cpu device's
 * op, and the CUDA kernel, all with identical bits. So each operation is named: fma is one rounding, / and
 * sqrt are IEEE, nothing is reassociated. For each parameter, all fp32:
 *
 *     g = grad * grad_scale
 *     m = fma(beta1, m, (1 - beta1) * g)
 *     v = fma(beta2, v, ((1 - beta2) * g) * g)
 *     d = sqrt(v) / bias2_sqrt + eps
 *     p = p - (lr * weight_decay) * p            only where decay; one fma: fma(-(lr * weight_decay), p, p)
 *     p = fma(-(lr / bias1), m / d, p)
 *
 * (1 - beta) is computed in fp32 from the fp32 beta; lr * weight_decay and lr / bias1 once per call. This is
 * torch.optim.AdamW's update up to rounding. p is the master, wherever its bits lie: the weight itself
 * (OT_F32), weight and remainder (OT_BF16), or apart from the weight, which is then its rounding (OT_F16).
 * Kernels: AVX-512, AVX2 with FMA and F16C, scalar. The fastest on this CPU is taken, by a measurement of
 * some milliseconds at first use.
 */
#ifndef OT_KERNELS_ADAMW_H
#define OT_KERNELS_ADAMW_H

#include "kernels/ops.h"

/* Updates args->n parameters on the calling thread; all pointers host-readable. Safe to call on disjoint
 * ranges from many threads. A step with skip set changes nothing. */
void ot_adamw_run(const struct ot_adamw *args);

/* The kernel in use: "avx512", "avx2" or "scalar"; OFFLOAD_TRAIN_ADAMW in the environment forces one that
 * this CPU has. */
const char *ot_adamw_kernel_name(void);

/* For tests and measurements: the kernels there are, best first and NULL last; and the named one, or NULL
 * where this CPU or build lacks it. */
extern const char *const ot_adamw_kernel_names[];
typedef void (*ot_adamw_fn)(const struct ot_adamw *args);
ot_adamw_fn ot_adamw_kernel(const char *name);

/* What an update reads and writes, bytes a parameter. */
static inline int ot_adamw_bytes(enum ot_dtype dtype) {
    return dtype == OT_BF16 ? 14 + 12 : dtype == OT_F16 ? 14 + 14 : 16 + 12;
}

/* The part [first, first + n) of a larger update. */
struct ot_adamw ot_adamw_slice(const struct ot_adamw *whole, int64_t first, int64_t n);

#endif

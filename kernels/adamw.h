/* The arithmetic of the AdamW update, defined once. Three engines run it: the CPU pool (offload/), the cpu
 * device's op, and the CUDA kernel. All three give identical bits, so the order and the rounding of every
 * operation are fixed: fma rounds once, / and sqrt are IEEE, and nothing is reassociated. For each parameter,
 * all in fp32:
 *
 *     g = grad * grad_scale
 *     m = fma(beta1, m, (1 - beta1) * g)
 *     v = fma(beta2, v, ((1 - beta2) * g) * g)
 *     d = fma(sqrt(v), 1 / bias2_sqrt, eps)
 *     p = fma(-(lr * weight_decay), p, p)        only if decay is set: p - (lr * weight_decay) * p
 *     p = fma(-(lr / bias1), m / d, p)
 *
 * lr is the step's, or that times the rate of the parameters, rounded to fp32. 1 - beta1 and 1 - beta2 are
 * computed in fp32 from the fp32 betas. 1 / bias2_sqrt, lr * weight_decay and lr / bias1 are computed once
 * per call. The update equals torch.optim.AdamW's up to rounding.
 *
 * p is the fp32 master. The dtype decides the place of its bits: for OT_F32 p is the weight itself; for
 * OT_BF16 the weight and a 16-bit remainder together are p (src/base/dtype.h); for OT_F16 p is a separate
 * array, and the weight is p rounded to fp16. With OT_MASTERS_NONE p begins as the bf16 weight, and the
 * weight becomes p rounded stochastically (kernels/state_format.h).
 *
 * m and v are decoded before these operations and encoded after them (kernels/state_format.h). With
 * OT_STATE_F32 both are the identity.
 *
 * There are three kernels for CPUs: AVX-512, AVX2 with FMA and F16C, and scalar. The first call measures them
 * for some milliseconds and keeps the fastest one that this CPU has.
 */
#ifndef OT_KERNELS_ADAMW_H
#define OT_KERNELS_ADAMW_H

#include "kernels/ops.h"

/* Updates args->n parameters on the calling thread. The host must be able to read and write all pointers.
 * Many threads may call at once on disjoint ranges; with OT_STATE_8BIT, on ranges of disjoint groups. Changes
 * nothing if args->step->skip is set. */
void ot_adamw_run(const struct ot_adamw *args);

/* The name of the kernel in use: "avx512", "avx2" or "scalar". The environment variable OFFLOAD_TRAIN_ADAMW
 * forces one of them. If this CPU lacks the forced kernel, a warning is logged and the scalar kernel is used.
 */
const char *ot_adamw_kernel_name(void);

/* For tests and measurements. The list holds the names of all kernels, widest first, and ends with NULL.
 * ot_adamw_kernel returns the kernel with that name, or NULL if this CPU or this build lacks it. */
extern const char *const ot_adamw_kernel_names[];
typedef void (*ot_adamw_fn)(const struct ot_adamw *args);
ot_adamw_fn ot_adamw_kernel(const char *name);

/* Bytes that an update reads plus bytes that it writes, per parameter. */
static inline double ot_adamw_bytes(enum ot_dtype dtype, enum ot_state_format state,
                                    enum ot_masters masters) {
    static const double moments[OT_STATE_FORMATS] = {8, 4, 2.125};
    double weights = masters == OT_MASTERS_NONE ? 6 : dtype == OT_BF16 ? 10 : 12; /* with the gradient */
    return weights + 2 * moments[state];
}

/* Returns the arguments that update only the parameters [first, first + n) of `whole`. */
struct ot_adamw ot_adamw_slice(const struct ot_adamw *whole, int64_t first, int64_t n);

/* For threads that share an update. Places are counted from the group in which the update begins. There are
 * ot_adamw_places of them, and ot_adamw_chunk returns the arguments for the places [begin, end). Chunks with
 * borders at multiples of OT_STATE_GROUP have disjoint groups. */
int64_t ot_adamw_places(const struct ot_adamw *whole);
struct ot_adamw ot_adamw_chunk(const struct ot_adamw *whole, int64_t begin, int64_t end);

#endif

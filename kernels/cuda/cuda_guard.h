/* The guard: checks fast kernels at their first use.
 *
 * A kernel may be wrong on a GPU or under a driver on which nobody has tested it. So before the first use of
 * each fast path, the guard runs it once on a small random problem and compares it with the plain kernel for
 * the same op. If the two agree within rounding, the guard trusts the path. If not, a slower kernel computes
 * this op for the whole run, and a warning names it: the tiled kernel instead of the one for compute
 * capability 9.0, and the plain kernel instead of the others. The fast paths are
 *
 *   attention for compute capability 9.0, forward and backward, each by dtype, head size, and whether it has
 *     a softcap, sinks, slopes, a window, and keys before the first query
 *   attention on any tensor cores, forward and backward, each by the same
 *   attention over spans on tensor cores, forward and backward, each by dtype, head size and bias (or none)
 *   matrix products of cuBLASLt, by dtypes, transpositions, bias and accumulation
 *   products by groups for compute capability 9.0, and on any tensor cores, each by dtypes, form and
 *     transposition
 *
 * A file stores each verdict for this GPU, driver, cuBLASLt and build, and later runs start with it
 * (cuda_guard_verdicts.h). A verdict depends on these alone, because the random problem is always the same.
 * So the bits of a run do not change from start to start. There is one exception: on a machine where a path
 * fails its check only sometimes, deleting the file may change the verdict.
 *
 * A check waits some milliseconds for the GPU, inside the first op that needs it. It works in the scratch. If
 * a CUDA call of the check fails, the guard decides nothing and stores nothing: the launch of the op then
 * reports the error. But if the GPU itself fails in the check (a fault that stays until the process ends), or
 * if the check hangs, the file keeps that: later starts use a slower kernel at once, and say why. Otherwise
 * each of them would end in the same check.
 *
 * In the environment, OFFLOAD_TRAIN_KERNEL_CHECKS=off skips all checks and trusts every path.
 * OFFLOAD_TRAIN_KERNELS=tiled takes the kernels for compute capability 9.0 away, and plain takes every path
 * away, for a GPU on which the guard itself is in doubt. Both are named in the device's name and arithmetic.
 *
 * Only the thread that enqueues ops may call these functions.
 */
#ifndef OT_KERNELS_CUDA_GUARD_STATE_H
#define OT_KERNELS_CUDA_GUARD_STATE_H

#include <stdbool.h>

#include "kernels/cuda/cuda_gemm.h"

struct ot_cuda_guard;

/* Scratch that the check of a product needs, behind the part that products use themselves. */
enum { OT_CUDA_GUARD_BYTES = 256 << 10 };

struct ot_cuda_guard_config {
    const char *gpu;     /* name of the GPU */
    const char *library; /* name and version of cuBLASLt */
    int driver_version;
    const char *cache_folder; /* NULL: verdicts are not stored */
};

/* Errors: OT_E_INPUT (a value in the environment), OT_E_BUDGET (host memory), OT_E_DEVICE (pinned memory). */
int ot_cuda_guard_open(const struct ot_cuda_guard_config *config, struct ot_cuda_guard **out);
void ot_cuda_guard_close(struct ot_cuda_guard *guard); /* NULL is allowed */
/* "tiled kernels" or "plain kernels" if the environment forces them, else "". */
const char *ot_cuda_guard_forced(const struct ot_cuda_guard *guard);

/* Choose the kernel of the op: set on->no_hopper and on->plain. */
void ot_cuda_guard_attention(struct ot_cuda_guard *guard, const struct ot_attention *op,
                             struct ot_cuda_stream *on);
void ot_cuda_guard_attention_backward(struct ot_cuda_guard *guard, const struct ot_attention_backward *op,
                                      struct ot_cuda_stream *on);
void ot_cuda_guard_gemm_groups(struct ot_cuda_guard *guard, const struct ot_gemm_groups *op,
                               struct ot_cuda_stream *on);
/* Each chooses the kernel of the op: sets on->plain. */
void ot_cuda_guard_spans(struct ot_cuda_guard *guard, const struct ot_attend_spans *op,
                         struct ot_cuda_stream *on);
void ot_cuda_guard_spans_backward(struct ot_cuda_guard *guard, const struct ot_attend_spans_backward *op,
                                  struct ot_cuda_stream *on);
/* True if the op may use its fast path, or has none. */
bool ot_cuda_guard_gemm(struct ot_cuda_guard *guard, struct ot_cuda_gemm *gemm, const struct ot_gemm *op,
                        const struct ot_cuda_stream *on);

#endif

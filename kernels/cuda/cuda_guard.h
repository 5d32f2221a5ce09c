/* Fast paths that check themselves.
 *
 * A kernel that nobody has seen on a GPU, or under a driver, may be wrong there. So the first use of each
 * fast path runs it once on a small random problem beside the plain kernel for the same op. If the two agree
 * within what rounding explains, the path is trusted. If not, the plain kernel computes this op for the whole
 * run, slowly, and a warning names it. The fast paths are
 *
 *   attention forward and backward on tensor cores, each by dtype and head size
 *   matrix products of cuBLASLt, by dtypes, transpositions, bias and accumulation
 *
 * A verdict is kept in a file for this GPU, driver, cuBLASLt and build, so that later runs start with it. It
 * depends on these alone: the problem is always the same one. So the bits of a run do not change from start
 * to start, unless the file of a machine on which a path fails its check only sometimes is deleted.
 *
 * A check waits for the GPU, some milliseconds, in the first op that needs it. It works in the scratch. A
 * check that cannot be made (a call fails) decides nothing and is not kept: the op's own launch then tells.
 *
 * OFFLOAD_TRAIN_KERNEL_CHECKS=off in the environment trusts every path unseen.
 *
 * All calls come from the thread that enqueues ops.
 */
#ifndef OT_KERNELS_CUDA_GUARD_STATE_H
#define OT_KERNELS_CUDA_GUARD_STATE_H

#include <stdbool.h>

#include "kernels/cuda/cuda_gemm.h"

struct ot_cuda_guard;

/* The check of a product needs so much of the scratch, behind the part that products use themselves. */
enum { OT_CUDA_GUARD_BYTES = 256 << 10 };

struct ot_cuda_guard_config {
    const char *gpu;     /* its name */
    const char *library; /* name and version of cuBLASLt */
    int driver_version;
    const char *cache_folder; /* NULL: verdicts are not kept */
};

/* Errors: OT_E_BUDGET (host memory), OT_E_DEVICE (pinned memory). */
int ot_cuda_guard_open(const struct ot_cuda_guard_config *config, struct ot_cuda_guard **out);
void ot_cuda_guard_close(struct ot_cuda_guard *guard); /* NULL is fine */

/* Whether the op may take its fast path; true as well where it has none. */
bool ot_cuda_guard_attention(struct ot_cuda_guard *guard, const struct ot_attention *op,
                             const struct ot_cuda_stream *on);
bool ot_cuda_guard_attention_backward(struct ot_cuda_guard *guard, const struct ot_attention *op,
                                      const struct ot_cuda_stream *on);
bool ot_cuda_guard_gemm(struct ot_cuda_guard *guard, struct ot_cuda_gemm *gemm, const struct ot_gemm *op,
                        const struct ot_cuda_stream *on);

#endif

/* The gradients of attention's sinks (kernels/ops.h):
 *
 *     dsinks[h] -= sum over queries i of exp(sinks[h] - lse[i]) delta[i],     delta = dot(out, dout)
 *
 * A sink is a key with the weight exp(sink - lse) and without a value, so its dout.v is 0 and the gradient
 * of its logit is weight * (0 - delta). (attention_backward.cuh explains delta.)
 *
 * One block sums the queries of one head: thread t adds the queries t, t + THREADS, ... in order, then the
 * block adds the threads' sums along a fixed tree. So the bits depend on the arguments alone. The kernel
 * reads 8 bytes for each query and head: 1 MiB with 4096 tokens and 32 heads, beside 128 MiB of the passes
 * that follow.
 */
#include <math.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/kernel.cuh"

enum { SINK_THREADS = 256 };

template <class T>
__global__ void attention_sinks(const struct ot_attention_backward op) {
    const struct ot_attention &f = op.forward;
    int64_t first = (int64_t)blockIdx.x * f.n;
    float sink = ot_to_float(static_cast<const T *>(f.sinks)[blockIdx.x]), sum = 0.0f;
    for (int64_t i = first + threadIdx.x; i < first + f.n; i += SINK_THREADS)
        sum = fmaf(expf(sink - f.lse[i]), op.scratch[i], sum);
    sum = ot_block_sum(sum, ot_shared<float>());
    if (threadIdx.x == 0)
        op.dsinks[blockIdx.x] -= sum;
}

cudaError_t ot_attention_backward_sinks(const struct ot_attention_backward *op,
                                        const struct ot_cuda_stream *on) {
    return ot_dispatch(op->forward.dtype, [&](auto zero) {
        using T = decltype(zero);
        return ot_launch(attention_sinks<T>, dim3((unsigned)op->forward.heads), dim3(SINK_THREADS),
                         OT_WARP * sizeof(float), on->stream, *op);
    });
}

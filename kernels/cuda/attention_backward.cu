/* Attention backward on a GPU: dot(out, dout), and the choice between the kernels on tensor cores
 * (attention_backward.cuh) and the plain ones.
 */
#include <math.h>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/kernel.cuh"

/* ---- delta ---- */

/* Eight threads compute each dot product, with 16-byte accesses if the rows are aligned for that. */
template <class T, bool PACKED>
__global__ void attention_delta(const struct ot_attention_backward op) {
    constexpr int N = PACKED ? ot_pack<T>::N : 1;
    const struct ot_attention &f = op.forward;
    int64_t row = (int64_t)(blockIdx.x * (blockDim.x / 8) + threadIdx.x / 8);
    int64_t query = row / f.heads, head = row % f.heads;
    float sum = 0.0f;
    if (query < f.n) {
        int64_t at = query * f.ldo + head * f.head_dim;
        const T *out = static_cast<const T *>(f.out) + at, *dout = static_cast<const T *>(op.dout) + at;
        for (int d = (int)(threadIdx.x % 8) * N; d < f.head_dim; d += 8 * N) {
            if constexpr (PACKED) {
                ot_pack<T> a = ot_load(out + d), b = ot_load(dout + d);
#pragma unroll
                for (int i = 0; i < N; i++)
                    sum = fmaf(a.v[i], b.v[i], sum);
            } else {
                sum = fmaf(ot_to_float(out[d]), ot_to_float(dout[d]), sum);
            }
        }
    }
#pragma unroll
    for (int offset = 4; offset > 0; offset /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    if (query < f.n && threadIdx.x % 8 == 0)
        op.scratch[head * f.n + query] = sum;
}

cudaError_t ot_attention_backward_delta(const struct ot_attention_backward *op,
                                        const struct ot_cuda_stream *on) {
    enum { THREADS = 256 };
    const struct ot_attention *f = &op->forward;
    dim3 grid((unsigned)ot_ceil_div(f->n * f->heads, THREADS / 8));
    return ot_dispatch(f->dtype, [&](auto zero) {
        using T = decltype(zero);
        bool packed = ot_is_packable(static_cast<const T *>(f->out), f->ldo, f->head_dim) &&
                      ot_is_packable(static_cast<const T *>(op->dout), f->ldo, f->head_dim);
        return ot_launch(packed ? attention_delta<T, true> : attention_delta<T, false>, grid, dim3(THREADS),
                         0, on->stream, *op);
    });
}

/* ---- launch ---- */

/* Without queries there are still keys, which get zeros. */
cudaError_t ot_attend_spans_backward_tiled(const struct ot_attend_spans_backward *op,
                                           const struct ot_cuda_stream *on) {
    const struct ot_attend_spans *f = &op->forward;
    const struct ot_attention_backward delta = {.forward = {.dtype = f->dtype,
                                                            .n = f->n,
                                                            .heads = f->heads,
                                                            .head_dim = f->head_dim,
                                                            .ldo = f->ldo,
                                                            .out = f->out},
                                                .dout = op->dout,
                                                .scratch = op->scratch};
    if (f->n > 0) {
        OT_CUDA_TRY(ot_attention_backward_delta(&delta, on));
        OT_CUDA_TRY(ot_attend_spans_backward_queries(op, on));
    }
    return f->n_keys > 0 ? ot_attend_spans_backward_keys(op, on) : cudaSuccess;
}

static bool is_tiled(const struct ot_attention_backward *op, const struct ot_cuda_stream *on) {
    const struct ot_attention *f = &op->forward;
    return ot_attention_is_tiled(f, on->arch) && ot_attention_is_aligned(op->dout, f->ldo) &&
           ot_attention_is_aligned(op->dq, f->ldq) && ot_attention_is_aligned(op->dk, op->lddk) &&
           ot_attention_is_aligned(op->dv, op->lddv) &&
           on->shared_bytes >= (on->arch < 80 ? BACKWARD_SMALL_BYTES : BACKWARD_BYTES);
}

extern "C" cudaError_t ot_cuda_attention_backward(const struct ot_attention_backward *args,
                                                  const struct ot_cuda_stream *on) {
    if (args->forward.n == 0)
        return cudaSuccess;
    OT_CUDA_TRY(ot_attention_backward_delta(args, on));
    if (args->dsinks)
        OT_CUDA_TRY(ot_attention_backward_sinks(args, on));
    if (!is_tiled(args, on) || on->plain || args->forward.drop.share > 0)
        return ot_attention_backward_plain(args, on);
    if (ot_attention_backward_is_hopper(&args->forward, on))
        return ot_attention_backward_hopper(args, on);
    OT_CUDA_TRY(ot_attention_backward_queries(args, on));
    return ot_attention_backward_keys(args, on);
}

/* ---- sinks ---- */

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

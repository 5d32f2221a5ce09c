/* Attention backward on a GPU: dot(out, dout), and the choice between the kernels on tensor cores
 * (attention_backward.cuh) and the plain ones.
 */
#include "kernels/cuda/attention_backward.cuh"

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
           ot_attention_is_aligned(op->dq, f->ldq) && ot_attention_is_aligned(op->dk, f->ldk) &&
           ot_attention_is_aligned(op->dv, f->ldv) &&
           on->shared_bytes >= (on->arch < 80 ? BACKWARD_SMALL_BYTES : BACKWARD_BYTES);
}

extern "C" cudaError_t ot_cuda_attention_backward(const struct ot_attention_backward *args,
                                                  const struct ot_cuda_stream *on) {
    if (args->forward.n == 0)
        return cudaSuccess;
    OT_CUDA_TRY(ot_attention_backward_delta(args, on));
    if (args->dsinks)
        OT_CUDA_TRY(ot_attention_backward_sinks(args, on));
    if (!is_tiled(args, on) || on->plain)
        return ot_attention_backward_plain(args, on);
    if (ot_attention_backward_is_hopper(&args->forward, on))
        return ot_attention_backward_hopper(args, on);
    OT_CUDA_TRY(ot_attention_backward_queries(args, on));
    return ot_attention_backward_keys(args, on);
}

/* The launchers of the kernels: the border between C and CUDA C++.
 *
 * Each launcher takes an op's arguments (kernels/ops.h has the contract) and enqueues its kernels on the
 * stream. A launcher does not allocate, does not wait and keeps no state. It returns cudaSuccess, or the
 * error of the first kernel that could not be launched. It may use all of the scratch: all ops of a device
 * share one stream (device.h), so the op before has finished with it.
 *
 * The same sources run on a CPU: tests/emu.
 */
#ifndef OT_KERNELS_CUDA_LAUNCHERS_H
#define OT_KERNELS_CUDA_LAUNCHERS_H

#include <cuda_runtime_api.h>

#include "kernels/ops.h"

struct ot_cuda_stream {
    cudaStream_t stream;
    void *scratch;        /* device memory, 256-byte aligned */
    size_t scratch_bytes; /* at least OT_CUDA_MIN_SCRATCH_BYTES */
    int sm_count;         /* multiprocessors; may decide the size of a grid, never the order of a sum */
    int shared_bytes;     /* the most that one block may have (opt-in limit) */
    int arch;             /* compute capability times ten: 80, 89, 90, 120 */
    /* plain: no kernels with tensor cores, because the guard does not trust them or the environment forbids
     * them. no_hopper: none of those for compute capability 9.0. */
    bool plain, no_hopper;
};

enum { OT_CUDA_MIN_SCRATCH_BYTES = 1 << 20 };

#ifdef __cplusplus
extern "C" {
#endif

/* *word = number, in stream order; word is mapped host memory. */
cudaError_t ot_cuda_mark(uint32_t *word, uint32_t number, cudaStream_t stream);

cudaError_t ot_cuda_bias_backward(const struct ot_bias_backward *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_embed(const struct ot_embed *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_embed_backward(const struct ot_embed_backward *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_norm(const struct ot_norm *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_norm_backward(const struct ot_norm_backward *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_rope(const struct ot_rope *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_attention(const struct ot_attention *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_attention_backward(const struct ot_attention_backward *args,
                                       const struct ot_cuda_stream *on);
cudaError_t ot_cuda_glu(const struct ot_glu *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_glu_backward(const struct ot_glu_backward *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_activate(const struct ot_activate *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_activate_backward(const struct ot_activate_backward *args,
                                      const struct ot_cuda_stream *on);
cudaError_t ot_cuda_add(const struct ot_add *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_dropout(const struct ot_dropout *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_neftune(const struct ot_neftune *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_dora_factors(const struct ot_dora_factors *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_dora(const struct ot_dora *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_dora_backward(const struct ot_dora_backward *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_join(const struct ot_join *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_softcap(const struct ot_softcap *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_cross_entropy(const struct ot_cross_entropy *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_compare(const struct ot_compare *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_reduce(const struct ot_reduce *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_cast(const struct ot_cast *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_decode(const struct ot_decode *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_adamw(const struct ot_adamw *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_adamw_compact(const struct ot_adamw *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_router(const struct ot_router *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_router_backward(const struct ot_router_backward *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_load(const struct ot_load *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_balance(const struct ot_balance *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_group(const struct ot_group *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_gather(const struct ot_gather *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_combine(const struct ot_combine *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_combine_backward(const struct ot_combine_backward *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_gemm_groups(const struct ot_gemm_groups *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_attend_spans(const struct ot_attend_spans *args, const struct ot_cuda_stream *on);
cudaError_t ot_cuda_attend_spans_backward(const struct ot_attend_spans_backward *args,
                                          const struct ot_cuda_stream *on);

#ifdef __cplusplus
}
#endif

#endif

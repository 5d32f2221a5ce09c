/* Objectives that compare answers (kernels/ops_compare.h).
 *
 * Two kernels. The first has a warp for each answer: it adds the losses of the answer's tokens. Lane l adds
 * tokens l, l + 32, ... in order, then the lanes are added by a tree; so the sums have another order than on
 * the cpu device. The second is one block. A warp writes the weights of a comparison's answers; one thread
 * adds the sums over comparisons, in order. A micro-batch has tens to thousands of comparisons, and moves 8
 * bytes a token: microseconds beside the head's milliseconds.
 */
#include "kernels/cuda/kernel.cuh"

inline namespace compare_cu {

enum { COMPARE_BLOCK = 256, COMPARE_WARPS = COMPARE_BLOCK / OT_WARP };

__global__ void __launch_bounds__(COMPARE_BLOCK) compare_answers(struct ot_compare op) {
    int64_t answer = (int64_t)blockIdx.x * COMPARE_WARPS + threadIdx.x / OT_WARP;
    int lane = (int)threadIdx.x % OT_WARP;
    double sum = 0;
    if (answer < 2 * op.n) {
        struct ot_comparison c = op.comparisons[answer / 2];
        int begin = answer % 2 == 0 ? c.begin : c.middle, end = answer % 2 == 0 ? c.middle : c.end;
        for (int i = begin + lane; i < end; i += OT_WARP)
            sum += (double)op.token_loss[i];
    }
#pragma unroll
    for (int step = OT_WARP / 2; step > 0; step /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (answer < 2 * op.n && lane == 0)
        op.answers[answer] = -sum;
}

/* The weights of an answer are written by a warp, those of all comparisons of a warp one after the other. */
__device__ __forceinline__ void compare_put(float *weights, int begin, int end, double slope) {
    for (int i = begin + (int)threadIdx.x % OT_WARP; i < end; i += OT_WARP)
        weights[i] = (float)-slope;
}

__global__ void __launch_bounds__(COMPARE_BLOCK) compare_weights(struct ot_compare op) {
    double *z = ot_shared<double>();
    if (threadIdx.x == 0) {
        double sums[OT_COMPARE_SUMS] = {};
        *z = ot_compare_shift(&op.objective, op.comparisons, op.answers, op.n);
        for (int64_t i = 0; i < op.n; i++) {
            struct ot_comparison_loss loss =
                ot_compare_loss(&op.objective, &op.comparisons[i], op.answers + 2 * i, *z);
            ot_compare_add(&op.objective, &op.comparisons[i], &loss, sums);
        }
#pragma unroll
        for (int s = 0; s < OT_COMPARE_SUMS; s++)
            op.sums[s] = sums[s];
    }
    for (int64_t i = threadIdx.x; i < op.tokens; i += COMPARE_BLOCK)
        op.weights[i] = 0;
    __syncthreads();
    for (int64_t i = threadIdx.x / OT_WARP; i < op.n; i += COMPARE_WARPS) {
        struct ot_comparison c = op.comparisons[i];
        struct ot_comparison_loss loss = ot_compare_loss(&op.objective, &c, op.answers + 2 * i, *z);
        compare_put(op.weights, c.begin, c.middle, loss.slope[0]);
        compare_put(op.weights, c.middle, c.end, loss.slope[1]);
    }
}

} // namespace compare_cu

cudaError_t ot_cuda_compare(const struct ot_compare *args, const struct ot_cuda_stream *on) {
    if (args->n > 0) {
        cudaError_t rc = ot_launch(compare_answers, dim3((unsigned)ot_ceil_div(2 * args->n, COMPARE_WARPS)),
                                   dim3(COMPARE_BLOCK), 0, on->stream, *args);
        if (rc != cudaSuccess)
            return rc;
    }
    return ot_launch(compare_weights, dim3(1), dim3(COMPARE_BLOCK), sizeof(double), on->stream, *args);
}

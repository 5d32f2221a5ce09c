/* Softmax cross-entropy over rows of fp32 logits, and its gradient.
 *
 * Bytes moved per logit: 4 for the loss. The gradient adds 4 to read and 4 or 2 to write; these reads
 * mostly hit the L2 cache (a row is 128 KiB at a vocabulary of 32000). Two exp per logit, some 45 FLOPs. A
 * softcap is computed twice too, each time some 40 FLOPs. Label smoothing and z-loss take three more, and no
 * more bytes.
 *
 * A block has a row. The first pass computes the maximum and the sum of exp(logit - maximum): each thread
 * keeps the maximum of its logits and rescales its sum when that maximum grows (Milakov & Gimelshein, "Online
 * normalizer calculation for softmax", 2018). Then the threads' sums are rescaled to the maximum of all and
 * added. The second pass writes the gradient. Order of the sum: a thread's logits from the left, four at a
 * time, then the tree of ot_block_sum. The gradient may overwrite the logits, because a thread writes the
 * elements that it has just read.
 *
 * Why the second pass computes exp again. To keep a row's first results takes 4 bytes of shared memory a
 * logit: 128 KiB at a vocabulary of 32000, so one block a multiprocessor, whose loads would wait for its
 * arithmetic. To keep them in the logits' place moves 8 bytes more a logit, and the maximum must be known
 * before: 4 more. Counted on an H100, the two passes take 7.4 us of arithmetic and 7.8 us of L2 traffic a row
 * and multiprocessor, beside each other. Not measured.
 */
#include "kernels/cuda/rows.cuh"
#include "kernels/cuda/scalar.cuh"
#include "kernels/loss_terms.h"

enum { LOSS_BLOCK = 512 };

/* Turns logits into capped ones; slope[i] becomes the derivative of the i-th. */
template <int N>
static __device__ __forceinline__ void loss_cap(float (&x)[N], float cap, float (&slope)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        float y;
        slope[i] = vec_softcap_slope(cap, x[i], &y);
        x[i] = y;
    }
}

/* The sum of exp(x - max) over the logits so far, and that of the target's logit less x. */
struct loss_sum {
    float max, sum, distances;
};

/* The number to subtract before exp. Subtracting a maximum of -infinity would turn logits of -infinity into
 * NaN. */
static __device__ __forceinline__ float loss_shift(float max) {
    return max == -INFINITY ? 0.0f : max;
}

/* The maximum ignores NaNs; the sum becomes NaN. */
static __device__ __forceinline__ struct loss_sum loss_add(struct loss_sum seen, const ot_pack<float> &x,
                                                           int left, float hit) {
    constexpr int N = ot_pack<float>::N;
    float max = seen.max;
#pragma unroll
    for (int i = 0; i < N; i++)
        max = i < left ? fmaxf(max, x.v[i]) : max;
    float shift = loss_shift(max);
    if (max > seen.max)
        seen.sum *= vec_exp(seen.max - shift);
#pragma unroll
    for (int i = 0; i < N; i++) {
        seen.sum += i < left ? vec_exp(x.v[i] - shift) : 0.0f;
        seen.distances += i < left ? hit - x.v[i] : 0.0f;
    }
    return {max, seen.sum, seen.distances};
}

static __device__ __forceinline__ float loss_block_max(float x, float *room) {
    int warp = (int)threadIdx.x / OT_WARP, lane = (int)threadIdx.x % OT_WARP;
    x = ot_warp_max(x);
    if (lane == 0)
        room[warp] = x;
    __syncthreads();
    x = ot_warp_max(room[lane % (LOSS_BLOCK / OT_WARP)]);
    __syncthreads();
    return x;
}

/* The maximum and the sums of a row, returned to every thread. The distances are summed with label smoothing
 * only. */
template <bool ALIGNED, bool CAPS>
static __device__ __forceinline__ struct loss_sum loss_read_row(const struct ot_cross_entropy &op,
                                                                const float *logits, float hit) {
    constexpr int N = ot_pack<float>::N;
    int vocab = (int)op.vocab;
    float *room = ot_shared<float>();
    struct loss_sum seen = {-INFINITY, 0.0f, 0.0f};
#pragma unroll 2
    for (int p = (int)threadIdx.x; p * N < vocab; p += LOSS_BLOCK) {
        ot_pack<float> x = ot_row_load<ALIGNED>(logits, p, vocab), slope;
        if (CAPS)
            loss_cap(x.v, op.softcap, slope.v);
        seen = loss_add(seen, x, vocab - p * N, hit);
    }
    float max = loss_block_max(seen.max, room);
    float own = seen.sum * vec_exp(seen.max - loss_shift(max));
    float sum = ot_block_sum(own, room);
    return {max, sum, op.smoothing != 0 ? ot_block_sum(seen.distances, room) : 0.0f};
}

template <class G, bool ALIGNED, bool CAPS>
static __device__ __forceinline__ void
loss_write_row(const struct ot_cross_entropy &op, const float *logits, G *gradient, int target, float weight,
               const struct loss_sum &all, const struct loss_terms &terms) {
    constexpr int N = ot_pack<G>::N;
    int vocab = (int)op.vocab, packs = (vocab + N - 1) / N;
    float scale = (op.loss_scale ? op.grad_scale * *op.loss_scale : op.grad_scale) * weight;
    float factor = scale / all.sum * terms.by_z, less = terms.other != 0 ? terms.other * scale : 0.0f;
    for (int p = (int)threadIdx.x; p < packs; p += LOSS_BLOCK) {
        ot_pack<G> x = ot_row_load_floats<ALIGNED, G>(logits, p, vocab), slope, out;
        if (CAPS)
            loss_cap(x.v, op.softcap, slope.v);
#pragma unroll
        for (int i = 0; i < N; i++) {
            float e = vec_exp(x.v[i] - all.max);
            out.v[i] =
                p * N + i == target ? (e / all.sum * terms.by_z - terms.target) * scale : e * factor - less;
            if (CAPS)
                out.v[i] *= slope.v[i];
        }
        ot_row_store<ALIGNED>(gradient, p, vocab, out);
    }
}

template <class G, bool ALIGNED, bool CAPS>
__global__ void loss_rows(struct ot_cross_entropy op) {
    int64_t row = blockIdx.x;
    int vocab = (int)op.vocab, target = op.targets[row];
    const float *logits = op.logits + row * op.ld;
    G *gradient = op.grad ? static_cast<G *>(op.grad) + row * op.ld_grad : nullptr;
    if (target < 0) {
        if (threadIdx.x == 0)
            op.loss[row] = 0;
        if (gradient)
            for (int p = (int)threadIdx.x; p * ot_pack<G>::N < vocab; p += LOSS_BLOCK)
                ot_row_store<ALIGNED>(gradient, p, vocab, ot_pack<G>{});
        return;
    }
    float hit[1] = {logits[target]}, slope[1]; /* no thread has written yet: the barriers come first */
    if (CAPS)
        loss_cap(hit, op.softcap, slope);
    struct loss_sum all = loss_read_row<ALIGNED, CAPS>(op, logits, hit[0]);
    struct loss_terms terms = loss_terms(&op, all.max, hit[0], {all.sum, all.distances});
    if (threadIdx.x == 0)
        op.loss[row] = op.marks_hits && hit[0] == all.max ? -terms.loss : terms.loss;
    if (gradient)
        loss_write_row<G, ALIGNED, CAPS>(op, logits, gradient, target, op.weights ? op.weights[row] : 1.0f,
                                         all, terms);
}

cudaError_t ot_cuda_cross_entropy(const struct ot_cross_entropy *args, const struct ot_cuda_stream *on) {
    if (args->rows == 0)
        return cudaSuccess;
    if (args->rows > INT32_MAX || args->vocab > INT32_MAX / 2)
        return cudaErrorInvalidValue;
    return ot_dispatch(args->grad ? args->grad_dtype : OT_F32, [&](auto zero) {
        using G = decltype(zero);
        bool aligned = ot_rows_aligned(args->logits, args->ld, sizeof(float)) &&
                       ot_rows_aligned(args->grad, args->grad ? args->ld_grad : 0, sizeof(G));
        auto plain = aligned ? loss_rows<G, true, false> : loss_rows<G, false, false>;
        auto capped = aligned ? loss_rows<G, true, true> : loss_rows<G, false, true>;
        return ot_launch(args->softcap != 0 ? capped : plain, dim3((unsigned)args->rows), dim3(LOSS_BLOCK),
                         OT_WARP * sizeof(float), on->stream, *args);
    });
}

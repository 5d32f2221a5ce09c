/* The running softmax of attention forward (Milakov & Gimelshein, "Online normalizer calculation for
 * softmax", 2018), for warps that own rows of queries. attention_forward.cu and attention_hopper.cu use it.
 * S describes the shape: a warp has 16 S::M rows, a tile has 8 S::N keys, a head has S::DIM elements.
 *
 * With the scores s of a tile (attention_score.cuh), each row has a reference `top`, weights p = exp2(s -
 * top), total = sum p and sum = p V; out = sum / total. When a score exceeds all scores before it, the
 * reference rises, and sum and total are multiplied by exp2(old - new). A reference within 2^8 of the
 * maximum is as good as the maximum: p stays in range, and relative errors are the same. So the reference
 * rises only if it has to rise by more than 8. A warp skips the multiplication if no reference of its rows
 * has risen; multiplying by 1 would give the same bits. p is rounded to dtype for the product with V
 * (relative error 2^-8 in bf16, 2^-11 in fp16, of sum p |v|). total is summed in fp32 before that rounding.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_SOFTMAX_CUH
#define OT_KERNELS_CUDA_ATTENTION_SOFTMAX_CUH

#include "kernels/cuda/attention_score.cuh"
#include "kernels/cuda/attention_tiles.cuh"

/* A lane's part of a warp's rows: the rows g and g + 8 of each 16. */
template <class S>
struct ot_softmax_rows {
    float top[S::M][2];   /* reference, as an exponent of 2 */
    float total[S::M][2]; /* sum of this lane's exp2(score - top) */
    float sum[S::M][S::DIM / 8][4];

    /* A sink is a key without a value: the rows begin as if they had seen it. Without sinks, the first
     * reference is below every score; masked scores are -infinity. */
    template <class T>
    __device__ __forceinline__ ot_softmax_rows(const T *sinks, int head) {
        float first = sinks ? ot_to_float(sinks[head]) * OT_LOG2_E : -FLT_MAX;
        first = first < -FLT_MAX ? -FLT_MAX : first; /* a NaN stays, so that it is seen */
        ot_tile_zero(sum);
#pragma unroll
        for (int m = 0; m < S::M; m++) {
            top[m][0] = top[m][1] = first;
            total[m][0] = total[m][1] = sinks && ot_lane() % 4 == 0 ? 1.0f : 0.0f;
        }
    }
};

/* query, key: the first ones of this lane. */
template <class S, class Op>
__device__ __forceinline__ void ot_softmax_mask(float (&s)[S::M][S::N][4], const Op &op, int query, int key) {
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            ot_attention_span seen = ot_attention_keys(op, query + 16 * m + 8 * r);
            int first = seen.first - key, last = seen.last - key;
#pragma unroll
            for (int n = 0; n < S::N; n++)
#pragma unroll
                for (int i = 0; i < 2; i++)
                    if (8 * n + i < first || 8 * n + i > last)
                        s[m][n][2 * r + i] = -INFINITY;
        }
}

/* Raises the references of the rows if the scores, times the factor, require it. Returns true if a row of
 * the warp was raised; then the caller must shrink the sums by `shrink`, which is 1 for other rows. */
template <class S>
__device__ __forceinline__ bool ot_softmax_raise(const float (&s)[S::M][S::N][4], float factor,
                                                 ot_softmax_rows<S> &rows, float (&shrink)[S::M][2]) {
    constexpr float SLACK = 8.0f; /* fp16 can hold 2^8, and the fp32 sum with V does not overflow */
    bool raised = false;
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = s[m][0][2 * r];
#pragma unroll
            for (int n = 0; n < S::N; n++)
                top = fmaxf(top, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
            top = ot_quad_max(top) * factor;
            float before = rows.top[m][r];
            top = top > before + SLACK ? top : before;
            raised = raised || top != before;
            rows.top[m][r] = top;
            shrink[m][r] = ot_exp2_approx(before - top);
            rows.total[m][r] *= shrink[m][r];
        }
    return __any_sync(0xffffffffu, raised);
}

template <class S>
__device__ __forceinline__ void ot_softmax_shrink(ot_softmax_rows<S> &rows, const float (&shrink)[S::M][2]) {
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int d = 0; d < S::DIM / 8; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                rows.sum[m][d][i] *= shrink[m][i / 2];
}

/* Turns scores into weights. */
template <class S>
__device__ __forceinline__ void ot_softmax_weights(float (&s)[S::M][S::N][4], float factor,
                                                   ot_softmax_rows<S> &rows) {
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int n = 0; n < S::N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[m][n][i] = ot_exp2_approx(fmaf(s[m][n][i], factor, -rows.top[m][i / 2]));
                rows.total[m][i / 2] += s[m][n][i];
            }
}

/* Divides, rounds and stores a warp's rows of the queries [begin, end) through `room`, the place of the
 * warp's queries in shared memory. keep(query, top, total) is called for each query, by one lane, and keeps
 * the numbers of its softmax. */
template <class T, class S, class Op, class F>
__device__ __forceinline__ void ot_softmax_store_some(const Op &op, int head, int first_query, int begin,
                                                      int end, const ot_softmax_rows<S> &rows, T *room,
                                                      F keep) {
    int lane = ot_lane(), row = lane / 4, column = lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < S::M; m++)
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int at = row + 16 * m + 8 * r, query = first_query + at;
            float total = ot_quad_sum(rows.total[m][r]), inverse = 1.0f / total;
            if (query < begin || query >= end)
                continue; /* the room may still hold a query that comes later */
            if (column == 0)
                keep(query, rows.top[m][r], total);
#pragma unroll
            for (int d = 0; d < S::DIM / 8; d++)
                *reinterpret_cast<uint32_t *>(room + ot_tile<S::DIM>::at(at, d) + column) =
                    ot_pack_two<T>(rows.sum[m][d][2 * r] * inverse, rows.sum[m][d][2 * r + 1] * inverse);
        }
    __syncwarp();
    constexpr int P = ot_tile<S::DIM>::P, ROWS = OT_WARP / P;
    T *out = static_cast<T *>(op.out) + (first_query + lane / P) * op.ldo + head * S::DIM;
#pragma unroll
    for (int at = lane / P; at < 16 * S::M; at += ROWS) {
#pragma unroll
        for (int chunk = lane % P; chunk < ot_tile<S::DIM>::CHUNKS; chunk += P)
            if (first_query + at >= begin && first_query + at < end)
                *reinterpret_cast<uint4 *>(out + chunk * 8) =
                    *reinterpret_cast<const uint4 *>(room + ot_tile<S::DIM>::at(at, chunk));
        out += ROWS * op.ldo;
    }
}

template <class T, class S>
__device__ __forceinline__ void ot_softmax_store(const struct ot_attention &op, int head, int first_query,
                                                 const ot_softmax_rows<S> &rows, T *room) {
    ot_softmax_store_some<T>(op, head, first_query, first_query, (int)op.n, rows, room,
                             [&](int query, float top, float total) {
                                 if (op.lse)
                                     op.lse[head * op.n + query] = top * OT_LN_2 + logf(total);
                             });
}

#endif

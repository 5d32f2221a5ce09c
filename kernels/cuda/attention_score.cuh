/* Scores of the tensor-core kernels of attention, forward and backward: how a dot product q.k becomes a score
 * (kernels/ops.h), and the derivative of that score. A score is an exponent of 2: log2(e) times the
 * contract's score, because the special-function units compute 2^x.
 *
 * Most models have scores factor * q.k. They cost nothing: the kernel masks q.k itself and multiplies by the
 * factor where it computes 2^x. Otherwise the score is BENT: it has a softcap, a slope, or a factor that is
 * not positive (which would turn the mask's -infinity into another value). Then ot_score_bend computes the
 * scores before the mask, and the factor after the mask is 1. All of this is decided at run time, by one
 * branch per tile that all threads of a block take together. ptxas reports no spills with it, and as many
 * blocks fit on a multiprocessor as without softcaps. Template flags would double the number of kernels.
 *
 * TANH. ot_score_tanh is off by 2^-21 of the result at most: the polynomial of kernels/formulas.h for small
 * arguments; else 1 - 2 / (e^2|x| + 1), where 2^x has an error of 2 ulp and the reciprocal of 1 ulp. So a
 * score x is off by 2^-21 |x|, less than the error of a q.k of 64 products, and far less than the rounding
 * of its weight to two bytes (2^-9, or 2^-12 in fp16) for |x| < 2^6. The hardware's own tanh.approx
 * is off by 2^-11 of the result: a score of 20 by 1 %. vec_tanh_slope (formulas.h) is better than both, but
 * takes twice the instructions.
 */
#ifndef OT_KERNELS_CUDA_ATTENTION_SCORE_CUH
#define OT_KERNELS_CUDA_ATTENTION_SCORE_CUH

#include "kernels/cuda/attention.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/scalar.cuh"

#define OT_LOG2_E 1.4426950408889634f
#define OT_LN_2   0.6931471805599453f

/* The numbers of one head. */
struct ot_score_scale {
    float factor; /* multiplies q.k; with a softcap, the result is the argument of tanh */
    float cap;    /* the softcap; 0: none */
    float slope;  /* ALiBi's */
    bool bent;

    __device__ __forceinline__ ot_score_scale(const struct ot_attention &op, int head)
        : factor(op.scale * OT_LOG2_E), cap(op.softcap * OT_LOG2_E),
          slope(op.slopes ? op.slopes[head] * OT_LOG2_E : 0.0f),
          bent(op.slopes || !(factor > 0.0f) || op.softcap > 0.0f) {
        if (op.softcap > 0.0f)
            factor = op.scale * ot_rcp_approx(op.softcap);
    }
    /* The factor after the mask. */
    __device__ __forceinline__ float rest() const { return bent ? 1.0f : factor; }
};

__device__ __forceinline__ float ot_score_tanh(float x) {
    float t = fabsf(x);
    float large = fmaf(-2.0f, ot_rcp_approx(ot_exp2_approx(t * (2.0f * OT_LOG2_E)) + 1.0f), 1.0f);
    return t < OT_TANH_SMALL ? vec_tanh_small(x) : copysignf(large, x);
}

/* Key minus query of element i of fragment (m, n), relative to the lane's first element. It grows along
 * columns if columns are keys (SIGN 1), and along rows if rows are keys (SIGN -1). */
template <int SIGN>
__device__ __forceinline__ constexpr int ot_score_step(int m, int n, int i) {
    return SIGN * (8 * n + i % 2 - 16 * m - i / 2 * 8);
}

/* Computes the scores from q.k, if the scale is bent. distance: key minus query of the lane's first
 * element. */
template <int SIGN, int M, int N>
__device__ __forceinline__ void ot_score_bend(float (&s)[M][N][4], const ot_score_scale &scale,
                                              int distance) {
    if (!scale.bent)
        return;
    float factor = scale.factor;
    if (scale.cap > 0.0f) {
        factor = scale.cap;
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    s[m][n][i] = ot_score_tanh(s[m][n][i] * scale.factor);
    }
#pragma unroll
    for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < N; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float away = (float)distance + (float)ot_score_step<SIGN>(m, n, i);
                s[m][n][i] = fmaf(s[m][n][i], factor, scale.slope * away);
            }
}

/* The derivative of a score by scale * q.k: 1 - tanh^2, off by 2^-21. 0 for a masked score. away: key minus
 * query. */
__device__ __forceinline__ float ot_score_slope(const ot_score_scale &scale, float score, float away) {
    float t = fmaf(-scale.slope, away, score) * ot_rcp_approx(scale.cap);
    return fmaxf(fmaf(-t, t, 1.0f), 0.0f); /* also if -t t is -infinity */
}

#endif

/* Formulas of exp, sigmoid, erf, tanh and the activations built from them. Both devices compile the same
 * formulas, so their results agree to the last bit.
 *
 * The including file decides what a number is: a vector of 16 floats of the compiler (kernels/cpu/vecmath.h),
 * or the one float of a GPU thread (kernels/cuda/scalar.cuh). Before the #include, that file defines:
 *
 *     ot_vf, ot_vi            fp32 numbers, and as many 32-bit integers; + - * / round once
 *     vec_set                 a constant in every element
 *     vec_fma(a, b, c)        a * b + c, rounded once
 *     vec_min, vec_max(a, b)  b if a is NaN; b is never NaN here
 *     vec_select(m, y, n)     y or n, element by element; m is the result of comparing two ot_vf
 *     vec_abs, vec_copysign   operations on the bits, also for NaNs
 *     vec_bits                the same bits as ot_vi
 *     vec_add_exponent        a 2^n if that is a normal number; else the bits that adding n << 23 gives
 *     OT_INLINE               the specifiers in front of a function
 *
 * Accuracy, measured over all exponents by tests/kernels/test_vecmath.c: exp is within 1 ulp; sigmoid,
 * erf, tanh and the derivative of tanh are within 2.5 ulp. The argument reduction is that of Cody and
 * Waite, "Software Manual for the Elementary Functions", 1980. The polynomials are our own minimax fits
 * (Lawson's iteration on Chebyshev nodes, mpmath).
 *
 * Cost: on a GPU, memory bandwidth leaves time for about 50 instructions per element of a gated activation.
 * The core of exp takes eleven.
 */
#ifndef OT_KERNELS_FORMULAS_H
#define OT_KERNELS_FORMULAS_H

#include "kernels/ops.h"

/* ---- exp ---- */

/* e^x = 2^n * result with 0.7 < result < 1.42 and integer n. The low nine bits of *bits hold n + k. Adding
 * 1.5 * 2^23 rounds x / ln 2 to an integer and leaves that integer in the low bits. */
static OT_INLINE ot_vf vec_exp_parts(ot_vf x, float k, ot_vf *n, ot_vi *bits) {
    const float shift = 0x1.8p23f + k;
    ot_vf shifted = vec_fma(x, vec_set(0x1.715476p+0f), vec_set(shift));
    *n = shifted - vec_set(shift);
    *bits = vec_bits(shifted);
    /* subtracts n ln 2 in two parts; the first subtraction is exact */
    ot_vf r = vec_fma(*n, vec_set(-0x1.62e43p-1f), x);
    r = vec_fma(*n, vec_set(0x1.05c61p-29f), r);
    ot_vf q = vec_set(0x1.6c6b96p-10f);
    q = vec_fma(q, r, vec_set(0x1.121022p-7f));
    q = vec_fma(q, r, vec_set(0x1.5555bep-5f));
    q = vec_fma(q, r, vec_set(0x1.5554d8p-3f));
    q = vec_fma(q, r, vec_set(0.5f));
    q = vec_fma(q, r, vec_set(1.0f));
    return vec_fma(q, r, vec_set(1.0f));
}

/* e^x 2^k for an x for which the result is a normal number (so x is not NaN): n + k is added to the exponent
 * directly. */
static OT_INLINE ot_vf vec_exp_times(ot_vf x, float k) {
    ot_vf n;
    ot_vi bits;
    ot_vf result = vec_exp_parts(x, k, &n, &bits);
    return vec_add_exponent(result, bits);
}

/* exp over the whole range: 0 below -104, infinity above 88.73, subnormals in between; NaN stays NaN. */
static OT_INLINE ot_vf vec_exp(ot_vf x) {
    x = vec_select(x < -104.0f, vec_set(-104.0f), x);
    x = vec_select(x > 89.0f, vec_set(89.0f), x);
    ot_vf n;
    ot_vi bits;
    ot_vf result = vec_exp_parts(x, 0, &n, &bits);
    /* 2^n as two factors: 2^n alone may lie outside the normal range. */
    ot_vi power = bits - 0x4b400000, half = power >> 1;
    ot_vf first = vec_add_exponent(vec_set(1.0f), half),
          second = vec_add_exponent(vec_set(1.0f), power - half);
    return (result * first) * second;
}

/* ---- functions built from exp ---- */

/* 1 / (1 + e^-x). Numerator and denominator are scaled by 2^-24, so that no x overflows. For NaN the result
 * is an arbitrary number: every caller multiplies it by a value that is NaN too. */
static OT_INLINE ot_vf vec_sigmoid(ot_vf x) {
    ot_vf e = vec_exp_times(vec_min(vec_max(-x, vec_set(-60.0f)), vec_set(104.0f)), -24.0f);
    return vec_set(0x1p-24f) / (e + vec_set(0x1p-24f));
}

/* An odd polynomial for |x| < 1, and 1 - exp(fit of log erfc) above. */
static OT_INLINE ot_vf vec_erf(ot_vf x) {
    ot_vf s = x * x, t = vec_abs(x);
    ot_vf p = vec_set(7.964401e-05f);
    p = vec_fma(p, s, vec_set(-0.00080375804f));
    p = vec_fma(p, s, vec_set(0.005190598f));
    p = vec_fma(p, s, vec_set(-0.02685445f));
    p = vec_fma(p, s, vec_set(0.11283583f));
    p = vec_fma(p, s, vec_set(-0.37612623f));
    p = vec_fma(p, s, vec_set(0.12837917f));
    ot_vf small = vec_fma(x, p, x);
    ot_vf u = vec_min(t, vec_set(4.0f));
    ot_vf l = vec_set(1.6024898e-06f);
    l = vec_fma(l, u, vec_set(-4.5354573e-05f));
    l = vec_fma(l, u, vec_set(0.00059071515f));
    l = vec_fma(l, u, vec_set(-0.0047302814f));
    l = vec_fma(l, u, vec_set(0.026335537f));
    l = vec_fma(l, u, vec_set(-0.10992518f));
    l = vec_fma(l, u, vec_set(-0.6319953f));
    l = vec_fma(l, u, vec_set(-1.1301315f));
    l = vec_fma(l, u, vec_set(0.00029427418f));
    ot_vf large = vec_copysign(vec_set(1.0f) - vec_exp_times(l, 0), x);
    /* NaN compares false, so `small` is taken, which is NaN */
    return vec_select(t >= vec_set(1.0f), large, small);
}

/* tanh(x) for |x| < OT_TANH_SMALL: an odd polynomial, whose own error is 2^-30 of the result. */
#define OT_TANH_SMALL 0.55f
static OT_INLINE ot_vf vec_tanh_small(ot_vf x) {
    ot_vf s = x * x;
    ot_vf p = vec_set(-0.006274252f);
    p = vec_fma(p, s, vec_set(0.021071685f));
    p = vec_fma(p, s, vec_set(-0.053852312f));
    p = vec_fma(p, s, vec_set(0.13332586f));
    p = vec_fma(p, s, vec_set(-0.33333316f));
    return vec_fma(x, p * s, x);
}

/* *y = tanh(x); returns tanh'(x) = 1 - tanh(x)^2. For large |x| both follow from w = 1 - tanh |x|, so that
 * the derivative does not cancel where tanh is almost 1. From |x| = 44 on the derivative stays 2^-125. */
static OT_INLINE ot_vf vec_tanh_slope(ot_vf x, ot_vf *y) {
    const ot_vf one = vec_set(1.0f), two = vec_set(2.0f);
    ot_vf t = vec_abs(x), small = vec_tanh_small(x);
    ot_vf w = two / (vec_exp_times(vec_min(t + t, vec_set(88.0f)), 0) + one);
    /* NaN compares false, so `small` is taken, which is NaN */
    *y = vec_select(t >= vec_set(OT_TANH_SMALL), vec_copysign(one - w, x), small);
    return vec_select(t >= vec_set(OT_TANH_SMALL), w * (two - w), vec_fma(-small, small, one));
}

/* *y = cap tanh(x / cap), a logit with a softcap; returns the derivative. Infinities become the cap. */
static OT_INLINE ot_vf vec_softcap_slope(float cap, ot_vf x, ot_vf *y) {
    ot_vf tanh, slope = vec_tanh_slope(x / vec_set(cap), &tanh);
    *y = vec_set(cap) * tanh;
    return slope;
}

/* ---- activations ---- */

#define OT_GELU_SLOPE   1.5957691216f /* 2 sqrt(2 / pi) */
#define OT_GELU_CUBIC   0.0713548163f /* OT_GELU_SLOPE * 0.044715 */
#define OT_SQRT_HALF    0.7071067812f
#define OT_INV_SQRT_2PI 0.3989422804f

/* act(x). GELU by tanh is x sigmoid(2 u), since (1 + tanh u) / 2 = sigmoid(2 u): one exp, and no
 * cancellation. */
static OT_INLINE ot_vf vec_activation(enum ot_activation act, ot_vf x) {
    switch (act) {
    case OT_ACT_SILU:
        return x * vec_sigmoid(x);
    case OT_ACT_GELU_ERF:
        return (vec_set(0.5f) * x) * (vec_set(1.0f) + vec_erf(x * vec_set(OT_SQRT_HALF)));
    case OT_ACT_GELU_TANH:
        return x * vec_sigmoid(x * vec_fma(vec_set(OT_GELU_CUBIC), x * x, vec_set(OT_GELU_SLOPE)));
    default:
        return vec_select(x > vec_set(0.0f), x, vec_set(0.0f));
    }
}

/* *y = act(x); returns act'(x). */
static OT_INLINE ot_vf vec_activation_slope(enum ot_activation act, ot_vf x, ot_vf *y) {
    const ot_vf one = vec_set(1.0f);
    switch (act) {
    case OT_ACT_SILU: {
        ot_vf s = vec_sigmoid(x);
        *y = x * s;
        return s * vec_fma(x, one - s, one);
    }
    case OT_ACT_GELU_ERF: {
        ot_vf cdf = vec_set(0.5f) * (one + vec_erf(x * vec_set(OT_SQRT_HALF)));
        /* the normal density; its exp is scaled by 2^32, so that only the last product may become subnormal
         */
        ot_vf square = vec_max(vec_set(-0.5f) * (x * x), vec_set(-104.0f));
        ot_vf density = vec_exp_times(square, 32.0f) * vec_set(OT_INV_SQRT_2PI * 0x1p-32f);
        *y = x * cdf;
        return vec_fma(x, density, cdf);
    }
    case OT_ACT_GELU_TANH: {
        ot_vf square = x * x;
        ot_vf s = vec_sigmoid(x * vec_fma(vec_set(OT_GELU_CUBIC), square, vec_set(OT_GELU_SLOPE)));
        ot_vf inner = vec_fma(vec_set(3 * OT_GELU_CUBIC), square, vec_set(OT_GELU_SLOPE));
        *y = x * s;
        return s * vec_fma(x * (one - s), inner, one);
    }
    default:
        *y = vec_activation(act, x);
        return vec_select(x > vec_set(0.0f), one, vec_set(0.0f));
    }
}

/* ---- gpt-oss' gated unit (struct ot_glu with a limit) ---- */

/* x, at most limit. NaN compares false and stays. */
static OT_INLINE ot_vf vec_at_most(ot_vf x, ot_vf limit) {
    return vec_select(x > limit, limit, x);
}

/* x between -limit and limit. */
static OT_INLINE ot_vf vec_bound(ot_vf x, ot_vf limit) {
    return vec_select(x < -limit, -limit, vec_at_most(x, limit));
}

static OT_INLINE ot_vf vec_bounded_glu(float limit, float alpha, ot_vf gate, ot_vf up) {
    ot_vf g = vec_at_most(gate, vec_set(limit)), u = vec_bound(up, vec_set(limit));
    return (u + vec_set(1.0f)) * (g * vec_sigmoid(vec_set(alpha) * g));
}

/* The derivatives of the unit by gate and by up. */
static OT_INLINE ot_vf vec_bounded_glu_slopes(float limit, float alpha, ot_vf gate, ot_vf up, ot_vf *by_up) {
    const ot_vf one = vec_set(1.0f), zero = vec_set(0.0f), most = vec_set(limit);
    ot_vf g = vec_at_most(gate, most), x = vec_set(alpha) * g, s = vec_sigmoid(x);
    *by_up = vec_select(vec_abs(up) > most, zero, g * s);
    ot_vf by_gate = (vec_bound(up, most) + one) * (s * vec_fma(x, one - s, one));
    return vec_select(gate > most, zero, by_gate);
}

#endif

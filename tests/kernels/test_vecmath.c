/* The vector functions against libm in double, over all exponents and both signs. Loads, stores and tails. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/vecmath.h"
#include "tests/support/check.h"

static ot_vf load(const float *x) {
    return vec_load(OT_F32, x, 0, OT_LANES);
}

static void store(float *y, ot_vf value) {
    vec_store(OT_F32, y, 0, OT_LANES, value);
}

static void run_exp(const float *x, float *y) {
    store(y, vec_exp(load(x)));
}

static void run_erf(const float *x, float *y) {
    store(y, vec_erf(load(x)));
}

static void run_tanh(const float *x, float *y) {
    ot_vf value;
    vec_tanh_slope(load(x), &value);
    store(y, value);
}

/* Up to 43: beyond, tanh' is smaller than the derivative's last value (formulas.h). */
static void run_tanh_slope(const float *x, float *y) {
    ot_vf value = load(x), ignored, most = vec_set(43);
    store(y, vec_tanh_slope(vec_select(vec_abs(value) > most, most, value), &ignored));
}

/* Multiplies by 1, or by NaN where x is NaN: vec_sigmoid leaves NaNs to its callers. */
static void run_sigmoid(const float *x, float *y) {
    ot_vf value = load(x);
    store(y, vec_sigmoid(value) * vec_select(value == value, vec_set(1), value));
}

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

static double tanh_slope(double x) {
    double e = exp(-2 * fmin(fabs(x), 43));
    return 4 * e / ((1 + e) * (1 + e));
}

/* |got - want| in units of the last place of `want` as fp32 (of the smallest normal number, if `want` is
 * smaller). */
static double ulps(float got, double want) {
    if (fabs(want) > FLT_MAX)
        return isinf(got) && (got > 0) == (want > 0) ? 0 : INFINITY;
    int exponent;
    frexp(want, &exponent);
    return fabs(got - want) / ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

/* The worst error over every 257th float: all exponents, 32000 values in each. Few tests: every 4099th. */
static double worst_ulps(void (*run)(const float *, float *), double (*exact)(double)) {
    double worst = 0;
    uint32_t bits = 0, next = tests_are_few() ? 4099 : 257;
    while (bits < UINT32_MAX - next * OT_LANES) {
        float x[OT_LANES], y[OT_LANES];
        for (int i = 0; i < OT_LANES; i++, bits += next)
            x[i] = ot_f32_from_bits(bits);
        run(x, y);
        for (int i = 0; i < OT_LANES; i++) {
            if (isnan(x[i])) {
                assert_true(isnan(y[i]));
                continue;
            }
            double error = ulps(y[i], exact(x[i]));
            if (!(error <= worst))
                worst = error;
        }
    }
    return worst;
}

static void test_exp(void **state) {
    (void)state;
    assert_true(worst_ulps(run_exp, exp) < 1);
}

static void test_erf(void **state) {
    (void)state;
    assert_true(worst_ulps(run_erf, erf) < 2.5);
}

static void test_sigmoid(void **state) {
    (void)state;
    assert_true(worst_ulps(run_sigmoid, sigmoid) < 2.5);
}

static void test_tanh(void **state) {
    (void)state;
    assert_true(worst_ulps(run_tanh, tanh) < 2.5);
    assert_true(worst_ulps(run_tanh_slope, tanh_slope) < 2.5);
}

/* bf16 rounding equals the scalar definition for every pattern of the half that is rounded off, for NaN and
 * for infinity. */
static void test_bf16(void **state) {
    (void)state;
    static const uint32_t highs[] = {0x0000, 0x3f80, 0x3f81, 0x7f7f, 0x7f80, 0x7fff, 0x8001, 0xff80, 0xffc1};
    for (size_t h = 0; h < sizeof highs / sizeof *highs; h++)
        for (uint32_t low = 0; low < 0x10000; low += OT_LANES) {
            float x[OT_LANES], back[OT_LANES];
            uint16_t got[OT_LANES];
            for (int i = 0; i < OT_LANES; i++)
                x[i] = ot_f32_from_bits(highs[h] << 16 | (low + (uint32_t)i));
            vec_store(OT_BF16, got, 0, OT_LANES, load(x));
            store(back, vec_load(OT_BF16, got, 0, OT_LANES));
            for (int i = 0; i < OT_LANES; i++) {
                assert_int_equal(got[i], ot_bf16_from_f32(x[i]));
                assert_int_equal(ot_f32_bits(back[i]), (uint32_t)got[i] << 16);
            }
        }
}

/* Every fp16 converts to its number. Every fp32 rounds like the scalar definition around each border between
 * two fp16 numbers: the middle and its neighbours. */
static void test_f16(void **state) {
    (void)state;
    for (uint32_t half = 0; half < 0x10000; half += OT_LANES) {
        uint16_t from[OT_LANES], got[OT_LANES];
        float x[OT_LANES], near[OT_LANES];
        for (int i = 0; i < OT_LANES; i++)
            from[i] = (uint16_t)(half + (uint32_t)i);
        store(x, vec_load(OT_F16, from, 0, OT_LANES));
        for (int i = 0; i < OT_LANES; i++)
            assert_int_equal(ot_f32_bits(x[i]), ot_f32_bits(ot_f16_to_f32(from[i])));
        for (int offset = -1; offset <= 1; offset++) {
            for (int i = 0; i < OT_LANES; i++) /* halfway to the next number: one more bit of the mantissa */
                near[i] = ot_f32_from_bits(ot_f32_bits(x[i]) + 0x1000u + (uint32_t)offset);
            vec_store(OT_F16, got, 0, OT_LANES, load(near));
            for (int i = 0; i < OT_LANES; i++)
                assert_int_equal(got[i], ot_f16_from_f32(near[i]));
            for (int i = 0; i < OT_LANES; i++) /* halfway between subnormals */
                near[i] =
                    ((float)((half + (uint32_t)i) & 0x3ff) + 0.5f + 0x1p-13f * (float)offset) * 0x1p-24f;
            vec_store(OT_F16, got, 0, OT_LANES, load(near));
            for (int i = 0; i < OT_LANES; i++)
                assert_int_equal(got[i], ot_f16_from_f32(near[i]));
        }
    }
}

/* Tails read and write the elements that they should, and no others. */
static void test_tails(void **state) {
    (void)state;
    for (int64_t n = 0; n <= 40; n++) {
        float from[40], to[41];
        uint16_t half[41];
        for (int i = 0; i < 40; i++)
            from[i] = (float)i + 1;
        memset(to, 0, sizeof to);
        memset(half, 0, sizeof half);
        OT_FOR_LANES(i, lanes, n, {
            ot_vf value = vec_load(OT_F32, from, i, lanes);
            vec_store(OT_F32, to, i, lanes, value);
            vec_store(OT_BF16, half, i, lanes, value);
            float padded[OT_LANES];
            store(padded, value);
            for (int64_t j = lanes; j < OT_LANES; j++)
                assert_true(padded[j] == 0);
        });
        for (int64_t i = 0; i < 41; i++) {
            assert_true(to[i] == (i < n ? from[i] : 0));
            assert_int_equal(half[i], i < n ? ot_bf16_from_f32(from[i]) : 0);
        }
    }
}

static void test_sums(void **state) {
    (void)state;
    float x[OT_LANES];
    for (int i = 0; i < OT_LANES; i++)
        x[i] = (float)(i * i) - 100;
    assert_true(vec_sum(load(x)) == 1240 - 1600);
    assert_true(vec_largest(load(x)) == 125);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp),   cmocka_unit_test(test_erf),  cmocka_unit_test(test_sigmoid),
        cmocka_unit_test(test_tanh),  cmocka_unit_test(test_bf16), cmocka_unit_test(test_f16),
        cmocka_unit_test(test_tails), cmocka_unit_test(test_sums),
    };
    return cmocka_run_group_tests_name("vecmath", tests, NULL, NULL);
}

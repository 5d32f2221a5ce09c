#include "tests/support/check.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/random.h"

static bool same(float a, float b) {
    return ot_f32_bits(a) == ot_f32_bits(b);
}

static void test_names_and_sizes(void **state) {
    (void)state;
    assert_int_equal(ot_dtype_bytes(OT_F32), 4);
    assert_int_equal(ot_dtype_bytes(OT_BF16), 2);
    assert_int_equal(ot_dtype_bytes(OT_F16), 2);
    assert_string_equal(ot_dtype_name(OT_F32), "fp32");
    assert_string_equal(ot_dtype_name(OT_BF16), "bf16");
    assert_string_equal(ot_dtype_name(OT_F16), "fp16");
}

/* ---- bf16 ---- */

static void test_every_bf16_returns(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = ot_bf16_to_f32((uint16_t)bits);
        uint16_t back = ot_bf16_from_f32(value);
        if (isnan(value))
            assert_int_equal(back, bits | 0x40); /* now a quiet NaN */
        else
            assert_int_equal(back, bits);
    }
}

/* Numbers between every two neighbours: below the middle, in the middle, above it. */
static void test_bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits < 0x7f80; bits++)
        for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
            uint32_t low = (bits | sign) << 16;
            assert_int_equal(ot_bf16_from_f32(ot_f32_from_bits(low | 0x7fff)), bits | sign);
            assert_int_equal(ot_bf16_from_f32(ot_f32_from_bits(low | 0x8000)), (bits | sign) + (bits & 1));
            assert_int_equal(ot_bf16_from_f32(ot_f32_from_bits(low | 0x8001)), (bits | sign) + 1);
        }
    assert_int_equal(ot_bf16_from_f32(0x1.fffffep127f),
                     0x7f80); /* above the largest number, rounding gives infinity (IEEE 754) */
    assert_true(isnan(ot_bf16_to_f32(ot_bf16_from_f32(ot_f32_from_bits(0x7f800001)))));
    assert_true(isnan(ot_bf16_to_f32(ot_bf16_from_f32(ot_f32_from_bits(0xffffffff)))));
}

/* ---- fp16, against its definition ---- */

static double f16_by_definition(uint32_t bits) {
    int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 0x3ff);
    double magnitude = exponent == 0    ? ldexp(mantissa, -24)
                       : exponent == 31 ? (mantissa ? (double)NAN : (double)INFINITY)
                                        : ldexp(1024 + mantissa, exponent - 25);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static void test_every_f16_returns(void **state) {
    (void)state;
    for (uint32_t bits = 0; bits <= 0xffff; bits++) {
        float value = ot_f16_to_f32((uint16_t)bits);
        double want = f16_by_definition(bits);
        if (isnan(want)) {
            assert_true(isnan(value));
            assert_true(isnan(ot_f16_to_f32(ot_f16_from_f32(value))));
            continue;
        }
        assert_true((double)value == want && !signbit(value) == !signbit(want));
        assert_int_equal(ot_f16_from_f32(value), bits);
    }
}

static void test_f16_rounds_to_nearest_even(void **state) {
    (void)state;
    /* Fp32 represents the middle between two neighbours exactly. */
    for (uint32_t bits = 0; bits < 0x7bff; bits++) {
        float middle = (float)((f16_by_definition(bits) + f16_by_definition(bits + 1)) / 2);
        assert_int_equal(ot_f16_from_f32(middle), bits + (bits & 1));
        assert_int_equal(ot_f16_from_f32(-middle), (bits + (bits & 1)) | 0x8000);
        assert_int_equal(ot_f16_from_f32(nextafterf(middle, 0)), bits);
        assert_int_equal(ot_f16_from_f32(nextafterf(middle, INFINITY)), bits + 1);
    }
    assert_int_equal(ot_f16_from_f32(65504.0f), 0x7bff);
    /* Just below the middle between the largest number and 2^16. */
    assert_int_equal(ot_f16_from_f32(0x1.ffdffep15f), 0x7bff);
    assert_int_equal(ot_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(ot_f16_from_f32(-1e30f), 0xfc00);
    assert_int_equal(ot_f16_from_f32(0x1p-149f), 0);
}

/* ---- the split master ---- */

static void check_split(uint32_t bits) {
    float p = ot_f32_from_bits(bits);
    uint16_t hi;
    int16_t lo;
    ot_split_f32(p, &hi, &lo);
    if (!same(ot_join_f32(hi, lo), p))
        fail_msg("%08x splits into %04x and %d, which join to %08x", bits, hi, lo,
                 ot_f32_bits(ot_join_f32(hi, lo)));
    /* hi is a nearest bf16: no neighbour of hi is nearer to p (compared as integers of p's bits, so that
     * infinity needs no special case) */
    int64_t distance = (int64_t)bits - ((int64_t)hi << 16);
    if (distance < -0x8000 || distance > 0x8000)
        fail_msg("%08x: its high half %04x is not a nearest bf16", bits, hi);
}

static void test_split_is_lossless(void **state) {
    (void)state;
    /* every upper half with the lower halves at which rounding changes */
    static const uint32_t lows[] = {0, 1, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff};
    for (uint32_t high = 0; high <= 0xffff; high++)
        for (int i = 0; i < 8; i++)
            if ((high & 0x7f80) != 0x7f80) /* finite */
                check_split(high << 16 | lows[i]);
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t bits = ot_random_u32(11, 1, i);
        if ((bits & 0x7f800000u) != 0x7f800000u)
            check_split(bits);
    }
}

/* Ties round away from zero. Only so the remainder fits 16 bits. */
static void test_split_ties(void **state) {
    (void)state;
    uint16_t hi;
    int16_t lo;
    ot_split_f32(ot_f32_from_bits(0x3f808000), &hi, &lo);
    assert_int_equal(hi, 0x3f81);
    assert_int_equal(lo, -0x8000);
    ot_split_f32(ot_f32_from_bits(0xbf808000), &hi, &lo);
    assert_int_equal(hi, 0xbf81);
    assert_int_equal(lo, -0x8000);
    ot_split_f32(ot_f32_from_bits(0x3f807fff), &hi, &lo);
    assert_int_equal(hi, 0x3f80);
    assert_int_equal(lo, 0x7fff);
    ot_split_f32(0x1.fffffep127f, &hi, &lo); /* hi is infinity, but the pair gives the number back */
    assert_int_equal(hi, 0x7f80);
    assert_int_equal(lo, -1);
    assert_true(ot_join_f32(hi, lo) == 0x1.fffffep127f);
}

/* Except for ties, hi is p rounded to nearest even: the weight that the device computes with. */
static void test_split_high_half_is_the_bf16(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 300000; i++) {
        uint32_t bits = ot_random_u32(11, 2, i);
        uint16_t hi;
        int16_t lo;
        if ((bits & 0x7f800000u) == 0x7f800000u || (bits & 0xffff) == 0x8000)
            continue;
        ot_split_f32(ot_f32_from_bits(bits), &hi, &lo);
        assert_int_equal(hi, ot_bf16_from_f32(ot_f32_from_bits(bits)));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_sizes),
        cmocka_unit_test(test_every_bf16_returns),
        cmocka_unit_test(test_bf16_rounds_to_nearest_even),
        cmocka_unit_test(test_every_f16_returns),
        cmocka_unit_test(test_f16_rounds_to_nearest_even),
        cmocka_unit_test(test_split_is_lossless),
        cmocka_unit_test(test_split_ties),
        cmocka_unit_test(test_split_high_half_is_the_bf16),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#include "src/base/minmax.h"

#include <math.h>
#include <stdint.h>

#include "tests/support/check.h"

static void test_values(void **state) {
    (void)state;
    assert_int_equal(ot_min(3, -4), -4);
    assert_int_equal(ot_max(3, -4), 3);
    assert_int_equal(ot_min(7, 7), 7);
    assert_true(ot_min(2.5, -0.5) == -0.5);
    assert_true(ot_max(2.5f, -0.5f) == 2.5f);
    assert_int_equal(ot_max(1u, UINT32_MAX), UINT32_MAX);
}

/* A narrow argument beside a wide one: the result is wide. */
static void test_no_bits_are_lost(void **state) {
    size_t wide = (size_t)UINT32_MAX + 5;
    int narrow = 5;
    (void)state;
    assert_true(ot_max(wide, 1) == wide);
    assert_true(ot_max(narrow, INT64_MAX) == INT64_MAX);
    assert_true(ot_min(INT64_MIN, narrow) == INT64_MIN);
    assert_true(ot_min(0.25, 1) == 0.25);
    assert_int_equal(sizeof(ot_min(narrow, (int64_t)1)), 8);
    assert_int_equal(sizeof(ot_min(narrow, 1)), 4);
    assert_int_equal(sizeof(ot_max(1.0f, 2.0f)), 4);
}

/* A comparison with a NaN is false, so the second argument is the result. */
static void test_nan(void **state) {
    (void)state;
    assert_true(ot_min((double)NAN, 1.0) == 1 && ot_max((double)NAN, 1.0) == 1);
    assert_true(isnan(ot_min(1.0, (double)NAN)) && isnan(ot_max(1.0, (double)NAN)));
}

static void test_each_argument_is_evaluated_once(void **state) {
    int a = 1, b = 10;
    (void)state;
    assert_int_equal(ot_max(a++, b++), 10);
    assert_int_equal(ot_min(a++, b++), 2);
    assert_int_equal(a, 3);
    assert_int_equal(b, 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_no_bits_are_lost),
        cmocka_unit_test(test_nan),
        cmocka_unit_test(test_each_argument_is_evaluated_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

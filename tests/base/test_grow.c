#include "src/base/memory.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "tests/support/check.h"

struct item {
    char name[24];
    int64_t value;
};

static void test_elements_stay(void **state) {
    enum { N = 1000 };
    struct item *items = NULL;
    size_t capacity = 0, allocations = 0;
    (void)state;
    for (size_t n = 0; n < N; n++) {
        size_t before = capacity;
        check_ok(ot_grow(&items, &capacity, n + 1, sizeof *items, "items"));
        assert_in_range(capacity, n + 1, 2 * n + 32);
        allocations += capacity != before;
        items[n] = (struct item){"name", (int64_t)n * n};
    }
    for (int64_t n = 0; n < N; n++) {
        assert_string_equal(items[n].name, "name");
        assert_int_equal(items[n].value, n * n);
    }
    assert_in_range(allocations, 2, 12); /* 32 * 1.5^9 > 1000 */
    free(items);
}

static void test_enough_is_left_alone(void **state) {
    int32_t *numbers = NULL;
    size_t capacity = 0;
    (void)state;
    check_ok(ot_grow(&numbers, &capacity, 0, sizeof *numbers, "numbers"));
    assert_null(numbers);
    check_ok(ot_grow(&numbers, &capacity, 100, sizeof *numbers, "numbers"));
    int32_t *before = numbers;
    size_t full = capacity;
    check_ok(ot_grow(&numbers, &capacity, full, sizeof *numbers, "numbers"));
    assert_ptr_equal(numbers, before);
    assert_int_equal(capacity, full);
    check_ok(ot_grow(&numbers, &capacity, 10 * full, sizeof *numbers, "numbers"));
    assert_int_equal(capacity, 10 * full);
    memset(numbers, 1, capacity * sizeof *numbers);
    free(numbers);
}

/* Arrays of one length share a capacity: equal calls make equal capacities, whatever the elements are. */
static void test_capacity_does_not_depend_on_the_element(void **state) {
    (void)state;
    for (size_t needed = 1; needed < 5000; needed = 3 * needed + 1) {
        size_t of_bytes = needed / 2, of_items = needed / 2;
        char *bytes = calloc(of_bytes + 1, 1);
        struct item *items = calloc(of_items + 1, sizeof *items);
        assert_true(ot_try_grow(&bytes, &of_bytes, needed, 1));
        assert_true(ot_try_grow(&items, &of_items, needed, sizeof *items));
        assert_int_equal(of_bytes, of_items);
        free(bytes);
        free(items);
    }
}

static void test_too_many_bytes(void **state) {
    struct item *items = calloc(1, sizeof *items);
    struct item *const before = items;
    size_t capacity = 1, too_many = SIZE_MAX / sizeof *items + 1;
    (void)state;
    ot_error_clear();
    assert_false(ot_try_grow(&items, &capacity, too_many, sizeof *items));
    assert_string_equal(ot_error_text(), "");
    assert_int_equal(ot_grow(&items, &capacity, too_many, sizeof *items, "items"), -OT_E_BUDGET);
    assert_non_null(strstr(ot_error_text(), "no memory for 576460752303423488 items"));
    assert_ptr_equal(items, before);
    assert_int_equal(capacity, 1);
    free(items);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements_stay),
        cmocka_unit_test(test_enough_is_left_alone),
        cmocka_unit_test(test_capacity_does_not_depend_on_the_element),
        cmocka_unit_test(test_too_many_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

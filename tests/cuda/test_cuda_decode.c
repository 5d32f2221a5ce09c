/* Frozen weights decode to the same bits on cuda and on cpu: all formats, matrices and parts of them, aligned
 * and not. */
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/weight_fixture.h"

static void check_part(const struct weight_case *c, enum ot_dtype dtype, int shift) {
    struct cuda_pair p;
    cuda_run(&p, run_weight_case, c, dtype, shift);
    cuda_check_bits(&p, "decoded");
    cuda_close(&p);
}

static void check_numbered(const struct weight_case *c, int number) {
    check_part(c, (enum ot_dtype)(number % 3), number % 5);
    check_part(c, (enum ot_dtype)((number + 1) % 3), 0);
}

static void test_decode_on_both_devices(void **state) {
    (void)state;
    for_weight_cases(check_numbered);
}

/* More tiles and rows than the grid has blocks, so that blocks and threads take several. */
static void test_decode_of_many(void **state) {
    (void)state;
    for (int format = OT_WEIGHT_INT8; format < OT_WEIGHT_FORMATS; format++) {
        int64_t rows = format == OT_WEIGHT_INT8 ? 70000 : 4096 + 1,
                cols = format == OT_WEIGHT_INT8 ? 16 : 1024;
        struct weight_case c = {.weight = {(enum ot_weight_format)format, rows, cols}, .n = rows * cols};
        void *encoded = weight_example(&c.weight);
        c.encoded = encoded;
        check_part(&c, OT_BF16, 0);
        free(encoded);
    }
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_on_both_devices),
        cmocka_unit_test(test_decode_of_many),
    };
    return cmocka_run_group_tests_name("cuda_decode", tests, NULL, NULL);
}

/* The op `decode` of the cpu device: the bits of the reference (kernels/weight_format.c) in every build, on
 * any number of threads. */
#include "tests/kernels/weight_fixture.h"

#include "kernels/cpu/cpu_ops.h"

static void check_case(const struct weight_case *c, const char *build, int threads, enum ot_dtype dtype) {
    struct ops_fixture f;
    int64_t n;
    void *want = malloc((size_t)c->n * ot_dtype_bytes(dtype) + 1);
    assert_non_null(want);
    ot_weight_decode(&c->weight, c->encoded, dtype, c->first, c->n, want);
    ops_open(&f, threads, dtype);
    f.ops = ot_cpu_ops_named(build);
    run_weight_case(&f, c);
    const float *got = ops_result(&f, "decoded", &n);
    assert_int_equal(n, c->n);
    for (int64_t i = 0; i < n; i++)
        if (ot_f32_bits(got[i]) != ot_f32_bits(ot_dtype_read(dtype, want, i)))
            fail_msg("%s, %lld x %lld, weight %lld of %lld from %lld in %s, %s build: %a, not %a",
                     ot_weight_format_name(c->weight.format), (long long)c->weight.rows,
                     (long long)c->weight.cols, (long long)i, (long long)n, (long long)c->first,
                     ot_dtype_name(dtype), build, (double)got[i], (double)ot_dtype_read(dtype, want, i));
    ops_close(&f);
    free(want);
}

static void check_builds(const struct weight_case *c, int number) {
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    for (int b = 0; b < 3; b++)
        if (ot_cpu_ops_named(builds[b]))
            check_case(c, builds[b], 1 + number % 3, (enum ot_dtype)((number + b) % 3));
}

static void test_decode_is_the_reference(void **state) {
    (void)state;
    for_weight_cases(check_builds);
}

static void test_decode_on_several_threads(void **state) {
    (void)state;
    for (int format = OT_WEIGHT_INT8; format < OT_WEIGHT_FORMATS; format++) {
        struct weight_case c = {.weight = {(enum ot_weight_format)format, 333, 200}, .n = 333 * 200};
        void *encoded = weight_example(&c.weight);
        c.encoded = encoded;
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            struct ops_fixture f;
            ops_check_threads(&f, run_weight_case, &c, (enum ot_dtype)dtype);
            ops_close(&f);
        }
        free(encoded);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_decode_is_the_reference),
        cmocka_unit_test(test_decode_on_several_threads),
    };
    return cmocka_run_group_tests_name("ops_decode", tests, NULL, NULL);
}

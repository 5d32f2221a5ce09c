/* DoRA's ops against their formulas in double; the same bits on any number of threads. */
#include <math.h>

#include "kernels/cpu/cpu_ops.h"
#include "src/base/dtype.h"
#include "tests/kernels/dora_fixture.h"

/* ---- factors ---- */

/* |V| of a row, from V itself. */
static double norm_of_v(const struct dora_factors_case *c, int64_t row) {
    double sum = 0;
    for (int64_t i = 0; i < c->at.cols; i++) {
        double v = c->weight[row * c->at.cols + i];
        for (int64_t k = 0; k < c->at.rank; k++)
            v += (double)c->at.scale * c->b[row * c->at.rank + k] * c->a[k * c->at.cols + i];
        sum += v * v;
    }
    return sqrt(sum);
}

static void check_factors(const struct dora_factors_case *c, const struct ops_fixture *f) {
    const float *factor = ops_result(f, "factor", NULL), *inverse = ops_result(f, "inverse", NULL);
    for (int64_t r = 0; r < c->at.rows; r++) {
        double after = norm_of_v(c, r), error = dora_factor_error(c, r);
        const float *weight = c->weight + r * c->at.cols;
        double before = sqrt(dora_dot(weight, weight, c->at.cols));
        double want = after > 0 ? (before + (double)c->change[r]) / after : 0;
        if (after > 0)
            check_close("inverse", &inverse[r], &(float){(float)(1 / after)}, 1, 0, error / after);
        else
            assert_true(inverse[r] == 0 && factor[r] == 0);
        if (!(fabs((double)factor[r] - want) <= error * fmax(fabs(want), before / fmax(after, 1e-30))))
            fail_msg("row %d: factor %.9g, want %.9g", (int)r, (double)factor[r], want);
    }
}

static void test_factors(void **state) {
    (void)state;
    static const struct dora_factors_shape shapes[] = {{1, 1, 1, 1, 0},
                                                       {7, 33, 3, 0.5f, 0},
                                                       {40, 200, 17, -2, 0},
                                                       {300, 64, 40, 0.125f, 0},
                                                       {5, 5000, 2, 8, 0}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            struct dora_factors_case c;
            struct ops_fixture f;
            dora_factors_open(&c, &shapes[i]);
            ops_check_threads(&f, dora_factors_run, &c, (enum ot_dtype)dtype);
            check_factors(&c, &f);
            ops_close(&f);
            dora_factors_close(&c);
        }
}

/* With B zero and a change of 0, the factor is exactly 1, whatever the row's norm. A number that is not
 * finite shows. */
static void test_exact_factors(void **state) {
    (void)state;
    struct dora_factors_case c;
    struct ops_fixture f;
    dora_factors_open(&c, &(struct dora_factors_shape){200, 77, 5, 2, 0});
    for (int64_t i = 0; i < 200 * 5; i++)
        c.b[i] = i < 199 * 5 ? 0 : NAN;
    for (int64_t i = 0; i < 200; i++)
        c.change[i] = 0;
    ops_check_threads(&f, dora_factors_run, &c, OT_F32);
    const float *factor = ops_result(&f, "factor", NULL);
    for (int64_t r = 1; r < 199; r++)
        assert_true(factor[r] == 1);
    assert_true(factor[0] == 0 && isnan(factor[199]) && isnan(ops_result(&f, "inverse", NULL)[199]));
    ops_close(&f);
    dora_factors_close(&c);
}

/* ---- their use ---- */

static float rounded(enum ot_dtype dtype, float x) {
    return dtype == OT_F32    ? x
           : dtype == OT_BF16 ? ot_bf16_to_f32(ot_bf16_from_f32(x))
                              : ot_f16_to_f32(ot_f16_from_f32(x));
}

static const struct dora_shape shapes[] = {
    {1, 1, 1, 0}, {5, 200, 200, 0}, {3, 130, 300, 0}, {700, 9, 12, 0}, {257, 64, 64, 0}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static bool in_gap(const struct dora_case *c, int64_t i) {
    return i % c->at.ld >= c->at.cols;
}

static void test_use(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES * 3; s++) {
        enum ot_dtype dtype = (enum ot_dtype)(s % 3);
        struct dora_case c;
        struct ops_fixture f;
        dora_open(&c, &shapes[s / 3], false);
        ops_check_threads(&f, dora_run_forward, &c, dtype);
        const float *y = ops_result(&f, "y", NULL), *in_place = ops_result(&f, "y in place", NULL),
                    *copy = ops_result(&f, "copy", NULL), *over_less = ops_result(&f, "y over less", NULL);
        for (int64_t i = 0; i < c.at.rows * c.at.ld; i++) {
            int64_t col = i % c.at.ld;
            if (in_gap(&c, i)) {
                assert_true(isnan(y[i]) && isnan(in_place[i]) && isnan(copy[i]) && isnan(over_less[i]));
                continue;
            }
            float product = c.u[i] * c.factor[col];
            assert_true(y[i] == rounded(dtype, (product + c.bias[col]) + c.addend[i]));
            float change = product - c.less[i];
            assert_true(over_less[i] == rounded(dtype, (change + c.bias[col]) + c.addend[i]));
            assert_true(in_place[i] == rounded(dtype, c.u[i] + c.addend[i]));
            assert_true(copy[i] == rounded(dtype, c.addend[i]));
        }
        ops_close(&f);
        dora_close(&c);
    }
}

/* ---- backward ---- */

static void check_backward(const struct dora_case *c, const struct ops_fixture *f) {
    const float *du = ops_result(f, "du", NULL), *copy = ops_result(f, "copy", NULL),
                *dchange = ops_result(f, "dchange", NULL), *alone = ops_result(f, "dchange alone", NULL);
    assert_memory_equal(dchange, alone, (size_t)c->at.cols * sizeof *dchange);
    for (int64_t i = 0; i < c->at.rows * c->at.ld; i++)
        if (in_gap(c, i))
            assert_true(isnan(du[i]) && isnan(copy[i]));
        else
            assert_true(du[i] == rounded(f->dtype, c->dy[i] * c->factor[i % c->at.ld]) &&
                        copy[i] == c->dy[i]);
    for (int64_t col = 0; col < c->at.cols; col++) {
        double bound, want = dora_change(c, col, &bound);
        if (!(fabs((double)dchange[col] - want) <= bound))
            fail_msg("column %d: %.9g, want %.9g", (int)col, (double)dchange[col], want);
    }
}

static void test_dora_backward(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES * 6; s++) {
        struct dora_case c;
        struct ops_fixture f;
        dora_open(&c, &shapes[s / 6], s % 2);
        ops_check_threads(&f, dora_run_backward, &c, (enum ot_dtype)(s / 2 % 3));
        check_backward(&c, &f);
        ops_close(&f);
        dora_close(&c);
    }
}

/* ---- instruction sets ---- */

static void test_dora_builds(void **state) {
    (void)state;
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    struct dora_factors_case factors;
    struct dora_case use;
    dora_factors_open(&factors, &(struct dora_factors_shape){40, 333, 18, 0.5f, 0});
    dora_open(&use, &(struct dora_shape){70, 333, 340, 0}, true);
    for (int b = 0; b < 3 * 3; b++) {
        enum ot_dtype dtype = (enum ot_dtype)(b % 3);
        if (!ot_cpu_ops_named(builds[b / 3]))
            continue;
        ops_check_build(dora_factors_run, &factors, builds[b / 3], dtype);
        ops_check_build(dora_run_forward, &use, builds[b / 3], dtype);
        ops_check_build(dora_run_backward, &use, builds[b / 3], dtype);
    }
    dora_factors_close(&factors);
    dora_close(&use);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factors),     cmocka_unit_test(test_exact_factors),
        cmocka_unit_test(test_use),         cmocka_unit_test(test_dora_backward),
        cmocka_unit_test(test_dora_builds),
    };
    return cmocka_run_group_tests_name("dora", tests, NULL, NULL);
}

/* DoRA's ops on the cuda device against the cpu device: the same bits where no sum is computed, else bounds
 * by the lengths of the sums (tests/kernels/dora_fixture.h). */
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/dora_fixture.h"

/* Both devices may be off by a row's bound; the absolute value of a factor is at most that of the norms'
 * quotient and of the change's. */
static double *factor_bounds(const struct dora_factors_case *c, const struct cuda_pair *p, const char *name) {
    const float *values = ops_result(&p->cpu, name, NULL);
    double *each = calloc((size_t)c->at.rows, sizeof *each);
    assert_non_null(each);
    for (int64_t r = 0; r < c->at.rows; r++)
        each[r] = 2 * dora_factor_error(c, r) *
                  (fabs((double)values[r]) +
                   2 * fabs((double)c->change[r]) * (double)ops_result(&p->cpu, "inverse", NULL)[r]);
    return each;
}

static void test_dora_factors(void **state) {
    (void)state;
    /* a part of a warp for each row, a warp, a block; ranks beyond the team; rows off 16 bytes */
    static const struct dora_factors_shape factors[] = {{1, 1, 1, 1, 0},      {7, 33, 3, 0.5f, 0},
                                                        {40, 200, 17, -2, 1}, {9, 520, 40, 2, 0},
                                                        {3, 1100, 70, 1, 2},  {2, 8200, 5, 8, 0}};
    for (size_t i = 0; i < sizeof factors / sizeof *factors; i++)
        for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
            static const char *const names[] = {"factor", "inverse"};
            struct dora_factors_case c;
            struct cuda_pair p;
            dora_factors_open(&c, &factors[i]);
            cuda_run(&p, dora_factors_run, &c, (enum ot_dtype)dtype, factors[i].shift);
            for (int n = 0; n < 2; n++) {
                double *each = factor_bounds(&c, &p, names[n]);
                cuda_check_close(&p, names[n], &(struct cuda_bound){.each = each});
                free(each);
            }
            cuda_close(&p);
            dora_factors_close(&c);
        }
}

/* Contiguous; wider rows; no packs; one column; more chunks than a group has; rows off 16 bytes. */
static const struct dora_shape shapes[] = {{5, 200, 200, 0}, {70, 264, 528, 0}, {65, 129, 131, 3},
                                           {300, 1, 2, 0},   {2100, 9, 12, 0},  {66, 72, 72, 2}};
enum { SHAPES = sizeof shapes / sizeof *shapes };

static void test_dora_use(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES * 3; s++) {
        struct dora_case c;
        struct cuda_pair p;
        dora_open(&c, &shapes[s / 3], false);
        cuda_run(&p, dora_run_forward, &c, (enum ot_dtype)(s % 3), shapes[s / 3].shift);
        cuda_check_bits(&p, "y");
        cuda_check_bits(&p, "y over less");
        cuda_check_bits(&p, "y in place");
        cuda_check_bits(&p, "copy");
        cuda_close(&p);
        dora_close(&c);
    }
}

static void check_backward(const struct dora_shape *shape, bool wide, enum ot_dtype dtype) {
    struct dora_case c;
    struct cuda_pair p;
    double *each = calloc((size_t)shape->cols, sizeof *each);
    assert_non_null(each);
    dora_open(&c, shape, wide);
    for (int64_t col = 0; col < shape->cols; col++) {
        dora_change(&c, col, &each[col]);
        each[col] *= 2;
    }
    cuda_run(&p, dora_run_backward, &c, dtype, shape->shift);
    cuda_check_bits(&p, "copy");
    cuda_check_bits(&p, "du");
    cuda_check_close(&p, "dchange", &(struct cuda_bound){.each = each});
    cuda_check_close(&p, "dchange alone", &(struct cuda_bound){.each = each});
    cuda_close(&p);
    dora_close(&c);
    free(each);
}

static void test_dora_gradients(void **state) {
    (void)state;
    for (int s = 0; s < SHAPES * 6; s++)
        check_backward(&shapes[s / 6], s % 2, (enum ot_dtype)(s / 2 % 3));
    /* more columns than one launch sums */
    check_backward(&(struct dora_shape){3, 65536 + 40, 65536 + 48, 0}, true, OT_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dora_factors),
        cmocka_unit_test(test_dora_use),
        cmocka_unit_test(test_dora_gradients),
    };
    cuda_skip_without_device();
    return cmocka_run_group_tests_name("cuda_dora", tests, NULL, NULL);
}

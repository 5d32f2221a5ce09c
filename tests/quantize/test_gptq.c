/* GPTQ against the algorithm of the paper in fp64 (scripts/golden/gptq.py), and its factor of the Hessian. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/thread.h"
#include "src/quantize/gptq.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

enum { ROWS = 40, COLS = 192 };

static const struct setting {
    const char *name;
    struct ot_gptq_config config;
} settings[] = {
    {"4-32-act-sym", {4, 32, true, true, 0.01}},    {"3-64-asym", {3, 64, false, false, 0.01}},
    {"2-all-act-asym", {2, -1, true, false, 0.01}}, {"8-128-sym", {8, 128, false, true, 0.01}},
    {"4-32-asym", {4, 32, false, false, 0.01}},
};

struct result {
    float weights[ROWS * COLS], scales[ROWS * COLS];
    uint8_t codes[ROWS * COLS], zeros[ROWS * COLS];
    int32_t index[COLS];
    double error[ROWS], power[ROWS];
};

static int run(int threads, const struct ot_gptq_config *config, const float *weights, const float *hessian,
               struct result *out) {
    struct ot_pool *pool;
    check_ok(ot_pool_open(threads, "test", &pool));
    memset(out, 0, sizeof *out);
    memcpy(out->weights, weights, sizeof out->weights);
    const struct ot_gptq job = {.config = config,
                                .rows = ROWS,
                                .cols = COLS,
                                .hessian = hessian,
                                .weights = out->weights,
                                .codes = out->codes,
                                .scales = out->scales,
                                .zeros = out->zeros,
                                .index = out->index,
                                .error = out->error,
                                .power = out->power};
    int rc = ot_gptq_run(pool, &job);
    ot_pool_close(pool);
    return rc;
}

/* tr((W - Q) H (W - Q)^T), in fp64. */
static double error_of(const float *weights, const float *values, const float *hessian) {
    double sum = 0;
    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < COLS; i++)
            for (int j = 0; j < COLS; j++)
                sum += ((double)weights[r * COLS + i] - (double)values[r * COLS + i]) *
                       (double)hessian[i * COLS + j] *
                       ((double)weights[r * COLS + j] - (double)values[r * COLS + j]);
    return sum;
}

/* The values are those of the file's numbers. */
static void check_values(const struct result *got, int bits) {
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) {
            int at = got->index[c] * ROWS + r;
            int code = got->codes[r * COLS + c];
            assert_true(code < 1 << bits);
            assert_true(got->scales[at] == ot_f16_to_f32(ot_f16_from_f32(got->scales[at])));
            assert_true(got->weights[r * COLS + c] == got->scales[at] * (float)(code - got->zeros[at]));
        }
}

/* The sweep is in fp32: a weight that lies between two codes may get the other one than in fp64, which
 * changes the error by what the two differ, next to nothing, and then all weights behind it. So few codes
 * differ, and the errors by less than 1 %. */
static void test_errors_are_those_of_the_paper(void **state) {
    struct ot_golden *golden = golden_open("gptq.bin");
    const float *weights = golden_f32(golden, "weights", NULL),
                *hessian = golden_f32(golden, "hessian", NULL);
    struct result *one = malloc(sizeof *one), *three = malloc(sizeof *three);
    (void)state;
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        char name[64];
        snprintf(name, sizeof name, "%s.codes", settings[s].name);
        const int32_t *codes = golden_i32(golden, name, NULL);
        snprintf(name, sizeof name, "%s.error", settings[s].name);
        double want = golden_f64(golden, name, NULL)[0], total = 0, power = 0;
        check_ok(run(1, &settings[s].config, weights, hessian, one));
        check_ok(run(3, &settings[s].config, weights, hessian, three));
        assert_memory_equal(one, three, sizeof *one);
        check_values(one, settings[s].config.bits);
        double got = error_of(weights, one->weights, hessian);
        if (!(got <= 1.01 * want))
            fail_msg("%s: the error is %g, in fp64 %g", settings[s].name, got, want);
        int64_t equal = 0;
        for (int i = 0; i < ROWS * COLS; i++)
            equal += one->codes[i] == codes[i];
        if (equal < ROWS * COLS * 97 / 100)
            fail_msg("%s: only %lld of %d codes are those of fp64", settings[s].name, (long long)equal,
                     ROWS * COLS);
        for (int r = 0; r < ROWS; r++) {
            total += one->error[r];
            power += one->power[r];
        }
        /* with the damped H, which is larger by 1 % of its mean diagonal */
        assert_true(total >= 0.999 * got && total <= 1.5 * got);
        assert_true(fabs(power - golden_f64(golden, "power", NULL)[0]) <= 1e-4 * power);
    }
    free(one);
    free(three);
    golden_close(golden);
}

static void test_wrong_inputs_are_refused(void **state) {
    struct ot_golden *golden = golden_open("gptq.bin");
    float *weights = malloc(sizeof *weights * ROWS * COLS), *hessian = malloc(sizeof *hessian * COLS * COLS);
    struct ot_gptq_config config = {4, 32, false, true, 0.01};
    struct result *result = malloc(sizeof *result);
    (void)state;
    memcpy(weights, golden_f32(golden, "weights", NULL), sizeof *weights * ROWS * COLS);
    memcpy(hessian, golden_f32(golden, "hessian", NULL), sizeof *hessian * COLS * COLS);
    hessian[5 * COLS + 5] = NAN;
    check_fails(run(2, &config, weights, hessian, result), OT_E_NUMERIC, "inputs of the calibration rows");
    hessian[5 * COLS + 5] = -1e9f;
    check_fails(run(2, &config, weights, hessian, result), OT_E_NUMERIC, "not positive definite");
    memcpy(hessian, golden_f32(golden, "hessian", NULL), sizeof *hessian * COLS * COLS);
    weights[7 * COLS] = 3e7f;
    check_fails(run(2, &config, weights, hessian, result), OT_E_INPUT,
                "row 7 are too large for scales in fp16");
    free(result);
    free(hessian);
    free(weights);
    golden_close(golden);
}

/* Without a Hessian, each weight gets the nearest of its group's values, in the order of the columns. A scale
 * that fp16 rounds down leaves the largest weight up to 255 2^-11 of a scale outside of 8 bits. */
static void test_without_a_hessian_weights_are_rounded(void **state) {
    struct ot_golden *golden = golden_open("gptq.bin");
    const float *weights = golden_f32(golden, "weights", NULL);
    struct result *one = malloc(sizeof *one), *three = malloc(sizeof *three);
    (void)state;
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        const struct ot_gptq_config *config = &settings[s].config;
        int64_t group = config->group_size < 0 ? COLS : config->group_size;
        check_ok(run(1, config, weights, NULL, one));
        check_ok(run(3, config, weights, NULL, three));
        assert_memory_equal(one, three, sizeof *one);
        check_values(one, config->bits);
        for (int r = 0; r < ROWS; r++) {
            double error = 0, power = 0;
            for (int c = 0; c < COLS; c++) {
                double weight = (double)weights[r * COLS + c],
                       lost = weight - (double)one->weights[r * COLS + c];
                assert_int_equal(one->index[c], c / group);
                assert_true(fabs(lost) <= 0.625 * (double)one->scales[c / group * ROWS + r]);
                error += lost * lost;
                power += weight * weight;
            }
            assert_true(fabs(one->error[r] - error) <= 1e-12 * error);
            assert_true(fabs(one->power[r] - power) <= 1e-12 * power);
        }
    }
    free(one);
    free(three);
    golden_close(golden);
}

/* U^T U H = 1, for sizes with and without a last tile that is smaller. */
static void test_factor_is_of_the_inverse(void **state) {
    static const int sizes[] = {1, 2, 127, 128, 129, 300};
    struct ot_pool *pool;
    (void)state;
    check_ok(ot_pool_open(2, "test", &pool));
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        int n = sizes[s];
        double *h = calloc((size_t)n * (size_t)n, sizeof *h), *u = malloc((size_t)n * (size_t)n * sizeof *u);
        for (int i = 0; i < n; i++)
            for (int j = 0; j <= i; j++) {
                double value = (double)(mix_bits((uint64_t)(i * n + j)) % 1000) / 1000 - 0.5;
                h[i * n + j] = h[j * n + i] = i == j ? 1 + sqrt((double)n) : value;
            }
        memcpy(u, h, (size_t)n * (size_t)n * sizeof *u);
        check_ok(ot_factor_inverse(pool, n, u));
        double *uh = calloc((size_t)n * (size_t)n, sizeof *uh);
        for (int i = 0; i < n; i++)
            for (int k = 0; k < n; k++)
                for (int j = 0; j < n; j++)
                    uh[i * n + j] += u[i * n + k] * h[k * n + j];
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++) {
                double sum = 0;
                for (int k = 0; k <= i; k++)
                    sum += u[k * n + i] * uh[k * n + j];
                assert_true(j >= i || u[i * n + j] == 0);
                assert_true(fabs(sum - (i == j)) < 1e-10);
            }
        free(uh);
        free(u);
        free(h);
    }
    ot_pool_close(pool);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_factor_is_of_the_inverse),
        cmocka_unit_test(test_errors_are_those_of_the_paper),
        cmocka_unit_test(test_without_a_hessian_weights_are_rounded),
        cmocka_unit_test(test_wrong_inputs_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

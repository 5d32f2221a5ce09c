/* NEFTune and the balancing loss of experts on the cuda device against the cpu device: the same bits. */
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/regular_fixture.h"

static void test_neftune(void **state) {
    (void)state;
    /* n, cols, tokens of a row; one token, rows of one token, one row, a cut row, more columns than threads */
    static const int64_t shapes[][3] = {{1, 5, 1}, {40, 16, 1}, {33, 31, 33}, {50, 8, 16}, {3, 700, 2}};
    for (size_t i = 0; i < 3 * sizeof shapes / sizeof *shapes; i++) {
        const int64_t *shape = shapes[i / 3];
        int32_t row_start[64];
        float *x = ops_random(i, shape[0] * shape[1], 1);
        for (int64_t t = 0; t < shape[0]; t++)
            row_start[t] = (int32_t)(t / shape[2] * shape[2]);
        const struct neftune_case c = {shape[0], shape[1], 5, ot_state_noise(9, i), row_start, x};
        struct cuda_pair p;
        cuda_run(&p, neftune_run, &c, (enum ot_dtype)(i % 3), 0);
        cuda_check_bits(&p, "noisy");
        cuda_close(&p);
        free(x);
    }
}

static void test_balance(void **state) {
    (void)state;
    static const char *const names[] = {"counts", "sums", "loss", "slopes", "first", "second"};
    /* n, experts, top, gap; fewer tokens than parts, parts that fill no block, one expert, the most experts */
    static const int64_t shapes[][4] = {{9, 8, 2, 0}, {700, 40, 5, 3}, {3, 1, 1, 2}, {70, 1024, 16, 0}};
    for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
        const int64_t *shape = shapes[i / 2], ld = shape[1] + shape[3];
        float *logits = ops_random(i, BALANCE_LAYERS * shape[0] * ld, 2),
              *dweights = ops_random(9, shape[0] * shape[2], 1);
        int32_t *targets = malloc((size_t)shape[0] * sizeof *targets);
        assert_non_null(targets);
        for (int64_t t = 0; t < shape[0]; t++)
            targets[t] = t % 3 == 1 ? -1 : 2;
        const struct balance_case c = {shape[0], shape[1], shape[2], ld,     i % 2,
                                       0.02f,    0.01f,    targets,  logits, dweights};
        struct cuda_pair p;
        cuda_run(&p, balance_run, &c, (enum ot_dtype)(i % 3), 0);
        for (int n = 0; n < 6; n++)
            cuda_check_bits(&p, names[n]);
        cuda_close(&p);
        free(logits);
        free(dweights);
        free(targets);
    }
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_neftune), cmocka_unit_test(test_balance)};
    return cmocka_run_group_tests_name("cuda_regular", tests, NULL, NULL);
}

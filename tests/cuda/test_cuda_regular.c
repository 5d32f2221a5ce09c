/* NEFTune, the balancing loss of experts, and dropout of attention's weights on the cuda device against the
 * cpu device: the same bits, but for the attention of decoders, whose sums have another order. */
#include "tests/cuda/cuda_fixture.h"
#include "tests/kernels/regular_fixture.h"

static void test_neftune(void **state) {
    (void)state;
    /* n, cols, tokens of a row; one token, rows of one token, one row, a cut row, many columns */
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
    /* n, experts, top, gap; fewer tokens than parts, parts that fill no block, one expert, most experts */
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

/* The errors of sums are far below the least difference that another choice of dropped weights would make. */
static void test_drop(void **state) {
    (void)state;
    static const char *const names[] = {"out", "dq", "dk", "dv"};
    const struct ot_state_noise noise = ot_state_noise(3, 4);
    /* The last two are cases of tensor cores, if nothing is dropped. */
    struct drop_case cases[] = {{false, 70, 4, 2, 24, 70, 0, {0.3f, noise}, {0}},
                                {false, 50, 2, 2, 16, 17, 2, {0.6f, noise}, {0}},
                                {true, 50, 2, 2, 16, 17, 0, {0.2f, noise}, {0}},
                                {false, 40, 2, 1, 64, 40, 0, {0.3f, noise}, {0}},
                                {true, 40, 2, 2, 64, 23, 0, {0.3f, noise}, {0}}};
    for (int i = 0; i < 5; i++) {
        struct drop_case *c = &cases[i];
        struct cuda_pair p;
        drop_open(c);
        cuda_run(&p, drop_run, c, i < 3 ? OT_F32 : OT_BF16, 0);
        for (int n = 0; n < 4; n++) {
            int64_t elems = c->n * drop_width(c, n == 0 ? DROP_Q : n - 1);
            double *each = malloc((size_t)elems * sizeof *each);
            assert_non_null(each);
            for (int64_t j = 0; j < elems; j++)
                each[j] = i < 3 ? 1e-5 : 0.03;
            if (c->spans)
                cuda_check_bits(&p, names[n]);
            else
                cuda_check_close(&p, names[n], &(struct cuda_bound){.each = each});
            free(each);
        }
        cuda_close(&p);
        drop_close(c);
    }
}

int main(void) {
    cuda_choose_card();
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_neftune), cmocka_unit_test(test_balance),
                                       cmocka_unit_test(test_drop)};
    return cmocka_run_group_tests_name("cuda_regular", tests, NULL, NULL);
}

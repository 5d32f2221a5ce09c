/* Cross-entropy and capped logits: PyTorch's values, ignored rows, wide rows, the same bits on any number of
 * threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/compare_case.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

/* ---- cross-entropy ---- */

struct loss_case {
    int64_t rows, vocab, ld;
    const float *logits; /* [rows, ld] */
    const int32_t *targets;
    float softcap, smoothing, z_weight;
};

static void run_loss(struct ops_fixture *f, const void *argument) {
    const struct loss_case *c = argument;
    struct ot_cross_entropy op = {.rows = c->rows,
                                  .vocab = c->vocab,
                                  .ld = c->ld,
                                  .grad_dtype = f->dtype,
                                  .softcap = c->softcap,
                                  .smoothing = c->smoothing,
                                  .z_weight = c->z_weight,
                                  .marks_hits = true,
                                  .grad_scale = 0.125f};
    op.targets = ops_upload_ids(f, c->targets, c->rows);
    op.logits = ops_upload(f, OT_F32, c->logits, c->rows * c->ld);
    op.loss = ops_blank_values(f, OT_F32, c->rows);
    f->ops->cross_entropy(f->lane, &op);
    ops_collect(f, "loss alone", OT_F32, op.loss, c->rows);
    ops_collect(f, "logits kept", OT_F32, op.logits, c->rows * c->ld);
    op.marks_hits = false;
    op.ld_grad = c->ld;
    op.grad =
        f->dtype == OT_F32 ? (void *)(uintptr_t)op.logits : ops_blank_values(f, f->dtype, c->rows * c->ld);
    f->ops->cross_entropy(f->lane, &op);
    ops_collect(f, "loss", OT_F32, op.loss, c->rows);
    ops_collect(f, "grad", f->dtype, op.grad, c->rows * c->ld);
}

static void check_loss_gradient(const struct ops_fixture *f, const struct loss_case *c, const float *want,
                                double absolute, double relative) {
    for (int64_t row = 0; row < c->rows; row++)
        check_close("grad", ops_result(f, "grad", NULL) + row * c->ld, want + row * c->vocab, c->vocab,
                    absolute, relative);
}

/* A loss is negative, or -0, exactly where no logit is larger than the target's. Returns how many are. A
 * softcap makes large logits equal. */
static int check_hits(const struct ops_fixture *f, const struct loss_case *c) {
    const float *marked = ops_result(f, "loss alone", NULL), *loss = ops_result(f, "loss", NULL);
    int hits = 0;
    for (int64_t row = 0; row < c->rows; row++) {
        const float *logits = c->logits + row * c->ld;
        bool is_hit = c->targets[row] >= 0;
        for (int64_t i = 0; is_hit && i < c->vocab; i++)
            is_hit = logits[i] <= logits[c->targets[row]];
        assert_true(c->softcap != 0 ? signbit(marked[row]) || !is_hit
                                    : (signbit(marked[row]) != 0) == is_hit);
        assert_true(fabsf(marked[row]) == loss[row] && !signbit(loss[row]));
        hits += is_hit;
    }
    return hits;
}

/* numbers: softcap, smoothing and weight of the z-loss. */
static void check_loss_golden(struct ot_golden *golden, const char *name, const float *numbers) {
    char array[64];
#define ARRAY(field) (snprintf(array, sizeof array, "%s.%s", name, field), array)
    struct loss_case c = {.softcap = numbers[0], .smoothing = numbers[1], .z_weight = numbers[2]};
    c.logits = golden_f32(golden, ARRAY("logits"), NULL);
    c.rows = golden_dim(golden, array, 0);
    c.vocab = c.ld = golden_dim(golden, array, 1);
    c.targets = golden_i32(golden, ARRAY("targets"), NULL);
    const float *loss = golden_f32(golden, ARRAY("loss"), NULL),
                *grad = golden_f32(golden, ARRAY("grad"), NULL);
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct ops_fixture f;
        ops_check_threads(&f, run_loss, &c, (enum ot_dtype)dtype);
        check_close("loss", ops_result(&f, "loss", NULL), loss, c.rows, 1e-6, 5e-7);
        check_hits(&f, &c);
        assert_memory_equal(ops_result(&f, "logits kept", NULL), c.logits,
                            (size_t)(c.rows * c.ld) * sizeof *loss);
        /* Half a unit of the last place; in fp16 at least half of the smallest subnormal. */
        static const double relative[] = {1e-6, 0x1p-8, 0x1p-11};
        check_loss_gradient(&f, &c, grad, dtype == OT_F16 ? 0x1p-25 : 1e-8, relative[dtype]);
        ops_close(&f);
    }
#undef ARRAY
}

static void test_cross_entropy(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    const float none[3] = {0}, capped[3] = {golden_f32(golden, "cross_entropy.capped.softcap", NULL)[0]};
    check_loss_golden(golden, "cross_entropy", none);
    check_loss_golden(golden, "cross_entropy.capped", capped);
    golden_close(golden);
}

/* Label smoothing and z-loss, alone and together. */
static void test_regular_cross_entropy(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("regular.bin");
    check_loss_golden(golden, "smoothed", golden_f32(golden, "smoothed.numbers", NULL));
    check_loss_golden(golden, "steady", golden_f32(golden, "steady.numbers", NULL));
    check_loss_golden(golden, "both", golden_f32(golden, "both.numbers", NULL));
    golden_close(golden);
}

/* A real vocabulary in padded rows: gradients sum to 0, rows with an ignored target are zeros, and infinite
 * logits give an infinite loss or a NaN. */
static void test_cross_entropy_wide(void **state) {
    (void)state;
    enum { ROWS = 7, VOCAB = 32003, LD = 32016 };
    float *logits = ops_random(1, ROWS * LD, 3);
    int32_t targets[ROWS] = {0, VOCAB - 1, -1, 5, 77, 31999, 12345};
    struct loss_case c = {ROWS, VOCAB, LD, logits, targets, 0, 0, 0};
    struct ops_fixture f;
    logits[4 * LD + 77] = 14;                          /* the largest */
    logits[5 * LD + 31999] = logits[5 * LD + 3] = 14;  /* as large as another one */
    logits[6 * LD + 12345] = 200;                      /* a loss of 0 */
    logits[0] = nextafterf(logits[VOCAB + 5] = 14, 0); /* nearly the largest; the other one is padding */
    logits[2] = 14;
    ops_check_threads(&f, run_loss, &c, OT_F32);
    assert_int_equal(check_hits(&f, &c), 3);
    assert_true(ops_result(&f, "loss alone", NULL)[6] == 0);
    for (int row = 0; row < ROWS; row++) {
        const float *grad = ops_result(&f, "grad", NULL) + (int64_t)row * LD;
        double sum = 0, total = 0;
        for (int i = 0; i < VOCAB; i++) {
            sum += grad[i];
            total += exp((double)logits[row * LD + i]);
        }
        double want = targets[row] < 0 ? 0 : log(total) - logits[row * LD + targets[row]];
        assert_true(fabs(ops_result(&f, "loss", NULL)[row] - want) < 2e-6 * 15);
        assert_true(fabs(sum) < 1e-6);
        assert_true(targets[row] >= 0 || (grad[0] == 0 && grad[VOCAB - 1] == 0));
    }
    ops_close(&f);
    logits[3 * LD + 9] = INFINITY;
    ops_open(&f, 2, OT_F32);
    run_loss(&f, &c);
    assert_false(isfinite(ops_result(&f, "loss", NULL)[3]));
    assert_true(isfinite(ops_result(&f, "loss", NULL)[4]));
    ops_close(&f);
    free(logits);
}

/* ---- softcap ---- */

struct softcap_case {
    int64_t n;
    float cap;
    const float *x;
};

static void run_softcap(struct ops_fixture *f, const void *argument) {
    const struct softcap_case *c = argument;
    float *x = ops_upload(f, OT_F32, c->x, c->n);
    f->ops->softcap(f->lane, &(struct ot_softcap){c->n, c->cap, x});
    ops_collect(f, "capped", OT_F32, x, c->n);
}

/* Every build of the ops has the same bits. */
static void check_builds(ops_case run, const void *argument, enum ot_dtype dtype) {
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    for (int b = 0; b < 3; b++)
        if (ot_cpu_ops_named(builds[b]))
            ops_check_build(run, argument, builds[b], dtype);
}

static void test_softcap(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("ops.bin");
    struct softcap_case c = {.cap = golden_f32(golden, "cross_entropy.capped.softcap", NULL)[0]};
    c.x = golden_f32(golden, "cross_entropy.capped.logits", &c.n);
    struct ops_fixture f;
    ops_check_threads(&f, run_softcap, &c, OT_F32);
    /* The division, tanh and the product: four ulp. */
    check_close("capped", ops_result(&f, "capped", NULL),
                golden_f32(golden, "cross_entropy.capped.capped", NULL), c.n, 0, 4 * 0x1p-23);
    ops_close(&f);
    golden_close(golden);
}

/* More elements than a chunk; infinities become the cap, NaN stays. */
static void test_softcap_edges(void **state) {
    (void)state;
    static const float edges[] = {INFINITY, -INFINITY, NAN, 0.0f, -0.0f, 0x1p-149f, 3e38f};
    enum { N = 40003, EDGES = sizeof edges / sizeof *edges };
    float *x = ops_random(1, N, 60);
    memcpy(x + 17, edges, sizeof edges);
    struct softcap_case c = {N, 30, x};
    struct ops_fixture f;
    ops_check_threads(&f, run_softcap, &c, OT_F32);
    const float *got = ops_result(&f, "capped", NULL) + 17;
    assert_true(got[0] == 30 && got[1] == -30 && isnan(got[2]) && got[3] == 0 && got[6] == 30);
    assert_true(got[4] == 0 && got[5] >= 0);
    ops_close(&f);
    check_builds(run_softcap, &c, OT_F32);
    free(x);
}

/* The loss over capped logits is the loss that the uncapped op computes of the logits that ot_softcap wrote,
 * bit for bit; and its gradient is that gradient times the slope. */
static void test_capped_loss_is_the_loss_of_capped_logits(void **state) {
    (void)state;
    enum { ROWS = 3, VOCAB = 5003 };
    static const int32_t targets[ROWS] = {5002, 17, -100};
    const float cap = 30;
    float *logits = ops_random(1, ROWS * VOCAB, 40);
    struct softcap_case capping = {ROWS * VOCAB, cap, logits};
    struct ops_fixture capped, f, g;
    ops_open(&capped, 2, OT_F32);
    run_softcap(&capped, &capping);
    struct loss_case after = {ROWS, VOCAB, VOCAB, ops_result(&capped, "capped", NULL), targets, 0, 0, 0};
    struct loss_case inside = {ROWS, VOCAB, VOCAB, logits, targets, cap, 0, 0};
    ops_check_threads(&f, run_loss, &inside, OT_F32);
    ops_open(&g, 2, OT_F32);
    run_loss(&g, &after);
    assert_memory_equal(ops_result(&f, "loss", NULL), ops_result(&g, "loss", NULL), ROWS * sizeof(float));
    const float *got = ops_result(&f, "grad", NULL), *plain = ops_result(&g, "grad", NULL);
    for (int i = 0; i < ROWS * VOCAB; i++) {
        double slope = 1 - pow(tanh((double)logits[i] / cap), 2);
        assert_true(fabs(got[i] - plain[i] * slope) <= 1e-6 * fabs(plain[i] * slope) + 0x1p-130);
    }
    check_builds(run_loss, &inside, OT_BF16);
    ops_close(&g);
    ops_close(&f);
    ops_close(&capped);
    free(logits);
}

/* ---- weights of tokens ---- */

/* A weight multiplies the gradient of its row and leaves the loss alone; 0.5 and 2 are exact. */
static void run_weighted(struct ops_fixture *f, const void *argument) {
    enum { ROWS = 3, VOCAB = 50 };
    const float *weights = argument;
    static const int32_t targets[ROWS] = {7, -1, 49};
    float *logits = ops_random(9, ROWS * VOCAB, 2);
    struct ot_cross_entropy op = {.rows = ROWS,
                                  .vocab = VOCAB,
                                  .ld = VOCAB,
                                  .ld_grad = VOCAB,
                                  .targets = ops_upload_ids(f, targets, ROWS),
                                  .logits = ops_upload(f, OT_F32, logits, ROWS * VOCAB),
                                  .loss = ops_blank_values(f, OT_F32, ROWS),
                                  .grad = ops_blank_values(f, OT_F32, ROWS * VOCAB),
                                  .grad_dtype = OT_F32,
                                  .grad_scale = 0.25f,
                                  .weights = weights ? ops_upload(f, OT_F32, weights, ROWS) : NULL};
    f->ops->cross_entropy(f->lane, &op);
    ops_collect(f, "loss", OT_F32, op.loss, ROWS);
    ops_collect(f, "grad", OT_F32, op.grad, ROWS * VOCAB);
    free(logits);
}

static void weights_multiply_gradients(void **state) {
    (void)state;
    static const float weights[] = {-2, 3, 0.5f};
    struct ops_fixture plain, weighted;
    ops_open(&plain, 1, OT_F32);
    ops_open(&weighted, 2, OT_F32);
    run_weighted(&plain, NULL);
    run_weighted(&weighted, weights);
    assert_memory_equal(ops_result(&plain, "loss", NULL), ops_result(&weighted, "loss", NULL),
                        3 * sizeof(float));
    for (int i = 0; i < 150; i++)
        assert_true(ops_result(&weighted, "grad", NULL)[i] ==
                    ops_result(&plain, "grad", NULL)[i] * weights[i / 50]);
    ops_close(&plain);
    ops_close(&weighted);
}

/* ---- comparisons ---- */

/* The loss of a case, without the op's sums. l: the log-probabilities. */
static double loss_of(const struct compare_case *c, const double *l, double z) {
    double sum = 0;
    for (int i = 0; i < COMPARE_N; i++)
        sum += ot_compare_loss(&c->objective, &c->comparisons[i], l + 2 * i, z).loss;
    return sum;
}

/* A token's weight is the derivative of the loss with respect to the token's loss; tokens outside of answers
 * have none. Derivatives are taken from differences: the error of 1e-4 squared, and of rounding. */
static void check_weights(const struct compare_case *c, const struct ops_fixture *f, double *l, double z) {
    const float *weights = ops_result(f, "weights", NULL);
    int32_t at = 0;
    for (int i = 0; i < 2 * COMPARE_N; i++) {
        const struct ot_comparison *one = &c->comparisons[i / 2];
        int32_t begin = i % 2 ? one->middle : one->begin, end = i % 2 ? one->end : one->middle;
        double was = l[i], above, below;
        l[i] = was + 1e-4;
        above = loss_of(c, l, z);
        l[i] = was - 1e-4;
        below = loss_of(c, l, z);
        l[i] = was;
        for (; at < begin; at++)
            assert_true(weights[at] == 0);
        for (; at < end; at++)
            if (!(fabs((double)weights[at] + (above - below) / 2e-4) < 1e-6))
                fail_msg("%s: token %d weighs %g, not %g", ot_objective_name(c->objective.kind), at,
                         (double)weights[at], -(above - below) / 2e-4);
    }
    for (; at < COMPARE_TOKENS; at++)
        assert_true(weights[at] == 0);
}

static void weights_are_derivatives(void **state) {
    (void)state;
    for (int kind = OT_OBJECTIVE_DPO; kind < OT_OBJECTIVES; kind++) {
        struct compare_case c = compare_case_make((enum ot_objective_kind)kind);
        struct ops_fixture f;
        double l[2 * COMPARE_N] = {0}, z = 0, good = 0;
        ops_open(&f, 1, OT_F32);
        compare_case_run(&f, &c);
        for (int i = 0; i < 2 * COMPARE_N; i++) {
            const struct ot_comparison *one = &c.comparisons[i / 2];
            for (int t = i % 2 ? one->middle : one->begin; t < (i % 2 ? one->end : one->middle); t++)
                l[i] -= (double)c.losses[t];
            assert_true(compare_double(&f, "answers", i) == l[i]);
            if (kind == OT_OBJECTIVE_KTO && i % 2)
                z += (l[i] - (double)one->reference[1]) / COMPARE_N;
            good += i % 2 == 0 && (kind != OT_OBJECTIVE_KTO || one->good);
        }
        z = fmax(z, 0);
        assert_true(kind != OT_OBJECTIVE_KTO || z > 0.1); /* the case has a shift */
        assert_true(fabs(compare_double(&f, "sums", OT_COMPARE_LOSS) - loss_of(&c, l, z)) < 1e-9);
        assert_true(compare_double(&f, "sums", OT_COMPARE_GOOD) == good);
        check_weights(&c, &f, l, z);
        ops_close(&f);
    }
}

/* Known values, and the ends of the formulas. */
static void losses_of_comparisons(void **state) {
    (void)state;
    struct ot_objective o = {.kind = OT_OBJECTIVE_DPO, .beta = 0.5, .weights = {1, 1}};
    struct ot_comparison c = {0, 4, 8, {2, 4}, {-3, -5}, 1};
    struct ot_comparison_loss got = ot_compare_loss(&o, &c, (const double[]){-1, -7}, 0);
    assert_true(fabs(got.loss - log1p(exp(-2))) < 1e-12 && got.reward[0] == 1 && got.reward[1] == -1);
    got = ot_compare_loss(&o, &c, (const double[]){-4e4, 0}, 0);
    assert_true(fabs(got.loss - 0.5 * 4e4 - 1) < 1 && isfinite(got.loss)); /* far on the wrong side */
    o.kind = OT_OBJECTIVE_ORPO;
    got = ot_compare_loss(&o, &c, (const double[]){0, -4}, 0); /* a certain answer has no odds */
    assert_true(isfinite(got.loss) && isfinite(got.slope[0]) && isfinite(got.slope[1]));
    o.kind = OT_OBJECTIVE_KTO;
    got = ot_compare_loss(&o, &c, (const double[]){-1, 0}, 1);
    assert_true(fabs(got.loss - 1 / (1 + exp(0.5))) < 1e-12 && got.slope[0] < 0 && got.slope[1] == 0);
    c.good = 0;
    got = ot_compare_loss(&o, &c, (const double[]){-1, 0}, 1);
    assert_true(fabs(got.loss - 1 / (1 + exp(-0.5))) < 1e-12 && got.slope[0] > 0);
    double sums[OT_COMPARE_SUMS] = {0};
    ot_compare_add(&o, &c, &got, sums); /* a bad answer with a positive reward is not right */
    assert_true(sums[OT_COMPARE_REJECTED] == 1 && sums[OT_COMPARE_RIGHT] == 0 && sums[OT_COMPARE_GOOD] == 0);
    struct ot_compare_means means = ot_compare_mean(&o, sums, 1);
    assert_true(means.chosen == 0 && means.rejected == 1 && means.right == 0);
    const double below[] = {0, -9}; /* z is never negative */
    assert_true(ot_compare_shift(&o, &c, below, 1) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_regular_cross_entropy),
        cmocka_unit_test(test_cross_entropy_wide),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_softcap_edges),
        cmocka_unit_test(test_capped_loss_is_the_loss_of_capped_logits),
        cmocka_unit_test(weights_multiply_gradients),
        cmocka_unit_test(weights_are_derivatives),
        cmocka_unit_test(losses_of_comparisons),
    };
    return cmocka_run_group_tests_name("loss", tests, NULL, NULL);
}

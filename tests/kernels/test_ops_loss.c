/* Cross-entropy and capped logits: PyTorch's values, ignored rows, wide rows, the same bits on any number of
 * threads. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/ops_fixture.h"
#include "tests/support/check.h"
#include "tests/support/golden.h"

/* ---- cross-entropy ---- */

struct loss_case {
    int64_t rows, vocab, ld;
    const float *logits; /* [rows, ld] */
    const int32_t *targets;
    float softcap;
};

static void run_loss(struct ops_fixture *f, const void *argument) {
    const struct loss_case *c = argument;
    struct ot_cross_entropy op = {.rows = c->rows,
                                  .vocab = c->vocab,
                                  .ld = c->ld,
                                  .grad_dtype = f->dtype,
                                  .softcap = c->softcap,
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

static void check_loss_golden(struct ot_golden *golden, const char *name, float softcap) {
    char array[64];
#define ARRAY(field) (snprintf(array, sizeof array, "%s.%s", name, field), array)
    struct loss_case c = {.softcap = softcap};
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
    check_loss_golden(golden, "cross_entropy", 0);
    check_loss_golden(golden, "cross_entropy.capped",
                      golden_f32(golden, "cross_entropy.capped.softcap", NULL)[0]);
    golden_close(golden);
}

/* A real vocabulary in padded rows: gradients sum to 0, rows with an ignored target are zeros, and infinite
 * logits give an infinite loss or a NaN. */
static void test_cross_entropy_wide(void **state) {
    (void)state;
    enum { ROWS = 7, VOCAB = 32003, LD = 32016 };
    float *logits = ops_random(1, ROWS * LD, 3);
    int32_t targets[ROWS] = {0, VOCAB - 1, -1, 5, 77, 31999, 12345};
    struct loss_case c = {ROWS, VOCAB, LD, logits, targets, 0};
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
    struct loss_case after = {ROWS, VOCAB, VOCAB, ops_result(&capped, "capped", NULL), targets, 0};
    struct loss_case inside = {ROWS, VOCAB, VOCAB, logits, targets, cap};
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cross_entropy),
        cmocka_unit_test(test_cross_entropy_wide),
        cmocka_unit_test(test_softcap),
        cmocka_unit_test(test_softcap_edges),
        cmocka_unit_test(test_capped_loss_is_the_loss_of_capped_logits),
    };
    return cmocka_run_group_tests_name("loss", tests, NULL, NULL);
}

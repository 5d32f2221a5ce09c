/* NEFTune and the balancing loss of experts: the values of transformers, the same bits on any number of
 * threads and with every build. Dropout of attention's weights: against its formulas in double. Label
 * smoothing and z-loss are in test_ops_loss.c. */
#include <math.h>

#include "kernels/cpu/cpu_ops.h"
#include "tests/kernels/regular_fixture.h"
#include "tests/support/golden.h"

/* ---- NEFTune ---- */

static struct neftune_case neftune_golden(struct ot_golden *golden) {
    const int32_t *key = golden_i32(golden, "neftune.key", NULL);
    return (struct neftune_case){.n = golden_dim(golden, "neftune.x", 0),
                                 .cols = golden_dim(golden, "neftune.x", 1),
                                 .alpha = golden_f32(golden, "neftune.alpha", NULL)[0],
                                 .noise = ot_state_noise((uint64_t)key[0], (uint64_t)key[1]),
                                 .row_start = golden_i32(golden, "neftune.row_start", NULL),
                                 .x = golden_f32(golden, "neftune.x", NULL)};
}

static void test_neftune_golden(void **state) {
    (void)state;
    struct ot_golden *golden = golden_open("regular.bin");
    const struct neftune_case c = neftune_golden(golden);
    for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
        static const double relative[] = {2e-7, 0x1p-8, 0x1p-11};
        struct ops_fixture f;
        ops_check_threads(&f, neftune_run, &c, (enum ot_dtype)dtype);
        check_close("noisy", ops_result(&f, "noisy", NULL), golden_f32(golden, "neftune.out", NULL),
                    c.n * c.cols, 2e-7, relative[dtype]);
        ops_close(&f);
    }
    golden_close(golden);
}

/* Enough elements to see the distribution: mean 0, variance m^2 / 3, within m, and no element like its
 * neighbour. The rows are so long that threads begin inside of them. */
static void test_neftune_is_uniform(void **state) {
    (void)state;
    enum { N = 700, COLS = 64, ROW = 350 };
    int32_t row_start[N];
    float *x = calloc(N * COLS, sizeof *x);
    for (int i = 0; i < N; i++)
        row_start[i] = i / ROW * ROW;
    const struct neftune_case c = {N, COLS, 3, ot_state_noise(1, 2), row_start, x};
    struct ops_fixture f;
    ops_check_threads(&f, neftune_run, &c, OT_F32);
    const float *noise = ops_result(&f, "noisy", NULL);
    double size = 3 / sqrt(ROW * COLS), sum = 0, squares = 0, neighbours = 0;
    for (int i = 0; i < N * COLS; i++) {
        assert_true(fabs(noise[i]) <= size * (1 + 1e-6));
        sum += noise[i] / size;
        squares += noise[i] / size * noise[i] / size;
        neighbours += i > 0 ? noise[i] / size * noise[i - 1] / size : 0;
    }
    double n = N * COLS, deviation = 1 / sqrt(3 * n);
    assert_true(fabs(sum / n) < 4 * deviation);
    assert_true(fabs(squares / n - 1.0 / 3) < 4 * sqrt(4.0 / 45 / n));
    assert_true(fabs(neighbours / n) < 4 / (3 * sqrt(n)));
    ops_close(&f);
    free(x);
}

/* ---- the balancing loss ---- */

static void test_balance_golden(void **state) {
    (void)state;
    enum { MOST = 128 };
    struct ot_golden *golden = golden_open("regular.bin");
    const float *numbers = golden_f32(golden, "balance.numbers", NULL);
    const float dweights[2 * MOST] = {0};
    int32_t targets[MOST];
    struct balance_case c = {.n = golden_dim(golden, "balance.logits", 1),
                             .experts = golden_dim(golden, "balance.logits", 2),
                             .ld = golden_dim(golden, "balance.logits", 2),
                             .top = (int64_t)numbers[0],
                             .coefficient = numbers[1],
                             .grad_scale = 0.125f, /* 4 trained tokens, and a loss scale of 2 */
                             .targets = targets,
                             .logits = golden_f32(golden, "balance.logits", NULL),
                             .dweights = dweights};
    const float *loss = golden_f32(golden, "balance.loss", NULL),
                *grad = golden_f32(golden, "balance.grad", NULL);
    assert_true(c.n <= MOST && c.top == 2);
    for (int64_t i = 0; i < c.n; i++)
        targets[i] = i % 17 == 3 && i < 60 ? 7 : -1;
    for (int over_all = 0; over_all < 2; over_all++) {
        struct ops_fixture f;
        c.over_all = over_all;
        ops_check_threads(&f, balance_run, &c, OT_F32);
        for (int64_t i = 0; i < c.n; i++) {
            float want = targets[i] < 0 ? 0 : loss[0];
            check_close("loss", ops_result(&f, "loss", NULL) + i, &want, 1, 0, 1e-6);
        }
        check_close("first", ops_result(&f, "first", NULL), grad, c.n * c.experts, 3e-9, 4e-6);
        check_close("second", ops_result(&f, "second", NULL), grad + c.n * c.experts, c.n * c.experts, 3e-9,
                    4e-6);
        ops_close(&f);
    }
    golden_close(golden);
}

/* The gradient of the weights and that of the balance are added. */
static void test_balance_adds(void **state) {
    (void)state;
    enum { N = 90, EXPERTS = 40, TOP = 3, LD = 43 };
    float *logits = ops_random(1, BALANCE_LAYERS * N * LD, 2), *dweights = ops_random(2, N * TOP, 1);
    float *none = calloc(N * TOP, sizeof *none);
    int32_t targets[N] = {0};
    for (int over_all = 0; over_all < 2; over_all++) {
        struct balance_case c = {N, EXPERTS, TOP, LD, over_all, 30, 1, targets, logits, dweights};
        struct ops_fixture both, balance, alone;
        ops_check_threads(&both, balance_run, &c, OT_F32);
        c.dweights = none;
        ops_check_threads(&balance, balance_run, &c, OT_F32);
        c.dweights = dweights;
        c.coefficient = 0;
        ops_check_threads(&alone, balance_run, &c, OT_F32);
        for (int64_t i = 0; i < N * LD; i++) {
            float want = ops_result(&balance, "first", NULL)[i] + ops_result(&alone, "first", NULL)[i];
            if (i % LD < EXPERTS)
                check_close("sum", ops_result(&both, "first", NULL) + i, &want, 1, 1e-6, 1e-6);
        }
        ops_close(&both);
        ops_close(&balance);
        ops_close(&alone);
    }
    free(logits);
    free(dweights);
    free(none);
}

/* ---- dropout of attention's weights ---- */

/* Sums of one query and head in double: of out, or of the gradients. */
static void reference_pair(const struct drop_case *c, int64_t head, int64_t query, int64_t first, int64_t end,
                           double *const sums[4]) {
    int64_t group = c->heads / c->kv_heads, own = (query * c->heads + head) * c->dim;
    double p[256], factor[256], slope[256], total = 0, delta = 0;
    for (int64_t j = first; j < end; j++) {
        int64_t key = (j * c->kv_heads + head / group) * c->dim;
        double x = 0;
        for (int64_t d = 0; d < c->dim; d++)
            x += 0.25 * c->in[DROP_Q][own + d] * c->in[DROP_K][key + d];
        double t = c->softcap > 0 ? tanh(x / c->softcap) : 0;
        p[j] = exp(c->softcap > 0 ? c->softcap * t : x);
        slope[j] = 0.25 * (1 - t * t);
        total += p[j];
        bool drops =
            ot_state_word(c->drop.noise, (head * c->n + query) * c->n + j) < ot_dropout_least(c->drop.share);
        factor[j] = drops ? 0 : ot_dropout_factor(c->drop.share);
    }
    for (int64_t j = first; j < end; j++) {
        int64_t key = (j * c->kv_heads + head / group) * c->dim;
        p[j] /= total;
        for (int64_t d = 0; d < c->dim; d++) {
            double weighted = factor[j] * p[j] * c->in[DROP_V][key + d];
            sums[3][own + d] += weighted;
            delta += weighted * c->in[DROP_DOUT][own + d];
            sums[DROP_V][key + d] += factor[j] * p[j] * c->in[DROP_DOUT][own + d];
        }
    }
    for (int64_t j = first; j < end; j++) {
        int64_t key = (j * c->kv_heads + head / group) * c->dim;
        double dp = 0;
        for (int64_t d = 0; d < c->dim; d++)
            dp += c->in[DROP_DOUT][own + d] * c->in[DROP_V][key + d];
        double ds = p[j] * (factor[j] * dp - delta) * slope[j];
        for (int64_t d = 0; d < c->dim; d++) {
            sums[DROP_Q][own + d] += ds * c->in[DROP_K][key + d];
            sums[DROP_K][key + d] += ds * c->in[DROP_Q][own + d];
        }
    }
}

static void check_drop(struct drop_case *c) {
    static const char *const names[] = {"dq", "dk", "dv", "out"};
    double *sums[4];
    struct ops_fixture f;
    drop_open(c);
    for (int i = 0; i < 4; i++)
        sums[i] = calloc((size_t)(c->n * c->heads * c->dim), sizeof **sums);
    for (int64_t head = 0; head < c->heads; head++)
        for (int64_t i = 0; i < c->n; i++) {
            int64_t first = i / c->row * c->row, end = first + c->row < c->n ? first + c->row : c->n;
            reference_pair(c, head, i, first, c->spans ? end : i + 1, sums);
        }
    ops_check_threads(&f, drop_run, c, OT_F32);
    for (int i = 0; i < 4; i++) {
        int64_t n = c->n * drop_width(c, i == 3 ? DROP_Q : i);
        float *want = malloc((size_t)n * sizeof *want);
        for (int64_t j = 0; j < n; j++)
            want[j] = (float)sums[i][j];
        double error = relative_error(ops_result(&f, names[i], NULL), want, n);
        if (!(error < 4e-6))
            fail_msg("%s differs by %.3g", names[i], error);
        free(want);
        free(sums[i]);
    }
    ops_close(&f);
    ops_check_half(drop_run, c, 1.2e-2);
    drop_close(c);
}

static void test_drop(void **state) {
    (void)state;
    const struct ot_state_noise noise = ot_state_noise(3, 4);
    struct drop_case cases[] = {{false, 150, 4, 2, 24, 150, 0, {0.3f, noise}, {0}},
                                {false, 90, 3, 3, 16, 37, 2, {0.7f, noise}, {0}},
                                {true, 90, 3, 3, 16, 37, 0, {0.2f, noise}, {0}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_drop(&cases[i]);
}

/* ---- builds ---- */

static void test_builds(void **state) {
    (void)state;
    static const char *const builds[] = {"baseline", "avx2", "avx512"};
    enum { N = 21, COLS = 37 };
    float *x = ops_random(3, BALANCE_LAYERS * N * COLS, 1), *dweights = ops_random(4, N * 4, 1);
    int32_t row_start[N], targets[N] = {0};
    for (int i = 0; i < N; i++)
        row_start[i] = i / 8 * 8;
    const struct neftune_case noise = {N, COLS, 2, ot_state_noise(5, 6), row_start, x};
    const struct balance_case balance = {N, COLS, 4, COLS, true, 1, 0.5f, targets, x, dweights};
    for (size_t b = 0; b < sizeof builds / sizeof *builds; b++) {
        if (!ot_cpu_ops_named(builds[b]))
            continue;
        ops_check_build(neftune_run, &noise, builds[b], OT_BF16);
        ops_check_build(balance_run, &balance, builds[b], OT_F32);
    }
    free(x);
    free(dweights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_neftune_golden), cmocka_unit_test(test_neftune_is_uniform),
        cmocka_unit_test(test_balance_golden), cmocka_unit_test(test_balance_adds),
        cmocka_unit_test(test_drop),           cmocka_unit_test(test_builds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

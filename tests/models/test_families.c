/* Each family row against transformers, in fp32 and bf16: losses, logits and every parameter gradient. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/models/golden_case.h"
#include "tests/support/check.h"

/* The bound, of whole tensors. The golden files' own fp32 rounding is up to 2e-6 of it. */
static const double GRADIENT_BOUND = 2e-5;
/* Logits of size about 1 out of sums of some thirty products, twice two or three layers deep: about 1e-6. */
static const double VALUE_BOUND = 1e-5;

/* The worst relative error of a tensor's gradient, and which tensor that is. */
static double worst_gradient(const struct golden_case *c, struct runner *runner, const char **tensor) {
    const struct ot_model *model = runner_model(runner);
    float *slab_grad = NULL;
    double worst = -1;
    int slab = -1;
    for (int64_t i = 0; i < ot_model_tensor_count(model); i++) {
        const struct ot_tensor *t = ot_model_tensor(model, i);
        char array[128];
        snprintf(array, sizeof array, "grad.%s", t->name);
        if (t->slab != slab) {
            free(slab_grad);
            slab_grad = runner_slab_grad(runner, slab = t->slab);
        }
        double error =
            relative_error(slab_grad + t->first, golden_f32(c->golden, array, NULL), t->rows * t->cols);
        if (!(error <= worst)) {
            worst = error;
            *tensor = t->name;
        }
    }
    free(slab_grad);
    return worst;
}

static void check_gradients(const struct golden_case *c, struct runner *runner, const char *name,
                            double bound) {
    const char *tensor;
    double worst = worst_gradient(c, runner, &tensor);
    if (!(worst < bound))
        fail_msg("%s: gradient of %s is off by %.2e, bound %.2e", name, tensor, worst, bound);
}

static double mean_loss(const struct golden_case *c, const float *token_loss) {
    double sum = 0;
    for (int64_t i = 0; i < c->batch.n; i++)
        sum += token_loss[i];
    return sum * c->batch.grad_scale;
}

static void check_training(const struct golden_case *c, const char *name, bool keep) {
    struct runner *runner = golden_case_runner(c, OT_F32, 1);
    float *token_loss = calloc((size_t)c->batch.n, sizeof *token_loss);
    assert_non_null(token_loss);
    runner_train(runner, &c->batch, keep, token_loss);
    check_close(name, token_loss, c->token_loss, c->batch.n, VALUE_BOUND, VALUE_BOUND);
    assert_true(fabs(mean_loss(c, token_loss) - golden_f64(c->golden, "loss", NULL)[0]) < VALUE_BOUND);
    check_gradients(c, runner, name, GRADIENT_BOUND);
    runner_eval(runner, &c->batch, token_loss);
    check_close(name, token_loss, c->token_loss, c->batch.n, VALUE_BOUND, VALUE_BOUND);
    free(token_loss);
    runner_close(runner);
}

static void test_losses_and_gradients(void **state) {
    (void)state;
    for (int i = 0; golden_case_names[i]; i++) {
        struct golden_case c;
        golden_case_open(golden_case_names[i], &c);
        check_training(&c, golden_case_names[i], true);
        check_training(&c, golden_case_names[i], false);
        golden_case_close(&c);
    }
}

/* In bf16, against the fp32 golden values: no gradient is further off than the worst is in torch's own bf16
 * run of the same model. The worst token's loss is the largest of some twenty roundings, so two runs' may
 * differ by a factor. */
static void check_bf16(const struct golden_case *c, const char *name) {
    const double *torch_error = golden_f64(c->golden, "bf16_error", NULL);
    struct runner *runner = golden_case_runner(c, OT_BF16, 1);
    float *token_loss = calloc((size_t)c->batch.n, sizeof *token_loss);
    assert_non_null(token_loss);
    runner_train(runner, &c->batch, true, token_loss);
    check_close(name, token_loss, c->token_loss, c->batch.n, 2 * torch_error[1], 0);
    check_gradients(c, runner, name, torch_error[0]);
    free(token_loss);
    runner_close(runner);
}

static void test_bf16(void **state) {
    (void)state;
    for (int i = 0; golden_case_names[i]; i++) {
        struct golden_case c;
        golden_case_open(golden_case_names[i], &c);
        check_bf16(&c, golden_case_names[i]);
        golden_case_close(&c);
    }
}

/* A row through the cache, in calls of `piece` tokens: the logits after each call are those of the whole row.
 */
static void check_decode(const struct golden_case *c, struct runner *runner, const char *name,
                         int64_t piece) {
    int64_t vocab = c->config.vocab;
    float *logits = calloc((size_t)vocab, sizeof *logits);
    assert_non_null(logits);
    for (int64_t first = 0, end; first < c->batch.n; first = end) {
        for (end = first + 1; end < c->batch.n && c->batch.row_start[end] == first; end++)
            ;
        runner_decode_begin(runner, end - first);
        for (int64_t at = first; at < end; at += piece) {
            int64_t n = end - at < piece ? end - at : piece;
            runner_decode(runner, c->batch.tokens + at, n, logits);
            check_close(name, logits, c->logits + (at + n - 1) * vocab, vocab, VALUE_BOUND, VALUE_BOUND);
        }
        runner_decode_end(runner);
    }
    free(logits);
}

static void test_logits_with_a_cache(void **state) {
    (void)state;
    static const int64_t pieces[] = {1, 3, 11};
    for (int i = 0; golden_case_names[i]; i++) {
        struct golden_case c;
        golden_case_open(golden_case_names[i], &c);
        struct runner *runner = golden_case_runner(&c, OT_F32, 1);
        for (size_t p = 0; p < sizeof pieces / sizeof pieces[0]; p++)
            check_decode(&c, runner, golden_case_names[i], pieces[p]);
        runner_close(runner);
        golden_case_close(&c);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_losses_and_gradients),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_logits_with_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

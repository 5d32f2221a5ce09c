/* Properties of every model: the same bits with kept and with recomputed activations and on any number of
 * threads; rows that do not see each other; gradients that do not depend on how a step is cut; bf16 near
 * fp32. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/block.h"
#include "tests/models/golden_case.h"
#include "tests/support/check.h"

struct gradients {
    int n_slabs;
    int64_t n[8];
    float *slab[8];
};

static struct gradients take_gradients(struct runner *runner) {
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    struct gradients g = {.n_slabs = chain->n_slabs};
    assert_true(chain->n_slabs <= 8);
    for (int s = 0; s < g.n_slabs; s++) {
        g.n[s] = chain->slabs[s].n_params;
        g.slab[s] = runner_slab_grad(runner, s);
    }
    return g;
}

static void free_gradients(struct gradients *g) {
    for (int s = 0; s < g->n_slabs; s++)
        free(g->slab[s]);
}

static void check_same_bits(const char *what, const struct gradients *a, const struct gradients *b) {
    for (int s = 0; s < a->n_slabs; s++)
        if (memcmp(a->slab[s], b->slab[s], (size_t)a->n[s] * sizeof(float)) != 0)
            fail_msg("%s: gradients of slab %d differ in bits", what, s);
}

static double worst_error(const struct gradients *got, const struct gradients *want) {
    double worst = 0;
    for (int s = 0; s < got->n_slabs; s++) {
        double error = relative_error(got->slab[s], want->slab[s], got->n[s]);
        if (isnan(error))
            return INFINITY;
        worst = fmax(worst, error);
    }
    return worst;
}

static float *loss_array(const struct golden_case *c) {
    float *losses = calloc((size_t)c->batch.n, sizeof *losses);
    assert_non_null(losses);
    return losses;
}

static struct gradients train_once(const struct golden_case *c, enum ot_dtype dtype, int threads,
                                   enum ot_keep_level level, float *token_loss) {
    struct runner *runner = golden_case_runner(c, dtype, threads);
    runner_train(runner, &c->batch, level, token_loss);
    struct gradients g = take_gradients(runner);
    runner_close(runner);
    return g;
}

static void check_levels(const struct golden_case *c, const char *name, enum ot_dtype dtype) {
    float *want_loss = loss_array(c), *loss = loss_array(c);
    struct gradients want = train_once(c, dtype, 1, OT_KEEP_NONE, want_loss);
    for (int level = OT_KEEP_ATTENTION; level < OT_KEEP_LEVELS; level++) {
        struct gradients got = train_once(c, dtype, 3, (enum ot_keep_level)level, loss);
        check_same_bits(name, &got, &want);
        assert_memory_equal(loss, want_loss, (size_t)c->batch.n * sizeof(float));
        free_gradients(&got);
    }
    free_gradients(&want);
    free(want_loss);
    free(loss);
}

/* Nothing kept on one thread against each level on three. */
static void test_every_level_gives_the_same_bits(void **state) {
    (void)state;
    for (int i = 0; golden_case_names[i]; i++) {
        struct golden_case c;
        golden_case_open(golden_case_names[i], &c);
        check_levels(&c, golden_case_names[i], OT_F32);
        check_levels(&c, golden_case_names[i], OT_BF16);
        golden_case_close(&c);
    }
}

/* One row of a case as a batch. row_start lies in `storage`. */
static struct runner_batch row_batch(const struct golden_case *c, int64_t first, int32_t *storage) {
    struct runner_batch row = c->batch;
    row.n = 0;
    while (first + row.n < c->batch.n && c->batch.row_start[first + row.n] == first)
        storage[row.n++] = 0;
    row.tokens += first;
    row.targets += first;
    row.position += first;
    row.row_start = storage;
    return row;
}

/* Runs each row as a micro-batch. Its losses equal those of the packed run, except for the rounding of a GEMM
 * of another height, and the gradients add up to those of the packed run. */
static void check_cut(const struct golden_case *c, const char *name) {
    float *whole_loss = loss_array(c), *row_loss = loss_array(c);
    struct gradients whole = train_once(c, OT_F32, 1, OT_KEEP_PRODUCTS, whole_loss);
    struct runner *runner = golden_case_runner(c, OT_F32, 1);
    int32_t starts[64];
    assert_true(c->batch.n <= 64);
    for (int64_t first = 0; first < c->batch.n;) {
        struct runner_batch row = row_batch(c, first, starts);
        runner_train(runner, &row, first % 2 == 0 ? OT_KEEP_PRODUCTS : OT_KEEP_NONE, row_loss + first);
        first += row.n;
    }
    struct gradients cut = take_gradients(runner);
    /* fp32 sums of some dozen terms in another order: 2^-24 x a few x sqrt(terms). */
    check_close(name, row_loss, whole_loss, c->batch.n, 2e-6, 2e-6);
    double error = worst_error(&cut, &whole);
    if (!(error < 2e-6))
        fail_msg("%s: gradients of the cut step are off by %.2e", name, error);
    runner_close(runner);
    free_gradients(&whole);
    free_gradients(&cut);
    free(whole_loss);
    free(row_loss);
}

static void test_cutting_a_step_does_not_matter(void **state) {
    (void)state;
    for (int i = 0; golden_case_names[i]; i++) {
        struct golden_case c;
        golden_case_open(golden_case_names[i], &c);
        check_cut(&c, golden_case_names[i]);
        golden_case_close(&c);
    }
}

/* With other tokens in the second row, the losses of the other rows keep their bits, in both dtypes, and its
 * own losses change. */
/* Losses if the layers of `mask` have the window. by_layer: the config states it layer by layer. */
static float *windowed_losses(const struct golden_case *golden, bool by_layer, uint64_t mask, int64_t first) {
    struct golden_case c = *golden;
    float *losses = loss_array(&c);
    c.config.window_by_layer = by_layer;
    c.config.window_layers.bits[0] = mask;
    c.config.window_first_layer = first;
    struct gradients g = train_once(&c, OT_F32, 1, OT_KEEP_PRODUCTS, losses);
    free_gradients(&g);
    return losses;
}

/* Windows stated layer by layer equal windows from a border layer on, where such a border exists. Every
 * pattern gives another model. */
static void test_each_layer_has_its_window(void **state) {
    (void)state;
    struct golden_case c;
    golden_case_open("mistral", &c);
    assert_int_equal(c.config.n_layers, 2);
    assert_true(c.config.window > 0);
    size_t bytes = (size_t)c.batch.n * sizeof(float);
    float *by_border[] = {windowed_losses(&c, false, 0, 2), windowed_losses(&c, false, 0, 1),
                          windowed_losses(&c, false, 0, 0)};
    float *by_layer[] = {windowed_losses(&c, true, 0, 0), windowed_losses(&c, true, 2, 0),
                         windowed_losses(&c, true, 3, 0), windowed_losses(&c, true, 1, 0)};
    for (int i = 0; i < 3; i++)
        assert_memory_equal(by_layer[i], by_border[i], bytes);
    for (int i = 0; i < 4; i++)
        for (int k = 0; k < i; k++)
            assert_memory_not_equal(by_layer[i], by_layer[k], bytes);
    for (int i = 0; i < 4; i++)
        free(by_layer[i]);
    for (int i = 0; i < 3; i++)
        free(by_border[i]);
    golden_case_close(&c);
}

/* The product of an expert has as many rows as tokens that chose it, of all rows of the batch. The kernel of
 * a product depends on its size, and so does the order of its sums: up to rounding, not up to bits. */
static void check_unchanged(const struct golden_case *c, const float *before, const float *after, int64_t n) {
    if (c->config.n_experts == 0)
        assert_memory_equal(before, after, (size_t)n * sizeof *before);
    for (int64_t i = 0; i < n; i++)
        assert_true(fabsf(before[i] - after[i]) < 1e-5f * (1 + fabsf(before[i])));
}

static void check_isolation(const struct golden_case *c, enum ot_dtype dtype) {
    float *before = loss_array(c), *after = loss_array(c);
    int32_t *tokens = malloc((size_t)c->batch.n * sizeof *tokens);
    struct runner *runner = golden_case_runner(c, dtype, 1);
    struct runner_batch other = c->batch;
    assert_non_null(tokens);
    memcpy(tokens, c->batch.tokens, (size_t)c->batch.n * sizeof *tokens);
    int64_t begin = 1, end;
    while (c->batch.row_start[begin] == 0)
        begin++;
    for (end = begin; end < c->batch.n && c->batch.row_start[end] == begin; end++)
        tokens[end] = (tokens[end] + 7) % (int32_t)c->config.vocab;
    other.tokens = tokens;
    runner_eval(runner, &c->batch, before);
    runner_eval(runner, &other, after);
    check_unchanged(c, before, after, begin);
    check_unchanged(c, before + end, after + end, c->batch.n - end);
    assert_memory_not_equal(before + begin, after + begin, (size_t)(end - begin) * sizeof *before);
    runner_close(runner);
    free(tokens);
    free(before);
    free(after);
}

static void test_rows_do_not_see_each_other(void **state) {
    (void)state;
    for (int i = 0; golden_case_names[i]; i++) {
        struct golden_case c;
        golden_case_open(golden_case_names[i], &c);
        check_isolation(&c, OT_F32);
        if (c.config.n_experts == 0) /* with another rounding, a token may choose another expert */
            check_isolation(&c, OT_BF16);
        golden_case_close(&c);
    }
}

/* Rows of 30 tokens; every seventh target is not trained. */
enum { CHUNKED_TOKENS = 2 * 1024 + 22, CHUNKED_ROW = 30, CHUNKED_PARTS = 3 };
struct long_batch {
    int32_t tokens[CHUNKED_TOKENS], targets[CHUNKED_TOKENS], position[CHUNKED_TOKENS],
        row_start[CHUNKED_TOKENS];
};

static struct runner_batch fill_long_batch(struct long_batch *b, int64_t vocab) {
    int64_t trained = 0;
    for (int i = 0; i < CHUNKED_TOKENS; i++) {
        b->tokens[i] = (int32_t)((i * 7 + i / 11) % vocab);
        b->targets[i] = i % 7 == 3 ? -1 : (int32_t)((i * 5 + 1) % vocab);
        b->position[i] = i % CHUNKED_ROW;
        b->row_start[i] = i - i % CHUNKED_ROW;
        trained += b->targets[i] >= 0;
    }
    return (struct runner_batch){CHUNKED_TOKENS,        b->tokens, b->targets, b->position, b->row_start,
                                 1.0f / (float)trained, 0,         NULL,       NULL};
}

/* The head's logits of texts that continue side by side, one with each token, against the losses of the same
 * tokens. */
static void check_text_logits(struct runner *runner, const struct runner_batch *whole, int64_t n,
                              int64_t vocab, double bound) {
    struct runner_batch some = *whole;
    float *loss = calloc((size_t)n, sizeof *loss), *logits = calloc((size_t)(n * vocab), sizeof *logits);
    assert_true(loss && logits);
    some.n = n;
    runner_eval(runner, &some, loss);
    runner_text_logits(runner, &some, logits);
    for (int64_t i = 0; i < n; i++) {
        const float *row = logits + i * vocab;
        double sum = 0;
        for (int64_t j = 0; j < vocab; j++)
            sum += exp((double)row[j]);
        if (some.targets[i] >= 0)
            assert_true(fabs(log(sum) - (double)row[some.targets[i]] - (double)loss[i]) < bound);
    }
    free(loss);
    free(logits);
}

/* A micro-batch with more tokens than the head takes at once, against the same tokens in three micro-batches
 * that the head takes at once: the borders between the chunks must not show. The first gradients overwrite
 * NaNs: only the head's first chunk may do that. */
static void check_head_chunks(int64_t vocab, enum ot_dtype dtype) {
    struct ot_model_config config = ot_preset_find("tiny-test")->config;
    struct long_batch *b = malloc(sizeof *b);
    float *whole_loss = calloc(CHUNKED_TOKENS, sizeof(float)),
          *part_loss = calloc(CHUNKED_TOKENS, sizeof(float));
    assert_true(b && whole_loss && part_loss);
    config.n_layers = 1;
    config.hidden = 16;
    config.ffn = 16;
    config.vocab = vocab;
    const struct runner_batch whole = fill_long_batch(b, config.vocab);
    struct runner *runner = runner_open(&config, NULL, dtype, CHUNKED_TOKENS, 1);
    runner_init_weights(runner, 3);
    runner_begin_grads(runner);
    runner_train(runner, &whole, OT_KEEP_PRODUCTS, whole_loss);
    struct gradients once = take_gradients(runner);
    runner_zero_grads(runner);
    for (int64_t first = 0; first < CHUNKED_TOKENS; first += CHUNKED_TOKENS / CHUNKED_PARTS) {
        struct runner_batch part = whole;
        int32_t starts[CHUNKED_TOKENS / CHUNKED_PARTS];
        part.n = CHUNKED_TOKENS / CHUNKED_PARTS;
        for (int64_t i = 0; i < part.n; i++)
            starts[i] = (int32_t)(b->row_start[first + i] - first);
        part.tokens += first;
        part.targets += first;
        part.position += first;
        part.row_start = starts;
        runner_train(runner, &part, OT_KEEP_PRODUCTS, part_loss + first);
    }
    struct gradients parts = take_gradients(runner);
    /* More texts than a piece of the logits, and with a small vocabulary than a chunk. The loss is fp32. */
    check_text_logits(runner, &whole, vocab > 256 ? 560 : CHUNKED_TOKENS, vocab, 4e-6);
    check_close("loss", part_loss, whole_loss, CHUNKED_TOKENS, 2e-6, 2e-6);
    /* fp32 sums of 2070 terms of both signs: sqrt(2070) x 2^-24 = 3e-6. */
    assert_true(worst_error(&parts, &once) < 5e-6);
    runner_close(runner);
    free_gradients(&once);
    free_gradients(&parts);
    free(b);
    free(whole_loss);
    free(part_loss);
}

/* The larger vocabulary makes four pieces of a chunk. */
static void test_head_chunks(void **state) {
    (void)state;
    check_head_chunks(256, OT_F32);
    if (!tests_are_few())
        check_head_chunks(20000, OT_F32);
    check_head_chunks(20000, OT_BF16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_level_gives_the_same_bits),
        cmocka_unit_test(test_cutting_a_step_does_not_matter),
        cmocka_unit_test(test_rows_do_not_see_each_other),
        cmocka_unit_test(test_each_layer_has_its_window),
        cmocka_unit_test(test_head_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The layers of an encoder-decoder: what forward keeps for backward, level by level; rows of one micro-batch
 * that do not see each other; buckets of distances. The runner overwrites work, scratch and what a level does
 * not keep with NaNs. test_families.c compares results with transformers. Runs on the cpu device, and linked
 * with an emulated or a real cuda device on that. */
#include <stdlib.h>
#include <string.h>

#include "models/encdec.h"
#include "tests/models/golden_case.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { MOST_TOKENS = 64, MOST_SLABS = 16 };

/* Calls check for each golden case of an encoder-decoder, with and without adapters. Few tests: each in one
 * dtype. */
static void for_each_case(void (*check)(const struct golden_case *c, enum ot_dtype dtype)) {
    const char *const *const lists[] = {golden_pair_names, golden_lora_names};
    for (int list = 0; list < 2; list++)
        for (int i = 0; lists[list][i]; i++)
            for (int dtype = OT_F32; dtype <= OT_F16; dtype++) {
                struct golden_case c;
                golden_case_open(lists[list][i], &c);
                if (ot_model_has_pairs(&c.config) && (!tests_are_few() || i % 3 == dtype))
                    check(&c, (enum ot_dtype)dtype);
                golden_case_close(&c);
            }
}

/* ---- levels ---- */

static void check_sizes(const struct golden_case *c, enum ot_dtype dtype) {
    struct ot_model *model;
    check_ok(ot_model_open_setup(&c->config, dtype, 64, c->lora_file ? &c->parts : NULL, &model));
    const struct ot_chain *chain = ot_model_chain(model);
    for (int b = 0; b < chain->n_blocks; b++) {
        bool layer = b > 0 && b < chain->n_blocks - 1;
        size_t all = chain->work_bytes(chain->context, b, OT_KEEP_NONE, 29), saved[OT_KEEP_LEVELS];
        for (int l = 0; l < OT_KEEP_LEVELS; l++) {
            saved[l] = chain->saved_bytes(chain->context, b, (enum ot_keep_level)l, 29);
            assert_int_equal(saved[l] + chain->work_bytes(chain->context, b, (enum ot_keep_level)l, 29), all);
        }
        assert_int_equal(saved[OT_KEEP_NONE], 0);
        assert_int_equal(saved[OT_KEEP_ALL], saved[OT_KEEP_PRODUCTS]);
        assert_true(layer ? saved[OT_KEEP_ATTENTION] > 0 && saved[OT_KEEP_PRODUCTS] > saved[OT_KEEP_ATTENTION]
                          : all == 0);
    }
    ot_model_close(model);
}

static void levels_are_nested(void **state) {
    (void)state;
    for_each_case(check_sizes);
}

/* What a training pass leaves. NULL: of a frozen slab, and of boundaries that backward does not reach. */
struct results {
    float loss[MOST_TOKENS], *slab[MOST_SLABS];
    void *boundary[MOST_SLABS];
};

static void take_results(struct runner *runner, const struct runner_batch *batch, enum ot_keep_level level,
                         bool first, struct results *out) {
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    memset(out, 0, sizeof *out);
    assert_true(batch->n <= MOST_TOKENS && chain->n_slabs <= MOST_SLABS && chain->n_blocks <= MOST_SLABS);
    if (first)
        runner_begin_grads(runner);
    else
        runner_zero_grads(runner);
    runner_train(runner, batch, level, out->loss);
    for (int s = 0; s < chain->n_slabs; s++)
        if (!chain->slabs[s].frozen)
            out->slab[s] = runner_slab_grad(runner, s);
    for (int b = ot_chain_first_trained(chain); b < chain->n_blocks - 1; b++)
        out->boundary[b] = runner_boundary_grad(runner, b, batch->n);
}

static void free_results(struct results *results) {
    for (int i = 0; i < MOST_SLABS; i++) {
        free(results->slab[i]);
        free(results->boundary[i]);
    }
}

static void check_same(const struct ot_chain *chain, int64_t n, const struct results *got,
                       const struct results *want) {
    size_t boundary = (size_t)(n * chain->boundary_elems) * ot_dtype_bytes(chain->dtype);
    assert_memory_equal(got->loss, want->loss, sizeof got->loss);
    for (int s = 0; s < chain->n_slabs; s++)
        if (want->slab[s])
            assert_memory_equal(got->slab[s], want->slab[s],
                                (size_t)chain->slabs[s].n_params * sizeof(float));
    for (int b = ot_chain_first_trained(chain); b < chain->n_blocks - 1; b++)
        assert_memory_equal(got->boundary[b], want->boundary[b], boundary);
}

/* Equal NaNs would be equal bits. */
static void check_finite(const struct ot_chain *chain, const struct results *results) {
    for (int s = 0; s < chain->n_slabs; s++)
        for (int64_t i = 0; results->slab[s] && i < chain->slabs[s].n_params; i++)
            assert_true(results->slab[s][i] - results->slab[s][i] == 0);
}

static void check_levels(const struct golden_case *c, enum ot_dtype dtype) {
    struct runner *runner = golden_case_runner(c, dtype, 2);
    const struct ot_chain *chain = ot_model_chain(runner_model(runner));
    struct results want, got;
    take_results(runner, &c->batch, OT_KEEP_NONE, false, &want);
    check_finite(chain, &want);
    for (int level = OT_KEEP_NONE; level < OT_KEEP_LEVELS; level++) {
        take_results(runner, &c->batch, (enum ot_keep_level)level, level % 2 == 0, &got);
        check_same(chain, c->batch.n, &got, &want);
        free_results(&got);
    }
    free_results(&want);
    runner_close(runner);
}

static void levels_give_the_same_bits(void **state) {
    (void)state;
    for_each_case(check_levels);
}

/* ---- rows ---- */

/* Row `row` of the case has the same losses, whatever the tokens of the other rows are. */
static void check_row(struct runner *runner, const struct runner_batch *b, const float *all, int32_t first) {
    int32_t tokens[MOST_TOKENS];
    float others[MOST_TOKENS];
    struct runner_batch changed = *b;
    changed.tokens = tokens;
    for (int64_t i = 0; i < b->n; i++)
        tokens[i] = b->input_first[i] == first ? b->tokens[i] : (b->tokens[i] + 5) % 44;
    runner_eval(runner, &changed, others);
    for (int64_t i = b->n_inputs; i < b->n; i++)
        assert_true((others[i] == all[i]) == (b->input_first[i] == first));
}

static void check_rows(const struct golden_case *c, enum ot_dtype dtype) {
    const struct runner_batch *b = &c->batch;
    struct runner *runner = golden_case_runner(c, dtype, 2);
    float all[MOST_TOKENS];
    int rows = 0;
    runner_eval(runner, b, all);
    for (int64_t i = 0; i < b->n_inputs; i++) {
        assert_true(all[i] == 0);
        if (b->input_first[i] == i) {
            check_row(runner, b, all, (int32_t)i);
            rows++;
        }
    }
    assert_int_equal(rows, 3);
    runner_close(runner);
}

static void rows_are_apart(void **state) {
    (void)state;
    for_each_case(check_rows);
}

/* ---- buckets ---- */

/* Those of transformers' T5 with 32 buckets up to 128, for the distances from query to key at the borders:
 * modeling_t5.py, _relative_position_bucket. */
static void buckets(void **state) {
    (void)state;
    static const struct {
        int distance, encoder, decoder;
    } known[] = {{0, 0, 0},     {-1, 1, 1},    {1, 17, 0},    {-7, 7, 7},     {-8, 8, 8},
                 {-11, 8, 11},  {-12, 9, 12},  {-15, 9, 15},  {-16, 10, 16},  {-18, 10, 16},
                 {-19, 10, 17}, {-32, 12, 21}, {-64, 14, 26}, {-127, 15, 31}, {-128, 15, 31},
                 {16, 26, 0},   {23, 27, 0},   {127, 31, 0},  {128, 31, 0}};
    const struct ot_model_config config = ot_preset_find("t5-small")->config;
    int32_t *tables = malloc(ot_encdec_constant_bytes(&config));
    assert_non_null(tables);
    assert_int_equal(ot_encdec_constant_bytes(&config), 2 * 257 * sizeof *tables);
    ot_encdec_fill_constants(&config, tables);
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        assert_int_equal(tables[128 + known[i].distance], known[i].encoder);
        assert_int_equal(tables[257 + 128 + known[i].distance], known[i].decoder);
    }
    free(tables);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(levels_are_nested),
        cmocka_unit_test(levels_give_the_same_bits),
        cmocka_unit_test(rows_are_apart),
        cmocka_unit_test(buckets),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

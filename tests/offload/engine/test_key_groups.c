/* Key groups (offload/plan/slabs.h): sections whose keys come to the device in groups of heads have the bits
 * of sections whose keys stay there, in every placement. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { KV_HEADS = 4 };

/* Adapters on all maps: a layer has a trained and a frozen slab. */
static const struct ot_lora adapters = {.all = {2, 4}, .dropout = 0.1f};

static void groups_defaults(struct tiny_run *run, int sections, enum ot_dtype dtype) {
    tiny_defaults(run, 3, false, dtype);
    run->config.n_heads = 2 * KV_HEADS;
    run->config.n_kv_heads = KV_HEADS;
    run->micro_sequences = 1;
    run->sections = sections;
    run->evals = true;
}

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    assert_int_equal(ot_plan_key_groups(&run->plan), run->key_groups > 1 ? run->key_groups : 1);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
}

/* Random plans: homes, slots, engines, rounds, kept activations, nvme. The device of each has room for the
 * bytes of its plan alone. */
static void are_equal_in_every_placement(void **state) {
    (void)state;
    int seeds = tests_are_brief() ? 2 : getenv("OT_TEST_SLOW") ? 60 : tiny_is_on_cpu() ? 4 : 2;
    for (int variant = 0; variant < 4; variant += tiny_is_on_cpu() && !tests_are_for_races() ? 1 : 3) {
        struct tiny_run run;
        struct tiny_result one, other;
        char what[80];
        groups_defaults(&run, variant % 2 ? 2 : 5, variant / 2 ? OT_BF16 : OT_F32);
        run.config.qk_norm = variant == 1 ? OT_QK_NORM_HEADS : OT_QK_NORM_NONE;
        run.lora = variant == 2 ? &adapters : NULL;
        train_resident(&run, &one);
        for (int groups = 2; groups <= KV_HEADS; groups *= 2) {
            run.key_groups = groups;
            train_resident(&run, &other);
            snprintf(what, sizeof what, "variant %d, %d groups, resident", variant, groups);
            tiny_same(&one, &other, what);
            tiny_result_free(&other);
        }
        for (int seed = 1; seed <= seeds; seed++) {
            run.key_groups = 1 + seed % 2 * 3;
            tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
            tiny_randomise(&run, (uint64_t)(seed * 4 + variant));
            run.plan.key_groups = KV_HEADS >> seed % 2;
            run.plan.boundaries_pass = seed % 3 && run.plan.activations != OT_HOME_GPU;
            tiny_finish(&run);
            snprintf(what, sizeof what, "variant %d, seed %d", variant, seed);
            tiny_train(&run, &other);
            tiny_same(&one, &other, what);
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&one);
    }
}

/* Sequences that end within a section: sections behind it have no tokens, and a sequence may be left out.
 * Long ones come first: what they leave must not be added. */
static void short_sequences_have_the_same_bits(void **state) {
    (void)state;
    enum { STEP = 3, SECTIONS = 4 };
    double losses[2][TINY_SEQUENCE], norms[2][TINY_SEQUENCE];
    for (int groups = 0; groups < 2; groups++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_batch *batch = malloc(sizeof *batch);
        assert_non_null(batch);
        groups_defaults(&run, SECTIONS, OT_F32);
        run.key_groups = groups ? KV_HEADS : 1;
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
        tiny_open(&run, &tiny);
        for (int n = TINY_SEQUENCE; n >= 6; n -= STEP) {
            struct ot_step_result r;
            tiny_fill_batch(batch, run.config.vocab, 0, 2, 1);
            for (int m = 0; m < 2; m++)
                batch->micro[m].n_tokens = m == 0 ? n : TINY_SEQUENCE + 6 - n;
            batch->input.lr = 0;
            check_ok(ot_engine_submit(tiny.engine, &batch->input));
            check_ok(ot_engine_result(tiny.engine, &r));
            assert_int_equal(r.skipped, OT_SKIP_NONE);
            losses[groups][TINY_SEQUENCE - n] = r.loss;
            norms[groups][TINY_SEQUENCE - n] = r.grad_norm;
        }
        check_ok(ot_engine_drain(tiny.engine));
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
        free(batch);
    }
    for (int i = 0; i <= TINY_SEQUENCE - 6; i += STEP) {
        assert_true(losses[0][i] > 0);
        assert_memory_equal(&losses[0][i], &losses[1][i], sizeof losses[0][i]);
        assert_memory_equal(&norms[0][i], &norms[1][i], sizeof norms[0][i]);
    }
}

/* A plan without training has no sums. */
static void evaluation_alone_has_the_same_bits(void **state) {
    (void)state;
    float losses[2][TINY_SEQUENCE];
    for (int groups = 0; groups < 2; groups++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_batch *batch = malloc(sizeof *batch);
        assert_non_null(batch);
        groups_defaults(&run, 3, OT_BF16);
        run.key_groups = groups ? KV_HEADS : 1;
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
        run.plan.train = false;
        for (int s = 0; s < run.plan.n_slabs; s++)
            memset(run.plan.slabs[s].tiles, 0, sizeof run.plan.slabs[s].tiles);
        tiny_finish(&run);
        tiny_open(&run, &tiny);
        tiny_fill_batch(batch, run.config.vocab, 0, 1, 1);
        check_ok(ot_engine_eval(tiny.engine, &batch->micro[0], losses[groups]));
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
        free(batch);
    }
    assert_true(losses[0][TINY_SEQUENCE - 2] > 0);
    assert_memory_equal(losses[0], losses[1], sizeof losses[0]);
}

static void choose_groups(struct tiny_run *run, int rank, void *context) {
    const uint64_t *seed = context;
    tiny_random_stage(run, rank, context);
    run->plan.key_groups = 1 << (*seed + (uint64_t)rank) % 3;
    tiny_finish(run);
}

/* Stages, of which each has its own number of groups, also with rounds in flight. */
static void are_equal_in_stages(void **state) {
    (void)state;
    tiny_needs_cpu();
    int seeds = tests_are_brief() ? 1 : getenv("OT_TEST_SLOW") ? 20 : 2;
    for (int variant = 0; variant < (tests_are_for_races() ? 1 : 2); variant++) {
        struct tiny_run run;
        struct tiny_result want, got;
        char what[80];
        groups_defaults(&run, 3, variant ? OT_BF16 : OT_F32);
        run.config.n_layers = 4;
        train_resident(&run, &want);
        for (int i = 0; i < seeds; i++) {
            uint64_t seed = (uint64_t)(10 * variant + i);
            struct tiny_world w = {.ranks = 2 + (i + variant) % 3,
                                   .mode = OT_SHARD_STAGES,
                                   .in_flight = i % 3,
                                   .weights = OT_HOME_HOST,
                                   .state = OT_HOME_HOST,
                                   .activations = OT_HOME_HOST,
                                   .slots = 2,
                                   .delay_seed = seed,
                                   .change = choose_groups,
                                   .context = &seed};
            snprintf(what, sizeof what, "variant %d, seed %d, %d stages", variant, (int)seed, w.ranks);
            tiny_train_ranks(&run, &w, &got);
            tiny_same(&want, &got, what);
            tiny_result_free(&got);
        }
        tiny_result_free(&want);
    }
}

static void what_has_no_groups_is_refused(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    groups_defaults(&run, 4, OT_F32);
    tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_open_model(&run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    run.plan.key_groups = 3;
    check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "4 heads of keys cannot be divided into 3");
    run.plan.key_groups = 8;
    check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "4 heads of keys cannot be divided into 8");
    run.plan.key_groups = 4;
    check_ok(ot_plan_finish(chain, &run.plan));
    run.plan.sections = 0;
    check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "rows in sections alone");
    ot_model_close(model);
    run.config.attention_drop = 0.1f;
    run.regular.dropout = true;
    run.plan.sections = 4;
    tiny_open_model(&run, &model);
    check_fails(ot_plan_finish(ot_model_chain(model), &run.plan), OT_E_USAGE, "dropout of attention");
    run.plan.key_groups = 0;
    check_ok(ot_plan_finish(ot_model_chain(model), &run.plan));
    ot_model_close(model);
    ot_plan_free(&run.plan);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(are_equal_in_every_placement),
        cmocka_unit_test(short_sequences_have_the_same_bits),
        cmocka_unit_test(evaluation_alone_has_the_same_bits),
        cmocka_unit_test(are_equal_in_stages),
        cmocka_unit_test(what_has_no_groups_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Long rows in sections (offload/plan/slabs.h): the same bits in every placement, number of rounds and
 * division into stages, and the results of whole rows within rounding. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/plan/slabs.h"
#include "src/base/random.h"
#include "tests/offload/tiny_ranks.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static void sections_defaults(struct tiny_run *run, int sections, enum ot_dtype dtype) {
    tiny_defaults(run, 3, false, dtype);
    run->micro_sequences = 1;
    run->sections = sections;
    run->evals = true;
}

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    assert_int_equal(ot_plan_sections(&run->plan), run->sections);
    int64_t rest = TINY_SEQUENCE - run->plan.micro_tokens * (run->sections - 1);
    assert_true(rest > 0 && rest <= run->plan.micro_tokens);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
}

/* The largest difference of values, relative to the largest value. */
static double difference(const struct tiny_result *a, const struct tiny_result *b) {
    double most = 0, largest = 0;
    assert_int_equal(a->n_values, b->n_values);
    for (int64_t i = 0; i < a->n_values; i++) {
        most = fmax(most, fabs((double)a->values[i] - (double)b->values[i]));
        largest = fmax(largest, fabs((double)a->values[i]));
    }
    return most / largest;
}

/* Sums in another order: losses and norms differ by the rounding of fp32. A weight whose gradient is near 0
 * may move by up to the learning rate in a step of Adam, whatever the size of its gradient; so the bound of
 * weights and moments is that of two steps, where a wrong gradient moves most weights. */
static void are_close_to_whole_rows(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result whole, cut;
    sections_defaults(&run, 1, OT_F32);
    train_resident(&run, &whole);
    int step = tests_are_brief() ? 3 : 1;
    for (int sections = 2; sections <= 6; sections += step) { /* of 5, the last one is short */
        run.sections = sections;
        train_resident(&run, &cut);
        for (int i = 0; i < TINY_STEPS; i++) {
            assert_true(fabs(cut.loss[i] - whole.loss[i]) < 2e-5 * whole.loss[i]);
            assert_true(fabs(cut.norm[i] - whole.norm[i]) < 2e-4 * whole.norm[i]);
        }
        for (int i = 0; i < TINY_SEQUENCE; i++)
            assert_true(fabs((double)cut.token_loss[i] - (double)whole.token_loss[i]) < 1e-4);
        assert_true(difference(&cut, &whole) < 2e-2);
        tiny_result_free(&cut);
    }
    tiny_result_free(&whole);
}

/* Random plans: homes, slots, engines, rounds, kept activations, nvme. */
static void are_equal_in_every_placement(void **state) {
    (void)state;
    int seeds = tests_are_brief() ? 2 : getenv("OT_TEST_SLOW") ? 60 : 8;
    for (int variant = 0; variant < 4; variant += tiny_is_on_cpu() ? 1 : 3) {
        struct tiny_run run;
        struct tiny_result resident, other;
        char what[80];
        sections_defaults(&run, variant % 2 ? 2 : 5, variant / 2 ? OT_BF16 : OT_F32);
        run.config.qk_norm = variant == 1 ? OT_QK_NORM_HEADS : OT_QK_NORM_NONE;
        train_resident(&run, &resident);
        for (int seed = 1; seed <= seeds; seed++) {
            tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
            tiny_randomise(&run, (uint64_t)(seed * 4 + variant));
            run.plan.boundaries_pass = seed % 2 && run.plan.activations != OT_HOME_GPU;
            tiny_finish(&run);
            snprintf(what, sizeof what, "variant %d, seed %d", variant, seed);
            tiny_train(&run, &other);
            tiny_same(&resident, &other, what);
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&resident);
    }
}

/* Stages: any number of ranks and any division give the bits of one rank, also with rounds in flight and with
 * replicas, which have the bits of as many ranks as there are replicas. */
static void are_equal_in_stages(void **state) {
    (void)state;
    tiny_needs_cpu();
    int seeds = tests_are_brief() ? 1 : getenv("OT_TEST_SLOW") ? 20 : 3;
    for (int variant = 0; variant < 4; variant++) {
        struct tiny_run run;
        struct tiny_result want, got;
        char what[80];
        sections_defaults(&run, variant % 2 ? 3 : 4, variant / 2 ? OT_BF16 : OT_F32);
        run.config.tied = variant == 2;
        run.config.n_layers = 4;
        train_resident(&run, &want);
        for (int i = 0; i < seeds; i++) {
            uint64_t seed = (uint64_t)(100 * variant + i);
            struct tiny_world w = {.ranks = 2 + (i + variant) % 3,
                                   .mode = OT_SHARD_STAGES,
                                   .in_flight = i % 3,
                                   .weights = OT_HOME_HOST,
                                   .state = OT_HOME_HOST,
                                   .activations = OT_HOME_HOST,
                                   .slots = 2,
                                   .crosses = i % 2,
                                   .delay_seed = seed,
                                   .change = tiny_random_stage,
                                   .context = &seed};
            snprintf(what, sizeof what, "variant %d, seed %d, %d stages", variant, (int)seed, w.ranks);
            tiny_train_ranks(&run, &w, &got);
            tiny_same(&want, &got, what);
            tiny_result_free(&got);
        }
        tiny_result_free(&want);
    }
}

/* Ranks that share slabs: two of them, and two replicas of two stages, have the same bits. */
static void are_equal_in_replicas(void **state) {
    (void)state;
    tiny_needs_cpu();
    struct tiny_run run;
    struct tiny_result full, replicas;
    sections_defaults(&run, 4, OT_BF16);
    struct tiny_world w = {.ranks = 2,
                           .mode = OT_SHARD_FULL,
                           .weights = OT_HOME_HOST,
                           .state = OT_HOME_HOST,
                           .activations = OT_HOME_HOST,
                           .slots = 2};
    tiny_train_ranks(&run, &w, &full);
    w.ranks = 4;
    w.mode = OT_SHARD_STAGES;
    w.stages = 2;
    w.weights = OT_HOME_GPU;
    tiny_train_ranks(&run, &w, &replicas);
    tiny_same(&full, &replicas, "2 replicas of 2 stages, and 2 ranks");
    tiny_result_free(&full);
    tiny_result_free(&replicas);
}

/* A sequence that ends within a section: the sections behind it have no tokens. Its losses are those of the
 * same tokens in whole rows. */
static void short_sequences(void **state) {
    (void)state;
    enum { STEP = 3 };
    double losses[2][TINY_SEQUENCE], norms[2][TINY_SEQUENCE];
    for (int cut = 0; cut < 2; cut++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_batch *batch = malloc(sizeof *batch);
        assert_non_null(batch);
        sections_defaults(&run, cut ? 3 : 1, OT_F32);
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
        tiny_open(&run, &tiny);
        for (int n = TINY_SEQUENCE; n >= 6;
             n -= STEP) { /* long ones first: what they leave must not be added */
            struct ot_step_result r;
            tiny_fill_batch(batch, run.config.vocab, 0, 2, 1);
            for (int m = 0; m < 2; m++)
                batch->micro[m].n_tokens = m == 0 ? n : TINY_SEQUENCE + 6 - n;
            batch->input.lr = 0;
            check_ok(ot_engine_submit(tiny.engine, &batch->input));
            check_ok(ot_engine_result(tiny.engine, &r));
            assert_int_equal(r.skipped, OT_SKIP_NONE);
            losses[cut][TINY_SEQUENCE - n] = r.loss;
            norms[cut][TINY_SEQUENCE - n] = r.grad_norm;
        }
        check_ok(ot_engine_drain(tiny.engine));
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
        free(batch);
    }
    for (int i = 0; i <= TINY_SEQUENCE - 6; i += STEP) {
        assert_true(losses[0][i] > 0);
        assert_true(fabs(losses[0][i] - losses[1][i]) < 2e-5 * losses[0][i]);
        assert_true(fabs(norms[0][i] - norms[1][i]) < 2e-4 * norms[0][i]);
    }
}

/* The first micro-batch whose loss is not finite is told as a sequence, not as a section. */
static void bad_sequences_are_named(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_batch batch;
    struct ot_step_result r;
    float nan = NAN;
    int32_t odd = 66;
    sections_defaults(&run, 4, OT_F32);
    tiny_plan(&run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_open(&run, &tiny);
    tiny_fill_batch(&batch, odd, 0, TINY_STEP_SEQUENCES, 1); /* tokens below `odd` */
    batch.tokens[3 * TINY_SEQUENCE + 10] = odd;
    check_ok(ot_engine_set(tiny.engine, OT_SLAB_MASTER, 0, odd * run.config.hidden, 1, &nan));
    check_ok(ot_engine_submit(tiny.engine, &batch.input));
    check_ok(ot_engine_result(tiny.engine, &r));
    assert_int_equal(r.skipped, OT_SKIP_LOSS);
    assert_int_equal(r.bad_micro, 3);
    check_ok(ot_engine_drain(tiny.engine));
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
}

static void what_cannot_be_cut_is_refused(void **state) {
    (void)state;
    struct tiny_run run;
    struct ot_model *model;
    sections_defaults(&run, 4, OT_F32);
    tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_open_model(&run, &model);
    const struct ot_chain *chain = ot_model_chain(model);
    run.plan.first_round = 6;
    check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "whole sequences");
    run.plan.first_round = run.plan.round_micro = 8;
    check_ok(ot_plan_finish(chain, &run.plan));
    struct ot_plan_request request = {.chain = chain,
                                      .budget_bytes = {1 << 30, 1 << 30, 0},
                                      .sequence_tokens = TINY_SEQUENCE,
                                      .step_sequences = 2,
                                      .sections = 7,
                                      .train = true};
    struct ot_plan plan;
    check_fails(ot_plan_make(&request, &plan), OT_E_USAGE, "24 tokens cannot be 7 sections");
    ot_model_set_section_align(model, 16);
    request.sections = 3;
    check_fails(ot_plan_make(&request, &plan), OT_E_USAGE, "multiple of 16 tokens");
    struct ot_regular noise = {.neftune = 5};
    ot_model_set_regular(model, &noise);
    check_fails(ot_plan_make(&request, &plan), OT_E_USAGE, "NEFTune's noise need whole rows");
    check_fails(ot_plan_finish(chain, &run.plan), OT_E_USAGE, "cannot be cut into sections");
    ot_model_close(model);
    ot_plan_free(&run.plan);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(are_close_to_whole_rows),
        cmocka_unit_test(are_equal_in_every_placement),
        cmocka_unit_test(are_equal_in_stages),
        cmocka_unit_test(are_equal_in_replicas),
        cmocka_unit_test(short_sequences),
        cmocka_unit_test(bad_sequences_are_named),
        cmocka_unit_test(what_cannot_be_cut_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The engine that updates a tile never changes the result: state on the device, state streamed through it, or
 * the CPU pool (plan.h), in any mix. The results equal those of the all-resident run, bit by bit
 * (offload/README.md, rule 1). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum {
    GPU = 1 << OT_TILE_GPU,
    STREAM = 1 << OT_TILE_STREAM,
    CPU = 1 << OT_TILE_CPU,
    ALL_SETS = GPU | STREAM | CPU, /* sets of engines are bit sets from 1 to ALL_SETS */
};

static void plan_resident(struct tiny_run *run) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
}

/* A plan in which the engines of the set share each slab. The other choices of the plan vary with `mix`. */
static void plan_engines(struct tiny_run *run, unsigned engines, unsigned mix) {
    enum ot_home weights = mix & 1 ? OT_HOME_GPU : OT_HOME_HOST;
    enum ot_home activations = mix & 2 ? OT_HOME_HOST : OT_HOME_GPU;
    tiny_plan(run, weights, OT_HOME_HOST, activations, 1 + (int)(mix % 4));
    run->plan.state_slots = 1 + (int)(mix % 5);
    if (mix & 4)
        ot_plan_set_rounds(&run->plan, run->plan.max_micro);
    run->optimizer_threads = 1 + (int)(mix % 3);
    run->delay_seed = mix % 11 == 10 ? mix : 0;
    tiny_deal(run, OT_SLAB_ALIGN_PARAMS, engines, mix / 2 % 4);
}

/* Makes plans for each set of engines: one if tests are brief, four if they are slow, else two in turns from
 * call to call. */
static void all_mixes(enum ot_dtype dtype, bool tied, float clip) {
    static unsigned calls;
    unsigned step = tests_are_brief() ? 20 : getenv("OT_TEST_SLOW") ? 5 : 10;
    unsigned first = step == 10 ? 5 * (calls++ % 2) : 0;
    struct tiny_run run;
    struct tiny_result resident, other;
    char what[128];
    tiny_defaults(&run, 3, tied, dtype);
    run.clip = clip;
    plan_resident(&run);
    tiny_train(&run, &resident);
    ot_plan_free(&run.plan);
    for (unsigned engines = 1; engines <= ALL_SETS; engines++)
        for (unsigned mix = engines + first; mix < engines + 16; mix += step) {
            plan_engines(&run, engines, mix);
            snprintf(what, sizeof what, "%s tied=%d clip=%g engines %u mix %u", ot_dtype_name(dtype), tied,
                     (double)clip, engines, mix);
            tiny_train(&run, &other);
            tiny_same(&resident, &other, what);
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
    tiny_result_free(&resident);
}

static void mixes_fp32(void **state) {
    (void)state;
    all_mixes(OT_F32, true, 0);
    if (tests_are_brief())
        return;
    all_mixes(OT_F32, false, 1.0f);
    all_mixes(OT_F32, true, 1.0f);
    all_mixes(OT_F32, false, 0);
}

static void mixes_bf16(void **state) {
    (void)state;
    all_mixes(OT_BF16, false, 1.0f);
    if (tests_are_brief())
        return;
    all_mixes(OT_BF16, true, 1.0f);
    all_mixes(OT_BF16, false, 0);
    all_mixes(OT_BF16, true, 0);
}

static void mixes_fp16(void **state) {
    (void)state;
    all_mixes(OT_F16, true, 1.0f); /* fp16 always clips */
    if (!tests_are_brief())
        all_mixes(OT_F16, false, 1.0f);
}

/* ---- fractions, as the planner deals them ---- */

static void shares_of_a_request_train_alike(void **state) {
    (void)state;
    static const double fractions[][OT_TILE_ENGINES] = {
        {1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {0.4, 0, 0.6}, {0.3, 0.7, 0}, {0, 0.5, 0.5}, {0.2, 0.4, 0.4},
    };
    struct tiny_run run;
    struct tiny_result resident, other;
    tiny_defaults(&run, 4, false, OT_BF16);
    plan_resident(&run);
    tiny_train(&run, &resident);
    ot_plan_free(&run.plan);
    for (size_t i = 0; i < sizeof fractions / sizeof *fractions; i++) {
        memcpy(run.fractions, fractions[i], sizeof run.fractions);
        tiny_plan(&run, OT_HOME_AUTO, OT_HOME_AUTO, OT_HOME_AUTO, 0);
        for (int e = 0; e < OT_TILE_ENGINES; e++)
            assert_int_equal(ot_plan_count_tiles(&run.plan, (enum ot_tile_engine)e) > 0, fractions[i][e] > 0);
        tiny_train(&run, &other);
        tiny_same(&resident, &other, "shares");
        tiny_result_free(&other);
        ot_plan_free(&run.plan);
    }
    tiny_result_free(&resident);
}

/* Slabs of several chunks of the reduction (ot_reduce). The border between gradients that wait on the device
 * and those that leave lies inside a chunk. The norm is taken in pieces around it, with the bits of one. */
static void norms_of_cut_slabs_are_those_of_whole_slabs(void **state) {
    (void)state;
    enum { TILE = 13 * OT_SLAB_ALIGN_PARAMS };
    struct tiny_run run;
    struct tiny_result resident, other;
    tiny_defaults(&run, 2, false, OT_BF16);
    run.config.ffn = 2048;
    run.clip = 1e-3f; /* so small that every bit of the norm reaches the weights */
    plan_resident(&run);
    tiny_train(&run, &resident);
    ot_plan_free(&run.plan);
    for (uint64_t seed = 0; seed < 3; seed++) {
        tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_GPU, 2);
        tiny_deal(&run, TILE, GPU | CPU, seed);
        tiny_train(&run, &other);
        tiny_same(&resident, &other, "cut slabs");
        tiny_result_free(&other);
        ot_plan_free(&run.plan);
    }
    tiny_result_free(&resident);
}

/* ---- delayed updates, and calls that need their result ---- */

static void step(const struct tiny_run *run, struct ot_engine *engine, int number, float lr,
                 struct ot_step_result *result) {
    struct tiny_batch batch;
    tiny_fill_batch(&batch, run->config.vocab, number, TINY_STEP_SEQUENCES, run->micro_sequences);
    batch.input.lr = lr;
    check_ok(ot_engine_submit(engine, &batch.input));
    check_ok(ot_engine_result(engine, result));
    assert_int_equal(result->step, number + 1);
}

static void same_everything(const struct tiny_engine *a, const struct tiny_engine *b) {
    struct tiny_result of_a = {0}, of_b = {0};
    tiny_read(a, &of_a);
    tiny_read(b, &of_b);
    tiny_same(&of_a, &of_b, "what is read between steps");
    tiny_result_free(&of_a);
    tiny_result_free(&of_b);
    assert_int_equal(tiny_adam_step(a->engine), tiny_adam_step(b->engine));
}

static void same_eval(const struct tiny_run *run, const struct tiny_engine *a, const struct tiny_engine *b) {
    float of_a[2 * TINY_SEQUENCE], of_b[2 * TINY_SEQUENCE];
    struct tiny_batch batch;
    tiny_fill_batch(&batch, run->config.vocab, 17, 2, 2);
    check_ok(ot_engine_eval(a->engine, &batch.micro[0], of_a));
    check_ok(ot_engine_eval(b->engine, &batch.micro[0], of_b));
    assert_memory_equal(of_a, of_b, sizeof of_a);
}

/* An evaluation or a read after a step finds the step's updates made. A drain in between does not change
 * later steps. */
static void updates_are_made_before_anyone_looks(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < 8; mix++) {
        struct tiny_run resident, streamed;
        struct tiny_engine a, b;
        struct ot_step_result of_a, of_b;
        tiny_defaults(&resident, 2, mix & 1, mix & 2 ? OT_BF16 : OT_F32);
        resident.clip = mix & 4 ? 0 : 1.0f;
        streamed = resident;
        plan_resident(&resident);
        plan_engines(&streamed, mix % 3 ? STREAM | CPU | GPU : STREAM, mix);
        tiny_open(&resident, &a);
        tiny_open(&streamed, &b);
        same_eval(&resident, &a, &b);
        for (int i = 0; i < 6; i++) {
            step(&resident, a.engine, i, 1e-2f, &of_a);
            step(&streamed, b.engine, i, 1e-2f, &of_b);
            assert_true(of_a.loss == of_b.loss && of_a.grad_norm == of_b.grad_norm);
            if (i % 3 == 0)
                same_eval(&resident, &a, &b);
            if (i % 3 == 1)
                same_everything(&a, &b);
        }
        same_everything(&a, &b);
        same_everything(&a, &b); /* a second read does not update again */
        tiny_close(&a);
        tiny_close(&b);
        ot_plan_free(&resident.plan);
        ot_plan_free(&streamed.plan);
    }
}

static void carry_over(const struct tiny_engine *from, const struct tiny_engine *to) {
    const struct ot_chain *chain = ot_model_chain(from->model);
    for (int s = 0; s < chain->n_slabs; s++)
        for (enum ot_slab_kind kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++) {
            int64_t n = chain->slabs[s].n_params;
            float *values = malloc((size_t)n * sizeof *values);
            assert_non_null(values);
            check_ok(ot_engine_get(from->engine, kind, s, 0, n, values));
            check_ok(ot_engine_set(to->engine, kind, s, 0, n, values));
            free(values);
        }
}

/* A run that several engines make in turn, each with another mix, equals a run of one engine. Pieces of odd
 * sizes are read and written across the borders between engines. */
static void runs_go_on_under_another_mix(void **state) {
    (void)state;
    struct tiny_run run, resident;
    struct tiny_engine whole, piece, next;
    struct ot_step_result result;
    tiny_defaults(&run, 3, true, OT_BF16);
    resident = run;
    plan_resident(&resident);
    tiny_open(&resident, &whole);
    plan_engines(&run, STREAM, 0);
    tiny_open(&run, &piece);
    for (unsigned i = 0; i < ALL_SETS; i++) {
        step(&resident, whole.engine, (int)i, 1e-2f, &result);
        step(&run, piece.engine, (int)i, 1e-2f, &result);
        ot_plan_free(&run.plan);
        plan_engines(&run, ALL_SETS - i, i);
        tiny_open(&run, &next);
        carry_over(&piece, &next);
        tiny_hand_over(piece.engine, next.engine);
        tiny_close(&piece);
        piece = next;
        same_everything(&whole, &piece);
    }
    tiny_close(&whole);
    tiny_close(&piece);
    ot_plan_free(&run.plan);
    ot_plan_free(&resident.plan);
}

static void pieces_are_read_across_borders(void **state) {
    (void)state;
    for (enum ot_dtype dtype = OT_F32; dtype <= OT_F16; dtype++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        tiny_defaults(&run, 1, false, dtype);
        plan_engines(&run, ALL_SETS, 0);
        tiny_open(&run, &tiny);
        int64_t n = ot_model_chain(tiny.model)->slabs[1].n_params;
        float *values = malloc(2 * (size_t)n * sizeof *values), *back = values + n;
        assert_non_null(values);
        assert_true(run.plan.slabs[1].tiles[OT_TILE_GPU] > 0 && run.plan.slabs[1].tiles[OT_TILE_STREAM] > 0);
        for (enum ot_slab_kind kind = OT_SLAB_MASTER; kind <= OT_SLAB_V; kind++) {
            for (int64_t i = 0; i < n; i++)
                values[i] = sinf((float)i) * powf(10, (float)(i % 30) - 15);
            for (int64_t i = 0, piece = 1; i < n; i += piece, piece = piece * 7 % 1999) {
                int64_t rest = n - i < piece ? n - i : piece;
                check_ok(ot_engine_set(tiny.engine, kind, 1, i, rest, values + i));
            }
            check_ok(ot_engine_get(tiny.engine, kind, 1, 0, n, back));
            assert_memory_equal(values, back, (size_t)n * sizeof *values);
            for (int64_t i = 0, piece = 1; i < n; i += piece, piece = piece * 11 % 2003) {
                int64_t rest = n - i < piece ? n - i : piece;
                check_ok(ot_engine_get(tiny.engine, kind, 1, i, rest, back + i));
            }
            assert_memory_equal(values, back, (size_t)n * sizeof *values);
        }
        free(values);
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
    }
}

/* ---- steps that change nothing ---- */

/* A huge learning rate in the third step makes the fourth and later steps infinite, so they are skipped as a
 * whole. Two steps are in flight, so the streamed updates of a skipped step wait like any others. */
static void train_into_overflow(struct tiny_run *run, struct tiny_result *out, int64_t *adam_step) {
    struct tiny_engine tiny;
    struct tiny_batch *batch = malloc(sizeof *batch);
    assert_non_null(batch);
    memset(out, 0, sizeof *out);
    tiny_open(run, &tiny);
    for (int i = 0; i <= 6; i++) {
        struct ot_step_result result;
        if (i < 6) {
            tiny_fill_batch(batch, run->config.vocab, i, TINY_STEP_SEQUENCES, run->micro_sequences);
            batch->input.lr = i == 2 ? 1e30f : 1e-2f;
            check_ok(ot_engine_submit(tiny.engine, &batch->input));
        }
        if (i == 0)
            continue;
        check_ok(ot_engine_result(tiny.engine, &result));
        assert_int_equal(result.skipped != OT_SKIP_NONE, i > 3);
    }
    tiny_read(&tiny, out);
    *adam_step = tiny_adam_step(tiny.engine);
    tiny_close(&tiny);
    free(batch);
}

static void skipped_steps_change_nothing(void **state) {
    (void)state;
    for (unsigned mix = 0; mix < 4; mix++) {
        struct tiny_run run;
        struct tiny_result resident, other;
        int64_t steps[2];
        tiny_defaults(&run, 2, mix & 1, mix & 2 ? OT_BF16 : OT_F32);
        plan_resident(&run);
        train_into_overflow(&run, &resident, &steps[0]);
        ot_plan_free(&run.plan);
        for (unsigned engines = STREAM; engines <= ALL_SETS; engines++) {
            plan_engines(&run, engines, mix + engines);
            train_into_overflow(&run, &other, &steps[1]);
            tiny_same(&resident, &other, "after skipped steps");
            assert_int_equal(steps[0], 3);
            assert_int_equal(steps[1], 3);
            tiny_result_free(&other);
            ot_plan_free(&run.plan);
        }
        tiny_result_free(&resident);
    }
}

static void fill_tensor(const struct tiny_engine *tiny, int slab, const char *name, float value) {
    for (int64_t i = 0; i < ot_model_tensor_count(tiny->model); i++) {
        const struct ot_tensor *tensor = ot_model_tensor(tiny->model, i);
        int64_t n = tensor->rows * tensor->cols;
        if (tensor->slab != slab || !strstr(tensor->name, name))
            continue;
        float *values = malloc((size_t)n * sizeof *values);
        assert_non_null(values);
        for (int64_t j = 0; j < n; j++)
            values[j] = value;
        check_ok(ot_engine_set(tiny->engine, OT_SLAB_MASTER, slab, tensor->first, n, values));
        free(values);
        return;
    }
    fail_msg("slab %d has no %s", slab, name);
}

/* Without clipping no update waits for the norm. So a gradient that is not finite after other blocks were
 * updated is an error, also if those updates are still delayed. Zero activations hide the huge weights from
 * forward, but not from backward. */
static void overflow_without_clipping_is_an_error(void **state) {
    (void)state;
    for (unsigned engines = 1; engines <= ALL_SETS; engines++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_batch batch;
        struct ot_step_result result;
        tiny_defaults(&run, 2, false, OT_F32);
        run.clip = 0;
        plan_engines(&run, engines, engines);
        tiny_open(&run, &tiny);
        fill_tensor(&tiny, 1, "v_proj", 0);
        fill_tensor(&tiny, 1, "o_proj", 3e38f);
        tiny_fill_batch(&batch, run.config.vocab, 0, TINY_STEP_SEQUENCES, run.micro_sequences);
        check_ok(ot_engine_submit(tiny.engine, &batch.input));
        check_fails(ot_engine_result(tiny.engine, &result), OT_E_NUMERIC,
                    "after other blocks had been updated");
        check_fails(ot_engine_drain(tiny.engine), OT_E_NUMERIC, "after other blocks had been updated");
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
    }
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mixes_fp32),
        cmocka_unit_test(mixes_bf16),
        cmocka_unit_test(mixes_fp16),
        cmocka_unit_test(shares_of_a_request_train_alike),
        cmocka_unit_test(norms_of_cut_slabs_are_those_of_whole_slabs),
        cmocka_unit_test(updates_are_made_before_anyone_looks),
        cmocka_unit_test(runs_go_on_under_another_mix),
        cmocka_unit_test(pieces_are_read_across_borders),
        cmocka_unit_test(skipped_steps_change_nothing),
        cmocka_unit_test(overflow_without_clipping_is_an_error),
    };
    const struct CMUnitTest brief[] = {
        cmocka_unit_test(mixes_fp32),
        cmocka_unit_test(mixes_bf16),
        cmocka_unit_test(mixes_fp16),
    };
    return tests_are_brief() ? cmocka_run_group_tests(brief, NULL, NULL)
                             : cmocka_run_group_tests(tests, NULL, NULL);
}

/* Whole runs: 20 steps of AdamW, of adapters against PEFT, and of each kind of block against torch. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/models/golden_case.h"
#include "tests/offload/tiny_encode.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static void set_case_weights(const struct golden_case *c, const struct tiny_engine *tiny) {
    for (int slab = 0; slab < tiny->chain.n_slabs; slab++) {
        const struct ot_slab_spec *spec = &tiny->chain.slabs[slab];
        float *values = golden_case_slab(c, tiny->model, slab);
        if (spec->encoded_bytes > 0) {
            char *encoded = tiny_encoded(tiny->model, slab, values);
            check_ok(
                ot_engine_set_encoded(tiny->engine, slab, 0, spec->encoded_bytes / OT_ENCODED_UNIT, encoded));
            free(encoded);
        } else {
            check_ok(ot_engine_set(tiny->engine, OT_SLAB_MASTER, slab, 0, spec->n_params, values));
        }
        free(values);
    }
}

/* The slab has the bytes with which the run began. */
static void check_encoded(const struct golden_case *c, const struct tiny_engine *tiny, int slab) {
    size_t bytes = (size_t)tiny->chain.slabs[slab].encoded_bytes;
    float *values = golden_case_slab(c, tiny->model, slab);
    char *want = tiny_encoded(tiny->model, slab, values), *got = malloc(bytes);
    assert_non_null(got);
    check_ok(ot_engine_get_encoded(tiny->engine, slab, 0, (int64_t)bytes / OT_ENCODED_UNIT, got));
    assert_memory_equal(got, want, bytes);
    free(values);
    free(want);
    free(got);
}

static void check_final(const struct golden_case *c, const struct tiny_engine *tiny, double bound) {
    check_ok(ot_engine_drain(tiny->engine));
    for (int slab = 0; slab < tiny->chain.n_slabs; slab++)
        if (tiny->chain.slabs[slab].encoded_bytes > 0)
            check_encoded(c, tiny, slab);
    for (int64_t i = 0; i < ot_model_tensor_count(tiny->model); i++) {
        const struct ot_tensor *t = ot_model_tensor(tiny->model, i);
        int64_t n = t->rows * t->cols;
        if (tiny->chain.slabs[t->slab].encoded_bytes > 0)
            continue;
        float *got = malloc((size_t)n * sizeof *got);
        assert_non_null(got);
        check_ok(ot_engine_get(tiny->engine, OT_SLAB_MASTER, t->slab, t->first, n, got));
        const float *want = t->trained ? golden_case_tensor(c, "final", t) : golden_case_weight(c, t);
        double error = relative_error(got, want, n);
        if (!(error <= (t->trained ? bound : 0)))
            fail_msg("%s: %s is off by %.2e after the run", c->name, t->name, error);
        free(got);
    }
}

/* The case's rows as two micro-batches. starts: memory for row_start, which counts from the micro-batch. */
static int cut_rows(const struct golden_case *c, int32_t *starts, struct ot_micro_batch micro[2]) {
    const struct runner_batch *b = &c->batch;
    int64_t first = 0;
    while (b->row_start[first] == 0)
        first++;
    for (int64_t i = 0; i < b->n; i++)
        starts[i] = b->row_start[i] - (i < first ? 0 : (int32_t)first);
    micro[0] = tiny_micro(first, b->tokens, b->targets, b->position, starts);
    micro[1] =
        tiny_micro(b->n - first, b->tokens + first, b->targets + first, b->position + first, starts + first);
    return 2;
}

/* The case's pairs in one micro-batch. */
static int whole_batch(const struct golden_case *c, struct ot_micro_batch micro[2]) {
    const struct runner_batch *b = &c->batch;
    micro[0] = tiny_micro(b->n, b->tokens, b->targets, b->position, b->row_start);
    micro[0].n_inputs = b->n_inputs;
    micro[0].input_first = b->input_first;
    micro[0].input_end = b->input_end;
    return 1;
}

static void check_run(const char *name) {
    struct golden_case c;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct ot_micro_batch micro[2];
    int32_t starts[64];
    int64_t steps, trained = 0;
    golden_case_open(name, &c);
    const double *o = golden_f64(c.golden, golden_case_key(&c, "optimizer"), NULL);
    const double *losses = golden_f64(c.golden, golden_case_key(&c, "step_loss"), &steps);
    const double *norms = golden_f64(c.golden, golden_case_key(&c, "step_norm"), NULL);
    tiny_defaults(&run, 1, false, OT_F32); /* its optimizer is that of the golden runs */
    assert_true(o[1] == 0.9 && o[2] == 0.95 && o[3] == 1e-8 && o[4] == 0.1 && o[5] == run.clip);
    run.config = c.config;
    run.trains = c.parts.trains;
    run.trains_context = c.parts.context;
    run.lora = c.parts.lora;
    run.base = c.parts.base;
    tiny_plan(&run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_open(&run, &tiny);
    set_case_weights(&c, &tiny);
    assert_true(c.batch.n <= 64 && steps == 20);
    int n_micro = ot_model_has_pairs(&c.config) ? whole_batch(&c, micro) : cut_rows(&c, starts, micro);
    for (int64_t i = 0; i < c.batch.n; i++)
        trained += c.batch.targets[i] >= 0;
    for (int64_t s = 0; s < steps; s++) {
        const struct ot_step_input input = {n_micro, micro, trained, (float)o[0]};
        struct ot_step_result r;
        check_ok(ot_engine_submit(tiny.engine, &input));
        check_ok(ot_engine_result(tiny.engine, &r));
        /* The project's bound; fp32 rounding alone moves torch's loss by up to 6e-7. */
        if (!(fabs(r.loss - losses[s]) < 1e-5))
            fail_msg("%s step %lld: loss %.8f, torch has %.8f", name, (long long)s + 1, r.loss, losses[s]);
        /* The order in which a BLAS adds moves the norm of late steps: by 0.7e-4 (oneDNN) to 1.5e-4
         * (OpenBLAS's kernels for AVX-512). */
        if (!(fabs(r.grad_norm - norms[s]) < 5e-4 * norms[s]))
            fail_msg("%s step %lld: norm %.8f, torch has %.8f", name, (long long)s + 1, r.grad_norm,
                     norms[s]);
    }
    /* Adam divides by the root of v, so a value whose gradient nearly vanishes moves by its rounding
     * errors. */
    check_final(&c, &tiny, 1e-4);
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    golden_case_close(&c);
}

static void adapters_against_peft(void **state) {
    (void)state;
    for (int i = 0; golden_lora_names[i]; i++)
        check_run(golden_lora_names[i]);
}

static void families_against_torch(void **state) {
    (void)state;
    for (int i = 0; golden_step_names[i]; i++)
        check_run(golden_step_names[i]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adapters_against_peft),
        cmocka_unit_test(families_against_torch),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Objectives that compare answers: 20 steps against TRL (scripts/golden/objectives.py), over several cuts
 * into micro-batches. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/models/golden_case.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

enum { MOST = 64, COMPARISONS = 4 };

struct rows {
    int32_t tokens[2 * MOST], targets[2 * MOST], position[2 * MOST], row_start[2 * MOST];
    struct ot_comparison comparisons[COMPARISONS];
    struct ot_micro_batch micro[COMPARISONS];
    int n_micro;
};

static const char *key(const char *name, const char *array) {
    static char text[2][64];
    static int next;
    char *at = text[next++ & 1];
    snprintf(at, sizeof text[0], "%s.%s", name, array);
    return at;
}

/* Puts a prompt and an answer at token `at` of the micro-batch that begins at `base`. Returns its targets. */
static int32_t put_answer(struct rows *r, int64_t base, int64_t *at, const int32_t *prompt,
                          const int32_t *answer, int64_t longest) {
    int64_t n_prompt = 0, n_answer = 0, first = *at;
    while (n_prompt < longest && prompt[n_prompt] >= 0)
        n_prompt++;
    while (n_answer < longest && answer[n_answer] >= 0)
        n_answer++;
    for (int64_t i = 0; i < n_prompt + n_answer; i++, ++*at) {
        r->tokens[*at] = i < n_prompt ? prompt[i] : answer[i - n_prompt];
        r->targets[*at] = i + 1 >= n_prompt && i + 1 < n_prompt + n_answer ? answer[i + 1 - n_prompt] : -1;
        r->position[*at] = (int32_t)i;
        r->row_start[*at] = (int32_t)(first - base);
    }
    return (int32_t)n_answer;
}

/* The case's comparisons, `each` in a micro-batch. */
static void make_rows(const struct ot_golden *g, const char *name, int each, struct rows *r) {
    const int32_t *rows = golden_i32(g, key(name, "rows"), NULL),
                  *good = golden_i32(g, key(name, "good"), NULL);
    const double *reference = golden_f64(g, key(name, "reference"), NULL);
    int64_t longest = golden_dim(g, key(name, "rows"), 2), at = 0, base = 0;
    assert_int_equal(golden_dim(g, key(name, "rows"), 0), COMPARISONS);
    r->n_micro = 0;
    for (int i = 0; i < COMPARISONS; i++) {
        const int32_t *row = rows + 3 * longest * i;
        struct ot_comparison *c = &r->comparisons[i];
        if (i % each == 0) {
            base = at;
            r->micro[r->n_micro++] =
                tiny_micro(0, r->tokens + base, r->targets + base, r->position + base, r->row_start + base);
            r->micro[r->n_micro - 1].comparisons = c;
        }
        *c = (struct ot_comparison){.begin = (int32_t)(at - base), .good = good[i]};
        c->targets[0] = put_answer(r, base, &at, row, row + longest, longest);
        c->middle = (int32_t)(at - base);
        c->targets[1] = put_answer(r, base, &at, row, row + 2 * longest, longest);
        c->end = (int32_t)(at - base);
        for (int k = 0; k < 2; k++)
            c->reference[k] = (float)reference[2 * i + k];
        r->micro[r->n_micro - 1].n_comparisons++;
        r->micro[r->n_micro - 1].n_tokens = at - base;
    }
    assert_true(at <= 2 * MOST);
}

static void open_case(struct tiny_run *run, struct tiny_engine *tiny, struct golden_case *c, int each,
                      const double *objective) {
    golden_case_open("llama", c);
    tiny_defaults(run, 1, false, OT_F32);
    run->config = c->config;
    run->micro_sequences =
        each < COMPARISONS ? each : COMPARISONS - 1; /* four have room in three sequences */
    run->objective = (struct ot_objective){.kind = (enum ot_objective_kind)objective[0],
                                           .beta = objective[1],
                                           .smoothing = objective[2],
                                           .gamma = objective[3],
                                           .sft_weight = objective[4],
                                           .weights = {objective[5], objective[6]}};
    tiny_plan(run, OT_HOME_HOST, OT_HOME_HOST, OT_HOME_HOST, 2);
    tiny_open(run, tiny);
    for (int slab = 0; slab < tiny->chain.n_slabs; slab++) {
        float *values = golden_case_slab(c, tiny->model, slab);
        check_ok(
            ot_engine_set(tiny->engine, OT_SLAB_MASTER, slab, 0, tiny->chain.slabs[slab].n_params, values));
        free(values);
    }
}

static void check_number(const char *name, int64_t step, const char *what, double got, double want,
                         double bound) {
    if (!(fabs(got - want) < bound))
        fail_msg("%s step %lld: %s %.8f, TRL has %.8f", name, (long long)step + 1, what, got, want);
}

static void check_case(const struct ot_golden *g, const char *name, int each) {
    struct golden_case c;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct rows rows = {0};
    const double *o = golden_f64(g, key(name, "optimizer"), NULL);
    const double *losses = golden_f64(g, key(name, "step_loss"), NULL);
    const double *norms = golden_f64(g, key(name, "step_norm"), NULL);
    const double *chosen = golden_f64(g, key(name, "chosen"), NULL);
    const double *rejected = golden_f64(g, key(name, "rejected"), NULL);
    open_case(&run, &tiny, &c, each, golden_f64(g, key(name, "objective"), NULL));
    make_rows(g, name, each, &rows);
    for (int64_t s = 0; s < 20; s++) {
        const struct ot_step_input input = {rows.n_micro, rows.micro, COMPARISONS, (float)o[0]};
        struct ot_step_result r;
        check_ok(ot_engine_submit(tiny.engine, &input));
        check_ok(ot_engine_result(tiny.engine, &r));
        struct ot_compare_means means = ot_compare_mean(&run.objective, r.compared, 1);
        /* The project's bound. A reward is a sum of some ten losses of tokens, so it may be off by more. */
        check_number(name, s, "loss", r.loss, losses[s], 1e-5 * fmax(1, losses[s]));
        check_number(name, s, "norm", r.grad_norm, norms[s], 1e-4 * fmax(norms[s], 0.1));
        check_number(name, s, "chosen", means.chosen, chosen[s], 5e-5 * fmax(1, fabs(chosen[s])));
        check_number(name, s, "rejected", means.rejected, rejected[s], 5e-5 * fmax(1, fabs(rejected[s])));
    }
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    golden_case_close(&c);
}

static void objectives_against_trl(void **state) {
    (void)state;
    static const char *const names[] = {"dpo", "dpo-smooth", "dpo-sft", "ipo", "simpo", "orpo"};
    struct ot_golden *g = golden_open("objectives.bin");
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        for (int each = 1; each <= 2; each++)
            if (tiny_is_on_cpu() ||
                (i % 4 == 0 && each == 2)) /* fewer on the emulated device, which is slow */
                check_case(g, names[i], each);
    golden_close(g);
}

/* All comparisons in one micro-batch, because z is the mean over a micro-batch. */
static void kto_against_trl(void **state) {
    (void)state;
    struct ot_golden *g = golden_open("objectives.bin");
    check_case(g, "kto", COMPARISONS);
    golden_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(objectives_against_trl),
        cmocka_unit_test(kto_against_trl),
    };
    tiny_skip_without_device();
    return cmocka_run_group_tests(tests, NULL, NULL);
}

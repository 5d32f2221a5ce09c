/* The choice of a step depends only on options, counts and predicted rates. The rates here are made up. */
#include "src/train/run_shape.h"

#include "offload/predict/planner.h"
#include "tests/options/option_lines.h"
#include "tests/support/check.h"

/* A machine whose step takes `fixed` seconds and one more for each sequence; steps of more than `most`
 * sequences do not fit. */
struct machine {
    double fixed;
    int64_t most, last;
    int calls, error;
};

static int predict(void *context, struct ot_step_candidate *candidate) {
    struct machine *m = context;
    assert_true(m->calls++ == 0 || candidate->sequences < m->last); /* the largest first */
    m->last = candidate->sequences;
    if (candidate->sequences > m->most)
        return ot_fail(OT_E_BUDGET, "too large");
    if (m->error)
        return ot_fail((enum ot_error_code)m->error, "broken");
    candidate->step_seconds = m->fixed + (double)candidate->sequences;
    candidate->tokens_per_second = (double)candidate->tokens / candidate->step_seconds;
    return 0;
}

/* Sequences of 100 tokens. */
static void choose(const char *words, int64_t sequences, struct machine m, struct ot_step_choice *out) {
    struct ot_options o;
    char line[256];
    snprintf(line, sizeof line, "--model m --data d --epochs 2 %s", words);
    accept(&o, line);
    assert_true(ot_step_is_open(&o));
    check_ok(ot_step_choice_make(&o, 100, sequences, predict, &m, out));
    ot_options_free(&o);
}

static void check_candidates(const struct ot_step_choice *choice, int n, const int64_t *tokens) {
    assert_int_equal(choice->n, n);
    for (int i = 0; i < n; i++) {
        assert_int_equal(choice->candidates[i].tokens, tokens[i]);
        assert_int_equal(choice->candidates[i].sequences * 100, tokens[i]);
    }
}

static void the_fewest_tokens_near_the_best_rate_win(void **state) {
    (void)state;
    struct ot_step_choice c;
    const struct {
        double fixed;
        int want;
    } cases[] = {{1e-9, 0}, /* all steps are equally fast */
                 {4, 3},    /* 41, 82, 164, 328.. sequences reach 0.912, 0.955, 0.978, 0.990 of the best */
                 {1000, 6}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        choose("--tokens-per-step auto:4k..256k", 0,
               (struct machine){.fixed = cases[i].fixed, .most = INT64_MAX}, &c);
        double best = c.candidates[c.n - 1].tokens_per_second;
        assert_int_equal(c.n, OT_STEP_CANDIDATES);
        assert_int_equal(c.chosen, cases[i].want);
        assert_true(c.candidates[c.chosen].tokens_per_second >= (1 - OT_PLANNER_RESOLUTION) * best);
        assert_true(c.chosen == 0 ||
                    c.candidates[c.chosen - 1].tokens_per_second < (1 - OT_PLANNER_RESOLUTION) * best);
    }
}

static void candidates_double_within_the_bounds(void **state) {
    (void)state;
    struct ot_step_choice c;
    struct machine m = {.fixed = 1, .most = INT64_MAX};
    choose("--tokens-per-step auto:1000..7000", 0, m, &c);
    check_candidates(&c, 4, (int64_t[]){1000, 2000, 4000, 7000});
    choose("--tokens-per-step auto:910..4090", 0, m, &c); /* whole sequences within the bounds */
    check_candidates(&c, 3, (int64_t[]){1000, 2000, 4000});
    choose("--tokens-per-step auto:64..128", 0, m, &c);
    check_candidates(&c, 1, (int64_t[]){100});
    choose("--tokens-per-step auto:1000..7000 --micro-batch 30", 0, m, &c);
    check_candidates(&c, 3, (int64_t[]){3000, 6000, 7000});
    choose("--tokens-per-step auto:1000..7000", 25, m, &c); /* at most an epoch */
    check_candidates(&c, 3, (int64_t[]){1000, 2000, 2500});
    assert_int_equal(c.candidates[0].steps, 6);
    assert_int_equal(c.candidates[2].steps, 2);
    choose("--tokens-per-step auto:1000..7000", 5, m, &c);
    check_candidates(&c, 1, (int64_t[]){1000});
    choose("--tokens-per-step auto:1000..7000 --warmup 100", 1000, m, &c); /* 200, 100, 50 steps */
    check_candidates(&c, 2, (int64_t[]){1000, 2000});
    choose("--tokens-per-step auto:1000..7000 --warmup 300", 1000, m, &c); /* left to an error that says so */
    check_candidates(&c, 1, (int64_t[]){1000});
}

static void steps_that_do_not_fit_drop_out(void **state) {
    (void)state;
    struct ot_step_choice c;
    choose("--tokens-per-step auto:1000..8000", 0, (struct machine){.fixed = 1000, .most = 25}, &c);
    assert_int_equal(c.n, 4);
    assert_int_equal(c.chosen, 1);
    assert_true(c.candidates[2].tokens_per_second == 0 && c.candidates[3].tokens_per_second == 0);
    choose("--tokens-per-step auto:1000..8000", 0, (struct machine){.fixed = 1000, .most = 5}, &c);
    assert_int_equal(c.chosen, 0); /* the plan then says what is short */
}

static void errors_are_handed_on(void **state) {
    (void)state;
    struct ot_step_choice c;
    struct ot_options o;
    struct machine broken = {.fixed = 1, .most = INT64_MAX, .error = OT_E_DEVICE};
    accept(&o, "--model m --data d --tokens-per-step auto:1010..1090");
    check_fails(
        ot_step_choice_make(&o, 100, 0, predict, &broken, &c), OT_E_USAGE,
        "--tokens-per-step auto:1010..1090: no step of whole sequences (100 tokens each) lies within");
    ot_options_free(&o);
    accept(&o, "--model m --data d --tokens-per-step auto:1000..7000 --micro-batch 71");
    check_fails(ot_step_choice_make(&o, 100, 0, predict, &broken, &c), OT_E_USAGE,
                "at least one micro-batch");
    ot_options_free(&o);
    assert_int_equal(broken.calls, 0);
    accept(&o, "--model m --data d --tokens-per-step auto:1000..7000");
    check_fails(ot_step_choice_make(&o, 100, 0, predict, &broken, &c), OT_E_DEVICE, "broken");
    assert_int_equal(broken.calls, 1);
    ot_options_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_fewest_tokens_near_the_best_rate_win),
        cmocka_unit_test(candidates_double_within_the_bounds),
        cmocka_unit_test(steps_that_do_not_fit_drop_out),
        cmocka_unit_test(errors_are_handed_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

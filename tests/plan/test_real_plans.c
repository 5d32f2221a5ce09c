/* Properties of the planner over real cards and models: no option that a user could force gives a faster
 * plan, more room never gives a slower one, and a refusal is a proof. A small sample in each run; hundreds
 * with OT_TEST_SLOW. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/plan/real_cases.h"
#include "tests/support/check.h"

/* A search of limited effort may miss a better plan by this much. */
#define NEAR 0.02

static bool is_slow(void) {
    return getenv("OT_TEST_SLOW") != NULL;
}

/* Opens a random case that is right in itself: its combination of options may not be. */
static bool open_drawn(uint64_t number, char line[REAL_CASE_BYTES], struct real_case *real) {
    real_case_draw(number, line);
    if (real_case_open(line, real) == 0)
        return true;
    real_case_close(real);
    return false;
}

/* Step time of the request's plan; INFINITY: there is none. micro_tokens: of its micro-batch, or NULL. */
static double step_of(const struct real_case *real, const struct ot_plan_request *request,
                      int64_t *micro_tokens) {
    struct ot_planner_result result;
    int rc = real_case_choose(real, request, &result);
    if (rc < 0) {
        assert_true(rc == -OT_E_BUDGET || rc == -OT_E_USAGE);
        return INFINITY;
    }
    double seconds = result.prediction.step_seconds;
    if (micro_tokens)
        *micro_tokens = result.plan.micro_tokens;
    ot_plan_free(&result.plan);
    return seconds;
}

/* A plan with another micro-batch has other bits, so it is chosen only for a clear gain. */
static double allowed(bool same_micro) {
    return (1 + NEAR) / (same_micro ? 1 : 1 - OT_PLANNER_MARGIN);
}

static void no_forced_option_is_faster(void **state) {
    (void)state;
    const uint64_t cases = tests_are_brief() ? 1 : is_slow() ? 200 : 8;
    const int options = is_slow() ? 12 : 3; /* of the options, drawn by the number of the case */
    double worst = 0;
    int compared = 0;
    for (uint64_t number = 0; number < cases; number++) {
        char line[REAL_CASE_BYTES], name[REAL_CASE_NAME_BYTES];
        struct real_case real;
        struct ot_plan_request forced;
        int64_t micro = 0;
        if (!open_drawn(number, line, &real))
            continue;
        double chosen = step_of(&real, &real.plan_case->request, &micro);
        for (int i = 0; i < options; i++) {
            int64_t other = 0;
            if (!real_case_force(&real, (int)(number * 7 + (uint64_t)i * 13) % 40, name, &forced))
                continue;
            double seconds = step_of(&real, &forced, &other);
            compared += isfinite(seconds);
            if (chosen > seconds * allowed(micro == other))
                fail_msg("%s: %.4g s a step, but %.4g s with %s", line, chosen, seconds, name);
            worst = micro == other ? fmax(worst, chosen / seconds - 1) : worst;
        }
        real_case_close(&real);
    }
    print_message("%d plans with a forced option, faster by %.2f %% at most\n", compared, 100 * worst);
    assert_true(compared > 0);
}

static void more_room_is_not_slower(void **state) {
    (void)state;
    const uint64_t cases = tests_are_brief() ? 1 : is_slow() ? 200 : 8;
    double worst = 0;
    int compared = 0;
    for (uint64_t number = 1000; number < 1000 + cases; number++) {
        char line[REAL_CASE_BYTES];
        struct real_case real;
        int64_t micro = 0, other = 0;
        if (!open_drawn(number, line, &real))
            continue;
        struct ot_plan_request less = real.plan_case->request;
        int tier = (int)(number % (less.budget_bytes[OT_TIER_NVME] > 0 ? 3 : 2));
        less.budget_bytes[tier] -= less.budget_bytes[tier] / 8;
        double now = step_of(&real, &real.plan_case->request, &micro), small = step_of(&real, &less, &other);
        if (now > small * allowed(micro == other))
            fail_msg("%s: %.4g s a step, but %.4g s with less on %s", line, now, small,
                     ot_tier_name((enum ot_tier)tier));
        worst = micro == other ? fmax(worst, now / small - 1) : worst;
        compared += isfinite(small);
        real_case_close(&real);
    }
    print_message("%d plans with less room, faster by %.2f %% at most\n", compared, 100 * worst);
    assert_true(compared > 0);
}

static void a_refusal_stands_whatever_is_forced(void **state) {
    (void)state;
    const uint64_t cases = tests_are_brief() ? 20 : is_slow() ? 400 : 60;
    int refused = 0;
    for (uint64_t number = 2000; number < 2000 + cases; number++) {
        char line[REAL_CASE_BYTES], name[REAL_CASE_NAME_BYTES];
        struct real_case real;
        struct ot_plan_request forced;
        struct ot_plan plan;
        if (!open_drawn(number, line, &real))
            continue;
        int rc = ot_plan_make(&real.plan_case->request, &plan);
        if (rc == 0)
            ot_plan_free(&plan);
        refused += rc < 0;
        for (int i = 0; rc < 0 && real_case_force(&real, i, name, &forced); i++) {
            forced.is_trial = true;
            if (ot_plan_make(&forced, &plan) == 0)
                fail_msg("%s: refused, but there is a plan with %s", line, name);
        }
        real_case_close(&real);
    }
    print_message("%d refusals\n", refused);
    assert_true(refused > 0);
}

/* The cases that were refused, or slow, before the planner tried rounds. */
static void what_was_refused_has_a_plan(void **state) {
    (void)state;
    static const char *const lines[] = {
        "--model llama-7b --gpu rtx3060 --ram 16G --lora --base-type nf4",
        "--model llama-13b --gpu rtx4090 --ram 16G --lora --base-type nf4",
        "--model mistral-7b --gpu t4 --ram 16G --lora --base-type nf4",
    };
    for (int i = 0; i < 3; i++) {
        struct real_case real;
        struct ot_plan plan;
        check_ok(real_case_open(lines[i], &real));
        check_ok(ot_plan_make(&real.plan_case->request, &plan));
        ot_plan_free(&plan);
        real_case_close(&real);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_refused_has_a_plan),
        cmocka_unit_test(a_refusal_stands_whatever_is_forced),
        cmocka_unit_test(no_forced_option_is_faster),
        cmocka_unit_test(more_room_is_not_slower),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

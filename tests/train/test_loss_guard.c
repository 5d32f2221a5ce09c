/* Bad steps: how they are counted, when there are too many, and the messages about them. */
#include <math.h>
#include <stdio.h>

#include "src/train/evaluate.h"
#include "src/train/progress.h"
#include "tests/support/check.h"

static bool add(struct ot_loss_guard *guard, enum ot_skip skipped, bool spike) {
    struct ot_step_result result = {.skipped = skipped, .spike = spike};
    return ot_loss_guard_add(guard, &result);
}

static void too_many_in_a_row(void **state) {
    (void)state;
    struct ot_loss_guard_counts counts = {0};
    struct ot_loss_guard guard = {.most = 3, .counts = &counts};
    assert_false(add(&guard, OT_SKIP_LOSS, false));
    assert_false(add(&guard, OT_SKIP_GRADIENT, false));
    assert_false(add(&guard, OT_SKIP_NONE, true));
    for (int i = 0; i < 24; i++) /* fp16 searches for its loss scale */
        assert_false(add(&guard, OT_SKIP_OVERFLOW, false));
    assert_false(add(&guard, OT_SKIP_SPIKE, true));
    assert_false(add(&guard, OT_SKIP_LOSS, false));
    assert_false(add(&guard, OT_SKIP_OVERFLOW, false));
    assert_true(add(&guard, OT_SKIP_GRADIENT, false));
    assert_int_equal(ot_loss_guard_skipped(&counts), 30);
    assert_int_equal(counts.spikes, 2);
}

static void counts_are_told(void **state) {
    (void)state;
    char text[OT_LOSS_GUARD_TEXT_BYTES];
    struct ot_loss_guard_counts
        none = {0},
        one = {.skipped = {[OT_SKIP_LOSS] = 1}},
        many = {.skipped = {[OT_SKIP_NONE] = 400, [OT_SKIP_OVERFLOW] = 3, [OT_SKIP_SPIKE] = 2}, .spikes = 4},
        spike = {.spikes = 1};
    assert_string_equal(ot_loss_guard_summary(&none, text), "");
    assert_string_equal(ot_loss_guard_summary(&one, text), "skipped 1 step (1 loss)");
    assert_string_equal(ot_loss_guard_summary(&many, text),
                        "skipped 5 steps (3 overflow, 2 spike) · 4 loss spikes");
    assert_string_equal(ot_loss_guard_summary(&spike, text), "1 loss spike");
}

static void findings_are_told(void **state) {
    (void)state;
    char text[OT_LOSS_GUARD_TEXT_BYTES];
    struct ot_bad_block output = {.block = 3, .slab = -1, .block_name = "layer.2"}, weights = output,
                        asleep = {.block = -1, .slab = 0, .bad_weights = 64, .slab_name = "embed"},
                        nothing = {.block = -1, .slab = -1};
    weights.slab_name = "layer.2";
    weights.bad_weights = 1234;
    assert_string_equal(ot_loss_guard_finding(&output, "head", text),
                        "layer.2 is the first block whose output is not finite (its weights are)");
    assert_string_equal(
        ot_loss_guard_finding(&weights, "head", text),
        "layer.2 is the first block whose output is not finite, because 1,234 weights of layer.2 are not");
    assert_string_equal(ot_loss_guard_finding(&asleep, "embed", text),
                        "the forward pass is finite, but 64 weights of embed are not");
    assert_string_equal(ot_loss_guard_finding(&nothing, "head", text),
                        "the forward pass is finite; in the backward pass the gradient of head is the first "
                        "that is not finite "
                        "(its weights are)");
    assert_string_equal(ot_loss_guard_finding(&nothing, NULL, text),
                        "a second forward pass gave only finite numbers");
}

static void a_line_says_why(void **state) {
    (void)state;
    struct ot_progress progress;
    const struct ot_run_counts none = {0};
    char line[OT_PROGRESS_LINE_BYTES];
    ot_progress_open(&progress, 100, (struct ot_every){.steps = 50}, false, NULL);
    struct ot_step_report point = {.step = 7, .loss = -NAN, .grad_norm = -NAN, .seconds = 1, .tokens = 10};
    ot_progress_add(&progress, &point, 0);
    point.skipped = OT_SKIP_LOSS;
    assert_true(ot_progress_add(&progress, &point, 0));
    ot_progress_line(&progress, &point, none, line);
    assert_non_null(strstr(line, "loss nan |g| nan"));
    assert_non_null(strstr(line, " skipped: loss not finite"));
    point = (struct ot_step_report){.step = 8, .loss = 9, .grad_norm = 1, .seconds = 1, .tokens = 10};
    assert_false(ot_progress_add(&progress, &point, 0));
    point.spike = true;
    assert_true(ot_progress_add(&progress, &point, 0));
    ot_progress_line(&progress, &point, none, line);
    assert_non_null(strstr(line, " loss spike"));
    point.skipped = OT_SKIP_SPIKE;
    ot_progress_bar(&progress, &point, none, line);
    assert_non_null(strstr(line, " skipped: loss spike loss "));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(too_many_in_a_row),
        cmocka_unit_test(counts_are_told),
        cmocka_unit_test(findings_are_told),
        cmocka_unit_test(a_line_says_why),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

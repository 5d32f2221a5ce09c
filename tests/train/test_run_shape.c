/* Learning rates and the shape of a run depend only on options and counts. */
#include "tests/support/check.h"

#include <math.h>

#include "src/train/run_shape.h"

static void assert_near(double got, double want) {
    assert_true(fabs(got - want) <= 1e-12 * (1 + fabs(want)));
}

static void warmup_rises_to_the_peak(void **state) {
    (void)state;
    for (int kind = OT_SCHEDULE_CONSTANT; kind <= OT_SCHEDULE_WSD; kind++) {
        struct ot_lr_schedule s = {(enum ot_schedule_kind)kind, 2e-4, 10, 100, 0};
        for (int64_t step = 1; step <= 10; step++)
            assert_near(ot_lr_at(&s, step), 2e-5 * (double)step);
        s.warmup = 0;
        assert_near(ot_lr_at(&s, 1), 2e-4);
        for (int64_t step = 2; step <= 100; step++)
            assert_true(ot_lr_at(&s, step) <= ot_lr_at(&s, step - 1) && ot_lr_at(&s, step) > 0);
    }
}

static void each_schedule_has_its_shape(void **state) {
    (void)state;
    struct ot_lr_schedule s = {OT_SCHEDULE_CONSTANT, 1, 10, 110, 0};
    assert_near(ot_lr_at(&s, 110), 1);
    s.kind = OT_SCHEDULE_LINEAR; /* 0 at step 111 */
    assert_near(ot_lr_at(&s, 10), 1);
    assert_near(ot_lr_at(&s, 110), 1.0 / 101);
    assert_near(ot_lr_at(&s, 60), 51.0 / 101);
    s.kind = OT_SCHEDULE_COSINE;
    assert_near(ot_lr_at(&s, 60), 0.55);
    assert_near(ot_lr_at(&s, 110), 0.1);
    assert_near(ot_lr_at(&s, 35), 0.1 + 0.45 * (1 + sqrt(0.5)));
    s.kind = OT_SCHEDULE_WSD; /* the last 20 of 100 steps decrease */
    assert_near(ot_lr_at(&s, 90), 1);
    assert_near(ot_lr_at(&s, 91), 20.0 / 21);
    assert_near(ot_lr_at(&s, 110), 1.0 / 21);
}

static void short_runs_are_fine(void **state) {
    (void)state;
    for (int kind = OT_SCHEDULE_CONSTANT; kind <= OT_SCHEDULE_WSD; kind++)
        for (int64_t steps = 1; steps < 8; steps++)
            for (int64_t warmup = 0; warmup <= steps; warmup++)
                for (int64_t step = 1; step <= steps; step++) {
                    double lr = ot_lr_at(
                        &(struct ot_lr_schedule){(enum ot_schedule_kind)kind, 1, warmup, steps, 0}, step);
                    assert_true(lr > 0 && lr <= 1);
                }
}

static struct ot_settings parsed(int argc, char **argv) {
    struct ot_settings settings;
    check_ok(ot_options_parse(argc, argv, &settings.in_effect));
    return settings;
}
#define OPTIONS(...)                                                                                         \
    parsed(sizeof((char *[]){"--model", "m", "--data", "d", __VA_ARGS__}) / sizeof(char *),                  \
           (char *[]){"--model", "m", "--data", "d", __VA_ARGS__})

static int shape_run(struct ot_settings *settings, int64_t seq_len, int64_t sequences, int64_t params,
                     struct ot_run_shape *out) {
    ot_shape_choose(settings, params);
    return ot_shape_run(settings, seq_len, sequences, NULL, out);
}

static void defaults_follow_model_and_data(void **state) {
    (void)state;
    struct ot_settings o = OPTIONS("--seed", "1");
    struct ot_run_shape shape;
    int64_t seq_len;
    check_ok(ot_shape_seq_len(&o, 4096, &seq_len));
    assert_int_equal(seq_len, 2048);
    check_ok(shape_run(&o, seq_len, 2794, 6738415616, &shape)); /* much data: 64Ki tokens a step */
    assert_int_equal(shape.step_sequences, 32);
    assert_int_equal(shape.steps_per_epoch, 88);
    assert_int_equal(shape.lr.steps, 264);
    assert_int_equal(shape.lr.warmup, 8);
    assert_near(shape.lr.peak, 1e-5);
    assert_int_equal(o.in_effect.tokens_per_step.count, 65536);
    assert_int_equal(o.in_effect.epochs, 3);
    ot_options_free(&o.in_effect);
    o = OPTIONS("--seed", "1");
    check_ok(ot_shape_seq_len(&o, 512, &seq_len));
    assert_int_equal(seq_len, 512);
    check_ok(shape_run(&o, seq_len, 1000, 656000, &shape)); /* little data: about 50 steps an epoch */
    assert_int_equal(shape.step_sequences, 20);
    assert_int_equal(shape.steps_per_epoch, 50);
    check_ok(shape_run(&o, seq_len, 1, 656000, &shape));
    assert_int_equal(shape.steps_per_epoch, 1);
    ot_options_free(&o.in_effect);
}

static void given_options_are_kept(void **state) {
    (void)state;
    struct ot_settings o = OPTIONS("--steps", "7", "--tokens-per-step", "1000", "--seq-len", "64", "--lr",
                                   "0.5", "--warmup", "50%", "--micro-batch", "15");
    struct ot_run_shape shape;
    int64_t seq_len;
    check_ok(ot_shape_seq_len(&o, 512, &seq_len));
    assert_int_equal(seq_len, 64);
    check_ok(shape_run(&o, seq_len, 100, 1000000, &shape));
    assert_int_equal(shape.step_sequences, 15); /* rounded down */
    assert_int_equal(shape.lr.steps, 7);
    assert_int_equal(shape.lr.warmup, 4);
    assert_near(shape.lr.peak, 0.5);
    assert_int_equal(o.in_effect.tokens_per_step.count, 1000);
    assert_int_equal(o.in_effect.epochs, 0);
    ot_options_free(&o.in_effect);
    o = OPTIONS("--tokens-per-step", "100");
    check_ok(ot_shape_seq_len(&o, 4096, &seq_len)); /* a sequence is not longer than a step */
    assert_int_equal(seq_len, 100);
    ot_options_free(&o.in_effect);
}

static void what_cannot_be_is_refused(void **state) {
    (void)state;
    struct ot_settings o = OPTIONS("--seq-len", "1024", "--micro-batch", "9", "--tokens-per-step", "8Ki");
    struct ot_run_shape shape;
    int64_t seq_len;
    check_fails(ot_shape_seq_len(&o, 512, &seq_len), OT_E_USAGE,
                "--seq-len 1024 is beyond the model's 512 positions");
    check_fails(shape_run(&o, 1024, 100, 1000, &shape), OT_E_USAGE,
                "--micro-batch 9 is more than the 8 sequences");
    ot_options_free(&o.in_effect);
    o = OPTIONS("--epochs", "1", "--warmup", "11");
    check_fails(shape_run(&o, 2048, 10, 1000, &shape), OT_E_USAGE,
                "--warmup 11 is longer than the run's 10 steps");
    ot_options_free(&o.in_effect);
}

static void default_rates_are_the_documented_ones(void **state) {
    (void)state;
    assert_near(ot_shape_default_lr(6738415616, false), 1e-5);
    assert_near(ot_shape_default_lr(13015864320, false), 1e-5);
    assert_near(ot_shape_default_lr(1100048384, false), 3e-5);
    assert_near(ot_shape_default_lr(656000, false), 1e-3);
    assert_near(ot_shape_default_lr(6738415616, true), 1e-4);
    assert_near(ot_shape_default_lr(125000000, true), 8e-4);
    assert_near(ot_shape_default_lr(3000000, true), 3e-3);
}

/* A schedule that begins after step 20 is that of a run of the steps that are left. */
static void a_schedule_may_begin_later(void **state) {
    (void)state;
    for (int kind = OT_SCHEDULE_CONSTANT; kind <= OT_SCHEDULE_WSD; kind++) {
        struct ot_lr_schedule s = {(enum ot_schedule_kind)kind, 2e-4, 5, 30, 0},
                              later = {(enum ot_schedule_kind)kind, 2e-4, 5, 50, 20};
        for (int64_t step = 1; step <= 30; step++)
            assert_true(ot_lr_at(&later, 20 + step) == ot_lr_at(&s, step));
    }
    struct ot_settings o = OPTIONS("--steps", "120", "--warmup", "10%", "--lr", "1");
    struct ot_lr_schedule lr;
    check_ok(ot_shape_schedule(&o.in_effect, 100, 120, &lr));
    assert_true(lr.warmup == 2 && lr.first == 100 && lr.steps == 120);
    o.in_effect.warmup.steps = 21;
    o.in_effect.warmup.share = 0;
    check_fails(ot_shape_schedule(&o.in_effect, 100, 120, &lr), OT_E_USAGE,
                "--warmup 21 is longer than the run's 20 steps that are left");
    o.in_effect.warmup.steps = 0;
    check_ok(ot_shape_schedule(&o.in_effect, 120, 110, &lr)); /* refused later: steps are done already */
    ot_options_free(&o.in_effect);
}

/* Positions, ends of epochs and counts are those of a loop that trains step by step. */
static void rows_may_begin_later(void **state) {
    (void)state;
    static const struct ot_run_phase phases[] = {{0},
                                                 {.rows_first = 7, .rows_at = {2, 0}},
                                                 {.rows_first = 9, .rows_at = {1, 4}},
                                                 {.rows_first = 9, .rows_at = {3, 9}}};
    for (size_t i = 0; i < sizeof phases / sizeof *phases; i++) {
        struct ot_settings o = OPTIONS("--epochs", "6", "--tokens-per-step", "3072", "--seq-len", "1024",
                                       "--warmup", "0", "--eval-every", "epoch", "--save-every", "epoch");
        const struct ot_run_phase *p = &phases[i];
        struct ot_data_position at = p->rows_at;
        struct ot_run_shape shape;
        int64_t step = p->rows_first, end = step, ends = 0;
        ot_shape_choose(&o, 1000);
        check_ok(ot_shape_run(&o, 1024, 10, p, &shape)); /* 10 sequences: 4 steps, of 3, 3, 3 and 1 */
        for (; at.epoch < 6; step++) {
            struct ot_data_position found = ot_shape_position(&shape, step);
            assert_true(found.epoch == at.epoch && found.sequence == at.sequence);
            if (step == end && step > p->rows_first)
                ends++;
            if (step >= end)
                end = ot_shape_epoch_end(&shape, step);
            at.sequence += 3;
            if (at.sequence >= 10) {
                assert_int_equal(end, step + 1);
                at = (struct ot_data_position){at.epoch + 1, 0};
            }
        }
        assert_int_equal(shape.lr.steps, step);
        const struct ot_run_calendar calendar = {&o.in_effect, &shape, true, true};
        struct ot_run_counts counts = ot_calendar_count(&calendar, p->rows_first + 1, 1);
        assert_int_equal(counts.evals, ends + 1); /* the last step ends an epoch */
        assert_int_equal(counts.saves, ends + 1);
        o.in_effect.epochs = p->rows_at.epoch; /* done already */
        check_ok(ot_shape_run(&o, 1024, 10, p, &shape));
        assert_int_equal(shape.lr.steps, p->rows_first);
        ot_options_free(&o.in_effect);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_rises_to_the_peak),
        cmocka_unit_test(each_schedule_has_its_shape),
        cmocka_unit_test(short_runs_are_fine),
        cmocka_unit_test(defaults_follow_model_and_data),
        cmocka_unit_test(given_options_are_kept),
        cmocka_unit_test(what_cannot_be_is_refused),
        cmocka_unit_test(default_rates_are_the_documented_ones),
        cmocka_unit_test(a_schedule_may_begin_later),
        cmocka_unit_test(rows_may_begin_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

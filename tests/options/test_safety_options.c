/* Options of train for checkpoints and safety: accepted and refused values, and whether a resumed run may
 * change each option of train. */
#include "tests/options/option_lines.h"

#include "src/checkpoint/eval_history.h"

#include <stdlib.h>

#define BASE "--model m --data d.jsonl "

static void defaults_save_every_half_hour_and_resume(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, BASE);
    assert_true(o.save_every.seconds == 1800 && o.save_every.steps == 0 && !o.save_every.epoch);
    assert_string_equal(o.resume, "auto");
    assert_true(o.keep == 1 && o.grace == 0 && o.stall_limit == 600 && o.max_skips == 20);
    assert_true(o.skip_spikes == 0 && o.stop_early.evaluations == 0);
    assert_true(!ot_options_given(&o, "result") && o.eval_metric == OT_EVAL_LOSS);
    ot_options_free(&o);
}

static void each_parses(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, BASE "--save-every 100 --keep 3 --resume old --grace 30s --stall-limit 2m --max-skips 5 "
                    "--skip-spikes 4.5");
    assert_true(o.save_every.steps == 100 && o.save_every.seconds == 0 && !o.save_every.epoch);
    assert_string_equal(o.resume, "old");
    assert_true(o.keep == 3 && o.grace == 30 && o.stall_limit == 120 && o.max_skips == 5);
    assert_true(o.skip_spikes == 4.5);
    ot_options_free(&o);
    accept(&o, BASE "--eval-metric accuracy --stop-early 3,0.01 --result last");
    assert_true(o.eval_metric == OT_EVAL_ACCURACY && o.result == OT_CHOICE_RESULT_LAST);
    assert_true(o.stop_early.evaluations == 3 && o.stop_early.delta == 0.01);
    ot_options_free(&o);
    accept(&o, BASE "--eval-metric execution --eval-generate 50 --metric execution --databases dbs");
    assert_true(o.eval_metric == OT_EVAL_EXECUTION && o.eval_generate == 50);
    assert_true(o.metric == OT_CHOICE_METRIC_EXECUTION);
    assert_string_equal(o.databases, "dbs");
    ot_options_free(&o);
    accept(&o, "eval m --data d --generate 20 --max-new-tokens 99 --failures wrong.jsonl");
    assert_true(o.eval_generate == 20 && o.metric == OT_CHOICE_METRIC_MATCH && o.max_new_tokens == 99);
    assert_string_equal(o.failures, "wrong.jsonl");
    ot_options_free(&o);
    accept(&o, BASE "--save-every epoch --eval-every epoch");
    assert_true(o.save_every.epoch && o.save_every.seconds == 0 && o.eval_every.epoch);
    ot_options_free(&o);
    accept(&o, BASE "--save-every never");
    assert_true(!o.save_every.epoch && o.save_every.seconds == 0 && o.save_every.steps == 0);
    ot_options_free(&o);
}

static void absurd_values_are_refused(void **state) {
    (void)state;
    static const char *const lines[] = {
        "--save-every 0",
        "--save-every sometimes",
        "--save-every 0.5s",
        "--save-every epoch|never",
        "--keep 0",
        "--keep -1",
        "--grace 30",
        "--grace 0s",
        "--stall-limit epoch",
        "--stall-limit 1y",
        "--max-skips 0",
        "--skip-spikes -1",
        "--resume=",
        "--log-every never",
        "--log-every epoch",
        "--eval-every never",
        "--eval-metric bleu",
        "--result worst",
        "--stop-early 0",
        "--stop-early 3,",
        "--stop-early 3,-1",
        "--stop-early 3,0.1,2",
        "--stop-early 1.5",
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        char line[128];
        snprintf(line, sizeof line, BASE "%s", lines[i]);
        refuse(line, "must be");
    }
    refuse(BASE "--save-every daily", "such as 30s, 5m or 1h, or one of epoch|never");
    refuse(BASE "--grace 30", "--grace 30: must be a time of at least 1s, such as 30s, 5m or 1h");
}

static void contradictions_and_idle_options_are_refused(void **state) {
    (void)state;
    refuse(BASE "--no-save --save-every 5m", "--no-save and --save-every contradict");
    refuse(BASE "--no-save --keep 2", "--no-save and --keep contradict");
    refuse(BASE "--no-save --resume auto", "--no-save and --resume contradict");
    refuse(BASE "--no-save --result last", "--no-save and --result contradict");
    refuse(BASE "--result best --save-every never",
           "--result best needs checkpoints: leave out --save-every");
    refuse(BASE "--result best --eval-fraction 0", "--result best needs evaluations: with --eval-fraction 0");
    refuse(BASE "--stop-early 3 --eval-fraction 0", "--stop-early has no effect with --eval-fraction 0");
    refuse(BASE "--eval-metric match", "--eval-metric match judges answers: add --eval-generate N");
    refuse(BASE "--eval-metric execution --eval-generate 9",
           "--eval-metric execution needs answers that are executed: add --metric execution");
    refuse(BASE "--eval-generate 9 --eval-fraction 0",
           "--eval-generate has no effect with --eval-fraction 0");
    refuse(BASE "--metric execution", "--metric has no effect without --eval-generate");
    refuse(BASE "--eval-generate 9 --databases d", "--databases has no effect without --metric execution");
    refuse(BASE "--generate 9", "--generate has no effect with train");
    refuse("eval m --data d --metric execution", "--metric has no effect without --generate");
    refuse("eval m --data d --failures f", "--failures has no effect without --generate");
    refuse("eval m --data d --generate 9 --databases d",
           "--databases has no effect without --metric execution");
    refuse(BASE "--no-save --grace 30s", "--no-save and --grace contradict");
    refuse(BASE "--skip-spikes 3 --clip 0", "--skip-spikes needs clipping");
    refuse(BASE "--master none", "give --master-weights none");
    refuse("eval m --data d --master-weights none", "--master-weights has no effect with eval");
    refuse("eval m --data d --resume auto", "--resume has no effect with eval; it belongs to train");
}

static void names_of_other_programs_are_understood(void **state) {
    (void)state;
    refuse(BASE "--save-steps 100", "its name here is --save-every (");
    refuse(BASE "--save_total_limit 3", "did you mean --keep?");
    refuse(BASE "--resume-from-checkpoint x", "its name here is --resume (");
}

static void the_record_repeats_them(void **state) {
    (void)state;
    static const char *const lines[][2] = {
        {"--save-every epoch", "\"save-every\": \"epoch\""},
        {"--save-every never", "\"save-every\": \"never\""},
        {"--save-every 5m", "\"save-every\": \"300s\""},
        {"--save-every 7", "\"save-every\": 7"},
        {"--stall-limit 90m", "\"stall-limit\": \"5400s\""},
        {"--keep 3", "\"keep\": 3"},
        {"--stop-early 3", "\"stop-early\": 3"},
        {"--stop-early 3,0.01", "\"stop-early\": \"3,0.01\""},
        {"--eval-metric accuracy", "\"eval-metric\": \"accuracy\""},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct ot_options o;
        struct ot_json_writer w = {.indent = -1};
        char line[128], *text;
        snprintf(line, sizeof line, BASE "%s", lines[i][0]);
        accept(&o, line);
        ot_options_put_json(&o, NULL, &w);
        check_ok(ot_json_writer_take(&w, &text, NULL));
        if (!strstr(text, lines[i][1]))
            fail_msg("the record of \"%s\" lacks an option or has a wrong value: %s", lines[i][0], text);
        assert_null(strstr(text, "resume")); /* the way in which this process began is not part of the run */
        free(text);
        ot_options_free(&o);
    }
}

/* Every option of train must say whether a resumed run may change it, so that none is forgotten. */
static void options_of_train_say_whether_a_resumed_run_may_change_them(void **state) {
    (void)state;
    const struct ot_option *option;
    int n[OT_RESUME_LENGTH + 1] = {0};
    for (int i = 0; (option = ot_option_at(i)); i++) {
        bool of_train = option->commands & OT_FOR_TRAIN;
        if (of_train != (option->on_resume != OT_RESUME_NOT_TRAIN))
            fail_msg("--%s does not say whether a resumed run may change it (on_resume %d)", option->name,
                     (int)option->on_resume);
        n[option->on_resume] += of_train;
    }
    assert_int_equal(n[OT_RESUME_CONTENT], 6); /* model, tokenizer, the two of new tokens, data, eval-data */
    assert_int_equal(n[OT_RESUME_LENGTH], 2);
    assert_true(n[OT_RESUME_SAME] > 20 && n[OT_RESUME_FREE] > 20);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_save_every_half_hour_and_resume),
        cmocka_unit_test(each_parses),
        cmocka_unit_test(absurd_values_are_refused),
        cmocka_unit_test(contradictions_and_idle_options_are_refused),
        cmocka_unit_test(names_of_other_programs_are_understood),
        cmocka_unit_test(the_record_repeats_them),
        cmocka_unit_test(options_of_train_say_whether_a_resumed_run_may_change_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

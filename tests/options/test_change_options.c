/* --resume-with: which options may change, and where their values come from. */
#include "tests/options/option_lines.h"
#include "tests/support/check.h"

#include <string.h>

#include "src/options/resume_with.h"

#define RUN "--model m --data d.jsonl "

static void values_are_taken_as_if_the_command_line_had_them(void **state) {
    (void)state;
    struct ot_options o;
    accept(
        &o, RUN
        "--lr 1e-4 --clip 2 --resume-with lr=2e-4,steps=90,weight-decay=0.5,clip,config-dropout=yes,seed=3");
    assert_true(o.lr == 2e-4 && o.steps == 90 && o.weight_decay == 0.5 && o.clip == 2 && o.config_dropout);
    assert_true(ot_options_given_now(&o, "steps") && ot_options_given_now(&o, "lr"));
    static const char *const named[] = {"lr", "steps", "weight-decay", "clip", "config-dropout", "seed"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        assert_true(ot_resume_with_has(&o, named[i]));
    assert_false(ot_resume_with_has(&o, "eps"));
    assert_false(ot_resume_with_has(&o, "see"));
    ot_options_free(&o);
    accept(&o, RUN "--data e.jsonl --resume-with data=f.jsonl"); /* in place of both */
    assert_int_equal(o.data.n, 1);
    assert_string_equal(o.data.items[0], "f.jsonl");
    ot_options_free(&o);
    accept(&o, RUN);
    assert_false(ot_resume_with_has(&o, "lr"));
    ot_options_free(&o);
}

/* Each name is an option of train that fixes the result; all other such options are refused by name. */
static void what_may_change_is_a_part_of_the_table(void **state) {
    (void)state;
    const struct ot_option *option;
    int changeable = 0, fixed = 0;
    char line[200], phrase[100];
    for (int i = 0; (option = ot_option_at(i)); i++) {
        bool may = ot_resume_with_kind(option->name) != OT_CHANGE_NOTHING;
        if (!(option->commands & OT_FOR_TRAIN))
            continue;
        changeable += may;
        if (may) {
            assert_true(option->on_resume == OT_RESUME_SAME || option->on_resume == OT_RESUME_LENGTH ||
                        option->on_resume == OT_RESUME_CONTENT);
            continue;
        }
        bool is_free = option->on_resume == OT_RESUME_FREE || option->on_resume == OT_RESUME_CONVERT;
        fixed += !is_free;
        snprintf(line, sizeof line, RUN "--resume-with %s=1", option->name);
        snprintf(phrase, sizeof phrase, "--resume-with %s: %s", option->name, is_free ? "not needed" : "--");
        refuse(line, phrase);
    }
    assert_int_equal(changeable, 37); /* the names in resume_with.c: none is misspelled */
    assert_true(fixed > 20);
}

static void what_is_wrong_is_refused(void **state) {
    (void)state;
    refuse(RUN "--resume-with lr=1e-4,x=1", "train has no option 'x'");
    refuse(RUN "--resume-with =1", "train has no option ''");
    refuse(RUN "--resume-with gpu=h100", "train has no option 'gpu'");
    refuse(RUN "--resume-with eps", "eps: give its value, eps=VALUE");
    refuse(RUN "--resume-with ,,", "name an option, such as");
    refuse(RUN "--resume-with lr=7", "--resume-with: lr 7: must be");
    refuse(RUN "--resume-with lr=1e-4 --resume never", "has no effect with --resume never");
    refuse(RUN "--resume-with lr=1e-4 --no-save", "--resume-with");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_taken_as_if_the_command_line_had_them),
        cmocka_unit_test(what_may_change_is_a_part_of_the_table),
        cmocka_unit_test(what_is_wrong_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Cures: the engine's error names its cause, and the program adds the options that help. */
#include "tests/support/check.h"

#include <string.h>

#include "src/options/options.h"

/* Fails the test if a word that begins with two dashes is not an option of some command. */
static void check_options(const char *sentence) {
    int n = 0;
    for (const char *at = strstr(sentence, "--"); at; at = strstr(at + 2, "--")) {
        size_t bytes = strspn(at + 2, "abcdefghijklmnopqrstuvwxyz-");
        bool is_of_docker = strncmp(at, "--gpus ", 7) == 0;
        if (!is_of_docker && ot_option_find(at + 2, bytes, OT_COMMAND_TRAIN) < 0)
            fail_msg("\"%s\" names %.*s, which is no option", sentence, (int)bytes + 2, at);
        n++;
    }
    assert_true(n > 0);
}

static void the_causes_have_cures_of_options(void **state) {
    (void)state;
    for (int cause = OT_CAUSE_UNKNOWN + 1; cause < OT_CAUSE_COUNT; cause++) {
        ot_fail_cause(OT_E_BUDGET, (enum ot_error_cause)cause, "%s", "short");
        if (cause >= OT_CAUSE_N_CURED) {
            assert_string_equal(ot_cure_text(), "short");
            continue;
        }
        assert_int_equal(strncmp(ot_cure_text(), "short; ", 7), 0);
        check_options(ot_cure_text());
    }
    ot_fail(OT_E_BUDGET, "short");
    assert_string_equal(ot_cure_text(), "short");
}

static void the_cause_goes_the_way_of_the_sentence(void **state) {
    (void)state;
    struct ot_error error;
    assert_int_equal(ot_fail_cause(OT_E_USAGE, OT_CAUSE_STEP_TOKENS, "%d tokens", 7), -OT_E_USAGE);
    assert_int_equal(ot_fail_context(-OT_E_USAGE, "plan"), -OT_E_USAGE);
    ot_error_save(&error, -OT_E_USAGE);
    ot_error_clear();
    assert_int_equal(ot_error_cause(), OT_CAUSE_UNKNOWN);
    ot_error_load(&error);
    assert_string_equal(ot_cure_text(), "plan: 7 tokens; lower --tokens-per-step");
    ot_fail(OT_E_USAGE, "another");
    assert_string_equal(ot_cure_text(), "another");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_causes_have_cures_of_options),
        cmocka_unit_test(the_cause_goes_the_way_of_the_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* --help is generated: it names every option of the command and nothing else, and stays within the page. The
 * README is not, so it is held to what the program has. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "src/options/help.h"

static char *help_of(enum ot_command command) {
    enum { ROOM = 1 << 16 };
    char *text = calloc(1, ROOM);
    FILE *file = text ? fmemopen(text, ROOM, "w") : NULL;
    assert_non_null(file);
    ot_help_print(file, command);
    assert_int_equal(fclose(file), 0);
    assert_true(strlen(text) < ROOM - 1);
    return text;
}

static bool mentions(const char *help, const char *name) {
    char line[80];
    snprintf(line, sizeof line, "--%s", name);
    size_t length = strlen(line);
    for (const char *at = help; (at = strstr(at, line)); at += length) {
        const char *start = at;
        while (start > help && start[-1] == ' ')
            start--;
        bool begins = start == help || start[-1] == '\n' || (at >= help + 4 && at[-2] == ',');
        if (begins && (at[length] == ' ' || at[length] == '\n'))
            return true;
    }
    return false;
}

static void help_lists_the_options_of_its_command(void **state) {
    (void)state;
    for (int command = 0; command < OT_COMMAND_COUNT; command++) {
        char *help = help_of((enum ot_command)command);
        const struct ot_option *option;
        for (int i = 0; (option = ot_option_at(i)); i++) {
            int own = ot_option_find(option->name, strlen(option->name), (enum ot_command)command);
            if (mentions(help, option->name) != !!(ot_option_at(own)->commands & (1u << command)))
                fail_msg("%s --help and --%s disagree", ot_command_name((enum ot_command)command),
                         option->name);
        }
        free(help);
    }
}

static void help_fits_a_page_of_96_columns(void **state) {
    (void)state;
    for (int command = 0; command < OT_COMMAND_COUNT; command++) {
        char *help = help_of((enum ot_command)command);
        bool examples = false;
        for (const char *line = help; *line;) {
            size_t length = strcspn(line, "\n");
            examples = examples || strncmp(line, "Examples:", 9) == 0; /* commands to copy are not broken */
            if (length > 96 && !examples)
                fail_msg("%.*s", (int)length, line);
            line += length + (line[length] == '\n');
        }
        free(help);
    }
}

static void help_says_defaults_and_exit_codes(void **state) {
    (void)state;
    char *help = help_of(OT_COMMAND_TRAIN);
    assert_non_null(strstr(help, "(default: cosine)"));
    assert_non_null(strstr(help, "(default: 1.0)"));
    assert_non_null(strstr(help, "\n  4  does not fit in the memory budgets"));
    assert_non_null(strstr(help, "offload-train --model llama-7b --data sql.jsonl"));
    free(help);
}

static void options_are_named_once_a_command_and_described(void **state) {
    (void)state;
    const struct ot_option *option, *other;
    for (int i = 0; (option = ot_option_at(i)); i++) {
        assert_true(strlen(option->help) > 10 && option->help[strlen(option->help) - 1] == '.');
        assert_true(option->commands != 0);
        if (option->type == OT_OPTION_CHOICE)
            assert_non_null(option->choices);
        for (int j = 0; j < i; j++) {
            other = ot_option_at(j);
            if (option->commands & other->commands) {
                assert_string_not_equal(option->name, other->name);
                assert_int_not_equal(option->field, other->field);
            }
            assert_true(!option->letter || option->letter != other->letter);
        }
    }
}

/* ---- the README says what the program says ---- */

static char *read_readme(void) {
    FILE *file = fopen(OT_TEST_README, "r");
    assert_non_null(file);
    char *text = calloc(1, 1 << 20);
    assert_non_null(text);
    size_t bytes = fread(text, 1, (1 << 20) - 1, file);
    fclose(file);
    assert_true(bytes > 1000);
    return text;
}

static bool is_option(const char *name, size_t bytes) {
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (strlen(option->name) == bytes && memcmp(option->name, name, bytes) == 0)
            return true;
    return false;
}

static void readme_names_options_that_exist(void **state) {
    (void)state;
    char *readme = read_readme();
    int found = 0;
    for (const char *at = readme; (at = strstr(at, "--"));) {
        const char *name = at + 2;
        size_t bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz-/");
        bool begins = at > readme && (at[-1] == '`' || at[-1] == ' ' || at[-1] == '(');
        if (begins && *name != '-' && bytes > 0) {
            found++;
            if (!is_option(name, bytes))
                fail_msg("README.md names --%.*s, which is no option", (int)bytes, name);
        }
        at = name + bytes;
    }
    assert_true(found > 20);
    free(readme);
}

static void readme_names_every_preset(void **state) {
    (void)state;
    char *readme = read_readme(), quoted[64];
    const struct ot_preset *preset;
    for (int i = 0; (preset = ot_preset_at(i)); i++) {
        snprintf(quoted, sizeof quoted, "`%s`", preset->name);
        if (!strstr(readme, quoted))
            fail_msg("README.md does not name the preset %s", preset->name);
    }
    free(readme);
}

/* "  4  does not fit ..." of --help is "| 4 | does not fit ... |" there. */
static void readme_has_the_exit_codes(void **state) {
    (void)state;
    char *readme = read_readme(), *help = help_of(OT_COMMAND_TRAIN), row[200];
    const char *line = strstr(help, "Exit codes:\n");
    assert_non_null(line);
    int n = 0;
    for (line += strcspn(line, "\n") + 1; *line; line += strcspn(line, "\n") + 1, n++) {
        snprintf(row, sizeof row, "| %d | %.*s |", atoi(line), (int)strcspn(line + 5, "\n"), line + 5);
        if (!strstr(readme, row))
            fail_msg("README.md lacks the row \"%s\"", row);
    }
    assert_int_equal(n, 11);
    free(help);
    free(readme);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_lists_the_options_of_its_command),
        cmocka_unit_test(help_fits_a_page_of_96_columns),
        cmocka_unit_test(help_says_defaults_and_exit_codes),
        cmocka_unit_test(options_are_named_once_a_command_and_described),
        cmocka_unit_test(readme_names_options_that_exist),
        cmocka_unit_test(readme_names_every_preset),
        cmocka_unit_test(readme_has_the_exit_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

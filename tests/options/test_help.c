/* --help all is generated: it names exactly the options of the command and keeps to the page width. README
 * and the topics are written by hand, so the test compares them with the program. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/model.h"
#include "src/base/error.h"
#include "src/options/help.h"

/* The text of a topic, or, if `topic` is NULL, the help of a command. */
static char *help_text(const char *topic, enum ot_command command) {
    enum { ROOM = 1 << 16 };
    char *text = calloc(1, ROOM);
    FILE *file = text ? fmemopen(text, ROOM, "w") : NULL;
    assert_non_null(file);
    if (topic)
        assert_int_equal(ot_help_print_topic(file, topic), 0);
    else
        ot_help_print_all(file, command);
    assert_int_equal(fclose(file), 0);
    assert_true(strlen(text) < ROOM - 1);
    return text;
}

static char *help_of(enum ot_command command) {
    return help_text(NULL, command);
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
                fail_msg("%s --help all and --%s disagree", ot_command_name((enum ot_command)command),
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
            /* Commands to copy are not broken into lines. */
            examples = examples || strncmp(line, "Examples:", 9) == 0;
            if (length > 96 && !examples)
                fail_msg("the line is longer than 96 characters: %.*s", (int)length, line);
            line += length + (line[length] == '\n');
        }
        free(help);
    }
}

/* All options that it names are the command's, each once; it fits a page, and says where the rest is. */
static void brief_help_is_a_page(void **state) {
    (void)state;
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        enum ot_command command = (enum ot_command)c;
        char *text = calloc(1, 1 << 14);
        FILE *file = fmemopen(text, 1 << 14, "w");
        assert_non_null(file);
        ot_help_print_brief(file, command);
        assert_int_equal(fclose(file), 0);
        int lines = 0;
        for (const char *line = text; *line; lines++) {
            size_t length = strcspn(line, "\n");
            if (length > 96 && strncmp(line, "  offload-train", 15) != 0)
                fail_msg("the line is longer than 96 characters: %.*s", (int)length, line);
            line += length + (line[length] == '\n');
        }
        assert_in_range(lines, 5, 30);
        assert_non_null(strstr(text, "--help all."));
        const struct ot_topic *help = ot_help_of_command(command);
        char example[200];
        snprintf(example, sizeof example, "\n\n  %.*s\n\n", (int)strcspn(help->blocks[1].text, "\n"),
                 help->blocks[1].text);
        assert_non_null(strstr(text, example));
        assert_true((strstr(text, "\nOther commands: generate eval tokenize ") != NULL) ==
                    (c == OT_COMMAND_TRAIN));
        assert_true((strstr(text, " report.\n") != NULL) == (c == OT_COMMAND_TRAIN));
        for (int i = 2; i < help->n_blocks; i++) {
            const char *name = help->blocks[i].term;
            if (!mentions(text, name) ||
                !(ot_option_at(ot_option_find(name, strlen(name), command))->commands & (1u << c)))
                fail_msg("%s has no --%s", ot_command_name(command), name);
            for (int j = 2; j < i; j++)
                assert_string_not_equal(name, help->blocks[j].term);
        }
        free(text);
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
    int n = 0;
    for (int i = 0; (option = ot_option_at(i)); i++, n++) {
        const char *help = ot_help_of_option(option);
        assert_non_null(help);
        assert_true(strlen(help) > 10 && help[strlen(help) - 1] == '.');
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
    assert_int_equal(ot_option_texts->n_blocks, n); /* no text without its option */
}

/* ---- texts written by hand agree with the program ---- */

static char *read_source(const char *path) {
    FILE *file = fopen(path, "r");
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

/* True if the line is about another program, whose options are its own. */
static bool is_foreign(const char *text, const char *at) {
    while (at > text && at[-1] != '\n')
        at--;
    size_t n = strcspn(at, "\n");
    return memmem(at, n, "meson ", 6) || memmem(at, n, "scripts/", 8) || memmem(at, n, "torchrun ", 9) ||
           memmem(at, n, "srun ", 5) || memmem(at, n, "tensorboard --", 14);
}

/* Returns the number of options that the text names. */
static int check_options(const char *text, const char *where) {
    int found = 0;
    for (const char *at = text; (at = strstr(at, "--"));) {
        const char *name = at + 2;
        size_t bytes = strspn(name, "abcdefghijklmnopqrstuvwxyz-/");
        bool begins = at > text && strchr("` (\n", at[-1]);
        if (begins && *name != '-' && bytes > 0 && !is_foreign(text, at)) {
            found++;
            if (!is_option(name, bytes))
                fail_msg("%s names --%.*s, which is no option", where, (int)bytes, name);
        }
        at = name + bytes;
    }
    return found;
}

static void readme_names_options_that_exist(void **state) {
    (void)state;
    char *readme = read_source(OT_TEST_ROOT "/README.md");
    assert_true(check_options(readme, "README.md") > 20);
    free(readme);
}

static void topics_name_options_that_exist(void **state) {
    (void)state;
    int found = 0;
    for (int i = 0; i < ot_topic_count; i++) {
        char *text = help_text(ot_topics[i].name, OT_COMMAND_TRAIN);
        found += check_options(text, ot_topics[i].name);
        free(text);
    }
    assert_true(found > 60);
}

static void topics_fit_a_page(void **state) {
    (void)state;
    for (int i = 0; i < ot_topic_count; i++) {
        const struct ot_topic *topic = &ot_topics[i];
        char *text = help_text(topic->name, OT_COMMAND_TRAIN);
        int lines = 0;
        for (const char *line = text; *line; lines++) {
            size_t length = strcspn(line, "\n");
            if (length > 96)
                fail_msg("help %s: longer than 96 characters: %.*s", topic->name, (int)length, line);
            for (size_t c = 0; c < length; c++)
                if (line[c] < ' ' || line[c] > '~')
                    fail_msg("help %s: a character is not ASCII: %.*s", topic->name, (int)length, line);
            line += length + (line[length] == '\n');
        }
        if (lines < 15 || lines > 60)
            fail_msg("help %s has %d lines, wanted 15 to 60", topic->name, lines);
        free(text);
        assert_true(i == 0 || strcmp(topic[-1].name, topic->name) < 0);
    }
}

/* `help` alone lists all topics and commands, and so does the error for an unknown topic. */
static void topics_are_listed(void **state) {
    (void)state;
    enum { ROOM = 1 << 13 };
    static char list[ROOM];
    FILE *file = fmemopen(list, ROOM, "w");
    assert_non_null(file);
    assert_int_equal(ot_help_print_topic(file, NULL), 0);
    assert_int_equal(ot_help_print_topic(file, "tires"), -OT_E_USAGE);
    fclose(file);
    for (int i = 0; i < ot_topic_count; i++) {
        const struct ot_topic *topic = &ot_topics[i];
        assert_non_null(strstr(list, topic->title));
        assert_non_null(strstr(ot_error_text(), topic->name));
        assert_ptr_equal(ot_topic_find(topic->name), topic);
    }
    for (int c = 0; c < OT_COMMAND_COUNT; c++) {
        char *text = help_text(ot_command_name((enum ot_command)c), OT_COMMAND_TRAIN),
             *same = help_of((enum ot_command)c);
        assert_string_equal(text, same);
        free(text);
        free(same);
    }
}

static void models_topic_names_every_preset(void **state) {
    (void)state;
    char *text = help_text("models", OT_COMMAND_TRAIN);
    const struct ot_preset *preset;
    for (int i = 0; (preset = ot_preset_at(i)); i++)
        if (!strstr(text, preset->name))
            fail_msg("help models does not name the preset %s", preset->name);
    free(text);
}

/* Every "OT_E_NAME = N," of the header is an entry of the topic, and --help gives the same codes. */
static void exit_codes_topic_has_every_error(void **state) {
    (void)state;
    char *header = read_source(OT_TEST_ROOT "/src/base/error.h"), *help = help_of(OT_COMMAND_TRAIN),
         line[200];
    const struct ot_topic *topic = ot_topic_find("exit-codes");
    int n = 0, code = 0;
    for (const char *at = header; (at = strstr(at, "OT_E_")); at += 5) {
        if (sscanf(at, "OT_E_%*[A-Z] = %d", &code) != 1)
            continue;
        const struct ot_topic_block *found = NULL;
        for (int i = 0; i < topic->n_blocks; i++) {
            const struct ot_topic_block *block = &topic->blocks[i];
            if (block->term && *block->term && atoi(block->term) == code)
                found = block;
        }
        if (!found)
            fail_msg("help exit-codes does not name %d", code);
        snprintf(line, sizeof line, "\n  %-2d %s\n", code, found->text);
        assert_non_null(strstr(help, line));
        n++;
    }
    assert_int_equal(n, 11);
    free(help);
    free(header);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_lists_the_options_of_its_command),
        cmocka_unit_test(help_fits_a_page_of_96_columns),
        cmocka_unit_test(help_says_defaults_and_exit_codes),
        cmocka_unit_test(brief_help_is_a_page),
        cmocka_unit_test(options_are_named_once_a_command_and_described),
        cmocka_unit_test(readme_names_options_that_exist),
        cmocka_unit_test(topics_name_options_that_exist),
        cmocka_unit_test(topics_fit_a_page),
        cmocka_unit_test(topics_are_listed),
        cmocka_unit_test(models_topic_names_every_preset),
        cmocka_unit_test(exit_codes_topic_has_every_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

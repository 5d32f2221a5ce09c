/* Settings: the values that the program adds to the options, and the record of both. */
#include "tests/options/option_lines.h"
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/options/settings.h"

static char *folder;

static int open_folder(void **state) {
    (void)state;
    folder = make_folder();
    return folder ? 0 : -1;
}

static int close_folder(void **state) {
    (void)state;
    remove_folder(folder);
    return 0;
}

/* Parses `text` as the config file of a run. */
static void accept_config(const char *text, const char *more, struct ot_options *out) {
    char line[512];
    write_file(folder, "run.json", text, strlen(text));
    snprintf(line, sizeof line, "--config %s/run.json %s", folder, more);
    accept(out, line);
}

/* The run of these tests: the user gave two options, the checkpoint gave one, the program chose two. */
static void fill_in(struct ot_settings *settings) {
    struct ot_json *epochs;
    check_ok(ot_json_parse("7", 1, "test", &epochs));
    ot_settings_choose_count(settings, "micro-batch", 4);
    ot_settings_choose_word(settings, "dtype", OT_CHOICE_DTYPE_FP32);
    check_ok(
        ot_settings_take_recorded(settings, ot_option_find("epochs", 6, OT_COMMAND_TRAIN), epochs, true));
    ot_json_free(epochs);
}

static char *record(const struct ot_settings *settings, bool with_sources) {
    struct ot_json_writer w = {.indent = -1};
    char *text;
    if (with_sources) {
        ot_json_begin_object(&w, NULL);
        ot_options_put_run(&settings->in_effect, &w);
        ot_json_end_object(&w);
    } else {
        ot_options_put_json(&settings->in_effect, NULL, &w);
    }
    check_ok(ot_json_writer_take(&w, &text, NULL));
    return text;
}

static void choices_leave_the_options_as_they_are(void **state) {
    (void)state;
    struct ot_options o;
    accept_config("{\"lr\": 3e-4}", "--model m --data d --dtype auto", &o);
    struct ot_settings settings = {o};
    fill_in(&settings);
    const struct ot_options *in_effect = &settings.in_effect;
    assert_true(o.micro_batch == 0 && o.epochs == 0 && o.dtype == OT_CHOICE_DTYPE_AUTO);
    assert_true(in_effect->micro_batch == 4 && in_effect->epochs == 7 &&
                in_effect->dtype == OT_CHOICE_DTYPE_FP32 && in_effect->lr == 3e-4);
    assert_true(ot_options_given(in_effect, "epochs") && !ot_options_given(&o, "epochs"));
    assert_false(ot_options_given(in_effect, "micro-batch"));
    ot_options_free(&o);
}

static void the_record_says_who_gave_what(void **state) {
    (void)state;
    static const char *const expected[][2] = {{"model", "command line"},  {"lr", "config"},
                                              {"micro-batch", "program"}, {"dtype", "program"},
                                              {"epochs", "checkpoint"},   {"clip", "default"}};
    struct ot_options o;
    struct ot_json *tree;
    accept_config("{\"lr\": 3e-4}", "--model m --data d --dtype auto", &o);
    struct ot_settings settings = {o};
    fill_in(&settings);
    char *text = record(&settings, true);
    check_ok(ot_json_parse(text, strlen(text), "run.json", &tree));
    const struct ot_json *sources = ot_json_get(tree, "sources");
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++)
        assert_string_equal(ot_json_string(ot_json_get(sources, expected[i][0]), NULL), expected[i][1]);
    assert_null(ot_json_get(sources, "steps"));
    ot_json_free(tree);
    free(text);
    ot_options_free(&o);
}

/* run.json has "sources". The run.json of an earlier version and the record in a checkpoint do not. */
static void the_record_repeats_the_run_with_and_without_sources(void **state) {
    (void)state;
    struct ot_options o;
    accept_config("{\"lr\": 3e-4}", "--model m --data d --dtype auto", &o);
    struct ot_settings settings = {o};
    fill_in(&settings);
    char *texts[] = {record(&settings, false),
                     record(&settings, true)}; /* the next line reuses the texts of the options */
    for (int with_sources = 0; with_sources < 2; with_sources++) {
        struct ot_settings again;
        accept_config(texts[with_sources], "", &again.in_effect);
        assert_int_equal(again.in_effect.micro_batch, 4);
        assert_false(ot_options_given(&again.in_effect, "steps"));
        char *repeated = record(&again, false);
        assert_string_equal(texts[0], repeated);
        free(repeated);
        ot_options_free(&again.in_effect);
    }
    free(texts[0]);
    free(texts[1]);
    ot_options_free(&o);
}

static void sources_that_are_no_object_are_refused(void **state) {
    (void)state;
    char line[512];
    write_file(folder, "run.json", "{\"sources\": 3}", 14);
    snprintf(line, sizeof line, "--model m --data d --config %s/run.json", folder);
    refuse(line, "unknown option sources");
}

int main(void) {
#define settings_test(test) cmocka_unit_test_setup_teardown(test, open_folder, close_folder)
    const struct CMUnitTest tests[] = {
        settings_test(choices_leave_the_options_as_they_are),
        settings_test(the_record_says_who_gave_what),
        settings_test(the_record_repeats_the_run_with_and_without_sources),
        settings_test(sources_that_are_no_object_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* --tokens-per-step: a number, or bounds within which the program chooses. */
#include <stdio.h>
#include <stdlib.h>

#include "src/options/settings.h"
#include "tests/options/option_lines.h"
#include "tests/support/check.h"

#define BASE "--model m --data d "

static void a_step_is_a_number_or_bounds(void **state) {
    (void)state;
    static const struct {
        const char *text;
        struct ot_step_tokens want;
    } good[] = {{"8", {.count = 8}},
                {"1e9", {.count = 1000000000}},
                {"16k", {.count = 16384}},
                {"auto:8k..64k", {.least = 8192, .most = 65536}},
                {"auto:1000..1000", {.least = 1000, .most = 1000}},
                {"auto:8..512", {.least = 8, .most = 512}},
                {"auto:16Mi..1e9", {.least = 16 << 20, .most = 1000000000}}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        struct ot_options o;
        char line[128];
        snprintf(line, sizeof line, BASE "--tokens-per-step %s", good[i].text);
        accept(&o, line);
        assert_memory_equal(&o.tokens_per_step, &good[i].want, sizeof o.tokens_per_step);
        ot_options_free(&o);
    }
}

static void wrong_bounds_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {"auto",
                                      "auto:",
                                      "auto:8k",
                                      "auto:8k..",
                                      "auto:..8k",
                                      "auto:..",
                                      "auto:8k...16k",
                                      "auto:8k..16k..32k",
                                      "auto:8k-16k",
                                      "auto:8k..4k",
                                      "auto:0..1",
                                      "auto:-8k..8k",
                                      "auto:4..64",
                                      "auto:8..513",
                                      "auto:8.5..64",
                                      "auto:8k..1e10",
                                      "auto:1e300..1e308",
                                      "auto:8k..nan",
                                      "auto:0000000000000000000000000000008k..16k",
                                      "8k..16k",
                                      "Auto:8k..16k",
                                      "1e10"};
    char line[256];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        snprintf(line, sizeof line, BASE "--tokens-per-step %s", bad[i]);
        refuse(line,
               ": must be a whole number from 8 to 1000000000, such as 16k = 16384, or auto:MIN..MAX, such "
               "as auto:8k..64k, with MAX from MIN to 64 times MIN");
    }
    refuse(BASE "--tokens-per-step 7", "--tokens-per-step must be at least 8.");
    refuse(BASE "--tokens-per-step auto:64..128 --seq-len 256",
           "--tokens-per-step auto: MAX 128 is less than one sequence (--seq-len 256)");
    refuse(BASE "--tokens-per-step auto:8k..16k --no-forecast", "--tokens-per-step auto needs the forecast");
    refuse(BASE "--tokens-per-step auto:8k..16k --deterministic world",
           "--tokens-per-step auto and --deterministic world contradict each other");
    refuse("plan m --gpu h200 --tokens-per-step auto:8k..16k --minimum", "--minimum needs one step");
    refuse("plan m --gpu h200 --tokens-per-step auto:8k..16k --sweep tokens-per-step",
           "contradict each other");
    refuse("bench m --tokens-per-step auto:8k..16k", "must be up to");
}

static void check_record(const struct ot_options *options, const char *value, const char *source) {
    struct ot_json_writer w = {.indent = -1};
    char *text, want[64];
    ot_json_begin_object(&w, NULL);
    ot_options_put_run(options, &w);
    ot_json_end_object(&w);
    check_ok(ot_json_writer_take(&w, &text, NULL));
    snprintf(want, sizeof want, "\"tokens-per-step\": %s,", value);
    assert_non_null(strstr(text, want));
    snprintf(want, sizeof want, "\"tokens-per-step\": \"%s\"", source);
    assert_non_null(strstr(text, want));
    free(text);
}

static void the_choice_is_recorded_as_a_number(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, BASE "--tokens-per-step auto:8k..64k");
    check_record(&o, "\"auto:8192..65536\"", "command line");
    struct ot_settings settings = {o};
    ot_settings_choose_step(&settings, 32768);
    check_record(&settings.in_effect, "32768", "program");
    assert_int_equal(settings.in_effect.tokens_per_step.least, 8192);
    ot_options_free(&o);
}

/* A run may be all warm-up; longer than the run it may not be. */
static void warmup_ends_with_the_run(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, BASE "--steps 5 --warmup 5");
    assert_int_equal(o.warmup.steps, 5);
    ot_options_free(&o);
    refuse(BASE "--steps 5 --warmup 6", "--warmup 6 is longer than the run (--steps 5)");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warmup_ends_with_the_run),
        cmocka_unit_test(a_step_is_a_number_or_bounds),
        cmocka_unit_test(wrong_bounds_are_refused),
        cmocka_unit_test(the_choice_is_recorded_as_a_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Options of export: the types of GGUF files. */
#include "src/gguf/names.h"
#include "tests/options/option_lines.h"

/* The words of --gguf are the mixtures, in their order. */
static void the_types_are_those_of_the_mixtures(void **state) {
    char words[128] = "";
    const struct ot_gguf_mixture *mixture;
    (void)state;
    for (int i = 0; (mixture = ot_gguf_mixture_at(i)); i++) {
        struct ot_options o;
        size_t at = strlen(words);
        snprintf(words + at, sizeof words - at, "%s%s", i ? "|" : "", mixture->name);
        char *line[] = {"export", "a", "--out", "b", "--gguf", (char *)mixture->name};
        check_ok(ot_options_parse(6, line, &o)); /* accept() would take the _ of a name as a space */
        assert_true(ot_options_given(&o, "gguf"));
        assert_int_equal(o.gguf, i);
        ot_options_free(&o);
    }
    assert_string_equal(ot_option_at(ot_option_find("gguf", 4, OT_COMMAND_EXPORT))->choices, words);
}

static void wrong_and_idle_options_of_export_are_refused(void **state) {
    (void)state;
    refuse("export a --out b --gguf q3_k", "--gguf");
    refuse("export a --out b --modelfile", "--modelfile has no effect without --gguf");
    refuse("export a --out b --gguf f16 --max-shard-size 1G",
           "--gguf and --max-shard-size contradict each other");
    refuse("train --model a --data b --gguf f16", "--gguf has no effect with train; it belongs to export");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_types_are_those_of_the_mixtures),
        cmocka_unit_test(wrong_and_idle_options_of_export_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Options of export: the types of GGUF files. Options of watch and report. */
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

static void watch_and_report_take_directories_of_runs(void **state) {
    (void)state;
    struct ot_options o;
    accept(&o, "report a b --out c.html --json");
    assert_true(o.runs.n == 2 && strcmp(o.runs.items[1], "b") == 0 && strcmp(o.out, "c.html") == 0);
    ot_options_free(&o);
    accept(&o, "watch a --every 0.5s");
    assert_true(o.every == 0.5 && strcmp(o.dir, "a") == 0 && !o.once);
    ot_options_free(&o);
    refuse("watch a b", "unexpected argument 'b'");
    refuse("watch", "watch needs a directory, such as offload-train watch out/my-run");
    refuse("report", "report needs a directory");
    refuse("report a b", "report needs --out, such as --out runs.html");
    refuse("watch a --json", "--json has no effect with watch");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_types_are_those_of_the_mixtures),
        cmocka_unit_test(wrong_and_idle_options_of_export_are_refused),
        cmocka_unit_test(watch_and_report_take_directories_of_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

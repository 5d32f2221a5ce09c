#include "tests/fuzz/repeats.h"

#include <stdlib.h>
#include <string.h>

#include "src/options/options.h"
#include "tests/fuzz/target.h"

static char *value_text(const struct ot_option *option, const struct ot_options *options) {
    struct ot_json_writer w = {.indent = -1};
    char *text;
    ot_option_put_value(option, options, &w);
    FUZZ_CHECK(ot_json_writer_take(&w, &text, NULL) == 0);
    return text;
}

static void check_same(const struct ot_option *option, const struct ot_options *a,
                       const struct ot_options *b) {
    char *a_text = value_text(option, a), *b_text = value_text(option, b);
    FUZZ_CHECK(strcmp(a_text, b_text) == 0);
    free(a_text);
    free(b_text);
}

void fuzz_check_repeats(const struct ot_options *options) {
    static struct ot_options again;
    struct ot_json_writer w = {.indent = -1};
    char *text;
    size_t bytes;
    ot_options_put_json(options, NULL, &w);
    FUZZ_CHECK(ot_json_writer_take(&w, &text, &bytes) == 0);
    char *words[] = {(char *)(uintptr_t)ot_command_name(options->command), (char *)(uintptr_t) "--config",
                     (char *)(uintptr_t)fuzz_file(text, bytes)};
    FUZZ_CHECK(ot_options_parse(3, words, &again) == 0);
    const struct ot_option *option;
    for (int i = 0; (option = ot_option_at(i)); i++)
        if (again.source[i] == OT_FROM_FILE)
            check_same(option, options, &again);
    ot_options_free(&again);
    free(text);
}

/* Settings files: the first byte says the parser, the rest is the text. What is accepted prints as JSON that
 * parses again to the same tree, and as HJSON too, which all JSON is. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/migrate/settings_file.h"
#include "tests/fuzz/target.h"

static void check_again(const struct ot_json *tree) {
    struct ot_json_writer w = {.indent = -1};
    struct ot_json *again;
    char *text;
    size_t bytes;
    ot_json_put_value(&w, NULL, tree);
    FUZZ_CHECK(ot_json_writer_take(&w, &text, &bytes) == 0);
    FUZZ_CHECK(ot_json_parse(text, bytes, "printed", &again) == 0);
    FUZZ_CHECK(ot_json_equal(tree, again));
    ot_json_free(again);
    if (ot_json_type(tree) >= OT_JSON_ARRAY && ot_hjson_parse(text, bytes, "printed", &again) == 0) {
        /* hjson makes whole reals integers, and refuses a NUL in a key */
        FUZZ_CHECK(ot_json_type(again) == ot_json_type(tree));
        ot_json_free(again);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_json *tree;
    if (size == 0)
        return 0;
    int (*parse)(const char *, size_t, const char *, struct ot_json **) =
        data[0] & 1 ? ot_yaml_parse : ot_hjson_parse;
    int rc = parse((const char *)data + 1, size - 1, "input", &tree);
    if (rc < 0) {
        FUZZ_CHECK(!tree);
        fuzz_check_refusal(rc, rc == -OT_E_USAGE ? OT_E_USAGE : OT_E_INPUT);
        return 0;
    }
    check_again(tree);
    ot_json_free(tree);
    return 0;
}

/* JSON: a document that parses prints, and the printed text parses again and prints the same text. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "tests/fuzz/target.h"

static char *print(const struct ot_json *tree, int indent, size_t *bytes) {
    struct ot_json_writer w = {.indent = indent};
    char *text;
    ot_json_put_value(&w, NULL, tree);
    FUZZ_CHECK(ot_json_writer_take(&w, &text, bytes) == 0);
    return text;
}

static void check_again(const char *text, size_t bytes, int indent) {
    struct ot_json *tree;
    size_t again_bytes;
    FUZZ_CHECK(ot_json_parse(text, bytes, "printed", &tree) == 0);
    char *again = print(tree, indent, &again_bytes);
    FUZZ_CHECK(again_bytes == bytes && memcmp(again, text, bytes) == 0);
    free(again);
    ot_json_free(tree);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_json *tree;
    size_t bytes;
    int rc = ot_json_parse((const char *)data, size, "input", &tree);
    if (rc < 0) {
        FUZZ_CHECK(!tree);
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    for (int indent = -1; indent <= 0; indent++) {
        char *text = print(tree, indent, &bytes);
        check_again(text, bytes, indent);
        free(text);
    }
    ot_json_free(tree);
    return 0;
}

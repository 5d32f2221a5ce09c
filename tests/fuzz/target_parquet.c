/* Parquet files: what opens has rows that are JSON objects, or is refused in one line. */
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/data/source.h"
#include "tests/fuzz/target.h"

enum { MAX_ROWS = 64 };

/* A text of the file may be no UTF-8, which the parser of rows refuses. */
static void check_row(const char *text, size_t bytes) {
    struct ot_json *row;
    FUZZ_CHECK(bytes >= 2 && text[0] == '{' && text[bytes - 1] == '}');
    int rc = ot_json_parse_row(text, bytes, "the row", &row);
    if (rc == 0)
        ot_json_free(row);
    else
        fuzz_check_refusal(rc, OT_E_INPUT);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_source *source;
    const char *text;
    size_t bytes;
    int64_t line;
    if (size < 4 || memcmp(data, "PAR1", 4) != 0)
        return 0;
    int rc = ot_source_open(fuzz_file(data, size), OT_TEXT_BY_DOCUMENT, &source);
    if (rc == 0) {
        for (int row = 0; row < MAX_ROWS && (rc = ot_source_next(source, &text, &bytes, &line)) == 1; row++) {
            FUZZ_CHECK(line == row + 1);
            check_row(text, bytes);
        }
        ot_source_close(source);
    }
    if (rc < 0)
        fuzz_check_refusal(rc, rc == -OT_E_USAGE ? OT_E_USAGE : OT_E_INPUT);
    return 0;
}

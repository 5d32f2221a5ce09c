/* A checkpoint's record, checkpoint.json: an accepted record is written, and the written text is read as the
 * same record. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/checkpoint/record.h"
#include "tests/fuzz/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_checkpoint_record record, again;
    char *text, *again_text;
    size_t bytes, again_bytes;
    int rc = ot_checkpoint_record_decode((const char *)data, size, "checkpoint.json", &record);
    if (rc < 0) {
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    FUZZ_CHECK(ot_checkpoint_record_encode(&record, &text, &bytes) == 0);
    FUZZ_CHECK(ot_checkpoint_record_decode(text, bytes, "written", &again) == 0);
    FUZZ_CHECK(ot_checkpoint_record_encode(&again, &again_text, &again_bytes) == 0);
    FUZZ_CHECK(again_bytes == bytes && memcmp(again_text, text, bytes) == 0);
    ot_checkpoint_record_free(&again);
    ot_checkpoint_record_free(&record);
    free(again_text);
    free(text);
    return 0;
}

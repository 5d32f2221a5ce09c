/* Safetensors: every tensor that is returned lies within the file, and together the tensors are all of its
 * data. */
#include <string.h>

#include "src/base/error.h"
#include "src/files/safetensors.h"
#include "tests/fuzz/target.h"

enum { SOME_VALUES = 256 };

static void check_tensor(const struct ot_safetensors *file, const struct ot_safetensor *tensor) {
    float values[SOME_VALUES];
    int64_t count = 1;
    FUZZ_CHECK(ot_safetensors_find(file, tensor->name) == tensor);
    FUZZ_CHECK(tensor->dims >= 0 && tensor->dims <= OT_SAFETENSORS_MAX_DIMS);
    for (int i = 0; i < tensor->dims; i++)
        count *= tensor->shape[i];
    FUZZ_CHECK(count == tensor->count && count >= 0);
    if (!tensor->readable)
        return;
    FUZZ_CHECK((size_t)count * ot_dtype_bytes(tensor->dtype) == tensor->bytes);
    FUZZ_CHECK(ot_mapped_file_fetch(ot_safetensors_map(file), tensor->data, tensor->bytes) == 0);
    int64_t some = count < SOME_VALUES ? count : SOME_VALUES;
    int64_t bad = ot_safetensors_convert(tensor->dtype, tensor->data, some, values);
    FUZZ_CHECK(bad >= -1 && bad < some);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_safetensors *file = NULL;
    size_t header = 8, bytes = 0;
    int rc = ot_safetensors_open(fuzz_file(data, size), &file);
    if (rc < 0) {
        FUZZ_CHECK(!file);
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    for (int i = 0; i < 8; i++)
        header += (size_t)data[i] << (8 * i);
    for (int64_t i = 0; i < ot_safetensors_count(file); i++) {
        const struct ot_safetensor *tensor = ot_safetensors_at(file, i);
        check_tensor(file, tensor);
        bytes += tensor->bytes;
        FUZZ_CHECK(i == 0 || strcmp(ot_safetensors_at(file, i - 1)->name, tensor->name) < 0);
    }
    FUZZ_CHECK(header + bytes == size);
    ot_safetensors_close(file);
    return 0;
}

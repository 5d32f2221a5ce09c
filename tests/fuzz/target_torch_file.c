/* Files of torch.save: every tensor that is returned lies within the file. An input is a pickle, to which the
 * target adds an archive with a good checksum and a storage of 24 bytes; or, if it begins with "PK", a whole
 * file. */
#include <string.h>

#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/files/safetensors.h"
#include "src/files/torch_file.h"
#include "tests/fuzz/target.h"

enum { MOST_BYTES = 1 << 16, SOME_VALUES = 256 };

static struct {
    char bytes[MOST_BYTES + 512];
    size_t n;
} made;

static void put(const void *bytes, size_t n) {
    memcpy(made.bytes + made.n, bytes, n);
    made.n += n;
}

static void put_number(uint64_t number, int bytes) {
    for (int i = 0; i < bytes; i++)
        put(&(char){(char)(i < 8 ? number >> (8 * i) : 0)}, 1);
}

/* What the local header and the directory's entry have in common. */
static void put_facts(const char *name, const void *data, size_t bytes) {
    put_number(0, 10);
    put_number(ot_crc32(0, data, bytes), 4);
    put_number(bytes, 4);
    put_number(bytes, 4);
    put_number(strlen(name), 2);
    put_number(0, 2);
}

static const char *make_archive(const uint8_t *pickle, size_t size) {
    static const char storage[24] = "abcdefghijklmnopqrstuvw";
    const char *const names[] = {"m/data.pkl", "m/data/0"};
    const void *const data[] = {pickle, storage};
    const size_t bytes[] = {size, sizeof storage};
    size_t at[2];
    made.n = 0;
    for (int i = 0; i < 2; i++) {
        at[i] = made.n;
        put_number(0x04034b50, 4);
        put_facts(names[i], data[i], bytes[i]);
        put(names[i], strlen(names[i]));
        put(data[i], bytes[i]);
    }
    size_t directory = made.n;
    for (int i = 0; i < 2; i++) {
        put_number(0x02014b50, 4);
        put_number(0, 2);
        put_facts(names[i], data[i], bytes[i]);
        put_number(0, 10);
        put_number(at[i], 4);
        put(names[i], strlen(names[i]));
    }
    size_t end = made.n;
    put_number(0x06054b50, 4);
    put_number(0, 4);
    put_number(2, 2);
    put_number(2, 2);
    put_number(end - directory, 4);
    put_number(directory, 4);
    put_number(0, 2);
    return fuzz_file(made.bytes, made.n);
}

static void check_tensor(const struct ot_safetensors *file, const struct ot_safetensor *tensor) {
    const struct ot_mapped_file *map = ot_safetensors_map(file);
    const char *data = tensor->data;
    float values[SOME_VALUES];
    int64_t count = 1;
    FUZZ_CHECK(ot_safetensors_find(file, tensor->name) == tensor);
    FUZZ_CHECK(tensor->dims >= 0 && tensor->dims <= OT_SAFETENSORS_MAX_DIMS);
    for (int i = 0; i < tensor->dims; i++)
        count *= tensor->shape[i];
    FUZZ_CHECK(count == tensor->count && count >= 0);
    FUZZ_CHECK(data >= map->data && tensor->bytes <= map->bytes);
    FUZZ_CHECK((size_t)(data - map->data) <= map->bytes - tensor->bytes);
    if (!tensor->readable)
        return;
    FUZZ_CHECK((size_t)count * ot_dtype_bytes(tensor->dtype) == tensor->bytes);
    FUZZ_CHECK(ot_mapped_file_fetch(map, data, tensor->bytes) == 0);
    int64_t some = count < SOME_VALUES ? count : SOME_VALUES;
    int64_t bad = ot_safetensors_convert(tensor->dtype, data, some, values);
    FUZZ_CHECK(bad >= -1 && bad < some);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct ot_safetensors *file = NULL;
    bool is_whole = size > MOST_BYTES || (size >= 2 && memcmp(data, "PK", 2) == 0);
    int rc = ot_torch_file_open(is_whole ? fuzz_file(data, size) : make_archive(data, size), &file);
    if (rc < 0) {
        FUZZ_CHECK(!file);
        fuzz_check_refusal(rc, OT_E_INPUT);
        return 0;
    }
    for (int64_t i = 0; i < ot_safetensors_count(file); i++) {
        const struct ot_safetensor *tensor = ot_safetensors_at(file, i);
        check_tensor(file, tensor);
        FUZZ_CHECK(i == 0 || strcmp(ot_safetensors_at(file, i - 1)->name, tensor->name) < 0);
    }
    ot_safetensors_close(file);
    return 0;
}

/* Looks up keys and tensors of an open file. */
#include "src/gguf/reader_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/gguf/little.h"

static const char *const KIND_NAMES[OT_GGUF_KIND_COUNT] = {
    "an 8-bit number", "an 8-bit number", "a 16-bit number", "a 16-bit number", "a 32-bit number",
    "a 32-bit number", "a real number",   "true or false",   "a string",        "an array",
    "a 64-bit number", "a 64-bit number", "a real number",
};

const char *ot_gguf_path(const struct ot_gguf *file) {
    return file->map.path;
}

const struct ot_mapped_file *ot_gguf_map(const struct ot_gguf *file) {
    return &file->map;
}

int64_t ot_gguf_tensor_count(const struct ot_gguf *file) {
    return file->n_tensors;
}

const struct ot_gguf_tensor *ot_gguf_tensor(const struct ot_gguf *file, int64_t index) {
    return &file->tensors[index];
}

static int compare_name(const void *name, const void *tensor) {
    return strcmp(name, ((const struct ot_gguf_tensor *)tensor)->name);
}

const struct ot_gguf_tensor *ot_gguf_find_tensor(const struct ot_gguf *file, const char *name) {
    return bsearch(name, file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, compare_name);
}

bool ot_gguf_string_is(struct ot_gguf_string string, const char *text) {
    return string.bytes == strlen(text) && memcmp(string.text, text, string.bytes) == 0;
}

int64_t ot_gguf_key_count(const struct ot_gguf *file) {
    return file->n_keys;
}

const struct ot_gguf_value *ot_gguf_value(const struct ot_gguf *file, int64_t index) {
    return &file->values[index];
}

static int compare_key(const void *key, const void *value) {
    return strcmp(key, ((const struct ot_gguf_value *)value)->key);
}

const struct ot_gguf_value *ot_gguf_find(const struct ot_gguf *file, const char *key) {
    return bsearch(key, file->values, (size_t)file->n_keys, sizeof *file->values, compare_key);
}

/* ---- with an error sentence ---- */

static int find(const struct ot_gguf *file, const char *key, bool required,
                const struct ot_gguf_value **value) {
    *value = ot_gguf_find(file, key);
    return *value || !required ? 0 : ot_fail(OT_E_INPUT, "%s: the key %s is missing", file->map.path, key);
}

static int refuse_kind(const struct ot_gguf *file, const struct ot_gguf_value *value, const char *wanted) {
    return ot_fail(OT_E_INPUT, "%s: key %s is %s, not %s", file->map.path, value->key,
                   KIND_NAMES[value->kind], wanted);
}

/* False: the kind is not an integer, or the number does not fit. */
static bool int_of(const struct ot_gguf_value *value, int64_t *out) {
    const unsigned char *data = value->data;
    switch (value->kind) {
    case OT_GGUF_KIND_U8:
        *out = data[0];
        return true;
    case OT_GGUF_KIND_I8:
        *out = (int8_t)data[0];
        return true;
    case OT_GGUF_KIND_U16:
        *out = ot_little_u16(data);
        return true;
    case OT_GGUF_KIND_I16:
        *out = (int16_t)ot_little_u16(data);
        return true;
    case OT_GGUF_KIND_U32:
        *out = ot_little_u32(data);
        return true;
    case OT_GGUF_KIND_I32:
        *out = (int32_t)ot_little_u32(data);
        return true;
    case OT_GGUF_KIND_U64:
    case OT_GGUF_KIND_I64:
        *out = (int64_t)ot_little_u64(data);
        return value->kind == OT_GGUF_KIND_I64 || *out >= 0;
    default:
        return false;
    }
}

int ot_gguf_need_int(const struct ot_gguf *file, const char *key, bool required, int64_t min, int64_t max,
                     int64_t *out) {
    const struct ot_gguf_value *value;
    int64_t number;
    OT_TRY(find(file, key, required, &value));
    if (!value)
        return 0;
    if (!int_of(value, &number))
        return refuse_kind(file, value, "a whole number below 2^63");
    if (number < min || number > max)
        return ot_fail(OT_E_INPUT, "%s: key %s is %lld, must be from %lld to %lld", file->map.path, key,
                       (long long)number, (long long)min, (long long)max);
    *out = number;
    return 0;
}

int ot_gguf_need_real(const struct ot_gguf *file, const char *key, bool required, double min, double max,
                      double *out) {
    const struct ot_gguf_value *value;
    int64_t whole;
    double number;
    OT_TRY(find(file, key, required, &value));
    if (!value)
        return 0;
    if (value->kind == OT_GGUF_KIND_F32) {
        number = (double)ot_f32_from_bits(ot_little_u32(value->data));
    } else if (value->kind == OT_GGUF_KIND_F64) {
        uint64_t bits = ot_little_u64(value->data);
        memcpy(&number, &bits, sizeof number);
    } else if (int_of(value, &whole)) {
        number = (double)whole;
    } else {
        return refuse_kind(file, value, "a number");
    }
    if (!(number >= min && number <= max))
        return ot_fail(OT_E_INPUT, "%s: key %s is %g, must be from %g to %g", file->map.path, key, number,
                       min, max);
    *out = number;
    return 0;
}

int ot_gguf_need_bool(const struct ot_gguf *file, const char *key, bool required, bool *out) {
    const struct ot_gguf_value *value;
    OT_TRY(find(file, key, required, &value));
    if (!value)
        return 0;
    if (value->kind != OT_GGUF_KIND_BOOL || value->data[0] > 1)
        return refuse_kind(file, value, "true (1) or false (0)");
    *out = value->data[0];
    return 0;
}

int ot_gguf_need_string(const struct ot_gguf *file, const char *key, bool required,
                        struct ot_gguf_string *out) {
    const struct ot_gguf_value *value;
    OT_TRY(find(file, key, required, &value));
    if (!value)
        return 0;
    if (value->kind != OT_GGUF_KIND_STRING)
        return refuse_kind(file, value, "a string");
    *out = value->strings[0];
    return 0;
}

int ot_gguf_need_array(const struct ot_gguf *file, const char *key, bool required, enum ot_gguf_kind item,
                       const struct ot_gguf_value **out) {
    OT_TRY(find(file, key, required, out));
    if (!*out)
        return 0;
    if ((*out)->kind != OT_GGUF_KIND_ARRAY)
        return refuse_kind(file, *out, "an array");
    if ((*out)->item != item)
        return ot_fail(OT_E_INPUT, "%s: key %s is an array whose items are each %s, not %s", file->map.path,
                       key, KIND_NAMES[(*out)->item], KIND_NAMES[item]);
    return 0;
}

/* Reads GGUF files (gguf.h): checks the header once, and then answers look-ups of keys and tensors. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/gguf/gguf.h"
#include "src/gguf/little.h"

struct ot_arena;

struct ot_gguf {
    struct ot_mapped_file map;
    struct ot_arena *arena;
    int64_t n_keys, n_tensors, alignment;
    size_t data_at;
    struct ot_gguf_value *values;   /* sorted by key */
    struct ot_gguf_tensor *tensors; /* sorted by name */
};

/* ---- a place in the header ---- */

enum {
    MAX_NAME_BYTES = 64,   /* of a tensor; ggml's GGML_MAX_NAME */
    MAX_KEY_BYTES = 65535, /* the limit of the format */
    MIN_KEY_BYTES = 14,    /* of a key with its value: length, 1 byte, kind, 1 byte */
    MIN_TENSOR_BYTES =
        33, /* of a tensor's description: length, 1 byte, dimensions, 1 of them, type, offset */
    FETCH_BYTES = 1 << 20,
    MAX_ALIGNMENT = 1 << 20,
};

/* A place in the header. Bytes before `fetched` are in memory. */
struct cursor {
    struct ot_gguf *file;
    size_t at, fetched;
};

static size_t left(const struct cursor *c) {
    return c->file->map.bytes - c->at;
}

/* Takes the next bytes. `what` names them for the message. */
static int take(struct cursor *c, size_t bytes, const char *what, const unsigned char **data) {
    const struct ot_mapped_file *map = &c->file->map;
    if (bytes > left(c))
        return ot_fail(
            OT_E_INPUT,
            "%s: %s at byte %zu needs %zu bytes, but the file ends at byte %zu; it is truncated or "
            "damaged, get it again",
            map->path, what, c->at, bytes, map->bytes);
    if (c->at + bytes > c->fetched) {
        size_t want = ot_max(bytes, FETCH_BYTES);
        want = ot_min(left(c), want);
        OT_TRY(ot_mapped_file_fetch(map, map->data + c->at, want));
        c->fetched = c->at + want;
    }
    *data = (const unsigned char *)map->data + c->at;
    c->at += bytes;
    return 0;
}

static int take_u32(struct cursor *c, const char *what, uint32_t *value) {
    const unsigned char *data = NULL;
    OT_TRY(take(c, 4, what, &data));
    *value = ot_little_u32(data);
    return 0;
}

static int take_u64(struct cursor *c, const char *what, uint64_t *value) {
    const unsigned char *data = NULL;
    OT_TRY(take(c, 8, what, &data));
    *value = ot_little_u64(data);
    return 0;
}

static int take_string(struct cursor *c, const char *what, struct ot_gguf_string *out) {
    const unsigned char *data;
    uint64_t bytes;
    OT_TRY(take_u64(c, what, &bytes));
    if (bytes > left(c))
        return ot_fail(OT_E_INPUT,
                       "%s: %s at byte %zu would have %llu bytes, but the file has only %zu; it is truncated "
                       "or damaged, get it again",
                       c->file->map.path, what, c->at - 8, (unsigned long long)bytes, c->file->map.bytes);
    OT_TRY(take(c, (size_t)bytes, what, &data));
    *out = (struct ot_gguf_string){(const char *)data, (size_t)bytes};
    return 0;
}

/* Takes the name of a key or tensor: printable ASCII, so that it can be printed and compared. */
static int take_name(struct cursor *c, const char *what, size_t most, const char **name) {
    struct ot_gguf_string text = {0};
    size_t begin = c->at;
    OT_TRY(take_string(c, what, &text));
    if (text.bytes == 0 || text.bytes > most)
        return ot_fail(OT_E_INPUT, "%s: %s at byte %zu has %zu bytes, must have 1 to %zu", c->file->map.path,
                       what, begin, text.bytes, most);
    for (size_t i = 0; i < text.bytes; i++)
        if (text.text[i] <= ' ' || text.text[i] > '~')
            return ot_fail(OT_E_INPUT, "%s: %s at byte %zu is not printable ASCII; the file is damaged",
                           c->file->map.path, what, begin);
    *name = ot_arena_strdup(c->file->arena, text.text, text.bytes);
    return *name ? 0 : -OT_E_BUDGET;
}

/* ---- keys ---- */

/* Bytes of a value that has a fixed size; 0: it has none. */
static size_t size_of(enum ot_gguf_kind kind) {
    static const unsigned char sizes[OT_GGUF_KIND_COUNT] = {
        [OT_GGUF_KIND_U8] = 1,  [OT_GGUF_KIND_I8] = 1,  [OT_GGUF_KIND_U16] = 2, [OT_GGUF_KIND_I16] = 2,
        [OT_GGUF_KIND_U32] = 4, [OT_GGUF_KIND_I32] = 4, [OT_GGUF_KIND_F32] = 4, [OT_GGUF_KIND_BOOL] = 1,
        [OT_GGUF_KIND_U64] = 8, [OT_GGUF_KIND_I64] = 8, [OT_GGUF_KIND_F64] = 8,
    };
    return sizes[kind];
}

static int take_kind(struct cursor *c, const char *key, enum ot_gguf_kind *kind) {
    uint32_t number;
    OT_TRY(take_u32(c, key, &number));
    if (number >= OT_GGUF_KIND_COUNT)
        return ot_fail(OT_E_INPUT, "%s: key %s has a value of the unknown kind %u", c->file->map.path, key,
                       number);
    *kind = (enum ot_gguf_kind)number;
    return 0;
}

static int take_strings(struct cursor *c, struct ot_gguf_value *value) {
    if ((uint64_t)value->n > left(c) / 8) /* each has a length of 8 bytes */
        return ot_fail(OT_E_INPUT,
                       "%s: key %s would have %lld strings, more than fit in the file; it is damaged",
                       c->file->map.path, value->key, (long long)value->n);
    value->strings = ot_arena_alloc(c->file->arena, (size_t)value->n + 1, sizeof *value->strings);
    if (!value->strings)
        return -OT_E_BUDGET;
    for (int64_t i = 0; i < value->n; i++)
        OT_TRY(take_string(c, value->key, &value->strings[i]));
    return 0;
}

static int take_items(struct cursor *c, struct ot_gguf_value *value) {
    size_t size = size_of(value->item);
    uint64_t n;
    OT_TRY(take_u64(c, value->key, &n));
    if (n > INT64_MAX / 8 || (size && n > left(c) / size))
        return ot_fail(OT_E_INPUT,
                       "%s: key %s would have %llu items, more than fit in the file; it is damaged",
                       c->file->map.path, value->key, (unsigned long long)n);
    value->n = (int64_t)n;
    return size ? take(c, (size_t)n * size, value->key, &value->data) : take_strings(c, value);
}

static int take_value(struct cursor *c, struct ot_gguf_value *value) {
    value->n = 1;
    OT_TRY(take_kind(c, value->key, &value->kind));
    if (value->kind == OT_GGUF_KIND_STRING)
        return take_strings(c, value);
    if (value->kind != OT_GGUF_KIND_ARRAY)
        return take(c, size_of(value->kind), value->key, &value->data);
    OT_TRY(take_kind(c, value->key, &value->item));
    if (value->item == OT_GGUF_KIND_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: key %s is an array of arrays, which is not supported",
                       c->file->map.path, value->key);
    return take_items(c, value);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const struct ot_gguf_value *)a)->key, ((const struct ot_gguf_value *)b)->key);
}

static int take_values(struct cursor *c, uint64_t n) {
    struct ot_gguf *file = c->file;
    file->values = ot_arena_alloc(file->arena, (size_t)n + 1, sizeof *file->values);
    if (!file->values)
        return -OT_E_BUDGET;
    for (; (uint64_t)file->n_keys < n; file->n_keys++) {
        struct ot_gguf_value *value = &file->values[file->n_keys];
        OT_TRY(take_name(c, "a key", MAX_KEY_BYTES, &value->key));
        OT_TRY(take_value(c, value));
    }
    qsort(file->values, (size_t)n, sizeof *file->values, by_key);
    for (int64_t i = 1; i < file->n_keys; i++)
        if (by_key(&file->values[i - 1], &file->values[i]) == 0)
            return ot_fail(OT_E_INPUT, "%s: the key %s is twice in the file", file->map.path,
                           file->values[i].key);
    return 0;
}

/* ---- tensors ---- */

static int take_shape(struct cursor *c, struct ot_gguf_tensor *tensor) {
    const char *path = c->file->map.path;
    uint32_t dims;
    OT_TRY(take_u32(c, tensor->name, &dims));
    if (dims < 1 || dims > OT_GGUF_MAX_DIMS)
        return ot_fail(OT_E_INPUT, "%s: tensor %s has %u dimensions, must have 1 to %d", path, tensor->name,
                       dims, OT_GGUF_MAX_DIMS);
    tensor->dims = (int)dims;
    tensor->count = 1;
    for (int i = tensor->dims - 1; i >= 0; i--) {
        uint64_t dim;
        OT_TRY(take_u64(c, tensor->name, &dim));
        if (dim > INT64_MAX || __builtin_mul_overflow(tensor->count, (int64_t)dim, &tensor->count))
            return ot_fail(OT_E_INPUT, "%s: tensor %s would have more than 2^63 values", path, tensor->name);
        tensor->shape[i] = (int64_t)dim;
    }
    return 0;
}

static int take_type(struct cursor *c, struct ot_gguf_tensor *tensor) {
    const char *path = c->file->map.path;
    int64_t bytes;
    uint32_t id;
    OT_TRY(take_u32(c, tensor->name, &id));
    const struct ot_gguf_type *type = tensor->type = ot_gguf_type(id);
    if (!type)
        return ot_fail(OT_E_INPUT, "%s: tensor %s has the unknown type %u; readable types are %s", path,
                       tensor->name, id, ot_gguf_readable_types());
    int64_t row = tensor->shape[tensor->dims - 1];
    if (row % type->block_values != 0)
        return ot_fail(OT_E_INPUT,
                       "%s: tensor %s: rows of %lld values are not whole blocks of %s, which has %d", path,
                       tensor->name, (long long)row, type->name, type->block_values);
    if (__builtin_mul_overflow(tensor->count / type->block_values, (int64_t)type->block_bytes, &bytes))
        return ot_fail(OT_E_INPUT, "%s: tensor %s would have more than 2^63 bytes", path, tensor->name);
    tensor->bytes = (size_t)bytes;
    return 0;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct ot_gguf_tensor *)a)->name, ((const struct ot_gguf_tensor *)b)->name);
}

static int take_tensors(struct cursor *c, uint64_t n, uint64_t *offsets) {
    struct ot_gguf *file = c->file;
    for (; (uint64_t)file->n_tensors < n; file->n_tensors++) {
        struct ot_gguf_tensor *tensor = &file->tensors[file->n_tensors];
        OT_TRY(take_name(c, "a tensor's name", MAX_NAME_BYTES, &tensor->name));
        OT_TRY(take_shape(c, tensor));
        OT_TRY(take_type(c, tensor));
        OT_TRY(take_u64(c, tensor->name, &offsets[file->n_tensors]));
    }
    return 0;
}

static int place_tensors(struct ot_gguf *file, const uint64_t *offsets) {
    size_t data_bytes = file->map.bytes - file->data_at;
    for (int64_t i = 0; i < file->n_tensors; i++) {
        struct ot_gguf_tensor *tensor = &file->tensors[i];
        if (offsets[i] % (uint64_t)file->alignment != 0)
            return ot_fail(
                OT_E_INPUT, "%s: tensor %s is at %llu, which is not a multiple of the alignment, %lld",
                file->map.path, tensor->name, (unsigned long long)offsets[i], (long long)file->alignment);
        if (offsets[i] > data_bytes || tensor->bytes > data_bytes - offsets[i])
            return ot_fail(OT_E_INPUT,
                           "%s: tensor %s needs %zu bytes at %llu, but the file has %zu bytes of data; it is "
                           "truncated or damaged, get it again",
                           file->map.path, tensor->name, tensor->bytes, (unsigned long long)offsets[i],
                           data_bytes);
        tensor->data = file->map.data + file->data_at + offsets[i];
    }
    return 0;
}

static int by_data(const void *a, const void *b) {
    const struct ot_gguf_tensor *x = a, *y = b;
    if (x->data != y->data)
        return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first */
}

/* Bytes between tensors may be padding, but no byte belongs to two tensors. */
static int check_overlaps(const struct ot_gguf *file) {
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_data);
    for (int64_t i = 1; i < file->n_tensors; i++) {
        const struct ot_gguf_tensor *before = &file->tensors[i - 1], *tensor = &file->tensors[i];
        if ((const char *)before->data + before->bytes > (const char *)tensor->data)
            return ot_fail(OT_E_INPUT, "%s: tensor %s overlaps tensor %s", file->map.path, tensor->name,
                           before->name);
    }
    qsort(file->tensors, (size_t)file->n_tensors, sizeof *file->tensors, by_name);
    for (int64_t i = 1; i < file->n_tensors; i++)
        if (by_name(&file->tensors[i - 1], &file->tensors[i]) == 0)
            return ot_fail(OT_E_INPUT, "%s: the tensor %s is twice in the file", file->map.path,
                           file->tensors[i].name);
    return 0;
}

/* ---- the header ---- */

static int take_counts(struct cursor *c, uint64_t *n_tensors, uint64_t *n_keys) {
    const char *path = c->file->map.path;
    const unsigned char *magic;
    uint32_t version;
    if (left(c) < 24 || memcmp(c->file->map.data, "GGUF", 4) != 0)
        return ot_fail(OT_E_INPUT, "%s: not a GGUF file: it does not begin with a GGUF header", path);
    OT_TRY(take(c, 4, "the header", &magic));
    OT_TRY(take_u32(c, "the version", &version));
    if (version == 0x02000000u || version == 0x03000000u)
        return ot_fail(OT_E_INPUT, "%s: a big-endian GGUF file is not supported; get the little-endian one",
                       path);
    if (version != 2 && version != OT_GGUF_VERSION)
        return ot_fail(OT_E_INPUT, "%s: GGUF version %u is not supported; supported: 2 and %d", path, version,
                       OT_GGUF_VERSION);
    OT_TRY(take_u64(c, "the number of tensors", n_tensors));
    OT_TRY(take_u64(c, "the number of keys", n_keys));
    if (*n_keys > left(c) / MIN_KEY_BYTES || *n_tensors > left(c) / MIN_TENSOR_BYTES)
        return ot_fail(
            OT_E_INPUT,
            "%s: the header says %llu keys and %llu tensors, more than fit in the file's %zu bytes; it "
            "is truncated or damaged, get it again",
            path, (unsigned long long)*n_keys, (unsigned long long)*n_tensors, c->file->map.bytes);
    return 0;
}

static int find_data(struct cursor *c) {
    struct ot_gguf *file = c->file;
    file->alignment = OT_GGUF_DEFAULT_ALIGNMENT;
    OT_TRY(ot_gguf_need_int(file, "general.alignment", false, 1, MAX_ALIGNMENT, &file->alignment));
    if (file->alignment & (file->alignment - 1))
        return ot_fail(OT_E_INPUT, "%s: general.alignment is %lld, must be a power of two", file->map.path,
                       (long long)file->alignment);
    size_t align = (size_t)file->alignment;
    file->data_at = (c->at + align - 1) / align * align;
    if (file->data_at > file->map.bytes) /* a file without data may end with the header */
        file->data_at = file->map.bytes;
    return 0;
}

static int read_header(struct ot_gguf *file) {
    struct cursor c = {.file = file};
    uint64_t n_tensors = 0, n_keys = 0;
    OT_TRY(take_counts(&c, &n_tensors, &n_keys));
    OT_TRY(take_values(&c, n_keys));
    file->tensors = ot_arena_alloc(file->arena, (size_t)n_tensors + 1, sizeof *file->tensors);
    uint64_t *offsets = ot_arena_alloc(file->arena, (size_t)n_tensors + 1, sizeof *offsets);
    if (!file->tensors || !offsets)
        return -OT_E_BUDGET;
    OT_TRY(take_tensors(&c, n_tensors, offsets));
    OT_TRY(find_data(&c));
    OT_TRY(place_tensors(file, offsets));
    return check_overlaps(file);
}

int ot_gguf_open(const char *path, struct ot_gguf **out) {
    int rc;
    struct ot_gguf *file = calloc(1, sizeof *file);
    if (!file)
        return ot_fail(OT_E_BUDGET, "%s: no memory to open the file", path);
    OT_TRY_GOTO(ot_mapped_file_open(path, &file->map), rc, out);
    OT_TRY_GOTO(ot_arena_open(&file->arena), rc, out);
    if (file->map.bytes == 0) {
        rc = ot_fail(OT_E_INPUT, "%s: not a GGUF file: it is empty", path);
        goto out;
    }
    OT_TRY_GOTO(ot_mapped_file_map(&file->map), rc, out);
    OT_TRY_GOTO(read_header(file), rc, out);
    *out = file;
    file = NULL;
out:
    ot_gguf_close(file);
    return rc;
}

void ot_gguf_close(struct ot_gguf *file) {
    if (!file)
        return;
    ot_mapped_file_close(&file->map);
    ot_arena_close(file->arena);
    free(file);
}

/* ---- looking up keys and tensors ---- */

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

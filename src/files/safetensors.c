#include "src/files/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/memory.h"

/* The limit of the format (huggingface/safetensors, MAX_HEADER_SIZE). */
#define MAX_HEADER_BYTES INT64_C(100000000)

struct ot_safetensors {
    struct ot_mapped_file map;
    size_t data_at;
    int64_t count;
    struct ot_safetensor *tensors; /* sorted by name */
    struct ot_arena *arena;
};

/* Every dtype of the format, so that the sizes of tensors that we do not read (a mask, say) are checked
 * too. */
static const struct dtype_row {
    const char *name;
    int bits;
    bool readable;
    enum ot_dtype dtype;
} dtype_rows[] = {
    {"F32", 32, true, OT_F32},     {"BF16", 16, true, OT_BF16},   {"F16", 16, true, OT_F16},
    {"F64", 64, false, OT_F32},    {"I64", 64, false, OT_F32},    {"U64", 64, false, OT_F32},
    {"I32", 32, false, OT_F32},    {"U32", 32, false, OT_F32},    {"I16", 16, false, OT_F32},
    {"U16", 16, false, OT_F32},    {"I8", 8, false, OT_F32},      {"U8", 8, false, OT_F32},
    {"BOOL", 8, false, OT_F32},    {"C64", 64, false, OT_F32},    {"F8_E4M3", 8, false, OT_F32},
    {"F8_E5M2", 8, false, OT_F32}, {"F8_E8M0", 8, false, OT_F32}, {"F6_E2M3", 6, false, OT_F32},
    {"F6_E3M2", 6, false, OT_F32}, {"F4", 4, false, OT_F32},
};

int ot_safetensor_set_dtype(struct ot_safetensor *tensor, const char *name) {
    for (size_t i = 0; i < sizeof dtype_rows / sizeof *dtype_rows; i++) {
        const struct dtype_row *row = &dtype_rows[i];
        if (strcmp(row->name, name) != 0)
            continue;
        tensor->dtype_name = row->name;
        tensor->readable = row->readable;
        tensor->dtype = row->dtype;
        return row->bits;
    }
    return 0;
}

const char *ot_shape_text(const int64_t *shape, int dims, char text[OT_SHAPE_TEXT_BYTES]) {
    int at = snprintf(text, OT_SHAPE_TEXT_BYTES, "[");
    for (int i = 0; i < dims; i++)
        at += snprintf(text + at, (size_t)(OT_SHAPE_TEXT_BYTES - at), i ? ", %lld" : "%lld",
                       (long long)shape[i]);
    snprintf(text + at, (size_t)(OT_SHAPE_TEXT_BYTES - at), "]");
    return text;
}

/* ---- the header ---- */

static int parse_shape(const struct ot_safetensors *file, const struct ot_json *shape,
                       struct ot_safetensor *tensor) {
    if (ot_json_type(shape) != OT_JSON_ARRAY)
        return ot_fail(OT_E_INPUT, "%s: tensor %s: shape is %s, not a list", file->map.path, tensor->name,
                       ot_json_type_name(ot_json_type(shape)));
    size_t dims = ot_json_length(shape);
    if (dims > OT_SAFETENSORS_MAX_DIMS)
        return ot_fail(OT_E_INPUT, "%s: tensor %s has %zu dimensions, at most %d are supported",
                       file->map.path, tensor->name, dims, OT_SAFETENSORS_MAX_DIMS);
    tensor->dims = (int)dims;
    tensor->count = 1;
    for (size_t i = 0; i < dims; i++) {
        struct ot_json *dim = ot_json_at(shape, i);
        if (ot_json_type(dim) != OT_JSON_INT || ot_json_int(dim, -1) < 0)
            return ot_fail(OT_E_INPUT, "%s: tensor %s: shape[%zu] is not a whole number of zero or more",
                           file->map.path, tensor->name, i);
        tensor->shape[i] = ot_json_int(dim, -1);
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return ot_fail(OT_E_INPUT, "%s: tensor %s: its shape has more than 2^63 elements", file->map.path,
                           tensor->name);
    }
    return 0;
}

static int parse_offsets(const struct ot_safetensors *file, const struct ot_json *offsets,
                         struct ot_safetensor *tensor) {
    int64_t data_bytes = (int64_t)(file->map.bytes - file->data_at), at[2];
    for (size_t i = 0; i < 2; i++) {
        struct ot_json *offset = ot_json_at(offsets, i);
        at[i] = ot_json_int(offset, -1);
        if (ot_json_length(offsets) != 2 || ot_json_type(offset) != OT_JSON_INT || at[i] < 0)
            return ot_fail(OT_E_INPUT, "%s: tensor %s: data_offsets must be [begin, end]", file->map.path,
                           tensor->name);
    }
    if (at[0] > at[1] || at[1] > data_bytes)
        return ot_fail(
            OT_E_INPUT,
            "%s: tensor %s: data_offsets [%lld, %lld] are outside the file's %lld bytes of data; the file is "
            "truncated or damaged, get it again",
            file->map.path, tensor->name, (long long)at[0], (long long)at[1], (long long)data_bytes);
    tensor->bytes = (size_t)(at[1] - at[0]);
    tensor->data = file->map.data + file->data_at + at[0];
    return 0;
}

static int parse_tensor(const struct ot_safetensors *file, const struct ot_json *value,
                        struct ot_safetensor *tensor) {
    char shape[OT_SHAPE_TEXT_BYTES];
    if (ot_json_type(value) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: tensor %s is described by %s, not by an object", file->map.path,
                       tensor->name, ot_json_type_name(ot_json_type(value)));
    const char *name = ot_json_string(ot_json_get(value, "dtype"), NULL);
    int64_t bits = name ? ot_safetensor_set_dtype(tensor, name) : 0;
    if (bits == 0)
        return ot_fail(OT_E_INPUT, "%s: tensor %s has the unknown dtype '%s'", file->map.path, tensor->name,
                       name ? name : "");
    OT_TRY(parse_shape(file, ot_json_get(value, "shape"), tensor));
    OT_TRY(parse_offsets(file, ot_json_get(value, "data_offsets"), tensor));
    if (__builtin_mul_overflow(tensor->count, bits, &bits) || bits % 8 != 0 ||
        (uint64_t)(bits / 8) != tensor->bytes)
        return ot_fail(OT_E_INPUT,
                       "%s: tensor %s: %s %s does not fill the %zu bytes between its data_offsets",
                       file->map.path, tensor->name, name, ot_shape_text(tensor->shape, tensor->dims, shape),
                       tensor->bytes);
    return 0;
}

static int by_data(const void *a, const void *b) {
    const struct ot_safetensor *x = *(const struct ot_safetensor *const *)a,
                               *y = *(const struct ot_safetensor *const *)b;
    if (x->data != y->data)
        return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty tensors first */
}

/* The format requires that every byte of data belongs to exactly one tensor. */
static int check_cover(const struct ot_safetensors *file) {
    const struct ot_safetensor **order =
        ot_arena_alloc(file->arena, (size_t)file->count + 1, sizeof(const struct ot_safetensor *));
    if (!order)
        return -OT_E_BUDGET;
    for (int64_t i = 0; i < file->count; i++)
        order[i] = &file->tensors[i];
    qsort(order, (size_t)file->count, sizeof *order, by_data);
    const char *start = file->map.data + file->data_at, *at = start;
    for (int64_t i = 0; i < file->count; i++) {
        const char *data = order[i]->data;
        if (data < at)
            return ot_fail(OT_E_INPUT, "%s: tensor %s overlaps tensor %s", file->map.path, order[i]->name,
                           order[i - 1]->name);
        if (data > at)
            return ot_fail(OT_E_INPUT, "%s: the %td bytes before tensor %s (at %td) belong to no tensor",
                           file->map.path, data - at, order[i]->name, data - start);
        at = data + order[i]->bytes;
    }
    const char *end = file->map.data + file->map.bytes;
    if (at != end)
        return ot_fail(OT_E_INPUT, "%s: %td bytes after the last tensor belong to no tensor", file->map.path,
                       end - at);
    return 0;
}

static int check_metadata(const struct ot_safetensors *file, const struct ot_json *metadata) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    if (ot_json_type(metadata) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: __metadata__ is not an object", file->map.path);
    while (ot_json_next(metadata, &cursor, &key, &value))
        if (ot_json_type(value) != OT_JSON_STRING)
            return ot_fail(OT_E_INPUT, "%s: __metadata__: %s is %s, not a string", file->map.path, key,
                           ot_json_type_name(ot_json_type(value)));
    return 0;
}

/* Counts the members of all objects in the tree. The parser limits its depth. */
static size_t count_members(const struct ot_json *tree) {
    size_t count = 0;
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(tree, &cursor, &key, &value))
        count += 1 + count_members(value);
    for (size_t i = 0; i < ot_json_length(tree); i++)
        count += count_members(ot_json_at(tree, i));
    return count;
}

/* Counts the members of the text's objects, duplicate keys included. The text is valid JSON. */
static size_t count_colons(const char *text, size_t bytes) {
    size_t colons = 0;
    bool in_string = false;
    for (size_t i = 0; i < bytes; i++) {
        if (in_string && text[i] == '\\')
            i++;
        else if (text[i] == '"')
            in_string = !in_string;
        else
            colons += !in_string && text[i] == ':';
    }
    return colons;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct ot_safetensor *)a)->name, ((const struct ot_safetensor *)b)->name);
}

static int read_tensors(struct ot_safetensors *file, const struct ot_json *root) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    size_t room = 0;
    while (ot_json_next(root, &cursor, &key, &value))
        room++;
    file->tensors = ot_arena_alloc(file->arena, room + 1, sizeof *file->tensors);
    if (!file->tensors)
        return -OT_E_BUDGET;
    for (cursor = NULL; ot_json_next(root, &cursor, &key, &value);) {
        if (strcmp(key, "__metadata__") == 0) {
            OT_TRY(check_metadata(file, value));
            continue;
        }
        struct ot_safetensor *tensor = &file->tensors[file->count];
        tensor->name = ot_arena_strdup(file->arena, key, strlen(key));
        if (!tensor->name)
            return -OT_E_BUDGET;
        OT_TRY(parse_tensor(file, value, tensor));
        file->count++;
    }
    OT_TRY(check_cover(file));
    qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_name);
    return 0;
}

static int parse_header(struct ot_safetensors *file, const char *text, size_t bytes) {
    struct ot_json *root = NULL;
    int rc;
    if (text[0] != '{')
        return ot_fail(OT_E_INPUT, "%s: not a safetensors file: the header does not begin with '{'",
                       file->map.path);
    OT_TRY_GOTO(ot_json_parse(text, bytes, file->map.path, &root), rc, out);
    if (ot_json_type(root) != OT_JSON_OBJECT) {
        rc = ot_fail(OT_E_INPUT, "%s: the header is not an object", file->map.path);
        goto out;
    }
    /* The parser keeps the last of two equal keys, so the text then has more members than the tree. */
    if (count_members(root) != count_colons(text, bytes)) {
        rc = ot_fail(OT_E_INPUT, "%s: two entries of the header have the same name", file->map.path);
        goto out;
    }
    rc = read_tensors(file, root);
out:
    ot_json_free(root);
    return rc;
}

/* ---- the file ---- */

/* Finds where the data begins. The length in the file is not trusted. */
static int read_header_length(struct ot_safetensors *file, size_t *header_bytes) {
    unsigned char raw[8];
    uint64_t length = 0;
    const char *path = file->map.path;
    if (file->map.bytes < sizeof raw + 2)
        return ot_fail(OT_E_INPUT, "%s: not a safetensors file: it has only %zu bytes", path,
                       file->map.bytes);
    OT_TRY(ot_mapped_file_read(&file->map, raw, sizeof raw, 0));
    for (int i = 0; i < 8; i++)
        length |= (uint64_t)raw[i] << (8 * i);
    if (length > (uint64_t)MAX_HEADER_BYTES)
        return ot_fail(OT_E_INPUT,
                       "%s: not a safetensors file: it would have a header of %llu bytes, the limit is %lld",
                       path, (unsigned long long)length, (long long)MAX_HEADER_BYTES);
    if (length > file->map.bytes - sizeof raw)
        return ot_fail(
            OT_E_INPUT,
            "%s: the header needs %llu bytes, but the file has only %zu; it is truncated, get it again", path,
            (unsigned long long)length, file->map.bytes);
    if (length < 2)
        return ot_fail(OT_E_INPUT, "%s: not a safetensors file: the header is empty", path);
    *header_bytes = (size_t)length;
    file->data_at = sizeof raw + (size_t)length;
    return 0;
}

int ot_safetensors_open(const char *path, struct ot_safetensors **out) {
    char *text = NULL;
    size_t header_bytes = 0;
    int rc;
    struct ot_safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return ot_fail(OT_E_BUDGET, "%s: no memory to open the file", path);
    OT_TRY_GOTO(ot_mapped_file_open(path, &file->map), rc, out);
    OT_TRY_GOTO(ot_arena_open(&file->arena), rc, out);
    OT_TRY_GOTO(read_header_length(file, &header_bytes), rc, out);
    OT_TRY_GOTO(ot_mapped_file_map(&file->map), rc, out);
    text = malloc(header_bytes + 1);
    if (!text) {
        rc = ot_fail(OT_E_BUDGET, "%s: no memory for a header of %zu bytes", path, header_bytes);
        goto out;
    }
    OT_TRY_GOTO(ot_mapped_file_read(&file->map, text, header_bytes, 8), rc, out);
    text[header_bytes] = '\0';
    OT_TRY_GOTO(parse_header(file, text, header_bytes), rc, out);
    *out = file;
    file = NULL;
out:
    free(text);
    ot_safetensors_close(file);
    return rc;
}

int ot_safetensors_adopt(struct ot_mapped_file *map, struct ot_arena **arena, struct ot_safetensor *tensors,
                         int64_t count, struct ot_safetensors **out) {
    qsort(tensors, (size_t)count, sizeof *tensors, by_name);
    for (int64_t i = 1; i < count; i++)
        if (by_name(&tensors[i - 1], &tensors[i]) == 0)
            return ot_fail(OT_E_INPUT, "%s: two tensors have the name %s", map->path, tensors[i].name);
    struct ot_safetensors *file = calloc(1, sizeof *file);
    if (!file)
        return ot_fail(OT_E_BUDGET, "%s: no memory to open the file", map->path);
    *file = (struct ot_safetensors){.map = *map, .count = count, .tensors = tensors, .arena = *arena};
    *map = (struct ot_mapped_file){0};
    *arena = NULL;
    *out = file;
    return 0;
}

void ot_safetensors_close(struct ot_safetensors *file) {
    if (!file)
        return;
    ot_mapped_file_close(&file->map);
    ot_arena_close(file->arena);
    free(file);
}

const struct ot_mapped_file *ot_safetensors_map(const struct ot_safetensors *file) {
    return &file->map;
}

const char *ot_safetensors_path(const struct ot_safetensors *file) {
    return file->map.path;
}

int64_t ot_safetensors_count(const struct ot_safetensors *file) {
    return file->count;
}

const struct ot_safetensor *ot_safetensors_at(const struct ot_safetensors *file, int64_t index) {
    return &file->tensors[index];
}

const struct ot_safetensor *ot_safetensors_find(const struct ot_safetensors *file, const char *name) {
    struct ot_safetensor key = {.name = name};
    return bsearch(&key, file->tensors, (size_t)file->count, sizeof key, by_name);
}

/* ---- the data ---- */

static uint16_t load_u16(const unsigned char *data, int64_t index) {
    uint16_t value;
    memcpy(&value, data + 2 * index, sizeof value);
    return value;
}

int64_t ot_safetensors_convert(enum ot_dtype dtype, const void *data, int64_t n, float *values) {
    const unsigned char *raw = data;
    switch (dtype) {
    case OT_F32:
        memcpy(values, data, (size_t)n * sizeof *values);
        break;
    case OT_BF16:
        for (int64_t i = 0; i < n; i++)
            values[i] = ot_bf16_to_f32(load_u16(raw, i));
        break;
    case OT_F16:
        for (int64_t i = 0; i < n; i++)
            values[i] = ot_f16_to_f32(load_u16(raw, i));
        break;
    }
    return ot_f32_first_not_finite(values, n);
}

#include "src/jinja/value.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/utf8.h"

enum { MOST_NESTED = 100 }; /* of lists and dicts in a comparison */

/* ---- errors and memory ---- */

static int fail(const struct ot_jinja_heap *heap, const char *end, const char *format, va_list args) {
    char text[OT_ERROR_TEXT_BYTES / 2];
    vsnprintf(text, sizeof text, format, args);
    ot_utf8_keep_line(text);
    return ot_fail(OT_E_INPUT, "%.300s, line %d: %s%s", heap->name, heap->line, text, end);
}

int ot_jinja_fail(const struct ot_jinja_heap *heap, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int rc = fail(heap, "", format, args);
    va_end(args);
    return rc;
}

int ot_jinja_unsupported(const struct ot_jinja_heap *heap, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int rc = fail(heap, " is not supported in chat templates", format, args);
    va_end(args);
    return rc;
}

int ot_jinja_step(struct ot_jinja_heap *heap, size_t steps) {
    heap->steps += steps;
    if (heap->steps <= heap->most_steps)
        return 0;
    return ot_jinja_fail(heap, "the template takes more than %zu steps", heap->most_steps);
}

void *ot_jinja_alloc(struct ot_jinja_heap *heap, size_t count, size_t size) {
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes) || bytes >= heap->most_bytes - heap->bytes) {
        heap->error =
            ot_jinja_fail(heap, "the template needs more than %zu MiB of memory", heap->most_bytes >> 20);
        return NULL;
    }
    heap->bytes += bytes + 1;
    heap->error = ot_jinja_step(heap, bytes >> 8); /* zeroing memory is work too */
    if (heap->error < 0)
        return NULL;
    void *memory = ot_arena_alloc(heap->arena, 1, bytes ? bytes : 1);
    heap->error = memory ? 0 : -OT_E_BUDGET;
    return memory;
}

int ot_jinja_grow(struct ot_jinja_heap *heap, void *array, size_t n, size_t *capacity, size_t each,
                  size_t least) {
    size_t wanted = *capacity ? 2 * *capacity : least;
    void *old, *grown;
    if (n < *capacity)
        return 0;
    if (!(grown = ot_jinja_alloc(heap, wanted, each)))
        return heap->error;
    memcpy(&old, array, sizeof old); /* the pointer has another type than void * */
    if (n > 0)
        memcpy(grown, old, n * each);
    memcpy(array, &grown, sizeof grown);
    *capacity = wanted;
    return 0;
}

/* ---- strings ---- */

size_t ot_jinja_count_chars(const char *text, size_t bytes) {
    size_t n = 0;
    for (size_t i = 0; i < bytes; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

int ot_jinja_string(struct ot_jinja_heap *heap, const char *text, size_t bytes, bool copy,
                    struct ot_jinja_value *out) {
    struct ot_jinja_string *string = ot_jinja_alloc(heap, 1, sizeof *string + (copy ? bytes : 0));
    if (!string)
        return heap->error;
    string->text = text;
    if (copy && bytes > 0)
        string->text = memcpy(string + 1, text, bytes);
    string->bytes = bytes;
    string->chars = ot_jinja_count_chars(text, bytes);
    *out = (struct ot_jinja_value){.kind = OT_JINJA_STRING, .as.string = string};
    return 0;
}

int ot_jinja_text(struct ot_jinja_heap *heap, const char *text, struct ot_jinja_value *out) {
    return ot_jinja_string(heap, text, strlen(text), true, out);
}

bool ot_jinja_is(const struct ot_jinja_string *string, const char *text) {
    return strlen(text) == string->bytes && memcmp(text, string->text, string->bytes) == 0;
}

bool ot_jinja_is_among(const struct ot_jinja_string *string, const char *words) {
    return ot_words_find(words, string->text, string->bytes) >= 0;
}

bool ot_jinja_is_text(const struct ot_jinja_value *v, const char *text) {
    return v->kind == OT_JINJA_STRING && ot_jinja_is(v->as.string, text);
}

const char *ot_jinja_kind_name(const struct ot_jinja_value *v) {
    static const char *const names[] = {"nothing", "undefined",   "none",    "a boolean",   "an integer",
                                        "a float", "a string",    "a list",  "a tuple",     "a range",
                                        "a view",  "a generator", "a dict",  "a namespace", "a loop",
                                        "a macro", "a function",  "a method"};
    return names[v->kind];
}

/* ---- lists and dicts ---- */

int ot_jinja_new_list(struct ot_jinja_heap *heap, size_t capacity, struct ot_jinja_list **out) {
    struct ot_jinja_list *list = ot_jinja_alloc(heap, 1, sizeof *list);
    if (!list)
        return heap->error;
    if (capacity > 0 && !(list->items = ot_jinja_alloc(heap, capacity, sizeof *list->items)))
        return heap->error;
    list->capacity = capacity;
    *out = list;
    return 0;
}

int ot_jinja_add(struct ot_jinja_heap *heap, struct ot_jinja_list *list, struct ot_jinja_value item) {
    OT_TRY(ot_jinja_grow(heap, &list->items, list->n, &list->capacity, sizeof *list->items, 8));
    list->items[list->n++] = item;
    return 0;
}

int ot_jinja_new_tuple(struct ot_jinja_heap *heap, struct ot_jinja_value a, struct ot_jinja_value b,
                       struct ot_jinja_value *out) {
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_new_list(heap, 2, &list));
    list->items[0] = a;
    list->items[1] = b;
    list->n = 2;
    *out = ot_jinja_of_list(OT_JINJA_TUPLE, list);
    return 0;
}

int ot_jinja_new_dict(struct ot_jinja_heap *heap, struct ot_jinja_dict **out) {
    *out = ot_jinja_alloc(heap, 1, sizeof **out);
    return *out ? 0 : heap->error;
}

/* Keys of templates are strings and numbers, and seldom tuples of these. */
static bool is_hashable(const struct ot_jinja_value *v, bool nested) {
    if (v->kind != OT_JINJA_TUPLE)
        return v->kind != OT_JINJA_LIST && v->kind != OT_JINJA_DICT;
    for (size_t i = 0; i < v->as.list->n; i++)
        if (nested || !is_hashable(&v->as.list->items[i], true))
            return false;
    return true;
}

struct ot_jinja_value *ot_jinja_find(struct ot_jinja_heap *heap, const struct ot_jinja_dict *dict,
                                     const struct ot_jinja_value *key) {
    heap->steps += dict->n / 16;
    for (size_t i = 0; i < dict->n; i++)
        if (ot_jinja_equal(heap, &dict->pairs[i].key, key))
            return &dict->pairs[i].value;
    return NULL;
}

struct ot_jinja_value *ot_jinja_find_text(const struct ot_jinja_dict *dict, const char *text, size_t bytes) {
    for (size_t i = 0; i < dict->n; i++) {
        const struct ot_jinja_value *key = &dict->pairs[i].key;
        if (key->kind == OT_JINJA_STRING && key->as.string->bytes == bytes &&
            memcmp(key->as.string->text, text, bytes) == 0)
            return &dict->pairs[i].value;
    }
    return NULL;
}

/* Adds a key that the dict does not have. */
static int append_pair(struct ot_jinja_heap *heap, struct ot_jinja_dict *dict, struct ot_jinja_value key,
                       struct ot_jinja_value value) {
    OT_TRY(ot_jinja_grow(heap, &dict->pairs, dict->n, &dict->capacity, sizeof *dict->pairs, 4));
    dict->pairs[dict->n++] = (struct ot_jinja_pair){key, value};
    return 0;
}

int ot_jinja_put(struct ot_jinja_heap *heap, struct ot_jinja_dict *dict, struct ot_jinja_value key,
                 struct ot_jinja_value value) {
    if (!is_hashable(&key, false))
        return ot_jinja_fail(heap, "%s cannot be a key of a dict", ot_jinja_kind_name(&key));
    struct ot_jinja_value *old = ot_jinja_find(heap, dict, &key);
    if (old) {
        *old = value;
        return 0;
    }
    return append_pair(heap, dict, key, value);
}

/* ---- comparison ---- */

bool ot_jinja_truth(const struct ot_jinja_value *v) {
    switch (v->kind) {
    case OT_JINJA_ABSENT:
    case OT_JINJA_UNDEFINED:
    case OT_JINJA_NONE:
        return false;
    case OT_JINJA_BOOL:
        return v->as.flag;
    case OT_JINJA_INT:
        return v->as.integer != 0;
    case OT_JINJA_REAL:
        return v->as.real != 0;
    case OT_JINJA_STRING:
        return v->as.string->bytes > 0;
    case OT_JINJA_LIST:
    case OT_JINJA_TUPLE:
    case OT_JINJA_RANGE:
    case OT_JINJA_VIEW:
        return v->as.list->n > 0;
    case OT_JINJA_DICT:
        return v->as.dict->n > 0;
    default:
        return true;
    }
}

static bool is_equal(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                     const struct ot_jinja_value *b, int depth);

static bool are_lists_equal(struct ot_jinja_heap *heap, const struct ot_jinja_list *a,
                            const struct ot_jinja_list *b, int depth) {
    heap->steps += a->n;
    if (a->n != b->n || depth == 0 || heap->steps > heap->most_steps)
        return false;
    for (size_t i = 0; i < a->n; i++)
        if (!is_equal(heap, &a->items[i], &b->items[i], depth - 1))
            return false;
    return true;
}

static bool are_dicts_equal(struct ot_jinja_heap *heap, const struct ot_jinja_dict *a,
                            const struct ot_jinja_dict *b, int depth) {
    heap->steps += a->n;
    if (a->n != b->n || depth == 0 || heap->steps > heap->most_steps)
        return false;
    for (size_t i = 0; i < a->n; i++) {
        size_t k = 0;
        while (k < b->n && !is_equal(heap, &a->pairs[i].key, &b->pairs[k].key, depth - 1))
            k++;
        if (k == b->n || !is_equal(heap, &a->pairs[i].value, &b->pairs[k].value, depth - 1))
            return false;
    }
    return true;
}

static bool is_equal(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                     const struct ot_jinja_value *b, int depth) {
    if (ot_jinja_is_int(a) && ot_jinja_is_int(b))
        return ot_jinja_to_int(a) == ot_jinja_to_int(b);
    if (ot_jinja_is_number(a) && ot_jinja_is_number(b))
        return ot_jinja_to_real(a) == ot_jinja_to_real(b);
    if (a->kind != b->kind)
        return false;
    switch (a->kind) {
    case OT_JINJA_STRING:
        return a->as.string->bytes == b->as.string->bytes &&
               memcmp(a->as.string->text, b->as.string->text, a->as.string->bytes) == 0;
    case OT_JINJA_LIST:
    case OT_JINJA_TUPLE:
    case OT_JINJA_RANGE:
        return a->as.list == b->as.list || are_lists_equal(heap, a->as.list, b->as.list, depth);
    case OT_JINJA_DICT:
        return a->as.dict == b->as.dict || are_dicts_equal(heap, a->as.dict, b->as.dict, depth);
    case OT_JINJA_UNDEFINED:
    case OT_JINJA_NONE:
        return true;
    default:
        return a->as.list == b->as.list;
    }
}

bool ot_jinja_equal(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                    const struct ot_jinja_value *b) {
    return is_equal(heap, a, b, MOST_NESTED);
}

/* ---- JSON ---- */

static int from_array(struct ot_jinja_heap *heap, const struct ot_json *json, size_t most,
                      struct ot_jinja_value *out) {
    struct ot_jinja_list *list;
    size_t n = ot_json_length(json);
    n = ot_min(most, n);
    OT_TRY(ot_jinja_new_list(heap, n, &list));
    for (size_t i = 0; i < n; i++)
        OT_TRY(ot_jinja_from_json(heap, ot_json_at(json, i), SIZE_MAX, &list->items[i]));
    list->n = n;
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

static int from_object(struct ot_jinja_heap *heap, const struct ot_json *json, struct ot_jinja_value *out) {
    struct ot_jinja_dict *dict;
    void *cursor = NULL;
    const char *key;
    struct ot_json *member;
    OT_TRY(ot_jinja_new_dict(heap, &dict));
    while (ot_json_next(json, &cursor, &key, &member)) {
        struct ot_jinja_value name, value;
        OT_TRY(ot_jinja_string(heap, key, strlen(key), false, &name));
        OT_TRY(ot_jinja_from_json(heap, member, SIZE_MAX, &value));
        OT_TRY(append_pair(heap, dict, name, value));
    }
    *out = (struct ot_jinja_value){.kind = OT_JINJA_DICT, .as.dict = dict};
    return 0;
}

int ot_jinja_from_json(struct ot_jinja_heap *heap, const struct ot_json *json, size_t most,
                       struct ot_jinja_value *out) {
    size_t bytes;
    OT_TRY(ot_jinja_step(heap, 1));
    switch (ot_json_type(json)) {
    case OT_JSON_NULL:
        *out = ot_jinja_none();
        return 0;
    case OT_JSON_BOOL:
        *out = ot_jinja_bool(ot_json_bool(json, false));
        return 0;
    case OT_JSON_INT:
        *out = ot_jinja_int(ot_json_int(json, 0));
        return 0;
    case OT_JSON_REAL:
        *out = ot_jinja_real(ot_json_real(json, 0));
        return 0;
    case OT_JSON_ARRAY:
        return from_array(heap, json, most, out);
    case OT_JSON_OBJECT:
        return from_object(heap, json, out);
    case OT_JSON_STRING:
        break;
    }
    const char *text = ot_json_string(json, &bytes);
    return ot_jinja_string(heap, text, bytes, false, out);
}

/* ---- reading items ---- */

int ot_jinja_read_begin(const struct ot_jinja_heap *heap, const struct ot_jinja_value *source,
                        struct ot_jinja_reader *reader) {
    *reader = (struct ot_jinja_reader){.source = *source};
    if (ot_jinja_is_list(source) || source->kind == OT_JINJA_STRING || source->kind == OT_JINJA_DICT ||
        source->kind == OT_JINJA_UNDEFINED)
        return 0;
    return ot_jinja_fail(heap, "%s has no items to iterate over", ot_jinja_kind_name(source));
}

static int read_char(struct ot_jinja_heap *heap, struct ot_jinja_reader *reader,
                     struct ot_jinja_value *item) {
    const struct ot_jinja_string *string = reader->source.as.string;
    if (reader->at >= string->bytes)
        return 0;
    size_t end = reader->at + 1;
    while (end < string->bytes && ((unsigned char)string->text[end] & 0xc0) == 0x80)
        end++;
    OT_TRY(ot_jinja_string(heap, string->text + reader->at, end - reader->at, false, item));
    reader->at = end;
    return 1;
}

int ot_jinja_read(struct ot_jinja_heap *heap, struct ot_jinja_reader *reader, struct ot_jinja_value *item) {
    const struct ot_jinja_value *source = &reader->source;
    OT_TRY(ot_jinja_step(heap, 1));
    if (source->kind == OT_JINJA_UNDEFINED)
        return 0;
    if (source->kind == OT_JINJA_STRING)
        return read_char(heap, reader, item);
    if (source->kind == OT_JINJA_DICT) {
        if (reader->at >= source->as.dict->n)
            return 0;
        *item = source->as.dict->pairs[reader->at++].key;
        return 1;
    }
    struct ot_jinja_list *list = source->as.list;
    size_t *at = source->kind == OT_JINJA_GENERATOR ? &list->read : &reader->at;
    if (*at >= list->n)
        return 0;
    *item = list->items[(*at)++];
    return 1;
}

size_t ot_jinja_left(const struct ot_jinja_reader *reader) {
    const struct ot_jinja_value *source = &reader->source;
    if (source->kind == OT_JINJA_UNDEFINED)
        return 0;
    if (source->kind == OT_JINJA_STRING)
        return ot_jinja_count_chars(source->as.string->text + reader->at,
                                    source->as.string->bytes - reader->at);
    if (source->kind == OT_JINJA_DICT)
        return source->as.dict->n - reader->at;
    return source->as.list->n - (source->kind == OT_JINJA_GENERATOR ? source->as.list->read : reader->at);
}

int ot_jinja_collect(struct ot_jinja_heap *heap, const struct ot_jinja_value *source,
                     struct ot_jinja_list **out) {
    struct ot_jinja_reader reader;
    struct ot_jinja_value item;
    int more;
    OT_TRY(ot_jinja_read_begin(heap, source, &reader));
    OT_TRY(ot_jinja_new_list(heap, ot_jinja_left(&reader), out));
    while ((more = ot_jinja_read(heap, &reader, &item)) > 0)
        OT_TRY(ot_jinja_add(heap, *out, item));
    return more;
}

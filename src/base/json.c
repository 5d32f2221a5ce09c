#include "src/base/json.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/json_state.h"
#include "src/base/minmax.h"
#include "src/base/utf8.h"

/* ---- parsing ---- */

static int no_memory(const char *where) {
    return ot_fail(OT_E_BUDGET, "%s: no memory to parse it", where);
}

/* Parses a document into the empty arena of the reader. */
static int read_document(struct ot_json_reader *reader, const char *text, size_t bytes, const char *where,
                         bool is_row, struct ot_json **out) {
    *out = NULL;
    if (bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* RFC 8259 allows ignoring a byte order mark */
        text += 3;
        bytes -= 3;
    }
    if (!reader->arena && ot_arena_open(&reader->arena) < 0)
        return no_memory(where);
    return ot_json_parse_document(text, bytes, where, is_row, reader, out);
}

static int parse(const char *text, size_t bytes, const char *where, bool is_row, struct ot_json **out) {
    struct ot_json_reader reader = {0};
    struct ot_json_document *document = NULL;
    struct ot_json *root;
    int rc = read_document(&reader, text, bytes, where, is_row, &root);
    *out = NULL;
    if (rc == 0 && root) {
        document = ot_arena_alloc(reader.arena, 1, sizeof *document);
        if (!document)
            rc = no_memory(where);
    }
    if (document) {
        *document = (struct ot_json_document){*root, reader.arena};
        *out = &document->root;
        reader.arena = NULL; /* the document has it */
    }
    ot_json_reader_free(&reader);
    return rc;
}

int ot_json_read_row(struct ot_json_reader *reader, const char *text, size_t bytes, const char *where,
                     struct ot_json **out) {
    if (reader->arena)
        ot_arena_clear(reader->arena);
    int rc = read_document(reader, text, bytes, where, true, out);
    if (rc < 0)
        *out = NULL;
    return rc;
}

void ot_json_reader_free(struct ot_json_reader *reader) {
    ot_arena_close(reader->arena);
    free(reader->open);
    *reader = (struct ot_json_reader){0};
}

int ot_json_parse(const char *text, size_t bytes, const char *where, struct ot_json **out) {
    return parse(text, bytes, where, false, out);
}

int ot_json_parse_row(const char *text, size_t bytes, const char *where, struct ot_json **out) {
    return parse(text, bytes, where, true, out);
}

bool ot_json_is_torn(const struct ot_json *value) {
    return value && value->is_torn;
}

int ot_json_read_file(const char *path, size_t max_bytes, struct ot_json **out) {
    *out = NULL;
    char *text;
    size_t bytes;
    OT_TRY(ot_read_file(path, max_bytes, &text, &bytes));
    int rc = ot_json_parse(text, bytes, path, out);
    free(text);
    return rc;
}

void ot_json_free(struct ot_json *root) {
    if (root)
        ot_arena_close(((struct ot_json_document *)(void *)root)->arena);
}

/* ---- plain access ---- */

enum ot_json_type ot_json_type(const struct ot_json *value) {
    return value ? value->type : OT_JSON_NULL;
}

const char *ot_json_type_name(enum ot_json_type type) {
    static const char *const names[] = {"null",     "true or false", "an integer", "a number",
                                        "a string", "an array",      "an object"};
    return names[type];
}

static int compare_key(const void *key, const void *member) {
    return strcmp(key, (*(const struct ot_json_member *const *)member)->key);
}

static struct ot_json *get_of_few(const struct ot_json *object, const char *key) {
    for (size_t i = 0; i < object->object.n; i++) {
        const struct ot_json_member *member = &object->object.members[i];
        if (member->key[0] == key[0] && strcmp(member->key, key) == 0)
            return member->value;
    }
    return NULL;
}

struct ot_json *ot_json_get(const struct ot_json *object, const char *key) {
    enum { FEW = 8 };
    if (ot_json_type(object) != OT_JSON_OBJECT || !(object->object.key_bits & ot_json_key_bit(key)))
        return NULL;
    if (object->object.n <= FEW)
        return get_of_few(object, key);
    const struct ot_json_member **found =
        bsearch(key, object->object.sorted, object->object.n, sizeof *object->object.sorted, compare_key);
    return found ? (*found)->value : NULL;
}

bool ot_json_has(const struct ot_json *object, const char *wanted) {
    void *cursor = NULL;
    const char *key;
    struct ot_json *value;
    while (ot_json_next(object, &cursor, &key, &value))
        if (strcmp(key, wanted) == 0)
            return true;
    return false;
}

static bool is_among(const struct ot_json_member *member, struct ot_json_member *const *list, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (list[i] == member)
            return true;
    return false;
}

void ot_json_rename(struct ot_json *object, const struct ot_json_name *names, size_t n) {
    enum { MOST = 64 };
    struct ot_json_member *renamed[MOST] = {0};
    assert(n <= MOST);
    if (ot_json_type(object) != OT_JSON_OBJECT)
        return;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < object->object.n; k++)
            if (strcmp(object->object.members[k].key, names[i].from) == 0)
                renamed[i] = &object->object.members[k];
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; renamed[i] && k < object->object.n; k++) {
            struct ot_json_member *member = &object->object.members[k];
            if (member->key && !is_among(member, renamed, n) && strcmp(member->key, names[i].to) == 0)
                member->key = NULL; /* a renamed member takes its key */
        }
    for (size_t i = 0; i < n; i++)
        if (renamed[i])
            renamed[i]->key = names[i].to;
    ot_json_order_members(object);
}

static bool are_equal_objects(const struct ot_json *a, const struct ot_json *b) {
    if (a->object.n != b->object.n)
        return false;
    for (size_t i = 0; i < a->object.n; i++)
        if (strcmp(a->object.sorted[i]->key, b->object.sorted[i]->key) != 0 ||
            !ot_json_equal(a->object.sorted[i]->value, b->object.sorted[i]->value))
            return false;
    return true;
}

/* NOLINTNEXTLINE(misc-no-recursion): at most OT_JSON_MAX_DEPTH deep */
bool ot_json_equal(const struct ot_json *a, const struct ot_json *b) {
    if (ot_json_type(a) != ot_json_type(b))
        return false;
    switch (ot_json_type(a)) {
    case OT_JSON_NULL:
        return true;
    case OT_JSON_BOOL:
        return a->truth == b->truth;
    case OT_JSON_INT:
        return a->integer == b->integer;
    case OT_JSON_REAL:
        return memcmp(&a->real, &b->real, sizeof a->real) == 0;
    case OT_JSON_STRING:
        return a->string.n == b->string.n && memcmp(a->string.bytes, b->string.bytes, a->string.n) == 0;
    case OT_JSON_ARRAY:
        for (size_t i = 0; a->array.n == b->array.n && i < a->array.n; i++)
            if (!ot_json_equal(a->array.items[i], b->array.items[i]))
                return false;
        return a->array.n == b->array.n;
    case OT_JSON_OBJECT:
        return are_equal_objects(a, b);
    }
    return false;
}

void ot_json_keep(struct ot_json *value, size_t first, size_t n) {
    if (ot_json_type(value) == OT_JSON_ARRAY) {
        first = ot_min(first, value->array.n);
        value->array.items += first;
        value->array.n = ot_min(value->array.n - first, n);
    } else if (ot_json_type(value) == OT_JSON_STRING) {
        first = ot_min(first, value->string.n);
        value->string.n = ot_min(value->string.n - first, n);
        value->string.bytes += first;
        ((char *)(uintptr_t)value->string.bytes)[value->string.n] = '\0';
    }
}

size_t ot_json_length(const struct ot_json *array) {
    return ot_json_type(array) == OT_JSON_ARRAY ? array->array.n : 0;
}

struct ot_json *ot_json_at(const struct ot_json *array, size_t index) {
    return index < ot_json_length(array) ? array->array.items[index] : NULL;
}

const char *ot_json_string(const struct ot_json *value, size_t *bytes) {
    if (ot_json_type(value) != OT_JSON_STRING)
        return NULL;
    if (bytes)
        *bytes = value->string.n;
    return value->string.bytes;
}

bool ot_json_bool(const struct ot_json *value, bool fallback) {
    return ot_json_type(value) == OT_JSON_BOOL ? value->truth : fallback;
}

int64_t ot_json_int(const struct ot_json *value, int64_t fallback) {
    return ot_json_type(value) == OT_JSON_INT ? value->integer : fallback;
}

double ot_json_real(const struct ot_json *value, double fallback) {
    enum ot_json_type type = ot_json_type(value);
    return type == OT_JSON_INT ? (double)value->integer : type == OT_JSON_REAL ? value->real : fallback;
}

bool ot_json_next(const struct ot_json *object, void **cursor, const char **key, struct ot_json **value) {
    if (ot_json_type(object) != OT_JSON_OBJECT)
        return false;
    struct ot_json_member *last = *cursor, *next = last ? last + 1 : object->object.members;
    if (next == object->object.members + object->object.n)
        return false;
    *cursor = next;
    *key = next->key;
    *value = next->value;
    return true;
}

/* ---- access with a sentence ---- */

/* Finds the member. *out is NULL only if it is missing and not required. */
static int find_member(const struct ot_json *object, const char *where, const char *key, bool required,
                       const struct ot_json **out) {
    *out = NULL;
    if (ot_json_type(object) != OT_JSON_OBJECT)
        return ot_fail(OT_E_INPUT, "%s: expected an object with the key '%s', found %s", where, key,
                       ot_json_type_name(ot_json_type(object)));
    *out = ot_json_get(object, key);
    if (!*out && required)
        return ot_fail(OT_E_INPUT, "%s: the key '%s' is missing", where, key);
    return 0;
}

static int fail_type(const struct ot_json *value, const char *where, const char *key,
                     enum ot_json_type want) {
    return ot_fail(OT_E_INPUT, "%s: key '%s' must be %s, not %s", where, key, ot_json_type_name(want),
                   ot_json_type_name(ot_json_type(value)));
}

int ot_json_need_int(const struct ot_json *object, const char *where, const char *key, bool required,
                     int64_t min, int64_t max, int64_t *out) {
    const struct ot_json *member;
    OT_TRY(find_member(object, where, key, required, &member));
    if (!member)
        return 0;
    if (ot_json_type(member) != OT_JSON_INT)
        return fail_type(member, where, key, OT_JSON_INT);
    int64_t value = ot_json_int(member, 0);
    if (value < min || value > max)
        return ot_fail(OT_E_INPUT, "%s: key '%s' is %lld; it must be from %lld to %lld", where, key,
                       (long long)value, (long long)min, (long long)max);
    *out = value;
    return 0;
}

int ot_json_need_real(const struct ot_json *object, const char *where, const char *key, bool required,
                      double min, double max, double *out) {
    const struct ot_json *member;
    OT_TRY(find_member(object, where, key, required, &member));
    if (!member)
        return 0;
    enum ot_json_type type = ot_json_type(member);
    if (type != OT_JSON_INT && type != OT_JSON_REAL)
        return fail_type(member, where, key, OT_JSON_REAL);
    double value = ot_json_real(member, 0);
    if (!isfinite(value) || value < min || value > max)
        return ot_fail(OT_E_INPUT, "%s: key '%s' is %g; it must be from %g to %g", where, key, value, min,
                       max);
    *out = value;
    return 0;
}

int ot_json_need_bool(const struct ot_json *object, const char *where, const char *key, bool required,
                      bool *out) {
    const struct ot_json *member;
    OT_TRY(find_member(object, where, key, required, &member));
    if (!member)
        return 0;
    if (ot_json_type(member) != OT_JSON_BOOL)
        return fail_type(member, where, key, OT_JSON_BOOL);
    *out = ot_json_bool(member, false);
    return 0;
}

/* The result is a C string, so a text with a NUL inside is refused. */
int ot_json_need_string(const struct ot_json *object, const char *where, const char *key, bool required,
                        const char **out) {
    const struct ot_json *member;
    OT_TRY(find_member(object, where, key, required, &member));
    if (!member)
        return 0;
    size_t bytes;
    const char *value = ot_json_string(member, &bytes);
    if (!value)
        return fail_type(member, where, key, OT_JSON_STRING);
    if (strlen(value) != bytes)
        return ot_fail(OT_E_INPUT, "%s: key '%s' must not contain a NUL", where, key);
    *out = value;
    return 0;
}

/* ---- writing ---- */

static void append_line_break(struct ot_json_writer *w) {
    ot_string_append_text(&w->out, "\n");
    for (int i = 0; i < w->depth; i++)
        ot_string_append_text(&w->out, "  ");
}

/* ---- strings ---- */

static void append_escaped(struct ot_json_writer *w, unsigned char c) {
    static const char named[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    char escape[8];
    for (const char *pair = named; *pair; pair += 2)
        if ((unsigned char)*pair == c) {
            ot_string_append(&w->out, (char[]){'\\', pair[1]}, 2);
            return;
        }
    snprintf(escape, sizeof escape, "\\u%04x", c);
    ot_string_append_text(&w->out, escape);
}

/* Each byte that is not UTF-8 becomes U+FFFD, so the output is valid JSON for every text. */
static void append_quoted(struct ot_json_writer *w, const char *value, size_t bytes) {
    const unsigned char *text = (const unsigned char *)value;
    ot_string_append_text(&w->out, "\"");
    size_t plain = 0; /* start of the bytes that need no change */
    for (size_t at = 0; (at += ot_json_plain_bytes(value + at, bytes - at)) < bytes;) {
        size_t length = ot_utf8_character(value + at, bytes - at);
        if (length > 0 && text[at] >= 0x20 && text[at] != '"' && text[at] != '\\') {
            at += length;
            continue;
        }
        ot_string_append(&w->out, value + plain, at - plain);
        if (length == 0)
            ot_string_append_text(&w->out, "\xef\xbf\xbd");
        else
            append_escaped(w, text[at]);
        plain = ++at;
    }
    ot_string_append(&w->out, value + plain, bytes - plain);
    ot_string_append_text(&w->out, "\"");
}

/* ---- structure ---- */

static void start_item(struct ot_json_writer *w, const char *key) {
    if (w->comma)
        ot_string_append_text(&w->out, w->indent < 0 ? ", " : ",");
    if (w->indent >= 0 && w->depth > 0)
        append_line_break(w);
    if (key) {
        append_quoted(w, key, strlen(key));
        ot_string_append_text(&w->out, ": ");
    }
    w->comma = true;
}

static void begin(struct ot_json_writer *w, const char *key, const char *bracket) {
    start_item(w, key);
    ot_string_append_text(&w->out, bracket);
    w->depth++;
    w->comma = false;
}

static void end(struct ot_json_writer *w, const char *bracket) {
    w->depth--;
    if (w->indent >= 0 && w->comma) /* no newline in an empty container */
        append_line_break(w);
    ot_string_append_text(&w->out, bracket);
    w->comma = true;
}

void ot_json_begin_object(struct ot_json_writer *w, const char *key) {
    begin(w, key, "{");
}

void ot_json_end_object(struct ot_json_writer *w) {
    end(w, "}");
}

void ot_json_begin_array(struct ot_json_writer *w, const char *key) {
    begin(w, key, "[");
}

void ot_json_end_array(struct ot_json_writer *w) {
    end(w, "]");
}

/* ---- values ---- */

void ot_json_put_string(struct ot_json_writer *w, const char *key, const char *value, size_t bytes) {
    start_item(w, key);
    append_quoted(w, value, bytes);
}

void ot_json_put_text(struct ot_json_writer *w, const char *key, const char *value) {
    ot_json_put_string(w, key, value, strlen(value));
}

void ot_json_put_int(struct ot_json_writer *w, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    start_item(w, key);
    ot_string_append_text(&w->out, text);
}

static void format_real(char *text, size_t capacity, double value, int digits) {
    snprintf(text, capacity, "%.*g", digits, value);
    for (char *c = text; *c; c++) /* the locale may have a decimal comma */
        if (*c == ',')
            *c = '.';
}

void ot_json_put_real(struct ot_json_writer *w, const char *key, double value) {
    char text[40];
    format_real(text, sizeof text, value, 9);
    start_item(w, key);
    ot_string_append_text(&w->out, isfinite(value) ? text : "null");
}

/* The shortest text that reads back as the same bits and is still a real. */
void ot_json_put_exact(struct ot_json_writer *w, const char *key, double value) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            format_real(text, sizeof text, value, digits);
            break;
        }
    }
    start_item(w, key);
    ot_string_append_text(&w->out, isfinite(value) ? text : "null");
    if (isfinite(value) && !strpbrk(text, ".e"))
        ot_string_append_text(&w->out, ".0");
}

void ot_json_put_bool(struct ot_json_writer *w, const char *key, bool value) {
    start_item(w, key);
    ot_string_append_text(&w->out, value ? "true" : "false");
}

void ot_json_put_null(struct ot_json_writer *w, const char *key) {
    start_item(w, key);
    ot_string_append_text(&w->out, "null");
}

static void put_object(struct ot_json_writer *w, const char *key, const struct ot_json *value) {
    void *cursor = NULL;
    const char *member_key;
    struct ot_json *member;
    ot_json_begin_object(w, key);
    while (ot_json_next(value, &cursor, &member_key, &member))
        ot_json_put_value(w, member_key, member);
    ot_json_end_object(w);
}

static void put_array(struct ot_json_writer *w, const char *key, const struct ot_json *value) {
    ot_json_begin_array(w, key);
    for (size_t i = 0; i < ot_json_length(value); i++)
        ot_json_put_value(w, NULL, ot_json_at(value, i));
    ot_json_end_array(w);
}

/* The parser limits the depth of the tree, so the recursion is bounded too. */
void ot_json_put_value(struct ot_json_writer *w, const char *key, const struct ot_json *value) {
    size_t bytes = 0;
    const char *text;
    switch (ot_json_type(value)) {
    case OT_JSON_NULL:
        ot_json_put_null(w, key);
        break;
    case OT_JSON_BOOL:
        ot_json_put_bool(w, key, ot_json_bool(value, false));
        break;
    case OT_JSON_INT:
        ot_json_put_int(w, key, ot_json_int(value, 0));
        break;
    case OT_JSON_REAL:
        ot_json_put_exact(w, key, ot_json_real(value, 0));
        break;
    case OT_JSON_STRING:
        text = ot_json_string(value, &bytes);
        ot_json_put_string(w, key, text, bytes);
        break;
    case OT_JSON_ARRAY:
        put_array(w, key, value);
        break;
    case OT_JSON_OBJECT:
        put_object(w, key, value);
        break;
    }
}

int ot_json_writer_take(struct ot_json_writer *w, char **text, size_t *bytes) {
    ot_string_append(&w->out, "", 0); /* an empty text is valid */
    struct ot_string_builder done = w->out;
    *w = (struct ot_json_writer){.indent = w->indent};
    if (done.failed) {
        free(done.text);
        *text = NULL;
        return ot_fail(OT_E_BUDGET, "no memory to write JSON");
    }
    *text = done.text;
    if (bytes)
        *bytes = done.bytes;
    return 0;
}

int ot_json_print(struct ot_json_writer *w) {
    char *text;
    OT_TRY(ot_json_writer_take(w, &text, NULL));
    puts(text);
    free(text);
    return 0;
}

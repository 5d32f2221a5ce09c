#include "src/base/json.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <json-c/json.h>

#include "src/base/error.h"
#include "src/base/read_file.h"
#include "src/base/json_scan.h"

/* A struct ot_json is a json_object under another name; JSON null is NULL in both. */
static struct json_object *inner(const struct ot_json *value) {
    return (struct json_object *)(uintptr_t)value;
}

static struct ot_json *outer(struct json_object *value) {
    return (struct ot_json *)value;
}

/* ---- parsing ---- */

struct builder {
    struct json_tokener *tokener;
    struct json_object *root;
    const char *text, *where;
    size_t fed;
    bool done;
};

static int feed(struct builder *builder, const char *text, size_t bytes) {
    while (bytes > 0 && !builder->done) {
        int piece = bytes < INT_MAX ? (int)bytes : INT_MAX;
        builder->root = json_tokener_parse_ex(builder->tokener, text, piece);
        enum json_tokener_error error = json_tokener_get_error(builder->tokener);
        if (error != json_tokener_success && error != json_tokener_continue)
            return ot_fail(OT_E_INPUT, "%s: near byte %zu: not valid JSON: %s", builder->where, builder->fed,
                           json_tokener_error_desc(error));
        builder->done = error == json_tokener_success;
        text += piece;
        bytes -= (size_t)piece;
    }
    return 0;
}

static int feed_replaced(void *context, size_t begin, size_t end, const char *text, size_t bytes) {
    struct builder *builder = context;
    OT_TRY(feed(builder, builder->text + builder->fed, begin - builder->fed));
    builder->fed = end;
    return feed(builder, text, bytes);
}

static int build(struct builder *builder, size_t bytes) {
    struct ot_json_scan scan = {.text = (const unsigned char *)builder->text,
                                .bytes = bytes,
                                .where = builder->where,
                                .on_replace = feed_replaced,
                                .context = builder};
    OT_TRY(ot_json_scan_document(&scan));
    OT_TRY(feed(builder, builder->text + builder->fed, bytes - builder->fed));
    OT_TRY(feed(builder, "", 1)); /* the NUL ends a number that is the whole document */
    if (!builder->done)
        return ot_fail(OT_E_INTERNAL, "%s: json-c wants more of a whole document", builder->where);
    return 0;
}

int ot_json_parse(const char *text, size_t bytes, const char *where, struct ot_json **out) {
    *out = NULL;
    if (bytes >= 3 &&
        memcmp(text, "\xef\xbb\xbf", 3) == 0) { /* a byte order mark, which RFC 8259 lets us ignore */
        text += 3;
        bytes -= 3;
    }
    /* json-c counts the level of a scalar, too. */
    struct builder builder = {
        .tokener = json_tokener_new_ex(OT_JSON_MAX_DEPTH + 2), .text = text, .where = where};
    if (!builder.tokener)
        return ot_fail(OT_E_BUDGET, "%s: no memory to parse it", where);
    json_tokener_set_flags(builder.tokener, JSON_TOKENER_STRICT);
    int rc = build(&builder, bytes);
    json_tokener_free(builder.tokener);
    if (rc < 0)
        json_object_put(builder.root);
    else
        *out = outer(builder.root);
    return rc;
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
    json_object_put(inner(root));
}

/* ---- plain access ---- */

enum ot_json_type ot_json_type(const struct ot_json *value) {
    switch (json_object_get_type(inner(value))) {
    case json_type_boolean:
        return OT_JSON_BOOL;
    case json_type_int:
        return OT_JSON_INT;
    case json_type_double:
        return OT_JSON_REAL;
    case json_type_string:
        return OT_JSON_STRING;
    case json_type_array:
        return OT_JSON_ARRAY;
    case json_type_object:
        return OT_JSON_OBJECT;
    default:
        return OT_JSON_NULL;
    }
}

const char *ot_json_type_name(enum ot_json_type type) {
    static const char *const names[] = {"null",     "true or false", "an integer", "a number",
                                        "a string", "an array",      "an object"};
    return names[type];
}

struct ot_json *ot_json_get(const struct ot_json *object, const char *key) {
    struct json_object *value = NULL;
    if (ot_json_type(object) == OT_JSON_OBJECT)
        json_object_object_get_ex(inner(object), key, &value);
    return outer(value);
}

int ot_json_rename(struct ot_json *object, const struct ot_json_name *names, size_t n) {
    enum { MOST = 64 };
    struct json_object *values[MOST];
    bool is_there[MOST];
    int failed = 0;
    assert(n <= MOST);
    if (ot_json_type(object) != OT_JSON_OBJECT)
        return 0;
    for (size_t i = 0; i < n; i++) {
        is_there[i] = json_object_object_get_ex(inner(object), names[i].from, &values[i]);
        if (is_there[i])
            json_object_get(values[i]);
        json_object_object_del(inner(object), names[i].from);
    }
    for (size_t i = 0; i < n; i++)
        if (is_there[i] && json_object_object_add(inner(object), names[i].to, values[i]) != 0) {
            json_object_put(values[i]);
            failed = 1;
        }
    return failed ? ot_fail(OT_E_BUDGET, "no memory for a row") : 0;
}

size_t ot_json_length(const struct ot_json *array) {
    return ot_json_type(array) == OT_JSON_ARRAY ? json_object_array_length(inner(array)) : 0;
}

struct ot_json *ot_json_at(const struct ot_json *array, size_t index) {
    return index < ot_json_length(array) ? outer(json_object_array_get_idx(inner(array), index)) : NULL;
}

const char *ot_json_string(const struct ot_json *value, size_t *bytes) {
    if (ot_json_type(value) != OT_JSON_STRING)
        return NULL;
    if (bytes)
        *bytes = (size_t)json_object_get_string_len(inner(value));
    return json_object_get_string(inner(value));
}

bool ot_json_bool(const struct ot_json *value, bool fallback) {
    return ot_json_type(value) == OT_JSON_BOOL ? json_object_get_boolean(inner(value)) : fallback;
}

int64_t ot_json_int(const struct ot_json *value, int64_t fallback) {
    return ot_json_type(value) == OT_JSON_INT ? json_object_get_int64(inner(value)) : fallback;
}

double ot_json_real(const struct ot_json *value, double fallback) {
    enum ot_json_type type = ot_json_type(value);
    return type == OT_JSON_INT || type == OT_JSON_REAL ? json_object_get_double(inner(value)) : fallback;
}

bool ot_json_next(const struct ot_json *object, void **cursor, const char **key, struct ot_json **value) {
    if (ot_json_type(object) != OT_JSON_OBJECT)
        return false;
    const struct lh_entry *last = *cursor;
    struct lh_entry *entry = last ? last->next : json_object_get_object(inner(object))->head;
    if (!entry)
        return false;
    *cursor = entry;
    *key = lh_entry_k(entry);
    *value = outer(lh_entry_v(entry));
    return true;
}

/* ---- access with a sentence ---- */

/* The member, which is NULL only where it may be missing. */
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
        return ot_fail(OT_E_INPUT, "%s: key '%s' is %lld; it must be within %lld..%lld", where, key,
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
        return ot_fail(OT_E_INPUT, "%s: key '%s' is %g; it must be within %g..%g", where, key, value, min,
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

/* The result is a C string, so a NUL inside would cut it short: refused. */
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

#include "src/jinja/call.h"

#include <string.h>
#include <time.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/text.h"

/* ---- arguments ---- */

static int bind_named(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                      const char *parameters, struct ot_jinja_value *out) {
    for (size_t i = 0; i < call->n_named; i++) {
        const struct ot_jinja_string *name = call->names[i].as.string;
        int k = ot_words_find(parameters, name->text, name->bytes);
        if (k < 0)
            return ot_jinja_fail(heap, "%s takes no argument '%.*s'", what, (int)name->bytes, name->text);
        if (out[k].kind != OT_JINJA_ABSENT)
            return ot_jinja_fail(heap, "%s gets its argument '%.*s' twice", what, (int)name->bytes,
                                 name->text);
        out[k] = call->named[i];
    }
    return 0;
}

int ot_jinja_bind(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                  const char *parameters, size_t need, struct ot_jinja_value *out) {
    size_t n = 0, bytes;
    while (ot_words_at(parameters, (int)n, &bytes)) {
        out[n] = n < call->n ? call->args[n] : (struct ot_jinja_value){0};
        n++;
    }
    if (call->n > n)
        return ot_jinja_fail(heap, "%s gets %zu arguments and takes at most %zu", what, call->n, n);
    OT_TRY(bind_named(heap, call, what, parameters, out));
    for (size_t i = 0; i < need; i++)
        if (out[i].kind == OT_JINJA_ABSENT) {
            const char *name = ot_words_at(parameters, (int)i, &bytes);
            return ot_jinja_fail(heap, "%s needs an argument '%.*s'", what, (int)bytes, name);
        }
    return 0;
}

int ot_jinja_take_value(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                        struct ot_jinja_value *out) {
    return ot_jinja_bind(heap, call, what, "value", 1, out);
}

int ot_jinja_take_int(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v, const char *what,
                      int64_t *out) {
    if (v->kind == OT_JINJA_ABSENT)
        return 0;
    if (!ot_jinja_is_int(v))
        return ot_jinja_fail(heap, "%s must be an integer, not %s", what, ot_jinja_kind_name(v));
    *out = ot_jinja_to_int(v);
    return 0;
}

int ot_jinja_take_text(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v, const char *what,
                       const struct ot_jinja_string **out) {
    if (v->kind == OT_JINJA_ABSENT)
        return 0;
    if (v->kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "%s must be a string, not %s", what, ot_jinja_kind_name(v));
    *out = v->as.string;
    return 0;
}

/* ---- functions of every template ---- */

#define FUNCTION(name)                                                                                       \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out)

enum { MOST_RANGE = 100000 };

FUNCTION(range) {
    struct ot_jinja_value v[3];
    struct ot_jinja_list *list;
    int64_t begin = 0, end = 0, step = 1;
    OT_TRY(ot_jinja_bind(heap, call, "range()", "start stop step", 1, v));
    for (int i = 0; i < 3; i++)
        if (v[i].kind == OT_JINJA_UNDEFINED)
            return ot_jinja_fail(heap, "an argument of range() is undefined");
    OT_TRY(ot_jinja_take_int(heap, &v[0], "an argument of range()", call->n == 1 ? &end : &begin));
    OT_TRY(ot_jinja_take_int(heap, &v[1], "an argument of range()", &end));
    OT_TRY(ot_jinja_take_int(heap, &v[2], "an argument of range()", &step));
    if (step == 0)
        return ot_jinja_fail(heap, "the step of range() is zero");
    __int128 span = (__int128)end - begin, size = step;
    __int128 n = (span > 0) == (size > 0) && span != 0 ? (span + (size > 0 ? size - 1 : size + 1)) / size : 0;
    if (n > MOST_RANGE)
        return ot_jinja_fail(heap, "range() has more than %d items", MOST_RANGE);
    OT_TRY(ot_jinja_new_list(heap, (size_t)n, &list));
    for (int64_t i = 0; i < (int64_t)n; i++)
        list->items[list->n++] = ot_jinja_int(begin + i * step);
    *out = ot_jinja_of_list(OT_JINJA_RANGE, list);
    return 0;
}

/* Copies a dict, or pairs, into another dict. */
static int put_all(struct ot_jinja_heap *heap, const struct ot_jinja_value *from, struct ot_jinja_dict *to) {
    struct ot_jinja_reader reader;
    struct ot_jinja_value item;
    int more;
    for (size_t i = 0; from->kind == OT_JINJA_DICT && i < from->as.dict->n; i++)
        OT_TRY(ot_jinja_put(heap, to, from->as.dict->pairs[i].key, from->as.dict->pairs[i].value));
    if (from->kind == OT_JINJA_DICT)
        return 0;
    OT_TRY(ot_jinja_read_begin(heap, from, &reader));
    while ((more = ot_jinja_read(heap, &reader, &item)) > 0) {
        if ((item.kind != OT_JINJA_TUPLE && item.kind != OT_JINJA_LIST) || item.as.list->n != 2)
            return ot_jinja_fail(heap, "a dict is made of pairs, not of %s", ot_jinja_kind_name(&item));
        OT_TRY(ot_jinja_put(heap, to, item.as.list->items[0], item.as.list->items[1]));
    }
    return more;
}

static int make_dict(struct ot_jinja_heap *heap, const struct ot_jinja_call *call,
                     struct ot_jinja_dict **out) {
    struct ot_jinja_value key = {.kind = OT_JINJA_STRING};
    if (call->n > 1)
        return ot_jinja_fail(heap, "dict() and namespace() take one argument without a name");
    OT_TRY(ot_jinja_new_dict(heap, out));
    if (call->n == 1)
        OT_TRY(put_all(heap, &call->args[0], *out));
    for (size_t i = 0; i < call->n_named; i++) {
        key = call->names[i];
        OT_TRY(ot_jinja_put(heap, *out, key, call->named[i]));
    }
    return 0;
}

FUNCTION(dict) {
    struct ot_jinja_dict *made;
    OT_TRY(make_dict(heap, call, &made));
    *out = (struct ot_jinja_value){.kind = OT_JINJA_DICT, .as.dict = made};
    return 0;
}

FUNCTION(namespace) {
    struct ot_jinja_dict *made;
    OT_TRY(make_dict(heap, call, &made));
    for (size_t i = 0; i < made->n; i++) {
        const struct ot_jinja_value *key = &made->pairs[i].key;
        if (key->kind == OT_JINJA_STRING && key->as.string->bytes > 0 && key->as.string->text[0] == '_')
            return ot_jinja_fail(heap, "the name of a namespace's attribute begins with an underscore");
    }
    *out = (struct ot_jinja_value){.kind = OT_JINJA_NAMESPACE, .as.dict = made};
    return 0;
}

/* The template refuses its input. */
FUNCTION(raise_exception) {
    struct ot_jinja_value message;
    (void)out;
    OT_TRY(ot_jinja_bind(heap, call, "raise_exception()", "message", 1, &message));
    if (message.kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "the template refuses its input");
    return ot_jinja_fail(heap, "the template refuses its input: %.*s",
                         (int)ot_min(message.as.string->bytes, 300), message.as.string->text);
}

FUNCTION(strftime_now) {
    struct ot_jinja_value v;
    const struct ot_jinja_string *format = NULL;
    char text[256], spec[128];
    struct tm tm = {.tm_year = heap->year - 1900, .tm_mon = heap->month - 1, .tm_mday = heap->day};
    OT_TRY(ot_jinja_bind(heap, call, "strftime_now()", "format", 1, &v));
    OT_TRY(ot_jinja_take_text(heap, &v, "the format of strftime_now()", &format));
    if (format->bytes >= sizeof spec)
        return ot_jinja_fail(heap, "the format of strftime_now() is too long");
    memcpy(spec, format->text, format->bytes);
    spec[format->bytes] = '\0';
    time_t day = timegm(&tm); /* fills the day of the week and of the year */
    gmtime_r(&day, &tm);
    size_t n = *spec ? strftime(text, sizeof text, spec, &tm) : 0;
    return ot_jinja_string(heap, text, n, true, out);
}

const struct ot_jinja_function *ot_jinja_find_function(const struct ot_jinja_string *name) {
    static const struct ot_jinja_function functions[] = {{"range", range},
                                                         {"dict", dict},
                                                         {"namespace", namespace},
                                                         {"raise_exception", raise_exception},
                                                         {"strftime_now", strftime_now}};
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (ot_jinja_is(name, functions[i].name))
            return &functions[i];
    return NULL;
}

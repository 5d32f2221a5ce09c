/* The methods of dict, list, tuple and str. Methods that split and format a str are in string_parts.c. */
#include "src/jinja/methods.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/jinja/jinja.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"
#include "src/tokenizer/text.h"

#define SELF const struct ot_jinja_value *self
#define METHOD(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call,                      \
                    struct ot_jinja_value *out)

static int need_none(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what) {
    struct ot_jinja_value none[1];
    return ot_jinja_bind(heap, call, what, "", 0, none);
}

int ot_jinja_changes(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                     const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    (void)call;
    (void)out;
    return ot_jinja_fail(heap, "a method would change %s", ot_jinja_kind_name(object));
}

/* ---- dict, list, tuple ---- */

enum view { KEYS, VALUES, ITEMS };

static int make_view(struct ot_jinja_heap *heap, const struct ot_jinja_dict *dict, enum view what,
                     struct ot_jinja_value *out) {
    static const char *const labels[] = {"dict_keys", "dict_values", "dict_items"};
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_new_list(heap, dict->n, &list));
    for (size_t i = 0; i < dict->n; i++) {
        const struct ot_jinja_pair *pair = &dict->pairs[i];
        list->items[i] = what == KEYS ? pair->key : pair->value;
        if (what == ITEMS)
            OT_TRY(ot_jinja_new_tuple(heap, pair->key, pair->value, &list->items[i]));
    }
    list->n = dict->n;
    list->label = labels[what];
    *out = ot_jinja_of_list(OT_JINJA_VIEW, list);
    return 0;
}

METHOD(dict_keys) {
    OT_TRY(need_none(heap, call, "a method of a dict"));
    return make_view(heap, self->as.dict, KEYS, out);
}

METHOD(dict_values) {
    OT_TRY(need_none(heap, call, "a method of a dict"));
    return make_view(heap, self->as.dict, VALUES, out);
}

METHOD(dict_items) {
    OT_TRY(need_none(heap, call, "a method of a dict"));
    return make_view(heap, self->as.dict, ITEMS, out);
}

METHOD(dict_get) {
    struct ot_jinja_value v[2];
    OT_TRY(ot_jinja_bind(heap, call, "get()", "key default", 1, v));
    if (call->n_named > 0)
        return ot_jinja_fail(heap, "get() takes no arguments with names");
    if (v[0].kind == OT_JINJA_LIST || v[0].kind == OT_JINJA_DICT)
        return ot_jinja_fail(heap, "%s cannot be a key of a dict", ot_jinja_kind_name(&v[0]));
    const struct ot_jinja_value *found = ot_jinja_find(heap, self->as.dict, &v[0]);
    *out = found ? *found : v[1].kind != OT_JINJA_ABSENT ? v[1] : ot_jinja_none();
    return 0;
}

static const struct ot_jinja_method_row dict_methods[] = {
    {"get", dict_get},
    {"items", dict_items},
    {"keys", dict_keys},
    {"values", dict_values},
    {"clear pop popitem setdefault update", ot_jinja_changes},
    {"copy fromkeys", NULL},
    {NULL, NULL},
};

static const struct ot_jinja_method_row list_methods[] = {
    {"append clear extend insert pop remove reverse sort", ot_jinja_changes},
    {"copy count index", NULL},
    {NULL, NULL},
};

static const struct ot_jinja_method_row tuple_methods[] = {{"count index", NULL}, {NULL, NULL}};

/* ---- str: case ---- */

static int change_case(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call,
                       enum ot_jinja_case to, struct ot_jinja_value *out) {
    struct ot_string_builder b = {0};
    OT_TRY(need_none(heap, call, "a method that changes case"));
    OT_TRY(ot_jinja_step(heap, self->as.string->bytes >> 4));
    ot_jinja_change_case(self->as.string->text, self->as.string->bytes, to, &b);
    return ot_jinja_take(heap, &b, out);
}

METHOD(lower) {
    return change_case(heap, self, call, OT_JINJA_LOWER, out);
}

METHOD(upper) {
    return change_case(heap, self, call, OT_JINJA_UPPER, out);
}

METHOD(title) {
    return change_case(heap, self, call, OT_JINJA_TITLE, out);
}

METHOD(capitalize) {
    return change_case(heap, self, call, OT_JINJA_CAPITAL, out);
}

/* ---- str: strip, replace ---- */

static bool is_one_of(const char *text, size_t n, const struct ot_jinja_string *chars) {
    for (size_t i = 0, length; i < chars->bytes; i += length) {
        ot_utf8_decode(chars->text + i, &length);
        if (length == n && memcmp(chars->text + i, text, n) == 0)
            return true;
    }
    return false;
}

/* Length of the character to strip at the front of text[0..n), or at its end. */
static size_t strips(const char *text, size_t n, const struct ot_jinja_string *chars, bool front) {
    size_t length;
    if (!chars)
        return front ? ot_jinja_space_at(text, n) : ot_jinja_space_before(text, n);
    if (front)
        ot_utf8_decode(text, &length);
    else
        ot_utf8_decode_before(text, n, &length);
    return is_one_of(front ? text : text + n - length, length, chars) ? length : 0;
}

int ot_jinja_strip(struct ot_jinja_heap *heap, const struct ot_jinja_string *text,
                   const struct ot_jinja_string *chars, enum ot_jinja_strip sides,
                   struct ot_jinja_value *out) {
    const char *begin = text->text;
    size_t n = text->bytes, length;
    OT_TRY(ot_jinja_step(heap, chars ? n * chars->bytes >> 8 : 0));
    while ((sides & OT_JINJA_STRIP_LEFT) && n > 0 && (length = strips(begin, n, chars, true)) > 0) {
        begin += length;
        n -= length;
    }
    while ((sides & OT_JINJA_STRIP_RIGHT) && n > 0 && (length = strips(begin, n, chars, false)) > 0)
        n -= length;
    return ot_jinja_string(heap, begin, n, false, out);
}

static int strip_sides(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call,
                       enum ot_jinja_strip sides, struct ot_jinja_value *out) {
    struct ot_jinja_value chars;
    const struct ot_jinja_string *set = NULL;
    OT_TRY(ot_jinja_bind(heap, call, "strip()", "chars", 0, &chars));
    if (chars.kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_text(heap, &chars, "the argument of strip()", &set));
    return ot_jinja_strip(heap, self->as.string, set, sides, out);
}

METHOD(strip) {
    return strip_sides(heap, self, call, OT_JINJA_STRIP_BOTH, out);
}

METHOD(lstrip) {
    return strip_sides(heap, self, call, OT_JINJA_STRIP_LEFT, out);
}

METHOD(rstrip) {
    return strip_sides(heap, self, call, OT_JINJA_STRIP_RIGHT, out);
}

int ot_jinja_replace(struct ot_jinja_heap *heap, const struct ot_jinja_string *text,
                     const struct ot_jinja_string *from, const struct ot_jinja_string *to, int64_t most,
                     struct ot_jinja_value *out) {
    struct ot_string_builder b = {0};
    size_t at = 0;
    for (int64_t n = 0; most < 0 || n < most; n++) {
        size_t found = ot_jinja_search(text, from, at);
        if (from->bytes == 0 && n > 0 && at < text->bytes) { /* before each character, and at the end */
            size_t length;
            ot_utf8_decode(text->text + at, &length);
            ot_string_append(&b, text->text + at, length);
            at += length;
        } else if (found == SIZE_MAX || (from->bytes == 0 && n > 0)) {
            break;
        } else {
            ot_string_append(&b, text->text + at, found - at);
        }
        ot_string_append(&b, to->text, to->bytes);
        at = from->bytes > 0 ? found + from->bytes : at;
        if (b.bytes > OT_JINJA_MOST_OUTPUT || ot_jinja_step(heap, 1 + (to->bytes >> 6)) < 0) {
            free(b.text);
            return ot_jinja_fail(heap, "a replacement makes a text too long");
        }
    }
    ot_string_append(&b, text->text + at, text->bytes - at);
    return ot_jinja_take(heap, &b, out);
}

METHOD(replace) {
    struct ot_jinja_value v[3];
    const struct ot_jinja_string *from = NULL, *to = NULL;
    int64_t most = -1;
    OT_TRY(ot_jinja_bind(heap, call, "replace()", "old new count", 2, v));
    OT_TRY(ot_jinja_take_text(heap, &v[0], "the first argument of replace()", &from));
    OT_TRY(ot_jinja_take_text(heap, &v[1], "the second argument of replace()", &to));
    OT_TRY(ot_jinja_take_int(heap, &v[2], "the count of replace()", &most));
    return ot_jinja_replace(heap, self->as.string, from, to, most, out);
}

/* ---- str: prefixes and suffixes ---- */

static bool has_affix(const struct ot_jinja_string *s, const struct ot_jinja_string *affix, bool end) {
    return affix->bytes <= s->bytes &&
           memcmp(end ? s->text + s->bytes - affix->bytes : s->text, affix->text, affix->bytes) == 0;
}

static int test_affix(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call, bool end,
                      struct ot_jinja_value *out) {
    struct ot_jinja_value v;
    const struct ot_jinja_string *affix = NULL;
    if (call->n > 1)
        return ot_jinja_unsupported(heap, "startswith() or endswith() with a start");
    OT_TRY(ot_jinja_bind(heap, call, end ? "endswith()" : "startswith()", "affix", 1, &v));
    *out = ot_jinja_bool(false);
    const struct ot_jinja_value *items = v.kind == OT_JINJA_TUPLE ? v.as.list->items : &v;
    size_t n = v.kind == OT_JINJA_TUPLE ? v.as.list->n : 1;
    for (size_t i = 0; i < n && !out->as.flag; i++) {
        OT_TRY(ot_jinja_take_text(heap, &items[i], "the argument of startswith() and endswith()", &affix));
        out->as.flag = has_affix(self->as.string, affix, end);
    }
    return 0;
}

METHOD(startswith) {
    return test_affix(heap, self, call, false, out);
}

METHOD(endswith) {
    return test_affix(heap, self, call, true, out);
}

static int remove_affix(struct ot_jinja_heap *heap, SELF, const struct ot_jinja_call *call, bool end,
                        struct ot_jinja_value *out) {
    struct ot_jinja_value v;
    const struct ot_jinja_string *affix = NULL, *s = self->as.string;
    OT_TRY(ot_jinja_bind(heap, call, "a method that removes a prefix or suffix", "affix", 1, &v));
    OT_TRY(ot_jinja_take_text(heap, &v, "a prefix or suffix", &affix));
    *out = *self;
    if (!has_affix(s, affix, end))
        return 0;
    return ot_jinja_string(heap, end ? s->text : s->text + affix->bytes, s->bytes - affix->bytes, false, out);
}

METHOD(removeprefix) {
    return remove_affix(heap, self, call, false, out);
}

METHOD(removesuffix) {
    return remove_affix(heap, self, call, true, out);
}

/* ---- str: find, join ---- */

METHOD(find) {
    struct ot_jinja_value v;
    const struct ot_jinja_string *part = NULL, *s = self->as.string;
    if (call->n > 1)
        return ot_jinja_unsupported(heap, "find() with a start");
    OT_TRY(ot_jinja_bind(heap, call, "find()", "sub", 1, &v));
    OT_TRY(ot_jinja_take_text(heap, &v, "the text to search for", &part));
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    size_t at = ot_jinja_search(s, part, 0);
    *out = ot_jinja_int(at == SIZE_MAX ? -1 : (int64_t)ot_jinja_count_chars(s->text, at));
    return 0;
}

METHOD(join) {
    struct ot_jinja_value items, item;
    struct ot_jinja_reader reader;
    struct ot_string_builder b = {0};
    const struct ot_jinja_string *part = NULL;
    int rc, n = 0;
    OT_TRY(ot_jinja_bind(heap, call, "join()", "iterable", 1, &items));
    OT_TRY(ot_jinja_read_begin(heap, &items, &reader));
    while ((rc = ot_jinja_read(heap, &reader, &item)) > 0) {
        OT_TRY_GOTO(ot_jinja_take_text(heap, &item, "each item of join()", &part), rc, out);
        if (n++ > 0)
            ot_string_append(&b, self->as.string->text, self->as.string->bytes);
        ot_string_append(&b, part->text, part->bytes);
        if (b.bytes > OT_JINJA_MOST_OUTPUT) {
            rc = ot_jinja_fail(heap, "the text is longer than %d MiB", OT_JINJA_MOST_OUTPUT >> 20);
            goto out;
        }
    }
    if (rc == 0)
        return ot_jinja_take(heap, &b, out);
out:
    free(b.text);
    return rc;
}

static const struct ot_jinja_method_row string_methods[] = {
    {"capitalize", capitalize},
    {"endswith", endswith},
    {"find", find},
    {"format", ot_jinja_format},
    {"join", join},
    {"lower", lower},
    {"lstrip", lstrip},
    {"removeprefix", removeprefix},
    {"removesuffix", removesuffix},
    {"replace", replace},
    {"rsplit", ot_jinja_rsplit},
    {"rstrip", rstrip},
    {"split", ot_jinja_split},
    {"splitlines", ot_jinja_splitlines},
    {"startswith", startswith},
    {"strip", strip},
    {"title", title},
    {"upper", upper},
    {"casefold center count encode expandtabs format_map index isalnum isalpha isascii "
     "isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper "
     "ljust maketrans partition rfind rindex rjust rpartition swapcase translate zfill",
     NULL},
    {NULL, NULL},
};

const struct ot_jinja_method_row *ot_jinja_methods(enum ot_jinja_kind kind) {
    switch (kind) {
    case OT_JINJA_STRING:
        return string_methods;
    case OT_JINJA_DICT:
        return dict_methods;
    case OT_JINJA_LIST:
        return list_methods;
    case OT_JINJA_TUPLE:
    case OT_JINJA_RANGE:
        return tuple_methods;
    default:
        return NULL;
    }
}

/* Filters that compare items: sort, dictsort, groupby, unique, min, max. Strings are compared without regard
 * to case unless the template asks for it. */
#include <string.h>

#include "src/base/error.h"
#include "src/jinja/filters.h"
#include "src/jinja/lookup.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"
#include "src/jinja/unicode.h"

#define FILTER(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out)

struct keyed { /* an item, and the key that it is compared by */
    struct ot_jinja_value item, key;
};

static int ignore_case(struct ot_jinja_heap *heap, struct ot_jinja_value *key) {
    struct ot_string_builder b = {0};
    if (key->kind != OT_JINJA_STRING)
        return 0;
    OT_TRY(ot_jinja_step(heap, key->as.string->bytes >> 4));
    ot_jinja_change_case(key->as.string->text, key->as.string->bytes, OT_JINJA_LOWER, &b);
    return ot_jinja_take(heap, &b, key);
}

static int make_key(struct ot_jinja_heap *heap, const struct ot_jinja_value *item,
                    const struct ot_jinja_value *attribute, bool exact, struct ot_jinja_value *key) {
    OT_TRY(ot_jinja_path(heap, item, attribute, key));
    return exact ? 0 : ignore_case(heap, key);
}

/* The key of several attributes, "a,b": a list of keys. */
static int make_keys(struct ot_jinja_heap *heap, const struct ot_jinja_value *item,
                     const struct ot_jinja_value *attribute, bool exact, struct ot_jinja_value *key) {
    struct ot_jinja_list *list;
    const struct ot_jinja_string *names = attribute->kind == OT_JINJA_STRING ? attribute->as.string : NULL;
    if (!names || !names->bytes || !memchr(names->text, ',', names->bytes))
        return make_key(heap, item, attribute, exact, key);
    OT_TRY(ot_jinja_new_list(heap, 2, &list));
    for (size_t at = 0; at <= names->bytes;) {
        const char *comma = memchr(names->text + at, ',', names->bytes - at);
        size_t end = comma ? (size_t)(comma - names->text) : names->bytes;
        struct ot_jinja_value name, part;
        OT_TRY(ot_jinja_string(heap, names->text + at, end - at, false, &name));
        OT_TRY(make_key(heap, item, &name, exact, &part));
        OT_TRY(ot_jinja_add(heap, list, part));
        at = end + 1;
    }
    *key = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

/* Merges the sorted halves [0, n/2) and [n/2, n). Equal items keep their order, in both directions. */
static int merge(struct ot_jinja_heap *heap, const struct keyed *items, size_t n, bool down,
                 struct keyed *out) {
    size_t a = 0, b = n / 2;
    for (size_t i = 0; i < n; i++) {
        int order = 0;
        if (a < n / 2 && b < n)
            OT_TRY(ot_jinja_order(heap, &items[b].key, &items[a].key, &order));
        bool second = a == n / 2 || (b < n && (down ? order > 0 : order < 0));
        out[i] = items[second ? b++ : a++];
    }
    return 0;
}

static int sort(struct ot_jinja_heap *heap, struct keyed *items, size_t n, bool down, struct keyed *scratch) {
    if (n < 2)
        return 0;
    OT_TRY(sort(heap, items, n / 2, down, scratch));
    OT_TRY(sort(heap, items + n / 2, n - n / 2, down, scratch));
    OT_TRY(merge(heap, items, n, down, scratch));
    memcpy(items, scratch, n * sizeof *items);
    return 0;
}

static int sort_list(struct ot_jinja_heap *heap, const struct ot_jinja_list *list,
                     const struct ot_jinja_value *attribute, bool exact, bool down, struct keyed **out) {
    struct keyed *items = ot_jinja_alloc(heap, 2 * list->n + 1, sizeof *items);
    if (!items)
        return heap->error;
    for (size_t i = 0; i < list->n; i++) {
        items[i].item = list->items[i];
        OT_TRY(make_keys(heap, &list->items[i], attribute, exact, &items[i].key));
    }
    *out = items;
    return sort(heap, items, list->n, down, items + list->n);
}

static void take_items(struct ot_jinja_list *list, const struct keyed *items) {
    for (size_t i = 0; i < list->n; i++)
        list->items[i] = items[i].item;
}

FILTER(sort_items) {
    static const char *const parameters[] = {"value", "reverse", "case_sensitive", "attribute", NULL};
    struct ot_jinja_value v[4];
    struct ot_jinja_list *list;
    struct keyed *items;
    OT_TRY(ot_jinja_bind(heap, call, "sort", parameters, 1, v));
    OT_TRY(ot_jinja_collect(heap, &v[0], &list));
    OT_TRY(sort_list(heap, list, &v[3], ot_jinja_take_flag(&v[2], false), ot_jinja_take_flag(&v[1], false),
                     &items));
    take_items(list, items);
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

FILTER(dictsort) {
    static const char *const parameters[] = {"value", "case_sensitive", "by", "reverse", NULL};
    struct ot_jinja_value v[4], index = ot_jinja_int(0);
    struct ot_jinja_list *list;
    struct keyed *items;
    OT_TRY(ot_jinja_bind(heap, call, "dictsort", parameters, 1, v));
    if (v[0].kind != OT_JINJA_DICT)
        return ot_jinja_fail(heap, "dictsort needs a dict, not %s", ot_jinja_kind_name(&v[0]));
    if (ot_jinja_is_text(&v[2], "value"))
        index = ot_jinja_int(1);
    else if (v[2].kind != OT_JINJA_ABSENT && !ot_jinja_is_text(&v[2], "key"))
        return ot_jinja_fail(heap, "dictsort sorts by 'key' or 'value'");
    const struct ot_jinja_dict *dict = v[0].as.dict;
    OT_TRY(ot_jinja_new_list(heap, dict->n, &list));
    for (size_t i = 0; i < dict->n; i++)
        OT_TRY(ot_jinja_new_tuple(heap, dict->pairs[i].key, dict->pairs[i].value, &list->items[i]));
    list->n = dict->n;
    OT_TRY(sort_list(heap, list, &index, ot_jinja_take_flag(&v[1], false), ot_jinja_take_flag(&v[3], false),
                     &items));
    take_items(list, items);
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

/* A group prints as a tuple. Its names `grouper` and `list` are not supported: templates unpack it. */
FILTER(groupby) {
    static const char *const parameters[] = {"value", "attribute", "default", "case_sensitive", NULL};
    struct ot_jinja_value v[4], name, pair;
    struct ot_jinja_list *list, *groups, *group = NULL;
    struct keyed *items;
    OT_TRY(ot_jinja_bind(heap, call, "groupby", parameters, 2, v));
    if (v[2].kind != OT_JINJA_ABSENT)
        return ot_jinja_unsupported(heap, "groupby with a default");
    OT_TRY(ot_jinja_collect(heap, &v[0], &list));
    OT_TRY(sort_list(heap, list, &v[1], ot_jinja_take_flag(&v[3], false), false, &items));
    OT_TRY(ot_jinja_new_list(heap, 0, &groups));
    for (size_t i = 0; i < list->n; i++) {
        if (i == 0 || !ot_jinja_equal(heap, &items[i].key, &items[i - 1].key)) {
            OT_TRY(ot_jinja_new_list(heap, 0, &group));
            OT_TRY(ot_jinja_path(heap, &items[i].item, &v[1], &name));
            OT_TRY(ot_jinja_new_tuple(heap, name, ot_jinja_of_list(OT_JINJA_LIST, group), &pair));
            OT_TRY(ot_jinja_add(heap, groups, pair));
        }
        OT_TRY(ot_jinja_add(heap, group, items[i].item));
    }
    *out = ot_jinja_of_list(OT_JINJA_LIST, groups);
    return 0;
}

FILTER(unique) {
    static const char *const parameters[] = {"value", "case_sensitive", "attribute", NULL};
    struct ot_jinja_value v[3], key;
    struct ot_jinja_list *list, *kept;
    struct ot_jinja_dict *seen;
    OT_TRY(ot_jinja_bind(heap, call, "unique", parameters, 1, v));
    OT_TRY(ot_jinja_collect(heap, &v[0], &list));
    OT_TRY(ot_jinja_new_list(heap, 0, &kept));
    OT_TRY(ot_jinja_new_dict(heap, &seen));
    for (size_t i = 0; i < list->n; i++) {
        OT_TRY(make_key(heap, &list->items[i], &v[2], ot_jinja_take_flag(&v[1], false), &key));
        OT_TRY(ot_jinja_step(heap, 1));
        if (ot_jinja_find(heap, seen, &key))
            continue;
        OT_TRY(ot_jinja_put(heap, seen, key, key));
        OT_TRY(ot_jinja_add(heap, kept, list->items[i]));
    }
    *out = ot_jinja_of_list(OT_JINJA_GENERATOR, kept);
    return 0;
}

static int find_extreme(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, int sign,
                        struct ot_jinja_value *out) {
    static const char *const parameters[] = {"value", "case_sensitive", "attribute", NULL};
    struct ot_jinja_value v[3], key, best;
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_bind(heap, call, sign < 0 ? "min" : "max", parameters, 1, v));
    OT_TRY(ot_jinja_collect(heap, &v[0], &list));
    *out = ot_jinja_undefined(NULL);
    for (size_t i = 0; i < list->n; i++) {
        int order = sign;
        OT_TRY(make_key(heap, &list->items[i], &v[2], ot_jinja_take_flag(&v[1], false), &key));
        if (i > 0)
            OT_TRY(ot_jinja_order(heap, &key, &best, &order));
        if (i > 0 && (sign < 0 ? order >= 0 : order <= 0))
            continue;
        best = key;
        *out = list->items[i];
    }
    return 0;
}

FILTER(min) {
    return find_extreme(heap, call, -1, out);
}

FILTER(max) {
    return find_extreme(heap, call, 1, out);
}

const struct ot_jinja_function ot_jinja_order_filters[] = {
    {"dictsort", dictsort}, {"groupby", groupby}, {"max", max}, {"min", min},
    {"sort", sort_items},   {"unique", unique},   {NULL, NULL},
};

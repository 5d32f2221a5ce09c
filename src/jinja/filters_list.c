/* Filters of lists and dicts. Those that compare items compare strings without regard to case unless the
 * template asks for it. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/jinja/call.h"
#include "src/jinja/methods.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"

#define FILTER(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out)

/* ---- items in their order ---- */

FILTER(to_list) {
    struct ot_jinja_value v;
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_take_value(heap, call, "list", &v));
    OT_TRY(ot_jinja_collect(heap, &v, &list));
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

FILTER(first) {
    struct ot_jinja_value v;
    struct ot_jinja_reader reader;
    OT_TRY(ot_jinja_take_value(heap, call, "first", &v));
    OT_TRY(ot_jinja_read_begin(heap, &v, &reader));
    int more = ot_jinja_read(heap, &reader, out);
    if (more == 0)
        *out = ot_jinja_undefined(NULL);
    return more < 0 ? more : 0;
}

FILTER(last) {
    struct ot_jinja_value v;
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_take_value(heap, call, "last", &v));
    if (v.kind == OT_JINJA_GENERATOR)
        return ot_jinja_fail(heap, "last needs a list, not a generator; add | list");
    OT_TRY(ot_jinja_collect(heap, &v, &list));
    *out = list->n > 0 ? list->items[list->n - 1] : ot_jinja_undefined(NULL);
    return 0;
}

FILTER(reverse) {
    struct ot_jinja_value v, absent = {0}, back = ot_jinja_int(-1);
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_take_value(heap, call, "reverse", &v));
    if (v.kind == OT_JINJA_STRING)
        return ot_jinja_slice(heap, &v, &absent, &absent, &back, out);
    OT_TRY(ot_jinja_collect(heap, &v, &list));
    for (size_t i = 0; i < list->n / 2; i++) {
        struct ot_jinja_value item = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = item;
    }
    *out = ot_jinja_of_list(v.kind == OT_JINJA_GENERATOR ? OT_JINJA_LIST : OT_JINJA_GENERATOR, list);
    return 0;
}

FILTER(items) {
    struct ot_jinja_value v;
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_take_value(heap, call, "items", &v));
    if (v.kind != OT_JINJA_UNDEFINED && v.kind != OT_JINJA_DICT)
        return ot_jinja_fail(heap, "items needs a dict, not %s", ot_jinja_kind_name(&v));
    size_t n = v.kind == OT_JINJA_DICT ? v.as.dict->n : 0;
    OT_TRY(ot_jinja_new_list(heap, n, &list));
    for (size_t i = 0; i < n; i++)
        OT_TRY(ot_jinja_new_tuple(heap, v.as.dict->pairs[i].key, v.as.dict->pairs[i].value, &list->items[i]));
    list->n = n;
    *out = ot_jinja_of_list(OT_JINJA_GENERATOR, list);
    return 0;
}

FILTER(join) {
    struct ot_jinja_value v[3], separator, item, part;
    struct ot_jinja_reader reader;
    struct ot_string_builder b = {0};
    int rc;
    OT_TRY(ot_jinja_bind(heap, call, "join", "value d attribute", 1, v));
    if (v[1].kind == OT_JINJA_ABSENT)
        OT_TRY(ot_jinja_text(heap, "", &v[1]));
    OT_TRY(ot_jinja_to_string(heap, &v[1], &separator));
    OT_TRY(ot_jinja_read_begin(heap, &v[0], &reader));
    for (size_t n = 0; (rc = ot_jinja_read(heap, &reader, &item)) > 0; n++) {
        if (n > 0)
            ot_string_append(&b, separator.as.string->text, separator.as.string->bytes);
        OT_TRY_GOTO(ot_jinja_path(heap, &item, &v[2], &part), rc, out);
        OT_TRY_GOTO(ot_jinja_print(heap, &part, &b), rc, out);
    }
    if (rc == 0)
        return ot_jinja_take(heap, &b, out);
out:
    free(b.text);
    return rc;
}

/* ---- map, select, reject ---- */

/* A generator of all items after `apply` ran on each. apply: returns 1 to keep *item, 0 to drop it. */
struct pass {
    const struct ot_jinja_call *call; /* of the filter; the arguments behind `skip` go to the inner one */
    size_t skip;
    struct ot_jinja_value attribute, fallback;
    bool keep; /* select, not reject */
};

static int run_inner(struct ot_jinja_heap *heap, const struct pass *pass, const struct ot_jinja_value *item,
                     bool test, struct ot_jinja_value *out) {
    const struct ot_jinja_call *call = pass->call;
    const struct ot_jinja_string *name = NULL;
    size_t n = call->n - pass->skip;
    OT_TRY(ot_jinja_take_text(heap, &call->args[pass->skip - 1], "the name of a filter or test", &name));
    struct ot_jinja_value *args = ot_jinja_alloc(heap, n + 1, sizeof *args);
    if (!args)
        return heap->error;
    args[0] = *item;
    if (n > 0)
        memcpy(args + 1, call->args + pass->skip, n * sizeof *args);
    struct ot_jinja_call inner = *call;
    inner.args = args;
    inner.n = n + 1;
    bool passes = false;
    if (!test)
        return ot_jinja_filter(heap, name, &inner, out);
    OT_TRY(ot_jinja_test(heap, name, &inner, &passes));
    *out = ot_jinja_bool(passes);
    return 0;
}

static int map_item(struct ot_jinja_heap *heap, const struct pass *pass, struct ot_jinja_value *item) {
    struct ot_jinja_value result;
    if (pass->attribute.kind == OT_JINJA_ABSENT) {
        OT_TRY(run_inner(heap, pass, item, false, &result));
    } else {
        OT_TRY(ot_jinja_path(heap, item, &pass->attribute, &result));
        if (result.kind == OT_JINJA_UNDEFINED && pass->fallback.kind != OT_JINJA_ABSENT &&
            pass->fallback.kind != OT_JINJA_NONE)
            result = pass->fallback;
    }
    *item = result;
    return 1;
}

static int select_item(struct ot_jinja_heap *heap, const struct pass *pass, struct ot_jinja_value *item) {
    struct ot_jinja_value part, verdict;
    OT_TRY(ot_jinja_path(heap, item, &pass->attribute, &part));
    verdict = part;
    if (pass->call->n >= pass->skip)
        OT_TRY(run_inner(heap, pass, &part, true, &verdict));
    return ot_jinja_truth(&verdict) == pass->keep;
}

static int run_pass(struct ot_jinja_heap *heap, const struct pass *pass,
                    int (*apply)(struct ot_jinja_heap *, const struct pass *, struct ot_jinja_value *),
                    struct ot_jinja_value *out) {
    struct ot_jinja_list *list;
    struct ot_jinja_value item;
    struct ot_jinja_reader reader;
    int more;
    OT_TRY(ot_jinja_new_list(heap, 0, &list));
    *out = ot_jinja_of_list(OT_JINJA_GENERATOR, list);
    if (!ot_jinja_truth(&pass->call->args[0]))
        return 0;
    OT_TRY(ot_jinja_read_begin(heap, &pass->call->args[0], &reader));
    while ((more = ot_jinja_read(heap, &reader, &item)) > 0) {
        int kept = apply(heap, pass, &item);
        OT_TRY(kept);
        if (kept)
            OT_TRY(ot_jinja_add(heap, list, item));
    }
    return more;
}

FILTER(map) {
    struct pass pass = {.call = call, .skip = 2};
    if (call->n == 1) {
        struct ot_jinja_value v[3];
        OT_TRY(ot_jinja_bind(heap, call, "map", "value attribute default", 2, v));
        pass.attribute = v[1];
        pass.fallback = v[2];
    }
    return run_pass(heap, &pass, map_item, out);
}

static int select_items(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, bool attribute,
                        bool keep, struct ot_jinja_value *out) {
    struct pass pass = {.call = call, .skip = attribute ? 3 : 2, .keep = keep};
    if (attribute && call->n < 2)
        return ot_jinja_fail(heap, "selectattr and rejectattr need the name of an attribute");
    if (attribute)
        pass.attribute = call->args[1];
    return run_pass(heap, &pass, select_item, out);
}

FILTER(select_by) {
    return select_items(heap, call, false, true, out);
}

FILTER(reject_by) {
    return select_items(heap, call, false, false, out);
}

FILTER(selectattr) {
    return select_items(heap, call, true, true, out);
}

FILTER(rejectattr) {
    return select_items(heap, call, true, false, out);
}

/* ---- sort, dictsort, unique, min, max ---- */

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
        OT_TRY(make_key(heap, &list->items[i], attribute, exact, &items[i].key));
    }
    *out = items;
    return sort(heap, items, list->n, down, items + list->n);
}

static void take_items(struct ot_jinja_list *list, const struct keyed *items) {
    for (size_t i = 0; i < list->n; i++)
        list->items[i] = items[i].item;
}

FILTER(sort_items) {
    struct ot_jinja_value v[4];
    struct ot_jinja_list *list;
    struct keyed *items;
    OT_TRY(ot_jinja_bind(heap, call, "sort", "value reverse case_sensitive attribute", 1, v));
    if (v[3].kind == OT_JINJA_STRING && memchr(v[3].as.string->text, ',', v[3].as.string->bytes))
        return ot_jinja_unsupported(heap, "the filter sort by several attributes");
    OT_TRY(ot_jinja_collect(heap, &v[0], &list));
    OT_TRY(sort_list(heap, list, &v[3], ot_jinja_take_flag(&v[2], false), ot_jinja_take_flag(&v[1], false),
                     &items));
    take_items(list, items);
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

FILTER(dictsort) {
    struct ot_jinja_value v[4], index = ot_jinja_int(0);
    struct ot_jinja_list *list;
    struct keyed *items;
    OT_TRY(ot_jinja_bind(heap, call, "dictsort", "value case_sensitive by reverse", 1, v));
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

FILTER(unique) {
    struct ot_jinja_value v[3], key;
    struct ot_jinja_list *list, *kept;
    struct ot_jinja_dict *seen;
    OT_TRY(ot_jinja_bind(heap, call, "unique", "value case_sensitive attribute", 1, v));
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
    struct ot_jinja_value v[3], key, best;
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_bind(heap, call, sign < 0 ? "min" : "max", "value case_sensitive attribute", 1, v));
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

const struct ot_jinja_function ot_jinja_list_filters[] = {
    {"dictsort", dictsort},
    {"first", first},
    {"items", items},
    {"join", join},
    {"last", last},
    {"list", to_list},
    {"map", map},
    {"max", max},
    {"min", min},
    {"reject", reject_by},
    {"rejectattr", rejectattr},
    {"reverse", reverse},
    {"select", select_by},
    {"selectattr", selectattr},
    {"sort", sort_items},
    {"unique", unique},
    {NULL, NULL},
};

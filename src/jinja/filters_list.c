/* Filters of lists and dicts that keep the order of their items. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/filters.h"
#include "src/jinja/jinja.h"
#include "src/jinja/lookup.h"
#include "src/jinja/methods.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"

#define FILTER(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out)

static int take_value(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                      struct ot_jinja_value *out) {
    static const char *const parameters[] = {"value", NULL};
    return ot_jinja_bind(heap, call, what, parameters, 1, out);
}

FILTER(to_list) {
    struct ot_jinja_value v;
    struct ot_jinja_list *list;
    OT_TRY(take_value(heap, call, "list", &v));
    OT_TRY(ot_jinja_collect(heap, &v, &list));
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

FILTER(first) {
    struct ot_jinja_value v;
    struct ot_jinja_reader reader;
    OT_TRY(take_value(heap, call, "first", &v));
    OT_TRY(ot_jinja_read_begin(heap, &v, &reader));
    int more = ot_jinja_read(heap, &reader, out);
    if (more == 0)
        *out = ot_jinja_undefined(NULL);
    return more < 0 ? more : 0;
}

FILTER(last) {
    struct ot_jinja_value v;
    struct ot_jinja_list *list;
    OT_TRY(take_value(heap, call, "last", &v));
    if (v.kind == OT_JINJA_GENERATOR)
        return ot_jinja_fail(heap, "last needs a list, not a generator; add | list");
    OT_TRY(ot_jinja_collect(heap, &v, &list));
    *out = list->n > 0 ? list->items[list->n - 1] : ot_jinja_undefined(NULL);
    return 0;
}

FILTER(reverse) {
    struct ot_jinja_value v, absent = {0}, back = ot_jinja_int(-1);
    struct ot_jinja_list *list;
    OT_TRY(take_value(heap, call, "reverse", &v));
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
    OT_TRY(take_value(heap, call, "items", &v));
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
    static const char *const parameters[] = {"value", "d", "attribute", NULL};
    struct ot_jinja_value v[3], separator, item, part;
    struct ot_jinja_reader reader;
    struct ot_string_builder b = {0};
    int rc;
    OT_TRY(ot_jinja_bind(heap, call, "join", parameters, 1, v));
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

FILTER(sum) {
    static const char *const parameters[] = {"iterable", "attribute", "start", NULL};
    struct ot_jinja_value v[3], item, part, total;
    struct ot_jinja_reader reader;
    int more;
    OT_TRY(ot_jinja_bind(heap, call, "sum", parameters, 1, v));
    total = v[2].kind == OT_JINJA_ABSENT ? ot_jinja_int(0) : v[2];
    if (total.kind == OT_JINJA_STRING)
        return ot_jinja_fail(heap, "sum does not add strings; use join");
    OT_TRY(ot_jinja_read_begin(heap, &v[0], &reader));
    while ((more = ot_jinja_read(heap, &reader, &item)) > 0) {
        OT_TRY(ot_jinja_path(heap, &item, &v[1], &part));
        struct ot_jinja_value before = total;
        OT_TRY(ot_jinja_operate(heap, '+', &before, &part, &total));
    }
    *out = total;
    return more;
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
    static const char *const parameters[] = {"value", "attribute", "default", NULL};
    struct pass pass = {.call = call, .skip = 2};
    if (call->n == 1) {
        struct ot_jinja_value v[3];
        OT_TRY(ot_jinja_bind(heap, call, "map", parameters, 2, v));
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

/* ---- batch, slice ---- */

static int copy_part(struct ot_jinja_heap *heap, const struct ot_jinja_list *from, size_t begin, size_t n,
                     size_t fill, const struct ot_jinja_value *with, struct ot_jinja_list *to) {
    struct ot_jinja_list *part;
    OT_TRY(ot_jinja_new_list(heap, n + fill, &part));
    for (size_t i = 0; i < n + fill; i++)
        part->items[part->n++] = i < n ? from->items[begin + i] : *with;
    return ot_jinja_add(heap, to, ot_jinja_of_list(OT_JINJA_LIST, part));
}

static int take_parts(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                      struct ot_jinja_value v[3], struct ot_jinja_list **items, size_t *count) {
    static const char *const parameters[] = {"value", "count", "fill_with", NULL};
    int64_t n = 0;
    OT_TRY(ot_jinja_bind(heap, call, what, parameters, 2, v));
    OT_TRY(ot_jinja_take_int(heap, &v[1], "the number of parts", &n));
    if (n < 1 || n > 100000)
        return ot_jinja_fail(heap, "%s needs a number from 1 to 100000", what);
    *count = (size_t)n;
    return ot_jinja_collect(heap, &v[0], items);
}

FILTER(batch) {
    struct ot_jinja_value v[3];
    struct ot_jinja_list *items, *list;
    size_t n = 1;
    OT_TRY(take_parts(heap, call, "batch", v, &items, &n));
    OT_TRY(ot_jinja_new_list(heap, items->n / n + 1, &list));
    bool fills = v[2].kind != OT_JINJA_ABSENT && v[2].kind != OT_JINJA_NONE;
    for (size_t at = 0; at < items->n; at += n) {
        size_t size = ot_min(items->n - at, n);
        OT_TRY(copy_part(heap, items, at, size, fills ? n - size : 0, &v[2], list));
    }
    *out = ot_jinja_of_list(OT_JINJA_GENERATOR, list);
    return 0;
}

FILTER(slice) {
    struct ot_jinja_value v[3];
    struct ot_jinja_list *items, *list;
    size_t n = 1, at = 0;
    OT_TRY(take_parts(heap, call, "slice", v, &items, &n));
    OT_TRY(ot_jinja_new_list(heap, n, &list));
    bool fills = v[2].kind != OT_JINJA_ABSENT && v[2].kind != OT_JINJA_NONE;
    for (size_t i = 0; i < n; i++) {
        bool longer = i < items->n % n;
        size_t size = items->n / n + longer;
        OT_TRY(copy_part(heap, items, at, size, fills && !longer, &v[2], list));
        at += size;
    }
    *out = ot_jinja_of_list(OT_JINJA_GENERATOR, list);
    return 0;
}

const struct ot_jinja_function ot_jinja_list_filters[] = {
    {"batch", batch},     {"first", first},      {"items", items},
    {"join", join},       {"last", last},        {"list", to_list},
    {"map", map},         {"reject", reject_by}, {"rejectattr", rejectattr},
    {"reverse", reverse}, {"select", select_by}, {"selectattr", selectattr},
    {"slice", slice},     {"sum", sum},          {NULL, NULL},
};

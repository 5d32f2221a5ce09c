#include "src/jinja/methods.h"

#include "src/base/error.h"
#include "src/jinja/operate.h"

#define METHOD(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_value *self,                           \
                    const struct ot_jinja_call *call, struct ot_jinja_value *out)

int ot_jinja_changes(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                     const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    (void)call;
    (void)out;
    return ot_jinja_fail(heap, "a method would change %s", ot_jinja_kind_name(object));
}

/* ---- dict ---- */

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

static int need_none(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call) {
    static const char *const parameters[] = {NULL};
    struct ot_jinja_value none[1];
    return ot_jinja_bind(heap, call, "a method of a dict or list", parameters, 0, none);
}

METHOD(dict_keys) {
    OT_TRY(need_none(heap, call));
    return make_view(heap, self->as.dict, KEYS, out);
}

METHOD(dict_values) {
    OT_TRY(need_none(heap, call));
    return make_view(heap, self->as.dict, VALUES, out);
}

METHOD(dict_items) {
    OT_TRY(need_none(heap, call));
    return make_view(heap, self->as.dict, ITEMS, out);
}

METHOD(dict_get) {
    static const char *const parameters[] = {"key", "default", NULL};
    struct ot_jinja_value v[2];
    OT_TRY(ot_jinja_bind(heap, call, "get()", parameters, 1, v));
    if (call->n_named > 0)
        return ot_jinja_fail(heap, "get() takes no arguments with names");
    if (v[0].kind == OT_JINJA_LIST || v[0].kind == OT_JINJA_DICT)
        return ot_jinja_fail(heap, "%s cannot be a key of a dict", ot_jinja_kind_name(&v[0]));
    const struct ot_jinja_value *found = ot_jinja_find(heap, self->as.dict, &v[0]);
    *out = found ? *found : v[1].kind != OT_JINJA_ABSENT ? v[1] : ot_jinja_none();
    return 0;
}

METHOD(copy) {
    OT_TRY(need_none(heap, call));
    *out = *self; /* nothing can change it */
    return 0;
}

static const struct ot_jinja_method_row dict_methods[] = {
    {"clear", ot_jinja_changes},
    {"copy", copy},
    {"fromkeys", NULL},
    {"get", dict_get},
    {"items", dict_items},
    {"keys", dict_keys},
    {"pop", ot_jinja_changes},
    {"popitem", ot_jinja_changes},
    {"setdefault", ot_jinja_changes},
    {"update", ot_jinja_changes},
    {"values", dict_values},
    {NULL, NULL},
};

/* ---- list and tuple ---- */

METHOD(list_count) {
    static const char *const parameters[] = {"value", NULL};
    struct ot_jinja_value v;
    int64_t n = 0;
    OT_TRY(ot_jinja_bind(heap, call, "count()", parameters, 1, &v));
    OT_TRY(ot_jinja_step(heap, self->as.list->n));
    for (size_t i = 0; i < self->as.list->n; i++)
        n += ot_jinja_equal(heap, &self->as.list->items[i], &v);
    *out = ot_jinja_int(n);
    return 0;
}

METHOD(list_index) {
    static const char *const parameters[] = {"value", NULL};
    struct ot_jinja_value v;
    OT_TRY(ot_jinja_bind(heap, call, "index()", parameters, 1, &v));
    OT_TRY(ot_jinja_step(heap, self->as.list->n));
    for (size_t i = 0; i < self->as.list->n; i++)
        if (ot_jinja_equal(heap, &self->as.list->items[i], &v)) {
            *out = ot_jinja_int((int64_t)i);
            return 0;
        }
    return ot_jinja_fail(heap, "index() does not find the item");
}

static const struct ot_jinja_method_row list_methods[] = {
    {"append", ot_jinja_changes},  {"clear", ot_jinja_changes},  {"copy", copy},
    {"count", list_count},         {"extend", ot_jinja_changes}, {"index", list_index},
    {"insert", ot_jinja_changes},  {"pop", ot_jinja_changes},    {"remove", ot_jinja_changes},
    {"reverse", ot_jinja_changes}, {"sort", ot_jinja_changes},   {NULL, NULL},
};
static const struct ot_jinja_method_row tuple_methods[] = {
    {"count", list_count}, {"index", list_index}, {NULL, NULL}};

/* ---- cycler ---- */

METHOD(cycler_next) {
    struct ot_jinja_cycler *cycler = self->as.cycler;
    OT_TRY(need_none(heap, call));
    *out = cycler->items->items[cycler->at];
    cycler->at = (cycler->at + 1) % cycler->items->n;
    return 0;
}

METHOD(cycler_reset) {
    OT_TRY(need_none(heap, call));
    self->as.cycler->at = 0;
    *out = ot_jinja_none();
    return 0;
}

static const struct ot_jinja_method_row cycler_methods[] = {
    {"next", cycler_next}, {"reset", cycler_reset}, {NULL, NULL}};

const struct ot_jinja_method_row *ot_jinja_methods(enum ot_jinja_kind kind) {
    switch (kind) {
    case OT_JINJA_STRING:
        return ot_jinja_string_methods;
    case OT_JINJA_DICT:
        return dict_methods;
    case OT_JINJA_LIST:
        return list_methods;
    case OT_JINJA_TUPLE:
    case OT_JINJA_RANGE:
        return tuple_methods;
    case OT_JINJA_CYCLER:
        return cycler_methods;
    default:
        return NULL;
    }
}

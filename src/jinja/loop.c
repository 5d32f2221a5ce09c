#include "src/jinja/loop.h"

#include <string.h>

#include "src/base/error.h"

static int fetch(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop, struct ot_jinja_value *item) {
    for (;;) {
        int more = ot_jinja_read(heap, &loop->reader, item);
        if (more <= 0 || !loop->accepts)
            return more;
        int accepted = loop->accepts(loop->context, item);
        if (accepted != 0)
            return accepted;
    }
}

static int peek(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop) {
    if (loop->peeked)
        return 0;
    int more = fetch(heap, loop, &loop->next);
    OT_TRY(more);
    loop->peeked = true;
    loop->has_next = more > 0;
    return 0;
}

int ot_jinja_loop_next(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop) {
    OT_TRY(peek(heap, loop));
    if (!loop->has_next)
        return 0;
    loop->previous = loop->current;
    loop->current = loop->next;
    loop->peeked = false;
    loop->count++;
    return 1;
}

/* The number of items that are left. With a condition, the rest is read and kept. */
static int count_left(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop, size_t *left) {
    if (loop->accepts) {
        struct ot_jinja_list *rest;
        struct ot_jinja_value item;
        int more;
        OT_TRY(ot_jinja_new_list(heap, 0, &rest));
        while ((more = fetch(heap, loop, &item)) > 0)
            OT_TRY(ot_jinja_add(heap, rest, item));
        OT_TRY(more);
        loop->accepts = NULL;
        loop->reader = (struct ot_jinja_reader){.source = ot_jinja_of_list(OT_JINJA_LIST, rest)};
    }
    *left = ot_jinja_left(&loop->reader) + (loop->peeked && loop->has_next);
    return 0;
}

static int cycle(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                 const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    if (call->n == 0)
        return ot_jinja_fail(heap, "loop.cycle() needs items");
    *out = call->args[(object->as.loop->count - 1) % call->n];
    return 0;
}

static int changed(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                   const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    struct ot_jinja_loop *loop = object->as.loop;
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_new_list(heap, call->n, &list));
    for (size_t i = 0; i < call->n; i++)
        list->items[list->n++] = call->args[i];
    struct ot_jinja_value now = ot_jinja_of_list(OT_JINJA_TUPLE, list);
    *out = ot_jinja_bool(loop->seen.kind == OT_JINJA_ABSENT || !ot_jinja_equal(heap, &loop->seen, &now));
    loop->seen = now;
    return 0;
}

static const struct ot_jinja_method_row methods[] = {{"cycle", cycle}, {"changed", changed}};

static int bind_method(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop,
                       const struct ot_jinja_method_row *row, struct ot_jinja_value *out) {
    struct ot_jinja_method *method = ot_jinja_alloc(heap, 1, sizeof *method);
    if (!method)
        return heap->error;
    method->object = (struct ot_jinja_value){.kind = OT_JINJA_LOOP, .as.loop = loop};
    method->row = row;
    *out = (struct ot_jinja_value){.kind = OT_JINJA_METHOD, .as.method = method};
    return 0;
}

/* Attributes that look at the next item. */
static int look_ahead(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop, const char *name,
                      struct ot_jinja_value *out) {
    size_t left = 0;
    bool peeks = strcmp(name, "last") == 0 || strcmp(name, "nextitem") == 0;
    OT_TRY(peeks ? peek(heap, loop) : count_left(heap, loop, &left));
    if (strcmp(name, "last") == 0)
        *out = ot_jinja_bool(!loop->has_next);
    else if (peeks)
        *out = loop->has_next ? loop->next : ot_jinja_undefined(NULL);
    else if (strcmp(name, "length") == 0)
        *out = ot_jinja_int((int64_t)(loop->count + left));
    else
        *out = ot_jinja_int((int64_t)left + (strcmp(name, "revindex") == 0));
    return 0;
}

int ot_jinja_loop_attribute(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop,
                            const struct ot_jinja_string *name, bool *found, struct ot_jinja_value *out) {
    static const char *const names[] = {"index",  "index0",   "first",     "previtem", "depth",
                                        "depth0", "cycle",    "changed",   "last",     "nextitem",
                                        "length", "revindex", "revindex0", NULL};
    const char *const *known = names;
    while (*known && (strlen(*known) != name->bytes || memcmp(*known, name->text, name->bytes) != 0))
        known++;
    *found = *known != NULL;
    switch (known - names) {
    case 0:
    case 1:
        *out = ot_jinja_int((int64_t)loop->count - (known - names));
        return 0;
    case 2:
        *out = ot_jinja_bool(loop->count == 1);
        return 0;
    case 3:
        *out = loop->count > 1 ? loop->previous : ot_jinja_undefined(NULL);
        return 0;
    case 4:
    case 5: /* only recursive loops are deeper */
        *out = ot_jinja_int(5 - (known - names));
        return 0;
    case 6:
    case 7:
        return bind_method(heap, loop, &methods[known - names - 6], out);
    default:
        return *found ? look_ahead(heap, loop, *known, out) : 0;
    }
}

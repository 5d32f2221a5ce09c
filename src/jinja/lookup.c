/* Attributes, items and slices of values; loops. */
#include "src/jinja/operate.h"

#include <stdio.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/methods.h"

/* ---- loops ---- */

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
        struct ot_jinja_list *found;
        struct ot_jinja_value item;
        int more;
        OT_TRY(ot_jinja_new_list(heap, 0, &found));
        while ((more = fetch(heap, loop, &item)) > 0)
            OT_TRY(ot_jinja_add(heap, found, item));
        OT_TRY(more);
        loop->accepts = NULL;
        loop->reader = (struct ot_jinja_reader){.source = ot_jinja_of_list(OT_JINJA_LIST, found)};
    }
    *left = ot_jinja_left(&loop->reader) + (loop->peeked && loop->has_next);
    return 0;
}

/* Attributes of the variable `loop`. */
static int loop_attribute(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop,
                          const struct ot_jinja_string *name, bool *found, struct ot_jinja_value *out) {
    static const char *const unsupported[] = {"cycle", "changed", "depth", "depth0"};
    size_t left = 0;
    bool index = ot_jinja_is(name, "index"), last = ot_jinja_is(name, "last");
    bool length = ot_jinja_is(name, "length"), from_end = ot_jinja_is(name, "revindex");
    *found = true;
    if (index || ot_jinja_is(name, "index0")) {
        *out = ot_jinja_int((int64_t)loop->count - !index);
    } else if (ot_jinja_is(name, "first")) {
        *out = ot_jinja_bool(loop->count == 1);
    } else if (ot_jinja_is(name, "previtem")) {
        *out = loop->count > 1 ? loop->previous : ot_jinja_undefined(NULL);
    } else if (last || ot_jinja_is(name, "nextitem")) {
        OT_TRY(peek(heap, loop));
        *out = last ? ot_jinja_bool(!loop->has_next) : loop->has_next ? loop->next : ot_jinja_undefined(NULL);
    } else if (length || from_end || ot_jinja_is(name, "revindex0")) {
        OT_TRY(count_left(heap, loop, &left));
        *out = ot_jinja_int((int64_t)(left + (length ? loop->count : from_end)));
    } else {
        *found = false;
        for (size_t i = 0; i < sizeof unsupported / sizeof *unsupported; i++)
            if (ot_jinja_is(name, unsupported[i]))
                return ot_jinja_unsupported(heap, "loop.%s", unsupported[i]);
    }
    return 0;
}

/* ---- attributes ---- */

/* Undefined, with a name that says why. */
static int refuse_change(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                         const struct ot_jinja_string *name, struct ot_jinja_value *out) {
    char why[120];
    snprintf(why, sizeof why, "%.*s (which would change %s)", (int)name->bytes, name->text,
             ot_jinja_kind_name(object));
    OT_TRY(ot_jinja_text(heap, why, out));
    *out = ot_jinja_undefined(out->as.string);
    return 0;
}

/* *found: true if the value has such a method. */
static int find_method(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                       const struct ot_jinja_string *name, bool *found, struct ot_jinja_value *out) {
    const struct ot_jinja_method_row *row = ot_jinja_methods(object->kind);
    *found = false;
    while (row && row->names && !ot_jinja_is_among(name, row->names))
        row++;
    if (!row || !row->names)
        return 0;
    *found = true;
    if (row->run == ot_jinja_changes)
        return refuse_change(heap, object, name, out);
    struct ot_jinja_method *method = ot_jinja_alloc(heap, 1, sizeof *method);
    if (!method)
        return heap->error;
    method->object = *object;
    method->name = name;
    method->row = row;
    *out = (struct ot_jinja_value){.kind = OT_JINJA_METHOD, .as.method = method};
    return 0;
}

static bool find_key(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                     const struct ot_jinja_value *key, struct ot_jinja_value *out) {
    struct ot_jinja_value *value = NULL;
    if (object->kind == OT_JINJA_DICT)
        value = ot_jinja_find(heap, object->as.dict, key);
    if (value)
        *out = *value;
    return value != NULL;
}

/* Attributes that are no methods: of namespaces and loops. */
static int find_field(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                      const struct ot_jinja_string *name, bool *found, struct ot_jinja_value *out) {
    *found = false;
    if (object->kind == OT_JINJA_LOOP)
        return loop_attribute(heap, object->as.loop, name, found, out);
    if (object->kind == OT_JINJA_NAMESPACE) {
        const struct ot_jinja_value *value = ot_jinja_find_text(object->as.dict, name->text, name->bytes);
        *found = value != NULL;
        if (value)
            *out = *value;
        return 0;
    }
    return find_method(heap, object, name, found, out);
}

int ot_jinja_attribute(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                       const struct ot_jinja_string *name, struct ot_jinja_value *out) {
    struct ot_jinja_value key = {.kind = OT_JINJA_STRING, .as.string = name};
    bool found;
    OT_TRY(ot_jinja_need_defined(heap, object));
    OT_TRY(find_field(heap, object, name, &found, out));
    if (found || find_key(heap, object, &key, out))
        return 0;
    *out = ot_jinja_undefined(name);
    return 0;
}

/* ---- items ---- */

static bool has_items(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_LIST || v->kind == OT_JINJA_TUPLE || v->kind == OT_JINJA_RANGE;
}

static int char_at(struct ot_jinja_heap *heap, const struct ot_jinja_string *string, size_t index,
                   struct ot_jinja_value *out) {
    size_t at = index;
    OT_TRY(ot_jinja_step(heap, string->bytes == string->chars ? 1 : index >> 6));
    if (string->bytes != string->chars) {
        at = 0;
        for (size_t n = 0; at < string->bytes; at++) {
            bool first = ((unsigned char)string->text[at] & 0xc0) != 0x80;
            if (first && n++ == index)
                break;
        }
    }
    size_t end = at + 1;
    while (end < string->bytes && ((unsigned char)string->text[end] & 0xc0) == 0x80)
        end++;
    return ot_jinja_string(heap, string->text + at, end - at, false, out);
}

/* *found: true if the index is inside. */
static int find_index(struct ot_jinja_heap *heap, const struct ot_jinja_value *object, int64_t index,
                      bool *found, struct ot_jinja_value *out) {
    bool text = object->kind == OT_JINJA_STRING;
    int64_t n = text ? (int64_t)object->as.string->chars : (int64_t)object->as.list->n;
    index = index < 0 ? index + n : index;
    *found = index >= 0 && index < n;
    if (!*found)
        return 0;
    if (text)
        return char_at(heap, object->as.string, (size_t)index, out);
    *out = object->as.list->items[index];
    return 0;
}

int ot_jinja_item(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                  const struct ot_jinja_value *key, struct ot_jinja_value *out) {
    bool found = false;
    OT_TRY(ot_jinja_need_defined(heap, object));
    if (find_key(heap, object, key, out))
        return 0;
    if ((has_items(object) || object->kind == OT_JINJA_STRING) && ot_jinja_is_int(key))
        OT_TRY(find_index(heap, object, ot_jinja_to_int(key), &found, out));
    else if (key->kind == OT_JINJA_STRING)
        OT_TRY(find_field(heap, object, key->as.string, &found, out));
    if (!found)
        *out = ot_jinja_undefined(key->kind == OT_JINJA_STRING ? key->as.string : NULL);
    return 0;
}

/* ---- slices ---- */

struct bounds {
    int64_t begin, step;
    size_t n; /* number of items */
};

static int take_bound(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v, int64_t fallback,
                      int64_t length, int64_t low, int64_t high, int64_t *out) {
    *out = fallback;
    if (v->kind == OT_JINJA_ABSENT || v->kind == OT_JINJA_NONE)
        return 0;
    OT_TRY(ot_jinja_need_defined(heap, v));
    if (!ot_jinja_is_int(v))
        return ot_jinja_fail(heap, "a bound of a slice must be an integer, not %s", ot_jinja_kind_name(v));
    int64_t index = ot_jinja_to_int(v);
    index = index < 0 ? (index < -length ? -1 : index + length) : index;
    *out = index < low ? low : ot_min(high, index);
    return 0;
}

static int find_bounds(const struct ot_jinja_heap *heap, int64_t length, const struct ot_jinja_value *begin,
                       const struct ot_jinja_value *end, const struct ot_jinja_value *step,
                       struct bounds *out) {
    int64_t stop;
    out->step = 1;
    if (step->kind != OT_JINJA_ABSENT && step->kind != OT_JINJA_NONE) {
        OT_TRY(ot_jinja_need_defined(heap, step));
        if (!ot_jinja_is_int(step))
            return ot_jinja_fail(heap, "the step of a slice must be an integer");
        out->step = ot_jinja_to_int(step);
    }
    if (out->step == 0)
        return ot_jinja_fail(heap, "the step of a slice is zero");
    if (out->step < -length - 1) /* the first item alone; avoids overflow below */
        out->step = -length - 1;
    if (out->step > length + 1)
        out->step = length + 1;
    bool back = out->step < 0;
    int64_t low = back ? -1 : 0, high = back ? length - 1 : length;
    OT_TRY(take_bound(heap, begin, back ? high : low, length, low, high, &out->begin));
    OT_TRY(take_bound(heap, end, back ? low : high, length, low, high, &stop));
    int64_t span = back ? out->begin - stop : stop - out->begin, size = back ? -out->step : out->step;
    out->n = span > 0 ? (size_t)((span + size - 1) / size) : 0;
    return 0;
}

static int slice_list(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                      const struct bounds *bounds, struct ot_jinja_value *out) {
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_new_list(heap, bounds->n, &list));
    for (size_t i = 0; i < bounds->n; i++)
        list->items[i] = object->as.list->items[bounds->begin + (int64_t)i * bounds->step];
    list->n = bounds->n;
    *out = ot_jinja_of_list(object->kind, list); /* a part of a range has no label */
    return 0;
}

/* offsets[i]: where character i begins. */
static int find_chars(struct ot_jinja_heap *heap, const struct ot_jinja_string *string, uint32_t **offsets) {
    size_t n = 0;
    *offsets = ot_jinja_alloc(heap, string->chars + 1, sizeof **offsets);
    if (!*offsets)
        return heap->error;
    for (size_t i = 0; i < string->bytes; i++)
        if (((unsigned char)string->text[i] & 0xc0) != 0x80)
            (*offsets)[n++] = (uint32_t)i;
    (*offsets)[n] = (uint32_t)string->bytes;
    return 0;
}

static int slice_string(struct ot_jinja_heap *heap, const struct ot_jinja_string *string,
                        const struct bounds *bounds, struct ot_jinja_value *out) {
    uint32_t *at = NULL;
    size_t n = 0;
    if (string->bytes == string->chars && bounds->step == 1)
        return ot_jinja_string(heap, string->text + bounds->begin, bounds->n, false, out);
    OT_TRY(find_chars(heap, string, &at));
    if (bounds->step == 1)
        return ot_jinja_string(heap, string->text + at[bounds->begin],
                               at[bounds->begin + (int64_t)bounds->n] - at[bounds->begin], false, out);
    char *text = ot_jinja_alloc(heap, string->bytes + 1, 1);
    if (!text)
        return heap->error;
    for (size_t i = 0; i < bounds->n; i++) {
        int64_t k = bounds->begin + (int64_t)i * bounds->step;
        memcpy(text + n, string->text + at[k], at[k + 1] - at[k]);
        n += at[k + 1] - at[k];
    }
    return ot_jinja_string(heap, text, n, false, out);
}

int ot_jinja_slice(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                   const struct ot_jinja_value *begin, const struct ot_jinja_value *end,
                   const struct ot_jinja_value *step, struct ot_jinja_value *out) {
    struct bounds bounds = {0};
    OT_TRY(ot_jinja_need_defined(heap, object));
    if (!has_items(object) && object->kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "%s cannot be sliced", ot_jinja_kind_name(object));
    bool text = object->kind == OT_JINJA_STRING;
    size_t length = text ? object->as.string->chars : object->as.list->n;
    OT_TRY(find_bounds(heap, (int64_t)length, begin, end, step, &bounds));
    return text ? slice_string(heap, object->as.string, &bounds, out)
                : slice_list(heap, object, &bounds, out);
}

/* ---- paths ---- */

static bool is_number(const char *text, size_t n, int64_t *out) {
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || i > 9)
            return false;
        *out = 10 * *out + text[i] - '0';
    }
    return n > 0;
}

int ot_jinja_path(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                  const struct ot_jinja_value *path, struct ot_jinja_value *out) {
    *out = *object;
    if (path->kind == OT_JINJA_ABSENT || path->kind == OT_JINJA_NONE)
        return 0;
    if (path->kind != OT_JINJA_STRING)
        return ot_jinja_item(heap, object, path, out);
    const char *text = path->as.string->text, *end = text + path->as.string->bytes;
    for (;;) {
        const char *point = memchr(text, '.', (size_t)(end - text));
        size_t n = (size_t)((point ? point : end) - text);
        struct ot_jinja_value key, item;
        int64_t index;
        if (is_number(text, n, &index))
            key = ot_jinja_int(index);
        else
            OT_TRY(ot_jinja_string(heap, text, n, false, &key));
        OT_TRY(ot_jinja_item(heap, out, &key, &item));
        *out = item;
        if (!point)
            return 0;
        text = point + 1;
    }
}

/* The methods of str that split a text, and str.format with fields such as {}, {0}, {name}, {x!r}; no format
 * specification. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/methods.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"
#include "src/tokenizer/text.h"

static int add_part(struct ot_jinja_heap *heap, struct ot_jinja_list *list, const char *text, size_t bytes) {
    struct ot_jinja_value part;
    OT_TRY(ot_jinja_step(heap, 1));
    OT_TRY(ot_jinja_string(heap, text, bytes, false, &part));
    return ot_jinja_add(heap, list, part);
}

static void reverse(struct ot_jinja_list *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        struct ot_jinja_value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

/* ---- split ---- */

static int split_from_left(struct ot_jinja_heap *heap, const struct ot_jinja_string *s,
                           const struct ot_jinja_string *separator, int64_t most,
                           struct ot_jinja_list *list) {
    size_t at = 0, found;
    while (most-- != 0 && (found = ot_jinja_search(s, separator, at)) != SIZE_MAX) {
        OT_TRY(add_part(heap, list, s->text + at, found - at));
        at = found + separator->bytes;
    }
    return add_part(heap, list, s->text + at, s->bytes - at);
}

static int split_from_right(struct ot_jinja_heap *heap, const struct ot_jinja_string *s,
                            const struct ot_jinja_string *separator, int64_t most,
                            struct ot_jinja_list *list) {
    size_t end = s->bytes, at = end;
    while (most != 0 && at >= separator->bytes) {
        at -= separator->bytes;
        if (memcmp(s->text + at, separator->text, separator->bytes) != 0) {
            at += separator->bytes - 1;
            continue;
        }
        OT_TRY(add_part(heap, list, s->text + at + separator->bytes, end - at - separator->bytes));
        end = at;
        most--;
    }
    OT_TRY(add_part(heap, list, s->text, end));
    reverse(list);
    return 0;
}

static size_t skip_spaces(const struct ot_jinja_string *s, size_t at, bool skip_others) {
    size_t n;
    while (at < s->bytes) {
        n = ot_jinja_space_at(s->text + at, s->bytes - at);
        if ((n > 0) == skip_others)
            break;
        if (n == 0)
            ot_utf8_decode(s->text + at, &n);
        at += n;
    }
    return at;
}

static int split_words(struct ot_jinja_heap *heap, const struct ot_jinja_string *s, int64_t most,
                       struct ot_jinja_list *list) {
    size_t at = skip_spaces(s, 0, false);
    while (at < s->bytes) {
        size_t end = skip_spaces(s, at, true);
        if (most-- == 0) /* the rest, with the white space at its end */
            return add_part(heap, list, s->text + at, s->bytes - at);
        OT_TRY(add_part(heap, list, s->text + at, end - at));
        at = skip_spaces(s, end, false);
    }
    return 0;
}

static int split(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                 const struct ot_jinja_call *call, bool right, struct ot_jinja_value *out) {
    struct ot_jinja_value v[2];
    const struct ot_jinja_string *separator = NULL, *s = object->as.string;
    struct ot_jinja_list *list;
    int64_t most = -1;
    OT_TRY(ot_jinja_bind(heap, call, right ? "rsplit()" : "split()", "sep maxsplit", 0, v));
    if (v[0].kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_text(heap, &v[0], "the separator of split()", &separator));
    OT_TRY(ot_jinja_take_int(heap, &v[1], "the second argument of split()", &most));
    if (separator && separator->bytes == 0)
        return ot_jinja_fail(heap, "the separator of split() is empty");
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    OT_TRY(ot_jinja_new_list(heap, 0, &list));
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    if (separator)
        return (right ? split_from_right : split_from_left)(heap, s, separator, most, list);
    if (right)
        return ot_jinja_unsupported(heap, "rsplit() without a separator");
    return split_words(heap, s, most, list);
}

int ot_jinja_split(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                   const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    return split(heap, object, call, false, out);
}

int ot_jinja_rsplit(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    return split(heap, object, call, true, out);
}

/* ---- lines ---- */

/* Length of the line end at text[at]; 0: none. */
static size_t line_end(const struct ot_jinja_string *s, size_t at) {
    size_t n;
    uint32_t c = ot_utf8_decode(s->text + at, &n);
    if (c == '\r' && at + 1 < s->bytes && s->text[at + 1] == '\n')
        return 2;
    return (c >= '\n' && c <= '\r') || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029
               ? n
               : 0;
}

int ot_jinja_split_lines(struct ot_jinja_heap *heap, const struct ot_jinja_string *s, bool keep_ends,
                         struct ot_jinja_list **out) {
    size_t begin = 0;
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    OT_TRY(ot_jinja_new_list(heap, 0, out));
    for (size_t at = 0, n; at < s->bytes;) {
        size_t end = line_end(s, at);
        if (end == 0) {
            ot_utf8_decode(s->text + at, &n);
            at += n;
            continue;
        }
        OT_TRY(add_part(heap, *out, s->text + begin, at - begin + (keep_ends ? end : 0)));
        begin = at += end;
    }
    return begin < s->bytes ? add_part(heap, *out, s->text + begin, s->bytes - begin) : 0;
}

int ot_jinja_splitlines(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                        const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    struct ot_jinja_value keep;
    struct ot_jinja_list *list;
    OT_TRY(ot_jinja_bind(heap, call, "splitlines()", "keepends", 0, &keep));
    OT_TRY(ot_jinja_split_lines(heap, object->as.string, ot_jinja_take_flag(&keep, false), &list));
    *out = ot_jinja_of_list(OT_JINJA_LIST, list);
    return 0;
}

/* ---- format ---- */

struct format {
    struct ot_jinja_heap *heap;
    const struct ot_jinja_call *call;
    size_t next; /* of the fields without a name */
    struct ot_string_builder out;
};

static int find_value(struct format *f, const char *name, size_t n, struct ot_jinja_value *out) {
    const struct ot_jinja_call *call = f->call;
    size_t index = n > 0 ? 0 : f->next++;
    bool number = true;
    for (size_t i = 0; i < n; i++) {
        number = number && name[i] >= '0' && name[i] <= '9' && i < 6;
        index = 10 * index + (size_t)(name[i] - '0');
    }
    if (number && index < call->n) {
        *out = call->args[index];
        return 0;
    }
    for (size_t i = 0; !number && i < call->n_named; i++)
        if (call->names[i].as.string->bytes == n && memcmp(call->names[i].as.string->text, name, n) == 0) {
            *out = call->named[i];
            return 0;
        }
    return ot_jinja_fail(f->heap, "format() has no value for {%.*s}", (int)ot_min(n, 60), name);
}

static int put_field(struct format *f, const char *field, size_t n) {
    struct ot_jinja_value v;
    const char *mark = memchr(field, '!', n);
    size_t name = mark ? (size_t)(mark - field) : n;
    bool repr = mark && n - name == 2 && mark[1] == 'r', text = mark && n - name == 2 && mark[1] == 's';
    if (memchr(field, ':', n) || memchr(field, '.', n) || memchr(field, '[', n) || (mark && !repr && !text))
        return ot_jinja_fail(
            f->heap,
            "the field {%.*s} of format() is not supported in chat templates; supported: {} {0} {name} !r !s",
            (int)ot_min(n, 60), field);
    OT_TRY(find_value(f, field, name, &v));
    return repr ? ot_jinja_print_repr(f->heap, &v, &f->out) : ot_jinja_print(f->heap, &v, &f->out);
}

/* Writes the text up to a brace, and the field or brace that it begins. Returns the number of bytes. */
static int put_part(struct format *f, const char *text, size_t n, size_t *used) {
    size_t at = 0;
    while (at < n && text[at] != '{' && text[at] != '}')
        at++;
    ot_string_append(&f->out, text, at);
    *used = at;
    if (at == n)
        return 0;
    if (at + 1 < n && text[at + 1] == text[at]) {
        ot_string_append(&f->out, text + at, 1);
        *used = at + 2;
        return 0;
    }
    const char *end = text[at] == '{' ? memchr(text + at, '}', n - at) : NULL;
    if (!end)
        return ot_jinja_fail(f->heap, "a single brace in format()");
    *used = (size_t)(end - text) + 1;
    return put_field(f, text + at + 1, *used - at - 2);
}

int ot_jinja_format(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    struct format f = {.heap = heap, .call = call};
    const struct ot_jinja_string *s = object->as.string;
    for (size_t at = 0, used; at < s->bytes; at += used) {
        int rc = put_part(&f, s->text + at, s->bytes - at, &used);
        if (rc < 0) {
            free(f.out.text);
            return rc;
        }
    }
    return ot_jinja_take(heap, &f.out, out);
}

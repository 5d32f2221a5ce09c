/* str.format with fields such as {}, {0}, {name}, {x[key]} and {x!r}; no format specification. */
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/methods.h"
#include "src/jinja/print.h"

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
        return ot_jinja_unsupported(f->heap,
                                    "the field {%.*s} of format(); supported: {}, {0}, {name}, !r and !s",
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

int ot_jinja_format_braces(struct ot_jinja_heap *heap, const struct ot_jinja_value *object,
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

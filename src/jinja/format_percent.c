/* Python's "text" % values. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"

enum { MOST_WIDTH = 200 };

struct format {
    struct ot_jinja_heap *heap;
    const struct ot_jinja_value *values;
    size_t at; /* values used */
    struct ot_string_builder out;
};

struct field {
    bool left, zero, plus;
    int width, precision; /* precision -1: none */
    char kind;
};

static int next_value(struct format *f, const struct ot_jinja_value **out) {
    bool tuple = f->values->kind == OT_JINJA_TUPLE;
    size_t n = tuple ? f->values->as.list->n : 1;
    if (f->at >= n)
        return ot_jinja_fail(f->heap, "a format has more fields than values");
    *out = tuple ? &f->values->as.list->items[f->at] : f->values;
    f->at++;
    return 0;
}

static void pad(struct format *f, int n, char with) {
    for (; n > 0; n--)
        ot_string_append(&f->out, &with, 1);
}

static void put_padded(struct format *f, const struct field *field, const char *text, size_t bytes) {
    size_t chars = ot_jinja_count_chars(text, bytes);
    int missing = chars < (size_t)field->width ? field->width - (int)chars : 0;
    if (!field->left)
        pad(f, missing, ' ');
    ot_string_append(&f->out, text, bytes);
    if (field->left)
        pad(f, missing, ' ');
}

static int put_text(struct format *f, const struct field *field, const struct ot_jinja_value *v) {
    struct ot_string_builder text = {0};
    struct ot_jinja_value string;
    int rc = field->kind == 'r' ? ot_jinja_print_repr(f->heap, v, &text) : ot_jinja_print(f->heap, v, &text);
    if (rc < 0) {
        free(text.text);
        return rc;
    }
    OT_TRY(ot_jinja_take(f->heap, &text, &string));
    size_t n = string.as.string->bytes;
    for (size_t i = 0, chars = 0; field->precision >= 0 && i < n; i++) {
        chars += ((unsigned char)string.as.string->text[i] & 0xc0) != 0x80;
        if (chars > (size_t)field->precision)
            n = i;
    }
    put_padded(f, field, string.as.string->text, n);
    return 0;
}

static int put_number(struct format *f, const struct field *field, const struct ot_jinja_value *v) {
    char spec[32], text[2 * MOST_WIDTH + 400];
    bool real = strchr("fFeEgG", field->kind) != NULL;
    OT_TRY(ot_jinja_need_defined(f->heap, v));
    if (!ot_jinja_is_number(v))
        return ot_jinja_fail(f->heap, "%%%c needs a number, not %s", field->kind, ot_jinja_kind_name(v));
    snprintf(spec, sizeof spec, "%%%s%s%s*.*%s%c", field->left ? "-" : "", field->zero ? "0" : "",
             field->plus ? "+" : "", real ? "" : "ll", field->kind);
    int precision = field->precision < 0 && real ? 6 : field->precision;
    double as_real = ot_jinja_to_real(v);
    if (!real && v->kind == OT_JINJA_REAL && !(as_real > -9e18 && as_real < 9e18))
        return ot_jinja_unsupported(f->heap, "an integer of more than 64 bits");
    if (real)
        snprintf(text, sizeof text, spec, field->width, precision, as_real);
    else
        snprintf(text, sizeof text, spec, field->width, precision,
                 v->kind == OT_JINJA_REAL ? (long long)as_real : (long long)ot_jinja_to_int(v));
    ot_string_append_text(&f->out, text);
    return 0;
}

static int read_number(struct format *f, const char **c, const char *end, int *out) {
    *out = 0;
    while (*c < end && **c >= '0' && **c <= '9')
        if ((*out = 10 * *out + *(*c)++ - '0') > MOST_WIDTH)
            return ot_jinja_unsupported(f->heap, "a width of more than %d in a format", MOST_WIDTH);
    return 0;
}

/* Parses a field behind its %. */
static int read_field(struct format *f, const char **c, const char *end, struct field *field) {
    for (; *c < end && strchr("-0+", **c) && **c; ++*c) {
        field->left |= **c == '-';
        field->zero |= **c == '0';
        field->plus |= **c == '+';
    }
    OT_TRY(read_number(f, c, end, &field->width));
    if (*c < end && **c == '.') {
        ++*c;
        OT_TRY(read_number(f, c, end, &field->precision));
    }
    if (*c == end)
        return ot_jinja_fail(f->heap, "a format ends inside of a field");
    field->kind = *(*c)++;
    return 0;
}

static int put_field(struct format *f, const char **c, const char *end) {
    struct field field = {.precision = -1};
    const struct ot_jinja_value *v = NULL;
    OT_TRY(read_field(f, c, end, &field));
    if (field.kind == '%') {
        ot_string_append_text(&f->out, "%");
        return 0;
    }
    if (!field.kind || !strchr("srdifFeEgGxXo", field.kind))
        return ot_jinja_unsupported(f->heap,
                                    "the field %%%c of a format; supported: %%s %%r %%d %%i %%f %%e "
                                    "%%g %%x %%o %%%%",
                                    field.kind >= 0x20 && field.kind < 0x7f ? field.kind : '?');
    OT_TRY(next_value(f, &v));
    if (field.kind == 's' || field.kind == 'r')
        return put_text(f, &field, v);
    field.kind = field.kind == 'i' ? 'd' : field.kind;
    return put_number(f, &field, v);
}

int ot_jinja_percent(struct ot_jinja_heap *heap, const struct ot_jinja_string *format,
                     const struct ot_jinja_value *values, struct ot_jinja_value *out) {
    struct format f = {.heap = heap, .values = values};
    const char *c = format->text, *end = c + format->bytes;
    int rc = 0;
    while (c < end) {
        const char *field = memchr(c, '%', (size_t)(end - c));
        ot_string_append(&f.out, c, (size_t)((field ? field : end) - c));
        if (!field)
            break;
        c = field + 1;
        OT_TRY_GOTO(put_field(&f, &c, end), rc, out);
    }
    bool any = values->kind == OT_JINJA_DICT || f.at > 0;
    if ((values->kind == OT_JINJA_TUPLE && f.at < values->as.list->n) ||
        (values->kind != OT_JINJA_TUPLE && !any)) {
        rc = ot_jinja_fail(heap, "a format has fewer fields than values");
        goto out;
    }
    return ot_jinja_take(heap, &f.out, out);
out:
    free(f.out.text);
    return rc;
}

/* Filters of single values: numbers, defaults, lengths. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/jinja/filters.h"
#include "src/jinja/lookup.h"
#include "src/jinja/methods.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"

#define FILTER(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out)

enum { NUMBER_BYTES = 400 };

static int take_value(const struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                      struct ot_jinja_value *out) {
    static const char *const parameters[] = {"value", NULL};
    return ot_jinja_bind(heap, call, what, parameters, 1, out);
}

FILTER(default_value) {
    static const char *const parameters[] = {"value", "default_value", "boolean", NULL};
    struct ot_jinja_value v[3];
    OT_TRY(ot_jinja_bind(heap, call, "default", parameters, 1, v));
    bool use =
        v[0].kind == OT_JINJA_UNDEFINED || (ot_jinja_take_flag(&v[2], false) && !ot_jinja_truth(&v[0]));
    *out = use ? v[1] : v[0];
    return out->kind == OT_JINJA_ABSENT ? ot_jinja_text(heap, "", out) : 0;
}

FILTER(length) {
    struct ot_jinja_value v;
    OT_TRY(take_value(heap, call, "length", &v));
    switch (v.kind) {
    case OT_JINJA_UNDEFINED:
        *out = ot_jinja_int(0);
        return 0;
    case OT_JINJA_STRING:
        *out = ot_jinja_int((int64_t)v.as.string->chars);
        return 0;
    case OT_JINJA_DICT:
        *out = ot_jinja_int((int64_t)v.as.dict->n);
        return 0;
    case OT_JINJA_LIST:
    case OT_JINJA_TUPLE:
    case OT_JINJA_RANGE:
    case OT_JINJA_VIEW:
        *out = ot_jinja_int((int64_t)v.as.list->n);
        return 0;
    default:
        return ot_jinja_fail(heap, "%s has no length", ot_jinja_kind_name(&v));
    }
}

FILTER(attr) {
    static const char *const parameters[] = {"obj", "name", NULL};
    struct ot_jinja_value v[2];
    const struct ot_jinja_string *name = NULL;
    OT_TRY(ot_jinja_bind(heap, call, "attr", parameters, 2, v));
    OT_TRY(ot_jinja_take_text(heap, &v[1], "the name of attr", &name));
    /* Unlike a.name, the keys of a dict are no attributes. */
    if (v[0].kind != OT_JINJA_DICT)
        return ot_jinja_attribute(heap, &v[0], name, out);
    struct ot_jinja_dict empty = {0};
    struct ot_jinja_value bare = {.kind = OT_JINJA_DICT, .as.dict = &empty};
    OT_TRY(ot_jinja_attribute(heap, &bare, name, out));
    return out->kind == OT_JINJA_UNDEFINED ? 0 : ot_jinja_attribute(heap, &v[0], name, out);
}

/* ---- numbers ---- */

/* A string's characters without white space around it and underscores between digits. False: no number. */
static bool clean_number(const struct ot_jinja_string *s, char out[NUMBER_BYTES]) {
    size_t n = 0, begin = 0, end = s->bytes;
    while (begin < end && strchr(" \t\n\r\f\v", s->text[begin]) && s->text[begin])
        begin++;
    while (end > begin && strchr(" \t\n\r\f\v", s->text[end - 1]) && s->text[end - 1])
        end--;
    for (size_t i = begin; i < end; i++) {
        char c = s->text[i];
        if (c == '_' && i > begin && i + 1 < end && s->text[i - 1] != '_')
            continue;
        if (n + 1 == NUMBER_BYTES || !c || c == '_' || (c & 0x80))
            return false;
        out[n++] = c;
    }
    out[n] = '\0';
    return n > 0;
}

static bool read_real(const struct ot_jinja_string *s, double *out) {
    char text[NUMBER_BYTES], *end;
    if (!clean_number(s, text) || strpbrk(text, "xXpP("))
        return false;
    *out = strtod(text, &end);
    return *end == '\0';
}

/* int(text, base) of Python. Returns 1, 0 (no integer), or an error. */
static int read_int(const struct ot_jinja_heap *heap, const struct ot_jinja_string *s, int64_t base,
                    int64_t *out) {
    char text[NUMBER_BYTES], *end;
    static const char letters[] = "xob";
    static const int bases[] = {16, 8, 2};
    if ((base != 0 && base < 2) || base > 36)
        return ot_jinja_fail(heap, "the base of int is from 2 to 36");
    if (!clean_number(s, text))
        return 0;
    char *digits = text + (*text == '-' || *text == '+');
    for (int i = 0; i < 3; i++)
        if (digits[0] == '0' && (digits[1] | 0x20) == letters[i] && (base == bases[i] || base == 0)) {
            base = bases[i];
            memmove(digits, digits + 2, strlen(digits + 2) + 1);
        }
    if (base == 0)
        base = 10;
    char first = *digits;
    if (!((first >= '0' && first <= '9') || ((first | 0x20) >= 'a' && (first | 0x20) <= 'z')))
        return 0;
    errno = 0;
    *out = strtoll(text, &end, (int)base);
    if (*end)
        return 0;
    return errno == ERANGE ? ot_jinja_unsupported(heap, "an integer of more than 64 bits") : 1;
}

static int real_to_int(const struct ot_jinja_heap *heap, double real, struct ot_jinja_value *out) {
    if (!(real > -9223372036854775808.0 && real < 9223372036854775808.0))
        return ot_jinja_unsupported(heap, "an integer of more than 64 bits");
    *out = ot_jinja_int((int64_t)real);
    return 0;
}

FILTER(to_int) {
    static const char *const parameters[] = {"value", "default", "base", NULL};
    struct ot_jinja_value v[3];
    int64_t base = 10, integer = 0;
    double real;
    OT_TRY(ot_jinja_bind(heap, call, "int", parameters, 1, v));
    OT_TRY(ot_jinja_need_defined(heap, &v[0]));
    OT_TRY(ot_jinja_take_int(heap, &v[2], "the base of int", &base));
    *out = v[1].kind == OT_JINJA_ABSENT ? ot_jinja_int(0) : v[1];
    if (ot_jinja_is_int(&v[0])) {
        *out = ot_jinja_int(ot_jinja_to_int(&v[0]));
        return 0;
    }
    if (v[0].kind == OT_JINJA_STRING) {
        int rc = read_int(heap, v[0].as.string, base, &integer);
        if (rc > 0)
            *out = ot_jinja_int(integer);
        if (rc != 0)
            return rc < 0 ? rc : 0;
        if (!read_real(v[0].as.string, &real) || !isfinite(real))
            return 0;
        return real_to_int(heap, real, out);
    }
    if (v[0].kind != OT_JINJA_REAL || isnan(v[0].as.real))
        return 0;
    if (isinf(v[0].as.real)) /* Python raises OverflowError here, then catches it */
        return 0;
    return real_to_int(heap, v[0].as.real, out);
}

FILTER(to_float) {
    static const char *const parameters[] = {"value", "default", NULL};
    struct ot_jinja_value v[2];
    double real;
    OT_TRY(ot_jinja_bind(heap, call, "float", parameters, 1, v));
    OT_TRY(ot_jinja_need_defined(heap, &v[0]));
    *out = v[1].kind == OT_JINJA_ABSENT ? ot_jinja_real(0) : v[1];
    if (ot_jinja_is_number(&v[0]))
        *out = ot_jinja_real(ot_jinja_to_real(&v[0]));
    else if (v[0].kind == OT_JINJA_STRING && read_real(v[0].as.string, &real))
        *out = ot_jinja_real(real);
    return 0;
}

FILTER(absolute) {
    struct ot_jinja_value v;
    OT_TRY(take_value(heap, call, "abs", &v));
    OT_TRY(ot_jinja_need_defined(heap, &v));
    if (v.kind == OT_JINJA_REAL) {
        *out = ot_jinja_real(fabs(v.as.real));
        return 0;
    }
    if (!ot_jinja_is_int(&v))
        return ot_jinja_fail(heap, "abs needs a number, not %s", ot_jinja_kind_name(&v));
    *out = ot_jinja_int(ot_jinja_to_int(&v));
    return out->as.integer < 0 ? ot_jinja_sign(heap, '-', &v, out) : 0;
}

/* Python's round(): exact decimal rounding, halves to even. printf rounds the exact binary value the same
 * way. */
static double round_common(double value, int64_t digits) {
    char text[NUMBER_BYTES];
    if (!isfinite(value) || digits > 300)
        return value;
    if (digits < 0) {
        double scale = pow(10, (double)-digits);
        return digits < -300 ? copysign(0.0, value) : nearbyint(value / scale) * scale;
    }
    if (fabs(value) >= 1e16)
        return value;
    snprintf(text, sizeof text, "%.*f", (int)digits, value);
    return strtod(text, NULL);
}

FILTER(round_number) {
    static const char *const parameters[] = {"value", "precision", "method", NULL};
    struct ot_jinja_value v[3];
    int64_t digits = 0;
    OT_TRY(ot_jinja_bind(heap, call, "round", parameters, 1, v));
    OT_TRY(ot_jinja_need_defined(heap, &v[0]));
    OT_TRY(ot_jinja_take_int(heap, &v[1], "the precision of round", &digits));
    bool common = v[2].kind == OT_JINJA_ABSENT || ot_jinja_is_text(&v[2], "common");
    bool up = ot_jinja_is_text(&v[2], "ceil");
    if (!common && !up && !ot_jinja_is_text(&v[2], "floor"))
        return ot_jinja_fail(heap, "the method of round is common, ceil or floor");
    if (!ot_jinja_is_number(&v[0]))
        return ot_jinja_fail(heap, "round needs a number, not %s", ot_jinja_kind_name(&v[0]));
    if (common && ot_jinja_is_int(&v[0]) && digits >= 0) {
        *out = ot_jinja_int(ot_jinja_to_int(&v[0]));
        return 0;
    }
    double value = ot_jinja_to_real(&v[0]), scale = pow(10, (double)digits);
    if (common && ot_jinja_is_int(&v[0]))
        return real_to_int(heap, round_common(value, digits), out);
    *out = ot_jinja_real(common ? round_common(value, digits)
                         : up   ? ceil(value * scale) / scale
                                : floor(value * scale) / scale);
    return 0;
}

const struct ot_jinja_function ot_jinja_value_filters[] = {
    {"abs", absolute},          {"attr", attr},      {"count", length}, {"d", default_value},
    {"default", default_value}, {"float", to_float}, {"int", to_int},   {"length", length},
    {"round", round_number},    {NULL, NULL},
};

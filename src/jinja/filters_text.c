/* Filters that make a text, a number or a default of a value. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/call.h"
#include "src/jinja/jinja.h"
#include "src/jinja/methods.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"
#include "src/tokenizer/text.h"

#define FILTER(name)                                                                                         \
    static int name(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, struct ot_jinja_value *out)

enum { NUMBER_BYTES = 400 };

/* ---- texts ---- */

/* Takes the filter's value, its only argument, as a string. */
static int take_string(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, const char *what,
                       struct ot_jinja_value *out) {
    struct ot_jinja_value v;
    OT_TRY(ot_jinja_take_value(heap, call, what, &v));
    return ot_jinja_to_string(heap, &v, out);
}

static int change_case(struct ot_jinja_heap *heap, const struct ot_jinja_call *call, enum ot_jinja_case to,
                       struct ot_jinja_value *out) {
    struct ot_jinja_value text;
    struct ot_string_builder b = {0};
    OT_TRY(take_string(heap, call, "a filter that changes case", &text));
    OT_TRY(ot_jinja_step(heap, text.as.string->bytes >> 4));
    ot_jinja_change_case(text.as.string->text, text.as.string->bytes, to, &b);
    return ot_jinja_take(heap, &b, out);
}

FILTER(lower) {
    return change_case(heap, call, OT_JINJA_LOWER, out);
}

FILTER(upper) {
    return change_case(heap, call, OT_JINJA_UPPER, out);
}

FILTER(capitalize) {
    return change_case(heap, call, OT_JINJA_CAPITAL, out);
}

/* jinja2's words begin after white space, hyphens and opening brackets. */
static bool ends_word(const char *text, size_t n) {
    return ot_jinja_space_at(text, n) > 0 || strchr("-({[<", *text);
}

FILTER(title) {
    struct ot_jinja_value text;
    struct ot_string_builder b = {0};
    OT_TRY(take_string(heap, call, "title", &text));
    const struct ot_jinja_string *s = text.as.string;
    OT_TRY(ot_jinja_step(heap, s->bytes >> 4));
    for (size_t at = 0, end, n; at < s->bytes; at = end) {
        bool border = s->text[at] && ends_word(s->text + at, s->bytes - at);
        for (end = at; end < s->bytes; end += n) {
            if ((s->text[end] && ends_word(s->text + end, s->bytes - end)) != border)
                break;
            ot_utf8_decode(s->text + end, &n);
        }
        if (border)
            ot_string_append(&b, s->text + at, end - at);
        else
            ot_jinja_change_case(s->text + at, end - at, OT_JINJA_CAPITAL, &b);
    }
    return ot_jinja_take(heap, &b, out);
}

FILTER(trim) {
    struct ot_jinja_value v[2], text;
    const struct ot_jinja_string *chars = NULL;
    OT_TRY(ot_jinja_bind(heap, call, "trim", "value chars", 1, v));
    OT_TRY(ot_jinja_to_string(heap, &v[0], &text));
    if (v[1].kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_text(heap, &v[1], "the argument of trim", &chars));
    return ot_jinja_strip(heap, text.as.string, chars, OT_JINJA_STRIP_BOTH, out);
}

FILTER(replace) {
    struct ot_jinja_value v[4], text[3];
    int64_t most = -1;
    OT_TRY(ot_jinja_bind(heap, call, "replace", "s old new count", 3, v));
    for (int i = 0; i < 3; i++)
        OT_TRY(ot_jinja_to_string(heap, &v[i], &text[i]));
    if (v[3].kind != OT_JINJA_NONE)
        OT_TRY(ot_jinja_take_int(heap, &v[3], "the count of replace", &most));
    return ot_jinja_replace(heap, text[0].as.string, text[1].as.string, text[2].as.string, most, out);
}

FILTER(string) {
    return take_string(heap, call, "string", out);
}

FILTER(safe) {
    OT_TRY(take_string(heap, call, "safe", out));
    out->safe = true;
    return 0;
}

FILTER(escape) {
    struct ot_jinja_value text;
    struct ot_string_builder b = {0};
    OT_TRY(take_string(heap, call, "e", &text));
    *out = text;
    if (text.safe)
        return 0;
    ot_jinja_escape(text.as.string, &b);
    OT_TRY(ot_jinja_take(heap, &b, out));
    out->safe = true;
    return 0;
}

/* ---- indent ---- */

/* The text of one level: a string is itself, a number counts spaces. width: if v is ABSENT. */
static int take_spaces(struct ot_jinja_heap *heap, const struct ot_jinja_value *v, const char *what,
                       int64_t width, int64_t most, struct ot_jinja_value *out) {
    *out = *v;
    if (v->kind == OT_JINJA_STRING)
        return 0;
    OT_TRY(ot_jinja_take_int(heap, v, what, &width));
    size_t n = (size_t)ot_max(ot_min(width, most), 0);
    char *text = ot_jinja_alloc(heap, n, 1);
    if (!text)
        return heap->error;
    memset(text, ' ', n);
    return ot_jinja_string(heap, text, n, false, out);
}

struct indent {
    const char *text;
    size_t bytes;
    bool first, blank;
};

static void indent_lines(const struct ot_jinja_list *lines, const struct indent *indent,
                         struct ot_string_builder *b) {
    for (size_t i = 0; i < lines->n; i++) {
        const struct ot_jinja_string *line = lines->items[i].as.string;
        bool indents = i == 0 ? indent->first : indent->blank || line->bytes > 0;
        if (i > 0)
            ot_string_append_text(b, "\n");
        if (indents)
            ot_string_append(b, indent->text, indent->bytes);
        ot_string_append(b, line->text, line->bytes);
    }
}

FILTER(indent) {
    struct ot_jinja_value v[4], spaces, text;
    struct ot_jinja_list *lines;
    struct ot_string_builder b = {0};
    OT_TRY(ot_jinja_bind(heap, call, "indent", "s width first blank", 1, v));
    OT_TRY(ot_jinja_need_defined(heap, &v[0]));
    if (v[0].kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "indent needs a string, not %s", ot_jinja_kind_name(&v[0]));
    OT_TRY(take_spaces(heap, &v[1], "the width of indent", 4, INT64_MAX, &spaces));
    /* A line end that is added first makes an empty last line count. */
    ot_string_append(&b, v[0].as.string->text, v[0].as.string->bytes);
    ot_string_append_text(&b, "\n");
    OT_TRY(ot_jinja_take(heap, &b, &text));
    OT_TRY(ot_jinja_split_lines(heap, text.as.string, false, &lines));
    if (lines->n * spaces.as.string->bytes > OT_JINJA_MOST_OUTPUT)
        return ot_jinja_fail(heap, "indent makes a text too long");
    struct indent indent = {spaces.as.string->text, spaces.as.string->bytes, ot_jinja_take_flag(&v[2], false),
                            ot_jinja_take_flag(&v[3], false)};
    indent_lines(lines, &indent, &b);
    return ot_jinja_take(heap, &b, out);
}

/* ---- tojson ---- */

static int take_separators(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                           struct ot_jinja_dump *dump) {
    OT_TRY(ot_jinja_text(heap, dump->indent ? "," : ", ", &dump->item_separator));
    OT_TRY(ot_jinja_text(heap, ": ", &dump->key_separator));
    if (v->kind == OT_JINJA_ABSENT || v->kind == OT_JINJA_NONE)
        return 0;
    const struct ot_jinja_list *pair = v->as.list;
    if ((v->kind != OT_JINJA_TUPLE && v->kind != OT_JINJA_LIST) || pair->n != 2 ||
        pair->items[0].kind != OT_JINJA_STRING || pair->items[1].kind != OT_JINJA_STRING)
        return ot_jinja_fail(heap, "the separators of tojson must be two strings");
    dump->item_separator = pair->items[0];
    dump->key_separator = pair->items[1];
    return 0;
}

FILTER(tojson) {
    struct ot_jinja_value v[5], spaces;
    struct ot_jinja_dump dump = {0};
    struct ot_string_builder b = {0};
    OT_TRY(ot_jinja_bind(heap, call, "tojson", "x ensure_ascii indent separators sort_keys", 1, v));
    dump.ascii = ot_jinja_take_flag(&v[1], false);
    dump.sort_keys = ot_jinja_take_flag(&v[4], false);
    if (v[2].kind != OT_JINJA_ABSENT && v[2].kind != OT_JINJA_NONE) {
        OT_TRY(take_spaces(heap, &v[2], "the indent of tojson", 0, 100, &spaces));
        dump.indent = spaces.as.string->text;
        dump.indent_bytes = spaces.as.string->bytes;
    }
    OT_TRY(take_separators(heap, &v[3], &dump));
    int rc = ot_jinja_print_json(heap, &v[0], &dump, &b);
    if (rc == 0)
        return ot_jinja_take(heap, &b, out);
    free(b.text);
    return rc;
}

/* ---- defaults, lengths ---- */

FILTER(default_value) {
    struct ot_jinja_value v[3];
    OT_TRY(ot_jinja_bind(heap, call, "default", "value default_value boolean", 1, v));
    bool use =
        v[0].kind == OT_JINJA_UNDEFINED || (ot_jinja_take_flag(&v[2], false) && !ot_jinja_truth(&v[0]));
    *out = use ? v[1] : v[0];
    return out->kind == OT_JINJA_ABSENT ? ot_jinja_text(heap, "", out) : 0;
}

FILTER(length) {
    struct ot_jinja_value v;
    OT_TRY(ot_jinja_take_value(heap, call, "length", &v));
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

/* int(text) of Python. Returns 1, 0 (no integer), or an error. */
static int read_int(const struct ot_jinja_heap *heap, const struct ot_jinja_string *s, int64_t *out) {
    char text[NUMBER_BYTES], *end;
    if (!clean_number(s, text))
        return 0;
    errno = 0;
    *out = strtoll(text, &end, 10);
    if (*end || end == text)
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
    struct ot_jinja_value v[3];
    int64_t integer = 0;
    double real;
    OT_TRY(ot_jinja_bind(heap, call, "int", "value default base", 1, v));
    OT_TRY(ot_jinja_need_defined(heap, &v[0]));
    if (v[2].kind != OT_JINJA_ABSENT)
        return ot_jinja_unsupported(heap, "the filter int with a base");
    *out = v[1].kind == OT_JINJA_ABSENT ? ot_jinja_int(0) : v[1];
    if (ot_jinja_is_int(&v[0])) {
        *out = ot_jinja_int(ot_jinja_to_int(&v[0]));
        return 0;
    }
    if (v[0].kind == OT_JINJA_STRING) {
        int rc = read_int(heap, v[0].as.string, &integer);
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
    struct ot_jinja_value v[2];
    double real;
    OT_TRY(ot_jinja_bind(heap, call, "float", "value default", 1, v));
    OT_TRY(ot_jinja_need_defined(heap, &v[0]));
    *out = v[1].kind == OT_JINJA_ABSENT ? ot_jinja_real(0) : v[1];
    if (ot_jinja_is_number(&v[0]))
        *out = ot_jinja_real(ot_jinja_to_real(&v[0]));
    else if (v[0].kind == OT_JINJA_STRING && read_real(v[0].as.string, &real))
        *out = ot_jinja_real(real);
    return 0;
}

const struct ot_jinja_function ot_jinja_text_filters[] = {
    {"capitalize", capitalize},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"e", escape},
    {"escape", escape},
    {"float", to_float},
    {"indent", indent},
    {"int", to_int},
    {"length", length},
    {"lower", lower},
    {"replace", replace},
    {"safe", safe},
    {"string", string},
    {"title", title},
    {"tojson", tojson},
    {"trim", trim},
    {"upper", upper},
    {NULL, NULL},
};

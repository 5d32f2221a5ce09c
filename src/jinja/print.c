#include "src/jinja/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/jinja.h"
#include "src/tokenizer/text.h"

enum { MOST_NESTED = 100, REAL_BYTES = 40 };

int ot_jinja_take(struct ot_jinja_heap *heap, struct ot_string_builder *b, struct ot_jinja_value *out) {
    int rc = b->failed ? ot_fail(OT_E_BUDGET, "no memory for the text of a template")
                       : ot_jinja_string(heap, b->text ? b->text : "", b->bytes, true, out);
    free(b->text);
    *b = (struct ot_string_builder){0};
    return rc;
}

static int check_size(const struct ot_jinja_heap *heap, const struct ot_string_builder *b) {
    if (b->bytes <= OT_JINJA_MOST_OUTPUT)
        return 0;
    return ot_jinja_fail(heap, "the text is longer than %d MiB", OT_JINJA_MOST_OUTPUT >> 20);
}

/* ---- scalars ---- */

/* repr() of a float: the shortest text that reads back as the same number. */
static void print_real(double value, char text[REAL_BYTES]) {
    char digits[32];
    int precision = 1;
    if (!isfinite(value)) {
        snprintf(text, REAL_BYTES, "%s", isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
        return;
    }
    do
        snprintf(digits, sizeof digits, "%.*e", precision - 1, value);
    while (strtod(digits, NULL) != value && precision++ < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        int n = (int)(strchr(digits, 'e') - digits);
        snprintf(text, REAL_BYTES, "%.*se%c%02d", n, digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - 1 - exponent;
    snprintf(text, REAL_BYTES, "%.*f", ot_max(decimals, 1), value);
}

/* True for characters that repr() writes as they are. */
static bool is_printable(uint32_t code_point) {
    switch (utf8proc_category((utf8proc_int32_t)code_point)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return false;
    case UTF8PROC_CATEGORY_ZS:
        return code_point == ' ';
    default:
        return true;
    }
}

static void put_repr_char(struct ot_string_builder *out, uint32_t c, const char *text, size_t bytes,
                          char quote) {
    if (c == (uint32_t)quote || c == '\\')
        ot_string_append_format(out, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        ot_string_append_text(out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t");
    else if (is_printable(c))
        ot_string_append(out, text, bytes);
    else if (c < 0x100)
        ot_string_append_format(out, "\\x%02x", c);
    else
        ot_string_append_format(out, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
}

static void put_repr_string(const struct ot_jinja_string *string, struct ot_string_builder *out) {
    bool single = string->bytes > 0 && memchr(string->text, '\'', string->bytes);
    bool twice = string->bytes > 0 && memchr(string->text, '"', string->bytes);
    char quote = single && !twice ? '"' : '\'';
    ot_string_append(out, &quote, 1);
    for (size_t i = 0, n; i < string->bytes; i += n) {
        uint32_t c = ot_utf8_decode(string->text + i, &n);
        put_repr_char(out, c, string->text + i, n, quote);
    }
    ot_string_append(out, &quote, 1);
}

static void put_scalar(const struct ot_jinja_value *v, struct ot_string_builder *out) {
    char real[REAL_BYTES];
    if (v->kind == OT_JINJA_NONE)
        ot_string_append_text(out, "None");
    else if (v->kind == OT_JINJA_BOOL)
        ot_string_append_text(out, v->as.flag ? "True" : "False");
    else if (v->kind == OT_JINJA_INT)
        ot_string_append_format(out, "%lld", (long long)v->as.integer);
    else if (v->kind == OT_JINJA_REAL) {
        print_real(v->as.real, real);
        ot_string_append_text(out, real);
    }
}

/* ---- repr ---- */

static int put_repr(struct ot_jinja_heap *heap, const struct ot_jinja_value *v, struct ot_string_builder *out,
                    int depth);

static int put_repr_list(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                         struct ot_string_builder *out, int depth) {
    const struct ot_jinja_list *list = v->as.list;
    bool tuple = v->kind == OT_JINJA_TUPLE;
    if (v->kind == OT_JINJA_VIEW)
        ot_string_append_format(out, "%s(", list->label);
    ot_string_append_text(out, tuple ? "(" : "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0)
            ot_string_append_text(out, ", ");
        OT_TRY(put_repr(heap, &list->items[i], out, depth - 1));
    }
    ot_string_append_text(out, tuple && list->n == 1 ? ",)" : tuple ? ")" : "]");
    if (v->kind == OT_JINJA_VIEW)
        ot_string_append_text(out, ")");
    return 0;
}

static int put_repr_dict(struct ot_jinja_heap *heap, const struct ot_jinja_dict *dict,
                         struct ot_string_builder *out, int depth) {
    ot_string_append_text(out, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0)
            ot_string_append_text(out, ", ");
        OT_TRY(put_repr(heap, &dict->pairs[i].key, out, depth - 1));
        ot_string_append_text(out, ": ");
        OT_TRY(put_repr(heap, &dict->pairs[i].value, out, depth - 1));
    }
    ot_string_append_text(out, "}");
    return 0;
}

static int put_repr(struct ot_jinja_heap *heap, const struct ot_jinja_value *v, struct ot_string_builder *out,
                    int depth) {
    OT_TRY(ot_jinja_step(heap, 1));
    OT_TRY(check_size(heap, out));
    if (depth == 0)
        return ot_jinja_fail(heap, "a value is nested more than %d deep", MOST_NESTED);
    switch (v->kind) {
    case OT_JINJA_NONE:
    case OT_JINJA_BOOL:
    case OT_JINJA_INT:
    case OT_JINJA_REAL:
        put_scalar(v, out);
        return 0;
    case OT_JINJA_STRING:
        put_repr_string(v->as.string, out);
        return 0;
    case OT_JINJA_LIST:
    case OT_JINJA_TUPLE:
    case OT_JINJA_VIEW:
        return put_repr_list(heap, v, out, depth);
    case OT_JINJA_DICT:
        return put_repr_dict(heap, v->as.dict, out, depth);
    case OT_JINJA_UNDEFINED:
        ot_string_append_text(out, "Undefined");
        return 0;
    default:
        return ot_jinja_unsupported(heap, "the text of %s", ot_jinja_kind_name(v));
    }
}

int ot_jinja_print_repr(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                        struct ot_string_builder *out) {
    return put_repr(heap, v, out, MOST_NESTED);
}

int ot_jinja_print(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                   struct ot_string_builder *out) {
    if (v->kind == OT_JINJA_UNDEFINED)
        return 0;
    if (v->kind != OT_JINJA_STRING)
        return ot_jinja_print_repr(heap, v, out);
    OT_TRY(ot_jinja_step(heap, v->as.string->bytes >> 6));
    ot_string_append(out, v->as.string->text, v->as.string->bytes);
    return check_size(heap, out);
}

int ot_jinja_to_string(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                       struct ot_jinja_value *out) {
    struct ot_string_builder b = {0};
    if (v->kind == OT_JINJA_STRING) {
        *out = *v;
        return 0;
    }
    int rc = ot_jinja_print(heap, v, &b);
    if (rc == 0)
        return ot_jinja_take(heap, &b, out);
    free(b.text);
    return rc;
}

/* ---- JSON ---- */

static int put_json(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                    const struct ot_jinja_dump *dump, struct ot_string_builder *out, int level);

static void put_json_char(struct ot_string_builder *out, uint32_t c, const char *text, size_t bytes,
                          bool ascii) {
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    const char *at = c > 0 && c < 0x80 ? strchr(from, (int)c) : NULL;
    if (at)
        ot_string_append_format(out, "\\%c", to[at - from]);
    else if (c < 0x20)
        ot_string_append_format(out, "\\u%04x", c);
    else if (!ascii || c < 0x7f)
        ot_string_append(out, text, bytes);
    else if (c < 0x10000)
        ot_string_append_format(out, "\\u%04x", c);
    else
        ot_string_append_format(out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                                0xdc00 + ((c - 0x10000) & 0x3ff));
}

static void put_json_string(const struct ot_jinja_string *string, bool ascii, struct ot_string_builder *out) {
    ot_string_append_text(out, "\"");
    for (size_t i = 0, n; i < string->bytes; i += n) {
        uint32_t c = ot_utf8_decode(string->text + i, &n);
        put_json_char(out, c, string->text + i, n, ascii);
    }
    ot_string_append_text(out, "\"");
}

static void put_json_number(const struct ot_jinja_value *v, struct ot_string_builder *out) {
    if (v->kind == OT_JINJA_REAL && !isfinite(v->as.real))
        ot_string_append_text(out, isnan(v->as.real) ? "NaN" : v->as.real > 0 ? "Infinity" : "-Infinity");
    else if (v->kind == OT_JINJA_NONE)
        ot_string_append_text(out, "null");
    else if (v->kind == OT_JINJA_BOOL)
        ot_string_append_text(out, v->as.flag ? "true" : "false");
    else
        put_scalar(v, out);
}

static void put_line(const struct ot_jinja_dump *dump, int level, struct ot_string_builder *out) {
    if (!dump->indent)
        return;
    ot_string_append_text(out, "\n");
    for (int i = 0; i < level; i++)
        ot_string_append(out, dump->indent, dump->indent_bytes);
}

static void put_separator(const struct ot_jinja_value *separator, struct ot_string_builder *out) {
    ot_string_append(out, separator->as.string->text, separator->as.string->bytes);
}

static int put_json_list(struct ot_jinja_heap *heap, const struct ot_jinja_list *list,
                         const struct ot_jinja_dump *dump, struct ot_string_builder *out, int level) {
    ot_string_append_text(out, "[");
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0)
            put_separator(&dump->item_separator, out);
        put_line(dump, level + 1, out);
        OT_TRY(put_json(heap, &list->items[i], dump, out, level + 1));
    }
    if (list->n > 0)
        put_line(dump, level, out);
    ot_string_append_text(out, "]");
    return 0;
}

static int put_json_key(struct ot_jinja_heap *heap, const struct ot_jinja_value *key,
                        const struct ot_jinja_dump *dump, struct ot_string_builder *out) {
    if (key->kind == OT_JINJA_STRING) {
        put_json_string(key->as.string, dump->ascii, out);
        return 0;
    }
    if (!ot_jinja_is_number(key) && key->kind != OT_JINJA_NONE)
        return ot_jinja_fail(heap, "%s cannot be a key in JSON", ot_jinja_kind_name(key));
    ot_string_append_text(out, "\"");
    put_json_number(key, out);
    ot_string_append_text(out, "\"");
    return 0;
}

static int compare_keys(const void *a, const void *b) {
    const struct ot_jinja_string *x = ((const struct ot_jinja_pair *)a)->key.as.string;
    const struct ot_jinja_string *y = ((const struct ot_jinja_pair *)b)->key.as.string;
    size_t n = ot_min(x->bytes, y->bytes);
    int order = n > 0 ? memcmp(x->text, y->text, n) : 0;
    return order ? order : (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* *out: the pairs in the order of their keys. Keys are unique, so the order is too. */
static int sort_pairs(struct ot_jinja_heap *heap, const struct ot_jinja_dict *dict,
                      struct ot_jinja_pair **out) {
    for (size_t i = 0; i < dict->n; i++)
        if (dict->pairs[i].key.kind != OT_JINJA_STRING)
            return ot_jinja_unsupported(heap, "sort_keys=true with a key that is no string");
    struct ot_jinja_pair *pairs = ot_jinja_alloc(heap, dict->n, sizeof *pairs);
    if (!pairs)
        return heap->error;
    if (dict->n > 0) {
        memcpy(pairs, dict->pairs, dict->n * sizeof *pairs);
        qsort(pairs, dict->n, sizeof *pairs, compare_keys);
    }
    *out = pairs;
    return 0;
}

static int put_json_dict(struct ot_jinja_heap *heap, const struct ot_jinja_dict *dict,
                         const struct ot_jinja_dump *dump, struct ot_string_builder *out, int level) {
    struct ot_jinja_pair *pairs = dict->pairs;
    if (dump->sort_keys)
        OT_TRY(sort_pairs(heap, dict, &pairs));
    ot_string_append_text(out, "{");
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0)
            put_separator(&dump->item_separator, out);
        put_line(dump, level + 1, out);
        OT_TRY(put_json_key(heap, &pairs[i].key, dump, out));
        put_separator(&dump->key_separator, out);
        OT_TRY(put_json(heap, &pairs[i].value, dump, out, level + 1));
    }
    if (dict->n > 0)
        put_line(dump, level, out);
    ot_string_append_text(out, "}");
    return 0;
}

static int put_json(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                    const struct ot_jinja_dump *dump, struct ot_string_builder *out, int level) {
    OT_TRY(ot_jinja_step(heap, 1 + (v->kind == OT_JINJA_STRING ? v->as.string->bytes >> 6 : 0)));
    OT_TRY(check_size(heap, out));
    if (level > MOST_NESTED)
        return ot_jinja_fail(heap, "a value is nested more than %d deep", MOST_NESTED);
    switch (v->kind) {
    case OT_JINJA_NONE:
    case OT_JINJA_BOOL:
    case OT_JINJA_INT:
    case OT_JINJA_REAL:
        put_json_number(v, out);
        return 0;
    case OT_JINJA_STRING:
        put_json_string(v->as.string, dump->ascii, out);
        return 0;
    case OT_JINJA_LIST:
    case OT_JINJA_TUPLE:
        return put_json_list(heap, v->as.list, dump, out, level);
    case OT_JINJA_DICT:
        return put_json_dict(heap, v->as.dict, dump, out, level);
    default:
        return ot_jinja_fail(heap, "%s cannot be written as JSON", ot_jinja_kind_name(v));
    }
}

int ot_jinja_print_json(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                        const struct ot_jinja_dump *dump, struct ot_string_builder *out) {
    return put_json(heap, v, dump, out, 0);
}

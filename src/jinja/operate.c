#include "src/jinja/operate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/jinja.h"
#include "src/jinja/node.h"
#include "src/jinja/print.h"

enum { MOST_NESTED = 100 };

int ot_jinja_need_defined(const struct ot_jinja_heap *heap, const struct ot_jinja_value *v) {
    if (v->kind != OT_JINJA_UNDEFINED)
        return 0;
    const struct ot_jinja_string *name = v->as.string;
    if (!name)
        return ot_jinja_fail(heap, "an undefined value is used");
    return ot_jinja_fail(heap, "'%.*s' is undefined", (int)ot_min(name->bytes, 200), name->text);
}

static int too_large(const struct ot_jinja_heap *heap) {
    return ot_jinja_unsupported(heap, "an integer of more than 64 bits");
}

static int does_not_fit(const struct ot_jinja_heap *heap, int op, const struct ot_jinja_value *a,
                        const struct ot_jinja_value *b) {
    const char *name = op == OT_JINJA_OP_POWER ? "**" : op == OT_JINJA_OP_FLOOR ? "//" : NULL;
    char one[2] = {(char)op, '\0'};
    OT_TRY(ot_jinja_need_defined(heap, a));
    OT_TRY(ot_jinja_need_defined(heap, b));
    return ot_jinja_fail(heap, "%s %s %s is not possible", ot_jinja_kind_name(a), name ? name : one,
                         ot_jinja_kind_name(b));
}

/* ---- numbers ---- */

static int64_t floor_div(int64_t a, int64_t b) {
    int64_t q = a / b;
    return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}

static int operate_ints(struct ot_jinja_heap *heap, int op, int64_t a, int64_t b,
                        struct ot_jinja_value *out) {
    int64_t result = 0;
    bool over = false;
    if ((op == '/' || op == '%' || op == OT_JINJA_OP_FLOOR) && b == 0)
        return ot_jinja_fail(heap, "division by zero");
    switch (op) {
    case '+':
        over = __builtin_add_overflow(a, b, &result);
        break;
    case '-':
        over = __builtin_sub_overflow(a, b, &result);
        break;
    case '*':
        over = __builtin_mul_overflow(a, b, &result);
        break;
    case OT_JINJA_OP_FLOOR:
        over = b == -1 && a == INT64_MIN;
        result = over ? 0 : floor_div(a, b);
        break;
    case '%':
        result = b == -1 ? 0 : a - floor_div(a, b) * b;
        break;
    case '/':
        *out = ot_jinja_real((double)a / (double)b);
        return 0;
    default:
        return ot_jinja_unsupported(heap, "the operator **");
    }
    if (over)
        return too_large(heap);
    *out = ot_jinja_int(result);
    return 0;
}

/* Python's remainder has the sign of the divisor. */
static double real_mod(double a, double b) {
    double m = fmod(a, b);
    if (m != 0 && (m < 0) != (b < 0))
        m += b;
    return m != 0 ? m : copysign(0.0, b);
}

static int operate_reals(struct ot_jinja_heap *heap, int op, double a, double b, struct ot_jinja_value *out) {
    double result;
    if ((op == '/' || op == '%' || op == OT_JINJA_OP_FLOOR) && b == 0)
        return ot_jinja_fail(heap, "division by zero");
    switch (op) {
    case '+':
        result = a + b;
        break;
    case '-':
        result = a - b;
        break;
    case '*':
        result = a * b;
        break;
    case '/':
        result = a / b;
        break;
    case '%':
        result = real_mod(a, b);
        break;
    case OT_JINJA_OP_FLOOR:
        result = round((a - real_mod(a, b)) / b);
        break;
    default:
        return ot_jinja_unsupported(heap, "the operator **");
    }
    *out = ot_jinja_real(result);
    return 0;
}

int ot_jinja_sign(struct ot_jinja_heap *heap, int op, const struct ot_jinja_value *a,
                  struct ot_jinja_value *out) {
    OT_TRY(ot_jinja_need_defined(heap, a));
    if (a->kind == OT_JINJA_REAL) {
        *out = ot_jinja_real(op == '-' ? -a->as.real : a->as.real);
        return 0;
    }
    if (!ot_jinja_is_int(a))
        return ot_jinja_fail(heap, "%s has no sign", ot_jinja_kind_name(a));
    if (op == '-' && ot_jinja_to_int(a) == INT64_MIN)
        return too_large(heap);
    *out = ot_jinja_int(op == '-' ? -ot_jinja_to_int(a) : ot_jinja_to_int(a));
    return 0;
}

/* ---- strings and lists ---- */

void ot_jinja_escape(const struct ot_jinja_string *string, struct ot_string_builder *out) {
    static const char from[] = "&<>'\"";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    for (size_t i = 0; i < string->bytes; i++) {
        const char *at = string->text[i] ? strchr(from, string->text[i]) : NULL;
        if (at)
            ot_string_append_text(out, to[at - from]);
        else
            ot_string_append(out, string->text + i, 1);
    }
}

/* Appends a part of a sum. If the other part is safe, an unsafe one is escaped. */
static void append_part(const struct ot_jinja_value *v, bool safe, struct ot_string_builder *out) {
    if (safe && !v->safe)
        ot_jinja_escape(v->as.string, out);
    else
        ot_string_append(out, v->as.string->text, v->as.string->bytes);
}

static int add_strings(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                       const struct ot_jinja_value *b, struct ot_jinja_value *out) {
    struct ot_string_builder sum = {0};
    bool safe = a->safe || b->safe;
    append_part(a, safe, &sum);
    append_part(b, safe, &sum);
    OT_TRY(ot_jinja_take(heap, &sum, out));
    out->safe = safe;
    return 0;
}

static int add_lists(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                     const struct ot_jinja_value *b, struct ot_jinja_value *out) {
    struct ot_jinja_list *list;
    size_t n = a->as.list->n, m = b->as.list->n;
    OT_TRY(ot_jinja_new_list(heap, n + m, &list));
    if (n > 0)
        memcpy(list->items, a->as.list->items, n * sizeof *list->items);
    if (m > 0)
        memcpy(list->items + n, b->as.list->items, m * sizeof *list->items);
    list->n = n + m;
    *out = ot_jinja_of_list(a->kind, list);
    return 0;
}

static int repeat(struct ot_jinja_heap *heap, const struct ot_jinja_value *v, int64_t times,
                  struct ot_jinja_value *out) {
    size_t count = times < 0 ? 0 : (size_t)times, total;
    if (v->kind != OT_JINJA_STRING)
        return ot_jinja_unsupported(heap, "the operator * of %s", ot_jinja_kind_name(v));
    size_t n = v->as.string->bytes;
    if (__builtin_mul_overflow(n, count, &total) || total > OT_JINJA_MOST_OUTPUT)
        return ot_jinja_fail(heap, "the text is longer than %d MiB", OT_JINJA_MOST_OUTPUT >> 20);
    char *text = ot_jinja_alloc(heap, total + 1, 1);
    if (!text)
        return heap->error;
    OT_TRY(ot_jinja_step(heap, total >> 6));
    for (size_t i = 0; n > 0 && i < count; i++)
        memcpy(text + i * n, v->as.string->text, n);
    return ot_jinja_string(heap, text, total, false, out);
}

static bool is_repeatable(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_STRING || v->kind == OT_JINJA_LIST || v->kind == OT_JINJA_TUPLE;
}

int ot_jinja_operate(struct ot_jinja_heap *heap, int op, const struct ot_jinja_value *a,
                     const struct ot_jinja_value *b, struct ot_jinja_value *out) {
    if (ot_jinja_is_int(a) && ot_jinja_is_int(b))
        return operate_ints(heap, op, ot_jinja_to_int(a), ot_jinja_to_int(b), out);
    if (ot_jinja_is_number(a) && ot_jinja_is_number(b))
        return operate_reals(heap, op, ot_jinja_to_real(a), ot_jinja_to_real(b), out);
    if (op == '+' && a->kind == b->kind && a->kind == OT_JINJA_STRING)
        return add_strings(heap, a, b, out);
    if (op == '+' && a->kind == b->kind && (a->kind == OT_JINJA_LIST || a->kind == OT_JINJA_TUPLE))
        return add_lists(heap, a, b, out);
    if (op == '*' && is_repeatable(a) && ot_jinja_is_int(b))
        return repeat(heap, a, ot_jinja_to_int(b), out);
    if (op == '*' && ot_jinja_is_int(a) && is_repeatable(b))
        return repeat(heap, b, ot_jinja_to_int(a), out);
    if (op == '%' && a->kind == OT_JINJA_STRING)
        return ot_jinja_unsupported(heap, "the operator %% of a string");
    return does_not_fit(heap, op, a, b);
}

/* ---- comparisons ---- */

static int order(struct ot_jinja_heap *heap, const struct ot_jinja_value *a, const struct ot_jinja_value *b,
                 int depth, int *out);

static int order_lists(struct ot_jinja_heap *heap, const struct ot_jinja_list *a,
                       const struct ot_jinja_list *b, int depth, int *out) {
    for (size_t i = 0; i < a->n && i < b->n; i++)
        if (!ot_jinja_equal(heap, &a->items[i], &b->items[i]))
            return order(heap, &a->items[i], &b->items[i], depth - 1, out);
    *out = (a->n > b->n) - (a->n < b->n);
    return 0;
}

static int order(struct ot_jinja_heap *heap, const struct ot_jinja_value *a, const struct ot_jinja_value *b,
                 int depth, int *out) {
    OT_TRY(ot_jinja_step(heap, 1));
    if (ot_jinja_is_int(a) && ot_jinja_is_int(b)) {
        int64_t x = ot_jinja_to_int(a), y = ot_jinja_to_int(b);
        *out = (x > y) - (x < y);
        return 0;
    }
    if (ot_jinja_is_number(a) && ot_jinja_is_number(b)) {
        double x = ot_jinja_to_real(a), y = ot_jinja_to_real(b);
        *out = (x > y) - (x < y);
        return 0;
    }
    if (a->kind == b->kind && a->kind == OT_JINJA_STRING) {
        const struct ot_jinja_string *x = a->as.string, *y = b->as.string;
        size_t n = ot_min(x->bytes, y->bytes);
        int first = n > 0 ? memcmp(x->text, y->text, n) : 0;
        *out = first ? first : (x->bytes > y->bytes) - (x->bytes < y->bytes);
        return 0;
    }
    if (depth > 0 && a->kind == b->kind && (a->kind == OT_JINJA_LIST || a->kind == OT_JINJA_TUPLE))
        return order_lists(heap, a->as.list, b->as.list, depth, out);
    return does_not_fit(heap, '<', a, b);
}

int ot_jinja_order(struct ot_jinja_heap *heap, const struct ot_jinja_value *a, const struct ot_jinja_value *b,
                   int *out) {
    return order(heap, a, b, MOST_NESTED, out);
}

size_t ot_jinja_search(const struct ot_jinja_string *text, const struct ot_jinja_string *part, size_t from) {
    if (from > text->bytes)
        return SIZE_MAX;
    if (part->bytes == 0)
        return from;
    const char *at = memmem(text->text + from, text->bytes - from, part->text, part->bytes);
    return at ? (size_t)(at - text->text) : SIZE_MAX;
}

static int contains(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                    const struct ot_jinja_value *b, bool *out) {
    struct ot_jinja_reader reader;
    struct ot_jinja_value item;
    int more;
    *out = false;
    if (b->kind == OT_JINJA_STRING) {
        if (a->kind != OT_JINJA_STRING)
            return ot_jinja_fail(heap, "%s cannot be in a string", ot_jinja_kind_name(a));
        OT_TRY(ot_jinja_step(heap, b->as.string->bytes >> 6));
        *out = ot_jinja_search(b->as.string, a->as.string, 0) != SIZE_MAX;
        return 0;
    }
    if (b->kind == OT_JINJA_DICT) {
        *out = ot_jinja_find(heap, b->as.dict, a) != NULL;
        return 0;
    }
    OT_TRY(ot_jinja_read_begin(heap, b, &reader));
    while (!*out && (more = ot_jinja_read(heap, &reader, &item)) != 0) {
        OT_TRY(more);
        *out = ot_jinja_equal(heap, a, &item);
    }
    return 0;
}

static bool is_nan(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_REAL && isnan(v->as.real);
}

int ot_jinja_compare(struct ot_jinja_heap *heap, int op, const struct ot_jinja_value *a,
                     const struct ot_jinja_value *b, bool *out) {
    int sign;
    switch (op) {
    case OT_JINJA_OP_EQ:
        *out = ot_jinja_equal(heap, a, b);
        return 0;
    case OT_JINJA_OP_NE:
        *out = !ot_jinja_equal(heap, a, b);
        return 0;
    case OT_JINJA_OP_IN:
        return contains(heap, a, b, out);
    case OT_JINJA_OP_NOT_IN:
        OT_TRY(contains(heap, a, b, out));
        *out = !*out;
        return 0;
    default:
        break;
    }
    OT_TRY(ot_jinja_order(heap, a, b, &sign));
    *out = op == '<' ? sign < 0 : op == '>' ? sign > 0 : op == OT_JINJA_OP_LE ? sign <= 0 : sign >= 0;
    if (is_nan(a) || is_nan(b))
        *out = false;
    return 0;
}

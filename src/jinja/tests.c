/* The tests of jinja2: value is NAME. */
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/filters.h"
#include "src/jinja/lexer.h"
#include "src/jinja/node.h"
#include "src/jinja/operate.h"
#include "src/jinja/unicode.h"
#include "src/tokenizer/text.h"

/* ---- tests without an argument ---- */

static bool is_defined(const struct ot_jinja_value *v) {
    return v->kind != OT_JINJA_UNDEFINED;
}
static bool is_undefined(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_UNDEFINED;
}
static bool is_none(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_NONE;
}
static bool is_string(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_STRING;
}
static bool is_integer(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_INT;
}
static bool is_float(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_REAL;
}
static bool is_boolean(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_BOOL;
}
static bool is_true(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_BOOL && v->as.flag;
}
static bool is_false(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_BOOL && !v->as.flag;
}
static bool is_mapping(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_DICT;
}
static bool is_iterable(const struct ot_jinja_value *v) {
    return ot_jinja_is_list(v) || v->kind == OT_JINJA_STRING || v->kind == OT_JINJA_DICT ||
           v->kind == OT_JINJA_UNDEFINED || v->kind == OT_JINJA_LOOP;
}
/* Python's way to find out is len() and []. Undefined has the first, and fails at the second. */
static bool is_sequence(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_STRING || v->kind == OT_JINJA_LIST || v->kind == OT_JINJA_TUPLE ||
           v->kind == OT_JINJA_RANGE || v->kind == OT_JINJA_DICT || v->kind == OT_JINJA_UNDEFINED;
}
static bool is_callable(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_MACRO || v->kind == OT_JINJA_FUNCTION || v->kind == OT_JINJA_METHOD ||
           v->kind == OT_JINJA_JOINER || v->kind == OT_JINJA_UNDEFINED;
}
static bool is_escaped(const struct ot_jinja_value *v) {
    return v->kind == OT_JINJA_STRING && v->safe;
}

static const struct {
    const char *name;
    bool (*is)(const struct ot_jinja_value *v);
} plain[] = {
    {"defined", is_defined},   {"undefined", is_undefined},    {"none", is_none},
    {"string", is_string},     {"number", ot_jinja_is_number}, {"integer", is_integer},
    {"float", is_float},       {"boolean", is_boolean},        {"true", is_true},
    {"false", is_false},       {"mapping", is_mapping},        {"iterable", is_iterable},
    {"sequence", is_sequence}, {"callable", is_callable},      {"escaped", is_escaped},
};

/* ---- tests that may fail, or have an argument ---- */

enum special { ODD, EVEN, LOWER, UPPER, FILTER_NAME, TEST_NAME, DIVISIBLE, SAME };
static const struct {
    const char *name;
    enum special test;
    size_t arguments; /* with the value */
} special[] = {
    {"odd", ODD, 1},
    {"even", EVEN, 1},
    {"lower", LOWER, 1},
    {"upper", UPPER, 1},
    {"filter", FILTER_NAME, 1},
    {"test", TEST_NAME, 1},
    {"divisibleby", DIVISIBLE, 2},
    {"sameas", SAME, 2},
};
static const struct {
    const char *name;
    int op;
} comparisons[] = {
    {"eq", OT_JINJA_OP_EQ},
    {"equalto", OT_JINJA_OP_EQ},
    {"==", OT_JINJA_OP_EQ},
    {"ne", OT_JINJA_OP_NE},
    {"!=", OT_JINJA_OP_NE},
    {"lt", '<'},
    {"lessthan", '<'},
    {"<", '<'},
    {"gt", '>'},
    {"greaterthan", '>'},
    {">", '>'},
    {"le", OT_JINJA_OP_LE},
    {"<=", OT_JINJA_OP_LE},
    {"ge", OT_JINJA_OP_GE},
    {">=", OT_JINJA_OP_GE},
    {"in", OT_JINJA_OP_IN},
};

static bool is_name(const char *known, const struct ot_jinja_string *name) {
    return strlen(known) == name->bytes && memcmp(known, name->text, name->bytes) == 0;
}

static int find_plain(const struct ot_jinja_string *name) {
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
        if (is_name(plain[i].name, name))
            return (int)i;
    return -1;
}

static int find_special(const struct ot_jinja_string *name) {
    for (size_t i = 0; i < sizeof special / sizeof *special; i++)
        if (is_name(special[i].name, name))
            return (int)i;
    return -1;
}

static int find_comparison(const struct ot_jinja_string *name) {
    for (size_t i = 0; i < sizeof comparisons / sizeof *comparisons; i++)
        if (is_name(comparisons[i].name, name))
            return (int)i;
    return -1;
}

bool ot_jinja_has_test(const struct ot_jinja_string *name) {
    return find_plain(name) >= 0 || find_special(name) >= 0 || find_comparison(name) >= 0;
}

static int has_remainder(struct ot_jinja_heap *heap, const struct ot_jinja_value *v,
                         const struct ot_jinja_value *by, int64_t remainder, bool *out) {
    struct ot_jinja_value result, want = ot_jinja_int(remainder);
    if (v->kind == OT_JINJA_STRING)
        return ot_jinja_fail(heap, "a string is neither odd nor even");
    OT_TRY(ot_jinja_operate(heap, '%', v, by, &result));
    *out = ot_jinja_equal(heap, &result, &want);
    return 0;
}

/* str(value).islower(), or isupper(). */
static int has_case(struct ot_jinja_heap *heap, const struct ot_jinja_value *v, bool upper, bool *out) {
    bool any = false, other = false;
    if (v->kind != OT_JINJA_STRING)
        return ot_jinja_unsupported(heap, "the test lower or upper of %s", ot_jinja_kind_name(v));
    for (size_t i = 0, n; i < v->as.string->bytes; i += n) {
        uint32_t c = ot_utf8_decode(v->as.string->text + i, &n);
        any |= upper ? ot_jinja_is_upper(c) : ot_jinja_is_lower(c);
        other |= upper ? ot_jinja_is_lower(c) : ot_jinja_is_upper(c);
    }
    *out = any && !other;
    return 0;
}

/* Python's `is`. Small values are one object in Python if they are equal; others only if they are the same.
 */
static bool is_same(struct ot_jinja_heap *heap, const struct ot_jinja_value *a,
                    const struct ot_jinja_value *b) {
    if (a->kind != b->kind)
        return false;
    if (ot_jinja_is_list(a) || a->kind == OT_JINJA_DICT)
        return a->as.list == b->as.list;
    return ot_jinja_equal(heap, a, b);
}

static int run_special(struct ot_jinja_heap *heap, enum special test, const struct ot_jinja_value v[2],
                       bool *out) {
    struct ot_jinja_value two = ot_jinja_int(2);
    switch (test) {
    case ODD:
    case EVEN:
        return has_remainder(heap, &v[0], &two, test == ODD, out);
    case DIVISIBLE:
        return has_remainder(heap, &v[0], &v[1], 0, out);
    case LOWER:
    case UPPER:
        return has_case(heap, &v[0], test == UPPER, out);
    case SAME:
        *out = is_same(heap, &v[0], &v[1]);
        return 0;
    case FILTER_NAME:
    case TEST_NAME:
        *out = v[0].kind == OT_JINJA_STRING &&
               (test == TEST_NAME ? ot_jinja_has_test : ot_jinja_has_filter)(v[0].as.string);
        return 0;
    }
    return 0;
}

int ot_jinja_test(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                  const struct ot_jinja_call *call, bool *out) {
    static const char *const one[] = {"value", NULL}, *const two[] = {"value", "other", NULL};
    struct ot_jinja_value v[2];
    char what[80];
    int at = find_plain(name), with = find_special(name), compared = find_comparison(name);
    if (at < 0 && with < 0 && compared < 0)
        return ot_jinja_unsupported(
            heap,
            "the test '%.*s'; supported: boolean callable defined divisibleby eq escaped even false filter "
            "float ge gt in integer iterable le lower lt mapping ne none number odd sameas sequence string "
            "test true undefined upper",
            (int)ot_min(name->bytes, 60), name->text);
    size_t n = at >= 0 ? 1 : with >= 0 ? special[with].arguments : 2;
    memcpy(what, "the test ", 9);
    size_t bytes = ot_min(name->bytes, 40);
    memcpy(what + 9, name->text, bytes);
    what[9 + bytes] = '\0';
    OT_TRY(ot_jinja_bind(heap, call, what, n == 1 ? one : two, n, v));
    if (at >= 0) {
        *out = plain[at].is(&v[0]);
        return 0;
    }
    if (with >= 0)
        return run_special(heap, special[with].test, v, out);
    return ot_jinja_compare(heap, comparisons[compared].op, &v[0], &v[1], out);
}

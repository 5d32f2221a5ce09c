/* Finds filters by their name; the tests of jinja2: value is NAME. */
#include <stdio.h>

#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/jinja/call.h"
#include "src/jinja/node.h"
#include "src/jinja/operate.h"

/* ---- filters ---- */

int ot_jinja_filter(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                    const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    const struct ot_jinja_function *const tables[] = {ot_jinja_text_filters, ot_jinja_list_filters};
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        for (const struct ot_jinja_function *f = tables[i]; f->name; f++)
            if (ot_jinja_is(name, f->name))
                return f->run(heap, call, out);
    return ot_jinja_fail(
        heap,
        "the filter '%.*s' is not supported in chat templates; supported: capitalize count default dictsort "
        "e first float indent int items join last length list lower map max min reject rejectattr replace "
        "reverse safe select selectattr sort string title tojson trim unique upper",
        (int)ot_min(name->bytes, 60), name->text);
}

/* ---- tests ---- */

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
static const struct test {
    const char *names; /* separated by spaces */
    bool (*is)(const struct ot_jinja_value *v);
    int op; /* is NULL: compares with the argument; '%': tests the remainder of a division */
    int64_t divisor, remainder; /* divisor 0: the argument */
} tests[] = {
    {"defined", .is = is_defined},
    {"undefined", .is = is_undefined},
    {"none", .is = is_none},
    {"string", .is = is_string},
    {"number", .is = ot_jinja_is_number},
    {"integer", .is = is_integer},
    {"float", .is = is_float},
    {"boolean", .is = is_boolean},
    {"true", .is = is_true},
    {"false", .is = is_false},
    {"mapping", .is = is_mapping},
    {"iterable", .is = is_iterable},
    {"sequence", .is = is_sequence},
    {"odd", .op = '%', .divisor = 2, .remainder = 1},
    {"even", .op = '%', .divisor = 2, .remainder = 0},
    {"divisibleby", .op = '%', .divisor = 0, .remainder = 0},
    {"eq equalto ==", .op = OT_JINJA_OP_EQ},
    {"ne !=", .op = OT_JINJA_OP_NE},
    {"lt lessthan <", .op = '<'},
    {"gt greaterthan >", .op = '>'},
    {"le <=", .op = OT_JINJA_OP_LE},
    {"ge >=", .op = OT_JINJA_OP_GE},
    {"in", .op = OT_JINJA_OP_IN},
    {.names = NULL},
};

static int test_remainder(struct ot_jinja_heap *heap, const struct test *test,
                          const struct ot_jinja_value v[2], bool *out) {
    struct ot_jinja_value result, divisor = test->divisor ? ot_jinja_int(test->divisor) : v[1];
    struct ot_jinja_value remainder = ot_jinja_int(test->remainder);
    OT_TRY(ot_jinja_operate(heap, '%', &v[0], &divisor, &result));
    *out = ot_jinja_equal(heap, &result, &remainder);
    return 0;
}

int ot_jinja_test(struct ot_jinja_heap *heap, const struct ot_jinja_string *name,
                  const struct ot_jinja_call *call, bool *out) {
    struct ot_jinja_value v[2];
    const struct test *test = tests;
    char what[80];
    while (test->names && !ot_jinja_is_among(name, test->names))
        test++;
    if (!test->names)
        return ot_jinja_fail(
            heap,
            "the test '%.*s' is not supported in chat templates; supported: boolean defined divisibleby eq "
            "even false float ge gt in integer iterable le lt mapping ne none number odd sequence string "
            "true undefined",
            (int)ot_min(name->bytes, 60), name->text);
    snprintf(what, sizeof what, "the test %.*s", (int)name->bytes, name->text);
    bool alone = test->is || test->divisor;
    OT_TRY(ot_jinja_bind(heap, call, what, alone ? "value" : "value other", alone ? 1 : 2, v));
    if (test->op == '%')
        return test_remainder(heap, test, v, out);
    if (!test->is)
        return ot_jinja_compare(heap, test->op, &v[0], &v[1], out);
    *out = test->is(&v[0]);
    return 0;
}

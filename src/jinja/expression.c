/* Evaluates expressions. */
#include <stdlib.h>

#include "src/base/error.h"
#include "src/jinja/evaluate.h"
#include "src/jinja/operate.h"
#include "src/jinja/print.h"

/* Levels of calls of ot_jinja_evaluate and ot_jinja_execute. Each takes some hundred bytes of a worker's
 * stack. */
enum { MOST_DEPTH = 500 };

int ot_jinja_descend(struct ot_jinja_run *run) {
    if (run->heap.depth == MOST_DEPTH)
        return ot_jinja_fail(&run->heap, "the template calls itself more than %d levels deep", MOST_DEPTH);
    run->heap.depth++;
    return ot_jinja_step(&run->heap, 1);
}

/* NULL: no scope has the name. */
static const struct ot_jinja_value *find(const struct ot_jinja_scope *scope,
                                         const struct ot_jinja_string *name) {
    for (; scope; scope = scope->parent)
        for (size_t i = 0; i < scope->n; i++)
            if (scope->bindings[i].name == name)
                return &scope->bindings[i].value;
    return NULL;
}

/* Names that jinja2 gives a meaning. */
static bool is_unsupported(const struct ot_jinja_string *name) {
    return ot_jinja_is_among(name, "varargs kwargs joiner cycler lipsum");
}

static int get_name(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_node *node,
                    struct ot_jinja_value *out) {
    const struct ot_jinja_value *value = find(scope, node->name);
    const struct ot_jinja_function *function = value ? NULL : ot_jinja_find_function(node->name);
    if (value)
        *out = *value;
    else if (function)
        *out = (struct ot_jinja_value){.kind = OT_JINJA_FUNCTION, .as.function = function};
    else if (is_unsupported(node->name))
        return ot_jinja_unsupported(&run->heap, "'%.*s'", (int)node->name->bytes, node->name->text);
    else
        *out = ot_jinja_undefined(node->name);
    return 0;
}

/* ---- literals ---- */

static int make_list(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_node *node,
                     struct ot_jinja_value *out) {
    struct ot_jinja_list *list;
    struct ot_jinja_value item;
    OT_TRY(ot_jinja_new_list(&run->heap, 0, &list));
    for (const struct ot_jinja_node *n = node->list; n; n = n->next) {
        OT_TRY(ot_jinja_evaluate(run, scope, n, &item));
        OT_TRY(ot_jinja_add(&run->heap, list, item));
    }
    *out = ot_jinja_of_list(node->kind == OT_JINJA_N_TUPLE ? OT_JINJA_TUPLE : OT_JINJA_LIST, list);
    return 0;
}

static int make_dict(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_node *node,
                     struct ot_jinja_value *out) {
    struct ot_jinja_dict *dict;
    struct ot_jinja_value key, value;
    OT_TRY(ot_jinja_new_dict(&run->heap, &dict));
    for (const struct ot_jinja_node *n = node->list; n; n = n->next) {
        OT_TRY(ot_jinja_evaluate(run, scope, n->a, &key));
        OT_TRY(ot_jinja_evaluate(run, scope, n->b, &value));
        OT_TRY(ot_jinja_put(&run->heap, dict, key, value));
    }
    *out = (struct ot_jinja_value){.kind = OT_JINJA_DICT, .as.dict = dict};
    return 0;
}

/* ---- operators ---- */

static int evaluate_binary(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                           const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value a, b;
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &a));
    OT_TRY(ot_jinja_evaluate(run, scope, node->b, &b));
    run->heap.line = node->line;
    return ot_jinja_operate(&run->heap, node->op, &a, &b, out);
}

static int evaluate_concat(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                           const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_string_builder b = {0};
    struct ot_jinja_value part;
    int rc = 0;
    for (const struct ot_jinja_node *n = node->list; n && rc == 0; n = n->next) {
        rc = ot_jinja_evaluate(run, scope, n, &part);
        if (rc == 0)
            rc = ot_jinja_print(&run->heap, &part, &b);
    }
    if (rc == 0)
        return ot_jinja_take(&run->heap, &b, out);
    free(b.text);
    return rc;
}

/* a < b < c compares neighbours, and stops at the first that fails. */
static int evaluate_compare(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                            const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value left, right;
    bool holds = true;
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &left));
    for (const struct ot_jinja_node *term = node->list; term && holds; term = term->next) {
        OT_TRY(ot_jinja_evaluate(run, scope, term->a, &right));
        run->heap.line = term->line;
        OT_TRY(ot_jinja_compare(&run->heap, term->op, &left, &right, &holds));
        left = right;
    }
    *out = ot_jinja_bool(holds);
    return 0;
}

/* The value of "and" and "or" is the operand that decides. */
static int evaluate_logic(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                          const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    bool stops = node->kind == OT_JINJA_N_OR;
    for (const struct ot_jinja_node *n = node->list; n; n = n->next) {
        OT_TRY(ot_jinja_evaluate(run, scope, n, out));
        if (ot_jinja_truth(out) == stops)
            return 0;
    }
    return 0;
}

static int evaluate_if_else(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                            const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value condition;
    OT_TRY(ot_jinja_evaluate(run, scope, node->b, &condition));
    if (ot_jinja_truth(&condition))
        return ot_jinja_evaluate(run, scope, node->a, out);
    if (node->c)
        return ot_jinja_evaluate(run, scope, node->c, out);
    *out = ot_jinja_undefined(NULL);
    return 0;
}

/* ---- attributes and items ---- */

static int evaluate_bound(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                          const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    *out = (struct ot_jinja_value){0};
    return node ? ot_jinja_evaluate(run, scope, node, out) : 0;
}

static int evaluate_item(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                         const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value object, key, bounds[3];
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &object));
    const struct ot_jinja_node *index = node->b;
    if (index->kind != OT_JINJA_N_SLICE) {
        OT_TRY(ot_jinja_evaluate(run, scope, index, &key));
        run->heap.line = node->line;
        return ot_jinja_item(&run->heap, &object, &key, out);
    }
    OT_TRY(evaluate_bound(run, scope, index->a, &bounds[0]));
    OT_TRY(evaluate_bound(run, scope, index->b, &bounds[1]));
    OT_TRY(evaluate_bound(run, scope, index->c, &bounds[2]));
    run->heap.line = node->line;
    return ot_jinja_slice(&run->heap, &object, &bounds[0], &bounds[1], &bounds[2], out);
}

static int evaluate_attribute(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                              const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value object;
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &object));
    run->heap.line = node->line;
    return ot_jinja_attribute(&run->heap, &object, node->name, out);
}

/* ---- calls, filters, tests ---- */

/* Arguments of a call that is put together. */
struct arguments {
    struct ot_jinja_list *values, *names, *named; /* names: strings */
};

/* Adds the items of *value, or the pairs of **value. */
static int add_star(struct ot_jinja_run *run, const struct ot_jinja_node *node,
                    const struct ot_jinja_value *value, struct arguments *to) {
    struct ot_jinja_list *items;
    if (node->op == '*') {
        OT_TRY(ot_jinja_collect(&run->heap, value, &items));
        for (size_t i = 0; i < items->n; i++)
            OT_TRY(ot_jinja_add(&run->heap, to->values, items->items[i]));
        return 0;
    }
    if (value->kind != OT_JINJA_DICT)
        return ot_jinja_fail(&run->heap, "** needs a dict, not %s", ot_jinja_kind_name(value));
    for (size_t i = 0; i < value->as.dict->n; i++) {
        if (value->as.dict->pairs[i].key.kind != OT_JINJA_STRING)
            return ot_jinja_fail(&run->heap, "** needs keys that are strings");
        OT_TRY(ot_jinja_add(&run->heap, to->names, value->as.dict->pairs[i].key));
        OT_TRY(ot_jinja_add(&run->heap, to->named, value->as.dict->pairs[i].value));
    }
    return 0;
}

static int add_argument(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                        const struct ot_jinja_node *node, struct arguments *to) {
    struct ot_jinja_value value, name = {.kind = OT_JINJA_STRING, .as.string = node->name};
    bool keyword = node->kind == OT_JINJA_N_KEYWORD, star = node->kind == OT_JINJA_N_STAR;
    OT_TRY(ot_jinja_evaluate(run, scope, keyword || star ? node->a : node, &value));
    if (star)
        return add_star(run, node, &value, to);
    if (!keyword)
        return ot_jinja_add(&run->heap, to->values, value);
    OT_TRY(ot_jinja_add(&run->heap, to->names, name));
    return ot_jinja_add(&run->heap, to->named, value);
}

/* Evaluates the arguments of a call. first: put before them; NULL: none. */
static int evaluate_arguments(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                              const struct ot_jinja_node *node, const struct ot_jinja_value *first,
                              struct ot_jinja_call *call) {
    struct arguments to;
    OT_TRY(ot_jinja_new_list(&run->heap, 0, &to.values));
    OT_TRY(ot_jinja_new_list(&run->heap, 0, &to.names));
    OT_TRY(ot_jinja_new_list(&run->heap, 0, &to.named));
    if (first)
        OT_TRY(ot_jinja_add(&run->heap, to.values, *first));
    for (const struct ot_jinja_node *n = node->list; n; n = n->next)
        OT_TRY(add_argument(run, scope, n, &to));
    *call = (struct ot_jinja_call){.args = to.values->items,
                                   .n = to.values->n,
                                   .names = to.names->items,
                                   .named = to.named->items,
                                   .n_named = to.named->n};
    run->heap.line = node->line;
    return 0;
}

static int call_value(struct ot_jinja_run *run, const struct ot_jinja_value *callee,
                      const struct ot_jinja_call *call, struct ot_jinja_value *out) {
    OT_TRY(ot_jinja_need_defined(&run->heap, callee));
    switch (callee->kind) {
    case OT_JINJA_MACRO:
        return ot_jinja_call_macro(run, callee->as.macro, call, out);
    case OT_JINJA_FUNCTION:
        return callee->as.function->run(&run->heap, call, out);
    case OT_JINJA_METHOD:
        if (callee->as.method->row->run)
            return callee->as.method->row->run(&run->heap, &callee->as.method->object, call, out);
        return ot_jinja_unsupported(&run->heap, "the method %.*s() of %s",
                                    (int)callee->as.method->name->bytes, callee->as.method->name->text,
                                    ot_jinja_kind_name(&callee->as.method->object));
    case OT_JINJA_LOOP:
        return ot_jinja_unsupported(&run->heap, "a recursive loop");
    default:
        return ot_jinja_fail(&run->heap, "%s cannot be called", ot_jinja_kind_name(callee));
    }
}

static int evaluate_call(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                         const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value callee;
    struct ot_jinja_call call;
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &callee));
    OT_TRY(evaluate_arguments(run, scope, node, NULL, &call));
    return call_value(run, &callee, &call, out);
}

int ot_jinja_apply_filters(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                           const struct ot_jinja_node *node, const struct ot_jinja_value *input,
                           struct ot_jinja_value *out) {
    struct ot_jinja_value value = *input;
    struct ot_jinja_call call;
    OT_TRY(ot_jinja_descend(run));
    if (node->a)
        OT_TRY(input->kind == OT_JINJA_ABSENT ? ot_jinja_evaluate(run, scope, node->a, &value)
                                              : ot_jinja_apply_filters(run, scope, node->a, input, &value));
    OT_TRY(evaluate_arguments(run, scope, node, &value, &call));
    run->heap.depth--;
    return ot_jinja_filter(&run->heap, node->name, &call, out);
}

static int evaluate_test(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                         const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value value;
    struct ot_jinja_call call;
    bool passes = false;
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &value));
    OT_TRY(evaluate_arguments(run, scope, node, &value, &call));
    OT_TRY(ot_jinja_test(&run->heap, node->name, &call, &passes));
    *out = ot_jinja_bool(passes);
    return 0;
}

static int evaluate_simple(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                           const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    struct ot_jinja_value a;
    if (node->kind == OT_JINJA_N_CONST) {
        *out = node->value;
        return 0;
    }
    if (node->kind == OT_JINJA_N_NAME)
        return get_name(run, scope, node, out);
    OT_TRY(ot_jinja_evaluate(run, scope, node->a, &a));
    run->heap.line = node->line;
    if (node->kind == OT_JINJA_N_SIGN)
        return ot_jinja_sign(&run->heap, node->op, &a, out);
    *out = ot_jinja_bool(!ot_jinja_truth(&a));
    return 0;
}

static int evaluate(struct ot_jinja_run *run, struct ot_jinja_scope *scope, const struct ot_jinja_node *node,
                    struct ot_jinja_value *out) {
    static const struct ot_jinja_value absent;
    switch (node->kind) {
    case OT_JINJA_N_LIST:
    case OT_JINJA_N_TUPLE:
        return make_list(run, scope, node, out);
    case OT_JINJA_N_DICT:
        return make_dict(run, scope, node, out);
    case OT_JINJA_N_BINARY:
        return evaluate_binary(run, scope, node, out);
    case OT_JINJA_N_CONCAT:
        return evaluate_concat(run, scope, node, out);
    case OT_JINJA_N_COMPARE:
        return evaluate_compare(run, scope, node, out);
    case OT_JINJA_N_AND:
    case OT_JINJA_N_OR:
        return evaluate_logic(run, scope, node, out);
    case OT_JINJA_N_IF_ELSE:
        return evaluate_if_else(run, scope, node, out);
    case OT_JINJA_N_ATTRIBUTE:
        return evaluate_attribute(run, scope, node, out);
    case OT_JINJA_N_ITEM:
        return evaluate_item(run, scope, node, out);
    case OT_JINJA_N_CALL:
        return evaluate_call(run, scope, node, out);
    case OT_JINJA_N_FILTER:
        return ot_jinja_apply_filters(run, scope, node, &absent, out);
    case OT_JINJA_N_TEST:
        return evaluate_test(run, scope, node, out);
    default:
        return evaluate_simple(run, scope, node, out);
    }
}

int ot_jinja_evaluate(struct ot_jinja_run *run, struct ot_jinja_scope *scope,
                      const struct ot_jinja_node *node, struct ot_jinja_value *out) {
    OT_TRY(ot_jinja_descend(run));
    run->heap.line = node->line;
    int rc = evaluate(run, scope, node, out);
    run->heap.depth--;
    return rc;
}

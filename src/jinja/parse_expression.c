/* Parses expressions. */
#include <string.h>

#include "src/base/error.h"
#include "src/jinja/parser.h"

/* Parts of one expression. Chains are loops here, but trees when they are evaluated. */
enum { MOST_PARTS = 240, MOST_FILTERS = 60 };

/* Appends to a list of nodes. */
static void append(struct ot_jinja_node ***tail, struct ot_jinja_node *node) {
    **tail = node;
    *tail = &node->next;
}

/* ---- literals and names ---- */

static int parse_items(struct ot_jinja_parser *p, struct ot_jinja_node *list) {
    struct ot_jinja_node **tail = &list->list, *item;
    ot_jinja_advance(p);
    while (!ot_jinja_at_op(p, ']')) {
        if (list->list)
            OT_TRY(ot_jinja_need_op(p, ','));
        if (ot_jinja_at_op(p, ']'))
            break;
        OT_TRY(ot_jinja_parse_expression(p, &item));
        append(&tail, item);
    }
    return ot_jinja_need_op(p, ']');
}

static int parse_pairs(struct ot_jinja_parser *p, struct ot_jinja_node *dict) {
    struct ot_jinja_node **tail = &dict->list, *pair;
    ot_jinja_advance(p);
    while (!ot_jinja_at_op(p, '}')) {
        if (dict->list)
            OT_TRY(ot_jinja_need_op(p, ','));
        if (ot_jinja_at_op(p, '}'))
            break;
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_PAIR, &pair));
        OT_TRY(ot_jinja_parse_expression(p, &pair->a));
        OT_TRY(ot_jinja_need_op(p, ':'));
        OT_TRY(ot_jinja_parse_expression(p, &pair->b));
        append(&tail, pair);
    }
    return ot_jinja_need_op(p, '}');
}

static int parse_strings(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    size_t bytes = 0, n = 0;
    const struct ot_jinja_token *t;
    for (t = p->token; t->kind == OT_JINJA_T_STRING; t++)
        bytes += t->value.as.string->bytes;
    char *text = ot_jinja_alloc(p->heap, bytes + 1, 1);
    if (!text)
        return p->heap->error;
    for (; p->token->kind == OT_JINJA_T_STRING; ot_jinja_advance(p)) {
        const struct ot_jinja_string *part = p->token->value.as.string;
        if (part->bytes > 0)
            memcpy(text + n, part->text, part->bytes);
        n += part->bytes;
    }
    return ot_jinja_string(p->heap, text, bytes, false, &node->value);
}

static bool is_constant(const struct ot_jinja_token *t, struct ot_jinja_value *value) {
    static const struct {
        const char *name;
        enum ot_jinja_kind kind;
        bool flag;
    } constants[] = {{"true", OT_JINJA_BOOL, true},   {"True", OT_JINJA_BOOL, true},
                     {"false", OT_JINJA_BOOL, false}, {"False", OT_JINJA_BOOL, false},
                     {"none", OT_JINJA_NONE, false},  {"None", OT_JINJA_NONE, false}};
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (strlen(constants[i].name) == t->bytes && memcmp(constants[i].name, t->text, t->bytes) == 0) {
            *value = constants[i].kind == OT_JINJA_BOOL ? ot_jinja_bool(constants[i].flag) : ot_jinja_none();
            return true;
        }
    return false;
}

static int parse_name(struct ot_jinja_parser *p, struct ot_jinja_node *node) {
    if (is_constant(p->token, &node->value)) {
        ot_jinja_advance(p);
        return 0;
    }
    node->kind = OT_JINJA_N_NAME;
    return ot_jinja_need_name(p, &node->name);
}

static int parse_primary(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    if (ot_jinja_skip_op(p, '(')) {
        if (ot_jinja_at_op(p, ')'))
            OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_TUPLE, out));
        else
            OT_TRY(ot_jinja_parse_tuple(p, NULL, out));
        return ot_jinja_need_op(p, ')');
    }
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_CONST, out));
    switch (p->token->kind) {
    case OT_JINJA_T_NAME:
        return parse_name(p, *out);
    case OT_JINJA_T_STRING:
        return parse_strings(p, *out);
    case OT_JINJA_T_INT:
    case OT_JINJA_T_REAL:
        (*out)->value = p->token->value;
        ot_jinja_advance(p);
        return 0;
    default:
        break;
    }
    (*out)->kind = ot_jinja_at_op(p, '[') ? OT_JINJA_N_LIST : OT_JINJA_N_DICT;
    if (ot_jinja_at_op(p, '['))
        return parse_items(p, *out);
    return ot_jinja_at_op(p, '{') ? parse_pairs(p, *out) : ot_jinja_unexpected(p, "an expression");
}

/* ---- attributes, items, calls ---- */

/* One part of a slice; absent before a colon and at the end. */
static int parse_bound(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    if (ot_jinja_at_op(p, ':') || ot_jinja_at_op(p, ']') || ot_jinja_at_op(p, ','))
        return 0;
    return ot_jinja_parse_expression(p, out);
}

static int parse_index(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    struct ot_jinja_node *slice;
    if (!ot_jinja_at_op(p, ':')) {
        OT_TRY(ot_jinja_parse_expression(p, out));
        if (!ot_jinja_at_op(p, ':'))
            return 0;
    }
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_SLICE, &slice));
    slice->a = *out;
    *out = slice;
    ot_jinja_advance(p);
    OT_TRY(parse_bound(p, &slice->b));
    return ot_jinja_skip_op(p, ':') ? parse_bound(p, &slice->c) : 0;
}

static int parse_subscript(struct ot_jinja_parser *p, struct ot_jinja_node *a, struct ot_jinja_node **out) {
    struct ot_jinja_node *node;
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_ITEM, &node));
    node->a = a;
    *out = node;
    if (ot_jinja_skip_op(p, '[')) {
        OT_TRY(parse_index(p, &node->b));
        return ot_jinja_need_op(p, ']');
    }
    ot_jinja_advance(p);
    if (p->token->kind == OT_JINJA_T_INT) {
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_CONST, &node->b));
        node->b->value = p->token->value;
        ot_jinja_advance(p);
        return 0;
    }
    node->kind = OT_JINJA_N_ATTRIBUTE;
    return ot_jinja_need_name(p, &node->name);
}

static int parse_argument(struct ot_jinja_parser *p, bool *keywords, struct ot_jinja_node **out) {
    if (ot_jinja_at_op(p, '*') || ot_jinja_at_op(p, OT_JINJA_OP_POWER)) {
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_STAR, out));
        (*out)->op = p->token->op;
        ot_jinja_advance(p);
        *keywords = true;
        return ot_jinja_parse_expression(p, &(*out)->a);
    }
    if (p->token->kind == OT_JINJA_T_NAME && p->token[1].kind == OT_JINJA_T_OPERATOR &&
        p->token[1].op == '=') {
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_KEYWORD, out));
        OT_TRY(ot_jinja_need_name(p, &(*out)->name));
        ot_jinja_advance(p);
        *keywords = true;
        return ot_jinja_parse_expression(p, &(*out)->a);
    }
    if (*keywords)
        return ot_jinja_fail(p->heap, "an argument without a name follows one with a name");
    return ot_jinja_parse_expression(p, out);
}

static int parse_arguments(struct ot_jinja_parser *p, struct ot_jinja_node **list) {
    struct ot_jinja_node **tail = list, *argument;
    bool keywords = false;
    OT_TRY(ot_jinja_need_op(p, '('));
    while (!ot_jinja_at_op(p, ')')) {
        if (*list)
            OT_TRY(ot_jinja_need_op(p, ','));
        if (ot_jinja_at_op(p, ')'))
            break;
        OT_TRY(parse_argument(p, &keywords, &argument));
        append(&tail, argument);
    }
    return ot_jinja_need_op(p, ')');
}

static int parse_call(struct ot_jinja_parser *p, struct ot_jinja_node *a, struct ot_jinja_node **out) {
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_CALL, out));
    (*out)->a = a;
    return parse_arguments(p, &(*out)->list);
}

static int parse_postfix(struct ot_jinja_parser *p, struct ot_jinja_node **node) {
    for (int n = 0;; n++) {
        if (n > MOST_PARTS)
            return ot_jinja_fail(p->heap, "an expression has more than %d parts", MOST_PARTS);
        if (ot_jinja_at_op(p, '.') || ot_jinja_at_op(p, '['))
            OT_TRY(parse_subscript(p, *node, node));
        else if (ot_jinja_at_op(p, '('))
            OT_TRY(parse_call(p, *node, node));
        else
            return 0;
    }
}

/* ---- filters and tests ---- */

static int parse_dotted(struct ot_jinja_parser *p, const struct ot_jinja_string **name) {
    OT_TRY(ot_jinja_need_name(p, name));
    return ot_jinja_at_op(p, '.') ? ot_jinja_unsupported(p->heap, "a filter or test with a point in its name")
                                  : 0;
}

int ot_jinja_parse_filters(struct ot_jinja_parser *p, struct ot_jinja_node *a, bool first,
                           struct ot_jinja_node **out) {
    struct ot_jinja_node *node;
    *out = a;
    for (int n = 0; first || ot_jinja_skip_op(p, '|'); first = false) {
        if (n++ > MOST_FILTERS)
            return ot_jinja_fail(p->heap, "an expression has more than %d filters", MOST_FILTERS);
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_FILTER, &node));
        node->a = *out;
        *out = node;
        OT_TRY(parse_dotted(p, &node->name));
        if (ot_jinja_at_op(p, '('))
            OT_TRY(parse_arguments(p, &node->list));
    }
    return 0;
}

static bool begins_test_argument(const struct ot_jinja_parser *p) {
    if (p->token->kind == OT_JINJA_T_NAME)
        return !ot_jinja_at_name(p, "else") && !ot_jinja_at_name(p, "or") && !ot_jinja_at_name(p, "and");
    return p->token->kind == OT_JINJA_T_STRING || p->token->kind == OT_JINJA_T_INT ||
           p->token->kind == OT_JINJA_T_REAL || ot_jinja_at_op(p, '[') || ot_jinja_at_op(p, '{');
}

static int parse_test(struct ot_jinja_parser *p, struct ot_jinja_node *a, struct ot_jinja_node **out) {
    struct ot_jinja_node *test, *not ;
    ot_jinja_advance(p);
    bool negated = ot_jinja_skip_name(p, "not");
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_TEST, &test));
    test->a = a;
    *out = test;
    OT_TRY(parse_dotted(p, &test->name));
    if (ot_jinja_at_op(p, '(')) {
        OT_TRY(parse_arguments(p, &test->list));
    } else if (begins_test_argument(p)) {
        if (ot_jinja_at_name(p, "is"))
            return ot_jinja_fail(p->heap, "tests cannot be chained with 'is'");
        OT_TRY(parse_primary(p, &test->list));
        OT_TRY(parse_postfix(p, &test->list));
    }
    if (!negated)
        return 0;
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_NOT, &not ));
    not ->a = test;
    *out = not ;
    return 0;
}

static int parse_filter_expression(struct ot_jinja_parser *p, struct ot_jinja_node **node) {
    for (int n = 0;; n++) {
        if (n > MOST_FILTERS)
            return ot_jinja_fail(p->heap, "an expression has more than %d filters and tests", MOST_FILTERS);
        if (ot_jinja_at_op(p, '|'))
            OT_TRY(ot_jinja_parse_filters(p, *node, false, node));
        else if (ot_jinja_at_name(p, "is"))
            OT_TRY(parse_test(p, *node, node));
        else if (ot_jinja_at_op(p, '('))
            OT_TRY(parse_call(p, *node, node));
        else
            return 0;
    }
}

/* ---- operators, the tightest first ---- */

static int parse_unary(struct ot_jinja_parser *p, bool filters, struct ot_jinja_node **out) {
    if (ot_jinja_at_op(p, '-') || ot_jinja_at_op(p, '+')) {
        struct ot_jinja_node *sign;
        OT_TRY(ot_jinja_enter(p));
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_SIGN, &sign));
        sign->op = p->token->op;
        ot_jinja_advance(p);
        OT_TRY(parse_unary(p, false, &sign->a));
        *out = sign;
        p->depth--;
    } else {
        OT_TRY(parse_primary(p, out));
    }
    OT_TRY(parse_postfix(p, out));
    return filters ? parse_filter_expression(p, out) : 0;
}

static int parse_operand(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    return parse_unary(p, true, out);
}

/* Operators of one rank, from the left. next: parses an operand. */
static int parse_left(struct ot_jinja_parser *p, const int *ops,
                      int (*next)(struct ot_jinja_parser *, struct ot_jinja_node **),
                      struct ot_jinja_node **out) {
    OT_TRY(next(p, out));
    for (int n = 0; p->token->kind == OT_JINJA_T_OPERATOR; n++) {
        const int *op = ops;
        while (*op && *op != p->token->op)
            op++;
        if (!*op)
            return 0;
        if (n > MOST_PARTS)
            return ot_jinja_fail(p->heap, "an expression has more than %d operators", MOST_PARTS);
        struct ot_jinja_node *node;
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_BINARY, &node));
        node->op = *op;
        node->a = *out;
        *out = node;
        ot_jinja_advance(p);
        OT_TRY(next(p, &node->b));
    }
    return 0;
}

static int parse_power(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    static const int ops[] = {OT_JINJA_OP_POWER, 0};
    return parse_left(p, ops, parse_operand, out);
}

static int parse_product(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    static const int ops[] = {'*', '/', OT_JINJA_OP_FLOOR, '%', 0};
    return parse_left(p, ops, parse_power, out);
}

static int parse_concat(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    struct ot_jinja_node *first, *node, **tail;
    OT_TRY(parse_product(p, &first));
    *out = first;
    if (!ot_jinja_at_op(p, '~'))
        return 0;
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_CONCAT, &node));
    node->list = first;
    tail = &first->next;
    while (ot_jinja_skip_op(p, '~')) {
        struct ot_jinja_node *item;
        OT_TRY(parse_product(p, &item));
        append(&tail, item);
    }
    *out = node;
    return 0;
}

static int parse_sum(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    static const int ops[] = {'+', '-', 0};
    return parse_left(p, ops, parse_concat, out);
}

/* The operator of a comparison at the present token, which is skipped; 0: none. */
static int take_comparison(struct ot_jinja_parser *p) {
    static const int ops[] = {OT_JINJA_OP_EQ, OT_JINJA_OP_NE, '<', '>', OT_JINJA_OP_LE, OT_JINJA_OP_GE};
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        if (ot_jinja_skip_op(p, ops[i]))
            return ops[i];
    if (ot_jinja_skip_name(p, "in"))
        return OT_JINJA_OP_IN;
    if (!ot_jinja_at_name(p, "not") || p->token[1].kind != OT_JINJA_T_NAME || p->token[1].bytes != 2 ||
        memcmp(p->token[1].text, "in", 2) != 0)
        return 0;
    ot_jinja_advance(p);
    ot_jinja_advance(p);
    return OT_JINJA_OP_NOT_IN;
}

static int parse_comparison(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    struct ot_jinja_node *node = NULL, **tail = NULL, *term;
    int op;
    OT_TRY(parse_sum(p, out));
    while ((op = take_comparison(p)) != 0) {
        if (!node) {
            OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_COMPARE, &node));
            node->a = *out;
            *out = node;
            tail = &node->list;
        }
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_TERM, &term));
        term->op = op;
        OT_TRY(parse_sum(p, &term->a));
        append(&tail, term);
    }
    return 0;
}

static int parse_not(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    if (!ot_jinja_at_name(p, "not"))
        return parse_comparison(p, out);
    OT_TRY(ot_jinja_enter(p));
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_NOT, out));
    ot_jinja_advance(p);
    OT_TRY(parse_not(p, &(*out)->a));
    p->depth--;
    return 0;
}

/* "and" and "or": list has all operands, so that long chains are not deep. */
static int parse_logic(struct ot_jinja_parser *p, const char *word, enum ot_jinja_node_kind kind,
                       int (*next)(struct ot_jinja_parser *, struct ot_jinja_node **),
                       struct ot_jinja_node **out) {
    struct ot_jinja_node *node, **tail, *item;
    OT_TRY(next(p, out));
    if (!ot_jinja_at_name(p, word))
        return 0;
    OT_TRY(ot_jinja_new_node(p, kind, &node));
    node->list = *out;
    tail = &node->list->next;
    while (ot_jinja_skip_name(p, word)) {
        OT_TRY(next(p, &item));
        append(&tail, item);
    }
    *out = node;
    return 0;
}

static int parse_and(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    return parse_logic(p, "and", OT_JINJA_N_AND, parse_not, out);
}

static int parse_or(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    return parse_logic(p, "or", OT_JINJA_N_OR, parse_and, out);
}

int ot_jinja_parse_expression(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    struct ot_jinja_node *node;
    OT_TRY(ot_jinja_enter(p));
    OT_TRY(parse_or(p, out));
    while (ot_jinja_skip_name(p, "if")) {
        OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_IF_ELSE, &node));
        node->a = *out;
        OT_TRY(parse_or(p, &node->b));
        if (ot_jinja_skip_name(p, "else"))
            OT_TRY(ot_jinja_parse_expression(p, &node->c));
        *out = node;
    }
    p->depth--;
    return 0;
}

/* ---- tuples and targets ---- */

static bool at_tuple_end(const struct ot_jinja_parser *p, const char *end) {
    return p->token->kind == OT_JINJA_T_PRINT_END || p->token->kind == OT_JINJA_T_BLOCK_END ||
           ot_jinja_at_op(p, ')') || (end && ot_jinja_at_name(p, end));
}

/* Items until the end; a tuple if there is a comma. next: parses an item. */
static int parse_commas(struct ot_jinja_parser *p, const char *end,
                        int (*next)(struct ot_jinja_parser *, struct ot_jinja_node **),
                        struct ot_jinja_node **out) {
    struct ot_jinja_node *tuple, **tail, *item;
    OT_TRY(next(p, out));
    if (!ot_jinja_at_op(p, ','))
        return 0;
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_TUPLE, &tuple));
    tuple->list = *out;
    tail = &tuple->list->next;
    while (ot_jinja_skip_op(p, ',') && !at_tuple_end(p, end)) {
        OT_TRY(next(p, &item));
        append(&tail, item);
    }
    *out = tuple;
    return 0;
}

static int parse_plain(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    OT_TRY(ot_jinja_enter(p));
    OT_TRY(parse_or(p, out));
    p->depth--;
    return 0;
}

int ot_jinja_parse_plain_tuple(struct ot_jinja_parser *p, const char *end, struct ot_jinja_node **out) {
    return parse_commas(p, end, parse_plain, out);
}

int ot_jinja_parse_tuple(struct ot_jinja_parser *p, const char *end, struct ot_jinja_node **out) {
    return parse_commas(p, end, ot_jinja_parse_expression, out);
}

static int parse_field_target(struct ot_jinja_parser *p, struct ot_jinja_node **out) {
    OT_TRY(parse_primary(p, out));
    if ((*out)->kind != OT_JINJA_N_NAME || !ot_jinja_at_op(p, '.'))
        return 0;
    struct ot_jinja_node *field;
    OT_TRY(ot_jinja_new_node(p, OT_JINJA_N_FIELD, &field));
    ot_jinja_advance(p);
    field->a = *out;
    *out = field;
    return ot_jinja_need_name(p, &field->name);
}

static int check_target(struct ot_jinja_parser *p, const struct ot_jinja_node *node, int depth) {
    if (node->kind == OT_JINJA_N_NAME || node->kind == OT_JINJA_N_FIELD)
        return 0;
    if (node->kind != OT_JINJA_N_TUPLE || depth == 0)
        return ot_jinja_fail(p->heap, "only names, tuples of names and attributes of namespaces can be set");
    for (const struct ot_jinja_node *item = node->list; item; item = item->next)
        OT_TRY(check_target(p, item, depth - 1));
    return 0;
}

int ot_jinja_parse_target(struct ot_jinja_parser *p, const char *end, bool fields,
                          struct ot_jinja_node **out) {
    OT_TRY(parse_commas(p, end, fields ? parse_field_target : parse_primary, out));
    return check_target(p, *out, MOST_FILTERS);
}

/* Parses tokens into a tree. parse_expression.c has the expressions, parse_statement.c the statements. */
#ifndef OT_JINJA_PARSER_H
#define OT_JINJA_PARSER_H

#include "src/jinja/lexer.h"
#include "src/jinja/node.h"

struct ot_jinja_parser {
    struct ot_jinja_heap *heap;
    const struct ot_jinja_token *token; /* the present one */
    struct ot_jinja_names names;
    int depth;       /* of nested expressions and statements */
    int loops;       /* loops around the present place, within its macro or block */
    bool generation; /* the template has a generation block */
    bool uses_caller, uses_varargs, uses_kwargs; /* names seen since the caller cleared these */
};

/* Parses the whole template. *body: its statements. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_jinja_parse(struct ot_jinja_parser *p, struct ot_jinja_node **body);

/* ---- between the parts of the parser ---- */

int ot_jinja_parse_expression(struct ot_jinja_parser *p, struct ot_jinja_node **out);
/* An expression, or a tuple without parentheses. end: the name that ends it, or NULL. */
int ot_jinja_parse_tuple(struct ot_jinja_parser *p, const char *end, struct ot_jinja_node **out);
/* The same without conditional expressions: behind `for .. in` and `if`, "if" has another meaning. */
int ot_jinja_parse_plain_tuple(struct ot_jinja_parser *p, const char *end, struct ot_jinja_node **out);
/* Parses the target of an assignment: names, tuples of names, and attributes of namespaces if `fields`. */
int ot_jinja_parse_target(struct ot_jinja_parser *p, const char *end, bool fields,
                          struct ot_jinja_node **out);
/* Filters behind `a`, which is NULL at the start of a filter block. first: the first one has no |. */
int ot_jinja_parse_filters(struct ot_jinja_parser *p, struct ot_jinja_node *a, bool first,
                           struct ot_jinja_node **out);

int ot_jinja_new_node(struct ot_jinja_parser *p, enum ot_jinja_node_kind kind, struct ot_jinja_node **out);
/* The template's string for this name. */
int ot_jinja_intern(struct ot_jinja_parser *p, const char *text, size_t bytes,
                    const struct ot_jinja_string **out);
int ot_jinja_unexpected(struct ot_jinja_parser *p, const char *wanted);
int ot_jinja_enter(struct ot_jinja_parser *p); /* one level deeper; p->depth-- ends it */

static inline void ot_jinja_advance(struct ot_jinja_parser *p) {
    if (p->token->kind != OT_JINJA_T_END)
        p->token++;
    p->heap->line = p->token->line;
}
static inline bool ot_jinja_at_op(const struct ot_jinja_parser *p, int op) {
    return p->token->kind == OT_JINJA_T_OPERATOR && p->token->op == op;
}
bool ot_jinja_at_name(const struct ot_jinja_parser *p, const char *name);
bool ot_jinja_skip_op(struct ot_jinja_parser *p, int op);
bool ot_jinja_skip_name(struct ot_jinja_parser *p, const char *name);
int ot_jinja_need_op(struct ot_jinja_parser *p, int op);
int ot_jinja_need_name(struct ot_jinja_parser *p, const struct ot_jinja_string **out);

#endif

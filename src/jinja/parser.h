/* Divides a template into tokens (lexer.c) and parses them into a tree (parse_*.c). */
#ifndef OT_JINJA_PARSER_H
#define OT_JINJA_PARSER_H

#include "src/jinja/node.h"

enum ot_jinja_token_kind {
    OT_JINJA_T_END,
    OT_JINJA_T_DATA, /* text between tags */
    OT_JINJA_T_PRINT_BEGIN,
    OT_JINJA_T_PRINT_END,
    OT_JINJA_T_BLOCK_BEGIN,
    OT_JINJA_T_BLOCK_END,
    OT_JINJA_T_NAME,
    OT_JINJA_T_STRING, /* value: a string value; for others `text` is as written */
    OT_JINJA_T_INT,
    OT_JINJA_T_REAL,
    OT_JINJA_T_OPERATOR
};

struct ot_jinja_token {
    enum ot_jinja_token_kind kind;
    int op, line;
    const char *text;
    size_t bytes;
    struct ot_jinja_value value; /* STRING, INT, REAL */
};

struct ot_jinja_tokens {
    struct ot_jinja_token *items; /* in the heap; the last is END */
    size_t n, capacity;
};

/* The rules for white space are jinja2's: trim_blocks and lstrip_blocks, and the signs - and + at the border
 * of a tag. Line ends become \n first, and one at the end of the text is dropped. heap->name and heap->line
 * serve errors. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_jinja_lex(struct ot_jinja_heap *heap, const char *text, size_t bytes, struct ot_jinja_tokens *out);

struct ot_jinja_parser {
    struct ot_jinja_heap *heap;
    const struct ot_jinja_token *token; /* the present one */
    struct ot_jinja_names names;
    int depth;       /* of nested expressions and statements */
    int loops;       /* loops around the present place, within its macro or block */
    bool generation; /* the template has a generation block */
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

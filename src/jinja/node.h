/* The tree of a parsed template. Nodes live in the template's arena and never change after parsing. */
#ifndef OT_JINJA_NODE_H
#define OT_JINJA_NODE_H

#include "src/jinja/value.h"

enum ot_jinja_node_kind {
    /* expressions; a, b, c: operands; list: items */
    OT_JINJA_N_CONST, /* value */
    OT_JINJA_N_NAME,  /* name */
    OT_JINJA_N_LIST,
    OT_JINJA_N_TUPLE,
    OT_JINJA_N_DICT, /* list: N_PAIR */
    OT_JINJA_N_PAIR, /* a: b */
    OT_JINJA_N_NOT,
    OT_JINJA_N_SIGN,    /* op + or - before a */
    OT_JINJA_N_BINARY,  /* a op b */
    OT_JINJA_N_CONCAT,  /* list */
    OT_JINJA_N_COMPARE, /* a, then list: N_TERM */
    OT_JINJA_N_TERM,    /* op, a */
    OT_JINJA_N_AND,
    OT_JINJA_N_OR,
    OT_JINJA_N_IF_ELSE,   /* a if b else c (NULL: undefined) */
    OT_JINJA_N_ATTRIBUTE, /* a.name */
    OT_JINJA_N_ITEM,      /* a[b] */
    OT_JINJA_N_SLICE,     /* a:b:c, each may be NULL */
    OT_JINJA_N_CALL,      /* a(list) */
    OT_JINJA_N_FILTER,    /* a | name(list); a NULL: the text of a filter block */
    OT_JINJA_N_TEST,      /* a is name(list) */
    OT_JINJA_N_KEYWORD,   /* name=a, among arguments */
    OT_JINJA_N_STAR,      /* *a or **a (op), among arguments */
    OT_JINJA_N_FIELD,     /* a.name as a target: an attribute of a namespace */
    /* statements; body: their content */
    OT_JINJA_S_TEXT,      /* value */
    OT_JINJA_S_PRINT,     /* a */
    OT_JINJA_S_IF,        /* a, body; other: S_IF of an elif, or the statements of else (has_else) */
    OT_JINJA_S_FOR,       /* for a in b if c: body, else: other */
    OT_JINJA_S_SET,       /* a = b */
    OT_JINJA_S_SET_BLOCK, /* a, body; b: N_FILTER, or NULL */
    OT_JINJA_S_MACRO,     /* name, list: parameters (N_KEYWORD; a NULL: no default), body */
    OT_JINJA_S_FILTER,    /* a: N_FILTER; body */
    OT_JINJA_S_GENERATION,
    OT_JINJA_S_BREAK,
    OT_JINJA_S_CONTINUE
};

/* Operators of one character are that character. */
enum {
    OT_JINJA_OP_POWER = 256,
    OT_JINJA_OP_FLOOR,
    OT_JINJA_OP_EQ,
    OT_JINJA_OP_NE,
    OT_JINJA_OP_LE,
    OT_JINJA_OP_GE,
    OT_JINJA_OP_IN, /* this and the next: words, which are no operators for the lexer */
    OT_JINJA_OP_NOT_IN
};

struct ot_jinja_node {
    enum ot_jinja_node_kind kind;
    int op, line;
    bool has_else;
    struct ot_jinja_value value;
    const struct ot_jinja_string *name; /* one string for each name of a template, so pointers compare */
    struct ot_jinja_node *a, *b, *c;
    struct ot_jinja_node *list, *body, *other;
    struct ot_jinja_node *next; /* in a list or a body */
};

struct ot_jinja_names {
    const struct ot_jinja_string **items;
    size_t n, capacity;
};

#endif

/* Divides a template into tokens, with jinja2's rules for white space: trim_blocks and lstrip_blocks, and the
 * signs - and + at the border of a tag. Line ends become \n first, and one at the end of the text is dropped.
 */
#ifndef OT_JINJA_LEXER_H
#define OT_JINJA_LEXER_H

#include "src/jinja/value.h"

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

/* Operators of one character are that character. */
enum {
    OT_JINJA_OP_POWER = 256,
    OT_JINJA_OP_FLOOR,
    OT_JINJA_OP_EQ,
    OT_JINJA_OP_NE,
    OT_JINJA_OP_LE,
    OT_JINJA_OP_GE
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

/* heap->name and heap->line serve errors. Errors: OT_E_INPUT, OT_E_BUDGET. */
int ot_jinja_lex(struct ot_jinja_heap *heap, const char *text, size_t bytes, struct ot_jinja_tokens *out);

#endif

/* The tokens of a SQL text, as far as the judge must know them: to vary a query, to find its literals, and to
 * tell its kind. SQLite parses everything that is executed. */
#ifndef OT_JUDGE_TOKENS_H
#define OT_JUDGE_TOKENS_H

#include <stdbool.h>
#include <stddef.h>

enum ot_sql_token_type {
    OT_SQL_WORD,   /* a keyword or a name */
    OT_SQL_QUOTED, /* "x", `x` or [x]: a name; "x" may be a text too */
    OT_SQL_TEXT,   /* 'x' */
    OT_SQL_NUMBER,
    OT_SQL_SIGN /* an operator, a parenthesis, a comma, ... */
};
struct ot_sql_token {
    enum ot_sql_token_type type;
    size_t begin, end; /* bytes of the text */
    int depth;         /* parentheses around it; of a parenthesis: those around the pair */
};
struct ot_sql_tokens { /* zero before the first use; free with ot_sql_tokens_free */
    const char *text;  /* borrowed */
    struct ot_sql_token *at;
    int n;
    size_t capacity;
};
/* Errors: OT_E_BUDGET. Every text has tokens; comments are left out. */
int ot_sql_tokens_make(const char *text, struct ot_sql_tokens *out);
void ot_sql_tokens_free(struct ot_sql_tokens *tokens);

/* True if token i is this word, in any case, or this sign. Any i is fine. */
bool ot_sql_is(const struct ot_sql_tokens *tokens, int i, const char *word);
/* True if it is one of these words, separated by spaces. */
bool ot_sql_is_any(const struct ot_sql_tokens *tokens, int i, const char *words);
/* The content of a name, a text or a number, without quotes, to be freed. NULL: no memory. */
char *ot_sql_unquote(const struct ot_sql_tokens *tokens, int i);
/* `name` as a name in double quotes, to be freed. NULL: no memory. */
char *ot_sql_quote(const char *name);

/* ---- kinds ---- */

/* The kind of a query, by the first of these that it has: nested (a SELECT within, UNION, INTERSECT, EXCEPT),
 * a join (JOIN, or several tables), GROUP BY, ORDER BY, an aggregate function. */
enum ot_sql_kind {
    OT_SQL_SIMPLE,
    OT_SQL_AGGREGATE,
    OT_SQL_ORDER,
    OT_SQL_GROUP,
    OT_SQL_JOIN,
    OT_SQL_NESTED,
    OT_SQL_KINDS
};
const char *ot_sql_kind_name(enum ot_sql_kind kind); /* "simple", ..., "nested" */
enum ot_sql_kind ot_sql_find_kind(const struct ot_sql_tokens *tokens);
/* True if there is an ORDER BY outside of parentheses. */
bool ot_sql_is_ordered(const struct ot_sql_tokens *tokens);

#endif

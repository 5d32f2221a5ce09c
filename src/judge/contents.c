#include "src/judge/contents.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/random.h"

/* Rows of each content, and the share of NULLs in it, in per cent. */
static const struct {
    int rows, nulls;
} shapes[OT_CONTENTS_TRIED] = {{12, 0}, {30, 8},  {5, 0}, {24, 0}, {1, 0},
                               {40, 4}, {18, 15}, {8, 4}, {30, 0}, {2, 0}};

/* Values that all columns share. */
enum { SHARED_NUMBERS = 6, SHARED_TEXTS = 6, MOST_TEXT = 200 };

/* ---- literals ---- */

/* A literal that the gold query compares with a column. */
struct literal {
    const char *sign; /* the operator that stands before it: "=", "<", ...; "LIKE" */
    char *column;     /* NULL: unknown */
    char *text;
    bool is_number;
};
struct literals {
    struct literal *at;
    int n;
    size_t capacity;
};

static void literals_free(struct literals *l) {
    for (int i = 0; i < l->n; i++) {
        free(l->at[i].column);
        free(l->at[i].text);
    }
    free(l->at);
}

/* The name that ends before token i: x of "t.x =", of "max(x) >", and of "x BETWEEN 1 AND". -1: none. */
static int name_before(const struct ot_sql_tokens *t, int i) {
    for (int back = 0; i >= 0 && back < 8; i--, back++) {
        bool name = t->at[i].type == OT_SQL_WORD || t->at[i].type == OT_SQL_QUOTED;
        bool passed = ot_sql_is_any(t, i, "( ) , NOT IN LIKE BETWEEN AND = == <> != < <= > >= - +") ||
                      t->at[i].type == OT_SQL_NUMBER || t->at[i].type == OT_SQL_TEXT;
        if (name && !passed)
            return i;
        if (!passed)
            return -1;
    }
    return -1;
}

static int add_literal(struct literals *l, const struct ot_sql_tokens *t, int i) {
    static const char *const signs[] = {"=", "==", "<>", "!=", "<", "<=", ">", ">=", "LIKE"};
    int name = name_before(t, i - 1);
    OT_TRY(ot_grow(&l->at, &l->capacity, (size_t)l->n + 1, sizeof *l->at, "literals of a query"));
    struct literal *literal = &l->at[l->n++];
    *literal = (struct literal){.sign = "=",
                                .column = name >= 0 ? ot_sql_unquote(t, name) : NULL,
                                .text = ot_sql_unquote(t, i),
                                .is_number = t->at[i].type == OT_SQL_NUMBER};
    for (size_t s = 0; s < sizeof signs / sizeof *signs; s++)
        if (ot_sql_is(t, i - 1, signs[s]))
            literal->sign = signs[s];
    return literal->text && (name < 0 || literal->column)
               ? 0
               : ot_fail(OT_E_BUDGET, "no memory for the literals of a query");
}

static bool is_column(const struct ot_sql_schema *schema, const char *name) {
    for (int t = 0; t < schema->n_tables; t++)
        for (int c = 0; c < schema->tables[t].n_columns; c++)
            if (strcasecmp(schema->tables[t].columns[c].name, name) == 0)
                return true;
    return false;
}

/* "x" in double quotes is a text if no column has this name. */
static int find_literals(const struct ot_sql_tokens *t, const struct ot_sql_schema *schema,
                         struct literals *out) {
    *out = (struct literals){0};
    for (int i = 0; i < t->n; i++) {
        bool quoted = t->at[i].type == OT_SQL_QUOTED && t->text[t->at[i].begin] == '"';
        char *name = quoted ? ot_sql_unquote(t, i) : NULL;
        bool is_text = t->at[i].type == OT_SQL_TEXT || (name && !is_column(schema, name));
        bool counts = !ot_sql_is_any(t, i - 1, "LIMIT OFFSET AS .");
        free(name);
        if (counts && (is_text || t->at[i].type == OT_SQL_NUMBER))
            OT_TRY(add_literal(out, t, i));
    }
    return 0;
}

/* ---- values ---- */

/* Where a value is, and its counted random numbers. */
struct place {
    int index, table, row, column;
};

static uint64_t draw(const struct place *at, int use, uint64_t below) {
    uint64_t stream = ((uint64_t)at->table << 32) + (uint64_t)at->column;
    return ot_random_below((uint64_t)at->index + 1, stream, ((uint64_t)at->row << 3) + (uint64_t)use, below);
}

/* A value beside the literal: the literal with d added, or a text that is different if d is not 0. text: room
 * for MOST_TEXT bytes. */
static struct ot_sql_value near(const struct literal *literal, int d, char text[MOST_TEXT]) {
    double number = literal->is_number ? strtod(literal->text, NULL) + d : 0;
    if (literal->is_number && number == (double)(int64_t)number && number < 1e15 && number > -1e15)
        return (struct ot_sql_value){.type = OT_CELL_INTEGER, .integer = (int64_t)number};
    if (literal->is_number)
        return (struct ot_sql_value){.type = OT_CELL_REAL, .real = number};
    size_t n = 0;
    bool like = strcmp(literal->sign, "LIKE") == 0;
    for (const char *c = literal->text; *c && n + 4 < MOST_TEXT; c++)
        if (like && *c == '%') {
            if (d >= 0) /* else nothing stands for it */
                text[n++] = 'q';
        } else {
            text[n++] = like && *c == '_' ? 'u' : *c;
        }
    if (d > 0)
        text[n++] = (char)('a' + d);
    text[n] = '\0';
    if (d < 0 && !like)
        text[n / 2] = '\0';
    return (struct ot_sql_value){.type = OT_CELL_TEXT, .text = text};
}

/* A value that all columns share. */
static struct ot_sql_value shared(const struct place *at, const struct ot_sql_column *column,
                                  const struct literals *literals, char text[MOST_TEXT]) {
    static const char *const texts[SHARED_TEXTS] = {"ann", "Bob", "cy", "dee", "eve", "ann b"};
    bool number = column->is_typed ? column->is_number : draw(at, 1, 2) == 0;
    if (literals->n > 0 && draw(at, 2, 4) == 0)
        return near(&literals->at[draw(at, 3, (uint64_t)literals->n)], 0, text);
    if (number && draw(at, 4, 5) == 0) /* far from all others, so that sums differ */
        return (struct ot_sql_value){.type = OT_CELL_INTEGER, .integer = 10 + (int64_t)draw(at, 5, 190)};
    if (number)
        return (struct ot_sql_value){.type = OT_CELL_INTEGER,
                                     .integer = 1 + (int64_t)draw(at, 5, SHARED_NUMBERS)};
    return (struct ot_sql_value){.type = OT_CELL_TEXT, .text = texts[draw(at, 5, SHARED_TEXTS)]};
}

/* Satisfies the comparison with a literal; or not. */
static struct ot_sql_value satisfying(const struct literal *literal, bool satisfies, char text[MOST_TEXT]) {
    bool less = literal->sign[0] == '<' && literal->sign[1] != '>', more = literal->sign[0] == '>';
    bool differs = strcmp(literal->sign, "<>") == 0 || literal->sign[0] == '!';
    int d = less ? -1 : more || differs ? 1 : 0;
    return near(literal, satisfies ? d : d ? 0 : 1, text);
}

/* The number of the column's literals, and the one that is `wanted` among them. */
static int literals_of(const struct literals *literals, const struct ot_sql_column *column, int wanted,
                       int *found) {
    int n = 0;
    for (int i = 0; i < literals->n; i++)
        if (literals->at[i].column && strcasecmp(literals->at[i].column, column->name) == 0 && n++ == wanted)
            *found = i;
    return n;
}

static struct ot_sql_value choose(const struct place *at, const struct ot_sql_column *column,
                                  const struct literals *literals, char text[MOST_TEXT]) {
    int found = 0, n = literals_of(literals, column, 0, &found);
    if (draw(at, 0, 100) < (uint64_t)shapes[at->index].nulls)
        return (struct ot_sql_value){.type = OT_CELL_NULL};
    if (n == 0)
        return shared(at, column, literals, text);
    if (n > 1)
        literals_of(literals, column, (int)draw(at, 6, (uint64_t)n), &found);
    const struct literal *literal = &literals->at[found];
    if (at->row <= literals->n + 1) /* row 0 satisfies all; row r > 0 all but literal r - 1 */
        return satisfying(literal, at->row != found + 1, text);
    if (draw(at, 7, 2) == 0)
        return near(literal, (int)draw(at, 1, 3) - 1, text);
    return shared(at, column, literals, text);
}

/* ---- tables ---- */

static int fill_table(struct ot_sandbox *sandbox, const struct ot_sql_schema *schema, int table,
                      const struct literals *literals, int index) {
    const struct ot_sql_table *t = &schema->tables[table];
    size_t columns = (size_t)t->n_columns + 1;
    struct ot_sql_value *values = calloc(columns, sizeof *values);
    char(*texts)[MOST_TEXT] = calloc(columns, sizeof *texts);
    int rc = values && texts ? 0 : ot_fail(OT_E_BUDGET, "no memory for the rows of a table");
    for (int row = 0; row < shapes[index].rows + table % 3 && rc == 0; row++) {
        for (int c = 0; c < t->n_columns; c++) {
            const struct place at = {index, table, row, c};
            values[c] = choose(&at, &t->columns[c], literals, texts[c]);
        }
        rc = ot_sandbox_insert(sandbox, t, values);
    }
    free(values);
    free(texts);
    return rc;
}

int ot_contents_fill(struct ot_sandbox *sandbox, const struct ot_sql_schema *schema,
                     const struct ot_sql_tokens *gold, int index) {
    struct literals literals;
    ot_sandbox_unlock(sandbox);
    int rc = find_literals(gold, schema, &literals);
    for (int t = 0; t < schema->n_tables && rc == 0; t++)
        rc = ot_sandbox_empty(sandbox, &schema->tables[t]);
    for (int t = 0; t < schema->n_tables && rc == 0; t++)
        rc = fill_table(sandbox, schema, t, &literals, index);
    literals_free(&literals);
    return rc;
}

#include "src/judge/compare.h"

#include <stdlib.h>
#include <string.h>

#include "src/base/error.h"
#include "src/base/minmax.h"

/* Columns are matched one after the other, by their values as a multiset; then the rows decide. Equal columns
 * can be matched in several ways, which are tried in turn, up to this many. */
enum { MOST_TRIES = 200 };

static int compare_bytes(const struct ot_result *ra, const struct ot_cell *a, const struct ot_result *rb,
                         const struct ot_cell *b) {
    size_t n = ot_min(a->bytes, b->bytes);
    int c = n ? memcmp(ra->bytes + a->text, rb->bytes + b->text, n) : 0;
    return c ? c : (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

static int compare_cells(const struct ot_result *ra, const struct ot_cell *a, const struct ot_result *rb,
                         const struct ot_cell *b) {
    if (a->type != b->type)
        return a->type < b->type ? -1 : 1;
    switch (a->type) {
    case OT_CELL_NULL:
        return 0;
    case OT_CELL_INTEGER:
        return (a->integer > b->integer) - (a->integer < b->integer);
    case OT_CELL_REAL:
        return (a->real > b->real) - (a->real < b->real);
    default:
        return compare_bytes(ra, a, rb, b);
    }
}

/* A row of one of two results, whose columns are read in an order. */
struct line {
    const struct ot_result *result;
    const int *order; /* [columns] */
    int columns;
    int64_t row;
};

static int compare_lines(const void *pa, const void *pb) {
    const struct line *a = pa, *b = pb;
    for (int i = 0; i < a->columns; i++) {
        const struct ot_cell *x = &a->result->cells[a->row * a->result->columns + a->order[i]];
        const struct ot_cell *y = &b->result->cells[b->row * b->result->columns + b->order[i]];
        int c = compare_cells(a->result, x, b->result, y);
        if (c)
            return c;
    }
    return 0;
}

/* Fills lines with the rows, sorted unless they are ordered. */
static void list_lines(const struct ot_result *r, const int *order, int columns, bool ordered,
                       struct line *lines) {
    for (int64_t i = 0; i < r->rows; i++)
        lines[i] = (struct line){r, order, columns, i};
    if (!ordered)
        qsort(lines, (size_t)r->rows, sizeof *lines, compare_lines);
}

struct matching {
    const struct ot_result *gold, *answer;
    bool ordered;
    struct line *gold_lines, *answer_lines; /* [rows] each */
    int columns, tries;
    int identity[OT_COMPARE_MOST_COLUMNS], order[OT_COMPARE_MOST_COLUMNS];
    bool taken[OT_COMPARE_MOST_COLUMNS];
};

static bool has_same_lines(struct matching *m, const int *gold, const int *answer, int columns) {
    list_lines(m->gold, gold, columns, m->ordered, m->gold_lines);
    list_lines(m->answer, answer, columns, m->ordered, m->answer_lines);
    for (int64_t i = 0; i < m->gold->rows; i++)
        if (compare_lines(&m->gold_lines[i], &m->answer_lines[i]) != 0)
            return false;
    return true;
}

/* Finds a partner for gold's column `at` and the later ones. */
static bool match(struct matching *m, int at) {
    if (at == m->columns)
        return ++m->tries <= MOST_TRIES && has_same_lines(m, m->identity, m->order, m->columns);
    for (int shift = 0; shift < m->columns && m->tries <= MOST_TRIES; shift++) {
        int column = (at + shift) % m->columns; /* its own place first */
        if (m->taken[column] || !has_same_lines(m, &at, &column, 1))
            continue;
        m->taken[column] = true;
        m->order[at] = column;
        bool matched = match(m, at + 1);
        m->taken[column] = false;
        if (matched)
            return true;
    }
    return false;
}

int ot_results_compare(const struct ot_result *gold, const struct ot_result *answer, bool ordered,
                       bool *equal) {
    struct matching m = {.gold = gold, .answer = answer, .ordered = ordered, .columns = gold->columns};
    *equal = false;
    if (gold->columns != answer->columns || gold->rows != answer->rows ||
        gold->columns > OT_COMPARE_MOST_COLUMNS)
        return 0;
    size_t rows = (size_t)gold->rows + 1;
    m.gold_lines = malloc(2 * rows * sizeof *m.gold_lines);
    if (!m.gold_lines)
        return ot_fail(OT_E_BUDGET, "no memory to compare %lld rows", (long long)gold->rows);
    m.answer_lines = m.gold_lines + rows;
    for (int i = 0; i < m.columns; i++)
        m.identity[i] = i;
    *equal = match(&m, 0);
    free(m.gold_lines);
    return 0;
}

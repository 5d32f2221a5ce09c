/* Judged answers: are the rows that a written query gives the rows of the right query?
 *
 * Text-to-SQL has many right answers to one question, so comparing texts tells little. The judge executes
 * both queries, the row's own (GOLD) and the model's, with SQLite, and compares their results. The idea is
 * test-suite accuracy: Zhong, Yu and Klein, "Semantic Evaluation for Text-to-SQL with Distilled Test Suites",
 * EMNLP 2020.
 *
 * DATABASES. A row's context has CREATE TABLE statements. The judge creates these tables in memory and fills
 * them with made-up CONTENTS (contents.h): several fixed sets of rows, made from the literals of the gold
 * query. A set is kept if it tells the gold query from one of its variants: the same query with another
 * operator, column, literal or aggregate. An answer is right if it has the gold query's result on every set
 * that was kept. Or the row names a real database (--databases DIR, Spider's layout): then all files
 * DIR/DB_ID/X.sqlite are the contents.
 *
 * EQUAL RESULTS, as in Spider's evaluation: the same rows as often as in the gold result, in any order; in
 * the same order if the gold query has an ORDER BY outside of parentheses. The order of columns does not
 * matter, nor do their names. 1 and 1.0 are equal; texts are equal byte by byte. In contrast to Spider's
 * default, a DISTINCT counts.
 *
 * SAFETY. Answers come from a model, and contexts from a file that somebody wrote. sandbox.h says what
 * bounds them. Whatever a query does, it ends as a verdict.
 *
 * A verdict is a function of the row and the answer: no seed of the run counts, and a clock only where a
 * query is stopped after 20 s. So it does not change between evaluations, nor between machines with the same
 * version of SQLite.
 *
 * Threads: one judge, one thread at a time.
 */
#ifndef OT_JUDGE_JUDGE_H
#define OT_JUDGE_JUDGE_H

#include <stdbool.h>
#include <stddef.h>

#include "src/judge/tokens.h"

enum { OT_VERDICT_BYTES = 240 };
struct ot_verdict {
    enum ot_sql_kind kind; /* of the gold query */
    /* False: the row cannot be judged, because its tables cannot be created or its own query does not run. */
    bool is_judged;
    bool is_valid; /* the answer runs on the tables, within the bounds */
    bool is_equal; /* and its results are those of the gold query */
    /* The variants of the gold query that run, and how many of them the contents tell from it. */
    int variants, separated;
    char why[OT_VERDICT_BYTES]; /* a sentence, unless the answer is right */
};

struct ot_judge;

/* databases: --databases, or NULL. Errors: OT_E_USAGE (this build has no SQLite; the directory does not
 * exist), OT_E_BUDGET. */
int ot_judge_open(const char *databases, struct ot_judge **out);
void ot_judge_close(struct ot_judge *judge); /* NULL is fine */

/* One row. context: its CREATE TABLE statements, or NULL. database: its db_id, or NULL; used with
 * `databases`. */
struct ot_judged_row {
    const char *context, *database, *gold;
};
/* Judges an answer. Errors: OT_E_BUDGET. Everything that is wrong with queries and databases is a verdict. */
int ot_judge_answer(struct ot_judge *judge, const struct ot_judged_row *row, const char *answer,
                    struct ot_verdict *verdict);

#endif

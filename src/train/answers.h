/* Answers to rows that are not trained: the sample that a run shows at its end, and judged answers.
 *
 * JUDGED ANSWERS: an evaluation that lets the model answer rows, and compares the answers with the rows' own.
 *
 * ROWS. The first N documents of the evaluation set, in its order, whose prompt has a token. The prompt is
 * all before the row's first trained token; the row's own answer (GOLD) is the text of the trained tokens
 * from there on. If rows compare two answers, it is the chosen one; a bad answer of KTO is none. The model
 * answers greedily. An answer that is longer than twice the gold answer and 16
 * tokens is cut there, unless --max-new-tokens says where.
 *
 * MATCH. exact: the same text, apart from spaces at both ends. normalised: the same text after
 * ot_answer_normalise.
 *
 * EXECUTION (judge/judge.h). The row needs a field `context`, or with --databases a field `db_id`.
 *
 * All ranks generate the same answers together; rank 0 judges them, and tells the others the score.
 */
#ifndef OT_TRAIN_ANSWERS_H
#define OT_TRAIN_ANSWERS_H

#include "src/base/json.h"
#include "src/judge/judge.h"
#include "src/train/generator.h"
#include "src/train/rows.h"
#include "src/train/run_shape.h"

/* Counts of rows. They are all 0 if no rows were answered. */
struct ot_answer_score {
    int64_t rows, exact, normalised;
    int64_t tokens; /* generated */
    double seconds; /* of generating; judging takes judge_seconds */
    double judge_seconds;
    bool executes;
    struct ot_kind_score {
        int64_t judged, valid, equal;
    } kinds[OT_SQL_KINDS];       /* by the kind of the gold query */
    int64_t unjudged;            /* rows that cannot be judged by execution */
    int64_t variants, separated; /* of all gold queries (judge.h) */
};
/* Of all kinds together. */
struct ot_kind_score ot_answer_score_sum(const struct ot_answer_score *score);
/* Shares of the answered and of the judged rows. NaN: there are none. */
double ot_answer_match(const struct ot_answer_score *score);
double ot_answer_execution(const struct ot_answer_score *score);

struct ot_answers; /* the rows that evaluations answer */

/* Chooses the rows of the evaluation set as the options say. *out is NULL if none are to be answered. Errors:
 * OT_E_USAGE, OT_E_INPUT (no row has a prompt), OT_E_BUDGET. */
int ot_answers_open(const struct ot_session *session, const struct ot_rows *rows, struct ot_answers **out);
void ot_answers_close(struct ot_answers *answers); /* NULL is fine */
/* Adds to what the plan must have room for. Before ot_session_plan; the session's model is not built yet. */
void ot_answers_need(const struct ot_answers *answers, const struct ot_session *session,
                     struct ot_session_need *need);
/* The work of an evaluation, for a prediction: the tokens of the longest gold answer stand for those of an
 * answer. */
void ot_answers_work(const struct ot_answers *answers, struct ot_run_work *work);
/* Answers the rows and judges the answers. The engine must be drained. stopped: as in struct ot_generation;
 * then *score is unfinished. Errors: OT_E_IO (--failures), and those of ot_generate. */
int ot_answers_run(struct ot_answers *answers, struct ot_session *session, bool (*stopped)(void),
                   struct ot_answer_score *score);

/* "exact 41.0 % · normalised 45.5 % · equal results 63.0 %, valid 88.0 %" */
enum { OT_ANSWERS_TEXT_BYTES = 160 };
const char *ot_answers_summary(const struct ot_answer_score *score, char text[OT_ANSWERS_TEXT_BYTES]);
/* Members of an object: "answered", "exact_match", "normalised_match", and with execution "valid_sql",
 * "equal_results", "by_kind", "not_judged", "variants", "variants_told_apart". */
void ot_answers_put(const struct ot_answer_score *score, struct ot_json_writer *w);

/* A text without what two spellings of one answer differ in: spaces are removed at both ends and beside ( )
 * , ; = < > ! + * / and are one space elsewhere; letters outside of quotes are lower-case (ASCII);
 * semicolons at the end are removed. The content of quotes, ' " and `, stays. The caller frees it. NULL: no
 * memory. */
char *ot_answer_normalise(const char *text);

/* ---- the sample ---- */

/* The first row of the evaluation set with a prompt. The trained model answers it at the end. -1: none. */
int64_t ot_sample_row_find(const struct ot_session *session, const struct ot_rows *rows);
/* Tokens of key/value cache for its prompt and answer, at most one sequence. 0: there is no row. */
int64_t ot_sample_row_tokens(const struct ot_session *session, const struct ot_rows *rows,
                             int64_t sample_row);
/* Answers it greedily. The caller frees *prompt, its text, and *out. Errors: as ot_generate. */
int ot_sample_row_answer(struct ot_session *session, const struct ot_rows *rows, int64_t sample_row,
                         bool (*stopped)(void), char **prompt, struct ot_generated *out);

#endif

/* Equal results (judge.h says what that means). */
#ifndef OT_JUDGE_COMPARE_H
#define OT_JUDGE_COMPARE_H

#include "src/judge/sandbox.h"

/* The most columns that may be permuted freely; with more, the order of columns matters among equal ones. */
enum { OT_COMPARE_MOST_COLUMNS = 64 };

/* *equal: the answer's rows are those of the gold result. Errors: OT_E_BUDGET. */
int ot_results_compare(const struct ot_result *gold, const struct ot_result *answer, bool ordered,
                       bool *equal);

#endif

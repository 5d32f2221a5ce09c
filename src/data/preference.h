/* Rows of an objective that compares answers (kernels/ops_compare.h).
 *
 * A row of preferences has "chosen" and "rejected". Their prompt is in the keys that other rows have
 * (format.h: "prompt", "instruction", "question" and "context", "input", "conversations"). Without such keys
 * the prompt is what both begin with: turns, or characters. A row for KTO is any row with an answer, and
 * "label" says whether the answer is good.
 *
 * Such a row is parsed once for each of its answers, and becomes a row of a format: the answer stands under
 * the key where the format expects it. So the formats know nothing of objectives.
 *
 * Threads: any number.
 */
#ifndef OT_DATA_PREFERENCE_H
#define OT_DATA_PREFERENCE_H

#include "kernels/ops_compare.h"
#include "src/base/json.h"

/* Changes a row into the row of one of its answers: 0 is the chosen one, 1 is the rejected one; KTO has
 * answer 0 alone. *good: KTO: the row's label; else true. Errors: OT_E_INPUT (names `where`, the key and the
 * cure). */
int ot_preference_take_answer(struct ot_json *row, enum ot_objective_kind objective, int answer,
                              const char *where, bool *good);
/* The number of rows that a row becomes. */
static inline int ot_preference_answers(enum ot_objective_kind objective) {
    return objective == OT_OBJECTIVE_SFT || objective == OT_OBJECTIVE_KTO ? 1 : 2;
}

#endif

/* What `offload-train plan` answers to one question, for people and as JSON: the machine, the plan's bytes on
 * every tier, the predicted step lane by lane, and what a run costs. Both say the same numbers, and sums add
 * up. Of a machine that is described, what people read is rounded to three digits, with the range that the
 * assumptions leave open.
 */
#ifndef OT_PLAN_VIEW_H
#define OT_PLAN_VIEW_H

#include <stdio.h>

#include "src/base/units.h"
#include "src/plan/case.h"

void ot_plan_view_print(const struct ot_plan_case *plan_case, FILE *out);
/* One object. Errors: OT_E_BUDGET. */
int ot_plan_view_print_json(const struct ot_plan_case *plan_case);

/* The plan's bytes and what the device's ops work in. */
struct ot_ledger ot_plan_view_ledger(const struct ot_plan_case *plan_case);
/* What the prediction is made of: data sheets, or measurements. */
const char *ot_plan_view_basis(const struct ot_plan_case *plan_case);

/* "3,020", "18.7": tokens a second; of a described machine in three digits. */
const char *ot_plan_view_rate(const struct ot_plan_case *plan_case, double rate, char text[OT_TEXT_BYTES]);
/* "21.7 s", "152.123 ms": times of a step. */
const char *ot_plan_view_seconds(const struct ot_plan_case *plan_case, double seconds,
                                 char text[OT_TEXT_BYTES]);

/* --gpu list */
void ot_cards_print(FILE *out);
int ot_cards_print_json(void);

#endif

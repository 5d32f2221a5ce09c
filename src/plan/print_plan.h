/* Prints the answer of `offload-train plan` to one question, as text for people or as JSON: the machine, the
 * plan's bytes on every tier, the predicted step lane by lane, and the cost of a run. Both have the same
 * figures, and sums add up. For a described machine the figures of the text are rounded to three digits, and
 * the step's time has the range of the assumptions' errors. */
#ifndef OT_PLAN_PRINT_PLAN_H
#define OT_PLAN_PRINT_PLAN_H

#include <stdio.h>

#include "src/base/units.h"
#include "src/plan/case.h"

void ot_plan_view_print(const struct ot_plan_case *plan_case, FILE *out);
/* Prints one JSON object on a line of stdout. Errors: OT_E_BUDGET. */
int ot_plan_view_print_json(const struct ot_plan_case *plan_case);

/* The plan's bytes, and scratch of the device's ops. */
struct ot_ledger ot_plan_view_ledger(const struct ot_plan_case *plan_case);
/* A sentence that names the source of the prediction: data sheets or measurements. */
const char *ot_plan_view_basis(const struct ot_plan_case *plan_case);

/* Print the cards and rented machines of `plan --gpu list`, the second as JSON on stdout. Errors:
 * OT_E_BUDGET. */
void ot_cards_print(FILE *out);
int ot_cards_print_json(void);

#endif

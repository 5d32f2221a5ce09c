/* What `offload-train plan` answers, for people and as JSON: the machine, the plan's bytes on every tier, the
 * predicted step lane by lane, and what a run costs. Both say the same numbers, and sums add up. */
#ifndef OT_CLI_PLAN_VIEW_H
#define OT_CLI_PLAN_VIEW_H

#include <stdio.h>

#include "models/model.h"
#include "offload/planner.h"
#include "src/cli/cards.h"
#include "src/cli/options.h"

struct ot_plan_view {
    const struct ot_options *options;
    const char *machine, *assumed; /* names it; what nobody said or measured, or "" */
    const struct ot_card *card;    /* NULL: this machine, measured */
    const char *model_name;
    const struct ot_model *model;
    enum ot_dtype dtype;
    const size_t *budget_bytes; /* [OT_TIER_COUNT] */
    size_t workspace_bytes;     /* of the gpu budget */
    int64_t seq_len, step_sequences;
    int64_t steps; /* of the run; 0: not said */
    const struct ot_costs *costs;
    const struct ot_planner_result *chosen;
    const struct ot_explanation *explanation; /* NULL: not asked for */
};

void ot_plan_view_print(const struct ot_plan_view *view, FILE *out);
/* One object. Errors: OT_E_BUDGET. */
int ot_plan_view_print_json(const struct ot_plan_view *view);

/* --gpu list */
void ot_cards_print(FILE *out);
int ot_cards_print_json(void);

#endif

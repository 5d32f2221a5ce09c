/* A plan for people: its ledger as a table, and where things live and who updates them in a line each. Of a
 * plan alone, without a session: for whoever has made one. */
#ifndef OT_REPORT_TABLE_H
#define OT_REPORT_TABLE_H

#include "offload/plan/plan.h"
#include "src/base/json.h"

enum { OT_TABLE_MAX_LINES = OT_LEDGER_MAX + 4, OT_TABLE_LINE_BYTES = 200 };

/* Rows of weights, optimizer, gradients, activations and other, or, for `full`, one for each name in the
 * ledger; a column per tier (nvme only where there is a budget for it), a total that the rounded rows add
 * up to exactly, and the budget. Returns the number of lines. */
int ot_report_table(const struct ot_ledger *ledger, const size_t budget_bytes[OT_TIER_COUNT], bool full,
                    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES]);

/* An array "ledger" of {tier, name, bytes}. */
void ot_report_put_ledger(const struct ot_ledger *ledger, struct ot_json_writer *w);

/* By tier: the slabs whose weights live there, and the tiles whose state does. */
struct ot_plan_homes {
    int64_t weights[OT_TIER_COUNT], state[OT_TIER_COUNT];
    int64_t slabs, tiles;
};
struct ot_plan_homes ot_report_count_homes(const struct ot_plan *plan);

/* "weights gpu 3, nvme 5 of 8 slabs · state nvme 8 of 8 tiles · activations host" */
const char *ot_report_homes(const struct ot_plan *plan, char line[OT_TABLE_LINE_BYTES]);
/* "gpu 3 of 8 tiles (37.5 %) · cpu 5 of 8 tiles (62.5 %)" */
const char *ot_report_engines(const struct ot_plan *plan, char line[OT_TABLE_LINE_BYTES]);

#endif

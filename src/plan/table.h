/* A table of predictions, a row for each case: cards and models side by side (compare), steps of several
 * sizes (sweep), or the least machines that can do it (minimum). As text, as Markdown and as JSON; all say
 * the same, JSON without rounding. A case that does not fit has a row too, with what would help.
 */
#ifndef OT_PLAN_TABLE_H
#define OT_PLAN_TABLE_H

#include <stdio.h>

#include "src/plan/case.h"

enum { OT_PLAN_LABEL_BYTES = 64, OT_PLAN_REASON_BYTES = 400, OT_PLAN_MAX_ROWS = 256 };

struct ot_plan_table_row {
    char label[OT_PLAN_LABEL_BYTES]; /* "all on the GPU"; "": the table's rows have no name */
    char card[OT_PLAN_LABEL_BYTES];  /* "rtx4090", "this machine" */
    char model[OT_PLAN_LABEL_BYTES];
    char reason[OT_PLAN_REASON_BYTES]; /* why there is no plan, and what helps; "": there is one */
    char where[OT_PLAN_LABEL_BYTES]; /* "gpu", "gpu, host, nvme": where weights, state and activations live */
    int64_t seq_len, step_tokens, micro_sequences, steps;
    int64_t ram_bytes; /* that the machine must have; 0: the host's total is shown */
    int64_t used_bytes[OT_TIER_COUNT];
    double step_seconds, slow_seconds, fast_seconds;
    double tokens_per_second, slow_rate, fast_rate, mfu;
    double run_seconds, run_price, million_price;
    char limit[OT_PLAN_LABEL_BYTES]; /* "computing 98 %" */
};

enum ot_plan_table_kind { OT_TABLE_COMPARE, OT_TABLE_SWEEP, OT_TABLE_MINIMUM };

struct ot_plan_table {
    enum ot_plan_table_kind kind;
    const struct ot_options *options;
    bool is_described; /* all rows are of described machines: numbers are rounded, ranges shown */
    int n;
    struct ot_plan_table_row rows[OT_PLAN_MAX_ROWS];
};

/* The next row, zeroed; NULL if the table is full. */
struct ot_plan_table_row *ot_plan_table_add(struct ot_plan_table *table);
/* Fills a row in from a case that was predicted. */
void ot_plan_table_fill(const struct ot_plan_case *plan_case, struct ot_plan_table_row *row);
/* A row without a plan: the last error's sentence. */
void ot_plan_table_refuse(struct ot_plan_table_row *row);

/* By --json and --markdown. Errors: OT_E_BUDGET. */
int ot_plan_table_print(const struct ot_plan_table *table, FILE *out);

/* ---- what fills tables ---- */

/* Every --gpu with every --model. Errors: what no row can say: OT_E_USAGE, OT_E_INPUT, OT_E_IO. */
int ot_plan_compare(const struct ot_options *options, struct ot_plan_table *table);
/* --sweep tokens-per-step. Errors: as ot_plan_compare. */
int ot_plan_sweep(const struct ot_options *options, struct ot_plan_table *table);
/* --minimum. Errors: as ot_plan_compare. */
int ot_plan_minimum(const struct ot_options *options, struct ot_plan_table *table);

/* Whether --gpu or --model names several. */
bool ot_plan_is_compared(const struct ot_options *options);

#endif

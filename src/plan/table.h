/* A table of predictions with a row for each case: cards, models and ways to train side by side (compare),
 * steps of several sizes (sweep), or the smallest machines for a model (minimum). It is printed as text,
 * Markdown or JSON. All three have the same figures; those in JSON are not rounded. A case that does not
 * fit has a row too, with the options that would help. */
#ifndef OT_PLAN_TABLE_H
#define OT_PLAN_TABLE_H

#include <stdio.h>

#include "src/plan/case.h"

enum { OT_PLAN_LABEL_BYTES = 64, OT_PLAN_REASON_BYTES = 400, OT_PLAN_MAX_ROWS = 256 };

struct ot_plan_table_row {
    char label[OT_PLAN_LABEL_BYTES]; /* "all on the GPU"; "": rows of this table have no label */
    char card[OT_PLAN_LABEL_BYTES];  /* "rtx4090", "this machine" */
    char model[OT_PLAN_LABEL_BYTES];
    char reason[OT_PLAN_REASON_BYTES]; /* why no plan fits, or the options that help; "": a plan fits */
    char where[OT_PLAN_LABEL_BYTES]; /* "gpu", "gpu, host, nvme": where weights, state and activations live */
    int64_t seq_len, step_tokens, micro_sequences, steps;
    int64_t ram_bytes; /* of a described machine, as given or assumed; of OT_TABLE_MINIMUM, that it needs */
    int64_t used_bytes[OT_TIER_COUNT];
    double step_seconds, slow_seconds, fast_seconds;
    double tokens_per_second, slow_rate, fast_rate, mfu;
    double run_seconds, run_price, million_price; /* prices: 0: unknown */
    bool is_late;                                 /* the run takes longer than --within */
    char limit[OT_PLAN_LABEL_BYTES];              /* "computing 98 %" */
};

enum ot_plan_table_kind { OT_TABLE_COMPARE, OT_TABLE_SWEEP, OT_TABLE_MINIMUM };

struct ot_plan_table {
    enum ot_plan_table_kind kind;
    const struct ot_options *options;
    bool is_described; /* all machines are described: figures are rounded and have ranges */
    bool is_open;      /* --gpu named a class: rows without a plan, or too slow, are told in a line */
    int expected;      /* rows of a comparison */
    int unpriced;      /* machines of the class that were left out: --price/h does not name them */
    int n;
    struct ot_plan_table_row rows[OT_PLAN_MAX_ROWS];
};

/* Adds a zeroed row. Returns NULL if the table is full. */
struct ot_plan_table_row *ot_plan_table_add(struct ot_plan_table *table);
/* Fills in a row from a predicted case. */
void ot_plan_table_fill(const struct ot_plan_case *plan_case, struct ot_plan_table_row *row);
/* Marks a row as having no plan. The reason is the cure in the last error's text, or else that whole text. */
void ot_plan_table_refuse(struct ot_plan_table_row *row);

/* Sorts the rows of a comparison as --sort says: first those with a plan that is fast enough for --within. */
void ot_plan_table_sort(struct ot_plan_table *table);

/* Prints the table as --json and --markdown require. JSON goes to stdout, not to `out`. Errors: OT_E_BUDGET.
 */
int ot_plan_table_print(const struct ot_plan_table *table, FILE *out);

/* Prints the lines after the rows of a comparison: the best of each way to train, and the machines without an
 * answer. */
void ot_plan_table_print_ends(const struct ot_plan_table *table, FILE *out);

/* ---- functions that fill a table ---- */

/* Every --gpu, or every machine of its classes, with every --model, and with --methods every way to train.
 * A case that does not fit gets a row and is no error. Errors: OT_E_USAGE, OT_E_INPUT, OT_E_IO. */
int ot_plan_compare(const struct ot_options *options, struct ot_plan_table *table);
/* --sweep tokens-per-step. Errors: as ot_plan_compare. */
int ot_plan_sweep(const struct ot_options *options, struct ot_plan_table *table);
/* --minimum. Errors: as ot_plan_compare. */
int ot_plan_minimum(const struct ot_options *options, struct ot_plan_table *table);

/* Returns true if --gpu or --model is a list, or with --methods. */
bool ot_plan_is_compared(const struct ot_options *options);

#endif

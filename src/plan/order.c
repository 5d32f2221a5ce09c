/* Orders the rows of a comparison, and prints the lines after them: the best rows, and the machines without
 * an answer. */
#include <stdlib.h>
#include <string.h>

#include "src/base/units.h"
#include "src/plan/table.h"

/* ---- the order ---- */

static bool has_prices(const struct ot_plan_table *table) {
    bool has = false;
    for (int i = 0; i < table->n; i++)
        has = has || table->rows[i].million_price > 0;
    return has;
}

/* OT_SORT_AUTO is settled. */
static enum ot_sort sort_of(const struct ot_plan_table *table) {
    enum ot_sort sort = (enum ot_sort)table->options->sort;
    const char *price = table->options->price;
    bool named = price && price[strspn(price, "0123456789.")]; /* not one number for all */
    if (table->kind != OT_TABLE_COMPARE)
        return OT_SORT_NONE;
    if (sort != OT_SORT_AUTO)
        return sort;
    if (!table->is_open && !named && table->options->within == 0)
        return OT_SORT_NONE;
    return has_prices(table) ? OT_SORT_PRICE : OT_SORT_TIME;
}

/* 0: an answer; 1: takes too long; 2: does not fit. */
static int class_of(const struct ot_plan_table_row *row) {
    return *row->reason ? 2 : row->is_late;
}

static double price_of(const struct ot_plan_table_row *row) {
    return row->run_price > 0 ? row->run_price : row->million_price;
}

/* True if a comes before b. */
static bool is_before(const struct ot_plan_table_row *a, const struct ot_plan_table_row *b,
                      enum ot_sort sort) {
    if (class_of(a) != class_of(b) || *a->reason)
        return class_of(a) < class_of(b);
    if (sort == OT_SORT_PRICE && price_of(a) != price_of(b))
        return price_of(b) == 0 ||
               (price_of(a) > 0 && price_of(a) < price_of(b)); /* unknown prices come last */
    if (a->run_seconds != b->run_seconds)
        return a->run_seconds < b->run_seconds;
    return a->tokens_per_second > b->tokens_per_second;
}

/* By insertion: rows that are equal keep their order. */
void ot_plan_table_sort(struct ot_plan_table *table) {
    enum ot_sort sort = sort_of(table);
    for (int i = 1; i < table->n && sort != OT_SORT_NONE; i++) {
        struct ot_plan_table_row row = table->rows[i];
        int at = i;
        for (; at > 0 && is_before(&row, &table->rows[at - 1], sort); at--)
            table->rows[at] = table->rows[at - 1];
        table->rows[at] = row;
    }
}

/* ---- lines after the rows ---- */

/* "Cheapest: LoRA on rtx4090, 7h12m, 2.88 in all; all parameters on h100, 5h01m, 12.55 in all." */
static void print_best(const struct ot_plan_table *table, FILE *out) {
    bool by_price = sort_of(table) == OT_SORT_PRICE, first = true;
    char time[OT_TEXT_BYTES], limit[OT_TEXT_BYTES];
    for (int i = 0; i < table->n && class_of(&table->rows[i]) == 0; i++) {
        const struct ot_plan_table_row *row = &table->rows[i];
        bool earlier = false; /* the same way and model */
        for (int j = 0; j < i; j++)
            earlier = earlier || (strcmp(table->rows[j].label, row->label) == 0 &&
                                  strcmp(table->rows[j].model, row->model) == 0);
        if (earlier)
            continue;
        if (first)
            fprintf(out, "%s%s%s: ", by_price ? "Cheapest" : "Fastest",
                    table->options->within > 0 ? " within " : "",
                    table->options->within > 0 ? ot_text_duration(table->options->within, limit) : "");
        fprintf(out, "%s%s%s%s", first ? "" : "; ", row->label, *row->label ? " on " : "", row->card);
        if (row->steps)
            fprintf(out, ", %s", ot_text_duration(row->run_seconds, time));
        if (by_price && row->run_price > 0)
            fprintf(out, ", %.2f", row->run_price);
        else if (by_price)
            fprintf(out, ", %.3f a million tokens", row->million_price);
        first = false;
    }
    if (!first)
        fputs(".\n", out);
}

/* A line for each way to train with the machines of a class: "Does not fit: all parameters: t4, rtx3060." */
static void print_class(const struct ot_plan_table *table, int class, const char *what, FILE *out) {
    for (int i = 0; i < table->n; i++) {
        bool first = class_of(&table->rows[i]) == class;
        for (int j = 0; j < i; j++)
            first = first && (class_of(&table->rows[j]) != class ||
                              strcmp(table->rows[j].label, table->rows[i].label) != 0);
        if (!first)
            continue;
        fprintf(out, "%s%s%s: ", what, *table->rows[i].label ? ", " : "", table->rows[i].label);
        for (int j = i; j < table->n; j++)
            if (class_of(&table->rows[j]) == class && strcmp(table->rows[j].label, table->rows[i].label) == 0)
                fprintf(out, "%s%s", j > i ? ", " : "", table->rows[j].card);
        fputs(".\n", out);
    }
}

void ot_plan_table_print_ends(const struct ot_plan_table *table, FILE *out) {
    char limit[OT_TEXT_BYTES], late[2 * OT_TEXT_BYTES];
    if (sort_of(table) == OT_SORT_NONE)
        return;
    if (table->options->markdown)
        fputc('\n', out);
    print_best(table, out);
    if (!table->is_open)
        return;
    snprintf(late, sizeof late, "Takes longer than %s", ot_text_duration(table->options->within, limit));
    print_class(table, 1, late, out);
    print_class(table, 2, "Does not fit (more --ram or --nvme may help)", out);
    if (table->unpriced > 0)
        fprintf(out, "%d machine%s left out: --price/h does not name %s.\n", table->unpriced,
                table->unpriced == 1 ? " is" : "s are", table->unpriced == 1 ? "it" : "them");
}

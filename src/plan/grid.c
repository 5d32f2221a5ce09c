/* Fills the tables of `plan` with many cases: the comparison and the sweep. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/units.h"
#include "src/plan/machines.h"
#include "src/plan/table.h"

/* ---- lists of names ---- */

/* A name from a list that is separated by commas. */
struct word {
    char text[4096];
};

/* Takes the next name from *at and moves *at behind it. Returns false after the last name. An empty name
 * ("a,,b") is returned as it is: the caller's search for it fails. */
static bool next_word(const char **at, struct word *out) {
    if (!*at)
        return false;
    const char *comma = strchr(*at, ',');
    size_t n = comma ? (size_t)(comma - *at) : strlen(*at);
    n = ot_min(n, sizeof out->text - 1);
    memcpy(out->text, *at, n);
    out->text[n] = '\0';
    *at = comma ? comma + 1 : NULL;
    return true;
}

/* A text with a comma is a list, unless it is the path of an existing file. */
static bool is_list(const char *text) {
    return text && strchr(text, ',') && access(text, F_OK) != 0;
}

bool ot_plan_is_compared(const struct ot_options *o) {
    return is_list(o->gpu) || (o->gpu && ot_machines_have_class(o->gpu)) || is_list(o->model) || o->methods;
}

/* ---- comparing ---- */

/* The last part of a path; a name without a slash as it is. */
static const char *short_name(const char *model) {
    const char *slash = strrchr(model, '/');
    return slash && slash[1] ? slash + 1 : model;
}

/* A class of machines takes minutes. Only a terminal shows this. */
static void show_progress(const struct ot_options *options, const struct ot_plan_table *table,
                          const struct ot_plan_table_row *row) {
    char line[3 * OT_PLAN_LABEL_BYTES];
    snprintf(line, sizeof line, "planning %d of %d: %s%s%s", table->n, table->expected, row->card,
             *row->label ? ", " : "", row->label);
    if (!options->quiet && table->expected > 1)
        ot_log_set_status(line);
}

/* way: the label of the row. */
static int add_case(const struct ot_options *options, const char *way, const char *model, const char *gpu,
                    struct ot_plan_case *c, struct ot_plan_table *table) {
    struct ot_plan_table_row *row = ot_plan_table_add(table);
    if (!row)
        return ot_fail(OT_E_USAGE, "more than %d rows of --gpu, --model and --methods to compare",
                       OT_PLAN_MAX_ROWS);
    snprintf(row->label, sizeof row->label, "%s", way);
    snprintf(row->card, sizeof row->card, "%.63s", gpu ? gpu : "this machine");
    snprintf(row->model, sizeof row->model, "%.63s", short_name(model));
    show_progress(options, table, row);
    int rc = ot_plan_case_open(options, model, gpu, c);
    c->wants_cures = !table->is_open;
    row->seq_len = c->seq_len;
    row->step_tokens = c->step_sequences * c->seq_len;
    if (rc == 0)
        rc = ot_plan_case_predict(c);
    if (rc == 0)
        ot_plan_table_fill(c, row);
    if (rc == -OT_E_BUDGET) {
        ot_plan_table_refuse(row);
        rc = 0;
    }
    ot_log_set_status("");
    ot_plan_case_close(c);
    return rc;
}

/* The ways to train that --methods compares. */
static const struct method {
    const char *way;
    bool has_adapters;
    enum ot_base_type base;
} methods[] = {{"all parameters", false, OT_BASE_AUTO},
               {"LoRA", true, OT_BASE_AUTO},
               {"QLoRA, int8", true, OT_BASE_INT8},
               {"QLoRA, nf4", true, OT_BASE_NF4},
               {"QLoRA, nf4-double", true, OT_BASE_NF4_DOUBLE}};
enum { N_METHODS = sizeof methods / sizeof *methods };

/* Adds a row, or with --methods a row for each way to train. */
static int add_ways(const struct ot_options *options, const char *model, const char *gpu,
                    struct ot_plan_case *c, struct ot_plan_table *table) {
    if (!options->methods)
        return add_case(options, "", model, gpu, c, table);
    for (int i = 0; i < N_METHODS; i++) {
        struct ot_options one = *options;
        one.lora = !methods[i].has_adapters ? NULL : options->lora ? options->lora : "r=16";
        one.base_type = methods[i].base;
        OT_TRY(add_case(&one, methods[i].way, model, gpu, c, table));
    }
    return 0;
}

/* The machines that --gpu names; without it, this machine. */
static int find_machines(const struct ot_options *o, struct ot_machines *machines,
                         struct ot_plan_table *table) {
    struct ot_prices prices;
    OT_TRY(ot_prices_read(o->price, &prices));
    *machines = (struct ot_machines){.n = 1};
    if (o->gpu)
        OT_TRY(ot_machines_expand(o->gpu, &prices, machines));
    table->is_described = o->gpu != NULL;
    table->is_open = machines->is_open;
    table->unpriced = machines->unpriced;
    return 0;
}

static int count_models(const char *list) {
    int n = 1;
    for (const char *at = list; is_list(list) && (at = strchr(at, ',')); at++)
        n++;
    return n;
}

int ot_plan_compare(const struct ot_options *o, struct ot_plan_table *table) {
    struct ot_plan_case *c = malloc(sizeof *c);
    struct ot_machines *machines = malloc(sizeof *machines);
    struct word *model = malloc(sizeof *model);
    int rc = 0;
    if (!c || !machines || !model)
        OT_TRY_GOTO(ot_fail(OT_E_BUDGET, "no memory for a comparison"), rc, out);
    OT_TRY_GOTO(find_machines(o, machines, table), rc, out);
    table->expected = machines->n * count_models(o->model) * (o->methods ? N_METHODS : 1);
    for (const char *models = o->model; rc == 0 && models;) {
        bool whole = !is_list(o->model);
        if (whole)
            models = NULL;
        else
            next_word(&models, model);
        for (int i = 0; rc == 0 && i < machines->n; i++)
            rc = add_ways(o, whole ? o->model : model->text, machines->names[i], c, table);
    }
    ot_plan_table_sort(table);
out:
    free(model);
    free(machines);
    free(c);
    return rc;
}

/* ---- sweeping ---- */

/* From the smallest step in use to a step so large that the optimizer's time hardly matters. */
enum { FEWEST_TOKENS = 2 << 10, MOST_TOKENS = 256 << 10 };

int ot_plan_sweep(const struct ot_options *options, struct ot_plan_table *table) {
    struct ot_plan_case *c = malloc(sizeof *c);
    struct ot_options one = *options;
    int rc = 0;
    if (!c)
        return ot_fail(OT_E_BUDGET, "no memory for a sweep");
    table->is_described = options->gpu != NULL;
    int64_t *tokens = &one.tokens_per_step.count;
    for (*tokens = FEWEST_TOKENS; *tokens <= MOST_TOKENS && rc == 0; *tokens *= 2)
        if (*tokens >= options->seq_len)
            rc = add_case(&one, "", options->model, options->gpu, c, table);
    free(c);
    if (rc == 0 && table->n == 0)
        return ot_fail(OT_E_USAGE,
                       "--sweep goes up to %d tokens a step, and --seq-len %lld is longer; lower --seq-len",
                       MOST_TOKENS, (long long)options->seq_len);
    return rc;
}

/* ---- order ---- */

/* Orders the rows of a comparison, and prints the lines after them: the best rows, and the machines without
 * an answer. */

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

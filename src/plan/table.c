#include "src/plan/table.h"

#include <string.h>

#include "src/base/error.h"
#include "src/base/json.h"
#include "src/plan/print_plan.h"
#include "src/report/forecast.h"
#include "src/report/table.h"

/* ---- rows ---- */

struct ot_plan_table_row *ot_plan_table_add(struct ot_plan_table *table) {
    if (table->n == OT_PLAN_MAX_ROWS)
        return NULL;
    struct ot_plan_table_row *row = &table->rows[table->n++];
    memset(row, 0, sizeof *row);
    return row;
}

/* "gpu, host": the tiers that weights, state, gradients or activations live on. */
static void name_tiers(const struct ot_plan *plan, char text[OT_PLAN_LABEL_BYTES]) {
    const struct ot_plan_homes homes = ot_report_count_homes(plan);
    int used = 0;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (homes.weights[t] || homes.state[t] || homes.grads[t] || (int)plan->activations == t)
            used += snprintf(text + used, OT_PLAN_LABEL_BYTES - (size_t)used, "%s%s", used ? ", " : "",
                             ot_tier_name((enum ot_tier)t));
}

static void name_limit(const struct ot_prediction *p, char text[OT_PLAN_LABEL_BYTES]) {
    struct ot_explanation e = {0};
    ot_planner_find_bound(p, &e);
    snprintf(text, OT_PLAN_LABEL_BYTES, "%s %.0f %%",
             e.bound == OT_LANE_COMPUTE ? "computing" : ot_lane_name(e.bound), 100 * e.bound_share);
}

void ot_plan_table_fill(const struct ot_plan_case *c, struct ot_plan_table_row *row) {
    const struct ot_plan_answer a = ot_plan_case_answer(c);
    const struct ot_plan *plan = &c->chosen.plan;
    const struct ot_ledger ledger = ot_plan_view_ledger(c);
    name_tiers(plan, row->where);
    name_limit(&c->chosen.prediction, row->limit);
    row->seq_len = c->seq_len;
    row->step_tokens = c->request.step_sequences * c->seq_len;
    row->micro_sequences = ot_plan_micro_sequences(plan, c->seq_len);
    row->steps = c->steps;
    for (int t = 0; t < OT_TIER_COUNT; t++)
        row->used_bytes[t] = (int64_t)ot_ledger_total(&ledger, (enum ot_tier)t);
    row->step_seconds = c->chosen.prediction.step_seconds;
    row->slow_seconds = c->slow_seconds;
    row->fast_seconds = c->fast_seconds;
    row->tokens_per_second = a.tokens_per_second;
    row->slow_rate = a.slow_rate;
    row->fast_rate = a.fast_rate;
    row->mfu = a.mfu;
    row->run_seconds = a.run_seconds;
    row->run_price = a.run_price;
    row->million_price = a.million_price;
    row->ram_bytes = c->machine.card ? c->machine.described.host_ram_bytes : 0;
    row->is_late = c->options->within > 0 && row->run_seconds > c->options->within;
}

void ot_plan_table_refuse(struct ot_plan_table_row *row) {
    const char *cures = ot_error_cures();
    snprintf(row->reason, sizeof row->reason, "%.*s", OT_PLAN_REASON_BYTES - 1,
             *cures ? cures : ot_error_text());
}

/* ---- cells ---- */

enum { CELL_BYTES = 64 };

static void put_text(const char *text, char cell[CELL_BYTES]) {
    snprintf(cell, CELL_BYTES, "%.*s", CELL_BYTES - 1, text);
}

static void put_rate(const struct ot_plan_table *table, double value, char cell[CELL_BYTES]) {
    char text[OT_TEXT_BYTES];
    put_text(ot_text_rate(table->is_described ? ot_three_digits(value) : value, text), cell);
}

static void put_gib(int64_t bytes, char cell[CELL_BYTES]) {
    if (bytes)
        snprintf(cell, CELL_BYTES, "%.1f", (double)bytes / 0x1p30);
    else
        put_text("-", cell);
}

enum column {
    COLUMN_LABEL,
    COLUMN_CARD,
    COLUMN_MODEL,
    COLUMN_TOKENS,
    COLUMN_MICRO,
    COLUMN_WHERE,
    COLUMN_GPU,
    COLUMN_HOST,
    COLUMN_RAM,
    COLUMN_NVME,
    COLUMN_STEP,
    COLUMN_RATE,
    COLUMN_RANGE,
    COLUMN_MFU,
    COLUMN_RUN,
    COLUMN_PRICE,
    COLUMN_MILLION,
    COLUMN_LIMIT,
    COLUMN_COUNT
};
static const struct {
    const char *title;
    bool is_left; /* aligned */
} columns[COLUMN_COUNT] = {[COLUMN_LABEL] = {"way", true},
                           [COLUMN_CARD] = {"card", true},
                           [COLUMN_MODEL] = {"model", true},
                           [COLUMN_TOKENS] = {"tokens a step", false},
                           [COLUMN_MICRO] = {"micro-batch", false},
                           [COLUMN_WHERE] = {"lives on", true},
                           [COLUMN_GPU] = {"GPU GiB", false},
                           [COLUMN_HOST] = {"host GiB", false},
                           [COLUMN_RAM] = {"RAM GiB", false},
                           [COLUMN_NVME] = {"disk GiB", false},
                           [COLUMN_STEP] = {"s a step", false},
                           [COLUMN_RATE] = {"tokens/s", false},
                           [COLUMN_RANGE] = {"range", false},
                           [COLUMN_MFU] = {"MFU", false},
                           [COLUMN_RUN] = {"run", false},
                           [COLUMN_PRICE] = {"price", false},
                           [COLUMN_MILLION] = {"per M tokens", false},
                           [COLUMN_LIMIT] = {"limit", true}};

static void put_cell(const struct ot_plan_table *table, const struct ot_plan_table_row *row,
                     enum column column, char cell[CELL_BYTES]) {
    char from[CELL_BYTES], to[CELL_BYTES], text[OT_TEXT_BYTES];
    switch (column) {
    case COLUMN_LABEL:
        return put_text(row->label, cell);
    case COLUMN_CARD:
        return put_text(row->card, cell);
    case COLUMN_MODEL:
        return put_text(row->model, cell);
    case COLUMN_TOKENS:
        return put_text(ot_text_count(row->step_tokens, text), cell);
    case COLUMN_MICRO:
        snprintf(cell, CELL_BYTES, "%lld", (long long)row->micro_sequences);
        return;
    case COLUMN_WHERE:
        return put_text(row->where, cell);
    case COLUMN_GPU:
        return put_gib(row->used_bytes[OT_TIER_GPU], cell);
    case COLUMN_HOST:
        return put_gib(row->used_bytes[OT_TIER_HOST], cell);
    case COLUMN_RAM:
        return put_gib(row->ram_bytes, cell);
    case COLUMN_NVME:
        return put_gib(row->used_bytes[OT_TIER_NVME], cell);
    case COLUMN_STEP:
        snprintf(cell, CELL_BYTES, "%.*f",
                 row->step_seconds >= 100  ? 0
                 : row->step_seconds >= 10 ? 1
                                           : 2,
                 row->step_seconds);
        if (row->step_seconds < 1)
            snprintf(cell, CELL_BYTES, "%#.3g", row->step_seconds);
        return;
    case COLUMN_RATE:
        return put_rate(table, row->tokens_per_second, cell);
    case COLUMN_RANGE:
        put_rate(table, row->slow_rate, from);
        put_rate(table, row->fast_rate, to);
        snprintf(cell, CELL_BYTES, "%.20s-%.20s", from, to);
        return;
    case COLUMN_MFU:
        snprintf(cell, CELL_BYTES, "%.0f %%", 100 * row->mfu);
        return;
    case COLUMN_RUN:
        return put_text(ot_text_duration(row->run_seconds, text), cell);
    case COLUMN_PRICE:
        snprintf(cell, CELL_BYTES, row->run_price > 0 ? "%.2f" : "-", row->run_price);
        return;
    case COLUMN_MILLION:
        snprintf(cell, CELL_BYTES, row->million_price > 0 ? "%.3f" : "-", row->million_price);
        return;
    case COLUMN_LIMIT:
        return put_text(row->limit, cell);
    case COLUMN_COUNT:
        break;
    }
    *cell = '\0';
}

/* ---- which columns ---- */

/* True if a line above the table has the values that all rows share. A class of machines has many rows of one
 * model. */
static bool has_title(const struct ot_plan_table *table) {
    bool same = table->is_open;
    for (int i = 1; i < table->n; i++)
        same = same && strcmp(table->rows[i].model, table->rows[0].model) == 0;
    return table->kind != OT_TABLE_COMPARE || same;
}

static int choose_columns(const struct ot_plan_table *table, enum column out[COLUMN_COUNT]) {
    static const bool shows[][COLUMN_COUNT] = {
        [OT_TABLE_COMPARE] = {[COLUMN_CARD] = true, [COLUMN_WHERE] = true, [COLUMN_HOST] = true},
        [OT_TABLE_SWEEP] =
            {[COLUMN_TOKENS] = true, [COLUMN_MICRO] = true, [COLUMN_MFU] = true, [COLUMN_HOST] = true},
        [OT_TABLE_MINIMUM] = {[COLUMN_LABEL] = true, [COLUMN_CARD] = true, [COLUMN_RAM] = true}};
    bool show[COLUMN_COUNT] = {
        [COLUMN_GPU] = true, [COLUMN_STEP] = true, [COLUMN_RATE] = true, [COLUMN_LIMIT] = true};
    int n = 0;
    show[COLUMN_RANGE] = table->is_described;
    show[COLUMN_TOKENS] = table->options->tokens_per_step.most > 0; /* each case has its own choice */
    show[COLUMN_MODEL] = table->kind == OT_TABLE_COMPARE && !has_title(table);
    for (int i = 0; i < table->n; i++) {
        show[COLUMN_NVME] = show[COLUMN_NVME] || table->rows[i].used_bytes[OT_TIER_NVME] > 0;
        show[COLUMN_LABEL] = show[COLUMN_LABEL] || *table->rows[i].label;
        show[COLUMN_RUN] = show[COLUMN_RUN] || table->rows[i].steps > 0;
        show[COLUMN_PRICE] = show[COLUMN_PRICE] || table->rows[i].run_price > 0;
        show[COLUMN_MILLION] = show[COLUMN_MILLION] || table->rows[i].million_price > 0;
        show[COLUMN_RAM] = show[COLUMN_RAM] || (table->kind == OT_TABLE_COMPARE && table->rows[i].ram_bytes);
    }
    for (int c = 0; c < COLUMN_COUNT; c++)
        if (show[c] || shows[table->kind][c])
            out[n++] = (enum column)c;
    return n;
}

/* Returns true for columns that a row without a plan has too. The reason takes the place of its other
 * columns. */
static bool is_name(enum column column, enum ot_plan_table_kind kind) {
    return column == COLUMN_LABEL || column == COLUMN_CARD || column == COLUMN_MODEL ||
           (column == COLUMN_TOKENS && kind == OT_TABLE_SWEEP);
}

/* ---- printing ---- */

/* A row that has the values that all rows share. A row that fits nowhere may lack the length of sequences. */
static const struct ot_plan_table_row *find_told(const struct ot_plan_table *table) {
    for (int i = 0; i < table->n; i++)
        if (table->rows[i].seq_len > 0)
            return &table->rows[i];
    return &table->rows[0];
}

/* Prints the values that all rows share: the model and the step size or the card. */
static void print_title(const struct ot_plan_table *table, FILE *out) {
    const struct ot_plan_table_row *row = find_told(table);
    if (row->seq_len == 0) {
        fprintf(out, "%s\n%s", row->model, table->options->markdown ? "\n" : "");
        return;
    }
    char tokens[OT_TEXT_BYTES];
    if (table->options->tokens_per_step.most > 0) { /* each row has its own step */
        fprintf(out, "%s · sequences of %lld tokens\n%s", row->model, (long long)row->seq_len,
                table->options->markdown ? "\n" : "");
        return;
    }
    fprintf(out, "%s · sequences of %lld tokens", row->model, (long long)row->seq_len);
    if (table->kind == OT_TABLE_SWEEP)
        fprintf(out, " · %s\n", row->card);
    else
        fprintf(out, " · %s tokens a step\n", ot_text_count(row->step_tokens, tokens));
    if (table->options->markdown)
        fputc('\n', out);
}

/* In a table of machine classes, rows without an answer get one line each. */
static bool is_hidden(const struct ot_plan_table *table, int row) {
    return table->is_open && (*table->rows[row].reason || table->rows[row].is_late);
}

static bool hides_all(const struct ot_plan_table *table) {
    bool all = true;
    for (int i = 0; i < table->n; i++)
        all = all && is_hidden(table, i);
    return all;
}

static void print_text(const struct ot_plan_table *table, const enum column *shown_columns, int n,
                       FILE *out) {
    int width[COLUMN_COUNT] = {0};
    char cell[CELL_BYTES];
    for (int c = 0; c < n; c++) {
        width[c] = (int)strlen(columns[shown_columns[c]].title);
        for (int i = 0; i < table->n; i++) {
            put_cell(table, &table->rows[i], shown_columns[c], cell);
            int length = (int)strlen(cell);
            if (is_hidden(table, i))
                continue;
            if ((!*table->rows[i].reason || is_name(shown_columns[c], table->kind)) && length > width[c])
                width[c] = length;
        }
    }
    for (int i = -1; i < table->n; i++) {
        const struct ot_plan_table_row *row = i < 0 ? NULL : &table->rows[i];
        if (row && is_hidden(table, i))
            continue;
        for (int c = 0; c < n; c++) {
            bool left = columns[shown_columns[c]].is_left;
            if (row && *row->reason && !is_name(shown_columns[c], table->kind)) {
                fprintf(out, "  does not fit: %s", row->reason);
                break;
            }
            if (row)
                put_cell(table, row, shown_columns[c], cell);
            else
                put_text(columns[shown_columns[c]].title, cell);
            fprintf(out, "%s%*s", c ? "  " : "", c == n - 1 && left ? 0 : left ? -width[c] : width[c], cell);
        }
        fputc('\n', out);
    }
}

static void print_markdown(const struct ot_plan_table *table, const enum column *shown_columns, int n,
                           FILE *out) {
    char cell[CELL_BYTES];
    for (int c = 0; c < n; c++)
        fprintf(out, "| %s ", columns[shown_columns[c]].title);
    fputs("|\n", out);
    for (int c = 0; c < n; c++)
        fputs(columns[shown_columns[c]].is_left ? "|---" : "|---:", out);
    fputs("|\n", out);
    for (int i = 0; i < table->n; i++) {
        const struct ot_plan_table_row *row = &table->rows[i];
        bool said = false;
        if (is_hidden(table, i))
            continue;
        for (int c = 0; c < n; c++) {
            bool name = is_name(shown_columns[c], table->kind);
            put_cell(table, row, shown_columns[c], cell);
            if (*row->reason && !name)
                *cell = '\0';
            if (*row->reason && !name && !said)
                fprintf(out, "| does not fit: %s ", row->reason);
            else
                fprintf(out, "| %s%s", cell, *cell ? " " : "");
            said = said || (*row->reason && !name);
        }
        fputs("|\n", out);
    }
}

/* Writes the figures of a row with a plan. */
static void put_answer(const struct ot_plan_table *table, const struct ot_plan_table_row *row,
                       struct ot_json_writer *w) {
    ot_json_put_int(w, "micro_sequences", row->micro_sequences);
    ot_json_put_text(w, "where", row->where);
    ot_json_begin_object(w, "used_bytes");
    for (int t = 0; t < OT_TIER_COUNT; t++)
        ot_json_put_int(w, ot_tier_name((enum ot_tier)t), row->used_bytes[t]);
    ot_json_end_object(w);
    if (row->ram_bytes)
        ot_json_put_int(w, "ram_bytes", row->ram_bytes);
    ot_json_put_real(w, "step_seconds", row->step_seconds);
    ot_json_put_real(w, "slow_step_seconds", row->slow_seconds);
    ot_json_put_real(w, "fast_step_seconds", row->fast_seconds);
    ot_json_put_real(w, "tokens_per_s", row->tokens_per_second);
    ot_json_put_real(w, "mfu", row->mfu);
    ot_json_put_text(w, "limit", row->limit);
    if (table->options->within > 0)
        ot_json_put_bool(w, "within", !row->is_late);
    if (row->steps) {
        ot_json_put_int(w, "steps", row->steps);
        ot_json_put_real(w, "run_seconds", row->run_seconds);
    }
    if (row->million_price > 0)
        ot_json_put_real(w, "price_per_million_tokens", row->million_price);
    if (row->run_price > 0)
        ot_json_put_real(w, "price", row->run_price);
}

static void put_row(const struct ot_plan_table *table, const struct ot_plan_table_row *row,
                    struct ot_json_writer *w) {
    ot_json_begin_object(w, NULL);
    if (*row->label)
        ot_json_put_text(w, "way", row->label);
    ot_json_put_text(w, "card", row->card);
    ot_json_put_text(w, "model", row->model);
    ot_json_put_int(w, "sequence_tokens", row->seq_len);
    ot_json_put_bool(w, "fits", !*row->reason);
    if (table->kind == OT_TABLE_SWEEP || !*row->reason)
        ot_json_put_int(w, "step_tokens", row->step_tokens);
    if (*row->reason)
        ot_json_put_text(w, "helps", row->reason);
    else
        put_answer(table, row, w);
    ot_json_end_object(w);
}

static int print_json(const struct ot_plan_table *table) {
    static const char *const names[] = {"compare", "sweep", "minimum"};
    struct ot_json_writer w = {.indent = -1};
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "version", OT_VERSION);
    ot_options_put_json(table->options, "options", &w);
    ot_options_put_sources(table->options, "sources", &w);
    ot_json_put_bool(&w, "described", table->is_described);
    ot_json_begin_array(&w, names[table->kind]);
    for (int i = 0; i < table->n; i++)
        put_row(table, &table->rows[i], &w);
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    return ot_json_print(&w);
}

int ot_plan_table_print(const struct ot_plan_table *table, FILE *out) {
    enum column shown_columns[COLUMN_COUNT];
    if (table->options->json)
        return print_json(table);
    int n = choose_columns(table, shown_columns);
    if (has_title(table))
        print_title(table, out);
    bool is_empty = hides_all(table);
    if (!is_empty && table->options->markdown)
        print_markdown(table, shown_columns, n, out);
    else if (!is_empty)
        print_text(table, shown_columns, n, out);
    ot_plan_table_print_ends(table, out);
    const struct ot_options *o = table->options;
    bool assumes_ram = table->kind == OT_TABLE_COMPARE && !o->ram && !o->host_mem;
    if (table->is_described)
        fprintf(out,
                "%sEstimated from data sheets and assumptions; not measured. %s with one card and model says "
                "how.%s\n",
                o->markdown ? "\n" : "", o->markdown ? "`offload-train plan --explain`" : "--explain",
                assumes_ram ? " The RAM of cards is assumed: --ram." : "");
    return 0;
}

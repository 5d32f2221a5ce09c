#include "src/report/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- the table ---- */

/* A cell, rounded so that the rows add up: the difference of the rounded running sums. */
static const char *format_cell(double value, double *running, char cell[16]) {
    double before = round(*running * 10);
    *running += value;
    if (value > 0)
        snprintf(cell, 16, "%.1f", (round(*running * 10) - before) / 10);
    return value > 0 ? cell : "-";
}

static void print_row(char line[OT_TABLE_LINE_BYTES], const char *name, int tiers,
                      const char *const cells[OT_TIER_COUNT]) {
    int used = snprintf(line, OT_TABLE_LINE_BYTES, "          %-24s", name);
    for (int t = 0; t < tiers; t++)
        used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " %12s", cells[t]);
}

static void print_numbers(char line[OT_TABLE_LINE_BYTES], const char *name, int tiers,
                          const double values[OT_TIER_COUNT]) {
    char text[OT_TIER_COUNT][16];
    const char *cells[OT_TIER_COUNT];
    for (int t = 0; t < tiers; t++) {
        snprintf(text[t], sizeof text[t], "%.1f", values[t]);
        cells[t] = text[t];
    }
    print_row(line, name, tiers, cells);
}

/* The sums of all entries that are named as entry i; false if an earlier one was named so. */
static bool sum_entries(const struct ot_ledger *ledger, int i, double sums[OT_TIER_COUNT]) {
    for (int j = 0; j < ledger->n; j++)
        if (strcmp(ledger->entries[j].name, ledger->entries[i].name) == 0) {
            if (j < i)
                return false;
            sums[ledger->entries[j].tier] += (double)ledger->entries[j].bytes;
        }
    return true;
}

/* The row of the short table that an entry belongs to: by a word of its name, in this order. */
static const char *group_of(const char *name) {
    static const char *const words[][2] = {{"activation", "activations"},
                                           {"gradient", "gradients"},
                                           {"weight", "weights"},
                                           {"optimizer", "optimizer"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i][0]))
            return words[i][1];
    return "other";
}

/* The ledger with five names, in the order of the table. */
static struct ot_ledger grouped(const struct ot_ledger *ledger) {
    static const char *const rows[] = {"weights", "optimizer", "gradients", "activations", "other"};
    struct ot_ledger short_one = {0};
    for (int r = 0; r < 5; r++)
        for (int t = 0; t < OT_TIER_COUNT; t++) {
            struct ot_ledger_entry sum = {(enum ot_tier)t, rows[r], 0};
            for (int i = 0; i < ledger->n; i++)
                if (ledger->entries[i].tier == sum.tier &&
                    strcmp(group_of(ledger->entries[i].name), rows[r]) == 0)
                    sum.bytes += ledger->entries[i].bytes;
            short_one.entries[short_one.n++] = sum;
        }
    return short_one;
}

/* One line for the sums of a name; false where there is nothing to show. */
static bool put_sums(const double sums[OT_TIER_COUNT], const char *name, int tiers, double unit,
                     double running[OT_TIER_COUNT], char line[OT_TABLE_LINE_BYTES]) {
    char text[OT_TIER_COUNT][16];
    const char *cells[OT_TIER_COUNT];
    double sum = 0;
    for (int t = 0; t < tiers; t++) {
        sum += sums[t];
        cells[t] = format_cell(sums[t] / unit, &running[t], text[t]);
    }
    if (sum > 0)
        print_row(line, name, tiers, cells);
    return sum > 0;
}

int ot_report_table(const struct ot_ledger *full_ledger, const size_t budget_bytes[OT_TIER_COUNT], bool full,
                    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES]) {
    static const char *const titles[OT_TIER_COUNT] = {"gpu", "host", "nvme"};
    const struct ot_ledger ledger = full ? *full_ledger : grouped(full_ledger);
    int tiers = budget_bytes[OT_TIER_NVME] ? OT_TIER_COUNT : OT_TIER_NVME, n = 0;
    bool big = false;
    for (int t = 0; t < tiers; t++)
        big = big || ot_ledger_total(&ledger, (enum ot_tier)t) >= (size_t)10 << 30;
    double unit = big ? 0x1p30 : 0x1p20, running[OT_TIER_COUNT] = {0}, budget[OT_TIER_COUNT];
    print_row(lines[n++], big ? "GiB" : "MiB", tiers, titles);
    for (int i = 0; i < ledger.n; i++) {
        double sums[OT_TIER_COUNT] = {0};
        if (sum_entries(&ledger, i, sums))
            n += put_sums(sums, ledger.entries[i].name, tiers, unit, running, lines[n]);
    }
    for (int t = 0; t < tiers; t++)
        budget[t] = (double)budget_bytes[t] / unit;
    print_numbers(lines[n++], "total", tiers, running);
    print_numbers(lines[n++], "budget", tiers, budget);
    return n;
}

/* ---- the lines ---- */

struct ot_plan_homes ot_report_count_homes(const struct ot_plan *plan) {
    struct ot_plan_homes homes = {.slabs = plan->n_slabs};
    for (int i = 0; i < plan->n_slabs; i++) {
        const struct ot_slab_plan *slab = &plan->slabs[i];
        int elsewhere = slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU];
        homes.weights[slab->weights]++;
        homes.state[OT_TIER_GPU] += slab->tiles[OT_TILE_GPU];
        if (elsewhere)
            homes.state[slab->state] += elsewhere;
        homes.tiles += slab->tiles[OT_TILE_GPU] + elsewhere;
    }
    return homes;
}

/* "gpu 3, nvme 5 of 8" */
static int put_counts(char *line, int used, const int64_t counts[OT_TIER_COUNT], int64_t all) {
    const char *between = "";
    for (int t = 0; t < OT_TIER_COUNT; t++)
        if (counts[t] > 0) {
            used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, "%s%s %lld", between,
                             ot_tier_name((enum ot_tier)t), (long long)counts[t]);
            between = ", ";
        }
    return used + snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " of %lld", (long long)all);
}

const char *ot_report_homes(const struct ot_plan *plan, char line[OT_TABLE_LINE_BYTES]) {
    const struct ot_plan_homes homes = ot_report_count_homes(plan);
    int used = snprintf(line, OT_TABLE_LINE_BYTES, "weights ");
    used = put_counts(line, used, homes.weights, homes.slabs);
    used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " slabs");
    if (homes.tiles) {
        used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " · state ");
        used = put_counts(line, used, homes.state, homes.tiles);
        used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " tiles");
    }
    snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " · activations %s",
             ot_tier_name((enum ot_tier)plan->activations));
    return line;
}

const char *ot_report_engines(const struct ot_plan *plan, char line[OT_TABLE_LINE_BYTES]) {
    int64_t all = 0;
    int used = 0;
    *line = '\0';
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        all += ot_plan_count_tiles(plan, (enum ot_tile_engine)e);
    for (int e = 0; e < OT_TILE_ENGINES; e++) {
        int64_t n = ot_plan_count_tiles(plan, (enum ot_tile_engine)e);
        if (n > 0)
            used +=
                snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, "%s%s %lld of %lld tiles (%.1f %%)",
                         used ? " · " : "", ot_tile_engine_name((enum ot_tile_engine)e), (long long)n,
                         (long long)all, 100 * (double)n / (double)all);
    }
    return line;
}

void ot_report_put_ledger(const struct ot_ledger *ledger, struct ot_json_writer *w) {
    ot_json_begin_array(w, "ledger");
    for (int i = 0; i < ledger->n; i++) {
        ot_json_begin_object(w, NULL);
        ot_json_put_text(w, "tier", ot_tier_name(ledger->entries[i].tier));
        ot_json_put_text(w, "name", ledger->entries[i].name);
        ot_json_put_int(w, "bytes", (int64_t)ledger->entries[i].bytes);
        ot_json_end_object(w);
    }
    ot_json_end_array(w);
}

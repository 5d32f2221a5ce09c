#include "src/report/table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "models/encoded.h"
#include "offload/plan/stages.h"
#include "offload/block.h"
#include "offload/plan/slabs.h"
#include "offload/plan/used_parts.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

/* ---- the table ---- */

/* Formats a cell as the difference of rounded running sums, so that the rounded rows add up to the total. */
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

/* Sums all entries that have the name of entry i. Returns false if an earlier entry had that name. */
static bool sum_entries(const struct ot_ledger *ledger, int i, double sums[OT_TIER_COUNT]) {
    for (int j = 0; j < ledger->n; j++)
        if (strcmp(ledger->entries[j].name, ledger->entries[i].name) == 0) {
            if (j < i)
                return false;
            sums[ledger->entries[j].tier] += (double)ledger->entries[j].bytes;
        }
    return true;
}

/* Says in the row of a name why it takes more on nvme than its content: AdamW's state of 10 bytes a parameter
 * takes 20 there. */
static void explain_spare(const struct ot_ledger *ledger, const char *name, double unit,
                          char line[OT_TABLE_LINE_BYTES]) {
    size_t used = strlen(line);
    double spare = 0;
    for (int i = 0; i < ledger->n; i++)
        if (strcmp(ledger->entries[i].name, name) == 0)
            spare += (double)ledger->entries[i].spare_bytes;
    if (spare > 0)
        snprintf(line + used, OT_TABLE_LINE_BYTES - used,
                 "   %.1f of it: room to write new content beside the old", spare / unit);
}

/* The row of the short table that an entry belongs to, by the first of these words that its name contains. */
static const char *group_of(const char *name) {
    static const char *const words[][2] = {{"activation", "activations"},
                                           {"keys", "activations"},
                                           {"gradient", "gradients"},
                                           {"weight", "weights"},
                                           {"optimizer", "optimizer"}};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(name, words[i][0]))
            return words[i][1];
    return "other";
}

/* The ledger reduced to the five rows of the short table, in their order. */
static struct ot_ledger grouped(const struct ot_ledger *ledger) {
    static const char *const rows[] = {"weights", "optimizer", "gradients", "activations", "other"};
    struct ot_ledger short_one = {0};
    for (int r = 0; r < 5; r++)
        for (int t = 0; t < OT_TIER_COUNT; t++) {
            struct ot_ledger_entry sum = {(enum ot_tier)t, rows[r], 0, 0};
            for (int i = 0; i < ledger->n; i++)
                if (ledger->entries[i].tier == sum.tier &&
                    strcmp(group_of(ledger->entries[i].name), rows[r]) == 0) {
                    sum.bytes += ledger->entries[i].bytes;
                    sum.spare_bytes += ledger->entries[i].spare_bytes;
                }
            short_one.entries[short_one.n++] = sum;
        }
    return short_one;
}

/* Writes a line with the sums of a name. Returns false if all are 0. */
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
        if (!sum_entries(&ledger, i, sums) ||
            !put_sums(sums, ledger.entries[i].name, tiers, unit, running, lines[n]))
            continue;
        explain_spare(&ledger, ledger.entries[i].name, unit, lines[n]);
        n++;
    }
    for (int t = 0; t < tiers; t++)
        budget[t] = (double)budget_bytes[t] / unit;
    print_numbers(lines[n++], "total", tiers, running);
    print_numbers(lines[n++], "budget", tiers, budget);
    return n;
}

/* ---- the lines ---- */

struct ot_plan_homes ot_report_count_homes(const struct ot_plan *plan) {
    struct ot_plan_homes homes = {0};
    for (int i = 0; i < plan->n_slabs; i++) {
        const struct ot_slab_plan *slab = &plan->slabs[i];
        if (!ot_slab_is_own(plan, i))
            continue;
        homes.slabs++;
        int elsewhere = slab->tiles[OT_TILE_STREAM] + slab->tiles[OT_TILE_CPU];
        homes.weights[slab->weights]++;
        homes.state[OT_TIER_GPU] += slab->tiles[OT_TILE_GPU];
        homes.grads[OT_TIER_GPU] += slab->tiles[OT_TILE_GPU];
        if (elsewhere)
            homes.state[slab->state] += elsewhere;
        bool on_gpu = slab->grads == OT_HOME_GPU; /* only those of streamed tiles (plan.h) */
        homes.grads[slab->grads] += slab->tiles[OT_TILE_STREAM];
        homes.grads[on_gpu ? OT_HOME_HOST : slab->grads] += slab->tiles[OT_TILE_CPU];
        homes.tiles += slab->tiles[OT_TILE_GPU] + elsewhere;
    }
    return homes;
}

/* "3 of 8 slabs on gpu, 5 on nvme"; "all 8 slabs on gpu". unit: "slab". */
static int put_counts(char *line, int used, const int64_t counts[OT_TIER_COUNT], int64_t all,
                      const char *unit) {
    bool first = true;
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        const char *tier = ot_tier_name((enum ot_tier)t);
        size_t room = OT_TABLE_LINE_BYTES - (size_t)used;
        if (counts[t] == 0)
            continue;
        if (counts[t] == all)
            used += snprintf(line + used, room, "all %lld %s%s on %s", (long long)all, unit, ot_plural(all),
                             tier);
        else if (first)
            used += snprintf(line + used, room, "%lld of %lld %s%s on %s", (long long)counts[t],
                             (long long)all, unit, ot_plural(all), tier);
        else
            used += snprintf(line + used, room, ", %lld on %s", (long long)counts[t], tier);
        first = false;
    }
    return used;
}

const char *ot_report_homes(const struct ot_plan *plan, char line[OT_TABLE_LINE_BYTES]) {
    const struct ot_plan_homes homes = ot_report_count_homes(plan);
    int used = snprintf(line, OT_TABLE_LINE_BYTES, "weights: ");
    used = put_counts(line, used, homes.weights, homes.slabs, "slab");
    if (ot_plan_has_one_copy(plan))
        used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, ", one copy for all ranks");
    if (homes.tiles) {
        used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " · optimizer state: ");
        used = put_counts(line, used, homes.state, homes.tiles, "tile");
    }
    used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " · activations: on %s%s",
                     ot_tier_name((enum ot_tier)plan->activations),
                     plan->crosses ? ", between ranks through memory that all pin" : "");
    if (homes.grads[OT_TIER_NVME]) {
        used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " · gradients: of ");
        used = put_counts(line, used, homes.grads, homes.tiles, "tile");
    }
    if (plan->cache != OT_HOME_GPU)
        snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " · key/value cache: on %s",
                 ot_tier_name((enum ot_tier)plan->cache));
    return line;
}

static bool is_told(const struct ot_moved *moved) {
    return moved->seconds > 0 && moved->bytes / moved->seconds >= OT_MOVED_LEAST;
}

const char *ot_report_moved(const struct ot_moved *moved, size_t n, char line[OT_TABLE_LINE_BYTES]) {
    double least = INFINITY;
    int used = 0;
    *line = '\0';
    for (size_t i = 0; i < n; i++)
        if (is_told(&moved[i]))
            least = fmin(least, fmin(moved[i].bytes, moved[i].bytes / moved[i].seconds));
    const char *unit = least < 0.1e9 ? "MB" : "GB";
    double scale = least < 0.1e9 ? 1e-6 : 1e-9;
    int decimals = least < 0.1e9 ? 1 : 2;
    for (size_t i = 0; i < n; i++)
        if (is_told(&moved[i]))
            used += snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, "%s%s %.*f %s %s, %.*f %s/s",
                             used ? " · " : "", moved[i].lane, decimals, moved[i].bytes * scale, unit,
                             moved[i].what, decimals, moved[i].bytes / moved[i].seconds * scale, unit);
    return line;
}

const char *ot_report_regular(const struct ot_regular *regular, char line[OT_TABLE_LINE_BYTES]) {
    const struct {
        const char *name;
        float value;
    } all[] = {{"label smoothing", regular->label_smoothing},
               {"z-loss", regular->z_loss},
               {"NEFTune", regular->neftune},
               {"balancing loss", regular->balance}};
    int n = snprintf(line, OT_TABLE_LINE_BYTES, "%s", regular->dropout ? "dropout of the config" : "");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].value > 0)
            n += snprintf(line + n, OT_TABLE_LINE_BYTES - (size_t)n, "%s%s %g", n > 0 ? ", " : "",
                          all[i].name, (double)all[i].value);
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
        const char *name = ot_tile_engine_name((enum ot_tile_engine)e);
        size_t room = OT_TABLE_LINE_BYTES - (size_t)used;
        if (n == 0)
            continue;
        if (n == all)
            used +=
                snprintf(line + used, room, "all %lld tile%s by %s", (long long)all, ot_plural(all), name);
        else if (used == 0)
            used += snprintf(line + used, room, "%lld of %lld tiles by %s (%.1f %%)", (long long)n,
                             (long long)all, name, 100 * (double)n / (double)all);
        else
            used += snprintf(line + used, room, ", %lld by %s (%.1f %%)", (long long)n, name,
                             100 * (double)n / (double)all);
    }
    if (plan->shadow_frames > 0)
        snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, " · %d ahead of the norm",
                 plan->shadow_frames);
    return line;
}

void ot_report_put_tiers(struct ot_json_writer *w, const char *key, const int64_t counts[OT_TIER_COUNT]) {
    ot_json_begin_object(w, key);
    for (int t = 0; t < OT_TIER_COUNT; t++)
        ot_json_put_int(w, ot_tier_name((enum ot_tier)t), counts[t]);
    ot_json_end_object(w);
}

void ot_report_put_engines(const struct ot_plan *plan, struct ot_json_writer *w) {
    ot_json_begin_object(w, "optimizer_tiles");
    for (int e = 0; e < OT_TILE_ENGINES; e++)
        ot_json_put_int(w, ot_tile_engine_name((enum ot_tile_engine)e),
                        ot_plan_count_tiles(plan, (enum ot_tile_engine)e));
    ot_json_end_object(w);
}

void ot_report_put_ledger(const struct ot_ledger *ledger, struct ot_json_writer *w) {
    ot_json_begin_array(w, "ledger");
    for (int i = 0; i < ledger->n; i++) {
        ot_json_begin_object(w, NULL);
        ot_json_put_text(w, "tier", ot_tier_name(ledger->entries[i].tier));
        ot_json_put_text(w, "name", ledger->entries[i].name);
        ot_json_put_int(w, "bytes", (int64_t)ledger->entries[i].bytes);
        if (ledger->entries[i].spare_bytes > 0)
            ot_json_put_int(w, "spare_bytes", (int64_t)ledger->entries[i].spare_bytes);
        ot_json_end_object(w);
    }
    ot_json_end_array(w);
}

/* Each of the following functions writes one line of ot_report_details, or returns 0: nothing is to tell. */

static int tell_chunks(const struct ot_model *model, const struct ot_plan *plan,
                       char line[OT_TABLE_LINE_BYTES]) {
    char tokens[OT_TEXT_BYTES], chunk[OT_TEXT_BYTES];
    if (plan->micro_tokens <= ot_model_get_chunk(model))
        return 0;
    return snprintf(
        line, OT_TABLE_LINE_BYTES, "chunks  each layer takes a micro-batch of %s tokens in chunks of %s",
        ot_text_count(plan->micro_tokens, tokens), ot_text_count(ot_model_get_chunk(model), chunk));
}

static int tell_sections(const struct ot_model *model, const struct ot_plan *plan,
                         char line[OT_TABLE_LINE_BYTES]) {
    char tokens[OT_TEXT_BYTES], keys[64] = "";
    int groups = ot_plan_key_groups(plan), heads = (int)ot_model_chain(model)->key_heads / groups;
    if (ot_plan_sections(plan) == 1)
        return 0;
    if (groups > 1)
        snprintf(keys, sizeof keys, "; keys of %d head%s at a time", heads, ot_plural(heads));
    return snprintf(line, OT_TABLE_LINE_BYTES, "sections each row is %d micro-batches, of %s tokens each%s%s",
                    ot_plan_sections(plan), ot_text_count(plan->micro_tokens, tokens),
                    plan->boundaries_pass ? ", and leaves the GPU after each layer" : "", keys);
}

/* Tells which experts of a layer are copied to the GPU, if layers stream by parts. */
static int tell_experts(const struct ot_model *model, const struct ot_plan *plan,
                        char line[OT_TABLE_LINE_BYTES]) {
    const struct ot_chain *chain = ot_model_chain(model);
    int64_t tokens = plan->micro_tokens * ot_plan_round_places(plan);
    double used = 0, parts = 0, layers = 0;
    for (int b = 0; b < chain->n_blocks; b++)
        if (ot_block_chooses(chain, plan, b)) {
            layers++;
            parts += ot_block_parts(chain, b);
            used += ot_block_used_parts(chain, b, tokens);
        }
    return layers == 0 ? 0
                       : snprintf(line, OT_TABLE_LINE_BYTES,
                                  "experts used ones alone: about %.0f of %.0f in each of %.0f layers",
                                  used / layers, parts / layers, layers);
}

/* Tells the size of the encoded slabs, and the effect of training over them. */
static int tell_base(const struct ot_model *model, enum ot_base_type base, char line[OT_TABLE_LINE_BYTES]) {
    enum ot_dtype dtype = ot_model_chain(model)->dtype;
    char small[OT_TEXT_BYTES], large[OT_TEXT_BYTES];
    int64_t plain, encoded = ot_model_encoded_bytes(model, &plain);
    if (base == OT_BASE_AUTO)
        return 0;
    if (encoded == 0)
        return snprintf(line, OT_TABLE_LINE_BYTES, "base    %s, as all weights", ot_dtype_name(dtype));
    return snprintf(
        line, OT_TABLE_LINE_BYTES,
        "base    %s: frozen layers take %s in place of %s in %s; the run computes with the decoded "
        "weights",
        ot_weight_format_name(ot_base_format(base, dtype)), ot_text_bytes((double)encoded, small),
        ot_text_bytes((double)plain, large), ot_dtype_name(dtype));
}

/* Tells the size and the cost of a compact state. */
static int tell_state(enum ot_state_format format, char line[OT_TABLE_LINE_BYTES]) {
    if (format == OT_STATE_F32)
        return 0;
    return snprintf(
        line, OT_TABLE_LINE_BYTES,
        "state   %s: AdamW's means take %s bytes a parameter instead of 8; results differ a little "
        "from fp32",
        ot_state_format_name(format), format == OT_STATE_16BIT ? "4" : "2.1");
}

static int tell_masters(enum ot_masters masters, char line[OT_TABLE_LINE_BYTES]) {
    if (masters != OT_MASTERS_NONE)
        return 0;
    return snprintf(
        line, OT_TABLE_LINE_BYTES,
        "masters none: each update rounds the bf16 weights stochastically; training is less exact "
        "than with fp32 masters");
}

int ot_report_details(const struct ot_model *model, const struct ot_plan *plan, const struct ot_options *o,
                      char lines[OT_REPORT_MOST_DETAILS][OT_TABLE_LINE_BYTES]) {
    int n = 0;
    n += tell_sections(model, plan, lines[n]) > 0;
    n += tell_chunks(model, plan, lines[n]) > 0;
    n += tell_experts(model, plan, lines[n]) > 0;
    n += tell_base(model, (enum ot_base_type)o->base_type, lines[n]) > 0;
    n += tell_state((enum ot_state_format)o->state, lines[n]) > 0;
    n += tell_masters((enum ot_masters)o->master_weights, lines[n]) > 0;
    return n;
}

const char *ot_report_kept(const struct ot_plan *plan, int n_layers, char line[OT_TABLE_LINE_BYTES]) {
    int kept = ot_plan_kept_blocks(plan, OT_TIER_COUNT), n = 0;
    int used = snprintf(line, OT_TABLE_LINE_BYTES, "%d of %d layer%s recomputed", n_layers - kept, n_layers,
                        ot_plural(n_layers));
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        int blocks = ot_plan_kept_blocks(plan, (enum ot_tier)t);
        if (blocks == 0)
            continue;
        used +=
            snprintf(line + used, OT_TABLE_LINE_BYTES - (size_t)used, "%s%s of %d%s%s on %s",
                     n > 0 ? ", " : " · kept activations: ", ot_keep_level_name(plan->kept[t].level), blocks,
                     n > 0 ? "" : " layer", n > 0 ? "" : ot_plural(blocks), ot_tier_name((enum ot_tier)t));
        n++;
    }
    return line;
}

const char *ot_report_rounds(const struct ot_plan *plan, char text[OT_TEXT_BYTES]) {
    int rounds = ot_plan_rounds(plan);
    snprintf(text, OT_TEXT_BYTES, rounds > 1 ? " · %d rounds" : "", rounds);
    return text;
}

void ot_report_put_kept(const struct ot_plan *plan, struct ot_json_writer *w) {
    ot_json_put_int(w, "rounds", ot_plan_rounds(plan));
    ot_json_put_int(w, "shadow_tiles", plan->shadow_frames);
    ot_json_put_int(w, "kept_blocks", ot_plan_kept_blocks(plan, OT_TIER_COUNT));
    ot_json_begin_object(w, "kept");
    for (int t = 0; t < OT_TIER_COUNT; t++) {
        ot_json_begin_object(w, ot_tier_name((enum ot_tier)t));
        ot_json_put_int(w, "layers", ot_plan_kept_blocks(plan, (enum ot_tier)t));
        ot_json_put_text(w, "level", ot_keep_level_name(plan->kept[t].level));
        ot_json_end_object(w);
    }
    ot_json_end_object(w);
}

/* ---- wear ---- */

/* The share of the rating from which a run is worth a warning. */
static const double WARN_SHARE = 0.05;

double ot_wear_share(double written_bytes, int drives) {
    return written_bytes / OT_WEAR_RATED_BYTES / ot_max(drives, 1);
}

void ot_wear_warn(double written_bytes_a_step, int64_t steps, int drives) {
    double written = written_bytes_a_step * (double)steps, share = ot_wear_share(written, drives);
    if (share <= WARN_SHARE)
        return;
    ot_log(OT_LOG_WARN,
           "the run writes %.1f TB to --nvme: %.0f %% of the %.0f TB that %s rated for. A larger --host-mem "
           "or --tokens-per-step writes less",
           written * 1e-12, 100 * share, OT_WEAR_RATED_BYTES * 1e-12 * ot_max(drives, 1),
           drives > 1 ? "1 TB drives are" : "a 1 TB drive is");
}

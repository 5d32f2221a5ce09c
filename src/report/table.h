/* Shows a plan to people: its ledger as a table, a line each for where things live and who updates them, and
 * the wear of disks. Needs a plan and no session. */
#ifndef OT_REPORT_TABLE_H
#define OT_REPORT_TABLE_H

#include <stddef.h>

#include "kernels/state_format.h"
#include "models/model.h"
#include "offload/plan/slabs.h"
#include "src/base/json.h"
#include "src/base/units.h"
#include "src/options/options.h"

enum { OT_TABLE_MAX_LINES = OT_LEDGER_MAX + 4, OT_TABLE_LINE_BYTES = 320 };

/* The rows are weights, optimizer, gradients, activations and other; with `full`, one row for each name in
 * the ledger. There is a column for each tier (nvme only if it has a budget), a total that the rounded rows
 * add up to exactly, and the budget. A row with room for new content on nvme says so after its numbers.
 * Returns the number of lines. */
int ot_report_table(const struct ot_ledger *ledger, const size_t budget_bytes[OT_TIER_COUNT], bool full,
                    char lines[OT_TABLE_MAX_LINES][OT_TABLE_LINE_BYTES]);

/* "h2d 1.29 GB a step, 3.44 GB/s · nvme 12.30 GB read, 0.51 GB/s". All numbers of a line have one unit:
 * GB, or MB where the smallest would be below 0.1 GB. Rates below OT_MOVED_LEAST are left out. */
struct ot_moved {
    const char *lane, *what;
    double bytes, seconds;
};
#define OT_MOVED_LEAST 5e6 /* bytes/s */
const char *ot_report_moved(const struct ot_moved *moved, size_t n, char line[OT_TABLE_LINE_BYTES]);

/* An object of a number for each tier. */
void ot_report_put_tiers(struct ot_json_writer *w, const char *key, const int64_t counts[OT_TIER_COUNT]);
/* An object "optimizer_tiles" of the number of tiles for each engine that updates them. */
void ot_report_put_engines(const struct ot_plan *plan, struct ot_json_writer *w);
/* An array "ledger" of {tier, name, bytes}. */
void ot_report_put_ledger(const struct ot_ledger *ledger, struct ot_json_writer *w);

/* For each tier, the number of this rank's slabs whose weights live there, and the numbers of tiles whose
 * state lives there and whose gradients wait there. */
struct ot_plan_homes {
    int64_t weights[OT_TIER_COUNT], state[OT_TIER_COUNT], grads[OT_TIER_COUNT];
    int64_t slabs, tiles;
};
struct ot_plan_homes ot_report_count_homes(const struct ot_plan *plan);

/* "weights: 3 of 8 slabs on gpu, 5 on nvme · optimizer state: all 8 tiles on nvme · activations: on host"
 * If gradients wait on nvme, also " · gradients: of 3 of 8 tiles on host, 5 on nvme". */
const char *ot_report_homes(const struct ot_plan *plan, char line[OT_TABLE_LINE_BYTES]);
/* "3 of 8 tiles by gpu (37.5 %), 5 by cpu (62.5 %)"; "all 8 tiles by gpu". */
const char *ot_report_engines(const struct ot_plan *plan, char line[OT_TABLE_LINE_BYTES]);
/* "12 of 32 layers recomputed · kept activations: products of 8 layers on gpu, of 12 on host" */
const char *ot_report_kept(const struct ot_plan *plan, int n_layers, char line[OT_TABLE_LINE_BYTES]);
/* " · 3 rounds"; "" if there is one. */
const char *ot_report_rounds(const struct ot_plan *plan, char text[OT_TEXT_BYTES]);
/* Puts the members "rounds" and "kept": for each tier, the level and the number of layers. */
void ot_report_put_kept(const struct ot_plan *plan, struct ot_json_writer *w);
/* Writes what is particular about a plan, a line each: "chunks  each layer takes a micro-batch of 9,000
 * tokens in chunks of 4,096", then lines that begin with experts, base, state and masters. Returns their
 * number. */
enum { OT_REPORT_MOST_DETAILS = 6 };
int ot_report_details(const struct ot_model *model, const struct ot_plan *plan, const struct ot_options *o,
                      char lines[OT_REPORT_MOST_DETAILS][OT_TABLE_LINE_BYTES]);
/* "label smoothing 0.1, NEFTune 5"; "" if all are off. */
const char *ot_report_regular(const struct ot_regular *regular, char line[OT_TABLE_LINE_BYTES]);

/* ---- wear ---- */

/* Reports the share of a drive's rated life that a run uses: the bytes that it writes to --nvme against the
 * drive's rating. */

/* The bytes that a consumer drive of 1 TB is rated to have written to it: 600 TB in the data sheets of
 * Samsung's 990 PRO and WD's Black SN850X. The sizes and ratings of the drives behind --nvme are unknown, so
 * each counts as such a drive. */
#define OT_WEAR_RATED_BYTES 600e12

/* The share of the rating of `drives` drives (counted as at least 1). */
double ot_wear_share(double written_bytes, int drives);
/* Warns once, through the log, if `steps` steps use more than a twentieth of the rating. */
void ot_wear_warn(double written_bytes_a_step, int64_t steps, int drives);

#endif

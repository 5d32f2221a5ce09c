/* The results of a bench for programs. One table of columns makes both the CSV and the JSON, so they have the
 * same names and numbers. If a point has no number in a column, the cell is empty in the CSV and null in the
 * JSON. Units are bytes and seconds. */
#ifndef OT_PLAN_BENCH_EXPORT_H
#define OT_PLAN_BENCH_EXPORT_H

#include <stddef.h>

#include "src/base/json.h"
#include "src/base/text.h"
#include "src/base/units.h"
#include "src/plan/bench.h"

/* Append a line with the column names, or a line with one point; each with its newline (RFC 4180, but with \n
 * only). */
void ot_bench_put_csv_header(struct ot_string_builder *out);
void ot_bench_put_csv(const struct ot_bench *bench, int index, struct ot_string_builder *out);
/* Writes an object: facts about the machine and the model, "options" that repeat the bench, and "points", an
 * array of objects. */
void ot_bench_put_json(const struct ot_bench *bench, const struct ot_options *options,
                       struct ot_json_writer *w);

/* "7B parameters", or "7B parameters (20M trained), frozen layers in nf4". Returns text. */
enum { OT_BENCH_PARAMS_BYTES = 2 * OT_TEXT_BYTES + 64 };
const char *ot_bench_text_params(const struct ot_bench *bench, char text[OT_BENCH_PARAMS_BYTES]);

/* The start time of the bench, in the machine's time zone: "2026-11-21T06:30:00+0100". */
enum { OT_BENCH_DATE_BYTES = 40 };
const char *ot_bench_date(const struct ot_bench *bench, char text[OT_BENCH_DATE_BYTES]);

/* ---- files ---- */

/* The files of a bench in its directory. Each point is appended to bench.csv at once, so a crash loses no
 * measured point. bench.json and bench.html are replaced whole, by rename. */

struct ot_bench_files {
    char *dir;
    int csv; /* file descriptor of bench.csv; < 0: none */
};

/* Creates the directory with its parents, and bench.csv. Errors: OT_E_INPUT: the directory already has a
 * bench; OT_E_IO. Call ot_bench_files_close on `out` also after an error. */
int ot_bench_files_open(const char *dir, struct ot_bench_files *out);
void ot_bench_files_close(struct ot_bench_files *files);
/* Errors: OT_E_IO; the sentence names the file. */
int ot_bench_files_append_csv(struct ot_bench_files *files, const char *text, size_t bytes);
int ot_bench_files_replace(struct ot_bench_files *files, const char *name, const char *text, size_t bytes);

#endif

/* The results of a bench for programs: one table of columns makes both the CSV and the JSON, so that they
 * have the same names and numbers. A cell is empty, and null in JSON, where a point has no such number. Bytes
 * and seconds throughout.
 */
#ifndef OT_BENCH_RECORD_H
#define OT_BENCH_RECORD_H

#include "src/base/json.h"
#include "src/base/strings.h"
#include "src/bench/bench.h"

/* The names, and one point; each a line with its end (RFC 4180, but \n alone). */
void ot_bench_put_csv_header(struct ot_string_builder *out);
void ot_bench_put_csv(const struct ot_bench *bench, int index, struct ot_string_builder *out);
/* An object: what the bench was made on, "options" that repeat it, and "points", an array of objects. */
void ot_bench_put_json(const struct ot_bench *bench, const struct ot_options *options,
                       struct ot_json_writer *w);

/* When the bench began, in the machine's time zone: "2026-11-21T06:30:00+0100". */
enum { OT_BENCH_DATE_BYTES = 40 };
const char *ot_bench_date(const struct ot_bench *bench, char text[OT_BENCH_DATE_BYTES]);

#endif

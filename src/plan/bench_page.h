/* The page of a bench: one HTML file, without scripts and without other files, for screens, phones and paper.
 * Text from outside (names, reasons) is escaped. */
#ifndef OT_PLAN_BENCH_PAGE_H
#define OT_PLAN_BENCH_PAGE_H

#include "src/base/text.h"
#include "src/plan/bench.h"

void ot_bench_put_page(const struct ot_bench *bench, struct ot_string_builder *out);

#endif

/* The three pictures of a bench, as SVG: memory against time with the Pareto front, time by lane, predicted
 * against measured. Each draws the points that were measured; what it shows stands in its title and
 * description too.
 */
#ifndef OT_BENCH_PLOT_H
#define OT_BENCH_PLOT_H

#include "src/base/strings.h"
#include "src/bench/bench.h"

/* The parts of a step's time in the order in which they are stacked, and that of the fills. */
enum { OT_BENCH_PARTS = 7 };
const char *ot_bench_part_name(int part); /* "compute", "h2d", ... */
double ot_bench_part(const struct ot_bench_lanes *lanes, int part);

/* Of the points with so many tokens a step; `n` tells the images of a page apart. */
void ot_bench_plot_memory(const struct ot_bench *bench, int64_t step_tokens, int n,
                          struct ot_string_builder *out);
void ot_bench_plot_lanes(const struct ot_bench *bench, int64_t step_tokens, int n,
                         struct ot_string_builder *out);
/* Of all points; draws nothing where nothing was predicted. */
void ot_bench_plot_prediction(const struct ot_bench *bench, struct ot_string_builder *out);

struct ot_bench_errors {
    int n;
    double median, worst; /* of |predicted - measured| / measured */
};
struct ot_bench_errors ot_bench_prediction_errors(const struct ot_bench *bench);

#endif

/* The three plots of a bench, as SVG: memory against time with the Pareto front, time by lane, predicted
 * against measured. Each plot shows the measured points, and has a title and a description for screen
 * readers. */
#ifndef OT_PLAN_BENCH_PLOT_H
#define OT_PLAN_BENCH_PLOT_H

#include <stdbool.h>

#include "src/base/text.h"
#include "src/plan/bench.h"

/* The uses of a step's time, in the order of the stacked bars and of their colours. */
enum { OT_BENCH_TIMES = 7 };
const char *ot_bench_time_name(int time); /* "compute", "h2d", ... */
double ot_bench_time(const struct ot_bench_lanes *lanes, int time);

/* Plots of the points with `step_tokens` tokens per step. `n` makes the ids of the images in a page
 * different. */
void ot_bench_plot_memory(const struct ot_bench *bench, int64_t step_tokens, int n,
                          struct ot_string_builder *out);
void ot_bench_plot_lanes(const struct ot_bench *bench, int64_t step_tokens, int n,
                         struct ot_string_builder *out);
/* Plot of all points. Draws nothing if no point has a prediction. */
void ot_bench_plot_prediction(const struct ot_bench *bench, struct ot_string_builder *out);

struct ot_bench_errors {
    int n;
    double median, worst; /* of |predicted - measured| / measured */
};
struct ot_bench_errors ot_bench_prediction_errors(const struct ot_bench *bench);

#endif

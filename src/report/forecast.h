/* The forecast in words: before step 1 what a step and the run will take, after the last what they took.
 * Lines for people and the same facts as JSON; of a prediction alone, so that plan and bench tell theirs as
 * a run does.
 */
#ifndef OT_REPORT_FORECAST_H
#define OT_REPORT_FORECAST_H

#include "offload/predict/planner.h"
#include "src/base/json.h"
#include "src/base/units.h"

/* "1.24 s a step, 13,210 tok/s · 264 steps in 5m28s". done: steps before a resume; where there are any, the
 * line names what remains and the whole. */
enum { OT_FORECAST_LINE_BYTES = 256 };
const char *ot_report_prediction(const struct ot_prediction *prediction, int64_t done, int64_t steps,
                                 char line[OT_FORECAST_LINE_BYTES]);

/* Time by lane as a table: what share of the time each was busy, and what share compute waited for it. One
 * row of each for each timeline ("predicted", "measured"), in the order given; lanes without work have no
 * column. Returns the number of lines. */
struct ot_lane_times {
    const char *name;
    double seconds; /* of all of it */
    const double *busy, *exposed;
    double exposed_host;
};
enum { OT_LANE_TABLE_LINES = 5 };
int ot_report_lanes(const struct ot_lane_times *times, int n,
                    char lines[OT_LANE_TABLE_LINES][OT_FORECAST_LINE_BYTES]);

/* "computing, 80.2 % of the step; next h2d, compute stalls on it for 16.1 %" */
const char *ot_report_bound(const struct ot_explanation *explanation, char line[OT_FORECAST_LINE_BYTES]);
/* "+21 %"; "no gain" for 0. */
const char *ot_report_gain(double gain, char text[OT_TEXT_BYTES]);
/* What bounds the step, and what more of one thing would buy. Returns the number of lines. */
enum { OT_EXPLANATION_LINES = 1 + OT_WHAT_IFS };
int ot_report_explanation(const struct ot_explanation *explanation,
                          char lines[OT_EXPLANATION_LINES][OT_FORECAST_LINE_BYTES]);

/* Members of the object that is open. */
void ot_report_put_prediction(const struct ot_prediction *prediction, int64_t steps,
                              struct ot_json_writer *w);
void ot_report_put_explanation(const struct ot_explanation *explanation, struct ot_json_writer *w);
void ot_report_put_lanes(const char *key, const double values[OT_LANE_COUNT], struct ot_json_writer *w);

#endif

/* Puts the forecast into words: before step 1 the predicted times of a step and of the run, after the last
 * step the measured ones. Writes lines for people and the same facts as JSON. The functions need only a
 * prediction, so that plan and bench use the same words as a run. */
#ifndef OT_REPORT_FORECAST_H
#define OT_REPORT_FORECAST_H

#include "offload/predict/planner_ranks.h"
#include "src/base/json.h"
#include "src/base/units.h"
#include "src/train/run_shape.h"

/* "1.24 s a step, 13,210 tok/s · 264 steps in 5m28s · in all 6m10s, 11,710 tok/s: 3 evaluations of 12s,
 * sample 2.0s, saving 4.0s". done: steps before a resume; if there are any, the line names the remaining
 * steps and all steps, and "in all" is of the remaining part of the run. times: of the work besides steps;
 * left out below a hundredth of the time. */
enum { OT_FORECAST_LINE_BYTES = 320 };
const char *ot_report_prediction(const struct ot_prediction *prediction, int64_t done, int64_t steps,
                                 const struct ot_run_times *times, char line[OT_FORECAST_LINE_BYTES]);

/* "3 evaluations of 12s, sample 2.0s, saving 4.0s", after the text `before`; those of a hundredth of `all` at
 * least. Empty if there is none. */
const char *ot_report_others(const struct ot_run_times *times, double all, const char *before,
                             char line[OT_FORECAST_LINE_BYTES]);

/* "4.10 s a step, not 3.20 s: predicted again from steps 3 and 4 (compute takes 1.6x, nvme_read 1.2x of the
 * predicted time)". Names the lanes that change the step. Returns false, with an empty line, if the second
 * prediction is within OT_FORECAST_TOLD of the first. */
#define OT_FORECAST_TOLD 0.1
bool ot_report_again(const struct ot_prediction *first, const struct ot_prediction *second, int64_t from_step,
                     int64_t to_step, char line[OT_FORECAST_LINE_BYTES]);

/* A table of time by lane: the share of the time that each lane was busy ("busy"), and the share that compute
 * stalled on it ("stalled on"). Each timeline ("predicted", "measured") has one row of each kind, in the
 * given order. Lanes without work have no column. Returns the number of lines. */
struct ot_lane_times {
    const char *name;
    double seconds; /* length of the timeline */
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
/* For the answer of twice the tokens a step: " · 1,526 steps instead of 3,051". "" for other answers, and if
 * `steps`, the steps of the run, are unknown (0). half: the steps with twice the tokens. */
const char *ot_report_instead(const struct ot_what_if *answer, int64_t steps, int64_t half,
                              char text[OT_FORECAST_LINE_BYTES]);
/* Explains which resource bounds the step, and the gain from more of each. steps, half: as above. Returns the
 * number of lines. */
enum { OT_EXPLANATION_LINES = 1 + OT_WHAT_IFS };
int ot_report_explanation(const struct ot_explanation *explanation, int64_t steps, int64_t half,
                          char lines[OT_EXPLANATION_LINES][OT_FORECAST_LINE_BYTES]);

/* "32,768 a step, chosen from 8,192 to 131,072: 2,913 tok/s predicted, 1,428 with 8,192, 2,950 with 131,072 ·
 * 3,051 steps instead of 12,204" */
const char *ot_report_choice(const struct ot_step_choice *choice, char line[OT_FORECAST_LINE_BYTES]);

/* Adds a member with the candidates to the open object, if there was a choice. */
void ot_report_put_choice(const struct ot_step_choice *choice, struct ot_json_writer *w);

/* "state would take 18.3 s a step": the mode of several ranks that comes next after the mode `chosen`; why
 * there are no stages. "": neither is known, as where --shard names the mode. */
const char *ot_report_shards(const struct ot_shard_choice *choice, enum ot_shard_mode chosen,
                             char line[OT_FORECAST_LINE_BYTES]);
/* "full", or "stages, 2 replicas of 4". */
enum { OT_DIVISION_BYTES = 64 };
const char *ot_report_division(const struct ot_shard *shard, char text[OT_DIVISION_BYTES]);
/* Writes an object: the predicted step of each mode that was compared. Writes nothing if that is one. */
void ot_report_put_shards(const struct ot_shard_choice *choice, enum ot_shard_mode chosen,
                          struct ot_json_writer *w);
/* Adds members to the open object. */
void ot_report_put_prediction(const struct ot_prediction *prediction, int64_t steps,
                              struct ot_json_writer *w);
/* done: as above. */
void ot_report_put_times(const struct ot_prediction *prediction, int64_t done, int64_t steps,
                         const struct ot_run_times *times, struct ot_json_writer *w);
void ot_report_put_explanation(const struct ot_explanation *explanation, struct ot_json_writer *w);
void ot_report_put_lanes(const char *key, const double values[OT_LANE_COUNT], struct ot_json_writer *w);

#endif

/* Describes a run, and how it went, in words, from its log: the same words in `watch` and in `report`. Texts
 * come from files that anybody may have written: they are cut to the buffer, without control characters. */
#ifndef OT_VIEW_FACTS_H
#define OT_VIEW_FACTS_H

#include "offload/schedule/schedule.h"
#include "src/view/history.h"

enum { OT_FACT_BYTES = 512 };

const char *ot_fact_state_name(enum ot_run_state state); /* "running", "finished", "failed", ... */
/* "running"; "finished"; "stopped by a signal after step 4 of 12"; "failed: ..." */
const char *ot_fact_state(const struct ot_history *h, enum ot_run_state state, char text[OT_FACT_BYTES]);
/* "tiny-test · llama · 123 K parameters, fp32"; the functions below return "" if the log does not say. */
const char *ot_fact_model(const struct ot_history *h, char text[OT_FACT_BYTES]);
const char *ot_fact_machine(const struct ot_history *h,
                            char text[OT_FACT_BYTES]); /* device, cores, RAM, ranks */
const char *ot_fact_data(const struct ot_history *h,
                         char text[OT_FACT_BYTES]); /* files and numbers of rows */
/* "weights: 4 slabs on gpu · optimizer state: 4 tiles on host · updates: 4 tiles by cpu" */
const char *ot_fact_plan(const struct ot_history *h, char text[OT_FACT_BYTES]);
/* "1 step skipped · 2 losses not finite · 1 loss spike"; "" if all went well. */
const char *ot_fact_guard(const struct ot_history *h, char text[OT_FACT_BYTES]);
/* The value of an option as text: numbers, yes and no, and lists with commas. */
const char *ot_fact_value(const struct ot_json *value, char text[OT_FACT_BYTES]);
/* A text of the log, at most `bytes` - 1 of its bytes. */
const char *ot_fact_text(const struct ot_json *value, char *text, size_t bytes);

/* ---- numbers ---- */

double ot_fact_step_seconds(const struct ot_history *h); /* measured: of the whole run, else of late steps */

struct ot_fact_memory { /* of a tier, in bytes; NaN: unknown */
    double used, planned, budget;
};
/* used: at the end of the run, else now. */
struct ot_fact_memory ot_fact_memory(const struct ot_history *h, int tier);

/* The times of the lanes in a step. */
struct ot_fact_lanes {
    const char *name; /* "predicted" */
    double seconds;   /* the length; 0: none */
    double busy[OT_LANE_COUNT], exposed[OT_LANE_COUNT], exposed_host;
};
/* index 0: predicted before step 1, 1: predicted again from the first steps, 2: measured by --trace. */
enum { OT_FACT_LANES = 3 };
struct ot_fact_lanes ot_fact_lanes(const struct ot_history *h, int index);

#endif

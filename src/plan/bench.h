/* A bench runs real training steps at many points. A point is a mix of tiers, a budget of device memory and a
 * number of tokens per step. The result has the measured and the predicted time of each point.
 *
 * bench_setup.h chooses the points, bench_run.h measures one, bench_export.h writes the results as CSV and
 * JSON, bench_page.h as a page for people. src/cli/command_bench.c puts them together.
 *
 * The structs here are plain data; they own no memory.
 */
#ifndef OT_PLAN_BENCH_H
#define OT_PLAN_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "offload/schedule/schedule.h"
#include "src/base/units.h"
#include "src/options/options.h"

enum { OT_BENCH_MAX_POINTS = 64, OT_BENCH_REASON_BYTES = 320 };

/* ---- points ---- */

struct ot_bench_mix { /* a mix of tiers */
    const char *name; /* "state host" */
    struct ot_homes home;
};
/* NULL past the last. In the last mix the planner chooses all homes. */
const struct ot_bench_mix *ot_bench_mix_at(int index);
bool ot_bench_mix_needs_nvme(int index);

enum { OT_BENCH_MIXES = 6 };
struct ot_bench_mix_list {
    int n, indices[OT_BENCH_MIXES];
};
/* Parses "planned,state host"; no name may appear twice. Errors: OT_E_USAGE, with a list of the names. */
int ot_bench_mix_list_read(const char *text, struct ot_bench_mix_list *out);

struct ot_bench_point {
    int mix;           /* of ot_bench_mix_at */
    int64_t gpu_bytes; /* budget of device memory */
    int64_t step_tokens, sequence_tokens;
    int64_t micro_sequences; /* 0: the planner chooses */
};

/* ---- results ---- */

enum ot_bench_status {
    OT_BENCH_WAITING, /* not reached yet */
    OT_BENCH_DONE,
    OT_BENCH_UNFIT,   /* no plan fits in the budgets */
    OT_BENCH_SAME,    /* its plan equals the plan of an earlier point */
    OT_BENCH_NO_TIME, /* would take longer than the time left, or than a point may take */
    OT_BENCH_FAILED,
    OT_BENCH_STATUSES
};
const char *ot_bench_status_name(enum ot_bench_status status); /* "done", "unfit", ... */

struct ot_bench_lanes {            /* seconds of one step */
    double busy[OT_LANE_COUNT];    /* time in which the lane runs a task */
    double exposed[OT_LANE_COUNT]; /* time in which compute waits for the lane (trace.h) */
    double exposed_host;           /* time in which compute waits while no lane runs a task */
};

struct ot_bench_result {
    struct ot_bench_point point;
    enum ot_bench_status status;
    char reason[OT_BENCH_REASON_BYTES]; /* for every status except done */
    /* the plan */
    uint64_t plan_key; /* a hash: equal for equal plans */
    int64_t micro_sequences, micro_batches, recomputed_layers;
    int64_t planned_bytes[OT_TIER_COUNT];
    /* measured */
    int64_t steps;       /* measured steps, without warm-up */
    double step_seconds; /* their median */
    double fastest_seconds, slowest_seconds;
    double tokens_per_second;
    int64_t device_bytes, pinned_bytes, resident_bytes; /* peaks; resident_bytes is the peak of the process */
    int64_t nvme_read_bytes, nvme_write_bytes;          /* of one step */
    struct ot_bench_lanes lanes;                        /* mean over the traced steps */
    double seconds; /* time of the whole point, from opening the device to closing it */
    /* predicted; step_seconds 0: no prediction */
    double predicted_seconds;
    struct ot_bench_lanes predicted_lanes;
};

struct ot_bench {
    const char *model;       /* the user's name for it */
    int64_t params;          /* of the model, without adapters */
    int64_t frozen, trained; /* parameters that the run leaves and trains, adapters included */
    const char *base;        /* the type of frozen matrices; NULL: the dtype */
    double flops_per_token;  /* 6 per parameter, plus attention over sequences of full length */
    const char *device, *dtype;
    int cores;
    int64_t ram_bytes;
    time_t began;
    double seconds; /* time so far */
    bool interrupted;
    int n;
    struct ot_bench_result results[OT_BENCH_MAX_POINTS];
};

/* True if the point is on the Pareto front: no other measured point with the same tokens per step took less
 * device memory and less time. The first of two equal points counts. */
bool ot_bench_is_on_front(const struct ot_bench *bench, int index);

/* "weights and state host · 2.5 GiB · 8,192 tokens/step" */
enum { OT_BENCH_LABEL_BYTES = 128 };
const char *ot_bench_label(const struct ot_bench_point *point, char text[OT_BENCH_LABEL_BYTES]);
/* Formats with three digits: "87.4 ms", "2.05 s", "130 s". */
const char *ot_bench_seconds(double seconds, char text[OT_TEXT_BYTES]);

#endif

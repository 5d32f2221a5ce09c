/* A bench: real training steps at many points (where things live, how much device memory, how many tokens a
 * step), what each took, and what was predicted.
 *
 * The parts: bench/grid.h says which points, bench/run.h measures one, bench/record.h turns the results into
 * CSV and JSON, bench/page.h into a page that people look at. command_bench.c puts them together.
 *
 * The structs here are plain data: no part owns memory in them.
 */
#ifndef OT_BENCH_BENCH_H
#define OT_BENCH_BENCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "offload/schedule/schedule.h"
#include "src/base/units.h"
#include "src/options/options.h"

enum { OT_BENCH_MAX_POINTS = 64, OT_BENCH_REASON_BYTES = 320 };

/* ---- what is asked ---- */

struct ot_bench_mix { /* of tiers */
    const char *name; /* "state host" */
    struct ot_homes home;
};
/* NULL past the last. The last is the plan's own choice. */
const struct ot_bench_mix *ot_bench_mix_at(int index);
bool ot_bench_mix_needs_nvme(int index);

enum { OT_BENCH_MIXES = 6 };
struct ot_bench_mix_list {
    int n, indices[OT_BENCH_MIXES];
};
/* "planned,state host", each name once. Errors: OT_E_USAGE, which lists the names. */
int ot_bench_mix_list_read(const char *text, struct ot_bench_mix_list *out);

struct ot_bench_point {
    int mix;           /* of ot_bench_mix_at */
    int64_t gpu_bytes; /* budget of device memory */
    int64_t step_tokens, sequence_tokens;
    int64_t micro_sequences; /* 0: the plan's choice */
};

/* ---- what came out ---- */

enum ot_bench_status {
    OT_BENCH_WAITING, /* not looked at (yet) */
    OT_BENCH_DONE,
    OT_BENCH_UNFIT,   /* no plan within the budgets */
    OT_BENCH_SAME,    /* its plan is that of an earlier point */
    OT_BENCH_NO_TIME, /* would take longer than is left, or than a point may */
    OT_BENCH_FAILED,
    OT_BENCH_STATUSES
};
const char *ot_bench_status_name(enum ot_bench_status status); /* "done", "unfit", ... */

struct ot_bench_lanes {            /* seconds of one step */
    double busy[OT_LANE_COUNT];    /* the lane runs a task */
    double exposed[OT_LANE_COUNT]; /* compute stands still because of the lane (trace.h) */
    double exposed_host;           /* because of nothing that runs */
};

struct ot_bench_result {
    struct ot_bench_point point;
    enum ot_bench_status status;
    char reason[OT_BENCH_REASON_BYTES]; /* of every other status than done */
    /* the plan */
    uint64_t plan_key; /* equal for equal plans */
    int64_t micro_sequences, micro_batches, recomputed_layers;
    int64_t planned_bytes[OT_TIER_COUNT];
    /* measured */
    int64_t steps;       /* that count; those that warm up do not */
    double step_seconds; /* their median */
    double fastest_seconds, slowest_seconds;
    double tokens_per_second;
    int64_t device_bytes, pinned_bytes, resident_bytes; /* peaks; resident_bytes: of the process */
    int64_t nvme_read_bytes, nvme_write_bytes;          /* of one step */
    struct ot_bench_lanes lanes;                        /* mean over the steps of the trace */
    double seconds; /* that the whole point took, from opening the device to closing it */
    /* predicted; step_seconds 0: it was not */
    double predicted_seconds;
    struct ot_bench_lanes predicted_lanes;
};

struct ot_bench {
    const char *model; /* as the user calls it */
    int64_t params;
    double flops_per_token; /* 6 a parameter, and attention over sequences of full length */
    const char *device, *dtype;
    int cores;
    int64_t ram_bytes;
    time_t began;
    double seconds; /* so far */
    bool interrupted;
    int n;
    struct ot_bench_result results[OT_BENCH_MAX_POINTS];
};

/* Whether no point of as many tokens a step was measured with less device memory in less time: the Pareto
 * front. Of two that are equal in both, the first counts. */
bool ot_bench_is_on_front(const struct ot_bench *bench, int index);

/* "weights and state host · 2.5 GiB · 8,192 tokens/step" */
enum { OT_BENCH_LABEL_BYTES = 128 };
const char *ot_bench_label(const struct ot_bench_point *point, char text[OT_BENCH_LABEL_BYTES]);
/* Three digits: "87.4 ms", "2.05 s", "130 s". */
const char *ot_bench_seconds(double seconds, char text[OT_TEXT_BYTES]);

#endif

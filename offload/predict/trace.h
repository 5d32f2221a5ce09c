/* A trace records when each task of each step ran, and tells from that which lanes are busy and which are
 * waited for.
 *
 * The executor records the beginning and the end of every task: with timed events on device lanes (device.h),
 * with the clock on the other lanes. All times are on the scale of ot_clock_seconds. Recording does not
 * change the order of tasks and waits for nothing. A complete step's spans are added to the trace until the
 * trace is full. A full trace holds the first steps of the run, each complete. A step that begins while the
 * trace is full or paused is not recorded, and its stopwatch costs nothing. The simulator (simulate.h) fills
 * traces too, with its virtual times.
 *
 * EXPOSED TIME. A step takes longer than its computing because the compute lane has gaps, in which it waits.
 * The summary says which lanes it waited for. It follows each gap backwards from its end. First comes the
 * task that waited, then its latest-ending dependency, then that task's latest-ending dependency, and so on
 * to the beginning of the gap. A task also depends on the task before it in its lane. Each part of the gap
 * counts for the lane whose task of this chain ran then. Parts in which no task of the chain ran (enqueuing,
 * waking a thread) count for the host. So the compute lane's busy time and all exposed times add up to the
 * time of the window.
 *
 * FILES are in Chrome's trace event format (JSON object form, "X" events, microseconds). Perfetto and
 * chrome://tracing open them. A file has a row for each lane; tasks are named by kind, block and micro-batch
 * or tile. The predicted trace is below the measured trace, with the first training steps aligned.
 *
 * RANKS. Each rank records its own tasks, by its own clock. At the end every other rank writes its trace as
 * text, and rank 0 puts the texts into its file: the ranks stand one below the other, then the prediction
 * of rank 0. The times of a rank are moved to rank 0's clock. The difference of the two clocks comes from
 * meetings. A meeting is an operation that ends on no rank before it has begun on all. So rank 0 began
 * before the other rank ended, and the other rank began before rank 0 ended: this bounds the difference
 * from both sides. The bounds of several meetings are taken together. Ranks of one host have one clock, so
 * the difference is 0 where 0 is possible, else the middle of the bounds. It is measured once, at the end;
 * clocks that drift apart by 10 ppm are then 0.6 ms apart a minute earlier.
 *
 * THREADS. A stopwatch belongs to one step in flight of one executor, which orders its calls. Call all other
 * functions from the driving thread.
 */
#ifndef OT_OFFLOAD_PREDICT_TRACE_H
#define OT_OFFLOAD_PREDICT_TRACE_H

#include "offload/schedule/schedule.h"

struct ot_trace;
struct ot_stopwatch;

struct ot_task_span { /* seconds */
    double begin, end;
};

/* Opens a trace for at most max_spans tasks; memory (16 bytes a task) is allocated as steps are added.
 * `chain` gives the names and must outlive the trace. Errors: OT_E_BUDGET (no memory). */
int ot_trace_open(const struct ot_chain *chain, int64_t max_spans, struct ot_trace **out);
void ot_trace_close(struct ot_trace *trace); /* NULL is fine */
/* Forgets all steps, to make room for others. No step may be in flight. */
void ot_trace_clear(struct ot_trace *trace);
/* Steps that begin while the trace is paused are not recorded, and not counted as left out. NULL is fine. */
void ot_trace_pause(struct ot_trace *trace, bool paused);
/* Adds one complete step and copies its spans. The schedule must outlive the trace. If the step does not fit,
 * the trace is full: this step and all later ones are only counted (left_out). Errors: OT_E_BUDGET (no
 * memory). */
int ot_trace_add(struct ot_trace *trace, const struct ot_schedule *schedule, int64_t step,
                 const struct ot_task_span *spans);

/* ---- for the executor (a NULL stopwatch: these do nothing) ---- */

/* Errors: OT_E_BUDGET, OT_E_DEVICE. */
int ot_stopwatch_open(struct ot_trace *trace, struct ot_device *device, const struct ot_schedule *schedule,
                      struct ot_stopwatch **out);
void ot_stopwatch_close(struct ot_stopwatch *watch);
/* Call this before the first task of a step. Returns true if the step is recorded: collect it then. */
bool ot_stopwatch_start(struct ot_stopwatch *watch);
/* lane NULL: the task runs on the calling thread, so the clock is read now. */
void ot_stopwatch_begin(struct ot_stopwatch *watch, int task, struct ot_lane *lane);
void ot_stopwatch_end(struct ot_stopwatch *watch, int task, struct ot_lane *lane);
/* Adds the step to the trace. Call it when all tasks of the step are complete, but not from a lane's
 * notification. Errors: as ot_trace_add, or OT_E_DEVICE. */
int ot_stopwatch_collect(struct ot_stopwatch *watch, int64_t step);

/* ---- reading ---- */

struct ot_trace_summary {
    int64_t steps, left_out; /* training steps in the trace, and steps that did not fit */
    /* Training time, from the beginning of the first task to the end of the last. */
    double seconds;
    double busy[OT_LANE_COUNT];    /* seconds in which the lane ran a task */
    double exposed[OT_LANE_COUNT]; /* seconds in which compute waited for that lane */
    double exposed_host;           /* seconds in which compute waited, but no task that it needed ran */
};
/* Errors: OT_E_BUDGET. */
int ot_trace_summarise(const struct ot_trace *trace, struct ot_trace_summary *out);
/* Summarises a part of the run: from the last decision task of training step `first` to that of training step
 * `last`. Leaves out the beginning and the end of a run, where the pipeline is not full. Errors: OT_E_BUDGET,
 * OT_E_USAGE (the trace lacks one of the steps). */
int ot_trace_summarise_between(const struct ot_trace *trace, int64_t first, int64_t last,
                               struct ot_trace_summary *out);
/* The same from the first training step in the trace to the last. If the trace holds only one, summarises
 * this step as it is, with the beginning and the end. Errors: OT_E_BUDGET. */
int ot_trace_summarise_full(const struct ot_trace *trace, struct ot_trace_summary *out);
/* Summarises the training steps `first` to `last` alone, each with all its tasks. Unlike a part of the run,
 * whole steps tell how long their tasks took even if the pipeline was empty before or between them. Errors:
 * OT_E_BUDGET, OT_E_USAGE (the trace lacks one of the steps). */
int ot_trace_summarise_steps(const struct ot_trace *trace, int64_t first, int64_t last,
                             struct ot_trace_summary *out);
/* Checks that ot_trace_write may write to `path`: the path does not exist, is an empty or special file, or
 * holds an earlier trace. Errors: OT_E_INPUT (another file is there), OT_E_IO. */
int ot_trace_check_file(const char *path);
/* Writes the traces to a file; either may be NULL. Replaces an existing file without a check. Errors:
 * OT_E_IO, OT_E_BUDGET. */
int ot_trace_write(const struct ot_trace *measured, const struct ot_trace *predicted, const char *path);

/* ---- several ranks ---- */

struct ot_trace_text { /* of another rank */
    char *text;        /* heap */
    size_t bytes;
};
/* The time of the trace's clock that is time 0 in its file. */
double ot_trace_origin(const struct ot_trace *measured);
/* Writes the text of rank `rank` >= 1. origin: by this rank's clock. Errors: OT_E_BUDGET. */
int ot_trace_put(const struct ot_trace *measured, int rank, double origin, struct ot_trace_text *out);
/* Like ot_trace_write, on rank 0, with the texts of the n other ranks in their order. */
int ot_trace_write_ranks(const struct ot_trace *measured, const struct ot_trace *predicted,
                         const struct ot_trace_text *others, int n, const char *path);
/* Returns the seconds that, added to this rank's clock, give rank 0's. Rank 0 and this rank met n times. */
double ot_trace_clock_offset(const struct ot_task_span *first, const struct ot_task_span *own, int n);

#endif

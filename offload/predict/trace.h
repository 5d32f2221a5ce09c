/* A trace: when each task of each step ran, and what that says about the lanes.
 *
 * The executor stamps the beginning and the end of every task, on device lanes by timed events (device.h), on
 * the cpu lane by the clock; all on the scale of ot_clock_seconds. Stamps are events like any other: they
 * order nothing and wait for nothing. When a step is complete its spans join the trace, until the trace is
 * full: it then holds the run's first steps, whole. The simulator (simulate.h) fills traces as well, with
 * times that it has worked out.
 *
 * EXPOSED TIME. What keeps a step from being as short as its computing is the time in which the compute lane
 * stands still. The summary says who it waited for: from the end of a gap backwards, the task that finished
 * last among those that the waiting task depends on ran, or waited for another one, and so on back to the
 * gap's beginning. A task also depends on the one that had its lane before it. Each piece belongs to the lane
 * whose task ran in it; pieces in which none of that chain ran (enqueuing, waking a thread) are the host's.
 * So the compute lane's busy time and all exposed times add up to the window.
 *
 * Files are Chrome's trace event format (JSON object form; "X" events, microseconds), which Perfetto and
 * chrome://tracing open: a row per lane, tasks named by kind, block and micro-batch or tile. A measured and a
 * predicted trace stand below each other, their first training steps aligned.
 *
 * Threads: a stopwatch belongs to one step in flight of one executor, which orders its calls; the rest is for
 * the driving thread.
 */
#ifndef OT_OFFLOAD_PREDICT_TRACE_H
#define OT_OFFLOAD_PREDICT_TRACE_H

#include "offload/schedule/schedule.h"

struct ot_trace;
struct ot_stopwatch;

struct ot_task_span { /* seconds */
    double begin, end;
};

/* Room for max_spans tasks (16 bytes each, allocated as they come). `chain` is for names and outlives the
 * trace. Errors: OT_E_BUDGET. */
int ot_trace_open(const struct ot_chain *chain, int64_t max_spans, struct ot_trace **out);
void ot_trace_close(struct ot_trace *trace); /* NULL is fine */
/* Forgets all steps, so that there is room for others; no step is in flight. */
void ot_trace_clear(struct ot_trace *trace);
/* Adds one complete step; schedules outlive the trace. A step that does not fit is counted and left out, and
 * so is every later one. Errors: OT_E_BUDGET. */
int ot_trace_add(struct ot_trace *trace, const struct ot_schedule *schedule, int64_t step,
                 const struct ot_task_span *spans);

/* ---- what the executor does (all with NULL: nothing) ---- */

/* Errors: OT_E_BUDGET, OT_E_DEVICE. */
int ot_stopwatch_open(struct ot_trace *trace, struct ot_device *device, const struct ot_schedule *schedule,
                      struct ot_stopwatch **out);
void ot_stopwatch_close(struct ot_stopwatch *watch);
/* lane NULL: the task runs here and now. */
void ot_stopwatch_begin(struct ot_stopwatch *watch, int task, struct ot_lane *lane);
void ot_stopwatch_end(struct ot_stopwatch *watch, int task, struct ot_lane *lane);
/* After all tasks of the step are complete; not from a lane's notification. Errors: as ot_trace_add, or
 * OT_E_DEVICE. */
int ot_stopwatch_collect(struct ot_stopwatch *watch, int64_t step);

/* ---- reading ---- */

struct ot_trace_summary {
    int64_t steps, left_out;       /* training steps in the trace, and those it had no room for */
    double seconds;                /* from the first task's beginning to the last one's end, training alone */
    double busy[OT_LANE_COUNT];    /* seconds in which the lane ran a task */
    double exposed[OT_LANE_COUNT]; /* seconds in which compute stood still because of that lane */
    double exposed_host;           /* and because of nothing that ran */
};
/* Errors: OT_E_BUDGET. */
int ot_trace_summarise(const struct ot_trace *trace, struct ot_trace_summary *out);
/* The same of steps in the middle of a run, without its beginning and its end: from the last decision of
 * training step `first` to that of step `last`. Errors: OT_E_BUDGET, OT_E_USAGE (the trace lacks one). */
int ot_trace_summarise_between(const struct ot_trace *trace, int64_t first, int64_t last,
                               struct ot_trace_summary *out);
/* Whether ot_trace_write may write to `path`: nothing is there, or an earlier trace. Errors: OT_E_INPUT
 * (another file is there), OT_E_IO. */
int ot_trace_check_file(const char *path);
/* Either may be NULL. Replaces any file. Errors: OT_E_IO, OT_E_BUDGET. */
int ot_trace_write(const struct ot_trace *measured, const struct ot_trace *predicted, const char *path);

#endif

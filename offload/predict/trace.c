#include "offload/predict/trace.h"

#include <stdlib.h>
#include <string.h>

#include "offload/predict/trace_state.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/grow.h"

struct ot_stopwatch {
    struct ot_trace *trace;
    const struct ot_schedule *schedule;
    bool is_on;                 /* the present step is recorded */
    struct ot_event **events;   /* [2 * n_tasks]: beginning and end of each task; NULL for host lanes */
    struct ot_task_span *spans; /* [n_tasks] */
};

/* ---- filling ---- */

int ot_trace_open(const struct ot_chain *chain, int64_t max_spans, struct ot_trace **out) {
    *out = calloc(1, sizeof **out);
    if (!*out)
        return ot_fail(OT_E_BUDGET, "no memory for a trace");
    (*out)->chain = chain;
    (*out)->max_spans = max_spans;
    return 0;
}

void ot_trace_clear(struct ot_trace *trace) {
    for (int i = 0; i < trace->n; i++)
        free(trace->steps[i].spans);
    trace->n = 0;
    trace->n_spans = trace->left_out = 0;
}

void ot_trace_pause(struct ot_trace *trace, bool paused) {
    if (trace)
        trace->is_paused = paused;
}

void ot_trace_close(struct ot_trace *trace) {
    if (!trace)
        return;
    ot_trace_clear(trace);
    free(trace->steps);
    free(trace);
}

int ot_trace_add(struct ot_trace *trace, const struct ot_schedule *schedule, int64_t step,
                 const struct ot_task_span *spans) {
    if (trace->left_out || trace->n_spans + schedule->n_tasks > trace->max_spans) {
        trace->left_out++;
        return 0;
    }
    OT_TRY(ot_grow(&trace->steps, &trace->capacity, (size_t)trace->n + 1, sizeof *trace->steps,
                   "steps of a trace"));
    size_t bytes = (size_t)schedule->n_tasks * sizeof *spans;
    struct ot_task_span *copy = malloc(bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for a trace of %lld tasks", (long long)trace->n_spans);
    memcpy(copy, spans, bytes);
    trace->steps[trace->n++] = (struct ot_traced_step){schedule, step, copy};
    trace->n_spans += schedule->n_tasks;
    return 0;
}

/* ---- stopwatches ---- */

int ot_stopwatch_open(struct ot_trace *trace, struct ot_device *device, const struct ot_schedule *schedule,
                      struct ot_stopwatch **out) {
    *out = NULL;
    if (!trace)
        return 0;
    int rc = 0;
    size_t n = (size_t)schedule->n_tasks;
    struct ot_stopwatch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return ot_fail(OT_E_BUDGET, "no memory for a trace");
    watch->trace = trace;
    watch->schedule = schedule;
    watch->events = calloc(2 * n, sizeof *watch->events);
    watch->spans = calloc(n, sizeof *watch->spans);
    if (!watch->events || !watch->spans) {
        rc = ot_fail(OT_E_BUDGET, "no memory for a trace of %zu tasks", n);
        goto out;
    }
    for (size_t i = 0; i < 2 * n; i++)
        if (ot_lane_is_device(schedule->tasks[i / 2].lane))
            OT_TRY_GOTO(ot_event_create_timed(device, &watch->events[i]), rc, out);
    *out = watch;
    return 0;
out:
    ot_stopwatch_close(watch);
    return rc;
}

void ot_stopwatch_close(struct ot_stopwatch *watch) {
    for (int i = 0; watch && watch->events && i < 2 * watch->schedule->n_tasks; i++)
        ot_event_destroy(watch->events[i]);
    if (watch) {
        free(watch->events);
        free(watch->spans);
    }
    free(watch);
}

bool ot_stopwatch_start(struct ot_stopwatch *watch) {
    if (!watch)
        return false;
    struct ot_trace *trace = watch->trace;
    watch->is_on = trace->left_out == 0 && !trace->is_paused;
    trace->left_out += trace->left_out > 0 && !trace->is_paused;
    return watch->is_on;
}

void ot_stopwatch_begin(struct ot_stopwatch *watch, int task, struct ot_lane *lane) {
    if (!watch || !watch->is_on)
        return;
    if (lane)
        ot_lane_record(lane, watch->events[2 * task]);
    else
        watch->spans[task].begin = ot_clock_seconds();
}

void ot_stopwatch_end(struct ot_stopwatch *watch, int task, struct ot_lane *lane) {
    if (!watch || !watch->is_on)
        return;
    if (lane)
        ot_lane_record(lane, watch->events[2 * task + 1]);
    else
        watch->spans[task].end = ot_clock_seconds();
}

int ot_stopwatch_collect(struct ot_stopwatch *watch, int64_t step) {
    if (!watch || !watch->is_on)
        return 0;
    for (int i = 0; i < watch->schedule->n_tasks; i++)
        if (ot_lane_is_device(watch->schedule->tasks[i].lane)) {
            OT_TRY(ot_event_seconds(watch->events[2 * i], &watch->spans[i].begin));
            OT_TRY(ot_event_seconds(watch->events[2 * i + 1], &watch->spans[i].end));
        }
    return ot_trace_add(watch->trace, watch->schedule, step, watch->spans);
}

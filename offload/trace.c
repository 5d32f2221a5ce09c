#include "offload/trace.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"

enum { NAME_BYTES = 160 };

struct traced_step {
    const struct ot_schedule *schedule;
    int64_t step;
    struct ot_task_span *spans; /* [n_tasks] */
};

struct ot_trace {
    const struct ot_chain *chain;
    int64_t max_spans, n_spans, left_out;
    int n, capacity;
    struct traced_step *steps;
};

struct ot_stopwatch {
    struct ot_trace *trace;
    const struct ot_schedule *schedule;
    struct ot_event **events;   /* [2 * n_tasks]: beginning and end; NULL for the cpu lane's */
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

void ot_trace_close(struct ot_trace *trace) {
    for (int i = 0; trace && i < trace->n; i++)
        free(trace->steps[i].spans);
    if (trace)
        free(trace->steps);
    free(trace);
}

int ot_trace_add(struct ot_trace *trace, const struct ot_schedule *schedule, int64_t step,
                 const struct ot_task_span *spans) {
    if (trace->left_out || trace->n_spans + schedule->n_tasks > trace->max_spans) {
        trace->left_out++;
        return 0;
    }
    if (trace->n == trace->capacity) {
        int capacity = trace->capacity ? 2 * trace->capacity : 64;
        struct traced_step *grown = realloc(trace->steps, (size_t)capacity * sizeof *grown);
        if (!grown)
            return ot_fail(OT_E_BUDGET, "no memory for a trace of %d steps", capacity);
        trace->steps = grown;
        trace->capacity = capacity;
    }
    size_t bytes = (size_t)schedule->n_tasks * sizeof *spans;
    struct ot_task_span *copy = malloc(bytes);
    if (!copy)
        return ot_fail(OT_E_BUDGET, "no memory for a trace of %lld tasks", (long long)trace->n_spans);
    memcpy(copy, spans, bytes);
    trace->steps[trace->n++] = (struct traced_step){schedule, step, copy};
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

void ot_stopwatch_begin(struct ot_stopwatch *watch, int task, struct ot_lane *lane) {
    if (watch && lane)
        ot_lane_record(lane, watch->events[2 * task]);
    else if (watch)
        watch->spans[task].begin = ot_clock_seconds();
}

void ot_stopwatch_end(struct ot_stopwatch *watch, int task, struct ot_lane *lane) {
    if (watch && lane)
        ot_lane_record(lane, watch->events[2 * task + 1]);
    else if (watch)
        watch->spans[task].end = ot_clock_seconds();
}

int ot_stopwatch_collect(struct ot_stopwatch *watch, int64_t step) {
    if (!watch)
        return 0;
    if (watch->trace->left_out) { /* full: reading the events would be for nothing */
        watch->trace->left_out++;
        return 0;
    }
    for (int i = 0; i < watch->schedule->n_tasks; i++)
        if (ot_lane_is_device(watch->schedule->tasks[i].lane)) {
            OT_TRY(ot_event_seconds(watch->events[2 * i], &watch->spans[i].begin));
            OT_TRY(ot_event_seconds(watch->events[2 * i + 1], &watch->spans[i].end));
        }
    return ot_trace_add(watch->trace, watch->schedule, step, watch->spans);
}

/* ---- the summary ---- */

/* A place in the trace: task of steps[at]; at < 0: none. */
struct place {
    int at, task;
};

static bool is_training(const struct ot_schedule *schedule) {
    return schedule->lane_count[OT_LANE_CPU] > 0;
}

static const struct ot_task_span *span_at(const struct ot_trace *trace, struct place p) {
    return &trace->steps[p.at].spans[p.task];
}

/* positions[task]: where each task stands in its lane. One table a schedule; all training steps share one. */
static int *number_lanes(const struct ot_schedule *schedule) {
    int *positions = malloc((size_t)schedule->n_tasks * sizeof *positions);
    for (int l = 0; positions && l < OT_LANE_COUNT; l++)
        for (int i = 0; i < schedule->lane_count[l]; i++)
            positions[schedule->lane_tasks[l][i]] = i;
    return positions;
}

/* The step before, where it was traced as a step of the same schedule. */
static int step_before(const struct ot_trace *trace, int at) {
    bool follows = at > 0 && trace->steps[at - 1].schedule == trace->steps[at].schedule &&
                   trace->steps[at - 1].step + 1 == trace->steps[at].step;
    return follows ? at - 1 : -1;
}

static void keep_latest(const struct ot_trace *trace, struct place candidate, struct place *latest) {
    if (candidate.at >= 0 &&
        (latest->at < 0 || span_at(trace, candidate)->end > span_at(trace, *latest)->end))
        *latest = candidate;
}

/* Of what the task had to wait for (its edges, and its predecessor on an in-order lane), the one that ended
 * last. */
static struct place latest_before(const struct ot_trace *trace, struct place p, const int *positions) {
    const struct ot_schedule *s = trace->steps[p.at].schedule;
    const struct ot_task *task = &s->tasks[p.task];
    struct place latest = {-1, 0};
    int before = step_before(trace, p.at);
    for (int d = 0; d < task->n_deps; d++)
        keep_latest(trace, (struct place){task->deps[d].previous_step ? before : p.at, task->deps[d].task},
                    &latest);
    if (!ot_lane_is_device(task->lane))
        return latest;
    int i = positions[p.task], last = s->lane_count[task->lane] - 1;
    int at = i > 0 ? p.at : before;
    keep_latest(trace, (struct place){at, s->lane_tasks[task->lane][i > 0 ? i - 1 : last]}, &latest);
    return latest;
}

/* Shares out [from, to), in which the compute lane stood still because of `cause` and what that waited for.
 * */
static void share_out(const struct ot_trace *trace, struct place cause, double from, double to,
                      const int *positions, struct ot_trace_summary *out) {
    while (to > from && cause.at >= 0 && span_at(trace, cause)->end > from) {
        const struct ot_task_span *span = span_at(trace, cause);
        double end = span->end < to ? span->end : to;
        double begin = span->begin < from ? from : span->begin < end ? span->begin : end;
        out->exposed_host += to - end;
        out->exposed[trace->steps[cause.at].schedule->tasks[cause.task].lane] += end - begin;
        to = begin;
        cause = latest_before(trace, cause, positions);
    }
    out->exposed_host += to > from ? to - from : 0;
}

/* Consecutive steps, from the first task's beginning to the last one's end. */
struct window {
    bool open;
    double first, computed; /* `computed`: until when the gaps have been shared out */
    struct place last;      /* the task that ended last */
};

static void close_window(const struct ot_trace *trace, struct window *w, const int *positions,
                         struct ot_trace_summary *out) {
    if (!w->open)
        return;
    double end = span_at(trace, w->last)->end;
    share_out(trace, w->last, w->computed, end, positions, out);
    out->seconds += end - w->first;
    w->open = false;
}

static void open_window(const struct ot_trace *trace, struct window *w, int at) {
    const struct traced_step *step = &trace->steps[at];
    *w = (struct window){.open = true, .first = step->spans[0].begin, .last = {at, 0}};
    for (int i = 1; i < step->schedule->n_tasks; i++)
        if (step->spans[i].begin < w->first)
            w->first = step->spans[i].begin;
    w->computed = w->first;
}

static void add_step(const struct ot_trace *trace, int at, struct window *w, const int *positions,
                     struct ot_trace_summary *out) {
    const struct traced_step *step = &trace->steps[at];
    const struct ot_schedule *s = step->schedule;
    out->steps++;
    for (int i = 0; i < s->n_tasks; i++) {
        out->busy[s->tasks[i].lane] += step->spans[i].end - step->spans[i].begin;
        keep_latest(trace, (struct place){at, i}, &w->last);
    }
    for (int i = 0; i < s->lane_count[OT_LANE_COMPUTE]; i++) {
        struct place p = {at, s->lane_tasks[OT_LANE_COMPUTE][i]};
        const struct ot_task_span *span = span_at(trace, p);
        if (span->begin > w->computed)
            share_out(trace, latest_before(trace, p, positions), w->computed, span->begin, positions, out);
        if (span->end > w->computed)
            w->computed = span->end;
    }
}

int ot_trace_summarise(const struct ot_trace *trace, struct ot_trace_summary *out) {
    const struct ot_schedule *numbered = NULL;
    int *positions = NULL;
    struct window w = {0};
    *out = (struct ot_trace_summary){.left_out = trace->left_out};
    for (int at = 0; at < trace->n; at++) {
        const struct ot_schedule *schedule = trace->steps[at].schedule;
        if (step_before(trace, at) < 0)
            close_window(trace, &w, positions, out);
        if (!is_training(schedule))
            continue;
        if (schedule != numbered) {
            free(positions);
            positions = number_lanes(numbered = schedule);
            if (!positions)
                return ot_fail(OT_E_BUDGET, "no memory for a trace's summary");
        }
        if (!w.open)
            open_window(trace, &w, at);
        add_step(trace, at, &w, positions, out);
    }
    close_window(trace, &w, positions, out);
    free(positions);
    return 0;
}

/* ---- the file ---- */

enum { ROW_STEPS = OT_LANE_COUNT };

static double earliest(const struct ot_trace *trace) {
    double first = trace->n ? trace->steps[0].spans[0].begin : 0;
    for (int at = 0; at < trace->n; at++)
        for (int i = 0; i < trace->steps[at].schedule->n_tasks; i++)
            first = trace->steps[at].spans[i].begin < first ? trace->steps[at].spans[i].begin : first;
    return first;
}

static void put_row_name(struct ot_json_writer *w, int row, const char *name) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "ph", "M");
    ot_json_put_text(w, "name", "thread_name");
    ot_json_put_int(w, "pid", 1);
    ot_json_put_int(w, "tid", row);
    ot_json_begin_object(w, "args");
    ot_json_put_text(w, "name", name);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

/* Times in microseconds, to the nanosecond. */
static void put_span(struct ot_json_writer *w, const char *name, const char *category, int row, double begin,
                     double end, int64_t step) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "ph", "X");
    ot_json_put_text(w, "name", name);
    ot_json_put_text(w, "cat", category);
    ot_json_put_int(w, "pid", 1);
    ot_json_put_int(w, "tid", row);
    ot_json_put_real(w, "ts", round(begin * 1e9) / 1e3);
    ot_json_put_real(w, "dur", round((end - begin) * 1e9) / 1e3);
    ot_json_begin_object(w, "args");
    ot_json_put_int(w, "step", step);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

static void put_step(struct ot_json_writer *w, const struct ot_trace *trace, const struct traced_step *step,
                     double origin) {
    const struct ot_schedule *s = step->schedule;
    double begin = step->spans[0].begin, end = step->spans[0].end;
    char name[NAME_BYTES];
    for (int i = 0; i < s->n_tasks; i++) {
        const struct ot_task *task = &s->tasks[i];
        const struct ot_task_span *span = &step->spans[i];
        begin = span->begin < begin ? span->begin : begin;
        end = span->end > end ? span->end : end;
        put_span(w, ot_task_describe(task, trace->chain, name, sizeof name), ot_task_kind_name(task->kind),
                 (int)task->lane, span->begin - origin, span->end - origin, step->step);
    }
    if (is_training(s))
        snprintf(name, sizeof name, "step %lld", (long long)step->step);
    else
        snprintf(name, sizeof name, "forward alone");
    put_span(w, name, "step", ROW_STEPS + (int)(step->step & 1), begin - origin, end - origin, step->step);
}

int ot_trace_write(const struct ot_trace *trace, const char *path) {
    struct ot_json_writer w = {.indent = -1};
    double origin = earliest(trace);
    char *text = NULL;
    size_t bytes;
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "displayTimeUnit", "ms");
    ot_json_begin_array(&w, "traceEvents");
    for (int l = 0; l < OT_LANE_COUNT; l++)
        put_row_name(&w, l, ot_lane_name((enum ot_lane_id)l));
    put_row_name(&w, ROW_STEPS, "steps, even");
    put_row_name(&w, ROW_STEPS + 1, "steps, odd");
    for (int at = 0; at < trace->n; at++)
        put_step(&w, trace, &trace->steps[at], origin);
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    FILE *file = fopen(path, "w");
    int rc = file ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    if (file && fwrite(text, 1, bytes, file) < bytes)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    if (file && fclose(file) != 0 && rc >= 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    free(text);
    return rc;
}

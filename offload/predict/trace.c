#include "offload/predict/trace.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "offload/predict/trace_state.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"

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

/* ---- trace file ---- */

/* Writes traces as files; see FILES in trace.h. */

enum { NAME_BYTES = 160, ROW_STEPS = OT_LANE_COUNT };

/* Chrome's "processes": groups of rows. Rank r >= 1 has group GROUP_PREDICTED + r. */
enum { GROUP_MEASURED = 1, GROUP_PREDICTED };

/* A group, its place among the groups, and the time of the trace's clock that is time 0 in the file. */
struct scale {
    int group, place;
    double origin;
    char name[48];
};

static void put_name(struct ot_json_writer *w, const char *what, int group, int row, const char *name) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "ph", "M");
    ot_json_put_text(w, "name", what);
    ot_json_put_int(w, "pid", group);
    ot_json_put_int(w, "tid", row);
    ot_json_begin_object(w, "args");
    ot_json_put_text(w, "name", name);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

static void put_names(struct ot_json_writer *w, const struct scale *scale) {
    int group = scale->group;
    put_name(w, "process_name", group, 0, scale->name);
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "ph", "M");
    ot_json_put_text(w, "name", "process_sort_index");
    ot_json_put_int(w, "pid", group);
    ot_json_begin_object(w, "args");
    ot_json_put_int(w, "sort_index", scale->place);
    ot_json_end_object(w);
    ot_json_end_object(w);
    for (int l = 0; l < OT_LANE_COUNT; l++)
        put_name(w, "thread_name", group, l, ot_lane_name((enum ot_lane_id)l));
    put_name(w, "thread_name", group, ROW_STEPS, "steps, even");
    put_name(w, "thread_name", group, ROW_STEPS + 1, "steps, odd");
}

/* Writes times in microseconds with a resolution of a nanosecond. */
static void put_span(struct ot_json_writer *w, const struct scale *scale, const char *name,
                     const char *category, int row, const struct ot_task_span *span, int64_t step) {
    ot_json_begin_object(w, NULL);
    ot_json_put_text(w, "ph", "X");
    ot_json_put_text(w, "name", name);
    ot_json_put_text(w, "cat", category);
    ot_json_put_int(w, "pid", scale->group);
    ot_json_put_int(w, "tid", row);
    ot_json_put_real(w, "ts", round((span->begin - scale->origin) * 1e9) / 1e3);
    ot_json_put_real(w, "dur", round((span->end - span->begin) * 1e9) / 1e3);
    ot_json_begin_object(w, "args");
    ot_json_put_int(w, "step", step);
    ot_json_end_object(w);
    ot_json_end_object(w);
}

static void put_step(struct ot_json_writer *w, const struct scale *scale, const struct ot_trace *trace,
                     const struct ot_traced_step *step) {
    const struct ot_schedule *s = step->schedule;
    struct ot_task_span whole = step->spans[0];
    char name[NAME_BYTES];
    for (int i = 0; i < s->n_tasks; i++) {
        const struct ot_task *task = &s->tasks[i];
        const struct ot_task_span *span = &step->spans[i];
        whole.begin = ot_min(span->begin, whole.begin);
        whole.end = ot_max(span->end, whole.end);
        put_span(w, scale, ot_task_describe(task, trace->chain, name, sizeof name),
                 ot_task_kind_name(task->kind), (int)task->lane, span, step->step);
    }
    if (ot_trace_is_training(s))
        snprintf(name, sizeof name, "step %lld", (long long)step->step);
    else
        snprintf(name, sizeof name, "forward alone");
    put_span(w, scale, name, "step", ROW_STEPS + (int)(step->step & 1), &whole, step->step);
}

static double earliest(const struct ot_trace *trace) {
    double first = trace->n ? ot_traced_step_begin(&trace->steps[0]) : 0;
    for (int at = 1; at < trace->n; at++)
        first = fmin(first, ot_traced_step_begin(&trace->steps[at]));
    return first;
}

/* The beginning of the first training step, or of the whole trace if it has no training step. */
static double training_begin(const struct ot_trace *trace) {
    for (int at = 0; at < trace->n; at++)
        if (ot_trace_is_training(trace->steps[at].schedule))
            return ot_traced_step_begin(&trace->steps[at]);
    return earliest(trace);
}

static void put_trace(struct ot_json_writer *w, const struct ot_trace *trace, struct scale scale) {
    put_names(w, &scale);
    for (int at = 0; at < trace->n; at++)
        put_step(w, &scale, trace, &trace->steps[at]);
}

/* Every trace file begins with these bytes. They distinguish it from files of other programs. */
static const char first_bytes[] =
    "{\"displayTimeUnit\": \"ms\", \"otherData\": {\"writer\": \"offload-train\"}, \"traceEvents\": [";

int ot_trace_check_file(const char *path) {
    char head[sizeof first_bytes] = "";
    struct stat facts;
    if (stat(path, &facts) < 0)
        return errno == ENOENT ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot read this file's facts", path);
    if (!S_ISREG(facts.st_mode) || facts.st_size == 0) /* a device, or an empty file: no data to lose */
        return 0;
    FILE *file = fopen(path, "re");
    if (!file)
        return ot_fail_errno(OT_E_IO, errno, "%s: cannot read this file", path);
    size_t bytes = fread(head, 1, sizeof head - 1, file);
    bool is_trace = bytes == sizeof head - 1 && strcmp(head, first_bytes) == 0;
    fclose(file);
    if (is_trace)
        return 0;
    return ot_fail(OT_E_INPUT, "%s: this file exists and is no trace of this program; name another file",
                   path);
}

/* Writes the file's text, which ends with "]}" and a line feed or none: the others' events go in front of
 * that. Closes the file also on errors. */
static int write_text(const char *path, const char *text, size_t bytes, const struct ot_trace_text *others,
                      int n) {
    FILE *file = fopen(path, "w");
    size_t end = bytes;
    bool ok = file != NULL;
    while (end > 0 && text[end - 1] != ']')
        end--;
    end -= end > 0;
    ok = ok && fwrite(text, 1, end, file) == end;
    for (int i = 0; i < n; i++)
        ok = ok && fputs(", ", file) >= 0 &&
             fwrite(others[i].text, 1, others[i].bytes, file) == others[i].bytes;
    ok = ok && fwrite(text + end, 1, bytes - end, file) == bytes - end;
    int rc = ok ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    if (file && fclose(file) != 0 && rc >= 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    return rc;
}

static struct scale scale_of(int ranks, int rank, bool predicted, double origin) {
    const char *what = predicted ? "predicted" : "measured";
    struct scale scale = {.group = rank > 0    ? GROUP_PREDICTED + rank
                                   : predicted ? GROUP_PREDICTED
                                               : GROUP_MEASURED,
                          .place = predicted ? ranks : rank,
                          .origin = origin};
    if (ranks > 1)
        snprintf(scale.name, sizeof scale.name, "rank %d, %s", rank, what);
    else
        snprintf(scale.name, sizeof scale.name, "%s", what);
    return scale;
}

double ot_trace_origin(const struct ot_trace *measured) {
    return earliest(measured);
}

int ot_trace_write(const struct ot_trace *measured, const struct ot_trace *predicted, const char *path) {
    return ot_trace_write_ranks(measured, predicted, NULL, 0, path);
}

int ot_trace_write_ranks(const struct ot_trace *measured, const struct ot_trace *predicted,
                         const struct ot_trace_text *others, int n, const char *path) {
    struct ot_json_writer w = {.indent = -1};
    char *text = NULL;
    size_t bytes;
    double before = measured ? training_begin(measured) - earliest(measured) : 0;
    ot_json_begin_object(&w, NULL);
    ot_json_put_text(&w, "displayTimeUnit", "ms");
    ot_json_begin_object(&w, "otherData");
    ot_json_put_text(&w, "writer", "offload-train");
    ot_json_end_object(&w);
    ot_json_begin_array(&w, "traceEvents");
    if (measured)
        put_trace(&w, measured, scale_of(n + 1, 0, false, earliest(measured)));
    if (predicted)
        put_trace(&w, predicted, scale_of(n + 1, 0, true, training_begin(predicted) - before));
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = write_text(path, text, bytes, others, n);
    free(text);
    return rc;
}

/* ---- several ranks ---- */

/* The events of an array, without its brackets. */
int ot_trace_put(const struct ot_trace *measured, int rank, double origin, struct ot_trace_text *out) {
    struct ot_json_writer w = {.indent = -1};
    *out = (struct ot_trace_text){0};
    ot_json_begin_array(&w, NULL);
    put_trace(&w, measured, scale_of(rank + 1, rank, false, origin));
    ot_json_end_array(&w);
    OT_TRY(ot_json_writer_take(&w, &out->text, &out->bytes));
    while (out->text[out->bytes - 1] != ']')
        out->bytes--;
    out->bytes -= 2;
    memmove(out->text, out->text + 1, out->bytes);
    out->text[out->bytes] = '\0';
    return 0;
}

double ot_trace_clock_offset(const struct ot_task_span *first, const struct ot_task_span *own, int n) {
    double least = -INFINITY, most = INFINITY;
    for (int i = 0; i < n; i++) {
        least = fmax(least, first[i].begin - own[i].end);
        most = fmin(most, first[i].end - own[i].begin);
    }
    return least <= 0 && most >= 0 ? 0 : (least + most) / 2;
}

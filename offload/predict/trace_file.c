/* Writes traces as files; see FILES in trace.h. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "offload/predict/trace_state.h"
#include "src/base/error.h"
#include "src/base/json.h"
#include "src/base/minmax.h"

enum { NAME_BYTES = 160, ROW_STEPS = OT_LANE_COUNT };

/* Chrome's "processes": groups of rows. */
enum group { GROUP_MEASURED = 1, GROUP_PREDICTED };

/* A group, and the time of the trace's clock that is time 0 in the file. */
struct scale {
    enum group group;
    double origin;
};

static void put_name(struct ot_json_writer *w, const char *what, enum group group, int row,
                     const char *name) {
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

static void put_names(struct ot_json_writer *w, enum group group) {
    put_name(w, "process_name", group, 0, group == GROUP_MEASURED ? "measured" : "predicted");
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
    put_names(w, scale.group);
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

/* Writes the text to the file. Closes the file also on errors. */
static int write_text(const char *path, const char *text, size_t bytes) {
    FILE *file = fopen(path, "w");
    int rc = file ? 0 : ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    if (file && fwrite(text, 1, bytes, file) < bytes)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    if (file && fclose(file) != 0 && rc >= 0)
        rc = ot_fail_errno(OT_E_IO, errno, "%s: cannot write the trace", path);
    return rc;
}

int ot_trace_write(const struct ot_trace *measured, const struct ot_trace *predicted, const char *path) {
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
        put_trace(&w, measured, (struct scale){GROUP_MEASURED, earliest(measured)});
    if (predicted)
        put_trace(&w, predicted, (struct scale){GROUP_PREDICTED, training_begin(predicted) - before});
    ot_json_end_array(&w);
    ot_json_end_object(&w);
    OT_TRY(ot_json_writer_take(&w, &text, &bytes));
    int rc = write_text(path, text, bytes);
    free(text);
    return rc;
}

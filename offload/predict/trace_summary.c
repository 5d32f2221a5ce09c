/* Summarises a trace; see EXPOSED TIME in trace.h. */
#include <math.h>
#include <stdlib.h>

#include "offload/predict/trace_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

/* A task of the trace: task `task` of steps[at]. at < 0: no task. */
struct place {
    int at, task;
};

/* A task in the order of its lane. */
struct turn {
    double begin;
    struct place place;
};

/* A summary under way: the training tasks between two moments. */
struct reading {
    const struct ot_trace *trace;
    double from, to;
    struct turn *turns[OT_LANE_COUNT]; /* all training tasks of each lane, sorted by their beginning */
    int64_t n_turns[OT_LANE_COUNT];
    int64_t **rank; /* [steps][n_tasks]: a task's index in its lane's turns; NULL: no training step */
    struct ot_trace_summary *out;
};

static const struct ot_task_span *span_at(const struct reading *r, struct place p) {
    return &r->trace->steps[p.at].spans[p.task];
}

static const struct ot_task *task_at(const struct reading *r, struct place p) {
    return &r->trace->steps[p.at].schedule->tasks[p.task];
}

/* ---- the order of each lane ---- */

static int by_beginning(const void *a, const void *b) {
    const struct turn *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->place.at != y->place.at)
        return x->place.at < y->place.at ? -1 : 1;
    return (x->place.task > y->place.task) - (x->place.task < y->place.task);
}

static int list_turns(struct reading *r) {
    const struct ot_trace *trace = r->trace;
    int64_t count[OT_LANE_COUNT] = {0};
    for (int at = 0; at < trace->n; at++)
        for (int l = 0; l < OT_LANE_COUNT && ot_trace_is_training(trace->steps[at].schedule); l++)
            count[l] += trace->steps[at].schedule->lane_count[l];
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        r->turns[l] = malloc(((size_t)count[l] + 1) * sizeof *r->turns[l]);
        if (!r->turns[l])
            return ot_fail(OT_E_BUDGET, "no memory for a trace's summary");
    }
    for (int at = 0; at < trace->n; at++) {
        const struct ot_schedule *s = trace->steps[at].schedule;
        for (int l = 0; l < OT_LANE_COUNT && ot_trace_is_training(s); l++)
            for (int i = 0; i < s->lane_count[l]; i++) {
                struct place p = {at, s->lane_tasks[l][i]};
                r->turns[l][r->n_turns[l]++] = (struct turn){span_at(r, p)->begin, p};
            }
    }
    for (int l = 0; l < OT_LANE_COUNT; l++) /* a device lane's tasks are in order already */
        if (!ot_lane_is_device((enum ot_lane_id)l) && r->n_turns[l] > 1)
            qsort(r->turns[l], (size_t)r->n_turns[l], sizeof *r->turns[l], by_beginning);
    return 0;
}

static int rank_turns(struct reading *r) {
    const struct ot_trace *trace = r->trace;
    r->rank = calloc((size_t)trace->n + 1, sizeof *r->rank);
    for (int at = 0; r->rank && at < trace->n; at++) {
        const struct ot_schedule *s = trace->steps[at].schedule;
        if (ot_trace_is_training(s) && !(r->rank[at] = malloc((size_t)s->n_tasks * sizeof *r->rank[at])))
            return ot_fail(OT_E_BUDGET, "no memory for a trace's summary");
    }
    if (!r->rank)
        return ot_fail(OT_E_BUDGET, "no memory for a trace's summary");
    for (int l = 0; l < OT_LANE_COUNT; l++)
        for (int64_t i = 0; i < r->n_turns[l]; i++) {
            struct place p = r->turns[l][i].place;
            r->rank[p.at][p.task] = i;
        }
    return 0;
}

static void close_reading(struct reading *r) {
    for (int l = 0; l < OT_LANE_COUNT; l++)
        free(r->turns[l]);
    for (int at = 0; r->rank && at < r->trace->n; at++)
        free(r->rank[at]);
    free(r->rank);
}

/* ---- waits ---- */

/* The index of the preceding step, if the trace has it with the same schedule; else -1. */
static int step_before(const struct ot_trace *trace, int at) {
    bool follows = at > 0 && trace->steps[at - 1].schedule == trace->steps[at].schedule &&
                   trace->steps[at - 1].step + 1 == trace->steps[at].step;
    return follows ? at - 1 : -1;
}

static void keep_latest(const struct reading *r, struct place candidate, struct place *latest) {
    if (candidate.at >= 0 && (latest->at < 0 || span_at(r, candidate)->end > span_at(r, *latest)->end))
        *latest = candidate;
}

/* Among the tasks that this task had to wait for (its edges, and the task before it in its lane), the task
 * that ended last. Tasks of a host lane may overlap: a task that began before its predecessor ended did not
 * wait for it. */
static struct place latest_before(const struct reading *r, struct place p) {
    const struct ot_task *task = task_at(r, p);
    struct place latest = {-1, 0};
    int before = step_before(r->trace, p.at);
    for (int d = 0; d < task->n_deps; d++)
        keep_latest(r, (struct place){task->deps[d].previous_step ? before : p.at, task->deps[d].task},
                    &latest);
    int64_t rank = r->rank[p.at][p.task];
    if (rank == 0)
        return latest;
    struct place ahead = r->turns[task->lane][rank - 1].place;
    if (ot_lane_is_device(task->lane) || span_at(r, ahead)->end <= span_at(r, p)->begin)
        keep_latest(r, ahead, &latest);
    return latest;
}

/* The compute lane waited in [from, to) for the task `cause`. Divides this time among the lanes of `cause`
 * and of the tasks that `cause` waited for in turn. */
static void share_out(const struct reading *r, struct place cause, double from, double to) {
    struct ot_trace_summary *out = r->out;
    while (to > from && cause.at >= 0 && span_at(r, cause)->end > from) {
        const struct ot_task_span *span = span_at(r, cause);
        double end = ot_min(span->end, to);
        double begin = span->begin < from ? from : ot_min(span->begin, end);
        out->exposed_host += to - end;
        out->exposed[task_at(r, cause)->lane] += end - begin;
        to = begin;
        cause = latest_before(r, cause);
    }
    out->exposed_host += to > from ? to - from : 0;
}

/* ---- windows ---- */

/* Consecutive steps, from the beginning of the first task to the end of the last, clipped to the reading. */
struct window {
    bool open;
    double first, computed; /* `computed`: gaps before this time are divided already */
    struct place last;      /* the task that ended last */
};

static double clip(const struct reading *r, double moment) {
    return moment < r->from ? r->from : ot_min(r->to, moment);
}

static void close_window(const struct reading *r, struct window *w) {
    if (!w->open)
        return;
    double end = clip(r, span_at(r, w->last)->end);
    share_out(r, w->last, w->computed, end);
    r->out->seconds += end - w->first;
    w->open = false;
}

static void open_window(const struct reading *r, struct window *w, int at) {
    double begin = clip(r, ot_traced_step_begin(&r->trace->steps[at]));
    *w = (struct window){.open = true, .first = begin, .computed = begin, .last = {at, 0}};
}

static void add_step(const struct reading *r, int at, struct window *w) {
    const struct ot_traced_step *step = &r->trace->steps[at];
    const struct ot_schedule *s = step->schedule;
    r->out->steps++;
    for (int i = 0; i < s->n_tasks; i++)
        keep_latest(r, (struct place){at, i}, &w->last);
    for (int i = 0; i < s->lane_count[OT_LANE_COMPUTE]; i++) {
        struct place p = {at, s->lane_tasks[OT_LANE_COMPUTE][i]};
        double begin = clip(r, span_at(r, p)->begin), end = clip(r, span_at(r, p)->end);
        if (begin > w->computed)
            share_out(r, latest_before(r, p), w->computed, begin);
        if (end > w->computed)
            w->computed = end;
    }
}

/* Time in which two tasks of a lane overlap (on the nvme lanes) counts once. */
static void add_busy(const struct reading *r) {
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        double until = r->from;
        for (int64_t i = 0; i < r->n_turns[l]; i++) {
            const struct ot_task_span *span = span_at(r, r->turns[l][i].place);
            double begin = ot_max(span->begin, until), end = ot_min(span->end, r->to);
            if (end <= begin)
                continue;
            r->out->busy[l] += end - begin;
            until = end;
        }
    }
}

static int read_trace(struct reading *r) {
    struct window w = {0};
    OT_TRY(list_turns(r));
    OT_TRY(rank_turns(r));
    add_busy(r);
    for (int at = 0; at < r->trace->n; at++) {
        if (step_before(r->trace, at) < 0)
            close_window(r, &w);
        if (!ot_trace_is_training(r->trace->steps[at].schedule))
            continue;
        if (!w.open)
            open_window(r, &w, at);
        add_step(r, at, &w);
    }
    close_window(r, &w);
    return 0;
}

int ot_trace_summarise(const struct ot_trace *trace, struct ot_trace_summary *out) {
    struct reading r = {.trace = trace, .from = -INFINITY, .to = INFINITY, .out = out};
    *out = (struct ot_trace_summary){.left_out = trace->left_out};
    int rc = read_trace(&r);
    close_reading(&r);
    return rc;
}

/* The end of the step's last decision task; negative infinity if the trace lacks the step. */
static double decision_of(const struct ot_trace *trace, int64_t step) {
    double end = -INFINITY;
    for (int at = 0; at < trace->n; at++) {
        const struct ot_schedule *s = trace->steps[at].schedule;
        for (int i = 0; i < s->n_tasks && ot_trace_is_training(s) && trace->steps[at].step == step; i++)
            if (s->tasks[i].kind == OT_TASK_DECIDE && trace->steps[at].spans[i].end > end)
                end = trace->steps[at].spans[i].end;
    }
    return end;
}

static int lacks(int64_t first, int64_t last) {
    return ot_fail(OT_E_USAGE, "the trace does not hold the steps from %lld to %lld", (long long)first,
                   (long long)last);
}

int ot_trace_summarise_between(const struct ot_trace *trace, int64_t first, int64_t last,
                               struct ot_trace_summary *out) {
    struct reading r = {
        .trace = trace, .from = decision_of(trace, first), .to = decision_of(trace, last), .out = out};
    *out = (struct ot_trace_summary){.left_out = trace->left_out};
    if (last <= first || r.from == -INFINITY || r.to == -INFINITY)
        return lacks(first, last);
    int rc = read_trace(&r);
    close_reading(&r);
    out->steps = last - first;
    return rc;
}

int ot_trace_summarise_full(const struct ot_trace *trace, struct ot_trace_summary *out) {
    int64_t first = 0, last = 0;
    bool found = false;
    for (int at = 0; at < trace->n; at++) {
        if (!ot_trace_is_training(trace->steps[at].schedule))
            continue;
        last = trace->steps[at].step;
        first = found ? first : last;
        found = true;
    }
    return last > first ? ot_trace_summarise_between(trace, first, last, out)
                        : ot_trace_summarise(trace, out);
}

/* The index of the training step in the trace; -1: the trace lacks it. */
static int find_step(const struct ot_trace *trace, int64_t step) {
    for (int at = 0; at < trace->n; at++)
        if (ot_trace_is_training(trace->steps[at].schedule) && trace->steps[at].step == step)
            return at;
    return -1;
}

int ot_trace_summarise_steps(const struct ot_trace *trace, int64_t first, int64_t last,
                             struct ot_trace_summary *out) {
    struct ot_trace alone = *trace;
    int begin = find_step(trace, first), end = find_step(trace, last);
    if (begin < 0 || end < begin)
        return lacks(first, last);
    alone.steps += begin;
    alone.n = end - begin + 1;
    OT_TRY(ot_trace_summarise(&alone, out));
    return out->steps == last - first + 1 ? 0 : lacks(first, last);
}

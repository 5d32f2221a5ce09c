#include "offload/engine/executor.h"

#include <stdio.h>
#include <stdlib.h>

#include "offload/engine/executor_state.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/thread.h"

enum { STALL_SECONDS = 60 };

/* ---- opening and closing ---- */

int ot_executor_open(const struct ot_executor_config *config, struct ot_executor **out) {
    int rc = 0;
    struct ot_executor *ex = calloc(1, sizeof *ex);
    *out = NULL;
    if (!ex)
        return ot_fail(OT_E_BUDGET, "no memory for the executor");
    ex->config = *config;
    pthread_mutex_init(&ex->mutex, NULL);
    ot_cond_init(&ex->driver);
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        ex->lanes[l].executor = ex;
        ex->lanes[l].id = (enum ot_lane_id)l;
        pthread_cond_init(&ex->lanes[l].wake, NULL);
    }
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        struct lane_thread *lt = &ex->lanes[l];
        bool on_device = ot_lane_is_device(lt->id);
        if (lt->id > OT_LANE_CPU && !config->start)
            continue;
        if (on_device)
            OT_TRY_GOTO(ot_lane_open(config->device, ot_lane_name(lt->id), &lt->lane), rc, out);
        int error = ot_thread_start(&lt->thread, ot_lane_name(lt->id), ot_executor_lane_main, lt);
        if (error) {
            rc = ot_fail_errno(OT_E_IO, error, "cannot start the thread of lane %s", ot_lane_name(lt->id));
            goto out;
        }
        lt->started = true;
    }
    *out = ex;
    return 0;
out:
    ot_executor_close(ex);
    return rc;
}

void ot_executor_close(struct ot_executor *ex) {
    if (!ex)
        return;
    ot_executor_drain(ex);
    if (ex->stuck) /* a thread that hangs cannot be joined, and uses the executor */
        return;
    pthread_mutex_lock(&ex->mutex);
    ex->stop = true;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        pthread_cond_signal(&ex->lanes[l].wake);
    pthread_mutex_unlock(&ex->mutex);
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        if (ex->lanes[l].started)
            pthread_join(ex->lanes[l].thread, NULL);
        ot_lane_close(ex->lanes[l].lane);
        pthread_cond_destroy(&ex->lanes[l].wake);
        free(ex->lanes[l].ready);
    }
    pthread_cond_destroy(&ex->driver);
    pthread_mutex_destroy(&ex->mutex);
    free(ex);
}

static int open_instance(struct ot_executor *ex, struct ot_bound *bound, struct instance *in) {
    size_t n = (size_t)bound->schedule->n_tasks;
    in->bound = bound;
    in->issued = calloc(n, sizeof *in->issued);
    in->done = calloc(n, sizeof *in->done);
    in->pending = calloc(n, sizeof *in->pending);
    in->events = calloc(n, sizeof *in->events);
    in->notices = calloc(n, sizeof *in->notices);
    if (!in->issued || !in->done || !in->pending || !in->events || !in->notices)
        return ot_fail(OT_E_BUDGET, "no memory for a step of %zu tasks", n);
    for (size_t i = 0; i < n; i++) {
        in->notices[i] = (struct notice){ex, in, (int)i};
        if (bound->schedule->tasks[i].needs_event)
            OT_TRY(ot_event_create(ex->config.device, &in->events[i]));
    }
    return ot_stopwatch_open(ex->config.trace, ex->config.device, bound->schedule, &in->watch);
}

/* Lists for each task the tasks of host lanes that wait for it. Device lanes check their dependencies
 * themselves. */
static int list_dependents(struct ot_bound *bound) {
    const struct ot_schedule *s = bound->schedule;
    int total = 0;
    bound->first_dependent = calloc((size_t)s->n_tasks + 2, sizeof *bound->first_dependent);
    if (!bound->first_dependent)
        return ot_fail(OT_E_BUDGET, "no memory for a step of %d tasks", s->n_tasks);
    for (int i = 0; i < s->n_tasks; i++)
        for (int d = 0; d < s->tasks[i].n_deps && !ot_lane_is_device(s->tasks[i].lane); d++, total++)
            bound->first_dependent[s->tasks[i].deps[d].task + 2]++;
    for (int i = 0; i < s->n_tasks; i++)
        bound->first_dependent[i + 2] += bound->first_dependent[i + 1];
    bound->dependents = calloc((size_t)total + 1, sizeof *bound->dependents);
    if (!bound->dependents)
        return ot_fail(OT_E_BUDGET, "no memory for a step of %d tasks", s->n_tasks);
    for (int i = 0; i < s->n_tasks; i++)
        for (int d = 0; d < s->tasks[i].n_deps && !ot_lane_is_device(s->tasks[i].lane); d++) {
            const struct ot_dep *dep = &s->tasks[i].deps[d];
            bound->dependents[bound->first_dependent[dep->task + 1]++] =
                (struct ot_dep){i, dep->previous_step, dep->on_host};
        }
    return 0;
}

static int grow_ready(struct lane_thread *lt, int most) {
    return ot_grow(&lt->ready, &lt->ready_capacity, (size_t)most, sizeof *lt->ready, "tasks of a lane");
}

int ot_executor_bind(struct ot_executor *ex, const struct ot_schedule *schedule, struct ot_bound **out) {
    int rc = 0;
    struct ot_bound *bound = calloc(1, sizeof *bound);
    *out = NULL;
    if (!bound)
        return ot_fail(OT_E_BUDGET, "no memory for a schedule");
    bound->schedule = schedule;
    for (int l = DEVICE_LANES; l < OT_LANE_COUNT; l++)
        OT_TRY_GOTO(grow_ready(&ex->lanes[l], IN_FLIGHT * schedule->lane_count[l]), rc, out);
    for (int i = 0; i < IN_FLIGHT; i++)
        OT_TRY_GOTO(open_instance(ex, bound, &bound->instances[i]), rc, out);
    OT_TRY_GOTO(list_dependents(bound), rc, out);
    *out = bound;
    return 0;
out:
    ot_executor_unbind(ex, bound);
    return rc;
}

void ot_executor_unbind(struct ot_executor *ex, struct ot_bound *bound) {
    if (!bound)
        return;
    for (int i = 0; i < IN_FLIGHT; i++) {
        struct instance *in = &bound->instances[i];
        for (int run = 0; run < IN_FLIGHT; run++)
            if (ex->runs[run] == in)
                ex->runs[run] = NULL;
        for (int t = 0; in->events && t < bound->schedule->n_tasks; t++)
            ot_event_destroy(in->events[t]);
        ot_stopwatch_close(in->watch);
        free(in->issued);
        free(in->done);
        free(in->pending);
        free(in->events);
        free(in->notices);
    }
    free(bound->first_dependent);
    free(bound->dependents);
    free(bound);
}

/* ---- driving ---- */

/* The first task of the oldest step that the lane has enqueued and the device has not finished. NULL: no such
 * task, or nobody waits for it. */
static const struct ot_task *unfinished(const struct ot_executor *ex, enum ot_lane_id lane) {
    if (ex->completed == ex->submitted)
        return NULL;
    const struct instance *in = ex->runs[ex->completed % IN_FLIGHT];
    const struct ot_schedule *s = in->bound->schedule;
    for (int i = 0; i < s->lane_count[lane]; i++) {
        int task = s->lane_tasks[lane][i];
        if (s->tasks[task].needs_notify && in->issued[task] && !in->done[task])
            return &s->tasks[task];
    }
    return NULL;
}

enum { LANE_TEXT_BYTES = 160 };

/* Writes "lane compute waits to begin forward layer.3 #0". Returns false if the lane is idle or only waits
 * for another lane. */
static bool describe_lane(const struct ot_executor *ex, enum ot_lane_id id, char text[LANE_TEXT_BYTES]) {
    const struct lane_thread *lt = &ex->lanes[id];
    bool on_device = ot_lane_is_device(id), at_work = lt->at && !(on_device && lt->waiting);
    const struct ot_task *left = on_device && !at_work ? unfinished(ex, id) : NULL;
    const struct ot_task *task = left ? left : lt->at;
    const char *verb = at_work ? "is running "
                       : left  ? "has not finished "
                       : task  ? "waits to begin "
                               : "is idle";
    char name[64];
    snprintf(text, LANE_TEXT_BYTES, "lane %s %s%s", ot_lane_name(id), verb,
             task ? ot_task_describe(task, ex->config.chain, name, sizeof name) : "");
    return at_work || left;
}

static void report_stall(const struct ot_executor *ex, double seconds) {
    char text[LANE_TEXT_BYTES];
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        describe_lane(ex, (enum ot_lane_id)l, text);
        ot_log(OT_LOG_WARN, "no progress for %.0f s: %s", seconds, text);
    }
}

/* Marks the executor as stuck. The error, which every wait returns from now on, names the lanes that hang. If
 * each lane seems to wait for another, it names all lanes: then the device has not reported a completion. */
static void give_up(struct ot_executor *ex, double seconds) {
    char all[OT_LANE_COUNT * (LANE_TEXT_BYTES + 2)] = "", text[LANE_TEXT_BYTES];
    size_t used = 0;
    bool any = false;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        any = describe_lane(ex, (enum ot_lane_id)l, text) || any;
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (describe_lane(ex, (enum ot_lane_id)l, text) || !any)
            used += (size_t)snprintf(all + used, sizeof all - used, "%s%s", used ? "; " : "", text);
    ex->stuck = ex->failed = true;
    ot_error_save(&ex->error, ot_fail(OT_E_STALL,
                                      "no progress for %.0f s: %s (a disk, a driver or a device "
                                      "hangs: see dmesg)",
                                      seconds, all));
}

/* Waits on the driver's condition until test() is true, and acts as the watchdog meanwhile. The condition is
 * signalled when a step is complete and when the awaited task changes. Mutex held. */
static int drive_until(struct ot_executor *ex,
                       bool (*test)(const struct ot_executor *, const struct awaited *),
                       struct awaited awaited) {
    const struct ot_executor_config *c = &ex->config;
    const double report_every = c->stall_seconds > 0 ? c->stall_seconds : STALL_SECONDS;
    const double limit = c->stall_limit_seconds > 0 ? c->stall_limit_seconds : OT_STALL_LIMIT_SECONDS;
    uint64_t seen = ex->progress;
    double since = ot_clock_seconds(), reported = since;
    ex->driver_awaits = awaited;
    while (!test(ex, &awaited) && !ex->stuck) {
        (void)ot_cond_wait_until(&ex->driver, &ex->mutex, ot_clock_ns() + 1000000000);
        double now = ot_clock_seconds();
        if (ex->progress != seen) {
            seen = ex->progress;
            since = reported = now;
        } else if (now - since >= limit) {
            give_up(ex, now - since);
        } else if (now - reported >= report_every) {
            report_stall(ex, now - since);
            reported = now;
        }
    }
    ex->driver_awaits = (struct awaited){0};
    return ex->failed ? ot_error_load(&ex->error) : 0;
}

/* True if another step may start. The instance is the one that it will use, or NULL. */
static bool has_room(const struct ot_executor *ex, const struct awaited *awaited) {
    const struct instance *in = awaited->instance;
    return ex->submitted - ex->completed < IN_FLIGHT && (!in || in->pins == 0);
}

static bool is_drained(const struct ot_executor *ex, const struct awaited *awaited) {
    (void)awaited;
    return ex->submitted == ex->completed;
}

static bool is_task_done(const struct ot_executor *ex, const struct awaited *awaited) {
    (void)ex;
    return awaited->instance->done[awaited->task];
}

int ot_executor_wait_parity(struct ot_executor *ex) {
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, has_room, (struct awaited){0});
    pthread_mutex_unlock(&ex->mutex);
    return rc;
}

/* Adds the times of the instance's step, which is complete, to the trace. After a failure a lane has not
 * recorded all times, so there is nothing to add. */
static int collect_trace(struct ot_executor *ex, struct instance *in) {
    if (!in->traced || ex->failed)
        return 0;
    in->traced = false;
    return ot_stopwatch_collect(in->watch, in->step);
}

static void start_instance(struct ot_executor *ex, struct instance *in, int64_t step) {
    const struct ot_schedule *s = in->bound->schedule;
    struct instance *other = &in->bound->instances[(step + 1) & 1];
    bool overlaps = ex->submitted > ex->completed; /* the step in flight is then the step before */
    in->step = step;
    in->previous = overlaps ? other : NULL;
    in->traced = ot_stopwatch_start(in->watch);
    in->remaining = DEVICE_LANES;
    for (int i = 0; i < s->n_tasks; i++) {
        in->issued[i] = in->done[i] = false;
        in->pending[i] = 0;
        for (int d = 0; d < s->tasks[i].n_deps; d++) {
            const struct ot_dep *dep = &s->tasks[i].deps[d];
            in->pending[i] += !dep->previous_step || (in->previous && !in->previous->done[dep->task]);
        }
    }
    for (int l = DEVICE_LANES; l < OT_LANE_COUNT; l++) {
        in->remaining += s->lane_count[l];
        for (int i = 0; i < s->lane_count[l]; i++)
            if (in->pending[s->lane_tasks[l][i]] == 0)
                ot_executor_push_ready(ex, in, s->lane_tasks[l][i]);
    }
}

int ot_executor_submit(struct ot_executor *ex, struct ot_bound *bound, int64_t step) {
    struct instance *in = &bound->instances[step & 1];
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, has_room, (struct awaited){in, NO_TASK});
    if (rc >= 0)
        rc = collect_trace(ex, in);
    if (rc >= 0) {
        start_instance(ex, in, step);
        ex->runs[ex->submitted % IN_FLIGHT] = in;
        ex->submitted++;
        for (int l = 0; l < DEVICE_LANES; l++)
            pthread_cond_signal(&ex->lanes[l].wake);
    }
    pthread_mutex_unlock(&ex->mutex);
    return rc;
}

int ot_executor_wait_task(struct ot_executor *ex, struct ot_bound *bound, int64_t step, int task) {
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, is_task_done, (struct awaited){&bound->instances[step & 1], task});
    pthread_mutex_unlock(&ex->mutex);
    for (int l = 0; l < DEVICE_LANES && rc >= 0; l++)
        rc = ot_lane_error(ex->lanes[l].lane);
    return rc;
}

int ot_executor_drain(struct ot_executor *ex) {
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, is_drained, (struct awaited){0});
    pthread_mutex_unlock(&ex->mutex);
    if (rc < 0 || ex->drained == ex->submitted) /* no task since the last drain */
        return rc;
    for (int l = 0; l < DEVICE_LANES && rc >= 0; l++)
        if (ex->lanes[l].lane)
            rc = ot_lane_sync(ex->lanes[l].lane);
    for (int64_t run = ex->submitted - IN_FLIGHT; run < ex->submitted && rc >= 0; run++)
        if (run >= 0 && ex->runs[run % IN_FLIGHT]) /* older step first */
            rc = collect_trace(ex, ex->runs[run % IN_FLIGHT]);
    if (rc >= 0)
        ex->drained = ex->submitted;
    return rc;
}

void ot_executor_note_progress(struct ot_executor *ex) {
    pthread_mutex_lock(&ex->mutex);
    ex->progress++;
    pthread_mutex_unlock(&ex->mutex);
}

bool ot_executor_is_stuck(const struct ot_executor *ex) {
    return ex->stuck;
}

/* True if a task of this kind, a kind of the cpu lane, has begun. */
static bool has_begun(const struct ot_executor *ex, const struct instance *in, enum ot_task_kind kind) {
    const struct ot_schedule *s = in->bound->schedule;
    const struct ot_task *at = ex->lanes[OT_LANE_CPU].at;
    for (int i = 0; i < s->n_tasks; i++)
        if (s->tasks[i].kind == kind && in->done[i])
            return true;
    return at && at->kind == kind;
}

bool ot_executor_stands_before(struct ot_executor *ex, const struct ot_bound *bound, int64_t step,
                               enum ot_task_kind kind) {
    pthread_mutex_lock(&ex->mutex);
    const struct instance *in = ex->completed < ex->submitted ? ex->runs[ex->completed % IN_FLIGHT] : NULL;
    bool stands = in && in->bound == bound && in->step == step && !has_begun(ex, in, kind);
    pthread_mutex_unlock(&ex->mutex);
    return stands;
}

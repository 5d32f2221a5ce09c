#include "offload/executor.h"

#include <assert.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/random.h"
#include "src/base/thread.h"

enum { IN_FLIGHT = 2, DEVICE_LANES = OT_LANE_CPU, STALL_SECONDS = 60 };

struct instance;

/* What a lane's notification brings back. */
struct notice {
    struct ot_executor *executor;
    struct instance *instance;
    int task;
};

/* One step in flight. */
struct instance {
    struct ot_bound *bound;
    int64_t step;
    int remaining; /* cpu tasks, and device lanes, that are not finished */
    int pins;      /* lanes about to wait for one of the events: it must not be recorded anew before */
    struct instance *previous; /* the step before, while it is not complete */
    bool *issued, *done; /* [n_tasks]: enqueued; known to be finished (cpu tasks, and tasks that notify) */
    int *pending;        /* [n_tasks]: edges not yet satisfied, of cpu tasks */
    struct ot_event **events;   /* [n_tasks], NULL where not needed */
    struct notice *notices;     /* [n_tasks] */
    struct ot_stopwatch *watch; /* NULL without a trace */
    bool traced;                /* it has run, and the trace does not have it yet */
};

struct ot_bound {
    const struct ot_schedule *schedule;
    struct instance instances[IN_FLIGHT];
    int *first_dependent;      /* [n_tasks + 1]: where each task's cpu dependents begin */
    struct ot_dep *dependents; /* task, and whether it is the next step's */
};

struct lane_thread {
    struct ot_executor *executor;
    enum ot_lane_id id;
    struct ot_lane *lane; /* NULL for the cpu lane */
    pthread_t thread;
    pthread_cond_t wake;
    bool started, waiting;
    int64_t runs;             /* runs finished by this lane */
    const struct ot_task *at; /* for the watchdog */
    uint64_t delays;
};

struct ready {
    struct instance *instance;
    int task;
};

struct ot_executor {
    struct ot_executor_config config;
    pthread_mutex_t mutex;
    pthread_cond_t driver;
    struct lane_thread lanes[OT_LANE_COUNT];
    int64_t submitted, completed;     /* runs */
    struct instance *runs[IN_FLIGHT]; /* by run number */
    int n_ready, ready_capacity;
    struct ready *ready;
    uint64_t progress; /* tasks passed; for the watchdog */
    bool stop, failed;
    struct ot_error error;
};

/* ---- completion (mutex held) ---- */

static void wake_waiting(struct ot_executor *ex) {
    for (int l = 0; l < OT_LANE_COUNT; l++)
        if (ex->lanes[l].waiting)
            pthread_cond_signal(&ex->lanes[l].wake);
}

static void push_ready(struct ot_executor *ex, struct instance *in, int task) {
    assert(ex->n_ready < ex->ready_capacity);
    ex->ready[ex->n_ready++] = (struct ready){in, task};
    if (ex->lanes[OT_LANE_CPU].waiting)
        pthread_cond_signal(&ex->lanes[OT_LANE_CPU].wake);
}

static void keep_failure(struct ot_executor *ex, int rc) {
    if (rc < 0 && !ex->failed) {
        ex->failed = true;
        ot_error_save(&ex->error, rc);
    }
}

static struct instance *next_instance(struct instance *in) {
    struct instance *other = &in->bound->instances[(in->step + 1) & 1];
    return other->previous == in ? other : NULL;
}

static void finish_part(struct ot_executor *ex, struct instance *in) {
    if (--in->remaining > 0)
        return;
    struct instance *next = next_instance(in);
    if (next)
        next->previous = NULL; /* its edges into this step are satisfied from here on */
    ex->completed++;
    pthread_cond_broadcast(&ex->driver);
    wake_waiting(ex);
}

static void mark_done(struct ot_executor *ex, struct instance *in, int task) {
    const struct ot_bound *bound = in->bound;
    const struct ot_schedule *s = bound->schedule;
    enum ot_lane_id lane = s->tasks[task].lane;
    struct instance *next = next_instance(in);
    in->done[task] = true;
    ex->progress++;
    for (int d = bound->first_dependent[task]; d < bound->first_dependent[task + 1]; d++) {
        struct instance *target = bound->dependents[d].previous_step ? next : in;
        if (target && --target->pending[bound->dependents[d].task] == 0)
            push_ready(ex, target, bound->dependents[d].task);
    }
    if (!ot_lane_is_device(lane) || s->lane_tasks[lane][s->lane_count[lane] - 1] == task)
        finish_part(ex, in);
    wake_waiting(ex);
    pthread_cond_broadcast(&ex->driver);
}

static void on_notice(void *arg) {
    struct notice *notice = arg;
    pthread_mutex_lock(&notice->executor->mutex);
    mark_done(notice->executor, notice->instance, notice->task);
    pthread_mutex_unlock(&notice->executor->mutex);
}

/* ---- lanes ---- */

static void delay(struct lane_thread *lt) {
    uint64_t seed = lt->executor->config.delay_seed;
    if (seed)
        usleep((useconds_t)ot_random_below(seed, ot_random_stream(OT_RANDOM_TEST, lt->id, 1), lt->delays++,
                                           200));
}

static void wait_here(struct ot_executor *ex, struct lane_thread *lt) {
    lt->waiting = true;
    pthread_cond_wait(&lt->wake, &ex->mutex);
    lt->waiting = false;
}

/* Makes sure of one edge: returns the event to wait for on the lane, or NULL if nothing is left to wait
 * for. */
static struct ot_event *settle(struct ot_executor *ex, struct lane_thread *lt, struct instance *in,
                               const struct ot_dep *dep) {
    const struct ot_task *before = &in->bound->schedule->tasks[dep->task];
    for (;;) {
        struct instance *at = dep->previous_step ? in->previous : in;
        if (!at || at->done[dep->task])
            return NULL;
        if (ot_lane_is_device(before->lane) && at->issued[dep->task])
            return at->events[dep->task];
        wait_here(ex, lt);
    }
}

/* Never under the mutex: enqueuing may wait for the lane, whose notifications need the mutex. */
static void wait_for_dep(struct ot_executor *ex, struct lane_thread *lt, struct instance *in,
                         const struct ot_dep *dep) {
    pthread_mutex_lock(&ex->mutex);
    struct ot_event *event = settle(ex, lt, in, dep);
    struct instance *owner = dep->previous_step ? in->previous : in;
    if (event)
        owner->pins++;
    pthread_mutex_unlock(&ex->mutex);
    if (!event)
        return;
    ot_lane_wait(lt->lane, event);
    pthread_mutex_lock(&ex->mutex);
    if (--owner->pins == 0)
        pthread_cond_broadcast(&ex->driver);
    pthread_mutex_unlock(&ex->mutex);
}

static void run_device_task(struct ot_executor *ex, struct lane_thread *lt, struct instance *in, int index) {
    const struct ot_task *task = &in->bound->schedule->tasks[index];
    pthread_mutex_lock(&ex->mutex);
    lt->at = task;
    pthread_mutex_unlock(&ex->mutex);
    for (int d = 0; d < task->n_deps; d++)
        wait_for_dep(ex, lt, in, &task->deps[d]);
    delay(lt);
    char name[64];
    ot_lane_mark(lt->lane, ot_task_describe(task, ex->config.chain, name, sizeof name));
    ot_stopwatch_begin(in->watch, index, lt->lane);
    int rc = ex->config.run(ex->config.context, task, in->step, lt->lane);
    ot_stopwatch_end(in->watch, index, lt->lane);
    if (task->needs_event)
        ot_lane_record(lt->lane, in->events[index]);
    pthread_mutex_lock(&ex->mutex);
    keep_failure(ex, rc);
    in->issued[index] = true;
    ex->progress++;
    lt->at = NULL;
    wake_waiting(ex);
    pthread_mutex_unlock(&ex->mutex);
    /* Last: once the lane's last task has notified, the instance may be started anew. */
    if (task->needs_notify)
        ot_lane_notify(lt->lane, on_notice, &in->notices[index]);
}

static void *device_lane_main(void *arg) {
    struct lane_thread *lt = arg;
    struct ot_executor *ex = lt->executor;
    for (;;) {
        pthread_mutex_lock(&ex->mutex);
        while (lt->runs == ex->submitted && !ex->stop)
            wait_here(ex, lt);
        struct instance *in = lt->runs < ex->submitted ? ex->runs[lt->runs % IN_FLIGHT] : NULL;
        pthread_mutex_unlock(&ex->mutex);
        if (!in)
            return NULL;
        const struct ot_schedule *s = in->bound->schedule;
        int count = s->lane_count[lt->id];
        const int *tasks = s->lane_tasks[lt->id];
        for (int i = 0; i < count; i++)
            run_device_task(ex, lt, in, tasks[i]);
        pthread_mutex_lock(&ex->mutex);
        lt->runs++;
        if (count == 0) /* nothing that would notify */
            finish_part(ex, in);
        pthread_mutex_unlock(&ex->mutex);
    }
}

/* The ready task with the earliest deadline, older steps first. */
static struct ready take_ready(struct ot_executor *ex) {
    int best = 0;
    for (int i = 1; i < ex->n_ready; i++) {
        const struct ready *a = &ex->ready[i], *b = &ex->ready[best];
        int da = a->instance->bound->schedule->tasks[a->task].deadline;
        int db = b->instance->bound->schedule->tasks[b->task].deadline;
        if (a->instance->step != b->instance->step ? a->instance->step < b->instance->step
            : da != db                             ? da < db
                                                   : a->task < b->task)
            best = i;
    }
    struct ready taken = ex->ready[best];
    ex->ready[best] = ex->ready[--ex->n_ready];
    return taken;
}

static void *cpu_lane_main(void *arg) {
    struct lane_thread *lt = arg;
    struct ot_executor *ex = lt->executor;
    pthread_mutex_lock(&ex->mutex);
    for (;;) {
        while (ex->n_ready == 0 && !ex->stop)
            wait_here(ex, lt);
        if (ex->n_ready == 0)
            break;
        struct ready next = take_ready(ex);
        const struct ot_task *task = &next.instance->bound->schedule->tasks[next.task];
        lt->at = task;
        pthread_mutex_unlock(&ex->mutex);
        delay(lt);
        ot_stopwatch_begin(next.instance->watch, next.task, NULL);
        int rc = ex->config.run(ex->config.context, task, next.instance->step, NULL);
        ot_stopwatch_end(next.instance->watch, next.task, NULL);
        pthread_mutex_lock(&ex->mutex);
        keep_failure(ex, rc);
        lt->at = NULL;
        mark_done(ex, next.instance, next.task);
    }
    pthread_mutex_unlock(&ex->mutex);
    return NULL;
}

/* ---- opening and closing ---- */

int ot_executor_open(const struct ot_executor_config *config, struct ot_executor **out) {
    int rc = 0;
    struct ot_executor *ex = calloc(1, sizeof *ex);
    *out = NULL;
    if (!ex)
        return ot_fail(OT_E_BUDGET, "no memory for the executor");
    ex->config = *config;
    pthread_mutex_init(&ex->mutex, NULL);
    pthread_condattr_t monotonic; /* the watchdog must not see the wall clock being set */
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&ex->driver, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        ex->lanes[l].executor = ex;
        ex->lanes[l].id = (enum ot_lane_id)l;
        pthread_cond_init(&ex->lanes[l].wake, NULL);
    }
    for (int l = 0; l <= OT_LANE_CPU; l++) {
        struct lane_thread *lt = &ex->lanes[l];
        bool on_device = ot_lane_is_device(lt->id);
        if (on_device)
            OT_TRY_GOTO(ot_lane_open(config->device, ot_lane_name(lt->id), &lt->lane), rc, out);
        int error = ot_thread_start(&lt->thread, ot_lane_name(lt->id),
                                    on_device ? device_lane_main : cpu_lane_main, lt);
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
    }
    pthread_cond_destroy(&ex->driver);
    pthread_mutex_destroy(&ex->mutex);
    free(ex->ready);
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

/* For each task, the cpu tasks that wait for it; the other lanes look for themselves. */
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
                (struct ot_dep){i, dep->previous_step};
        }
    return 0;
}

int ot_executor_bind(struct ot_executor *ex, const struct ot_schedule *schedule, struct ot_bound **out) {
    int rc = 0;
    struct ot_bound *bound = calloc(1, sizeof *bound);
    *out = NULL;
    if (!bound)
        return ot_fail(OT_E_BUDGET, "no memory for a schedule");
    bound->schedule = schedule;
    int most_ready = IN_FLIGHT * schedule->lane_count[OT_LANE_CPU] + 1;
    if (most_ready > ex->ready_capacity) {
        struct ready *grown = realloc(ex->ready, (size_t)most_ready * sizeof *grown);
        if (!grown) {
            rc = ot_fail(OT_E_BUDGET, "no memory for a schedule");
            goto out;
        }
        ex->ready = grown;
        ex->ready_capacity = most_ready;
    }
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

static void report_stall(struct ot_executor *ex, double seconds) {
    char text[160];
    for (int l = 0; l < OT_LANE_COUNT; l++) {
        const struct ot_task *at = ex->lanes[l].at;
        ot_log(OT_LOG_WARN, "no progress for %.0f s: lane %s %s %s", seconds,
               ot_lane_name((enum ot_lane_id)l), at ? "is at" : "is idle",
               at ? ot_task_describe(at, ex->config.chain, text, sizeof text) : "");
    }
}

/* Waits on the driver's condition until test() holds; the watchdog looks on. Mutex held. */
static int drive_until(struct ot_executor *ex, bool (*test)(const struct ot_executor *, const void *),
                       const void *arg) {
    uint64_t seen = ex->progress;
    double limit = ex->config.stall_seconds > 0 ? ex->config.stall_seconds : STALL_SECONDS;
    double since = ot_clock_seconds();
    while (!test(ex, arg)) {
        struct timespec deadline;
        clock_gettime(CLOCK_MONOTONIC, &deadline);
        deadline.tv_sec += 1;
        pthread_cond_timedwait(&ex->driver, &ex->mutex, &deadline);
        double now = ot_clock_seconds();
        if (ex->progress == seen && now - since < limit)
            continue;
        if (ex->progress == seen)
            report_stall(ex, now - since);
        seen = ex->progress;
        since = now;
    }
    return ex->failed ? ot_error_load(&ex->error) : 0;
}

/* arg: the instance to be started, or NULL. */
static bool has_room(const struct ot_executor *ex, const void *arg) {
    const struct instance *in = arg;
    return ex->submitted - ex->completed < IN_FLIGHT && (!in || in->pins == 0);
}

static bool is_drained(const struct ot_executor *ex, const void *arg) {
    (void)arg;
    return ex->submitted == ex->completed;
}

struct task_place {
    const struct instance *instance;
    int task;
};

static bool is_task_done(const struct ot_executor *ex, const void *arg) {
    const struct task_place *place = arg;
    (void)ex;
    return place->instance->done[place->task];
}

int ot_executor_wait_parity(struct ot_executor *ex) {
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, has_room, NULL);
    pthread_mutex_unlock(&ex->mutex);
    return rc;
}

/* The step that ran in this instance is complete. A lane that failed never got to its stamps. */
static int collect_trace(struct ot_executor *ex, struct instance *in) {
    if (!in->traced || ex->failed)
        return 0;
    in->traced = false;
    return ot_stopwatch_collect(in->watch, in->step);
}

static void start_instance(struct ot_executor *ex, struct instance *in, int64_t step) {
    const struct ot_schedule *s = in->bound->schedule;
    struct instance *other = &in->bound->instances[(step + 1) & 1];
    bool overlaps = ex->submitted > ex->completed; /* then the run in flight is the step before */
    in->step = step;
    in->previous = overlaps ? other : NULL;
    in->traced = in->watch != NULL;
    in->remaining = s->lane_count[OT_LANE_CPU] + DEVICE_LANES;
    for (int i = 0; i < s->n_tasks; i++) {
        in->issued[i] = in->done[i] = false;
        in->pending[i] = 0;
        for (int d = 0; d < s->tasks[i].n_deps; d++) {
            const struct ot_dep *dep = &s->tasks[i].deps[d];
            in->pending[i] += !dep->previous_step || (in->previous && !in->previous->done[dep->task]);
        }
    }
    for (int i = 0; i < s->lane_count[OT_LANE_CPU]; i++)
        if (in->pending[s->lane_tasks[OT_LANE_CPU][i]] == 0)
            push_ready(ex, in, s->lane_tasks[OT_LANE_CPU][i]);
}

int ot_executor_submit(struct ot_executor *ex, struct ot_bound *bound, int64_t step) {
    struct instance *in = &bound->instances[step & 1];
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, has_room, in);
    if (rc >= 0)
        rc = collect_trace(ex, in);
    if (rc >= 0) {
        start_instance(ex, in, step);
        ex->runs[ex->submitted % IN_FLIGHT] = in;
        ex->submitted++;
        wake_waiting(ex);
    }
    pthread_mutex_unlock(&ex->mutex);
    return rc;
}

int ot_executor_wait_task(struct ot_executor *ex, struct ot_bound *bound, int64_t step, int task) {
    struct task_place place = {&bound->instances[step & 1], task};
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, is_task_done, &place);
    pthread_mutex_unlock(&ex->mutex);
    for (int l = 0; l < DEVICE_LANES && rc >= 0; l++)
        rc = ot_lane_error(ex->lanes[l].lane);
    return rc;
}

int ot_executor_drain(struct ot_executor *ex) {
    pthread_mutex_lock(&ex->mutex);
    int rc = drive_until(ex, is_drained, NULL);
    pthread_mutex_unlock(&ex->mutex);
    for (int l = 0; l < DEVICE_LANES && rc >= 0; l++)
        if (ex->lanes[l].lane)
            rc = ot_lane_sync(ex->lanes[l].lane);
    for (int64_t run = ex->submitted - IN_FLIGHT; run < ex->submitted && rc >= 0; run++)
        if (run >= 0 && ex->runs[run % IN_FLIGHT]) /* older steps first */
            rc = collect_trace(ex, ex->runs[run % IN_FLIGHT]);
    return rc;
}

/* The threads of the lanes, and the completion of tasks, which makes other tasks ready. */
#include <assert.h>
#include <string.h>
#include <unistd.h>

#include "offload/engine/executor_state.h"
#include "src/base/random.h"

/* ---- wake-ups (mutex held): of those alone whose condition has changed ---- */

static void wake_lane(struct lane_thread *lt) {
    if (lt->waiting)
        pthread_cond_signal(&lt->wake);
}

/* Wakes the lanes and the driver that wait for this task, which was enqueued or is done. With NO_TASK: wakes
 * the driver, if it waits until the step has no pins. */
static void wake_waiters(struct ot_executor *ex, const struct instance *in, int task) {
    const struct awaited *driver = &ex->driver_awaits;
    for (int l = 0; l < DEVICE_LANES; l++)
        if (ex->lanes[l].awaits.instance == in && ex->lanes[l].awaits.task == task)
            wake_lane(&ex->lanes[l]);
    if (driver->instance == in && driver->task == task)
        pthread_cond_signal(&ex->driver);
}

/* ---- ready tasks (mutex held): a binary heap, because a decision makes thousands of tiles ready ---- */

/* Older steps first, then earlier deadlines. */
static bool comes_before(const struct ready *a, const struct ready *b) {
    if (a->step != b->step)
        return a->step < b->step;
    return a->deadline != b->deadline ? a->deadline < b->deadline : a->task < b->task;
}

void ot_executor_push_ready(struct ot_executor *ex, struct instance *in, int index) {
    const struct ot_task *task = &in->bound->schedule->tasks[index];
    struct lane_thread *lt = &ex->lanes[task->lane];
    const struct ready added = {in, in->step, index, task->deadline};
    assert((size_t)lt->n_ready < lt->ready_capacity);
    int at = lt->n_ready++;
    for (; at > 0 && comes_before(&added, &lt->ready[(at - 1) / 2]); at = (at - 1) / 2)
        lt->ready[at] = lt->ready[(at - 1) / 2];
    lt->ready[at] = added;
    wake_lane(lt);
}

/* Takes the task that comes before all others. */
static struct ready take_ready(struct lane_thread *lt) {
    struct ready taken = lt->ready[0], last = lt->ready[--lt->n_ready];
    int at = 0;
    for (int child = 1; child < lt->n_ready; child = 2 * at + 1) {
        if (child + 1 < lt->n_ready && comes_before(&lt->ready[child + 1], &lt->ready[child]))
            child++;
        if (!comes_before(&lt->ready[child], &last))
            break;
        lt->ready[at] = lt->ready[child];
        at = child;
    }
    lt->ready[at] = last;
    return taken;
}

/* ---- completion (mutex held) ---- */

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
        next->previous = NULL; /* its dependencies on this step are complete */
    ex->completed++;
    pthread_cond_signal(&ex->driver);
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
            ot_executor_push_ready(ex, target, bound->dependents[d].task);
    }
    if (!ot_lane_is_device(lane) || s->lane_tasks[lane][s->lane_count[lane] - 1] == task)
        finish_part(ex, in);
    wake_waiters(ex, in, task);
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

/* Handles one dependency. Returns the event that the lane must wait for. NULL: the other task is done. A
 * host-side dependency (schedule.h) has no event: the thread waits until the task is done. */
static struct ot_event *settle(struct ot_executor *ex, struct lane_thread *lt, struct instance *in,
                               const struct ot_dep *dep) {
    const struct ot_task *before = &in->bound->schedule->tasks[dep->task];
    for (;;) {
        struct instance *at = dep->previous_step ? in->previous : in;
        if (!at || at->done[dep->task])
            return NULL;
        if (ot_lane_is_device(before->lane) && !dep->on_host && at->issued[dep->task])
            return at->events[dep->task];
        lt->awaits = (struct awaited){at, dep->task};
        wait_here(ex, lt);
        lt->awaits = (struct awaited){0};
    }
}

/* Makes the lane wait for one dependency. Must not hold the mutex while it enqueues: that may wait for the
 * lane, whose notifications take the mutex. */
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
        wake_waiters(ex, owner, NO_TASK);
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
    wake_waiters(ex, in, index);
    pthread_mutex_unlock(&ex->mutex);
    /* Notify last: after the notification of the lane's last task the instance may be used for another
     * step. */
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
        if (count == 0) /* no task, so no notification */
            finish_part(ex, in);
        pthread_mutex_unlock(&ex->mutex);
    }
}

/* ---- the host's lanes ---- */

static void *cpu_lane_main(void *arg) {
    struct lane_thread *lt = arg;
    struct ot_executor *ex = lt->executor;
    pthread_mutex_lock(&ex->mutex);
    for (;;) {
        while (lt->n_ready == 0 && !ex->stop)
            wait_here(ex, lt);
        if (lt->n_ready == 0)
            break;
        struct ready next = take_ready(lt);
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

/* Removes a finished task from the lane. The lane works on its oldest task. For the trace and the watchdog
 * the task behind it begins when the oldest ends. */
static void leave_under_way(struct lane_thread *lt, const struct notice *notice) {
    int i = 0;
    while (lt->under_way[i].instance != notice->instance || lt->under_way[i].task != notice->task)
        i++;
    ot_stopwatch_end(notice->instance->watch, notice->task, NULL);
    memmove(&lt->under_way[i], &lt->under_way[i + 1],
            (size_t)(--lt->n_under_way - i) * sizeof *lt->under_way);
    lt->at = NULL;
    if (lt->n_under_way == 0)
        return;
    const struct ready *next = &lt->under_way[0];
    lt->at = &next->instance->bound->schedule->tasks[next->task];
    if (i == 0)
        ot_stopwatch_begin(next->instance->watch, next->task, NULL);
}

static void on_transferred(void *arg, const struct ot_error *error) {
    struct notice *notice = arg;
    struct ot_executor *ex = notice->executor;
    struct lane_thread *lt = &ex->lanes[notice->instance->bound->schedule->tasks[notice->task].lane];
    pthread_mutex_lock(&ex->mutex);
    if (error && !ex->failed) {
        ex->failed = true;
        ex->error = *error;
    }
    leave_under_way(lt, notice);
    wake_lane(lt); /* it may start another task */
    mark_done(ex, notice->instance, notice->task);
    pthread_mutex_unlock(&ex->mutex);
}

static void *nvme_lane_main(void *arg) {
    struct lane_thread *lt = arg;
    struct ot_executor *ex = lt->executor;
    pthread_mutex_lock(&ex->mutex);
    for (;;) {
        while ((lt->n_ready == 0 || lt->n_under_way == NVME_STARTED) && !(ex->stop && lt->n_ready == 0))
            wait_here(ex, lt);
        if (lt->n_ready == 0)
            break;
        struct ready next = take_ready(lt);
        const struct ot_task *task = &next.instance->bound->schedule->tasks[next.task];
        lt->under_way[lt->n_under_way++] = next;
        if (lt->n_under_way == 1)
            lt->at = task;
        ot_stopwatch_begin(next.instance->watch, next.task, NULL);
        pthread_mutex_unlock(&ex->mutex);
        delay(lt);
        ex->config.start(ex->config.context, task, next.instance->step, on_transferred,
                         &next.instance->notices[next.task]);
        pthread_mutex_lock(&ex->mutex);
    }
    pthread_mutex_unlock(&ex->mutex);
    return NULL;
}

/* Binds the thread. The cpu lane's thread is bound as the first optimizer thread, because it works in the
 * optimizer's pool. */
static void bind_lane(const struct lane_thread *lt) {
    const struct ot_executor_config *config = &lt->executor->config;
    bool updates = lt->id == OT_LANE_CPU;
    struct ot_topology_binding binding = {config->topology, updates ? OT_ROLE_OPTIMIZER : OT_ROLE_LANE};
    ot_topology_place_thread(&binding, updates ? 0 : (int)lt->id,
                             updates ? config->optimizer_threads : OT_LANE_COUNT);
}

void *ot_executor_lane_main(void *arg) {
    const struct lane_thread *lt = arg;
    bind_lane(lt);
    return ot_lane_is_device(lt->id) ? device_lane_main(arg)
           : lt->id == OT_LANE_CPU   ? cpu_lane_main(arg)
                                     : nvme_lane_main(arg);
}

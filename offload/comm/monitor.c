/* The monitor of operations on a stream. They may fail, or wait for another rank for ever, after the call has
 * returned, while the engine waits for the stream. So a thread often asks the plugin for errors, and measures
 * how long the present operation has run. If the plugin is broken, or the operation is late, it breaks the
 * communicator: the plugin's abort then lets the stream go on. */
#include "offload/comm/comm_state.h"
#include "src/base/clock.h"
#include "src/base/thread.h"

enum { PERIOD_NS = 50000000 };
/* A plugin with a deadline of its own knows more about the late rank, so its deadline comes first. */
static const double later_seconds = 1;

/* ---- the lane's callbacks, on a thread of the device ---- */

static void on_begin(void *arg) {
    atomic_store(&((struct ot_comm *)arg)->monitor.since_ns, ot_clock_ns());
}

static void on_end(void *arg) {
    atomic_store(&((struct ot_comm *)arg)->monitor.since_ns, 0);
}

void ot_comm_monitor_begin(struct ot_comm *comm, struct ot_lane *lane) {
    if (comm->monitor.is_running)
        ot_lane_notify(lane, on_begin, comm);
}

void ot_comm_monitor_end(struct ot_comm *comm, struct ot_lane *lane) {
    if (comm->monitor.is_running)
        ot_lane_notify(lane, on_end, comm);
}

/* ---- the thread ---- */

/* Returns whether the communicator still works. */
static bool look(struct ot_comm *comm) {
    int64_t since_ns = atomic_load(&comm->monitor.since_ns);
    double seconds = since_ns ? 1e-9 * (double)(ot_clock_ns() - since_ns) : 0;
    if (ot_comm_error(comm) < 0)
        return false;
    if (seconds <= comm->timeout_seconds + later_seconds)
        return true;
    ot_comm_break(comm, ot_fail(OT_E_COMM,
                                "rank %d has waited %.3g s for an operation of the communicator %s on the "
                                "GPU: another rank does not take part",
                                comm->rank, seconds, comm->api->name));
    return false;
}

static void *run_monitor(void *arg) {
    struct ot_comm *comm = arg;
    struct ot_comm_monitor *m = &comm->monitor;
    bool goes_on = true;
    while (goes_on) {
        int64_t until_ns = ot_clock_ns() + PERIOD_NS;
        pthread_mutex_lock(&m->mutex);
        while (!m->must_end && ot_cond_wait_until(&m->changed, &m->mutex, until_ns))
            ;
        goes_on = !m->must_end;
        pthread_mutex_unlock(&m->mutex);
        goes_on = goes_on && look(comm);
    }
    return NULL;
}

int ot_comm_monitor_start(struct ot_comm *comm) {
    struct ot_comm_monitor *m = &comm->monitor;
    if (!comm->on_stream || comm->ranks == 1)
        return 0;
    pthread_mutex_init(&m->mutex, NULL);
    ot_cond_init(&m->changed);
    int error = ot_thread_start(&m->thread, "comm-monitor", run_monitor, comm);
    m->is_running = error == 0;
    if (m->is_running)
        return 0;
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->mutex);
    return ot_fail_errno(OT_E_COMM, error, "cannot start a thread for the communicator");
}

void ot_comm_monitor_stop(struct ot_comm *comm) {
    struct ot_comm_monitor *m = &comm->monitor;
    if (!m->is_running)
        return;
    pthread_mutex_lock(&m->mutex);
    m->must_end = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
    pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->mutex);
    m->is_running = false;
}

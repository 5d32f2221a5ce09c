/* The plugin `nccl` calls NCCL from one thread at a time, never for long. A helper makes the calls that may
 * hang. */
#include "offload/comm/plugins/nccl_state.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "src/base/clock.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

enum { SHORTEST_SLEEP_NS = 10000, LONGEST_SLEEP_NS = 1000000 };
/* The helper's interval for checking if work on the stream has failed or is late. */
enum { WATCH_NS = 50000000 };
/* Finalizing waits for the ranks of the host, and is known to hang at times. */
#define MOST_SECONDS_TO_END 2.0

void ot_nccl_enter(struct ot_nccl_context *c) {
    if (c->cuda_context)
        c->cuda.push_context(c->cuda_context);
}

void ot_nccl_leave(struct ot_nccl_context *c) {
    struct CUctx_st *context;
    if (c->cuda_context)
        c->cuda.pop_context(&context);
}

/* Sleeps, longer from call to call. */
static void doze(long *sleep_ns) {
    nanosleep(&(struct timespec){0, *sleep_ns}, NULL);
    *sleep_ns = ot_min(*sleep_ns * 2, LONGEST_SLEEP_NS);
}

/* Does not wait for the lock itself: a helper that hangs in NCCL keeps it, and by then the communicator is
 * broken. */
int ot_nccl_lock(struct ot_nccl_context *c) {
    for (long sleep_ns = SHORTEST_SLEEP_NS;; doze(&sleep_ns)) {
        bool is_locked = pthread_mutex_trylock(&c->calls) == 0;
        int rc = ot_breakage_get(&c->breakage, NULL, 0);
        if (is_locked && rc != OT_COMM_OK)
            pthread_mutex_unlock(&c->calls);
        if (is_locked || rc != OT_COMM_OK)
            return rc;
    }
}

void ot_nccl_unlock(struct ot_nccl_context *c) {
    pthread_mutex_unlock(&c->calls);
}

int ot_nccl_fail(struct ot_nccl_context *c, const char *call, int result) {
    const char *detail = c->comm ? c->nccl.get_last_error(c->comm) : NULL;
    int length = detail ? (int)strcspn(detail, "\n") : 0;
    ot_breakage_set(&c->breakage, OT_COMM_FAILED, "%s failed on rank %d: %s%s%.*s", call, c->rank,
                    c->nccl.get_error_string(result), length ? ": " : "", length, detail ? detail : "");
    return ot_nccl_abort(c);
}

/* ---- the helper ---- */

static void finalize(struct ot_nccl_context *c) {
    int64_t end_ns = ot_clock_ns() + (int64_t)(MOST_SECONDS_TO_END * 1e9);
    int result = c->nccl.finalize(c->comm);
    for (long sleep_ns = SHORTEST_SLEEP_NS; result == OT_NCCL_IN_PROGRESS && ot_clock_ns() < end_ns;) {
        if (c->nccl.get_async_error(c->comm, &result) != OT_NCCL_SUCCESS)
            result = OT_NCCL_INTERNAL_ERROR;
        else if (result == OT_NCCL_IN_PROGRESS)
            doze(&sleep_ns);
    }
    if (result == OT_NCCL_SUCCESS)
        c->nccl.destroy(c->comm);
    else
        c->nccl.abort(c->comm);
}

/* Watches the communicator, until it breaks or is closed. */
static void watch(struct ot_nccl_context *c) {
    bool must_end = false;
    while (!must_end) {
        int64_t until_ns = ot_clock_ns() + WATCH_NS;
        pthread_mutex_lock(&c->helper_mutex);
        while (!c->must_helper_end)
            if (!ot_cond_wait_until(&c->helper_changed, &c->helper_mutex, until_ns))
                break;
        must_end = c->must_helper_end;
        pthread_mutex_unlock(&c->helper_mutex);
        if (!must_end)
            ot_nccl_check(c); /* ends this loop if it finds a failure */
    }
}

static void *run_helper(void *context) {
    struct ot_nccl_context *c = context;
    ot_nccl_enter(c);
    watch(c);
    pthread_mutex_lock(&c->calls);
    if (c->comm && ot_breakage_get(&c->breakage, NULL, 0) != OT_COMM_OK)
        c->nccl.abort(c->comm);
    else if (c->comm)
        finalize(c);
    c->comm = NULL;
    pthread_mutex_unlock(&c->calls);
    ot_nccl_leave(c);
    pthread_mutex_lock(&c->helper_mutex);
    c->is_helper_done = true;
    pthread_cond_broadcast(&c->helper_changed);
    pthread_mutex_unlock(&c->helper_mutex);
    return NULL;
}

int ot_nccl_start_helper(struct ot_nccl_context *c) {
    c->has_helper = ot_thread_start(&c->helper, "nccl-helper", run_helper, c) == 0;
    return c->has_helper ? OT_COMM_OK
                         : ot_breakage_set(&c->breakage, OT_COMM_FAILED, "cannot start a thread for NCCL");
}

static void let_helper_end(struct ot_nccl_context *c) {
    pthread_mutex_lock(&c->helper_mutex);
    c->must_helper_end = true;
    pthread_cond_broadcast(&c->helper_changed);
    pthread_mutex_unlock(&c->helper_mutex);
}

int ot_nccl_abort(struct ot_nccl_context *c) {
    let_helper_end(c);
    return ot_breakage_get(&c->breakage, NULL, 0);
}

bool ot_nccl_end(struct ot_nccl_context *c) {
    int64_t end_ns = ot_clock_ns() + (int64_t)(MOST_SECONDS_TO_END * 1e9);
    if (!c->has_helper)
        return true;
    let_helper_end(c);
    pthread_mutex_lock(&c->helper_mutex);
    while (!c->is_helper_done)
        if (!ot_cond_wait_until(&c->helper_changed, &c->helper_mutex, end_ns))
            break;
    bool is_done = c->is_helper_done;
    pthread_mutex_unlock(&c->helper_mutex);
    if (is_done)
        pthread_join(c->helper, NULL);
    else
        pthread_detach(c->helper);
    return is_done;
}

/* ---- state ---- */

/* The state of the last call, as an ncclResult_t. Needs the lock. */
static int read_state(struct ot_nccl_context *c) {
    int state = OT_NCCL_SUCCESS;
    int result = c->nccl.get_async_error(c->comm, &state);
    return result == OT_NCCL_SUCCESS ? state : result;
}

int ot_nccl_settle(struct ot_nccl_context *c, const char *what) {
    int64_t end_ns = ot_clock_ns() + (int64_t)(c->timeout_seconds * 1e9);
    for (long sleep_ns = SHORTEST_SLEEP_NS;; doze(&sleep_ns)) {
        int rc = ot_nccl_lock(c);
        if (rc != OT_COMM_OK)
            return rc;
        int state = read_state(c);
        if (state != OT_NCCL_SUCCESS && state != OT_NCCL_IN_PROGRESS)
            rc = ot_nccl_fail(c, what, state);
        ot_nccl_unlock(c);
        if (state != OT_NCCL_IN_PROGRESS)
            return rc;
        if (ot_clock_ns() > end_ns) {
            ot_breakage_set(&c->breakage, OT_COMM_TIMED_OUT, "rank %d waited %.3g s in %s for another rank",
                            c->rank, c->timeout_seconds, what);
            return ot_nccl_abort(c);
        }
    }
}

int ot_nccl_check(struct ot_nccl_context *c) {
    int rc = ot_breakage_get(&c->breakage, NULL, 0);
    if (rc != OT_COMM_OK || pthread_mutex_trylock(&c->calls) != 0) /* the other thread sees failures too */
        return rc;
    if (c->comm) {
        int state = read_state(c);
        if (state != OT_NCCL_SUCCESS && state != OT_NCCL_IN_PROGRESS)
            rc = ot_nccl_fail(c, "work on the GPU", state);
    }
    ot_nccl_unlock(c);
    double seconds = rc == OT_COMM_OK ? ot_nccl_launches_seconds(c) : 0;
    if (seconds <= c->timeout_seconds)
        return rc;
    ot_breakage_set(&c->breakage, OT_COMM_TIMED_OUT, "rank %d waited %.3g s on the GPU for another rank",
                    c->rank, seconds);
    return ot_nccl_abort(c);
}

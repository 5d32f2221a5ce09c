/* The pool engine: threads in pread and pwrite, one thread for each I/O in flight. */
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/io_engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

/* More threads do not make a disk faster, and count towards a container's limit. */
enum { MOST_THREADS = 64 };

struct pool {
    struct ot_io_engine engine;
    int depth, n_threads;
    pthread_t threads[MOST_THREADS];

    pthread_mutex_t mutex;
    pthread_cond_t requested, finished;
    bool stopping;
    struct ot_io_request *requests; /* [depth], a ring of requests that no thread has taken yet */
    int first_request, n_requests;
    struct ot_io_result *results; /* [depth] */
    int n_results;
};

static int64_t perform(const struct pool *pool, const struct ot_io_request *request) {
    int fd = pool->engine.files[request->file];
    const struct ot_io_calls *calls = pool->engine.calls;
    if (request->write)
        return calls->pwrite(calls->context, fd, request->memory, request->bytes, request->offset);
    return calls->pread(calls->context, fd, request->memory, request->bytes, request->offset);
}

static void *worker_main(void *arg) {
    struct pool *pool = arg;
    pthread_mutex_lock(&pool->mutex);
    for (;;) {
        while (pool->n_requests == 0 && !pool->stopping)
            pthread_cond_wait(&pool->requested, &pool->mutex);
        if (pool->n_requests == 0)
            break;
        struct ot_io_request request = pool->requests[pool->first_request];
        pool->first_request = (pool->first_request + 1) % pool->depth;
        pool->n_requests--;
        ot_io_note_begin(&pool->engine, &request);
        pthread_mutex_unlock(&pool->mutex);
        int64_t result = perform(pool, &request);
        pthread_mutex_lock(&pool->mutex);
        pool->results[pool->n_results++] = (struct ot_io_result){request.owner, result};
        pthread_cond_signal(&pool->finished);
    }
    pthread_mutex_unlock(&pool->mutex);
    return NULL;
}

static int pool_submit(struct ot_io_engine *engine, const struct ot_io_request *requests, int n) {
    struct pool *pool = (struct pool *)engine;
    pthread_mutex_lock(&pool->mutex);
    for (int i = 0; i < n; i++) {
        assert(pool->n_requests < pool->depth);
        pool->requests[(pool->first_request + pool->n_requests++) % pool->depth] = requests[i];
        pthread_cond_signal(&pool->requested);
    }
    pthread_mutex_unlock(&pool->mutex);
    return 0;
}

static int pool_reap(struct ot_io_engine *engine, struct ot_io_result *results, int most) {
    struct pool *pool = (struct pool *)engine;
    pthread_mutex_lock(&pool->mutex);
    while (pool->n_results == 0)
        pthread_cond_wait(&pool->finished, &pool->mutex);
    int n = ot_min(pool->n_results, most);
    memcpy(results, pool->results, (size_t)n * sizeof *results);
    pool->n_results -= n;
    memmove(pool->results, pool->results + n, (size_t)pool->n_results * sizeof *results);
    pthread_mutex_unlock(&pool->mutex);
    return n;
}

static void pool_close(struct ot_io_engine *engine) {
    struct pool *pool = (struct pool *)engine;
    pthread_mutex_lock(&pool->mutex);
    pool->stopping = true;
    pthread_cond_broadcast(&pool->requested);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->n_threads; i++)
        pthread_join(pool->threads[i], NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->requested);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->results);
    free(pool->requests);
    free(pool);
}

static const struct ot_io_engine_ops pool_ops = {pool_submit, pool_reap, pool_close};

/* Starts the threads. A container may allow fewer than wanted; one thread is enough. */
static int start_threads(struct pool *pool) {
    int wanted = ot_min(pool->depth, MOST_THREADS), error = 0;
    while (pool->n_threads < wanted && !error) {
        char name[16];
        snprintf(name, sizeof name, "io-%d", pool->n_threads);
        error = ot_thread_start(&pool->threads[pool->n_threads], name, worker_main, pool);
        pool->n_threads += !error;
    }
    if (pool->n_threads == 0)
        return ot_fail_errno(OT_E_IO, error, "cannot start a thread for I/O");
    if (error)
        ot_io_engine_add_note(&pool->engine, "%d threads instead of %d: %s", pool->n_threads, wanted,
                              strerror(error));
    else
        ot_io_engine_add_note(&pool->engine, "%d threads", pool->n_threads);
    return 0;
}

int ot_io_pool_open(const struct ot_io_engine_config *config, struct ot_io_engine **out) {
    struct pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return ot_fail(OT_E_BUDGET, "no memory for an I/O engine");
    pool->engine.ops = &pool_ops;
    pool->engine.choice = OT_IO_POOL;
    pool->engine.calls = config->calls;
    pool->engine.files = config->files;
    pool->depth = config->depth;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->requested, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->requests = calloc((size_t)config->depth, sizeof *pool->requests);
    pool->results = calloc((size_t)config->depth, sizeof *pool->results);
    int rc = pool->requests && pool->results ? start_threads(pool)
                                             : ot_fail(OT_E_BUDGET, "no memory for an I/O engine");
    if (rc < 0) {
        pool_close(&pool->engine);
        return rc;
    }
    *out = &pool->engine;
    return 0;
}

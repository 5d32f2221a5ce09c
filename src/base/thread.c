#include "src/base/thread.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

int ot_thread_start(pthread_t *thread, const char *name, void *(*fn)(void *), void *arg) {
    sigset_t all, old;
    char short_name[16];
    pthread_attr_t attr;
    int error = pthread_attr_init(&attr);
    if (error)
        return error;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* the new thread inherits the mask */
    error = pthread_attr_setstacksize(&attr, OT_THREAD_STACK_BYTES);
    if (!error)
        error = pthread_create(thread, &attr, fn, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    if (error)
        return error;
    snprintf(short_name, sizeof short_name, "%s", name);
    pthread_setname_np(*thread, short_name);
    return 0;
}

void ot_cond_init(pthread_cond_t *cond) {
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &monotonic);
    pthread_condattr_destroy(&monotonic);
}

bool ot_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t until_ns) {
    struct timespec until = {until_ns / 1000000000, until_ns % 1000000000};
    return pthread_cond_timedwait(cond, mutex, &until) != ETIMEDOUT;
}

/* ---- the pool ---- */

/* One word says whether a loop is open, which one, and how many workers are inside:
 *
 *     bit 0        a loop is open to join
 *     bits 1..31   workers inside
 *     bits 32..63  number of the loop
 *
 * The caller fills in the loop while the word is closed and empty, then opens it. A worker joins by adding
 * itself to an open word and leaves by subtracting itself. When no chunk is left to hand out, the caller
 * closes the word and waits until it is empty. The caller does not wait for workers that never joined, so a
 * worker that sleeps through a short loop costs nothing.
 *
 * Sleeping uses flag and recheck on both sides, in sequentially consistent order. A thread that goes to sleep
 * sets its flag, then reads the word again. A thread that changes the word reads the flags afterwards. So at
 * least one of the two sees the other. */
#define OPEN       UINT64_C(1)
#define ONE_WORKER UINT64_C(2)
#define INSIDE     UINT64_C(0xfffffffe)
#define ONE_LOOP   (UINT64_C(1) << 32)

/* Longer than the gap between two operations of a layer, shorter than a wake-up through the kernel. */
enum { SPIN_NS = 10000 };

enum { CACHE_LINE = 64 };

struct worker {
    struct ot_pool *pool;
    int index;
    pthread_t thread;
};

struct ot_pool {
    int threads, started;
    void (*on_start)(void *arg, int worker, int threads);
    void *on_start_arg;
    struct worker *workers; /* [threads - 1] */
    pthread_mutex_t turn;   /* one loop at a time */

    /* the loop */
    ot_pool_fn fn;
    void *context;
    int64_t count, chunk_size;
    _Alignas(CACHE_LINE) _Atomic int64_t next_chunk;

    _Alignas(CACHE_LINE) _Atomic uint64_t state;
    _Atomic bool stopping;
    _Atomic int sleeping_workers;
    _Atomic bool sleeping_caller;
    pthread_mutex_t mutex;
    pthread_cond_t opened, emptied;
};

/* The pool whose chunk this thread runs. It detects a loop inside a loop of the same pool, which would wait
 * for itself. */
static _Thread_local const struct ot_pool *running;

static void pause_cpu(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void run_chunks(struct ot_pool *pool, int worker) {
    const struct ot_pool *outer = running;
    running = pool;
    int64_t n_chunks = ot_chunk_count(pool->count, pool->chunk_size);
    for (;;) {
        int64_t chunk = atomic_fetch_add_explicit(&pool->next_chunk, 1, memory_order_relaxed);
        if (chunk >= n_chunks)
            break;
        int64_t begin = chunk * pool->chunk_size;
        int64_t end = chunk + 1 == n_chunks ? pool->count : begin + pool->chunk_size;
        pool->fn(pool->context, begin, end, chunk, worker);
    }
    running = outer;
}

/* ---- workers ---- */

static bool has_news(struct ot_pool *pool, uint64_t seen_loop) {
    uint64_t state = atomic_load(&pool->state);
    return ((state & OPEN) && state / ONE_LOOP != seen_loop) || atomic_load(&pool->stopping);
}

static void wait_for_news(struct ot_pool *pool, uint64_t seen_loop) {
    for (int64_t until = ot_clock_ns() + SPIN_NS; ot_clock_ns() < until; pause_cpu())
        if (has_news(pool, seen_loop))
            return;
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleeping_workers, 1);
    while (!has_news(pool, seen_loop))
        pthread_cond_wait(&pool->opened, &pool->mutex);
    atomic_fetch_sub(&pool->sleeping_workers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

/* Joins the open loop, if it is not the loop that this worker joined last. */
static bool join_loop(struct ot_pool *pool, uint64_t *seen_loop) {
    uint64_t state = atomic_load(&pool->state);
    do {
        if (!(state & OPEN) || state / ONE_LOOP == *seen_loop)
            return false;
    } while (!atomic_compare_exchange_weak(&pool->state, &state, state + ONE_WORKER));
    *seen_loop = state / ONE_LOOP;
    return true;
}

static void leave_loop(struct ot_pool *pool) {
    uint64_t state = atomic_fetch_sub(&pool->state, ONE_WORKER) - ONE_WORKER;
    if (!(state & (OPEN | INSIDE)) && atomic_load(&pool->sleeping_caller)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_signal(&pool->emptied);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void *worker_main(void *arg) {
    struct worker *self = arg;
    struct ot_pool *pool = self->pool;
    uint64_t seen_loop = 0; /* loops count from 1 */
    if (pool->on_start)
        pool->on_start(pool->on_start_arg, self->index, pool->threads);
    while (!atomic_load(&pool->stopping)) {
        if (join_loop(pool, &seen_loop)) {
            run_chunks(pool, self->index);
            leave_loop(pool);
        }
        wait_for_news(pool, seen_loop);
    }
    return NULL;
}

/* ---- the caller ---- */

static void open_loop(struct ot_pool *pool) {
    uint64_t loop = (atomic_load(&pool->state) / ONE_LOOP + 1) & UINT32_MAX;
    atomic_store(&pool->state, loop * ONE_LOOP | OPEN);
    if (atomic_load(&pool->sleeping_workers) > 0) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->opened);
        pthread_mutex_unlock(&pool->mutex);
    }
}

static void close_loop(struct ot_pool *pool) {
    atomic_fetch_and(&pool->state, ~OPEN);
    for (int64_t until = ot_clock_ns() + SPIN_NS; ot_clock_ns() < until; pause_cpu())
        if (!(atomic_load(&pool->state) & INSIDE))
            return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->sleeping_caller, true);
    while (atomic_load(&pool->state) & INSIDE)
        pthread_cond_wait(&pool->emptied, &pool->mutex);
    atomic_store(&pool->sleeping_caller, false);
    pthread_mutex_unlock(&pool->mutex);
}

void ot_pool_run(struct ot_pool *pool, int64_t count, int64_t chunk_size, ot_pool_fn fn, void *context) {
    assert(chunk_size >= 1 && running != pool);
    if (count <= 0)
        return;
    pthread_mutex_lock(&pool->turn);
    pool->fn = fn;
    pool->context = context;
    pool->count = count;
    pool->chunk_size = chunk_size;
    atomic_store_explicit(&pool->next_chunk, 0, memory_order_relaxed);
    if (pool->threads == 1 || count <= chunk_size) {
        run_chunks(pool, 0);
    } else {
        open_loop(pool);
        run_chunks(pool, 0);
        close_loop(pool);
    }
    pthread_mutex_unlock(&pool->turn);
}

int ot_pool_threads(const struct ot_pool *pool) {
    return pool->threads;
}

static int start_worker(struct ot_pool *pool, int index, const char *name) {
    struct worker *worker = &pool->workers[index - 1];
    worker->pool = pool;
    worker->index = index;
    char thread_name[16]; /* the name is cut before the number, so that the number stays */
    snprintf(thread_name, sizeof thread_name, "%.9s-%u", name, (unsigned)(uint16_t)index);
    int error = ot_thread_start(&worker->thread, thread_name, worker_main, worker);
    if (error)
        return ot_fail_errno(OT_E_IO, error, "cannot start thread %d of the %d of pool '%s'", index + 1,
                             pool->threads, name);
    return 0;
}

int ot_pool_open_with(const struct ot_pool_config *config, struct ot_pool **out) {
    assert(config->threads >= 1);
    *out = NULL;
    struct ot_pool *pool = aligned_alloc(CACHE_LINE, sizeof *pool);
    if (!pool)
        return ot_fail(OT_E_BUDGET, "no memory for pool '%s'", config->name);
    *pool = (struct ot_pool){
        .threads = config->threads, .on_start = config->on_start, .on_start_arg = config->arg};
    pthread_mutex_init(&pool->turn, NULL);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->opened, NULL);
    pthread_cond_init(&pool->emptied, NULL);
    pool->workers = calloc((size_t)pool->threads, sizeof *pool->workers);
    int rc = pool->workers ? 0 : ot_fail(OT_E_BUDGET, "no memory for pool '%s'", config->name);

    for (int index = 1; index < pool->threads && rc == 0; index++) {
        rc = start_worker(pool, index, config->name);
        pool->started += rc == 0;
    }
    if (rc < 0) {
        ot_pool_close(pool);
        return rc;
    }
    *out = pool;
    return 0;
}

int ot_pool_open(int threads, const char *name, struct ot_pool **out) {
    return ot_pool_open_with(&(struct ot_pool_config){.threads = threads, .name = name}, out);
}

void ot_pool_close(struct ot_pool *pool) {
    if (!pool)
        return;
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->stopping, true);
    pthread_cond_broadcast(&pool->opened);
    pthread_mutex_unlock(&pool->mutex);
    for (int i = 0; i < pool->started; i++)
        pthread_join(pool->workers[i].thread, NULL);
    pthread_cond_destroy(&pool->emptied);
    pthread_cond_destroy(&pool->opened);
    pthread_mutex_destroy(&pool->mutex);
    pthread_mutex_destroy(&pool->turn);
    free(pool->workers);
    free(pool);
}

/* ---- resident memory ---- */

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif

enum { CHUNK = 8 << 20, WAIT_MS = 50 };

static double gib(size_t bytes) {
    return (double)bytes / (1 << 30);
}

/* ---- one piece ---- */

struct piece {
    char *memory;
    atomic_int error; /* an errno value; 0: none */
};

static void write_each_page(char *memory, int64_t bytes) {
    long page = sysconf(_SC_PAGESIZE);
    for (int64_t at = 0; at < bytes; at += page)
        *(volatile char *)(memory + at) = 0;
}

static void touch_chunk(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    struct piece *piece = context;
    (void)chunk, (void)worker;
    while (madvise(piece->memory + begin, (size_t)(end - begin), MADV_POPULATE_WRITE) != 0) {
        if (errno == EINVAL) { /* the kernel does not have the call yet */
            write_each_page(piece->memory + begin, end - begin);
            return;
        }
        if (errno != EINTR && errno != EAGAIN) {
            atomic_store(&piece->error, errno);
            return;
        }
    }
}

/* ---- all pieces ---- */

static bool has_room(const struct ot_touch_config *config, size_t bytes) {
    double end = ot_clock_seconds() + config->patience_seconds;
    while (config->free_bytes && config->free_bytes(config->context) < (int64_t)bytes + OT_TOUCH_RESERVE) {
        if (ot_clock_seconds() >= end)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = WAIT_MS * 1000000L}, NULL);
    }
    return true;
}

static int touch_pieces(char *memory, size_t bytes, const struct ot_touch_config *config,
                        struct ot_pool *pool) {
    for (size_t at = 0, n; at < bytes; at += n) {
        n = ot_min(bytes - at, OT_TOUCH_PIECE);
        if (!has_room(config, n))
            return ot_fail(OT_E_BUDGET, "the system has no free memory left after %.1f of %.1f GiB", gib(at),
                           gib(bytes));
        struct piece piece = {.memory = memory + at};
        ot_pool_run(pool, (int64_t)n, CHUNK, touch_chunk, &piece);
        int error = atomic_load(&piece.error);
        if (error)
            return ot_fail_errno(OT_E_BUDGET, error, "the system refused memory after %.1f of %.1f GiB",
                                 gib(at), gib(bytes));
    }
    return 0;
}

int ot_touch_memory(void *memory, size_t bytes, const struct ot_touch_config *config) {
    struct ot_pool *pool;
    OT_TRY(ot_pool_open(bytes > CHUNK ? config->threads : 1, "touch", &pool));
    int rc = touch_pieces(memory, bytes, config, pool);
    ot_pool_close(pool);
    return rc;
}

#include "offload/store/io_engine.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "src/base/error.h"
#include "src/base/file_io.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

/* ---- what both engines have: their functions, and the note on how they were set up ---- */

struct ot_io_engine_ops {
    int (*submit)(struct ot_io_engine *engine, const struct ot_io_request *requests, int n);
    int (*reap)(struct ot_io_engine *engine, struct ot_io_result *results, int most);
    void (*close)(struct ot_io_engine *engine);
};

enum { OT_IO_NOTE_BYTES = 512 };

struct ot_io_engine { /* first member of each engine's struct */
    const struct ot_io_engine_ops *ops;
    enum ot_io_choice choice;
    const int *files; /* as in the config */
    const struct ot_io_calls *calls;
    char note[OT_IO_NOTE_BYTES];
};

/* Adds ", " and the text to the note. Cuts text that does not fit. */
static void add_note(struct ot_io_engine *engine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* Tells the seam that this I/O begins now. */
static inline void ot_io_note_begin(const struct ot_io_engine *engine, const struct ot_io_request *request) {
    const struct ot_io_calls *calls = engine->calls;
    if (calls->begin)
        calls->begin(calls->context, request->write, engine->files[request->file], request->bytes,
                     request->offset);
}

/* Open one kind of engine. config->calls must be set; config->choice is ignored. Errors: as
 * ot_io_engine_open. */
static int open_uring(const struct ot_io_engine_config *config, struct ot_io_engine **out);
static int open_pool(const struct ot_io_engine_config *config, struct ot_io_engine **out);

/* ---- the choice of an engine ---- */

const char *ot_io_choice_name(enum ot_io_choice choice) {
    static const char *const names[] = {"auto", "uring", "pool"};
    return names[choice];
}

/* ---- notes ---- */

static void add_note(struct ot_io_engine *engine, const char *format, ...) {
    va_list args;
    size_t used = strlen(engine->note);
    if (used > 0 && used + 3 < sizeof engine->note)
        used += (size_t)snprintf(engine->note + used, sizeof engine->note - used, ", ");
    va_start(args, format);
    vsnprintf(engine->note + used, sizeof engine->note - used, format, args);
    va_end(args);
}

/* ---- engines ---- */

int ot_io_engine_open(const struct ot_io_engine_config *config, struct ot_io_engine **out) {
    struct ot_io_engine_config with_calls = *config;
    if (!with_calls.calls)
        with_calls.calls = &ot_io_system;
    *out = NULL;
    if (config->choice == OT_IO_POOL)
        return open_pool(&with_calls, out);
    int rc = open_uring(&with_calls, out);
    if (rc == 0 || rc == -OT_E_BUDGET || config->choice == OT_IO_URING)
        return rc;
    struct ot_error refusal;
    ot_error_save(&refusal, rc);
    OT_TRY(open_pool(&with_calls, out));
    add_note(*out, "because %s", refusal.text);
    return 0;
}

void ot_io_engine_close(struct ot_io_engine *engine) {
    if (engine)
        engine->ops->close(engine);
}

int ot_io_engine_submit(struct ot_io_engine *engine, const struct ot_io_request *requests, int n) {
    return engine->ops->submit(engine, requests, n);
}

int ot_io_engine_reap(struct ot_io_engine *engine, struct ot_io_result *results, int most) {
    return engine->ops->reap(engine, results, most);
}

enum ot_io_choice ot_io_engine_choice(const struct ot_io_engine *engine) {
    return engine->choice;
}

const char *ot_io_engine_note(const struct ot_io_engine *engine) {
    return engine->note;
}

/* ---- chunks ---- */

/* Tries without progress: the first FAST_TRIES at once, then one every 5 ms. */
enum { FAST_TRIES = 16, MOST_TRIES = 200, PAUSE_NS = 5000000 };
/* O_DIRECT needs the rest to begin on a block border. So a block that was moved in part is moved again. */
enum { BLOCK_BYTES = 4096 };

struct ot_io_request ot_io_chunk_rest(const struct ot_io_chunk *chunk) {
    struct ot_io_request rest = chunk->request;
    rest.memory = (char *)rest.memory + chunk->moved;
    rest.bytes -= chunk->moved;
    rest.offset += (off_t)chunk->moved;
    return rest;
}

int ot_io_chunk_start(struct ot_io_engine *engine, struct ot_io_chunk *chunk) {
    struct ot_io_request rest = ot_io_chunk_rest(chunk);
    chunk->was_direct = chunk->direct && *chunk->direct;
    return ot_io_engine_submit(engine, &rest, 1);
}

enum ot_io_end ot_io_chunk_end(struct ot_io_engine *engine, struct ot_io_chunk *chunk, int64_t result) {
    if (result == (int64_t)(chunk->request.bytes - chunk->moved))
        return OT_IO_WHOLE;
    if (result == -EINVAL && chunk->was_direct) {
        *chunk->direct = false;
        return ot_set_direct(engine->files[chunk->request.file], false) ? OT_IO_AGAIN : OT_IO_FAILED;
    }
    bool ended = result == 0 && !chunk->request.write;
    if (ended || (result < 0 && result != -EINTR && result != -EAGAIN))
        return OT_IO_FAILED;
    size_t progress = result > 0 ? (size_t)result / BLOCK_BYTES * BLOCK_BYTES : 0;
    chunk->moved += progress;
    chunk->tries = progress ? 0 : chunk->tries + 1;
    if (chunk->tries > FAST_TRIES)
        nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
    return chunk->tries < MOST_TRIES ? OT_IO_AGAIN : OT_IO_FAILED;
}

static int say_why(const struct ot_io_chunk *chunk, int64_t result, const char *place) {
    const char *error = strerror(result < 0 ? (int)-result : 0);
    if (result == 0 && !chunk->request.write)
        return ot_fail(OT_E_IO, "the file ends there; did another program truncate it?");
    if (result >= 0)
        return ot_fail(OT_E_IO, "given up after %d tries without progress", chunk->tries);
    if (result == -EAGAIN || result == -EINTR)
        return ot_fail(OT_E_IO, "given up after %d tries without progress: %s", chunk->tries, error);
    if (result == -ENOSPC || result == -EDQUOT)
        return ot_fail(OT_E_IO, "%s; make room there%s", error, place);
    return ot_fail(OT_E_IO, "%s; look for errors of the disk in `dmesg`%s", error, place);
}

int ot_io_chunk_fail(const struct ot_io_chunk *chunk, int64_t result, const char *path, const char *place) {
    struct ot_io_request rest = ot_io_chunk_rest(chunk);
    return ot_fail_context(say_why(chunk, result, place), "%s: cannot %s %zu bytes at offset %lld", path,
                           rest.write ? "write" : "read", rest.bytes, (long long)rest.offset);
}

void ot_io_chunk_drop_cache(const struct ot_io_engine *engine, const struct ot_io_chunk *chunk) {
    const struct ot_io_request *request = &chunk->request;
    if (chunk->direct && !*chunk->direct)
        posix_fadvise(engine->files[request->file], request->offset, (off_t)request->bytes,
                      POSIX_FADV_DONTNEED);
}

/* ---- io engine pool ---- */

/* The pool engine: threads in pread and pwrite, one thread for each I/O in flight. */

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
        add_note(&pool->engine, "%d threads instead of %d: %s", pool->n_threads, wanted, strerror(error));
    else
        add_note(&pool->engine, "%d threads", pool->n_threads);
    return 0;
}

static int open_pool(const struct ot_io_engine_config *config, struct ot_io_engine **out) {
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

/* ---- io engine uring ---- */

/* The uring engine: one ring, owned by the thread that opened it.
 *
 * Set-up flags, their order and the thread rule: see io_uring_setup(2). fio's io_uring engine also drops
 * flags on EINVAL. SQPOLL (keeps a core busy) and IOPOLL (needs poll queues of the driver) gain nothing here,
 * with few large I/Os.
 */

#define MOST_BUFFER_BYTES ((size_t)1 << 30) /* the kernel's limit: EFAULT above it */

/* Counts the rings that were closed. The kernel may map a new ring where another thread's ring was. liburing
 * unmaps rings by a system call of its own, which the thread sanitizer does not see. The counter orders each
 * close before later opens, so that the sanitizer reports no race between two rings. */
static _Atomic(unsigned) closed_rings;

struct flight { /* an I/O in flight */
    void *owner;
    bool write;
};

struct uring {
    struct ot_io_engine engine;
    struct io_uring ring;
    bool have_ring, fixed_files, fixed_buffers;
    char *arena;
    size_t arena_bytes;
    int depth;
    struct flight *flights; /* [depth] */
    int *free_flights;      /* [depth]; the first n_free are free */
    int n_free;
};

/* ---- in flight ---- */

/* The index of the registered buffer that contains the range. -1: none. */
static int buffer_of(const struct uring *uring, const char *memory, size_t bytes) {
    if (!uring->fixed_buffers || memory < uring->arena ||
        (size_t)(memory - uring->arena) >= uring->arena_bytes)
        return -1;
    size_t first = (size_t)(memory - uring->arena), last = first + bytes - 1;
    if (last >= uring->arena_bytes || first / MOST_BUFFER_BYTES != last / MOST_BUFFER_BYTES)
        return -1;
    return (int)(first / MOST_BUFFER_BYTES);
}

static void prepare(const struct uring *uring, const struct ot_io_request *request,
                    struct io_uring_sqe *sqe) {
    int fd = uring->fixed_files ? request->file : uring->engine.files[request->file];
    int buffer = buffer_of(uring, request->memory, request->bytes);
    unsigned bytes = (unsigned)request->bytes;
    uint64_t offset = (uint64_t)request->offset;
    if (request->write && buffer >= 0)
        io_uring_prep_write_fixed(sqe, fd, request->memory, bytes, offset, buffer);
    else if (request->write)
        io_uring_prep_write(sqe, fd, request->memory, bytes, offset);
    else if (buffer >= 0)
        io_uring_prep_read_fixed(sqe, fd, request->memory, bytes, offset, buffer);
    else
        io_uring_prep_read(sqe, fd, request->memory, bytes, offset);
    if (uring->fixed_files)
        io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
}

/* True for errors that mean a temporary shortage in the kernel. Entries that it did not take stay in the
 * ring, and the next call submits them. */
static bool is_passing(int error) {
    return error == -EAGAIN || error == -EBUSY || error == -EINTR;
}

static int uring_submit(struct ot_io_engine *engine, const struct ot_io_request *requests, int n) {
    struct uring *uring = (struct uring *)engine;
    for (int i = 0; i < n; i++) {
        assert(uring->n_free > 0 && requests[i].bytes > 0 && requests[i].bytes <= MOST_BUFFER_BYTES);
        struct io_uring_sqe *sqe = io_uring_get_sqe(&uring->ring);
        assert(sqe); /* the ring has an entry for each I/O in flight */
        int flight = uring->free_flights[--uring->n_free];
        uring->flights[flight] = (struct flight){requests[i].owner, requests[i].write};
        prepare(uring, &requests[i], sqe);
        ot_io_note_begin(&uring->engine, &requests[i]);
        io_uring_sqe_set_data64(sqe, (uint64_t)flight);
    }
    int taken = io_uring_submit(&uring->ring);
    if (taken < 0 && !is_passing(taken))
        return ot_fail_errno(OT_E_IO, -taken, "io_uring: cannot submit");
    return 0;
}

static int uring_reap(struct ot_io_engine *engine, struct ot_io_result *results, int most) {
    struct uring *uring = (struct uring *)engine;
    assert(uring->n_free < uring->depth && most > 0);
    int n = 0;
    while (n == 0) {
        /* Call it even if results are there: with DEFER_TASKRUN they only appear in this call. */
        int rc = io_uring_submit_and_wait(&uring->ring, 1);
        if (rc < 0 && !is_passing(rc))
            return ot_fail_errno(OT_E_IO, -rc, "io_uring: cannot wait");
        struct io_uring_cqe *cqe;
        while (n < most && io_uring_peek_cqe(&uring->ring, &cqe) == 0) {
            int flight = (int)io_uring_cqe_get_data64(cqe);
            const struct flight *was = &uring->flights[flight];
            int result = uring->engine.calls->ring_result(uring->engine.calls->context, was->write, cqe->res);
            results[n++] = (struct ot_io_result){was->owner, result};
            uring->free_flights[uring->n_free++] = flight;
            io_uring_cqe_seen(&uring->ring, cqe);
        }
    }
    return n;
}

/* ---- set-up ---- */

static int make_ring(struct uring *uring) {
    static const struct {
        unsigned flags;
        const char *name;
    } ways[] = {{IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN"},
                {IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN"},
                {0, "no flags"}};
    int error = -EINVAL;
    for (size_t i = 0; i < sizeof ways / sizeof *ways && error == -EINVAL; i++) {
        struct io_uring_params params = {.flags = ways[i].flags};
        error = uring->engine.calls->ring_setup(uring->engine.calls->context, ways[i].flags);
        if (error == 0)
            error = io_uring_queue_init_params((unsigned)uring->depth, &uring->ring, &params);
        if (error == 0)
            add_note(&uring->engine, "%s", ways[i].name);
    }
    atomic_load_explicit(&closed_rings, memory_order_acquire);
    uring->have_ring = error == 0;
    switch (-error) {
    case 0:
        return 0;
    case EPERM:
        return ot_fail_errno(OT_E_IO, EPERM,
                             "io_uring is forbidden here, by the container's seccomp profile or by "
                             "/proc/sys/kernel/io_uring_disabled");
    case ENOSYS:
        return ot_fail_errno(OT_E_IO, ENOSYS, "this kernel has no io_uring, or the container hides it");
    case ENOMEM:
        return ot_fail_errno(OT_E_IO, ENOMEM, "io_uring is refused memory, raise `ulimit -l`");
    default:
        return ot_fail_errno(OT_E_IO, -error, "io_uring cannot be set up");
    }
}

/* IORING_OP_READ and IORING_OP_WRITE came with Linux 5.6, rings with 5.1. */
static int check_operations(struct uring *uring) {
    struct io_uring_probe *probe = io_uring_get_probe_ring(&uring->ring);
    bool good = probe && io_uring_opcode_supported(probe, IORING_OP_READ) &&
                io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return good ? 0 : ot_fail(OT_E_IO, "the io_uring of this kernel is too old (before Linux 5.6)");
}

static void register_files(struct uring *uring, int n_files) {
    int error = uring->engine.calls->ring_register(uring->engine.calls->context, false);
    if (error == 0)
        error = io_uring_register_files(&uring->ring, uring->engine.files, (unsigned)n_files);
    uring->fixed_files = error == 0;
    if (error)
        add_note(&uring->engine, "files not registered (%s)", strerror(-error));
}

/* Registers the arena. Optional: without it the kernel looks up the pages for each I/O. */
static int register_arena(struct uring *uring) {
    size_t n = (uring->arena_bytes + MOST_BUFFER_BYTES - 1) / MOST_BUFFER_BYTES;
    struct iovec *parts = calloc(n, sizeof *parts);
    if (!parts)
        return ot_fail(OT_E_BUDGET, "no memory for an I/O engine");
    for (size_t i = 0; i < n; i++) {
        size_t first = i * MOST_BUFFER_BYTES, left = uring->arena_bytes - first;
        parts[i] = (struct iovec){uring->arena + first, ot_min(left, MOST_BUFFER_BYTES)};
    }
    int error = uring->engine.calls->ring_register(uring->engine.calls->context, true);
    if (error == 0)
        error = io_uring_register_buffers(&uring->ring, parts, (unsigned)n);
    free(parts);
    uring->fixed_buffers = error == 0;
    if (error == 0)
        add_note(&uring->engine, "registered buffers");
    else if (error == -ENOMEM)
        add_note(&uring->engine, "buffers not registered: `ulimit -l` is too small for them");
    else
        add_note(&uring->engine, "buffers not registered (%s)", strerror(-error));
    return 0;
}

static void uring_close(struct ot_io_engine *engine) {
    struct uring *uring = (struct uring *)engine;
    struct ot_io_result result;
    /* otherwise the kernel could still write to the callers' memory */
    while (uring->have_ring && uring->n_free < uring->depth)
        if (uring_reap(engine, &result, 1) < 0)
            break;
    atomic_fetch_add_explicit(&closed_rings, 1, memory_order_release);
    if (uring->have_ring)
        io_uring_queue_exit(&uring->ring);
    free(uring->free_flights);
    free(uring->flights);
    free(uring);
}

static const struct ot_io_engine_ops uring_ops = {uring_submit, uring_reap, uring_close};

static int set_up(struct uring *uring, int n_files) {
    uring->flights = calloc((size_t)uring->depth, sizeof *uring->flights);
    uring->free_flights = calloc((size_t)uring->depth, sizeof *uring->free_flights);
    if (!uring->flights || !uring->free_flights)
        return ot_fail(OT_E_BUDGET, "no memory for an I/O engine");
    for (uring->n_free = 0; uring->n_free < uring->depth; uring->n_free++)
        uring->free_flights[uring->n_free] = uring->n_free;
    OT_TRY(make_ring(uring));
    OT_TRY(check_operations(uring));
    register_files(uring, n_files);
    return uring->arena_bytes > 0 ? register_arena(uring) : 0;
}

static int open_uring(const struct ot_io_engine_config *config, struct ot_io_engine **out) {
    struct uring *uring = calloc(1, sizeof *uring);
    if (!uring)
        return ot_fail(OT_E_BUDGET, "no memory for an I/O engine");
    uring->engine.ops = &uring_ops;
    uring->engine.choice = OT_IO_URING;
    uring->engine.calls = config->calls;
    uring->engine.files = config->files;
    uring->depth = config->depth;
    uring->arena = config->arena;
    uring->arena_bytes = config->arena ? config->arena_bytes : 0;
    int rc = set_up(uring, config->n_files);
    if (rc < 0) {
        uring_close(&uring->engine); /* if n_free < depth, there is no ring, so close does not wait */
        return rc;
    }
    *out = &uring->engine;
    return 0;
}

/* The uring engine: one ring, owned by the thread that opened it.
 *
 * Set-up flags, their order and the thread rule: see io_uring_setup(2). fio's io_uring engine also drops
 * flags on EINVAL. SQPOLL (keeps a core busy) and IOPOLL (needs poll queues of the driver) gain nothing here,
 * with few large I/Os.
 */
#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "offload/store/io_engine_state.h"
#include "src/base/error.h"
#include "src/base/minmax.h"

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
            ot_io_engine_add_note(&uring->engine, "%s", ways[i].name);
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
        ot_io_engine_add_note(&uring->engine, "files not registered (%s)", strerror(-error));
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
        ot_io_engine_add_note(&uring->engine, "registered buffers");
    else if (error == -ENOMEM)
        ot_io_engine_add_note(&uring->engine, "buffers not registered: `ulimit -l` is too small for them");
    else
        ot_io_engine_add_note(&uring->engine, "buffers not registered (%s)", strerror(-error));
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

int ot_io_uring_open(const struct ot_io_engine_config *config, struct ot_io_engine **out) {
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

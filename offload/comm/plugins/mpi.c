/* The communicator plugin `mpi`: moves host memory with the MPI library that it was built with.
 *
 * THREADS. offload-train calls operations on one thread, control functions on another, and abort on any. One
 * lock surrounds every call of the MPI library, so MPI_THREAD_SERIALIZED is enough. A library that gives less
 * is refused.
 *
 * WAITING. Every operation is nonblocking for MPI. wait_for_requests tests it again and again, sleeps in
 * between, and looks at the deadline and at abort. So no thread stays inside MPI, and the lock is never held
 * for long.
 *
 * STARTING AND ENDING wait inside MPI for all ranks, and may hang if one is missing. A thread of its own does
 * both, because MPI is to be ended on the thread that started it. If it does not come back before the
 * deadline, it is left behind with the context, which is why this plugin is never unloaded (its link option
 * -z nodelete).
 *
 * TWO COMMUNICATORS, both duplicates of MPI_COMM_WORLD: one for operations and one for control functions,
 * because both may run at the same time.
 *
 * FAILURE. After a failure the plugin calls MPI no more: requests may be pending, and MPI_Finalize would wait
 * for ranks that are gone. The process then ends without MPI_Finalize, which mpirun sees, so it ends the
 * others. Memory of a broken operation may still be written until the process has ended.
 *
 * MPI cannot start twice in a process, so a process opens this plugin once. */
#include <ctype.h>
#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "offload/comm/plugin.h"
#include "offload/comm/plugins/breakage.h"
#include "src/base/clock.h"
#include "src/base/memory.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

/* Counts of MPI are ints, so larger parts are moved in pieces. */
#ifndef PIECE_BYTES /* tests make it small */
#define PIECE_BYTES ((size_t)1 << 30)
#endif
/* Sleeps between two tests. The shared memory transports move data only inside MPI calls, a few pieces of
 * some KiB per call, so long sleeps cost bandwidth. */
enum { SHORTEST_SLEEP_NS = 5000, LONGEST_SLEEP_NS = 200000 };
enum { TAG = 0, TRANSFER_TAG = 1 };
/* A broken communicator does not end MPI, so this limit is for its thread alone. */
#define SECONDS_TO_END_BROKEN 1.0

struct mpi {
    struct ot_breakage breakage;
    pthread_mutex_t calls; /* held inside MPI */
    MPI_Comm operations, control;
    int rank, ranks, local_rank, local_ranks;
    double timeout_seconds;
    MPI_Request *requests; /* of all_to_all: [2 * ranks] */

    /* of transfers, for each piece */
    MPI_Request *piece_requests;
    MPI_Status *piece_statuses;
    int *done; /* pieces that a test has found complete */
    struct piece *pieces;
    size_t requests_capacity, statuses_capacity, done_capacity, pieces_capacity;

    /* The thread that starts and ends MPI. */
    pthread_t thread;
    bool has_thread;       /* used by open and close */
    pthread_mutex_t mutex; /* guards the members below */
    pthread_cond_t changed;
    bool is_started; /* MPI was started, or could not be: see `breakage` */
    bool must_end, must_finalize, is_ended;
};

static int fail_call(struct mpi *m, const char *call, int error) {
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    MPI_Error_string(error, text, &length);
    return ot_breakage_set(&m->breakage, OT_COMM_FAILED, "%s failed on rank %d: %s", call, m->rank, text);
}

/* ---- calls ---- */

/* Starts a call under the lock. Evaluates to OT_COMM_OK, or to the code of the first failure. */
#define CALL(m, name, ...) end_call(m, #name, begin_call(m) == OT_COMM_OK ? name(__VA_ARGS__) : MPI_SUCCESS)

static int begin_call(struct mpi *m) {
    pthread_mutex_lock(&m->calls);
    return ot_breakage_get(&m->breakage, NULL, 0);
}

static int end_call(struct mpi *m, const char *name, int error) {
    if (error != MPI_SUCCESS)
        fail_call(m, name, error);
    pthread_mutex_unlock(&m->calls);
    return ot_breakage_get(&m->breakage, NULL, 0);
}

/* A transfer is moved in pieces, and the first one that is shorter than PIECE_BYTES ends it; it may be
 * empty. So ranks that differ in the size of a transfer always differ in the size of a piece, and a receiver
 * sees that: MPI tells the size of what came, or that it was too long. */
struct piece {
    int rank, bytes;
    bool is_send;
};

static void check_size(struct mpi *m, const struct piece *piece, MPI_Status *status, bool has_error) {
    int class = MPI_SUCCESS, got = piece->bytes;
    if (has_error)
        MPI_Error_class(status->MPI_ERROR, &class);
    else if (!piece->is_send)
        MPI_Get_count(status, MPI_BYTE, &got);
    if (!piece->is_send && (class == MPI_ERR_TRUNCATE || got != piece->bytes))
        ot_breakage_set(&m->breakage, OT_COMM_FAILED,
                        "rank %d sends %s than the %d bytes that rank %d receives from it", piece->rank,
                        got < piece->bytes ? "less" : "more", piece->bytes, m->rank);
}

/* Tests the requests, inside MPI. The size of a piece is checked as soon as it has come: with a wrong one,
 * the others may never come. */
static int test_requests(struct mpi *m, MPI_Request *requests, int n, int *is_complete) {
    int n_done = 0;
    if (requests != m->piece_requests)
        return MPI_Testall(n, requests, is_complete, MPI_STATUSES_IGNORE);
    int error = MPI_Testsome(n, requests, &n_done, m->done, m->piece_statuses);
    *is_complete = n_done == MPI_UNDEFINED; /* no request is active any more */
    for (int i = 0; i < n_done; i++)
        check_size(m, &m->pieces[m->done[i]], &m->piece_statuses[i], error == MPI_ERR_IN_STATUS);
    return error;
}

/* Waits until the requests are complete, the deadline passes, or the communicator breaks. */
static int wait_for_requests(struct mpi *m, const char *what, MPI_Request *requests, int n) {
    int64_t end_ns = ot_clock_ns() + (int64_t)(m->timeout_seconds * 1e9);
    for (long sleep_ns = SHORTEST_SLEEP_NS;;) {
        int is_complete = 0;
        int rc = begin_call(m);
        rc = end_call(m, requests == m->piece_requests ? "MPI_Testsome" : "MPI_Testall",
                      rc == OT_COMM_OK ? test_requests(m, requests, n, &is_complete) : MPI_SUCCESS);
        if (rc != OT_COMM_OK || is_complete)
            return rc;
        if (ot_clock_ns() > end_ns)
            return ot_breakage_set(&m->breakage, OT_COMM_TIMED_OUT,
                                   "rank %d waited %.3g s in %s for another rank", m->rank,
                                   m->timeout_seconds, what);
        nanosleep(&(struct timespec){0, sleep_ns}, NULL);
        sleep_ns = ot_min(sleep_ns * 2, LONGEST_SLEEP_NS);
    }
}

static size_t piece_of(size_t done, size_t bytes) {
    return ot_min(bytes - done, PIECE_BYTES);
}

/* ---- operations ---- */

/* A type of `bytes` bytes whose elements begin `stride` bytes apart: a piece of every part. */
static int make_piece_type(size_t bytes, size_t stride, MPI_Datatype *out) {
    MPI_Datatype whole;
    int error = MPI_Type_contiguous((int)bytes, MPI_BYTE, &whole);
    if (error != MPI_SUCCESS)
        return error;
    error = MPI_Type_create_resized(whole, 0, (MPI_Aint)stride, out);
    MPI_Type_free(&whole);
    return error == MPI_SUCCESS ? MPI_Type_commit(out) : error;
}

static int gather_piece(struct mpi *m, const char *part, char *all, size_t bytes, size_t part_bytes,
                        bool is_in_place) {
    MPI_Datatype type = MPI_DATATYPE_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = CALL(m, make_piece_type, bytes, part_bytes, &type);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Iallgather, is_in_place ? MPI_IN_PLACE : part, (int)bytes, MPI_BYTE, all, 1, type,
                  m->operations, &request);
    if (rc == OT_COMM_OK)
        rc = wait_for_requests(m, "all-gather", &request, 1);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Type_free, &type);
    return rc;
}

static int mpi_all_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    struct mpi *m = context;
    bool is_in_place = part == (char *)all + (size_t)m->rank * part_bytes;
    int rc = ot_breakage_get(&m->breakage, NULL, 0);
    (void)stream;
    for (size_t done = 0; done < part_bytes && rc == OT_COMM_OK; done += PIECE_BYTES)
        rc = gather_piece(m, (const char *)part + done, (char *)all + done, piece_of(done, part_bytes),
                          part_bytes, is_in_place);
    return rc;
}

/* MPI_Ialltoall would copy the own part too, so each pair of ranks exchanges its parts. */
static int exchange_piece(struct mpi *m, const char *send, char *receive, size_t bytes, size_t part_bytes) {
    int n = 0, rc = OT_COMM_OK;
    for (int i = 1; i < m->ranks && rc == OT_COMM_OK; i++) {
        int from = (m->rank + m->ranks - i) % m->ranks;
        m->requests[n] = MPI_REQUEST_NULL;
        rc = CALL(m, MPI_Irecv, receive + (size_t)from * part_bytes, (int)bytes, MPI_BYTE, from, TAG,
                  m->operations, &m->requests[n++]);
    }
    for (int i = 1; i < m->ranks && rc == OT_COMM_OK; i++) {
        int to = (m->rank + i) % m->ranks;
        m->requests[n] = MPI_REQUEST_NULL;
        rc = CALL(m, MPI_Isend, send + (size_t)to * part_bytes, (int)bytes, MPI_BYTE, to, TAG, m->operations,
                  &m->requests[n++]);
    }
    return rc == OT_COMM_OK ? wait_for_requests(m, "all-to-all", m->requests, n) : rc;
}

static int mpi_all_to_all(void *context, const void *send, void *receive, size_t part_bytes, void *stream) {
    struct mpi *m = context;
    int rc = ot_breakage_get(&m->breakage, NULL, 0);
    (void)stream;
    for (size_t done = 0; done < part_bytes && rc == OT_COMM_OK; done += PIECE_BYTES)
        rc = exchange_piece(m, (const char *)send + done, (char *)receive + done, piece_of(done, part_bytes),
                            part_bytes);
    return rc;
}

static int mpi_broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    struct mpi *m = context;
    int rc = ot_breakage_get(&m->breakage, NULL, 0);
    (void)stream;
    for (size_t done = 0; done < bytes && rc == OT_COMM_OK; done += PIECE_BYTES) {
        MPI_Request request = MPI_REQUEST_NULL;
        rc = CALL(m, MPI_Ibcast, (char *)memory + done, (int)piece_of(done, bytes), MPI_BYTE, root,
                  m->operations, &request);
        if (rc == OT_COMM_OK)
            rc = wait_for_requests(m, "broadcast", &request, 1);
    }
    return rc;
}

/* ---- transfers ---- */

static int add_piece(struct mpi *m, size_t at, const struct ot_comm_transfer_v1 *t, size_t done) {
    struct piece piece = {t->rank, (int)piece_of(done, t->bytes), t->is_send != 0};
    char *memory = (char *)t->memory + done;
    if (!ot_try_grow(&m->pieces, &m->pieces_capacity, at + 1, sizeof *m->pieces) ||
        !ot_try_grow(&m->piece_requests, &m->requests_capacity, at + 1, sizeof *m->piece_requests) ||
        !ot_try_grow(&m->piece_statuses, &m->statuses_capacity, at + 1, sizeof *m->piece_statuses) ||
        !ot_try_grow(&m->done, &m->done_capacity, at + 1, sizeof *m->done))
        return ot_breakage_set(&m->breakage, OT_COMM_FAILED, "no host memory");
    m->pieces[at] = piece;
    m->piece_requests[at] = MPI_REQUEST_NULL;
    return piece.is_send ? CALL(m, MPI_Isend, memory, piece.bytes, MPI_BYTE, piece.rank, TRANSFER_TAG,
                                m->operations, &m->piece_requests[at])
                         : CALL(m, MPI_Irecv, memory, piece.bytes, MPI_BYTE, piece.rank, TRANSFER_TAG,
                                m->operations, &m->piece_requests[at]);
}

static int mpi_transfer(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream) {
    struct mpi *m = context;
    size_t n_pieces = 0;
    int rc = ot_breakage_get(&m->breakage, NULL, 0);
    (void)stream;
    for (size_t i = 0; i < n; i++)
        for (size_t done = 0; done <= transfers[i].bytes && rc == OT_COMM_OK; done += PIECE_BYTES)
            rc = add_piece(m, n_pieces++, &transfers[i], done);
    return rc == OT_COMM_OK && n_pieces > 0
               ? wait_for_requests(m, "a transfer", m->piece_requests, (int)n_pieces)
               : rc;
}

/* ---- control ---- */

static int mpi_all_gather_host(void *context, const void *mine, size_t bytes, void *all) {
    struct mpi *m = context;
    MPI_Request request = MPI_REQUEST_NULL;
    int rc =
        CALL(m, MPI_Iallgather, mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, m->control, &request);
    return rc == OT_COMM_OK ? wait_for_requests(m, "a small all-gather", &request, 1) : rc;
}

static int mpi_barrier(void *context) {
    struct mpi *m = context;
    MPI_Request request = MPI_REQUEST_NULL;
    int rc = CALL(m, MPI_Ibarrier, m->control, &request);
    return rc == OT_COMM_OK ? wait_for_requests(m, "a barrier", &request, 1) : rc;
}

static int mpi_poll_error(void *context, char *why, size_t why_bytes) {
    return ot_breakage_get(&((struct mpi *)context)->breakage, why, why_bytes);
}

static void mpi_abort(void *context) {
    ot_breakage_set(&((struct mpi *)context)->breakage, OT_COMM_ABORTED, "the communicator was aborted");
}

/* ---- opening and closing ---- */

static int start_mpi(struct mpi *m) {
    int is_started = 0, is_ended = 0, level = MPI_THREAD_SINGLE;
    MPI_Initialized(&is_started);
    MPI_Finalized(&is_ended);
    if (is_started || is_ended)
        return ot_breakage_set(&m->breakage, OT_COMM_UNSUPPORTED,
                               "MPI was started in this process before, and cannot start twice");
    int error = MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &level);
    if (error != MPI_SUCCESS)
        return fail_call(m, "MPI_Init_thread", error);
    if (level < MPI_THREAD_SERIALIZED)
        return ot_breakage_set(&m->breakage, OT_COMM_UNSUPPORTED,
                               "this MPI library was built without threads: it gives level %d, needed is "
                               "MPI_THREAD_SERIALIZED (%d)",
                               level, MPI_THREAD_SERIALIZED);
    return OT_COMM_OK;
}

static int make_communicators(struct mpi *m) {
    MPI_Comm local = MPI_COMM_NULL;
    int rc = CALL(m, MPI_Comm_set_errhandler, MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    if (rc == OT_COMM_OK) /* duplicates inherit the error handler */
        rc = CALL(m, MPI_Comm_dup, MPI_COMM_WORLD, &m->operations);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Comm_dup, MPI_COMM_WORLD, &m->control);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Comm_rank, MPI_COMM_WORLD, &m->rank);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Comm_size, MPI_COMM_WORLD, &m->ranks);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Comm_split_type, MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, m->rank, MPI_INFO_NULL,
                  &local);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Comm_rank, local, &m->local_rank);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Comm_size, local, &m->local_ranks);
    if (rc == OT_COMM_OK)
        rc = CALL(m, MPI_Comm_free, &local);
    return rc;
}

static void announce(struct mpi *m, bool *flag) {
    pthread_mutex_lock(&m->mutex);
    *flag = true;
    pthread_cond_broadcast(&m->changed);
    pthread_mutex_unlock(&m->mutex);
}

/* Waits for the flag. False: it was not set in so many seconds. */
static bool await(struct mpi *m, const bool *flag, double seconds) {
    int64_t until_ns = ot_clock_ns() + (int64_t)(seconds * 1e9);
    pthread_mutex_lock(&m->mutex);
    while (!*flag && ot_cond_wait_until(&m->changed, &m->mutex, until_ns))
        ;
    bool is_set = *flag;
    pthread_mutex_unlock(&m->mutex);
    return is_set;
}

static void *start_and_end(void *context) {
    struct mpi *m = context;
    if (start_mpi(m) == OT_COMM_OK)
        make_communicators(m);
    announce(m, &m->is_started);
    pthread_mutex_lock(&m->mutex);
    while (!m->must_end)
        pthread_cond_wait(&m->changed, &m->mutex);
    bool must_finalize = m->must_finalize;
    pthread_mutex_unlock(&m->mutex);
    if (must_finalize) {
        MPI_Comm_free(&m->operations);
        MPI_Comm_free(&m->control);
        MPI_Finalize();
    }
    announce(m, &m->is_ended);
    return NULL;
}

static int start(struct mpi *m) {
    m->has_thread = ot_thread_start(&m->thread, "mpi", start_and_end, m) == 0;
    if (!m->has_thread)
        return ot_breakage_set(&m->breakage, OT_COMM_FAILED, "cannot start a thread for MPI");
    if (!await(m, &m->is_started, m->timeout_seconds))
        ot_breakage_set(&m->breakage, OT_COMM_TIMED_OUT,
                        "MPI did not start in %.3g s: a rank is missing, or a host cannot be reached",
                        m->timeout_seconds);
    return ot_breakage_get(&m->breakage, NULL, 0);
}

static int check_ranks(struct mpi *m, int rank, int ranks) {
    if (rank < 0 || (rank == m->rank && ranks == m->ranks))
        return OT_COMM_OK;
    return ot_breakage_set(&m->breakage, OT_COMM_UNSUPPORTED,
                           "MPI says rank %d of %d, but the run has rank %d of %d: start it with mpirun, and "
                           "with the same number of ranks",
                           m->rank, m->ranks, rank, ranks);
}

/* "Open MPI v4.1.4" of "Open MPI v4.1.4, package: ...", "MPICH Version: 5.0.2" of a table. */
static void shorten(char *library) {
    size_t n = 0;
    for (const char *c = library; *c && *c != ',' && *c != '\n'; c++)
        if (!isspace((unsigned char)*c))
            library[n++] = *c;
        else if (n > 0 && library[n - 1] != ' ')
            library[n++] = ' ';
    library[n] = '\0';
}

static int tell_facts(struct mpi *m, struct ot_comm_facts_v1 *facts) {
    char library[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    int rc = CALL(m, MPI_Get_library_version, library, &length);
    facts->rank = m->rank;
    facts->ranks = m->ranks;
    facts->local_rank = m->local_rank;
    facts->local_ranks = m->local_ranks;
    shorten(library);
    snprintf(facts->description, sizeof facts->description, "%.60s, %d rank%s", library, m->ranks,
             m->ranks == 1 ? "" : "s");
    return rc;
}

static void mpi_close(void *context, int broken) {
    struct mpi *m = context;
    bool is_sound = !broken && ot_breakage_get(&m->breakage, NULL, 0) == OT_COMM_OK;
    m->must_finalize = is_sound && mpi_barrier(m) == OT_COMM_OK; /* the thread reads it after must_end */
    announce(m, &m->must_end);
    if (m->has_thread &&
        !await(m, &m->is_ended, m->must_finalize ? m->timeout_seconds : SECONDS_TO_END_BROKEN)) {
        pthread_detach(m->thread); /* it hangs inside MPI, and uses the context */
        return;
    }
    if (m->has_thread)
        pthread_join(m->thread, NULL);
    pthread_cond_destroy(&m->changed);
    pthread_mutex_destroy(&m->mutex);
    pthread_mutex_destroy(&m->calls);
    ot_breakage_destroy(&m->breakage);
    free(m->requests);
    free(m->piece_requests);
    free(m->piece_statuses);
    free(m->done);
    free(m->pieces);
    free(m);
}

static int mpi_open(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                    char *why, size_t why_bytes) {
    struct mpi *m = calloc(1, sizeof *m);
    if (!m) {
        snprintf(why, why_bytes, "no host memory");
        return OT_COMM_FAILED;
    }
    ot_breakage_init(&m->breakage);
    pthread_mutex_init(&m->calls, NULL);
    pthread_mutex_init(&m->mutex, NULL);
    ot_cond_init(&m->changed);
    m->rank = host->rank;
    m->timeout_seconds = host->timeout_seconds;
    int rc = start(m);
    if (rc == OT_COMM_OK)
        rc = check_ranks(m, host->rank, host->ranks);
    if (rc == OT_COMM_OK)
        rc = tell_facts(m, facts);
    if (rc == OT_COMM_OK && !(m->requests = calloc(2 * (size_t)m->ranks, sizeof *m->requests)))
        rc = ot_breakage_set(&m->breakage, OT_COMM_FAILED, "no host memory");
    if (rc != OT_COMM_OK) {
        ot_breakage_get(&m->breakage, why, why_bytes);
        mpi_close(m, 1);
        return rc;
    }
    *context = m;
    return OT_COMM_OK;
}

const struct ot_comm_transfers_v1 ot_comm_plugin_transfers_v1 __attribute__((visibility("default"))) = {
    .abi = OT_COMM_TRANSFERS_V1,
    .struct_size = sizeof(struct ot_comm_transfers_v1),
    .transfer = mpi_transfer,
};

const struct ot_comm_v1 ot_comm_plugin_v1 __attribute__((visibility("default"))) = {
    .abi = OT_COMM_ABI_V1,
    .struct_size = sizeof(struct ot_comm_v1),
    .name = "mpi",
    .capabilities = OT_COMM_TAKES_HOST | OT_COMM_HAS_CONTROL,
    .open = mpi_open,
    .close = mpi_close,
    .all_gather = mpi_all_gather,
    .all_to_all = mpi_all_to_all,
    .broadcast = mpi_broadcast,
    .all_gather_host = mpi_all_gather_host,
    .barrier = mpi_barrier,
    .poll_error = mpi_poll_error,
    .abort = mpi_abort,
};

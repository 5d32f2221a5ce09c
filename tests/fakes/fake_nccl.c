#include "tests/fakes/fake_nccl.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum { INT8 = 0, MAGIC = 0x6e63636c, MOST_GROUPED = 4096 };

struct unique_id { /* the whole of it is checked: it is passed by value */
    char name[64];
    unsigned char pattern[64];
};

/* ncclConfig_t of version 2.17 */
struct config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
};

/* The transfers of one group on one stream. */
struct launch {
    struct ncclComm *comm;
    cudaStream_t stream;
    int number; /* counted from 1 */
    size_t n, capacity;
    struct fake_transfer *transfers;
};

struct ncclComm {
    int magic;
    int rank, ranks;
    struct fake_shared *shared;
    char name[64];
    atomic_int inside;   /* threads inside calls */
    atomic_int polls;    /* how often the last call is still in progress */
    atomic_int error;    /* the async error */
    atomic_int running;  /* launches that the stream has not completed */
    atomic_bool aborted; /* kernels end */
    bool is_connected, is_finalizing;
    struct launch *pending; /* a group that is not on the stream yet */
    int n_launches;
    struct ncclComm *next;
};

/* Communicators are kept after their end, so that their later use is seen. */
static _Atomic(struct ncclComm *) all_comms;

/* ---- what goes wrong ---- */

static long setting(const char *name, long otherwise) {
    const char *value = getenv(name);
    return value ? strtol(value, NULL, 10) : otherwise;
}

static void doze(long us) {
    nanosleep(&(struct timespec){us / 1000000, us % 1000000 * 1000}, NULL);
}

static void end_process(const char *why) {
    fprintf(stderr, "fake NCCL: %s\n", why);
    abort();
}

static bool should_fail(const char *function) {
    static atomic_int calls;
    const char *value = getenv("OT_FAKE_NCCL_FAIL");
    size_t length = strlen(function);
    if (!value || strncmp(value, function, length) != 0 || value[length] != ':')
        return false;
    return atomic_fetch_add(&calls, 1) + 1 == atoi(value + length + 1);
}

static void hang_if_asked(const char *function) {
    const char *value = getenv("OT_FAKE_NCCL_HANG");
    while (value && strcmp(value, function) == 0)
        pause();
}

/* Every call that takes a communicator begins with this, and ends with leave. */
static void enter(struct ncclComm *comm) {
    if (!comm || comm->magic != MAGIC)
        end_process("a call with a communicator that has ended");
    if (atomic_fetch_add(&comm->inside, 1) != 0)
        end_process("two threads are inside");
    long slow_us = setting("OT_FAKE_NCCL_SLOW_US", 0);
    if (slow_us)
        doze(slow_us);
}

static int leave(struct ncclComm *comm, int result) {
    atomic_fetch_sub(&comm->inside, 1);
    return result;
}

static void begin_progress(struct ncclComm *comm) {
    atomic_store(&comm->polls, (int)setting("OT_FAKE_NCCL_POLLS", 2));
}

/* ---- the stream ---- */

/* True if an earlier transfer between the same ranks is not complete: messages arrive in order. */
static bool must_wait(const struct launch *launch, size_t at) {
    const struct fake_transfer *t = &launch->transfers[at];
    for (size_t i = 0; i < at; i++) {
        const struct fake_transfer *other = &launch->transfers[i];
        if (other->from == t->from && other->to == t->to &&
            (other->header_done == 0 || other->done < other->bytes))
            return true;
    }
    return false;
}

static void run_launch(void *arg) {
    struct launch *launch = arg;
    struct ncclComm *comm = launch->comm;
    bool fails = launch->number == setting("OT_FAKE_NCCL_ASYNC", 0);
    if (fails)
        atomic_store(&comm->error, FAKE_REMOTE_ERROR);
    for (bool is_done = false; !is_done && !atomic_load(&comm->aborted) && atomic_load(&comm->error) == 0;) {
        bool moved = false;
        is_done = true;
        for (size_t i = 0; i < launch->n; i++) {
            struct fake_transfer *t = &launch->transfers[i];
            if (t->header_done && t->done == t->bytes)
                continue;
            is_done = false;
            int rc = must_wait(launch, i) ? 0 : fake_transfer_advance(comm->shared, t);
            if (rc < 0)
                atomic_store(&comm->error, FAKE_INVALID_USAGE);
            moved |= rc != 0;
        }
        if (!moved && !is_done)
            doze(50);
    }
    while (fails && !atomic_load(&comm->aborted)) /* the kernel waits until somebody aborts */
        doze(50);
    free(launch->transfers);
    free(launch);
    atomic_fetch_sub(&comm->running, 1);
}

static void put_on_stream(struct ncclComm *comm) {
    struct launch *launch = comm->pending;
    comm->pending = NULL;
    launch->number = ++comm->n_launches;
    atomic_fetch_add(&comm->running, 1);
    if (cudaLaunchHostFunc(launch->stream, run_launch, launch) != cudaSuccess) {
        atomic_fetch_sub(&comm->running, 1);
        atomic_store(&comm->error, FAKE_SYSTEM_ERROR);
    }
}

/* ---- versions, errors, ids ---- */

EXPORT int ncclGetVersion(int *version);
EXPORT const char *ncclGetErrorString(int result);
EXPORT const char *ncclGetLastError(struct ncclComm *comm);
EXPORT int ncclGetUniqueId(struct unique_id *id);
EXPORT int ncclCommInitRankConfig(struct ncclComm **out, int ranks, struct unique_id id, int rank,
                                  struct config *config);
EXPORT int ncclCommFinalize(struct ncclComm *comm);
EXPORT int ncclCommDestroy(struct ncclComm *comm);
EXPORT int ncclCommAbort(struct ncclComm *comm);
EXPORT int ncclCommGetAsyncError(struct ncclComm *comm, int *result);
EXPORT int ncclAllGather(const void *send, void *receive, size_t n, int type, struct ncclComm *comm,
                         cudaStream_t stream);
EXPORT int ncclBroadcast(const void *send, void *receive, size_t n, int type, int root, struct ncclComm *comm,
                         cudaStream_t stream);
EXPORT int ncclSend(const void *memory, size_t n, int type, int peer, struct ncclComm *comm,
                    cudaStream_t stream);
EXPORT int ncclRecv(void *memory, size_t n, int type, int peer, struct ncclComm *comm, cudaStream_t stream);
EXPORT int ncclGroupStart(void);
EXPORT int ncclGroupEnd(void);

int ncclGetVersion(int *version) {
    *version = (int)setting("OT_FAKE_NCCL_VERSION", 22703);
    return FAKE_SUCCESS;
}

const char *ncclGetErrorString(int result) {
    static const char *const texts[] = {"no error",
                                        "unhandled cuda error",
                                        "unhandled system error",
                                        "internal error",
                                        "invalid argument",
                                        "invalid usage",
                                        "remote process exited or there was a network error",
                                        "NCCL operation in progress"};
    return result >= 0 && result <= FAKE_IN_PROGRESS ? texts[result] : "unknown result code";
}

const char *ncclGetLastError(struct ncclComm *comm) {
    (void)comm;
    return "told by the fake\nsecond line";
}

int ncclGetUniqueId(struct unique_id *id) {
    for (int i = 0; i < 64; i++)
        id->pattern[i] = (unsigned char)(200 - i);
    return fake_shared_create(id->name) == 0 ? FAKE_SUCCESS : FAKE_SYSTEM_ERROR;
}

/* ---- communicators ---- */

int ncclCommInitRankConfig(struct ncclComm **out, int ranks, struct unique_id id, int rank,
                           struct config *config) {
    int device = -1;
    *out = NULL;
    if (should_fail("ncclCommInitRankConfig"))
        return FAKE_SYSTEM_ERROR;
    for (int i = 0; i < 64; i++)
        if (id.pattern[i] != 200 - i)
            return FAKE_INVALID_ARGUMENT;
    if (config->magic != 0xcafebeef || config->version != 21700 || config->size != sizeof *config ||
        config->blocking != 0 || rank < 0 || rank >= ranks || ranks > FAKE_MAX_RANKS)
        return FAKE_INVALID_ARGUMENT;
    if (cudaGetDevice(&device) != cudaSuccess)
        return FAKE_INVALID_USAGE;
    struct ncclComm *comm = calloc(1, sizeof *comm);
    if (!comm)
        return FAKE_SYSTEM_ERROR;
    comm->magic = MAGIC;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->shared = fake_shared_join(id.name);
    if (!comm->shared) {
        free(comm);
        return FAKE_SYSTEM_ERROR;
    }
    begin_progress(comm);
    comm->next = atomic_load(&all_comms);
    while (!atomic_compare_exchange_weak(&all_comms, &comm->next, comm))
        ;
    *out = comm;
    return FAKE_IN_PROGRESS;
}

int ncclCommGetAsyncError(struct ncclComm *comm, int *result) {
    enter(comm);
    *result = atomic_load(&comm->error);
    if (*result != FAKE_SUCCESS)
        return leave(comm, FAKE_SUCCESS);
    if (!comm->is_connected)
        comm->is_connected = fake_shared_joined(comm->shared) == comm->ranks;
    if (!comm->is_connected || atomic_load(&comm->polls) > 0) {
        *result = FAKE_IN_PROGRESS;
        if (comm->is_connected)
            atomic_fetch_sub(&comm->polls, 1);
    } else if (comm->is_finalizing &&
               (atomic_load(&comm->running) != 0 || fake_shared_finalized(comm->shared) != comm->ranks)) {
        *result = FAKE_IN_PROGRESS; /* the ranks of a host wait for each other */
    } else if (comm->pending) {
        put_on_stream(comm);
    }
    return leave(comm, FAKE_SUCCESS);
}

int ncclCommFinalize(struct ncclComm *comm) {
    enter(comm);
    hang_if_asked("ncclCommFinalize");
    comm->is_finalizing = true;
    fake_shared_finalize(comm->shared);
    begin_progress(comm);
    return leave(comm, FAKE_IN_PROGRESS);
}

static int end_comm(struct ncclComm *comm) {
    while (atomic_load(&comm->running) != 0)
        doze(50);
    if (comm->pending)
        free(comm->pending->transfers);
    free(comm->pending);
    comm->pending = NULL;
    fake_shared_leave(comm->shared);
    comm->magic = 0;
    return FAKE_SUCCESS;
}

int ncclCommDestroy(struct ncclComm *comm) {
    enter(comm);
    hang_if_asked("ncclCommDestroy");
    if (!comm->is_finalizing)
        end_process("ncclCommDestroy before ncclCommFinalize");
    return end_comm(comm);
}

int ncclCommAbort(struct ncclComm *comm) {
    if (!comm || comm->magic != MAGIC)
        end_process("ncclCommAbort of a communicator that has ended");
    if (atomic_fetch_add(&comm->inside, 1) != 0)
        end_process("ncclCommAbort while another thread is inside");
    hang_if_asked("ncclCommAbort");
    atomic_store(&comm->aborted, true);
    return end_comm(comm);
}

/* ---- groups and operations ---- */

static _Thread_local int depth;
static _Thread_local struct launch *group;

static bool is_reachable(const void *memory) {
    struct cudaPointerAttributes attributes;
    return cudaPointerGetAttributes(&attributes, memory) == cudaSuccess &&
           attributes.type != cudaMemoryTypeUnregistered;
}

static int add_transfer(struct ncclComm *comm, struct fake_transfer transfer) {
    struct launch *launch = group;
    if (!is_reachable(transfer.memory) && transfer.bytes > 0)
        return FAKE_INVALID_ARGUMENT;
    if (launch->n == launch->capacity) {
        size_t capacity = launch->capacity ? 2 * launch->capacity : 64;
        void *grown =
            capacity <= MOST_GROUPED ? realloc(launch->transfers, capacity * sizeof transfer) : NULL;
        if (!grown)
            return FAKE_SYSTEM_ERROR;
        launch->transfers = grown;
        launch->capacity = capacity;
    }
    transfer.is_send = transfer.from == comm->rank;
    launch->transfers[launch->n++] = transfer;
    return FAKE_SUCCESS;
}

int ncclGroupStart(void) {
    depth++;
    return FAKE_SUCCESS;
}

int ncclGroupEnd(void) {
    if (depth == 0)
        return FAKE_INVALID_USAGE;
    if (--depth > 0 || !group)
        return FAKE_SUCCESS;
    struct ncclComm *comm = group->comm;
    enter(comm);
    comm->pending = group;
    group = NULL;
    begin_progress(comm);
    return leave(comm, FAKE_IN_PROGRESS);
}

/* Begins an operation. A call outside of a group is a group of its own. */
static int begin_operation(const char *name, struct ncclComm *comm, int type, cudaStream_t stream) {
    if (type != INT8 || should_fail(name))
        return type != INT8 ? FAKE_INVALID_ARGUMENT : FAKE_SYSTEM_ERROR;
    if (!comm->is_connected || comm->pending || comm->is_finalizing || atomic_load(&comm->polls) > 0)
        return FAKE_INVALID_USAGE; /* the call before is in progress */
    if (group && (group->comm != comm || group->stream != stream))
        return FAKE_INVALID_USAGE;
    if (!group) {
        group = calloc(1, sizeof *group);
        if (!group)
            return FAKE_SYSTEM_ERROR;
        group->comm = comm;
        group->stream = stream;
    }
    return FAKE_SUCCESS;
}

static int end_operation(struct ncclComm *comm, int result) {
    leave(comm, 0);
    if (result != FAKE_SUCCESS) {
        if (group)
            free(group->transfers);
        free(group);
        group = NULL;
    }
    return result;
}

int ncclAllGather(const void *send, void *receive, size_t n, int type, struct ncclComm *comm,
                  cudaStream_t stream) {
    enter(comm);
    ncclGroupStart();
    char *own = (char *)receive + (size_t)comm->rank * n;
    int result = begin_operation("ncclAllGather", comm, type, stream);
    if (result == FAKE_SUCCESS && own != send)
        result = (int)cudaMemcpyAsync(own, send, n, cudaMemcpyDeviceToDevice, stream) ? FAKE_SYSTEM_ERROR : 0;
    for (int r = 0; r < comm->ranks && result == FAKE_SUCCESS; r++) {
        if (r == comm->rank)
            continue;
        result = add_transfer(comm, (struct fake_transfer){.from = comm->rank,
                                                           .to = r,
                                                           .kind = FAKE_GATHER,
                                                           .memory = (char *)(uintptr_t)send,
                                                           .bytes = n});
        if (result == FAKE_SUCCESS)
            result = add_transfer(comm, (struct fake_transfer){.from = r,
                                                               .to = comm->rank,
                                                               .kind = FAKE_GATHER,
                                                               .bytes = n,
                                                               .memory = (char *)receive + (size_t)r * n});
    }
    end_operation(comm, result);
    int end = ncclGroupEnd();
    return result != FAKE_SUCCESS ? result : end;
}

int ncclBroadcast(const void *send, void *receive, size_t n, int type, int root, struct ncclComm *comm,
                  cudaStream_t stream) {
    enter(comm);
    ncclGroupStart();
    int result = begin_operation("ncclBroadcast", comm, type, stream);
    for (int r = 0; r < comm->ranks && result == FAKE_SUCCESS && comm->rank == root; r++)
        if (r != root)
            result = add_transfer(comm, (struct fake_transfer){.from = root,
                                                               .to = r,
                                                               .root = root,
                                                               .bytes = n,
                                                               .kind = FAKE_BROADCAST,
                                                               .memory = (char *)(uintptr_t)send});
    if (result == FAKE_SUCCESS && comm->rank != root)
        result = add_transfer(comm, (struct fake_transfer){.from = root,
                                                           .to = comm->rank,
                                                           .root = root,
                                                           .kind = FAKE_BROADCAST,
                                                           .memory = receive,
                                                           .bytes = n});
    end_operation(comm, result);
    int end = ncclGroupEnd();
    return result != FAKE_SUCCESS ? result : end;
}

static int message(const char *name, struct ncclComm *comm, int type, cudaStream_t stream,
                   struct fake_transfer transfer) {
    enter(comm);
    ncclGroupStart();
    int result = begin_operation(name, comm, type, stream);
    if (result == FAKE_SUCCESS && transfer.from == transfer.to)
        result = FAKE_INVALID_ARGUMENT; /* the plugin copies no own part */
    if (result == FAKE_SUCCESS)
        result = add_transfer(comm, transfer);
    end_operation(comm, result);
    int end = ncclGroupEnd();
    return result != FAKE_SUCCESS ? result : end;
}

int ncclSend(const void *memory, size_t n, int type, int peer, struct ncclComm *comm, cudaStream_t stream) {
    return message("ncclSend", comm, type, stream,
                   (struct fake_transfer){.from = comm->rank,
                                          .to = peer,
                                          .kind = FAKE_MESSAGE,
                                          .memory = (char *)(uintptr_t)memory,
                                          .bytes = n});
}

int ncclRecv(void *memory, size_t n, int type, int peer, struct ncclComm *comm, cudaStream_t stream) {
    return message("ncclRecv", comm, type, stream,
                   (struct fake_transfer){
                       .from = peer, .to = comm->rank, .kind = FAKE_MESSAGE, .memory = memory, .bytes = n});
}

/* The communicator plugin `nccl`: moves device memory with NVIDIA's NCCL, 2.18 or later, which it opens at
 * run time (nccl_library.h).
 *
 * NCCL moves bytes and never sums, so its algorithms do not change the bits of a run.
 *
 * NONBLOCKING. The communicator is nonblocking: a call of NCCL, or the end of a group, may return "in
 * progress", and its work is on the stream only when ncclCommGetAsyncError says success. Each operation waits
 * for that (ot_nccl_settle), against the deadline.
 *
 * THREADS. ncclCommAbort must not run while another thread is inside NCCL. So one lock surrounds every call,
 * and is given back between two polls. Groups are kept here, and handed to NCCL under the lock as a whole. A
 * helper thread watches the work on the stream, because whoever waits for a stream does not ask poll_error.
 * Abort, and the end of the communicator, run on it too, because both may hang. A helper that hangs for two
 * seconds is abandoned, with the context, when the communicator is closed; so this plugin is never unloaded
 * (its link option -z nodelete).
 *
 * CONTEXT. Every function makes the primary context of the rank's device current while it runs, so it may be
 * called on any thread. The streams must belong to that context, as those of the CUDA runtime do.
 *
 * REGISTRATION. Nothing is registered: since 2.24 ncclCommRegister takes no memory of cudaMalloc, which the
 * device's memory is.
 *
 * DEVICES. NCCL does not support two ranks on one GPU. The ranks exchange the UUIDs of their GPUs, and refuse
 * duplicates by name. */
#include "offload/comm/plugins/nccl_state.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/memory.h"
#include "src/base/thread.h"

/* ---- operations ---- */

static int send_and_receive(struct ot_nccl_context *c, const struct ot_nccl_op *op, void *stream) {
    int result = OT_NCCL_SUCCESS;
    for (int i = 1; i < c->ranks && (result == OT_NCCL_SUCCESS || result == OT_NCCL_IN_PROGRESS); i++) {
        int to = (c->rank + i) % c->ranks, from = (c->rank + c->ranks - i) % c->ranks;
        result = c->nccl.send((const char *)op->send + (size_t)to * op->bytes, op->bytes, OT_NCCL_INT8, to,
                              c->comm, stream);
        if (result == OT_NCCL_SUCCESS || result == OT_NCCL_IN_PROGRESS)
            result = c->nccl.receive((char *)op->receive + (size_t)from * op->bytes, op->bytes, OT_NCCL_INT8,
                                     from, c->comm, stream);
    }
    return result;
}

static int hand_over(struct ot_nccl_context *c, const struct ot_nccl_op *op, void *stream) {
    switch (op->kind) {
    case OT_NCCL_ALL_GATHER:
        return c->nccl.all_gather(op->send, op->receive, op->bytes, OT_NCCL_INT8, c->comm, stream);
    case OT_NCCL_BROADCAST:
        return c->nccl.broadcast(op->send, op->receive, op->bytes, OT_NCCL_INT8, op->root, c->comm, stream);
    case OT_NCCL_ALL_TO_ALL:
        return send_and_receive(c, op, stream);
    case OT_NCCL_SEND:
        return c->nccl.send(op->send, op->bytes, OT_NCCL_INT8, op->root, c->comm, stream);
    case OT_NCCL_RECEIVE:
        return c->nccl.receive(op->receive, op->bytes, OT_NCCL_INT8, op->root, c->comm, stream);
    }
    return OT_NCCL_INTERNAL_ERROR;
}

static const char *name_of(enum ot_nccl_op_kind kind) {
    static const char *const names[] = {"all-gather", "all-to-all", "broadcast", "send", "receive"};
    return names[kind];
}

/* Hands the operations to NCCL as one group. */
static int launch_group(struct ot_nccl_context *c, void *stream) {
    int rc = ot_nccl_lock(c);
    if (rc != OT_COMM_OK)
        return rc;
    const char *call = "ncclGroupStart";
    int result = c->nccl.group_start();
    bool is_open = result == OT_NCCL_SUCCESS;
    for (size_t i = 0; i < c->n_ops && (result == OT_NCCL_SUCCESS || result == OT_NCCL_IN_PROGRESS); i++) {
        call = name_of(c->ops[i].kind);
        result = hand_over(c, &c->ops[i], stream);
    }
    if (is_open) { /* after a failure too: NCCL keeps the group of this thread open otherwise */
        int end = c->nccl.group_end();
        if (result == OT_NCCL_SUCCESS || result == OT_NCCL_IN_PROGRESS) {
            call = c->n_ops == 1 ? call : "ncclGroupEnd";
            result = end;
        }
    }
    if (result != OT_NCCL_SUCCESS && result != OT_NCCL_IN_PROGRESS)
        rc = ot_nccl_fail(c, call, result);
    ot_nccl_unlock(c);
    return rc;
}

/* Puts the operations that were collected on the stream. */
static int launch(struct ot_nccl_context *c, void *stream) {
    if (c->n_ops == 0)
        return ot_breakage_get(&c->breakage, NULL, 0);
    ot_nccl_enter(c);
    struct ot_nccl_launch *events = ot_nccl_launch_begin(c, stream);
    int rc = launch_group(c, stream);
    if (rc == OT_COMM_OK)
        rc = ot_nccl_settle(c, c->n_ops == 1 ? name_of(c->ops[0].kind) : "a group of operations");
    if (rc == OT_COMM_OK)
        ot_nccl_launch_end(c, events, stream);
    ot_nccl_leave(c);
    c->n_ops = 0;
    return rc;
}

/* Collects an operation, and launches it unless a group is open. */
static int add(struct ot_nccl_context *c, const struct ot_nccl_op *op, void *stream) {
    int rc = ot_breakage_get(&c->breakage, NULL, 0);
    if (rc != OT_COMM_OK || op->bytes == 0)
        return rc;
    if (!ot_try_grow(&c->ops, &c->ops_capacity, c->n_ops + 1, sizeof *c->ops)) {
        ot_breakage_set(&c->breakage, OT_COMM_FAILED, "rank %d has no host memory for a group", c->rank);
        return ot_nccl_abort(c);
    }
    c->ops[c->n_ops++] = *op;
    return c->is_grouping ? OT_COMM_OK : launch(c, stream);
}

static int nccl_all_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    const struct ot_nccl_op op = {OT_NCCL_ALL_GATHER, part, all, part_bytes, 0};
    return add(context, &op, stream);
}

static int nccl_all_to_all(void *context, const void *send, void *receive, size_t part_bytes, void *stream) {
    struct ot_nccl_context *c = context;
    const struct ot_nccl_op op = {OT_NCCL_ALL_TO_ALL, send, receive, c->ranks == 1 ? 0 : part_bytes, 0};
    return add(c, &op, stream);
}

static int nccl_broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    const struct ot_nccl_op op = {OT_NCCL_BROADCAST, memory, memory, bytes, root};
    return add(context, &op, stream);
}

static int nccl_group_begin(void *context) {
    struct ot_nccl_context *c = context;
    c->is_grouping = true;
    return ot_breakage_get(&c->breakage, NULL, 0);
}

static int nccl_group_end(void *context, void *stream) {
    struct ot_nccl_context *c = context;
    c->is_grouping = false;
    return launch(c, stream);
}

/* One group, in which NCCL advances all sends and receives at the same time. It pairs those of two ranks in
 * the order in which each rank has them. */
static int nccl_transfer(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream) {
    int rc = nccl_group_begin(context);
    for (size_t i = 0; i < n && rc == OT_COMM_OK; i++) {
        const struct ot_comm_transfer_v1 *t = &transfers[i];
        const struct ot_nccl_op op = {t->is_send ? OT_NCCL_SEND : OT_NCCL_RECEIVE, t->memory, t->memory,
                                      t->bytes, t->rank};
        rc = add(context, &op, stream);
    }
    int end = nccl_group_end(context, stream);
    return rc == OT_COMM_OK ? end : rc;
}

static int nccl_poll_error(void *context, char *why, size_t why_bytes) {
    struct ot_nccl_context *c = context;
    ot_nccl_enter(c);
    ot_nccl_check(c);
    ot_nccl_leave(c);
    return ot_breakage_get(&c->breakage, why, why_bytes);
}

static void nccl_abort(void *context) {
    struct ot_nccl_context *c = context;
    ot_breakage_set(&c->breakage, OT_COMM_ABORTED, "the communicator was aborted");
    ot_nccl_abort(c);
}

/* ---- opening ---- */

/* A rank's first message to the others. */
struct introduction {
    int32_t code; /* OT_COMM_OK, or this rank's failure */
    int32_t version;
    struct ot_cuda_uuid uuid;
    struct ot_nccl_id id; /* rank 0's */
    char why[OT_BREAKAGE_BYTES];
};

/* Opens the libraries and the device. */
static int prepare(struct ot_nccl_context *c, int ordinal, struct introduction *mine) {
    if (ordinal < 0) {
        snprintf(mine->why, sizeof mine->why, "nccl moves memory of GPUs, but the device is the CPU");
        return OT_COMM_UNSUPPORTED;
    }
    int rc = ot_cuda_driver_open(&c->cuda, mine->why, sizeof mine->why);
    if (rc == OT_COMM_OK)
        rc = ot_nccl_open(&c->nccl, &mine->version, mine->why, sizeof mine->why);
    if (rc != OT_COMM_OK)
        return rc;
    if (c->cuda.get_device(&c->cuda_device, ordinal) != OT_CUDA_SUCCESS ||
        c->cuda.get_uuid(&mine->uuid, c->cuda_device) != OT_CUDA_SUCCESS ||
        c->cuda.retain_context(&c->cuda_context, c->cuda_device) != OT_CUDA_SUCCESS) {
        snprintf(mine->why, sizeof mine->why, "the driver has no usable GPU %d", ordinal);
        return OT_COMM_UNSUPPORTED;
    }
    int result = c->rank == 0 ? c->nccl.get_unique_id(&mine->id) : OT_NCCL_SUCCESS;
    if (result == OT_NCCL_SUCCESS)
        return OT_COMM_OK;
    snprintf(mine->why, sizeof mine->why, "ncclGetUniqueId failed: %s", c->nccl.get_error_string(result));
    return OT_COMM_FAILED;
}

static int refuse_twins(struct ot_nccl_context *c, const struct introduction *all) {
    for (int a = 0; a < c->ranks; a++)
        for (int b = a + 1; b < c->ranks; b++)
            if (memcmp(&all[a].uuid, &all[b].uuid, sizeof all[a].uuid) == 0)
                return ot_breakage_set(&c->breakage, OT_COMM_UNSUPPORTED,
                                       "ranks %d and %d use the same GPU (UUID %02x%02x%02x%02x-...), which "
                                       "NCCL does not support: give each rank its own",
                                       a, b, all[a].uuid.bytes[0], all[a].uuid.bytes[1], all[a].uuid.bytes[2],
                                       all[a].uuid.bytes[3]);
    return OT_COMM_OK;
}

/* Checks the introductions of all ranks. All ranks get the same result. */
static int compare(struct ot_nccl_context *c, const struct introduction *all) {
    char first[OT_NCCL_VERSION_BYTES], other[OT_NCCL_VERSION_BYTES];
    for (int r = 0; r < c->ranks; r++)
        if (all[r].code != OT_COMM_OK)
            return c->ranks == 1 ? ot_breakage_set(&c->breakage, all[r].code, "%s", all[r].why)
                                 : ot_breakage_set(&c->breakage, all[r].code, "rank %d: %.*s", r,
                                                   OT_BREAKAGE_BYTES - 16, all[r].why);
    for (int r = 1; r < c->ranks; r++)
        if (all[r].version != all[0].version)
            return ot_breakage_set(&c->breakage, OT_COMM_UNSUPPORTED,
                                   "rank 0 has NCCL %s, rank %d has %s: install the same version everywhere",
                                   ot_nccl_version_text(all[0].version, first), r,
                                   ot_nccl_version_text(all[r].version, other));
    return refuse_twins(c, all);
}

static int connect_ranks(struct ot_nccl_context *c, struct ot_nccl_id id) {
    struct ot_nccl_config config = {.size = sizeof config,
                                    .magic = OT_NCCL_CONFIG_MAGIC,
                                    .version = OT_NCCL_CONFIG_VERSION,
                                    .blocking = 0,
                                    .cga_cluster_size = INT_MIN, /* unset, like the three below */
                                    .min_ctas = INT_MIN,
                                    .max_ctas = INT_MIN,
                                    .split_share = INT_MIN};
    int rc = ot_nccl_lock(c);
    if (rc != OT_COMM_OK)
        return rc;
    int result = c->nccl.init(&c->comm, c->ranks, id, c->rank, &config);
    if ((result != OT_NCCL_SUCCESS && result != OT_NCCL_IN_PROGRESS) || !c->comm)
        rc = ot_nccl_fail(c, "ncclCommInitRankConfig", result);
    ot_nccl_unlock(c);
    return rc == OT_COMM_OK ? ot_nccl_settle(c, "connecting") : rc;
}

static int open_ranks(struct ot_nccl_context *c, const struct ot_comm_host_v1 *host,
                      struct ot_comm_facts_v1 *facts) {
    struct introduction mine = {0};
    struct introduction *all = calloc((size_t)c->ranks, sizeof *all);
    mine.code = prepare(c, host->device, &mine);
    int rc = OT_COMM_OK;
    if (!all)
        rc = ot_breakage_set(&c->breakage, OT_COMM_FAILED, "no host memory");
    else if (c->ranks == 1)
        all[0] = mine;
    else if (!host->exchange)
        rc = ot_breakage_set(&c->breakage, OT_COMM_UNSUPPORTED,
                             "nccl needs a connection between the ranks to begin with");
    else if ((rc = host->exchange(host->host, &mine, sizeof mine, all)) != OT_COMM_OK)
        ot_breakage_set(&c->breakage, rc, "the ranks could not introduce themselves to each other");
    if (rc == OT_COMM_OK)
        rc = compare(c, all);
    if (rc == OT_COMM_OK)
        rc = ot_nccl_start_helper(c);
    ot_nccl_enter(c);
    if (rc == OT_COMM_OK)
        rc = connect_ranks(c, all[0].id);
    if (rc == OT_COMM_OK)
        ot_nccl_launches_open(c);
    ot_nccl_leave(c);
    if (rc == OT_COMM_OK) {
        char version[OT_NCCL_VERSION_BYTES];
        facts->rank = c->rank;
        facts->ranks = c->ranks;
        facts->local_rank = host->local_rank;
        facts->local_ranks = host->local_ranks;
        snprintf(facts->description, sizeof facts->description, "NCCL %s, %d rank%s",
                 ot_nccl_version_text(mine.version, version), c->ranks, c->ranks == 1 ? "" : "s");
    }
    free(all);
    return rc;
}

static void nccl_close(void *context, int broken) {
    struct ot_nccl_context *c = context;
    if (broken)
        ot_breakage_set(&c->breakage, OT_COMM_ABORTED, "the communicator was aborted");
    if (!ot_nccl_end(c)) {
        c->log(c->host, OT_COMM_LOG_WARN, "NCCL does not end; it is left as it is");
        return;
    }
    ot_nccl_enter(c);
    ot_nccl_launches_close(c);
    ot_nccl_leave(c);
    if (c->cuda_context)
        c->cuda.release_context(c->cuda_device);
    pthread_cond_destroy(&c->helper_changed);
    pthread_mutex_destroy(&c->helper_mutex);
    pthread_mutex_destroy(&c->launches_mutex);
    pthread_mutex_destroy(&c->calls);
    ot_breakage_destroy(&c->breakage);
    free(c->ops);
    free(c);
}

static int nccl_open(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                     char *why, size_t why_bytes) {
    struct ot_nccl_context *c = calloc(1, sizeof *c);
    if (!c) {
        snprintf(why, why_bytes, "no host memory");
        return OT_COMM_FAILED;
    }
    ot_breakage_init(&c->breakage);
    pthread_mutex_init(&c->calls, NULL);
    pthread_mutex_init(&c->launches_mutex, NULL);
    pthread_mutex_init(&c->helper_mutex, NULL);
    ot_cond_init(&c->helper_changed);
    c->rank = host->rank;
    c->ranks = host->ranks;
    c->timeout_seconds = host->timeout_seconds;
    c->host = host->host;
    c->log = host->log;
    int rc = open_ranks(c, host, facts);
    if (rc != OT_COMM_OK) {
        ot_breakage_get(&c->breakage, why, why_bytes);
        nccl_close(c, 1);
        return rc;
    }
    *context = c;
    return OT_COMM_OK;
}

const struct ot_comm_transfers_v1 ot_comm_plugin_transfers_v1 __attribute__((visibility("default"))) = {
    .abi = OT_COMM_TRANSFERS_V1,
    .struct_size = sizeof(struct ot_comm_transfers_v1),
    .transfer = nccl_transfer,
};

const struct ot_comm_v1 ot_comm_plugin_v1 __attribute__((visibility("default"))) = {
    .abi = OT_COMM_ABI_V1,
    .struct_size = sizeof(struct ot_comm_v1),
    .name = "nccl",
    .capabilities = OT_COMM_TAKES_DEVICE | OT_COMM_TAKES_PINNED,
    .open = nccl_open,
    .close = nccl_close,
    .all_gather = nccl_all_gather,
    .all_to_all = nccl_all_to_all,
    .broadcast = nccl_broadcast,
    .group_begin = nccl_group_begin,
    .group_end = nccl_group_end,
    .poll_error = nccl_poll_error,
    .abort = nccl_abort,
};

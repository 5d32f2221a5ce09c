/* The operations of a communicator, enqueued on a lane. The device and the plugin decide between three ways:
 * on the stream of the lane; inside a call of the lane, on memory that is host memory anyway (the cpu
 * device); or inside a call of the lane on the staging memory, between copies from and to the device. */
#include <assert.h>
#include <string.h>

#include "offload/comm/comm_state.h"

#include "src/base/minmax.h"

/* The staging memory: one part for each rank to send and one to receive. 64 MiB keep the links busy: a copy
 * of a piece of 512 KiB, the smallest (64 ranks), takes ten times longer than starting it. */
enum { MOST_STAGING_BYTES = 64 << 20, PIECE_ALIGN = 4096 };

static const char *const names[] = {
    [OT_COMM_GATHER] = "all_gather", [OT_COMM_EXCHANGE] = "all_to_all", [OT_COMM_BROADCAST] = "broadcast",
    [OT_COMM_BEGIN] = "group_begin", [OT_COMM_END] = "group_end",       [OT_COMM_SEND] = "transfer",
    [OT_COMM_RECEIVE] = "transfer",  [OT_COMM_TRANSFER] = "transfer",
};

/* ---- one operation ---- */

static int list_transfer(const struct ot_comm_operation *op, bool is_send) {
    struct ot_comm *comm = op->comm;
    comm->listed[comm->n_listed++] = (struct ot_comm_transfer_v1){
        .rank = op->root, .is_send = is_send, .memory = op->to, .bytes = op->bytes};
    return OT_COMM_OK;
}

static int do_transfers(struct ot_comm *comm, void *stream) {
    size_t n = comm->n_listed;
    comm->n_listed = 0;
    return comm->transfers ? comm->transfers->transfer(comm->context, comm->listed, n, stream)
                           : OT_COMM_UNSUPPORTED;
}

static int perform(const struct ot_comm_operation *op, void *stream) {
    struct ot_comm *comm = op->comm;
    const struct ot_comm_v1 *api = comm->api;
    switch (op->kind) {
    case OT_COMM_GATHER:
        return api->all_gather(comm->context, op->from, op->to, op->bytes, stream);
    case OT_COMM_EXCHANGE:
        return api->all_to_all(comm->context, op->from, op->to, op->bytes, stream);
    case OT_COMM_BROADCAST:
        return api->broadcast(comm->context, op->to, op->bytes, op->root, stream);
    case OT_COMM_BEGIN:
        return api->group_begin ? api->group_begin(comm->context) : OT_COMM_OK;
    case OT_COMM_END:
        return api->group_end ? api->group_end(comm->context, stream) : OT_COMM_OK;
    case OT_COMM_SEND:
    case OT_COMM_RECEIVE:
        return list_transfer(op, op->kind == OT_COMM_SEND);
    case OT_COMM_TRANSFER:
        return do_transfers(comm, stream);
    case OT_COMM_AWAIT_FREE:
    case OT_COMM_FILLED:
    case OT_COMM_AWAIT_FILLED:
    case OT_COMM_FREED:
        ot_comm_crossing_run(op);
        return OT_COMM_OK;
    }
    return OT_COMM_UNSUPPORTED;
}

static void run(const struct ot_comm_operation *op, void *stream) {
    if (atomic_load(&op->comm->is_broken))
        return;
    int code = perform(op, stream);
    if (code != OT_COMM_OK)
        ot_comm_break_by_code(op->comm, names[op->kind], code);
}

static void run_in_call(void *arg) {
    run(arg, NULL);
}

/* A group is one operation for the monitor. The list of a call of transfers is none. */
static void run_on_stream(struct ot_comm *comm, struct ot_lane *lane, const struct ot_comm_operation *op) {
    if (op->kind == OT_COMM_SEND || op->kind == OT_COMM_RECEIVE) {
        run(op, NULL);
        return;
    }
    if (!comm->is_grouping)
        ot_comm_monitor_begin(comm, lane);
    run(op, ot_lane_stream(lane));
    if (op->kind == OT_COMM_BEGIN || op->kind == OT_COMM_END)
        comm->is_grouping = op->kind == OT_COMM_BEGIN;
    if (!comm->is_grouping)
        ot_comm_monitor_end(comm, lane);
}

void ot_comm_enqueue(struct ot_comm *comm, struct ot_lane *lane, const struct ot_comm_operation *op) {
    if (comm->on_stream) {
        run_on_stream(comm, lane, op);
        return;
    }
    struct ot_comm_operation *kept = &comm->operations[comm->n_operations++ % OT_COMM_OPERATIONS];
    *kept = *op;
    ot_lane_call(lane, run_in_call, kept);
}

/* ---- through the staging memory ---- */

/* The staged bytes of a part at a time. */
static size_t piece_bytes(const struct ot_comm *comm, size_t part_bytes) {
    size_t most = MOST_STAGING_BYTES / (2 * (size_t)comm->ranks) / PIECE_ALIGN * PIECE_ALIGN;
    return ot_min(part_bytes, most);
}

size_t ot_comm_staging_bytes(const struct ot_comm *comm, size_t part_bytes) {
    if (!comm->is_staged || comm->ranks == 1)
        return 0;
    return 2 * (size_t)comm->ranks * piece_bytes(comm, part_bytes);
}

size_t ot_comm_transfer_staging_bytes(const struct ot_comm *comm, size_t call_bytes) {
    return comm->is_staged && !comm->crossing ? call_bytes : 0;
}

void ot_comm_reserve(struct ot_comm *comm, void *pinned, size_t bytes) {
    comm->staging = pinned;
    comm->staging_bytes = bytes;
}

/* Copies a piece of each other rank's part: [ranks][piece] on the host, [ranks][part_bytes] on the device. */
static void copy_pieces(const struct ot_comm *comm, struct ot_lane *lane, enum ot_copy_kind kind, char *host,
                        char *device, size_t part_bytes, size_t piece) {
    for (int r = 0; r < comm->ranks; r++) {
        char *there = device + (size_t)r * part_bytes, *here = host + (size_t)r * piece;
        if (r == comm->rank)
            continue;
        if (kind == OT_COPY_H2D)
            ot_lane_copy(lane, kind, there, here, piece);
        else
            ot_lane_copy(lane, kind, here, there, piece);
    }
}

static void gather_staged(struct ot_comm *comm, struct ot_lane *lane, const char *part, char *all,
                          size_t part_bytes) {
    char *own = all + (size_t)comm->rank * part_bytes;
    if (part_bytes > 0 && part != own)
        ot_lane_copy(lane, OT_COPY_D2D, own, part, part_bytes);
    if (comm->ranks == 1)
        return;
    size_t most = piece_bytes(comm, part_bytes);
    assert(comm->staging_bytes >= 2 * (size_t)comm->ranks * most);
    for (size_t at = 0; at < part_bytes; at += most) {
        size_t piece = ot_min(part_bytes - at, most);
        char *mine = comm->staging + (size_t)comm->rank * piece;
        ot_lane_copy(lane, OT_COPY_D2H, mine, part + at, piece);
        ot_comm_enqueue(
            comm, lane,
            &(struct ot_comm_operation){
                .comm = comm, .kind = OT_COMM_GATHER, .from = mine, .to = comm->staging, .bytes = piece});
        copy_pieces(comm, lane, OT_COPY_H2D, comm->staging, all + at, part_bytes, piece);
    }
}

static void exchange_staged(struct ot_comm *comm, struct ot_lane *lane, const char *send, char *receive,
                            size_t part_bytes) {
    if (comm->ranks == 1)
        return;
    size_t most = piece_bytes(comm, part_bytes);
    assert(comm->staging_bytes >= 2 * (size_t)comm->ranks * most);
    for (size_t at = 0; at < part_bytes; at += most) {
        size_t piece = ot_min(part_bytes - at, most);
        char *out = comm->staging, *in = out + (size_t)comm->ranks * piece;
        copy_pieces(comm, lane, OT_COPY_D2H, out, (char *)(uintptr_t)send + at, part_bytes, piece);
        ot_comm_enqueue(comm, lane,
                        &(struct ot_comm_operation){
                            .comm = comm, .kind = OT_COMM_EXCHANGE, .from = out, .to = in, .bytes = piece});
        copy_pieces(comm, lane, OT_COPY_H2D, in, receive + at, part_bytes, piece);
    }
}

static void broadcast_staged(struct ot_comm *comm, struct ot_lane *lane, char *memory, size_t bytes,
                             int root) {
    assert(comm->staging_bytes > 0 || comm->ranks == 1);
    for (size_t at = 0; at < bytes && comm->ranks > 1; at += comm->staging_bytes) {
        size_t piece = ot_min(bytes - at, comm->staging_bytes);
        if (comm->rank == root)
            ot_lane_copy(lane, OT_COPY_D2H, comm->staging, memory + at, piece);
        ot_comm_enqueue(
            comm, lane,
            &(struct ot_comm_operation){
                .comm = comm, .kind = OT_COMM_BROADCAST, .to = comm->staging, .bytes = piece, .root = root});
        if (comm->rank != root)
            ot_lane_copy(lane, OT_COPY_H2D, memory + at, comm->staging, piece);
    }
}

/* ---- comm.h ---- */

void ot_comm_all_gather(struct ot_comm *comm, struct ot_lane *lane, const void *part, void *all,
                        size_t part_bytes) {
    if (comm->is_staged)
        gather_staged(comm, lane, part, all, part_bytes);
    else
        ot_comm_enqueue(
            comm, lane,
            &(struct ot_comm_operation){
                .comm = comm, .kind = OT_COMM_GATHER, .from = part, .to = all, .bytes = part_bytes});
}

void ot_comm_all_to_all(struct ot_comm *comm, struct ot_lane *lane, const void *send, void *receive,
                        size_t part_bytes) {
    if (comm->is_staged)
        exchange_staged(comm, lane, send, receive, part_bytes);
    else
        ot_comm_enqueue(
            comm, lane,
            &(struct ot_comm_operation){
                .comm = comm, .kind = OT_COMM_EXCHANGE, .from = send, .to = receive, .bytes = part_bytes});
}

void ot_comm_broadcast(struct ot_comm *comm, struct ot_lane *lane, void *memory, size_t bytes, int root) {
    assert(root >= 0 && root < comm->ranks);
    if (comm->is_staged)
        broadcast_staged(comm, lane, memory, bytes, root);
    else
        ot_comm_enqueue(
            comm, lane,
            &(struct ot_comm_operation){
                .comm = comm, .kind = OT_COMM_BROADCAST, .to = memory, .bytes = bytes, .root = root});
}

/* The staging memory has the transfers of a call one after the other. */
void ot_comm_transfer(struct ot_comm *comm, struct ot_lane *lane, const struct ot_comm_transfer_v1 *transfers,
                      int n) {
    struct ot_comm_transfer_v1 others[OT_COMM_MOST_TRANSFERS];
    char *staging = comm->staging;
    assert(n <= OT_COMM_MOST_TRANSFERS && !comm->is_grouping);
    if (comm->crossing) {
        n = ot_comm_crossing_enqueue(comm, lane, transfers, n, others);
        transfers = others;
    }
    if (n == 0)
        return;
    for (int i = 0; i < n; i++) {
        const struct ot_comm_transfer_v1 *t = &transfers[i];
        void *memory = comm->is_staged ? staging : t->memory;
        assert(t->rank >= 0 && t->rank < comm->ranks && t->rank != comm->rank);
        assert(!comm->is_staged || t->bytes <= comm->staging_bytes - (size_t)(staging - comm->staging));
        if (comm->is_staged && t->is_send)
            ot_lane_copy(lane, OT_COPY_D2H, staging, t->memory, t->bytes);
        staging += comm->is_staged ? t->bytes : 0;
        ot_comm_enqueue(comm, lane,
                        &(struct ot_comm_operation){.comm = comm,
                                                    .kind = t->is_send ? OT_COMM_SEND : OT_COMM_RECEIVE,
                                                    .to = memory,
                                                    .bytes = t->bytes,
                                                    .root = t->rank});
    }
    ot_comm_enqueue(comm, lane, &(struct ot_comm_operation){.comm = comm, .kind = OT_COMM_TRANSFER});
    staging = comm->staging;
    for (int i = 0; i < n && comm->is_staged; staging += transfers[i++].bytes)
        if (!transfers[i].is_send)
            ot_lane_copy(lane, OT_COPY_H2D, transfers[i].memory, staging, transfers[i].bytes);
}

/* ---- members ---- */

/* Sends the part at `send` + i * stride to member i, for each other member, and receives its part of
 * `receive`. Through the staging memory it goes in pieces, which have one size on all ranks: so many bytes in
 * and out of every other member fit there, as those of an operation of all ranks do. */
static void move_parts(struct ot_comm *comm, struct ot_lane *lane, struct ot_comm_members members,
                       const char *send, size_t stride, char *receive, size_t part_bytes) {
    struct ot_comm_transfer_v1 list[OT_COMM_MOST_TRANSFERS];
    size_t most = comm->is_staged ? piece_bytes(comm, part_bytes) : part_bytes;
    for (size_t at = 0; at < part_bytes; at += most) {
        size_t bytes = ot_min(part_bytes - at, most);
        int n = 0;
        for (int i = 0; i < members.n; i++) {
            int rank = members.first + i;
            if (rank == comm->rank)
                continue;
            void *out = (char *)(uintptr_t)send + (size_t)i * stride + at;
            list[n++] = (struct ot_comm_transfer_v1){rank, 1, out, bytes};
            list[n++] = (struct ot_comm_transfer_v1){rank, 0, receive + (size_t)i * part_bytes + at, bytes};
        }
        ot_comm_transfer(comm, lane, list, n);
    }
}

void ot_comm_members_gather(struct ot_comm *comm, struct ot_lane *lane, struct ot_comm_members members,
                            const void *part, void *all, size_t part_bytes) {
    if (members.n == comm->ranks) {
        ot_comm_all_gather(comm, lane, part, all, part_bytes);
        return;
    }
    char *own = (char *)all + (size_t)(comm->rank - members.first) * part_bytes;
    if (part_bytes > 0 && part != own)
        ot_lane_copy(lane, OT_COPY_D2D, own, part, part_bytes);
    move_parts(comm, lane, members, own, 0, all, part_bytes);
}

void ot_comm_members_exchange(struct ot_comm *comm, struct ot_lane *lane, struct ot_comm_members members,
                              const void *send, void *receive, size_t part_bytes) {
    if (members.n == comm->ranks)
        ot_comm_all_to_all(comm, lane, send, receive, part_bytes);
    else
        move_parts(comm, lane, members, send, part_bytes, receive, part_bytes);
}

/* Staged operations share the staging memory, so they run one after the other, and a group has no meaning. */
static void enqueue_mark(struct ot_comm *comm, struct ot_lane *lane, enum ot_comm_kind kind) {
    if (comm->api->group_begin && !comm->is_staged)
        ot_comm_enqueue(comm, lane, &(struct ot_comm_operation){.comm = comm, .kind = kind});
}

void ot_comm_group_begin(struct ot_comm *comm, struct ot_lane *lane) {
    enqueue_mark(comm, lane, OT_COMM_BEGIN);
}

void ot_comm_group_end(struct ot_comm *comm, struct ot_lane *lane) {
    enqueue_mark(comm, lane, OT_COMM_END);
}

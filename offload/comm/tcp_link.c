/* One link of the tcp communicator: the bytes of one operation between two ranks (tcp_state.h). */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "offload/comm/tcp_state.h"

#include "src/base/minmax.h"

/* Little data goes through the stream: one message and no answer. A read from another process costs more than
 * copying 16 KiB twice. */
enum { MOST_IN_STREAM = 16 << 10, MOST_AT_ONCE = 4 << 20 };

/* ---- outgoing ---- */

static void queue(struct ot_tcp_link *link, enum ot_tcp_kind kind, size_t bytes, const void *memory) {
    assert(link->queued < OT_TCP_QUEUE);
    struct ot_tcp_message *message = &link->queue[link->queued++];
    *message = link->sends;
    message->magic = OT_TCP_MAGIC; /* answers are sent by links without an operation in this direction too */
    message->kind = (uint16_t)kind;
    message->bytes = bytes;
    message->address = (uintptr_t)memory;
}

static void begin_output(struct ot_tcp_link *link, const struct ot_tcp_message *now, const void *memory,
                         size_t bytes) {
    bool in_stream = !link->is_local || (bytes <= MOST_IN_STREAM && now->operation != OT_TCP_TRANSFER);
    assert(link->queued == 0 && link->payload_left == 0);
    link->sends = *now;
    if (in_stream) {
        queue(link, OT_TCP_DATA, bytes, NULL);
        link->payload = memory;
        link->payload_left = bytes;
    } else if (link->they_read || bytes == 0) { /* a slot has at least one byte */
        queue(link, OT_TCP_LOOK, bytes, memory);
        link->awaits_taken = true;
    } else {
        link->source = memory;
        link->source_left = bytes;
    }
}

static void begin_input(struct ot_tcp_link *link, const struct ot_tcp_message *now, void *memory,
                        size_t bytes) {
    link->expected = *now;
    link->expects = true;
    link->target = memory;
    link->target_left = bytes;
}

void ot_tcp_link_begin(struct ot_tcp *tcp, int rank, const struct ot_tcp_exchange *exchange) {
    struct ot_tcp_link *link = &tcp->links[rank];
    link->is_active = true;
    if (exchange->has_in)
        begin_input(link, &tcp->now, exchange->in, exchange->in_bytes);
    if (exchange->has_out)
        begin_output(link, &tcp->now, exchange->out, exchange->out_bytes);
}

/* The next transfer of the call with this rank in this direction. Returns its place, or n_transfers. */
static size_t find_transfer(const struct ot_tcp *tcp, int rank, bool is_send, size_t at) {
    while (at < tcp->n_transfers &&
           (tcp->transfers[at].rank != rank || (tcp->transfers[at].is_send != 0) != is_send))
        at++;
    return at;
}

void ot_tcp_link_begin_transfers(struct ot_tcp *tcp, int rank, bool *moved) {
    struct ot_tcp_link *link = &tcp->links[rank];
    bool is_sending = link->queued > 0 || link->source_left > 0 || link->awaits_taken;
    struct ot_tcp_message now = tcp->now;
    size_t out = is_sending ? tcp->n_transfers : find_transfer(tcp, rank, true, link->next_out);
    size_t in = link->expects ? tcp->n_transfers : find_transfer(tcp, rank, false, link->next_in);
    if (out < tcp->n_transfers) {
        now.sequence = ++link->n_out;
        now.part_bytes = tcp->transfers[out].bytes;
        begin_output(link, &now, tcp->transfers[out].memory, tcp->transfers[out].bytes);
        link->next_out = out + 1;
        *moved = true;
    }
    if (in < tcp->n_transfers) {
        now.sequence = ++link->n_in;
        now.part_bytes = tcp->transfers[in].bytes;
        begin_input(link, &now, tcp->transfers[in].memory, tcp->transfers[in].bytes);
        link->next_in = in + 1;
        *moved = true;
    }
}

/* Fills one slot of the ring, if one is free. */
static bool fill_slot(struct ot_tcp_link *link) {
    size_t bytes = ot_min(link->source_left, OT_TCP_SLOT_BYTES);
    if (bytes == 0 || link->free_slots == 0)
        return false;
    memcpy(link->out_ring + (size_t)link->out_slot * OT_TCP_SLOT_BYTES, link->source, bytes);
    link->out_slot = (link->out_slot + 1) % OT_TCP_SLOTS;
    link->free_slots--;
    link->source += bytes;
    link->source_left -= bytes;
    queue(link, OT_TCP_SLOT, bytes, NULL);
    return true;
}

/* Data in the stream follows the first message, and other messages follow the data. */
static struct msghdr next_bytes(const struct ot_tcp_link *link, struct iovec parts[2]) {
    size_t message = sizeof(struct ot_tcp_message);
    size_t queue_end = link->payload_left > 0 ? message : (size_t)link->queued * message;
    struct msghdr header = {.msg_iov = parts};
    if (link->queue_sent < queue_end)
        parts[header.msg_iovlen++] =
            (struct iovec){(char *)(uintptr_t)link->queue + link->queue_sent, queue_end - link->queue_sent};
    if (link->payload_left > 0)
        parts[header.msg_iovlen++] =
            (struct iovec){(char *)(uintptr_t)link->payload, ot_min(link->payload_left, MOST_AT_ONCE)};
    return header;
}

static void account_sent(struct ot_tcp_link *link, size_t sent) {
    size_t message = sizeof(struct ot_tcp_message);
    size_t queue_end = link->payload_left > 0 ? message : (size_t)link->queued * message;
    size_t of_queue = queue_end - link->queue_sent;
    of_queue = ot_min(of_queue, sent);
    link->queue_sent += of_queue;
    sent -= of_queue;
    link->payload += sent;
    link->payload_left -= sent;
    if (link->payload_left == 0 && link->queue_sent == (size_t)link->queued * message) {
        link->queued = 0;
        link->queue_sent = 0;
    }
}

static int flush(struct ot_tcp *tcp, int rank, bool *moved) {
    struct ot_tcp_link *link = &tcp->links[rank];
    struct iovec parts[2];
    struct msghdr header = next_bytes(link, parts);
    if (header.msg_iovlen == 0)
        return OT_COMM_OK;
    ssize_t sent;
    do
        sent = sendmsg(link->fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
    while (sent < 0 && errno == EINTR);
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return OT_COMM_OK;
    if (sent < 0)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "rank %d does not take data: %s", rank, strerror(errno));
    account_sent(link, (size_t)sent);
    *moved = true;
    return OT_COMM_OK;
}

/* ---- incoming ---- */

/* Receives into memory without waiting. Returns the bytes, 0 if there are none now, or a code. */
static ssize_t receive(struct ot_tcp *tcp, int rank, void *memory, size_t bytes) {
    ssize_t got;
    do
        got = recv(tcp->links[rank].fd, memory, bytes, MSG_DONTWAIT);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        return got;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return 0;
    if (got == 0)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "rank %d has closed its connection", rank);
    return ot_tcp_fail(tcp, OT_COMM_FAILED, "cannot receive from rank %d: %s", rank, strerror(errno));
}

/* An operation for people. */
enum { OPERATION_BYTES = 96 };
static const char *describe(const struct ot_tcp_message *message, char text[OPERATION_BYTES]) {
    static const char *const names[] = {
        [0] = "nothing",
        [OT_TCP_GATHER] = "all_gather",
        [OT_TCP_EXCHANGE] = "all_to_all",
        [OT_TCP_BROADCAST] = "broadcast",
        [OT_TCP_CLOSE] = "close",
    };
    bool is_known = message->operation < sizeof names / sizeof *names;
    if (message->operation == OT_TCP_TRANSFER)
        snprintf(text, OPERATION_BYTES, "transfer %llu (%llu bytes)", (unsigned long long)message->sequence,
                 (unsigned long long)message->part_bytes);
    else
        snprintf(
            text, OPERATION_BYTES, "operation %llu (%s of %llu bytes)", (unsigned long long)message->sequence,
            is_known ? names[message->operation] : "nothing known", (unsigned long long)message->part_bytes);
    return text;
}

/* A message with data must belong to this operation. */
static int check_message(struct ot_tcp *tcp, int rank) {
    const struct ot_tcp_link *link = &tcp->links[rank];
    const struct ot_tcp_message *in = &link->in, *now = link->expects ? &link->expected : &link->sends;
    char theirs[OPERATION_BYTES], mine[OPERATION_BYTES];
    if (in->magic != OT_TCP_MAGIC || in->kind < OT_TCP_DATA || in->kind > OT_TCP_FREED)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "rank %d has sent a message that cannot be understood", rank);
    if (in->kind == OT_TCP_TAKEN || in->kind == OT_TCP_FREED)
        return OT_COMM_OK;
    if (in->sequence != now->sequence || in->operation != now->operation ||
        in->part_bytes != now->part_bytes || !link->expects || in->bytes > link->target_left)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "rank %d does %s, but this rank does %s", rank,
                           describe(in, theirs), describe(now, mine));
    return OT_COMM_OK;
}

/* The data of the message in progress is complete. */
static void end_message(struct ot_tcp_link *link) {
    if (link->in.kind == OT_TCP_LOOK)
        queue(link, OT_TCP_TAKEN, 0, NULL);
    link->expects = link->target_left > 0;
    link->in_have = 0;
}

static void take_bytes(struct ot_tcp_link *link, size_t bytes) {
    link->target += bytes;
    link->target_left -= bytes;
    link->in_left -= bytes;
    if (link->in_left == 0)
        end_message(link);
}

static void take_slot(struct ot_tcp_link *link) {
    memcpy(link->target, link->in_ring + (size_t)link->in_slot * OT_TCP_SLOT_BYTES, link->in_left);
    link->in_slot = (link->in_slot + 1) % OT_TCP_SLOTS;
    queue(link, OT_TCP_FREED, 0, NULL);
    take_bytes(link, link->in_left);
}

/* Called when a message is complete; data may follow. */
static int begin_message(struct ot_tcp *tcp, int rank) {
    struct ot_tcp_link *link = &tcp->links[rank];
    int code = check_message(tcp, rank);
    if (code != OT_COMM_OK)
        return code;
    link->in_left = link->in.bytes;
    switch ((enum ot_tcp_kind)link->in.kind) {
    case OT_TCP_TAKEN:
        link->awaits_taken = false;
        link->in_have = 0;
        break;
    case OT_TCP_FREED:
        link->free_slots++;
        link->in_have = 0;
        break;
    case OT_TCP_SLOT:
        if (!link->in_ring || link->in_left == 0 || link->in_left > OT_TCP_SLOT_BYTES)
            return ot_tcp_fail(tcp, OT_COMM_FAILED, "rank %d has sent a wrong slot", rank);
        take_slot(link);
        break;
    case OT_TCP_DATA:
    case OT_TCP_LOOK:
        if (link->in_left == 0)
            end_message(link);
        break;
    }
    return OT_COMM_OK;
}

static int read_from_process(struct ot_tcp *tcp, int rank, bool *moved) {
    struct ot_tcp_link *link = &tcp->links[rank];
    size_t piece = ot_min(link->in_left, MOST_AT_ONCE);
    struct iovec here = {link->target, piece};
    struct iovec there = {(void *)(uintptr_t)(link->in.address + (link->in.bytes - link->in_left)), piece};
    ssize_t got = process_vm_readv(link->pid, &here, 1, &there, 1, 0);
    if (got <= 0)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "cannot read the memory of rank %d: %s", rank,
                           got < 0 ? strerror(errno) : "it has ended");
    struct pollfd end = {.fd = link->fd, .events = POLLRDHUP};
    if ((size_t)got == link->in_left && poll(&end, 1, 0) > 0)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "rank %d has broken off", rank);
    *moved = true;
    take_bytes(link, (size_t)got);
    return OT_COMM_OK;
}

/* Keeps the message that has arrived if it announces a transfer of a later call, or follows such a message.
 * */
static bool keep_early(struct ot_tcp_link *link) {
    bool has_data = link->in.kind == OT_TCP_LOOK || link->in.kind == OT_TCP_SLOT;
    if (!has_data || link->in.operation != OT_TCP_TRANSFER || (link->expects && link->n_early == 0) ||
        link->n_early == OT_TCP_EARLY)
        return false;
    link->early[link->n_early++] = link->in;
    link->in_have = 0;
    return true;
}

static int take_early(struct ot_tcp *tcp, int rank) {
    struct ot_tcp_link *link = &tcp->links[rank];
    link->in = link->early[0];
    link->in_have = sizeof link->in;
    memmove(link->early, link->early + 1, (size_t)--link->n_early * sizeof *link->early);
    return begin_message(tcp, rank);
}

static int advance_input(struct ot_tcp *tcp, int rank, bool *moved) {
    struct ot_tcp_link *link = &tcp->links[rank];
    if (link->expects && link->n_early > 0 && link->in_have == 0) {
        *moved = true;
        return take_early(tcp, rank);
    }
    bool has_message = link->in_have == sizeof link->in;
    if (has_message && link->in.kind == OT_TCP_LOOK)
        return read_from_process(tcp, rank, moved);
    void *memory = has_message ? link->target : (char *)&link->in + link->in_have;
    size_t bytes = has_message ? link->in_left : sizeof link->in - link->in_have;
    ssize_t got = receive(tcp, rank, memory, ot_min(bytes, MOST_AT_ONCE));
    if (got <= 0)
        return (int)got;
    *moved = true;
    if (has_message) {
        take_bytes(link, (size_t)got);
        return OT_COMM_OK;
    }
    link->in_have += (size_t)got;
    return link->in_have < sizeof link->in || keep_early(link) ? OT_COMM_OK : begin_message(tcp, rank);
}

/* ---- both ---- */

bool ot_tcp_link_wants_output(const struct ot_tcp_link *link) {
    return link->queued > 0;
}

bool ot_tcp_link_wants_input(const struct ot_tcp_link *link) {
    return link->expects || link->awaits_taken || link->source_left > 0;
}

bool ot_tcp_link_is_done(const struct ot_tcp_link *link) {
    return !ot_tcp_link_wants_output(link) && !ot_tcp_link_wants_input(link);
}

int ot_tcp_link_advance(struct ot_tcp *tcp, int rank, bool *moved) {
    struct ot_tcp_link *link = &tcp->links[rank];
    *moved |= fill_slot(link);
    int code = flush(tcp, rank, moved);
    if (code == OT_COMM_OK && ot_tcp_link_wants_input(link))
        code = advance_input(tcp, rank, moved);
    if (code == OT_COMM_OK && link->queued > 0)
        code = flush(tcp, rank, moved);
    ot_tcp_link_begin_transfers(tcp, rank, moved);
    return code;
}

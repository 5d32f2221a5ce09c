/* The functions of the tcp communicator, and the loop in which an operation waits (tcp_state.h). */
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload/comm/tcp_state.h"
#include "src/base/clock.h"

/* At the end, the longest wait for ranks that have not come to the end. */
static const double close_seconds = 10;

int ot_tcp_fail(struct ot_tcp *tcp, int code, const char *format, ...) {
    va_list args;
    int none = OT_COMM_OK;
    pthread_mutex_lock(&tcp->mutex);
    if (atomic_compare_exchange_strong(&tcp->state, &none, code)) {
        va_start(args, format);
        vsnprintf(tcp->why, sizeof tcp->why, format, args);
        va_end(args);
        for (int r = 0; r < tcp->ranks; r++)
            if (tcp->links[r].fd >= 0)
                shutdown(tcp->links[r].fd, SHUT_RDWR);
    }
    pthread_mutex_unlock(&tcp->mutex);
    return atomic_load(&tcp->state);
}

/* ---- waiting ---- */

/* Fails with the first rank that has not finished the operation, and the number of the others. */
static int fail_late(struct ot_tcp *tcp, double seconds) {
    int first = -1, more = -1;
    for (int r = 0; r < tcp->ranks; r++)
        if (tcp->links[r].is_active && !ot_tcp_link_is_done(&tcp->links[r])) {
            first = first < 0 ? r : first;
            more++;
        }
    char others[32] = "";
    if (more > 0)
        snprintf(others, sizeof others, " and %d other%s", more, more == 1 ? "" : "s");
    return ot_tcp_fail(tcp, OT_COMM_TIMED_OUT, "rank %d%s did not answer for %g s", first, others, seconds);
}

/* Waits until a link may move, or until the deadline. Returns 1 at the deadline, or a code. */
static int wait(struct ot_tcp *tcp, double until) {
    struct pollfd fds[OT_MAX_RANKS + 1] = {{.fd = tcp->wake_fd, .events = POLLIN}};
    int ranks[OT_MAX_RANKS + 1], n = 1;
    for (int r = 0; r < tcp->ranks; r++) {
        const struct ot_tcp_link *link = &tcp->links[r];
        bool is_done = !link->is_active || ot_tcp_link_is_done(link);
        if (link->fd < 0 || (is_done && tcp->now.operation == OT_TCP_CLOSE))
            continue; /* a rank that has said goodbye may be gone */
        short events =
            (short)((is_done ? POLLRDHUP : 0) | (ot_tcp_link_wants_input(link) ? POLLIN | POLLRDHUP : 0) |
                    (ot_tcp_link_wants_output(link) ? POLLOUT : 0));
        ranks[n] = r;
        fds[n++] = (struct pollfd){.fd = link->fd, .events = events};
    }
    double left = until - ot_clock_seconds();
    if (left <= 0)
        return 1;
    int ready = poll(fds, (nfds_t)n, left > 1e6 ? 1000000000 : (int)ceil(left * 1e3));
    if (ready < 0 && errno != EINTR)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "cannot wait for other ranks: %s", strerror(errno));
    for (int i = 1; ready > 0 && i < n; i++) {
        const struct ot_tcp_link *link = &tcp->links[ranks[i]];
        bool is_idle = !link->is_active || ot_tcp_link_is_done(link);
        if (is_idle && (fds[i].revents & (POLLRDHUP | POLLHUP | POLLERR)))
            return ot_tcp_fail(tcp, OT_COMM_FAILED, "rank %d has closed its connection", ranks[i]);
    }
    return OT_COMM_OK;
}

/* Advances every link until all are done. Links are served from the next rank on, so that not all ranks read
 * from the same one at the same time. */
static int run(struct ot_tcp *tcp, double timeout_seconds) {
    double since = ot_clock_seconds();
    for (;;) {
        bool moved = false, is_done = true;
        for (int i = 1; i < tcp->ranks; i++) {
            int rank = (tcp->rank + i) % tcp->ranks, code = atomic_load(&tcp->state);
            const struct ot_tcp_link *link = &tcp->links[rank];
            if (!link->is_active || ot_tcp_link_is_done(link))
                continue;
            if (code == OT_COMM_OK)
                code = ot_tcp_link_advance(tcp, rank, &moved);
            if (code != OT_COMM_OK)
                return code;
            is_done &= ot_tcp_link_is_done(link);
        }
        if (is_done)
            return atomic_load(&tcp->state);
        if (moved) {
            since = ot_clock_seconds();
            continue;
        }
        int code = wait(tcp, since + timeout_seconds);
        if (code == 1)
            return fail_late(tcp, timeout_seconds);
        if (code != OT_COMM_OK)
            return code;
    }
}

/* ---- operations ---- */

static void begin(struct ot_tcp *tcp, enum ot_tcp_operation operation, size_t part_bytes) {
    tcp->now = (struct ot_tcp_message){
        .magic = OT_TCP_MAGIC, .operation = (uint16_t)operation, .part_bytes = part_bytes};
    tcp->now.sequence = operation == OT_TCP_TRANSFER ? 0 : ++tcp->sequence;
    tcp->n_transfers = 0;
    for (int r = 0; r < tcp->ranks; r++)
        tcp->links[r].is_active = false;
}

/* send_stride: 0 if all ranks get the same part. */
static int exchange_parts(struct ot_tcp *tcp, enum ot_tcp_operation operation, const char *send,
                          size_t send_stride, char *receive, size_t part_bytes) {
    if (atomic_load(&tcp->state) != OT_COMM_OK)
        return atomic_load(&tcp->state);
    begin(tcp, operation, part_bytes);
    for (int r = 0; r < tcp->ranks; r++)
        if (r != tcp->rank)
            ot_tcp_link_begin(tcp, r,
                              &(struct ot_tcp_exchange){.out = send + (size_t)r * send_stride,
                                                        .in = receive + (size_t)r * part_bytes,
                                                        .out_bytes = part_bytes,
                                                        .in_bytes = part_bytes,
                                                        .has_out = true,
                                                        .has_in = true});
    return run(tcp,
               operation == OT_TCP_CLOSE ? fmin(close_seconds, tcp->timeout_seconds) : tcp->timeout_seconds);
}

static int all_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    struct ot_tcp *tcp = context;
    char *own = (char *)all + (size_t)tcp->rank * part_bytes;
    (void)stream;
    if (part_bytes > 0 && own != part)
        memcpy(own, part, part_bytes);
    return exchange_parts(tcp, OT_TCP_GATHER, part, 0, all, part_bytes);
}

static int all_to_all(void *context, const void *send, void *receive, size_t part_bytes, void *stream) {
    (void)stream;
    return exchange_parts(context, OT_TCP_EXCHANGE, send, part_bytes, receive, part_bytes);
}

static int broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    struct ot_tcp *tcp = context;
    (void)stream;
    if (atomic_load(&tcp->state) != OT_COMM_OK)
        return atomic_load(&tcp->state);
    begin(tcp, OT_TCP_BROADCAST, bytes);
    for (int r = 0; r < tcp->ranks; r++) {
        bool sends = tcp->rank == root;
        if (r != tcp->rank && (sends || r == root))
            ot_tcp_link_begin(tcp, r,
                              &(struct ot_tcp_exchange){.out = memory,
                                                        .in = memory,
                                                        .out_bytes = sends ? bytes : 0,
                                                        .in_bytes = sends ? 0 : bytes,
                                                        .has_out = sends,
                                                        .has_in = !sends});
    }
    return run(tcp, tcp->timeout_seconds);
}

static int transfer(void *context, const struct ot_comm_transfer_v1 *transfers, size_t n, void *stream) {
    struct ot_tcp *tcp = context;
    bool moved = false;
    (void)stream;
    if (atomic_load(&tcp->state) != OT_COMM_OK)
        return atomic_load(&tcp->state);
    begin(tcp, OT_TCP_TRANSFER, 0);
    tcp->transfers = transfers;
    tcp->n_transfers = n;
    for (size_t i = 0; i < n; i++)
        tcp->links[transfers[i].rank].is_active = true;
    for (int r = 0; r < tcp->ranks; r++)
        if (tcp->links[r].is_active) {
            tcp->links[r].next_out = tcp->links[r].next_in = 0;
            ot_tcp_link_begin_transfers(tcp, r, &moved);
        }
    return run(tcp, tcp->timeout_seconds);
}

static int poll_error(void *context, char *why, size_t why_bytes) {
    struct ot_tcp *tcp = context;
    pthread_mutex_lock(&tcp->mutex);
    int code = atomic_load(&tcp->state);
    if (code != OT_COMM_OK)
        snprintf(why, why_bytes, "%s", tcp->why);
    pthread_mutex_unlock(&tcp->mutex);
    return code;
}

static void abort_tcp(void *context) {
    struct ot_tcp *tcp = context;
    ot_tcp_fail(tcp, OT_COMM_ABORTED, "it was aborted");
    (void)!write(tcp->wake_fd, &(uint64_t){1}, sizeof(uint64_t)); /* a full eventfd is readable too */
}

/* ---- opening and closing ---- */

static void close_tcp(void *context, int broken) {
    struct ot_tcp *tcp = context;
    if (!broken) /* a rank that closes its streams must not look like a lost rank */
        exchange_parts(tcp, OT_TCP_CLOSE, NULL, 0, NULL, 0);
    ot_tcp_disconnect(tcp);
    if (tcp->wake_fd >= 0)
        close(tcp->wake_fd);
    pthread_mutex_destroy(&tcp->mutex);
    free(tcp);
}

static void describe(const struct ot_tcp *tcp, char *text, size_t bytes) {
    int by_reading = 0, by_ring = 0, by_tcp = 0;
    for (int r = 0; r < tcp->ranks; r++)
        if (r != tcp->rank) {
            const struct ot_tcp_link *link = &tcp->links[r];
            *(!link->is_local ? &by_tcp : link->they_read ? &by_reading : &by_ring) += 1;
        }
    const struct {
        int n;
        const char *name;
    } ways[] = {{by_reading, "direct reads"}, {by_ring, "shared memory"}, {by_tcp, "sockets"}};
    int at = snprintf(text, bytes, "tcp, %d rank%s", tcp->ranks, tcp->ranks == 1 ? "" : "s");
    const char *separator = " by ";
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        if (ways[i].n > 0) {
            at += snprintf(text + at, bytes - (size_t)at, "%s%s", separator, ways[i].name);
            separator = " and ";
        }
}

static int open_tcp(const struct ot_comm_host_v1 *host, enum ot_tcp_ways ways, struct ot_comm_facts_v1 *facts,
                    void **context, char *why, size_t why_bytes) {
    if (host->ranks > OT_MAX_RANKS || (host->ranks > 1 && !host->exchange)) {
        snprintf(why, why_bytes, "it needs the connections of offload-train, and has %d ranks at most",
                 OT_MAX_RANKS);
        return OT_COMM_UNSUPPORTED;
    }
    struct ot_tcp *tcp = calloc(1, sizeof *tcp);
    if (!tcp) {
        snprintf(why, why_bytes, "no memory");
        return OT_COMM_FAILED;
    }
    tcp->rank = host->rank;
    tcp->ranks = host->ranks;
    tcp->timeout_seconds = host->timeout_seconds;
    for (int r = 0; r < OT_MAX_RANKS; r++)
        tcp->links[r].fd = -1;
    pthread_mutex_init(&tcp->mutex, NULL);
    tcp->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    int code = tcp->wake_fd < 0 ? ot_tcp_fail(tcp, OT_COMM_FAILED, "eventfd: %s", strerror(errno))
                                : ot_tcp_connect(tcp, host, ways);
    if (code != OT_COMM_OK) {
        snprintf(why, why_bytes, "%s", tcp->why);
        close_tcp(tcp, true);
        return code;
    }
    *facts = (struct ot_comm_facts_v1){.struct_size = sizeof *facts,
                                       .rank = host->rank,
                                       .ranks = host->ranks,
                                       .local_rank = host->local_rank,
                                       .local_ranks = host->local_ranks};
    describe(tcp, facts->description, sizeof facts->description);
    *context = tcp;
    return OT_COMM_OK;
}

const struct ot_comm_transfers_v1 ot_comm_tcp_transfers = {
    .abi = OT_COMM_TRANSFERS_V1,
    .struct_size = sizeof(struct ot_comm_transfers_v1),
    .transfer = transfer,
};

#define DEFINE_TCP(symbol, open_name, ways)                                                                  \
    static int open_name(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context, \
                         char *why, size_t why_bytes) {                                                      \
        return open_tcp(host, ways, facts, context, why, why_bytes);                                         \
    }                                                                                                        \
    const struct ot_comm_v1 symbol = {                                                                       \
        .abi = OT_COMM_ABI_V1,                                                                               \
        .struct_size = sizeof(struct ot_comm_v1),                                                            \
        .name = "tcp",                                                                                       \
        .capabilities = OT_COMM_TAKES_HOST,                                                                  \
        .open = open_name,                                                                                   \
        .close = close_tcp,                                                                                  \
        .all_gather = all_gather,                                                                            \
        .all_to_all = all_to_all,                                                                            \
        .broadcast = broadcast,                                                                              \
        .poll_error = poll_error,                                                                            \
        .abort = abort_tcp,                                                                                  \
    }

DEFINE_TCP(ot_comm_tcp, open_all_ways, OT_TCP_ALL_WAYS);
DEFINE_TCP(ot_comm_tcp_ring, open_ring, OT_TCP_RING_ONLY);
DEFINE_TCP(ot_comm_tcp_sockets, open_sockets, OT_TCP_SOCKETS_ONLY);

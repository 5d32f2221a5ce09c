/* Connects every rank of the tcp communicator with every other (tcp_state.h).
 *
 * Every rank listens on a UNIX socket and a TCP port, and sends the others the addresses and a random token
 * by `exchange`. If all ranks are on one host, the port can be reached from there alone. The lower rank of
 * each two connects; so nobody needs the address of rank 0. That is often a name with another meaning on its
 * own host. Both sides prove that they know the token of the other. After each phase all ranks exchange its
 * result. So no rank waits for a failed rank, and all ranks fail with the same sentence.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <math.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

#include "offload/comm/tcp_state.h"
#include "src/base/clock.h"
#include "src/base/minmax.h"

/* The longest wait for a connection to a host that does not answer, and for the first bytes of a connection.
 */
static const double connect_seconds = 60, hello_seconds = 10;

enum { RING_BYTES = OT_TCP_SLOTS * OT_TCP_SLOT_BYTES };

/* The host of a rank. */
struct host {
    char boot_id[40];       /* the kernel's; "": not known */
    uint64_t net_namespace; /* 0: not known */
};

/* A rank's message to the others about itself. */
struct card {
    struct host host;
    uint8_t token[OT_TCP_TOKEN_BYTES];
    char address[64];
    uint16_t port;
};

/* The first message on a connection, in both directions. */
struct hello {
    uint32_t magic;
    int32_t rank;
    uint8_t token[OT_TCP_TOKEN_BYTES]; /* the receiver's */
    uint64_t own_token;                /* address of the sender's own token, to try process_vm_readv */
};

struct connecting {
    struct ot_tcp *tcp;
    const struct ot_comm_host_v1 *host;
    enum ot_tcp_ways ways;
    bool is_one_host; /* all ranks are on this host */
    int unix_listener, tcp_listener;
    struct card mine, cards[OT_MAX_RANKS];
};

static int fail_errno(struct ot_tcp *tcp, const char *what, int rank) {
    return ot_tcp_fail(tcp, OT_COMM_FAILED, "%s rank %d: %s", what, rank, strerror(errno));
}

/* ---- bytes with a deadline ---- */

static bool wait_for(int fd, short events, double until) {
    for (;;) {
        struct pollfd poll_fd = {.fd = fd, .events = events};
        int left = (int)ceil(fmax(0, until - ot_clock_seconds()) * 1e3);
        int ready = poll(&poll_fd, 1, left);
        if (ready > 0)
            return true;
        if (ready == 0 && left == 0) {
            errno = ETIMEDOUT;
            return false;
        }
        if (ready < 0 && errno != EINTR)
            return false;
    }
}

static bool write_all(int fd, const void *data, size_t bytes, double until) {
    for (size_t at = 0; at < bytes;) {
        ssize_t done = send(fd, (const char *)data + at, bytes - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (done > 0)
            at += (size_t)done;
        else if (done < 0 && errno != EINTR && (errno != EAGAIN || !wait_for(fd, POLLOUT, until)))
            return false;
    }
    return true;
}

static bool read_all(int fd, void *data, size_t bytes, double until) {
    for (size_t at = 0; at < bytes;) {
        ssize_t done = recv(fd, (char *)data + at, bytes - at, MSG_DONTWAIT);
        if (done > 0) {
            at += (size_t)done;
        } else if (done == 0) {
            errno = ECONNRESET;
            return false;
        } else if (errno != EINTR && (errno != EAGAIN || !wait_for(fd, POLLIN, until))) {
            return false;
        }
    }
    return true;
}

/* Tells the others the result of a phase. All ranks fail if one rank has failed. */
static int compare(struct connecting *c) {
    struct {
        char why[OT_TCP_WHY_BYTES];
    } mine = {{0}}, all[OT_MAX_RANKS];
    struct ot_tcp *tcp = c->tcp;
    if (atomic_load(&tcp->state) != OT_COMM_OK)
        memcpy(mine.why, tcp->why, sizeof mine.why);
    if (c->host->exchange(c->host->host, &mine, sizeof mine, all) != OT_COMM_OK)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "the ranks cannot exchange their addresses");
    for (int r = 0; r < tcp->ranks; r++) {
        all[r].why[sizeof all[r].why - 1] = '\0';
        if (*all[r].why)
            ot_tcp_fail(tcp, OT_COMM_FAILED, "on rank %d: %.200s", r, all[r].why);
    }
    return atomic_load(&tcp->state);
}

/* ---- the address of this rank ---- */

static void read_boot_id(char *text, size_t bytes) {
    memset(text, 0, bytes);
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return;
    ssize_t got = read(fd, text, bytes - 1);
    text[ot_max(got, 0)] = '\0';
    close(fd);
}

static bool is_loopback(const char *address) {
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

/* The first address of an interface that is up and not the loopback interface. */
static void find_interface(char *text, size_t bytes) {
    struct ifaddrs *list;
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *at = list; at; at = at->ifa_next)
        if (at->ifa_addr && at->ifa_addr->sa_family == AF_INET && (at->ifa_flags & IFF_UP) &&
            !(at->ifa_flags & IFF_LOOPBACK) &&
            getnameinfo(at->ifa_addr, sizeof(struct sockaddr_in), text, (socklen_t)bytes, NULL, 0,
                        NI_NUMERICHOST) == 0)
            break;
    freeifaddrs(list);
}

static bool same_host(const struct host *a, const struct host *b) {
    return *a->boot_id && a->net_namespace && strcmp(a->boot_id, b->boot_id) == 0 &&
           a->net_namespace == b->net_namespace;
}

/* Tells the others the host of this rank. */
static int compare_hosts(struct connecting *c) {
    struct host *mine = &c->mine.host, all[OT_MAX_RANKS];
    struct stat net;
    read_boot_id(mine->boot_id, sizeof mine->boot_id);
    if (stat("/proc/self/ns/net", &net) == 0)
        mine->net_namespace = (uint64_t)net.st_ino;
    if (c->host->exchange(c->host->host, mine, sizeof *mine, all) != OT_COMM_OK)
        return ot_tcp_fail(c->tcp, OT_COMM_FAILED, "the ranks cannot exchange their hosts");
    c->is_one_host = true;
    for (int r = 0; r < c->tcp->ranks; r++)
        c->is_one_host = c->is_one_host && same_host(mine, &all[r]);
    return OT_COMM_OK;
}

static int fill_card(struct connecting *c) {
    struct card *mine = &c->mine;
    snprintf(mine->address, sizeof mine->address, "%s", c->host->address ? c->host->address : "127.0.0.1");
    /* The name of rank 0's host often means the loopback interface there. */
    if (is_loopback(mine->address))
        find_interface(mine->address, sizeof mine->address);
    if (getrandom(mine->token, sizeof mine->token, 0) != sizeof mine->token)
        return ot_tcp_fail(c->tcp, OT_COMM_FAILED, "getrandom: %s", strerror(errno));
    return OT_COMM_OK;
}

/* ---- listening ---- */

/* An abstract name: it is no file, and exists in this network namespace alone. */
static socklen_t unix_address(const struct card *card, struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    int at = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "offload-train-");
    for (int i = 0; i < OT_TCP_TOKEN_BYTES; i++)
        at += snprintf(out->sun_path + 1 + at, sizeof out->sun_path - 1 - (size_t)at, "%02x", card->token[i]);
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)at);
}

static int listen_unix(struct connecting *c) {
    struct sockaddr_un address;
    socklen_t bytes = unix_address(&c->mine, &address);
    c->unix_listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (c->unix_listener < 0 || bind(c->unix_listener, (struct sockaddr *)&address, bytes) != 0 ||
        listen(c->unix_listener, OT_MAX_RANKS) != 0)
        return ot_tcp_fail(c->tcp, OT_COMM_FAILED, "cannot listen on a UNIX socket: %s", strerror(errno));
    return OT_COMM_OK;
}

/* Returns a bound socket, or -1. */
static int bind_tcp(const struct sockaddr *at, socklen_t bytes) {
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), off = 0;
    bool is_six = at->sa_family == AF_INET6;
    if (fd >= 0 && ((is_six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) != 0) ||
                    bind(fd, at, bytes) != 0)) {
        close(fd);
        fd = -1;
    }
    return fd;
}

/* On the loopback address if all ranks are on this host. Else on all addresses, IPv6 and IPv4; on IPv4 alone
 * if the system has no IPv6. */
static int listen_tcp(struct connecting *c) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_addr.s_addr = htonl(c->is_one_host ? INADDR_LOOPBACK : INADDR_ANY)};
    socklen_t bytes = sizeof six;
    int fd = c->is_one_host ? -1 : bind_tcp((struct sockaddr *)&six, sizeof six);
    if (fd < 0)
        fd = bind_tcp((struct sockaddr *)&four, sizeof four);
    c->tcp_listener = fd;
    if (fd < 0 || listen(fd, OT_MAX_RANKS) != 0 || getsockname(fd, (struct sockaddr *)&six, &bytes) != 0)
        return ot_tcp_fail(c->tcp, OT_COMM_FAILED, "cannot listen on a TCP port: %s", strerror(errno));
    c->mine.port = ntohs(six.sin6_port); /* at the same place for both families */
    return OT_COMM_OK;
}

/* ---- greeting ---- */

static bool send_hello(const struct connecting *c, int fd, int rank) {
    struct hello hello = {
        .magic = OT_TCP_MAGIC, .rank = c->tcp->rank, .own_token = (uintptr_t)c->cards[c->tcp->rank].token};
    memcpy(hello.token, c->cards[rank].token, sizeof hello.token);
    return write_all(fd, &hello, sizeof hello, ot_clock_seconds() + hello_seconds);
}

/* Reads known bytes from the other rank's memory. */
static bool can_read(const struct connecting *c, int rank, uint64_t address) {
    const struct ot_tcp_link *link = &c->tcp->links[rank];
    uint8_t seen[OT_TCP_TOKEN_BYTES];
    struct iovec here = {seen, sizeof seen}, there = {(void *)(uintptr_t)address, sizeof seen};
    if (!link->is_local || link->pid <= 0 || c->ways != OT_TCP_ALL_WAYS)
        return false;
    return process_vm_readv(link->pid, &here, 1, &there, 1, 0) == sizeof seen &&
           memcmp(seen, c->cards[rank].token, sizeof seen) == 0;
}

/* Takes over the connection if the hello on it is right. expected: the rank at the other end; -1: any lower
 * rank. */
static bool take_hello(struct connecting *c, int fd, int expected) {
    struct hello hello;
    if (!read_all(fd, &hello, sizeof hello, ot_clock_seconds() + hello_seconds))
        return false;
    if (hello.magic != OT_TCP_MAGIC || memcmp(hello.token, c->mine.token, sizeof hello.token) != 0 ||
        hello.rank < 0 || hello.rank >= c->tcp->ranks || (expected >= 0 && hello.rank != expected) ||
        (expected < 0 && (hello.rank >= c->tcp->rank || c->tcp->links[hello.rank].fd >= 0))) {
        errno = EPROTO;
        return false;
    }
    struct ot_tcp_link *link = &c->tcp->links[hello.rank];
    struct ucred other = {0};
    socklen_t bytes = sizeof other;
    int on = 1;
    link->fd = fd;
    link->is_local = c->ways != OT_TCP_SOCKETS_ONLY && same_host(&c->cards[hello.rank].host, &c->mine.host);
    if (link->is_local && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &bytes) == 0)
        link->pid = other.pid;
    if (!link->is_local)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    link->we_read = can_read(c, hello.rank, hello.own_token);
    return true;
}

/* ---- connections ---- */

static int open_connection(const struct sockaddr *address, socklen_t bytes) {
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), error = 0;
    socklen_t error_bytes = sizeof error;
    if (fd < 0)
        return -1;
    int rc = connect(fd, address, bytes);
    if (rc != 0 && errno == EINPROGRESS && wait_for(fd, POLLOUT, ot_clock_seconds() + connect_seconds)) {
        rc = getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
        if (rc == 0 && error != 0) {
            errno = error;
            rc = -1;
        }
    }
    if (rc == 0)
        return fd;
    error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int connect_to(struct connecting *c, int rank) {
    const struct card *card = &c->cards[rank];
    if (same_host(&card->host, &c->mine.host) && c->ways != OT_TCP_SOCKETS_ONLY) {
        struct sockaddr_un address;
        socklen_t bytes = unix_address(card, &address);
        return open_connection((struct sockaddr *)&address, bytes);
    }
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
    char port[16];
    snprintf(port, sizeof port, "%u", card->port);
    if (getaddrinfo(same_host(&card->host, &c->mine.host) ? "127.0.0.1" : card->address, port, &hints,
                    &found) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    int fd = open_connection(found->ai_addr, found->ai_addrlen);
    int error = errno;
    freeaddrinfo(found);
    errno = error;
    return fd;
}

static int connect_to_higher(struct connecting *c) {
    for (int r = c->tcp->rank + 1; r < c->tcp->ranks; r++) {
        int fd = connect_to(c, r);
        if (fd < 0)
            return ot_tcp_fail(c->tcp, OT_COMM_FAILED, "cannot connect to rank %d at %s port %u: %s", r,
                               c->cards[r].address, c->cards[r].port, strerror(errno));
        c->tcp->links[r].fd = fd;
        if (!send_hello(c, fd, r))
            return fail_errno(c->tcp, "cannot greet", r);
    }
    return OT_COMM_OK;
}

/* Every lower rank has connected before. Connections of others are closed. */
static int accept_lower(struct connecting *c) {
    double until = ot_clock_seconds() + connect_seconds;
    for (int left = c->tcp->rank; left > 0;) {
        struct pollfd fds[] = {{.fd = c->unix_listener, .events = POLLIN},
                               {.fd = c->tcp_listener, .events = POLLIN}};
        int ready = poll(fds, 2, (int)ceil(fmax(0, until - ot_clock_seconds()) * 1e3));
        if (ready < 0 && errno == EINTR)
            continue;
        if (ready <= 0)
            return ot_tcp_fail(c->tcp, OT_COMM_TIMED_OUT, "%d lower ranks have not connected to rank %d",
                               left, c->tcp->rank);
        int fd = accept4(fds[fds[0].revents ? 0 : 1].fd, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0)
            continue; /* the other rank has given up */
        if (take_hello(c, fd, -1))
            left--;
        else
            close(fd);
    }
    for (int r = 0; r < c->tcp->rank; r++)
        if (!send_hello(c, c->tcp->links[r].fd, r))
            return fail_errno(c->tcp, "cannot greet", r);
    for (int r = c->tcp->rank + 1; r < c->tcp->ranks; r++)
        if (!take_hello(c, c->tcp->links[r].fd, r))
            return fail_errno(c->tcp, "wrong greeting of", r);
    return OT_COMM_OK;
}

/* ---- rings ---- */

static int send_ring(struct connecting *c, int rank) {
    struct ot_tcp_link *link = &c->tcp->links[rank];
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte = 1;
    struct iovec part = {&byte, 1};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    int fd = memfd_create("offload-train ring", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, RING_BYTES) != 0)
        goto failed;
    void *ring = mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ring == MAP_FAILED)
        goto failed;
    link->out_ring = ring;
    link->free_slots = OT_TCP_SLOTS;
    struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    *rights = (struct cmsghdr){
        .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
    memcpy(CMSG_DATA(rights), &fd, sizeof fd);
    if (sendmsg(link->fd, &header, MSG_NOSIGNAL) != 1)
        goto failed;
    close(fd);
    return OT_COMM_OK;
failed:;
    int code = fail_errno(c->tcp, "cannot share memory with", rank);
    if (fd >= 0)
        close(fd);
    return code;
}

static int receive_ring(struct connecting *c, int rank) {
    struct ot_tcp_link *link = &c->tcp->links[rank];
    char control[CMSG_SPACE(sizeof(int))] = {0}, byte;
    struct iovec part = {&byte, 1};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct stat stat;
    int fd = -1;
    if (!wait_for(link->fd, POLLIN, ot_clock_seconds() + hello_seconds) ||
        recvmsg(link->fd, &header, MSG_CMSG_CLOEXEC) != 1)
        return fail_errno(c->tcp, "cannot share memory with", rank);
    const struct cmsghdr *rights = CMSG_FIRSTHDR(&header);
    if (rights && rights->cmsg_type == SCM_RIGHTS)
        memcpy(&fd, CMSG_DATA(rights), sizeof fd);
    errno = EPROTO;
    void *ring = fd >= 0 && fstat(fd, &stat) == 0 && stat.st_size == RING_BYTES
                     ? mmap(NULL, RING_BYTES, PROT_READ, MAP_SHARED, fd, 0)
                     : MAP_FAILED;
    int code = ring == MAP_FAILED ? fail_errno(c->tcp, "cannot share memory with", rank) : OT_COMM_OK;
    if (ring != MAP_FAILED)
        link->in_ring = ring;
    if (fd >= 0)
        close(fd);
    return code;
}

/* Each rank tells the others of its host if it can read their memory. If not, the two ranks use a ring. */
static int choose_ways(struct connecting *c) {
    struct ot_tcp *tcp = c->tcp;
    double until = ot_clock_seconds() + hello_seconds;
    int code = OT_COMM_OK;
    for (int r = 0; r < tcp->ranks; r++)
        if (tcp->links[r].is_local &&
            !write_all(tcp->links[r].fd, &(uint8_t){tcp->links[r].we_read}, 1, until))
            return fail_errno(tcp, "cannot greet", r);
    for (int r = 0; r < tcp->ranks; r++) {
        uint8_t they_read;
        if (!tcp->links[r].is_local)
            continue;
        if (!read_all(tcp->links[r].fd, &they_read, 1, until))
            return fail_errno(tcp, "no greeting of", r);
        tcp->links[r].they_read = they_read;
        if (!they_read)
            code = send_ring(c, r);
        if (code != OT_COMM_OK)
            return code;
    }
    for (int r = 0; r < tcp->ranks && code == OT_COMM_OK; r++)
        if (tcp->links[r].is_local && !tcp->links[r].we_read)
            code = receive_ring(c, r);
    return code;
}

/* ---- all phases ---- */

static int connect_all(struct connecting *c) {
    struct ot_tcp *tcp = c->tcp;
    if (compare_hosts(c) != OT_COMM_OK)
        return atomic_load(&tcp->state);
    if (fill_card(c) == OT_COMM_OK && listen_unix(c) == OT_COMM_OK)
        listen_tcp(c);
    if (c->host->exchange(c->host->host, &c->mine, sizeof c->mine, c->cards) != OT_COMM_OK)
        return ot_tcp_fail(tcp, OT_COMM_FAILED, "the ranks cannot exchange their addresses");
    if (atomic_load(&tcp->state) == OT_COMM_OK)
        connect_to_higher(c);
    if (compare(c) != OT_COMM_OK)
        return atomic_load(&tcp->state);
    accept_lower(c);
    if (compare(c) != OT_COMM_OK)
        return atomic_load(&tcp->state);
    choose_ways(c);
    return compare(c);
}

int ot_tcp_connect(struct ot_tcp *tcp, const struct ot_comm_host_v1 *host, enum ot_tcp_ways ways) {
    struct connecting c = {.tcp = tcp, .host = host, .ways = ways, .unix_listener = -1, .tcp_listener = -1};
    if (tcp->ranks == 1)
        return OT_COMM_OK;
    /* Yama may restrict process_vm_readv to ancestors. This call permits it to processes of the same user. */
    if (ways == OT_TCP_ALL_WAYS)
        (void)prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
    int code = connect_all(&c);
    if (c.unix_listener >= 0)
        close(c.unix_listener);
    if (c.tcp_listener >= 0)
        close(c.tcp_listener);
    return code;
}

void ot_tcp_disconnect(struct ot_tcp *tcp) {
    for (int r = 0; r < tcp->ranks; r++) {
        struct ot_tcp_link *link = &tcp->links[r];
        if (link->fd >= 0)
            close(link->fd);
        if (link->out_ring)
            munmap(link->out_ring, RING_BYTES);
        if (link->in_ring)
            munmap(link->in_ring, RING_BYTES);
    }
}

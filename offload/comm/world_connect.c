/* How a rank reaches rank 0: the listening socket, the connection, the handshake. */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload/comm/world_state.h"
#include "src/base/clock.h"
#include "src/base/log.h"

static const double patience_seconds = 5; /* then a line says what is waited for */
static const double attempt_seconds = 5;  /* for one address */
static const double first_pause_s = 0.05, longest_pause_s = 0.5;

/* ---- listening ---- */

/* An IPv6 socket that takes IPv4 connections too, or an IPv4 socket where IPv6 is off. Returns -errno. */
static int bind_any(int family, int port) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    bool is_six = family == AF_INET6;
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, off = 0;
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        (is_six && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) < 0) ||
        bind(fd, is_six ? (const void *)&six : (const void *)&four, is_six ? sizeof six : sizeof four) < 0 ||
        listen(fd, 2 * OT_MAX_RANKS) < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

int ot_world_listen(int port, int *out) {
    int fd = bind_any(AF_INET6, port);
    if (fd < 0 && fd != -EADDRINUSE)
        fd = bind_any(AF_INET, port);
    if (fd == -EADDRINUSE)
        return ot_fail(OT_E_COMM,
                       "another program on this host listens on port %d, which rank 0 needs; end it, or "
                       "choose another port",
                       port);
    if (fd < 0)
        return ot_fail_errno(OT_E_COMM, -fd, "rank 0 cannot listen on port %d", port);
    *out = fd;
    return 0;
}

int ot_world_prepare_socket(const struct ot_world *world, int fd) {
    int on = 1, idle_s = 10, every_s = 5, probes = 3, flags = fcntl(fd, F_GETFL);
    unsigned silence_ms = (unsigned)(1e3 * world->silence_seconds);
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) < 0 ||
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes) < 0 ||
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &silence_ms, sizeof silence_ms) < 0)
        return ot_fail_errno(OT_E_COMM, errno, "cannot set the options of a connection");
    return 0;
}

/* ---- connecting ---- */

/* Waits until the socket is ready. Returns 0 or -errno. */
static int wait_ready(int fd, short events, int64_t until_ns) {
    struct pollfd ready = {.fd = fd, .events = events};
    for (;;) {
        int64_t left_ms = (until_ns - ot_clock_ns()) / 1000000;
        int n = poll(&ready, 1, left_ms > 0 ? (int)left_ms + 1 : 0);
        if (n > 0)
            return 0;
        if (n == 0)
            return -ETIMEDOUT;
        if (errno != EINTR)
            return -errno;
    }
}

/* Returns a connected socket, or -errno. */
static int connect_to(const struct addrinfo *to, int64_t until_ns) {
    int error = 0;
    socklen_t bytes = sizeof error;
    int fd = socket(to->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, to->ai_addr, to->ai_addrlen) < 0) {
        /* an interrupted connect goes on, as a non-blocking one does */
        error = errno == EINPROGRESS || errno == EINTR ? -wait_ready(fd, POLLOUT, until_ns) : errno;
        if (!error && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) < 0)
            error = errno;
    }
    if (error) {
        close(fd);
        return -error;
    }
    return fd;
}

/* Tries all addresses of rank 0's host. Returns a socket, or -1 with the reason in `why`. */
static int connect_once(const struct ot_world *world, int64_t deadline_ns, char *why, size_t why_bytes) {
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM}, *found = NULL;
    char port[16];
    int fd = -1;
    snprintf(port, sizeof port, "%d", world->ranks.port);
    int error = getaddrinfo(world->ranks.address, port, &hints, &found);
    if (error) {
        snprintf(why, why_bytes, "%s", error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
        return -1;
    }
    for (const struct addrinfo *to = found; to && fd < 0; to = to->ai_next) {
        int64_t until_ns = ot_clock_ns() + (int64_t)(1e9 * attempt_seconds);
        fd = connect_to(to, until_ns < deadline_ns ? until_ns : deadline_ns);
        if (fd < 0)
            snprintf(why, why_bytes, "%s", strerror(-fd));
    }
    freeaddrinfo(found);
    return fd < 0 ? -1 : fd;
}

/* Sends or receives all bytes. Returns 0 or -errno; -ECONNRESET also if the other end closes. */
static int transfer(int fd, bool is_send, void *data, size_t bytes, int64_t until_ns) {
    for (size_t done = 0; done < bytes;) {
        char *at = (char *)data + done;
        ssize_t n = is_send ? send(fd, at, bytes - done, MSG_NOSIGNAL) : recv(fd, at, bytes - done, 0);
        int error = n < 0 ? errno : 0;
        if (n == 0)
            return -ECONNRESET;
        if (error == EAGAIN || error == EWOULDBLOCK)
            error = -wait_ready(fd, is_send ? POLLOUT : POLLIN, until_ns);
        if (error && error != EINTR)
            return -error;
        done += n > 0 ? (size_t)n : 0;
    }
    return 0;
}

/* Returns 0 if rank 0 takes this rank, 1 with the reason in `why` if another attempt may do better. Errors:
 * OT_E_COMM: rank 0 refuses this rank for good. */
static int shake_hands(struct ot_world *world, int fd, int64_t deadline_ns, char *why, size_t why_bytes) {
    struct ot_world_reply reply;
    OT_TRY(ot_world_prepare_socket(world, fd));
    int error = transfer(fd, true, &world->own, sizeof world->own, deadline_ns);
    if (!error)
        error = transfer(fd, false, &reply, sizeof reply, deadline_ns);
    if (error == -ETIMEDOUT)
        snprintf(why, why_bytes, "the connection was accepted, but nothing answered");
    else if (error)
        snprintf(why, why_bytes, "%s", strerror(-error));
    else if (memcmp(reply.magic, OT_WORLD_MAGIC, sizeof reply.magic) != 0)
        snprintf(why, why_bytes, "another program answers there");
    else if (reply.refused)
        return ot_fail(OT_E_COMM, "%.*s", (int)sizeof reply.text, reply.text);
    else
        return 0;
    return 1;
}

int ot_world_connect(struct ot_world *world, int64_t deadline_ns, int *out) {
    int64_t begun_ns = ot_clock_ns();
    double pause_s = first_pause_s;
    bool has_said = false;
    for (;;) {
        char why[256] = "";
        int fd = connect_once(world, deadline_ns, why, sizeof why);
        int rc = fd < 0 ? 1 : shake_hands(world, fd, deadline_ns, why, sizeof why);
        if (rc == 0) {
            *out = fd;
            return 0;
        }
        if (fd >= 0)
            close(fd);
        if (rc < 0)
            return rc;
        int64_t now = ot_clock_ns(), pause_ns = (int64_t)(1e9 * pause_s);
        if (now + pause_ns >= deadline_ns)
            return ot_fail(
                OT_E_COMM,
                "rank %d did not reach rank 0 at %s within %g s: %s; check the address, that rank 0 "
                "runs, and that no firewall blocks the port",
                world->ranks.rank, world->place, world->timeout_seconds, why);
        if (!has_said && 1e-9 * (double)(now - begun_ns) > patience_seconds) {
            ot_log(OT_LOG_INFO, "rank %d waits for rank 0 at %s: %s", world->ranks.rank, world->place, why);
            has_said = true;
        }
        struct timespec pause = {.tv_nsec = (long)pause_ns};
        nanosleep(&pause, NULL); /* a signal may end it early: then the next attempt is early */
        pause_s = pause_s * 2 < longest_pause_s ? pause_s * 2 : longest_pause_s;
    }
}

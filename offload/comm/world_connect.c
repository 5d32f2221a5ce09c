/* Connects a rank to rank 0: the listening socket, the connection, the handshake. */
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
#include "src/base/minmax.h"

static const double patience_seconds = 5; /* then a line names the cause of the wait */
static const double attempt_seconds = 5;  /* for one address */
static const double first_pause_s = 0.05, longest_pause_s = 0.5;

/* ---- listening ---- */

/* Returns a socket, or -errno. An IPv6 socket on all addresses takes IPv4 connections too. */
static int listen_on(const struct sockaddr *at, socklen_t bytes) {
    int fd = socket(at->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, off = 0;
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) < 0 ||
        (at->sa_family == AF_INET6 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) < 0) ||
        bind(fd, at, bytes) < 0 || listen(fd, 2 * OT_MAX_RANKS) < 0) {
        int error = errno;
        close(fd);
        return -error;
    }
    return fd;
}

/* On an IPv6 socket, or an IPv4 socket where IPv6 is off. */
static int listen_everywhere(int port) {
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int fd = listen_on((const void *)&six, sizeof six);
    return fd < 0 && fd != -EADDRINUSE ? listen_on((const void *)&four, sizeof four) : fd;
}

/* Other ranks may resolve a name to another address of this host, so only an IP address, or localhost, limits
 * where rank 0 listens. An address in front of this host, such as a router's, is not its own: bind fails with
 * EADDRNOTAVAIL. */
static int listen_as_named(const struct ot_ranks *ranks) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV}, *found;
    const char *address = strcmp(ranks->address, "localhost") == 0 ? "127.0.0.1" : ranks->address;
    char port[16];
    snprintf(port, sizeof port, "%d", ranks->port);
    if (!ranks->is_bound || getaddrinfo(address, port, &hints, &found) != 0)
        return listen_everywhere(ranks->port);
    int fd = listen_on(found->ai_addr, found->ai_addrlen);
    freeaddrinfo(found);
    if (fd != -EADDRNOTAVAIL)
        return fd;
    ot_log(OT_LOG_INFO, "note    %s is no address of this host, so rank 0 listens on all addresses", address);
    return listen_everywhere(ranks->port);
}

int ot_world_listen(const struct ot_ranks *ranks, int *out) {
    int fd = listen_as_named(ranks);
    if (fd == -EADDRINUSE)
        return ot_fail(OT_E_COMM,
                       "another program on this host listens on port %d, which rank 0 needs; end it, or "
                       "choose another port",
                       ranks->port);
    if (fd < 0)
        return ot_fail_errno(OT_E_COMM, -fd, "rank 0 cannot listen on port %d", ranks->port);
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
        fd = connect_to(to, ot_min(until_ns, deadline_ns));
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

/* Proves to rank 0 that this rank knows the secret, once rank 0 has proved it. Returns 0 or -errno. Errors:
 * OT_E_USAGE, in *rc. */
static int answer_challenge(struct ot_world *world, int fd, int64_t deadline_ns, struct ot_world_reply *reply,
                            int *rc) {
    uint8_t proof[OT_SHA256_BYTES];
    *rc = 0;
    ot_world_prove(world, OT_WORLD_ROOT, &world->own, reply->nonce, proof);
    if (!ot_sha256_is_same(proof, reply->proof)) {
        *rc =
            ot_fail(OT_E_USAGE, "rank %d and rank 0 at %s have different secrets; give all ranks the same %s",
                    world->ranks.rank, world->place, world->secret_name);
        return 0;
    }
    ot_world_prove(world, OT_WORLD_OTHER, &world->own, reply->nonce, proof);
    int error = transfer(fd, true, proof, sizeof proof, deadline_ns);
    return error ? error : transfer(fd, false, reply, sizeof *reply, deadline_ns);
}

/* Reads rank 0's answer. Returns 0 if it accepts this rank, 1 with the reason in `why` if a retry may
 * succeed, or the error with which it refuses this rank for good. */
static int take_verdict(const struct ot_world *world, const struct ot_world_reply *reply, bool is_proved,
                        char *why, size_t why_bytes) {
    bool is_code = reply->verdict > 0 && reply->verdict <= OT_E_COMM;
    if (memcmp(reply->magic, OT_WORLD_MAGIC, sizeof reply->magic) != 0) {
        snprintf(why, why_bytes, "another program answers there");
        return 1;
    }
    if (reply->verdict != OT_WORLD_TAKEN)
        return ot_fail(is_code ? (enum ot_error_code)reply->verdict : OT_E_COMM, "%.*s",
                       (int)sizeof reply->text, reply->text);
    return !world->secret || is_proved
               ? 0
               : ot_fail(OT_E_USAGE,
                         "rank 0 at %s did not prove that it knows the secret of rank %d; give all ranks the "
                         "same %s",
                         world->place, world->ranks.rank, world->secret_name);
}

/* Returns like take_verdict. */
static int shake_hands(struct ot_world *world, int fd, int64_t deadline_ns, char *why, size_t why_bytes) {
    struct ot_world_reply reply;
    int rc = 0;
    OT_TRY(ot_world_prepare_socket(world, fd));
    int error = transfer(fd, true, &world->own, sizeof world->own, deadline_ns);
    if (!error)
        error = transfer(fd, false, &reply, sizeof reply, deadline_ns);
    bool is_asked = !error && world->secret && reply.verdict == OT_WORLD_CHALLENGE;
    if (is_asked)
        error = answer_challenge(world, fd, deadline_ns, &reply, &rc);
    OT_TRY(rc);
    if (!error)
        return take_verdict(world, &reply, is_asked, why, why_bytes);
    if (error == -ETIMEDOUT)
        snprintf(why, why_bytes, "the connection was accepted, but nothing answered");
    else
        snprintf(why, why_bytes, "%s", strerror(-error));
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
        pause_s = ot_min(pause_s * 2, longest_pause_s);
    }
}

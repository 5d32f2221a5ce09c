/* How rank 0 takes connections. Anybody can connect to its port: port scanners, ranks of other runs, and
 * programs that send nothing or nonsense. So a connection is a stranger until its hello proves that it is a
 * rank of this run. Strangers are few, and have little time. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload/comm/world_state.h"
#include "src/base/log.h"

static const int64_t hello_ns = (int64_t)10e9; /* time of a stranger to say who it is */
enum { DROPS_LOGGED = 8 };                     /* a scanner must not fill the log */

void ot_world_name_rank(const struct ot_world_hello *hello, char name[OT_WORLD_NAME_BYTES]) {
    snprintf(name, OT_WORLD_NAME_BYTES, "rank %u (host %.*s, process %d)", hello->rank,
             (int)sizeof hello->host - 1, hello->host, hello->process);
}

static void forget(struct ot_world_stranger *stranger) {
    close(stranger->fd);
    stranger->fd = -1;
}

static void drop(struct ot_world *world, struct ot_world_stranger *stranger, const char *why) {
    if (world->n_dropped++ < DROPS_LOGGED)
        ot_log(OT_LOG_WARN, "rank 0 drops a connection from %s: %s%s", stranger->address, why,
               world->n_dropped == DROPS_LOGGED ? "; later ones are not logged" : "");
    forget(stranger);
}

/* Fits in the buffer of a new connection, so send does not wait. */
static int answer(const struct ot_world_stranger *stranger, bool refused, const char *text) {
    struct ot_world_reply reply = {OT_WORLD_MAGIC, OT_WORLD_PROTOCOL, refused, ""};
    snprintf(reply.text, sizeof reply.text, "%s", text);
    return send(stranger->fd, &reply, sizeof reply, MSG_NOSIGNAL) == (ssize_t)sizeof reply ? 0 : -1;
}

/* Writes why the rank cannot take part. Returns false if it can. *of_this_run: the run ids agree, so this run
 * cannot succeed without that rank. */
static bool find_mismatch(const struct ot_world *world, const struct ot_world_hello *hello, char *why,
                          size_t bytes, bool *of_this_run) {
    const struct ot_world_hello *own = &world->own;
    char name[OT_WORLD_NAME_BYTES];
    ot_world_name_rank(hello, name);
    bool same_run = strcmp(hello->run_id, own->run_id) == 0;
    *of_this_run = same_run && own->run_id[0];
    if (!same_run)
        snprintf(why, bytes, "%s has run id '%s', but %s has '%s': they belong to different runs", name,
                 hello->run_id, world->names[0], own->run_id);
    else if (strcmp(hello->version, own->version) != 0)
        snprintf(why, bytes, "%s is version %s of the program, but %s is version %s: use one version", name,
                 hello->version, world->names[0], own->version);
    else if (hello->ranks != own->ranks)
        snprintf(why, bytes, "%s was started as one of %u ranks, but %s as one of %u", name, hello->ranks,
                 world->names[0], own->ranks);
    else if (hello->rank >= own->ranks)
        snprintf(why, bytes, "%s has an impossible rank: there are %u", name, own->ranks);
    else if (world->connected & (uint64_t)1 << hello->rank)
        snprintf(why, bytes, "two processes have rank %u: %s and %s", hello->rank, world->names[hello->rank],
                 name);
    else
        return false;
    return true;
}

static void end_texts(struct ot_world_hello *hello) {
    hello->version[sizeof hello->version - 1] = '\0';
    hello->run_id[sizeof hello->run_id - 1] = '\0';
    hello->host[sizeof hello->host - 1] = '\0';
    hello->boot_id[sizeof hello->boot_id - 1] = '\0';
}

/* The stranger has said a whole hello. */
static void judge(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now) {
    struct ot_world_hello *hello = &stranger->hello;
    char why[sizeof((struct ot_world_reply *)0)->text];
    bool of_this_run;
    end_texts(hello);
    if (find_mismatch(world, hello, why, sizeof why, &of_this_run)) {
        answer(stranger, true, why); /* if it cannot be sent, the rank hears of the failure or times out */
        forget(stranger);
        if (of_this_run)
            ot_world_propose(world, OT_WORLD_CAUSE, why);
        else
            ot_log(OT_LOG_WARN, "rank 0 refuses a connection: %s", why);
        return;
    }
    if (ot_world_prepare_socket(world, stranger->fd) < 0 || answer(stranger, false, "") < 0) {
        drop(world, stranger, "the connection broke");
        return;
    }
    ot_world_name_rank(hello, world->names[hello->rank]);
    ot_world_begin_peer(world, (int)hello->rank, stranger->fd, now);
    stranger->fd = -1;
    world->connected |= (uint64_t)1 << hello->rank;
    pthread_cond_broadcast(&world->changed);
}

/* True if what has arrived can be the begin of a hello. The fields that never change come first, so a rank
 * that speaks another protocol gets an answer. */
static bool may_be_hello(struct ot_world *world, struct ot_world_stranger *stranger) {
    static const char magic[8] = OT_WORLD_MAGIC;
    const struct ot_world_hello *hello = &stranger->hello;
    size_t n = stranger->received < sizeof magic ? stranger->received : sizeof magic;
    if (memcmp(hello->magic, magic, n) != 0) {
        drop(world, stranger, "it is not a rank of this program");
        return false;
    }
    if (stranger->received >= sizeof magic + sizeof hello->protocol && hello->protocol != OT_WORLD_PROTOCOL) {
        char why[160];
        snprintf(why, sizeof why,
                 "a rank uses protocol %u, but rank 0 uses %d: use one version of the program",
                 hello->protocol, OT_WORLD_PROTOCOL);
        answer(stranger, true, why);
        drop(world, stranger, why);
        return false;
    }
    return true;
}

void ot_world_meet(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now) {
    while (stranger->fd >= 0 && stranger->received < sizeof stranger->hello) {
        ssize_t n = recv(stranger->fd, (char *)&stranger->hello + stranger->received,
                         sizeof stranger->hello - stranger->received, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            drop(world, stranger, "it closed before it said who it is");
            return;
        }
        stranger->received += (size_t)n;
        if (!may_be_hello(world, stranger))
            return;
    }
    if (stranger->fd >= 0)
        judge(world, stranger, now);
}

/* A free place, or that of the stranger who has waited the longest. */
static struct ot_world_stranger *find_place(struct ot_world *world) {
    struct ot_world_stranger *oldest = &world->strangers[0];
    for (int i = 0; i < OT_WORLD_STRANGERS; i++) {
        struct ot_world_stranger *stranger = &world->strangers[i];
        if (stranger->fd < 0)
            return stranger;
        if (stranger->since_ns < oldest->since_ns)
            oldest = stranger;
    }
    drop(world, oldest, "too many connections wait");
    return oldest;
}

static void describe(const struct sockaddr_storage *from, socklen_t bytes, char *text, size_t text_bytes) {
    char host[48], port[8];
    if (getnameinfo((const void *)from, bytes, host, sizeof host, port, sizeof port,
                    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
        snprintf(text, text_bytes, "%s port %s", host, port);
    else
        snprintf(text, text_bytes, "an unknown address");
}

/* True if accept failed for the reason of one connection or of the moment. */
static bool is_passing(int error) {
    return error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM && error != EBADF &&
           error != EINVAL && error != ENOTSOCK;
}

void ot_world_accept(struct ot_world *world, int64_t now) {
    for (int n = 0; n < OT_WORLD_STRANGERS; n++) { /* then peers get their turn */
        struct sockaddr_storage from;
        socklen_t bytes = sizeof from;
        int fd = accept4(world->listener, (void *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            char why[160];
            snprintf(why, sizeof why, "rank 0 cannot take connections: %s", strerror(errno));
            if (!is_passing(errno))
                ot_world_propose(world, OT_WORLD_CAUSE, why);
            return;
        }
        struct ot_world_stranger *stranger = find_place(world);
        *stranger = (struct ot_world_stranger){.fd = fd, .since_ns = now};
        describe(&from, bytes, stranger->address, sizeof stranger->address);
        ot_world_meet(world, stranger, now);
    }
}

void ot_world_drop_slow(struct ot_world *world, int64_t now) {
    for (int i = 0; i < OT_WORLD_STRANGERS; i++)
        if (world->strangers[i].fd >= 0 && now - world->strangers[i].since_ns > hello_ns)
            drop(world, &world->strangers[i], "it did not say who it is within 10 s");
}

void ot_world_stop_listening(struct ot_world *world) {
    for (int i = 0; i < OT_WORLD_STRANGERS; i++)
        if (world->strangers[i].fd >= 0)
            forget(&world->strangers[i]);
    if (world->listener >= 0)
        close(world->listener);
    world->listener = -1;
}

/* Rank 0 accepts connections. Anybody can connect to its port: port scanners, ranks of other runs, and
 * programs that send nothing or nonsense. So a connection is a stranger until its hello proves that it is a
 * rank of this run. The number of strangers and their time are limited. */
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload/comm/world_state.h"
#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

static const int64_t hello_ns = (int64_t)10e9; /* time limit for a stranger's hello */
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
static int send_reply(const struct ot_world_stranger *stranger, const struct ot_world_reply *reply) {
    return send(stranger->fd, reply, sizeof *reply, MSG_NOSIGNAL) == (ssize_t)sizeof *reply ? 0 : -1;
}

static int answer(const struct ot_world_stranger *stranger, int verdict, const char *text) {
    struct ot_world_reply reply = {
        .magic = OT_WORLD_MAGIC, .protocol = OT_WORLD_PROTOCOL, .verdict = (uint32_t)verdict};
    snprintf(reply.text, sizeof reply.text, "%s", text);
    return send_reply(stranger, &reply);
}

/* Writes why the rank cannot take part. Returns false if it can. *of_this_run: the run ids agree (without a
 * launcher there are none), so this run cannot succeed without that rank. */
static bool find_mismatch(const struct ot_world *world, const struct ot_world_hello *hello, char *why,
                          size_t bytes, bool *of_this_run) {
    const struct ot_world_hello *own = &world->own;
    char name[OT_WORLD_NAME_BYTES];
    ot_world_name_rank(hello, name);
    bool same_run = strcmp(hello->run_id, own->run_id) == 0;
    *of_this_run = same_run;
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

/* If the answer cannot be sent, the rank hears of the failure, or times out. */
static void refuse(struct ot_world *world, struct ot_world_stranger *stranger, int code, const char *why) {
    answer(stranger, code, why);
    forget(stranger);
    world->n_told++;
}

/* Called when a stranger's hello is complete, and its proof if there is a secret. */
static void judge(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now) {
    struct ot_world_hello *hello = &stranger->hello;
    char why[sizeof((struct ot_world_reply *)0)->text];
    bool of_this_run, is_wrong = find_mismatch(world, hello, why, sizeof why, &of_this_run);
    if (is_wrong && !of_this_run) {
        answer(stranger, OT_E_USAGE, why);
        forget(stranger);
        ot_log(OT_LOG_WARN, "rank 0 refuses a connection: %s", why);
        return;
    }
    if (world->broken.code) {
        refuse(world, stranger, world->broken.code, world->broken.text);
        return;
    }
    if (is_wrong) {
        refuse(world, stranger, OT_E_USAGE, why);
        ot_world_propose(world, OT_WORLD_USAGE, why);
        return;
    }
    if (ot_world_prepare_socket(world, stranger->fd) < 0 || answer(stranger, OT_WORLD_TAKEN, "") < 0) {
        drop(world, stranger, "the connection broke");
        return;
    }
    ot_world_name_rank(hello, world->names[hello->rank]);
    ot_world_begin_peer(world, (int)hello->rank, stranger->fd, now);
    stranger->fd = -1;
    world->connected |= (uint64_t)1 << hello->rank;
    pthread_cond_broadcast(&world->changed);
}

/* ---- the secret ---- */

/* A stranger without the secret must not end the run, so rank 0 waits on. */
static void refuse_outsider(struct ot_world *world, struct ot_world_stranger *stranger) {
    char name[OT_WORLD_NAME_BYTES], why[OT_WORLD_NAME_BYTES + 200];
    ot_world_name_rank(&stranger->hello, name);
    snprintf(why, sizeof why, "%s has no secret, but rank 0 has one; give all ranks the same %s", name,
             world->secret_name);
    answer(stranger, OT_E_USAGE, why);
    drop(world, stranger, why);
}

/* Sends a random number that the rank must answer, and the proof that rank 0 knows the secret. */
static void challenge(struct ot_world *world, struct ot_world_stranger *stranger) {
    struct ot_world_reply reply = {
        .magic = OT_WORLD_MAGIC, .protocol = OT_WORLD_PROTOCOL, .verdict = OT_WORLD_CHALLENGE};
    if (ot_world_make_nonce(reply.nonce) < 0) {
        drop(world, stranger, ot_error_text());
        return;
    }
    ot_world_prove(world, OT_WORLD_ROOT, &stranger->hello, reply.nonce, reply.proof);
    ot_world_prove(world, OT_WORLD_OTHER, &stranger->hello, reply.nonce, stranger->wanted);
    if (send_reply(stranger, &reply) < 0)
        drop(world, stranger, "the connection broke");
}

/* Called when a stranger's hello is complete. */
static void take_hello(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now) {
    char why[OT_WORLD_NAME_BYTES + 200], name[OT_WORLD_NAME_BYTES];
    bool has_secret = stranger->hello.has_secret != 0;
    if (world->secret && !has_secret) {
        refuse_outsider(world, stranger);
    } else if (world->secret) {
        challenge(world, stranger);
    } else if (has_secret) {
        ot_world_name_rank(&stranger->hello, name);
        snprintf(why, sizeof why, "%s has a secret, but rank 0 has none; give all ranks the same %s", name,
                 world->secret_name);
        refuse(world, stranger, OT_E_USAGE, why);
        ot_world_propose(world, OT_WORLD_USAGE, why);
    } else {
        judge(world, stranger, now);
    }
}

static void take_proof(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now) {
    if (ot_sha256_is_same(stranger->proof, stranger->wanted))
        judge(world, stranger, now);
    else
        drop(world, stranger, "it does not know the secret");
}

/* ---- received hellos ---- */

/* True if the received bytes can be the begin of a hello. The fields that never change come first, so a rank
 * that speaks another protocol gets an answer. */
static bool may_be_hello(struct ot_world *world, struct ot_world_stranger *stranger) {
    static const char magic[8] = OT_WORLD_MAGIC;
    const struct ot_world_hello *hello = &stranger->hello;
    size_t n = ot_min(stranger->received, sizeof magic);
    if (memcmp(hello->magic, magic, n) != 0) {
        drop(world, stranger, "it is not a rank of this program");
        return false;
    }
    if (stranger->received >= sizeof magic + sizeof hello->protocol && hello->protocol != OT_WORLD_PROTOCOL) {
        char why[160];
        snprintf(why, sizeof why,
                 "a rank uses protocol %u, but rank 0 uses %d: use one version of the program",
                 hello->protocol, OT_WORLD_PROTOCOL);
        answer(stranger, OT_E_USAGE, why);
        drop(world, stranger, why);
        return false;
    }
    return true;
}

/* True if the texts of a hello have an end. */
static bool has_ends(const struct ot_world_hello *hello) {
    return !hello->version[sizeof hello->version - 1] && !hello->run_id[sizeof hello->run_id - 1] &&
           !hello->host[sizeof hello->host - 1] && !hello->boot_id[sizeof hello->boot_id - 1];
}

/* Bytes that the stranger sends before rank 0 has something to answer. */
static size_t expected_bytes(const struct ot_world_stranger *stranger) {
    size_t hello = sizeof stranger->hello;
    return stranger->received < hello ? hello : hello + sizeof stranger->proof;
}

/* Handles a complete hello or proof. */
static void take_whole(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now) {
    if (stranger->received > sizeof stranger->hello)
        take_proof(world, stranger, now);
    else if (!has_ends(&stranger->hello))
        drop(world, stranger, "it is not a rank of this program");
    else
        take_hello(world, stranger, now);
}

void ot_world_meet(struct ot_world *world, struct ot_world_stranger *stranger, int64_t now) {
    while (stranger->fd >= 0) {
        size_t hello = sizeof stranger->hello, at = stranger->received, wanted = expected_bytes(stranger);
        char *to = at < hello ? (char *)&stranger->hello + at : (char *)stranger->proof + (at - hello);
        ssize_t n = recv(stranger->fd, to, wanted - at, MSG_DONTWAIT);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n <= 0) {
            drop(world, stranger,
                 at < hello
                     ? "it closed before it said who it is"
                     : "it closed before it proved that it knows the secret; does it have another one?");
            return;
        }
        stranger->received += (size_t)n;
        if (at < hello && !may_be_hello(world, stranger))
            return;
        if (stranger->received == wanted)
            take_whole(world, stranger, now);
    }
}

/* A free place, or the place of the stranger who has waited the longest. */
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

/* True if accept failed because of one connection, or temporarily. */
static bool is_passing(int error) {
    return error != EMFILE && error != ENFILE && error != ENOBUFS && error != ENOMEM && error != EBADF &&
           error != EINVAL && error != ENOTSOCK;
}

void ot_world_accept(struct ot_world *world, int64_t now) {
    for (int n = 0; n < OT_WORLD_STRANGERS; n++) { /* limit, so that peers get their turn */
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

/* The thread of a rank's world: it owns the sockets. It sends and expects signs of life, receives messages,
 * and decides which reason ends the run. It sleeps in poll until something arrives, somebody wakes it, or the
 * time of the next sign has come. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload/comm/plugin.h"
#include "offload/comm/world_state.h"
#include "src/base/clock.h"
#include "src/base/minmax.h"

static const int64_t reason_ns = (int64_t)0.5e9; /* rank 0's wait for a heavier reason */
static const int64_t answer_ns = (int64_t)1.5e9; /* the others' wait for the decision of rank 0 */

void ot_world_wake(struct ot_world *world) {
    uint64_t one = 1;
    if (world->wake < 0) /* one rank */
        return;
    while (write(world->wake, &one, sizeof one) < 0 && errno == EINTR)
        ; /* EAGAIN: the counter is at its end, so the thread wakes anyway */
}

static int64_t sign_ns(const struct ot_world *world) {
    double seconds = world->silence_seconds / 4;
    return (int64_t)(1e9 * ot_min(seconds, 1));
}

static bool is_root(const struct ot_world *world) {
    return world->ranks.rank == 0;
}

/* The peers of this rank are peers[first..end). */
static int first_peer(const struct ot_world *world) {
    return is_root(world) ? 1 : 0;
}
static int end_peer(const struct ot_world *world) {
    return is_root(world) ? world->ranks.ranks : 1;
}

/* ---- connections ---- */

void ot_world_begin_peer(struct ot_world *world, int rank, int fd, int64_t now) {
    world->peers[rank] = (struct ot_world_peer){.fd = fd, .heard_ns = now, .said_ns = now};
}

static void release(struct ot_world_message *message) {
    if (--message->n_queued == 0)
        free(message);
}

void ot_world_end_peer(struct ot_world_peer *peer) {
    for (int i = 0; i < peer->n_queue; i++)
        release(peer->queue[i]);
    peer->n_queue = 0;
    if (peer->fd >= 0)
        close(peer->fd);
    peer->fd = -1;
    free(peer->data);
    peer->data = NULL;
}

static bool is_open(const struct ot_world_peer *peer) {
    return peer->fd >= 0;
}

/* The connection to `rank` broke, or the rank is silent. After a goodbye, that is no loss. */
static void lose(struct ot_world *world, int rank, const char *why) {
    struct ot_world_peer *peer = &world->peers[rank];
    char text[OT_WORLD_NAME_BYTES + 128];
    bool is_expected = peer->has_ended || peer->is_lost || world->closing;
    peer->is_lost = !peer->has_ended;
    pthread_cond_broadcast(&world->changed);
    if (is_expected)
        return;
    snprintf(text, sizeof text, "%s is lost: %s", world->names[rank], why);
    ot_world_propose(world, OT_WORLD_LOSS, text);
}

/* ---- sending ---- */

static struct ot_world_message *make_message(const struct ot_world_head *head, const void *data) {
    struct ot_world_message *message = malloc(sizeof *message + head->bytes);
    if (!message)
        return NULL;
    message->n_queued = 0;
    message->bytes = sizeof *head + head->bytes;
    message->head = *head;
    if (head->bytes)
        memcpy(message->data, data, head->bytes);
    return message;
}

static void queue(struct ot_world *world, int rank, struct ot_world_message *message) {
    struct ot_world_peer *peer = &world->peers[rank];
    if (!is_open(peer) || peer->n_queue == OT_WORLD_QUEUE)
        return; /* a rank that takes nothing is lost soon, by its silence */
    message->n_queued++;
    peer->queue[peer->n_queue++] = message;
}

static void send_to(struct ot_world *world, int first, int end, const struct ot_world_head *head,
                    const void *data) {
    struct ot_world_message *message = make_message(head, data);
    if (!message) {
        if (head->kind != OT_WORLD_FAIL) /* otherwise the closed connections tell the others */
            ot_world_propose(world, OT_WORLD_CAUSE, "no memory for a message to another rank");
        return;
    }
    message->n_queued++;
    for (int rank = first; rank < end; rank++)
        queue(world, rank, message);
    release(message);
    ot_world_wake(world);
}

void ot_world_send(struct ot_world *world, int rank, const struct ot_world_head *head, const void *data) {
    send_to(world, rank, rank + 1, head, data);
}

void ot_world_send_all(struct ot_world *world, const struct ot_world_head *head, const void *data) {
    send_to(world, first_peer(world), end_peer(world), head, data);
}

static void flush(struct ot_world *world, int rank, int64_t now) {
    struct ot_world_peer *peer = &world->peers[rank];
    while (is_open(peer) && peer->n_queue > 0) {
        struct ot_world_message *message = peer->queue[0];
        ssize_t n = send(peer->fd, (const char *)&message->head + peer->sent, message->bytes - peer->sent,
                         MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return;
        if (n < 0)
            return; /* the rank's last message may still be unread: receiving finds the end */
        peer->said_ns = now;
        peer->sent += (size_t)n;
        if (peer->sent == message->bytes) {
            memmove(peer->queue, peer->queue + 1, (size_t)--peer->n_queue * sizeof *peer->queue);
            peer->sent = 0;
            release(message);
        }
    }
}

/* ---- reasons ---- */

/* Breaks the world. Rank 0 tells the others. */
static void decide(struct ot_world *world) {
    world->broken = world->reason;
    world->decide_ns = 0;
    if (is_root(world)) {
        struct ot_world_head head = {OT_WORLD_FAIL, (uint32_t)strlen(world->broken.text),
                                     (uint64_t)world->broken.code};
        ot_world_send_all(world, &head, world->broken.text);
    }
    pthread_cond_broadcast(&world->changed);
    ot_world_wake(world); /* the thread calls on_loss */
}

bool ot_world_propose(struct ot_world *world, enum ot_world_weight weight, const char *text) {
    if (world->broken.code || weight <= world->weight)
        return false;
    bool is_first = world->weight == OT_WORLD_NO_REASON;
    world->weight = weight;
    world->reason = (struct ot_error){.code = weight == OT_WORLD_USAGE ? OT_E_USAGE : OT_E_COMM};
    snprintf(world->reason.text, sizeof world->reason.text, "%s", text);
    if (weight >= OT_WORLD_CAUSE || (weight == OT_WORLD_LOSS && !is_root(world)))
        decide(world);
    else if (is_first)
        world->decide_ns = ot_clock_ns() + (is_root(world) ? reason_ns : answer_ns);
    ot_world_wake(world);
    return true;
}

/* ---- receiving ---- */

static uint32_t most_bytes(const struct ot_world *world, uint32_t kind) {
    switch (kind) {
    case OT_WORLD_PART:
        return OT_COMM_MOST_CONTROL_BYTES;
    case OT_WORLD_RESULT:
        return (uint32_t)world->ranks.ranks * OT_COMM_MOST_CONTROL_BYTES;
    case OT_WORLD_FAIL:
        return OT_ERROR_TEXT_BYTES - 1;
    default:
        return 0;
    }
}

static bool makes_sense(const struct ot_world *world, const struct ot_world_head *head) {
    bool for_us =
        (head->kind != OT_WORLD_PART || is_root(world)) && (head->kind != OT_WORLD_RESULT || !is_root(world));
    return head->kind >= OT_WORLD_ALIVE && head->kind <= OT_WORLD_GOODBYE && for_us &&
           head->bytes <= most_bytes(world, head->kind);
}

/* data: the sentence, ended. */
static void take_reason(struct ot_world *world, int rank, const struct ot_world_head *head,
                        const char *data) {
    char text[OT_ERROR_TEXT_BYTES];
    enum ot_world_weight cause = head->number == OT_E_USAGE ? OT_WORLD_USAGE : OT_WORLD_CAUSE;
    if (!is_root(world)) {
        ot_world_propose(world, cause, data);
        return;
    }
    snprintf(text, sizeof text, "%s: %.*s", world->names[rank],
             (int)(sizeof text - strlen(world->names[rank]) - 3), data);
    ot_world_propose(world, head->number == OT_E_COMM ? OT_WORLD_CONSEQUENCE : cause, text);
}

/* Called when a message is complete. */
static void take(struct ot_world *world, int rank) {
    struct ot_world_peer *peer = &world->peers[rank];
    const struct ot_world_head *head = &peer->head;
    switch (head->kind) {
    case OT_WORLD_PART:
    case OT_WORLD_RESULT:
        free(peer->part);
        peer->part = peer->data;
        peer->part_bytes = head->bytes;
        peer->part_number = head->number;
        peer->data = NULL;
        break;
    case OT_WORLD_FAIL:
        peer->data[head->bytes] = '\0';
        take_reason(world, rank, head, (const char *)peer->data);
        break;
    case OT_WORLD_GOODBYE:
        peer->has_ended = true;
        break;
    }
    free(peer->data);
    peer->data = NULL;
    peer->received = 0;
    pthread_cond_broadcast(&world->changed);
}

/* Called when a message's head is complete. Returns why its data cannot follow; NULL if it can. */
static const char *begin_data(const struct ot_world *world, struct ot_world_peer *peer) {
    if (!makes_sense(world, &peer->head))
        return "it sent a message that makes no sense";
    peer->data = malloc(peer->head.bytes + 1); /* a sentence gets its end */
    return peer->data ? NULL : "there is no memory for its message";
}

/* Receives available data. Returns why the connection must close; NULL if it still works. */
static const char *receive_some(struct ot_world *world, int rank, int64_t now) {
    struct ot_world_peer *peer = &world->peers[rank];
    bool in_head = peer->received < sizeof peer->head;
    size_t wanted = in_head ? sizeof peer->head : sizeof peer->head + peer->head.bytes;
    unsigned char *at = in_head ? (unsigned char *)&peer->head + peer->received
                                : peer->data + (peer->received - sizeof peer->head);
    ssize_t n = recv(peer->fd, at, wanted - peer->received, 0);
    if (n < 0)
        return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? NULL : strerror(errno);
    if (n == 0)
        return "its connection closed";
    peer->heard_ns = now;
    peer->received += (size_t)n;
    if (peer->received < wanted)
        return NULL;
    const char *why = in_head ? begin_data(world, peer) : NULL;
    if (!why && peer->received == sizeof peer->head + peer->head.bytes)
        take(world, rank);
    return why;
}

static void receive(struct ot_world *world, int rank, int64_t now) {
    const char *why = receive_some(world, rank, now);
    if (!why)
        return;
    ot_world_end_peer(&world->peers[rank]);
    lose(world, rank, why);
}

/* ---- time ---- */

static void watch_time(struct ot_world *world, int64_t now) {
    struct ot_world_head alive = {.kind = OT_WORLD_ALIVE};
    char why[64];
    for (int rank = first_peer(world); rank < end_peer(world); rank++) {
        struct ot_world_peer *peer = &world->peers[rank];
        if (!is_open(peer))
            continue;
        if (now - peer->heard_ns > (int64_t)(1e9 * world->silence_seconds) && !peer->has_ended &&
            !peer->is_lost) {
            snprintf(why, sizeof why, "it was silent for %g s", world->silence_seconds);
            lose(world, rank, why); /* stays open: a stopped rank can still read why the run ended */
        }
        if (now - peer->said_ns >= sign_ns(world) && peer->n_queue == 0 && !world->closing) {
            peer->said_ns = now;
            ot_world_send(world, rank, &alive, NULL);
        }
    }
    if (world->listener >= 0)
        ot_world_drop_slow(world, now);
    if (world->decide_ns && now >= world->decide_ns)
        decide(world);
}

/* If this process was stopped (Ctrl-Z, a debugger, a paused machine), it heard nothing because it did not
 * listen. */
static void forgive_pause(struct ot_world *world, int64_t before, int64_t now) {
    if (now - before < 2 * sign_ns(world))
        return;
    for (int rank = first_peer(world); rank < end_peer(world); rank++)
        world->peers[rank].heard_ns += now - before;
}

/* True if an unconnected rank may still connect, to learn why the run ends. */
static bool is_lingering(const struct ot_world *world, int64_t now) {
    return now < world->linger_by_ns &&
           __builtin_popcountll(world->connected) + world->n_told < world->ranks.ranks;
}

/* Milliseconds until the next deadline. */
static int next_ms(const struct ot_world *world, int64_t now) {
    int64_t until = now + sign_ns(world) / 2;
    if (world->decide_ns && world->decide_ns < until)
        until = world->decide_ns;
    int64_t end_ns = is_lingering(world, now) ? world->linger_by_ns : world->close_by_ns;
    if (world->closing && end_ns < until)
        until = end_ns;
    return until > now ? (int)((until - now) / 1000000) + 1 : 0;
}

/* True if all goodbyes are sent and received, or their time is over. */
static bool is_over(const struct ot_world *world, int64_t now) {
    if (!world->closing || is_lingering(world, now))
        return false;
    for (int rank = first_peer(world); rank < end_peer(world); rank++) {
        const struct ot_world_peer *peer = &world->peers[rank];
        if (is_open(peer) && !peer->is_lost && (peer->n_queue > 0 || !peer->has_ended))
            return now >= world->close_by_ns;
    }
    return true;
}

/* ---- the loop ---- */

enum { MOST_POLLED = 2 + OT_WORLD_STRANGERS + OT_MAX_RANKS };

/* The owner of a polled socket. */
struct polled {
    struct ot_world_stranger *stranger;
    int rank; /* a peer's; -1: none */
};

static int list_sockets(struct ot_world *world, struct pollfd *fds, struct polled *what) {
    int n = 0;
    fds[n] = (struct pollfd){.fd = world->wake, .events = POLLIN};
    what[n++] = (struct polled){NULL, -1};
    for (int rank = first_peer(world); rank < end_peer(world); rank++)
        if (is_open(&world->peers[rank])) {
            short events = world->peers[rank].n_queue > 0 ? POLLIN | POLLOUT : POLLIN;
            fds[n] = (struct pollfd){.fd = world->peers[rank].fd, .events = events};
            what[n++] = (struct polled){NULL, rank};
        }
    if (world->listener < 0)
        return n;
    for (int i = 0; i < OT_WORLD_STRANGERS; i++)
        if (world->strangers[i].fd >= 0) {
            fds[n] = (struct pollfd){.fd = world->strangers[i].fd, .events = POLLIN};
            what[n++] = (struct polled){&world->strangers[i], -1};
        }
    fds[n] = (struct pollfd){.fd = world->listener, .events = POLLIN};
    what[n++] = (struct polled){NULL, -1};
    return n;
}

static void handle(struct ot_world *world, const struct pollfd *fd, const struct polled *what, int64_t now) {
    uint64_t count;
    if (fd->fd == world->wake) {
        if (read(world->wake, &count, sizeof count) < 0)
            return; /* non-blocking, and only a hint */
    } else if (what->stranger) {
        ot_world_meet(world, what->stranger, now);
    } else if (what->rank >= 0) {
        if (fd->revents & POLLOUT)
            flush(world, what->rank, now);
        if (fd->revents & (POLLIN | POLLHUP | POLLERR))
            receive(world, what->rank, now);
    } else {
        ot_world_accept(world, now);
    }
}

/* Calls on_loss, once, without the mutex. */
static void tell_loss(struct ot_world *world) {
    pthread_mutex_lock(&world->loss_mutex);
    if (!world->has_told && world->on_loss) {
        world->has_told = true;
        world->on_loss(world->context);
    }
    pthread_mutex_unlock(&world->loss_mutex);
}

void *ot_world_serve(void *arg) {
    struct ot_world *world = arg;
    struct pollfd fds[MOST_POLLED];
    struct polled what[MOST_POLLED];
    int64_t now = ot_clock_ns();
    pthread_mutex_lock(&world->mutex);
    while (!is_over(world, now)) {
        int n = list_sockets(world, fds, what), wait_ms = next_ms(world, now);
        bool is_broken = world->broken.code != 0;
        pthread_mutex_unlock(&world->mutex);
        if (is_broken)
            tell_loss(world);
        int n_ready = poll(fds, (nfds_t)n, wait_ms);
        pthread_mutex_lock(&world->mutex);
        int64_t before = now;
        now = ot_clock_ns();
        for (int i = 0; i < n && n_ready > 0; i++)
            if (fds[i].revents)
                handle(world, &fds[i], &what[i], now);
        forgive_pause(world, before, now);
        watch_time(world, now);
        if (world->connected == UINT64_MAX >> (64 - world->ranks.ranks))
            ot_world_stop_listening(world);
    }
    pthread_mutex_unlock(&world->mutex);
    return NULL;
}

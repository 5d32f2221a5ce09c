/* Opens and closes a world, gathers, and records the reasons for its end. world_thread.c moves the bytes. */
#include "offload/comm/world.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "offload/comm/plugin.h"
#include "offload/comm/world_state.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/minmax.h"
#include "src/base/thread.h"

static const double default_timeout_seconds = 600, default_silence_seconds = 30;
static const double patience_seconds = 5; /* then rank 0 logs the ranks that it waits for */
static const double later_seconds = 2;    /* rank 0 names the ranks that are late before others give up */
static const double decision_seconds = 3; /* a live rank 0 decides within 0.5 s */
static const double goodbye_seconds = 5, broken_goodbye_seconds = 1;
static const double default_linger_seconds = 10;

static int64_t after(double seconds) {
    return ot_clock_ns() + (int64_t)(1e9 * seconds);
}

/* ---- words ---- */

const char *ot_rank_list(uint64_t ranks, char text[OT_RANK_LIST_BYTES]) {
    int n = __builtin_popcountll(ranks), done = 0, bytes;
    bytes = snprintf(text, OT_RANK_LIST_BYTES, n == 1 ? "rank" : "ranks");
    for (int rank = 0; rank < OT_MAX_RANKS; rank++)
        if (ranks >> rank & 1) {
            const char *before = done == 0 ? " " : done == n - 1 ? " and " : ", ";
            bytes += snprintf(text + bytes, (size_t)(OT_RANK_LIST_BYTES - bytes), "%s%d", before, rank);
            done++;
        }
    return text;
}

/* ---- opening ---- */

static int check_ranks(const struct ot_world_config *config) {
    const struct ot_ranks *r = &config->ranks;
    if (r->ranks < 1 || r->ranks > OT_MAX_RANKS)
        return ot_fail(OT_E_USAGE, "a run has 1 to %d ranks, not %d", OT_MAX_RANKS, r->ranks);
    if (r->rank < 0 || r->rank >= r->ranks)
        return ot_fail(OT_E_USAGE, "rank %d is impossible with %d ranks", r->rank, r->ranks);
    if (r->ranks == 1)
        return 0;
    if (r->rank > 0 && !r->address[0])
        return ot_fail(OT_E_USAGE, "rank %d does not know the address of rank 0", r->rank);
    if ((r->port < 1 || r->port > 65535) && (r->rank > 0 || config->listener < 0))
        return ot_fail(OT_E_USAGE, "port %d of rank 0 is impossible", r->port);
    return 0;
}

static void read_boot_id(char text[40]) {
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, 39);
    text[ot_max(n, 0)] = '\0';
    if (fd >= 0)
        close(fd);
}

static int describe_self(struct ot_world *world) {
    struct ot_world_hello *own = &world->own;
    const struct ot_ranks *r = &world->ranks;
    *own = (struct ot_world_hello){.magic = OT_WORLD_MAGIC,
                                   .protocol = OT_WORLD_PROTOCOL,
                                   .rank = (uint32_t)r->rank,
                                   .ranks = (uint32_t)r->ranks,
                                   .local_rank = r->local_rank,
                                   .local_ranks = r->local_ranks,
                                   .process = getpid(),
                                   .version = OT_VERSION,
                                   .has_secret = world->secret != NULL};
    snprintf(own->run_id, sizeof own->run_id, "%s", r->run_id);
    if (gethostname(own->host, sizeof own->host - 1) < 0)
        snprintf(own->host, sizeof own->host, "?");
    read_boot_id(own->boot_id);
    for (int rank = 0; rank < OT_MAX_RANKS; rank++)
        snprintf(world->names[rank], sizeof world->names[rank], "rank %d", rank);
    ot_world_name_rank(own, world->names[r->rank]);
    snprintf(world->place, sizeof world->place, strchr(r->address, ':') ? "[%s]:%d" : "%s:%d",
             r->address[0] ? r->address : own->host, r->port);
    return ot_world_make_nonce(own->nonce);
}

static int make(const struct ot_world_config *config, struct ot_world **out) {
    struct ot_world *world = calloc(1, sizeof *world);
    if (!world)
        return ot_fail(OT_E_BUDGET, "no memory for the connections between ranks");
    world->ranks = config->ranks;
    world->timeout_seconds = config->timeout_seconds > 0 ? config->timeout_seconds : default_timeout_seconds;
    world->silence_seconds = config->silence_seconds > 0 ? config->silence_seconds : default_silence_seconds;
    world->linger_seconds = config->linger_seconds > 0 ? config->linger_seconds : default_linger_seconds;
    world->secret = config->secret && *config->secret ? config->secret : NULL;
    world->secret_name = config->secret_name ? config->secret_name : "secret";
    world->on_loss = config->on_loss;
    world->context = config->context;
    world->wake = -1;
    world->n_hosts = 1;
    world->listener = -1;
    for (int i = 0; i < OT_MAX_RANKS; i++)
        world->peers[i].fd = -1;
    for (int i = 0; i < OT_WORLD_STRANGERS; i++)
        world->strangers[i].fd = -1;
    pthread_mutex_init(&world->loss_mutex, NULL);
    pthread_mutex_init(&world->mutex, NULL);
    ot_cond_init(&world->changed);
    *out = world;
    return describe_self(world);
}

static int start_thread(struct ot_world *world) {
    world->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (world->wake < 0)
        return ot_fail_errno(OT_E_IO, errno, "cannot make an eventfd for the connections between ranks");
    int error = ot_thread_start(&world->thread, "world", ot_world_serve, world);
    if (error)
        return ot_fail_errno(OT_E_IO, error, "cannot start the thread for the connections between ranks");
    world->has_thread = true;
    return 0;
}

/* 0, or the error that broke the world. Holds the mutex. */
static int broken(const struct ot_world *world) {
    return world->broken.code ? ot_error_load(&world->broken) : 0;
}

static uint64_t missing_ranks(const struct ot_world *world) {
    return UINT64_MAX >> (64 - world->ranks.ranks) & ~world->connected;
}

/* Rank 0: waits until all ranks are connected. Holds the mutex. */
static int await_ranks(struct ot_world *world, int64_t deadline_ns) {
    char list[OT_RANK_LIST_BYTES], text[OT_ERROR_TEXT_BYTES];
    int64_t patient_ns = after(patience_seconds);
    bool has_said = false;
    while (missing_ranks(world) && !world->broken.code) {
        ot_cond_wait_until(&world->changed, &world->mutex, has_said ? deadline_ns : patient_ns);
        int64_t now = ot_clock_ns();
        uint64_t missing = missing_ranks(world);
        if (!missing || world->broken.code)
            break;
        ot_rank_list(missing, list);
        if (now >= deadline_ns) {
            world->is_late = true;
            snprintf(text, sizeof text,
                     "%s of %d did not connect to %s within %g s; start all ranks with this address, and let "
                     "them reach this port",
                     list, world->ranks.ranks, world->place, world->timeout_seconds);
            ot_world_propose(world, OT_WORLD_CAUSE, text);
        } else if (!has_said && now >= patient_ns) {
            has_said = true;
            ot_log(OT_LOG_INFO, "rank 0 waits for %s of %d to connect to %s", list, world->ranks.ranks,
                   world->place);
        }
    }
    return broken(world);
}

/* Rank 0: begins to take connections, on the thread. */
static int start_listening(struct ot_world *world, int listener) {
    if (listener < 0)
        OT_TRY(ot_world_listen(&world->ranks, &listener));
    world->listener = listener;
    world->connected = 1;
    int flags = fcntl(listener, F_GETFL);
    if (flags < 0 || fcntl(listener, F_SETFL, flags | O_NONBLOCK) < 0) /* an inherited socket may block */
        return ot_fail_errno(OT_E_COMM, errno, "rank 0 cannot use its listening socket");
    return start_thread(world);
}

static int gather_ranks(struct ot_world *world, int listener, int64_t deadline_ns) {
    OT_TRY(start_listening(world, listener));
    pthread_mutex_lock(&world->mutex);
    int rc = await_ranks(world, deadline_ns);
    pthread_mutex_unlock(&world->mutex);
    return rc;
}

static int join_ranks(struct ot_world *world, int64_t deadline_ns) {
    int fd;
    OT_TRY(ot_world_connect(world, deadline_ns, &fd));
    ot_world_begin_peer(world, 0, fd, ot_clock_ns());
    return start_thread(world);
}

static bool same_host(const struct ot_world_hello *a, const struct ot_world_hello *b) {
    return strcmp(a->host, b->host) == 0 && strcmp(a->boot_id, b->boot_id) == 0;
}

/* Tells all ranks the names of all, and counts the hosts. Ranks whose launcher gave no local rank are counted
 * in their order. */
static int introduce(struct ot_world *world) {
    int n = world->ranks.ranks, n_before = 0, n_here = 0;
    struct ot_world_hello *all = malloc((size_t)n * sizeof *all);
    if (!all)
        return ot_fail(OT_E_BUDGET, "no memory for the names of the ranks");
    int rc = ot_world_all_gather(world, &world->own, sizeof world->own, all);
    if (rc < 0) {
        free(all);
        return rc;
    }
    pthread_mutex_lock(&world->mutex);
    world->n_hosts = 0;
    for (int rank = 0; rank < n; rank++) {
        bool is_new = true;
        for (int other = 0; other < rank && is_new; other++)
            is_new = !same_host(&all[rank], &all[other]);
        world->n_hosts += is_new;
        n_here += same_host(&all[rank], &world->own);
        n_before += rank < world->ranks.rank && same_host(&all[rank], &world->own);
        ot_world_name_rank(&all[rank], world->names[rank]);
    }
    if (world->ranks.local_rank < 0)
        world->ranks.local_rank = n_before;
    if (world->ranks.local_ranks < 1)
        world->ranks.local_ranks = n_here;
    pthread_mutex_unlock(&world->mutex);
    free(all);
    return 0;
}

int ot_world_open(const struct ot_world_config *config, struct ot_world **out) {
    struct ot_world *world = NULL;
    int64_t deadline_ns;
    int rc, listener = config->listener;
    *out = NULL;
    OT_TRY_GOTO(check_ranks(config), rc, failed);
    OT_TRY_GOTO(make(config, &world), rc, failed);
    deadline_ns = after(world->timeout_seconds);
    if (world->ranks.ranks > 1) {
        if (world->ranks.rank == 0) {
            listener = -1; /* from here on the world closes it */
            OT_TRY_GOTO(gather_ranks(world, config->listener, deadline_ns), rc, failed);
        } else {
            OT_TRY_GOTO(join_ranks(world, deadline_ns), rc, failed);
        }
    }
    OT_TRY_GOTO(introduce(world), rc, failed);
    if (listener >= 0)
        close(listener);
    *out = world;
    return 0;
failed:
    if (listener >= 0)
        close(listener);
    struct ot_error why;
    ot_error_save(&why, rc);
    ot_world_close(world);
    return ot_error_load(&why);
}

static enum ot_world_weight weight_of(int code) {
    return code == OT_E_USAGE ? OT_WORLD_USAGE : code == OT_E_COMM ? OT_WORLD_CONSEQUENCE : OT_WORLD_CAUSE;
}

void ot_world_tell(const struct ot_world_config *config, const struct ot_error *why) {
    struct ot_world *world = NULL;
    struct ot_error kept = *why;
    if (config->ranks.ranks > 1 && check_ranks(config) == 0 && make(config, &world) == 0) {
        int rc = world->ranks.rank == 0 ? start_listening(world, config->listener)
                                        : join_ranks(world, after(world->linger_seconds));
        if (rc == 0)
            (void)ot_world_fail(world, &kept);
    }
    ot_world_close(world);
    ot_error_load(&kept);
}

/* ---- closing ---- */

/* Rank 0 stays for the ranks that would otherwise wait for it until the deadline. Holds the mutex. */
static void linger(struct ot_world *world) {
    char list[OT_RANK_LIST_BYTES];
    int n_missing = __builtin_popcountll(missing_ranks(world));
    if (!world->broken.code || world->listener < 0 || world->is_late || n_missing <= world->n_told)
        return;
    world->linger_by_ns = after(world->linger_seconds);
    ot_log(OT_LOG_INFO, "note    the run ends; rank 0 waits up to %g s for %s, to say why",
           world->linger_seconds, ot_rank_list(missing_ranks(world), list));
}

void ot_world_close(struct ot_world *world) {
    static const struct ot_world_head goodbye = {.kind = OT_WORLD_GOODBYE};
    if (!world)
        return;
    if (world->has_thread) {
        pthread_mutex_lock(&world->mutex);
        ot_world_send_all(world, &goodbye, NULL);
        world->closing = true;
        world->close_by_ns = after(world->broken.code ? broken_goodbye_seconds : goodbye_seconds);
        linger(world);
        ot_world_wake(world);
        pthread_mutex_unlock(&world->mutex);
        pthread_join(world->thread, NULL);
    }
    ot_world_stop_listening(world);
    for (int i = 0; i < OT_MAX_RANKS; i++) {
        ot_world_end_peer(&world->peers[i]);
        free(world->peers[i].part);
    }
    if (world->wake >= 0)
        close(world->wake);
    pthread_cond_destroy(&world->changed);
    pthread_mutex_destroy(&world->mutex);
    pthread_mutex_destroy(&world->loss_mutex);
    free(world);
}

void ot_world_on_loss(struct ot_world *world, void (*on_loss)(void *context), void *context) {
    pthread_mutex_lock(&world->loss_mutex);
    world->on_loss = on_loss;
    world->context = context;
    pthread_mutex_unlock(&world->loss_mutex);
    if (world->has_thread)
        ot_world_wake(world);
}

/* ---- facts ---- */

const struct ot_ranks *ot_world_ranks(const struct ot_world *world) {
    return &world->ranks;
}

int ot_world_hosts(const struct ot_world *world) {
    return world->n_hosts;
}

const char *ot_world_name(const struct ot_world *world, int rank) {
    return world->names[rank];
}

/* ---- gathers ---- */

/* Takes the part (or the result) of a peer, if it has arrived. Holds the mutex. */
static unsigned char *take_part(struct ot_world_peer *peer) {
    unsigned char *part = peer->part;
    peer->part = NULL;
    peer->part_number = 0;
    return part;
}

/* Rank 0: the ranks whose parts have not come. Sets *ended to the ranks among them that will send none. Holds
 * the mutex. */
static uint64_t late_ranks(const struct ot_world *world, uint64_t *ended) {
    uint64_t late = 0;
    *ended = 0;
    for (int rank = 1; rank < world->ranks.ranks; rank++)
        if (!world->peers[rank].part_number) {
            late |= (uint64_t)1 << rank;
            if (world->peers[rank].has_ended)
                *ended |= (uint64_t)1 << rank;
        }
    return late;
}

/* Rank 0: waits for the parts of all ranks. Holds the mutex. */
static int await_parts(struct ot_world *world) {
    int64_t deadline_ns = after(world->timeout_seconds);
    char list[OT_RANK_LIST_BYTES], text[OT_ERROR_TEXT_BYTES];
    uint64_t ended, late;
    bool in_time = true;
    while (!world->broken.code && (late = late_ranks(world, &ended))) {
        if (ended)
            snprintf(text, sizeof text, "%s ended before the others", ot_rank_list(ended, list));
        else
            snprintf(text, sizeof text, "%s of %d did not arrive at an exchange within %g s",
                     ot_rank_list(late, list), world->ranks.ranks, world->timeout_seconds);
        if (ended || !in_time)
            ot_world_propose(world, OT_WORLD_CAUSE, text);
        else
            in_time = ot_cond_wait_until(&world->changed, &world->mutex, deadline_ns);
    }
    return broken(world);
}

/* Rank 0: checks that all ranks gather the same. Holds the mutex. */
static int compare_parts(struct ot_world *world, size_t bytes) {
    char text[OT_ERROR_TEXT_BYTES];
    for (int rank = 1; rank < world->ranks.ranks; rank++) {
        const struct ot_world_peer *peer = &world->peers[rank];
        if (peer->part_bytes == bytes && peer->part_number == world->gathers)
            continue;
        snprintf(
            text, sizeof text,
            "%s exchanges %zu bytes in exchange %llu, but %s %zu bytes in exchange %llu: they do not run "
            "the same program",
            world->names[rank], peer->part_bytes, (unsigned long long)peer->part_number, world->names[0],
            bytes, (unsigned long long)world->gathers);
        ot_world_propose(world, OT_WORLD_CAUSE, text);
        return broken(world);
    }
    return 0;
}

/* Holds the mutex. */
static int gather_at_root(struct ot_world *world, const void *mine, size_t bytes, unsigned char *all) {
    struct ot_world_head head = {OT_WORLD_RESULT, (uint32_t)(bytes * (size_t)world->ranks.ranks),
                                 world->gathers};
    OT_TRY(await_parts(world));
    OT_TRY(compare_parts(world, bytes));
    if (bytes)
        memmove(all, mine, bytes);
    for (int rank = 1; rank < world->ranks.ranks; rank++) {
        unsigned char *part = take_part(&world->peers[rank]);
        if (bytes)
            memcpy(all + (size_t)rank * bytes, part, bytes);
        free(part);
    }
    ot_world_send_all(world, &head, all);
    return broken(world);
}

/* Another rank: waits for the result. Holds the mutex. */
static int await_result(struct ot_world *world) {
    const struct ot_world_peer *root = &world->peers[0];
    int64_t deadline_ns = after(world->timeout_seconds + later_seconds);
    struct ot_world_head head = {.kind = OT_WORLD_FAIL, .number = OT_E_STALL};
    char text[OT_ERROR_TEXT_BYTES];
    bool in_time = true;
    while (!world->broken.code && !root->part_number && !root->has_ended && in_time)
        in_time = ot_cond_wait_until(&world->changed, &world->mutex, deadline_ns);
    /* A result is taken even if the world broke after it: so all ranks find the same difference in it. */
    if (root->part_number)
        return 0;
    if (world->broken.code)
        return broken(world);
    if (root->has_ended)
        snprintf(text, sizeof text, "%s ended before the others", world->names[0]);
    else
        snprintf(text, sizeof text, "%s did not end an exchange within %g s", world->names[0],
                 world->timeout_seconds);
    head.bytes = (uint32_t)strlen(text);
    ot_world_send(world, 0, &head, text);
    ot_world_propose(world, OT_WORLD_CAUSE, text);
    return broken(world);
}

/* Another rank: sends its part, and takes the result. Holds the mutex. */
static int gather_at_other(struct ot_world *world, const void *mine, size_t bytes, unsigned char *all) {
    struct ot_world_peer *root = &world->peers[0];
    struct ot_world_head head = {OT_WORLD_PART, (uint32_t)bytes, world->gathers};
    ot_world_send(world, 0, &head, mine);
    OT_TRY(await_result(world));
    size_t whole = root->part_bytes;
    bool is_same = root->part_number == world->gathers && whole == bytes * (size_t)world->ranks.ranks;
    unsigned char *result = take_part(root);
    if (is_same && whole)
        memcpy(all, result, whole);
    free(result);
    if (!is_same)
        return ot_fail(OT_E_INTERNAL, "%s sent the result of another exchange", world->names[0]);
    return 0;
}

int ot_world_all_gather(struct ot_world *world, const void *mine, size_t bytes, void *all) {
    if (bytes > OT_COMM_MOST_CONTROL_BYTES)
        return ot_fail(OT_E_INTERNAL, "an exchange of %zu bytes a rank; at most %d are possible", bytes,
                       OT_COMM_MOST_CONTROL_BYTES);
    pthread_mutex_lock(&world->mutex);
    int rc = broken(world);
    world->gathers++;
    if (rc == 0 && world->ranks.ranks == 1 && bytes)
        memmove(all, mine, bytes);
    else if (rc == 0 && world->ranks.ranks > 1)
        rc = world->ranks.rank == 0 ? gather_at_root(world, mine, bytes, all)
                                    : gather_at_other(world, mine, bytes, all);
    pthread_mutex_unlock(&world->mutex);
    return rc;
}

/* ---- the end ---- */

/* "NAME: WHY", in the room of a sentence. */
static void name_reason(const struct ot_world *world, const struct ot_error *why,
                        char text[OT_ERROR_TEXT_BYTES]) {
    const char *name = world->names[world->ranks.rank];
    snprintf(text, OT_ERROR_TEXT_BYTES, "%s: %.*s", name, (int)(OT_ERROR_TEXT_BYTES - strlen(name) - 3),
             why->text);
}

int ot_world_fail(struct ot_world *world, const struct ot_error *why) {
    struct ot_world_head head = {OT_WORLD_FAIL, (uint32_t)strlen(why->text), (uint64_t)why->code};
    bool is_cause = why->code != OT_E_COMM, in_time = true;
    int64_t until_ns = after(decision_seconds);
    char text[OT_ERROR_TEXT_BYTES];
    name_reason(world, why, text);
    pthread_mutex_lock(&world->mutex);
    if (ot_world_propose(world, weight_of(why->code), text))
        world->reason.cause = why->cause;
    if (world->ranks.rank > 0)
        ot_world_send(world, 0, &head, why->text);
    while (!is_cause && !world->broken.code && in_time && world->has_thread)
        in_time = ot_cond_wait_until(&world->changed, &world->mutex, until_ns);
    int rc = is_cause || !world->broken.code ? ot_error_load(why) : broken(world);
    pthread_mutex_unlock(&world->mutex);
    return rc;
}

int ot_world_error(struct ot_world *world) {
    pthread_mutex_lock(&world->mutex);
    int rc = broken(world);
    pthread_mutex_unlock(&world->mutex);
    return rc;
}

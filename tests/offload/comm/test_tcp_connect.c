/* How the ranks of the tcp communicator connect: who may, over which addresses, and how long a transfer may
 * take. The ranks are threads. They exchange their addresses through this test, which can look at the
 * listeners of the process and change what the ranks are told. */
#include <arpa/inet.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "offload/comm/tcp_state.h"
#include "src/base/clock.h"
#include "tests/support/check.h"

enum { RANKS = 2, MOST_BYTES = 1024 };

/* What the test does while all ranks wait in exchange number `number`. bytes: of each rank. */
typedef void exchange_hook(int number, char *all, size_t bytes);

static struct {
    pthread_barrier_t barrier;
    char all[RANKS * MOST_BYTES];
    exchange_hook *hook;
    int number;
} meeting;

struct rank {
    pthread_t thread;
    int rank;
    const struct ot_comm_v1 *api;
    double timeout_seconds;
    size_t part_bytes;
    int code;
    char why[512];
    double seconds; /* of the operation */
};

static int exchange(void *host, const void *mine, size_t bytes, void *all) {
    const struct rank *self = host;
    assert_true(bytes <= MOST_BYTES);
    memcpy(meeting.all + (size_t)self->rank * bytes, mine, bytes);
    pthread_barrier_wait(&meeting.barrier);
    if (self->rank == 0) {
        meeting.number++;
        if (meeting.hook)
            meeting.hook(meeting.number, meeting.all, bytes);
    }
    pthread_barrier_wait(&meeting.barrier);
    memcpy(all, meeting.all, RANKS * bytes);
    pthread_barrier_wait(&meeting.barrier);
    return OT_COMM_OK;
}

static void *run_rank(void *arg) {
    struct rank *self = arg;
    struct ot_comm_host_v1 host = {.struct_size = sizeof host,
                                   .rank = self->rank,
                                   .ranks = RANKS,
                                   .local_rank = self->rank,
                                   .local_ranks = RANKS,
                                   .device = -1,
                                   .timeout_seconds = self->timeout_seconds,
                                   .run_id = "test",
                                   .host = self,
                                   .exchange = exchange};
    struct ot_comm_facts_v1 facts;
    void *context = NULL;
    char *all = malloc(RANKS * self->part_bytes), *part = all + (size_t)self->rank * self->part_bytes;
    self->code = self->api->open(&host, &facts, &context, self->why, sizeof self->why);
    if (self->code == OT_COMM_OK) {
        double begun = ot_clock_seconds();
        memset(part, 'a' + self->rank, self->part_bytes);
        self->code = self->api->all_gather(context, part, all, self->part_bytes, NULL);
        self->seconds = ot_clock_seconds() - begun;
        if (self->code != OT_COMM_OK)
            self->api->poll_error(context, self->why, sizeof self->why);
        for (size_t i = 0; i < RANKS * self->part_bytes && self->code == OT_COMM_OK; i++)
            if (all[i] != (char)('a' + i / self->part_bytes))
                self->code = OT_COMM_FAILED;
        self->api->close(context, self->code != OT_COMM_OK);
    }
    free(all);
    return NULL;
}

/* All ranks must connect, and gather their parts. Returns the seconds that it took. */
static double run_ranks(const struct ot_comm_v1 *api, double timeout_seconds, size_t part_bytes,
                        exchange_hook *hook) {
    struct rank ranks[RANKS];
    meeting.hook = hook;
    meeting.number = 0;
    pthread_barrier_init(&meeting.barrier, NULL, RANKS);
    for (int r = 0; r < RANKS; r++) {
        ranks[r] = (struct rank){
            .rank = r, .api = api, .timeout_seconds = timeout_seconds, .part_bytes = part_bytes};
        assert_int_equal(pthread_create(&ranks[r].thread, NULL, run_rank, &ranks[r]), 0);
    }
    for (int r = 0; r < RANKS; r++)
        pthread_join(ranks[r].thread, NULL);
    pthread_barrier_destroy(&meeting.barrier);
    for (int r = 0; r < RANKS; r++)
        if (ranks[r].code != OT_COMM_OK)
            fail_msg("rank %d: code %d, %s", r, ranks[r].code, ranks[r].why);
    return ranks[0].seconds;
}

/* ---- the listeners of this process ---- */

struct listener {
    int port;
    bool is_local; /* on a loopback address */
};

/* The TCP listeners among the descriptors of this process. Returns their number. */
static int find_listeners(struct listener *out, int most) {
    int n = 0;
    for (int fd = 3; fd < 256 && n < most; fd++) {
        struct sockaddr_storage at = {0};
        socklen_t bytes = sizeof at, int_bytes = sizeof(int);
        int accepts = 0;
        if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &int_bytes) != 0 || !accepts ||
            getsockname(fd, (void *)&at, &bytes) != 0 || at.ss_family == AF_UNIX)
            continue;
        const struct sockaddr_in *four = (const void *)&at;
        out[n].port = ntohs(four->sin_port); /* at the same place for IPv6 */
        out[n++].is_local = at.ss_family == AF_INET && four->sin_addr.s_addr == htonl(INADDR_LOOPBACK);
    }
    return n;
}

static int dial(int port) {
    struct sockaddr_in to = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0 && connect(fd, (void *)&to, sizeof to) == 0);
    return fd;
}

/* ---- strangers ---- */

static int strangers[RANKS], n_strangers;

/* Before any rank connects, a stranger greets each listener as rank 0. It knows everything but the token. */
static void greet_without_token(int number, char *all, size_t bytes) {
    const struct {
        uint32_t magic;
        int32_t rank;
        uint8_t token[OT_TCP_TOKEN_BYTES];
        uint64_t own_token;
    } hello = {.magic = OT_TCP_MAGIC, .rank = 0};
    struct listener listeners[RANKS];
    (void)all, (void)bytes;
    if (number != 2)
        return;
    n_strangers = find_listeners(listeners, RANKS);
    assert_int_equal(n_strangers, RANKS);
    for (int i = 0; i < n_strangers; i++) {
        strangers[i] = dial(listeners[i].port);
        assert_int_equal(send(strangers[i], &hello, sizeof hello, MSG_NOSIGNAL), sizeof hello);
    }
}

static void a_wrong_token_is_refused(void **state) {
    (void)state;
    run_ranks(&ot_comm_tcp_sockets, 10, 1000, greet_without_token);
    for (int i = 0; i < n_strangers; i++) {
        char byte;
        assert_true(recv(strangers[i], &byte, 1, 0) <= 0); /* nobody answers */
        close(strangers[i]);
    }
}

/* ---- addresses ---- */

static bool tell_apart; /* in the first exchange, makes the ranks believe that they are on two hosts */
static int n_local, n_found;

static void look_at_listeners(int number, char *all, size_t bytes) {
    struct listener listeners[RANKS];
    if (number == 1 && tell_apart)
        all[bytes] ^= 1; /* the id of the kernel of rank 1 */
    if (number != 2)
        return;
    n_found = find_listeners(listeners, RANKS);
    for (int i = 0; i < n_found; i++)
        n_local += listeners[i].is_local;
}

static void check_listeners(bool apart, int want) {
    tell_apart = apart;
    n_local = n_found = 0;
    run_ranks(apart ? &ot_comm_tcp_sockets : &ot_comm_tcp, 10, 1000, look_at_listeners);
    assert_int_equal(n_found, RANKS);
    assert_int_equal(n_local, want);
}

/* Rank 1 is told another kernel of rank 0 than its own, and rank 0 another one of rank 1. */
static void ranks_of_one_host_listen_there_alone(void **state) {
    (void)state;
    check_listeners(false, RANKS);
    check_listeners(true, 0);
}

/* ---- a slow link ---- */

/* A link that takes SLICE bytes in each direction every PAUSE. */
enum { SLICE = 1 << 16, PAUSE_NS = 20000000, SLOW_BYTES = 12 << 20 };
static const double slow_timeout_seconds = 1;

struct link {
    pthread_t thread;
    int listener, port;
} slow;

static bool pass_on(int from, int to) {
    static _Thread_local char bytes[SLICE];
    ssize_t n = recv(from, bytes, sizeof bytes, MSG_DONTWAIT);
    for (ssize_t done = 0, some; n > 0 && done<n; done += some> 0 ? some : 0) {
        some = send(to, bytes + done, (size_t)(n - done), MSG_NOSIGNAL);
        if (some < 0)
            return false;
    }
    return n != 0;
}

static void *serve_link(void *arg) {
    const struct timespec pause = {.tv_nsec = PAUSE_NS};
    struct link *link = arg;
    int from = accept(link->listener, NULL, NULL), to = dial(link->port);
    bool forth = true, back = true;
    while (forth || back) {
        nanosleep(&pause, NULL);
        if (forth && !pass_on(from, to)) {
            forth = false;
            shutdown(to, SHUT_WR);
        }
        if (back && !pass_on(to, from)) {
            back = false;
            shutdown(from, SHUT_WR);
        }
    }
    close(from);
    close(to);
    return NULL;
}

/* Puts a slow link in front of rank 1: changes the port on its card, the last of the card's numbers. */
static void slow_down(int number, char *all, size_t bytes) {
    struct listener listeners[RANKS];
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t at_bytes = sizeof at;
    if (number != 2)
        return;
    int n = find_listeners(listeners, RANKS);
    slow.listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(slow.listener >= 0 && bind(slow.listener, (void *)&at, sizeof at) == 0);
    assert_true(listen(slow.listener, 1) == 0 && getsockname(slow.listener, (void *)&at, &at_bytes) == 0);
    slow.port = 0;
    for (size_t byte = 2 * bytes; byte > bytes && !slow.port; byte -= 2)
        for (int i = 0; i < n; i++) {
            uint16_t port, new_port = ntohs(at.sin_port);
            memcpy(&port, all + byte - 2, sizeof port);
            if (port != listeners[i].port)
                continue;
            slow.port = port;
            memcpy(all + byte - 2, &new_port, sizeof new_port);
            break;
        }
    assert_true(slow.port > 0);
    assert_int_equal(pthread_create(&slow.thread, NULL, serve_link, &slow), 0);
}

/* The timeout is for a rank that does not answer. A rank whose bytes keep coming may take longer. */
static void a_steady_transfer_may_take_longer_than_the_timeout(void **state) {
    (void)state;
    double seconds = run_ranks(&ot_comm_tcp_sockets, slow_timeout_seconds, SLOW_BYTES, slow_down);
    assert_true(seconds > slow_timeout_seconds); /* or this test shows nothing */
    pthread_join(slow.thread, NULL);
    close(slow.listener);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_wrong_token_is_refused),
        cmocka_unit_test(ranks_of_one_host_listen_there_alone),
        cmocka_unit_test(a_steady_transfer_may_take_longer_than_the_timeout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

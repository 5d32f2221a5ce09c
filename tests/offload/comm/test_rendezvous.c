/* How the ranks of a world find each other: deadlines, ranks that do not match, and strangers. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "offload/comm/world_state.h"
#include "src/base/clock.h"
#include "tests/offload/comm/world_ranks.h"

static int gather_number(struct ot_world *world) {
    int mine = ot_world_ranks(world)->rank, all[TEST_RANKS];
    return ot_world_all_gather(world, &mine, sizeof mine, all);
}

/* ---- connections by hand ---- */

/* Containers often have none. */
static bool has_ipv6(void) {
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool is_bound = fd >= 0 && bind(fd, (void *)&at, sizeof at) == 0;
    if (fd >= 0)
        close(fd);
    return is_bound;
}

static int listen_on_ipv6_alone(void) {
    struct sockaddr_in6 at = {.sin6_family = AF_INET6,
                              .sin6_port = htons((uint16_t)config_of(0, 2).ranks.port)};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    assert_true(fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof on) == 0);
    assert_true(bind(fd, (void *)&at, sizeof at) == 0 && listen(fd, 8) == 0);
    return fd;
}

/* What rank 0 answers must have these words; the connection then ends. */
static void check_refusal(int fd, const char *words) {
    struct ot_world_reply reply;
    char byte;
    assert_int_equal(recv(fd, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
    assert_int_equal(reply.verdict, OT_E_USAGE);
    if (!strstr(reply.text, words))
        fail_msg("'%s' is not '%s'", reply.text, words);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

/* ---- deadlines ---- */

static void the_deadline_names_the_missing_ranks(void **state) {
    (void)state;
    static const int present[] = {0, 1, 3, 4};
    char words[128];
    for (int i = 0; i < 4; i++) {
        struct ot_world_config config = config_of(present[i], 6);
        config.timeout_seconds = 1.5;
        start_rank(&config, NULL);
    }
    await_ranks();
    snprintf(words, sizeof words,
             "ranks 2 and 5 of 6 did not connect to localhost:%d within 1.5 s; start all",
             config_of(0, 6).ranks.port);
    for (int i = 0; i < 4; i++)
        check_report(present[i], words);
}

static void a_rank_without_rank_0_gives_up(void **state) {
    (void)state;
    char words[128];
    struct ot_world_config config = config_of(1, 2);
    config.timeout_seconds = 1;
    start_rank(&config, NULL);
    await_ranks();
    snprintf(words, sizeof words,
             "rank 1 did not reach rank 0 at localhost:%d within 1 s: Connection refused", config.ranks.port);
    check_report(1, words);
}

static void a_name_that_is_unknown_is_an_error(void **state) {
    (void)state;
    struct ot_world_config config = config_of(1, 2);
    config.timeout_seconds = 1;
    strcpy(config.ranks.address, "no-such-host.invalid");
    start_rank(&config, NULL);
    await_ranks();
    check_report(1, "rank 1 did not reach rank 0 at no-such-host.invalid:");
}

static void a_server_that_is_silent_is_an_error(void **state) {
    (void)state;
    int listener = listen_here();
    struct ot_world_config config = config_of(1, 2);
    config.timeout_seconds = 1;
    start_rank(&config, NULL);
    await_ranks();
    check_report(1, "the connection was accepted, but nothing answered");
    close(listener);
}

static void another_server_is_an_error(void **state) {
    (void)state;
    static const char page[sizeof(struct ot_world_reply)] = "HTTP/1.1 400 Bad Request";
    int listener = listen_here();
    struct ot_world_config config = config_of(1, 2);
    config.timeout_seconds = 1;
    start_rank(&config, NULL);
    /* the rank tries again and again; it must have an answer each time */
    double until = ot_clock_seconds() + 1.5;
    struct timeval patience = {.tv_usec = 100000};
    setsockopt(listener, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    while (ot_clock_seconds() < until) {
        char hello[sizeof(struct ot_world_hello)];
        int fd = accept(listener, NULL, NULL);
        if (fd < 0)
            continue;
        assert_int_equal(recv(fd, hello, sizeof hello, MSG_WAITALL), sizeof hello);
        say(fd, page, sizeof page);
        close(fd);
    }
    await_ranks();
    check_report(1, "another program answers there");
    close(listener);
}

static void a_port_that_is_taken_is_an_error(void **state) {
    (void)state;
    int listener = listen_here();
    struct ot_world_config config = config_of(0, 2);
    start_rank(&config, NULL);
    await_ranks();
    check_report(0, "another program on this host listens on port ");
    check_report(0, "choose another port");
    close(listener);
}

static void a_port_that_is_taken_for_ipv6_is_an_error(void **state) {
    (void)state;
    if (!has_ipv6())
        skip();
    int listener = listen_on_ipv6_alone();
    struct ot_world_config config = config_of(0, 2);
    config.timeout_seconds = 1;
    start_rank(&config, NULL);
    await_ranks();
    check_report(0, "another program on this host listens on port ");
    close(listener);
}

static void rank_0_may_inherit_its_listener(void **state) {
    (void)state;
    struct ot_world_config config = config_of(0, 2);
    config.listener = listen_here();
    assert_true(config.listener >= 0);
    config.ranks.port = 0;
    start_rank(&config, gather_number);
    close(config.listener);
    config = config_of(1, 2);
    start_rank(&config, gather_number);
    await_ranks();
    check_no_errors(2);
}

static void ranks_may_come_in_any_order_and_over_ipv6(void **state) {
    (void)state;
    for (int rank = 2; rank >= 0; rank--) {
        struct ot_world_config config = config_of(rank, 3);
        strcpy(config.ranks.address, rank == 1 && has_ipv6() ? "::1" : "127.0.0.1");
        start_rank(&config, gather_number);
        usleep(100000);
    }
    await_ranks();
    check_no_errors(3);
}

/* ---- hosts ---- */

static int find_hosts(struct ot_world *world) {
    const struct ot_ranks *ranks = ot_world_ranks(world);
    return ot_fail(OT_E_COMM, "%d hosts, local rank %d of %d", ot_world_hosts(world), ranks->local_rank,
                   ranks->local_ranks);
}

/* Rank 1 of 2 is by hand: its host has the name of this one. It takes part in the gather of all hellos. */
static void check_hosts(bool same_boot_id, const char *words) {
    struct ot_world_config config = config_of(0, 2);
    struct ot_world_hello hello = hello_of(1, 2);
    struct ot_world_head head = {OT_WORLD_PART, sizeof hello, 1};
    struct ot_world_reply reply;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    size_t n = file ? fread(hello.boot_id, 1, sizeof hello.boot_id - 1, file) : 0;
    if (file)
        fclose(file);
    assert_true(n > 0);
    if (!same_boot_id)
        hello.boot_id[0] ^= 1;
    assert_int_equal(gethostname(hello.host, sizeof hello.host - 1), 0);
    start_rank(&config, find_hosts);
    int fd = dial();
    say(fd, &hello, sizeof hello);
    hear(fd, &reply, sizeof reply);
    assert_int_equal(reply.verdict, OT_WORLD_TAKEN);
    say(fd, &head, sizeof head);
    say(fd, &hello, sizeof hello);
    await_report(0);
    close(fd);
    await_ranks();
    check_report(0, words);
}

/* Containers and clouds give the same name to many hosts. The id of the kernel's start tells them apart. */
static void two_hosts_may_have_one_name(void **state) {
    check_hosts(false, "2 hosts, local rank 0 of 1");
    teardown_ranks(state);
    setup_ranks(state);
    check_hosts(true, "1 hosts, local rank 0 of 2");
}

/* ---- ranks that do not match ---- */

/* Rank 0 of two ranks waits; a hello that does not match is refused, and ends the run. */
static void check_mismatch(const struct ot_world_hello *hello, const char *words) {
    struct ot_world_config config = config_of(0, 2);
    start_rank(&config, NULL);
    int fd = dial();
    say(fd, hello, sizeof *hello);
    check_refusal(fd, words);
    await_ranks();
    check_report_code(0, OT_E_USAGE, words);
}

static void another_version_ends_the_run(void **state) {
    (void)state;
    struct ot_world_hello hello = hello_of(1, 2);
    strcpy(hello.version, "99.1");
    check_mismatch(&hello,
                   "rank 1 (host far, process 4711) is version 99.1 of the program, but rank 0 (host ");
}

static void another_number_of_ranks_ends_the_run(void **state) {
    (void)state;
    struct ot_world_hello hello = hello_of(1, 3);
    check_mismatch(&hello,
                   "rank 1 (host far, process 4711) was started as one of 3 ranks, but rank 0 (host ");
}

static void an_impossible_rank_ends_the_run(void **state) {
    (void)state;
    struct ot_world_hello hello = hello_of(2, 2);
    check_mismatch(&hello, "rank 2 (host far, process 4711) has an impossible rank: there are 2");
}

static void two_processes_with_one_rank_end_the_run(void **state) {
    (void)state;
    char words[256];
    struct ot_world_config config = config_of(0, 3);
    start_rank(&config, NULL);
    struct ot_world_hello hello = hello_of(1, 3);
    struct ot_world_reply reply;
    int first = dial();
    say(first, &hello, sizeof hello);
    assert_int_equal(recv(first, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
    assert_int_equal(reply.verdict, OT_WORLD_TAKEN);
    config = config_of(1, 3);
    pid_t second = start_rank(&config, NULL);
    snprintf(words, sizeof words,
             "two processes have rank 1: rank 1 (host far, process 4711) and rank 1 (host ");
    await_ranks();
    check_report_code(0, OT_E_USAGE, words);
    check_report_code(1, OT_E_USAGE, words);
    snprintf(words, sizeof words, "process %d)", second);
    check_report_code(0, OT_E_USAGE, words);
    close(first);
}

static void ranks_of_another_run_do_no_harm(void **state) {
    (void)state;
    struct ot_world_config config = config_of(0, 2), other = config_of(1, 2);
    start_rank(&config, gather_number);
    strcpy(other.ranks.run_id, "other");
    start_rank(&other, NULL);
    await_report(1);
    check_report_code(1, OT_E_USAGE, "has run id 'other', but rank 0 (host ");
    check_report_code(1, OT_E_USAGE, ") has 'test': they belong to different runs");
    config = config_of(1, 2);
    start_rank(&config, gather_number);
    await_ranks();
    check_no_errors(2);
    check_log("warning: rank 0 refuses a connection: rank 1 (host "); /* it writes this after its answer */
}

static void another_protocol_is_answered(void **state) {
    (void)state;
    struct ot_world_config config = config_of(0, 2);
    start_rank(&config, gather_number);
    struct ot_world_hello hello = hello_of(1, 2);
    hello.protocol = 7;
    int fd = dial();
    say(fd, &hello, sizeof hello);
    check_refusal(fd, "a rank uses protocol 7, but rank 0 uses 2: use one version of the program");
    config = config_of(1, 2);
    start_rank(&config, gather_number);
    await_ranks();
    check_no_errors(2);
    check_log("uses protocol 7");
}

/* ---- strangers ---- */

static void strangers_are_dropped(void **state) {
    (void)state;
    struct ot_world_config config = config_of(0, 2);
    struct ot_world_hello hello = hello_of(1, 2);
    start_rank(&config, gather_number);
    int scanner = dial(), web = dial(), half = dial(), silent = dial();
    hello.magic[0] = 'X'; /* all else is right */
    int other = dial();
    say(other, &hello, sizeof hello);
    hello.magic[0] = 'O';
    close(scanner);
    say(web, "GET / HTTP/1.1\r\n\r\n", 18);
    say(half, &hello, sizeof hello / 2);
    for (int i = 0; i < 200; i++) { /* more than rank 0 keeps */
        unsigned char noise[64];
        int fd = dial();
        fill_bytes(noise, sizeof noise, (uint64_t)i);
        if (i % 2)
            send(fd, noise, sizeof noise, MSG_NOSIGNAL); /* it may be closed already */
        close(fd);
    }
    config = config_of(1, 2);
    start_rank(&config, gather_number);
    await_ranks();
    check_no_errors(2);
    check_log("warning: rank 0 drops a connection from ");
    check_log("; later ones are not logged");
    close(other);
    close(web);
    close(half);
    close(silent);
}

static void a_flood_of_open_connections_is_survived(void **state) {
    (void)state;
    enum { N = 100 };
    int fds[N];
    struct ot_world_config config = config_of(0, 2);
    start_rank(&config, gather_number);
    for (int i = 0; i < N; i++)
        fds[i] = dial();
    config = config_of(1, 2);
    start_rank(&config, gather_number);
    await_ranks();
    check_no_errors(2);
    check_log("too many connections wait");
    for (int i = 0; i < N; i++)
        close(fds[i]);
}

static void slow_hellos_are_read_byte_by_byte(void **state) {
    (void)state;
    struct ot_world_config config = config_of(0, 2);
    struct ot_world_hello hello = hello_of(1, 2);
    struct ot_world_reply reply;
    start_rank(&config, NULL);
    int fd = dial();
    for (size_t i = 0; i < sizeof hello; i++) {
        say(fd, (const char *)&hello + i, 1);
        if (i % 16 == 0)
            usleep(1000);
    }
    assert_int_equal(recv(fd, &reply, sizeof reply, MSG_WAITALL), sizeof reply);
    assert_int_equal(reply.verdict, OT_WORLD_TAKEN);
    close(fd);
    await_ranks();
    check_report(0, "rank 1 (host far, process 4711) is lost: ");
}

/* A rank of this run that sends nonsense after its hello. */
static void check_nonsense(const struct ot_world_head *head) {
    struct ot_world_config config = config_of(0, 3);
    struct ot_world_hello hello = hello_of(1, 3);
    start_rank(&config, NULL);
    int fd = dial();
    say(fd, &hello, sizeof hello);
    say(fd, head, sizeof *head);
    await_ranks();
    check_report(0, "rank 1 (host far, process 4711) is lost: it sent a message that makes no sense");
    close(fd);
}

static void nonsense_ends_the_run(void **state) {
    static const struct ot_world_head heads[] = {{.kind = 77},
                                                 {.kind = 0},
                                                 {.kind = OT_WORLD_PART, .bytes = 65537},
                                                 {.kind = OT_WORLD_FAIL, .bytes = 0xffffffff},
                                                 {.kind = OT_WORLD_GOODBYE, .bytes = 1},
                                                 {.kind = OT_WORLD_RESULT, .bytes = 8}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        check_nonsense(&heads[i]);
        teardown_ranks(state);
        setup_ranks(state);
    }
}

static void impossible_ranks_are_refused(void **state) {
    (void)state;
    struct ot_world *world;
    struct ot_world_config config = config_of(0, 65);
    check_fails(ot_world_open(&config, &world), OT_E_USAGE, "1 to 64 ranks, not 65");
    config = config_of(2, 2);
    check_fails(ot_world_open(&config, &world), OT_E_USAGE, "rank 2 is impossible with 2 ranks");
    config = config_of(1, 2);
    config.ranks.address[0] = '\0';
    check_fails(ot_world_open(&config, &world), OT_E_USAGE, "does not know the address of rank 0");
    config = config_of(0, 2);
    config.ranks.port = 65536;
    check_fails(ot_world_open(&config, &world), OT_E_USAGE, "port 65536");
}

#define RANKS_TEST(name) cmocka_unit_test_setup_teardown(name, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        RANKS_TEST(the_deadline_names_the_missing_ranks),
        RANKS_TEST(a_rank_without_rank_0_gives_up),
        RANKS_TEST(a_name_that_is_unknown_is_an_error),
        RANKS_TEST(a_server_that_is_silent_is_an_error),
        RANKS_TEST(another_server_is_an_error),
        RANKS_TEST(a_port_that_is_taken_is_an_error),
        RANKS_TEST(a_port_that_is_taken_for_ipv6_is_an_error),
        RANKS_TEST(rank_0_may_inherit_its_listener),
        RANKS_TEST(ranks_may_come_in_any_order_and_over_ipv6),
        RANKS_TEST(two_hosts_may_have_one_name),
        RANKS_TEST(another_version_ends_the_run),
        RANKS_TEST(another_number_of_ranks_ends_the_run),
        RANKS_TEST(an_impossible_rank_ends_the_run),
        RANKS_TEST(two_processes_with_one_rank_end_the_run),
        RANKS_TEST(ranks_of_another_run_do_no_harm),
        RANKS_TEST(another_protocol_is_answered),
        RANKS_TEST(strangers_are_dropped),
        RANKS_TEST(a_flood_of_open_connections_is_survived),
        RANKS_TEST(slow_hellos_are_read_byte_by_byte),
        RANKS_TEST(nonsense_ends_the_run),
        RANKS_TEST(impossible_ranks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

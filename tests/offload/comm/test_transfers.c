/* Transfers from rank to rank over tcp: any agreed order of transfers and operations moves the right bytes,
 * in whatever calls a rank does its halves; and a rank that is killed, does not come, or differs ends the
 * others soon, with a sentence that names it. (test_comm.c has the checks of comm-test.) */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/crossing.h"
#include "offload/comm/tcp.h"
#include "src/base/clock.h"
#include "src/base/thread.h"
#include "tests/offload/comm/comm_seat.h"
#include "tests/offload/comm/random_transfers.h"
#include "tests/offload/comm/world_ranks.h"

enum { PART_BYTES = 3 << 20 };

/* The ranks are forked, so they get these. */
static const struct ot_comm_v1 *api;
static double timeout_seconds;
static int n_ranks;
static size_t first_bytes, second_bytes; /* sizes of a case */

/* The three ways of data. */
static const struct ot_comm_v1 *const ways[] = {&ot_comm_tcp, &ot_comm_tcp_ring, &ot_comm_tcp_sockets};
enum { WAYS = 3 };

static void start(const struct ot_comm_v1 *given, int ranks, double seconds, rank_body *body) {
    api = given;
    n_ranks = ranks;
    timeout_seconds = seconds;
    start_ranks(ranks, body);
}

static int open_here(struct ot_world *world, struct seat *s) {
    return open_seat(world, api, &ot_comm_tcp_transfers, timeout_seconds, PART_BYTES, s);
}

static void send_one(struct seat *s, int to, void *memory, size_t bytes) {
    ot_comm_transfer(s->comm, s->lane, &(struct ot_comm_transfer_v1){to, 1, memory, bytes}, 1);
}

static void receive_one(struct seat *s, int from, void *memory, size_t bytes) {
    ot_comm_transfer(s->comm, s->lane, &(struct ot_comm_transfer_v1){from, 0, memory, bytes}, 1);
}

static void await_go(int wanted) {
    while (atomic_load(&shared->go) < wanted)
        sleep_ms(1);
}

/* ---- random programs ---- */

static uint64_t seed;

static int run_program(struct ot_world *world) {
    struct seat s; /* without memory for parts: the program brings its own */
    int rc = open_seat(world, api, &ot_comm_tcp_transfers, timeout_seconds, 1, &s);
    if (rc == 0)
        rc = random_transfers_run(s.comm, s.device, s.lane, seed);
    close_seat(&s);
    return rc;
}

static void run_programs(int ranks) {
    int rounds = tests_are_brief() ? 1 : 2;
    for (int i = 0; i < rounds * WAYS; i++) {
        seed = 100 * (uint64_t)ranks + (uint64_t)i;
        start(ways[i % WAYS], ranks, 60, run_program);
        await_ranks();
        check_no_errors(ranks);
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

static void test_random_programs_of_2(void **state) {
    (void)state;
    run_programs(2);
}

static void test_random_programs_of_3(void **state) {
    (void)state;
    if (!tests_are_for_races())
        run_programs(3);
}

static void test_random_programs_of_4(void **state) {
    (void)state;
    run_programs(4);
}

static void test_random_programs_of_8(void **state) {
    (void)state;
    run_programs(8);
}

/* ---- what comes early ---- */

enum { EARLY = 7 };

/* Rank 1 sends in the call in which it receives; rank 0 receives that later, in a call for each. So what
 * rank 1 sends is in front of its answer. */
static int send_early(struct ot_world *world) {
    static const size_t sizes[EARLY] = {0, 1, 300000, 0, 2 << 20, 17, 65536};
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0 && rank == 0) {
        memset(s.send, 'z', PART_BYTES);
        send_one(&s, 1, s.send, PART_BYTES);
        rc = finish_seat(&s);
        for (int i = 0; i < EARLY && rc == 0; i++) {
            receive_one(&s, 1, s.receive, sizes[i]);
            rc = finish_seat(&s);
            for (size_t k = 0; k < sizes[i] && rc == 0; k++)
                if (s.receive[k] != 'a' + i)
                    rc = ot_fail(OT_E_COMM, "byte %zu of transfer %d is wrong", k, i);
        }
    } else if (rc == 0) {
        struct ot_comm_transfer_v1 list[EARLY + 1];
        unsigned char *at = s.send;
        for (int i = 0; i < EARLY; at += sizes[i++]) {
            memset(at, 'a' + i, sizes[i]);
            list[i] = (struct ot_comm_transfer_v1){0, 1, at, sizes[i]};
        }
        list[EARLY] = (struct ot_comm_transfer_v1){0, 0, s.receive, PART_BYTES};
        ot_comm_transfer(s.comm, s.lane, list, EARLY + 1);
        rc = finish_seat(&s);
        if (rc == 0 && (s.receive[0] != 'z' || s.receive[PART_BYTES - 1] != 'z'))
            rc = ot_fail(OT_E_COMM, "it is wrong");
    }
    close_seat(&s);
    return rc;
}

static void test_early_transfers(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        start(ways[w], 2, 20, send_early);
        await_ranks();
        check_no_errors(2);
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

/* Rank 1 sends what rank 0 never receives, in front of its answer: rank 0 does an operation of all instead.
 * */
static int forget_to_receive(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    const struct ot_comm_transfer_v1 both[] = {{0, 1, s.send, 1000}, {0, 0, s.receive, 2000}};
    if (rc == 0 && rank == 0) {
        send_one(&s, 1, s.send, 2000);
        ot_comm_all_gather(s.comm, s.lane, s.send, s.receive, 500);
    } else if (rc == 0) {
        ot_comm_transfer(s.comm, s.lane, both, 2);
    }
    rc = rc == 0 ? finish_seat(&s) : rc;
    close_seat(&s);
    return rc;
}

static void test_early_transfer_that_nobody_receives(void **state) {
    (void)state;
    for (int w = 0; w < 2; w++) {
        start(ways[w], 2, 20, forget_to_receive);
        await_ranks();
        check_report(0, "rank 1 does transfer 1 (1000 bytes), but this rank does operation 1 (all_gather of "
                        "500 bytes)");
        if (w == 0) /* through a ring it has been sent: the slots have it */
            check_report(1, "rank 0 ");
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

/* ---- progress ---- */

/* Rank 2 receives after rank 1 has all it gets from the same call of rank 0. */
static int complete_one_by_one(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0 && rank == 0) {
        const struct ot_comm_transfer_v1 list[] = {
            {2, 1, s.send, PART_BYTES}, {1, 1, s.send, PART_BYTES}, {1, 1, s.send, PART_BYTES}};
        ot_comm_transfer(s.comm, s.lane, list, 3);
    } else if (rc == 0 && rank == 1) {
        receive_one(&s, 0, s.receive, PART_BYTES);
        receive_one(&s, 0, s.receive, PART_BYTES);
        rc = finish_seat(&s);
        atomic_store(&shared->go, 1);
    } else if (rc == 0) {
        await_go(1);
        receive_one(&s, 0, s.receive, PART_BYTES);
    }
    rc = rc == 0 ? finish_seat(&s) : rc;
    close_seat(&s);
    return rc;
}

static void test_transfers_complete_by_themselves(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        start(ways[w], 3, 20, complete_one_by_one);
        await_ranks();
        check_no_errors(3);
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

/* Many small transfers, a call each, of which none is waited for. They need no other way: no byte of them is
 * copied to the host first. */
static int send_many(struct ot_world *world) {
    enum { MANY = 1500 };
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0 && ot_comm_wants_crossing(s.comm))
        rc = ot_fail(OT_E_COMM, "the cpu device wants a crossing");
    for (int i = 0; rc == 0 && i < MANY; i++)
        s.send[i] = (unsigned char)(i * 7 + rank);
    for (int i = 0; rc == 0 && i < MANY; i++) {
        const struct ot_comm_transfer_v1 list[] = {
            {(rank + 1) % n_ranks, 1, s.send + i, 1},
            {(rank + n_ranks - 1) % n_ranks, 0, s.receive + i, 1},
        };
        ot_comm_transfer(s.comm, s.lane, list, 2);
    }
    rc = rc == 0 ? finish_seat(&s) : rc;
    for (int i = 0; rc == 0 && i < MANY; i++)
        if (s.receive[i] != (unsigned char)(i * 7 + (rank + n_ranks - 1) % n_ranks))
            rc = ot_fail(OT_E_COMM, "byte %d is wrong", i);
    close_seat(&s);
    return rc;
}

static void test_many_small_transfers(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        start(ways[w], 3, 20, send_many);
        await_ranks();
        check_no_errors(3);
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

/* All ranks of a ring send first, and receive in a later call: each waits for the next, in a circle. */
static int wait_in_a_circle(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0) {
        send_one(&s, (rank + 1) % n_ranks, s.send, PART_BYTES);
        receive_one(&s, (rank + n_ranks - 1) % n_ranks, s.receive, PART_BYTES);
        rc = finish_seat(&s);
    }
    close_seat(&s);
    return rc;
}

static void test_circle_ends_at_the_deadline(void **state) {
    (void)state;
    start(&ot_comm_tcp, 3, 0.5, wait_in_a_circle);
    await_ranks();
    int late = 0;
    for (int r = 0; r < 3; r++) {
        check_report(r, "rank ");
        late += strstr(shared->reports[r].text, "did not answer for 0.5 s") != NULL;
    }
    assert_true(late > 0);
}

/* ---- a killed rank ---- */

static bool dies_receiving; /* rank 1 was to receive from rank 0; otherwise to send to it */

/* Rank 1 does transfers with rank 0 until it is killed; rank 2 has no part. */
static int transfer_until_it_fails(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    for (int i = 0; rc == 0 && rank < 2; i++) {
        bool sends = (rank == 0) == dies_receiving;
        if (i == 20)
            atomic_fetch_add(&shared->go, 1);
        if (sends)
            send_one(&s, 1 - rank, s.send, PART_BYTES);
        else
            receive_one(&s, 1 - rank, s.receive, PART_BYTES);
        rc = finish_seat(&s);
    }
    while (rc == 0) {
        rc = ot_comm_error(s.comm);
        sleep_ms(1);
    }
    close_seat(&s);
    struct ot_error error;
    ot_error_save(&error, rc);
    return ot_world_fail(world, &error);
}

static void check_kill(const struct ot_comm_v1 *given, bool receiving) {
    dies_receiving = receiving;
    start(given, 3, 60, transfer_until_it_fails);
    await_go(2);
    double since = ot_clock_seconds();
    kill_rank(1, SIGKILL);
    await_ranks();
    assert_true(ot_clock_seconds() - since < 10);
    check_report(0, "rank 1 (");
    check_report(2, "rank 1 (");
    teardown_ranks(NULL);
    setup_ranks(NULL);
}

static void test_killed_receiver(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++)
        check_kill(ways[w], true);
}

static void test_killed_sender(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++)
        check_kill(ways[w], false);
}

/* ---- a rank that does not come ---- */

static bool waits_to_send;

static int wait_for_rank_1(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0 && rank == 0 && waits_to_send)
        send_one(&s, 1, s.send, PART_BYTES);
    else if (rc == 0 && rank == 0)
        receive_one(&s, 1, s.receive, PART_BYTES);
    if (rc == 0 && rank == 0) {
        rc = finish_seat(&s);
        atomic_store(&shared->go, 1);
    }
    await_go(1);
    close_seat(&s);
    return rc;
}

static void test_deadlines(void **state) {
    (void)state;
    for (int i = 0; i < 2 * WAYS - 1;
         i += tests_are_for_races() ? 2 : 1) { /* the buffers of a socket may take all of it */
        waits_to_send = i % 2;
        start(ways[i / 2], 3, 0.4, wait_for_rank_1);
        await_ranks();
        check_report(0, "rank 1 did not answer for 0.4 s");
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

static void *abort_soon(void *arg) {
    sleep_ms(100);
    ot_comm_abort(arg);
    return NULL;
}

/* Rank 0 sends and receives in vain, and another of its threads aborts. */
static int abort_from_another_thread(struct ot_world *world) {
    struct seat s;
    pthread_t thread;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0 && rank == 0) {
        const struct ot_comm_transfer_v1 list[] = {{1, 1, s.send, PART_BYTES}, {1, 0, s.receive, 9}};
        ot_comm_transfer(s.comm, s.lane, list, 2);
        ot_comm_transfer(s.comm, s.lane, list, 2);
        if (ot_thread_start(&thread, "abort", abort_soon, s.comm) != 0)
            abort();
        rc = finish_seat(&s);
        pthread_join(thread, NULL);
        atomic_store(&shared->go, 1);
    }
    await_go(1);
    close_seat(&s);
    return rc;
}

static void test_abort(void **state) {
    (void)state;
    for (int w = 0; w < WAYS; w++) {
        start(ways[w], 2, 60, abort_from_another_thread);
        await_ranks();
        check_report(0, "the communicator tcp was aborted");
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

/* ---- ranks that differ ---- */

/* The first transfers are equal, the second ones are not. */
static int differ_in_size(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0 && rank == 0) {
        send_one(&s, 1, s.send, 10);
        send_one(&s, 1, s.send, first_bytes);
    } else if (rc == 0) {
        receive_one(&s, 0, s.receive, 10);
        receive_one(&s, 0, s.receive, second_bytes);
    }
    rc = rc == 0 ? finish_seat(&s) : rc;
    if (rank == 1)
        atomic_store(&shared->go, 1);
    await_go(1); /* rank 0 has sent everything, perhaps */
    close_seat(&s);
    return rc;
}

static void test_sizes_that_differ(void **state) {
    static const size_t sizes[][2] = {{0, 5}, {5, 0}, {7, 8}, {300000, 299999}, {PART_BYTES - 1, PART_BYTES}};
    char want[128];
    (void)state;
    for (int i = 0; i < 5 * WAYS; i += tests_are_for_races() ? 3 : 1) {
        first_bytes = sizes[i % 5][0];
        second_bytes = sizes[i % 5][1];
        start(ways[i / 5], 2, 20, differ_in_size);
        await_ranks();
        snprintf(want, sizeof want,
                 "rank 0 does transfer 2 (%zu bytes), but this rank does transfer 2 (%zu bytes)", first_bytes,
                 second_bytes);
        check_report(1, want);
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

static bool sends_instead;

/* Rank 1 does an operation of all ranks, and rank 0 a transfer with it. */
static int differ_in_kind(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    if (rc == 0 && rank == 1)
        ot_comm_all_gather(s.comm, s.lane, s.send, s.receive, 100);
    else if (rc == 0 && sends_instead)
        send_one(&s, 1, s.send, 200);
    else if (rc == 0)
        receive_one(&s, 1, s.receive, 200);
    rc = rc == 0 ? finish_seat(&s) : rc;
    close_seat(&s);
    return rc;
}

static void test_kinds_that_differ(void **state) {
    (void)state;
    for (int i = 0; i < 2 * WAYS; i++) {
        sends_instead = i % 2;
        start(ways[i / 2], 2, 20, differ_in_kind);
        await_ranks();
        const char *a = shared->reports[0].text, *b = shared->reports[1].text;
        assert_int_equal(shared->reports[1].rc, -OT_E_COMM);
        assert_true(
            strstr(a, "rank 1 does operation 1 (all_gather of 100 bytes), but this rank does transfer "
                      "1 (200 bytes)") ||
            strstr(b, "rank 0 does transfer 1 (200 bytes), but this rank does operation 1 (all_gather "
                      "of 100 bytes)"));
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_random_programs_of_2),
        TEST(test_random_programs_of_3),
        TEST(test_random_programs_of_4),
        TEST(test_random_programs_of_8),
        TEST(test_early_transfers),
        TEST(test_early_transfer_that_nobody_receives),
        TEST(test_transfers_complete_by_themselves),
        TEST(test_many_small_transfers),
        TEST(test_circle_ends_at_the_deadline),
        TEST(test_killed_receiver),
        TEST(test_killed_sender),
        TEST(test_deadlines),
        TEST(test_abort),
        TEST(test_sizes_that_differ),
        TEST(test_kinds_that_differ),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

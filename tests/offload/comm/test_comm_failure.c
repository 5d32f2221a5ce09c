/* A rank that is killed, comes too late, aborts or does another operation ends the operation of every other
 * rank soon, with a sentence that names it. */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "offload/comm/comm.h"
#include "offload/comm/plugin.h"
#include "offload/comm/tcp.h"
#include "src/base/clock.h"
#include "src/base/thread.h"
#include "tests/offload/comm/comm_seat.h"
#include "tests/offload/comm/world_ranks.h"
#include "tests/support/check.h"

enum { PART_BYTES = 3 << 20 };

/* The ranks are forked, so they get these. */
static const struct ot_comm_v1 *api;
static const struct ot_comm_transfers_v1 *transfers = &ot_comm_tcp_transfers; /* NULL: the ranks have none */
static double timeout_seconds;

static int open_here(struct ot_world *world, struct seat *s) {
    return open_seat(world, api, transfers, timeout_seconds, PART_BYTES, s);
}

static void exchange(struct seat *s) {
    ot_comm_all_to_all(s->comm, s->lane, s->send, s->receive, PART_BYTES);
}

static void start(const struct ot_comm_v1 *given, int ranks, double seconds, rank_body *body) {
    api = given;
    timeout_seconds = seconds;
    start_ranks(ranks, body);
}

/* ---- a killed rank ---- */

static int exchange_until_it_fails(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s);
    for (int i = 0; rc == 0; i++) {
        if (i == 20)
            atomic_fetch_add(&shared->go, 1);
        exchange(&s);
        rc = finish_seat(&s);
    }
    close_seat(&s);
    struct ot_error error;
    ot_error_save(&error, rc);
    return ot_world_fail(world, &error);
}

/* Some ranks see first that another survivor has closed its connections. The world knows the reason. */
static void check_kill(const struct ot_comm_v1 *given) {
    start(given, 4, 60, exchange_until_it_fails);
    while (atomic_load(&shared->go) < 4)
        sleep_ms(1);
    double since = ot_clock_seconds();
    kill_rank(2, SIGKILL);
    await_ranks();
    assert_true(ot_clock_seconds() - since < 10);
    check_report(0, "rank 2 (");
    check_report(1, "rank 2 (");
    check_report(3, "rank 2 (");
}

static void test_killed_rank(void **state) {
    (void)state;
    check_kill(&ot_comm_tcp);
}

static void test_killed_rank_with_rings(void **state) {
    (void)state;
    check_kill(&ot_comm_tcp_ring);
}

static void test_killed_rank_with_sockets(void **state) {
    (void)state;
    check_kill(&ot_comm_tcp_sockets);
}

/* ---- a rank that nobody waits for ---- */

static bool has_exchanged; /* rank 2 has done its part of the operation; otherwise it has none */

/* Rank 0 does not come, so rank 1 waits for it. */
static int wait_for_rank_0(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s), rank = rc < 0 ? -1 : ot_comm_rank(s.comm);
    if (rank > 0 && has_exchanged)
        exchange(&s);
    else if (rank == 1)
        ot_comm_broadcast(s.comm, s.lane, s.receive, PART_BYTES, 0);
    atomic_fetch_add(&shared->go, 1);
    if (rank == 1) {
        rc = finish_seat(&s);
        atomic_store(&shared->go, 4);
    }
    while (rank == 2 || (rank == 0 && atomic_load(&shared->go) < 4))
        sleep_ms(1);
    close_seat(&s);
    return rc;
}

/* A rank that waits for one other notices at once if a third is lost, whether it had a part or not. */
static void check_kill_of_an_idle_rank(const struct ot_comm_v1 *given) {
    start(given, 3, 20, wait_for_rank_0);
    while (atomic_load(&shared->go) < 3)
        sleep_ms(1);
    sleep_ms(300); /* ranks 1 and 2 exchange their parts; if they are not done, rank 1 says the same */
    kill_rank(2, SIGKILL);
    await_ranks();
    check_report(1, "rank 2 has closed its connection");
}

static void test_killed_rank_without_a_part(void **state) {
    (void)state;
    has_exchanged = false;
    check_kill_of_an_idle_rank(&ot_comm_tcp);
}

static void test_killed_rank_that_is_done(void **state) {
    (void)state;
    has_exchanged = true;
    check_kill_of_an_idle_rank(&ot_comm_tcp_sockets);
}

/* ---- a rank that comes too late ---- */

static int come_late(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s);
    if (rc == 0 && ot_comm_rank(s.comm) != 1)
        exchange(&s);
    else
        sleep_ms(1500);
    if (rc == 0)
        rc = finish_seat(&s);
    close_seat(&s);
    return rc;
}

/* Rank 1 leaves without having taken part, so it finds that the others are gone, or nothing. */
static void test_deadline(void **state) {
    (void)state;
    start(&ot_comm_tcp, 3, 0.3, come_late);
    await_ranks();
    assert_true(shared->reports[0].rc == -OT_E_COMM && shared->reports[2].rc == -OT_E_COMM);
    const char *why = shared->reports[0].text, *other = shared->reports[2].text;
    /* The first of the two to give up closes its connections, which the second may see first. */
    assert_true(strstr(why, "rank 1 did not answer for 0.3 s") || strstr(why, "rank 2 has closed"));
    assert_true(strstr(other, "rank 1 did not answer for 0.3 s") || strstr(other, "rank 0 has closed"));
    assert_true(strstr(why, "did not answer") || strstr(other, "did not answer"));
}

/* Rank 2 waits for both of the others, which do not come. */
static int leave_one_alone(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s);
    if (rc == 0 && ot_comm_rank(s.comm) == 2) {
        exchange(&s);
        rc = finish_seat(&s);
        atomic_store(&shared->go, 1);
    }
    while (rc == 0 && atomic_load(&shared->go) == 0)
        sleep_ms(1);
    close_seat(&s);
    return rc;
}

static void test_two_ranks_are_late(void **state) {
    (void)state;
    start(&ot_comm_tcp, 3, 0.3, leave_one_alone);
    await_ranks();
    check_report(2, "rank 0 and 1 other did not answer for 0.3 s");
}

/* ---- abort ---- */

static void *abort_soon(void *arg) {
    sleep_ms(100);
    ot_comm_abort(arg);
    return NULL;
}

/* Rank 1 does not come until rank 0 has given up. */
static int abort_from_another_thread(struct ot_world *world) {
    struct seat s;
    pthread_t thread;
    int rc = open_here(world, &s);
    if (rc == 0 && ot_comm_rank(s.comm) == 0) {
        exchange(&s);
        exchange(&s);
        if (ot_thread_start(&thread, "abort", abort_soon, s.comm) != 0)
            abort();
        rc = finish_seat(&s);
        pthread_join(thread, NULL);
        if (rc == 0)
            rc = ot_comm_error(s.comm);
        atomic_store(&shared->go, 1);
    } else if (rc == 0) {
        while (atomic_load(&shared->go) == 0)
            sleep_ms(1);
        exchange(&s);
        rc = finish_seat(&s);
    }
    close_seat(&s);
    return rc;
}

static void test_abort(void **state) {
    (void)state;
    double since = ot_clock_seconds();
    start(&ot_comm_tcp, 2, 60, abort_from_another_thread);
    await_ranks();
    assert_true(ot_clock_seconds() - since < 20);
    check_report(0, "the communicator tcp was aborted");
    assert_int_equal(shared->reports[1].rc, -OT_E_COMM);
}

/* Rank 0 gives up, and uses the memory for something else before rank 1 has taken what was broadcast. */
static int broadcast_and_give_up(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s);
    if (rc < 0)
        return rc;
    bool is_root = ot_comm_rank(s.comm) == 0;
    memset(s.send, 1, PART_BYTES);
    while (!is_root && atomic_load(&shared->go) == 0)
        sleep_ms(1);
    ot_comm_broadcast(s.comm, s.lane, s.send, PART_BYTES, 0);
    if (is_root) {
        sleep_ms(200);
        ot_comm_abort(s.comm);
        ot_lane_sync(s.lane);
        memset(s.send, 2, PART_BYTES);
        atomic_store(&shared->go, 1);
        while (atomic_load(&shared->go) == 1) /* its connections stay open */
            sleep_ms(1);
    }
    rc = finish_seat(&s);
    if (!is_root)
        atomic_store(&shared->go, 2);
    close_seat(&s);
    return rc;
}

static void test_memory_is_not_read_after_abort(void **state) {
    (void)state;
    start(&ot_comm_tcp, 2, 60, broadcast_and_give_up);
    await_ranks();
    check_report(0, "was aborted");
    check_report(1, "rank 0 has ");
}

/* ---- operations that differ ---- */

static int do_another_operation(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s);
    if (rc == 0 && ot_comm_rank(s.comm) == 0)
        ot_comm_all_gather(s.comm, s.lane, s.send, s.receive, PART_BYTES);
    else if (rc == 0)
        exchange(&s);
    if (rc == 0)
        rc = finish_seat(&s);
    close_seat(&s);
    return rc;
}

static void check_another(const struct ot_comm_v1 *given) {
    start(given, 2, 60, do_another_operation);
    await_ranks();
    const char *a = shared->reports[0].text, *b = shared->reports[1].text;
    assert_int_equal(shared->reports[0].rc, -OT_E_COMM);
    assert_int_equal(shared->reports[1].rc, -OT_E_COMM);
    assert_true(strstr(a, "rank 1 does operation 1 (all_to_all of 3145728 bytes), but this rank does "
                          "operation 1 (all_gather of 3145728 bytes)") ||
                strstr(b, "rank 0 does operation 1 (all_gather of 3145728 bytes), but this rank does "
                          "operation 1 (all_to_all of 3145728 bytes)"));
}

static void test_operations_that_differ(void **state) {
    (void)state;
    check_another(&ot_comm_tcp);
}

static void test_operations_that_differ_with_sockets(void **state) {
    (void)state;
    check_another(&ot_comm_tcp_sockets);
}

/* ---- communicators that differ ---- */

static int open_another(struct ot_world *world) {
    static struct ot_comm_v1 other;
    struct seat s;
    other = ot_comm_tcp;
    other.name = "other";
    if (ot_world_ranks(world)->rank == 1)
        api = &other;
    int rc = open_here(world, &s);
    close_seat(&s);
    return rc == -OT_E_USAGE ? ot_fail(OT_E_COMM, "%s", ot_error_text()) : rc;
}

static void test_communicators_that_differ(void **state) {
    (void)state;
    start(&ot_comm_tcp, 3, 60, open_another);
    await_ranks();
    for (int r = 0; r < 3; r++)
        check_report(r, "the communicator differs: ranks 0 and 2 have tcp, rank 1 has other");
}

/* ---- communicators without transfers ---- */

static int transfer_without(struct ot_world *world) {
    struct seat s;
    int rc, rank = ot_world_ranks(world)->rank;
    transfers = NULL;
    rc = open_here(world, &s);
    if (rc == 0 && ot_comm_need_transfers(s.comm) != -OT_E_USAGE)
        rc = ot_fail(OT_E_INTERNAL, "it has transfers");
    if (rc == 0 && !strstr(ot_error_text(),
                           "the communicator tcp cannot send from one rank to one other: its plugin has no "
                           "symbol ot_comm_plugin_transfers_v1; use tcp, nccl or mpi"))
        rc = ot_fail(OT_E_INTERNAL, "it says: %s", ot_error_text());
    if (rc == 0) {
        exchange(&s);
        rc = finish_seat(&s);
    }
    if (rc == 0) {
        ot_comm_transfer(s.comm, s.lane, &(struct ot_comm_transfer_v1){1 - rank, rank, s.send, 1}, 1);
        rc = finish_seat(&s);
    }
    close_seat(&s);
    return rc;
}

/* It works, and says what it lacks when that is needed. */
static void test_no_transfers(void **state) {
    (void)state;
    start(&ot_comm_tcp, 2, 60, transfer_without);
    await_ranks();
    for (int r = 0; r < 2; r++)
        if (!strstr(shared->reports[r].text, "has closed")) /* the other was faster */
            check_report(r, "the communicator tcp failed in transfer: it cannot do this");
    assert_true(strstr(shared->reports[0].text, "cannot do this") ||
                strstr(shared->reports[1].text, "cannot do this"));
}

static int open_without(struct ot_world *world) {
    struct seat s;
    if (ot_world_ranks(world)->rank == 1)
        transfers = NULL;
    int rc = open_here(world, &s);
    close_seat(&s);
    return rc == -OT_E_USAGE ? ot_fail(OT_E_COMM, "%s", ot_error_text()) : rc;
}

static void test_one_rank_without_transfers(void **state) {
    (void)state;
    start(&ot_comm_tcp, 2, 60, open_without);
    await_ranks();
    for (int r = 0; r < 2; r++)
        check_report(r, "the communicator differs: rank 0 has tcp, rank 1 has tcp without transfers");
}

/* ---- texts that differ ---- */

static int compare_long_texts(struct ot_world *world) {
    struct seat s;
    char text[2000];
    int rc = open_here(world, &s), rank = ot_world_ranks(world)->rank;
    memset(text, 'x', sizeof text);
    memcpy(text + 1500, rank == 0 ? "zero" : rank == 3 ? "three" : "other", 4);
    text[sizeof text - 1] = '\0';
    if (rc == 0)
        rc = ot_comm_agree(s.comm, "the schedule", text);
    close_seat(&s);
    return rc == -OT_E_USAGE ? ot_fail(OT_E_COMM, "%s", ot_error_text()) : rc;
}

/* Of long texts, the sentence shows the place where they differ. */
static void test_long_texts_that_differ(void **state) {
    (void)state;
    start(&ot_comm_tcp, 4, 60, compare_long_texts);
    await_ranks();
    for (int r = 0; r < 4; r++) {
        check_report(r, "the schedule differs: rank 0 has ...xxxx");
        check_report(r, "xzerox");
        check_report(r, "ranks 1 and 2 have ...xxxx");
        check_report(r, "xothex");
        check_report(r, "rank 3 has ...xxxx");
    }
}

static int compare_own_texts(struct ot_world *world) {
    struct seat s;
    char text[16];
    int rc = open_here(world, &s);
    snprintf(text, sizeof text, "text %d", ot_world_ranks(world)->rank);
    if (rc == 0)
        rc = ot_comm_agree(s.comm, "the plan", text);
    close_seat(&s);
    return rc == -OT_E_USAGE ? ot_fail(OT_E_COMM, "%s", ot_error_text()) : rc;
}

static void test_many_texts_that_differ(void **state) {
    (void)state;
    start(&ot_comm_tcp, 6, 60, compare_own_texts);
    await_ranks();
    for (int r = 0; r < 6; r++)
        check_report(r, "rank 3 has text 3, and there are 2 more");
}

/* ---- closing ---- */

static int close_at_different_times(struct ot_world *world) {
    struct seat s;
    int rc = open_here(world, &s);
    if (rc == 0) {
        exchange(&s);
        rc = finish_seat(&s);
        sleep_ms(300 * ot_comm_rank(s.comm));
        if (rc == 0)
            rc = ot_comm_error(s.comm);
    }
    close_seat(&s);
    return rc;
}

/* A rank that is done waits for the others, so that it does not look like one that is lost. */
static void test_closing_waits(void **state) {
    (void)state;
    start(&ot_comm_tcp_sockets, 3, 60, close_at_different_times);
    await_ranks();
    check_no_errors(3);
    assert_true(shared->reports[0].seconds > shared->reports[2].seconds - 0.3);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_killed_rank),
        TEST(test_killed_rank_with_rings),
        TEST(test_killed_rank_with_sockets),
        TEST(test_killed_rank_without_a_part),
        TEST(test_killed_rank_that_is_done),
        TEST(test_deadline),
        TEST(test_two_ranks_are_late),
        TEST(test_abort),
        TEST(test_memory_is_not_read_after_abort),
        TEST(test_operations_that_differ),
        TEST(test_operations_that_differ_with_sockets),
        TEST(test_communicators_that_differ),
        TEST(test_no_transfers),
        TEST(test_one_rank_without_transfers),
        TEST(test_long_texts_that_differ),
        TEST(test_many_texts_that_differ),
        TEST(test_closing_waits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

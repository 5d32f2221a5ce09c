/* Transfers between emulated GPUs, one process a rank, through memory that the ranks share: the checks of
 * comm-test, and ranks that do not come, differ, or are killed. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "offload/comm/crossing.h"
#include "offload/comm/shared_memory.h"
#include "src/base/clock.h"
#include "src/plan/comm_test.h"
#include "tests/offload/comm/random_transfers.h"
#include "tests/offload/comm/world_ranks.h"

static const size_t sizes[] = {0, 1, 4095, 70001, 300001};
enum { N_SIZES = sizeof sizes / sizeof *sizes, MOST_BYTES = 300001, BYTES = 5000 };
enum { SLOTS = 2 * RANDOM_TRANSFERS_IN_CALL };

/* The ranks are forked, so they get these. */
static double timeout_seconds;
static size_t sent_bytes; /* 0: rank 1 does not come */

struct seat {
    struct ot_device *device;
    struct ot_lane *lane;
    struct ot_comm *comm;
    void *shared, *memory;
    size_t shared_bytes;
};

/* All ordered pairs of ranks. */
static int cross(struct seat *s) {
    struct ot_crossing_link links[TEST_RANKS * TEST_RANKS];
    struct ot_crossing crossing = {.links = links};
    int ranks = ot_comm_ranks(s->comm);
    if (!ot_comm_wants_crossing(s->comm))
        return ot_fail(OT_E_INTERNAL, "it is not staged");
    for (int from = 0; from < ranks; from++)
        for (int to = 0; to < ranks; to++)
            if (from != to)
                links[crossing.n_links++] = (struct ot_crossing_link){from, to, SLOTS, MOST_BYTES};
    s->shared_bytes = ot_crossing_bytes(&crossing);
    OT_TRY(ot_shared_memory_map(s->comm, s->shared_bytes, &s->shared));
    OT_TRY(ot_device_pin(s->device, s->shared, s->shared_bytes, s->shared_bytes, "crossing"));
    OT_TRY(ot_comm_cross(s->comm, &crossing, s->shared));
    return ot_comm_transfer_staging_bytes(s->comm, 100) == 0
               ? 0
               : ot_fail(OT_E_INTERNAL, "a crossing needs no staging memory");
}

static int open_seat(struct ot_world *world, struct seat *s) {
    int rank = ot_world_ranks(world)->rank;
    *s = (struct seat){0};
    OT_TRY(ot_device_open(
        &(struct ot_device_config){.kind = "cuda", .index = rank, .memory_bytes = 256 << 20, .threads = 1},
        &s->device));
    const struct ot_comm_config config = {.name = "tcp",
                                          .world = world,
                                          .device = s->device,
                                          .device_index = rank,
                                          .timeout_seconds = timeout_seconds};
    OT_TRY(ot_device_alloc(s->device, BYTES, "test", &s->memory));
    OT_TRY(ot_lane_open(s->device, "comm", &s->lane));
    OT_TRY(ot_comm_open(&config, &s->comm));
    return cross(s);
}

static void close_seat(struct seat *s) {
    ot_lane_close(s->lane);
    ot_comm_close(s->comm);
    if (s->shared)
        ot_device_unpin(s->device, s->shared, s->shared_bytes, s->shared_bytes);
    ot_shared_memory_unmap(s->shared, s->shared_bytes);
    ot_device_free(s->device, s->memory);
    ot_device_close(s->device);
}

static int finish(struct seat *s) {
    int rc = ot_lane_sync(s->lane);
    return rc < 0 ? rc : ot_comm_error(s->comm);
}

static void run_ranks(int ranks, double seconds, rank_body *body) {
    timeout_seconds = seconds;
    start_ranks(ranks, body);
}

/* ---- the checks ---- */

static int check_in_rank(struct ot_world *world) {
    struct seat s;
    int rc = open_seat(world, &s);
    struct ot_comm_checks checks = {
        .comm = s.comm, .device = s.device, .sizes = sizes, .n_sizes = N_SIZES, .delay_seed = 4};
    if (rc == 0)
        rc = ot_comm_checks_run(&checks);
    if (rc == 0 && checks.done != 12 * N_SIZES)
        rc = ot_fail(OT_E_INTERNAL, "only %d checks were done", checks.done);
    for (uint64_t seed = 1; rc == 0 && seed <= 2; seed++)
        rc = random_transfers_run(s.comm, s.device, s.lane, seed);
    close_seat(&s);
    return rc;
}

static void test_sizes_of_the_memory(void **state) {
    struct ot_crossing_link links[] = {{0, 1, 2, 4096}, {1, 0, 3, 4097}, {0, 2, 2, 0}};
    static const size_t bytes[] = {3 * 4096, 9 * 4096, 9 * 4096};
    (void)state;
    for (int n = 1; n <= 3; n++)
        assert_int_equal(ot_crossing_bytes(&(struct ot_crossing){links, n}), bytes[n - 1]);
}

static void test_checks(void **state) {
    static const int ranks[] = {2, 3, 4, 8};
    (void)state;
    for (int i = 0; i < 4; i++) {
        run_ranks(ranks[i], 60, check_in_rank);
        await_ranks();
        check_no_errors(ranks[i]);
        teardown_ranks(NULL);
        setup_ranks(NULL);
    }
}

/* A rank may send as often as there are slots, before the other receives. */
static int send_ahead(struct ot_world *world) {
    struct seat s;
    int rc = open_seat(world, &s), rank = ot_world_ranks(world)->rank;
    const struct ot_comm_transfer_v1 half = {1 - rank, rank == 0, s.memory, BYTES};
    for (int i = 0; rc == 0 && i < SLOTS; i++) {
        while (rank == 1 && atomic_load(&shared->go) == 0)
            nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        if (rank == 0)
            ot_lane_fill(s.lane, s.memory, 10 + i, BYTES);
        ot_comm_transfer(s.comm, s.lane, &half, 1);
        rc = finish(&s);
        unsigned char got[BYTES] = {0};
        ot_lane_copy(s.lane, OT_COPY_D2H, got, s.memory, BYTES);
        if (rc == 0 && (ot_lane_sync(s.lane) < 0 || got[0] != 10 + i || got[BYTES - 1] != 10 + i))
            rc = ot_fail(OT_E_COMM, "transfer %d is wrong", i);
    }
    atomic_store(&shared->go, 1);
    close_seat(&s);
    return rc;
}

static void test_sending_ahead(void **state) {
    (void)state;
    run_ranks(2, 20, send_ahead);
    await_ranks();
    check_no_errors(2);
}

/* ---- failures ---- */

/* Rank 0 receives from rank 1, which sends other bytes, or none. */
static int receive_in_vain(struct ot_world *world) {
    struct seat s;
    int rc = open_seat(world, &s), rank = ot_world_ranks(world)->rank;
    const struct ot_comm_transfer_v1 half = {1 - rank, rank, s.memory, rank == 0 ? BYTES : sent_bytes};
    if (rc == 0 && (rank == 0 || sent_bytes > 0))
        ot_comm_transfer(s.comm, s.lane, &half, 1);
    if (rc == 0 && rank == 0) {
        rc = finish(&s);
        atomic_store(&shared->go, 1);
    }
    while (atomic_load(&shared->go) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    close_seat(&s);
    return rc;
}

static void test_sizes_that_differ(void **state) {
    (void)state;
    sent_bytes = BYTES - 1;
    run_ranks(2, 20, receive_in_vain);
    await_ranks();
    check_report(0, "rank 1 sends 4999 bytes, but this rank receives 5000");
}

static void test_deadline_of_a_receiver(void **state) {
    (void)state;
    sent_bytes = 0;
    run_ranks(2, 0.5, receive_in_vain);
    await_ranks();
    check_report(0, "failed in transfer: rank 1 did not answer for 0.5 s");
}

/* Rank 0 sends once more than there are slots; the last send waits. */
static int send_in_vain(struct ot_world *world) {
    struct seat s;
    int rc = open_seat(world, &s), rank = ot_world_ranks(world)->rank;
    for (int i = 0; rc == 0 && rank == 0 && i <= SLOTS; i++) {
        ot_comm_transfer(s.comm, s.lane, &(struct ot_comm_transfer_v1){1, 1, s.memory, BYTES}, 1);
        rc = finish(&s);
        if (rc < 0 && i < SLOTS)
            rc = ot_fail(OT_E_INTERNAL, "there were only %d slots", i);
    }
    if (rank == 0)
        atomic_store(&shared->go, 1);
    while (atomic_load(&shared->go) == 0)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    close_seat(&s);
    return rc;
}

static void test_deadline_of_a_sender(void **state) {
    (void)state;
    run_ranks(2, 0.5, send_in_vain);
    await_ranks();
    check_report(0, "failed in transfer: rank 1 did not answer for 0.5 s");
}

/* Rank 1 is killed while rank 0 waits for it; the world tells rank 0. */
static int wait_for_the_killed(struct ot_world *world) {
    struct seat s;
    int rc = open_seat(world, &s), rank = ot_world_ranks(world)->rank;
    atomic_fetch_add(&shared->go, 1);
    if (rc == 0 && rank == 0) {
        ot_comm_transfer(s.comm, s.lane, &(struct ot_comm_transfer_v1){1, 0, s.memory, BYTES}, 1);
        rc = finish(&s);
    }
    while (rank == 1)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    close_seat(&s);
    return rc;
}

static void test_killed_rank(void **state) {
    (void)state;
    run_ranks(2, 60, wait_for_the_killed);
    while (atomic_load(&shared->go) < 2)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    double since = ot_clock_seconds();
    kill_rank(1, SIGKILL);
    await_ranks();
    assert_true(ot_clock_seconds() - since < 10);
    check_report(0, "rank 1 (");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_of_the_memory),
        TEST(test_checks),
        TEST(test_sending_ahead),
        TEST(test_sizes_that_differ),
        TEST(test_deadline_of_a_receiver),
        TEST(test_deadline_of_a_sender),
        TEST(test_killed_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

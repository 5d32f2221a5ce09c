/* Communicators move the right bytes, with any number of ranks and any sizes. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm.h"
#include "offload/comm/tcp.h"
#include "src/base/thread.h"
#include "src/plan/comm_test.h"
#include "tests/offload/comm/world_ranks.h"
#include "tests/support/check.h"
#include "tests/support/thread_world.h"

static const size_t sizes[] = {0, 1, 7, 4095, 4096, 16384, 16385, 300001, (10 << 20) + 3};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* The ranks are forked, so they get these. */
static const struct ot_comm_v1 *api; /* NULL: by name */
static const char *name, *want_way;  /* want_way: in the description; NULL: any */
static int n_sizes;

static int open_cpu(struct ot_device **out) {
    return ot_device_open(&(struct ot_device_config){.kind = "cpu", .threads = 1}, out);
}

static int check_with(struct ot_comm *comm, struct ot_device *device, uint64_t delay_seed) {
    struct ot_comm_checks checks = {
        .comm = comm, .device = device, .sizes = sizes, .n_sizes = n_sizes, .delay_seed = delay_seed};
    OT_TRY(ot_comm_checks_run(&checks));
    return checks.done == 12 * n_sizes ? 0 : ot_fail(OT_E_INTERNAL, "only %d checks were done", checks.done);
}

static int check_in_rank(struct ot_world *world) {
    struct ot_device *device;
    struct ot_comm *comm;
    OT_TRY(open_cpu(&device));
    struct ot_comm_config config = {
        .name = name, .world = world, .device = device, .device_index = -1, .timeout_seconds = 60};
    int rc =
        api ? ot_comm_open_with(api, &ot_comm_tcp_transfers, &config, &comm) : ot_comm_open(&config, &comm);
    if (rc == 0)
        rc = check_with(comm, device, 5);
    if (rc == 0 && want_way && ot_comm_ranks(comm) > 1 && !strstr(ot_comm_describe(comm), want_way))
        rc = ot_fail(OT_E_INTERNAL, "it is %s", ot_comm_describe(comm));
    ot_comm_close(comm);
    ot_device_close(device);
    return rc;
}

/* Without the largest sizes where many ranks would take long. Only slow tests have the largest also for one
 * rank, which is like `self`, and for names and plugins that stand for the ring or the sockets. */
static void check_ranks(const struct ot_comm_v1 *given, const char *given_name, int ranks) {
    if (tests_are_for_races() && (ranks == 2 || ranks == 4))
        return;
    api = given;
    want_way = given == &ot_comm_tcp_ring      ? "shared memory"
               : given == &ot_comm_tcp_sockets ? "sockets"
                                               : NULL;
    name = given_name;
    bool slow = getenv("OT_TEST_SLOW") != NULL;
    bool largest = ranks <= 3 && !tests_are_brief() && (slow || (want_way && ranks > 1));
    n_sizes = N_SIZES - !largest - (tests_are_brief() && ranks > (slow ? 4 : 3));
    start_ranks(ranks, check_in_rank);
    await_ranks();
    check_no_errors(ranks);
}

#define DEFINE_TESTS(label, given, given_name)                                                               \
    static void test_##label##_1(void **state) {                                                             \
        (void)state;                                                                                         \
        check_ranks(given, given_name, 1);                                                                   \
    }                                                                                                        \
    static void test_##label##_2(void **state) {                                                             \
        (void)state;                                                                                         \
        check_ranks(given, given_name, 2);                                                                   \
    }                                                                                                        \
    static void test_##label##_3(void **state) {                                                             \
        (void)state;                                                                                         \
        check_ranks(given, given_name, 3);                                                                   \
    }                                                                                                        \
    static void test_##label##_4(void **state) {                                                             \
        (void)state;                                                                                         \
        check_ranks(given, given_name, 4);                                                                   \
    }                                                                                                        \
    static void test_##label##_8(void **state) {                                                             \
        (void)state;                                                                                         \
        check_ranks(given, given_name, 8);                                                                   \
    }

DEFINE_TESTS(tcp, NULL, "tcp")
DEFINE_TESTS(ring, &ot_comm_tcp_ring, NULL)
DEFINE_TESTS(sockets, &ot_comm_tcp_sockets, NULL)

/* On CPUs, the communicator for several ranks is tcp. */
static void test_auto(void **state) {
    (void)state;
    check_ranks(NULL, "auto", 2);
}

static void test_self(void **state) {
    (void)state;
    struct ot_device *device;
    struct ot_comm *comm;
    check_ok(open_cpu(&device));
    struct ot_comm_config config = {.name = "self", .device = device, .device_index = -1};
    check_ok(ot_comm_open(&config, &comm));
    assert_int_equal(ot_comm_rank(comm), 0);
    assert_int_equal(ot_comm_ranks(comm), 1);
    assert_string_equal(ot_comm_describe(comm), "self, 1 rank");
    assert_int_equal(ot_comm_staging_bytes(comm, 1 << 20), 0);
    n_sizes = N_SIZES - tests_are_few();
    check_ok(check_with(comm, device, 0));
    ot_comm_close(comm);
    ot_comm_close(NULL);
    ot_device_close(device);
}

/* ---- what a plugin gets ---- */

static int open_if_told(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                        char *why, size_t why_bytes) {
    const char *address = host->address ? host->address : "none";
    bool is_here = strcmp(address, "127.0.0.1") == 0 || strcmp(address, "::1") == 0;
    if (is_here && host->local_ranks == 2 && host->local_rank == host->rank)
        return ot_comm_tcp.open(host, facts, context, why, why_bytes);
    snprintf(why, why_bytes, "address %s, local rank %d of %d", address, host->local_rank, host->local_ranks);
    return OT_COMM_FAILED;
}

/* A plugin that connects the ranks itself needs the address of this host, on the way to rank 0. */
static void test_facts_for_a_plugin(void **state) {
    (void)state;
    static struct ot_comm_v1 told;
    told = ot_comm_tcp;
    told.open = open_if_told;
    check_ranks(&told, NULL, 2);
}

/* ---- ranks that are threads ---- */

struct thread_rank {
    pthread_t thread;
    struct thread_world *world;
    int rank, ranks, rc;
    char why[512];
};

static void *run_thread_rank(void *arg) {
    struct thread_rank *self = arg;
    struct ot_device *device = NULL;
    struct ot_comm *comm = NULL;
    self->rc = open_cpu(&device);
    if (self->rc == 0)
        self->rc = thread_world_join(self->world, self->rank, device, &comm);
    if (self->rc == 0)
        self->rc = check_with(comm, device, 7);
    strncpy(self->why, self->rc < 0 ? ot_error_text() : "", sizeof self->why - 1);
    ot_comm_close(comm);
    ot_device_close(device);
    return NULL;
}

static void run_threads(struct thread_world *world, struct thread_rank *all, int ranks) {
    for (int r = 0; r < ranks; r++) {
        all[r] = (struct thread_rank){.world = world, .rank = r, .ranks = ranks};
        assert_int_equal(ot_thread_start(&all[r].thread, "rank", run_thread_rank, &all[r]), 0);
    }
    for (int r = 0; r < ranks; r++)
        pthread_join(all[r].thread, NULL);
}

/* Of the checks of all sizes: operations, and calls with transfers. Members do nothing for no bytes. */
static int operations_of(int rank, int ranks) {
    const int operations = 7, calls_of_ring_and_pairs = 3, micro_batches = 5, of_members = 2;
    bool is_alone = ranks < 4 && rank == ranks - 1; /* of half of the ranks */
    if (ranks == 1)
        return (operations + of_members) * n_sizes;
    int calls = calls_of_ring_and_pairs + micro_batches + (rank > 0 && rank < ranks - 1);
    return (operations + calls) * n_sizes + (is_alone ? 0 : of_members * (n_sizes - 1));
}

static void test_threads(void **state) {
    (void)state;
    n_sizes = N_SIZES - 1;
    for (int ranks = 1; ranks <= (tests_are_few() ? 3 : 5); ranks += 2) {
        struct thread_rank all[5];
        struct thread_world *world = thread_world_open(ranks, (uint64_t)ranks);
        run_threads(world, all, ranks);
        for (int r = 0; r < ranks; r++) {
            assert_string_equal(all[r].why, "");
            assert_int_equal(thread_world_operations(world, r), operations_of(r, ranks));
        }
        thread_world_close(world);
    }
}

/* The failure of one operation ends all ranks, and each knows why. */
static void test_threads_with_a_failure(void **state) {
    (void)state;
    struct thread_rank all[3];
    struct thread_world *world = thread_world_open(3, 1);
    n_sizes = N_SIZES - 1;
    thread_world_fail_at(world, 1, 9);
    run_threads(world, all, 3);
    for (int r = 0; r < 3; r++) {
        assert_int_equal(all[r].rc, -OT_E_COMM);
        assert_non_null(strstr(all[r].why, r == 1 ? "this operation was chosen to fail" : "rank "));
        assert_int_equal(thread_world_operations(world, r), 8);
    }
    thread_world_close(world);
}

#define TESTS_OF(label)                                                                                      \
    cmocka_unit_test_setup_teardown(test_##label##_1, setup_ranks, teardown_ranks),                          \
        cmocka_unit_test_setup_teardown(test_##label##_2, setup_ranks, teardown_ranks),                      \
        cmocka_unit_test_setup_teardown(test_##label##_3, setup_ranks, teardown_ranks),                      \
        cmocka_unit_test_setup_teardown(test_##label##_4, setup_ranks, teardown_ranks),                      \
        cmocka_unit_test_setup_teardown(test_##label##_8, setup_ranks, teardown_ranks)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_self),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_threads_with_a_failure),
        cmocka_unit_test_setup_teardown(test_auto, setup_ranks, teardown_ranks),
        cmocka_unit_test_setup_teardown(test_facts_for_a_plugin, setup_ranks, teardown_ranks),
        TESTS_OF(tcp),
        TESTS_OF(ring),
        TESTS_OF(sockets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

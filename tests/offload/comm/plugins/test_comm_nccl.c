/* The engine's communicator over the plugin `nccl`, on the lanes of emulated GPUs, one process a rank. Usage:
 * test_comm_nccl FOLDER_OF_PLUGINS FAKE_NCCL */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm.h"
#include "src/base/clock.h"
#include "src/plan/comm_test.h"
#include "tests/offload/comm/random_transfers.h"
#include "tests/offload/comm/world_ranks.h"

static const size_t sizes[] = {0, 1, 4095, 70001, 300001};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

/* The ranks are forked, so they get these. */
static const char *folder, *name; /* name: of the communicator; NULL: by itself */
static const char *want;          /* in the description */
static int failing_rank;          /* its GPU work fails after some operations; -1: none does */
static int gpus;                  /* ranks share GPUs if there are fewer */

static int run_random_transfers(struct ot_comm *comm, struct ot_device *device) {
    struct ot_lane *lane;
    if (ot_comm_ranks(comm) == 1)
        return 0;
    OT_TRY(ot_lane_open(device, "comm", &lane));
    int rc = random_transfers_run(comm, device, lane, 1);
    ot_lane_close(lane);
    return rc;
}

static int check_comm(struct ot_world *world, struct ot_device *device, int gpu) {
    struct ot_comm *comm;
    const struct ot_comm_config config = {.name = name,
                                          .world = world,
                                          .device = device,
                                          .device_index = gpu,
                                          .plugin_dirs = folder,
                                          .timeout_seconds = 60};
    OT_TRY(ot_comm_open(&config, &comm));
    struct ot_comm_checks checks = {
        .comm = comm, .device = device, .sizes = sizes, .n_sizes = N_SIZES, .delay_seed = 2};
    int rc = ot_comm_checks_run(&checks);
    if (rc == 0 && !strstr(ot_comm_describe(comm), want))
        rc = ot_fail(OT_E_INTERNAL, "it is %s", ot_comm_describe(comm));
    if (rc == 0 && checks.done != 12 * N_SIZES)
        rc = ot_fail(OT_E_INTERNAL, "only %d checks were done", checks.done);
    if (rc == 0)
        rc = run_random_transfers(comm, device);
    ot_comm_close(comm);
    return rc;
}

static int check_in_rank(struct ot_world *world) {
    int rank = ot_world_ranks(world)->rank, gpu = rank % gpus;
    struct ot_device *device;
    struct ot_error why;
    if (rank == failing_rank)
        setenv("OT_FAKE_NCCL_ASYNC", "7", 1);
    OT_TRY(ot_device_open(
        &(struct ot_device_config){.kind = "cuda", .index = gpu, .memory_bytes = 256 << 20, .threads = 1},
        &device));
    int rc = check_comm(world, device, gpu);
    ot_device_close(device);
    if (rc < 0) {
        ot_error_save(&why, rc);
        ot_world_fail(world, &why);
        rc = ot_error_load(&why);
    }
    return rc;
}

static void run_ranks(int ranks, const char *given_name, const char *given_want) {
    name = given_name;
    want = given_want;
    start_ranks(ranks, check_in_rank);
    await_ranks();
}

/* "auto" takes nccl if every rank has its own GPU. */
static void check_auto(int ranks) {
    char text[32];
    snprintf(text, sizeof text, "NCCL 2.27.3, %d ranks", ranks);
    run_ranks(ranks, NULL, text);
    check_no_errors(ranks);
}

static void test_one(void **state) {
    (void)state;
    run_ranks(1, "nccl", "NCCL 2.27.3, 1 rank");
    check_no_errors(1);
}

static void test_two(void **state) {
    (void)state;
    check_auto(2);
}

static void test_four(void **state) {
    (void)state;
    check_auto(4);
}

static void test_eight(void **state) {
    (void)state;
    check_auto(8);
}

static void test_ranks_that_share_a_gpu(void **state) {
    (void)state;
    gpus = 2;
    run_ranks(3, NULL, "tcp");
    check_no_errors(3);
}

static void test_nccl_refuses_a_shared_gpu(void **state) {
    (void)state;
    gpus = 2;
    run_ranks(3, "nccl", "");
    for (int r = 0; r < 3; r++)
        check_report(r, "ranks 0 and 2 use the same GPU");
}

/* The work of rank 1 fails on its GPU. The other ranks, whose kernels wait for it, end soon. */
static void test_a_failure_ends_all_ranks(void **state) {
    (void)state;
    double start = ot_clock_seconds();
    failing_rank = 1;
    run_ranks(4, "nccl", "");
    assert_true(ot_clock_seconds() - start < 30);
    check_report(1, "remote process exited");
    for (int r = 0; r < 4; r++)
        check_report(r, "rank 1");
}

static int setup(void **state) {
    failing_rank = -1;
    gpus = TEST_RANKS;
    return setup_ranks(state);
}

int main(int argc, char **argv) {
    if (argc != 3)
        return 2;
    folder = argv[1];
    setenv("OFFLOAD_TRAIN_NCCL", argv[2], 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_one, setup, teardown_ranks),
        cmocka_unit_test_setup_teardown(test_two, setup, teardown_ranks),
        cmocka_unit_test_setup_teardown(test_four, setup, teardown_ranks),
        cmocka_unit_test_setup_teardown(test_eight, setup, teardown_ranks),
        cmocka_unit_test_setup_teardown(test_ranks_that_share_a_gpu, setup, teardown_ranks),
        cmocka_unit_test_setup_teardown(test_nccl_refuses_a_shared_gpu, setup, teardown_ranks),
        cmocka_unit_test_setup_teardown(test_a_failure_ends_all_ranks, setup, teardown_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A communicator that takes only host memory works on a GPU: operations are staged, in pieces if they are
 * large. On the emulated device alone, because several ranks share one process here. */
#include <stdlib.h>
#include <string.h>

#include "src/base/thread.h"
#include "src/plan/comm_test.h"
#include "tests/support/check.h"
#include "tests/support/thread_world.h"

enum { MOST_RANKS = 3, MIB = 1 << 20 };

/* The staging memory is 64 MiB at most, so the last size takes two pieces with three ranks. */
static const size_t sizes[] = {0, 1, 4097, 300001, 11 * MIB + 5};

struct rank {
    pthread_t thread;
    struct thread_world *world;
    int rank, ranks, rc;
    char why[512];
};

enum { PIECE = 100, BROADCAST = 10 * PIECE + 7 };

/* Broadcasts from the last rank, in several pieces. `host` has the bytes, on each rank others. */
static int broadcast_in_pieces(struct rank *self, struct ot_comm *comm, struct ot_lane *lane,
                               unsigned char *host, unsigned char *device) {
    int root = self->ranks - 1;
    for (int i = 0; i < BROADCAST; i++)
        host[i] = (unsigned char)(i * 7 + self->rank);
    ot_lane_copy(lane, OT_COPY_H2D, device, host, BROADCAST);
    ot_comm_broadcast(comm, lane, device, BROADCAST, root);
    ot_lane_copy(lane, OT_COPY_D2H, host, device, BROADCAST);
    OT_TRY(ot_lane_sync(lane));
    for (int i = 0; i < BROADCAST; i++)
        if (host[i] != (unsigned char)(i * 7 + root))
            return ot_fail(OT_E_COMM, "byte %d of the broadcast is wrong", i);
    return ot_comm_error(comm);
}

static int check_pieces(struct rank *self, struct ot_device *device, struct ot_comm *comm) {
    struct ot_lane *lane = NULL;
    void *staging = NULL, *host = NULL, *memory = NULL;
    size_t bytes = ot_comm_staging_bytes(comm, PIECE);
    int rc = 0;
    OT_TRY_GOTO(ot_device_alloc_pinned(device, bytes, "staging", &staging), rc, out);
    OT_TRY_GOTO(ot_device_alloc_pinned(device, BROADCAST, "test", &host), rc, out);
    OT_TRY_GOTO(ot_device_alloc(device, BROADCAST, "test", &memory), rc, out);
    OT_TRY_GOTO(ot_lane_open(device, "comm", &lane), rc, out);
    ot_comm_reserve(comm, staging, bytes);
    rc = broadcast_in_pieces(self, comm, lane, host, memory);
out:
    ot_lane_close(lane);
    ot_device_free(device, memory);
    ot_device_free_pinned(device, host, BROADCAST);
    ot_device_free_pinned(device, staging, bytes);
    return rc;
}

static int check_rank(struct rank *self, struct ot_device *device, struct ot_comm *comm) {
    struct ot_comm_checks checks = {
        .comm = comm, .device = device, .sizes = sizes, .n_sizes = 5, .delay_seed = 3};
    size_t small = ot_comm_staging_bytes(comm, 100), large = ot_comm_staging_bytes(comm, 4000 * (size_t)MIB);
    if (self->ranks == 1 && (small != 0 || large != 0))
        return ot_fail(OT_E_INTERNAL, "one rank stages nothing");
    if (self->ranks > 1 && (small != 2 * 100 * (size_t)self->ranks || large > 64 * MIB || large < 63 * MIB))
        return ot_fail(OT_E_INTERNAL, "the staging memory has %zu and %zu bytes", small, large);
    OT_TRY(ot_comm_checks_run(&checks));
    return check_pieces(self, device, comm);
}

static void *run_rank(void *arg) {
    struct rank *self = arg;
    struct ot_device *device = NULL;
    struct ot_comm *comm = NULL;
    struct ot_device_config config = {.kind = "cuda", .memory_bytes = 256 * MIB};
    config.threads = 1;
    config.lane_delay_seed = (uint64_t)self->rank + 1;
    self->rc = ot_device_open(&config, &device);
    if (self->rc == 0)
        self->rc = thread_world_join(self->world, self->rank, device, &comm);
    if (self->rc == 0)
        self->rc = check_rank(self, device, comm);
    strncpy(self->why, self->rc < 0 ? ot_error_text() : "", sizeof self->why - 1);
    ot_comm_close(comm);
    if (device)
        ot_device_close(device);
    return NULL;
}

static void test_staged_operations(void **state) {
    (void)state;
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
    for (int ranks = 1; ranks <= MOST_RANKS; ranks++) {
        struct rank all[MOST_RANKS];
        struct thread_world *world = thread_world_open(ranks, (uint64_t)ranks);
        for (int r = 0; r < ranks; r++) {
            all[r] = (struct rank){.world = world, .rank = r, .ranks = ranks};
            assert_int_equal(ot_thread_start(&all[r].thread, "rank", run_rank, &all[r]), 0);
        }
        for (int r = 0; r < ranks; r++)
            pthread_join(all[r].thread, NULL);
        for (int r = 0; r < ranks; r++)
            assert_string_equal(all[r].why, "");
        thread_world_close(world);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_staged_operations)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

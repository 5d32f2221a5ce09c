/* Copies between emulated GPUs, one process a rank: the answer is the same on all ranks, and unknown where a
 * rank has no GPU beside its own. */
#include "offload/probe/comm_rates.h"
#include "src/base/error.h"
#include "tests/emu/emu_faults.h"
#include "tests/offload/comm/world_ranks.h"

/* The ranks are forked, so they get these. */
static int gpus; /* ranks share GPUs if there are fewer */
static bool want_known, want_access;

static int check_peers(struct ot_world *world, struct ot_device *device, int gpu) {
    struct ot_peers peers, all[TEST_RANKS];
    struct ot_device_usage before, after;
    const struct ot_peers_config config = {
        .world = world, .device = device, .kind = "cuda", .index = gpu, .bytes = 1 << 20, .seconds = 0.01};
    ot_device_usage(device, &before);
    OT_TRY(ot_probe_peers(&config, &peers));
    ot_device_usage(device, &after);
    if (peers.is_known != want_known || peers.has_access != want_access || (peers.rate > 0) != want_known)
        return ot_fail(OT_E_INTERNAL, "known %d, access %d, %g bytes/s", peers.is_known, peers.has_access,
                       peers.rate);
    if (after.used_bytes != before.used_bytes)
        return ot_fail(OT_E_INTERNAL, "%zu bytes are left", after.used_bytes - before.used_bytes);
    OT_TRY(ot_world_all_gather(world, &peers, sizeof peers, all));
    for (int r = 0; r < ot_world_ranks(world)->ranks; r++)
        if (all[r].rate != peers.rate)
            return ot_fail(OT_E_INTERNAL, "rank %d has %g bytes/s, not %g", r, all[r].rate, peers.rate);
    return 0;
}

static int check_in_rank(struct ot_world *world) {
    int gpu = ot_world_ranks(world)->rank % gpus;
    struct ot_device *device;
    struct ot_error why;
    int rc = ot_device_open(
        &(struct ot_device_config){.kind = "cuda", .index = gpu, .memory_bytes = 128 << 20, .threads = 1},
        &device);
    if (rc == 0) {
        rc = check_peers(world, device, gpu);
        ot_device_close(device);
    }
    if (rc < 0) {
        ot_error_save(&why, rc);
        ot_world_fail(world, &why);
        rc = ot_error_load(&why);
    }
    return rc;
}

static void run_ranks(int ranks, int given_gpus, bool access, bool known) {
    struct ot_emu_card card = ot_emu_default_card();
    card.has_peers = access;
    ot_emu_set_card(&card);
    gpus = given_gpus;
    want_known = known;
    want_access = known && access;
    start_ranks(ranks, check_in_rank);
    await_ranks();
    check_no_errors(ranks);
}

static void gpus_that_reach_each_other(void **state) {
    (void)state;
    run_ranks(3, 3, true, true);
}

static void gpus_that_do_not(void **state) {
    (void)state;
    run_ranks(2, 2, false, true);
}

static void one_rank_knows_nothing(void **state) {
    (void)state;
    run_ranks(1, 1, true, false);
}

static void a_gpu_that_two_ranks_share_is_no_peer(void **state) {
    (void)state;
    run_ranks(2, 1, true, false);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(gpus_that_reach_each_other, setup_ranks, teardown_ranks),
        cmocka_unit_test_setup_teardown(gpus_that_do_not, setup_ranks, teardown_ranks),
        cmocka_unit_test_setup_teardown(one_rank_knows_nothing, setup_ranks, teardown_ranks),
        cmocka_unit_test_setup_teardown(a_gpu_that_two_ranks_share_is_no_peer, setup_ranks, teardown_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

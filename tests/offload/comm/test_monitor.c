/* A plugin whose work on the stream never ends, or fails there, and which tells nobody: the communicator asks
 * it, and aborts it. On the emulated device, where the double's work is a host function on the stream. */
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "offload/comm/comm.h"
#include "offload/comm/plugin.h"
#include "src/base/clock.h"
#include "tests/emu/emu_gpu.h"
#include "tests/support/check.h"

enum { BYTES = 4096, RANKS = 2 };

/* ---- the double: rank 0 of two, alone ---- */

static atomic_bool hangs, is_broken, is_aborted;
static bool is_grouping;

static int double_open(const struct ot_comm_host_v1 *host, struct ot_comm_facts_v1 *facts, void **context,
                       char *why, size_t why_bytes) {
    (void)host, (void)context, (void)why, (void)why_bytes;
    *facts = (struct ot_comm_facts_v1){.struct_size = sizeof *facts, .ranks = RANKS, .local_ranks = RANKS};
    return OT_COMM_OK;
}

static void double_close(void *context, int broken) {
    (void)context, (void)broken;
}

/* The work on the stream: it waits for a rank that does not exist, at most for a minute. */
static void work(void *arg) {
    (void)arg;
    double end = ot_clock_seconds() + 60;
    while (atomic_load(&hangs) && !atomic_load(&is_aborted) && ot_clock_seconds() < end)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static int launch(void *stream) {
    emu_gpu_call(stream, work, NULL);
    return OT_COMM_OK;
}

static int double_gather(void *context, const void *part, void *all, size_t part_bytes, void *stream) {
    (void)context, (void)part, (void)all, (void)part_bytes;
    return is_grouping ? OT_COMM_OK : launch(stream);
}

static int double_exchange(void *context, const void *send, void *receive, size_t part_bytes, void *stream) {
    return double_gather(context, send, receive, part_bytes, stream);
}

static int double_broadcast(void *context, void *memory, size_t bytes, int32_t root, void *stream) {
    (void)root;
    return double_gather(context, memory, memory, bytes, stream);
}

static int double_group_begin(void *context) {
    (void)context;
    is_grouping = true;
    return OT_COMM_OK;
}

static int double_group_end(void *context, void *stream) {
    (void)context;
    is_grouping = false;
    return launch(stream);
}

static int double_gather_host(void *context, const void *mine, size_t bytes, void *all) {
    (void)context, (void)mine, (void)bytes, (void)all;
    return OT_COMM_UNSUPPORTED;
}

static int double_barrier(void *context) {
    (void)context;
    return OT_COMM_UNSUPPORTED;
}

static int double_poll(void *context, char *why, size_t why_bytes) {
    (void)context;
    if (atomic_load(&is_broken))
        snprintf(why, why_bytes, "the link to rank 1 is down");
    return atomic_load(&is_broken) ? OT_COMM_FAILED : OT_COMM_OK;
}

static void double_abort(void *context) {
    (void)context;
    atomic_store(&is_aborted, true);
}

static const struct ot_comm_v1 api = {
    .abi = OT_COMM_ABI_V1,
    .struct_size = sizeof api,
    .name = "double",
    .capabilities = OT_COMM_TAKES_DEVICE | OT_COMM_HAS_CONTROL,
    .open = double_open,
    .close = double_close,
    .all_gather = double_gather,
    .all_to_all = double_exchange,
    .broadcast = double_broadcast,
    .group_begin = double_group_begin,
    .group_end = double_group_end,
    .all_gather_host = double_gather_host,
    .barrier = double_barrier,
    .poll_error = double_poll,
    .abort = double_abort,
};

/* ---- the tests ---- */

struct seat {
    struct ot_device *device;
    struct ot_lane *lane;
    struct ot_comm *comm;
    void *all;
};

static void open_seat(struct seat *s, double timeout_seconds) {
    atomic_store(&hangs, false);
    atomic_store(&is_broken, false);
    atomic_store(&is_aborted, false);
    check_ok(ot_device_open(
        &(struct ot_device_config){.kind = "cuda", .memory_bytes = 256 << 20, .threads = 1}, &s->device));
    check_ok(ot_device_alloc(s->device, RANKS * BYTES, "parts", &s->all));
    check_ok(ot_lane_open(s->device, "comm", &s->lane));
    struct ot_comm_config config = {
        .device = s->device, .device_index = 0, .timeout_seconds = timeout_seconds};
    check_ok(ot_comm_open_with(&api, NULL, &config, &s->comm));
}

static void close_seat(struct seat *s) {
    ot_lane_close(s->lane);
    ot_comm_close(s->comm);
    ot_device_free(s->device, s->all);
    ot_device_close(s->device);
}

static void gather(struct seat *s) {
    ot_comm_all_gather(s->comm, s->lane, s->all, s->all, BYTES);
}

static void sleep_seconds(void *seconds) {
    double whole = *(double *)seconds;
    nanosleep(&(struct timespec){(time_t)whole, (long)((whole - (double)(time_t)whole) * 1e9)}, NULL);
}

/* Waits for the lane alone, as the engine does. */
static void check_end(struct seat *s, double least, double most, const char *words) {
    double begin = ot_clock_seconds();
    check_ok(ot_lane_sync(s->lane));
    assert_true(atomic_load(&is_aborted));
    check_fails(ot_comm_error(s->comm), OT_E_COMM, words);
    assert_true(ot_clock_seconds() - begin > least && ot_clock_seconds() - begin < most);
    close_seat(s);
}

static void test_an_operation_that_never_ends(void **state) {
    (void)state;
    struct seat s;
    open_seat(&s, 0.5);
    gather(&s);
    check_ok(ot_lane_sync(s.lane));
    check_ok(ot_comm_error(s.comm));
    atomic_store(&hangs, true);
    gather(&s);
    check_end(&s, 0.5, 20,
              "for an operation of the communicator double on the GPU: another rank does not take part");
}

static void test_a_group_that_never_ends(void **state) {
    (void)state;
    struct seat s;
    open_seat(&s, 0.5);
    atomic_store(&hangs, true);
    ot_comm_group_begin(s.comm, s.lane);
    gather(&s);
    gather(&s);
    ot_comm_group_end(s.comm, s.lane);
    check_end(&s, 0.5, 20, "rank 0 has waited ");
}

static void test_an_error_that_only_the_poll_tells(void **state) {
    (void)state;
    struct seat s;
    open_seat(&s, 600);
    atomic_store(&hangs, true);
    gather(&s);
    nanosleep(&(struct timespec){.tv_nsec = 200000000}, NULL);
    assert_false(atomic_load(&is_aborted));
    atomic_store(&is_broken, true);
    check_end(&s, 0, 20, "the communicator double is broken: the link to rank 1 is down");
}

/* The lane is busy with other work before and after an operation, for longer than the deadline. */
static void test_other_work_has_no_deadline(void **state) {
    (void)state;
    static double busy = 1.4;
    struct seat s;
    open_seat(&s, 0.2);
    for (int i = 0; i < 2; i++) {
        ot_lane_call(s.lane, sleep_seconds, &busy);
        gather(&s);
    }
    ot_lane_call(s.lane, sleep_seconds, &busy);
    check_ok(ot_lane_sync(s.lane));
    check_ok(ot_comm_error(s.comm));
    assert_false(atomic_load(&is_aborted));
    close_seat(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_an_operation_that_never_ends),
        cmocka_unit_test(test_a_group_that_never_ends),
        cmocka_unit_test(test_an_error_that_only_the_poll_tells),
        cmocka_unit_test(test_other_work_has_no_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A communicator that was asked for is found, or the run ends with the reason. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "offload/comm/comm.h"
#include "offload/comm/plugin.h"
#include "src/base/error.h"
#include "tests/support/check.h"

/* OT_TEST_PLUGINS: the folder with the fake plugins (meson.build). */

static struct ot_device *device;

static int setup(void **state) {
    (void)state;
    return ot_device_open(&(struct ot_device_config){.kind = "cpu", .threads = 1}, &device);
}

static int teardown(void **state) {
    (void)state;
    ot_device_close(device);
    return 0;
}

static int open_named(const char *name, const char *folders, struct ot_comm **out) {
    struct ot_comm_config config = {
        .name = name, .device = device, .device_index = -1, .plugin_dirs = folders};
    return ot_comm_open(&config, out);
}

static void check_refused(const char *name, int code, const char *words) {
    struct ot_comm *comm;
    check_fails(open_named(name, OT_TEST_PLUGINS, &comm), code, words);
    assert_null(comm);
}

static void test_name_path_and_folders(void **state) {
    (void)state;
    const char *const folders[] = {OT_TEST_PLUGINS, "/nowhere:" OT_TEST_PLUGINS,
                                   ":" OT_TEST_PLUGINS ":/nowhere"};
    struct ot_comm *comm;
    for (int i = 0; i < 3; i++) {
        check_ok(open_named("good", folders[i], &comm));
        assert_string_equal(ot_comm_describe(comm), "a fake");
        ot_comm_close(comm);
    }
    check_ok(open_named(OT_TEST_PLUGINS "/libot-comm-good.so", NULL, &comm));
    ot_comm_close(comm);
    check_ok(open_named("auto", NULL, &comm));
    assert_string_equal(ot_comm_describe(comm), "self, 1 rank");
    ot_comm_close(comm);
}

/* The error of an operation has the plugin's name and the operation's. It stays. */
static void test_operation_that_fails(void **state) {
    (void)state;
    struct ot_comm *comm;
    struct ot_lane *lane;
    void *memory;
    check_ok(open_named("good", OT_TEST_PLUGINS, &comm));
    check_ok(ot_device_alloc(device, 8, "memory", &memory));
    check_ok(ot_lane_open(device, "comm", &lane));
    ot_comm_all_to_all(comm, lane, memory, memory, 8);
    check_ok(ot_lane_sync(lane));
    check_ok(ot_comm_error(comm));
    ot_comm_all_gather(comm, lane, memory, memory, 8);
    check_ok(ot_lane_sync(lane));
    for (int i = 0; i < 2; i++)
        check_fails(ot_comm_error(comm), OT_E_COMM,
                    "the communicator fake failed in all_gather: it gives no reason");
    check_fails(ot_comm_barrier(comm), OT_E_COMM, "failed in all_gather");
    ot_lane_close(lane);
    ot_device_free(device, memory);
    ot_comm_close(comm);
}

/* A plugin from before there were transfers is loaded, and says what it lacks. */
static void test_transfers(void **state) {
    (void)state;
    struct ot_comm *comm;
    check_ok(open_named("good", OT_TEST_PLUGINS, &comm));
    check_fails(ot_comm_need_transfers(comm), OT_E_USAGE,
                "the communicator fake cannot send from one rank to one other: its plugin has no symbol "
                "ot_comm_plugin_transfers_v1; use tcp, nccl or mpi, or a newer plugin");
    ot_comm_close(comm);
    const char *const names[] = {"transfers", "self"};
    for (int i = 0; i < 2; i++) {
        check_ok(open_named(names[i], OT_TEST_PLUGINS, &comm));
        check_ok(ot_comm_need_transfers(comm));
        ot_comm_close(comm);
    }
}

static void test_not_found(void **state) {
    (void)state;
    struct ot_comm *comm;
    check_fails(open_named("none", "/a:/b", &comm), OT_E_INPUT, "there is no communicator 'none'");
    assert_non_null(strstr(ot_error_text(), "libot-comm-none.so is not in "));
    assert_non_null(strstr(ot_error_text(), ", /a, /b;"));
    check_fails(open_named("./none.so", NULL, &comm), OT_E_INPUT, "./none.so: cannot open shared object");
}

static void test_wrong_plugins(void **state) {
    (void)state;
    check_refused("abi", OT_E_INPUT,
                  "libot-comm-abi.so: the plugin has version 2 of the interface, but this "
                  "program has 1");
    check_refused("size", OT_E_INPUT, "the plugin's struct has 8 bytes, but it should have");
    check_refused("lacks", OT_E_INPUT, "the plugin lacks the function abort");
    check_refused("half", OT_E_INPUT, "the plugin has only one of group_begin and group_end");
    check_refused("control", OT_E_INPUT,
                  "the plugin has only one of OT_COMM_HAS_CONTROL and all_gather_host");
    check_refused("memory", OT_E_INPUT, "the plugin takes neither host memory nor device memory");
    check_refused("transfers-abi", OT_E_INPUT,
                  "the plugin's transfers have version 2 and 16 bytes, but should");
    check_refused("transfers-size", OT_E_INPUT,
                  "the plugin's transfers have version 1 and 8 bytes, but should");
    check_refused("transfers-lack", OT_E_INPUT, "the plugin lacks the function transfer");
    check_refused("nothing", OT_E_INPUT, "is not a communicator plugin: it has no symbol ot_comm_plugin_v1");
    check_refused("device", OT_E_USAGE, "the communicator fake is for GPUs, but the device is the CPU");
    check_refused("refuses", OT_E_COMM, "the communicator fake cannot start: there is no moon");
    check_refused("rank", OT_E_COMM, "the communicator fake says that this is rank 7 of 1");
    check_refused(OT_TEST_PLUGINS "/../meson.build", OT_E_INPUT, "cannot load the communicator plugin");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_name_path_and_folders),
        cmocka_unit_test(test_operation_that_fails),
        cmocka_unit_test(test_transfers),
        cmocka_unit_test(test_not_found),
        cmocka_unit_test(test_wrong_plugins),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}

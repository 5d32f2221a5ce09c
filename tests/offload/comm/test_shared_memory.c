/* Memory that processes share: every rank sees what the others wrote, and if one rank cannot map it, none
 * does. */
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "offload/comm/shared_memory.h"
#include "tests/offload/comm/world_ranks.h"
#include "tests/support/check.h"

enum { PAGE = 4096, PAGES = 3 }; /* of a rank */

static int failing; /* the rank that can open no file; -1: none */

/* Each rank fills its pages, then looks at those of all. */
static int fill_and_look(struct ot_comm *comm, unsigned char *memory) {
    int rank = ot_comm_rank(comm), ranks = ot_comm_ranks(comm);
    for (int i = 0; i < ranks * PAGES * PAGE; i++)
        if (memory[i] != 0)
            return ot_fail(OT_E_INTERNAL, "byte %d is not zero", i);
    OT_TRY(ot_comm_barrier(comm));
    memset(memory + rank * PAGES * PAGE, rank + 1, PAGES * PAGE);
    OT_TRY(ot_comm_barrier(comm));
    for (int i = 0; i < ranks * PAGES * PAGE; i++)
        if (memory[i] != i / (PAGES * PAGE) + 1)
            return ot_fail(OT_E_INTERNAL, "byte %d is %d", i, memory[i]);
    return ot_comm_barrier(comm);
}

static int share(struct ot_comm *comm) {
    size_t bytes = (size_t)ot_comm_ranks(comm) * PAGES * PAGE;
    struct rlimit limit, none;
    void *memory;
    bool fails = ot_comm_rank(comm) == failing;
    int next = dup(STDERR_FILENO); /* the lowest free number: all below are open, and stay so */
    assert_true(next >= 0 && close(next) == 0);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = (struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = limit.rlim_max};
    if (fails)
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    int rc = ot_shared_memory_map(comm, bytes, &memory);
    if (fails)
        assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (rc == 0)
        rc = fill_and_look(comm, memory);
    else if (memory)
        rc = ot_fail(OT_E_INTERNAL, "it failed, and mapped memory");
    ot_shared_memory_unmap(memory, bytes);
    return rc;
}

static int share_in_rank(struct ot_world *world) {
    struct ot_device *device;
    struct ot_comm *comm;
    OT_TRY(ot_device_open(&(struct ot_device_config){.kind = "cpu", .threads = 1}, &device));
    struct ot_comm_config config = {.world = world, .device = device, .device_index = -1};
    int rc = ot_comm_open(&config, &comm);
    if (rc == 0)
        rc = share(comm);
    ot_comm_close(comm);
    ot_device_close(device);
    return rc;
}

static void ranks_see_each_other(void **state) {
    (void)state;
    failing = -1;
    start_ranks(4, share_in_rank);
    await_ranks();
    check_no_errors(4);
}

static void expect_failure(int rank, const char *words) {
    failing = rank;
    start_ranks(3, share_in_rank);
    await_ranks();
    for (int r = 0; r < 3; r++) {
        const struct report *report = &shared->reports[r];
        if (report->rc != -OT_E_IO || !strstr(report->text, words))
            fail_msg("rank %d ends with %d: %s", r, report->rc, report->text);
    }
}

static void first_rank_fails(void **state) {
    (void)state;
    expect_failure(0, "rank 0: this system gives no memory that ranks can share: ");
}

static void other_rank_fails(void **state) {
    (void)state;
    expect_failure(2, "rank 2: cannot open the memory of rank 0 (/proc/");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(ranks_see_each_other, setup_ranks, teardown_ranks),
        cmocka_unit_test_setup_teardown(first_rank_fails, setup_ranks, teardown_ranks),
        cmocka_unit_test_setup_teardown(other_rank_fails, setup_ranks, teardown_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

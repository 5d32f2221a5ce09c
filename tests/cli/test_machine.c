/* Memory and cores under control groups of both versions, from folders that look like /proc and /sys. */
#include "tests/support/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "src/cli/machine.h"

static const int64_t gib = (int64_t)1 << 30;

static void put(const char *root, const char *path, const char *text) {
    char folder[512];
    snprintf(folder, sizeof folder, "%s/%s", root, path);
    for (char *slash = folder + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(folder, 0777);
        *slash = '/';
    }
    write_file(root, path, text, strlen(text));
}

static struct ot_machine probe(const char *root) {
    struct ot_machine machine;
    check_ok(ot_machine_probe(root, &machine));
    return machine;
}

static int setup(void **state) {
    *state = make_folder();
    put(*state, "proc/meminfo", "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n");
    return 0;
}

static int teardown(void **state) {
    remove_folder(*state);
    return 0;
}

static void without_groups_the_machine_counts(void **state) {
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 16 * gib && m.free_bytes == 12 * gib && strcmp(m.within, "") == 0);
    assert_true(m.cores >= 1);
}

static void version_2_limit_anywhere_up_the_tree(void **state) {
    put(*state, "proc/self/cgroup", "0::/pod/one\n");
    put(*state, "sys/fs/cgroup/pod/one/memory.max", "max\n");
    put(*state, "sys/fs/cgroup/pod/memory.max", "4294967296\n");
    put(*state, "sys/fs/cgroup/pod/memory.current", "2147483648\n");
    put(*state, "sys/fs/cgroup/pod/memory.stat", "anon 5\ninactive_file 1073741824\nactive_file 7\n");
    put(*state, "sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 4 * gib && strcmp(m.within, " within the container's limit") == 0);
    assert_true(m.free_bytes == 3 * gib); /* the file cache can go */
    assert_true(m.cores <= 2);
}

static void version_2_inside_a_container(void **state) {
    put(*state, "proc/self/cgroup", "0::/../../elsewhere\n");
    put(*state, "sys/fs/cgroup/memory.max", "2147483648\n");
    put(*state, "sys/fs/cgroup/memory.current", "3221225472\n");
    put(*state, "sys/fs/cgroup/cpu.max", "max 100000\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 2 * gib && m.free_bytes == 0 &&
                strcmp(m.within, " within the container's limit") == 0);
}

static void version_1_limit(void **state) {
    put(*state, "proc/self/cgroup", "5:cpuset:/\n4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n");
    put(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put(*state, "sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes", "8589934592\n");
    put(*state, "sys/fs/cgroup/memory/docker/1f/memory.usage_in_bytes", "1073741824\n");
    put(*state, "sys/fs/cgroup/cpu/docker/1f/cpu.cfs_quota_us", "100000\n");
    put(*state, "sys/fs/cgroup/cpu/docker/1f/cpu.cfs_period_us", "100000\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 8 * gib && m.free_bytes == 7 * gib &&
                strcmp(m.within, " within the container's limit") == 0);
    assert_int_equal(m.cores, 1);
}

static void nonsense_is_no_limit(void **state) {
    put(*state, "proc/self/cgroup", "garbage\n::\n0:\n\n4:memory\n");
    put(*state, "sys/fs/cgroup/memory.max", "lots\n");
    put(*state, "sys/fs/cgroup/cpu.max", "-1\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 16 * gib && m.free_bytes == 12 * gib);
    put(*state, "proc/meminfo", "MemTotal: x\n");
    struct ot_machine broken;
    check_fails(ot_machine_probe(*state, &broken), OT_E_IO, "MemAvailable");
    check_fails(ot_machine_probe("/nowhere", &broken), OT_E_IO, "/nowhere/proc/meminfo");
}

static void budgets_share_the_ram(void **state) {
    (void)state;
    struct ot_machine m = {.free_bytes = 100 * gib};
    size_t budget[OT_TIER_COUNT];
    ot_machine_budgets(&m, 0, 0, budget);
    assert_true(budget[OT_TIER_GPU] == (size_t)(50 * gib) && budget[OT_TIER_HOST] == (size_t)(40 * gib));
    ot_machine_budgets(&m, 24 * gib, 0, budget);
    assert_true(budget[OT_TIER_GPU] == (size_t)(24 * gib) && budget[OT_TIER_HOST] == (size_t)(66 * gib));
    ot_machine_budgets(&m, 0, 80 * gib, budget);
    assert_true(budget[OT_TIER_GPU] == (size_t)(10 * gib) && budget[OT_TIER_HOST] == (size_t)(80 * gib));
    ot_machine_budgets(&m, 200 * gib, 0, budget);
    assert_true(budget[OT_TIER_GPU] == (size_t)(200 * gib) && budget[OT_TIER_HOST] == 0);
    ot_machine_budgets(&m, 1, 2, budget);
    assert_true(budget[OT_TIER_GPU] == 1 && budget[OT_TIER_HOST] == 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(without_groups_the_machine_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(version_2_limit_anywhere_up_the_tree, setup, teardown),
        cmocka_unit_test_setup_teardown(version_2_inside_a_container, setup, teardown),
        cmocka_unit_test_setup_teardown(version_1_limit, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_is_no_limit, setup, teardown),
        cmocka_unit_test(budgets_share_the_ram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

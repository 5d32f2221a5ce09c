/* Memory and cores under control groups of both versions and under other limits: from folders that look like
 * /proc and /sys, and from child processes with limits of their own. */
#include "tests/support/check.h"

#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <linux/magic.h>

#include "src/base/clock.h"
#include "src/machine/machine.h"

static const int64_t gib = (int64_t)1 << 30;

static struct ot_machine probe(const char *root) {
    struct ot_machine machine;
    check_ok(ot_machine_read(root, &machine));
    return machine;
}

static int setup(void **state) {
    *state = make_folder();
    write_under(*state, "proc/meminfo",
                "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n");
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
    write_under(*state, "proc/self/cgroup", "0::/pod/one\n");
    write_under(*state, "sys/fs/cgroup/pod/one/memory.max", "max\n");
    write_under(*state, "sys/fs/cgroup/pod/memory.max", "4294967296\n");
    write_under(*state, "sys/fs/cgroup/pod/memory.current", "2147483648\n");
    write_under(*state, "sys/fs/cgroup/pod/memory.stat",
                "anon 5\ninactive_file 1073741824\nactive_file 536870912\n");
    write_under(*state, "sys/fs/cgroup/pod/cpu.max", "150000 100000\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 4 * gib && strcmp(m.within, " within the container's limit") == 0);
    assert_true(m.free_bytes ==
                3 * gib + gib / 2); /* the file cache can be dropped, also what is used often */
    assert_true(m.cores <= 2);
}

static void version_2_inside_a_container(void **state) {
    write_under(*state, "proc/self/cgroup", "0::/../../elsewhere\n");
    write_under(*state, "sys/fs/cgroup/memory.max", "2147483648\n");
    write_under(*state, "sys/fs/cgroup/memory.current", "3221225472\n");
    write_under(*state, "sys/fs/cgroup/cpu.max", "max 100000\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 2 * gib && m.free_bytes == 0 &&
                strcmp(m.within, " within the container's limit") == 0);
}

static void version_1_limit(void **state) {
    write_under(*state, "proc/self/cgroup", "5:cpuset:/\n4:memory:/docker/1f\n3:cpu,cpuacct:/docker/1f\n");
    write_under(*state, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    write_under(*state, "sys/fs/cgroup/memory/docker/1f/memory.limit_in_bytes", "8589934592\n");
    write_under(*state, "sys/fs/cgroup/memory/docker/1f/memory.usage_in_bytes", "3221225472\n");
    write_under(
        *state, "sys/fs/cgroup/memory/docker/1f/memory.stat",
        "inactive_file 3\nactive_file 5\ntotal_inactive_file 1073741824\ntotal_active_file 1073741824\n");
    write_under(*state, "sys/fs/cgroup/cpu/docker/1f/cpu.cfs_quota_us", "100000\n");
    write_under(*state, "sys/fs/cgroup/cpu/docker/1f/cpu.cfs_period_us", "100000\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 8 * gib && m.free_bytes == 7 * gib &&
                strcmp(m.within, " within the container's limit") == 0);
    assert_int_equal(m.cores, 1);
}

/* More cores than a cpu_set_t holds; the quota counts too. */
static void cores_come_from_the_kernels_list(void **state) {
    write_under(*state, "proc/self/status",
                "Name:\tx\nCpus_allowed:\tff\nCpus_allowed_list:\t0-1535,2048,4000-4002\n");
    struct ot_machine m = probe(*state);
    assert_int_equal(m.cores, 1540);
    assert_string_equal(m.cpus, "0-1535,2048,4000-4002");
    write_under(*state, "proc/self/cgroup", "0::/\n");
    write_under(*state, "sys/fs/cgroup/cpu.max", "350000 100000\n");
    assert_int_equal(probe(*state).cores, 4);
}

static void put_node(const char *root, int node, int total_gib, int free_gib, int cached_gib) {
    char path[64], text[512];
    snprintf(path, sizeof path, "sys/devices/system/node/node%d/meminfo", node);
    snprintf(
        text, sizeof text,
        "Node %d MemTotal: %d kB\nNode %d MemFree: %d kB\nNode %d MemUsed: 1 kB\nNode %d Inactive(file): "
        "%d kB\nNode %d SReclaimable: 0 kB\n",
        node, total_gib << 20, node, free_gib << 20, node, node, cached_gib << 20, node);
    write_under(root, path, text);
}

static void a_cpusets_memory_nodes_count_alone(void **state) {
    write_under(*state, "sys/devices/system/node/has_memory", "0,2-3\n");
    put_node(*state, 0, 8, 6, 1);
    put_node(*state, 2, 4, 1, 2);
    put_node(*state, 3, 4, 1, 0);
    write_under(*state, "proc/self/status", "Mems_allowed_list:\t0-7\n");
    assert_true(probe(*state).free_bytes == 12 * gib); /* all memory nodes, and the possible ones */
    write_under(*state, "proc/self/status", "Mems_allowed_list:\t2-3\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 8 * gib && m.free_bytes == 4 * gib);
    assert_string_equal(m.within, " on the memory nodes of its cpuset");
}

static void what_is_promised_is_gone_where_the_kernel_keeps_its_word(void **state) {
    write_under(
        *state, "proc/meminfo",
        "MemTotal: 16777216 kB\nMemAvailable: 12582912 kB\nCommitLimit: 8388608 kB\nCommitted_AS: 3145728 "
        "kB\n");
    write_under(*state, "proc/sys/vm/overcommit_memory", "0\n");
    assert_true(probe(*state).free_bytes == 12 * gib);
    write_under(*state, "proc/sys/vm/overcommit_memory", "2\n");
    struct ot_machine m = probe(*state);
    assert_true(m.free_bytes == 5 * gib);
    assert_string_equal(m.within, " within the commit limit (vm.overcommit_memory is 2)");
}

static void names_and_huge_pages(void **state) {
    write_under(*state, "proc/cpuinfo", "processor\t: 0\nmodel name\t: A CPU @ 3 GHz\nprocessor\t: 1\n");
    write_under(*state, "sys/kernel/mm/transparent_hugepage/enabled", "always madvise [never]\n");
    struct ot_machine m = probe(*state);
    assert_string_equal(m.cpu, "A CPU @ 3 GHz");
    assert_string_equal(m.huge_pages, "never");
    assert_true(strlen(m.kernel) > 0 && !m.has_driver);
    write_under(*state, "proc/driver/nvidia/version",
                "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570\n");
    write_under(*state, "proc/cpuinfo", "processor\t: 0\nCPU part\t: 0xd4f\n");
    write_under(*state, "sys/kernel/mm/transparent_hugepage/enabled", "always\n");
    m = probe(*state);
    assert_string_equal(m.cpu, "0xd4f");
    assert_string_equal(m.huge_pages, "");
    assert_true(m.has_driver);
}

/* Increases the busy time of a disk while it is being measured, as other programs do: the disk is never idle,
 * however late this thread runs. */
static void *keep_busy(void *arg) {
    char line[64];
    double began = ot_clock_seconds();
    for (int ms = 0; ms < 600; ms = (int)(1000 * (ot_clock_seconds() - began))) {
        snprintf(line, sizeof line, "1 0 8 1 1 0 8 1 0 %d 3\n", ms);
        write_under(arg, "sys/block/disk.new", line);
        char from[512], to[512];
        snprintf(from, sizeof from, "%s/sys/block/disk.new", (char *)arg);
        snprintf(to, sizeof to, "%s/sys/block/busy/stat", (char *)arg);
        assert_int_equal(rename(from, to), 0);
        usleep(10000);
    }
    return NULL;
}

static void notes_on_disks_and_gpus(void **state) {
    char text[OT_MACHINE_NOTE_BYTES], path[512], link_path[640], name[64];
    struct stat file;
    pthread_t other;
    assert_int_equal(stat(*state, &file), 0);
    write_under(*state, "sys/devices/busy/size", "100\n");
    write_under(*state, "sys/dev/block/none", "\n");
    write_under(*state, "sys/block/busy/stat", "1 0 8 1 1 0 8 1 0 0 3\n");
    snprintf(path, sizeof path, "%s/sys/devices/busy", (char *)*state);
    snprintf(name, sizeof name, "%u:%u", major(file.st_dev), minor(file.st_dev));
    snprintf(link_path, sizeof link_path, "%s/sys/dev/block/%s", (char *)*state, name);
    assert_int_equal(symlink(path, link_path), 0);
    assert_string_equal(ot_machine_dir_note(*state, *state, 0.05, text), "");
    assert_int_equal(pthread_create(&other, NULL, keep_busy, *state), 0);
    usleep(50000);
    ot_machine_dir_note(*state, *state, 0.2, text);
    pthread_join(other, NULL);
    assert_non_null(strstr(text, ": other programs keep its disk busy busy ("));
    assert_string_equal(ot_machine_gpu_note(gib, 80 * gib, text), "");
    assert_string_equal(ot_machine_gpu_note(20 * gib, 80 * gib, text),
                        "other programs use 20.0 GiB of the GPU's 80.0 GiB; if they also compute, the run is "
                        "slower than predicted; nvidia-smi lists them");
    assert_string_equal(ot_machine_gpu_note(0, 0, text), "");
}

static void tmpfs_is_no_disk(void **state) {
    (void)state;
    struct statfs system;
    char text[OT_MACHINE_NOTE_BYTES];
    if (statfs("/dev/shm", &system) < 0 || system.f_type != TMPFS_MAGIC) {
        print_message("no tmpfs here\n");
        skip();
    }
    assert_string_equal(ot_machine_dir_note("", "/dev/shm", 0, text),
                        "--nvme /dev/shm: this directory is on tmpfs, which uses RAM, so it saves no memory; "
                        "use a directory on a disk");
}

static void pinning_notes(void **state) {
    (void)state;
    char text[OT_MACHINE_NOTE_BYTES];
    struct ot_machine m = {.lock_bytes = INT64_MAX, .huge_pages = "madvise"};
    assert_string_equal(ot_machine_pinning_note(&m, 12 * gib, true, text), "");
    m.lock_bytes = 8 << 20;
    assert_string_equal(ot_machine_pinning_note(&m, 8 << 20, true, text), "");
    assert_string_equal(ot_machine_pinning_note(&m, 12 * gib, true, text),
                        "12.0 GiB of pinned memory: locked memory is limited to 8.0 MiB, so disk buffers are "
                        "not registered with the kernel, which costs CPU time (to fix: ulimit -l unlimited)");
    assert_string_equal(ot_machine_pinning_note(&m, 12 * gib, false, text), "");
    strcpy(m.huge_pages, "never");
    assert_non_null(strstr(ot_machine_pinning_note(&m, 12 * gib, true, text), "; huge pages are off"));
    m.lock_bytes = INT64_MAX;
    assert_non_null(strstr(ot_machine_pinning_note(&m, 12 * gib, true, text), "memory: huge pages are off"));
    assert_string_equal(ot_machine_pinning_note(&m, 0, true, text), "");
    strcpy(m.huge_pages, "madvise");
    m.is_wsl = true;
    assert_non_null(strstr(ot_machine_pinning_note(&m, 12 * gib, false, text),
                           "12.0 GiB of pinned memory: WSL2 can pin only about half of the memory"));
}

static void pages_are_counted(void **state) {
    int64_t pages;
    check_ok(ot_machine_free_pages(*state, &pages));
    assert_int_equal(pages, 12 * gib);
}

/* With a GPU that Windows lends (WSL), half of the free memory may be pinned, unless the user asks for
 * more. */
static void windows_pins_half(void **state) {
    struct ot_machine m = probe(*state);
    assert_false(m.is_wsl);
    assert_int_equal(ot_machine_host_budget(&m, 0), 12 * gib - 12 * gib / 10);
    write_under(*state, "proc/version",
                "Linux version 5.15.153.1-microsoft-standard-WSL2 (root@host) #1 SMP\n");
    m = probe(*state);
    assert_true(m.is_wsl);
    assert_int_equal(ot_machine_host_budget(&m, 0), 6 * gib);
    assert_int_equal(ot_machine_host_budget(&m, 11 * gib), 11 * gib);
}

/* ---- this machine, in a child with limits of its own ---- */

static int check_mask(void) {
    cpu_set_t set;
    struct ot_machine m;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return 1;
    for (int i = 0, kept = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set) && kept++)
            CPU_CLR(i, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0 || ot_machine_read("", &m) < 0)
        return 2;
    return m.cores == 1 && strlen(m.cpus) > 0 && !strpbrk(m.cpus, "-,") ? 0 : 3;
}

/* Root may lock any amount of memory. */
static int check_lock_limit(void) {
    struct rlimit limit = {5 << 20, 5 << 20};
    struct ot_machine m;
    if (setrlimit(RLIMIT_MEMLOCK, &limit) != 0 || (geteuid() == 0 && setuid(65534) != 0))
        return 1;
    if (ot_machine_read("", &m) < 0)
        return 2;
    return m.lock_bytes == 5 << 20 ? 0 : 3;
}

/* The memory that the process has already is not free. Sanitizers map more than any limit would allow, so the
 * limit lies far above that, and the RAM of the test's folder above the limit. */
static const char *huge_machine;
static int check_data_limit(void) {
    struct ot_machine m;
    struct rlimit limit;
    if (getrlimit(RLIMIT_DATA, &limit) != 0)
        return 1;
    limit.rlim_cur = 3 * (rlim_t)gib;
    if (setrlimit(RLIMIT_DATA, &limit) != 0)
        return 1;
    if (ot_machine_read(huge_machine, &m) < 0)
        return 2;
    if (m.ram_bytes != 3 * gib || m.free_bytes != 2 * gib || strcmp(m.within, " within ulimit -d") != 0)
        return 3;
    /* Memory that is mapped already may still become resident, although ulimit -d forbids mapping more. */
    int64_t pages;
    if (ot_machine_free_pages(huge_machine, &pages) < 0 || pages <= 3 * gib)
        return 7;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_DATA, &limit) != 0 || getrlimit(RLIMIT_AS, &limit) != 0)
        return 4;
    limit.rlim_cur = (rlim_t)40000 * (rlim_t)gib;
    if (setrlimit(RLIMIT_AS, &limit) != 0 || ot_machine_read(huge_machine, &m) < 0)
        return 5;
    return m.free_bytes == 39990 * gib && strcmp(m.within, " within ulimit -v") == 0 ? 0 : 6;
}

static void limits_of_the_process(void **state) {
    check_in_child(check_mask);
    check_in_child(check_lock_limit);
    write_under(*state, "proc/meminfo", "MemTotal: 99999999999999 kB\nMemAvailable: 99999999999999 kB\n");
    write_under(*state, "proc/self/status", "VmSize:\t10485760 kB\nVmData:\t 1048576 kB\n");
    huge_machine = *state;
    check_in_child(check_data_limit);
}

/* ---- fingerprint ---- */

static const char *fingerprint(const struct ot_machine *machine, const char *device, const char *dir) {
    static char texts[2][OT_FINGERPRINT_BYTES];
    static int turn;
    char *text = texts[turn++ % 2];
    check_ok(ot_machine_fingerprint(machine, device, dir != NULL, &dir, text));
    return text;
}

static void a_fingerprint_changes_with_what_it_stands_for(void **state) {
    struct ot_machine same = {
        .cores = 8, .cpus = "0-7", .cpu = "A CPU", .kernel = "6.1", .ram_bytes = 64 * gib};
    char first[OT_FINGERPRINT_BYTES];
    strcpy(first, fingerprint(&same, "cpu", *state));
    assert_int_equal(strspn(first, "0123456789abcdef"), 16);
    struct ot_machine again = same;
    again.free_bytes = 5 * gib; /* free memory is not part of the machine */
    again.ram_bytes += 1 << 20; /* a small change: the kernel's own share varies */
    assert_string_equal(fingerprint(&again, "cpu", *state), first);
    assert_string_not_equal(fingerprint(&same, "cuda: H200", *state), first);
    assert_string_not_equal(fingerprint(&same, "cpu", NULL), first);
    assert_string_not_equal(fingerprint(&same, "cpu", "/proc"), first);
    struct ot_machine others[5] = {same, same, same, same, same};
    others[0].cores = 4;
    strcpy(others[1].cpus, "8-15");
    strcpy(others[2].cpu, "B CPU");
    strcpy(others[3].kernel, "6.2");
    others[4].ram_bytes = 65 * gib;
    for (int i = 0; i < 5; i++)
        assert_string_not_equal(fingerprint(&others[i], "cpu", *state), first);
    const char *nowhere = "/nowhere";
    check_fails(ot_machine_fingerprint(&same, "cpu", 1, &nowhere, first), OT_E_IO, "/nowhere");
}

static void nonsense_is_no_limit(void **state) {
    write_under(*state, "proc/self/cgroup", "garbage\n::\n0:\n\n4:memory\n");
    write_under(*state, "sys/fs/cgroup/memory.max", "lots\n");
    write_under(*state, "sys/fs/cgroup/cpu.max", "-1\n");
    struct ot_machine m = probe(*state);
    assert_true(m.ram_bytes == 16 * gib && m.free_bytes == 12 * gib);
    write_under(*state, "proc/meminfo", "MemTotal: x\n");
    struct ot_machine broken;
    check_fails(ot_machine_read(*state, &broken), OT_E_IO, "MemAvailable");
    check_fails(ot_machine_read("/nowhere", &broken), OT_E_IO, "/nowhere/proc/meminfo");
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
        cmocka_unit_test_setup_teardown(cores_come_from_the_kernels_list, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cpusets_memory_nodes_count_alone, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_promised_is_gone_where_the_kernel_keeps_its_word, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(names_and_huge_pages, setup, teardown),
        cmocka_unit_test(pinning_notes),
        cmocka_unit_test_setup_teardown(windows_pins_half, setup, teardown),
        cmocka_unit_test_setup_teardown(pages_are_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(notes_on_disks_and_gpus, setup, teardown),
        cmocka_unit_test(tmpfs_is_no_disk),
        cmocka_unit_test_setup_teardown(limits_of_the_process, setup, teardown),
        cmocka_unit_test_setup_teardown(a_fingerprint_changes_with_what_it_stands_for, setup, teardown),
        cmocka_unit_test_setup_teardown(nonsense_is_no_limit, setup, teardown),
        cmocka_unit_test(budgets_share_the_ram),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Topology: synthetic hwloc machines, with devices from folders that look like /sys, and this machine with
 * the CPU masks of child processes. */
#include "tests/support/check.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "offload/topology/disk.h"
#include "offload/topology/topology.h"

/* Two packages with a memory node each, and 8 cores with 2 threads each: threads 0-15 belong to node 0,
 * threads 16-31 to node 1. */
#define TWO  "pack:2 [numa(memory=64GB)] l3:1(size=33554432) l2:8(size=1048576) l1:1(size=32768) core:1 pu:2"
#define FOUR "pack:2 group:2 [numa] core:2 pu:1"
#define ONE  "pack:1 numa:1 core:4 pu:1"
#define GPU  "0000:65:00.0"

static struct ot_topology *open_as(struct ot_topology_config config) {
    struct ot_topology *topology;
    check_ok(ot_topology_open(&config, &topology));
    return topology;
}

static const char *cpus(const struct ot_topology *t, enum ot_thread_role role, int index, int count) {
    static char text[256];
    ot_topology_thread_cpus(t, role, index, count, text, sizeof text);
    return text;
}

static const char *memory(const struct ot_topology *t) {
    static char text[256];
    ot_topology_memory_nodes(t, text, sizeof text);
    return text;
}

/* ---- folders that look like /sys ---- */

static void put_link(const char *root, const char *path, const char *target) {
    char name[512], to[512];
    write_under(root, path, "");
    snprintf(name, sizeof name, "%s/%s", root, path);
    snprintf(to, sizeof to, "%s/%s", root, target);
    assert_int_equal(unlink(name), 0);
    assert_int_equal(symlink(to, name), 0);
}

static void put_gpu(const char *root, const char *node) {
    write_under(root, "sys/devices/pci0000:64/0000:65:00.0/numa_node", node);
    put_link(root, "sys/bus/pci/devices/0000:65:00.0", "sys/devices/pci0000:64/0000:65:00.0");
}

#define NVME0 "sys/devices/pci0000:00/0000:00:01.0/nvme/nvme0/"
#define NVME1 "sys/devices/pci0000:80/0000:80:01.0/nvme/nvme1/"

/* Two NVMe disks, the first with a partition: 259:0, 259:1 and 259:2. */
static void put_disks(const char *root) {
    write_under(root, "sys/devices/pci0000:00/0000:00:01.0/numa_node", "0\n");
    write_under(root, NVME0 "nvme0n1/size", "2000\n");
    write_under(root, NVME0 "nvme0n1/nvme0n1p1/partition", "1\n");
    write_under(root, NVME0 "model", "Fast Disk 9000            \n");
    write_under(root, NVME0 "serial", "  S1\n");
    put_link(root, NVME0 "nvme0n1/device", NVME0);
    write_under(root, "sys/devices/pci0000:80/0000:80:01.0/numa_node", "1\n");
    write_under(root, NVME1 "nvme1n1/size", "4000\n");
    write_under(root, NVME1 "nvme1n1/wwid", "eui.2\n");
    put_link(root, "sys/dev/block/259:0", NVME0 "nvme0n1");
    put_link(root, "sys/dev/block/259:1", NVME0 "nvme0n1/nvme0n1p1");
    put_link(root, "sys/dev/block/259:2", NVME1 "nvme1n1");
}

/* Makes the block device of the test's own folder appear as the device at `target`. */
static void put_folders_disk(const char *root, const char *target) {
    struct stat folder;
    char path[64];
    assert_int_equal(stat(root, &folder), 0);
    snprintf(path, sizeof path, "sys/dev/block/%u:%u", major(folder.st_dev), minor(folder.st_dev));
    put_link(root, path, target);
}

static int setup(void **state) {
    *state = make_folder();
    return 0;
}

static int teardown(void **state) {
    remove_folder(*state);
    return 0;
}

/* ---- disks ---- */

static void partitions_lead_to_their_disk(void **state) {
    struct ot_disk disks[OT_DISK_MAX];
    put_disks(*state);
    assert_int_equal(ot_disk_find(*state, makedev(259, 1), disks), 1);
    assert_string_equal(disks[0].name, "nvme0n1");
    assert_string_equal(disks[0].model, "Fast Disk 9000");
    assert_string_equal(disks[0].serial, "S1");
    assert_int_equal(disks[0].bytes, 2000 * 512);
    assert_int_equal(disks[0].node, 0);
    assert_int_equal(ot_disk_find(*state, makedev(259, 2), disks), 1);
    assert_string_equal(disks[0].serial, "eui.2");
    assert_string_equal(disks[0].model, "");
    assert_int_equal(disks[0].node, 1);
    assert_int_equal(ot_disk_find(*state, makedev(0, 44), disks), 0); /* tmpfs */
}

/* LVM on a RAID of a partition and a disk, and a second volume on the disk alone. */
static void stacks_lead_to_all_their_disks(void **state) {
    struct ot_disk disks[OT_DISK_MAX];
    put_disks(*state);
    put_link(*state, "sys/devices/virtual/block/md0/slaves/nvme1n1", NVME1 "nvme1n1");
    put_link(*state, "sys/devices/virtual/block/md0/slaves/nvme0n1p1", NVME0 "nvme0n1/nvme0n1p1");
    put_link(*state, "sys/devices/virtual/block/dm-0/slaves/md0", "sys/devices/virtual/block/md0");
    put_link(*state, "sys/devices/virtual/block/dm-0/slaves/nvme0n1", NVME0 "nvme0n1");
    put_link(*state, "sys/devices/virtual/block/dm-1/slaves/nvme1n1", NVME1 "nvme1n1");
    put_link(*state, "sys/dev/block/253:0", "sys/devices/virtual/block/dm-0");
    assert_int_equal(ot_disk_find(*state, makedev(253, 0), disks), 2);
    assert_string_equal(disks[0].name, "nvme0n1"); /* listed once, although it is used twice */
    assert_string_equal(disks[1].name, "nvme1n1");
    put_folders_disk(*state, "sys/devices/virtual/block/dm-0");
    assert_int_equal(ot_disk_node(*state, *state), -1); /* the disks are on both nodes */
}

static void a_volume_on_one_node_is_there(void **state) {
    put_disks(*state);
    put_link(*state, "sys/devices/virtual/block/dm-1/slaves/nvme1n1", NVME1 "nvme1n1");
    put_folders_disk(*state, "sys/devices/virtual/block/dm-1");
    assert_int_equal(ot_disk_node(*state, *state), 1);
    assert_int_equal(ot_disk_node(*state, "/nowhere"), -1);
}

static void a_disk_with_several_ways_to_it(void **state) {
    struct ot_disk disks[OT_DISK_MAX];
    put_disks(*state);
    write_under(*state, "sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme5n1/size", "1\n");
    write_under(*state, NVME1 "numa_node", "1\n");
    put_link(*state, "sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme1", NVME1);
    put_link(*state, "sys/dev/block/259:7", "sys/devices/virtual/nvme-subsystem/nvme-subsys1/nvme5n1");
    assert_int_equal(ot_disk_find(*state, makedev(259, 7), disks), 1);
    assert_int_equal(disks[0].node, 1);
}

static void stacks_that_go_round_end(void **state) {
    struct ot_disk disks[OT_DISK_MAX];
    put_link(*state, "sys/devices/virtual/block/dm-0/slaves/dm-1", "sys/devices/virtual/block/dm-1");
    write_under(*state, "sys/devices/virtual/block/dm-1/size", "1\n");
    put_link(*state, "sys/devices/virtual/block/dm-1/slaves/dm-0", "sys/devices/virtual/block/dm-0");
    put_link(*state, "sys/dev/block/253:0", "sys/devices/virtual/block/dm-0");
    assert_int_equal(ot_disk_find(*state, makedev(253, 0), disks), 0);
}

static void gpus_by_any_spelling(void **state) {
    put_gpu(*state, "1\n");
    assert_int_equal(ot_disk_pci_node(*state, GPU), 1);
    /* In the notation of the driver's tools. */
    assert_int_equal(ot_disk_pci_node(*state, "00000000:65:00.0"), 1);
    assert_int_equal(ot_disk_pci_node(*state, "0000:66:00.0"), -1);
    assert_int_equal(ot_disk_pci_node(*state, "no bus"), -1);
    write_under(*state, "sys/devices/pci0000:64/0000:65:00.0/numa_node", "-1\n");
    assert_int_equal(ot_disk_pci_node(*state, GPU), -1);
}

/* ---- counts and sizes ---- */

static void a_machine_of_two_nodes(void **state) {
    put_gpu(*state, "1\n");
    put_disks(*state);
    put_folders_disk(*state, NVME0 "nvme0n1/nvme0n1p1");
    const char *dirs[] = {*state, "/proc"};
    struct ot_topology *t = open_as((struct ot_topology_config){
        .gpu_bus_id = GPU, .n_dirs = 2, .dirs = dirs, .synthetic = TWO, .root = *state});
    struct ot_topology_summary s;
    ot_topology_summarise(t, &s);
    assert_int_equal(s.packages, 2);
    assert_int_equal(s.nodes, 2);
    assert_int_equal(s.cores, 16);
    assert_int_equal(s.threads, 32);
    assert_int_equal(s.l1_bytes, 32 << 10);
    assert_int_equal(s.l2_bytes, 1 << 20);
    assert_int_equal(s.l3_bytes, 64 << 20);
    assert_int_equal(s.gpu_node, 1);
    assert_int_equal(s.disk_node[0], 0);
    assert_int_equal(s.disk_node[1], -1);
    assert_string_equal(ot_topology_describe(t),
                        "2 packages, 16 cores (32 threads), 2 memory nodes; GPU on node "
                        "1; disks on node 0, ?");
    ot_topology_close(t);
}

static void what_may_not_be_used_does_not_exist(void **state) {
    (void)state;
    struct ot_topology_summary s;
    struct ot_topology *t =
        open_as((struct ot_topology_config){.synthetic = TWO, .synthetic_cpus = "16-19,20"});
    ot_topology_summarise(t, &s);
    assert_int_equal(s.packages, 1);
    assert_int_equal(s.nodes, 1);
    assert_int_equal(s.cores, 3);
    assert_int_equal(s.threads, 5);
    assert_int_equal(s.l3_bytes, 32 << 20);
    assert_string_equal(ot_topology_describe(t), "1 package, 3 cores (5 threads), 1 memory node");
    ot_topology_close(t);
}

static void a_machine_without_a_topology_is_one_node(void **state) {
    (void)state;
    struct ot_topology_summary s;
    struct ot_topology *t = open_as((struct ot_topology_config){.synthetic = "nonsense:"});
    ot_topology_summarise(t, &s);
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_int_equal(s.nodes, 1);
    assert_int_equal(s.cores, CPU_COUNT(&set));
    assert_int_equal(ot_topology_bind_thread(t, OT_ROLE_OPTIMIZER, 0, 1), 0);
    ot_topology_close(t);
}

static void fast_memory_beside_the_main_memory_is_no_node_of_its_own(void **state) {
    (void)state;
    struct ot_topology_summary s;
    struct ot_topology *t = open_as((struct ot_topology_config){
        .synthetic = "pack:2 [numa(memory=64GB)] [numa(memory=16GB)] core:4 pu:1"});
    ot_topology_summarise(t, &s);
    assert_int_equal(s.nodes, 2);
    assert_string_equal(memory(t), "0,2");
    ot_topology_close(t);
}

/* ---- which role gets which threads ---- */

static void the_optimizer_has_a_core_a_thread_nearest_to_the_gpu(void **state) {
    put_gpu(*state, "1\n");
    struct ot_topology *t =
        open_as((struct ot_topology_config){.gpu_bus_id = GPU, .synthetic = TWO, .root = *state});
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 0, 12), "16-17");
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 7, 12), "30-31");
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 8, 12), "0-1");
    /* More threads than cores: begins again at the first core. */
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 16, 20), "16-17");
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 0, 33), ""); /* more than the machine has */
    assert_string_equal(cpus(t, OT_ROLE_LANE, 0, 1), "16-31");
    assert_string_equal(memory(t), "1");
    ot_topology_close(t);
}

/* Four nodes in two packages: the GPU's node, then the other node of its package, come first. */
static void the_nearest_nodes_come_first(void **state) {
    put_gpu(*state, "3\n");
    struct ot_topology *t =
        open_as((struct ot_topology_config){.gpu_bus_id = GPU, .synthetic = FOUR, .root = *state});
    static const char *const order[] = {"6", "7", "4", "5", "0", "1", "2", "3"};
    for (int i = 0; i < 8; i++)
        assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, i, 8), order[i]);
    ot_topology_close(t);
}

static void without_a_gpu_threads_are_spread_over_the_nodes(void **state) {
    (void)state;
    struct ot_topology *t = open_as((struct ot_topology_config){.synthetic = TWO});
    static const enum ot_thread_role roles[] = {OT_ROLE_COMPUTE, OT_ROLE_OPTIMIZER};
    for (int r = 0; r < 2; r++) {
        assert_string_equal(cpus(t, roles[r], 0, 32), "0-15");
        assert_string_equal(cpus(t, roles[r], 15, 32), "0-15");
        assert_string_equal(cpus(t, roles[r], 16, 32), "16-31");
        assert_string_equal(cpus(t, roles[r], 31, 32), "16-31");
    }
    assert_string_equal(cpus(t, OT_ROLE_LANE, 0, 1), "");
    assert_string_equal(cpus(t, OT_ROLE_IO, 0, 1), "");
    assert_string_equal(memory(t), "0-1");
    ot_topology_close(t);
}

static void io_is_near_its_disks(void **state) {
    put_disks(*state);
    put_gpu(*state, "0\n");
    put_folders_disk(*state, NVME1 "nvme1n1");
    const char *dirs[] = {*state};
    struct ot_topology *t = open_as((struct ot_topology_config){
        .gpu_bus_id = GPU, .n_dirs = 1, .dirs = dirs, .synthetic = TWO, .root = *state});
    assert_string_equal(cpus(t, OT_ROLE_IO, 1, 2), "16-31");
    assert_string_equal(cpus(t, OT_ROLE_LANE, 0, 2), "0-15");
    ot_topology_close(t);
}

static void one_node_is_left_to_the_kernel(void **state) {
    put_gpu(*state, "-1\n");
    struct ot_topology *t =
        open_as((struct ot_topology_config){.gpu_bus_id = GPU, .synthetic = ONE, .root = *state});
    struct ot_topology_summary s;
    ot_topology_summarise(t, &s);
    assert_int_equal(s.gpu_node, 0); /* the machine has no other node */
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 0, 4), "");
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 2, 3), "2"); /* one core is left for the other roles */
    assert_string_equal(cpus(t, OT_ROLE_COMPUTE, 0, 2), "");
    assert_string_equal(cpus(t, OT_ROLE_LANE, 0, 2), "");
    assert_string_equal(memory(t), "");
    ot_topology_close(t);
}

static void a_gpu_on_a_node_that_may_not_be_used(void **state) {
    put_gpu(*state, "1\n");
    struct ot_topology *t = open_as((struct ot_topology_config){
        .gpu_bus_id = GPU, .synthetic = TWO, .synthetic_cpus = "0-15", .root = *state});
    assert_string_equal(cpus(t, OT_ROLE_LANE, 0, 1), "");
    assert_string_equal(cpus(t, OT_ROLE_OPTIMIZER, 1, 4), "2-3");
    assert_string_equal(memory(t), "");
    ot_topology_close(t);
}

/* Converts "1,3-5" to bits. */
static uint64_t parse_list(const char *text) {
    uint64_t set = 0;
    while (*text) {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (unsigned long i = first; i <= last && i < 64; i++)
            set |= UINT64_C(1) << i;
        text = *end ? end + 1 : end;
    }
    return set;
}

static void check_roles(const struct ot_topology *t, uint64_t allowed, int count) {
    for (int role = OT_ROLE_COMPUTE; role <= OT_ROLE_LANE; role++)
        for (int index = 0; index < count; index++) {
            const char *text = cpus(t, (enum ot_thread_role)role, index, count);
            assert_true((parse_list(text) & ~allowed) == 0);
        }
}

/* On any machine, with any part of it allowed, no thread is placed outside the allowed part. */
static void nobody_leaves_the_allowed_threads(void **state) {
    static const char *const machines[] = {TWO, FOUR, "pack:1 [numa] core:64 pu:1"};
    static const char *const masks[] = {"0", "1,3", "0-3", "2-9", "5,7,11,15", "0-63"};
    put_gpu(*state, "1\n");
    for (size_t m = 0; m < sizeof machines / sizeof *machines; m++)
        for (size_t k = 0; k < sizeof masks / sizeof *masks; k++)
            for (int gpu = 0; gpu < 2; gpu++) {
                struct ot_topology *t = open_as((struct ot_topology_config){.gpu_bus_id = gpu ? GPU : NULL,
                                                                            .synthetic = machines[m],
                                                                            .synthetic_cpus = masks[k],
                                                                            .root = *state});
                for (int count = 1; count < 20; count += 3)
                    check_roles(t, parse_list(masks[k]), count);
                ot_topology_close(t);
            }
}

/* ---- this machine ---- */

static int first_cpu(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0)
        return -1;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &set))
            return i;
    return -1;
}

static int check_masked(void) {
    cpu_set_t one, after;
    struct ot_topology *t;
    struct ot_topology_summary s;
    int cpu = first_cpu();
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    if (cpu < 0 || sched_setaffinity(0, sizeof one, &one) != 0)
        return 1;
    if (ot_topology_open(&(struct ot_topology_config){.gpu_bus_id = GPU}, &t) < 0)
        return 2;
    ot_topology_summarise(t, &s);
    if (s.cores != 1 || s.threads != 1 || s.nodes != 1 || s.packages != 1)
        return 3;
    for (int role = OT_ROLE_COMPUTE; role <= OT_ROLE_LANE; role++)
        for (int index = 0; index < 3; index++) {
            if (ot_topology_bind_thread(t, (enum ot_thread_role)role, index, 3) != 0)
                return 4;
            if (sched_getaffinity(0, sizeof after, &after) != 0 || !CPU_EQUAL(&one, &after))
                return 5;
        }
    ot_topology_close(t);
    return 0;
}

static void a_masked_process_sees_what_it_may_use(void **state) {
    (void)state;
    check_in_child(check_masked);
}

/* Beside a GPU, one thread on at least two cores gets a core of its own. */
static int check_bound(void) {
    cpu_set_t before, after;
    struct ot_topology *t;
    struct ot_topology_summary s;
    char text[256];
    if (sched_getaffinity(0, sizeof before, &before) != 0 ||
        ot_topology_open(&(struct ot_topology_config){.gpu_bus_id = GPU}, &t) < 0)
        return 1;
    ot_topology_summarise(t, &s);
    struct ot_topology_binding binding = {t, OT_ROLE_OPTIMIZER};
    ot_topology_place_thread(&binding, s.cores - 2, s.cores - 1);
    ot_topology_thread_cpus(t, OT_ROLE_OPTIMIZER, s.cores - 2, s.cores - 1, text, sizeof text);
    if (sched_getaffinity(0, sizeof after, &after) != 0 || !*text)
        return 2;
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &after) && !CPU_ISSET(i, &before))
            return 3;
    if (CPU_COUNT(&after) != s.threads / s.cores || !CPU_ISSET(atoi(text), &after))
        return 4;
    ot_topology_close(t);
    return 0;
}

static void a_thread_is_bound_to_its_core(void **state) {
    (void)state;
    struct ot_topology *t = open_as((struct ot_topology_config){0});
    struct ot_topology_summary s;
    ot_topology_summarise(t, &s);
    assert_true(s.cores >= 1 && s.threads >= s.cores && s.packages >= 1 && s.nodes >= 1);
    ot_topology_close(t);
    if (s.cores < 2)
        skip(); /* no choice, so the test is skipped */
    check_in_child(check_bound);
}

static void memory_is_placed_and_stays_usable(void **state) {
    (void)state;
    struct ot_topology *t = open_as((struct ot_topology_config){0});
    size_t bytes = 4 << 20;
    unsigned char *memory_range =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(memory_range != MAP_FAILED);
    struct ot_topology_binding binding = {t, OT_ROLE_COMPUTE}, none = {NULL, OT_ROLE_COMPUTE};
    ot_topology_place_memory(&binding, memory_range, bytes);
    ot_topology_place_memory(&none, memory_range, bytes);
    ot_topology_place_thread(&none, 0, 1);
    memset(memory_range, 1, bytes);
    assert_int_equal(memory_range[bytes - 1], 1);
    munmap(memory_range, bytes);
    ot_topology_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(partitions_lead_to_their_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(stacks_lead_to_all_their_disks, setup, teardown),
        cmocka_unit_test_setup_teardown(a_volume_on_one_node_is_there, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_with_several_ways_to_it, setup, teardown),
        cmocka_unit_test_setup_teardown(stacks_that_go_round_end, setup, teardown),
        cmocka_unit_test_setup_teardown(gpus_by_any_spelling, setup, teardown),
        cmocka_unit_test_setup_teardown(a_machine_of_two_nodes, setup, teardown),
        cmocka_unit_test(what_may_not_be_used_does_not_exist),
        cmocka_unit_test(a_machine_without_a_topology_is_one_node),
        cmocka_unit_test(fast_memory_beside_the_main_memory_is_no_node_of_its_own),
        cmocka_unit_test_setup_teardown(the_optimizer_has_a_core_a_thread_nearest_to_the_gpu, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(the_nearest_nodes_come_first, setup, teardown),
        cmocka_unit_test(without_a_gpu_threads_are_spread_over_the_nodes),
        cmocka_unit_test_setup_teardown(io_is_near_its_disks, setup, teardown),
        cmocka_unit_test_setup_teardown(one_node_is_left_to_the_kernel, setup, teardown),
        cmocka_unit_test_setup_teardown(a_gpu_on_a_node_that_may_not_be_used, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_leaves_the_allowed_threads, setup, teardown),
        cmocka_unit_test(a_masked_process_sees_what_it_may_use),
        cmocka_unit_test(a_thread_is_bound_to_its_core),
        cmocka_unit_test(memory_is_placed_and_stays_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

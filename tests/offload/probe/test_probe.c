/* The probe on the cpu device and its host. Every row appears once, a rate is work divided by time, the rates
 * of rows combine into the machine's rates, and errors are sentences. */
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/adamw.h"
#include "offload/probe/probe.h"
#include "src/base/text.h"
#include "tests/support/check.h"

struct seen {
    int rows, groups[OT_PROBE_GROUPS], uses[OT_PROBE_USES], stop_after;
    double copy_rate;
    char names[128][64];
    struct ot_probe_sums sums;
};

static int see(void *context, const struct ot_probe_row *row) {
    struct seen *seen = context;
    assert_true(seen->rows < 128);
    for (int i = 0; i < seen->rows; i++)
        assert_string_not_equal(seen->names[i], row->name);
    strncpy(seen->names[seen->rows], row->name, sizeof seen->names[0] - 1);
    assert_true(row->seconds > 0 && row->work > 0);
    assert_true(row->rate == row->work / row->seconds);
    assert_true(row->spread >= 0);
    if (row->group == OT_PROBE_KERNEL && strcmp(row->name, "copy") == 0)
        seen->copy_rate = row->rate;
    if (row->group == OT_PROBE_KERNEL)
        assert_true(row->peak == seen->copy_rate);
    if (row->group == OT_PROBE_GEMM)
        assert_true(row->rate <= row->peak);
    seen->groups[row->group]++;
    seen->uses[row->use]++;
    seen->rows++;
    ot_probe_add(&seen->sums, row);
    return seen->rows == seen->stop_after ? ot_fail(OT_E_IO, "enough") : 0;
}

static bool has_row(const struct seen *seen, const char *name) {
    for (int i = 0; i < seen->rows; i++)
        if (strcmp(seen->names[i], name) == 0)
            return true;
    return false;
}

/* ---- the device ---- */

static void probe(enum ot_dtype dtype, bool quick, struct seen *seen, int want) {
    struct ot_device_config config = {.kind = "cpu", .threads = 2};
    struct ot_device *device;
    check_ok(ot_device_open(&config, &device));
    struct ot_probe_config probe = {.device = device,
                                    .dtype = dtype,
                                    .hidden = 128,
                                    .tokens = 64,
                                    .buffer_bytes = 1 << 20,
                                    .seconds = 0.003,
                                    .quick = quick,
                                    .reader = {see, seen}};
    int rc = ot_probe_device(&probe);
    assert_int_equal(rc, want);
    struct ot_device_usage usage;
    ot_device_usage(device, &usage);
    assert_int_equal(usage.used_bytes, 0);
    assert_int_equal(usage.pinned_bytes, 0);
    ot_device_close(device);
}

static void every_row_is_measured(void **state) {
    (void)state;
    for (int d = tests_are_few(); d < 2; d++) {
        struct seen seen = {0};
        probe(d ? OT_BF16 : OT_F32, false, &seen, 0);
        assert_int_equal(seen.groups[OT_PROBE_COPY], 3);
        assert_int_equal(seen.groups[OT_PROBE_GEMM], 15);
        assert_int_equal(seen.groups[OT_PROBE_ATTENTION], 8);
        assert_int_equal(seen.groups[OT_PROBE_KERNEL], 14);
        assert_int_equal(seen.groups[OT_PROBE_TASK], 1);
    }
}

static void the_reader_may_end_it(void **state) {
    (void)state;
    struct seen seen = {.stop_after = 5};
    probe(OT_F32, false, &seen, -OT_E_IO);
    assert_int_equal(seen.rows, 5);
}

/* A caller measures the largest product alone to choose a size. No row is reported, and nothing stays
 * allocated. */
static void the_largest_product_alone(void **state) {
    (void)state;
    struct ot_device_config config = {.kind = "cpu", .threads = 1};
    struct ot_device *device;
    struct seen seen = {0};
    double rate = 0;
    check_ok(ot_device_open(&config, &device));
    struct ot_probe_config probe = {.device = device,
                                    .dtype = OT_F32,
                                    .hidden = 128,
                                    .tokens = 64,
                                    .buffer_bytes = 1 << 20,
                                    .seconds = 0.003,
                                    .reader = {see, &seen}};
    check_ok(ot_probe_largest_product(&probe, &rate));
    assert_true(rate > 0);
    assert_int_equal(seen.rows, 0);
    probe.buffer_bytes = 1 << 10;
    check_fails(ot_probe_largest_product(&probe, &rate), OT_E_USAGE, "needs buffers of");
    struct ot_device_usage usage;
    ot_device_usage(device, &usage);
    assert_int_equal(usage.used_bytes + usage.pinned_bytes, 0);
    ot_device_close(device);
    assert_true(ot_probe_largest_flops(4096, 1) == 2.0 * 22016 * 4096); /* Llama's 11008, twice */
}

static void small_buffers_are_refused(void **state) {
    (void)state;
    struct ot_device_config config = {.kind = "cpu", .threads = 1};
    struct ot_device *device;
    struct seen seen = {0};
    check_ok(ot_device_open(&config, &device));
    struct ot_probe_config probe = {.device = device,
                                    .dtype = OT_F32,
                                    .hidden = 128,
                                    .tokens = 64,
                                    .buffer_bytes = 1 << 10,
                                    .seconds = 0.003,
                                    .reader = {see, &seen}};
    check_fails(ot_probe_device(&probe), OT_E_USAGE, "needs buffers of");
    ot_device_close(device);
}

/* ---- the host ---- */

static void probe_host(struct ot_probe_host_config config, struct seen *seen) {
    config.bytes = config.bytes ? config.bytes : OT_PROBE_HOST_LEAST_BYTES;
    config.seconds = 0.003;
    config.reader = (struct ot_probe_reader){see, seen};
    check_ok(ot_probe_host(&config));
}

/* Counts the kernels that this CPU can run. */
static int count_kernels(void) {
    int n = 0;
    for (const char *const *name = ot_adamw_kernel_names; *name; name++)
        n += ot_adamw_kernel(*name) != NULL;
    return n;
}

static void threads_double_up_to_all(void **state) {
    (void)state;
    for (int d = tests_are_few() ? OT_F16 : 0; d < 3; d++) {
        struct seen seen = {0};
        probe_host(
            (struct ot_probe_host_config){.dtype = (enum ot_dtype)d, .threads = 3, .optimizer_threads = 2},
            &seen);
        assert_int_equal(seen.groups[OT_PROBE_MEMORY], 3 + 1); /* and the checksum's row */
        assert_int_equal(seen.groups[OT_PROBE_OPTIMIZER], 3 * (count_kernels() + 2));
        assert_true(has_row(&seen, "triad, 1 thread") && has_row(&seen, "triad, 2 threads"));
        assert_true(has_row(&seen, "triad, 3 threads") && has_row(&seen, "AdamW scalar, 3 threads"));
        assert_int_equal(seen.uses[OT_PROBE_TRIAD], 1);
        char compact[64];
        snprintf(compact, sizeof compact, "AdamW %s, state 8bit, 1 thread", ot_adamw_kernel_name());
        assert_true(has_row(&seen, compact));
        for (int format = 0; format < OT_STATE_FORMATS; format++)
            assert_int_equal(seen.uses[OT_PROBE_ADAMW + format], 1);
    }
}

static void the_optimizers_threads_are_measured_too(void **state) {
    (void)state;
    if (tests_are_for_races()) /* threads_double_up_to_all has more of them */
        return;
    struct seen seen = {0};
    probe_host((struct ot_probe_host_config){.threads = 1, .optimizer_threads = 3}, &seen);
    assert_int_equal(seen.groups[OT_PROBE_MEMORY], 2 + 1);
    assert_true(has_row(&seen, "AdamW scalar, 3 threads"));
    assert_false(has_row(&seen, "triad, 2 threads"));
}

static void too_little_host_memory_is_refused(void **state) {
    (void)state;
    struct seen seen = {0};
    struct ot_probe_host_config config = {
        .threads = 1, .optimizer_threads = 1, .bytes = 1 << 20, .reader = {see, &seen}};
    check_fails(ot_probe_host(&config), OT_E_USAGE, "needs at least 4194304 bytes");
    assert_int_equal(seen.rows, 0);
}

/* ---- the disks ---- */

/* The fault of the n-th write, or of setting up a ring. */
struct faults {
    int64_t failing_write; /* 0: no write fails */
    atomic_int_fast64_t writes;
    bool refuses_rings, refuses_direct;
};

static int open_file(void *context, int dir_fd, const char *path, int flags, mode_t mode) {
    const struct faults *faults = context;
    if (faults->refuses_direct && flags & O_DIRECT)
        return -EINVAL;
    return ot_io_system.open(NULL, dir_fd, path, flags, mode);
}

static ssize_t read_some(void *context, int fd, void *memory, size_t bytes, off_t offset) {
    (void)context;
    return ot_io_system.pread(NULL, fd, memory, bytes, offset);
}

/* Every fifth write is short. */
static ssize_t write_some(void *context, int fd, const void *memory, size_t bytes, off_t offset) {
    struct faults *faults = context;
    int64_t number = atomic_fetch_add(&faults->writes, 1) + 1;
    if (number == faults->failing_write)
        return -EIO;
    if (number % 7 == 3)
        return -EINTR;
    return ot_io_system.pwrite(NULL, fd, memory, number % 5 == 0 && bytes > 8192 ? 8192 : bytes, offset);
}

static int set_ring_up(void *context, unsigned flags) {
    const struct faults *faults = context;
    return faults->refuses_rings ? -EPERM : ot_io_system.ring_setup(NULL, flags);
}

static struct ot_io_calls faulty(struct faults *faults) {
    struct ot_io_calls calls = ot_io_system;
    calls.context = faults;
    calls.open = open_file;
    calls.pread = read_some;
    calls.pwrite = write_some;
    calls.ring_setup = set_ring_up;
    return calls;
}

/* Probes n directories in the folder, each with this much free space. Nothing may be left in them. */
static int probe_disks(const char *folder, int n, size_t room, struct faults *faults, bool quick,
                       struct seen *seen, struct ot_probe_nvme_result *result) {
    struct ot_store_dir dirs[3];
    char *paths[3];
    struct ot_io_calls calls = faulty(faults ? faults : &(struct faults){0});
    for (int i = 0; i < n; i++) {
        check_ok(ot_string_format(&paths[i], "%s/%d", folder, i));
        assert_true(mkdir(paths[i], 0700) == 0 || errno == EEXIST);
        dirs[i] = (struct ot_store_dir){paths[i], room};
    }
    struct ot_store_config store = {.n_dirs = n, .dirs = dirs, .calls = faults ? &calls : NULL};
    struct ot_probe_nvme_config config = {
        .store = &store, .bytes = 16 << 20, .seconds = 0.002, .quick = quick, .reader = {see, seen}};
    int rc = ot_probe_nvme(&config, result);
    for (int i = 0; i < n; i++) {
        assert_int_equal(rmdir(paths[i]), 0); /* rmdir succeeds only if it is empty */
        free(paths[i]);
    }
    return rc;
}

static void blocks_and_depths_of_both_engines(void **state) {
    (void)state;
    char *folder = make_folder();
    for (int n = 1 + tests_are_few(); n <= 2; n++) {
        struct seen seen = {0};
        struct ot_probe_nvme_result result;
        check_ok(probe_disks(folder, n, 16 << 20, NULL, false, &seen, &result));
        assert_true(has_row(&seen, "pool read 256 KiB x 32") && has_row(&seen, "pool write 1024 KiB x 8"));
        assert_true(has_row(&seen, "pool mixed 512 KiB x 32"));
        assert_true(has_row(&seen, "store read") && has_row(&seen, "store mixed"));
        assert_true(has_row(&seen, "store read of 4 KiB") && has_row(&seen, "store write of 4 KiB"));
        for (int use = OT_PROBE_NVME_READ; use <= OT_PROBE_NVME_WRITE_START; use++)
            assert_int_equal(seen.uses[use], 1);
        assert_int_equal(seen.rows, seen.groups[OT_PROBE_NVME] + seen.groups[OT_PROBE_TASK]);
        struct ot_rates rates = {0};
        ot_probe_put_rates(&seen.sums, &rates);
        assert_true(rates.nvme_read_seconds > 0 && rates.nvme_write_seconds > 0);
        assert_non_null(strstr(result.store, "CRC-32"));
        assert_true(result.written_bytes >= 16 << 20);
    }
    remove_folder(folder);
}

static void a_refused_ring_leaves_the_pool(void **state) {
    (void)state;
    char *folder = make_folder();
    struct seen seen = {0};
    struct faults faults = {.refuses_rings = true};
    struct ot_probe_nvme_result result;
    check_ok(probe_disks(folder, 1, 8 << 20, &faults, false, &seen, &result));
    assert_true(has_row(&seen, "pool write 1024 KiB x 8"));
    for (int i = 0; i < seen.rows; i++)
        assert_null(strstr(seen.names[i], "uring"));
    assert_non_null(strstr(result.store, "pool"));
    remove_folder(folder);
}

static void disks_without_direct_io_are_measured_too(void **state) {
    (void)state;
    char *folder = make_folder();
    struct seen seen = {0};
    struct faults faults = {.refuses_direct = true, .refuses_rings = true};
    struct ot_probe_nvme_result result;
    check_ok(probe_disks(folder, 2, 8 << 20, &faults, false, &seen, &result));
    assert_true(has_row(&seen, "pool mixed 1024 KiB x 8"));
    assert_non_null(strstr(result.store, "buffered"));
    remove_folder(folder);
}

static void a_broken_disk_is_a_sentence(void **state) {
    (void)state;
    char *folder = make_folder();
    static const int64_t failing[] = {2, 9};
    for (int i = tests_are_for_races(); i < 2; i++)
        for (int quick = 0; quick < 2; quick++) {
            struct seen seen = {0};
            struct faults faults = {.failing_write = failing[i], .refuses_rings = true};
            struct ot_probe_nvme_result result;
            check_fails(probe_disks(folder, 1, 8 << 20, &faults, quick, &seen, &result), OT_E_IO,
                        "Input/output error");
        }
    remove_folder(folder);
}

static void small_rooms_do_for_a_quick_probe(void **state) {
    (void)state;
    char *folder = make_folder();
    static const size_t rooms[] = {32 << 10, 100000, 1 << 20};
    struct ot_probe_nvme_result result;
    for (int i = 0; i < 3; i++) {
        struct seen seen = {0};
        check_ok(probe_disks(folder, 1, rooms[i], NULL, true, &seen, &result));
        assert_int_equal(seen.rows,
                         rooms[i] < 32 * OT_STORE_ALIGN ? 3 : 5); /* else no single reads, writes */
    }
    struct seen seen = {0};
    check_fails(probe_disks(folder, 1, 16 << 10, NULL, true, &seen, &result), OT_E_BUDGET,
                "needs 32 KiB of disk space there");
    check_fails(probe_disks(folder, 1, 1 << 20, NULL, false, &seen, &result), OT_E_BUDGET,
                "needs 8 MiB there");
    assert_int_equal(seen.rows, 0);
    remove_folder(folder);
}

static void little_memory_does_for_small_blocks(void **state) {
    (void)state;
    char *folder = make_folder();
    struct ot_store_dir dir = {folder, 16 << 20};
    struct ot_store_config store = {.n_dirs = 1, .dirs = &dir};
    struct ot_probe_nvme_result result;
    struct seen seen = {0};
    struct ot_probe_nvme_config config = {.store = &store,
                                          .bytes = 16 << 20,
                                          .memory_bytes = 8 << 20,
                                          .seconds = 0.002,
                                          .reader = {see, &seen}};
    check_ok(ot_probe_nvme(&config, &result));
    assert_true(has_row(&seen, "pool read 256 KiB x 32") && has_row(&seen, "store mixed"));
    assert_false(has_row(&seen, "pool read 512 KiB x 32"));
    config.memory_bytes = 7 << 20;
    check_fails(ot_probe_nvme(&config, &result), OT_E_BUDGET, "needs 8 MiB of memory");
    config.quick = true;
    config.memory_bytes = 63 << 10;
    check_fails(ot_probe_nvme(&config, &result), OT_E_BUDGET, "needs 64 KiB of memory");
    remove_folder(folder);
}

static void a_reader_may_end_the_disks_too(void **state) {
    (void)state;
    char *folder = make_folder();
    struct ot_probe_nvme_result result;
    struct seen seen = {.stop_after = 4}, quick = {.stop_after = 2};
    check_fails(probe_disks(folder, 1, 8 << 20, NULL, false, &seen, &result), OT_E_IO, "enough");
    check_fails(probe_disks(folder, 1, 8 << 20, NULL, true, &quick, &result), OT_E_IO, "enough");
    remove_folder(folder);
}

/* ---- the rates that predictions use ---- */

/* A quick probe measures only the rows that predictions need, and sets every rate. */
static void a_quick_probe_gives_every_rate(void **state) {
    (void)state;
    struct seen seen = {0};
    probe(OT_F32, true, &seen, 0);
    probe_host((struct ot_probe_host_config){.dtype = OT_BF16,
                                             .masters = OT_MASTERS_NONE,
                                             .threads = 2,
                                             .optimizer_threads = 1,
                                             .quick = true},
               &seen);
    assert_int_equal(seen.uses[OT_PROBE_NO_USE], 0);
    assert_int_equal(seen.groups[OT_PROBE_MEMORY], 2);
    assert_int_equal(seen.groups[OT_PROBE_OPTIMIZER], OT_STATE_FORMATS);
    struct ot_rates rates = {.cores = 7};
    ot_probe_put_rates(&seen.sums, &rates);
    const double all[] = {rates.product_flops,
                          rates.attention[OT_HEAD_128].forward,
                          rates.attention[OT_HEAD_128].backward,
                          rates.device_bytes,
                          rates.h2d_bytes,
                          rates.d2h_bytes,
                          rates.both_bytes,
                          rates.triad_bytes,
                          rates.adamw_bytes[0],
                          rates.adamw_bytes[1],
                          rates.adamw_bytes[2],
                          rates.task_seconds};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_true(all[i] > 0);
    assert_int_equal(rates.cores, 7);
}

/* The rate of several rows is the sum of their work divided by the sum of their times. */
static void rates_are_sums(void **state) {
    (void)state;
    struct ot_probe_sums sums = {0};
    struct ot_rates rates = {.h2d_bytes = 5};
    ot_probe_add(&sums, &(struct ot_probe_row){.use = OT_PROBE_PRODUCT, .work = 30, .seconds = 1});
    ot_probe_add(&sums, &(struct ot_probe_row){.use = OT_PROBE_PRODUCT, .work = 10, .seconds = 3});
    ot_probe_add(&sums, &(struct ot_probe_row){.use = OT_PROBE_NO_USE, .work = 1e9, .seconds = 1});
    ot_probe_add(&sums, &(struct ot_probe_row){.use = OT_PROBE_START, .work = 4, .seconds = 2});
    ot_probe_put_rates(&sums, &rates);
    assert_true(rates.product_flops == 10);
    assert_true(rates.task_seconds == 0.5);
    assert_true(rates.h2d_bytes == 5 && rates.d2h_bytes == 0);
    assert_true(rates.spread == 0 && !rates.uncertain);
}

/* The spread of a rate is the mean of its rows' spreads, weighted by time. The probe reports the largest of
 * all spreads, with the name of its rate. */
static void the_least_certain_rate_is_known(void **state) {
    (void)state;
    struct ot_probe_sums sums = {0};
    struct ot_rates rates = {0};
    ot_probe_add(&sums,
                 &(struct ot_probe_row){.use = OT_PROBE_PRODUCT, .work = 30, .seconds = 1, .spread = 0.4});
    ot_probe_add(&sums, &(struct ot_probe_row){.use = OT_PROBE_PRODUCT, .work = 10, .seconds = 3});
    ot_probe_add(&sums,
                 &(struct ot_probe_row){.use = OT_PROBE_ADAMW, .work = 1, .seconds = 1, .spread = 0.2});
    ot_probe_add(&sums, &(struct ot_probe_row){.use = OT_PROBE_NO_USE, .work = 1, .seconds = 1, .spread = 9});
    ot_probe_put_rates(&sums, &rates);
    assert_true(rates.spread == 0.2);
    assert_string_equal(rates.uncertain, "the optimizer");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_measured),
        cmocka_unit_test(the_reader_may_end_it),
        cmocka_unit_test(the_largest_product_alone),
        cmocka_unit_test(small_buffers_are_refused),
        cmocka_unit_test(threads_double_up_to_all),
        cmocka_unit_test(the_optimizers_threads_are_measured_too),
        cmocka_unit_test(too_little_host_memory_is_refused),
        cmocka_unit_test(blocks_and_depths_of_both_engines),
        cmocka_unit_test(a_refused_ring_leaves_the_pool),
        cmocka_unit_test(disks_without_direct_io_are_measured_too),
        cmocka_unit_test(a_broken_disk_is_a_sentence),
        cmocka_unit_test(small_rooms_do_for_a_quick_probe),
        cmocka_unit_test(little_memory_does_for_small_blocks),
        cmocka_unit_test(a_reader_may_end_the_disks_too),
        cmocka_unit_test(a_quick_probe_gives_every_rate),
        cmocka_unit_test(rates_are_sums),
        cmocka_unit_test(the_least_certain_rate_is_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The probe on the cpu device and its host: every row is there once, rates are work over time and add up to
 * those of the machine, errors are sentences. */
#include <stdlib.h>
#include <string.h>

#include "kernels/adamw.h"
#include "offload/probe.h"
#include "tests/support/check.h"

struct seen {
    int rows, groups[OT_PROBE_GROUPS], uses[OT_PROBE_USES], stop_after;
    double copy_rate;
    char names[64][64];
    struct ot_probe_sums sums;
};

static int see(void *context, const struct ot_probe_row *row) {
    struct seen *seen = context;
    assert_true(seen->rows < 64);
    for (int i = 0; i < seen->rows; i++)
        assert_string_not_equal(seen->names[i], row->name);
    strncpy(seen->names[seen->rows], row->name, sizeof seen->names[0] - 1);
    assert_true(row->seconds > 0 && row->work > 0);
    assert_true(row->rate == row->work / row->seconds);
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
    for (int d = 0; d < 2; d++) {
        struct seen seen = {0};
        probe(d ? OT_BF16 : OT_F32, false, &seen, 0);
        assert_int_equal(seen.groups[OT_PROBE_COPY], 3);
        assert_int_equal(seen.groups[OT_PROBE_GEMM], 12);
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

/* Kernels that this CPU has. */
static int count_kernels(void) {
    int n = 0;
    for (const char *const *name = ot_adamw_kernel_names; *name; name++)
        n += ot_adamw_kernel(*name) != NULL;
    return n;
}

static void threads_double_up_to_all(void **state) {
    (void)state;
    for (int d = 0; d < 3; d++) {
        struct seen seen = {0};
        probe_host(
            (struct ot_probe_host_config){.dtype = (enum ot_dtype)d, .threads = 3, .optimizer_threads = 2},
            &seen);
        assert_int_equal(seen.groups[OT_PROBE_MEMORY], 3);
        assert_int_equal(seen.groups[OT_PROBE_OPTIMIZER], 3 * count_kernels());
        assert_true(has_row(&seen, "triad, 1 thread") && has_row(&seen, "triad, 2 threads"));
        assert_true(has_row(&seen, "triad, 3 threads") && has_row(&seen, "AdamW scalar, 3 threads"));
        assert_int_equal(seen.uses[OT_PROBE_TRIAD], 1);
        assert_int_equal(seen.uses[OT_PROBE_ADAMW], 1);
    }
}

static void the_optimizers_threads_are_measured_too(void **state) {
    (void)state;
    struct seen seen = {0};
    probe_host((struct ot_probe_host_config){.threads = 1, .optimizer_threads = 3}, &seen);
    assert_int_equal(seen.groups[OT_PROBE_MEMORY], 2);
    assert_true(has_row(&seen, "AdamW scalar, 3 threads"));
    assert_false(has_row(&seen, "triad, 2 threads"));
}

static void too_little_host_memory_is_refused(void **state) {
    (void)state;
    struct seen seen = {0};
    struct ot_probe_host_config config = {
        .threads = 1, .optimizer_threads = 1, .bytes = 1 << 20, .reader = {see, &seen}};
    check_fails(ot_probe_host(&config), OT_E_USAGE, "needs 4194304 bytes");
    assert_int_equal(seen.rows, 0);
}

/* ---- what predictions start from ---- */

/* A quick probe has the rows that matter and no others, and each rate is there. */
static void a_quick_probe_gives_every_rate(void **state) {
    (void)state;
    struct seen seen = {0};
    probe(OT_F32, true, &seen, 0);
    probe_host((struct ot_probe_host_config){.threads = 2, .optimizer_threads = 1, .quick = true}, &seen);
    assert_int_equal(seen.uses[OT_PROBE_NO_USE], 0);
    assert_int_equal(seen.groups[OT_PROBE_MEMORY], 1);
    assert_int_equal(seen.groups[OT_PROBE_OPTIMIZER], 1);
    struct ot_rates rates = {.cores = 7};
    ot_probe_put_rates(&seen.sums, &rates);
    const double all[] = {rates.product_flops, rates.attention_flops, rates.device_bytes,
                          rates.h2d_bytes,     rates.d2h_bytes,       rates.both_bytes,
                          rates.triad_bytes,   rates.adamw_bytes,     rates.task_seconds};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        assert_true(all[i] > 0);
    assert_int_equal(rates.cores, 7);
}

/* The rate of several rows is all their work over all their time. */
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
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_measured),
        cmocka_unit_test(the_reader_may_end_it),
        cmocka_unit_test(small_buffers_are_refused),
        cmocka_unit_test(threads_double_up_to_all),
        cmocka_unit_test(the_optimizers_threads_are_measured_too),
        cmocka_unit_test(too_little_host_memory_is_refused),
        cmocka_unit_test(a_quick_probe_gives_every_rate),
        cmocka_unit_test(rates_are_sums),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

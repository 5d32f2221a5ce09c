/* The probe on the cpu device: every row is there once, rates are work over time, errors are sentences. */
#include <stdlib.h>
#include <string.h>

#include "offload/probe.h"
#include "tests/support/check.h"

struct seen {
    int rows, groups[OT_PROBE_GROUPS], stop_after;
    double copy_rate;
    char names[64][64];
};

static int see(void *context, const struct ot_probe_row *row) {
    struct seen *seen = context;
    assert_true(seen->rows < 64);
    for (int i = 0; i < seen->rows; i++)
        assert_string_not_equal(seen->names[i], row->name);
    strncpy(seen->names[seen->rows], row->name, sizeof seen->names[0] - 1);
    assert_true(row->seconds > 0 && row->rate > 0);
    if (row->group == OT_PROBE_KERNEL && strcmp(row->name, "copy") == 0)
        seen->copy_rate = row->rate;
    if (row->group == OT_PROBE_KERNEL)
        assert_true(row->peak == seen->copy_rate);
    if (row->group == OT_PROBE_GEMM)
        assert_true(row->rate <= row->peak);
    seen->groups[row->group]++;
    seen->rows++;
    return seen->rows == seen->stop_after ? ot_fail(OT_E_IO, "enough") : 0;
}

static void probe(enum ot_dtype dtype, struct seen *seen, int want) {
    struct ot_device_config config = {.kind = "cpu", .threads = 2};
    struct ot_device *device;
    check_ok(ot_device_open(&config, &device));
    struct ot_probe_config probe = {.device = device,
                                    .dtype = dtype,
                                    .hidden = 128,
                                    .tokens = 64,
                                    .buffer_bytes = 1 << 20,
                                    .seconds = 0.003,
                                    .row = see,
                                    .context = seen};
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
        probe(d ? OT_BF16 : OT_F32, &seen, 0);
        assert_int_equal(seen.groups[OT_PROBE_COPY], 3);
        assert_int_equal(seen.groups[OT_PROBE_GEMM], 12);
        assert_int_equal(seen.groups[OT_PROBE_ATTENTION], 8);
        assert_int_equal(seen.groups[OT_PROBE_KERNEL], 14);
    }
}

static void the_reader_may_end_it(void **state) {
    (void)state;
    struct seen seen = {.stop_after = 5};
    probe(OT_F32, &seen, -OT_E_IO);
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
                                    .row = see,
                                    .context = &seen};
    check_fails(ot_probe_device(&probe), OT_E_USAGE, "needs buffers of");
    ot_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_is_measured),
        cmocka_unit_test(the_reader_may_end_it),
        cmocka_unit_test(small_buffers_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

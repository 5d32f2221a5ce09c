#include "tests/support/check.h"

#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/device.h"
#include "kernels/ops.h"

static struct ot_device *open_cpu(size_t memory_bytes) {
    struct ot_device *device;
    struct ot_device_config config = {.kind = "cpu", .memory_bytes = memory_bytes, .threads = 2};
    check_ok(ot_device_open(&config, &device));
    return device;
}

/* ---- opening ---- */

static void test_kinds(void **state) {
    (void)state;
    struct ot_device *device;
    struct ot_device_config config = {.kind = "tpu", .threads = 1};
    check_fails(ot_device_open(&config, &device), OT_E_DEVICE,
                "unknown device 'tpu': this program has the devices cpu and cuda");
    assert_null(device);
    device = open_cpu(0);
    assert_non_null(strstr(ot_device_name(device), "cpu (2 threads, "));
    assert_non_null(ot_device_ops(device)->adamw);
    struct ot_device_usage usage;
    ot_device_usage(device, &usage);
    assert_true(usage.budget_bytes > 1 << 28); /* all memory of the machine */
    ot_device_close(device);
    ot_device_close(NULL);
}

/* ---- placement ---- */

struct placed {
    int threads[8]; /* by index: how often the callback ran with this thread */
    void *memory;
    size_t bytes;
    bool touched, refuses;
    atomic_int n_threads;
};

static void place_thread(void *context, int index, int count) {
    struct placed *placed = context;
    if (index < 1 || index > 3 || count != 4)
        abort();
    placed->threads[index]++;
    atomic_fetch_add(&placed->n_threads, 1);
}

static int place_memory(void *context, void *memory, size_t bytes) {
    struct placed *placed = context;
    unsigned char resident = 1;
    placed->memory = memory;
    placed->bytes = bytes;
    assert_int_equal(mincore(memory, 1, &resident), 0);
    placed->touched = resident & 1;
    return placed->refuses ? ot_fail(OT_E_BUDGET, "there is no more") : 0;
}

static void test_placement(void **state) {
    (void)state;
    struct ot_device *device;
    struct placed placed = {0};
    char bus_id[OT_BUS_ID_BYTES];
    void *memory;
    struct ot_device_usage usage;
    struct ot_device_config config = {
        .kind = "cpu", .threads = 4, .placement = {&placed, place_thread, place_memory}};
    check_ok(ot_device_open(&config, &device));
    check_ok(ot_device_alloc(device, 1 << 20, "device memory", &memory));
    assert_true(placed.memory == memory && placed.bytes == 1 << 20 && !placed.touched);
    ot_device_free(device, memory);
    check_ok(ot_device_alloc_pinned(device, 5000, "pinned memory", &memory));
    assert_true(placed.memory == memory && placed.bytes == 8192 && !placed.touched);
    ot_device_free_pinned(device, memory, 5000);
    placed.refuses = true;
    check_fails(ot_device_alloc(device, 1 << 20, "weights", &memory), OT_E_BUDGET,
                "'weights': there is no more");
    check_fails(ot_device_alloc_pinned(device, 5000, "state", &memory), OT_E_BUDGET,
                "'state': there is no more");
    ot_device_usage(device, &usage); /* failed allocations have given their bytes back */
    assert_int_equal(usage.used_bytes, 0);
    assert_int_equal(usage.pinned_bytes, 0);
    ot_device_close(device); /* closing joins the threads */
    static const int each_once[8] = {0, 1, 1, 1};
    assert_int_equal(atomic_load(&placed.n_threads), 3);
    assert_memory_equal(placed.threads, each_once, sizeof each_once);
    assert_false(ot_device_bus_id("cpu", 0, bus_id));
    assert_false(ot_device_bus_id("tpu", 0, bus_id));
}

/* ---- memory ---- */

static void test_budget(void **state) {
    (void)state;
    struct ot_device *device = open_cpu(10000);
    struct ot_device_usage usage;
    void *a, *b, *none;
    check_ok(ot_device_alloc(device, 6000, "a", &a));
    check_ok(ot_device_alloc(device, 4000, "b", &b));
    check_fails(
        ot_device_alloc(device, 1, "straw", &none), OT_E_BUDGET,
        "device memory is 1 bytes short for 'straw', which needs 1: 10000 of the budget of 10000 are in use");
    assert_null(none);
    ot_device_free(device, a);
    check_fails(ot_device_alloc(device, 6500, "big", &none), OT_E_BUDGET,
                "500 bytes short for 'big', which needs 6500: 4000 of the budget of 10000");
    check_fails(ot_device_alloc(device, SIZE_MAX, "huge", &none), OT_E_BUDGET, "short for 'huge'");
    ot_device_usage(device, &usage);
    assert_int_equal(usage.budget_bytes, 10000);
    assert_int_equal(usage.used_bytes, 4000);
    assert_int_equal(usage.peak_bytes, 10000);
    ot_device_free(device, b);
    ot_device_free(device, NULL);
    check_ok(ot_device_alloc(device, 0, "nothing", &none));
    assert_null(none);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.used_bytes, 0);
    assert_int_equal(usage.peak_bytes, 10000);
    check_ok(ot_device_alloc(device, 700, "c", &a));
    ot_device_forget_peaks(device);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.peak_bytes, 700);
    ot_device_free(device, a);
    ot_device_close(device);
}

static void test_pinned(void **state) {
    (void)state;
    struct ot_device *device = open_cpu(4096);
    struct ot_device_usage usage;
    void *a, *b;
    check_ok(ot_device_alloc_pinned(device, 5000, "a", &a)); /* pinned memory is not charged to the device */
    check_ok(ot_device_alloc_pinned(device, 3 << 20, "b", &b));
    assert_int_equal((uintptr_t)a % 4096, 0);
    assert_int_equal((uintptr_t)b % 4096, 0);
    for (int i = 0; i < 3 << 20; i++)
        assert_true(((char *)b)[i] == 0);
    memset(a, 1, 5000);
    ot_device_free_pinned(device, b, 3 << 20);
    ot_device_free_pinned(device, NULL, 7);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.used_bytes, 0);
    assert_int_equal(usage.pinned_bytes, 5000);
    assert_int_equal(usage.pinned_peak_bytes, 5000 + (3 << 20));
    check_fails(ot_device_alloc_pinned(device, SIZE_MAX / 4, "absurd", &b), OT_E_BUDGET, "'absurd'");
    check_ok(ot_device_alloc_pinned(device, 100, "c", &b));
    ot_device_usage(device, &usage);
    assert_int_equal(usage.pinned_peak_bytes, 5000 + (3 << 20));
    ot_device_forget_peaks(device);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.pinned_peak_bytes, 5100);
    ot_device_free_pinned(device, b, 100);
    ot_device_free_pinned(device, a, 5000);
    ot_device_close(device);
}

static void test_fresh_memory_is_nan(void **state) {
    (void)state;
    static const size_t sizes[] = {1, 255, 256, 257, 4096, 5000, 3 << 20};
    struct ot_device *device = open_cpu(0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        unsigned char *memory;
        check_ok(ot_device_alloc(device, sizes[i], "fresh", (void **)&memory));
        assert_int_equal((uintptr_t)memory % 256, 0);
        for (size_t at = 0; at < sizes[i]; at++)
            assert_int_equal(memory[at], 0xff);
        if (sizes[i] >= 4) {
            float single;
            memcpy(&single, memory, 4);
            assert_true(isnan(single) && isnan(ot_bf16_to_f32((uint16_t)(memory[0] | memory[1] << 8))));
        }
        ot_device_free(device, memory);
    }
    ot_device_close(device);
}

/* Runs touch(memory) in a child. Returns the signal that ends the child; 0 if there is none. */
static int death_by(void (*touch)(unsigned char *), unsigned char *memory) {
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        signal(SIGBUS, SIG_DFL);
        touch(memory);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void touch_first(unsigned char *memory) {
    *(volatile unsigned char *)memory = 1;
}

static void touch_last(unsigned char *memory) {
    ((volatile unsigned char *)memory)[1023] = 1;
}

static void touch_beyond(unsigned char *memory) {
    ((volatile unsigned char *)memory)[1024] = 1;
}

static void test_stray_access_faults(void **state) {
    (void)state;
    struct ot_device *device = open_cpu(0);
    void *memory;
    check_ok(ot_device_alloc(device, 1024, "victim", &memory));
    assert_int_equal(death_by(touch_first, memory), 0);
    assert_int_equal(death_by(touch_last, memory), 0);
    assert_int_equal(death_by(touch_beyond, memory), SIGSEGV);
    ot_device_free(device, memory);
    assert_int_equal(death_by(touch_first, memory), SIGSEGV);
    ot_device_close(device);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_placement),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_fresh_memory_is_nan),
        cmocka_unit_test(test_stray_access_faults),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

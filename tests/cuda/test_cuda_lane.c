/* Memory, lanes and events of the cuda device keep the contract of device.h. */
#include "tests/cuda/cuda_fixture.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/check.h"

enum { MIB = 1 << 20 };

static struct ot_device *open_cuda(size_t memory_bytes, uint64_t delay_seed) {
    struct ot_device *device;
    struct ot_device_config config = {
        .kind = "cuda", .memory_bytes = memory_bytes, .threads = 1, .lane_delay_seed = delay_seed};
    check_ok(ot_device_open(&config, &device));
    return device;
}

static void *alloc(struct ot_device *device, size_t bytes) {
    void *memory;
    check_ok(ot_device_alloc(device, bytes, "memory", &memory));
    assert_int_equal((uintptr_t)memory % 256, 0);
    return memory;
}

static void *alloc_pinned(struct ot_device *device, size_t bytes) {
    void *memory;
    check_ok(ot_device_alloc_pinned(device, bytes, "memory", &memory));
    assert_int_equal((uintptr_t)memory % 4096, 0);
    return memory;
}

/* ---- memory ---- */

static void test_budget(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(100 * MIB, 0);
    struct ot_device_usage usage;
    void *none;
    ot_device_usage(device, &usage);
    assert_int_equal(usage.budget_bytes, 100 * MIB);
    assert_int_equal(usage.used_bytes, 64 * MIB); /* the workspace of the ops */
    assert_int_equal(usage.scratch_bytes, 64 * MIB);
    void *a = alloc(device, 20 * MIB), *b = alloc(device, 16 * MIB);
    check_fails(ot_device_alloc(device, 1, "straw", &none), OT_E_BUDGET,
                "device memory is 1 bytes short for 'straw', which needs 1");
    assert_null(none);
    ot_device_free(device, a);
    check_fails(ot_device_alloc(device, 21 * MIB, "big", &none), OT_E_BUDGET, "short for 'big'");
    assert_int_equal(ot_error_cause(), OT_CAUSE_DEVICE_BUDGET);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.used_bytes, 80 * MIB);
    assert_int_equal(usage.peak_bytes, 100 * MIB);
    ot_device_free(device, b);
    ot_device_free(device, NULL);
    check_ok(ot_device_alloc(device, 0, "nothing", &none));
    assert_null(none);
    ot_device_close(device);
}

static void test_default_budget_leaves_a_reserve(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 0);
    struct ot_device_usage usage;
    void *none;
    ot_device_usage(device, &usage);
    assert_true(usage.budget_bytes >= 256 * (size_t)MIB);
    /* All of the budget can be allocated, and the driver still has memory left. */
    void *rest = alloc(device, usage.budget_bytes - usage.used_bytes);
    check_fails(ot_device_alloc(device, 1, "straw", &none), OT_E_BUDGET, "short for 'straw'");
    ot_device_free(device, rest);
    ot_device_close(device);
}

static void test_pinned(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 0);
    struct ot_device_usage usage;
    unsigned char *a = alloc_pinned(device, 5000), *b = alloc_pinned(device, 3 * MIB);
    for (int i = 0; i < 3 * MIB; i++)
        assert_true(b[i] == 0);
    memset(a, 1, 5000);
    ot_device_free_pinned(device, b, 3 * MIB);
    ot_device_free_pinned(device, NULL, 7);
    ot_device_usage(device, &usage);
    assert_int_equal(usage.pinned_bytes, 5000);
    assert_int_equal(usage.pinned_peak_bytes, 5000 + 3 * MIB);
    ot_device_free_pinned(device, a, 5000);
    ot_device_close(device);
}

static int note_memory(void *context, void *memory, size_t bytes) {
    *(void **)context = memory;
    assert_int_equal(bytes, 8192);
    return 0;
}

static int refuse_memory(void *context, void *memory, size_t bytes) {
    (void)context, (void)memory, (void)bytes;
    return ot_fail(OT_E_BUDGET, "there is no more");
}

static void test_pinned_memory_is_placed(void **state) {
    (void)state;
    struct ot_device *device;
    void *noted = NULL;
    struct ot_device_config config = {
        .kind = "cuda", .threads = 1, .placement = {.context = &noted, .memory = note_memory}};
    check_ok(ot_device_open(&config, &device));
    void *memory = alloc_pinned(device, 5000);
    assert_true(noted == memory);
    ot_device_free_pinned(device, memory, 5000);
    ot_device_close(device);
    config.placement.memory = refuse_memory;
    check_ok(ot_device_open(&config, &device));
    check_fails(ot_device_alloc_pinned(device, 5000, "the plan", &memory), OT_E_BUDGET,
                "'the plan': there is no more");
    assert_null(memory);
    ot_device_close(device);
}

static void test_bus_id(void **state) {
    (void)state;
    char text[OT_BUS_ID_BYTES];
    unsigned domain, bus, slot, function;
    assert_true(ot_device_bus_id("cuda", 0, text));
    assert_int_equal(sscanf(text, "%x:%x:%x.%x", &domain, &bus, &slot, &function), 4);
    assert_false(ot_device_bus_id("cuda", 99, text));
}

static void test_name_and_dtypes(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 0);
    assert_non_null(strstr(ot_device_name(device), "cuda: GPU 0 ("));
    assert_non_null(strstr(ot_device_name(device), "cuBLASLt "));
    assert_true(ot_device_has_dtype(device, OT_F32) && ot_device_has_dtype(device, OT_F16));
    assert_true(ot_device_is_present("cuda"));
    ot_device_close(device);
}

/* ---- copies and fills ---- */

/* Larger than a copy's piece of 32 MiB, and not a multiple of any size. */
static void test_copies_and_fills_in_order(void **state) {
    (void)state;
    enum { BYTES = 33 * MIB + 12345, OFFSET = 1001 };
    struct ot_device *device = open_cuda(0, 0);
    struct ot_lane *lane;
    check_ok(ot_lane_open(device, "copies", &lane));
    unsigned char *in = alloc_pinned(device, BYTES), *out = alloc_pinned(device, BYTES);
    unsigned char *a = alloc(device, BYTES), *b = alloc(device, BYTES);
    for (size_t i = 0; i < BYTES; i++)
        in[i] = (unsigned char)(i * 2654435761u >> 13);
    ot_lane_fill(lane, a, 0x55, BYTES);
    ot_lane_copy(lane, OT_COPY_H2D, a + OFFSET, in + OFFSET, BYTES - OFFSET);
    ot_lane_copy(lane, OT_COPY_D2D, b, a, BYTES);
    ot_lane_fill(lane, b + BYTES - 7, 0, 7);
    ot_lane_copy(lane, OT_COPY_D2H, out, b, BYTES);
    ot_lane_copy(lane, OT_COPY_D2H, NULL, NULL, 0);
    ot_lane_fill(lane, NULL, 0, 0);
    check_ok(ot_lane_sync(lane));
    for (size_t i = 0; i < BYTES; i++) {
        int want = i < OFFSET ? 0x55 : i < BYTES - 7 ? in[i] : 0;
        if (out[i] != want)
            fail_msg("byte %zu is %d, wanted %d", i, out[i], want);
    }
    ot_lane_close(lane);
    ot_device_free(device, a);
    ot_device_free(device, b);
    ot_device_free_pinned(device, in, BYTES);
    ot_device_free_pinned(device, out, BYTES);
    ot_device_close(device);
}

/* Memory that is not pinned works too, but more slowly. */
/* Rows of 40 bytes from rows 64 apart to rows 48 apart; what lies between them stays. */
static void test_rows_are_copied(void **state) {
    (void)state;
    enum { ROWS = 7, BYTES = 40, FROM = 64, TO = 48 };
    struct ot_device *device = open_cuda(100 * MIB, 0);
    struct ot_lane *lane;
    unsigned char *from = alloc(device, ROWS * FROM), *to = alloc(device, ROWS * TO);
    unsigned char *host = alloc_pinned(device, ROWS * FROM);
    check_ok(ot_lane_open(device, "lane", &lane));
    for (int i = 0; i < ROWS * FROM; i++)
        host[i] = (unsigned char)i;
    ot_lane_copy(lane, OT_COPY_H2D, from, host, ROWS * FROM);
    ot_lane_fill(lane, to, 0xee, ROWS * TO);
    ot_lane_copy_rows(lane, &(struct ot_copy_rows){to, from, TO, FROM, BYTES, ROWS});
    ot_lane_copy_rows(lane, &(struct ot_copy_rows){to, NULL, TO, FROM, BYTES, 0});
    ot_lane_copy_rows(lane, &(struct ot_copy_rows){to, NULL, TO, FROM, 0, ROWS});
    ot_lane_copy(lane, OT_COPY_D2H, host, to, ROWS * TO);
    check_ok(ot_lane_sync(lane));
    for (int i = 0; i < ROWS * TO; i++)
        assert_int_equal(host[i], i % TO < BYTES ? (i / TO * FROM + i % TO) & 0xff : 0xee);
    ot_lane_close(lane);
    ot_device_free(device, from);
    ot_device_free(device, to);
    ot_device_free_pinned(device, host, ROWS * FROM);
    ot_device_close(device);
}

static void test_copies_from_any_host_memory(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 0);
    struct ot_lane *lane;
    int in[1000], out[1000] = {0};
    check_ok(ot_lane_open(device, "copies", &lane));
    void *a = alloc(device, sizeof in);
    for (int i = 0; i < 1000; i++)
        in[i] = i * i;
    ot_lane_copy(lane, OT_COPY_H2D, a, in, sizeof in);
    ot_lane_copy(lane, OT_COPY_D2H, out, a, sizeof out);
    check_ok(ot_lane_sync(lane));
    assert_memory_equal(in, out, sizeof in);
    ot_lane_close(lane);
    ot_device_free(device, a);
    ot_device_close(device);
}

/* ---- notifications ---- */

struct list {
    atomic_int n;
    int order[1000];
};
struct entry {
    struct list *list;
    int number;
};

static void append(void *arg) {
    struct entry *entry = arg;
    int at = atomic_fetch_add(&entry->list->n, 1);
    entry->list->order[at] = entry->number;
}

static void check_list(const struct list *list, int n) {
    assert_int_equal(atomic_load(&list->n), n);
    for (int i = 0; i < n; i++)
        assert_int_equal(list->order[i], i);
}

/* More notifications than the ring holds. All are called, in order, before a sync returns. */
static void test_notifications(void **state) {
    (void)state;
    enum { CALLS = 1000 };
    struct ot_device *device = open_cuda(0, 0);
    struct ot_lane *lane;
    struct list list = {0};
    struct entry entries[CALLS];
    check_ok(ot_lane_open(device, "notes", &lane));
    for (int i = 0; i < CALLS; i++) {
        entries[i] = (struct entry){&list, i};
        ot_lane_notify(lane, append, &entries[i]);
    }
    check_ok(ot_lane_sync(lane));
    check_list(&list, CALLS);
    ot_lane_close(lane);
    ot_device_close(device);
}

struct landing {
    const int *host;
    atomic_int seen;
};

static void look(void *arg) {
    struct landing *landing = arg;
    atomic_store(&landing->seen, *landing->host);
}

static void test_notification_comes_after_the_work(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 77);
    struct ot_lane *lane;
    check_ok(ot_lane_open(device, "notes", &lane));
    int *host = alloc_pinned(device, sizeof *host);
    void *memory = alloc(device, sizeof *host);
    for (int i = 1; i <= 20; i++) {
        struct landing landing = {.host = host};
        ot_lane_fill(lane, memory, i, sizeof *host);
        ot_lane_copy(lane, OT_COPY_D2H, host, memory, sizeof *host);
        ot_lane_notify(lane, look, &landing);
        check_ok(ot_lane_sync(lane));
        assert_int_equal(atomic_load(&landing.seen), i * 0x01010101);
    }
    ot_lane_close(lane);
    ot_device_free(device, memory);
    ot_device_free_pinned(device, host, sizeof *host);
    ot_device_close(device);
}

static void test_close_finishes_the_work(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 5);
    struct ot_lane *lane;
    struct list list = {0};
    struct entry entries[20];
    check_ok(ot_lane_open(device, "close", &lane));
    for (int i = 0; i < 20; i++) {
        entries[i] = (struct entry){&list, i};
        ot_lane_notify(lane, append, &entries[i]);
    }
    ot_lane_close(lane);
    check_list(&list, 20);
    ot_device_close(device);
}

/* ---- calls ---- */

struct slow_call {
    unsigned char *host; /* pinned */
    unsigned char seen;
};

/* Takes the byte that the lane copied to the host, and leaves another one for the lane's next copy. */
static void call_slowly(void *arg) {
    struct slow_call *call = arg;
    nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    call->seen = *call->host;
    *call->host = 0x77;
}

static void test_call_runs_in_the_lane_order(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 9);
    struct ot_lane *lane;
    check_ok(ot_lane_open(device, "call", &lane));
    unsigned char *host = alloc_pinned(device, 1), *back = alloc_pinned(device, 1),
                  *memory = alloc(device, 1);
    struct slow_call call = {.host = host};
    ot_lane_fill(lane, memory, 0x33, 1);
    ot_lane_copy(lane, OT_COPY_D2H, host, memory, 1);
    ot_lane_call(lane, call_slowly, &call);
    ot_lane_copy(lane, OT_COPY_H2D, memory, host, 1);
    ot_lane_copy(lane, OT_COPY_D2H, back, memory, 1);
    check_ok(ot_lane_sync(lane));
    assert_int_equal(call.seen, 0x33);
    assert_int_equal(*back, 0x77);
    assert_non_null(ot_lane_stream(lane));
    ot_lane_close(lane);
    ot_device_free(device, memory);
    ot_device_free_pinned(device, host, 1);
    ot_device_free_pinned(device, back, 1);
    ot_device_close(device);
}

/* ---- events ---- */

enum { ROUNDS = 40, WORDS = 64 };

struct slot {
    float *memory;
    struct ot_event *loaded, *computed, *stored;
};

/* h2d -> an op on compute -> d2h through two slots, each reused by every second round, with random delays. */
static void run_pipeline(uint64_t delay_seed) {
    struct ot_device *device = open_cuda(0, delay_seed);
    const struct ot_ops *ops = ot_device_ops(device);
    const size_t bytes = WORDS * sizeof(float);
    struct ot_lane *h2d, *compute, *d2h;
    struct slot slots[2];
    check_ok(ot_lane_open(device, "h2d", &h2d));
    check_ok(ot_lane_open(device, "compute", &compute));
    check_ok(ot_lane_open(device, "d2h", &d2h));
    float *in = alloc_pinned(device, ROUNDS * bytes), *out = alloc_pinned(device, ROUNDS * bytes);
    for (int i = 0; i < ROUNDS * WORDS; i++)
        in[i] = (float)i;
    for (int s = 0; s < 2; s++) {
        slots[s].memory = alloc(device, bytes);
        check_ok(ot_event_create(device, &slots[s].loaded));
        check_ok(ot_event_create(device, &slots[s].computed));
        check_ok(ot_event_create(device, &slots[s].stored));
    }
    for (int r = 0; r < ROUNDS; r++) {
        struct slot *slot = &slots[r % 2];
        /* Passes in the first rounds, because the event was never recorded. */
        ot_lane_wait(h2d, slot->stored);
        ot_lane_copy(h2d, OT_COPY_H2D, slot->memory, in + r * WORDS, bytes);
        ot_lane_record(h2d, slot->loaded);
        ot_lane_wait(compute, slot->loaded);
        ot_lane_mark(compute, "double");
        struct ot_add add = {
            .dtype = OT_F32, .n = WORDS, .a = slot->memory, .b = slot->memory, .out = slot->memory};
        ops->add(compute, &add);
        ot_lane_record(compute, slot->computed);
        ot_lane_wait(d2h, slot->computed);
        ot_lane_copy(d2h, OT_COPY_D2H, out + r * WORDS, slot->memory, bytes);
        ot_lane_record(d2h, slot->stored);
    }
    for (int s = 0; s < 2; s++)
        check_ok(ot_event_sync(slots[s].stored));
    for (int i = 0; i < ROUNDS * WORDS; i++)
        assert_true(out[i] == 2 * (float)i);
    ot_lane_close(h2d);
    ot_lane_close(compute);
    ot_lane_close(d2h);
    for (int s = 0; s < 2; s++) {
        ot_device_free(device, slots[s].memory);
        ot_event_destroy(slots[s].loaded);
        ot_event_destroy(slots[s].computed);
        ot_event_destroy(slots[s].stored);
    }
    ot_device_free_pinned(device, in, ROUNDS * bytes);
    ot_device_free_pinned(device, out, ROUNDS * bytes);
    ot_device_close(device);
}

static void test_pipeline(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++)
        run_pipeline(seed);
}

/* ---- one lane for all ops ---- */

static void run_op(struct ot_device *device, struct ot_lane *lane, float *memory) {
    struct ot_add add = {.dtype = OT_F32, .n = 4, .a = memory, .b = memory, .out = memory};
    ot_device_ops(device)->add(lane, &add);
}

/* There is one scratch, so a second lane with ops is a programming error. Closing the first lane lets another
 * lane run ops. */
static void test_ops_belong_to_one_lane(void **state) {
    (void)state;
    struct ot_device *device = open_cuda(0, 0);
    struct ot_lane *first, *second;
    float *memory = alloc(device, 16);
    check_ok(ot_lane_open(device, "first", &first));
    check_ok(ot_lane_open(device, "second", &second));
    run_op(device, first, memory);
    check_ok(ot_lane_sync(first));
    pid_t child = fork();
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        fclose(stderr);
        run_op(device, second, memory); /* the assertion fails before the call touches the GPU */
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ot_lane_close(first);
    run_op(device, second, memory);
    check_ok(ot_lane_sync(second));
    ot_lane_close(second);
    ot_device_free(device, memory);
    ot_device_close(device);
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_default_budget_leaves_a_reserve),
        cmocka_unit_test(test_pinned),
        cmocka_unit_test(test_pinned_memory_is_placed),
        cmocka_unit_test(test_bus_id),
        cmocka_unit_test(test_name_and_dtypes),
        cmocka_unit_test(test_copies_and_fills_in_order),
        cmocka_unit_test(test_rows_are_copied),
        cmocka_unit_test(test_copies_from_any_host_memory),
        cmocka_unit_test(test_notifications),
        cmocka_unit_test(test_notification_comes_after_the_work),
        cmocka_unit_test(test_close_finishes_the_work),
        cmocka_unit_test(test_call_runs_in_the_lane_order),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_ops_belong_to_one_lane),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

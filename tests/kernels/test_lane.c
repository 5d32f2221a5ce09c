#include "tests/support/check.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "kernels/cpu/cpu_device.h"
#include "kernels/device.h"
#include "src/base/error.h"

/* Under a sanitizer a huge allocation must fail as it does without the sanitizer. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void);
const char *__tsan_default_options(void) {
    return "allocator_may_return_null=1";
}

static struct ot_device *open_cpu(uint64_t delay_seed) {
    struct ot_device *device;
    struct ot_device_config config = {.kind = "cpu", .threads = 2, .lane_delay_seed = delay_seed};
    check_ok(ot_device_open(&config, &device));
    return device;
}

static void sleep_us(long us) {
    nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
}

/* A command that keeps its lane busy until the test opens the gate. */
static void wait_at_gate(struct ot_lane *lane, const void *args) {
    (void)lane;
    atomic_bool *const *gate = args;
    while (!atomic_load(*gate))
        sleep_us(20);
}

static void close_gate(struct ot_lane *lane, atomic_bool *gate) {
    atomic_store(gate, false);
    ot_cpu_lane_push(lane, wait_at_gate, &gate, sizeof gate);
}

/* ---- order within a lane ---- */

static void test_copies_and_fills_in_order(void **state) {
    (void)state;
    enum { N = 10000 };
    struct ot_device *device = open_cpu(0);
    struct ot_lane *lane;
    unsigned char *host, *back, *a, *b;
    check_ok(ot_device_alloc_pinned(device, N, "host", (void **)&host));
    check_ok(ot_device_alloc_pinned(device, N, "back", (void **)&back));
    check_ok(ot_device_alloc(device, N, "a", (void **)&a));
    check_ok(ot_device_alloc(device, N, "b", (void **)&b));
    check_ok(ot_lane_open(device, "copies", &lane));
    assert_ptr_equal(ot_lane_device(lane), device);
    for (int i = 0; i < N; i++)
        host[i] = (unsigned char)(i * 7);
    ot_lane_copy(lane, OT_COPY_H2D, a, host, N);
    ot_lane_fill(lane, a + 100, 0x5a, 50);
    ot_lane_copy(lane, OT_COPY_D2D, b, a, N);
    ot_lane_fill(lane, a, 0, N);
    ot_lane_copy(lane, OT_COPY_D2H, back, b, N);
    ot_lane_copy(lane, OT_COPY_D2H, back, NULL, 0);
    ot_lane_fill(lane, NULL, 0, 0);
    check_ok(ot_lane_sync(lane));
    for (int i = 0; i < N; i++)
        assert_int_equal(back[i], i >= 100 && i < 150 ? 0x5a : (unsigned char)(i * 7));
    ot_lane_close(lane);
    ot_lane_close(NULL);
    ot_device_free(device, a);
    ot_device_free(device, b);
    ot_device_free_pinned(device, host, N);
    ot_device_free_pinned(device, back, N);
    ot_device_close(device);
}

static void dawdle(struct ot_lane *lane, const void *args) {
    (void)lane, (void)args;
    sleep_us(20000);
}

struct tally {
    int next;
    bool in_order;
};

static void count_command(struct ot_lane *lane, const void *args) {
    (void)lane;
    struct {
        struct tally *tally;
        int number;
    } command;
    memcpy(&command, args, sizeof command);
    command.tally->in_order &= command.number == command.tally->next++;
}

/* More commands than the ring holds, with a lane that is late in each round of the ring. The caller must
 * wait, and no command may be lost. */
static void test_full_ring(void **state) {
    (void)state;
    enum { COMMANDS = 9000 };
    struct ot_device *device = open_cpu(0);
    struct ot_lane *lane;
    struct tally tally = {0, true};
    check_ok(ot_lane_open(device, "ring", &lane));
    for (int i = 0; i < COMMANDS; i++) {
        if (i % 1500 == 0)
            ot_cpu_lane_push(lane, dawdle, NULL, 0);
        struct {
            struct tally *tally;
            int number;
        } command = {&tally, i};
        ot_cpu_lane_push(lane, count_command, &command, sizeof command);
    }
    check_ok(ot_lane_sync(lane));
    assert_int_equal(tally.next, COMMANDS);
    assert_true(tally.in_order);
    ot_lane_close(lane);
    ot_device_close(device);
}

static void check_largest_args(struct ot_lane *lane, const void *args) {
    (void)lane;
    const unsigned char *bytes = args;
    if ((uintptr_t)args % 16 != 0)
        abort();
    for (int i = 0; i < OT_CPU_COMMAND_BYTES; i++)
        if (bytes[i] != (unsigned char)i)
            abort();
}

/* Arguments are copied: the caller may overwrite its own at once. */
static void test_largest_arguments(void **state) {
    (void)state;
    struct ot_device *device = open_cpu(0);
    struct ot_lane *lane;
    atomic_bool gate;
    unsigned char args[OT_CPU_COMMAND_BYTES];
    check_ok(ot_lane_open(device, "args", &lane));
    close_gate(lane, &gate);
    for (int i = 0; i < OT_CPU_COMMAND_BYTES; i++)
        args[i] = (unsigned char)i;
    ot_cpu_lane_push(lane, check_largest_args, args, sizeof args);
    memset(args, 0, sizeof args);
    atomic_store(&gate, true);
    check_ok(ot_lane_sync(lane));
    ot_lane_close(lane);
    ot_device_close(device);
}

static void set_flag(void *arg) {
    atomic_store((atomic_bool *)arg, true);
}

static void test_notify_comes_after_the_work(void **state) {
    (void)state;
    struct ot_device *device = open_cpu(0);
    struct ot_lane *lane;
    atomic_bool gate, called = false;
    check_ok(ot_lane_open(device, "notify", &lane));
    close_gate(lane, &gate);
    ot_lane_notify(lane, set_flag, &called);
    sleep_us(2000);
    assert_false(atomic_load(&called));
    atomic_store(&gate, true);
    check_ok(ot_lane_sync(lane));
    assert_true(atomic_load(&called));
    ot_lane_close(lane);
    ot_device_close(device);
}

struct slow_call {
    unsigned char *memory;
    unsigned char seen;
};

/* Takes the byte that the lane wrote before, and leaves another one for the lane's next copy. */
static void call_slowly(void *arg) {
    struct slow_call *call = arg;
    sleep_us(2000);
    call->seen = *call->memory;
    *call->memory = 2;
}

static void test_call_runs_in_the_lane_order(void **state) {
    (void)state;
    struct ot_device *device = open_cpu(3);
    struct ot_lane *lane;
    unsigned char *memory, one = 1, back = 0;
    check_ok(ot_device_alloc(device, 1, "byte", (void **)&memory));
    check_ok(ot_lane_open(device, "call", &lane));
    struct slow_call call = {.memory = memory};
    ot_lane_copy(lane, OT_COPY_H2D, memory, &one, 1);
    ot_lane_call(lane, call_slowly, &call);
    ot_lane_copy(lane, OT_COPY_D2H, &back, memory, 1);
    check_ok(ot_lane_sync(lane));
    assert_int_equal(call.seen, 1);
    assert_int_equal(back, 2);
    assert_null(ot_lane_stream(lane));
    ot_lane_close(lane);
    ot_device_free(device, memory);
    ot_device_close(device);
}

static void test_close_finishes_the_work(void **state) {
    (void)state;
    struct ot_device *device = open_cpu(0);
    struct ot_lane *lane;
    atomic_bool called[2] = {false, false};
    check_ok(ot_lane_open(device, "close", &lane));
    for (int i = 0; i < 100; i++)
        ot_lane_notify(lane, set_flag, &called[0]);
    ot_lane_notify(lane, set_flag, &called[1]);
    ot_lane_close(lane);
    assert_true(atomic_load(&called[0]) && atomic_load(&called[1]));
    ot_device_close(device);
}

/* ---- events ---- */

struct two_lanes {
    struct ot_device *device;
    struct ot_lane *first, *second;
    struct ot_event *event;
};

static struct two_lanes open_two(uint64_t delay_seed) {
    struct two_lanes two;
    two.device = open_cpu(delay_seed);
    check_ok(ot_lane_open(two.device, "first", &two.first));
    check_ok(ot_lane_open(two.device, "second", &two.second));
    check_ok(ot_event_create(two.device, &two.event));
    return two;
}

static void close_two(struct two_lanes *two) {
    ot_lane_close(two->first);
    ot_lane_close(two->second);
    ot_event_destroy(two->event);
    ot_event_destroy(NULL);
    ot_device_close(two->device);
}

static void test_wait_holds_back_the_other_lane(void **state) {
    (void)state;
    struct two_lanes two = open_two(0);
    atomic_bool gate, called = false;
    close_gate(two.first, &gate);
    ot_lane_record(two.first, two.event);
    ot_lane_wait(two.second, two.event);
    ot_lane_notify(two.second, set_flag, &called);
    sleep_us(2000);
    assert_false(atomic_load(&called));
    atomic_store(&gate, true);
    check_ok(ot_event_sync(two.event));
    check_ok(ot_lane_sync(two.second));
    assert_true(atomic_load(&called));
    close_two(&two);
}

static void test_never_recorded_passes(void **state) {
    (void)state;
    struct two_lanes two = open_two(0);
    check_ok(ot_event_sync(two.event));
    ot_lane_wait(two.first, two.event);
    check_ok(ot_lane_sync(two.first));
    close_two(&two);
}

/* A wait is for the record that was enqueued before the wait. A later record on a lane that is stuck does not
 * delay it. */
static void test_later_record_does_not_delay_earlier_wait(void **state) {
    (void)state;
    struct two_lanes two = open_two(0);
    atomic_bool gate;
    ot_lane_record(two.first, two.event);
    ot_lane_wait(two.second, two.event);
    close_gate(two.first, &gate);
    ot_lane_record(two.first, two.event);
    check_ok(ot_lane_sync(two.second)); /* would hang otherwise */
    atomic_store(&gate, true);
    close_two(&two);
}

/* A later record that another lane has already run does not satisfy the wait either. */
static void test_later_record_does_not_satisfy_earlier_wait(void **state) {
    (void)state;
    struct two_lanes two = open_two(0);
    struct ot_lane *third;
    atomic_bool gate, called = false;
    check_ok(ot_lane_open(two.device, "third", &third));
    close_gate(two.first, &gate);
    ot_lane_record(two.first, two.event);
    ot_lane_wait(two.second, two.event);
    ot_lane_notify(two.second, set_flag, &called);
    ot_lane_record(third, two.event);
    check_ok(ot_event_sync(two.event)); /* waits for the third lane's record */
    sleep_us(2000);
    assert_false(atomic_load(&called));
    atomic_store(&gate, true);
    check_ok(ot_lane_sync(two.second));
    assert_true(atomic_load(&called));
    ot_lane_close(third);
    close_two(&two);
}

/* More records of one event in flight than the event has words for. */
static void test_many_records_under_way(void **state) {
    (void)state;
    enum { RECORDS = 100 };
    struct two_lanes two = open_two(0);
    atomic_bool gate, called[RECORDS];
    close_gate(two.first, &gate);
    for (int i = 0; i < RECORDS; i++) {
        atomic_init(&called[i], false);
        ot_lane_notify(two.first, set_flag, &called[i]);
        ot_lane_record(i % 2 ? two.first : two.second, two.event);
        ot_lane_wait(i % 2 ? two.second : two.first, two.event);
    }
    atomic_store(&gate, true);
    check_ok(ot_event_sync(two.event));
    check_ok(ot_lane_sync(two.first));
    check_ok(ot_lane_sync(two.second));
    for (int i = 0; i < RECORDS; i++)
        assert_true(atomic_load(&called[i]));
    close_two(&two);
}

/* ---- a pipeline over three lanes: device.h's contract holds with delays and under ThreadSanitizer ---- */

enum { ROUNDS = 60, WORDS = 64 };

static void increment(struct ot_lane *lane, const void *args) {
    (void)lane;
    int *const *data = args;
    for (int i = 0; i < WORDS; i++)
        (*data)[i]++;
}

struct slot {
    int *memory;
    struct ot_event *loaded, *computed, *stored;
};

/* h2d -> compute -> d2h through two slots, each reused by every second round. `left_out` names the dependency
 * that the negative test leaves out. */
enum left_out { LEFT_OUT_NOTHING, LEFT_OUT_STORED, LEFT_OUT_LOADED };

static void run_pipeline(uint64_t delay_seed, enum left_out left_out, int *in, int *out) {
    struct ot_device *device = open_cpu(delay_seed);
    struct ot_lane *h2d, *compute, *d2h;
    struct slot slots[2];
    check_ok(ot_lane_open(device, "h2d", &h2d));
    check_ok(ot_lane_open(device, "compute", &compute));
    check_ok(ot_lane_open(device, "d2h", &d2h));
    for (int s = 0; s < 2; s++) {
        check_ok(ot_device_alloc(device, WORDS * sizeof(int), "slot", (void **)&slots[s].memory));
        check_ok(ot_event_create(device, &slots[s].loaded));
        check_ok(ot_event_create(device, &slots[s].computed));
        check_ok(ot_event_create(device, &slots[s].stored));
    }
    for (int round = 0; round < ROUNDS; round++) {
        struct slot *slot = &slots[round % 2];
        if (left_out != LEFT_OUT_STORED)
            ot_lane_wait(h2d, slot->stored);
        ot_lane_copy(h2d, OT_COPY_H2D, slot->memory, in + round * WORDS, WORDS * sizeof(int));
        ot_lane_record(h2d, slot->loaded);
        if (left_out != LEFT_OUT_LOADED)
            ot_lane_wait(compute, slot->loaded);
        ot_cpu_lane_push(compute, increment, &slot->memory, sizeof slot->memory);
        ot_lane_record(compute, slot->computed);
        ot_lane_wait(d2h, slot->computed);
        ot_lane_copy(d2h, OT_COPY_D2H, out + round * WORDS, slot->memory, WORDS * sizeof(int));
        ot_lane_record(d2h, slot->stored);
    }
    check_ok(ot_lane_sync(h2d));
    check_ok(ot_lane_sync(compute));
    check_ok(ot_lane_sync(d2h));
    ot_lane_close(h2d);
    ot_lane_close(compute);
    ot_lane_close(d2h);
    for (int s = 0; s < 2; s++) {
        ot_event_destroy(slots[s].loaded);
        ot_event_destroy(slots[s].computed);
        ot_event_destroy(slots[s].stored);
        ot_device_free(device, slots[s].memory);
    }
    ot_device_close(device);
}

static void test_pipeline(void **state) {
    (void)state;
    static int in[ROUNDS * WORDS], out[ROUNDS * WORDS];
    for (int i = 0; i < ROUNDS * WORDS; i++)
        in[i] = i * 3;
    for (uint64_t delay_seed = 0; delay_seed < 4; delay_seed++) {
        memset(out, 0, sizeof out);
        run_pipeline(delay_seed, LEFT_OUT_NOTHING, in, out);
        for (int i = 0; i < ROUNDS * WORDS; i++)
            assert_int_equal(out[i], in[i] + 1);
    }
}

#if defined(__SANITIZE_THREAD__)
#define THREAD_SANITIZER 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif

/* Without one of its dependencies the pipeline has a race, and ThreadSanitizer must find it. The engine's
 * tests rely on this. */
static void check_race_is_seen(enum left_out left_out) {
#ifdef THREAD_SANITIZER
    char program[512], number[8];
    snprintf(number, sizeof number, "%d", (int)left_out);
    ssize_t bytes = readlink("/proc/self/exe", program, sizeof program - 1);
    assert_true(bytes > 0);
    program[bytes] = '\0';
    pid_t child = fork();
    if (child == 0) {
        setenv("TSAN_OPTIONS", "exitcode=66:log_path=/dev/null", 1);
        execl(program, program, "race", number, (char *)NULL);
        _exit(127);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 66);
#else
    (void)left_out;
    skip();
#endif
}

static void test_missing_slot_dependency_is_a_race(void **state) {
    (void)state;
    check_race_is_seen(LEFT_OUT_STORED);
}

static void test_missing_data_dependency_is_a_race(void **state) {
    (void)state;
    check_race_is_seen(LEFT_OUT_LOADED);
}

/* ---- delays ---- */

static double seconds_of_notes(uint64_t delay_seed) {
    enum { NOTES = 400 };
    struct two_lanes two = open_two(delay_seed);
    struct timespec start, end;
    atomic_bool called = false;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int i = 0; i < NOTES; i++)
        ot_lane_notify(two.first, set_flag, &called);
    check_ok(ot_lane_sync(two.first));
    clock_gettime(CLOCK_MONOTONIC, &end);
    close_two(&two);
    return (double)(end.tv_sec - start.tv_sec) + (double)(end.tv_nsec - start.tv_nsec) * 1e-9;
}

static void test_delays(void **state) {
    (void)state;
    /* Half of the expected sum: 100 of the notes are delayed, by 100 us on the average. */
    assert_true(seconds_of_notes(17) > 100 * 50e-6);
}

/* ---- failures ---- */

static void fail_now(struct ot_lane *lane, const void *args) {
    (void)args;
    ot_cpu_lane_fail(lane, ot_fail(OT_E_DEVICE, "the op broke"));
    ot_cpu_lane_fail(lane, ot_fail(OT_E_IO, "a second time"));
}

static void must_not_run(struct ot_lane *lane, const void *args) {
    (void)lane, (void)args;
    abort();
}

static void must_not_be_called(void *arg) {
    (void)arg;
    abort();
}

static void test_failures_stick_to_the_lane(void **state) {
    (void)state;
    struct two_lanes two = open_two(0);
    struct ot_event *before;
    atomic_bool called = false;
    check_ok(ot_event_create(two.device, &before));
    ot_lane_record(two.first, before);
    ot_cpu_lane_push(two.first, fail_now, NULL, 0);
    ot_cpu_lane_push(two.first, must_not_run, NULL, 0);
    ot_lane_call(two.first, must_not_be_called, NULL);
    ot_lane_notify(two.first, set_flag, &called);
    ot_lane_record(two.first, two.event);
    ot_lane_wait(two.second, two.event); /* the other lane goes on without an error */
    check_ok(ot_lane_sync(two.second));
    check_ok(ot_event_sync(before));
    check_fails(ot_event_sync(two.event), OT_E_DEVICE, "the op broke");
    check_fails(ot_lane_sync(two.first), OT_E_DEVICE, "the op broke");
    check_fails(ot_lane_sync(two.first), OT_E_DEVICE, "the op broke");
    check_fails(ot_lane_error(two.first), OT_E_DEVICE, "the op broke");
    check_ok(ot_lane_error(two.second));
    assert_true(atomic_load(&called));
    ot_lane_close(two.first);
    check_fails(ot_event_sync(two.event), OT_E_DEVICE, "the op broke");
    /* The second lane records the event anew, so the event has no error. */
    ot_lane_record(two.second, two.event);
    check_ok(ot_event_sync(two.event));
    two.first = NULL;
    ot_event_destroy(before);
    close_two(&two);
}

static void use_scratch(struct ot_lane *lane, const void *args) {
    size_t bytes;
    memcpy(&bytes, args, sizeof bytes);
    unsigned char *scratch = ot_cpu_lane_scratch(lane, bytes);
    if (!scratch)
        return;
    if ((uintptr_t)scratch % 64 != 0)
        abort();
    memset(scratch, 1, bytes);
}

static void test_scratch(void **state) {
    (void)state;
    struct two_lanes two = open_two(0);
    for (size_t bytes = 1; bytes < 1 << 16; bytes = bytes * 3 + 1)
        ot_cpu_lane_push(two.first, use_scratch, &bytes, sizeof bytes);
    /* More than whole cache lines; the address sanitizer knows where the memory ends. */
    size_t one_more = (1 << 17) + 1;
    ot_cpu_lane_push(two.first, use_scratch, &one_more, sizeof one_more);
    check_ok(ot_lane_sync(two.first));
    size_t absurd = SIZE_MAX / 4;
    ot_cpu_lane_push(two.first, use_scratch, &absurd, sizeof absurd);
    check_fails(ot_lane_sync(two.first), OT_E_BUDGET, "an op's scratch");
    close_two(&two);
}

int main(int argc, char **argv) {
    if (argc == 3 && strcmp(argv[1], "race") == 0) {
        static int in[ROUNDS * WORDS], out[ROUNDS * WORDS];
        run_pipeline(5, (enum left_out)atoi(argv[2]), in, out);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_copies_and_fills_in_order),
        cmocka_unit_test(test_full_ring),
        cmocka_unit_test(test_largest_arguments),
        cmocka_unit_test(test_notify_comes_after_the_work),
        cmocka_unit_test(test_call_runs_in_the_lane_order),
        cmocka_unit_test(test_close_finishes_the_work),
        cmocka_unit_test(test_wait_holds_back_the_other_lane),
        cmocka_unit_test(test_never_recorded_passes),
        cmocka_unit_test(test_later_record_does_not_delay_earlier_wait),
        cmocka_unit_test(test_later_record_does_not_satisfy_earlier_wait),
        cmocka_unit_test(test_many_records_under_way),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_missing_slot_dependency_is_a_race),
        cmocka_unit_test(test_missing_data_dependency_is_a_race),
        cmocka_unit_test(test_delays),
        cmocka_unit_test(test_failures_stick_to_the_lane),
        cmocka_unit_test(test_scratch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

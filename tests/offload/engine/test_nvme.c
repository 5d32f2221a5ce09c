/* State, weights, boundaries and gradients on nvme change no bit: any mix of homes, engines, stripes and ring
 * depths, and disks that are slow, short and interrupted. If a disk fails, the run ends with a clear
 * error. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "src/base/random.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

static const enum ot_home homes[3] = {OT_HOME_GPU, OT_HOME_HOST, OT_HOME_NVME};

static void train_resident(struct tiny_run *run, struct tiny_result *result) {
    tiny_plan(run, OT_HOME_GPU, OT_HOME_GPU, OT_HOME_GPU, 0);
    tiny_train(run, result);
    ot_plan_free(&run->plan);
}

static void compare(struct tiny_run *run, const struct tiny_result *resident, const char *what) {
    struct tiny_result other;
    tiny_train(run, &other);
    tiny_same(resident, &other, what);
    tiny_result_free(&other);
    ot_plan_free(&run->plan);
}

/* Every mix with something on nvme; a third of them if tests are brief. */
static void all_homes(enum ot_dtype dtype, bool tied, float clip) {
    struct tiny_run run;
    struct tiny_result resident;
    char what[160];
    tiny_defaults(&run, 3, tied, dtype);
    run.clip = clip;
    train_resident(&run, &resident);
    for (int mix = 0; mix < 27; mix += tests_are_brief() ? 4 : 1) {
        int weights = mix % 3, state = mix / 3 % 3, activations = mix / 9;
        if (weights < 2 && state < 2 && activations < 2)
            continue;
        run.io = mix % 2 ? OT_IO_URING : OT_IO_POOL;
        run.stripes = 1 + mix % 3;
        run.optimizer_threads = 1 + mix % 3;
        tiny_plan(&run, homes[weights], homes[state], homes[activations], 1 + mix % 4);
        snprintf(what, sizeof what, "%s tied=%d clip=%g weights=%s state=%s activations=%s",
                 ot_dtype_name(dtype), tied, (double)clip, ot_tier_name((enum ot_tier)homes[weights]),
                 ot_tier_name((enum ot_tier)homes[state]), ot_tier_name((enum ot_tier)homes[activations]));
        compare(&run, &resident, what);
    }
    tiny_result_free(&resident);
}

static void homes_fp32(void **state) {
    (void)state;
    if (!tests_are_brief())
        all_homes(OT_F32, true, 1.0f);
}

static void homes_bf16(void **state) {
    (void)state;
    all_homes(OT_BF16, false, 1.0f);
}

static void homes_fp16(void **state) {
    (void)state;
    if (!tests_are_few())
        all_homes(OT_F16, true, 1.0f);
}

static void homes_without_clipping(void **state) {
    (void)state;
    all_homes(OT_BF16, true, 0);
}

/* Small tiles, every number of slots, every update engine and every I/O engine. */
static void ring_depths(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result resident;
    char what[96];
    tiny_defaults(&run, 2, true, OT_BF16);
    train_resident(&run, &resident);
    for (int slots = 2; slots <= 8; slots += tests_are_for_races() ? 6 : tests_are_brief() ? 3 : 1)
        for (int io = OT_IO_URING; io <= OT_IO_POOL; io++) {
            run.io = (enum ot_io_choice)io;
            run.stripes = 1 + slots % 4;
            run.chunk_bytes = (size_t)4096 << slots % 4;
            run.io_depth = 1 + slots % 5;
            tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 1 + slots % 3);
            run.plan.tile_slots = slots;
            for (int k = 0; k < OT_SLOT_KINDS; k++)
                run.plan.host_weight_slots[k] = slots;
            run.plan.host_activation_slots = slots;
            tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 7, 0);
            snprintf(what, sizeof what, "%d slots through %s", slots, ot_io_choice_name(run.io));
            compare(&run, &resident, what);
        }
    tiny_result_free(&resident);
}

static size_t ledger_bytes(const struct ot_plan *plan, enum ot_tier tier, const char *name) {
    size_t bytes = 0;
    for (int i = 0; i < plan->ledger.n; i++)
        if (plan->ledger.entries[i].tier == tier && strcmp(plan->ledger.entries[i].name, name) == 0)
            bytes += plan->ledger.entries[i].bytes;
    return bytes;
}

/* All gradients of the plan, and their sums between rounds, live on nvme and pass through few slots. */
static void spill_gradients(struct tiny_run *run, int rounds, int slots) {
    for (int s = 0; s < run->plan.n_slabs; s++)
        run->plan.slabs[s].grads = run->plan.slabs[s].sums = OT_HOME_NVME;
    ot_plan_set_rounds(&run->plan, rounds);
    run->plan.host_grad_slots = slots;
    run->plan.tile_slots = run->plan.tile_slots > 0 ? run->plan.tile_slots : slots;
    tiny_finish(run);
    static const char *const names[2] = {"gradients", "gradient sums"};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ledger_bytes(&run->plan, OT_TIER_HOST, names[i]), 0);
        assert_int_equal(ledger_bytes(&run->plan, OT_TIER_NVME, names[i]) > 0, i == 0 || rounds > 1);
    }
}

/* With each engine, beside state on the host and on nvme, with one slot and more, with and without rounds. */
static void gradients(void **state) {
    (void)state;
    static const unsigned engines[3] = {1 << OT_TILE_CPU, 1 << OT_TILE_STREAM, 7};
    for (int mix = 0; mix < 24; mix += tests_are_for_races() ? 7 : tests_are_brief() ? 5 : 1) {
        struct tiny_run run;
        struct tiny_result resident;
        char what[96];
        tiny_defaults(&run, 2, mix & 1, (enum ot_dtype)(mix / 2 % 3));
        run.clip = run.dtype != OT_F16 && mix & 4 ? 0 : 1.0f;
        train_resident(&run, &resident);
        run.io = mix & 1 ? OT_IO_URING : OT_IO_POOL;
        run.optimizer_threads = 1 + mix % 2;
        tiny_plan(&run, homes[mix % 3], homes[1 + mix / 3 % 2], OT_HOME_GPU, 1 + mix % 3);
        run.plan.keep_grads = mix & 2;
        tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, engines[mix / 4 % 3], 0);
        spill_gradients(&run, 1 + mix % 3, 1 + mix / 2 % 3);
        snprintf(what, sizeof what, "gradients on nvme, mix %d", mix);
        compare(&run, &resident, what);
        tiny_result_free(&resident);
    }
}

/* A deep model trains with host memory of a tenth of the bytes of its weights. If tests are few, it is less
 * deep, and its slots are more than a tenth. */
static void a_tenth_of_the_weights_in_host_memory(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result resident;
    tiny_defaults(&run, tests_are_few() ? 30 : 100, false, OT_BF16);
    train_resident(&run, &resident);
    tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 1);
    run.plan.tile_slots = 2;
    tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_CPU, 0);
    spill_gradients(&run, 2, 2);
    size_t weights = (size_t)resident.n_values / 3 * 2; /* values: master, m and v */
    assert_true(ot_ledger_total(&run.plan.ledger, OT_TIER_HOST) <= weights / (tests_are_few() ? 2 : 10));
    compare(&run, &resident, "a deep model");
    tiny_result_free(&resident);
}

static void random_plans(void **state) {
    (void)state;
    int count = getenv("OT_TEST_PLANS") ? atoi(getenv("OT_TEST_PLANS")) : 300;
    for (int variant = 0; variant < 8 && variant < count; variant++) {
        struct tiny_run run;
        struct tiny_result resident;
        char what[64];
        tiny_defaults(&run, 1 + variant % 3, variant & 1, variant & 2 ? OT_BF16 : OT_F32);
        run.clip = variant & 4 ? 0 : 1.0f;
        run.state = (enum ot_state_format)((variant + 1) % OT_STATE_FORMATS);
        run.masters = variant % 4 == 3 ? OT_MASTERS_NONE : OT_MASTERS_F32;
        train_resident(&run, &resident);
        for (int i = variant; i < count; i += 8) {
            tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
            tiny_randomise(&run, (uint64_t)i + 1);
            snprintf(what, sizeof what, "random plan %d", i + 1);
            compare(&run, &resident, what);
        }
        tiny_result_free(&resident);
    }
}

/* ---- the order of I/O on the disks ---- */

/* As many I/Os as the store has in flight. A write that the kernel did in part is begun again for the rest,
 * while those after it are in flight. */
enum { IN_FLIGHT = 32 };

/* The order of the writes. A jump is a write that does not begin where the write before it ended. The rest of
 * a write that the kernel did in part is not counted. */
struct order {
    struct ot_io_calls calls;
    /* Of the last writes. Only the store's threads use them. */
    off_t begins[IN_FLIGHT], ends[IN_FLIGHT], end;
    /* Atomic, because the test reads them while the store writes. */
    _Atomic(int) writes, jumps;
};

static bool is_rest(const struct order *order, off_t begin, off_t end) {
    for (int i = 0; i < IN_FLIGHT; i++)
        if (end == order->ends[i] && begin >= order->begins[i])
            return true;
    return false;
}

static void note_write(void *context, bool write, int fd, size_t bytes, off_t offset) {
    struct order *order = context;
    off_t end = offset + (off_t)bytes;
    (void)fd;
    if (!write || is_rest(order, offset, end))
        return;
    int at = order->writes++ % IN_FLIGHT;
    order->jumps += order->writes > 1 && offset != order->end;
    order->begins[at] = offset;
    order->ends[at] = order->end = end;
}

/* State and weights of all tiles, step after step: the writes of a step are one stream. */
static void a_step_writes_one_stream(void **state) {
    (void)state;
    for (int io = OT_IO_URING; io <= OT_IO_POOL; io++) {
        struct tiny_run run;
        struct tiny_engine tiny;
        struct tiny_result result = {0};
        struct order order = {.calls = ot_io_system};
        tiny_defaults(&run, 3, false, OT_BF16);
        order.calls.context = &order;
        order.calls.begin = note_write;
        run.io = (enum ot_io_choice)io;
        run.io_calls = &order.calls;
        tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_GPU, 2);
        tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 1 << OT_TILE_CPU, 0);
        tiny_open(&run, &tiny);
        tiny_steps(&run, tiny.engine, 0, 1, &result); /* after the writes of the initial values */
        order.writes = order.jumps = 0;
        tiny_steps(&run, tiny.engine, 1, TINY_STEPS, &result);
        assert_true(order.writes >= (TINY_STEPS - 1) * (int)ot_plan_passing_tiles(&run.plan));
        /* One jump back to the first tile of the other side. */
        assert_in_range(order.jumps, 0, TINY_STEPS - 1);
        tiny_close(&tiny);
        ot_plan_free(&run.plan);
    }
}

/* ---- faulty disks ---- */

struct bad_disk {
    struct ot_io_calls calls;
    atomic_long operations;
    atomic_long fail_at;  /* this operation and all later ones fail; 0: none */
    atomic_long hangs_at; /* this operation takes three seconds */
    int error;
};

/* Short, interrupted, refused (EAGAIN) and late transfers, in irregular turns. */
static ssize_t storm(struct bad_disk *disk, long operation, size_t bytes) {
    uint64_t random = ot_random_below(3, ot_random_stream(OT_RANDOM_TEST, 5, 5), (uint64_t)operation, 8);
    if (operation == disk->hangs_at)
        sleep(3);
    if (disk->fail_at && operation >= disk->fail_at)
        return -disk->error;
    if (random == 0)
        usleep((useconds_t)(operation % 7) * 100);
    return random == 1 ? -EINTR : random == 2 ? -EAGAIN : random == 3 && bytes > 4096 ? 4096 : (ssize_t)bytes;
}

static ssize_t storm_read(void *context, int fd, void *memory, size_t bytes, off_t offset) {
    struct bad_disk *disk = context;
    ssize_t n = storm(disk, ++disk->operations, bytes);
    return n < 0 ? n : ot_io_system.pread(ot_io_system.context, fd, memory, (size_t)n, offset);
}

static ssize_t storm_write(void *context, int fd, const void *memory, size_t bytes, off_t offset) {
    struct bad_disk *disk = context;
    ssize_t n = storm(disk, ++disk->operations, bytes);
    return n < 0 ? n : ot_io_system.pwrite(ot_io_system.context, fd, memory, (size_t)n, offset);
}

/* Reports a completed I/O of a ring as one of the storm's faults. The bytes beyond the reported ones are
 * moved again. */
static int storm_result(void *context, bool write, int result) {
    struct bad_disk *disk = context;
    (void)write;
    return result <= 0 ? result : (int)storm(disk, ++disk->operations, (size_t)result);
}

static void make_bad(struct bad_disk *disk, int error) {
    *disk = (struct bad_disk){.calls = ot_io_system, .error = error};
    disk->calls.context = disk;
    disk->calls.pread = storm_read;
    disk->calls.pwrite = storm_write;
    disk->calls.ring_result = storm_result;
}

static void storms_change_nothing(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_result resident;
    tiny_defaults(&run, 2, false, OT_BF16);
    train_resident(&run, &resident);
    for (int io = OT_IO_URING; io <= OT_IO_POOL; io++) {
        struct bad_disk disk;
        make_bad(&disk, 0);
        run.io = (enum ot_io_choice)io;
        run.io_calls = &disk.calls;
        run.chunk_bytes = 16384;
        tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
        tiny_deal(&run, OT_SLAB_ALIGN_PARAMS, 6, 0);
        spill_gradients(&run, 2, 2);
        compare(&run, &resident, "through a storm");
        assert_true(disk.operations > 100);
    }
    tiny_result_free(&resident);
}

/* Runs until the disk fails. Every later call fails with the same sentence, and closing does not hang. */
static void run_into(struct tiny_run *run, struct bad_disk *disk, long after, const char *words) {
    struct tiny_engine tiny;
    struct tiny_batch *batch = malloc(sizeof *batch);
    int rc = 0;
    assert_non_null(batch);
    tiny_open(run, &tiny);
    disk->fail_at = disk->operations + after;
    for (int step = 0; step < TINY_STEPS && rc >= 0; step++) {
        struct ot_step_result result;
        tiny_fill_batch(batch, run->config.vocab, step, TINY_STEP_SEQUENCES, run->micro_sequences);
        rc = ot_engine_submit(tiny.engine, &batch->input);
        if (rc >= 0)
            rc = ot_engine_result(tiny.engine, &result);
    }
    if (rc >= 0)
        rc = ot_engine_drain(tiny.engine);
    check_fails(rc, OT_E_IO, words);
    check_fails(ot_engine_submit(tiny.engine, &batch->input), OT_E_IO, words);
    tiny_close(&tiny);
    free(batch);
}

static void failures_end_the_run(void **state) {
    (void)state;
    static const int errors[] = {EIO, ENOSPC};
    struct tiny_run run;
    tiny_defaults(&run, 2, false, OT_BF16);
    for (int io = OT_IO_URING; io <= OT_IO_POOL; io++)
        for (int i = 0; i < (tests_are_brief() ? 2 : 8); i++) {
            struct bad_disk disk;
            make_bad(&disk, errors[i % 2]);
            run.io = (enum ot_io_choice)io;
            run.io_calls = &disk.calls;
            tiny_plan(&run, OT_HOME_NVME, OT_HOME_NVME, OT_HOME_NVME, 2);
            spill_gradients(&run, 1 + i % 2, 2);
            run_into(&run, &disk, 1 + 13 * i, strerror(errors[i % 2]));
            ot_plan_free(&run.plan);
        }
}

/* The warning on stderr names the lane that is stuck and its task. */
static void a_stuck_disk_is_named(void **state) {
    (void)state;
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_batch *batch = malloc(sizeof *batch);
    struct ot_step_result result;
    struct bad_disk disk;
    char text[2048] = "";
    assert_non_null(batch);
    make_bad(&disk, 0);
    tiny_defaults(&run, 2, false, OT_BF16);
    run.io = OT_IO_POOL;
    run.io_calls = &disk.calls;
    run.stall_seconds = 1;
    tiny_plan(&run, OT_HOME_NVME, OT_HOME_HOST, OT_HOME_GPU, 2);
    tiny_open(&run, &tiny);
    tiny_fill_batch(batch, run.config.vocab, 0, TINY_STEP_SEQUENCES, run.micro_sequences);
    check_ok(ot_engine_submit(tiny.engine, &batch->input)); /* writes the weights that were set */
    check_ok(ot_engine_result(tiny.engine, &result));
    check_ok(ot_engine_drain(tiny.engine));
    FILE *file = tmpfile();
    assert_non_null(file);
    fflush(stderr);
    int kept = dup(STDERR_FILENO);
    dup2(fileno(file), STDERR_FILENO);
    disk.hangs_at = disk.operations + 1;
    int rc = ot_engine_eval(tiny.engine, &batch->micro[0], (float *)batch->targets);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    check_ok(rc);
    rewind(file);
    assert_true(fread(text, 1, sizeof text - 1, file) > 0);
    fclose(file);
    assert_non_null(strstr(text, "no progress for"));
    assert_non_null(strstr(text, "lane nvme_read is running nvme read"));
    tiny_close(&tiny);
    ot_plan_free(&run.plan);
    free(batch);
}

int main(void) {
    tiny_skip_without_device();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(homes_fp32),
        cmocka_unit_test(homes_bf16),
        cmocka_unit_test(homes_fp16),
        cmocka_unit_test(homes_without_clipping),
        cmocka_unit_test(ring_depths),
        cmocka_unit_test(gradients),
        cmocka_unit_test(a_tenth_of_the_weights_in_host_memory),
        cmocka_unit_test(random_plans),
        cmocka_unit_test(a_step_writes_one_stream),
        cmocka_unit_test(a_stuck_disk_is_named),
        cmocka_unit_test(storms_change_nothing),
        cmocka_unit_test(failures_end_the_run),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

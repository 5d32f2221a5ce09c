/* Tasks that hang: the driver gets an error that names the task, and its thread goes on. Each case is a
 * process, because a hanging thread cannot be ended. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/cpu_device.h"
#include "tests/offload/tiny_run.h"
#include "tests/support/check.h"

/* Once this is set, a call of that kind does not return. */
static _Atomic(int) armed;
enum { NOTHING, READS, WRITES, FORWARDS, KERNELS };

static void hang(int kind) {
    while (atomic_load(&armed) == kind)
        pause();
}

static ssize_t hanging_pread(void *context, int fd, void *memory, size_t bytes, off_t offset) {
    (void)context;
    hang(READS);
    return ot_io_system.pread(ot_io_system.context, fd, memory, bytes, offset);
}

static ssize_t hanging_pwrite(void *context, int fd, const void *memory, size_t bytes, off_t offset) {
    (void)context;
    hang(WRITES);
    return ot_io_system.pwrite(ot_io_system.context, fd, memory, bytes, offset);
}

static void (*models_forward)(const void *context, int block, const struct ot_block_run *run);

static void hang_kernel(struct ot_lane *lane, const void *args) {
    (void)lane, (void)args;
    hang(KERNELS);
}

static void hanging_forward(const void *context, int block, const struct ot_block_run *run) {
    if (block == 2) {
        hang(FORWARDS);
        ot_cpu_lane_push(run->lane, hang_kernel, NULL, 0);
    }
    models_forward(context, block, run);
}

static void change_forward(struct ot_chain *chain) {
    models_forward = chain->forward;
    chain->forward = hanging_forward;
}

/* ---- a case ---- */

/* A busy machine may let a healthy step wait for a second. */
enum { STALL_SECONDS = 6 };

static const struct stall {
    enum ot_home weights, state;
    unsigned engines; /* of the updates; 0: the CPU pool */
    int kind;
    enum { IN_STEPS, IN_EVAL, IN_GET } where;
    const char *words; /* the error contains these words */
    bool consistent;
} cases[] = {
    {OT_HOME_NVME, OT_HOME_HOST, 0, READS, IN_STEPS, "lane nvme_read is running nvme read ", true},
    /* the files do not have the state of the step before yet */
    {OT_HOME_NVME, OT_HOME_NVME, 0, WRITES, IN_STEPS, "lane nvme_write is running nvme write ", false},
    {OT_HOME_HOST, OT_HOME_HOST, 0, FORWARDS, IN_STEPS, "lane compute is running forward layer.1", true},
    /* the call returns, but the work that it gave to the device does not end */
    {OT_HOME_HOST, OT_HOME_HOST, 0, KERNELS, IN_EVAL, "lane compute has not finished forward head #0", true},
    /* this step should have made half of the update of the step before */
    {OT_HOME_HOST, OT_HOME_HOST, 1u << OT_TILE_STREAM | 1u << OT_TILE_CPU, FORWARDS, IN_STEPS,
     "lane compute is running forward layer.1", false},
    {OT_HOME_HOST, OT_HOME_NVME, 0, READS, IN_GET, "an nvme transfer between steps", false},
    {OT_HOME_HOST, OT_HOME_HOST, 1u << OT_TILE_STREAM, FORWARDS, IN_EVAL,
     "lane compute is running forward layer.1", true},
};
static const struct stall *present;

static bool is_stalled(const char *call, int rc) {
    if (rc == -OT_E_STALL && strstr(ot_error_text(), present->words) &&
        strstr(ot_error_text(), "no progress"))
        return true;
    fprintf(stderr, "%s: %d: %s\n", call, rc, ot_error_text());
    return false;
}

/* Makes steps until one of them hangs. */
static int step_until_stuck(struct ot_engine *engine, struct tiny_batch *batch, int64_t vocab) {
    struct ot_step_result result;
    int rc = 0;
    for (int step = 2; step < 6 && rc == 0; step++) {
        tiny_fill_batch(batch, vocab, step, TINY_STEP_SEQUENCES, 2);
        rc = ot_engine_submit(engine, &batch->input);
        if (rc == 0)
            rc = ot_engine_result(engine, &result);
    }
    return rc;
}

static int call_until_stuck(const struct tiny_engine *tiny, struct tiny_batch *batch) {
    float values[TINY_STEP_SEQUENCES * TINY_SEQUENCE];
    if (present->where == IN_EVAL)
        return ot_engine_eval(tiny->engine, &batch->micro[0], values);
    if (present->where == IN_GET)
        return ot_engine_get(tiny->engine, OT_SLAB_M, 1, 0, 1, values);
    return step_until_stuck(tiny->engine, batch, tiny->chain.vocab);
}

static int stall(void) {
    struct tiny_run run;
    struct tiny_engine tiny;
    struct tiny_batch batch;
    struct ot_step_result result;
    struct ot_io_calls calls = ot_io_system;
    calls.pread = hanging_pread;
    calls.pwrite = hanging_pwrite;
    tiny_defaults(&run, 3, false, OT_BF16);
    run.io = OT_IO_POOL;
    run.io_calls = &calls;
    run.change_chain = change_forward;
    run.stall_limit_seconds = STALL_SECONDS;
    tiny_plan(&run, present->weights, present->state, OT_HOME_HOST, 0);
    if (present->engines)
        tiny_deal(&run, 2048, present->engines, 0);
    tiny_open(&run, &tiny);
    for (int step = 0; step < 2; step++) {
        tiny_fill_batch(&batch, tiny.chain.vocab, step, TINY_STEP_SEQUENCES, 2);
        check_ok(ot_engine_submit(tiny.engine, &batch.input));
        check_ok(ot_engine_result(tiny.engine, &result));
    }
    if (ot_engine_is_stuck(tiny.engine))
        return 1;
    /* Without this the step before may still be making updates, and these read weights. */
    if (present->where != IN_STEPS || present->consistent)
        check_ok(ot_engine_drain(tiny.engine));
    atomic_store(&armed, present->kind);
    if (!is_stalled("the call", call_until_stuck(&tiny, &batch)))
        return 2;
    if (!ot_engine_is_stuck(tiny.engine))
        return 3;
    if (ot_engine_is_consistent(tiny.engine) != present->consistent) {
        fprintf(stderr, "%s: expected a state that is %sconsistent\n", present->words,
                present->consistent ? "" : "in");
        return 4;
    }
    if (!is_stalled("once more", call_until_stuck(&tiny, &batch)))
        return 5;
    ot_engine_close(tiny.engine); /* returns at once; all memory is still allocated */
    if (tiny.folder)
        remove_folder(tiny.folder);
    return ot_engine_is_stuck(tiny.engine) ? 0 : 6;
}

/* The cases wait side by side, because they do nothing but wait. */
static void what_hangs_is_named(void **state) {
    (void)state;
    pid_t children[sizeof cases / sizeof *cases];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        present = &cases[i];
        children[i] = check_start_child(stall);
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_end_child(children[i]);
}

int main(void) {
    tiny_needs_cpu();
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_hangs_is_named)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}

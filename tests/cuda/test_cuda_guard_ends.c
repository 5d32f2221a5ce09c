/* Checks of fast paths that do not end: the kernel waits for a lost arrival, the GPU fails, somebody kills
 * the process. The next start uses a slower kernel and says so. Other processes that check at the same
 * time are not mistaken for dead ones. Kernels that the environment forces. */
#include "tests/support/check.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/cuda/cuda_guard_verdicts.h"
#include "src/base/cache_file.h"
#include "tests/cuda/guard_work.h"
#include "tests/emu/emu.h"
#include "tests/emu/emu_faults.h"
#include "tests/fakes/fake_cublaslt.h"

enum { OUT = 3 * N * DIM, RESULTS = 5 * N * DIM }; /* of the work's host memory: out, dout, dq, dk, dv */

/* A new process on the same card: it finds the cache of the one before. */
static void restart(int compute_capability) {
    ot_emu_reset();
    ot_fake_cublaslt_reset();
    choose_card(compute_capability);
}

/* The results on a card with kernels of OFFLOAD_TRAIN_KERNELS, without checks. */
static void run_forced(int compute_capability, const char *kernels, uint16_t results[RESULTS]) {
    struct work w;
    restart(compute_capability);
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
    setenv("OFFLOAD_TRAIN_KERNELS", kernels, 1);
    open_work(&w);
    run_attention(&w);
    memcpy(results, w.host + OUT, RESULTS * sizeof *results);
    close_work(&w);
    unsetenv("OFFLOAD_TRAIN_KERNEL_CHECKS");
    unsetenv("OFFLOAD_TRAIN_KERNELS");
}

/* ---- attention whose check ends the GPU ---- */

static void lose_arrival(void *first) {
    (void)first;
    ot_emu_lose_arrival(1);
}

/* Both ops begin with the arguments of forward. */
static void lose_keys(void *first) {
    ((struct ot_attention *)first)->k = NULL;
}

static const struct end {
    const char *kernel;
    int compute_capability;
    void (*cause)(void *first);
    const char *words, *slower; /* of the path's name; OFFLOAD_TRAIN_KERNELS of the same results */
} ENDS[] = {
    {"attention_hopper<", 90, lose_arrival, "attention forward (compute capability 9.0)", "tiled"},
    {"attention_hopper_backward", 90, lose_arrival, "attention backward (compute capability 9.0)", "tiled"},
    {"attention_hopper<", 90, lose_keys, "attention forward (compute capability 9.0)", "tiled"},
    {"attention_forward", 80, lose_keys, "attention forward in bf16", "plain"},
    {"attention_backward_keys", 80, lose_keys, "attention backward in bf16", "plain"},
};

/* The run in whose check the GPU fails: the op reports the fault. */
static void run_into(const struct end *end) {
    struct work w;
    char text[4096];
    restart(end->compute_capability);
    ot_emu_change_arguments(end->kernel, end->cause);
    open_work(&w);
    struct ot_attention_backward op = attention(&w);
    listen();
    ot_device_ops(w.device)->attention(w.lane, &op.forward);
    ot_device_ops(w.device)->attention_backward(w.lane, &op);
    heard(text);
    check_fails(ot_lane_sync(w.lane), OT_E_DEVICE, "CUDA: ");
    close_work(&w);
    assert_non_null(strstr(text, "the GPU failed in the check of attention"));
    assert_non_null(strstr(text, end->words));
    assert_non_null(strstr(text, "the next start uses a slower kernel instead"));
}

/* The start after it: the kernel would fail again, but it is not called. */
static void run_after(const struct end *end) {
    struct work w;
    char text[4096];
    restart(end->compute_capability);
    ot_emu_change_arguments(end->kernel, end->cause);
    listen();
    open_work(&w);
    run_attention(&w);
    run_attention(&w);
    heard(text);
    close_work(&w);
    const char *said = strstr(text, "an earlier check of attention");
    assert_non_null(said);
    assert_non_null(strstr(said, end->words));
    assert_non_null(strstr(said, "a slower kernel replaces it; to check it again, delete "));
    assert_non_null(strstr(said, "/offload-train/guard-"));
    assert_null(strstr(said + 1, "an earlier check of")); /* once */
}

static void test_a_fault_in_a_check_is_remembered(void **state) {
    uint16_t slower[RESULTS];
    struct work w;
    for (size_t i = 0; i < sizeof ENDS / sizeof *ENDS; i++) {
        const struct end *end = &ENDS[i];
        assert_int_equal(guard_teardown(state), 0);
        guard_setup(state);
        run_into(end);
        run_after(end);
        run_after(end); /* and every later one */
        run_forced(end->compute_capability, end->slower, slower);
        restart(end->compute_capability);
        open_work(&w);
        run_attention(&w);
        if (strstr(end->words, "forward"))
            assert_memory_equal(w.host + OUT, slower, N * DIM * 2);
        else
            check_near(w.host + OUT + 2 * N * DIM, slower + 2 * N * DIM, 3 * N * DIM);
        close_work(&w);
    }
}

/* The same without a check: the wait ends too, as an error of the op. */
static void test_a_lost_arrival_ends_the_launch(void **state) {
    (void)state;
    static const char *const kernels[] = {"attention_hopper<", "attention_hopper_backward"};
    for (int i = 0; i < 2; i++) {
        struct work w;
        restart(90);
        setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
        ot_emu_change_arguments(kernels[i], lose_arrival);
        open_work(&w);
        struct ot_attention_backward op = attention(&w);
        ot_device_ops(w.device)->attention(w.lane, &op.forward);
        ot_device_ops(w.device)->attention_backward(w.lane, &op);
        check_fails(ot_lane_sync(w.lane), OT_E_DEVICE, "CUDA: a kernel failed");
        assert_non_null(strstr(ot_emu_report(), "the wait for an mbarrier never ends"));
        assert_non_null(strstr(ot_emu_report(), kernels[i]));
        close_work(&w);
    }
}

/* ---- products whose check ends the GPU ---- */

/* The command that loses the GPU. The first is the mark of the op, and the next ones fill the operands of the
 * check. */
enum { IN_CHECK = 4 };

static void check_fault_of_product(int status) {
    struct work w;
    char text[4096];
    ot_fake_cublaslt.matmul_status = status;
    open_work(&w);
    struct ot_gemm op = product(&w, true);
    ot_emu_lose_gpu(IN_CHECK, cudaErrorIllegalAddress);
    ot_device_ops(w.device)->gemm(w.lane, &op);
    check_fails(ot_lane_sync(w.lane), OT_E_DEVICE, "CUDA: an illegal memory access");
    close_work(&w);
    restart(80);
    listen();
    open_work(&w);
    op = product(&w, true);
    run_product(&w, &op);
    heard(text);
    assert_int_equal(ot_fake_cublaslt.matmuls, 0);
    assert_non_null(
        strstr(text, "an earlier check of the product A B^T + bias of bf16 into bf16 never ended"));
    op = product(&w, false);
    run_product(&w, &op); /* another path */
    assert_int_equal(ot_fake_cublaslt.matmuls, 2);
    close_work(&w);
}

static void test_a_fault_in_the_check_of_a_product(void **state) {
    enum { EXECUTION_FAILED = 13 }; /* of cublasStatus_t */
    check_fault_of_product(0);
    guard_teardown(state);
    guard_setup(state);
    check_fault_of_product(EXECUTION_FAILED); /* the library notices it too */
}

static void test_a_fault_in_the_check_of_groups(void **state) {
    (void)state;
    struct work w;
    char text[4096];
    open_work(&w);
    struct ot_gemm_groups op = groups(&w, OT_GROUPS_SUMS);
    ot_emu_lose_gpu(IN_CHECK, cudaErrorLaunchFailure);
    ot_device_ops(w.device)->gemm_groups(w.lane, &op);
    check_fails(ot_lane_sync(w.lane), OT_E_DEVICE, "CUDA: a kernel failed");
    close_work(&w);
    restart(80);
    ot_emu_break_kernels("groups_tiled");
    listen();
    open_work(&w);
    assert_int_equal(run_groups(&w, OT_GROUPS_SUMS), 1);
    heard(text);
    assert_non_null(strstr(text, "an earlier check of the products by groups A^T B of bf16"));
    close_work(&w);
}

/* The fault of a kernel before the check says nothing about the path. */
static void test_a_fault_before_the_check(void **state) {
    (void)state;
    struct work w;
    char text[4096];
    open_work(&w);
    ot_emu_lose_gpu(1, cudaErrorLaunchFailure);
    ot_lane_fill(w.lane, w.memory, 0, 16);
    struct ot_attention_backward op = attention(&w);
    ot_device_ops(w.device)->attention(w.lane, &op.forward);
    check_fails(ot_lane_sync(w.lane), OT_E_DEVICE, "CUDA: a kernel failed");
    close_work(&w);
    restart(80);
    listen();
    open_work(&w);
    run_attention(&w);
    close_work(&w);
    heard(text);
    assert_string_equal(text, "");
}

/* ---- other processes ---- */

static int begun[2], resume[2]; /* pipes: from the child in its check, and to it */

/* The child's kernel tells that the check has begun, and waits for a word. It ends if none comes. */
static void pause_in_check(void *first) {
    char byte = 0;
    (void)first;
    ot_emu_change_arguments(NULL, NULL);
    if (write(begun[1], &byte, 1) != 1 || read(resume[0], &byte, 1) != 1)
        _exit(1);
}

/* Starts a process that stops in the check of attention forward. */
static pid_t start_child(void) {
    char byte;
    assert_int_equal(pipe(begun) | pipe(resume), 0);
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct work w;
        close(resume[1]);
        ot_emu_change_arguments("attention_forward", pause_in_check);
        open_work(&w);
        run_attention(&w);
        close_work(&w);
        _exit(0);
    }
    close(begun[1]);
    close(resume[0]);
    assert_int_equal(read(begun[0], &byte, 1), 1);
    return child;
}

static int end_child(pid_t child) {
    int status = 0;
    close(resume[1]);
    close(begun[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void test_a_killed_check_is_not_repeated(void **state) {
    (void)state;
    struct work w;
    char text[4096];
    pid_t child = start_child();
    assert_int_equal(kill(child, SIGKILL), 0);
    int status = end_child(child);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    ot_emu_break_kernels("attention_forward"); /* not needed any more */
    uint16_t plain[RESULTS];
    listen();
    open_work(&w);
    run_attention(&w);
    heard(text);
    close_work(&w);
    assert_non_null(strstr(text,
                           "an earlier check of attention forward in bf16 with heads of 64 never ended: "
                           "the run was killed, or the GPU hung or failed"));
    run_forced(80, "plain", plain);
    restart(80);
    open_work(&w);
    run_attention(&w);
    assert_memory_equal(w.host + OUT, plain, N * DIM * 2);
    close_work(&w);
}

/* The path is pending while this process starts, but its checker lives. So this process waits for it, and
 * takes its verdict: no check of its own. */
static void test_a_living_check_is_no_dead_one(void **state) {
    (void)state;
    struct work w;
    char text[4096];
    pid_t child = start_child();
    listen();
    open_work(&w);
    assert_int_equal(write(resume[1], "", 1), 1);
    struct ot_attention_backward op = attention(&w);
    int64_t before = launches();
    ot_device_ops(w.device)->attention(w.lane, &op.forward);
    assert_int_equal(launches() - before, 1);
    check_ok(ot_lane_sync(w.lane));
    heard(text);
    close_work(&w);
    assert_string_equal(text, "");
    assert_int_equal(end_child(child), 0);
}

/* ---- the file of verdicts ---- */

enum { PATHS = 5 };

static void open_verdicts(struct ot_guard_verdicts *v, const char *folder) {
    check_ok(ot_guard_verdicts_open(v, PATHS, "a GPU", folder));
    v->patience = 0;
}

static void test_two_processes_share_a_file(void **state) {
    struct ot_guard_verdicts a, b, c;
    open_verdicts(&a, *state);
    open_verdicts(&b, *state);
    assert_int_equal(ot_guard_verdict_begin(&a, 0), OT_GUARD_UNKNOWN);
    assert_int_equal(ot_guard_verdict_begin(&b, 0), OT_GUARD_UNFINISHED); /* out of patience: a hangs */
    assert_int_equal(ot_guard_verdict_begin(&b, 1), OT_GUARD_UNKNOWN);    /* checks, and writes nothing */
    ot_guard_verdict_end(&b, 1, OT_GUARD_DISTRUSTED);
    open_verdicts(&c, *state); /* starts while a is in its check */
    assert_string_equal(c.of, "?????");
    ot_guard_verdict_end(&a, 0, OT_GUARD_TRUSTED);
    assert_int_equal(ot_guard_verdict_begin(&c, 0), OT_GUARD_TRUSTED);
    assert_int_equal(ot_guard_verdict_begin(&c, 2), OT_GUARD_UNKNOWN);
    ot_guard_verdict_end(&c, 2, OT_GUARD_UNKNOWN);
    assert_int_equal(ot_guard_verdict_begin(&b, 3), OT_GUARD_UNKNOWN);
    ot_guard_verdict_end(&b, 3, OT_GUARD_TRUSTED);
    assert_int_equal(ot_guard_verdict_begin(&a, 4), OT_GUARD_UNKNOWN);
    ot_guard_verdicts_close(&a); /* dies in its check */
    open_verdicts(&a, *state);
    assert_string_equal(a.of, "+-?+x"); /* c removed nothing, b has written what it knew */
    ot_guard_verdicts_close(&a);
    ot_guard_verdicts_close(&b);
    ot_guard_verdicts_close(&c);
}

/* ---- OFFLOAD_TRAIN_KERNELS ---- */

static void test_forced_kernels(void **state) {
    (void)state;
    uint16_t tiled[RESULTS], forced[RESULTS], plain[RESULTS];
    run_forced(80, "auto", tiled);
    run_forced(90, "tiled", forced);
    assert_memory_equal(tiled, forced, sizeof tiled);
    run_forced(80, "plain", plain);
    run_forced(90, "plain", forced);
    assert_memory_equal(plain, forced, sizeof plain);
    assert_memory_not_equal(plain, tiled, sizeof plain);
}

static void test_forced_kernels_are_named(void **state) {
    static const char *const names[][2] = {{"tiled", "tiled kernels, "}, {"plain", "plain kernels, "}};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct work w;
        restart(80);
        setenv("OFFLOAD_TRAIN_KERNELS", names[i][0], 1);
        open_work(&w);
        assert_non_null(strstr(ot_device_name(w.device), names[i][1]));
        assert_non_null(strstr(ot_device_arithmetic(w.device), names[i][1]));
        struct ot_gemm op = product(&w, true);
        run_product(&w, &op);
        assert_int_equal(ot_fake_cublaslt.matmuls, i == 0 ? 2 : 0);
        ot_emu_break_kernels("groups_tiled");
        run_groups(&w, OT_GROUPS_SUMS); /* by the plain kernel, after a check or without one */
        assert_int_equal(run_groups(&w, OT_GROUPS_SUMS), 1);
        close_work(&w);
    }
    struct ot_device_config config = {.kind = "cuda", .threads = 1};
    struct ot_device *device;
    setenv("OFFLOAD_TRAIN_KERNELS", "fast", 1);
    check_fails(ot_device_open(&config, &device), OT_E_INPUT,
                "OFFLOAD_TRAIN_KERNELS is 'fast', but must be auto, tiled or plain");
    setenv("OFFLOAD_TRAIN_KERNELS", "", 1);
    setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "no", 1);
    check_fails(ot_device_open(&config, &device), OT_E_INPUT,
                "OFFLOAD_TRAIN_KERNEL_CHECKS is 'no', but must be on or off");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_a_fault_in_a_check_is_remembered, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_lost_arrival_ends_the_launch, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_fault_in_the_check_of_a_product, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_fault_in_the_check_of_groups, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_fault_before_the_check, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_killed_check_is_not_repeated, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_a_living_check_is_no_dead_one, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_two_processes_share_a_file, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_forced_kernels, guard_setup, guard_teardown),
        cmocka_unit_test_setup_teardown(test_forced_kernels_are_named, guard_setup, guard_teardown),
    };
    return cmocka_run_group_tests_name("guard_ends", tests, NULL, NULL);
}

/* The algorithm of a product on the emulated device, and when it changes: the heuristic's order and
 * the rules of kernels/cuda/cuda_gemm.h, tuning, the file that tuning saves, and the error when the library
 * fails. */
#include <cuda_runtime_api.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda_gemm.h"
#include "kernels/cuda/cuda_gemm_cache.h"
#include "kernels/cuda/cuda_gemm_state.h"
#include "kernels/cuda/gemm_plain.h"
#include "tests/fakes/fake_cublaslt.h"
#include "tests/support/check.h"

enum { M = 24, N = 16, K = 40, MEMORY_BYTES = 1 << 20, DRIVER = 13000 };

struct gpu {
    struct ot_cuda_gemm *gemm;
    struct ot_cuda_stream on;
    char *memory; /* for operands and for tuning */
    struct ot_gemm op;
    float *result; /* pinned, M * N elements */
};

static void check_cuda(cudaError_t rc) {
    if (rc != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(rc));
}

static struct ot_cuda_gemm_config config_of(const char *folder) {
    return (struct ot_cuda_gemm_config){.proof_elems = 1, /* the products of these tests are small */
                                        .gpu = "Emulated",
                                        .sm_count = 8,
                                        .arch = 80,
                                        .driver_version = DRIVER,
                                        .cache_folder = folder};
}

/* fp32 operands in [-1, 1], the same in each test, and room for a result. */
static void open_gpu(struct gpu *g, const char *folder) {
    memset(g, 0, sizeof *g);
    const struct ot_cuda_gemm_config config = config_of(folder);
    check_ok(ot_cuda_gemm_open(&config, &g->gemm));
    g->on = (struct ot_cuda_stream){
        .scratch_bytes = OT_CUDA_GEMM_SCRATCH_BYTES, .sm_count = 8, .shared_bytes = 99 << 10, .arch = 80};
    check_cuda(cudaStreamCreateWithFlags(&g->on.stream, cudaStreamNonBlocking));
    check_cuda(cudaMalloc(&g->on.scratch, g->on.scratch_bytes));
    check_cuda(cudaMalloc((void **)&g->memory, MEMORY_BYTES));
    check_cuda(cudaHostAlloc((void **)&g->result, (M * K + K * N) * sizeof(float), cudaHostAllocPortable));
    for (int i = 0; i < M * K + K * N; i++)
        g->result[i] = (float)(i * 7919 % 1009) / 504.5f - 1;
    check_cuda(cudaMemcpyAsync(g->memory, g->result, (M * K + K * N) * sizeof(float), cudaMemcpyHostToDevice,
                               g->on.stream));
    check_cuda(cudaStreamSynchronize(g->on.stream));
    float *a = (float *)(void *)g->memory;
    g->op = (struct ot_gemm){.dtype = OT_F32,
                             .c_dtype = OT_F32,
                             .m = M,
                             .n = N,
                             .k = K,
                             .a = a,
                             .b = a + M * K,
                             .c = a + M * K + K * N,
                             .lda = K,
                             .ldb = N,
                             .ldc = N};
}

static void close_gpu(struct gpu *g) {
    check_cuda(cudaStreamSynchronize(g->on.stream));
    ot_cuda_gemm_close(g->gemm);
    check_cuda(cudaFreeHost(g->result));
    check_cuda(cudaFree(g->memory));
    check_cuda(cudaFree(g->on.scratch));
    check_cuda(cudaStreamDestroy(g->on.stream));
    assert_int_equal(ot_fake_cublaslt.live_objects, 0);
}

/* Returns the algorithm that computes the product now; leaves the result in g->result. */
static int run(struct gpu *g) {
    check_ok(ot_cuda_gemm(g->gemm, &g->op, &g->on));
    check_cuda(
        cudaMemcpyAsync(g->result, g->op.c, M * N * sizeof(float), cudaMemcpyDeviceToHost, g->on.stream));
    check_cuda(cudaStreamSynchronize(g->on.stream));
    return (int)ot_fake_cublaslt.last_algo;
}

/* Tunes in the memory after the operands. */
static int tune(struct gpu *g, struct ot_device_tuning *out) {
    size_t used = 64 << 10;
    return ot_cuda_gemm_tune(g->gemm, &g->on, g->memory + used, MEMORY_BYTES - used, 60, out);
}

/* The heuristic proposes these three, in this order. Each takes two milliseconds more, except `fast`. */
static void propose(int first, int second, int third, int fast) {
    const int order[OT_FAKE_ALGOS] = {first, second, third, -1, -1};
    memcpy(ot_fake_cublaslt.order, order, sizeof order);
    for (int i = 0; i < OT_FAKE_ALGOS; i++)
        ot_fake_cublaslt.delay_us[i] = i == fast ? 0 : 2000;
}

static int setup(void **state) {
    (void)state;
    unsetenv("OFFLOAD_TRAIN_CUBLASLT");
    ot_fake_cublaslt_reset();
    return 0;
}

/* ---- choosing ---- */

static void test_first_choice(void **state) {
    (void)state;
    struct gpu g;
    open_gpu(&g, NULL);
    for (int i = 0; i < 3; i++)
        assert_int_equal(run(&g), OT_FAKE_WIDE);
    assert_int_equal(ot_fake_cublaslt.heuristics, 1); /* after that the choice is kept */
    g.op.m--;
    assert_int_equal(run(&g), OT_FAKE_WIDE);
    g.op.c = (float *)g.op.c + 1; /* another alignment is another shape */
    assert_int_equal(run(&g), OT_FAKE_NARROW);
    g.op.c = (float *)g.op.c + 4; /* the same alignment is not */
    assert_int_equal(run(&g), OT_FAKE_NARROW);
    assert_int_equal(ot_fake_cublaslt.heuristics, 3);
    close_gpu(&g);
}

/* The library is told the alignment of a and of b, and keeps none of an earlier product. */
static void test_each_alignment_counts(void **state) {
    (void)state;
    struct gpu g;
    open_gpu(&g, NULL);
    g.op.c = (float *)g.op.c + 4; /* behind a shifted b */
    const struct ot_gemm aligned = g.op;
    for (int operand = 0; operand < 2; operand++) {
        g.op.m--; /* another shape */
        assert_int_equal(run(&g), OT_FAKE_WIDE);
        g.op.a = (const float *)g.op.a + (operand == 0);
        g.op.b = (const float *)g.op.b + (operand == 1);
        assert_int_equal(run(&g), OT_FAKE_NARROW);
        g.op.a = aligned.a, g.op.b = aligned.b;
    }
    close_gpu(&g);
}

/* The device rejects algorithms that round a result between the parts of a sum, even if the library proposes
 * them. */
static void test_forbidden_reductions(void **state) {
    (void)state;
    struct gpu g;
    propose(OT_FAKE_INPLACE, OT_FAKE_SPLIT, OT_FAKE_WIDE, OT_FAKE_INPLACE);
    for (int ignores = 0; ignores < 2; ignores++) {
        ot_fake_cublaslt.ignores_mask = ignores;
        open_gpu(&g, NULL);
        assert_int_equal(run(&g), OT_FAKE_SPLIT);
        close_gpu(&g);
    }
}

/* cuBLASLt 13.1 rounds a sum that it has split along k before it adds the bias. So the device rejects split
 * sums where there is a bias, even if the library proposes them first. */
static void test_no_split_with_a_bias(void **state) {
    (void)state;
    struct gpu g;
    propose(OT_FAKE_SPLIT, OT_FAKE_NARROW, OT_FAKE_WIDE, OT_FAKE_SPLIT);
    for (int ignores = 0; ignores < 2; ignores++) {
        ot_fake_cublaslt.ignores_mask = ignores;
        open_gpu(&g, NULL);
        assert_int_equal(run(&g), OT_FAKE_SPLIT);
        g.op.bias = g.op.b;
        assert_int_equal(run(&g), OT_FAKE_NARROW);
        g.op.bias = NULL;
        g.op.ldc++; /* another shape, after one with a bias */
        assert_int_equal(run(&g), OT_FAKE_SPLIT);
        close_gpu(&g);
    }
}

/* cuBLASLt 13.1 also rounds before it adds the bias if rows of two-byte elements are not 16-byte aligned. So
 * the library is not asked for such a product. */
static void test_no_bias_off_alignment(void **state) {
    (void)state;
    struct gpu g;
    open_gpu(&g, NULL);
    g.op.dtype = g.op.c_dtype = OT_BF16;
    g.op.bias = g.op.b;
    check_ok(ot_cuda_gemm(g.gemm, &g.op, &g.on));
    assert_int_equal(ot_fake_cublaslt.heuristics, 1);
    const struct ot_gemm aligned = g.op;
    for (int i = 0; i < 4; i++) {
        g.op = aligned;
        g.op.lda += i == 0 ? 1 : 0;
        g.op.ldb += i == 1 ? 4 : 0;
        g.op.ldc += i == 2 ? 2 : 0;
        g.op.a = (const char *)g.op.a + (i == 3 ? 8 : 0);
        check_ok(ot_cuda_gemm(g.gemm, &g.op, &g.on));
        assert_int_equal(ot_fake_cublaslt.heuristics, 1);
    }
    g.op.bias = NULL; /* without a bias any alignment will do */
    check_ok(ot_cuda_gemm(g.gemm, &g.op, &g.on));
    assert_int_equal(ot_fake_cublaslt.heuristics, 2);
    close_gpu(&g);
}

/* Success is 0 and no other number, whichever way a plan comes about. */
static void test_success_is_zero(void **state) {
    (void)state;
    struct gpu g;
    for (int way = 0; way < 3; way++) {
        struct ot_cublaslt_algo proposals[OT_GEMM_PROPOSALS];
        struct ot_gemm_plan *plan;
        int n = -1;
        ot_fake_cublaslt.finds_nothing = way == 1;
        ot_fake_cublaslt.heuristic_status = way == 2 ? OT_CUBLASLT_NOT_SUPPORTED : 0;
        open_gpu(&g, NULL);
        assert_int_equal(ot_gemm_plan_find(g.gemm, &g.op, &plan), 0);
        assert_int_equal(ot_gemm_plan_propose(g.gemm, plan, proposals, &n), 0);
        assert_true(plan->is_plain == (way > 0) && (n > 0) == (way == 0));
        assert_int_equal(ot_gemm_check(g.gemm, OT_CUBLASLT_SUCCESS, "", &plan->key), 0);
        assert_int_equal(ot_cuda_gemm(g.gemm, &g.op, &g.on), 0);
        close_gpu(&g);
    }
}

/* So many shapes that the table grows several times. Most are only planned. */
static void test_many_shapes(void **state) {
    (void)state;
    struct gpu g;
    open_gpu(&g, NULL);
    for (int round = 0; round < 2; round++)
        for (int64_t m = 1; m <= M; m++)
            for (int64_t n = 1; n <= N; n++) {
                g.op.m = m;
                g.op.n = n;
                check_ok(ot_cuda_gemm(g.gemm, &g.op, &g.on));
                check_cuda(cudaStreamSynchronize(g.on.stream));
            }
    assert_int_equal(ot_fake_cublaslt.heuristics, M * N);
    assert_int_equal(ot_fake_cublaslt.matmuls, 2 * M * N);
    for (int i = 0; i < 2 * M * K; i++) {
        struct ot_gemm_plan *plan;
        g.op.m = 1 + i % M, g.op.k = 1 + i / M % K;
        check_ok(ot_gemm_plan_find(g.gemm, &g.op, &plan));
        assert_true(plan->key.m == g.op.m && plan->key.k == g.op.k);
    }
    assert_int_equal(ot_fake_cublaslt.heuristics, M * N + M * (K - 1));
    close_gpu(&g);
}

/* ---- tuning ---- */

/* Tuning takes the faster algorithm if its bits are the same, and does not take it if they differ. */
static void test_tuning_keeps_bits(void **state) {
    (void)state;
    static const int fast[] = {OT_FAKE_TALL, OT_FAKE_SPLIT, OT_FAKE_NARROW};
    static const int taken[] = {OT_FAKE_TALL, OT_FAKE_NARROW, OT_FAKE_NARROW};
    for (int i = 0; i < 3; i++) {
        struct gpu g;
        struct ot_device_tuning tuning;
        float before[M * N];
        propose(OT_FAKE_NARROW, OT_FAKE_SPLIT, OT_FAKE_TALL, fast[i]);
        if (i == 1) /* the others then take equal time; the first stays unless noise makes it slower */
            ot_fake_cublaslt.delay_us[OT_FAKE_TALL] = 6000;
        open_gpu(&g, NULL);
        assert_int_equal(run(&g), OT_FAKE_NARROW);
        memcpy(before, g.result, sizeof before);
        check_ok(tune(&g, &tuning));
        assert_int_equal(tuning.shapes, 1);
        assert_int_equal(tuning.timed, 1);
        assert_int_equal(tuning.replaced, taken[i] != OT_FAKE_NARROW);
        assert_true(tuning.after <= tuning.before && tuning.after > 0);
        assert_false(tuning.is_kept);
        assert_int_equal(run(&g), taken[i]);
        assert_memory_equal(before, g.result, sizeof before);
        check_ok(tune(&g, &tuning)); /* no shape is left to tune */
        assert_int_equal(tuning.shapes, 0);
        close_gpu(&g);
    }
}

/* Every kind of product can be tuned. Tuning uses operands of the same layout and alignment. */
static void test_tuning_of_every_kind(void **state) {
    (void)state;
    struct gpu g;
    struct ot_device_tuning tuning;
    open_gpu(&g, NULL);
    enum { ROOM = 8 << 10 }; /* bytes of each operand; their content does not matter */
    for (int kind = 0; kind < 3 << 5; kind++) {
        bool trans_a = kind & 1, trans_b = kind & 2, bias = kind & 4, shifted = kind & 8, wide = kind & 16;
        enum ot_dtype dtype = (enum ot_dtype)(kind >> 5);
        g.op = (struct ot_gemm){.dtype = dtype,
                                .c_dtype = wide ? OT_F32 : dtype,
                                .trans_a = trans_a,
                                .trans_b = trans_b,
                                .m = M,
                                .n = N,
                                .k = K,
                                .a = g.memory,
                                .b = g.memory + ROOM + (shifted ? 4 : 0),
                                .c = g.memory + 2 * ROOM + (shifted ? 8 : 0),
                                .bias = bias ? g.memory + 3 * ROOM : NULL,
                                .lda = trans_a ? M + 8 : K,
                                .ldb = trans_b ? K + 3 : N,
                                .ldc = N + 1};
        check_ok(ot_cuda_gemm(g.gemm, &g.op, &g.on));
        g.op.addend = g.op.c; /* the same shape */
        check_ok(ot_cuda_gemm(g.gemm, &g.op, &g.on));
    }
    int shapes = ot_fake_cublaslt.heuristics;
    /* fp32 products are wide already. Of each two-byte type, the plain kernel takes the eight narrow products
     * with a bias: rows of N + 1 elements are off alignment. */
    assert_int_equal(shapes, 2 * (32 - 8) + 16);
    check_ok(tune(&g, &tuning));
    assert_int_equal(tuning.timed, shapes);
    assert_int_equal(tuning.shapes, shapes);
    close_gpu(&g);
}

static void test_tuning_in_what_there_is(void **state) {
    (void)state;
    struct gpu g;
    struct ot_device_tuning tuning;
    propose(OT_FAKE_NARROW, OT_FAKE_TALL, OT_FAKE_WIDE, OT_FAKE_TALL);
    open_gpu(&g, NULL);
    run(&g);
    /* Each of them a multiple of 256 bytes. */
    size_t needed = (64 + M * K + K * N + 2 * M * N) * sizeof(float);
    char *memory = g.memory + (64 << 10);
    check_ok(ot_cuda_gemm_tune(g.gemm, &g.on, memory, needed - 1, 60, &tuning));
    assert_true(tuning.shapes == 1 && tuning.timed == 0);
    check_ok(ot_cuda_gemm_tune(g.gemm, &g.on, memory, needed, 0, &tuning)); /* a time limit of 0 */
    assert_true(tuning.shapes == 1 && tuning.timed == 0);
    assert_int_equal(run(&g), OT_FAKE_NARROW);
    check_ok(ot_cuda_gemm_tune(g.gemm, &g.on, memory, needed, 60, &tuning));
    assert_true(tuning.shapes == 1 && tuning.timed == 1);
    close_gpu(&g);
}

static void test_tuning_with_faults(void **state) {
    (void)state;
    struct gpu g;
    struct ot_device_tuning tuning;
    propose(OT_FAKE_NARROW, OT_FAKE_WIDE, OT_FAKE_TALL, OT_FAKE_WIDE);
    ot_fake_cublaslt.unable_algo = OT_FAKE_WIDE; /* tuning skips it */
    ot_fake_cublaslt.delay_us[OT_FAKE_TALL] = 0;
    open_gpu(&g, NULL);
    run(&g);
    check_ok(tune(&g, &tuning));
    assert_int_equal(run(&g), OT_FAKE_TALL);
    ot_fake_cublaslt.unable_algo = -1;
    ot_fake_cublaslt.unsteady_algo = OT_FAKE_NARROW;
    g.op.m--;
    run(&g);
    check_ok(tune(&g, &tuning)); /* tuning warns; the first choice stays and may be tuned again */
    assert_int_equal(tuning.timed, 0);
    assert_int_equal(run(&g), OT_FAKE_NARROW);
    close_gpu(&g);
}

/* If a shape's algorithm gives other bits when it is repeated, the next run warns and tunes the shape
 * again. */
static void test_unsteady_choice_is_not_kept(void **state) {
    (void)state;
    char *folder = make_folder();
    struct gpu g;
    struct ot_device_tuning tuning;
    propose(OT_FAKE_NARROW, OT_FAKE_TALL, -1, OT_FAKE_TALL);
    for (int i = 0; i < 2; i++) {
        ot_fake_cublaslt.unsteady_algo = OT_FAKE_NARROW;
        open_gpu(&g, folder);
        run(&g);
        check_ok(tune(&g, &tuning));
        assert_true(tuning.shapes == 1 && tuning.timed == 0 && !tuning.is_kept);
        close_gpu(&g);
    }
    ot_fake_cublaslt.unsteady_algo = -1;
    remove_folder(folder);
}

/* ---- the file ---- */

/* Returns the algorithm that a new process begins with. */
static int first_of_new_run(const char *folder) {
    struct gpu g;
    open_gpu(&g, folder);
    int algo = run(&g);
    close_gpu(&g);
    return algo;
}

static void tune_in(const char *folder, int64_t m, bool is_kept) {
    struct gpu g;
    struct ot_device_tuning tuning;
    propose(OT_FAKE_NARROW, OT_FAKE_TALL, -1, OT_FAKE_TALL);
    open_gpu(&g, folder);
    g.op.m = m;
    run(&g);
    check_ok(tune(&g, &tuning));
    assert_int_equal(tuning.timed, 1);
    assert_int_equal(tuning.is_kept, is_kept);
    close_gpu(&g);
}

static void test_choices_are_kept(void **state) {
    (void)state;
    char *above = make_folder(), folder[4096];
    /* The folder is made when it is needed. */
    snprintf(folder, sizeof folder, "%s/cache/offload-train", above);
    tune_in(folder, M, true);
    ot_fake_cublaslt.heuristics = 0;
    assert_int_equal(first_of_new_run(folder), OT_FAKE_TALL);
    assert_int_equal(ot_fake_cublaslt.heuristics, 0);
    struct gpu g;
    struct ot_device_tuning tuning;
    open_gpu(&g, folder);
    run(&g);
    check_ok(tune(&g, &tuning)); /* no shape is left to tune */
    assert_int_equal(tuning.shapes, 0);
    close_gpu(&g);
    tune_in(folder, M - 1, true); /* another shape's choice is added to the file */
    assert_int_equal(first_of_new_run(folder), OT_FAKE_TALL);
    ot_fake_cublaslt.libraries[0].patch++; /* another library version has its own choices */
    assert_int_equal(first_of_new_run(folder), OT_FAKE_NARROW);
    remove_folder(above);
}

/* Writes this algorithm into the folder's file as the product's choice. */
static void plant(const char *folder, struct ot_cublaslt_algo algo) {
    struct gpu g;
    char *path;
    open_gpu(&g, folder);
    run(&g);
    const struct ot_gemm_choice choice = {g.gemm->plans[0].key, algo};
    check_ok(ot_gemm_cache_path(folder, g.gemm->identity, &path));
    check_ok(ot_gemm_cache_write(path, g.gemm->identity, &choice, 1));
    free(path);
    close_gpu(&g);
}

/* A valid file proposes an algorithm that cannot run here or is not allowed. The library is then asked
 * again. */
static void test_useless_choices(void **state) {
    (void)state;
    char *folder = make_folder();
    struct gpu g;
    propose(OT_FAKE_INPLACE, OT_FAKE_WIDE, -1, OT_FAKE_WIDE);
    plant(folder, (struct ot_cublaslt_algo){{99, 99, 99}});
    assert_int_equal(first_of_new_run(folder), OT_FAKE_WIDE);
    open_gpu(&g, NULL);
    run(&g);
    struct ot_cublaslt_algo inplace = g.gemm->plans[0].algo;
    inplace.data[0] = OT_FAKE_INPLACE;
    inplace.data[1] = OT_CUBLASLT_REDUCTION_INPLACE;
    inplace.data[2] = 1;
    close_gpu(&g);
    plant(folder, inplace);
    assert_int_equal(first_of_new_run(folder), OT_FAKE_WIDE);
    remove_folder(folder);
}

static void test_folder_that_cannot_be_written(void **state) {
    (void)state;
    char *above = make_folder(), folder[4096];
    write_file(above, "cache", "", 0);
    snprintf(folder, sizeof folder, "%s/cache", above);
    tune_in(folder, M, false);
    assert_int_equal(first_of_new_run(folder), OT_FAKE_NARROW);
    remove_folder(above);
}

/* ---- failures of a product ---- */

static void check_product_fails(struct gpu *g, const char *words) {
    check_fails(ot_cuda_gemm(g->gemm, &g->op, &g->on), OT_E_DEVICE, words);
}

static void test_faults(void **state) {
    (void)state;
    struct gpu g;
    open_gpu(&g, NULL);
    ot_fake_cublaslt.heuristic_status = 7;
    check_product_fails(&g, "cuBLASLt 13.1.0 cannot find an algorithm for the product");
    ot_fake_cublaslt.heuristic_status = 0;
    ot_fake_cublaslt.matmul_status = 13;
    check_product_fails(&g,
                        "cannot start a kernel for the product fp32 [24,16] = [24,40] [40,16]: the function "
                        "failed to launch");
    ot_fake_cublaslt.matmul_status = 0;
    assert_int_equal(run(&g), OT_FAKE_WIDE); /* the failure left nothing behind */
    g.op.dtype = g.op.c_dtype = OT_BF16;
    g.op.n = g.op.ldb = g.op.ldc = 1 << 20;
    g.op.m = g.op.k = 1;
    g.op.lda = 8;
    g.op.bias = g.memory + 2; /* a misaligned bias would have to be copied */
    check_product_fails(&g, "a bias of 1048576 elements does not fit the device's scratch");
    close_gpu(&g);
}

/* ---- the plain kernel ---- */

/* The fake library rounds fp32 products before it adds them, and the plain kernel does not: up to K roundings
 * of numbers below K. Both add in the order of k, so products of two-byte numbers, which are exact, have
 * equal bits. */
#define FP32_BOUND (K * K * 0x1p-24)

/* In three ways the library has nothing for a shape. The plain kernel then takes the shape, from the first
 * product on. */
static void test_without_an_algorithm(void **state) {
    (void)state;
    float want[M * N];
    struct gpu g;
    open_gpu(&g, NULL);
    run(&g);
    memcpy(want, g.result, sizeof want);
    close_gpu(&g);
    for (int way = 0; way < 3; way++) {
        ot_fake_cublaslt_reset();
        ot_fake_cublaslt.finds_nothing = way == 0;
        ot_fake_cublaslt.heuristic_status = way == 1 ? 15 : 0;
        ot_fake_cublaslt.matmul_status = way == 2 ? 15 : 0;
        struct ot_device_tuning tuning;
        open_gpu(&g, NULL);
        for (int i = 0; i < 2; i++) {
            run(&g);
            check_close("a product", g.result, want, M * N, FP32_BOUND, 0);
            memset(g.result, 0, sizeof want);
        }
        assert_int_equal(ot_fake_cublaslt.heuristics, 1);
        assert_int_equal(ot_fake_cublaslt.matmuls, way == 2); /* the call that the library refused */
        check_ok(tune(&g, &tuning));
        assert_int_equal(tuning.shapes, 0);
        close_gpu(&g);
    }
}

/* Every combination that the contract allows, on shapes that end inside a tile. */
static void test_plain_product(void **state) {
    (void)state;
    struct gpu g;
    enum { SIZE = 37 * 41 };
    open_gpu(&g, NULL);
    for (int bits = 0; bits < 64; bits++) {
        static const enum ot_dtype dtypes[] = {OT_F32, OT_BF16, OT_F16, OT_BF16};
        struct ot_gemm op = {
            .dtype = dtypes[bits % 4], .m = 33, .n = 19, .k = 35, .lda = 37, .ldb = 38, .ldc = 40};
        op.c_dtype = bits % 4 == 3 ? OT_F32 : op.dtype;
        op.trans_a = bits & 4;
        op.trans_b = bits & 8;
        float *memory = (float *)(void *)g.memory;
        op.a = memory;
        op.b = memory + SIZE;
        op.bias = bits & 32 ? memory + 2 * SIZE : NULL;
        float results[2][33 * 40];
        check_cuda(ot_cuda_gemm_fill(op.dtype, memory, 3 * SIZE, 7, &g.on));
        for (int plain = 0; plain < 2; plain++) {
            op.c = memory + (4 + plain) * SIZE;
            check_cuda(ot_cuda_gemm_fill(OT_F32, op.c, SIZE, 8, &g.on));
            op.addend = bits & 16 ? op.c : NULL;
            if (plain)
                check_cuda(ot_cuda_gemm_plain(&op, &g.on));
            else
                check_ok(ot_cuda_gemm(g.gemm, &op, &g.on));
            check_cuda(cudaMemcpyAsync(results[plain], op.c, sizeof results[plain], cudaMemcpyDeviceToHost,
                                       g.on.stream));
        }
        check_cuda(cudaStreamSynchronize(g.on.stream));
        if (op.dtype == OT_F32)
            check_close("a product", results[1], results[0], 33 * 40, FP32_BOUND, 0);
        else
            assert_memory_equal(results[0], results[1], sizeof results[0]);
    }
    close_gpu(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_first_choice, setup),
        cmocka_unit_test_setup(test_each_alignment_counts, setup),
        cmocka_unit_test_setup(test_forbidden_reductions, setup),
        cmocka_unit_test_setup(test_no_split_with_a_bias, setup),
        cmocka_unit_test_setup(test_no_bias_off_alignment, setup),
        cmocka_unit_test_setup(test_success_is_zero, setup),
        cmocka_unit_test_setup(test_many_shapes, setup),
        cmocka_unit_test_setup(test_tuning_keeps_bits, setup),
        cmocka_unit_test_setup(test_tuning_of_every_kind, setup),
        cmocka_unit_test_setup(test_tuning_in_what_there_is, setup),
        cmocka_unit_test_setup(test_tuning_with_faults, setup),
        cmocka_unit_test_setup(test_unsteady_choice_is_not_kept, setup),
        cmocka_unit_test_setup(test_choices_are_kept, setup),
        cmocka_unit_test_setup(test_useless_choices, setup),
        cmocka_unit_test_setup(test_folder_that_cannot_be_written, setup),
        cmocka_unit_test_setup(test_faults, setup),
        cmocka_unit_test_setup(test_without_an_algorithm, setup),
        cmocka_unit_test_setup(test_plain_product, setup),
    };
    return cmocka_run_group_tests_name("gemm on the emulated device", tests, NULL, NULL);
}

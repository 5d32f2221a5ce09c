/* If the partial sums over rows do not fit the scratch, they are made in rounds, and the result has the same
 * bits. The launchers run with the smallest scratch that they accept and with a scratch that holds
 * everything. On the emulated device alone, because a real device's scratch is never that small. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/launchers.h"
#include "src/base/random.h"
#include "tests/support/check.h"

enum { LARGE_SCRATCH = 16 << 20 };

static void *device_memory(size_t bytes) {
    void *memory;
    assert_int_equal(cudaMalloc(&memory, bytes), cudaSuccess);
    return memory;
}

static void copy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind) {
    assert_int_equal(cudaMemcpyAsync(to, from, bytes, kind, NULL), cudaSuccess);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
}

/* Numbers whose sums are never exact. */
static float *device_values(uint64_t seed, int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < n; i++)
        values[i] = (float)ot_random_unit(seed, 0, (uint64_t)i) - 0.5f;
    float *memory = device_memory((size_t)n * sizeof *values);
    copy(memory, values, (size_t)n * sizeof *values, cudaMemcpyHostToDevice);
    free(values);
    return memory;
}

static float *host_values(const float *device, int64_t n) {
    float *values = malloc((size_t)n * sizeof *values);
    assert_non_null(values);
    copy(values, device, (size_t)n * sizeof *values, cudaMemcpyDeviceToHost);
    return values;
}

static struct ot_cuda_stream stream_with(size_t scratch_bytes) {
    return (struct ot_cuda_stream){.scratch = device_memory(scratch_bytes),
                                   .scratch_bytes = scratch_bytes,
                                   .sm_count = 4,
                                   .shared_bytes = 99 << 10,
                                   .arch = 80};
}

typedef cudaError_t (*sum_op)(const struct ot_cuda_stream *on, float *sums);

/* Runs the op on `cols` columns with both sizes of the scratch. */
static void check_rounds(sum_op run, int64_t cols) {
    static const size_t sizes[] = {OT_CUDA_MIN_SCRATCH_BYTES, LARGE_SCRATCH};
    float *got[2];
    for (int i = 0; i < 2; i++) {
        struct ot_cuda_stream on = stream_with(sizes[i]);
        float *sums = device_values(1, cols);
        assert_int_equal(run(&on, sums), cudaSuccess);
        assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
        got[i] = host_values(sums, cols);
        cudaFree(sums);
        cudaFree(on.scratch);
    }
    assert_memory_equal(got[0], got[1], (size_t)cols * sizeof **got);
    free(got[0]);
    free(got[1]);
}

/* 256 KiB of partial sums for each chunk: four chunks in a round. */
enum { NORM_COLS = 65536, NORM_ROWS = 4 * 16 + 5 };

static cudaError_t run_norm(const struct ot_cuda_stream *on, float *sums) {
    int64_t n = (int64_t)NORM_ROWS * NORM_COLS;
    float *x = device_values(2, n), *dy = device_values(3, n), *weight = device_values(4, NORM_COLS);
    float *rstd = device_values(5, NORM_ROWS);
    struct ot_norm_backward op = {.dtype = OT_F32,
                                  .kind = OT_NORM_RMS,
                                  .rows = NORM_ROWS,
                                  .cols = NORM_COLS,
                                  .group = 1,
                                  .ldx = NORM_COLS,
                                  .ldy = NORM_COLS,
                                  .x = x,
                                  .dy = dy,
                                  .weight = weight,
                                  .rstd = rstd,
                                  .dx = dy,
                                  .dweight = sums};
    cudaError_t code = ot_cuda_norm_backward(&op, on);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(x);
    cudaFree(dy);
    cudaFree(weight);
    cudaFree(rstd);
    return code;
}

static void test_norm(void **state) {
    (void)state;
    check_rounds(run_norm, NORM_COLS);
}

/* 512 KiB of partial sums for each chunk: two chunks in a round. */
enum { BIAS_COLS = 131072, BIAS_ROWS = 2 * 64 + 3 };

static cudaError_t run_bias(const struct ot_cuda_stream *on, float *sums) {
    float *dy = device_values(2, BIAS_COLS + BIAS_ROWS);
    struct ot_bias_backward op = {OT_F32, BIAS_ROWS, BIAS_COLS,
                                  1,      dy,        sums}; /* rows overlap, because dy is only read */
    cudaError_t code = ot_cuda_bias_backward(&op, on);
    assert_int_equal(cudaDeviceSynchronize(), cudaSuccess);
    cudaFree(dy);
    return code;
}

static void test_bias(void **state) {
    (void)state;
    check_rounds(run_bias, BIAS_COLS);
}

/* A chunk that is larger than any scratch is refused. No write goes beyond the scratch. */
static void test_too_wide(void **state) {
    (void)state;
    struct ot_cuda_stream on = stream_with(OT_CUDA_MIN_SCRATCH_BYTES);
    struct ot_bias_backward op = {OT_F32, 1,          OT_CUDA_MIN_SCRATCH_BYTES / (int64_t)sizeof(float) + 1,
                                  0,      on.scratch, on.scratch};
    assert_int_equal(ot_cuda_bias_backward(&op, &on), cudaErrorInvalidValue);
    cudaFree(on.scratch);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_norm),
        cmocka_unit_test(test_bias),
        cmocka_unit_test(test_too_wide),
    };
    return cmocka_run_group_tests_name("cuda_rounds", tests, NULL, NULL);
}

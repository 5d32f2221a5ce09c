/* Attention over spans checks its fast kernels at first use: right ones are trusted, a wrong one gives way
 * to the plain kernel, and both verdicts are kept for the next run. On the emulated device alone, because
 * only its kernels can be broken on purpose. tests/cuda/test_cuda_guard.c has the other ops. */
#include "tests/support/check.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/ops.h"
#include "tests/emu/emu_faults.h"
#include "tests/fakes/fake_cublaslt.h"

enum { N = 40, HEADS = 2, DIM = 64, WIDTH = HEADS * DIM, ELEMS = N * WIDTH, BUCKETS = 4, REACH = 6 };
enum { Q, K, V, DOUT, OUT, DQ, DK, DV, BIAS, ARRAYS };

struct work {
    struct ot_device *device;
    struct ot_lane *lane;
    uint16_t *memory, *host; /* ARRAYS arrays of ELEMS elements */
    float *numbers;          /* softmax, scratch, dbias; behind them the tables */
};

enum { SOFTMAX = 0, SCRATCH = 2 * N * HEADS, DBIAS = SCRATCH + 1024, TABLES = DBIAS + 16, NUMBERS = 2048 };

static void open_work(struct work *w) {
    struct ot_device_config config = {.kind = "cuda", .threads = 1};
    check_ok(ot_device_open(&config, &w->device));
    check_ok(ot_lane_open(w->device, "compute", &w->lane));
    check_ok(ot_device_alloc(w->device, ARRAYS * ELEMS * 2, "memory", (void **)&w->memory));
    check_ok(ot_device_alloc(w->device, NUMBERS * 4, "numbers", (void **)&w->numbers));
    check_ok(ot_device_alloc_pinned(w->device, ARRAYS * ELEMS * 2, "host", (void **)&w->host));
    int32_t *tables = (int32_t *)(void *)w->host;
    for (int i = 0; i < N; i++)
        tables[i] = 0, tables[N + i] = N - i % 3;
    for (int i = 0; i <= 2 * REACH; i++)
        tables[2 * N + i] = i % BUCKETS;
    ot_lane_copy(w->lane, OT_COPY_H2D, w->numbers + TABLES, tables, (2 * N + 2 * REACH + 1) * 4);
    ot_lane_fill(w->lane, w->numbers + DBIAS, 0, 16 * 4);
    check_ok(ot_lane_sync(w->lane));
    for (int i = 0; i < ARRAYS * ELEMS; i++)
        w->host[i] = ot_bf16_from_f32((float)(i * 7919 % 1009) / 504.5f - 1);
    ot_lane_copy(w->lane, OT_COPY_H2D, w->memory, w->host, ARRAYS * ELEMS * 2);
    check_ok(ot_lane_sync(w->lane));
}

static void close_work(struct work *w) {
    ot_device_free(w->device, w->memory);
    ot_device_free(w->device, w->numbers);
    ot_device_free_pinned(w->device, w->host, ARRAYS * ELEMS * 2);
    ot_lane_close(w->lane);
    ot_device_close(w->device);
}

/* Runs forward and backward, and leaves all results in host memory: dbias in front, where q was. Returns the
 * number of launches. */
static int64_t run(const struct work *w, bool bias) {
    uint16_t *at[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        at[i] = w->memory + i * ELEMS;
    const int32_t *tables = (const int32_t *)(const void *)(w->numbers + TABLES);
    struct ot_attend_spans_backward op = {.forward = {.dtype = OT_BF16,
                                                      .n = N,
                                                      .n_keys = N,
                                                      .heads = HEADS,
                                                      .head_dim = DIM,
                                                      .ldq = WIDTH,
                                                      .ldk = WIDTH,
                                                      .ldv = WIDTH,
                                                      .ldo = WIDTH,
                                                      .scale = 0.125f,
                                                      .key_first = tables,
                                                      .key_end = tables + N,
                                                      .bias = bias ? at[BIAS] : NULL,
                                                      .buckets = bias ? BUCKETS : 0,
                                                      .reach = REACH,
                                                      .bucket_of = tables + 2 * N,
                                                      .q = at[Q],
                                                      .k = at[K],
                                                      .v = at[V],
                                                      .out = at[OUT],
                                                      .softmax = w->numbers + SOFTMAX},
                                          .dout = at[DOUT],
                                          .dq = at[DQ],
                                          .dk = at[DK],
                                          .dv = at[DV],
                                          .dbias = bias ? w->numbers + DBIAS : NULL,
                                          .scratch = w->numbers + SCRATCH};
    int64_t before = ot_emu_usage().launches;
    ot_device_ops(w->device)->attend_spans(w->lane, &op.forward);
    ot_device_ops(w->device)->attend_spans_backward(w->lane, &op);
    int64_t launches = ot_emu_usage().launches - before;
    ot_lane_copy(w->lane, OT_COPY_D2H, w->host, w->memory, ARRAYS * ELEMS * 2);
    ot_lane_copy(w->lane, OT_COPY_D2H, w->host, w->numbers + DBIAS, BUCKETS * HEADS * 4);
    check_ok(ot_lane_sync(w->lane));
    return launches;
}

static int setup(void **state) {
    char *folder = make_folder();
    ot_emu_reset();
    ot_fake_cublaslt_reset();
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("OFFLOAD_TRAIN_KERNEL_CHECKS");
    *state = folder;
    return 0;
}

static int teardown(void **state) {
    remove_folder(*state);
    struct ot_emu_usage usage = ot_emu_usage();
    return usage.streams + usage.events + usage.allocations + usage.registered;
}

/* Forward 1; backward: dots, queries, keys, and with a bias the sum of its blocks. */
static void test_right_kernels_are_trusted(void **state) {
    (void)state;
    static uint16_t trusted[2][ARRAYS * ELEMS];
    struct work w;
    for (int start = 0; start < 2; start++) { /* the second start reads the saved verdicts */
        open_work(&w);
        for (int bias = 0; bias < 2; bias++) { /* a verdict without a bias says nothing about one with */
            int64_t launches = run(&w, bias);
            assert_true(start == 0 ? launches > 4 + bias : launches == 4 + bias);
            assert_int_equal(run(&w, bias), 4 + bias);
        }
        close_work(&w);
    }
    for (int off = 0; off < 2; off++) { /* the same bits as without checks */
        if (off)
            setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
        open_work(&w);
        run(&w, true);
        memcpy(trusted[off], w.host, sizeof trusted[off]);
        close_work(&w);
    }
    assert_memory_equal(trusted[0], trusted[1], sizeof trusted[0]);
}

static void check_near(float got, float want, float bound, int i) {
    if (!(got - want <= bound && want - got <= bound))
        fail_msg("element %d is %g, wanted %g", i, (double)got, (double)want);
}

/* Whichever kernel does nothing, the results are those of the plain kernels, within rounding. Without the
 * guard they are not. */
static void test_wrong_kernels_give_way(void **state) {
    static const char *const kernels[] = {"attention_forward", "attention_delta",
                                          "attention_backward_queries", "attention_backward_keys"};
    static uint16_t want[ARRAYS * ELEMS];
    struct work w;
    open_work(&w);
    run(&w, true);
    memcpy(want, w.host, sizeof want);
    close_work(&w);
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        assert_int_equal(teardown(state), 0);
        setup(state);
        ot_emu_break_kernels(kernels[i]);
        for (int start = 0; start < 2; start++) { /* the second start reads the saved verdict */
            open_work(&w);
            run(&w, true);
            const float *dbias = (const float *)(const void *)w.host, *right = (const float *)(void *)want;
            for (int j = 0; j < BUCKETS * HEADS; j++)
                check_near(dbias[j], right[j], 0.05f, j);
            for (int j = OUT * ELEMS; j < BIAS * ELEMS; j++)
                check_near(ot_bf16_to_f32(w.host[j]), ot_bf16_to_f32(want[j]), 0.05f, j);
            close_work(&w);
        }
        setenv("OFFLOAD_TRAIN_KERNEL_CHECKS", "off", 1);
        open_work(&w);
        run(&w, true);
        assert_memory_not_equal(w.host + OUT * ELEMS, want + OUT * ELEMS, (BIAS - OUT) * ELEMS * 2);
        close_work(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_right_kernels_are_trusted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_wrong_kernels_give_way, setup, teardown),
    };
    return cmocka_run_group_tests_name("guard of spans", tests, NULL, NULL);
}

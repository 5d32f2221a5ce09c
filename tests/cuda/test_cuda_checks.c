/* Every fast path is trusted on this device: the check of its first use (kernels/cuda/cuda_guard.h) finds no
 * error. On a new GPU this is the first test to run. */
#include "tests/support/check.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/base/cache_file.h"
#include "tests/cuda/cuda_fixture.h"

enum { N = 16, MOST_DIM = 256, ELEMS = N * MOST_DIM, ARRAYS = 10 };

struct work {
    struct ot_device *device;
    struct ot_lane *lane;
    char *memory; /* ARRAYS arrays of ELEMS elements of 4 bytes, then row starts; all zeros */
};

static char *part(const struct work *w, int number) {
    return w->memory + (size_t)number * ELEMS * 4;
}

static void open_work(struct work *w) {
    struct ot_device_config config = {.kind = "cuda", .threads = 1};
    size_t bytes = (size_t)(ARRAYS + 1) * ELEMS * 4;
    check_ok(ot_device_open(&config, &w->device));
    check_ok(ot_lane_open(w->device, "compute", &w->lane));
    check_ok(ot_device_alloc(w->device, bytes, "memory", (void **)&w->memory));
    ot_lane_fill(w->lane, w->memory, 0, bytes);
}

static void close_work(struct work *w) {
    ot_device_free(w->device, w->memory);
    ot_lane_close(w->lane);
    ot_device_close(w->device);
}

/* The features that select other code or other tiles. */
enum feature { NO_FEATURE, SLOPES, WINDOW, PAST, FEATURES };

static void run_attention(const struct work *w, enum ot_dtype dtype, int dim, enum feature feature) {
    struct ot_attention_backward op = {
        .forward = {.dtype = dtype,
                    .n = feature == PAST ? N / 2 : N,
                    .n_keys = N,
                    .window = feature == WINDOW ? N / 2 : 0,
                    .heads = 1,
                    .kv_heads = 1,
                    .head_dim = dim,
                    .ldq = dim,
                    .ldk = dim,
                    .ldv = dim,
                    .ldo = dim,
                    .scale = 0.1f,
                    .row_start = (int32_t *)(void *)part(w, ARRAYS),
                    .slopes = feature == SLOPES ? (float *)(void *)part(w, 7) : NULL,
                    .q = part(w, 0),
                    .k = part(w, 1),
                    .v = part(w, 2),
                    .out = part(w, 3),
                    .lse = (float *)(void *)(part(w, ARRAYS) + 1024)},
        .dout = part(w, 4),
        .dq = part(w, 5),
        .dk = part(w, 6),
        .dv = part(w, 7),
        .lddk = dim,
        .lddv = dim,
        .dk_sums = feature == PAST ? (float *)(void *)part(w, 8) : NULL,
        .dv_sums = feature == PAST ? (float *)(void *)part(w, 9) : NULL,
        .scratch = (float *)(void *)(part(w, ARRAYS) + 2048)};
    ot_device_ops(w->device)->attention(w->lane, &op.forward);
    ot_device_ops(w->device)->attention_backward(w->lane, &op);
}

/* With a bias and without, forward and backward. The spans are empty: zeros, as all of the memory. */
static void run_spans(const struct work *w, enum ot_dtype dtype, int dim) {
    const int32_t *zeros = (const int32_t *)(const void *)part(w, ARRAYS);
    for (int bias = 0; bias < 2; bias++) {
        struct ot_attend_spans_backward op = {
            .forward = {.dtype = dtype,
                        .n = N,
                        .n_keys = N,
                        .heads = 1,
                        .head_dim = dim,
                        .ldq = dim,
                        .ldk = dim,
                        .ldv = dim,
                        .ldo = dim,
                        .scale = 0.1f,
                        .key_first = zeros,
                        .key_end = zeros,
                        .bias = bias ? part(w, 0) : NULL,
                        .buckets = bias,
                        .bucket_of = zeros,
                        .q = part(w, 0),
                        .k = part(w, 1),
                        .v = part(w, 2),
                        .out = part(w, 3),
                        .softmax = (float *)(void *)(part(w, ARRAYS) + 1024)},
            .dout = part(w, 4),
            .dq = part(w, 5),
            .dk = part(w, 6),
            .dv = part(w, 7),
            .scratch = (float *)(void *)(part(w, ARRAYS) + 2048)};
        ot_device_ops(w->device)->attend_spans(w->lane, &op.forward);
        ot_device_ops(w->device)->attend_spans_backward(w->lane, &op);
    }
}

static void run_products(const struct work *w, enum ot_dtype dtype) {
    for (int bits = 0; bits < 32; bits++) {
        struct ot_gemm op = {.dtype = dtype,
                             .c_dtype = bits & 16 ? OT_F32 : dtype,
                             .trans_a = bits & 1,
                             .trans_b = bits & 2,
                             .m = N,
                             .n = N,
                             .k = N,
                             .a = part(w, 0),
                             .b = part(w, 1),
                             .bias = bits & 4 ? part(w, 2) : NULL,
                             .addend = bits & 8 ? part(w, 3) : NULL,
                             .c = part(w, 3),
                             .lda = N,
                             .ldb = N,
                             .ldc = N};
        ot_device_ops(w->device)->gemm(w->lane, &op);
    }
}

/* Reads the verdicts, which are the second line of the only file of that name. */
static void read_verdicts(const char *folder, char *verdicts, size_t bytes) {
    char path[600];
    snprintf(path, sizeof path, "%s/offload-train", folder);
    DIR *dir = opendir(path);
    assert_non_null(dir);
    verdicts[0] = '\0';
    for (struct dirent *entry; (entry = readdir(dir));) {
        char *text;
        size_t n;
        if (strncmp(entry->d_name, "guard-", 6) != 0 || strstr(entry->d_name, ".lock"))
            continue;
        snprintf(path, sizeof path, "%s/offload-train/%s", folder, entry->d_name);
        check_ok(ot_cache_read(path, 8192, &text, &n));
        assert_non_null(text);
        snprintf(verdicts, bytes, "%s", strchr(text, '\n') + 1);
        free(text);
    }
    closedir(dir);
}

static int count(const char *text, char which) {
    int n = 0;
    for (; *text; text++)
        n += *text == which;
    return n;
}

static void test_every_path_is_trusted(void **state) {
    (void)state;
    static const int dims[] = {64, 80, 96, 128, 256};
    static const enum ot_dtype dtypes[] = {OT_F32, OT_BF16, OT_F16};
    char *folder = make_folder(), verdicts[4096];
    struct work w;
    setenv("XDG_CACHE_HOME", folder, 1);
    unsetenv("OFFLOAD_TRAIN_KERNEL_CHECKS");
    open_work(&w);
    int paths = 0;
    for (int t = 0; t < 3; t++) {
        if (!ot_device_has_dtype(w.device, dtypes[t]))
            continue;
        for (size_t d = 0; d < sizeof dims / sizeof *dims && dtypes[t] != OT_F32; d++)
            for (int feature = 0; feature < FEATURES; feature++) {
                run_attention(&w, dtypes[t], dims[d], (enum feature)feature);
                paths += 2;
            }
        for (int dim = 64; dim <= 128 && dtypes[t] != OT_F32; dim += 64, paths += 4)
            run_spans(&w, dtypes[t], dim);
        run_products(&w, dtypes[t]);
        paths += dtypes[t] == OT_F32 ? 16 : 32; /* two bytes: into the same dtype, and into fp32 */
    }
    check_ok(ot_lane_sync(w.lane));
    close_work(&w);
    read_verdicts(folder, verdicts, sizeof verdicts);
    if (count(verdicts, '-') > 0)
        fail_msg("some fast paths are not trusted; the verdicts are %s", verdicts);
    assert_int_equal(count(verdicts, '+'), paths);
    remove_folder(folder);
}

int main(void) {
    cuda_skip_without_device();
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_every_path_is_trusted)};
    return cmocka_run_group_tests_name("checks", tests, NULL, NULL);
}

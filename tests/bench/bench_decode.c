/* Frozen weights in their storage types (kernels/weight_format.h): decoding them on the cpu device, beside a
 * copy of the decoded weights by the same threads, which is the memory's roof; and encoding them from bf16.
 *
 *     bench_decode [MILLION_WEIGHTS [THREADS]]     default: 100 (200 MB of bf16), all CPUs
 *
 * GB/s are the bytes that must move, read and written: for NF4 to bf16 0.5625 + 2 a weight, for the copy 2 +
 * 2. Stores read the lines that they write, which neither figure counts. Each figure is the best of several
 * repeats. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/device.h"
#include "kernels/ops.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "src/base/thread.h"

enum { REPEATS = 7, COLS = 4096 };

struct bench {
    struct ot_device *device;
    struct ot_lane *lane;
    struct ot_pool *pool; /* encodes */
    int64_t rows;
    void *values, *encoded, *out; /* values: bf16 */
    float *scales;
};

static void must(int rc) {
    if (rc >= 0)
        return;
    fprintf(stderr, "bench_decode: %s\n", ot_error_text());
    exit(1);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void *memory_of(struct bench *b, int64_t bytes) {
    void *memory;
    must(ot_device_alloc(b->device, (size_t)bytes, "bench", &memory));
    return memory;
}

static double run_op(struct bench *b, const struct ot_decode *op) {
    double best = 1e30;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double start = now();
        ot_device_ops(b->device)->decode(b->lane, op);
        must(ot_lane_sync(b->lane));
        best = now() - start < best ? now() - start : best;
    }
    return best;
}

static double encode(struct bench *b, const struct ot_weight *w) {
    double best = 1e30;
    struct ot_weight_range part = {OT_BF16, 0, b->rows * COLS, b->values};
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        float *scales = w->format == OT_WEIGHT_NF4_DOUBLE ? b->scales : NULL;
        double start = now();
        ot_weight_begin(w, b->encoded);
        must(ot_weight_encode(b->pool, w, &part, b->encoded, scales));
        ot_weight_end(b->pool, w, scales, b->encoded);
        best = now() - start < best ? now() - start : best;
    }
    return best;
}

/* "decode nf4 bf16 ...": the name of the line is its first words. Returns GB/s. */
static double report(const char *what, enum ot_weight_format format, enum ot_dtype dtype, double weights,
                     double read, double written, double seconds, double roof) {
    double rate = weights * (read + written) * 1e-9 / seconds;
    printf("%-6s %-10s %s %8.2f ms %7.0f Mweights/s   %5.2f B read, %4.2f written: %6.2f + %6.2f = %6.2f "
           "GB/s",
           what, ot_weight_format_name(format), ot_dtype_name(dtype), seconds * 1e3, weights * 1e-6 / seconds,
           read, written, weights * read * 1e-9 / seconds, weights * written * 1e-9 / seconds, rate);
    if (roof > 0)
        printf("   %.2f of the copy", rate / roof);
    printf("\n");
    return rate;
}

static void bench_dtype(struct bench *b, enum ot_dtype dtype) {
    double weights = (double)(b->rows * COLS), size = (double)ot_dtype_bytes(dtype), roof = 0;
    for (int i = OT_WEIGHT_INT8 - 1; i < OT_WEIGHT_FORMATS; i++) {
        bool copy = i < OT_WEIGHT_INT8;
        struct ot_weight w = {copy ? (enum ot_weight_format)dtype : (enum ot_weight_format)i, b->rows, COLS};
        double encoding = encode(b, &w), read = (double)ot_weight_layout(&w).bytes / weights;
        struct ot_decode op = {w, dtype, 0, b->rows * COLS, b->encoded, b->out};
        double rate =
            report(copy ? "copy" : "decode", w.format, dtype, weights, read, size, run_op(b, &op), roof);
        if (copy)
            roof = rate;
        else if (dtype == OT_BF16)
            report("encode", w.format, OT_BF16, weights, 2, read, encoding, 0);
    }
}

int main(int argc, char **argv) {
    double millions = argc > 1 ? atof(argv[1]) : 100;
    int threads = argc > 2 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (!(millions >= 1 && millions <= 1e6) || threads < 1) {
        fprintf(stderr, "usage: bench_decode [MILLION_WEIGHTS [THREADS]]\n");
        return 2;
    }
    struct bench b = {.rows = (int64_t)(millions * 1e6 / COLS)};
    struct ot_device_config config = {.kind = "cpu", .threads = threads};
    struct ot_weight widest = {OT_WEIGHT_F32, b.rows, COLS};
    must(ot_device_open(&config, &b.device));
    must(ot_lane_open(b.device, "compute", &b.lane));
    must(ot_pool_open(threads, "encode", &b.pool));
    b.values = memory_of(&b, b.rows * COLS * 2);
    b.encoded = memory_of(&b, ot_weight_layout(&widest).bytes);
    b.out = memory_of(&b, b.rows * COLS * 4);
    b.scales = memory_of(&b, b.rows * COLS / OT_WEIGHT_BLOCK * 4);
    for (int64_t i = 0; i < b.rows * COLS; i++)
        ((uint16_t *)b.values)[i] =
            ot_bf16_from_f32((float)(ot_random_unit(1, 1, (uint64_t)(i % 65521)) - 0.5));
    printf("%s, %d threads, %.0f million weights\n", ot_device_name(b.device), threads, millions);
    bench_dtype(&b, OT_BF16);
    bench_dtype(&b, OT_F32);
    ot_pool_close(b.pool);
    ot_device_free(b.device, b.scales);
    ot_device_free(b.device, b.out);
    ot_device_free(b.device, b.encoded);
    ot_device_free(b.device, b.values);
    ot_lane_close(b.lane);
    ot_device_close(b.device);
    return 0;
}

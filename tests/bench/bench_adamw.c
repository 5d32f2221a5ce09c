/* The CPU's AdamW against the memory's speed: bytes and parameters per second of each kernel, format of the
 * state and thread count, beside a STREAM triad (McCalpin) on the same threads. bf16 with split master: 14
 * bytes read and 12 bytes written per parameter with moments in fp32, 18 in all with 16 bits, 14.25 with 8
 * bits; 4 fewer without masters ("/none"). The rates are those of the whole optimizer, because the kernel
 * reads bf16 gradients and writes bf16 weights itself; peer_adamw.py measures the same of DeepSpeed.
 *
 *     bench_adamw [MILLION_PARAMS [MAX_THREADS]]     default: 80 (1.1 GB, larger than any cache), all CPUs
 *
 * The triad is counted at 24 bytes an element. It runs once with ordinary stores, which read each cache line
 * before they write it (so 32 bytes really move), and once with streaming stores, which do not. The faster of
 * the two is the floor. AdamW reads every line that it writes anyway, so its 26 bytes are what moves with
 * ordinary stores. */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include "kernels/adamw.h"
#include "src/base/error.h"
#include "src/base/random.h"
#include "src/base/thread.h"

enum { CHUNK = 1 << 16, REPEATS = 7, BYTES_A_TRIAD = 24 };

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void *map(size_t bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        fprintf(stderr, "bench_adamw: no %zu bytes of memory; give a smaller MILLION_PARAMS\n", bytes);
        exit(1);
    }
    madvise(memory, bytes, MADV_HUGEPAGE);
    return memory;
}

/* ---- the triad: a = b + 3 c ---- */

struct triad {
    double *a, *b, *c;
    bool streaming;
};

static void first_touch_triad(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct triad *triad = context;
    for (int64_t i = begin; i < end; i++)
        triad->a[i] = 0, triad->b[i] = (double)i, triad->c[i] = (double)(i % 7);
}

static void run_triad(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct triad *triad = context;
    double *restrict a = triad->a;
    const double *restrict b = triad->b, *restrict c = triad->c;
#ifdef __x86_64__
    if (triad->streaming) {
        const __m128d three = _mm_set1_pd(3);
        for (int64_t i = begin; i < end; i += 2)
            _mm_stream_pd(a + i, _mm_add_pd(_mm_load_pd(b + i), _mm_mul_pd(three, _mm_load_pd(c + i))));
        _mm_sfence();
        return;
    }
#endif
    for (int64_t i = begin; i < end; i++)
        a[i] = b[i] + 3 * c[i];
}

/* The best rate of several runs, in bytes per second. */
static double measure(struct ot_pool *pool, int64_t n, ot_pool_fn fn, void *context, double bytes) {
    double best = 1e30;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        double start = now();
        ot_pool_run(pool, n, CHUNK, fn, context);
        double seconds = now() - start;
        best = seconds < best ? seconds : best;
    }
    return bytes / best;
}

static double measure_triad(struct ot_pool *pool, int64_t n) {
    struct triad triad = {map((size_t)n * 8), map((size_t)n * 8), map((size_t)n * 8), false};
    double best = 0;
    ot_pool_run(pool, n, CHUNK, first_touch_triad, &triad);
    for (int streaming = 0; streaming < 2; streaming++) {
        triad.streaming = streaming;
        double rate = measure(pool, n, run_triad, &triad, (double)n * BYTES_A_TRIAD);
        best = rate > best ? rate : best;
    }
    munmap(triad.a, (size_t)n * 8);
    munmap(triad.b, (size_t)n * 8);
    munmap(triad.c, (size_t)n * 8);
    return best;
}

/* ---- AdamW ---- */

struct update {
    struct ot_adamw args;
    ot_adamw_fn kernel;
};

static void first_touch_params(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct ot_adamw *args = context;
    for (int64_t i = begin; i < end; i++) {
        uint32_t random[4];
        ot_random_block(1, 1, (uint64_t)i, random);
        float x = (float)(int32_t)random[0] * 0x1p-36f, g = (float)(int32_t)random[1] * 0x1p-38f;
        ot_split_f32(x, (uint16_t *)args->weight + i, args->low + i);
        ((uint16_t *)(uintptr_t)args->grad)[i] = ot_bf16_from_f32(g);
        ((float *)args->m)[i] = (float)(int32_t)random[2] * 0x1p-40f;
        ((float *)args->v)[i] = (float)random[3] * 0x1p-48f;
    }
}

static void run_update(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct update *update = context;
    struct ot_adamw part = ot_adamw_slice(&update->args, begin, end - begin);
    update->kernel(&part);
}

/* Encodes the moments of `full` for the format. The arrays of compact moments are reused. */
static struct ot_adamw with_format(const struct ot_adamw *full, enum ot_state_format format) {
    static struct ot_state_arrays compact;
    const struct ot_state_arrays from = {OT_STATE_F32, full->m, full->v, NULL};
    struct ot_adamw args = *full;
    if (format == OT_STATE_F32)
        return args;
    if (!compact.m)
        compact = (struct ot_state_arrays){format, map((size_t)full->n * 2), map((size_t)full->n * 2),
                                           map((size_t)full->n / 8)};
    compact.format = args.state = format;
    ot_state_convert(ot_state_view_of(&from), &compact, 0, full->n, 1, 1);
    args.m = compact.m;
    args.v = compact.v;
    args.scales = compact.scales;
    return args;
}

static void measure_format(struct ot_pool *pool, int threads, const struct ot_adamw *args, double triad) {
    static const char *const kernels[] = {"avx512", "avx2", "scalar"};
    const char *masters = args->masters == OT_MASTERS_NONE ? "/none" : "";
    char state[16];
    snprintf(state, sizeof state, "%s%s", ot_state_format_name(args->state), masters);
    double bytes = ot_adamw_bytes(args->dtype, args->state, args->masters);
    for (size_t k = 0; k < sizeof kernels / sizeof *kernels; k++) {
        struct update update = {*args, ot_adamw_kernel(kernels[k])};
        bool slow = update.kernel == ot_adamw_kernel("scalar") && strcmp(state, "fp32") != 0;
        if (!update.kernel || slow)
            continue;
        double rate = measure(pool, args->n, run_update, &update, (double)args->n * bytes);
        printf("%-8s %-10s %8d %10.2f %10.1f %8.0f %%\n", kernels[k], state, threads, rate * 1e-9,
               rate / bytes * 1e-6, rate / triad * 100);
        fflush(stdout);
    }
}

static void measure_thread_count(int threads, const struct ot_adamw *args) {
    struct ot_pool *pool;
    if (ot_pool_open(threads, "bench", &pool) < 0) {
        fprintf(stderr, "bench_adamw: %s\n", ot_error_text());
        exit(1);
    }
    double triad = measure_triad(pool, args->n / 2); /* the triad moves as many bytes as AdamW */
    printf("%-8s %-10s %8d %10.2f %10s %10s\n", "triad", "-", threads, triad * 1e-9, "-", "100 %");
    for (int format = 0; format < OT_STATE_FORMATS; format++) {
        struct ot_adamw formatted = with_format(args, (enum ot_state_format)format);
        measure_format(pool, threads, &formatted, triad);
        formatted.masters = OT_MASTERS_NONE; /* low stays as it is */
        measure_format(pool, threads, &formatted, triad);
    }
    ot_pool_close(pool);
}

int main(int argc, char **argv) {
    int64_t n = (argc > 1 ? atoll(argv[1]) : 80) * 1000000 / CHUNK * CHUNK;
    int max_threads = argc > 2 ? atoi(argv[2]) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    if (n < CHUNK || max_threads < 1) {
        fprintf(stderr, "usage: bench_adamw [MILLION_PARAMS [MAX_THREADS]]\n");
        return 2;
    }
    struct ot_adamw_step step = {.lr = 1e-4f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.95f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .bias1 = 0.9f,
                                 .bias2_sqrt = 0.9f,
                                 .grad_scale = 1};
    struct ot_adamw args = {.dtype = OT_BF16, .n = n, .decay = true, .step = &step};
    args.weight = map((size_t)n * 2);
    args.low = map((size_t)n * 2);
    args.m = map((size_t)n * 4);
    args.v = map((size_t)n * 4);
    args.grad = map((size_t)n * 2);
    struct ot_pool *pool;
    if (ot_pool_open(max_threads, "touch", &pool) < 0) {
        fprintf(stderr, "bench_adamw: %s\n", ot_error_text());
        return 1;
    }
    ot_pool_run(pool, n, CHUNK, first_touch_params, &args);
    ot_pool_close(pool);
    printf("%lld parameters, %.2f GB\n", (long long)n, (double)n * 14e-9);
    printf("%-8s %-10s %8s %10s %10s %10s\n", "kernel", "state", "threads", "GB/s", "Mparam/s", "of triad");
    for (int threads = 1; threads < max_threads; threads *= 2)
        measure_thread_count(threads, &args);
    measure_thread_count(max_threads, &args);
    return 0;
}

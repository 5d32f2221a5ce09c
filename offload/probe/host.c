/* The probe of the host: memory, the optimizer's kernels, and checksums. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#ifdef __x86_64__
#include <emmintrin.h>
#endif

#include "kernels/adamw.h"
#include "offload/probe/probe_state.h"
#include "offload/topology/topology.h"
#include "src/base/clock.h"
#include "src/base/error.h"
#include "src/base/hash.h"
#include "src/base/random.h"
#include "src/base/thread.h"

enum {
    CHUNK = 1 << 14, /* elements of a chunk, as in the engine's optimizer */
    PATTERN_BYTES = 1 << 20,
    /* Gap between arrays. Without it all arrays would begin at the same address modulo a large power of two,
     * and compete for the same cache sets. The engine's buffers do not. */
    SKEW_BYTES = 4096 + 256,
    MAX_COUNTS = 32,
    BYTES_A_TRIAD = 24
};

struct host {
    const struct ot_probe_host_config *config;
    char *memory, *pattern;
    size_t used_bytes; /* bytes of `memory` that the present arrays take */
    int counts[MAX_COUNTS], n_counts;
    double triads[MAX_COUNTS]; /* bytes a second, for each count; 0: not measured */
    uint32_t sum;              /* result of the checksums: keeps the compiler from removing them */
    struct ot_pool *pool;
    struct ot_topology_binding binding; /* places the pool's threads and the memory */
};

/* ---- memory ---- */

static int open_memory(struct host *h) {
    size_t bytes = h->config->bytes;
    if (bytes < OT_PROBE_HOST_LEAST_BYTES)
        return ot_fail(OT_E_USAGE, "the probe of the host's memory needs at least %d bytes",
                       OT_PROBE_HOST_LEAST_BYTES);
    h->pattern = malloc(PATTERN_BYTES);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED || !h->pattern)
        return ot_fail(OT_E_BUDGET, "no memory for a probe of %zu bytes", bytes);
    h->memory = memory;
    madvise(memory, bytes, MADV_HUGEPAGE); /* a hint, as for the engine's arena; the kernel decides */
    ot_topology_place_memory(&h->binding, memory, bytes);
    return 0;
}

static void close_host(struct host *h) {
    ot_pool_close(h->pool);
    if (h->memory)
        munmap(h->memory, h->config->bytes);
    free(h->pattern);
}

/* Elements that fit the memory, in whole chunks and in at most six arrays. bytes_each: bytes of an element
 * in all arrays together. */
static int64_t elements_of(const struct host *h, size_t bytes_each) {
    return (int64_t)((h->config->bytes - (size_t)6 * SKEW_BYTES) / bytes_each) / CHUNK * CHUNK;
}

static void copy_pattern(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    const struct host *h = context;
    (void)chunk, (void)worker;
    memcpy(h->memory + h->used_bytes + begin, h->pattern, (size_t)(end - begin));
}

/* Adds an array and fills it with copies of the pattern. The pool's threads write it, so that each page is on
 * the node of a thread that will use it. */
static void *add_array(struct host *h, int64_t n, size_t elem_bytes) {
    void *array = h->memory + h->used_bytes;
    size_t bytes = (size_t)n * elem_bytes;
    ot_pool_run(h->pool, (int64_t)bytes, PATTERN_BYTES, copy_pattern, h);
    h->used_bytes += bytes + SKEW_BYTES;
    return array;
}

/* Fills the pattern with normally distributed numbers of standard deviation `spread`. least 0: with their
 * absolute values. */
static void make_floats(struct host *h, enum ot_dtype dtype, float spread, float least, uint64_t tensor) {
    uint64_t stream = ot_random_stream(OT_RANDOM_TEST, 0, tensor);
    float normals[256];
    for (size_t i = 0; i < PATTERN_BYTES / ot_dtype_bytes(dtype); i++) {
        if (i % 256 == 0)
            ot_random_normals(1, stream, i, 256, normals);
        float value = spread * normals[i % 256];
        value = value < least ? -value : value;
        uint16_t half = dtype == OT_F16 ? ot_f16_from_f32(value) : ot_bf16_from_f32(value);
        if (dtype == OT_F32)
            memcpy(h->pattern + i * sizeof value, &value, sizeof value);
        else
            memcpy(h->pattern + i * sizeof half, &half, sizeof half);
    }
}

static void make_words(struct host *h) {
    for (size_t i = 0; i < PATTERN_BYTES / 16; i++) {
        uint32_t words[4];
        ot_random_block(1, ot_random_stream(OT_RANDOM_TEST, 1, 0), i, words);
        memcpy(h->pattern + i * sizeof words, words, sizeof words);
    }
}

static void make_doubles(struct host *h) {
    for (size_t i = 0; i < PATTERN_BYTES / sizeof(double); i++) {
        double value = ot_random_unit(1, ot_random_stream(OT_RANDOM_TEST, 2, 0), i);
        memcpy(h->pattern + i * sizeof value, &value, sizeof value);
    }
}

/* ---- timing ---- */

struct loops { /* loops over n elements, which alternate */
    struct host *host;
    int64_t n;
    const ot_pool_fn *fns;
    void *context;
};

static int time_loops(void *context, int number, int count, double *seconds) {
    const struct loops *loops = context;
    double since = ot_clock_seconds();
    for (int i = 0; i < count; i++)
        ot_pool_run(loops->host->pool, loops->n, CHUNK, loops->fns[number], loops->context);
    *seconds = (ot_clock_seconds() - since) / count;
    return 0;
}

/* Times each loop, within the time of one row. *times: the repeats of the fastest loop. */
static int measure(const struct loops *loops, int n, struct ot_repeats *times) {
    struct ot_repeats all[2];
    struct ot_timed_calls calls = {n, time_loops, (void *)loops, loops->host->config->seconds / n};
    int best = 0;
    OT_TRY(ot_repeats_take(&calls, all));
    for (int i = 1; i < n; i++)
        if (ot_repeats_median(&all[i]) < ot_repeats_median(&all[best]))
            best = i;
    *times = all[best];
    return 0;
}

static int use_threads(struct host *h, int threads) {
    ot_pool_close(h->pool);
    h->pool = NULL;
    h->used_bytes = 0;
    struct ot_pool_config config = {
        .threads = threads, .name = "probe", .on_start = ot_topology_place_thread, .arg = &h->binding};
    return ot_pool_open_with(&config, &h->pool);
}

static const char *thread_text(int threads, char text[32]) {
    snprintf(text, 32, "%d thread%s", threads, threads == 1 ? "" : "s");
    return text;
}

/* ---- the triad: a = b + 3 c ---- */

struct triad {
    double *a, *b, *c;
};

static void run_triad(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct triad *triad = context;
    double *restrict a = triad->a;
    const double *restrict b = triad->b, *restrict c = triad->c;
    for (int64_t i = begin; i < end; i++)
        a[i] = b[i] + 3 * c[i];
}

#ifdef __x86_64__
static void stream_triad(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct triad *triad = context;
    const __m128d three = _mm_set1_pd(3);
    for (int64_t i = begin; i < end; i += 2)
        _mm_stream_pd(triad->a + i,
                      _mm_add_pd(_mm_load_pd(triad->b + i), _mm_mul_pd(three, _mm_load_pd(triad->c + i))));
    _mm_sfence();
}
#endif

/* Measures the triad with ordinary stores, which read a cache line before they write it, and with streaming
 * stores, which do not. The machine and the thread count decide which is faster. The faster rate is reported.
 */
static int probe_triad(struct host *h, int number) {
    char name[64], threads[32];
    OT_TRY(use_threads(h, h->counts[number]));
    int64_t n = elements_of(h, BYTES_A_TRIAD);
    make_doubles(h);
    struct triad triad = {.a = add_array(h, n, 8), .b = add_array(h, n, 8), .c = add_array(h, n, 8)};
#ifdef __x86_64__
    const ot_pool_fn fns[] = {run_triad, stream_triad};
#else
    const ot_pool_fn fns[] = {run_triad};
#endif
    struct ot_repeats times;
    OT_TRY(measure(&(struct loops){h, n, fns, &triad}, sizeof fns / sizeof *fns, &times));
    snprintf(name, sizeof name, "triad, %s", thread_text(h->counts[number], threads));
    struct ot_probe_row row = {.group = OT_PROBE_MEMORY,
                               .use = h->counts[number] == h->config->threads ? OT_PROBE_TRIAD : 0,
                               .name = name,
                               .work = (double)n * BYTES_A_TRIAD};
    h->triads[number] = row.work / ot_repeats_median(&times);
    return ot_probe_report_times(&h->config->reader, row, &times);
}

/* ---- checksums, as the store's threads take them ---- */

static void run_checksums(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    struct host *h = context;
    h->sum ^= ot_crc32(0, h->memory + begin, (size_t)(end - begin));
}

static int probe_checksums(struct host *h) {
    char name[64];
    OT_TRY(use_threads(h, 1));
    make_words(h);
    int64_t n = (int64_t)(h->config->bytes / CHUNK) * CHUNK;
    add_array(h, n, 1);
    snprintf(name, sizeof name, "CRC-32 %s, 1 thread", ot_crc32_kernel());
    struct ot_probe_row row = {
        .group = OT_PROBE_MEMORY, .use = OT_PROBE_CRC, .name = name, .work = (double)n};
    const ot_pool_fn fn = run_checksums;
    struct ot_repeats times;
    OT_TRY(measure(&(struct loops){h, n, &fn, h}, 1, &times));
    return ot_probe_report_times(&h->config->reader, row, &times);
}

/* ---- AdamW ---- */

struct update {
    struct ot_adamw args;
    ot_adamw_fn kernel;
};

static void run_update(void *context, int64_t begin, int64_t end, int64_t chunk, int worker) {
    (void)chunk, (void)worker;
    const struct update *update = context;
    struct ot_adamw part = ot_adamw_slice(&update->args, begin, end - begin);
    update->kernel(&part);
}

/* Makes the moments of n parameters. Any bytes are codes of 8 bits. */
static void make_moments(struct host *h, int64_t n, struct ot_adamw *op) {
    enum ot_dtype dtype = op->state == OT_STATE_F32 ? OT_F32 : OT_BF16;
    if (op->state == OT_STATE_8BIT) {
        make_words(h);
        op->m = add_array(h, n, 1);
        op->v = add_array(h, n, 1);
        make_floats(h, OT_BF16, 1e-5f, 0, 3);
        op->scales = add_array(h, n / OT_STATE_GROUP, sizeof *op->scales);
        return;
    }
    make_floats(h, dtype, 1e-3f, -1, 3);
    op->m = add_array(h, n, ot_dtype_bytes(dtype));
    make_floats(h, dtype, 1e-6f, 0, 4); /* v is a mean of squares: never negative */
    op->v = add_array(h, n, ot_dtype_bytes(dtype));
}

/* Makes arrays of n parameters, with numbers of the size that a model has in the middle of training. */
static struct ot_adamw make_update(struct host *h, enum ot_state_format format,
                                   const struct ot_adamw_step *step) {
    static const size_t moments[OT_STATE_FORMATS] = {8, 4, 3}; /* enough bytes for each */
    enum ot_dtype dtype = h->config->dtype;
    enum ot_masters masters = h->config->masters;
    size_t elem = ot_dtype_bytes(dtype), master = dtype == OT_F32 ? 0 : dtype == OT_BF16 ? 2 : 4;
    int64_t n = elements_of(h, 2 * elem + master + moments[format]);
    struct ot_adamw op = {
        .dtype = dtype, .state = format, .masters = masters, .n = n, .decay = true, .step = step};
    h->used_bytes = 0;
    make_floats(h, dtype, 0.02f, -1, 1);
    op.weight = add_array(h, n, elem);
    if (dtype == OT_F16) {
        make_floats(h, OT_F32, 0.02f, -1, 1);
        op.master = add_array(h, n, 4);
    }
    make_floats(h, dtype, 1e-3f, -1, 2);
    op.grad = add_array(h, n, elem);
    make_moments(h, n, &op);
    if (dtype == OT_BF16 && masters == OT_MASTERS_F32) {
        make_words(h);
        op.low = add_array(h, n, 2);
    }
    return op;
}

/* Compact states are measured with the fastest kernel alone. */
static int probe_update(struct host *h, int number, const char *kernel, const struct ot_adamw *op) {
    char name[64], threads[32];
    struct update update = {*op, ot_adamw_kernel(kernel)};
    bool full = op->state == OT_STATE_F32, fastest = strcmp(kernel, ot_adamw_kernel_name()) == 0;
    bool is_training = h->counts[number] == h->config->optimizer_threads && fastest;
    if (!update.kernel || (h->config->quick && !is_training) || (!full && !fastest))
        return 0;
    snprintf(name, sizeof name, "AdamW %s%s%s, %s", kernel, full ? "" : ", state ",
             full ? "" : ot_state_format_name(op->state), thread_text(h->counts[number], threads));
    struct ot_probe_row row = {.group = OT_PROBE_OPTIMIZER,
                               .use = is_training ? OT_PROBE_ADAMW + op->state : OT_PROBE_NO_USE,
                               .name = name,
                               .work = ot_adamw_bytes(op->dtype, op->state, op->masters) * (double)op->n,
                               .peak = h->triads[number]};
    const ot_pool_fn fn = run_update;
    struct ot_repeats times;
    OT_TRY(measure(&(struct loops){h, op->n, &fn, &update}, 1, &times));
    return ot_probe_report_times(&h->config->reader, row, &times);
}

static int probe_updates(struct host *h, int number) {
    static const struct ot_adamw_step step = {.lr = 1e-5f,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.95f,
                                              .eps = 1e-8f,
                                              .weight_decay = 0.01f,
                                              .bias1 = 0.9f,
                                              .bias2_sqrt = 0.9f,
                                              .grad_scale = 1};
    OT_TRY(use_threads(h, h->counts[number]));
    for (int format = 0; format < OT_STATE_FORMATS; format++) {
        struct ot_adamw op = make_update(h, (enum ot_state_format)format, &step);
        for (const char *const *kernel = ot_adamw_kernel_names; *kernel; kernel++)
            OT_TRY(probe_update(h, number, *kernel, &op));
    }
    return 0;
}

/* ---- all of it ---- */

static void add_count(struct host *h, int count) {
    int at = 0;
    while (at < h->n_counts && h->counts[at] < count)
        at++;
    if (at < h->n_counts && h->counts[at] == count)
        return;
    memmove(h->counts + at + 1, h->counts + at, (size_t)(h->n_counts - at) * sizeof *h->counts);
    h->counts[at] = count;
    h->n_counts++;
}

int ot_probe_host(const struct ot_probe_host_config *config) {
    struct host h = {.config = config, .binding = {config->topology, OT_ROLE_OPTIMIZER}};
    int rc = 0;
    for (int count = 1; count < config->threads && !config->quick; count *= 2)
        add_count(&h, count);
    add_count(&h, config->threads);
    add_count(&h, config->optimizer_threads);
    OT_TRY_GOTO(open_memory(&h), rc, out);
    for (int i = 0; i < h.n_counts; i++)
        if (!config->quick || h.counts[i] == config->threads)
            OT_TRY_GOTO(probe_triad(&h, i), rc, out);
    OT_TRY_GOTO(probe_checksums(&h), rc, out);
    for (int i = 0; i < h.n_counts; i++)
        if (!config->quick || h.counts[i] == config->optimizer_threads)
            OT_TRY_GOTO(probe_updates(&h, i), rc, out);
out:
    close_host(&h);
    return rc;
}

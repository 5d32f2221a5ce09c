/* Chooses the AdamW kernel: the fastest that this CPU has. */
#include "kernels/adamw.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernels/cpu/adamw_kernels.h"
#include "src/base/clock.h"
#include "src/base/log.h"
#include "src/base/minmax.h"

const char *const ot_adamw_kernel_names[] = {"avx512", "avx2", "scalar", NULL};

#ifdef __x86_64__
/* __builtin_cpu_supports() of clang before version 18 does not know F16C. */
static bool has_f16c(void) {
    unsigned a, b, c, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

ot_adamw_fn ot_adamw_kernel(const char *name) {
#ifdef __x86_64__
    if (strcmp(name, "avx512") == 0 && __builtin_cpu_supports("avx512f") &&
        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl"))
        return ot_adamw_avx512;
    if (strcmp(name, "avx2") == 0 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        has_f16c())
        return ot_adamw_avx2;
#endif
    return strcmp(name, "scalar") == 0 ? ot_adamw_scalar : NULL;
}

/* ---- choice of the kernel ----
 *
 * The widest kernel is not the fastest on every CPU: Zen 4 splits 512-bit divisions and roots, and runs the
 * avx2 kernel faster. All kernels give the same bits, so a measurement may choose. Each kernel updates the
 * same few parameters, which stay in a core's cache. The shortest of several times counts, because a
 * disturbance only makes a time longer. The measurement takes some milliseconds. */

enum { PARAMS = 1 << 14, ROUNDS = 9, REPEATS = 8 };

struct few_params {
    uint16_t weight[PARAMS], grad[PARAMS];
    int16_t low[PARAMS];
    float m[PARAMS], v[PARAMS];
};

static double time_kernel(ot_adamw_fn kernel, struct few_params *few) {
    static const struct ot_adamw_step step = {.lr = 1e-4f,
                                              .beta1 = 0.9f,
                                              .beta2 = 0.95f,
                                              .eps = 1e-8f,
                                              .weight_decay = 0.1f,
                                              .bias1 = 0.1f,
                                              .bias2_sqrt = 0.2f,
                                              .grad_scale = 1};
    const struct ot_adamw update = {.dtype = OT_BF16,
                                    .n = PARAMS,
                                    .decay = true,
                                    .step = &step,
                                    .weight = few->weight,
                                    .low = few->low,
                                    .m = few->m,
                                    .v = few->v,
                                    .grad = few->grad};
    double shortest = 0;
    kernel(&update); /* warms up: page faults, caches */
    for (int round = 0; round < ROUNDS; round++) {
        double began = ot_clock_seconds();
        for (int i = 0; i < REPEATS; i++)
            kernel(&update);
        double seconds = ot_clock_seconds() - began;
        shortest = round == 0 || seconds < shortest ? seconds : shortest;
    }
    return shortest;
}

/* Takes the widest kernel if there is no memory for a measurement. */
static const char *find_fastest(void) {
    struct few_params *few = malloc(sizeof *few);
    const char *fastest = NULL;
    double shortest = 0;
    for (int i = 0; few && i < PARAMS; i++) { /* typical numbers: none is 0 or denormal */
        few->weight[i] = few->grad[i] = ot_bf16_from_f32(0.01f * (float)(i % 97 + 1));
        few->low[i] = (int16_t)i;
        few->m[i] = few->v[i] = 1e-4f * (float)(i % 89 + 1);
    }
    for (const char *const *name = ot_adamw_kernel_names; *name; name++) {
        ot_adamw_fn kernel = ot_adamw_kernel(*name);
        if (!kernel || kernel == ot_adamw_scalar || (!few && fastest))
            continue;
        double seconds = few ? time_kernel(kernel, few) : 0;
        if (!fastest || seconds < shortest) {
            fastest = *name;
            shortest = seconds;
        }
    }
    free(few);
    return fastest ? fastest : "scalar";
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *chosen_name;
static ot_adamw_fn chosen;

static void choose(void) {
    const char *forced = getenv("OFFLOAD_TRAIN_ADAMW"), *wanted = forced ? forced : find_fastest();
    for (const char *const *name = ot_adamw_kernel_names; *name && !chosen; name++)
        if (strcmp(wanted, *name) == 0) {
            chosen_name = *name;
            chosen = ot_adamw_kernel(*name);
        }
    if (chosen)
        return;
    ot_log(OT_LOG_WARN, "OFFLOAD_TRAIN_ADAMW=%s: this CPU has no such kernel; using the scalar one", forced);
    chosen_name = "scalar";
    chosen = ot_adamw_scalar;
}

const char *ot_adamw_kernel_name(void) {
    pthread_once(&once, choose);
    return chosen_name;
}

void ot_adamw_run(const struct ot_adamw *args) {
    pthread_once(&once, choose);
    chosen(args);
}

struct ot_adamw ot_adamw_slice(const struct ot_adamw *whole, int64_t first, int64_t n) {
    static const ptrdiff_t moment_bytes[OT_STATE_FORMATS] = {sizeof(float), sizeof(uint16_t),
                                                             sizeof(uint8_t)};
    struct ot_adamw part = *whole;
    ptrdiff_t bytes = (ptrdiff_t)first * (ptrdiff_t)ot_dtype_bytes(whole->dtype);
    ptrdiff_t moments = (ptrdiff_t)first * moment_bytes[whole->state];
    part.n = n;
    part.first += first;
    part.weight = (char *)whole->weight + bytes;
    part.grad = (const char *)whole->grad + bytes;
    part.m = (char *)whole->m + moments;
    part.v = (char *)whole->v + moments;
    if (whole->scales)
        part.scales += part.first / OT_STATE_GROUP - whole->first / OT_STATE_GROUP;
    if (whole->low)
        part.low += first;
    if (whole->master)
        part.master += first;
    return part;
}

struct ot_adamw_cut ot_adamw_cut(const struct ot_adamw *args, int64_t unit) {
    int64_t lead = ot_adamw_rounds(args) ? args->first % unit : 0, head = lead ? unit - lead : 0;
    head = ot_min(head, args->n);
    int64_t whole = (args->n - head) / unit * unit, behind = head + whole;
    return (struct ot_adamw_cut){ot_adamw_slice(args, 0, head), ot_adamw_slice(args, head, whole),
                                 ot_adamw_slice(args, behind, args->n - behind)};
}

int64_t ot_adamw_places(const struct ot_adamw *whole) {
    return whole->n + whole->first % OT_STATE_GROUP;
}

struct ot_adamw ot_adamw_chunk(const struct ot_adamw *whole, int64_t begin, int64_t end) {
    int64_t lead = whole->first % OT_STATE_GROUP;
    int64_t first = begin > lead ? begin - lead : 0, last = end > lead ? end - lead : 0;
    return ot_adamw_slice(whole, first, last - first);
}

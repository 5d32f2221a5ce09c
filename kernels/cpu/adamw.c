#include "kernels/adamw.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#ifdef __x86_64__
#include <cpuid.h>
#endif

#include "kernels/cpu/adamw_kernels.h"
#include "src/base/log.h"

const char *const ot_adamw_kernel_names[] = {"avx512", "avx2", "scalar", NULL};

#ifdef __x86_64__
/* __builtin_cpu_supports() of clang before 18 does not know this one. */
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

static pthread_once_t once = PTHREAD_ONCE_INIT;
static const char *chosen_name;
static ot_adamw_fn chosen;

static void choose(void) {
    const char *forced = getenv("OFFLOAD_TRAIN_ADAMW");
    for (const char *const *name = ot_adamw_kernel_names; *name && !chosen; name++)
        if (!forced || strcmp(forced, *name) == 0) {
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
    struct ot_adamw part = *whole;
    ptrdiff_t bytes = (ptrdiff_t)first * (ptrdiff_t)ot_dtype_bytes(whole->dtype);
    part.n = n;
    part.weight = (char *)whole->weight + bytes;
    part.grad = (const char *)whole->grad + bytes;
    part.m += first;
    part.v += first;
    if (whole->low)
        part.low += first;
    if (whole->master)
        part.master += first;
    return part;
}

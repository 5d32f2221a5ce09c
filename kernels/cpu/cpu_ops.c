#include "kernels/cpu/cpu_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* One table for each compilation of ops_table.c in kernels/cpu/meson.build. With OT_CPU_OPS_NATIVE there is
 * one alone, for the machine that compiled it. */
extern const struct ot_ops ot_cpu_ops_baseline;
#if defined(__x86_64__)
extern const struct ot_ops ot_cpu_ops_avx2, ot_cpu_ops_avx512;
#endif

/* Unused in some builds with OT_CPU_OPS_NATIVE. */
__attribute__((unused)) static bool has_baseline(void) {
    return true;
}

#if defined(__x86_64__)
__attribute__((unused)) static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

__attribute__((unused)) static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#define NAMED(name)                                                                                          \
    { {#name, &ot_cpu_ops_##name}, has_##name }
#define BUILD(name) NAMED(name)
static const struct {
    struct ot_cpu_ops_build build;
    bool (*runs_here)(void);
} builds[] = {
/* best first */
#if defined(OT_CPU_OPS_NATIVE)
    BUILD(OT_CPU_OPS_NATIVE),
#else
#if defined(__x86_64__)
    BUILD(avx512),
    BUILD(avx2),
#endif
    BUILD(baseline),
#endif
};

enum { BUILDS = sizeof builds / sizeof *builds };

struct ot_cpu_ops_build ot_cpu_ops_choose(void) {
    int i = 0;
    while (i < BUILDS - 1 && !builds[i].runs_here())
        i++;
    return builds[i].build;
}

const struct ot_ops *ot_cpu_ops_named(const char *name) {
    for (int i = 0; i < BUILDS; i++)
        if (strcmp(builds[i].build.name, name) == 0 && builds[i].runs_here())
            return builds[i].build.ops;
    return NULL;
}

#include "kernels/cpu/cpu_ops.h"

#include <stdbool.h>
#include <stddef.h>
#include <string.h>

/* One table for each compilation of ops_table.c in kernels/cpu/meson.build. */
extern const struct ot_ops ot_cpu_ops_baseline;
#if defined(__x86_64__)
extern const struct ot_ops ot_cpu_ops_avx2, ot_cpu_ops_avx512;
#endif

static bool always(void) {
    return true;
}

#if defined(__x86_64__)
static bool has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static const struct {
    struct ot_cpu_ops_build build;
    bool (*runs_here)(void);
} builds[] = {
/* best first */
#if defined(__x86_64__)
    {{"avx512", &ot_cpu_ops_avx512}, has_avx512},
    {{"avx2", &ot_cpu_ops_avx2}, has_avx2},
#endif
    {{"baseline", &ot_cpu_ops_baseline}, always},
};

enum { BUILDS = sizeof builds / sizeof *builds };

struct ot_cpu_ops_build ot_cpu_ops_choose(void) {
    int i = 0;
    while (!builds[i].runs_here())
        i++;
    return builds[i].build;
}

const struct ot_ops *ot_cpu_ops_named(const char *name) {
    for (int i = 0; i < BUILDS; i++)
        if (strcmp(builds[i].build.name, name) == 0 && builds[i].runs_here())
            return builds[i].build.ops;
    return NULL;
}

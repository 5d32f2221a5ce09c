/* Chooses the build of the ops. ops_table.c is compiled for several instruction sets, and the best one that
 * this CPU supports is chosen once. All builds give the same bits, except for the work that they leave to
 * BLAS, which chooses its own kernels.
 */
#ifndef OT_KERNELS_CPU_OPS_H
#define OT_KERNELS_CPU_OPS_H

#include "kernels/ops.h"

struct ot_cpu_ops_build {
    /* "avx512", "avx2" or "baseline" (the instruction set that the compiler assumes by default) */
    const char *name;
    const struct ot_ops *ops;
};

struct ot_cpu_ops_build ot_cpu_ops_choose(void);
/* For tests: the ops of the named build, or NULL if this CPU or this program lacks it. */
const struct ot_ops *ot_cpu_ops_named(const char *name);

#endif

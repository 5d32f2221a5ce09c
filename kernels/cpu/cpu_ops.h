/* Which build of the ops runs. ops_table.c is compiled for several instruction sets; the best one that this
 * CPU has is chosen once. All give the same bits, but for what they leave to BLAS, which chooses for itself.
 */
#ifndef OT_KERNELS_CPU_OPS_H
#define OT_KERNELS_CPU_OPS_H

#include "kernels/ops.h"

struct ot_cpu_ops_build {
    const char *name; /* "avx512", "avx2", "baseline": what the compiler assumes of any CPU of this kind */
    const struct ot_ops *ops;
};

struct ot_cpu_ops_build ot_cpu_ops_choose(void);
/* For tests: the named build's ops, or NULL where this CPU or build lacks it. */
const struct ot_ops *ot_cpu_ops_named(const char *name);

#endif

/* The kernels of AdamW that a test can run here. */
#ifndef OT_TESTS_ADAMW_KERNEL_LIST_H
#define OT_TESTS_ADAMW_KERNEL_LIST_H

#include <string.h>

#include "kernels/adamw.h"

#ifdef OT_TEST_EMULATED_AVX512
void ot_adamw_avx512_emulated(const struct ot_adamw *args);
#endif

/* Returns the kernel with a name of kernels/adamw.h, or "emulated avx512": the kernel for AVX-512 with its
 * instructions in plain C. NULL: this CPU lacks it. */
static inline ot_adamw_fn find_adamw_kernel(const char *name) {
#ifdef OT_TEST_EMULATED_AVX512
    if (strcmp(name, "emulated avx512") == 0)
        return ot_adamw_kernel("avx2") ? ot_adamw_avx512_emulated : NULL;
#endif
    return ot_adamw_kernel(name);
}

#endif

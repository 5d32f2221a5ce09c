/* A matrix product of the cpu device, as its libraries and its own AMX code take it. */
#ifndef OT_KERNELS_CPU_PRODUCT_H
#define OT_KERNELS_CPU_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* C[m,n] = op(A)[m,k] op(B)[k,n], row-major, added to C where accumulate is set; C is not read where it is
 * not. */
struct ot_cpu_product {
    bool trans_a, trans_b, accumulate;
    int64_t m, n, k;
    const void *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
};

#endif

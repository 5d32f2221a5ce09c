/* A matrix product of the cpu device: the arguments for its libraries and for its own AMX code. */
#ifndef OT_KERNELS_CPU_PRODUCT_H
#define OT_KERNELS_CPU_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* C[m,n] = op(A)[m,k] op(B)[k,n], row-major. If accumulate is set, it is added to C; otherwise C is not
 * read. */
struct ot_cpu_product {
    bool trans_a, trans_b, accumulate;
    int64_t m, n, k;
    const void *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
};

#endif

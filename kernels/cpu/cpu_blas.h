/* The matrix products of the cpu device: OpenBLAS for fp32; for bf16, oneDNN where the CPU multiplies bf16
 * natively.
 *
 * Both run on the calling thread alone: the device's pool does the parallel work, on tiles that depend on the
 * shape alone, so that the bits never depend on the number of threads. Both are safe to call from many
 * threads.
 *
 * oneDNN is opened at run time: without it (or on a CPU without AVX512-BF16) bf16 operands are converted to
 * fp32, which is exact, and OpenBLAS multiplies them; only the order of additions differs.
 * OFFLOAD_TRAIN_BF16=openblas in the environment forces that.
 */
#ifndef OT_KERNELS_CPU_BLAS_H
#define OT_KERNELS_CPU_BLAS_H

#include <stdbool.h>
#include <stdint.h>

/* C[m,n] = alpha op(A)[m,k] op(B)[k,n] + beta C, row-major. C is not read where beta is 0. */
struct ot_cpu_product {
    bool trans_a, trans_b;
    int64_t m, n, k;
    const void *a, *b;
    float *c;
    int64_t lda, ldb, ldc;
    float alpha, beta;
};

void ot_cpu_blas_f32(const struct ot_cpu_product *product);
bool ot_cpu_blas_has_bf16(void);
void ot_cpu_blas_bf16(const struct ot_cpu_product *product); /* only where ot_cpu_blas_has_bf16 */

/* For the device's name: "OpenBLAS, oneDNN bf16". */
const char *ot_cpu_blas_name(void);

#endif

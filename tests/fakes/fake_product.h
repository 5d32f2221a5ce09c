/* A matrix product on an emulated stream: the fake cuBLASLt (fake_cublaslt.h) runs this instead of kernels.
 * Matrices are column-major; types are cuBLASLt's numbers. */
#ifndef OT_KERNELS_EMU_FAKE_PRODUCT_H
#define OT_KERNELS_EMU_FAKE_PRODUCT_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* D[m,n] = alpha * op(A)[m,k] op(B)[k,n] + beta * C (+ bias[m]). C is not read if beta is 0. */
struct fake_product {
    int type, d_type; /* type: of A and B; d_type: of C, D and the bias */
    bool trans_a, trans_b;
    int64_t m, n, k, lda, ldb, ldc, ldd;
    const void *a, *b, *c, *bias; /* bias may be NULL */
    void *d;
    float alpha, beta;
    void *workspace; /* the product may overwrite all of it */
    uint64_t workspace_bytes;
    int64_t split;     /* length of the first of two parts of k; 0: k is one part */
    bool rounds_parts; /* the first part is rounded to the type of D before the second part is added */
    int delay_us;      /* extra time of the product */
    bool flips;        /* one bit of the result is wrong */
};

/* Enqueues a copy of the product. If it would touch memory that it may not touch, the device fails with
 * cudaErrorIllegalAddress, as after a kernel. */
cudaError_t fake_product_enqueue(const struct fake_product *product, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

/* A matrix product on an emulated stream: what the fake cuBLASLt (fake_cublaslt.h) has in place of kernels.
 * Matrices are column-major; types are cuBLASLt's numbers. */
#ifndef OT_KERNELS_EMU_FAKE_PRODUCT_H
#define OT_KERNELS_EMU_FAKE_PRODUCT_H

#include <cuda_runtime_api.h>

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* D[m,n] = alpha * op(A)[m,k] op(B)[k,n] + beta * C (+ bias[m]); C is not read where beta is 0. */
struct fake_product {
    int type, d_type; /* of A and B; of C, D and the bias */
    bool trans_a, trans_b;
    int64_t m, n, k, lda, ldb, ldc, ldd;
    const void *a, *b, *c, *bias; /* bias may be NULL */
    void *d;
    float alpha, beta;
    void *workspace; /* all of it is the product's */
    uint64_t workspace_bytes;
    int64_t split;     /* k is summed in two parts of which this is the first; 0: in one */
    bool rounds_parts; /* the first part is rounded to the type of D before the second is added */
    int delay_us;      /* taken besides */
    bool flips;        /* a bit of the result is wrong */
};

/* Enqueues a copy of it. Memory that it may not touch is cudaErrorIllegalAddress of the device, as of a
 * kernel. */
cudaError_t fake_product_enqueue(const struct fake_product *product, cudaStream_t stream);

#ifdef __cplusplus
}
#endif

#endif

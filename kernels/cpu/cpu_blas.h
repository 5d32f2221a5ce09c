/* The matrix products of the cpu device. Each runs on the calling thread alone. The device's pool does the
 * parallel work, on tiles that depend on the shape alone, so the bits never depend on the number of threads.
 * Many threads may call.
 *
 * fp32: oneDNN, if its library can be opened at run time; it is some 15 % faster (tests/bench/bench_ops.c).
 * Otherwise OpenBLAS, which is linked. Two threads must not call an OpenBLAS that was built without threads.
 * Such calls are serialized, which is slow, and the device's name says "serial". OFFLOAD_TRAIN_BLAS=onednn or
 * openblas in the environment chooses one.
 *
 * bf16, the first of these that the machine supports: AMX tiles, whose operands the caller packs (cpu_amx.h);
 * oneDNN, if the CPU has AVX512-BF16; otherwise the caller converts the operands to fp32, which is exact. The
 * three differ in the order of additions only. OFFLOAD_TRAIN_BF16=amx, onednn or convert chooses one.
 */
#ifndef OT_KERNELS_CPU_BLAS_H
#define OT_KERNELS_CPU_BLAS_H

#include "kernels/cpu/cpu_product.h"

/* Chooses the libraries. The other functions do it too if it has not been done. OT_E_DEVICE, OT_E_BUDGET: a
 * library is installed but fails. */
int ot_cpu_blas_open(void);
/* 0, or the error of the first product that failed, in any thread. Results computed since then are not
 * valid. */
int ot_cpu_blas_error(void);

void ot_cpu_blas_f32(const struct ot_cpu_product *product);

enum ot_cpu_bf16 { OT_CPU_BF16_CONVERT, OT_CPU_BF16_ONEDNN, OT_CPU_BF16_AMX };
enum ot_cpu_bf16 ot_cpu_blas_bf16_way(void);
/* only if ot_cpu_blas_bf16_way is OT_CPU_BF16_ONEDNN */
void ot_cpu_blas_onednn(const struct ot_cpu_product *product);

/* C = C - A op(B), or C = A op(B), in fp64, by OpenBLAS. For factorisations on the host (src/quantize). */
struct ot_cpu_product_f64 {
    bool trans_b, subtract;
    int64_t m, n, k;
    const double *a, *b;
    double *c;
    int64_t lda, ldb, ldc;
};
void ot_cpu_blas_f64(const struct ot_cpu_product_f64 *product);

/* A text for the device's name: "oneDNN, AMX bf16". */
const char *ot_cpu_blas_name(void);
/* Names everything that the bits of a product depend on: libraries, versions and instruction sets, for fp32
 * and bf16: "oneDNN 2.6.0 avx2, bf16 converted" */
const char *ot_cpu_blas_arithmetic(void);

#endif

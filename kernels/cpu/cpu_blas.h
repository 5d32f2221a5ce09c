/* The matrix products of the cpu device, on the calling thread alone: the device's pool does the parallel
 * work, on tiles that depend on the shape alone, so that the bits never depend on the number of threads. All
 * may be called by many threads.
 *
 * fp32: oneDNN where its library can be opened at run time, which is some 15 % faster than the other
 * (tests/bench/bench_ops.c); else OpenBLAS, which is linked. An OpenBLAS that was built without threads is
 * not safe to call from two of them: it is then called by one at a time, which is slow, and the name says
 * "serial". OFFLOAD_TRAIN_BLAS=onednn or openblas in the environment asks for one.
 *
 * bf16, the first that there is: AMX tiles, whose operands the caller packs (cpu_amx.h); oneDNN, where the
 * CPU has AVX512-BF16; else the caller converts operands to fp32, which is exact. Only the order of additions
 * differs. OFFLOAD_TRAIN_BF16=amx, onednn or convert asks for one.
 */
#ifndef OT_KERNELS_CPU_BLAS_H
#define OT_KERNELS_CPU_BLAS_H

#include "kernels/cpu/cpu_product.h"

/* Chooses the libraries; the other functions do it too. Errors: OT_E_DEVICE, OT_E_BUDGET (one is there and
 * fails). */
int ot_cpu_blas_open(void);
/* 0, or the error of the first product that failed, in any thread. Nothing that was computed since counts. */
int ot_cpu_blas_error(void);

void ot_cpu_blas_f32(const struct ot_cpu_product *product);

enum ot_cpu_bf16 { OT_CPU_BF16_CONVERT, OT_CPU_BF16_ONEDNN, OT_CPU_BF16_AMX };
enum ot_cpu_bf16 ot_cpu_blas_bf16_way(void);
void ot_cpu_blas_onednn(const struct ot_cpu_product *product); /* only where that is the way */

/* For the device's name: "oneDNN, AMX bf16". */
const char *ot_cpu_blas_name(void);
/* Names all that the bits of a product depend on: libraries, versions and instruction sets, of fp32 and of
 * bf16. "oneDNN 2.6.0 avx2, bf16 converted" */
const char *ot_cpu_blas_arithmetic(void);

#endif

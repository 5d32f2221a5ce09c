/* bf16 products on Intel's AMX tiles (Sapphire Rapids and later).
 *
 * Why own code: on the small shapes of this device, cut into tiles by one caller, it runs 1.5 to 2 times as
 * fast as the GEMM entry of oneDNN 2.6, which is what distributions ship (tests/bench/bench_ops.c). Safe to
 * call from many threads.
 */
#ifndef OT_KERNELS_CPU_AMX_H
#define OT_KERNELS_CPU_AMX_H

#include <stdbool.h>

#include "kernels/cpu/cpu_blas.h"

/* Whether CPU, kernel and build have it; asks the kernel for the tile registers. */
bool ot_cpu_amx_open(void);

/* What follows may be called only after ot_cpu_amx_open returned true. */

void ot_cpu_amx_product(const struct ot_cpu_product *product);

/* The same in two halves, so that a large product packs each operand once for all the tiles of C that use it.
 * A panel is 32 rows of A, or 32 columns of B, with all of k; the last one is filled up with zeros. */
enum { OT_CPU_AMX_PANEL = 32 };
int64_t ot_cpu_amx_panel_elems(int64_t k); /* of bf16; panels must be 64-byte aligned */
void ot_cpu_amx_pack_a(const struct ot_cpu_product *product, int64_t row, uint16_t *panel);
void ot_cpu_amx_pack_b(const struct ot_cpu_product *product, int64_t col, uint16_t *panel);
/* a and b are the panels of the product's first row and column, those of the next ones follow; no lda, ldb,
 * trans_*. */
void ot_cpu_amx_multiply(const struct ot_cpu_product *packed);

#endif

/* bf16 products on Intel's AMX tiles (Sapphire Rapids and later), on the calling thread, from operands packed
 * into panels. A panel is 32 rows of A, or 32 columns of B, with all of k; the last one is filled up with
 * zeros. The caller packs each operand once, with as many threads as it likes, for all the tiles of C that
 * use it.
 *
 * Why own code: the GEMM entry of oneDNN 2.6, which is what distributions ship, packs again for every tile of
 * C and reaches two thirds of this rate on weight gradients (tests/bench/bench_ops.c). Safe to call from many
 * threads.
 */
#ifndef OT_KERNELS_CPU_AMX_H
#define OT_KERNELS_CPU_AMX_H

#include <stdbool.h>

#include "kernels/cpu/cpu_product.h"

/* Whether CPU, kernel and build have it; asks the kernel for the tile registers. */
bool ot_cpu_amx_open(void);

/* What follows may be called only after ot_cpu_amx_open returned true. */

enum { OT_CPU_AMX_PANEL = 32 };
int64_t ot_cpu_amx_panel_elems(int64_t k); /* of bf16; panels must be 64-byte aligned */
void ot_cpu_amx_pack_a(const struct ot_cpu_product *product, int64_t row, uint16_t *panel);
void ot_cpu_amx_pack_b(const struct ot_cpu_product *product, int64_t col, uint16_t *panel);

/* a and b are the panels of the product's first row and column, those of the next ones follow. lda is 0; or
 * else a is not packed but where it lies, with m and k multiples of 32. trans_* and ldb are not read. */
void ot_cpu_amx_multiply(const struct ot_cpu_product *packed);

#endif
